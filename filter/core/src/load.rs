//! How busy each backend is: requests in flight, prefill still to do, context in memory.
//!
//! Each VM (an Envoy worker) counts what it dispatched in a record of its own and writes it to a
//! slot in the shared store, which it holds by a lease; readers sum the records of all live VMs.
//! Nobody contends for a counter, and when a VM dies its counts end with its lease instead of
//! leaking. Reads cost one store call a live VM, writes one.
//!
//! A dispatch is published at once, so that no two VMs send their work to the same idle backend. The ends
//! of prefills and of requests count in their own VM at once, and for the others when
//! [`Ledger::publish`] is called next: the first bytes of an answer need not wait for that.
//!
//! A prefix that several requests share lies in an engine's memory once. So each VM keeps, for
//! itself, which prefixes its requests pin where, and counts each of them once; a prefix that is
//! pinned through two VMs counts twice.

use ahash::AHashMap;

use crate::ids::{BackendId, BlockHash, NowMs};
use crate::limits::{BACKENDS_MAX, VM_LEASE_MS, VM_SLOTS_MAX};
use crate::pace::Paces;
use crate::peers::Outbox;
use crate::peers::loads::PeerLoads;
use crate::peers::message::{decode_loads, encode_loads};
use crate::sightings::{Sighting, Sightings};
use crate::signals::LoadReport;
use crate::store::{self, SharedStore, StoreError};
use crate::wire::{Key, Reader, Writer};

/// Load of one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BackendLoad {
    /// Requests dispatched and not finished.
    pub running: u32,
    /// Those of them without a first byte: their cost is their prefill, not yet their decoding.
    pub prefilling: u32,
    /// Tokens those requests have yet to prefill: uncached tokens of requests without a first
    /// byte.
    pub pending_prefill_tokens: u32,
    /// Tokens of context that those requests hold in KV memory: each prefix once, and what each
    /// has for itself, expected output included.
    pub context_tokens: u32,
}

impl BackendLoad {
    /// Adds another's share.
    pub fn add(&mut self, other: Self) {
        self.running = self.running.saturating_add(other.running);
        self.prefilling = self.prefilling.saturating_add(other.prefilling);
        self.pending_prefill_tokens =
            self.pending_prefill_tokens.saturating_add(other.pending_prefill_tokens);
        self.context_tokens = self.context_tokens.saturating_add(other.context_tokens);
    }

    /// Requests after their first byte.
    #[must_use]
    pub fn decoding(self) -> u32 {
        self.running.saturating_sub(self.prefilling)
    }

    fn subtract(&mut self, other: Self) {
        self.running = self.running.saturating_sub(other.running);
        self.prefilling = self.prefilling.saturating_sub(other.prefilling);
        self.pending_prefill_tokens =
            self.pending_prefill_tokens.saturating_sub(other.pending_prefill_tokens);
        self.context_tokens = self.context_tokens.saturating_sub(other.context_tokens);
    }
}

/// Load by backend.
pub type LoadTable = AHashMap<BackendId, BackendLoad>;

/// What all live VMs know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Their loads, summed.
    pub loads: LoadTable,
    /// The loads of peers, summed.
    pub peers: LoadTable,
    /// What they last heard of each backend.
    pub sightings: AHashMap<BackendId, Sighting>,
}

impl Totals {
    /// The load of `backend` that this Envoy put there.
    #[must_use]
    pub fn load(&self, backend: BackendId) -> BackendLoad {
        self.loads.get(&backend).copied().unwrap_or_default()
    }

    /// The load of `backend` that this Envoy and its peers put there.
    #[must_use]
    pub fn load_with_peers(&self, backend: BackendId) -> BackendLoad {
        let mut load = self.load(backend);
        load.add(self.peers.get(&backend).copied().unwrap_or_default());
        load
    }

    fn hear(&mut self, backend: BackendId, sighting: Sighting) {
        let last = self.sightings.entry(backend).or_insert(sighting);
        if last.at < sighting.at {
            *last = sighting;
        }
    }
}

