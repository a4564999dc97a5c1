//! Which backends failed lately and are passed over.
//!
//! One shared value lists only the backends in trouble, so a decision costs one read and a healthy
//! fleet writes nothing. Each further failure doubles the time a backend is passed over; when it
//! is over, the worker that claims the trial (by compare-and-swap) sends it one request, and the
//! others wait for the outcome.
//!
//! A single failure may be a cut connection, and 429 says that an engine is full, not that it is
//! gone: such backends are passed over too, but take requests while there is no better one.

use crate::ids::{BackendId, NowMs};
use crate::limits::BACKENDS_MAX;
use crate::store::{self, SharedStore, StoreError};
use crate::wire::{Key, Reader, Writer};

/// Time passed over after the first failure: an engine's restart takes longer, a lost connection
/// less.
pub const BACKOFF_FIRST_MS: u64 = 1_000;

/// Longest time passed over: traffic is back within 5 s of a backend's return.
pub const BACKOFF_MAX_MS: u64 = 4_000;

/// Failures in a row after which a backend is taken to have lost its cache: one may be a cut
/// connection, but when all that was in flight fails, or the trial after the pause, the process has
/// ended. It comes back empty.
pub const FAILURES_OF_THE_DEAD: u32 = 3;

/// Time passed over after a 429: about what a full engine needs to finish something.
pub const SHED_MS: u64 = 1_000;

/// Failures in a row from which on a backend takes nothing until its time is over.
const FAILURES_OF_THE_DOWN: u32 = 2;

/// For this long a failed backend waits for a sign of life; its metrics may be what is broken.
const SILENT_MS: u64 = 30_000;

/// A trial without an outcome for this long is given to the next request. Longer than a long
/// prefill.
const TRIAL_MS: u64 = 30_000;

/// One backend in trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Who.
    pub backend: BackendId,
    /// Failures in a row; 0 for one that only refused work.
    pub failures: u32,
    /// From when on a trial may go there.
    pub retry_at: NowMs,
    /// When it last failed.
    pub failed_at: NowMs,
}

impl Trouble {
    /// Whether its time is over.
    fn is_over(&self, now: NowMs) -> bool {
        now.is_due(self.retry_at, TRIAL_MS)
    }
}

/// All backends in trouble.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthTable {
    troubles: Vec<Trouble>,
}

/// Whether a backend may be picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// No failure since its last success.
    Healthy,
    /// Its time is over: one request may try it, after [`claim_trial`].
    Trial,
    /// Passed over while others are available: it failed once, or refused work.
    Doubtful,
    /// Passed over.
    Down,
}

impl HealthTable {
    /// Reads the shared table.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses the read.
    pub fn load<S: SharedStore>(store: &S) -> Result<Self, StoreError> {
        Ok(store.get(&key())?.map_or_else(Self::default, |entry| Self::decode(&entry.value)))
    }

    /// Whether `backend` may be picked at `now`. `reported_at` says when its metrics were last read, where
    /// they are: a trial of one that has been silent since it failed would fail too.
    #[must_use]
    pub fn availability(
        &self,
        backend: BackendId,
        reported_at: Option<NowMs>,
        now: NowMs,
    ) -> Availability {
        let is_silent = |trouble: &Trouble| {
            !now.has_passed(SILENT_MS, trouble.failed_at)
                && reported_at.is_some_and(|at| at <= trouble.failed_at)
        };
        match self.get(backend) {
            None => Availability::Healthy,
            Some(trouble) if trouble.is_over(now) && trouble.failures == 0 => Availability::Healthy,
            Some(trouble) if trouble.is_over(now) && !is_silent(trouble) => Availability::Trial,
            Some(trouble) if trouble.failures < FAILURES_OF_THE_DOWN => Availability::Doubtful,
            Some(_) => Availability::Down,
        }
    }

    /// What is known of `backend`'s troubles; `None` when it has none.
    #[must_use]
    pub fn get(&self, backend: BackendId) -> Option<&Trouble> {
        self.troubles.iter().find(|trouble| trouble.backend == backend)
    }

    /// Milliseconds until the first of `backends` may be tried; `None` when none is in trouble.
    #[must_use]
    pub fn retry_after_ms(
        &self,
        backends: impl Iterator<Item = BackendId>,
        now: NowMs,
    ) -> Option<u64> {
        backends.filter_map(|id| self.get(id)).map(|it| it.retry_at.since_ms(now)).min()
    }

