//! Caches of models with sliding attention windows: where a hit may end.
//!
//! A layer with a window needs, to go on from some place in a prompt, the blocks of the window before it
//! and no others. Where other layers have none, vLLM keeps only these, and only before places where
//! somebody is likely to go on: the ends of prompts, and from the second time on the places where prompts
//! part. A hit ends at the last such place within what the other layers have; a prefix that was sent before
//! but never ended there is computed again.
//!
//! In: which blocks of a prompt's path are retained on whom ([`crate::index::Holder::retained`]). Out:
//! where a hit ends, and what serving the prompt retains. Linear in the path.

use std::num::NonZeroU32;
use std::ops::Range;

use ahash::AHashMap;

use crate::ids::BackendId;
use crate::index::Path;
use crate::limits::NODE_BLOCKS_MAX;

/// A model's window, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    blocks: usize,
}

impl Window {
    /// The window of `tokens` tokens over blocks of `block_size`; `None` for one that needs nothing.
    #[must_use]
    pub fn new(tokens: u32, block_size: NonZeroU32) -> Option<Self> {
        // The token that is computed is in the window itself.
        let blocks = tokens.saturating_sub(1).div_ceil(block_size.get()) as usize;
        (blocks > 0).then_some(Self { blocks })
    }

    /// Leading blocks of `path`, at most `blocks_max`, that each holder would take from its cache.
    #[must_use]
    pub fn hits(self, path: &Path, blocks_max: usize) -> AHashMap<BackendId, usize> {
        let mut retained: AHashMap<BackendId, Vec<bool>> = AHashMap::new();
        for segment in &path.segments {
            for holder in &segment.holders {
                let bits = retained.entry(holder.backend).or_default();
                // A gap means that what follows is unreachable.
                if bits.len() == segment.start {
                    let blocks = segment.matched.min(usize::from(holder.depth));
                    bits.extend((0..blocks).map(|at| holder.retained & bit(at) != 0));
                }
            }
        }
        let hit = |bits: Vec<bool>| self.hit(bits.get(..blocks_max).unwrap_or(&bits));
        retained.into_iter().map(|(backend, bits)| (backend, hit(bits))).collect()
    }

    /// The last place before which a whole window is retained, or all that there is.
    fn hit(self, retained: &[bool]) -> usize {
        let mut run = 0;
        for (at, is_retained) in retained.iter().enumerate().rev() {
            run = if *is_retained { run + 1 } else { 0 };
            if run == self.blocks {
                return at + run;
            }
        }
        run
    }

    /// What a backend retains once it has served a prompt of which `cacheable` blocks may be hit, `common`
    /// were sent there before and `hit` were found.
    #[must_use]
    pub fn retains(self, cacheable: usize, common: usize, hit: usize) -> Vec<Range<usize>> {
        let before = |end: usize| end.saturating_sub(self.blocks)..end;
        let mut ranges = vec![before(cacheable)];
        if common.min(cacheable) > hit {
            ranges.push(before(common.min(cacheable)));
        }
        ranges
    }
}

/// Bits of the blocks of `retained` that are in the node that starts at `start`.
#[must_use]
pub fn bits(retained: &[Range<usize>], start: usize) -> u64 {
    let of = |range: &Range<usize>| {
        let node = start..start + NODE_BLOCKS_MAX;
        let inside = range.start.max(node.start)..range.end.min(node.end);
        inside.map(|at| bit(at - start)).fold(0, |bits, bit| bits | bit)
    };
    retained.iter().map(of).fold(0, |bits, more| bits | more)
}

/// Bits of the first `blocks` blocks of a node.
#[must_use]
pub fn leading_bits(blocks: u8) -> u64 {
    bit(blocks.into()).wrapping_sub(1)
}

/// The bit of a node's block; none beyond the longest node.
fn bit(at: usize) -> u64 {
    u32::try_from(at).ok().and_then(|at| 1_u64.checked_shl(at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(blocks: usize) -> Window {
        Window { blocks }
    }

    fn bools(text: &str) -> Vec<bool> {
        text.bytes().map(|byte| byte == b'x').collect()
    }

    #[test]
    fn a_window_needs_the_blocks_before_its_last_token() {
        let of = |tokens, size| Window::new(tokens, NonZeroU32::new(size).unwrap());
        assert_eq!(of(128, 16), Some(window(8)));
        assert_eq!(of(128, 32), Some(window(4)));
        assert_eq!(of(130, 32), Some(window(5)));
        assert_eq!(of(129, 128), Some(window(1)));
        assert_eq!((of(1, 16), of(0, 16)), (None, None));
    }

    #[test]
    fn a_hit_ends_where_a_whole_window_is_retained() {
        let hit = |text: &str| window(3).hit(&bools(text));
        assert_eq!(hit("......"), 0);
        assert_eq!(hit("..xxx."), 5);
        assert_eq!(hit("..xxxx"), 6);
        assert_eq!(hit("xxx.xx"), 3);
        assert_eq!(hit("...xx."), 0);
        // What begins with the prompt itself needs no more.
        assert_eq!(hit("xx...."), 2);
        assert_eq!(hit(""), 0);
    }

    #[test]
    fn ends_are_retained_and_places_where_prompts_part_from_the_second_time_on() {
        let retains = |cacheable, common, hit| window(3).retains(cacheable, common, hit);
        let end = 7..10;
        assert_eq!(retains(10, 0, 0), std::slice::from_ref(&end));
        assert_eq!(retains(10, 6, 2), [end.clone(), 3..6]);
        assert_eq!(retains(10, 6, 6), std::slice::from_ref(&end));
        assert_eq!(retains(10, 12, 2), [end.clone(), end]);
        assert_eq!(retains(2, 0, 0), std::slice::from_ref(&(0..2)));
    }

    #[test]
    fn bits_are_those_of_one_node() {
        let one = |range: Range<usize>, start| bits(std::slice::from_ref(&range), start);
        assert_eq!(one(62..66, 0), 3 << 62);
        assert_eq!(one(62..66, 64), 3);
        assert_eq!(one(0..3, 64), 0);
        assert_eq!(bits(&[62..66, 70..71], 64), 3 | 1 << 6);
        assert_eq!((leading_bits(0), leading_bits(3), leading_bits(64)), (0, 7, u64::MAX));
    }
}
