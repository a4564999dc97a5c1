//! What engines say of themselves: the shared table, and what it tells of requests that others sent.
//!
//! In: reports that one VM scrapes ([`crate::lease`]), each with the filter's own counts of the same
//! moment. Out: capacities and block sizes; the load of each backend beyond what the filter sent there
//! itself, fading as the report grows old; and the allocations of others, by which cache clocks are
//! set right.
//!
//! A report is older than the filter's own counts and never replaces them. What is used of it is the
//! difference to the own counts *when it was made*: the requests of other proxies. Requests on their
//! way to or from the engine differ by one or two, so the smaller difference of the last two reports
//! counts.

use std::num::NonZeroU32;

use crate::ids::{BackendId, NowMs};
use crate::limits::BACKENDS_MAX;
use crate::load::BackendLoad;
use crate::residency::{self, Clock};
use crate::sightings::Sighting;
use crate::signals::{EngineKind, EngineReport};
use crate::store::{self, SharedStore, StoreError};
use crate::wire::{Key, Reader, Writer};

/// A report counts in full for this long: three readings at the default interval.
pub const FRESH_MS: u64 = 3_000;

/// From this age on a report says nothing of the load; between, its weight falls in a line.
pub const STALE_MS: u64 = 10_000;

/// Tokens to prefill of a waiting request that others sent: engines do not say. A short prompt's, for
/// what is unknown should not drive prefixes away.
const WAITING_TOKENS: u32 = 1_000;

/// Start times of one process that differ by less are one: some engines compute them anew each time.
const START_SLACK_S: f64 = 2.0;

/// What others allocated is entered into a clock from this share of the capacity on: two epochs. Less
/// is the skew between when the filter counts a request and when the engine does.
const ALLOCATION_SHARE: u32 = 32;

/// The same while the capacity is unknown, in blocks.
const ALLOCATION_BLOCKS_UNKNOWN: i64 = 512;

/// What one backend said last.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Who.
    pub backend: BackendId,
    /// When it last answered.
    pub reported_at: NowMs,
    /// Readings that failed since.
    pub failures: u16,
    /// Its report.
    pub report: EngineReport,
    /// Requests that others run and have waiting there: of the last report, and of the one before.
    others: [(u32, u32); 2],
    /// KV memory of theirs, in tokens.
    others_context_tokens: u32,
    /// The filter's own allocations when the report was made, by the cache clock, in blocks.
    own_blocks: u64,
    /// Allocations of others that are not in the clock; below 0 what the engine has yet to count.
    debt_blocks: i64,
}

/// What a new report means for a backend's cache clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// The engine was started anew, so its cache is empty.
    pub restarted: bool,
    /// Blocks that others allocated.
    pub others_blocks: u32,
}

/// What all backends said last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reported {
    states: Vec<State>,
}

/// Nothing: where metrics are not read.
pub static NOTHING: Reported = Reported { states: Vec::new() };

impl Reported {
    /// Reads the table of the configuration called `name`.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses the read.
    pub fn load<S: SharedStore>(store: &S, name: &str) -> Result<Self, StoreError> {
        let entry = store.get(&key(name))?;
        Ok(entry.map_or_else(Self::default, |entry| Self::decode(&entry.value)))
    }

    /// What `backend` said last.
    #[must_use]
    pub fn get(&self, backend: BackendId) -> Option<&State> {
        self.states.iter().find(|state| state.backend == backend)
    }

    /// When the metrics of `backend` were last read; `None` when they never were.
    #[must_use]
    pub fn reported_at(&self, backend: BackendId) -> Option<NowMs> {
        self.get(backend).map(|state| state.reported_at).filter(|at| *at != NowMs(0))
    }

