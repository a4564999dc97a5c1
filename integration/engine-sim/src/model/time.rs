//! Points in virtual time.
//!
//! Whole nanoseconds since the simulation began: integers, so that sums do not depend on the order
//! of additions and a run replays exactly. 64 bits last 584 years.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimTime(u64);

impl SimTime {
    /// When the simulation began.
    pub const ZERO: Self = Self(0);

    /// The point `nanos` nanoseconds after the beginning.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point `millis` milliseconds after the beginning, rounded to whole nanoseconds; negative
    /// values are the beginning itself.
    #[must_use]
    pub fn from_millis_f64(millis: f64) -> Self {
        // A float-to-integer cast saturates, which is the behaviour wanted at both ends.
        Self((millis * 1e6).round() as u64)
    }

    /// The point `secs` seconds after the beginning, rounded to whole nanoseconds.
    #[must_use]
    pub fn from_secs_f64(secs: f64) -> Self {
        Self((secs * 1e9).round() as u64)
    }

    /// Nanoseconds since the beginning.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Milliseconds since the beginning.
    #[must_use]
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Seconds since the beginning.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Add<Duration> for SimTime {
    type Output = Self;

    /// Saturates at the end of time.
    fn add(self, rhs: Duration) -> Self {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub for SimTime {
    type Output = Duration;

    /// Zero when `rhs` is later.
    fn sub(self, rhs: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(rhs.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_round_and_saturate() {
        assert_eq!(SimTime::from_millis_f64(1.5).as_nanos(), 1_500_000);
        assert_eq!(SimTime::from_secs_f64(0.25).as_millis_f64(), 250.0);
        assert_eq!(SimTime::from_millis_f64(-3.0), SimTime::ZERO);
        assert_eq!(SimTime::ZERO - SimTime::from_nanos(5), Duration::ZERO);
        assert_eq!(
            SimTime::from_nanos(u64::MAX) + Duration::from_secs(1),
            SimTime::from_nanos(u64::MAX)
        );
    }
}
