//! Rows of the evaluation again, in a real Envoy: the same workload, seed and engines, once in virtual
//! time and once over HTTP through Envoy and the filter to engines that run in real time.
//!
//! - [`real`]: one run through Envoy.
//! - [`row`]: what is compared.

#![deny(missing_docs)]

mod real;
mod row;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use warmpath_core::config::Policy;
use warmpath_fleet::arm::Arm;
use warmpath_fleet::batch::Job;
use warmpath_fleet::measure::figures;
use warmpath_fleet::scenario::{self, Scenario, Traffic};

use crate::row::Row;

/// Rows of the evaluation again, in a real Envoy.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Scenarios of the evaluation, separated by commas; stress mixes only.
    #[arg(long, value_delimiter = ',', default_value = SCENARIOS)]
    scenarios: Vec<String>,
    /// Seconds of traffic, in the engines' time.
    #[arg(long, default_value_t = 300.0)]
    seconds: f64,
    /// Engine time over wall time.
    #[arg(long, default_value_t = 6.0)]
    speed: f64,
    /// Everything random follows from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the table to this file too.
    #[arg(long)]
    page: Option<PathBuf>,
}

/// Two rows with one Envoy, and one with two that do, or do not, tell each other what they do.
const SCENARIOS: &str = "13b-fitted-20,8b-50-documents,8b-churn-2-strangers,8b-churn-2-peers";

/// The policies under which a scenario is run.
fn policies(scenario: &Scenario) -> &'static [Policy] {
    match scenario.envoys {
        1 => &[Policy::RoundRobin, Policy::LeastRequest, Policy::KvCost],
        _ => &[Policy::KvCost],
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("warmpath-confirm: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let mut table = table();
    for name in &options.scenarios {
        let scenario = shortened(name, options.seconds)?;
        for &policy in policies(&scenario) {
            eprintln!("{name}, {}", Arm::Policy(policy).name());
            let simulated = simulated(&scenario, policy, options.seed)?;
            let run = real::run(&scenario, policy, options.speed, options.seed);
            let real = runtime.block_on(run)?;
            for (where_from, row) in [("simulation", simulated), ("Envoy", real)] {
                let arm = Arm::Policy(policy).name().to_owned();
                let mut cells = vec![name.clone(), arm, where_from.to_owned()];
                cells.extend(row.cells());
                table.add_row(cells);
            }
        }
    }
    println!("{table}");
    if let Some(path) = &options.page {
        std::fs::write(path, page(options, &table)).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The scenario with less traffic of the same kind.
fn shortened(name: &str, seconds: f64) -> anyhow::Result<Scenario> {
    let scenario = scenario::all()?.into_iter().find(|scenario| scenario.name == name);
    let mut scenario = scenario.with_context(|| format!("no scenario is called {name}"))?;
    let Traffic::Stress(spec) = &mut scenario.traffic else {
        anyhow::bail!("{name} is no stress mix");
    };
    spec.duration_s = seconds;
    Ok(scenario)
}

fn simulated(scenario: &Scenario, policy: Policy, seed: u64) -> anyhow::Result<Row> {
    let job = Job { scenario: scenario.clone(), arm: Arm::Policy(policy), seed };
    let figures = figures(&job.run()?, scenario.duration_s());
    Ok(Row {
        requests: usize::try_from(figures.requests)?,
        failed: 0,
        cached_share: figures.cached_share,
        ttft_p50_ms: figures.ttft.p50_ms,
        ttft_p99_ms: figures.ttft.p99_ms,
    })
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header([
        "scenario",
        "policy",
        "in",
        "requests",
        "failed",
        "cached %",
        "TTFT P50 ms",
        "P99 ms",
    ]);
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn page(options: &Options, table: &Table) -> String {
    format!(
        "# Rows of the evaluation in a real Envoy\n\n\
        Written by `make confirm`; do not edit. The same workload and seed as in the \
        [evaluation](evaluation.md), {} s of it, once in virtual time and once over HTTP: Envoy with two \
        workers and the filter, eight simulated engines at {} times their speed. The cached share and the \
        times to first token in Envoy are the engines' own, in engine time; what a busy machine adds to \
        a time is multiplied by the speed. Users ask again when they are answered, so a slower arm has \
        fewer requests. Peers are two Envoys that tell each other what they do; strangers are two that do \
        not, but in a real Envoy see each other's load in the engines' metrics.\n\n\
        - Command: `warmpath-confirm --seconds {} --speed {} --seed {}`\n\
        - Commit: {}\n- Machine: {}\n\n{table}\n",
        options.seconds,
        options.speed,
        options.seconds,
        options.speed,
        options.seed,
        warmpath_harness::origin::commit(),
        warmpath_harness::origin::machine(),
    )
}