    fn get_mut(&mut self, backend: BackendId) -> Option<&mut Trouble> {
        self.troubles.iter_mut().find(|trouble| trouble.backend == backend)
    }

    fn decode(bytes: &[u8]) -> Self {
        let mut troubles = Vec::new();
        if let Some(mut reader) = Reader::versioned(bytes) {
            while let (Some(backend), Some(failures), Some(retry_at), Some(failed_at)) =
                (reader.u32(), reader.u32(), reader.u64(), reader.u64())
            {
                troubles.push(Trouble {
                    backend: BackendId(backend),
                    failures,
                    retry_at: NowMs(retry_at),
                    failed_at: NowMs(failed_at),
                });
            }
        }
        Self { troubles }
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(1 + self.troubles.len() * 24);
        // The newest are at the end: what is forgotten first is what has been in trouble longest.
        let excess = self.troubles.len().saturating_sub(BACKENDS_MAX);
        for trouble in self.troubles.iter().skip(excess) {
            writer.u32(trouble.backend.0);
            writer.u32(trouble.failures);
            writer.u64(trouble.retry_at.0);
            writer.u64(trouble.failed_at.0);
        }
        writer.finish()
    }
}

/// Notes a failure of `backend`, and returns how many there were in a row.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn failed<S: SharedStore>(
    store: &S,
    now: NowMs,
    backend: BackendId,
) -> Result<u32, StoreError> {
    let mut failures = 1;
    store::update(store, &key(), |bytes| {
        let mut table = HealthTable::decode(bytes);
        if let Some(trouble) = table.get_mut(backend) {
            trouble.failures = trouble.failures.saturating_add(1);
            failures = trouble.failures;
            trouble.retry_at = NowMs(now.0.saturating_add(backoff_ms(failures)));
            trouble.failed_at = now;
        } else {
            failures = 1;
            let retry_at = NowMs(now.0.saturating_add(backoff_ms(1)));
            table.troubles.push(Trouble { backend, failures, retry_at, failed_at: now });
        }
        Some(table.encode())
    })?;
    Ok(failures)
}

/// Notes that `backend` refused work because it is full.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn shed<S: SharedStore>(store: &S, now: NowMs, backend: BackendId) -> Result<(), StoreError> {
    let retry_at = NowMs(now.0.saturating_add(SHED_MS));
    store::update(store, &key(), |bytes| {
        let mut table = HealthTable::decode(bytes);
        match table.get_mut(backend) {
            // It answered, which is more than could be said of it before.
            Some(trouble) => (trouble.failures, trouble.retry_at) = (0, retry_at),
            None => {
                let failed_at = now;
                table.troubles.push(Trouble { backend, failures: 0, retry_at, failed_at });
            }
        }
        Some(table.encode())
    })?;
    Ok(())
}

/// Notes a success of `backend` at `at`: it is healthy. Writes only if it was in trouble by then.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn succeeded<S: SharedStore>(
    store: &S,
    at: NowMs,
    backend: BackendId,
) -> Result<(), StoreError> {
    clear(store, backend, |trouble| !at.precedes(trouble.failed_at))
}

/// Forgets the troubles of `backend`, which is gone.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn forget<S: SharedStore>(store: &S, backend: BackendId) -> Result<(), StoreError> {
    clear(store, backend, |_| true)
}

/// Takes `backend` off the list, if it is there and `is_past` says so.
fn clear<S: SharedStore>(
    store: &S,
    backend: BackendId,
    is_past: impl Fn(&Trouble) -> bool,
) -> Result<(), StoreError> {
    store::update(store, &key(), |bytes| {
        let mut table = HealthTable::decode(bytes);
        table.get(backend).filter(|trouble| is_past(trouble))?;
        table.troubles.retain(|trouble| trouble.backend != backend);
        Some(table.encode())
    })?;
    Ok(())
}

/// Notes that `backend` began a good answer at `now`: it lives, and the next trial is due at once. Writes
/// only if it was in trouble by then. Whether it also ends its answers is for [`succeeded`] to say.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn answers<S: SharedStore>(
    store: &S,
    now: NowMs,
    backend: BackendId,
) -> Result<(), StoreError> {
    end_trial(store, now, backend, |trouble| trouble.failures = trouble.failures.min(1))
}