/// What a request asks of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work<'a> {
    /// Tokens to prefill.
    pub pending_prefill_tokens: u32,
    /// Tokens of context in all, prompt and expected output.
    pub context_tokens: u32,
    /// Hashes of the prompt's full blocks.
    pub hashes: &'a [BlockHash],
    /// Tokens in a block.
    pub block_size_tokens: u32,
}

/// A request's share of its backend's load, handed back to end it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a ticket that is dropped leaks load: give it to Ledger::release"]
pub struct Ticket {
    backend: BackendId,
    /// The share without the pinned prefix.
    share: BackendLoad,
    pins: Vec<BlockHash>,
    pin_tokens: u32,
    dispatched_at: NowMs,
    prefill_ms: Option<u64>,
}

/// How long a request waited for its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillTime {
    backend: BackendId,
    time_ms: u64,
}

impl Ticket {
    /// The backend that carries the load.
    #[must_use]
    pub fn backend(&self) -> BackendId {
        self.backend
    }
}

/// Tokens by which pinned prefixes are counted, where the block size allows: coarse enough that a
/// prompt of 8k tokens has 32 pins, fine enough that what is missed of a shared prefix is small
/// beside a prompt.
const PIN_TOKENS: u32 = 256;

/// The last hash of each whole step of a prompt, and the tokens of a step. As hashes are chained,
/// an equal pin means an equal prefix.
fn pins(hashes: &[BlockHash], block_size_tokens: u32) -> (impl Iterator<Item = BlockHash>, u32) {
    let step_blocks = (PIN_TOKENS / block_size_tokens.max(1)).max(1);
    let ends = hashes.chunks_exact(step_blocks as usize).filter_map(|step| step.last().copied());
    (ends, step_blocks.saturating_mul(block_size_tokens))
}

/// One VM's own counts and its place among the others.
#[derive(Debug)]
pub struct Ledger {
    nonce: u64,
    slot: Option<u32>,
    own: LoadTable,
    /// Whether the counts changed since they were published.
    has_news: bool,
    /// Backends that began good answers since [`Ledger::take_answering`], and when they last did.
    answering: AHashMap<BackendId, NowMs>,
    /// How many of this VM's requests pin a prefix.
    pinned: AHashMap<(BackendId, BlockHash), u32>,
    paces: Paces,
    sightings: Sightings,
    /// What other Envoys are to be told.
    pub outbox: Outbox,
    /// What they run.
    pub peers: PeerLoads,
}

impl Ledger {
    /// The ledger of a new VM; `nonce` tells it from all others, past ones included.
    #[must_use]
    pub fn new(nonce: u64) -> Self {
        Self {
            nonce,
            slot: None,
            own: LoadTable::default(),
            has_news: false,
            answering: AHashMap::default(),
            pinned: AHashMap::default(),
            paces: Paces::default(),
            sightings: Sightings::default(),
            outbox: Outbox::new(nonce),
            peers: PeerLoads::default(),
        }
    }

    /// Counts a request against `backend` and publishes the record.
    ///
    /// # Errors
    /// [`StoreError`] when publishing failed. The request is counted all the same: the ticket is
    /// returned beside the outcome.
    pub fn dispatch<S: SharedStore>(
        &mut self,
        store: &S,
        now: NowMs,
        backend: BackendId,
        work: Work<'_>,
    ) -> (Ticket, Result<(), StoreError>) {
        let (ends, pin_tokens) = pins(work.hashes, work.block_size_tokens);
        let pins: Vec<BlockHash> = ends.collect();
        let mut new_pins = 0;
        for &pin in &pins {
            let count = self.pinned.entry((backend, pin)).or_insert(0);
            new_pins += u32::from(*count == 0);
            *count += 1;
        }
        let prefix_tokens = pin_tokens.saturating_mul(pins.len() as u32);
        let share = BackendLoad {
            running: 1,
            prefilling: 1,
            pending_prefill_tokens: work.pending_prefill_tokens,
            context_tokens: work.context_tokens.saturating_sub(prefix_tokens),
        };
        let load = self.own.entry(backend).or_default();
        load.add(share);
        load.context_tokens =
            load.context_tokens.saturating_add(pin_tokens.saturating_mul(new_pins));
        let ticket =
            Ticket { backend, share, pins, pin_tokens, dispatched_at: now, prefill_ms: None };
        self.has_news = true;
        (ticket, self.publish(store, now))
    }

