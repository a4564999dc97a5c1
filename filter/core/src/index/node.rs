//! Nodes, holders, and how a bucket of them is laid out in one stored value.
//!
//! Bucket: version, then nodes to the end. Node: block count u8, holder count u8, block hashes
//! u64 each (the first is the node's key), holders of 20 bytes each: backend u32, epoch u32,
//! generation u16, depth u8, shared depth u8, retained u64.

use crate::ids::{BackendId, BlockHash};
use crate::limits::{BUCKET_BYTES_MAX, HOLDERS_MAX, NODE_BLOCKS_MAX};
use crate::wire::{Reader, Writer};

const NODE_HEADER_BYTES: usize = 2;
const BLOCK_BYTES: usize = 8;
const HOLDER_BYTES: usize = 20;

/// A backend that holds a node's leading blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who.
    pub backend: BackendId,
    /// Epoch of the backend's cache clock in which the blocks were last touched.
    pub epoch: u32,
    /// The backend's generation then; a restarted engine has a newer one and holds nothing of
    /// the old.
    pub generation: u16,
    /// How many of the node's blocks, from its first; at least 1.
    pub depth: u8,
    /// How many of these more than one request was sent for: they stay when one of them fails.
    pub shared_depth: u8,
    /// Which of the node's blocks are retained for attention windows, the first at the lowest bit; see
    /// [`crate::window`]. 0 for models without windows, which need all blocks and keep them.
    pub retained: u64,
}

/// A run of up to 64 consecutive blocks of one prefix, found by the hash of its first block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Hashes of the run, in order; never empty.
    pub blocks: Vec<BlockHash>,
    /// Who holds how much of it; each backend at most once.
    pub holders: Vec<Holder>,
}

impl Node {
    /// The hash under which the node is found.
    #[must_use]
    pub fn key(&self) -> Option<BlockHash> {
        self.blocks.first().copied()
    }

    /// How many leading blocks of the node equal those of `hashes`.
    #[must_use]
    pub fn matched(&self, hashes: &[BlockHash]) -> usize {
        self.blocks.iter().zip(hashes).take_while(|(mine, theirs)| mine == theirs).count()
    }

    /// The entry of `backend`.
    pub fn holder_mut(&mut self, backend: BackendId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.backend == backend)
    }

    fn encoded_bytes(&self) -> usize {
        NODE_HEADER_BYTES + self.blocks.len() * BLOCK_BYTES + self.holders.len() * HOLDER_BYTES
    }
}

/// Finds the node with `key` in an encoded bucket without decoding the others.
///
/// `None` when it is absent or the bucket is of an unknown layout.
#[must_use]
pub fn find(bucket_bytes: &[u8], key: BlockHash) -> Option<Node> {
    let mut reader = Reader::versioned(bucket_bytes)?;
    loop {
        let header = Header::read(&mut reader)?;
        if header.first == key {
            return header.body(&mut reader);
        }
        reader.skip(header.rest_bytes())?;
    }
}

struct Header {
    blocks: usize,
    holders: usize,
    first: BlockHash,
}

impl Header {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let blocks = usize::from(reader.u8()?);
        let holders = usize::from(reader.u8()?);
        if blocks == 0 || blocks > NODE_BLOCKS_MAX || holders > HOLDERS_MAX {
            return None;
        }
        let first = BlockHash(reader.u64()?);
        Some(Self { blocks, holders, first })
    }

    fn rest_bytes(&self) -> usize {
        (self.blocks - 1) * BLOCK_BYTES + self.holders * HOLDER_BYTES
    }

    fn body(&self, reader: &mut Reader<'_>) -> Option<Node> {
        let mut blocks = Vec::with_capacity(self.blocks);
        blocks.push(self.first);
        for _ in 1..self.blocks {
            blocks.push(BlockHash(reader.u64()?));
        }
        let mut holders = Vec::with_capacity(self.holders + 1);
        for _ in 0..self.holders {
            holders.push(Holder {
                backend: BackendId(reader.u32()?),
                epoch: reader.u32()?,
                generation: reader.u16()?,
                depth: reader.u8()?,
                shared_depth: reader.u8()?,
                retained: reader.u64()?,
            });
        }
        Some(Node { blocks, holders })
    }
}

/// All nodes whose keys fall into one bucket, oldest insertion first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The nodes; keys are distinct.
    pub nodes: Vec<Node>,
}

impl Bucket {
    /// Decodes a stored value; an empty, foreign or damaged one gives the nodes before the damage.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let mut nodes = Vec::new();
        if let Some(mut reader) = Reader::versioned(bytes) {
            while let Some(node) =
                Header::read(&mut reader).and_then(|header| header.body(&mut reader))
            {
                nodes.push(node);
            }
        }
        Self { nodes }
    }

    /// Encodes the bucket; [`Bucket::trim`] has made it fit.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(self.encoded_bytes());
        for node in &self.nodes {
            writer.u8(node.blocks.len().min(NODE_BLOCKS_MAX) as u8);
            writer.u8(node.holders.len().min(HOLDERS_MAX) as u8);
            for block in node.blocks.iter().take(NODE_BLOCKS_MAX) {
                writer.u64(block.0);
            }
            for holder in node.holders.iter().take(HOLDERS_MAX) {
                writer.u32(holder.backend.0);
                writer.u32(holder.epoch);
                writer.u16(holder.generation);
                writer.u8(holder.depth);
                writer.u8(holder.shared_depth);
                writer.u64(holder.retained);
            }
        }
        writer.finish()
    }

    /// The node with `key`.
    pub fn node_mut(&mut self, key: BlockHash) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.key() == Some(key))
    }

    /// Drops holders and nodes, stalest first, until the limits hold; the node `keep` stays.
    ///
    /// `staleness` is 0 for a holder touched just now and grows with the chance that its blocks
    /// are gone. Returns the number of blocks in the nodes that went.
    pub fn trim(&mut self, keep: BlockHash, staleness: &dyn Fn(&Holder) -> f32) -> usize {
        for node in &mut self.nodes {
            while node.holders.len() > HOLDERS_MAX {
                let stalest = position_of_max(&node.holders, staleness);
                node.holders.swap_remove(stalest);
            }
        }
        let mut dropped_blocks = 0;
        while self.encoded_bytes() > BUCKET_BYTES_MAX && self.nodes.len() > 1 {
            let node_staleness = |node: &Node| {
                if node.key() == Some(keep) {
                    return -1.0;
                }
                node.holders.iter().map(staleness).fold(f32::INFINITY, f32::min)
            };
            let stalest = position_of_max(&self.nodes, &node_staleness);
            dropped_blocks += self.nodes.swap_remove(stalest).blocks.len();
        }
        dropped_blocks
    }

    fn encoded_bytes(&self) -> usize {
        1 + self.nodes.iter().map(Node::encoded_bytes).sum::<usize>()
    }
}

/// Index of the item with the greatest value, the first of equals; 0 for an empty slice.
fn position_of_max<T>(items: &[T], value: &dyn Fn(&T) -> f32) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, item) in items.iter().enumerate() {
        let candidate = value(item);
        if candidate > best.1 {
            best = (index, candidate);
        }
    }
    best.0
}
