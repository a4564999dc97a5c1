//! Round robin, least request and Warmpath side by side, on simulated GPUs.
//!
//! Starts eight engines and, for each policy in turn, an Envoy with the filter; sends the same traffic at
//! the same times; asks the engines what they served; prints one table. Every policy starts with empty
//! caches. Nothing is left running, unless `--keep` asks for it.
//!
//! - [`scenario`]: the traffic and why it is what it is.
//! - [`arm`]: one policy's run.
//! - [`report`]: the table and what it means.

#![deny(missing_docs)]

mod arm;
mod report;
mod scenario;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};
use warmpath_harness::EnvoyProcess;
use warmpath_harness::fleet::{Fleet, FleetOptions};
use warmpath_harness::workload::Workload;

use crate::arm::{Arm, Policy};
use crate::scenario::Scenario;

/// What the command line may change.
#[derive(Debug, Parser)]
#[command(about = "Round robin, least request and Warmpath side by side, on simulated GPUs.")]
struct Arguments {
    /// Leave Envoy (with Warmpath) and the engines up afterwards, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Seconds of traffic a policy, in the engines' time.
    #[arg(long, default_value_t = scenario::DURATION_S)]
    seconds: u64,
    /// Engine time over wall time.
    #[arg(long, default_value_t = scenario::SPEED)]
    speed: f64,
    /// The seed of the traffic.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The port for clients when `--keep` leaves Envoy up.
    #[arg(long, default_value_t = 10_000)]
    port: u16,
}

fn main() -> ExitCode {
    match start(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("warmpath-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &Arguments) -> anyhow::Result<()> {
    let scenario = Scenario {
        duration: Duration::from_secs(arguments.seconds),
        speed: arguments.speed,
        seed: arguments.seed,
    };
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let options = FleetOptions::named(scenario::ENGINES, scenario::PROFILE, scenario.speed)?;
        let fleet = Fleet::start(&options).await.context("the engines did not start")?;
        let arms = unless_interrupted(compare(&fleet, &scenario)).await?;
        print!("\n{}", report::render(&arms));
        if arguments.keep {
            let envoy = unless_interrupted(keep(&fleet, arguments.port)).await?;
            println!("\n{}", report::try_it(envoy.public(), envoy.internal(), envoy.admin()));
            interrupted().await?;
        }
        Ok(())
    })
}

/// Runs every policy.
async fn compare(fleet: &Fleet, scenario: &Scenario) -> anyhow::Result<Vec<Arm>> {
    let workload = Workload::generate(&scenario.workload());
    println!("{}\n", scenario.describe(&workload));
    let mut arms = Vec::new();
    for policy in Policy::ALL {
        let bar = progress_bar(policy, workload.requests());
        arms.push(arm::run(policy, fleet, &workload, scenario, &bar).await?);
        bar.finish();
    }
    Ok(arms)
}

/// Leaves the fleet up behind an Envoy on a port that is easy to type.
async fn keep(fleet: &Fleet, port: u16) -> anyhow::Result<EnvoyProcess> {
    fleet.reset().await?;
    arm::start_envoy(Policy::KvCost, fleet, port).await
}

/// The work's result, or an error on Ctrl-C. Whatever the work owns is dropped then: Envoy, above all.
async fn unless_interrupted<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::select! {
        result = work => result,
        signal = interrupted() => {
            signal?;
            anyhow::bail!("interrupted")
        }
    }
}

/// Ends when the process is asked to: Ctrl-C or SIGTERM.
async fn interrupted() -> std::io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result,
        _ = terminated.recv() => Ok(()),
    }
}

fn progress_bar(policy: Policy, requests: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(requests).unwrap_or(u64::MAX));
    if !std::io::stderr().is_terminal() {
        // Without a terminal indicatif shows nothing; one line a policy does.
        eprintln!("{} ...", policy.label());
        bar.set_draw_target(ProgressDrawTarget::hidden());
        return bar;
    }
    let template = "{prefix:>14} [{bar:40}] {pos}/{len} answers, {elapsed}, {eta} left {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(policy.label());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
