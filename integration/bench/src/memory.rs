//! What the filter and its bundles take of Envoy's memory, and how long a bundle takes to load.
//!
//! In: bundles. Out: for plain Envoy, the filter without a bundle, and the filter with each, the
//! resident set with one worker and with three, of which the difference is two VMs; and what the
//! filter's own log says about each load. Nothing is asserted: times depend on the machine.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use comfy_table::{Table, presets};
use warmpath_harness::{EnvoyOptions, EnvoyProcess, FilterOptions, Variant};

use crate::page;

/// Envoy's workers in the two measurements of each case.
const WORKERS: [u32; 2] = [1, 3];

/// All VMs have the bundle by then, or something is wrong.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// After loading: freed buffers go back, and the first ticks are over.
const SETTLE: Duration = Duration::from_secs(3);

/// What `memory` is told.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The bundles, one case each.
    bundles: Vec<PathBuf>,
    /// Runs of each case; medians are reported.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Writes the results to this file too.
    #[arg(long)]
    page: Option<PathBuf>,
}

/// One run of Envoy.
struct Run {
    /// Resident set of the process.
    rss_kib: u64,
    /// From its start until all VMs have the bundle, where there is one.
    ready: Duration,
    loads: Vec<Load>,
}

/// What a VM logged about its bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    reading_us: u64,
    memory_bytes: u64,
}

/// What sits in Envoy.
enum Case {
    Plain,
    NoBundle,
    Bundle(PathBuf),
}

impl Case {
    fn label(&self) -> String {
        match self {
            Self::Plain => "no filter".to_owned(),
            Self::NoBundle => "the filter, no bundle".to_owned(),
            Self::Bundle(file) => {
                let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                let bytes = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
                format!("{} ({:.1} MB)", name.unwrap_or_default(), bytes as f64 / 1e6)
            }
        }
    }

    fn options(&self, workers: u32) -> anyhow::Result<EnvoyOptions> {
        // Nothing is sent; any address will do.
        let engines = [SocketAddr::from(([127, 0, 0, 1], 1))];
        let mut options = EnvoyOptions::plain(Variant::OverrideHost, &engines);
        options.concurrency = workers;
        options.log_level = "info".to_owned();
        if !matches!(self, Self::Plain) {
            let bundle = match self {
                Self::Bundle(file) => Some(std::path::absolute(file)?),
                Self::Plain | Self::NoBundle => None,
            };
            options.filter = Some(FilterOptions { bundle, ..FilterOptions::built("kv_cost")? });
        }
        Ok(options)
    }
}

/// Measures all cases, prints the table and writes the page if asked to.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let bundles = options.bundles.iter().cloned().map(Case::Bundle);
    let cases = [Case::Plain, Case::NoBundle].into_iter().chain(bundles);
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header([
        "Envoy with",
        "1 worker, MiB",
        "3 workers, MiB",
        "per VM, MiB",
        "linear memory, MiB",
        "reading, ms (median, most)",
        "ready, s",
    ]);
    for case in cases {
        let mut few = Vec::new();
        let mut many = Vec::new();
        for _ in 0..options.runs.max(1) {
            few.push(measure(&case, WORKERS[0]).await.with_context(|| case.label())?);
            many.push(measure(&case, WORKERS[1]).await.with_context(|| case.label())?);
        }
        table.add_row(row(&case, &few, &many));
    }
    println!("{table}");
    if let Some(path) = &options.page {
        page::write_memory(path, options.runs.max(1), &table)?;
    }
    Ok(())
}

async fn measure(case: &Case, workers: u32) -> anyhow::Result<Run> {
    let started = Instant::now();
    let envoy = EnvoyProcess::start(&case.options(workers)?).await?;
    if matches!(case, Case::Bundle(_)) {
        envoy.wait_for_bundles(workers + 1, LOAD_TIMEOUT).await?;
    }
    let ready = started.elapsed();
    tokio::time::sleep(SETTLE).await;
    Ok(Run { rss_kib: rss_kib(envoy.pid())?, ready, loads: loads(&envoy.log()) })
}

fn row(case: &Case, few: &[Run], many: &[Run]) -> Vec<String> {
    let rss_mib = |runs: &[Run]| median(runs.iter().map(|run| run.rss_kib)) as f64 / 1_024.0;
    let (one, three) = (rss_mib(few), rss_mib(many));
    let vms = f64::from(WORKERS[1] - WORKERS[0]);
    let loads = || few.iter().chain(many).flat_map(|run| &run.loads);
    let mut row = vec![
        case.label(),
        format!("{one:.0}"),
        format!("{three:.0}"),
        format!("{:.1}", (three - one) / vms),
    ];
    let ready = median(few.iter().chain(many).map(|run| run.ready.as_millis() as u64));
    let ready = format!("{:.1}", ready as f64 / 1e3);
    row.extend(if loads().next().is_some() {
        let most = loads().map(|load| load.reading_us).max().unwrap_or(0);
        let middle = median(loads().map(|load| load.reading_us));
        let memory = median(loads().map(|load| load.memory_bytes));
        let reading = format!("{:.1}, {:.1}", middle as f64 / 1e3, most as f64 / 1e3);
        [format!("{:.1}", memory as f64 / f64::from(1 << 20)), reading, ready]
    } else {
        ["-".to_owned(), "-".to_owned(), ready]
    });
    row
}

fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut sorted: Vec<u64> = values.collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

fn rss_kib(pid: u32) -> anyhow::Result<u64> {
    let path = Path::new("/proc").join(pid.to_string()).join("status");
    let status = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.ok_or_else(|| anyhow!("{} has no VmRSS", path.display()))
}

/// The loads in Envoy's log: `... loaded in 12 us, memory 34 bytes`.
fn loads(log: &str) -> Vec<Load> {
    let lines = log.lines().filter_map(|line| line.split_once(" loaded in "));
    let loads = lines.filter_map(|(_, rest)| {
        let (reading_us, rest) = rest.split_once(" us, memory ")?;
        let (memory_bytes, _) = rest.split_once(" bytes")?;
        Some(Load {
            reading_us: reading_us.parse().ok()?,
            memory_bytes: memory_bytes.parse().ok()?,
        })
    });
    loads.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_read_from_the_log() {
        let log = "[info] x\n[1][info][wasm] wasm log: warmpath: bundle /b of 9 bytes loaded in \
                   1500 us, memory 65536 bytes\n loaded in a hurry\n";
        assert_eq!(loads(log), [Load { reading_us: 1_500, memory_bytes: 65_536 }]);
    }

    #[test]
    fn this_process_has_a_resident_set() {
        assert!(rss_kib(std::process::id()).unwrap() > 100);
    }
}