    /// Leading tokens of a prompt that this VM's requests hold in `backend`'s memory.
    #[must_use]
    pub fn pinned_tokens(
        &self,
        backend: BackendId,
        hashes: &[BlockHash],
        block_size_tokens: u32,
    ) -> u32 {
        let (mut ends, pin_tokens) = pins(hashes, block_size_tokens);
        let mut tokens = 0;
        while ends.next().is_some_and(|pin| self.pinned.contains_key(&(backend, pin))) {
            tokens += pin_tokens;
        }
        tokens
    }

    /// How slow a backend is at prefill beside the fastest that this VM knows: 2 takes twice as
    /// long. 1 while unknown.
    pub fn slowness(&self) -> impl Fn(BackendId) -> f32 {
        self.paces.slowness()
    }

    /// Learns a backend's speed from a request that had `uncached_tokens` to prefill.
    pub fn learn_pace(&mut self, prefill: PrefillTime, uncached_tokens: u32) {
        self.paces.add(prefill.backend, uncached_tokens, prefill.time_ms);
    }

    /// The request's prefill is done, with the beginning of a good answer or of another one.
    pub fn first_byte(&mut self, now: NowMs, ticket: &mut Ticket, is_good: bool) {
        if ticket.share.prefilling == 0 {
            return;
        }
        if is_good {
            self.answering.insert(ticket.backend, now);
        }
        ticket.prefill_ms = Some(now.since_ms(ticket.dispatched_at));
        let done = BackendLoad {
            prefilling: std::mem::take(&mut ticket.share.prefilling),
            pending_prefill_tokens: std::mem::take(&mut ticket.share.pending_prefill_tokens),
            ..BackendLoad::default()
        };
        self.own.entry(ticket.backend).or_default().subtract(done);
        self.has_news = true;
    }

    /// The request ended, however it did. Returns how long it waited for its first byte, if one came.
    #[allow(clippy::needless_pass_by_value, reason = "a ticket is used up")]
    pub fn release(&mut self, ticket: Ticket) -> Option<PrefillTime> {
        let mut freed_pins = 0;
        for pin in ticket.pins {
            if let Some(count) = self.pinned.get_mut(&(ticket.backend, pin)) {
                *count -= 1;
                if *count == 0 {
                    self.pinned.remove(&(ticket.backend, pin));
                    freed_pins += 1;
                }
            }
        }
        if let Some(load) = self.own.get_mut(&ticket.backend) {
            load.subtract(ticket.share);
            load.context_tokens =
                load.context_tokens.saturating_sub(ticket.pin_tokens.saturating_mul(freed_pins));
            if *load == BackendLoad::default() {
                self.own.remove(&ticket.backend);
            }
        }
        self.has_news = true;
        ticket.prefill_ms.map(|time_ms| PrefillTime { backend: ticket.backend, time_ms })
    }

    /// Backends that began good answers since this was asked last, and when they last did.
    pub fn take_answering(&mut self) -> AHashMap<BackendId, NowMs> {
        std::mem::take(&mut self.answering)
    }

    /// Tells the other VMs what changed, if anything did.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses; the next publication carries the change.
    pub fn publish<S: SharedStore>(&mut self, store: &S, now: NowMs) -> Result<(), StoreError> {
        if !self.has_news {
            return Ok(());
        }
        // What fails is not repeated at each tick.
        self.has_news = false;
        self.write(store, now)
    }

    /// From now on notes what peers are to be told, or no longer.
    pub fn open_to_peers(&mut self, is_open: bool) {
        self.outbox.set_open(is_open);
        if !is_open {
            self.peers = PeerLoads::default();
        }
    }

    /// Looks at what peers run, if the last look was long ago and there may be any.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses; what was seen last stays.
    pub fn look_at_peers<S: SharedStore>(
        &mut self,
        store: &S,
        now: NowMs,
    ) -> Result<(), StoreError> {
        if self.outbox.is_open() { self.peers.refresh(store, now) } else { Ok(()) }
    }

