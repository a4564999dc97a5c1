//! Latency and throughput of the filter in Envoy, against Envoy's own buffer filter.
//!
//! Three Envoys with one worker each run side by side in front of one responder: plain, with
//! Envoy's native buffer filter, and with Warmpath. Requests alternate between them, so that a
//! change in the machine's speed meets all three alike; what counts is the difference within one
//! run. Prints tables, and with `--page FILE` writes them with machine, commit, seed and command.
//! With `--against FILE` a fourth Envoy runs another build of the filter: on a machine whose speed changes
//! from minute to minute, that is how to tell whether a change made it faster.
//!
//! `warmpath-bench memory` measures instead what the filter and its bundles take of Envoy's memory,
//! and how long a bundle takes to load.

mod arms;
mod latency;
mod memory;
mod page;
mod throughput;
mod tree;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Enough that the 99th percentile stands on 200 of them.
const TREE_LOOKUPS: u32 = 20_000;

/// What the filter adds to a request, measured in a real Envoy.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Requests of each size, kind and arm.
    #[arg(long, default_value_t = 1_000)]
    requests: u32,
    /// Seconds of each throughput round.
    #[arg(long, default_value_t = 2.0)]
    round_s: f64,
    /// Everything random follows from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Another build of the filter, to compare with.
    #[arg(long)]
    against: Option<PathBuf>,
    /// Writes the results to this file too.
    #[arg(long)]
    page: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Memory of Envoy with the filter, and the time a bundle takes to load.
    Memory(memory::Options),
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("warmpath-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    if let Some(Command::Memory(options)) = &options.command {
        return runtime.block_on(memory::run(options));
    }
    let responder = wire::Responder::start()?;
    let other = options.against.as_deref();
    let arms = runtime.block_on(arms::start(responder.address(), other))?;
    let latencies = latency::measure(&arms, options.requests, options.seed)?;
    let throughputs = throughput::measure(&arms, options.round_s, options.seed)?;
    drop(arms);
    let tree = tree::measure(TREE_LOOKUPS)?;
    let tables = [
        latency::table(&latencies).to_string(),
        throughput::table(&throughputs).to_string(),
        tree::table(&tree).to_string(),
    ];
    println!("{}", tables.join("\n\n"));
    if let Some(path) = &options.page {
        let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
        page::write(path, &command, options.seed, &tables)?;
    }
    Ok(())
}
