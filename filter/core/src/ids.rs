//! Newtypes for the quantities that must not be mixed up.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// A token id, as the model's tokenizer numbers it.
pub type TokenId = u32;

/// Chained 64-bit hash of a full KV block and of everything before it.
///
/// Equal hashes mean equal namespace and equal tokens from the prompt's first one through this
/// block. Stable across builds, machines, and native or wasm code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u64);

/// A backend's identity in shared state: the hash of its configured name.
///
/// It does not depend on the order of the configuration, so the tree survives a reload that adds
/// or removes backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub u32);

impl BackendId {
    /// The id of the backend called `name`. Configuration refuses two names with one id.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let hash = xxh3_64(name.as_bytes());
        Self((hash ^ (hash >> 32)) as u32)
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Position of a backend in the configuration's list: valid within one configuration only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendIndex(pub usize);

/// How far workers' readings of one clock may be apart: a callback has one for all it does.
const AHEAD_MS: u64 = 1_000;

/// A moment on the caller's clock, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct NowMs(pub u64);

impl NowMs {
    /// Milliseconds since `earlier`; 0 when the clock went backwards.
    #[must_use]
    pub fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Whether `period_ms` have passed since `earlier`. A moment that lies ahead was noted before the
    /// clock was set back, and counts as long past: what is done each second is done again at once, not
    /// when the clock has caught up.
    #[must_use]
    pub fn has_passed(self, period_ms: u64, earlier: Self) -> bool {
        self.since_ms(earlier) >= period_ms || earlier.since_ms(self) > AHEAD_MS
    }

    /// Whether what happened at `other` came after this moment. What lies well ahead was noted before the
    /// clock was set back.
    #[must_use]
    pub fn precedes(self, other: Self) -> bool {
        (1..=AHEAD_MS).contains(&other.since_ms(self))
    }

    /// Whether the moment `due`, set at most `wait_max_ms` ahead, is here, or was set before the clock was
    /// set back.
    #[must_use]
    pub fn is_due(self, due: Self, wait_max_ms: u64) -> bool {
        due <= self || due.since_ms(self) > wait_max_ms.saturating_add(AHEAD_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_stops_nothing() {
        let hour = 3_600_000;
        let noted = NowMs(2 * hour);
        assert!(!NowMs(2 * hour + 99).has_passed(100, noted));
        assert!(NowMs(2 * hour + 100).has_passed(100, noted));
        assert!(!NowMs(2 * hour - 1).has_passed(100, noted), "another worker's reading");
        assert!(NowMs(hour).has_passed(100, noted));
        assert!(NowMs(2 * hour - 5).precedes(noted) && !noted.precedes(noted));
        assert!(!NowMs(hour).precedes(noted));
        assert!(!NowMs(2 * hour - 4_000).is_due(noted, 4_000));
        assert!(NowMs(2 * hour).is_due(noted, 4_000));
        assert!(NowMs(hour).is_due(noted, 4_000));
    }
}