    /// Load of `backend` that others put there, by the last report or a later sighting.
    #[must_use]
    pub fn others(
        &self,
        backend: BackendId,
        sighting: Option<&Sighting>,
        now: NowMs,
    ) -> BackendLoad {
        let state = self.get(backend);
        let is_later = |it: &&Sighting| state.is_none_or(|state| state.reported_at < it.at);
        let reported = state.map_or_else(BackendLoad::default, |state| state.others(now));
        match sighting.filter(is_later) {
            // It says nothing of what runs.
            Some(sighting) => sighting.others(reported.decoding(), now),
            None => reported,
        }
    }

    /// KV memory of `backend` in tokens, as it says.
    #[must_use]
    pub fn kv_capacity_tokens(&self, backend: BackendId) -> Option<NonZeroU32> {
        self.get(backend)?.report.kv_capacity_tokens()
    }

    /// Tokens in a block of `backend`, as it says.
    #[must_use]
    pub fn block_size_tokens(&self, backend: BackendId) -> Option<NonZeroU32> {
        self.get(backend)?.report.block_size_tokens
    }

    /// Takes in a report, with the filter's own load and allocations of that moment.
    fn record(
        &mut self,
        backend: BackendId,
        mut report: EngineReport,
        own: BackendLoad,
        clock: &Clock,
        now: NowMs,
    ) -> Effects {
        let own_blocks = clock.own_blocks;
        let position = self.states.iter().position(|state| state.backend == backend);
        let Some(state) = position.and_then(|position| self.states.get_mut(position)) else {
            if self.states.len() < BACKENDS_MAX {
                self.states.push(State::first(backend, report, own, own_blocks, now));
            }
            return Effects::default();
        };
        let restarted = is_restart(&state.report, &report);
        // What does not change while it runs stays known when a report leaves it out.
        report.block_size_tokens = report.block_size_tokens.or(state.report.block_size_tokens);
        report.kv_blocks = report.kv_blocks.or(state.report.kv_blocks);
        if restarted {
            *state = State::first(backend, report, own, own_blocks, now);
            return Effects { restarted, others_blocks: 0 };
        }
        let others_blocks = state.allocations_of_others(&report, clock);
        let (last, debt_blocks) = (state.others[0], state.debt_blocks);
        *state = State::first(backend, report, own, own_blocks, now);
        state.others[1] = last;
        state.debt_blocks = debt_blocks;
        Effects { restarted, others_blocks }
    }

    fn fail(&mut self, backend: BackendId) {
        let has_room = self.states.len() < BACKENDS_MAX;
        match self.states.iter_mut().find(|state| state.backend == backend) {
            Some(state) => state.failures = state.failures.saturating_add(1),
            None if has_room => self.states.push(State {
                failures: 1,
                ..State::first(
                    backend,
                    EngineReport::default(),
                    BackendLoad::default(),
                    0,
                    NowMs(0),
                )
            }),
            None => {}
        }
    }

    fn decode(bytes: &[u8]) -> Self {
        let mut states = Vec::new();
        if let Some(mut reader) = Reader::versioned(bytes) {
            while let Some(state) = State::decode(&mut reader) {
                states.push(state);
            }
        }
        Self { states }
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(1 + self.states.len() * 128);
        self.states.iter().for_each(|state| state.encode(&mut writer));
        writer.finish()
    }
}

impl State {
    fn first(
        backend: BackendId,
        report: EngineReport,
        own: BackendLoad,
        own_blocks: u64,
        now: NowMs,
    ) -> Self {
        let waiting = report.waiting.unwrap_or(0);
        let in_flight = waiting.saturating_add(report.running.unwrap_or(0));
        let others = in_flight.saturating_sub(own.running);
        let others_waiting = waiting.saturating_sub(own.prefilling).min(others);
        let capacity = report.kv_capacity_tokens().map_or(0, NonZeroU32::get);
        let in_use = (report.kv_usage.unwrap_or(0.0) * capacity as f32) as u32;
        Self {
            backend,
            reported_at: now,
            failures: 0,
            // The first report has none before it, so that a single one counts for nothing yet.
            others: [(others - others_waiting, others_waiting), (0, 0)],
            others_context_tokens: in_use.saturating_sub(own.context_tokens),
            own_blocks,
            debt_blocks: 0,
            report,
        }
    }

