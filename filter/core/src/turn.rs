//! When something that is done again and again is due.

use crate::ids::NowMs;

/// A wait that began at a moment. A clock that is set back ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    since: NowMs,
    wait_ms: u64,
}

impl Turn {
    /// Due `wait_ms` from now.
    #[must_use]
    pub fn after(now: NowMs, wait_ms: u64) -> Self {
        Self { since: now, wait_ms }
    }

    /// Whether it is due.
    #[must_use]
    pub fn is_due(self, now: NowMs) -> bool {
        now.has_passed(self.wait_ms, self.since)
    }

    /// The same, but due `wait_ms` from now at the latest.
    #[must_use]
    pub fn within(self, now: NowMs, wait_ms: u64) -> Self {
        if self.due().since_ms(now) > wait_ms { Self::after(now, wait_ms) } else { self }
    }

    /// The next turn of something with a pace: `wait_ms` from when this one was due, so that many of them
    /// stay spread. Of turns that were missed, one is made up for.
    #[must_use]
    pub fn next(self, now: NowMs, wait_ms: u64) -> Self {
        let earliest = NowMs(now.0.saturating_sub(wait_ms));
        Self { since: self.due().min(now).max(earliest), wait_ms }
    }

    fn due(self) -> NowMs {
        NowMs(self.since.0.saturating_add(self.wait_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a turn of `wait_ms` comes in `span_ms`, looked at each 200 ms and done 50 ms later.
    fn times(turn: &mut Turn, start: u64, span_ms: u64, wait_ms: u64) -> usize {
        let looks = (start..start + span_ms).step_by(200).map(NowMs);
        let due = looks.filter(|now| {
            let is_due = turn.is_due(*now);
            if is_due {
                *turn = turn.next(NowMs(now.0 + 50), wait_ms);
            }
            is_due
        });
        due.count()
    }

    #[test]
    fn the_pace_is_kept_however_late_it_is_looked_at() {
        let mut turn = Turn::after(NowMs(1_000_000), 700);
        assert!(!turn.is_due(NowMs(1_000_699)));
        assert!(turn.is_due(NowMs(1_000_700)));
        assert_eq!(times(&mut turn, 1_000_000, 60_000, 1_000), 60);
        assert_eq!(times(&mut turn, 1_060_000, 600_000, 60_000), 10);
    }

    #[test]
    fn of_turns_that_were_missed_one_is_made_up_for() {
        let mut turn = Turn::after(NowMs(0), 1_000);
        assert_eq!(times(&mut turn, 3_600_000, 10_000, 1_000), 10 + 1);
    }

    #[test]
    fn a_clock_that_is_set_back_ends_the_wait_and_keeps_the_pace() {
        for back_ms in [2_000, 20_000, 3_600_000] {
            let mut turn = Turn::after(NowMs(10_000_000), 30_000);
            let start = 10_000_000 - back_ms;
            assert!(turn.is_due(NowMs(start)));
            assert_eq!(times(&mut turn, start, 60_000, 1_000), 60, "{back_ms}");
        }
    }

    #[test]
    fn a_wait_can_be_cut_short() {
        let turn = Turn::after(NowMs(0), 30_000).within(NowMs(500), 1_000);
        assert_eq!(turn, Turn::after(NowMs(500), 1_000));
        assert_eq!(turn.within(NowMs(600), 1_000), turn);
    }
}
