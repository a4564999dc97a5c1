//! Which requests are left to Envoy's own balancing, so that backends which nobody listed are found.
//!
//! Where backends are observed, the filter knows only those that served before. A request that no
//! backend holds a part of costs about the same anywhere, so of those a share is left to Envoy that
//! shrinks with what is known; of others one now and then, in case all traffic is warm, and then one of
//! which little is cached beside the others. When one new backend was found, more are likely to have
//! come with it, and a few requests look for them at once.
//!
//! Each VM explores for itself; nothing is shared, and nothing depends on the clock's accuracy.

use crate::ids::NowMs;
use crate::metrics::Reason;
use crate::route::Decision;

/// At least this often a VM leaves a request to Envoy, while there is traffic.
const ANY_EVERY_MS: u64 = 1_000;

/// And at most one in so many: where requests are rare, each would be the first in a second.
const ANY_REQUESTS_MIN: u32 = 16;

/// Of the requests after those the first one of which at most this part of the average is cached...
const CHEAP_PART: u64 = 4;

/// ...and when none was in so many, the next one.
const ANY_REQUESTS_MAX: u32 = 32;

/// For this long after a find a VM looks more eagerly.
const EAGER_MS: u64 = 3_000;

/// Time between two requests of any kind that are left to Envoy after a find.
const EAGER_EVERY_MS: u64 = 100;

/// What a request would lose if it were left to Envoy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stake {
    /// No backend holds any of it.
    pub is_cold: bool,
    /// Tokens that are believed to be cached where it would be placed.
    pub cached_tokens: u32,
}

/// One VM's exploration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explorer {
    last_at: NowMs,
    /// Requests that were placed since.
    placed: u32,
    /// Tokens of theirs that were believed to be cached.
    cached_tokens: u64,
    found_at: Option<NowMs>,
}

impl Explorer {
    /// Whether a request is to be left to Envoy; `known` is how many backends there are.
    #[must_use]
    pub fn is_due(&self, now: NowMs, random: u64, known: usize, stake: Stake) -> bool {
        if known == 0 {
            return true;
        }
        let is_eager = self.found_at.is_some_and(|at| !now.has_passed(EAGER_MS, at));
        let is_long_ago = now.has_passed(ANY_EVERY_MS, self.last_at) && self.is_turn(stake);
        if is_long_ago || (is_eager && now.has_passed(EAGER_EVERY_MS, self.last_at)) {
            return true;
        }
        stake.is_cold && random.is_multiple_of(known as u64 + 1)
    }

    /// Whether enough requests were placed that this one may be left to Envoy.
    fn is_turn(&self, stake: Stake) -> bool {
        let of_as_many = u64::from(stake.cached_tokens).saturating_mul(self.placed.into());
        let is_cheap = of_as_many.saturating_mul(CHEAP_PART) <= self.cached_tokens;
        self.placed >= if is_cheap { ANY_REQUESTS_MIN } else { ANY_REQUESTS_MAX }
    }

    /// Notes what became of a request. One that was placed by load alone is not one that could explore.
    pub fn note(&mut self, decision: &Decision, now: NowMs) {
        match decision {
            Decision::Pick(pick) => self.placed(pick.prompt.cached_tokens),
            _ if decision.reason() == Reason::Explore => self.explored(now),
            _ => {}
        }
    }

    /// Notes that a request was left to Envoy.
    pub fn explored(&mut self, now: NowMs) {
        *self = Self { last_at: now, found_at: self.found_at, ..Self::default() };
    }

    /// Notes that a request was placed where `cached_tokens` of it were believed to be.
    fn placed(&mut self, cached_tokens: u32) {
        self.placed = self.placed.saturating_add(1);
        self.cached_tokens = self.cached_tokens.saturating_add(cached_tokens.into());
    }

    /// Notes that a new backend served.
    pub fn found(&mut self, now: NowMs) {
        self.found_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLD: Stake = Stake { is_cold: true, cached_tokens: 0 };

    fn warm(cached_tokens: u32) -> Stake {
        Stake { is_cold: false, cached_tokens }
    }

    #[test]
    fn cold_requests_explore_in_proportion_and_warm_ones_now_and_then() {
        let mut explorer = Explorer::default();
        assert!(explorer.is_due(NowMs(0), 1, 0, warm(100)), "nothing is known");
        explorer.explored(NowMs(10_000));
        let cold = (0..900).filter(|random| explorer.is_due(NowMs(10_500), *random, 8, COLD));
        assert_eq!(cold.count(), 100);
        assert!(!explorer.is_due(NowMs(11_000), 0, 8, warm(0)), "requests are rare");
        (0..16).for_each(|_| explorer.placed(100));
        assert!(!explorer.is_due(NowMs(10_999), 0, 8, warm(0)));
        assert!(explorer.is_due(NowMs(11_000), 1, 8, warm(25)));
        assert!(!explorer.is_due(NowMs(11_000), 1, 8, warm(26)), "cheaper ones may come");
        (0..16).for_each(|_| explorer.placed(100));
        assert!(explorer.is_due(NowMs(11_000), 1, 8, warm(5_000)), "none came");
    }

    #[test]
    fn the_requests_that_explore_are_cheap_where_there_are_cheap_ones() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut explorer = Explorer::default();
        let (mut placed, mut explored) = ((0_u32, 0_u64), (0_u32, 0_u64));
        // Ten a second.
        for now in (0..2_000_000).step_by(100).map(NowMs) {
            let cached_tokens = rng.u32(1..=2_000);
            let is_due = explorer.is_due(now, 1, 8, warm(cached_tokens));
            let (count, sum) = if is_due { &mut explored } else { &mut placed };
            *count += 1;
            *sum += u64::from(cached_tokens);
            if is_due { explorer.explored(now) } else { explorer.placed(cached_tokens) }
        }
        let part = |(count, sum): (u32, u64)| sum as f64 / f64::from(count);
        assert!(part(explored) < 0.3 * part(placed), "{} {}", part(explored), part(placed));
        let every = f64::from(placed.0) / f64::from(explored.0);
        assert!((16.0..26.0).contains(&every), "one in {every}");
        let lost = explored.1 as f64 / (placed.1 + explored.1) as f64;
        assert!(lost < 0.015, "{lost} of the cached tokens");
    }

    #[test]
    fn a_find_makes_it_eager_for_a_while() {
        let mut explorer = Explorer::default();
        explorer.explored(NowMs(10_000));
        explorer.found(NowMs(10_050));
        assert!(!explorer.is_due(NowMs(10_099), 1, 8, warm(100)));
        assert!(explorer.is_due(NowMs(10_100), 1, 8, warm(100)));
        explorer.explored(NowMs(13_000));
        assert!(!explorer.is_due(NowMs(13_200), 1, 8, warm(100)));
    }
}
