//! The wall clock, scaled to model time.
//!
//! The only place of the crate that reads a clock for anything but log lines and `created` stamps.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::SimTime;

/// Maps between wall-clock instants and model time.
#[derive(Clone, Copy, Debug)]
pub struct ScaledClock {
    started: Instant,
    speed: f64,
    /// Since when it stands still, if it does.
    paused_at: Option<Instant>,
}

impl ScaledClock {
    /// A clock at model time zero that runs `speed` times as fast as the wall's.
    #[must_use]
    pub fn start(speed: f64) -> Self {
        Self { started: Instant::now(), speed, paused_at: None }
    }

    /// Model time now.
    #[must_use]
    pub fn now(&self) -> SimTime {
        self.time_at(self.paused_at.unwrap_or_else(Instant::now))
    }

    /// Stands still from now on, or goes on where it stood.
    pub fn set_paused(&mut self, pause: bool) {
        match (self.paused_at, pause) {
            (None, true) => self.paused_at = Some(Instant::now()),
            (Some(since), false) => {
                self.started += since.elapsed();
                self.paused_at = None;
            }
            _ => {}
        }
    }

    /// Whether it stands still.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused_at.is_some()
    }

    fn time_at(&self, instant: Instant) -> SimTime {
        let wall = instant.saturating_duration_since(self.started);
        SimTime::from_secs_f64(wall.as_secs_f64() * self.speed)
    }

    /// The first instant at which [`Self::now`] has reached `time`, unless it is paused before.
    #[must_use]
    pub fn instant_of(&self, time: SimTime) -> Instant {
        // One wall nanosecond rounded away is `speed` nanoseconds of model time; the margin makes
        // sure that whoever sleeps until then does not wake to find it is too early.
        let wall = Duration::try_from_secs_f64(time.as_secs_f64() / self.speed)
            .unwrap_or(Duration::from_secs(u32::MAX.into()));
        self.started + wall + Duration::from_nanos(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_clock_goes_on_where_it_stood() {
        let mut clock = ScaledClock::start(1e6);
        clock.set_paused(true);
        let stood_at = clock.now();
        std::thread::sleep(Duration::from_millis(2));
        clock.set_paused(true);
        assert_eq!(clock.now(), stood_at);
        clock.set_paused(false);
        // A second of model time is a microsecond; the pause would be 2,000 s.
        let after = clock.now() - stood_at;
        assert!(!clock.is_paused() && after < Duration::from_secs(1_000), "{after:?}");
    }

    #[test]
    fn sleeping_until_a_model_time_reaches_it() {
        for speed in [0.1, 1.0, 7.0, 10.0, 1000.0] {
            let clock = ScaledClock::start(speed);
            for nanos in [0, 1, 999, 123_456_789, 3_600_000_000_007] {
                let time = SimTime::from_nanos(nanos);
                let reached = clock.time_at(clock.instant_of(time));
                assert!(reached >= time, "{nanos} ns at speed {speed}");
                let late_nanos = (reached - time).as_nanos() as f64;
                assert!(late_nanos <= 4.0 * speed.max(1.0), "{nanos} ns at speed {speed}");
            }
        }
    }
}