    /// Load that others put there.
    #[must_use]
    pub fn others(&self, now: NowMs) -> BackendLoad {
        let [(running, waiting), (running_before, waiting_before)] = self.others;
        let (running, waiting) = (running.min(running_before), waiting.min(waiting_before));
        let weight = weight(self.reported_at, now);
        others_load(running, waiting, self.others_context_tokens, weight)
    }

    /// Blocks of the clock's that others allocated since the last report, once they are enough to be told
    /// from skew.
    fn allocations_of_others(&mut self, report: &EngineReport, clock: &Clock) -> u32 {
        let (Some(before), Some(after), Some(size)) =
            (self.report.computed_tokens(), report.computed_tokens(), report.block_size_tokens)
        else {
            return 0;
        };
        // The clock's blocks may be of another size than the engine's (see `live`).
        let size = u64::from(size.get());
        let engine_blocks = report.kv_blocks.map_or(0, NonZeroU32::get);
        let clock_blocks = match clock.capacity_blocks {
            0 => engine_blocks,
            blocks => blocks,
        };
        let size = (size * u64::from(engine_blocks))
            .checked_div(clock_blocks.into())
            .filter(|size| *size > 0)
            .unwrap_or(size);
        let counted = after.saturating_sub(before) / size;
        let own = clock.own_blocks.saturating_sub(self.own_blocks);
        let difference = i64::try_from(counted).unwrap_or(i64::MAX).saturating_sub_unsigned(own);
        let threshold = match clock_blocks {
            0 => ALLOCATION_BLOCKS_UNKNOWN,
            blocks => (blocks / ALLOCATION_SHARE).max(1).into(),
        };
        let debt = self.debt_blocks.saturating_add(difference).max(-threshold);
        self.debt_blocks = if debt > threshold { 0 } else { debt };
        if debt > threshold { u32::try_from(debt).unwrap_or(u32::MAX) } else { 0 }
    }

    fn encode(&self, writer: &mut Writer) {
        let report = &self.report;
        writer.u32(self.backend.0);
        writer.u64(self.reported_at.0);
        writer.u16(self.failures);
        writer.u8(report.engine.map_or(u8::MAX, |engine| engine as u8));
        writer.u32(report.waiting.unwrap_or(u32::MAX));
        writer.u32(report.running.unwrap_or(u32::MAX));
        writer.u32(report.kv_usage.unwrap_or(f32::NAN).to_bits());
        writer.u32(report.block_size_tokens.map_or(0, NonZeroU32::get));
        writer.u32(report.kv_blocks.map_or(0, NonZeroU32::get));
        for counter in [
            report.prompt_tokens,
            report.generation_tokens,
            report.prefix_query_tokens,
            report.prefix_hit_tokens,
        ] {
            writer.u64(counter.unwrap_or(u64::MAX));
        }
        writer.u64(report.started_at_s.unwrap_or(f64::NAN).to_bits());
        for (running, waiting) in self.others {
            writer.u32(running);
            writer.u32(waiting);
        }
        writer.u32(self.others_context_tokens);
        writer.u64(self.own_blocks);
        writer.u64(self.debt_blocks.cast_unsigned());
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let known = |value: u32| (value != u32::MAX).then_some(value);
        let (backend, reported_at) = (BackendId(reader.u32()?), NowMs(reader.u64()?));
        let failures = reader.u16()?;
        let engine = reader.u8()?;
        let engine = EngineKind::ALL.into_iter().find(|kind| *kind as u8 == engine);
        let (waiting, running) = (known(reader.u32()?), known(reader.u32()?));
        let kv_usage = Some(f32::from_bits(reader.u32()?)).filter(|usage| !usage.is_nan());
        let block_size_tokens = NonZeroU32::new(reader.u32()?);
        let kv_blocks = NonZeroU32::new(reader.u32()?);
        let mut counter = || reader.u64().map(|value| (value != u64::MAX).then_some(value));
        let report = EngineReport {
            engine,
            waiting,
            running,
            kv_usage,
            block_size_tokens,
            kv_blocks,
            prompt_tokens: counter()?,
            generation_tokens: counter()?,
            prefix_query_tokens: counter()?,
            prefix_hit_tokens: counter()?,
            started_at_s: Some(f64::from_bits(reader.u64()?)).filter(|start| !start.is_nan()),
        };
        let mut pair = || Some((reader.u32()?, reader.u32()?));
        Some(Self {
            backend,
            reported_at,
            failures,
            report,
            others: [pair()?, pair()?],
            others_context_tokens: reader.u32()?,
            own_blocks: reader.u64()?,
            debt_blocks: reader.u64()?.cast_signed(),
        })
    }
}

