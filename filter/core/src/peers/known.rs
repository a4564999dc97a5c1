//! The peers that this Envoy tells what it does, by their address.
//!
//! Nobody lists them: whoever answers on the peers' cluster says where it listens, and is told from then on, until
//! it fails [`FAILURES_OF_THE_GONE`] times in a row. Shared by all workers.

use crate::ids::NowMs;
use crate::limits::{NAME_BYTES_MAX, PEERS_MAX};
use crate::store::{self, SharedStore, StoreError};
use crate::wire::{Key, Reader, Writer};

/// A peer that failed this often in a row has gone.
pub const FAILURES_OF_THE_GONE: u8 = 3;

/// Failures within this time are one.
const FAILURE_MS: u64 = 1_000;

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Where it listens, as `ip:port`.
    pub address: String,
    /// Times in a row that it did not take a message, a second apart at least: of what is sent to it at once, all
    /// fails together.
    pub failures: u8,
    /// When that was last.
    pub failed_at: NowMs,
}

/// What became of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Found,
    /// It has gone.
    Gone,
    /// It is, or is not, as before.
    None,
}

/// All of them.
///
/// # Errors
/// [`StoreError`] when the host refuses the read.
pub fn load<S: SharedStore>(store: &S) -> Result<Vec<Known>, StoreError> {
    Ok(store.get(&key())?.map_or_else(Vec::new, |entry| decode(&entry.value)))
}

/// The peer at `address` answered.
///
/// # Errors
/// [`StoreError`] when the host refuses, or when all attempts lost their race.
pub fn answered<S: SharedStore>(store: &S, address: &str) -> Result<Change, StoreError> {
    let mut change = Change::None;
    store::update(store, &key(), |bytes| {
        let mut peers = decode(bytes);
        let has_room = peers.len() < PEERS_MAX && address.len() <= NAME_BYTES_MAX;
        change = Change::None;
        match peers.iter_mut().find(|peer| peer.address == address) {
            Some(peer) if peer.failures == 0 => return None,
            Some(peer) => peer.failures = 0,
            None if has_room => {
                change = Change::Found;
                let address = address.to_owned();
                peers.push(Known { address, failures: 0, failed_at: NowMs(0) });
            }
            None => return None,
        }
        Some(encode(&peers))
    })?;
    Ok(change)
}

/// The peer at `address` did not take a message at `now`.
///
/// # Errors
/// [`StoreError`] when the host refuses, or when all attempts lost their race.
pub fn failed<S: SharedStore>(store: &S, address: &str, now: NowMs) -> Result<Change, StoreError> {
    let mut change = Change::None;
    store::update(store, &key(), |bytes| {
        let mut peers = decode(bytes);
        let position = peers.iter().position(|peer| peer.address == address)?;
        let peer = peers.get_mut(position)?;
        if peer.failures > 0 && !now.has_passed(FAILURE_MS, peer.failed_at) {
            return None;
        }
        peer.failed_at = now;
        peer.failures = peer.failures.saturating_add(1);
        change = Change::None;
        if peer.failures >= FAILURES_OF_THE_GONE {
            peers.remove(position);
            change = Change::Gone;
        }
        Some(encode(&peers))
    })?;
    Ok(change)
}

fn decode(bytes: &[u8]) -> Vec<Known> {
    let Some(mut reader) = Reader::versioned(bytes) else { return Vec::new() };
    let peer = |reader: &mut Reader<'_>| {
        let (failures, failed_at, length) = (reader.u8()?, NowMs(reader.u64()?), reader.u16()?);
        let address = String::from_utf8(reader.bytes(length.into())?.to_vec()).ok()?;
        Some(Known { address, failures, failed_at })
    };
    std::iter::from_fn(|| peer(&mut reader)).take(PEERS_MAX).collect()
}

fn encode(peers: &[Known]) -> Vec<u8> {
    let mut writer = Writer::versioned(1 + 32 * peers.len());
    for peer in peers {
        writer.u8(peer.failures);
        writer.u64(peer.failed_at.0);
        writer.u16(peer.address.len() as u16);
        writer.bytes(peer.address.as_bytes());
    }
    writer.finish()
}

fn key() -> Key {
    Key::new("k")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn addresses(store: &MemoryStore) -> Vec<String> {
        load(store).unwrap().into_iter().map(|peer| peer.address).collect()
    }

    #[test]
    fn whoever_answers_is_known_until_it_failed_three_times_in_a_row() {
        let store = MemoryStore::default();
        let answered = |address| answered(&store, address).unwrap();
        let failed = |address, now| failed(&store, address, NowMs(now)).unwrap();
        assert_eq!(answered("10.0.0.1:1"), Change::Found);
        assert_eq!(answered("10.0.0.2:1"), Change::Found);
        assert_eq!(answered("10.0.0.1:1"), Change::None);
        assert_eq!(failed("10.0.0.1:1", 10_000), Change::None);
        assert_eq!(failed("10.0.0.1:1", 11_000), Change::None);
        assert_eq!(answered("10.0.0.1:1"), Change::None);
        assert_eq!(failed("10.0.0.1:1", 12_000), Change::None);
        assert_eq!(failed("10.0.0.1:1", 13_000), Change::None);
        // All that was under way to it.
        for _ in 0..20 {
            assert_eq!(failed("10.0.0.1:1", 13_999), Change::None);
        }
        assert_eq!(addresses(&store), ["10.0.0.1:1", "10.0.0.2:1"]);
        assert_eq!(failed("10.0.0.1:1", 14_000), Change::Gone);
        assert_eq!(failed("10.0.0.1:1", 15_000), Change::None);
        assert_eq!(addresses(&store), ["10.0.0.2:1"]);
    }

    #[test]
    fn the_list_and_its_addresses_are_bounded() {
        let store = MemoryStore::default();
        assert_eq!(answered(&store, &"1".repeat(NAME_BYTES_MAX + 1)), Ok(Change::None));
        for peer in 0..PEERS_MAX + 9 {
            answered(&store, &format!("10.0.0.1:{peer}")).unwrap();
        }
        assert_eq!(addresses(&store).len(), PEERS_MAX);
    }
}
