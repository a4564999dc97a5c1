//! Results -> Markdown.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use warmpath_core::config::Policy;

use super::checks::{Check, Group, Sense};
use super::{ABLATED, ABLATIONS, Figure, Results, arms, mean};
use crate::arm::Arm;
use crate::measure::Figures;
use crate::scenario::{Envoys, SHARED_TRAFFIC, SWEEP_KV_TOKENS, Scenario, Sweep};

/// What a report says of how it came about.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The source's commit.
    pub commit: String,
    /// The command that makes it again.
    pub command: String,
    /// Processor and threads.
    pub machine: String,
    /// How long it took, in seconds.
    pub elapsed_s: f64,
}

const INTRODUCTION: &str = "\
# Evaluation

Written by `make evaluate`; do not edit.

Fleets of simulated engines in virtual time, routed by the filter's own core. The engines batch \
continuously, prefill in chunks and cache prefixes block by block as vLLM does (`integration/engine-sim`); \
one Envoy with two workers stands before them unless said. Every arm starts cold, sees the same \
requests, and runs with each seed. Figures are means over the seeds; a spread is the least and the \
greatest. TTFT includes the filter's latency budget (0.1 ms and 0.05 ms for each 1,000 tokens of prompt) for the \
arms that read prompts. The cached share is the engines' own counter of prompt tokens that they did not compute.

Arms: `no_residency` is `kv_cost` in the belief that nothing is ever evicted; `oracle` is `kv_cost` with \
perfect knowledge of every cache, queued requests included; `prefix_affinity` is the classic: longest \
prefix sent before, hash on a miss, away from a backend with more than `2 x median + 2` in flight.

What simulation cannot show: the step times are a model, not a GPU; the network takes no time.
";

/// The whole report.
#[must_use]
pub fn markdown(
    results: &Results,
    groups: &[Group],
    scenarios: &[Scenario],
    origin: &Origin,
) -> String {
    let mut text = INTRODUCTION.to_owned();
    let seeds: Vec<String> = results.seeds().iter().map(ToString::to_string).collect();
    let _ = write!(
        text,
        "\n- Command: `{}`\n- Commit: {}\n- Seeds: {}\n- Machine: {}\n- Time: {:.0} s\n\n",
        origin.command,
        origin.commit,
        seeds.join(", "),
        origin.machine,
        origin.elapsed_s
    );
    text += &summary(groups);
    text += "\n![P99 TTFT](evaluation/p99.svg)\n\n![Cached share](evaluation/cached.svg)\n";
    for group in groups {
        let _ = write!(text, "\n## {}\n\n{}\n", group.claim, checks_table(&group.checks));
    }
    text += "\n## All figures\n";
    for scenario in scenarios.iter().filter(|scenario| !is_sweep(&scenario.name)) {
        let _ = write!(text, "\n### {}\n\n{}\n", scenario.name, scenario_table(results, scenario));
    }
    text += &ablations(results);
    text += &sweeps(results);
    text
}

fn is_sweep(name: &str) -> bool {
    Sweep::of(name).is_some() || name.starts_with("13b-told") || Envoys::are_in(name)
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header.to_vec());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn summary(groups: &[Group]) -> String {
    let mut table = table(&["claim", "bounds", "met"]);
    for group in groups {
        let met = group.checks.iter().filter(|check| check.is_met()).count();
        table.add_row([
            group.claim.to_owned(),
            group.checks.len().to_string(),
            if met == group.checks.len() { "all".to_owned() } else { met.to_string() },
        ]);
    }
    format!("{table}\n")
}

fn checks_table(checks: &[Check]) -> String {
    let mut table = table(&["scenario", "figure", "wanted", "mean", "spread", "met"]);
    for check in checks {
        let sense = match check.sense {
            Sense::AtMost => "at most",
            Sense::AtLeast => "at least",
        };
        table.add_row([
            check.scenario.clone(),
            check.what.clone(),
            format!("{sense} {}", number(check.bound)),
            number(mean(&check.values)),
            spread(&check.values),
            if check.is_met() { "yes" } else { "**no**" }.to_owned(),
        ]);
    }
    table.to_string()
}

fn number(value: f64) -> String {
    if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{} to {}", number(least), number(greatest))
}

/// All arms of one scenario.
#[must_use]
pub fn scenario_table(results: &Results, scenario: &Scenario) -> String {
    let rows: Vec<(&str, &[Figures])> = arms(scenario)
        .into_iter()
        .filter(|arm| !matches!(arm, Arm::Without(_)))
        .map(|arm| (arm.name(), results.of(&scenario.name, arm)))
        .collect();
    figures_table(&rows)
}

/// One row for each arm, each the mean of its runs.
#[must_use]
pub fn figures_table(rows: &[(&str, &[Figures])]) -> String {
    let mut table = table(&[
        "policy",
        "cached %",
        "hit %",
        "TTFT P50 ms",
        "P90",
        "P99",
        "P99 spread",
        "TPOT P50 ms",
        "P99",
        "requests/s",
        "CV",
        "predicted off %",
        "downgrades",
    ]);
    for (arm, runs) in rows {
        let of = |figure: fn(&Figures) -> f64| runs.iter().map(figure).collect::<Vec<_>>();
        let p99 = of(|f| f.ttft.p99_ms);
        table.add_row([
            (*arm).to_owned(),
            format!("{:.1}", 100.0 * mean(&of(|f| f.cached_share))),
            format!("{:.1}", 100.0 * mean(&of(|f| f.hit_share))),
            number(mean(&of(|f| f.ttft.p50_ms))),
            number(mean(&of(|f| f.ttft.p90_ms))),
            number(mean(&p99)),
            spread(&p99),
            format!("{:.1}", mean(&of(|f| f.tpot.p50_ms))),
            format!("{:.1}", mean(&of(|f| f.tpot.p99_ms))),
            format!("{:.2}", mean(&of(|f| f.requests_per_s))),
            format!("{:.2}", mean(&of(|f| f.spread))),
            format!("{:.1}", 100.0 * mean(&of(|f| f.prediction_error))),
            format!("{:.0}", mean(&of(|f| f.downgrades as f64))),
        ]);
    }
    table.to_string()
}

