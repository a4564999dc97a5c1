//! The page that says what was measured, where and how.

use std::fs;
use std::path::Path;

use anyhow::Context;
use warmpath_harness::origin;

/// Writes the page.
pub fn write(
    path: &Path,
    command: &str,
    seed: u64,
    [latency, throughput, tree]: &[String; 3],
) -> anyhow::Result<()> {
    let page = format!(
        "# What the filter costs\n\n\
        Written by `warmpath-bench {command}` (`make bench`). One Envoy worker an arm, keep-alive \
        connections over loopback, the arms alternating request by request; times are whole requests as \
        the client sees them, in microseconds. *Added* is Warmpath less Envoy's native buffer filter, \
        which waits for the body too. *First sight*: every request has a new text; *repeated*: the \
        same text each time.\n\n\
        - machine: {}\n- commit: {}\n- seed: {seed}\n\n\
        ## Latency\n\n{latency}\n\n## Throughput\n\n{throughput}\n\n\
        ## The tree, natively\n\n{tree}\n",
        origin::machine(),
        origin::commit(),
    );
    fs::write(path, page).with_context(|| path.display().to_string())
}