    /// In how many milliseconds peers are to be told something, at most once in `interval_ms`; `None` while there
    /// is nothing to tell.
    #[must_use]
    pub fn tells_in_ms(&self, interval_ms: u64, now: NowMs) -> Option<u64> {
        self.outbox.due_in_ms(&self.own, interval_ms, now)
    }

    /// What peers are to be told now; `envoy` is what this Envoy calls itself.
    pub fn message(&mut self, envoy: u64, now: NowMs) -> Vec<u8> {
        self.outbox.message(envoy, &self.own, now)
    }

    /// This VM's own counts.
    #[must_use]
    pub fn own(&self) -> &LoadTable {
        &self.own
    }

    /// Whether a load report of `backend` would tell anything new.
    #[must_use]
    pub fn wants_report(&self, backend: BackendId, now: NowMs) -> bool {
        self.sightings.wants(backend, now)
    }

    /// Whether a request to `backend` is to ask for a load report; notes that it does.
    pub fn asks_report(&mut self, backend: BackendId, now: NowMs) -> bool {
        self.sightings.asks(backend, now)
    }

    /// Takes in a load report that came with an answer of `backend`, which holds `capacity_tokens` (0
    /// while unknown). The next publication carries it.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses to say what the other VMs have there.
    pub fn hear<S: SharedStore>(
        &mut self,
        store: &S,
        now: NowMs,
        backend: BackendId,
        report: LoadReport,
        capacity_tokens: u32,
    ) -> Result<(), StoreError> {
        let own = self.totals(store, now)?.load_with_peers(backend);
        self.sightings.take(backend, report, own, capacity_tokens, now);
        Ok(())
    }

    /// Renews the lease, and takes a new slot if another VM holds this one's by now. VMs that
    /// never dispatched have no slot and write nothing.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses.
    pub fn heartbeat<S: SharedStore>(&mut self, store: &S, now: NowMs) -> Result<(), StoreError> {
        let Some(slot) = self.slot else { return Ok(()) };
        let holder = store.get(&slot_key(slot))?;
        let nonce =
            holder.and_then(|entry| Record::decode(&entry.value)).map(|record| record.nonce);
        if nonce != Some(self.nonce) {
            self.slot = None;
        }
        self.write(store, now)
    }

    /// Sums the own counts and those of all other live VMs; beside it, what peers run as last summed up.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses a read.
    pub fn totals<S: SharedStore>(&self, store: &S, now: NowMs) -> Result<Totals, StoreError> {
        let (loads, peers) = (self.own.clone(), self.peers.loads.clone());
        let mut totals = Totals { loads, peers, ..Totals::default() };
        self.sightings.iter().for_each(|(backend, sighting)| totals.hear(backend, sighting));
        for slot in 0..slots_used(store)? {
            if self.slot == Some(slot) {
                continue;
            }
            let Some(entry) = store.get(&slot_key(slot))? else { continue };
            let Some(record) = Record::decode(&entry.value) else { continue };
            if record.is_live(now) && record.nonce != self.nonce {
                for (backend, load) in record.loads {
                    totals.loads.entry(backend).or_default().add(load);
                }
                for (backend, sighting) in record.sightings {
                    totals.hear(backend, sighting);
                }
            }
        }
        Ok(totals)
    }

    fn write<S: SharedStore>(&mut self, store: &S, now: NowMs) -> Result<(), StoreError> {
        let record = Record {
            nonce: self.nonce,
            heartbeat: now,
            loads: self.own.iter().take(BACKENDS_MAX).map(|(id, load)| (*id, *load)).collect(),
            sightings: self.sightings.iter().collect(),
        };
        let bytes = record.encode();
        match self.slot {
            Some(slot) => store.set(&slot_key(slot), &bytes, None),
            None => self.claim(store, now, &bytes),
        }
    }

