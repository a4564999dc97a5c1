//! The pool against a naive model, and eviction orders computed by hand.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::model::prompt::Prompt;

const BLOCK: u32 = 4;

impl KvCache {
    /// Checks what must hold at any time, given all tables in use.
    pub(crate) fn assert_consistent<'a>(&self, tables: impl Iterator<Item = &'a BlockTable>) {
        let mut references = vec![0u32; self.slots.len()];
        for table in tables {
            assert!(table.cached <= table.len());
            for &block in &table.blocks {
                references[block as usize] += 1;
            }
        }
        let mut holders: HashMap<BlockHash, u32> = HashMap::new();
        for (block, slot) in self.slots.iter().enumerate() {
            assert_eq!(slot.references, references[block], "references of {block}");
            assert_eq!(self.free.contains(block as u32), slot.references == 0);
            if let Some(hash) = slot.hash {
                *holders.entry(hash).or_default() += 1;
            }
        }
        let used = references.iter().filter(|&&count| count > 0).count() as u32;
        assert_eq!(self.free_blocks() + used, self.usable_blocks());
        assert_eq!(self.hashed_blocks, holders.values().sum::<u32>());
        assert_eq!(self.oldest.len(), holders.len());
        for (hash, count) in holders {
            let first = self.oldest[&hash];
            let mut block = first;
            for _ in 0..count {
                assert_eq!(self.slots[block as usize].hash, Some(hash));
                block = self.slots[block as usize].ring_next;
            }
            assert_eq!(block, first, "the ring of a hash holds exactly its blocks");
        }
    }
}

/// A pool as one would write it without caring for speed. Shares nothing with the real one but
/// the hash type.
#[derive(Default)]
struct Naive {
    /// Free block ids, next victim first.
    free: Vec<u32>,
    references: Vec<u32>,
    /// Every cached block with its hash, in the order of caching.
    cached: Vec<(BlockHash, u32)>,
    log: Vec<CacheEvent>,
}

impl Naive {
    fn new(usable: u32) -> Self {
        Self {
            free: (0..usable).collect(),
            references: vec![0; usable as usize],
            ..Self::default()
        }
    }

    fn find(&self, hashes: &[BlockHash], tokens: u32) -> Vec<u32> {
        let mut found = Vec::new();
        for hash in hashes {
            if (found.len() as u32 + 1) * BLOCK >= tokens {
                break;
            }
            match self.cached.iter().find(|(other, _)| other == hash) {
                Some((_, block)) => found.push(*block),
                None => break,
            }
        }
        found
    }

    /// Extends `table` to `tokens` tokens, or returns false and changes nothing.
    fn extend(&mut self, table: &mut Vec<u32>, hits: &[u32], tokens: u32) -> bool {
        let mut free = self.free.clone();
        free.retain(|block| !hits.contains(block));
        let mut want = Vec::new();
        while ((table.len() + hits.len() + want.len()) as u32 * BLOCK) < tokens {
            if free.is_empty() {
                return false;
            }
            want.push(free.remove(0));
        }
        self.free = free;
        for &block in hits.iter().chain(&want) {
            self.references[block as usize] += 1;
        }
        for block in &want {
            if let Some(at) = self.cached.iter().position(|(_, other)| other == block) {
                let (hash, _) = self.cached.remove(at);
                self.log.push(CacheEvent::Removed { hashes: vec![hash] });
            }
        }
        table.extend(hits);
        table.extend(want);
        true
    }

    fn cache(&mut self, table: &[u32], hashes: &[BlockHash], from: u32, to: u32) {
        if from >= to {
            return;
        }
        let (from, to) = (from as usize, to as usize);
        for at in from..to {
            self.cached.push((hashes[at], table[at]));
        }
        self.log.push(CacheEvent::Stored {
            hashes: hashes[from..to].to_vec(),
            parent: (from > 0).then(|| hashes[from - 1]),
            tokens: Vec::new(),
        });
    }

    fn release(&mut self, table: &[u32]) {
        for &block in table.iter().rev() {
            self.references[block as usize] -= 1;
            if self.references[block as usize] == 0 {
                if self.cached.iter().any(|(_, other)| *other == block) {
                    self.free.push(block);
                } else {
                    self.free.insert(0, block);
                }
            }
        }
    }
}

/// What a test does to both pools.
#[derive(Clone, Debug)]
enum Op {
    /// A request with this much of a shared prefix, then tokens of its own.
    Start {
        family: u32,
        shared: u32,
        own: u32,
    },
    /// A running request computes more of its context.
    Grow {
        which: usize,
        tokens: u32,
    },
    Finish {
        which: usize,
    },
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3u32, 0..40u32, 0..12u32)
            .prop_map(|(family, shared, own)| Op::Start { family, shared, own }),
        4 => (any::<usize>(), 1..20u32).prop_map(|(which, tokens)| Op::Grow { which, tokens }),
        3 => any::<usize>().prop_map(|which| Op::Finish { which }),
        1 => Just(Op::Clear),
    ]
}

