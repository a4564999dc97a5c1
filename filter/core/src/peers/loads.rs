//! The load of peers' VMs, as their messages say it.
//!
//! In the shared store, so that whichever VM gets a message tells all of this Envoy; spread over a few keys by
//! the sender, so that they are not all written at once. Each VM sums them up anew when its sum is 20 ms old: a
//! decision reads memory.

use crate::ids::{BackendId, NowMs};
use crate::limits::BACKENDS_MAX;
use crate::load::{BackendLoad, LoadTable};
use crate::peers::message::{Message, decode_loads, encode_loads};
use crate::store::{self, SharedStore, StoreError};
use crate::wire::{Key, Reader, Writer};

/// A VM that has not been heard of for this long is gone, and its load with it: it tells of it each second.
pub const LEASE_MS: u64 = 3_000;

/// How old the sum may be that decisions read.
const SUM_MS: u64 = 20;

/// Keys over which senders are spread.
const SLOTS: u64 = 32;

/// Senders kept under one key; of more, the one that was heard last long ago goes.
const SENDERS_MAX: usize = 16;

/// What one VM of a peer said last.
#[derive(Clone, Debug, PartialEq)]
struct Sender {
    vm: u64,
    envoy: u64,
    /// The highest number of its messages.
    sequence: u64,
    /// Which of the 64 numbers up to that one came, the newest in the lowest bit.
    seen: u64,
    heard_at: NowMs,
    loads: Vec<(BackendId, BackendLoad)>,
}

impl Sender {
    fn is_live(&self, now: NowMs) -> bool {
        !now.has_passed(LEASE_MS, self.heard_at)
    }

    /// Whether the message of this number is news; notes that it came.
    fn notes(&mut self, sequence: u64) -> bool {
        if sequence > self.sequence {
            let ahead = u32::try_from(sequence - self.sequence).unwrap_or(u32::MAX);
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.sequence = sequence;
            return true;
        }
        let behind = u32::try_from(self.sequence - sequence).unwrap_or(u32::MAX);
        let Some(bit) = 1u64.checked_shl(behind) else { return false };
        let is_new = self.seen & bit == 0;
        self.seen |= bit;
        is_new
    }
}

/// Takes in the load that `message` tells. Returns whether the message is new: messages overtake each other,
/// and may come twice.
///
/// # Errors
/// [`StoreError`] when the host refuses, or when all attempts lost their race.
pub fn record<S: SharedStore>(
    store: &S,
    message: &Message,
    now: NowMs,
) -> Result<bool, StoreError> {
    let mut is_new = false;
    store::update(store, &key(message.vm % SLOTS), |bytes| {
        let mut senders = decode(bytes);
        senders.retain(|sender| sender.is_live(now));
        is_new = true;
        match senders.iter_mut().find(|sender| sender.vm == message.vm) {
            Some(sender) => {
                let is_newest = message.sequence > sender.sequence;
                is_new = sender.notes(message.sequence);
                sender.envoy = message.envoy;
                if is_newest {
                    sender.loads.clone_from(&message.loads);
                    sender.heard_at = now;
                }
            }
            None => {
                if senders.len() >= SENDERS_MAX {
                    let oldest = senders.iter().map(|sender| sender.heard_at).min();
                    senders.retain(|sender| Some(sender.heard_at) != oldest);
                }
                senders.push(Sender {
                    vm: message.vm,
                    envoy: message.envoy,
                    sequence: message.sequence,
                    seen: 1,
                    heard_at: now,
                    loads: message.loads.clone(),
                });
            }
        }
        is_new.then(|| encode(&senders))
    })?;
    Ok(is_new)
}

/// The load of all peers, as one VM last summed it up.
#[derive(Clone, Debug, Default)]
pub struct PeerLoads {
    summed_at: NowMs,
    /// By backend.
    pub loads: LoadTable,
    /// Envoys that were heard of lately.
    pub envoys: usize,
}