impl EngineReport {
    /// KV memory in tokens, if the engine says how many blocks of which size it has.
    #[must_use]
    pub fn kv_capacity_tokens(&self) -> Option<NonZeroU32> {
        self.kv_blocks?.checked_mul(self.block_size_tokens?)
    }

    /// Tokens that were computed and so filled KV blocks, since the engine's start; `None` when it does
    /// not say which were found in its cache.
    fn computed_tokens(&self) -> Option<u64> {
        let (prompt, hits) = (self.prompt_tokens?, self.prefix_hit_tokens?);
        // Old versions of vLLM count blocks here; the ratio is right whatever the unit.
        let found = match self.prefix_query_tokens {
            Some(queries @ 1..) => {
                u64::try_from(u128::from(prompt) * u128::from(hits) / u128::from(queries)).ok()?
            }
            _ => hits,
        };
        Some(prompt.saturating_sub(found).saturating_add(self.generation_tokens?))
    }
}

/// How much a report of this age counts, from 1 to 0.
#[must_use]
pub fn weight(reported_at: NowMs, now: NowMs) -> f32 {
    let left_ms = STALE_MS.saturating_sub(now.since_ms(reported_at)) as f32;
    (left_ms / (STALE_MS - FRESH_MS) as f32).min(1.0)
}

/// The load of requests that others run and have waiting, at this weight. Memory in use is theirs only
/// while they have any.
pub(crate) fn others_load(
    running: u32,
    waiting: u32,
    context_tokens: u32,
    weight: f32,
) -> BackendLoad {
    let faded = |count: u32| (count as f32 * weight) as u32;
    let prefilling = faded(waiting);
    BackendLoad {
        running: faded(running.saturating_add(waiting)),
        prefilling,
        pending_prefill_tokens: prefilling.saturating_mul(WAITING_TOKENS),
        context_tokens: if running.saturating_add(waiting) == 0 {
            0
        } else {
            faded(context_tokens)
        },
    }
}

fn is_restart(before: &EngineReport, after: &EngineReport) -> bool {
    let falls =
        |before: Option<u64>, after: Option<u64>| before.zip(after).is_some_and(|(b, a)| a < b);
    let starts = before.started_at_s.zip(after.started_at_s);
    starts.is_some_and(|(before, after)| after - before > START_SLACK_S)
        || falls(before.prompt_tokens, after.prompt_tokens)
        || falls(before.generation_tokens, after.generation_tokens)
}

/// Takes in what `backend` reported, and sets its clock right. `own` is the filter's load there by its
/// own counts. Returns whether the engine was started anew.
///
/// # Errors
/// [`StoreError`] when an update was lost.
pub fn record<S: SharedStore>(
    store: &S,
    name: &str,
    backend: BackendId,
    report: &EngineReport,
    own: BackendLoad,
    now: NowMs,
) -> Result<bool, StoreError> {
    // The clock's capacity is for those to say who use it: an engine's blocks may be of another size.
    let clock = residency::load(store, backend, 0)?;
    let mut effects = Effects::default();
    store::update(store, &key(name), |bytes| {
        let mut table = Reported::decode(bytes);
        effects = table.record(backend, report.clone(), own, &clock, now);
        Some(table.encode())
    })?;
    if effects.restarted {
        residency::change(store, backend, 0, Clock::restart)?;
    } else if effects.others_blocks > 0 {
        residency::change(store, backend, 0, |clock| clock.advance(effects.others_blocks))?;
    }
    Ok(effects.restarted)
}

