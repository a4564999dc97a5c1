//! A static hash table without collisions, built when a bundle is written and used where it lies.
//!
//! In: a 64-bit hash of a key. Out: the one slot where that key can be. A hash picks a bucket of
//! about four keys, the bucket's *pilot* (16 bits) says how to mix the hash so that all its keys
//! fall on slots of their own. A look-up is two loads and no loop, for keys that are there and for
//! keys that are not; the slot's content tells which. At a load of 0.9, a key costs its slot
//! divided by 0.9 plus half a byte.
//!
//! The table is data from outside: [`Phf::slot`] gives a slot below the slot count whatever the
//! pilots say, and every access is checked.

use crate::error::BundleError;
use crate::format::{u32_at, u64_at};

const HEADER_BYTES: usize = 16;
const SLOT_BYTES: usize = 8;
/// Spreads pilots over the hash before it is multiplied. Any odd number with mixed bits does.
const PILOT_SPREAD: u64 = 0x9E6C_63D0_876A_68A5;
/// Multiplies the mixed hash so that its high half depends on all its bits.
const SLOT_MIX: u64 = 0xD6E8_FEB8_6659_FD93;

/// Where a table's parts lie in the bundle's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phf {
    /// Seed for the hash of the keys.
    pub(crate) seed: u64,
    slot_count: u32,
    bucket_count: u32,
    pilots_at: usize,
    slots_at: usize,
}

impl Phf {
    /// Checks that a table fills a range of `bytes` exactly.
    pub(crate) fn read(
        bytes: &[u8],
        range: std::ops::Range<usize>,
        section: &'static str,
    ) -> Result<Self, BundleError> {
        let short = || BundleError::malformed(section, "hash table has no header");
        let slot_count = u32_at(bytes, range.start).ok_or_else(short)?;
        let bucket_count = u32_at(bytes, range.start + 4).ok_or_else(short)?;
        let seed = u64_at(bytes, range.start + 8).ok_or_else(short)?;
        if slot_count == 0 || bucket_count == 0 {
            return Err(BundleError::malformed(section, "hash table is empty"));
        }
        let pilots_at = range.start + HEADER_BYTES;
        let slots_at = (bucket_count as usize)
            .checked_mul(2)
            .and_then(|size| pilots_at.checked_add(size))
            .and_then(|at| at.checked_next_multiple_of(8));
        let end = slots_at.and_then(|at| {
            (slot_count as usize).checked_mul(SLOT_BYTES).and_then(|size| at.checked_add(size))
        });
        match (slots_at, end) {
            (Some(slots_at), Some(end)) if end == range.end => {
                Ok(Self { seed, slot_count, bucket_count, pilots_at, slots_at })
            }
            _ => Err(BundleError::malformed(section, "hash table and section differ in size")),
        }
    }

    /// The slot where the key of this hash is, if it is in the table.
    #[inline]
    fn slot(&self, bytes: &[u8], hash: u64) -> usize {
        let at = self.pilots_at + 2 * reduce(hash, self.bucket_count);
        let pilot = match bytes.get(at..at + 2) {
            Some(&[low, high]) => u16::from_le_bytes([low, high]),
            _ => 0,
        };
        slot_of(hash, pilot, self.slot_count)
    }

    /// Content of the slot for this hash; all ones when it is empty.
    #[inline]
    pub(crate) fn get(&self, bytes: &[u8], hash: u64) -> u64 {
        u64_at(bytes, self.slots_at + SLOT_BYTES * self.slot(bytes, hash)).unwrap_or(u64::MAX)
    }
}

/// Maps the high half of a hash to `0..count`.
#[inline]
fn reduce(hash: u64, count: u32) -> usize {
    (((hash >> 32) * u64::from(count)) >> 32) as usize
}

#[inline]
fn slot_of(hash: u64, pilot: u16, slot_count: u32) -> usize {
    let mixed = (hash ^ u64::from(pilot).wrapping_mul(PILOT_SPREAD)).wrapping_mul(SLOT_MIX);
    reduce(mixed, slot_count)
}

#[cfg(feature = "write")]
pub(crate) use build::build;

#[cfg(feature = "write")]
mod build {
    use super::{reduce, slot_of};

    const KEYS_PER_BUCKET: usize = 4;
    const LOAD_PERCENT: usize = 90;
    /// Seeds tried before giving up. One in a few hundred fails on a real vocabulary.
    const SEEDS_MAX: u64 = 64;

    /// Builds a table of `count` keys. The key of an index hashes as `hash_of(index, seed)`; its
    /// slot holds `content_of(index, hash)`; empty slots are all ones. None when two keys are equal.
    pub(crate) fn build(
        count: usize,
        hash_of: impl Fn(usize, u64) -> u64,
        content_of: impl Fn(usize, u64) -> u64,
    ) -> Option<Vec<u8>> {
        let slot_count = (count * 100 / LOAD_PERCENT + 1) as u32;
        let bucket_count = (count / KEYS_PER_BUCKET + 1) as u32;
        for seed in 1..=SEEDS_MAX {
            let hashes: Vec<u64> = (0..count).map(|index| hash_of(index, seed)).collect();
            let Some((pilots, owners)) = place(&hashes, slot_count, bucket_count) else {
                continue;
            };
            let mut out = Vec::new();
            out.extend_from_slice(&slot_count.to_le_bytes());
            out.extend_from_slice(&bucket_count.to_le_bytes());
            out.extend_from_slice(&seed.to_le_bytes());
            for pilot in pilots {
                out.extend_from_slice(&pilot.to_le_bytes());
            }
            out.resize(out.len().next_multiple_of(8), 0);
            for owner in owners {
                let content = match owner {
                    Some(index) => content_of(index, hashes.get(index).copied()?),
                    None => u64::MAX,
                };
                out.extend_from_slice(&content.to_le_bytes());
            }
            return Some(out);
        }
        None
    }

    type Placement = (Vec<u16>, Vec<Option<usize>>);

    /// Finds pilots, largest buckets first, while there is most room.
    fn place(hashes: &[u64], slot_count: u32, bucket_count: u32) -> Option<Placement> {
        let mut buckets: Vec<Vec<usize>> = vec![Vec::new(); bucket_count as usize];
        for (index, hash) in hashes.iter().enumerate() {
            buckets.get_mut(reduce(*hash, bucket_count))?.push(index);
        }
        let mut order: Vec<usize> = (0..buckets.len()).collect();
        order.sort_by_key(|bucket| std::cmp::Reverse(buckets.get(*bucket).map_or(0, Vec::len)));
        let mut pilots = vec![0u16; buckets.len()];
        let mut owners: Vec<Option<usize>> = vec![None; slot_count as usize];
        let mut slots = Vec::new();
        for bucket in order {
            let keys = buckets.get(bucket)?;
            let pilot = (0..=u16::MAX).find(|pilot| {
                slots.clear();
                keys.iter().all(|index| {
                    let slot =
                        slot_of(hashes.get(*index).copied().unwrap_or(0), *pilot, slot_count);
                    let free = owners.get(slot) == Some(&None) && !slots.contains(&slot);
                    slots.push(slot);
                    free
                })
            })?;
            *pilots.get_mut(bucket)? = pilot;
            for (index, slot) in keys.iter().zip(&slots) {
                *owners.get_mut(*slot)? = Some(*index);
            }
        }
        Some((pilots, owners))
    }
}