/// Gives the trial of `backend` back, which came to nothing: its client left.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn give_back_trial<S: SharedStore>(
    store: &S,
    now: NowMs,
    backend: BackendId,
) -> Result<(), StoreError> {
    end_trial(store, now, backend, |_| {})
}

fn end_trial<S: SharedStore>(
    store: &S,
    now: NowMs,
    backend: BackendId,
    mut change: impl FnMut(&mut Trouble),
) -> Result<(), StoreError> {
    store::update(store, &key(), |bytes| {
        let mut table = HealthTable::decode(bytes);
        let is_past = |it: &&mut Trouble| it.failures > 0 && !now.precedes(it.failed_at);
        let trouble = table.get_mut(backend).filter(is_past)?;
        // A pause that another failure began meanwhile stays.
        let is_trial = trouble.retry_at.since_ms(trouble.failed_at) > BACKOFF_MAX_MS;
        if is_trial {
            trouble.retry_at = now;
        }
        change(trouble);
        Some(table.encode())
    })?;
    Ok(())
}

/// Claims the trial of `backend`; `false` when another worker has it already.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn claim_trial<S: SharedStore>(
    store: &S,
    now: NowMs,
    backend: BackendId,
) -> Result<bool, StoreError> {
    store::update(store, &key(), |bytes| {
        let mut table = HealthTable::decode(bytes);
        // Who only refused work needs no trial.
        let is_due = |it: &&mut Trouble| it.failures > 0 && it.is_over(now);
        let trouble = table.get_mut(backend).filter(is_due)?;
        trouble.retry_at = NowMs(now.0.saturating_add(TRIAL_MS));
        // Ahead, if the clock was set back: that of a trial is the later one.
        trouble.failed_at = trouble.failed_at.min(now);
        Some(table.encode())
    })
}

fn backoff_ms(failures: u32) -> u64 {
    let doublings = failures.saturating_sub(1).min(16);
    (BACKOFF_FIRST_MS << doublings).min(BACKOFF_MAX_MS)
}