struct Running {
    hashes: Vec<BlockHash>,
    total: u32,
    computed: u32,
    table: BlockTable,
    naive: Vec<u32>,
}

impl Running {
    fn cache(&mut self, kv: &mut KvCache, naive: &mut Naive) {
        let from = self.table.cached_blocks();
        kv.cache_full_blocks(&mut self.table, &self.hashes, self.computed, |_| Vec::new());
        naive.cache(&self.naive, &self.hashes, from, self.computed / BLOCK);
    }
}

fn start(kv: &mut KvCache, naive: &mut Naive, tokens: Vec<u32>) -> Option<Running> {
    let prompt = Prompt::from_tokens("m", tokens, BLOCK).unwrap();
    let (hashes, total) = (prompt.block_hashes, prompt.token_count);
    let mut hits = Hits::default();
    kv.find(&hashes, total, &mut hits);
    let naive_hits = naive.find(&hashes, total);
    assert_eq!(hits.blocks, naive_hits);
    let first_chunk = (hits.len() * BLOCK + 7).min(total);
    let mut running = Running {
        hashes,
        total,
        computed: first_chunk,
        table: BlockTable::default(),
        naive: Vec::new(),
    };
    let got = kv.allocate(&mut running.table, &hits, first_chunk).is_ok();
    assert_eq!(got, naive.extend(&mut running.naive, &naive_hits, first_chunk));
    got.then(|| {
        running.cache(kv, naive);
        running
    })
}

fn compare(kv: &KvCache, naive: &Naive, running: &[Running]) {
    assert_eq!(kv.free.order(), naive.free);
    for request in running {
        assert_eq!(request.table.blocks, request.naive);
    }
    kv.assert_consistent(running.iter().map(|request| &request.table));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn behaves_as_the_naive_pool(usable in 4..24u32, ops in prop::collection::vec(op(), 1..120)) {
        let mut kv = KvCache::new(usable + 1, BLOCK);
        kv.record_events(true);
        let mut naive = Naive::new(usable);
        let mut running: Vec<Running> = Vec::new();
        for (serial, op) in ops.into_iter().enumerate() {
            match op {
                Op::Start { family, shared, own } => {
                    let unique = 1_000_000 + serial as u32 * 100;
                    let mut tokens: Vec<u32> = (0..shared).map(|at| family * 1000 + at).collect();
                    tokens.extend((0..=own).map(|at| unique + at));
                    running.extend(start(&mut kv, &mut naive, tokens));
                }
                Op::Grow { which, tokens } if !running.is_empty() => {
                    let at = which % running.len();
                    let request = &mut running[at];
                    let target = (request.computed + tokens).min(request.total);
                    let got = kv.allocate(&mut request.table, &Hits::default(), target).is_ok();
                    prop_assert_eq!(got, naive.extend(&mut request.naive, &[], target));
                    if got {
                        request.computed = target;
                        request.cache(&mut kv, &mut naive);
                    }
                }
                Op::Finish { which } if !running.is_empty() => {
                    let mut request = running.swap_remove(which % running.len());
                    kv.release(&mut request.table);
                    naive.release(&request.naive);
                }
                Op::Clear => {
                    prop_assert_eq!(kv.clear(), running.is_empty());
                    if running.is_empty() {
                        naive.cached.clear();
                        naive.log.push(CacheEvent::Cleared);
                    }
                }
                Op::Grow { .. } | Op::Finish { .. } => {}
            }
            compare(&kv, &naive, &running);
        }
        prop_assert_eq!(kv.take_events(), naive.log);
    }
}

fn hashes_of(first_token: u32, blocks: u32) -> Vec<BlockHash> {
    let tokens: Vec<u32> = (first_token..first_token + blocks * BLOCK).collect();
    Prompt::from_tokens("m", tokens, BLOCK).unwrap().block_hashes
}

/// Runs a request of whole blocks through the pool; returns how many blocks hit.
fn serve(kv: &mut KvCache, hashes: &[BlockHash]) -> u32 {
    let tokens = hashes.len() as u32 * BLOCK;
    let (mut table, mut hits) = (BlockTable::default(), Hits::default());
    kv.find(hashes, tokens, &mut hits);
    kv.allocate(&mut table, &hits, tokens).unwrap();
    kv.cache_full_blocks(&mut table, hashes, tokens, |_| Vec::new());
    kv.release(&mut table);
    hits.len()
}

