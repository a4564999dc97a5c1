//! The queue of free blocks, in eviction order.
//!
//! An intrusive doubly linked list over block ids, so that a cache hit takes a block out of the
//! middle in O(1). Links live in two flat arrays; one extra slot is both ends.

/// Not in the queue.
const NONE: u32 = u32::MAX;

/// A block's place in the pool.
pub(super) type BlockId = u32;

/// Free blocks; the front is evicted first.
#[derive(Debug)]
pub(super) struct FreeQueue {
    prev: Vec<u32>,
    next: Vec<u32>,
    len: u32,
}

impl FreeQueue {
    /// The queue over blocks `0..capacity`, empty.
    pub(super) fn new(capacity: u32) -> Self {
        let end = capacity;
        let mut queue = Self {
            prev: vec![NONE; capacity as usize + 1],
            next: vec![NONE; capacity as usize + 1],
            len: 0,
        };
        queue.prev[end as usize] = end;
        queue.next[end as usize] = end;
        queue
    }

    fn end(&self) -> u32 {
        (self.prev.len() - 1) as u32
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.next[block as usize] != NONE
    }

    pub(super) fn push_back(&mut self, block: BlockId) {
        let end = self.end();
        let last = self.prev[end as usize];
        self.link(last, block, end);
    }

    pub(super) fn push_front(&mut self, block: BlockId) {
        let end = self.end();
        let first = self.next[end as usize];
        self.link(end, block, first);
    }

    fn link(&mut self, before: u32, block: BlockId, after: u32) {
        debug_assert!(!self.contains(block), "block {block} is free twice");
        self.prev[block as usize] = before;
        self.next[block as usize] = after;
        self.next[before as usize] = block;
        self.prev[after as usize] = block;
        self.len += 1;
    }

    pub(super) fn pop_front(&mut self) -> Option<BlockId> {
        let end = self.end();
        let first = self.next[end as usize];
        if first == end {
            return None;
        }
        self.remove(first);
        Some(first)
    }

    pub(super) fn remove(&mut self, block: BlockId) {
        debug_assert!(self.contains(block), "block {block} is not free");
        let (before, after) = (self.prev[block as usize], self.next[block as usize]);
        self.next[before as usize] = after;
        self.prev[after as usize] = before;
        self.prev[block as usize] = NONE;
        self.next[block as usize] = NONE;
        self.len -= 1;
    }

    /// The free blocks from front to back.
    #[cfg(test)]
    pub(super) fn order(&self) -> Vec<BlockId> {
        let end = self.end();
        let mut order = Vec::new();
        let mut block = self.next[end as usize];
        while block != end {
            order.push(block);
            block = self.next[block as usize];
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_through_removals_at_every_place() {
        let mut queue = FreeQueue::new(5);
        for block in 0..4 {
            queue.push_back(block);
        }
        queue.push_front(4);
        assert_eq!(queue.order(), [4, 0, 1, 2, 3]);
        queue.remove(1);
        queue.remove(3);
        assert_eq!(queue.pop_front(), Some(4));
        assert_eq!(queue.order(), [0, 2]);
        queue.push_back(3);
        assert_eq!((queue.len(), queue.contains(3), queue.contains(1)), (3, true, false));
        assert_eq!(
            [queue.pop_front(), queue.pop_front(), queue.pop_front(), queue.pop_front()],
            [Some(0), Some(2), Some(3), None]
        );
    }
}