    /// Takes the first slot that is free or expired. Two VMs that create the same missing key at
    /// once both believe they own it until the loser's next heartbeat reads the other's nonce.
    fn claim<S: SharedStore>(
        &mut self,
        store: &S,
        now: NowMs,
        record: &[u8],
    ) -> Result<(), StoreError> {
        for slot in 0..VM_SLOTS_MAX {
            let mut taken = false;
            store::update(store, &slot_key(slot), |bytes| {
                taken = Record::decode(bytes)
                    .is_some_and(|holder| holder.is_live(now) && holder.nonce != self.nonce);
                (!taken).then(|| record.to_vec())
            })?;
            if !taken {
                self.slot = Some(slot);
                raise_slots_used(store, slot + 1)?;
                return Ok(());
            }
        }
        Err(StoreError::Host)
    }
}

struct Record {
    nonce: u64,
    heartbeat: NowMs,
    loads: Vec<(BackendId, BackendLoad)>,
    sightings: Vec<(BackendId, Sighting)>,
}

impl Record {
    fn is_live(&self, now: NowMs) -> bool {
        !now.has_passed(VM_LEASE_MS, self.heartbeat)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::versioned(bytes)?;
        let nonce = reader.u64()?;
        let heartbeat = NowMs(reader.u64()?);
        let loads = decode_loads(&mut reader)?;
        let mut sightings = Vec::new();
        while let Some(backend) = reader.u32() {
            sightings.push((BackendId(backend), Sighting::decode(&mut reader)?));
        }
        Some(Self { nonce, heartbeat, loads, sightings })
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(19 + self.loads.len() * 20 + self.sightings.len() * 32);
        writer.u64(self.nonce);
        writer.u64(self.heartbeat.0);
        encode_loads(&mut writer, &self.loads);
        for (backend, sighting) in &self.sightings {
            writer.u32(backend.0);
            sighting.encode(&mut writer);
        }
        writer.finish()
    }
}

fn slot_key(slot: u32) -> Key {
    Key::new("v/").decimal(slot.into())
}

fn slots_used_key() -> Key {
    Key::new("v")
}

fn decode_slots_used(bytes: &[u8]) -> u32 {
    Reader::versioned(bytes).and_then(|mut reader| reader.u32()).unwrap_or(0).min(VM_SLOTS_MAX)
}

fn slots_used<S: SharedStore>(store: &S) -> Result<u32, StoreError> {
    Ok(store.get(&slots_used_key())?.map_or(0, |entry| decode_slots_used(&entry.value)))
}

