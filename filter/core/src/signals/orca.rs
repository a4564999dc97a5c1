//! An answer's load report -> what it says of the engine.
//!
//! In: the value of the response header `endpoint-load-metrics`, which an engine adds when the request
//! has `endpoint-load-metrics-format: text` or `json`. Out: its load as the answer left.
//!
//! The format is ORCA's (`xds.data.orca.v3.OrcaLoadReport`), the names in it are the engine's own.
//! vLLM (0.11 to 0.32, chats and completions, not streams) writes `kv_cache_usage_perc` and
//! `num_requests_waiting`, Triton `kv_cache_utilization`:
//!
//! ```text
//! TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.25
//! JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.25}}
//! ```
//!
//! Names in the text form come once a data-parallel rank: counts are added, the usage is averaged. The
//! binary form is not read.

use serde_json::{Map, Value};

use super::report::USAGE_MAX;
use crate::limits::LOAD_REPORT_BYTES_MAX;

/// An engine's load; at least one field is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// Requests in its queue.
    pub waiting: Option<u32>,
    /// Requests that it computes.
    pub running: Option<u32>,
    /// Share of the KV memory in use, 0 to 1.
    pub kv_usage: Option<f32>,
}

/// The report in a header's value. `None` when it names nothing that is looked for, is of another form
/// or is longer than [`LOAD_REPORT_BYTES_MAX`].
#[must_use]
pub fn parse_orca(value: &[u8]) -> Option<LoadReport> {
    if value.len() > LOAD_REPORT_BYTES_MAX {
        return None;
    }
    let value = value.trim_ascii();
    let (form, report) = value.split_at_checked(4)?;
    let report = report.strip_prefix(b" ")?;
    let mut load = Load::default();
    if form.eq_ignore_ascii_case(b"TEXT") {
        for pair in report.split(|&byte| byte == b',') {
            load.add_pair(pair);
        }
    } else if form.eq_ignore_ascii_case(b"JSON") {
        load.add_members(&serde_json::from_slice(report).ok()?);
    }
    load.report()
}

/// What has been read so far.
#[derive(Debug, Default)]
struct Load {
    waiting: Option<f64>,
    running: Option<f64>,
    usage_sum: f64,
    usages: u32,
}

impl Load {
    fn add_pair(&mut self, pair: &[u8]) {
        let Ok(pair) = std::str::from_utf8(pair) else { return };
        if let Some((name, value)) = pair.split_once('=')
            && let Ok(value) = value.trim().parse()
        {
            self.add(name.trim(), value);
        }
    }

    /// Names stand in an object of their own, or with a dot behind its name.
    fn add_members(&mut self, members: &Map<String, Value>) {
        let nested = members.get("named_metrics").and_then(Value::as_object);
        for (name, value) in members.iter().chain(nested.into_iter().flatten()) {
            if let Some(value) = value.as_f64() {
                self.add(name, value);
            }
        }
    }

    /// A value that cannot be counts as missing.
    fn add(&mut self, name: &str, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        match name.strip_prefix("named_metrics.").unwrap_or(name) {
            "num_requests_waiting" => self.waiting = Some(self.waiting.unwrap_or(0.0) + value),
            "num_requests_running" => self.running = Some(self.running.unwrap_or(0.0) + value),
            "kv_cache_usage_perc" | "kv_cache_utilization" if value <= USAGE_MAX => {
                self.usage_sum += value.min(1.0);
                self.usages += 1;
            }
            _ => {}
        }
    }

    fn report(&self) -> Option<LoadReport> {
        let usage = (self.usages > 0).then(|| self.usage_sum / f64::from(self.usages));
        let report = LoadReport {
            waiting: self.waiting.map(|waiting| waiting as u32),
            running: self.running.map(|running| running as u32),
            kv_usage: usage.map(|usage| usage as f32),
        };
        (report != LoadReport::default()).then_some(report)
    }
}
