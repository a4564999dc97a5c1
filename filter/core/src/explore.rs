//! Which requests are left to Envoy's own balancing, so that backends which nobody listed are found.
//!
//! Where backends are observed, the filter knows only those that served before. A request that no
//! backend holds a part of costs about the same anywhere, so of those a share is left to Envoy that
//! shrinks with what is known; of others one now and then, in case all traffic is warm. When one new
//! backend was found, more are likely to have come with it, and a few requests look for them at once.
//!
//! Each VM explores for itself; nothing is shared, and nothing depends on the clock's accuracy.

use crate::ids::NowMs;

/// At least this often a VM leaves a request to Envoy, whatever it is, while there is traffic.
const ANY_EVERY_MS: u64 = 1_000;

/// And at most one in so many: where requests are rare, each would be the first in a second.
const ANY_REQUESTS: u32 = 16;

/// For this long after a find a VM looks more eagerly.
const EAGER_MS: u64 = 3_000;

/// Time between two requests of any kind that are left to Envoy after a find.
const EAGER_EVERY_MS: u64 = 100;

/// One VM's exploration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explorer {
    last_at: NowMs,
    /// Requests that were placed since.
    placed: u32,
    found_at: Option<NowMs>,
}

impl Explorer {
    /// Whether a request is to be left to Envoy. `is_cold`: no backend holds any of it; `known`: how
    /// many backends there are.
    #[must_use]
    pub fn is_due(&self, now: NowMs, random: u64, known: usize, is_cold: bool) -> bool {
        if known == 0 {
            return true;
        }
        let is_eager = self.found_at.is_some_and(|at| !now.has_passed(EAGER_MS, at));
        let is_long_ago = now.has_passed(ANY_EVERY_MS, self.last_at) && self.placed >= ANY_REQUESTS;
        if is_long_ago || (is_eager && now.has_passed(EAGER_EVERY_MS, self.last_at)) {
            return true;
        }
        is_cold && random.is_multiple_of(known as u64 + 1)
    }

    /// Notes that a request was left to Envoy.
    pub fn explored(&mut self, now: NowMs) {
        self.last_at = now;
        self.placed = 0;
    }

    /// Notes that a request was placed.
    pub fn placed(&mut self) {
        self.placed = self.placed.saturating_add(1);
    }

    /// Notes that a new backend served.
    pub fn found(&mut self, now: NowMs) {
        self.found_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cold_requests_explore_in_proportion_and_warm_ones_now_and_then() {
        let mut explorer = Explorer::default();
        assert!(explorer.is_due(NowMs(0), 1, 0, false), "nothing is known");
        explorer.explored(NowMs(10_000));
        let cold = (0..900).filter(|random| explorer.is_due(NowMs(10_500), *random, 8, true));
        assert_eq!(cold.count(), 100);
        assert!(!explorer.is_due(NowMs(11_000), 0, 8, false), "requests are rare");
        (0..16).for_each(|_| explorer.placed());
        assert!(!explorer.is_due(NowMs(10_999), 0, 8, false));
        assert!(explorer.is_due(NowMs(11_000), 1, 8, false));
    }

    #[test]
    fn a_find_makes_it_eager_for_a_while() {
        let mut explorer = Explorer::default();
        explorer.explored(NowMs(10_000));
        explorer.found(NowMs(10_050));
        assert!(!explorer.is_due(NowMs(10_099), 1, 8, false));
        assert!(explorer.is_due(NowMs(10_100), 1, 8, false));
        explorer.explored(NowMs(13_000));
        assert!(!explorer.is_due(NowMs(13_200), 1, 8, false));
    }
}
