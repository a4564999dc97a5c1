//! The tree against a naive map of what was entered.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::blocks::{Namespace, block_hashes};
use crate::limits::BUCKET_BYTES_MAX;
use crate::store::MemoryStore;

const BACKENDS: u32 = 4;

/// Hashes of a prompt whose blocks are one token each, so that short prompts branch a lot.
fn hashes(tokens: &[u32]) -> Vec<BlockHash> {
    block_hashes(Namespace::default().seed(), tokens, &[], NonZeroU32::MIN)
}

fn index(buckets: u32) -> Index {
    Index::new(NonZeroU32::new(buckets).unwrap())
}

fn touch(backend: u32, epoch: u32) -> Touch {
    Touch { backend: BackendId(backend), epoch, generation: 0 }
}

fn enter(index: &Index, store: &MemoryStore, hashes: &[BlockHash], touch: Touch) -> Entered {
    let path = index.walk(store, hashes).unwrap();
    let sent = Sent { hashes, path: &path, retained: &[] };
    index.enter(store, sent, touch, &|holder| 1_000.0 - holder.epoch as f32)
}

/// Leading blocks that `backend` holds, as the score counts them.
fn held(path: &Path, backend: u32) -> usize {
    let mut held = 0;
    for segment in &path.segments {
        let holder = segment.holders.iter().find(|holder| holder.backend == BackendId(backend));
        match holder {
            Some(holder) if held == segment.start => {
                held += segment.matched.min(usize::from(holder.depth));
            }
            _ => break,
        }
    }
    held
}

#[derive(Default)]
struct Naive {
    /// Chained hashes name whole prefixes, so a set of them is a tree.
    held: HashMap<u32, HashSet<BlockHash>>,
}

impl Naive {
    fn enter(&mut self, hashes: &[BlockHash], backend: u32) -> Vec<BlockHash> {
        let set = self.held.entry(backend).or_default();
        hashes.iter().copied().filter(|hash| set.insert(*hash)).collect()
    }

    fn leading(&self, hashes: &[BlockHash], backend: u32) -> usize {
        let set = self.held.get(&backend);
        hashes.iter().take_while(|hash| set.is_some_and(|set| set.contains(hash))).count()
    }

    fn known(&self, hashes: &[BlockHash]) -> usize {
        let known = |hash| self.held.values().any(|set| set.contains(hash));
        hashes.iter().take_while(|hash| known(hash)).count()
    }
}

#[derive(Clone, Debug)]
struct Op {
    tokens: Vec<u32>,
    backend: u32,
    epoch: u32,
    is_taken_back: bool,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Two letters and long runs: prompts share long beginnings and part anywhere.
    let tokens = prop::collection::vec(prop_oneof![9 => Just(0_u32), 1 => Just(1_u32)], 0..200);
    let op = (tokens, 0..BACKENDS, 0..3_u32, prop::bool::weighted(0.2)).prop_map(
        |(tokens, backend, epoch, is_taken_back)| Op { tokens, backend, epoch, is_taken_back },
    );
    prop::collection::vec(op, 1..60)
}

/// The tree and the map know the same of a prompt.
fn check(
    index: &Index,
    store: &MemoryStore,
    naive: &Naive,
    hashes: &[BlockHash],
) -> Result<(), TestCaseError> {
    let path = index.walk(store, hashes).unwrap();
    prop_assert_eq!(path.known_blocks, naive.known(hashes));
    for backend in 0..BACKENDS {
        prop_assert_eq!(held(&path, backend), naive.leading(hashes, backend));
    }
    Ok(())
}

