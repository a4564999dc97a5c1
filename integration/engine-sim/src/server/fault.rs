//! Which requests to break, and how.
//!
//! Faults concern the generation endpoints. `/health` answers 503 while they answer 5xx, and 200
//! in the modes in which a real engine's health check would notice nothing.

use std::sync::Mutex;

use serde::{Deserialize, Serialize};

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
}

fn one() -> f64 {
    1.0
}

impl Default for Fault {
    fn default() -> Self {
        Self { mode: FailMode::Ok, slow_factor: 1.0 }
    }
}

/// The fault in force, shared between handlers.
#[derive(Debug, Default)]
pub struct FaultSwitch(Mutex<Fault>);

impl FaultSwitch {
    /// Puts another fault in force.
    pub fn set(&self, fault: Fault) {
        *self.0.lock().expect("no holder of the fault panics") = fault;
    }

    /// The fault in force.
    pub fn get(&self) -> Fault {
        *self.0.lock().expect("no holder of the fault panics")
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
        assert!(serde_json::from_str::<Fault>(r#"{"mode": "http_418"}"#).is_err());
        assert!(serde_json::from_str::<Fault>(r#"{"slow": 3}"#).is_err());
    }
}
