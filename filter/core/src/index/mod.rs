//! Block hashes -> which backend holds how many leading blocks.
//!
//! A prefix tree kept as a set-associative hash table in the shared store. A node is a run of up to
//! 64 consecutive blocks and is found by the hash of its *first* block. Block hashes are chained,
//! so that hash names the whole path to the node: parents are implicit, as in a Merkle tree, and
//! evicting a node needs no repair elsewhere.
//!
//! A walk looks up the node of block 0, counts how many of its blocks equal the prompt's, and goes
//! on with the node of the first block after those, until none is found. Where two prompts part in
//! the middle of a node, the second one's own node hangs off there: nodes are never split, so
//! every change is one compare-and-swap of one bucket.
//!
//! Cost: one store read for each 64 blocks matched, one read and one write for each 64 blocks
//! that are new or whose last touch is of an older epoch. Memory: the number of buckets times
//! [`crate::limits::BUCKET_BYTES_MAX`], whatever the traffic.

mod node;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::ops::Range;

pub use node::{Bucket, Holder, Node, find};

use crate::ids::{BackendId, BlockHash};
use crate::limits::{NODE_BLOCKS_MAX, PROMPT_BLOCKS_MAX};
use crate::store::{self, SharedStore, StoreError};
use crate::window;
use crate::wire::Key;

/// The part of a prompt's path that lies in one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the segment's first block in the prompt.
    pub start: usize,
    /// Blocks of the node that equal the prompt's; at least 1.
    pub matched: usize,
    /// Blocks in the node, matched or not.
    pub node_blocks: usize,
    /// The node's holders.
    pub holders: Vec<Holder>,
}

/// All that the tree knows about a prompt, first blocks first, without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The segments in order.
    pub segments: Vec<Segment>,
    /// Blocks covered by the segments.
    pub known_blocks: usize,
}

impl Path {
    /// It with no other holder than `backend`.
    #[must_use]
    pub fn held_by(mut self, backend: BackendId) -> Self {
        for segment in &mut self.segments {
            segment.holders.retain(|holder| holder.backend == backend);
        }
        self
    }

    /// The part of it that is the prompt's first `blocks` blocks.
    #[must_use]
    pub fn leading(&self, blocks: usize) -> Self {
        let mut segments = self.segments.clone();
        segments.retain(|segment| segment.start < blocks);
        if let Some(last) = segments.last_mut() {
            last.matched = last.matched.min(blocks - last.start);
        }
        Self { segments, known_blocks: self.known_blocks.min(blocks) }
    }
}

/// A prompt that is sent to a backend.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// Its blocks.
    pub hashes: &'a [BlockHash],
    /// What [`Index::walk`] found for them.
    pub path: &'a Path,
    /// Those that stay there for attention windows ([`crate::window`]).
    pub retained: &'a [Range<usize>],
}

/// When and in which life of the backend blocks are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The backend whose cache it is.
    pub backend: BackendId,
    /// Epoch of its cache clock.
    pub epoch: u32,
    /// Its generation.
    pub generation: u16,
}

/// What a request changed in one node, so that a failure can take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The node.
    pub key: BlockHash,
    /// The backend's depth in it before; 0 when it was no holder.
    pub depth_before: u8,
    /// Its [`Holder::retained`] before.
    pub retained_before: u64,
}

/// What entering a prompt did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entered {
    /// Nodes of which the backend holds or retains more.
    pub changes: Vec<Change>,
    /// Blocks that the tree did not have.
    pub added_blocks: usize,
    /// Blocks that went to make room.
    pub evicted_blocks: usize,
    /// Nodes that were written.
    pub written_nodes: usize,
    /// Updates lost to races or to the host; each costs a later match, nothing else.
    pub lost_updates: usize,
}

/// What taking a prompt back did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenBack {
    /// Blocks that nobody held any more, and that went.
    pub removed_blocks: usize,
    /// Whether blocks stayed that other requests were sent for too.
    pub is_shared: bool,
    /// Updates lost to races or to the host.
    pub lost_updates: usize,
}

/// The tree's handle: its geometry. The content is in the store.
#[derive(Clone, Copy, Debug)]
pub struct Index {
    buckets: NonZeroU32,
}

impl Index {
    /// A tree over `buckets` buckets. All users of one store must agree on the number: it is part
    /// of the keys, so trees of different geometry do not see each other.
    #[must_use]
    pub fn new(buckets: NonZeroU32) -> Self {
        Self { buckets }
    }