proptest! {
    #[test]
    fn without_eviction_the_tree_knows_what_the_map_knows(ops in ops()) {
        let (store, index, mut naive) = (MemoryStore::default(), index(64), Naive::default());
        let mut blocks = 0;
        for op in &ops {
            let hashes = hashes(&op.tokens);
            let entered = enter(&index, &store, &hashes, touch(op.backend, op.epoch));
            let new = naive.enter(&hashes, op.backend);
            prop_assert_eq!(entered.lost_updates, 0);
            prop_assert_eq!(entered.evicted_blocks, 0);
            blocks += entered.added_blocks;
            if op.is_taken_back {
                let backend = BackendId(op.backend);
                let taken_back = index.take_back(&store, backend, &entered.changes);
                prop_assert_eq!(taken_back.lost_updates, 0);
                blocks -= taken_back.removed_blocks;
                for hash in new {
                    naive.held.entry(op.backend).or_default().remove(&hash);
                }
            }
            prop_assert_eq!(blocks_in(&index, &store), blocks);
            check(&index, &store, &naive, &hashes)?;
        }
        for op in &ops {
            check(&index, &store, &naive, &hashes(&op.tokens))?;
        }
    }

    #[test]
    fn with_eviction_it_never_claims_what_was_not_entered(ops in ops(), buckets in 1..3_u32) {
        let (store, index, mut naive) = (MemoryStore::default(), index(buckets), Naive::default());
        for (round, op) in ops.iter().enumerate() {
            // A different first token a round: many nodes for few buckets.
            let mut tokens = vec![100 + round as u32 % 40; 40];
            tokens.extend(&op.tokens);
            let hashes = hashes(&tokens);
            enter(&index, &store, &hashes, touch(op.backend, round as u32));
            naive.enter(&hashes, op.backend);
            let path = index.walk(&store, &hashes).unwrap();
            for backend in 0..BACKENDS {
                prop_assert!(held(&path, backend) <= naive.leading(&hashes, backend));
            }
            let (keys, bytes) = store.size();
            prop_assert!(keys <= buckets as usize);
            prop_assert!(bytes <= buckets as usize * BUCKET_BYTES_MAX);
        }
    }

    #[test]
    fn a_bucket_reads_back_as_written(nodes in prop::collection::vec(
        (prop::collection::vec(any::<u64>(), 1..=64),
         prop::collection::vec((any::<u32>(), any::<u32>(), any::<u16>(), 1..=64_u8, any::<u64>()), 0..20)),
        0..8,
    )) {
        let bucket = Bucket {
            nodes: nodes
                .into_iter()
                .map(|(blocks, holders)| Node {
                    blocks: blocks.into_iter().map(BlockHash).collect(),
                    holders: holders
                        .into_iter()
                        .map(|(backend, epoch, generation, depth, retained)| Holder {
                            backend: BackendId(backend),
                            epoch,
                            generation,
                            depth,
                            shared_depth: 0,
                            retained,
                        })
                        .collect(),
                })
                .collect(),
        };
        let bytes = bucket.encode();
        prop_assert_eq!(&Bucket::decode(&bytes), &bucket);
        for node in &bucket.nodes {
            let first = bucket.nodes.iter().find(|other| other.key() == node.key());
            prop_assert_eq!(node::find(&bytes, node.key().unwrap()), first.cloned());
        }
    }

    #[test]
    fn any_bytes_decode_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let bucket = Bucket::decode(&bytes);
        prop_assert_eq!(Bucket::decode(&bucket.encode()), bucket);
        let _ = node::find(&bytes, BlockHash(0));
    }
}

#[test]
fn a_hot_prefix_is_written_once_an_epoch() {
    let (store, index) = (MemoryStore::default(), index(64));
    let prompt = hashes(&[7; 40]);
    enter(&index, &store, &prompt, touch(1, 5));
    // Once more when a second request is sent for it.
    enter(&index, &store, &prompt, touch(1, 5));
    let before = versions(&index, &store, &prompt);
    enter(&index, &store, &prompt, touch(1, 5));
    assert_eq!(versions(&index, &store, &prompt), before);
    enter(&index, &store, &prompt, touch(1, 6));
    assert_ne!(versions(&index, &store, &prompt), before);
}

