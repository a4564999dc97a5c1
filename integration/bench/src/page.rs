//! The page that says what was measured, where and how.

use std::fs;
use std::path::Path;

use anyhow::Context;
use comfy_table::Table;
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
        connections over loopback, the arms taking turns in random order; times are whole requests as \
        the client sees them, p50 / p99 in microseconds. *Added* is Warmpath less Envoy's native buffer filter, \
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

/// Writes the page about memory.
pub fn write_memory(path: &Path, runs: u32, table: &Table) -> anyhow::Result<()> {
    let page = format!(
        "# What the filter takes of memory\n\n\
        Written by `warmpath-bench memory` (`make bench-memory`), the median of {runs} runs. Envoy has \
        one VM a worker and one for its main thread; *per VM* is the difference of three workers and \
        one, halved, and includes the worker's own thread. *Linear memory* is the VM's, after loading. \
        *Reading* is from the bundle's last byte at the VM until the model can be used, with all VMs \
        reading at once; *ready* from Envoy's start until all VMs have the bundle.\n\n\
        - machine: {}\n- commit: {}\n\n{table}\n",
        origin::machine(),
        origin::commit(),
    );
    fs::write(path, page).with_context(|| path.display().to_string())
}