/// Each term of the score off in turn, and residency.
fn ablations(results: &Results) -> String {
    let mut header = vec!["without"];
    header.extend(ABLATED);
    let mut ttft = table(&header);
    let mut cached = table(&header);
    for arm in ABLATIONS.into_iter().chain([Arm::NoResidency]) {
        let mut ttft_row = vec![arm.name().to_owned()];
        let mut cached_row = ttft_row.clone();
        for scenario in ABLATED {
            let without = |figure| results.mean(scenario, arm, figure);
            let whole = |figure| results.mean(scenario, Arm::Policy(Policy::KvCost), figure);
            let p99: Figure = |figures| figures.ttft.p99_ms;
            let share: Figure = |figures| 100.0 * figures.cached_share;
            ttft_row.push(format!("{:+.0}%", 100.0 * (without(p99) / whole(p99) - 1.0)));
            cached_row.push(format!("{:+.1}", without(share) - whole(share)));
        }
        ttft.add_row(ttft_row);
        cached.add_row(cached_row);
    }
    format!(
        "\n## What each term buys\n\nP99 TTFT without it, against the whole score:\n\n{ttft}\n\n\
         Cached share without it, in points:\n\n{cached}\n"
    )
}

fn memory_table(results: &Results, sweep: Sweep) -> Table {
    let product = Arm::Policy(Policy::KvCost);
    let least_request = Arm::Policy(Policy::LeastRequest);
    let mut memory = table(&[
        "KV tokens",
        "least_request P99",
        "no_residency P99",
        "kv_cost P99",
        "no_residency P50",
        "kv_cost P50",
        "no_residency cached %",
        "kv_cost cached %",
        "downgrades %",
    ]);
    for kv_tokens in SWEEP_KV_TOKENS {
        let name = sweep.scenario(kv_tokens);
        let p99 = |arm| number(results.mean(&name, arm, |f| f.ttft.p99_ms));
        let p50 = |arm| number(results.mean(&name, arm, |f| f.ttft.p50_ms));
        let cached = |arm| format!("{:.1}", 100.0 * results.mean(&name, arm, |f| f.cached_share));
        let downgrades: fn(&Figures) -> f64 = |f| 100.0 * f.downgrades as f64 / f.requests as f64;
        memory.add_row([
            kv_tokens.to_string(),
            p99(least_request),
            p99(Arm::NoResidency),
            p99(product),
            p50(Arm::NoResidency),
            p50(product),
            cached(Arm::NoResidency),
            cached(product),
            format!("{:.1}", results.mean(&name, product, downgrades)),
        ]);
    }
    memory
}

fn sweeps(results: &Results) -> String {
    let product = Arm::Policy(Policy::KvCost);
    let fixed = memory_table(results, Sweep::Fixed);
    let churn = memory_table(results, Sweep::Churn);
    let mut told = table(&["told", "cached %", "P99 ms", "predicted off %"]);
    for name in ["13b-told-half", "13b-told-double", "13b-told-nothing"] {
        told.add_row([
            name.to_owned(),
            format!("{:.1}", 100.0 * results.mean(name, product, |f| f.cached_share)),
            number(results.mean(name, product, |f| f.ttft.p99_ms)),
            format!("{:.1}", 100.0 * results.mean(name, product, |f| f.prediction_error)),
        ]);
    }
    let envoys = envoys_table(results);
    format!(
        "\n## Memory against the documents asked about\n\n![Residency](evaluation/memory.svg)\n\n\
         ![Downgrades](evaluation/downgrades.svg)\n\n\
         50 documents, 13B, 20 users:\n\n{fixed}\n\n\
         Documents that come and go, 8B, 40 users:\n\n{churn}\n\n\
         ## A capacity that is wrong or unknown\n\n{told}\n\n\
         ## Several Envoys before the same engines\n\n\
         Requests are spread over them at random. Peers tell each other what they do, up to twenty times a \
         second; strangers do not, and know nothing of each other.\n\n{envoys}\n"
    )
}

/// One Envoy, peers and strangers, before each kind of traffic.
fn envoys_table(results: &Results) -> Table {
    let (product, least_request) = (Arm::Policy(Policy::KvCost), Arm::Policy(Policy::LeastRequest));
    let header =
        ["scenario", "cached %", "P50 ms", "P99 ms", "predicted off %", "least_request P99"];
    let mut envoys = table(&header);
    for traffic in SHARED_TRAFFIC {
        for shape in Envoys::all() {
            let name = shape.scenario(traffic);
            let balanced = match shape {
                Envoys::Peers(_) => String::new(),
                _ => number(results.mean(&name, least_request, |f| f.ttft.p99_ms)),
            };
            envoys.add_row([
                name.clone(),
                format!("{:.1}", 100.0 * results.mean(&name, product, |f| f.cached_share)),
                number(results.mean(&name, product, |f| f.ttft.p50_ms)),
                number(results.mean(&name, product, |f| f.ttft.p99_ms)),
                format!("{:.1}", 100.0 * results.mean(&name, product, |f| f.prediction_error)),
                balanced,
            ]);
        }
    }
    envoys
}