/// Blocks in all nodes.
fn blocks_in(index: &Index, store: &MemoryStore) -> usize {
    let buckets = (0..u64::from(index.buckets.get())).map(|bucket| index.bucket_key(bucket));
    let entries = buckets.filter_map(|key| store.get(&key).unwrap());
    let nodes = entries.flat_map(|entry| Bucket::decode(&entry.value).nodes);
    nodes.map(|node| node.blocks.len()).sum()
}

fn versions(index: &Index, store: &MemoryStore, hashes: &[BlockHash]) -> Vec<u32> {
    let entries = hashes.iter().step_by(NODE_BLOCKS_MAX);
    entries
        .map(|hash| store.get(&index.key_of(*hash)).unwrap().unwrap().cas.unwrap().0.get())
        .collect()
}

#[test]
fn turns_of_a_chat_fill_nodes() {
    let (store, index) = (MemoryStore::default(), index(64));
    let tokens = [3; 256];
    for turn in 1..=16 {
        enter(&index, &store, &hashes(&tokens[..turn * 16]), touch(1, 0));
    }
    assert_eq!(index.walk(&store, &hashes(&tokens)).unwrap().segments.len(), 4);
}

#[test]
fn the_stalest_node_of_a_full_bucket_goes_first() {
    let (store, index) = (MemoryStore::default(), index(1));
    let old = hashes(&[1; 16]);
    enter(&index, &store, &old, touch(1, 0));
    let mut newest = Vec::new();
    let mut evicted = 0;
    for round in 0..100 {
        newest = hashes(&[100 + round; 16]);
        evicted += enter(&index, &store, &newest, touch(1, 1 + round)).evicted_blocks;
    }
    assert!(evicted > 0);
    assert_eq!(index.walk(&store, &old).unwrap().known_blocks, 0);
    assert_eq!(index.walk(&store, &newest).unwrap().known_blocks, 16);
}

#[test]
fn what_is_retained_elsewhere_writes_no_hot_node() {
    let (store, index) = (MemoryStore::default(), index(64));
    let shared: Vec<u32> = vec![1; 10];
    let version = || store.get(&index.key_of(hashes(&shared)[0])).unwrap().unwrap().cas;
    let mut seen = Vec::new();
    for own in 2..8_u32 {
        let prompt = hashes(&[shared.clone(), vec![own; 10 + own as usize]].concat());
        let path = index.walk(&store, &prompt).unwrap();
        let end = prompt.len();
        let sent = Sent { hashes: &prompt, path: &path, retained: &[end - 4..end, 6..10] };
        index.enter(&store, sent, touch(1, 0), &|_| 0.0);
        seen.push(version());
    }
    // Once to be held, once to be shared and to retain the place where prompts part.
    seen.dedup();
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_restarted_backend_holds_only_what_it_was_sent_since() {
    let (store, index) = (MemoryStore::default(), index(64));
    enter(&index, &store, &hashes(&[1; 16]), touch(1, 0));
    let reborn = Touch { generation: 1, ..touch(1, 0) };
    enter(&index, &store, &hashes(&[1; 4]), reborn);
    let path = index.walk(&store, &hashes(&[1; 16])).unwrap();
    assert_eq!(path.segments[0].holders[0].depth, 4);
    assert_eq!(path.segments[0].holders[0].generation, 1);
}

#[test]
fn threads_that_share_a_store_lose_no_entry() {
    let store = MemoryStore::default();
    let index = index(4);
    let prompts: Vec<Vec<BlockHash>> = (0..40).map(|i| hashes(&[i; 16])).collect();
    std::thread::scope(|scope| {
        for backend in 0..4 {
            let (store, index, prompts) = (&store, &index, &prompts);
            scope.spawn(move || {
                for prompt in prompts {
                    // A lost race is retried as the caller's next request would.
                    while enter(index, store, prompt, touch(backend, 1)).lost_updates > 0 {}
                }
            });
        }
    });
    for prompt in &prompts {
        let path = index.walk(&store, prompt).unwrap();
        for backend in 0..4 {
            assert_eq!(held(&path, backend), 16);
        }
    }
}