#[test]
fn a_prefix_loses_its_tail_before_its_head() {
    let mut kv = KvCache::new(1 + 6, BLOCK);
    let a = hashes_of(0, 4);
    serve(&mut kv, &a);
    // Two of the six blocks are fresh, so three new ones evict one block: the last of `a`.
    serve(&mut kv, &hashes_of(100, 3));
    let resident: Vec<bool> = a.iter().map(|&hash| kv.contains(hash)).collect();
    assert_eq!(resident, [true, true, true, false]);
    assert_eq!(kv.evictions(), 1);
}

#[test]
fn a_hit_renews_the_whole_prefix() {
    let mut kv = KvCache::new(1 + 8, BLOCK);
    let (a, b) = (hashes_of(0, 4), hashes_of(100, 4));
    serve(&mut kv, &a);
    serve(&mut kv, &b);
    // `a` is older than `b`; using it makes `b` the older one. Its last block is computed anew, in
    // the victim at the front: its own last block, freed first.
    assert_eq!(serve(&mut kv, &a), 3);
    serve(&mut kv, &hashes_of(200, 4));
    assert!(a.iter().all(|&hash| kv.contains(hash)));
    assert!(b.iter().all(|&hash| !kv.contains(hash)));
}

#[test]
fn equal_blocks_live_side_by_side_and_the_older_is_hit() {
    let mut kv = KvCache::new(1 + 8, BLOCK);
    let a = hashes_of(0, 2);
    let mut tables = [BlockTable::default(), BlockTable::default()];
    for table in &mut tables {
        kv.allocate(table, &Hits::default(), 8).unwrap();
        kv.cache_full_blocks(table, &a, 8, |_| Vec::new());
    }
    assert_eq!(kv.hashed_blocks(), 4);
    let mut hits = Hits::default();
    kv.find(&a, 100, &mut hits);
    assert_eq!(hits.blocks, tables[0].blocks);
    let [mut first, mut second] = tables;
    kv.release(&mut first);
    kv.release(&mut second);
    // Free order: 4 fresh blocks, then first's tail and head, then second's. Evicting 6 takes both
    // of first's; the twins keep the prefix findable.
    let mut other = BlockTable::default();
    kv.allocate(&mut other, &Hits::default(), 6 * BLOCK).unwrap();
    kv.find(&a, 100, &mut hits);
    assert_eq!((hits.len(), kv.evictions(), kv.hashed_blocks()), (2, 2, 2));
}

#[test]
fn when_the_oldest_of_equal_blocks_goes_the_second_oldest_is_hit() {
    let mut kv = KvCache::new(1 + 3, BLOCK);
    let a = hashes_of(0, 1);
    let mut tables: Vec<BlockTable> = Vec::new();
    for _ in 0..3 {
        let mut table = BlockTable::default();
        kv.allocate(&mut table, &Hits::default(), BLOCK).unwrap();
        kv.cache_full_blocks(&mut table, &a, BLOCK, |_| Vec::new());
        tables.push(table);
    }
    let second = tables[1].blocks[0];
    kv.release(&mut tables[0]);
    // The only free block is the oldest of the three.
    let mut other = BlockTable::default();
    kv.allocate(&mut other, &Hits::default(), BLOCK).unwrap();
    let mut hits = Hits::default();
    kv.find(&a, 100, &mut hits);
    assert_eq!(hits.blocks, [second]);
}

#[test]
fn a_partly_filled_block_is_reused_first() {
    let mut kv = KvCache::new(1 + 4, BLOCK);
    let a = hashes_of(0, 2);
    let mut table = BlockTable::default();
    kv.allocate(&mut table, &Hits::default(), 10).unwrap();
    kv.cache_full_blocks(&mut table, &a, 10, |_| Vec::new());
    let partial = table.blocks[2];
    kv.release(&mut table);
    assert_eq!(kv.free.order().first(), Some(&partial));
    assert_eq!(kv.free.len(), 4);
}

#[test]
fn hits_count_as_needed_blocks_when_nobody_uses_them() {
    let mut kv = KvCache::new(1 + 4, BLOCK);
    let a = hashes_of(0, 3);
    serve(&mut kv, &a);
    let mut hits = Hits::default();
    kv.find(&a, 100, &mut hits);
    assert_eq!(hits.len(), 3);
    let table = BlockTable::default();
    // Three hits in the free queue and two more blocks are five; four are there.
    assert_eq!(kv.check_fit(&table, &hits, 5 * BLOCK), Err(OutOfBlocks { needed: 5, free: 4 }));
    kv.check_fit(&table, &hits, 4 * BLOCK).unwrap();
}

#[test]
fn undrained_events_are_bounded_by_dropping_the_newest() {
    let mut kv = KvCache::new(3, BLOCK);
    kv.record_events(true);
    for _ in 0..CACHE_EVENTS_UNDRAINED_MAX + 3 {
        assert!(kv.clear());
    }
    assert_eq!(kv.take_events().len(), CACHE_EVENTS_UNDRAINED_MAX);
    assert_eq!(kv.events_dropped(), 3);
}