    /// Follows `hashes` through the tree.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses a read.
    pub fn walk<S: SharedStore>(
        &self,
        store: &S,
        hashes: &[BlockHash],
    ) -> Result<Path, StoreError> {
        let mut path = Path::default();
        while let Some(&key) = hashes.get(path.known_blocks) {
            let Some(entry) = store.get(&self.key_of(key))? else {
                break;
            };
            let Some(node) = find(&entry.value, key) else {
                break;
            };
            let rest = hashes.get(path.known_blocks..).unwrap_or_default();
            let matched = node.matched(rest).max(1);
            path.segments.push(Segment {
                start: path.known_blocks,
                matched,
                node_blocks: node.blocks.len(),
                holders: node.holders,
            });
            path.known_blocks += matched;
        }
        Ok(path)
    }

    /// Enters a prompt as held by `touch.backend`.
    ///
    /// Nodes that already say so, with this epoch and for more than one request, are not written.
    /// `staleness` ranks holders when a full bucket must drop a node.
    pub fn enter<S: SharedStore>(
        &self,
        store: &S,
        sent: Sent<'_>,
        touch: Touch,
        staleness: &dyn Fn(&Holder) -> f32,
    ) -> Entered {
        let Sent { hashes, path, retained } = sent;
        let hashes = hashes.get(..PROMPT_BLOCKS_MAX).unwrap_or(hashes);
        let mut entered = Entered::default();
        let mut next = 0;
        for (start, end) in runs(hashes.len(), path) {
            next = next.max(end);
            let Some(run) = hashes.get(start..end) else { continue };
            let own = window::leading_bits(run.len().min(NODE_BLOCKS_MAX) as u8);
            let run = Run { blocks: run, retained: window::bits(retained, start) & own };
            let known = path.segments.iter().find(|segment| segment.start == start);
            if known.is_some_and(|segment| is_current(segment, run, touch)) {
                continue;
            }
            self.enter_run(store, run, touch, staleness, &mut entered);
        }
        entered
    }

    fn enter_run<S: SharedStore>(
        &self,
        store: &S,
        run: Run<'_>,
        touch: Touch,
        staleness: &dyn Fn(&Holder) -> f32,
        entered: &mut Entered,
    ) {
        let Some(&key) = run.blocks.first() else { return };
        let mut done = Upserted::default();
        let mut evicted = 0;
        let result = store::update(store, &self.key_of(key), |bytes| {
            let mut bucket = Bucket::decode(bytes);
            done = upsert(&mut bucket, key, run, touch);
            evicted = bucket.trim(key, staleness);
            Some(bucket.encode())
        });
        if result.is_err() {
            entered.lost_updates += 1;
            return;
        }
        entered.written_nodes += 1;
        entered.added_blocks += done.added_blocks;
        entered.evicted_blocks += evicted;
        let Upserted { depth_before, retained_before, .. } = done;
        let is_deeper = usize::from(depth_before) < run.blocks.len();
        if is_deeper || run.retained & !retained_before != 0 {
            entered.changes.push(Change { key, depth_before, retained_before });
        }
    }

    /// Takes back what [`Index::enter`] recorded for `backend`: the blocks were not stored after
    /// all.
    pub fn take_back<S: SharedStore>(
        &self,
        store: &S,
        backend: BackendId,
        changes: &[Change],
    ) -> TakenBack {
        let mut taken_back = TakenBack::default();
        for change in changes {
            let mut done = TakenBack::default();
            let result = store::update(store, &self.key_of(change.key), |bytes| {
                done = TakenBack::default();
                let mut bucket = Bucket::decode(bytes);
                let node = bucket.node_mut(change.key)?;
                let holder = node.holder_mut(backend)?;
                // What another request was sent for, it computes.
                let depth = change.depth_before.max(holder.shared_depth);
                done.is_shared = depth > change.depth_before;
                holder.depth = holder.depth.min(depth);
                holder.retained &= change.retained_before & window::leading_bits(holder.depth);
                node.holders.retain(|holder| holder.depth > 0);
                // Blocks that nobody holds any more would only lengthen walks.
                let depth = node.holders.iter().map(|holder| holder.depth).max().unwrap_or(0);
                done.removed_blocks = node.blocks.len().saturating_sub(depth.into());
                node.blocks.truncate(depth.into());
                bucket.nodes.retain(|node| !node.blocks.is_empty());
                Some(bucket.encode())
            });
            match result {
                Ok(_) => {
                    taken_back.removed_blocks += done.removed_blocks;
                    taken_back.is_shared |= done.is_shared;
                }
                Err(_) => taken_back.lost_updates += 1,
            }
        }
        taken_back
    }

