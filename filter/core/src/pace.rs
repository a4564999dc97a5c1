//! Times to the first byte -> how slow a backend is beside the others.
//!
//! In: how many tokens a request had to prefill, and how long its first byte took. Out: relative
//! slowness. One VM learns from what it dispatched itself; nothing is shared.

use ahash::AHashMap;

use crate::ids::BackendId;

/// Less prefill than this says little about a backend's speed: fixed parts of the time to the first
/// byte outweigh it.
const PACE_TOKENS_MIN: u32 = 512;

/// Prefills in one window of a pace: enough that one of them met no queue.
const PACE_SAMPLES: u32 = 8;

/// Differences in pace below this are taken for noise.
const SLOWNESS_MIN: f32 = 1.25;

/// No backend counts as more than this many times as slow as the fastest, so that a wrong estimate
/// cannot starve one.
const SLOWNESS_MAX: f32 = 4.0;

/// How fast one backend gets through prefill: the best time a token of the last one or two windows.
/// Queues and other requests' decoding only ever add time, so the best is what the backend can do.
#[derive(Clone, Copy, Debug)]
struct Pace {
    samples: u32,
    best_ms_per_token: f32,
    /// Of the window before.
    last_ms_per_token: f32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { samples: 0, best_ms_per_token: f32::INFINITY, last_ms_per_token: f32::INFINITY }
    }
}

impl Pace {
    fn add(&mut self, tokens: u32, time_ms: u64) {
        if self.samples == PACE_SAMPLES {
            *self = Self { last_ms_per_token: self.best_ms_per_token, ..Self::default() };
        }
        self.samples += 1;
        self.best_ms_per_token = self.best_ms_per_token.min(time_ms.max(1) as f32 / tokens as f32);
    }

    /// `None` before the first window is full.
    fn ms_per_token(&self) -> Option<f32> {
        let known = self.samples == PACE_SAMPLES || self.last_ms_per_token.is_finite();
        known.then_some(self.best_ms_per_token.min(self.last_ms_per_token))
    }
}

/// The paces of all backends.
#[derive(Debug, Default)]
pub struct Paces(AHashMap<BackendId, Pace>);

impl Paces {
    /// Takes in a prefill of `tokens` tokens whose first byte came after `time_ms`.
    pub fn add(&mut self, backend: BackendId, tokens: u32, time_ms: u64) {
        if tokens >= PACE_TOKENS_MIN {
            self.0.entry(backend).or_default().add(tokens, time_ms);
        }
    }

    /// How many times as long as the fastest a backend takes; 1 while unknown.
    pub fn slowness(&self) -> impl Fn(BackendId) -> f32 {
        let fastest = self.0.values().filter_map(Pace::ms_per_token).fold(f32::INFINITY, f32::min);
        move |backend| {
            let pace = self.0.get(&backend).and_then(Pace::ms_per_token);
            let slowness = pace.map_or(1.0, |pace| pace / fastest);
            if slowness < SLOWNESS_MIN { 1.0 } else { slowness.min(SLOWNESS_MAX) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_takes_twice_as_long_is_twice_as_slow() {
        let (fast, slow, unknown) = (BackendId(1), BackendId(2), BackendId(3));
        let mut paces = Paces::default();
        let is = |slowness: f32, expected: f32| (slowness / expected - 1.0).abs() < 0.01;
        paces.add(slow, 2_000, 9_000);
        assert!(is(paces.slowness()(slow), 1.0), "one sample says nothing");
        for tokens in (2_000..6_000).step_by(100) {
            // Every second one had to queue.
            let queue_ms = u64::from(tokens) / 100 % 2 * 5_000;
            paces.add(fast, tokens, u64::from(tokens) / 10 + queue_ms);
            paces.add(slow, tokens, u64::from(tokens) / 5 + queue_ms);
            // Too short to tell.
            paces.add(fast, PACE_TOKENS_MIN - 1, 1);
        }
        let slowness = |paces: &Paces, backend| paces.slowness()(backend);
        assert!(is(slowness(&paces, fast), 1.0));
        assert!(is(slowness(&paces, slow), 2.0));
        assert!(is(slowness(&paces, unknown), 1.0));
        for _ in 0..2 * PACE_SAMPLES {
            paces.add(slow, 2_000, 220);
        }
        assert!(is(slowness(&paces, slow), 1.0), "noise");
        for _ in 0..2 * PACE_SAMPLES {
            paces.add(slow, 2_000, 1_000_000);
        }
        assert!(is(slowness(&paces, slow), SLOWNESS_MAX));
    }
}