fn key() -> Key {
    Key::new("h")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    const B: BackendId = BackendId(1);

    fn at(store: &MemoryStore, now: u64) -> Availability {
        HealthTable::load(store).unwrap().availability(B, None, NowMs(now))
    }

    #[test]
    fn failures_back_off_and_one_trial_at_a_time_goes_through() {
        let store = MemoryStore::default();
        assert_eq!(at(&store, 0), Availability::Healthy);
        failed(&store, NowMs(0), B).unwrap();
        assert_eq!(at(&store, 999), Availability::Doubtful);
        assert_eq!(at(&store, 1_000), Availability::Trial);
        assert!(claim_trial(&store, NowMs(1_000), B).unwrap());
        assert!(!claim_trial(&store, NowMs(1_000), B).unwrap());
        assert_eq!(at(&store, 1_001), Availability::Doubtful);
        assert_eq!(failed(&store, NowMs(1_500), B), Ok(2));
        assert_eq!(at(&store, 3_499), Availability::Down);
        assert_eq!(at(&store, 3_500), Availability::Trial);
        succeeded(&store, NowMs(u64::MAX), B).unwrap();
        assert_eq!(at(&store, 3_501), Availability::Healthy);
    }

    #[test]
    fn a_full_backend_is_doubtful_for_a_second_and_needs_no_trial() {
        let store = MemoryStore::default();
        shed(&store, NowMs(0), B).unwrap();
        assert_eq!(at(&store, 999), Availability::Doubtful);
        assert_eq!(at(&store, 1_000), Availability::Healthy);
        assert!(!claim_trial(&store, NowMs(1_000), B).unwrap());
        assert_eq!(at(&store, 1_000), Availability::Healthy);
        failed(&store, NowMs(2_000), B).unwrap();
        failed(&store, NowMs(2_000), B).unwrap();
        let table = HealthTable::load(&store).unwrap();
        let retry_after =
            |ids: &[BackendId]| table.retry_after_ms(ids.iter().copied(), NowMs(2_500));
        assert_eq!(retry_after(&[B, BackendId(2)]), Some(1_500));
        assert_eq!(retry_after(&[BackendId(2)]), None);
        shed(&store, NowMs(2_100), B).unwrap();
        assert_eq!(at(&store, 2_200), Availability::Doubtful);
    }

    #[test]
    fn a_silent_backend_gets_no_trial_for_a_while() {
        let store = MemoryStore::default();
        for _ in 0..2 {
            failed(&store, NowMs(10_000), B).unwrap();
        }
        let table = HealthTable::load(&store).unwrap();
        let at = |reported: u64, now: u64| table.availability(B, Some(NowMs(reported)), NowMs(now));
        assert_eq!(at(9_900, 13_000), Availability::Down);
        assert_eq!(at(12_900, 13_000), Availability::Trial);
        assert_eq!(at(9_900, 10_000 + SILENT_MS), Availability::Trial);
    }

    #[test]
    fn a_trial_ends_with_the_first_byte_or_when_its_client_leaves() {
        let store = MemoryStore::default();
        for _ in 0..3 {
            failed(&store, NowMs(0), B).unwrap();
        }
        assert!(claim_trial(&store, NowMs(4_000), B).unwrap());
        assert_eq!(at(&store, 4_001), Availability::Down);
        give_back_trial(&store, NowMs(4_001), B).unwrap();
        assert_eq!(at(&store, 4_001), Availability::Trial);
        assert!(claim_trial(&store, NowMs(4_001), B).unwrap());
        answers(&store, NowMs(4_500), B).unwrap();
        assert_eq!(at(&store, 4_500), Availability::Trial);
        assert!(claim_trial(&store, NowMs(4_500), B).unwrap());
        assert_eq!(at(&store, 4_501), Availability::Doubtful, "better than nobody");
        // A first byte that was under way when the backend failed again ends no pause.
        failed(&store, NowMs(4_600), B).unwrap();
        answers(&store, NowMs(4_601), B).unwrap();
        assert_eq!(at(&store, 4_602), Availability::Doubtful);
    }

    #[test]
    fn the_oldest_troubles_make_room_for_new_ones() {
        let store = MemoryStore::default();
        for id in 0..=BACKENDS_MAX as u32 {
            failed(&store, NowMs(0), BackendId(id)).unwrap();
        }
        assert_eq!(failed(&store, NowMs(0), BackendId(BACKENDS_MAX as u32)), Ok(2));
        assert_eq!(failed(&store, NowMs(0), BackendId(0)), Ok(1));
    }

    #[test]
    fn the_backoff_is_bounded() {
        assert_eq!(backoff_ms(1), BACKOFF_FIRST_MS);
        assert_eq!(backoff_ms(2), 2_000);
        assert_eq!(backoff_ms(u32::MAX), BACKOFF_MAX_MS);
    }

    #[test]
    fn a_lost_trial_is_given_again() {
        let store = MemoryStore::default();
        failed(&store, NowMs(0), B).unwrap();
        assert!(claim_trial(&store, NowMs(1_000), B).unwrap());
        assert!(claim_trial(&store, NowMs(1_000 + TRIAL_MS), B).unwrap());
    }

    #[test]
    fn success_of_a_healthy_backend_writes_nothing() {
        let store = MemoryStore::default();
        succeeded(&store, NowMs(u64::MAX), B).unwrap();
        assert_eq!(store.size().0, 0);
    }

    #[test]
    fn a_success_clears_no_failure_that_came_after_it() {
        let store = MemoryStore::default();
        for _ in 0..2 {
            failed(&store, NowMs(1_005), B).unwrap();
        }
        succeeded(&store, NowMs(1_000), B).unwrap();
        answers(&store, NowMs(1_000), B).unwrap();
        assert_eq!(at(&store, 1_010), Availability::Down);
        succeeded(&store, NowMs(1_006), B).unwrap();
        assert_eq!(at(&store, 1_010), Availability::Healthy);
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_no_backend_out() {
        let (store, hour) = (MemoryStore::default(), 3_600_000);
        for _ in 0..3 {
            failed(&store, NowMs(2 * hour), B).unwrap();
        }
        assert_eq!(at(&store, 2 * hour), Availability::Down);
        assert_eq!(at(&store, hour), Availability::Trial);
        assert!(claim_trial(&store, NowMs(hour), B).unwrap());
        assert_eq!(at(&store, hour), Availability::Down);
        // The client of the trial left.
        give_back_trial(&store, NowMs(hour + 5), B).unwrap();
        assert_eq!(at(&store, hour + 5), Availability::Trial);
        succeeded(&store, NowMs(hour + 6), B).unwrap();
        assert_eq!(at(&store, hour + 7), Availability::Healthy);
    }
}
