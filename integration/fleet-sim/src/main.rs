//! Command line of the fleet simulator.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use warmpath_core::config::Policy;
use warmpath_engine_sim::model::Profile;
use warmpath_fleet::arm::Arm;
use warmpath_fleet::batch::{Job, replay, run_all};
use warmpath_fleet::evaluate::report::{Origin, figures_table, markdown};
use warmpath_fleet::evaluate::{Results, checks, plot};
use warmpath_fleet::measure::Figures;
use warmpath_fleet::scenario;
use warmpath_fleet::what_if::{POLICIES, Question, answer, smallest};
use warmpath_harness::origin;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Fleets of engines behind Warmpath in virtual time.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// List the workloads and policies.
    List,
    /// Simulate one workload under one or several policies.
    Run(RunArgs),
    /// Simulate everything, judge it and write the report.
    Evaluate(EvaluateArgs),
    /// Ask what other policies and fleet sizes would make of recorded traffic.
    WhatIf(WhatIfArgs),
}

#[derive(Args)]
struct RunArgs {
    /// Name of the workload.
    #[arg(long)]
    workload: String,
    /// Policies, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "kv_cost")]
    policy: Vec<String>,
    /// Seed of everything random.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Engines, instead of the workload's own number.
    #[arg(long)]
    backends: Option<usize>,
    /// Envoys, instead of the workload's own number.
    #[arg(long)]
    envoys: Option<usize>,
    /// Milliseconds between two messages of an Envoy to its peers; without it they tell each other nothing.
    #[arg(long)]
    told_every_ms: Option<u64>,
    /// Worker VMs in each Envoy.
    #[arg(long)]
    workers: Option<usize>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct EvaluateArgs {
    /// How many seeds, from 0.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Only workloads whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// The report; plots go beside it, into a directory of its name.
    #[arg(long, default_value = "docs/evaluation.md")]
    out: PathBuf,
}

#[derive(Args)]
struct WhatIfArgs {
    /// JSON lines, plain or gzipped: Mooncake's format (timestamp in ms, input_length, output_length,
    /// hash_ids) or an access log (start_time, prompt_tokens, completion_tokens, session).
    #[arg(long)]
    trace: PathBuf,
    /// Fleet sizes to try, separated by commas.
    #[arg(long, value_delimiter = ',', required = true)]
    gpus: Vec<usize>,
    /// What one engine can do.
    #[arg(long, default_value = "a100-8b")]
    profile: String,
    /// KV memory of an engine in tokens, instead of the profile's.
    #[arg(long)]
    kv_tokens: Option<u32>,
    /// Wanted P99 of the time to the first token.
    #[arg(long)]
    ttft_goal_ms: f64,
    /// How much faster than recorded the requests come.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Seed of everything random.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::List => list(),
        Task::Run(args) => run(&args),
        Task::Evaluate(args) => evaluate(&args),
        Task::WhatIf(args) => what_if(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> Result<ExitCode, Failure> {
    println!("workloads:");
    for scenario in scenario::all()? {
        println!("  {} ({} x {})", scenario.name, scenario.backends, scenario.profile.name);
    }
    println!("policies:");
    for arm in Arm::ALL {
        println!("  {}", arm.name());
    }
    Ok(ExitCode::SUCCESS)
}

fn arm_named(name: &str) -> Result<Arm, Failure> {
    Arm::named(name).ok_or_else(|| format!("no policy is called {name:?}; see `list`").into())
}

fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let mut scenario = scenario::all()?
        .into_iter()
        .find(|scenario| scenario.name == args.workload)
        .ok_or_else(|| format!("no workload is called {:?}; see `list`", args.workload))?;
    scenario.backends = args.backends.unwrap_or(scenario.backends);
    scenario.envoys = args.envoys.unwrap_or(scenario.envoys).max(1);
    scenario.told_every = args.told_every_ms.map(|ms| Duration::from_millis(ms.max(1)));
    scenario.workers = args.workers.unwrap_or(scenario.workers).max(1);
    let jobs = args
        .policy
        .iter()
        .map(|name| Ok(Job { scenario: scenario.clone(), arm: arm_named(name)?, seed: args.seed }))
        .collect::<Result<Vec<_>, Failure>>()?;
    let figures = run_all(&jobs, &|_| {})?;
    if args.json {
        for (job, figures) in jobs.iter().zip(&figures) {
            let line = serde_json::json!({
                "workload": job.scenario.name,
                "policy": job.arm.name(),
                "seed": job.seed,
                "figures": figures,
            });
            println!("{line}");
        }
    } else {
        let rows: Vec<(&str, &[Figures])> = jobs
            .iter()
            .zip(&figures)
            .map(|(job, figures)| (job.arm.name(), std::slice::from_ref(figures)))
            .collect();
        println!("{}", figures_table(&rows));
        for (job, figures) in jobs.iter().zip(&figures) {
            println!("{}: {:?}", job.arm.name(), figures.reasons);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn evaluate(args: &EvaluateArgs) -> Result<ExitCode, Failure> {
    let started = Instant::now();
    let mut scenarios = scenario::all()?;
    scenarios.retain(|scenario| scenario.name.contains(&args.only));
    let seeds: Vec<u64> = (0..args.seeds).collect();
    let results = Results::run(&scenarios, &seeds, &|done, all| {
        if done % 50 == 0 || done == all {
            eprintln!("{done} of {all} runs, {:.0} s", started.elapsed().as_secs_f64());
        }
    })?;
    let groups = checks::all(&results);
    let origin = Origin {
        commit: origin::commit(),
        command: format!("warmpath-fleet evaluate --seeds {}", args.seeds),
        machine: origin::machine(),
        elapsed_s: started.elapsed().as_secs_f64(),
    };
    let plots = args.out.with_extension("");
    std::fs::create_dir_all(&plots)?;
    std::fs::write(&args.out, markdown(&results, &groups, &scenarios, &origin))?;
    plot::all(&results, &plots)?;
    let mut unmet = 0;
    for check in groups.iter().flat_map(|group| &group.checks) {
        if !check.values.is_empty() && !check.is_met() {
            unmet += 1;
            let seed = seeds.get(check.worst()).copied().unwrap_or_default();
            eprintln!(
                "not met: {}: {} is {:.3?}, bound {}; replay: {}",
                check.scenario,
                check.what,
                check.values,
                check.bound,
                replay(&check.scenario, Arm::Policy(Policy::KvCost), seed),
            );
        }
    }
    println!("{} written, {unmet} bounds not met", args.out.display());
    Ok(ExitCode::SUCCESS)
}

fn what_if(args: &WhatIfArgs) -> Result<ExitCode, Failure> {
    let mut profile = Profile::named(&args.profile)?;
    profile.kv_tokens = args.kv_tokens.unwrap_or(profile.kv_tokens);
    if !(args.speed.is_finite() && args.speed > 0.0) {
        return Err("--speed must be positive".into());
    }
    if args.gpus.contains(&0) {
        return Err("--gpus must be at least 1".into());
    }
    let question = Question {
        trace: args.trace.clone(),
        profile,
        gpus: args.gpus.clone(),
        speed: args.speed,
        seed: args.seed,
    };
    let answers = answer(&question)?;
    if args.json {
        for answer in &answers {
            let line = serde_json::json!({
                "gpus": answer.gpus,
                "policy": answer.arm.name(),
                "meets_goal": answer.figures.ttft.p99_ms <= args.ttft_goal_ms,
                "figures": answer.figures,
            });
            println!("{line}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    for &gpus in &args.gpus {
        let rows: Vec<(&str, &[Figures])> = answers
            .iter()
            .filter(|answer| answer.gpus == gpus)
            .map(|answer| (answer.arm.name(), std::slice::from_ref(&answer.figures)))
            .collect();
        println!("{gpus} GPUs\n{}\n", figures_table(&rows));
    }
    println!("P99 TTFT of at most {} ms is met with:", args.ttft_goal_ms);
    for arm in POLICIES {
        match smallest(&answers, arm, args.ttft_goal_ms) {
            Some(gpus) => println!("  {}: {gpus} GPUs", arm.name()),
            None => println!("  {}: none of these fleets", arm.name()),
        }
    }
    if let Some(refused) =
        answers.iter().map(|answer| answer.figures.refused).max().filter(|n| *n > 0)
    {
        println!("{refused} requests are longer than an engine's memory and were left out.");
    }
    Ok(ExitCode::SUCCESS)
}