    fn key_of(&self, key: BlockHash) -> Key {
        // The chained hash is uniform; its upper half is not used for anything else.
        self.bucket_key((key.0 >> 32) % u64::from(self.buckets.get()))
    }

    fn bucket_key(&self, bucket: u64) -> Key {
        Key::new("i").decimal(self.buckets.get().into()).then("/").decimal(bucket)
    }

    /// Bytes in a bucket; 0 when the host refuses to say.
    pub fn bucket_bytes<S: SharedStore>(&self, store: &S, bucket: u32) -> usize {
        let entry = store.get(&self.bucket_key(bucket.into())).ok().flatten();
        entry.map_or(0, |entry| entry.value.len())
    }
}

/// Cuts a prompt of `blocks` blocks into the runs that its nodes hold or will hold.
fn runs(blocks: usize, path: &Path) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = path
        .segments
        .iter()
        .map(|segment| (segment.start, segment.start + segment.matched))
        .collect();
    let mut next = path.known_blocks;
    // A node that the prompt matches whole grows in place, so that a chat's turns fill nodes
    // instead of leaving a short one at the end of each.
    if let (Some(last), Some(run)) = (path.segments.last(), runs.last_mut())
        && last.matched == last.node_blocks
    {
        run.1 = blocks.min(run.0 + NODE_BLOCKS_MAX).max(run.1);
        next = run.1;
    }
    while next < blocks {
        let end = blocks.min(next + NODE_BLOCKS_MAX);
        runs.push((next, end));
        next = end;
    }
    runs
}

/// A part of a prompt that one node holds.
#[derive(Clone, Copy)]
struct Run<'h> {
    blocks: &'h [BlockHash],
    /// As in [`Holder::retained`].
    retained: u64,
}

fn is_current(segment: &Segment, run: Run<'_>, touch: Touch) -> bool {
    segment.holders.iter().any(|holder| {
        holder.backend == touch.backend
            && holder.epoch == touch.epoch
            && holder.generation == touch.generation
            && usize::from(holder.depth.min(holder.shared_depth)) >= run.blocks.len()
            && holder.retained & run.retained == run.retained
    })
}

/// What making a backend a holder did.
#[derive(Default)]
struct Upserted {
    depth_before: u8,
    retained_before: u64,
    added_blocks: usize,
}

/// Makes `touch.backend` a holder of `run`.
fn upsert(bucket: &mut Bucket, key: BlockHash, run: Run<'_>, touch: Touch) -> Upserted {
    let Run { blocks: run, retained } = run;
    let depth = run.len().min(NODE_BLOCKS_MAX) as u8;
    let holder = Holder {
        backend: touch.backend,
        epoch: touch.epoch,
        generation: touch.generation,
        depth,
        shared_depth: 0,
        retained,
    };
    let Some(node) = bucket.node_mut(key) else {
        bucket.nodes.push(Node { blocks: run.to_vec(), holders: vec![holder] });
        return Upserted { added_blocks: run.len(), ..Upserted::default() };
    };
    // Another worker may have changed the node since the walk: only what still equals counts.
    let matched = node.matched(run);
    let mut added = 0;
    if matched == node.blocks.len()
        && let Some(more) = run.get(matched..)
    {
        node.blocks.extend_from_slice(more);
        added = more.len();
    }
    let depth = depth.min((matched + added) as u8);
    let Some(known) = node.holder_mut(touch.backend) else {
        let retained = retained & window::leading_bits(depth);
        node.holders.push(Holder { depth, retained, ..holder });
        return Upserted { added_blocks: added, ..Upserted::default() };
    };
    // What an older life of the backend held is gone. Blocks that it holds beyond this prompt get
    // the newer date with the rest: one date a node, an error of at most 63 blocks.
    let depth_before = if known.generation == touch.generation { known.depth } else { 0 };
    let shared_depth =
        if depth_before == 0 { 0 } else { known.shared_depth.max(depth.min(depth_before)) };
    let retained = retained & window::leading_bits(depth);
    let retained_before = if depth_before == 0 { 0 } else { known.retained };
    let retained = retained | retained_before;
    *known = Holder { depth: depth.max(depth_before), shared_depth, retained, ..holder };
    Upserted { depth_before, retained_before, added_blocks: added }
}
