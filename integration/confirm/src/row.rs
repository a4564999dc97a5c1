//! What one run gave.

/// The figures that are compared.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Requests answered.
    pub requests: usize,
    /// Requests that were not.
    pub failed: usize,
    /// Share of prompt tokens that the engines had.
    pub cached_share: f64,
    /// Median time to first token, in milliseconds of engine time.
    pub ttft_p50_ms: f64,
    /// Its 99th percentile.
    pub ttft_p99_ms: f64,
}

impl Row {
    /// For the table.
    pub fn cells(&self) -> [String; 5] {
        [
            self.requests.to_string(),
            self.failed.to_string(),
            format!("{:.1}", 100.0 * self.cached_share),
            format!("{:.0}", self.ttft_p50_ms),
            format!("{:.0}", self.ttft_p99_ms),
        ]
    }
}
