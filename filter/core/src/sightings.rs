//! What load reports in answers' headers (ORCA) say of requests that others sent.
//!
//! Each VM reads the reports in the answers that pass through it and shares what it makes of them in
//! its load record, which every decision reads anyway. As with [`crate::reported`], what counts is the
//! difference to the own counts of the same moment, the smaller one of the last two.

use ahash::AHashMap;

use crate::ids::{BackendId, NowMs};
use crate::load::BackendLoad;
use crate::reported::{self, others_load};
use crate::signals::LoadReport;
use crate::wire::{Reader, Writer};

/// Reports of one backend within this time tell the same: one is asked for, and the first one counts.
const EVERY_MS: u64 = 200;

/// Backends in one VM's record; a VM that hears of more keeps the newest.
const SIGHTINGS_MAX: usize = 64;

/// What a VM last heard of one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sighting {
    /// When.
    pub at: NowMs,
    /// Requests waiting there, as reported.
    pub waiting: u32,
    /// Share of KV memory in use, as reported.
    pub kv_usage: f32,
    /// Of the waiting ones, those that others sent: now, and the report before.
    others_waiting: [u32; 2],
    /// KV memory of theirs, in tokens.
    others_context_tokens: u32,
}

impl Sighting {
    /// Load that others put there, who run `running` requests there besides.
    #[must_use]
    pub fn others(&self, running: u32, now: NowMs) -> BackendLoad {
        let [after, before] = self.others_waiting;
        let weight = reported::weight(self.at, now);
        others_load(running, after.min(before), self.others_context_tokens, weight)
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.at.0);
        writer.u32(self.waiting);
        writer.u32(self.kv_usage.to_bits());
        self.others_waiting.iter().for_each(|count| writer.u32(*count));
        writer.u32(self.others_context_tokens);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            at: NowMs(reader.u64()?),
            waiting: reader.u32()?,
            kv_usage: f32::from_bits(reader.u32()?),
            others_waiting: [reader.u32()?, reader.u32()?],
            others_context_tokens: reader.u32()?,
        })
    }
}

/// One VM's sightings.
#[derive(Debug, Default)]
pub struct Sightings {
    last: AHashMap<BackendId, Sighting>,
    /// When a report was last asked for.
    asked: AHashMap<BackendId, NowMs>,
}

impl Sightings {
    /// Whether a report of `backend` is worth taking in.
    #[must_use]
    pub fn wants(&self, backend: BackendId, now: NowMs) -> bool {
        self.last.get(&backend).is_none_or(|last| now.has_passed(EVERY_MS, last.at))
    }

    /// Whether a request to `backend` is to ask for a report; notes that it does. To make one takes an
    /// engine a while, and some make none.
    pub fn asks(&mut self, backend: BackendId, now: NowMs) -> bool {
        let is_recent = |at: &NowMs| !now.has_passed(EVERY_MS, *at);
        if !self.wants(backend, now) || self.asked.get(&backend).is_some_and(is_recent) {
            return false;
        }
        if self.asked.len() >= SIGHTINGS_MAX {
            self.asked.retain(|_, at| is_recent(at));
        }
        self.asked.insert(backend, now);
        true
    }

    /// Takes in a report of `backend`, which holds `capacity_tokens` (0 while unknown); `own` is the
    /// filter's load there by its own counts.
    pub fn take(
        &mut self,
        backend: BackendId,
        report: LoadReport,
        own: BackendLoad,
        capacity_tokens: u32,
        now: NowMs,
    ) {
        // One that does not say what waits must not hide what metrics say of it.
        let Some(waiting) = report.waiting else { return };
        if self.last.len() >= SIGHTINGS_MAX && !self.last.contains_key(&backend) {
            let oldest =
                self.last.iter().min_by_key(|(_, sighting)| sighting.at).map(|(id, _)| *id);
            oldest.map(|id| self.last.remove(&id));
        }
        let kv_usage = report.kv_usage.unwrap_or(0.0);
        let in_use_tokens = (kv_usage * capacity_tokens as f32) as u32;
        let before = self.last.get(&backend).map_or(0, |last| last.others_waiting[0]);
        let sighting = Sighting {
            at: now,
            waiting,
            kv_usage,
            others_waiting: [waiting.saturating_sub(own.prefilling), before],
            others_context_tokens: in_use_tokens.saturating_sub(own.context_tokens),
        };
        self.last.insert(backend, sighting);
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (BackendId, Sighting)> {
        self.last.iter().map(|(backend, sighting)| (*backend, *sighting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: BackendId = BackendId(1);

    #[test]
    fn waiting_requests_of_others_are_what_two_reports_agree_on() {
        let mut sightings = Sightings::default();
        let own = BackendLoad { running: 3, prefilling: 2, ..BackendLoad::default() };
        let report =
            |waiting| LoadReport { waiting: Some(waiting), running: None, kv_usage: Some(0.5) };
        let others = |sightings: &Sightings, now| {
            let (_, sighting) = sightings.iter().next().unwrap();
            sighting.others(0, NowMs(now)).prefilling
        };
        assert!(sightings.wants(B, NowMs(1_000)));
        sightings.take(B, report(9), own, 1_000, NowMs(1_000));
        assert_eq!(others(&sightings, 1_000), 0);
        assert!(!sightings.wants(B, NowMs(1_199)) && sightings.wants(B, NowMs(1_200)));
        sightings.take(B, report(6), own, 1_000, NowMs(1_200));
        assert_eq!(others(&sightings, 1_200), 4);
        assert_eq!(others(&sightings, 1_200 + reported::STALE_MS), 0);
    }

    #[test]
    fn a_report_is_asked_for_as_often_as_it_would_count() {
        let mut sightings = Sightings::default();
        assert!(sightings.asks(B, NowMs(1_000)) && sightings.asks(BackendId(2), NowMs(1_000)));
        assert!(!sightings.asks(B, NowMs(1_199)) && sightings.asks(B, NowMs(1_200)));
        let report = LoadReport { waiting: Some(0), running: None, kv_usage: None };
        sightings.take(B, report, BackendLoad::default(), 0, NowMs(1_500));
        assert!(!sightings.asks(B, NowMs(1_699)) && sightings.asks(B, NowMs(1_700)));
        // Backends come and go.
        for id in 0..4 * SIGHTINGS_MAX as u32 {
            sightings.asks(BackendId(id), NowMs(u64::from(id) * EVERY_MS));
        }
        assert!(sightings.asked.len() <= SIGHTINGS_MAX);
    }

    #[test]
    fn a_sighting_survives_the_record_and_their_number_is_bounded() {
        let mut sightings = Sightings::default();
        for id in 0..2 * SIGHTINGS_MAX as u32 {
            let report = LoadReport { waiting: Some(id), running: None, kv_usage: None };
            sightings.take(BackendId(id), report, BackendLoad::default(), 0, NowMs(id.into()));
        }
        assert_eq!(sightings.iter().len(), SIGHTINGS_MAX);
        let (_, sighting) = sightings.iter().next().unwrap();
        let mut writer = Writer::versioned(40);
        sighting.encode(&mut writer);
        let bytes = writer.finish();
        assert_eq!(Sighting::decode(&mut Reader::versioned(&bytes).unwrap()), Some(sighting));
    }
}
