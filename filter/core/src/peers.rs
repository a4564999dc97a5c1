//! What several Envoys in front of the same engines tell each other.
//!
//! Each worker VM notes what it does that another Envoy cannot see: which prompts it sent where, which of
//! them were not computed after all, how much output filled an engine's memory. Some times a second it
//! sends the notes, with the load that it has on each backend, as one [`message`] to every peer. A VM
//! there takes them in as if the requests had been its own: the tree, the cache clocks ([`crate::dispatch::Writer::take_in`]) and
//! the load ([`loads`]) are then those of all Envoys together.
//!
//! Nothing waits for a peer, nothing is sent twice: a lost message costs later hits, and the load of a VM that
//! is not heard of for [`loads::LEASE_MS`] counts no longer.

pub mod known;
pub mod loads;
pub mod message;
mod take_in;

use crate::ids::{BackendId, BlockHash, NowMs};
use crate::limits::{PEER_BLOCKS_MAX, PEER_MESSAGE_BYTES_MAX};
use crate::load::LoadTable;
use crate::store::{self, SharedStore, StoreError};
use crate::wire::{Key, Reader, Writer};

pub use self::message::{Event, Message, SentTo};
pub use self::take_in::Taken;

/// Where a VM has a load and nothing else to tell, it is told again this often: a third of
/// [`loads::LEASE_MS`].
const LOADS_AGAIN_MS: u64 = 1_000;

/// What one VM has for its peers.
#[derive(Debug)]
pub struct Outbox {
    /// Tells the VM from all others.
    nonce: u64,
    sequence: u64,
    events: Vec<Event>,
    event_bytes: usize,
    dropped_events: u64,
    told_at: NowMs,
    told_loads: LoadTable,
}

impl Outbox {
    /// The outbox of the VM called `nonce`.
    #[must_use]
    pub fn new(nonce: u64) -> Self {
        Self {
            nonce,
            sequence: 0,
            events: Vec::new(),
            event_bytes: 0,
            dropped_events: 0,
            told_at: NowMs(0),
            told_loads: LoadTable::default(),
        }
    }

    /// Notes that a prompt was sent. Of a very long one, peers are told the beginning.
    pub fn sent(&mut self, sent: SentTo<'_>) {
        let hashes = sent.hashes.get(..PEER_BLOCKS_MAX).unwrap_or(sent.hashes);
        self.note(Event::sent(SentTo { hashes, ..sent }));
    }

    /// Notes that a prompt that was sent to `backend` is not there after all.
    pub fn taken_back(&mut self, backend: BackendId, hashes: &[BlockHash]) {
        let hashes = hashes.get(..PEER_BLOCKS_MAX).unwrap_or(hashes);
        self.note(Event::TakenBack { backend, hashes: hashes.to_vec() });
    }

    /// Notes that output filled `blocks` blocks of `backend`.
    pub fn decoded(&mut self, backend: BackendId, blocks: u32) {
        // Between two messages many answers end on one backend.
        let last = self.events.iter_mut().rev().find_map(|event| match event {
            Event::Decoded { backend: other, blocks } if *other == backend => Some(blocks),
            _ => None,
        });
        match last {
            Some(last) => *last = last.saturating_add(blocks),
            None => self.note(Event::Decoded { backend, blocks }),
        }
    }

    fn note(&mut self, event: Event) {
        let bytes = event.encoded_bytes();
        if self.event_bytes + bytes > PEER_MESSAGE_BYTES_MAX / 2 {
            self.dropped_events += 1;
            return;
        }
        self.event_bytes += bytes;
        self.events.push(event);
    }

    /// Events that did not fit since this was asked last.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped_events)
    }

    /// Whether there is anything to tell, where the VM's load is `own`.
    #[must_use]
    pub fn has_news(&self, own: &LoadTable, now: NowMs) -> bool {
        let is_again = || !own.is_empty() && now.has_passed(LOADS_AGAIN_MS, self.told_at);
        !self.events.is_empty() || *own != self.told_loads || is_again()
    }

    /// The next message, of what happened since the last one.
    pub fn message(&mut self, envoy: u64, own: &LoadTable, now: NowMs) -> Vec<u8> {
        self.sequence += 1;
        self.told_at = now;
        self.told_loads.clone_from(own);
        self.event_bytes = 0;
        let message = Message {
            envoy,
            vm: self.nonce,
            sequence: self.sequence,
            loads: own.iter().map(|(id, load)| (*id, *load)).collect(),
            events: std::mem::take(&mut self.events),
        };
        message.encode()
    }
}

/// What this Envoy calls itself before its peers: the same in all of its VMs. `nonce` becomes the name where
/// none has one yet.
///
/// # Errors
/// [`StoreError`] when the host refuses.
pub fn envoy_id<S: SharedStore>(store: &S, nonce: u64) -> Result<u64, StoreError> {
    let key = Key::new("n");
    let mut id = nonce;
    store::update(store, &key, |bytes| {
        id = nonce;
        if let Some(known) = Reader::versioned(bytes).and_then(|mut reader| reader.u64()) {
            id = known;
            return None;
        }
        let mut writer = Writer::versioned(9);
        writer.u64(nonce);
        Some(writer.finish())
    })?;
    Ok(id)
}