/// Notes that `backend` could not be read.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn failed<S: SharedStore>(store: &S, name: &str, backend: BackendId) -> Result<(), StoreError> {
    store::update(store, &key(name), |bytes| {
        let mut table = Reported::decode(bytes);
        table.fail(backend);
        Some(table.encode())
    })?;
    Ok(())
}

/// Drops what is known of backends other than `kept`.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn keep<S: SharedStore>(
    store: &S,
    name: &str,
    kept: impl Fn(BackendId) -> bool,
) -> Result<(), StoreError> {
    store::update(store, &key(name), |bytes| {
        let mut table = Reported::decode(bytes);
        let before = table.states.len();
        table.states.retain(|state| kept(state.backend));
        (table.states.len() != before).then(|| table.encode())
    })?;
    Ok(())
}

fn key(name: &str) -> Key {
    Key::named("b", name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    const B: BackendId = BackendId(7);

    fn report(waiting: u32, running: u32, computed: u64) -> EngineReport {
        EngineReport {
            engine: Some(EngineKind::Vllm),
            waiting: Some(waiting),
            running: Some(running),
            kv_usage: Some(0.5),
            block_size_tokens: NonZeroU32::new(16),
            kv_blocks: NonZeroU32::new(640),
            prompt_tokens: Some(computed + 100),
            generation_tokens: Some(0),
            prefix_query_tokens: None,
            prefix_hit_tokens: Some(100),
            started_at_s: Some(1_000.0),
        }
    }

    fn own(running: u32, prefilling: u32) -> BackendLoad {
        BackendLoad { running, prefilling, ..BackendLoad::default() }
    }

    fn take(store: &MemoryStore, report: &EngineReport, own: BackendLoad, now: u64) -> bool {
        record(store, "n", B, report, own, NowMs(now)).unwrap()
    }

    fn others(store: &MemoryStore, now: u64) -> (u32, u32) {
        let load = Reported::load(store, "n").unwrap().others(B, None, NowMs(now));
        (load.running, load.prefilling)
    }

    #[test]
    fn what_the_filter_sent_itself_is_not_counted_again() {
        let store = MemoryStore::default();
        take(&store, &report(2, 5, 0), own(7, 2), 1_000);
        take(&store, &report(2, 5, 0), own(6, 1), 2_000);
        assert_eq!(others(&store, 2_000), (0, 0), "one or two are on their way");
    }

    #[test]
    fn requests_of_others_count_and_fade_with_the_age_of_the_report() {
        let store = MemoryStore::default();
        take(&store, &report(10, 20, 0), own(0, 0), 1_000);
        assert_eq!(others(&store, 1_000), (0, 0), "a single report");
        take(&store, &report(12, 30, 0), own(2, 2), 2_000);
        assert_eq!(others(&store, 2_000 + FRESH_MS), (30, 10));
        let (half, _) = others(&store, 2_000 + (FRESH_MS + STALE_MS) / 2);
        assert!((14..=15).contains(&half), "{half}");
        assert_eq!(others(&store, 2_000 + STALE_MS), (0, 0));
        failed(&store, "n", B).unwrap();
        assert_eq!(Reported::load(&store, "n").unwrap().get(B).unwrap().failures, 1);
    }

    #[test]
    fn the_table_survives_the_store_and_keeps_absences() {
        let mut table = Reported::default();
        let mut clock = Clock::new(0);
        clock.own_blocks = 9;
        table.record(B, report(1, 2, 3), own(1, 0), &clock, NowMs(4));
        table.record(BackendId(8), EngineReport::default(), own(0, 0), &Clock::new(0), NowMs(5));
        table.fail(BackendId(9));
        assert_eq!(Reported::decode(&table.encode()), table);
        assert_eq!(table.kv_capacity_tokens(B), NonZeroU32::new(10_240));
        assert_eq!(table.kv_capacity_tokens(BackendId(9)), None);
        assert_eq!(Reported::decode(&table.encode()[..60]).states.len(), 0);
    }

    #[test]
    fn a_report_without_its_constants_changes_none() {
        let store = MemoryStore::default();
        take(&store, &report(0, 0, 0), own(0, 0), 1_000);
        let cut = EngineReport { block_size_tokens: None, kv_blocks: None, ..report(0, 0, 0) };
        take(&store, &cut, own(0, 0), 2_000);
        let table = Reported::load(&store, "n").unwrap();
        assert_eq!(table.kv_capacity_tokens(B), NonZeroU32::new(10_240));
    }

    #[test]
    fn a_restart_is_seen_by_its_start_or_by_falling_counters() {
        let store = MemoryStore::default();
        let generation = || residency::load(&store, B, 640).unwrap().generation;
        assert!(!take(&store, &report(0, 0, 500), own(0, 0), 1_000));
        assert!(!take(&store, &report(0, 0, 500), own(0, 0), 2_000));
        assert!(take(&store, &report(0, 0, 400), own(0, 0), 3_000));
        let later = EngineReport { started_at_s: Some(1_010.0), ..report(0, 0, 800) };
        assert!(take(&store, &later, own(0, 0), 4_000));
        assert_eq!(generation(), 2);
    }

    /// A request of the filter's own allocates 100 blocks.
    fn allocate(store: &MemoryStore) {
        let activity = crate::residency::Activity {
            allocated_blocks: 100,
            moved: Vec::new(),
            touched_blocks: 100,
        };
        residency::change(store, B, 640, |clock| clock.record(&activity)).unwrap();
    }

    #[test]
    fn allocations_of_others_move_the_clock_and_own_ones_do_not_twice() {
        let store = MemoryStore::default();
        let distance = || residency::load(&store, B, 640).unwrap().distance_blocks(0).unwrap();
        take(&store, &report(0, 0, 0), own(0, 0), 1_000);
        allocate(&store);
        assert_eq!(distance(), 100);
        take(&store, &report(0, 0, 100 * 16), own(0, 0), 2_000);
        assert_eq!(distance(), 100);
        take(&store, &report(0, 0, 200 * 16), own(0, 0), 3_000);
        assert_eq!(distance(), 200);
        // Little by little adds up too.
        for step in 1..=3 {
            take(&store, &report(0, 0, (200 + step * 8) * 16), own(0, 0), 3_000 + step);
        }
        assert_eq!(distance(), 224);
    }

    #[test]
    fn own_allocations_are_the_same_in_blocks_of_any_size() {
        // An engine that caches token by token, and one whose blocks are twice the clock's.
        for (size, kv_blocks) in [(1, 640 * 16), (32, 320)] {
            let store = MemoryStore::default();
            let report = |prompt_tokens| EngineReport {
                block_size_tokens: NonZeroU32::new(size),
                kv_blocks: NonZeroU32::new(kv_blocks),
                ..report(0, 0, prompt_tokens)
            };
            take(&store, &report(0), own(0, 0), 1_000);
            allocate(&store);
            take(&store, &report(100 * 16), own(0, 0), 2_000);
            let distance = || residency::load(&store, B, 640).unwrap().distance_blocks(0);
            assert_eq!(distance(), Some(100), "{size}");
            take(&store, &report(200 * 16), own(0, 0), 3_000);
            assert_eq!(distance(), Some(200), "{size}");
        }
    }

    #[test]
    fn who_is_gone_is_dropped() {
        let store = MemoryStore::default();
        take(&store, &report(0, 0, 0), own(0, 0), 1_000);
        keep(&store, "n", |id| id == B).unwrap();
        assert!(Reported::load(&store, "n").unwrap().get(B).is_some());
        keep(&store, "n", |_| false).unwrap();
        assert!(Reported::load(&store, "n").unwrap().get(B).is_none());
    }
}