fn raise_slots_used<S: SharedStore>(store: &S, slots: u32) -> Result<(), StoreError> {
    store::update(store, &slots_used_key(), |bytes| {
        (decode_slots_used(bytes) < slots).then(|| {
            let mut writer = Writer::versioned(5);
            writer.u32(slots);
            writer.finish()
        })
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    const B: BackendId = BackendId(1);

    fn work(pending_prefill_tokens: u32, context_tokens: u32) -> Work<'static> {
        Work { pending_prefill_tokens, context_tokens, ..Work::default() }
    }

    fn running(ledger: &Ledger, store: &MemoryStore, now: u64) -> u32 {
        ledger.totals(store, NowMs(now)).unwrap().load(B).running
    }

    #[test]
    fn every_vm_sees_the_sum() {
        let store = MemoryStore::default();
        let (mut a, mut b) = (Ledger::new(1), Ledger::new(2));
        let (ticket_a, result) = a.dispatch(&store, NowMs(0), B, work(100, 200));
        result.unwrap();
        let (mut ticket_b, result) = b.dispatch(&store, NowMs(0), B, work(10, 20));
        result.unwrap();
        for ledger in [&a, &b, &Ledger::new(3)] {
            let load = ledger.totals(&store, NowMs(1)).unwrap().load(B);
            assert_eq!(
                (load.running, load.pending_prefill_tokens, load.context_tokens),
                (2, 110, 220)
            );
        }
        b.first_byte(NowMs(1), &mut ticket_b, true);
        b.first_byte(NowMs(1), &mut ticket_b, true);
        assert_eq!(b.totals(&store, NowMs(1)).unwrap().load(B).pending_prefill_tokens, 100);
        assert_eq!(a.totals(&store, NowMs(1)).unwrap().load(B).pending_prefill_tokens, 110);
        b.publish(&store, NowMs(1)).unwrap();
        assert_eq!(a.totals(&store, NowMs(1)).unwrap().load(B).pending_prefill_tokens, 100);
        assert_eq!(b.take_answering().into_iter().collect::<Vec<_>>(), [(B, NowMs(1))]);
        a.release(ticket_a);
        b.release(ticket_b);
        a.publish(&store, NowMs(2)).unwrap();
        b.publish(&store, NowMs(2)).unwrap();
        assert!(a.totals(&store, NowMs(2)).unwrap().loads.is_empty());
        assert!(b.totals(&store, NowMs(2)).unwrap().loads.is_empty());
    }

    #[test]
    fn a_shared_prefix_is_in_memory_once() {
        let store = MemoryStore::default();
        let mut ledger = Ledger::new(1);
        let context = |ledger: &Ledger| ledger.own().get(&B).map_or(0, |load| load.context_tokens);
        let hashes: Vec<BlockHash> = (0..40).map(BlockHash).collect();
        let send = |ledger: &mut Ledger, hashes: &[BlockHash], context_tokens| {
            let work =
                Work { pending_prefill_tokens: 0, context_tokens, hashes, block_size_tokens: 16 };
            ledger.dispatch(&store, NowMs(0), B, work).0
        };
        let first = send(&mut ledger, &hashes, 740);
        assert_eq!(context(&ledger), 740);
        // 32 of its blocks are whole steps.
        assert_eq!(ledger.pinned_tokens(B, &hashes, 16), 512);
        assert_eq!(ledger.pinned_tokens(B, &hashes[..20], 16), 256);
        assert_eq!(ledger.pinned_tokens(BackendId(9), &hashes, 16), 0);
        let second = send(&mut ledger, &hashes[..33], 600);
        assert_eq!(context(&ledger), 740 + 600 - 512);
        ledger.release(first);
        assert_eq!(context(&ledger), 600);
        ledger.release(second);
        assert_eq!(context(&ledger), 0);
        assert_eq!(ledger.pinned_tokens(B, &hashes, 16), 0);
        assert!(ledger.pinned.is_empty());
    }

    #[test]
    fn a_dead_vms_counts_end_with_its_lease_and_its_slot_is_reused() {
        let store = MemoryStore::default();
        let mut dead = Ledger::new(1);
        let (ticket, _) = dead.dispatch(&store, NowMs(0), B, work(0, 0));
        std::mem::forget(ticket);
        let mut alive = Ledger::new(2);
        assert_eq!(running(&alive, &store, VM_LEASE_MS - 1), 1);
        assert_eq!(running(&alive, &store, VM_LEASE_MS), 0);
        let (_ticket, _) = alive.dispatch(&store, NowMs(VM_LEASE_MS), B, work(0, 0));
        assert_eq!(alive.slot, Some(0));
    }

    #[test]
    fn heartbeats_keep_a_lease_and_a_lost_slot_is_left() {
        let store = MemoryStore::default();
        let mut a = Ledger::new(1);
        let (_ticket, _) = a.dispatch(&store, NowMs(0), B, work(0, 0));
        a.heartbeat(&store, NowMs(VM_LEASE_MS - 1)).unwrap();
        assert_eq!(running(&Ledger::new(9), &store, VM_LEASE_MS + 1), 1);
        // Another VM wrote the same slot: the race of a missing key.
        let mut b = Ledger::new(2);
        b.slot = Some(0);
        let (_ticket, _) = b.dispatch(&store, NowMs(VM_LEASE_MS), B, work(0, 0));
        a.heartbeat(&store, NowMs(VM_LEASE_MS + 1)).unwrap();
        assert_eq!(a.slot, Some(1));
        assert_eq!(running(&Ledger::new(9), &store, VM_LEASE_MS + 2), 2);
    }

    #[test]
    fn a_vm_that_never_dispatched_writes_nothing() {
        let store = MemoryStore::default();
        Ledger::new(1).heartbeat(&store, NowMs(5)).unwrap();
        assert_eq!(store.size().0, 0);
    }
}
