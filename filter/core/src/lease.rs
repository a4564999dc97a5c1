//! Which VM does what only one must do: scraping, and tidying the list of endpoints.
//!
//! A lease in the shared store, renewed at each tick. When its holder goes, another takes it within
//! [`LEASE_MS`]. Of two configurations with one name, as around a reload, the one that was made later
//! takes the lease at once, so that what is done follows the newest.

use crate::ids::NowMs;
use crate::store::{self, SharedStore, StoreError};
use crate::wire::{Key, Reader, Writer};

/// A holder that has not renewed it for this long has lost it: three ticks.
pub const LEASE_MS: u64 = 3_000;

/// Who asks for the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Tells it from all others.
    pub nonce: u64,
    /// When its configuration was made.
    pub born: NowMs,
}

/// Takes or renews the lease of the configuration called `name`. Returns whether `candidate` has it
/// now.
///
/// # Errors
/// [`StoreError`] when the host refuses, or when all attempts lost their race.
pub fn hold<S: SharedStore>(
    store: &S,
    name: &str,
    candidate: Candidate,
    now: NowMs,
) -> Result<bool, StoreError> {
    let mut holds = false;
    store::update(store, &key(name), |bytes| {
        holds = decode(bytes).is_none_or(|(holder, renewed)| {
            let expired = now.has_passed(LEASE_MS, renewed);
            expired || holder.nonce == candidate.nonce || holder.born < candidate.born
        });
        holds.then(|| encode(candidate, now))
    })?;
    Ok(holds)
}

/// Who holds the lease, and when it was renewed; `None` when nobody ever did.
///
/// # Errors
/// [`StoreError`] when the host refuses the read.
pub fn holder<S: SharedStore>(
    store: &S,
    name: &str,
) -> Result<Option<(Candidate, NowMs)>, StoreError> {
    Ok(store.get(&key(name))?.and_then(|entry| decode(&entry.value)))
}

fn decode(bytes: &[u8]) -> Option<(Candidate, NowMs)> {
    let mut reader = Reader::versioned(bytes)?;
    let candidate = Candidate { nonce: reader.u64()?, born: NowMs(reader.u64()?) };
    Some((candidate, NowMs(reader.u64()?)))
}

fn encode(candidate: Candidate, now: NowMs) -> Vec<u8> {
    let mut writer = Writer::versioned(25);
    writer.u64(candidate.nonce);
    writer.u64(candidate.born.0);
    writer.u64(now.0);
    writer.finish()
}

fn key(name: &str) -> Key {
    Key::named("l", name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    const OLD: Candidate = Candidate { nonce: 1, born: NowMs(10) };
    const PEER: Candidate = Candidate { nonce: 2, born: NowMs(10) };
    const NEW: Candidate = Candidate { nonce: 3, born: NowMs(20) };

    #[test]
    fn one_holds_it_until_it_stops_renewing() {
        let store = MemoryStore::default();
        let hold = |who, now| hold(&store, "n", who, NowMs(now)).unwrap();
        assert!(hold(OLD, 0) && !hold(PEER, 1_000) && hold(OLD, 2_000));
        assert!(!hold(PEER, 4_999));
        assert!(hold(PEER, 5_000) && !hold(OLD, 5_001));
        assert_eq!(holder(&store, "n"), Ok(Some((PEER, NowMs(5_000)))));
        assert_eq!(holder(&store, "other"), Ok(None));
    }

    #[test]
    fn a_newer_configuration_takes_it_at_once() {
        let store = MemoryStore::default();
        let hold = |who, now| hold(&store, "n", who, NowMs(now)).unwrap();
        assert!(hold(OLD, 0) && hold(NEW, 1) && !hold(OLD, 2));
    }
}