impl PeerLoads {
    /// Sums it up anew, if it was long ago.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses a read; the old sum stays.
    pub fn refresh<S: SharedStore>(&mut self, store: &S, now: NowMs) -> Result<(), StoreError> {
        if !now.has_passed(SUM_MS, self.summed_at) {
            return Ok(());
        }
        let mut loads = LoadTable::default();
        let mut envoys = Vec::new();
        for slot in 0..SLOTS {
            let Some(entry) = store.get(&key(slot))? else { continue };
            for sender in decode(&entry.value).into_iter().filter(|it| it.is_live(now)) {
                for (backend, load) in &sender.loads {
                    if loads.len() < BACKENDS_MAX || loads.contains_key(backend) {
                        loads.entry(*backend).or_default().add(*load);
                    }
                }
                envoys.push(sender.envoy);
            }
        }
        envoys.sort_unstable();
        envoys.dedup();
        *self = Self { summed_at: now, loads, envoys: envoys.len() };
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Vec<Sender> {
    let Some(mut reader) = Reader::versioned(bytes) else { return Vec::new() };
    let sender = |reader: &mut Reader<'_>| {
        Some(Sender {
            vm: reader.u64()?,
            envoy: reader.u64()?,
            sequence: reader.u64()?,
            seen: reader.u64()?,
            heard_at: NowMs(reader.u64()?),
            loads: decode_loads(reader)?,
        })
    };
    std::iter::from_fn(|| sender(&mut reader)).take(SENDERS_MAX).collect()
}

fn encode(senders: &[Sender]) -> Vec<u8> {
    let loads: usize = senders.iter().map(|sender| sender.loads.len()).sum();
    let mut writer = Writer::versioned(1 + 42 * senders.len() + 20 * loads);
    for sender in senders {
        writer.u64(sender.vm);
        writer.u64(sender.envoy);
        writer.u64(sender.sequence);
        writer.u64(sender.seen);
        writer.u64(sender.heard_at.0);
        encode_loads(&mut writer, &sender.loads);
    }
    writer.finish()
}

fn key(slot: u64) -> Key {
    Key::new("g/").decimal(slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    const B: BackendId = BackendId(1);

    fn message(vm: u64, sequence: u64, running: u32) -> Message {
        let load = BackendLoad { running, ..BackendLoad::default() };
        Message { envoy: vm / 10, vm, sequence, loads: vec![(B, load)], events: Vec::new() }
    }

    fn running(store: &MemoryStore, now: u64) -> (u32, usize) {
        let mut peers = PeerLoads::default();
        peers.refresh(store, NowMs(now)).unwrap();
        (peers.loads.get(&B).map_or(0, |load| load.running), peers.envoys)
    }

    #[test]
    fn all_vms_of_all_peers_are_summed_while_they_are_heard_of() {
        let store = MemoryStore::default();
        for vm in [10, 11, 26] {
            assert_eq!(record(&store, &message(vm, 1, 2), NowMs(1_000)), Ok(true));
        }
        assert_eq!(running(&store, 1_000), (6, 2));
        assert_eq!(record(&store, &message(26, 2, 5), NowMs(3_000)), Ok(true));
        assert_eq!(running(&store, 3_999), (9, 2));
        assert_eq!(running(&store, 4_000), (5, 1));
        // Its slot is used again.
        assert_eq!(record(&store, &message(42, 1, 1), NowMs(9_000)), Ok(true));
        assert_eq!(running(&store, 9_000), (1, 1));
    }

    #[test]
    fn an_overtaken_message_is_new_but_its_load_is_old() {
        let store = MemoryStore::default();
        let record =
            |sequence, running| record(&store, &message(10, sequence, running), NowMs(1_000));
        assert_eq!(record(2, 7), Ok(true));
        assert_eq!(record(1, 3), Ok(true));
        assert_eq!(running(&store, 1_000), (7, 1));
        assert_eq!((record(1, 3), record(2, 9)), (Ok(false), Ok(false)));
        assert_eq!(record(200, 1), Ok(true));
        assert_eq!(record(136, 1), Ok(false), "too old to be told from one that came");
        assert_eq!((record(137, 1), record(137, 1)), (Ok(true), Ok(false)));
    }

    #[test]
    fn a_key_keeps_so_many_senders() {
        let store = MemoryStore::default();
        let senders = SENDERS_MAX as u64 + 9;
        for at in 0..senders {
            record(&store, &message(SLOTS * at, 1, 1), NowMs(at)).unwrap();
        }
        assert_eq!(running(&store, senders).0 as usize, SENDERS_MAX);
    }
}
