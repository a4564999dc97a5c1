//! Which requests to break, and how.
//!
//! The kinds of fault are independent of each other and combine. `mode` concerns the generation
//! endpoints: `/health` answers 503 while they answer 5xx, and 200 in the modes in which a real
//! engine's health check would notice nothing. Everything under `/sim/` always answers.

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// How generation requests fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailMode {
    /// They do not.
    #[default]
    Ok,
    /// Answer 500.
    #[serde(rename = "http_500")]
    Http500,
    /// Answer 503.
    #[serde(rename = "http_503")]
    Http503,
    /// Reset the connection without an answer.
    ResetBeforeHeaders,
    /// Reset the connection after the first part of the answer.
    ResetMidStream,
    /// Never answer.
    Hang,
}

/// How `/metrics` fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricsFault {
    /// It does not.
    #[default]
    Ok,
    /// Answers 500.
    #[serde(rename = "http_500")]
    Http500,
    /// Never answers.
    Hang,
    /// Answers 200 with bytes that are no metrics.
    Garbage,
    /// Answers 200 with a text that ends in the middle of a line, as if that were all.
    Truncated,
}

/// What is wrong with the usage in answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageFault {
    /// Nothing.
    #[default]
    Ok,
    /// It makes no sense: wrong types, impossible numbers, another nesting. Which, differs from
    /// answer to answer.
    Garbage,
    /// There is none, also for who asks for it.
    Missing,
}

/// The fault in force; the body of `POST /sim/fail`. What is left out gets its default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// How generation requests fail.
    #[serde(default)]
    pub mode: FailMode,
    /// How many times longer than the profile's the engine's steps take.
    #[serde(default = "one")]
    pub slow_factor: f64,
    /// How `/metrics` fails.
    #[serde(default)]
    pub metrics: MetricsFault,
    /// What is wrong with the usage in answers.
    #[serde(default)]
    pub usage: UsageFault,
    /// Whether the engine stands still, as a process does after SIGSTOP: connections are taken and
    /// stay open, but no request is read, no step computed, no token sent. Model time stands still
    /// too, so that it goes on where it was.
    #[serde(default)]
    pub pause: bool,
}

fn one() -> f64 {
    1.0
}

impl Default for Fault {
    fn default() -> Self {
        Self {
            mode: FailMode::Ok,
            slow_factor: 1.0,
            metrics: MetricsFault::Ok,
            usage: UsageFault::Ok,
            pause: false,
        }
    }
}

/// The fault in force, shared between handlers.
#[derive(Debug)]
pub struct FaultSwitch(watch::Sender<Fault>);

impl Default for FaultSwitch {
    fn default() -> Self {
        Self(watch::Sender::new(Fault::default()))
    }
}

impl FaultSwitch {
    /// Puts another fault in force.
    pub fn set(&self, fault: Fault) {
        self.0.send_replace(fault);
    }

    /// The fault in force.
    pub fn get(&self) -> Fault {
        *self.0.borrow()
    }

    /// Waits while the engine is paused.
    pub async fn resumed(&self) {
        // An error says that the switch is gone, which `self` rules out.
        let _ = self.0.subscribe().wait_for(|fault| !fault.pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_parse_with_defaults_and_reject_typos() {
        let fault: Fault = serde_json::from_str(r#"{"mode": "http_503"}"#).unwrap();
        assert_eq!((fault.mode, fault.slow_factor), (FailMode::Http503, 1.0));
        let fault: Fault = serde_json::from_str(r#"{"slow_factor": 3}"#).unwrap();
        assert_eq!((fault.mode, fault.slow_factor), (FailMode::Ok, 3.0));
        let fault: Fault = serde_json::from_str(
            r#"{"mode": "hang", "metrics": "http_500", "usage": "missing", "pause": true}"#,
        )
        .unwrap();
        let (metrics, usage) = (MetricsFault::Http500, UsageFault::Missing);
        assert_eq!(
            fault,
            Fault { mode: FailMode::Hang, slow_factor: 1.0, metrics, usage, pause: true }
        );
        for bad in [
            r#"{"mode": "http_418"}"#,
            r#"{"slow": 3}"#,
            r#"{"metrics": "gone"}"#,
            r#"{"usage": 3}"#,
            r#"{"pause": "yes"}"#,
        ] {
            assert!(serde_json::from_str::<Fault>(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn resuming_wakes_who_waits() {
        let switch = FaultSwitch::default();
        switch.resumed().await;
        switch.set(Fault { pause: true, ..Fault::default() });
        let mut waiting = Box::pin(switch.resumed());
        tokio::select! {
            biased;
            () = &mut waiting => panic!("it is paused"),
            () = tokio::task::yield_now() => {}
        }
        switch.set(Fault::default());
        waiting.await;
    }
}
