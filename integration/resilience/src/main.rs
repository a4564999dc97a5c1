//! What faults cost: engines that die, come, go and slow down, metrics that stop, configurations that
//! change, under steady traffic through a real Envoy with two workers. Writes a page.

#![deny(missing_docs)]

mod rows;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

/// What faults cost, measured in a real Envoy.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Which rows, separated by commas; all unless given.
    #[arg(long, value_delimiter = ',', default_value = "death,scaling,slow,metrics,reload,chaos")]
    rows: Vec<String>,
    /// Minutes of random faults.
    #[arg(long, default_value_t = 10.0)]
    chaos_minutes: f64,
    /// Everything random follows from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the page to this file too.
    #[arg(long)]
    page: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = tokio::runtime::Runtime::new()
        .context("a runtime")
        .and_then(|runtime| runtime.block_on(run(&options)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("warmpath-resilience: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> anyhow::Result<()> {
    let mut parts = Vec::new();
    for row in &options.rows {
        eprintln!("{row}");
        parts.push(match row.as_str() {
            "death" => rows::death().await,
            "scaling" => rows::scaling().await,
            "slow" => rows::slow(options.seed).await,
            "metrics" => rows::metrics(options.seed).await,
            "reload" => rows::reload().await,
            "chaos" => {
                let time = Duration::from_secs_f64(options.chaos_minutes * 60.0);
                rows::chaos(time, options.seed).await
            }
            other => anyhow::bail!("no row is called {other}"),
        });
        println!("{}", parts.last().map_or("", String::as_str));
    }
    if let Some(path) = &options.page {
        let page = page(options, &parts.join("\n"));
        std::fs::write(path, page).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn page(options: &Options, parts: &str) -> String {
    format!(
        "# What faults cost\n\n\
        Written by `make resilience`; do not edit. A real Envoy with two workers and the filter, eight \
        simulated engines (8B on an A100) that are processes of their own, 50 requests a second at their \
        times whatever becomes of earlier ones: 40 prefixes of 1,600 tokens in random order, a tenth of \
        the requests with a prefix of their own, half of them streams, each over a connection of its own. \
        A request has failed if its client got anything but a whole 200.\n\n\
        - Command: `warmpath-resilience --rows {} --chaos-minutes {} --seed {}`\n\
        - Commit: {}\n- Machine: {}\n\n{parts}",
        options.rows.join(","),
        options.chaos_minutes,
        options.seed,
        warmpath_harness::origin::commit(),
        warmpath_harness::origin::machine(),
    )
}
