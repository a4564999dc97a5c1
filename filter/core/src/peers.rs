//! What several Envoys in front of the same engines tell each other.
//!
//! Each worker VM notes what it does that another Envoy cannot see: which prompts it sent where, how much
//! output filled an engine's memory, which hosts serve that nobody listed. Some times a second it sends the
//! notes, with the load that it has on each backend, as one [`message`] to every peer. A VM there takes them in
//! as if the requests had been its own ([`crate::dispatch::Writer::take_in`]): the tree, the cache clocks and the
//! load ([`loads`]) are then those of all Envoys together.
//!
//! Nothing waits for a peer, nothing is sent twice: a lost message costs later hits, and the load of a VM that
//! is not heard of for [`loads::LEASE_MS`] counts no longer.

pub mod known;
pub mod loads;
pub mod message;
mod take_in;

use std::collections::VecDeque;

use crate::ids::{BackendId, NowMs};
use crate::limits::{PEER_BLOCKS_MAX, PEER_EVENTS_MAX, PEER_MESSAGE_BYTES_MAX};
use crate::load::LoadTable;
use crate::store::{self, SharedStore, StoreError};
use crate::wire::{Key, Reader, Writer};

use self::message::name_hash;
pub use self::message::{Event, Message, SentTo};
pub use self::take_in::Taken;

/// Where a VM has a load and nothing else to tell, it is told again this often: a third of
/// [`loads::LEASE_MS`].
const LOADS_AGAIN_MS: u64 = 1_000;

/// How long a prompt is kept back that no answer has begun to: what is refused, or cannot be sent, is refused
/// sooner, and need not be taken back. Its load is told at once.
const DOUBT_MS: u64 = 100;

/// What one VM has for its peers.
#[derive(Debug)]
pub struct Outbox {
    /// Tells the VM from all others.
    nonce: u64,
    /// Whether there may be peers; else nothing is noted.
    is_open: bool,
    sequence: u64,
    events: Vec<Event>,
    event_bytes: usize,
    /// Prompts that were sent, with their number and time: they become events once they are not doubtful.
    doubtful: VecDeque<(SentId, NowMs, Event)>,
    next_id: u64,
    dropped_events: u64,
    told_at: NowMs,
    told_loads: LoadTable,
}

/// A prompt that was noted as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentId(u64);

impl Outbox {
    /// The outbox of the VM called `nonce`, closed.
    #[must_use]
    pub fn new(nonce: u64) -> Self {
        Self {
            nonce,
            is_open: false,
            sequence: 0,
            events: Vec::new(),
            event_bytes: 0,
            doubtful: VecDeque::new(),
            next_id: 0,
            dropped_events: 0,
            told_at: NowMs(0),
            told_loads: LoadTable::default(),
        }
    }

    /// Whether anything is noted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    pub(crate) fn set_open(&mut self, is_open: bool) {
        self.is_open = is_open;
        if !is_open {
            self.events.clear();
            self.doubtful.clear();
            self.event_bytes = 0;
        }
    }

    /// Notes that a prompt was sent. Of a very long one, peers are told the beginning.
    pub fn sent(&mut self, sent: SentTo<'_>, now: NowMs) -> Option<SentId> {
        let hashes = sent.hashes.get(..PEER_BLOCKS_MAX).unwrap_or(sent.hashes);
        let event = Event::sent(SentTo { hashes, ..sent });
        if !self.takes(&event) {
            return None;
        }
        let id = SentId(self.next_id);
        self.next_id += 1;
        self.doubtful.push_back((id, now, event));
        Some(id)
    }

    /// Notes that an answer to a prompt has begun.
    pub fn answered(&mut self, id: SentId) {
        let event = self.take_doubtful(id);
        self.events.extend(event);
    }

    /// Notes that a prompt is not there after all, if peers were not told of it yet.
    pub fn taken_back(&mut self, id: SentId) {
        let bytes = self.take_doubtful(id).map_or(0, |event| event.encoded_bytes());
        self.event_bytes = self.event_bytes.saturating_sub(bytes);
    }

    fn take_doubtful(&mut self, id: SentId) -> Option<Event> {
        let position = self.doubtful.iter().position(|(other, ..)| *other == id)?;
        self.doubtful.remove(position).map(|(_, _, event)| event)
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

    /// Notes that a host serves which the configuration called `config` does not list.
    pub fn serves(&mut self, config: &str, address: &str) {
        let event = Event::Serves { config: name_hash(config), address: address.to_owned() };
        if !self.events.contains(&event) {
            self.note(event);
        }
    }

    fn note(&mut self, event: Event) {
        if self.takes(&event) {
            self.events.push(event);
        }
    }

    /// Whether there is room for `event` in the next message, which is taken then.
    fn takes(&mut self, event: &Event) -> bool {
        let bytes = self.event_bytes + event.encoded_bytes();
        let count = self.events.len() + self.doubtful.len();
        if !self.is_open {
            return false;
        }
        if bytes > PEER_MESSAGE_BYTES_MAX / 2 || count >= PEER_EVENTS_MAX {
            self.dropped_events += 1;
            return false;
        }
        self.event_bytes = bytes;
        true
    }

    /// Events that did not fit since this was asked last.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped_events)
    }

    /// In how many milliseconds the next message is due, where the VM's load is `own`, and messages are at least
    /// `interval_ms` apart; `None` while there is nothing to tell.
    #[must_use]
    pub fn due_in_ms(&self, own: &LoadTable, interval_ms: u64, now: NowMs) -> Option<u64> {
        if !self.is_open {
            return None;
        }
        let left = |period_ms: u64, since| match now.has_passed(period_ms, since) {
            true => 0,
            false => period_ms.saturating_sub(now.since_ms(since)),
        };
        let news = if !self.events.is_empty() || *own != self.told_loads {
            Some(0)
        } else {
            let doubt = self.doubtful.front().map(|(_, at, _)| left(DOUBT_MS, *at));
            let again = (!own.is_empty()).then(|| left(LOADS_AGAIN_MS, self.told_at));
            doubt.into_iter().chain(again).min()
        };
        Some(news?.max(left(interval_ms, self.told_at)))
    }

    /// The next message, of what happened since the last one and is not doubtful.
    pub fn message(&mut self, envoy: u64, own: &LoadTable, now: NowMs) -> Vec<u8> {
        while self.doubtful.front().is_some_and(|(_, at, _)| now.has_passed(DOUBT_MS, *at)) {
            self.events.extend(self.doubtful.pop_front().map(|(_, _, event)| event));
        }
        self.sequence += 1;
        self.told_at = now;
        self.told_loads.clone_from(own);
        self.event_bytes = self.doubtful.iter().map(|(_, _, event)| event.encoded_bytes()).sum();
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
