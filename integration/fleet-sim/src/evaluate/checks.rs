//! What must be shown, judged.
//!
//! In: results. Out: one [`Check`] for each bound, with what came out for each seed. A ratio is
//! taken seed by seed, between runs of the same requests.

use warmpath_core::config::Policy;

use super::{Figure, Results, mean};
use crate::arm::Arm;
use crate::scenario::{ENVOYS, Envoys, SWEEP_KV_TOKENS, SWEEPS};

const ROUND_ROBIN: Arm = Arm::Policy(Policy::RoundRobin);
const LEAST_REQUEST: Arm = Arm::Policy(Policy::LeastRequest);
const CLASSIC: Arm = Arm::Policy(Policy::PrefixAffinity);
const PRODUCT: Arm = Arm::Policy(Policy::KvCost);
const BASELINES: [Arm; 6] = [
    ROUND_ROBIN,
    LEAST_REQUEST,
    CLASSIC,
    Arm::Policy(Policy::Random),
    Arm::Policy(Policy::ConsistentHash),
    Arm::Policy(Policy::Session),
];

/// On which side of its bound a value has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// At most the bound.
    AtMost,
    /// At least the bound.
    AtLeast,
}

/// One bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The scenario.
    pub scenario: String,
    /// What is bounded.
    pub what: String,
    /// Its value for each seed.
    pub values: Vec<f64>,
    /// On which side.
    pub sense: Sense,
    /// The bound, for the mean of the values.
    pub bound: f64,
}

impl Check {
    /// Whether the mean of the values is on the right side.
    #[must_use]
    pub fn is_met(&self) -> bool {
        let mean = mean(&self.values);
        match self.sense {
            Sense::AtMost => mean <= self.bound,
            Sense::AtLeast => mean >= self.bound,
        }
    }

    /// Position of the seed with the worst value.
    #[must_use]
    pub fn worst(&self) -> usize {
        let badness = |value: f64| match self.sense {
            Sense::AtMost => value,
            Sense::AtLeast => -value,
        };
        let mut worst = 0;
        for (index, &value) in self.values.iter().enumerate() {
            if badness(value) > badness(self.values[worst]) {
                worst = index;
            }
        }
        worst
    }
}

/// A group of checks under one heading.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// What is claimed.
    pub claim: &'static str,
    /// Its bounds.
    pub checks: Vec<Check>,
}

struct Judge<'a> {
    results: &'a Results,
    checks: Vec<Check>,
}

const P50: Figure = |figures| figures.ttft.p50_ms;
const P90: Figure = |figures| figures.ttft.p90_ms;
const P99: Figure = |figures| figures.ttft.p99_ms;
const MEAN: Figure = |figures| figures.ttft.mean_ms;
const CACHED: Figure = |figures| figures.cached_share;
const RATE: Figure = |figures| figures.requests_per_s;

impl Judge<'_> {
    fn value(&mut self, scenario: &str, what: &str, figure: Figure, sense: Sense, bound: f64) {
        self.checks.push(Check {
            scenario: scenario.to_owned(),
            what: what.to_owned(),
            values: self.results.each(scenario, PRODUCT, figure),
            sense,
            bound,
        });
    }

    /// The product's figure over another arm's.
    fn ratio(
        &mut self,
        scenario: &str,
        (what, figure): (&str, Figure),
        other: Arm,
        sense: Sense,
        bound: f64,
    ) {
        let what = format!("{what} over that of {}", other.name());
        self.ratio_to(scenario, (&what, figure), (scenario, other), sense, bound);
    }

    /// The product's figure over that of an arm in another scenario with the same requests.
    fn ratio_to(
        &mut self,
        scenario: &str,
        (what, figure): (&str, Figure),
        (other_scenario, other): (&str, Arm),
        sense: Sense,
        bound: f64,
    ) {
        let ours = self.results.each(scenario, PRODUCT, figure);
        let theirs = self.results.each(other_scenario, other, figure);
        self.checks.push(Check {
            scenario: scenario.to_owned(),
            what: what.to_owned(),
            values: ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect(),
            sense,
            bound,
        });
    }

    fn group(&mut self, claim: &'static str) -> Group {
        Group { claim, checks: std::mem::take(&mut self.checks) }
    }
}

/// Judges everything.
#[must_use]
pub fn all(results: &Results) -> Vec<Group> {
    let mut judge = Judge { results, checks: Vec::new() };
    vec![
        fitted(&mut judge),
        evicting(&mut judge),
        roomy(&mut judge),
        shared(&mut judge),
        dominated(&mut judge),
        churn(&mut judge),
        sweep(&mut judge),
        traces(&mut judge),
        sizes(&mut judge),
        unique(&mut judge),
        burst(&mut judge),
        envoys(&mut judge),
    ]
}

fn fitted(judge: &mut Judge<'_>) -> Group {
    for users in [10, 20, 30] {
        let name = format!("13b-fitted-{users}");
        judge.value(&name, "cached share", CACHED, Sense::AtLeast, 0.95);
        for arm in [ROUND_ROBIN, LEAST_REQUEST] {
            judge.ratio(&name, ("P99 TTFT", P99), arm, Sense::AtMost, 0.15);
        }
        judge.ratio(&name, ("P99 TTFT", P99), Arm::Oracle, Sense::AtMost, 1.10);
    }
    for arm in [ROUND_ROBIN, LEAST_REQUEST] {
        judge.ratio("13b-fitted-30", ("requests/s", RATE), arm, Sense::AtLeast, 1.15);
    }
    judge.group("Documents that fit: as good as knowing every cache")
}

fn evicting(judge: &mut Judge<'_>) -> Group {
    for users in [10, 20] {
        let name = format!("13b-evicting-{users}");
        judge.ratio(&name, ("P99 TTFT", P99), LEAST_REQUEST, Sense::AtMost, 0.70);
        judge.ratio(&name, ("P99 TTFT", P99), Arm::NoResidency, Sense::AtMost, 0.43);
        judge.ratio(&name, ("cached share", CACHED), ROUND_ROBIN, Sense::AtLeast, 4.5);
        judge.ratio(&name, ("P99 TTFT", P99), Arm::Oracle, Sense::AtMost, 1.10);
    }
    judge.group("Documents that do not fit: no worse than balancing, unlike history")
}

fn roomy(judge: &mut Judge<'_>) -> Group {
    let name = "8b-50-documents";
    judge.value(name, "cached share", CACHED, Sense::AtLeast, 0.97);
    for arm in [ROUND_ROBIN, LEAST_REQUEST] {
        judge.ratio(name, ("P99 TTFT", P99), arm, Sense::AtMost, 0.10);
    }
    judge.group("Memory for all documents, but not on every engine")
}

fn shared(judge: &mut Judge<'_>) -> Group {
    for percent in [50, 70, 90] {
        let name = format!("8b-shared-{percent}");
        judge.value(&name, "requests that hit", |f| f.hit_share, Sense::AtLeast, 0.91);
    }
    judge.group("From half to nearly all of the prompts shared between users")
}

fn dominated(judge: &mut Judge<'_>) -> Group {
    let name = "8b-dominated";
    judge.ratio(name, ("P99 TTFT", P99), LEAST_REQUEST, Sense::AtMost, 1.05);
    judge.value(name, "cached share", CACHED, Sense::AtLeast, 0.90);
    judge.group("One system prompt dominates: no hot spot")
}

fn churn(judge: &mut Judge<'_>) -> Group {
    judge.ratio("8b-churn", ("P99 TTFT", P99), LEAST_REQUEST, Sense::AtMost, 0.45);
    judge.ratio("8b-churn", ("P99 TTFT", P99), CLASSIC, Sense::AtMost, 1.0);
    judge.group("Documents that come and go")
}

/// Where the residency estimate cuts the tail by as much as the published comparison did, it must
/// leave the median alone; elsewhere it must do no harm.
fn sweep(judge: &mut Judge<'_>) -> Group {
    let names: Vec<String> = SWEEPS
        .into_iter()
        .flat_map(|sweep| SWEEP_KV_TOKENS.map(|kv_tokens| sweep.scenario(kv_tokens)))
        .collect();
    for name in &names {
        judge.ratio(name, ("P50 TTFT", P50), Arm::NoResidency, Sense::AtMost, 1.01);
        judge.ratio(name, ("P99 TTFT", P99), Arm::NoResidency, Sense::AtMost, 1.02);
    }
    let best = names.iter().min_by(|a, b| {
        let gain = |name: &str| {
            let of = |arm| judge.results.mean(name, arm, P99);
            of(PRODUCT) / of(Arm::NoResidency)
        };
        gain(a).total_cmp(&gain(b))
    });
    if let Some(best) = best {
        judge.ratio(best, ("P99 TTFT", P99), Arm::NoResidency, Sense::AtMost, 0.43);
    }
    judge.group("Residency on against off, from little memory to plenty")
}

fn traces(judge: &mut Judge<'_>) -> Group {
    for trace in ["conversation", "synthetic"] {
        for backends in [4, 8, 16] {
            let name = format!("mooncake-{trace}-{backends}");
            judge.ratio(&name, ("cached share", CACHED), Arm::Oracle, Sense::AtLeast, 0.95);
            for arm in BASELINES {
                judge.ratio(&name, ("P99 TTFT", P99), arm, Sense::AtMost, 1.0);
            }
        }
    }
    judge.group("Recorded traffic: beaten by no baseline")
}

fn sizes(judge: &mut Judge<'_>) -> Group {
    let long: Figure = |figures| figures.ttft_extra_large.p50_ms;
    for arm in [ROUND_ROBIN, LEAST_REQUEST] {
        judge.ratio("70b-50-documents", ("P50 of long prompts", long), arm, Sense::AtMost, 0.60);
        judge.ratio("70b-50-documents", ("requests/s", RATE), arm, Sense::AtLeast, 0.99);
    }
    for (what, figure) in [("mean TTFT", MEAN), ("P50 TTFT", P50), ("P99 TTFT", P99)] {
        judge.ratio("1b-50-documents", (what, figure), LEAST_REQUEST, Sense::AtMost, 1.0);
    }
    judge.ratio("1b-50-documents", ("requests/s", RATE), LEAST_REQUEST, Sense::AtLeast, 0.999);
    judge.group("Large and small models, routing time included")
}

fn unique(judge: &mut Judge<'_>) -> Group {
    let figures: [(&str, Figure); 6] = [
        ("P50 TTFT", P50),
        ("P90 TTFT", P90),
        ("P99 TTFT", P99),
        ("P50 TPOT", |figures| figures.tpot.p50_ms),
        ("P90 TPOT", |figures| figures.tpot.p90_ms),
        ("P99 TPOT", |figures| figures.tpot.p99_ms),
    ];
    for named in figures {
        judge.ratio("8b-unique", named, LEAST_REQUEST, Sense::AtMost, 1.01);
    }
    let latency: Figure = |figures| figures.latency.p50_ms;
    judge.ratio(
        "8b-unique",
        ("P50 to the last token", latency),
        LEAST_REQUEST,
        Sense::AtMost,
        1.01,
    );
    judge.ratio("8b-unique", ("requests/s", RATE), LEAST_REQUEST, Sense::AtLeast, 0.99);
    judge.group("Nothing to reuse: as good as balancing")
}

fn burst(judge: &mut Judge<'_>) -> Group {
    for name in ["8b-burst", "8b-burst-busy"] {
        let backends: Figure = |figures| figures.burst_backends as f64;
        judge.value(name, "backends that compute it", backends, Sense::AtMost, 2.0);
        judge.ratio(name, ("P99 TTFT", P99), LEAST_REQUEST, Sense::AtMost, 1.0);
    }
    judge.group("A hundred identical new prompts at once")
}

/// Where prefixes pay, eight Envoys are to do as one does; where nothing is shared, no worse than several that
/// balance each for itself.
fn envoys(judge: &mut Judge<'_>) -> Group {
    for peers in ENVOYS.map(Envoys::Peers) {
        for traffic in ["8b-churn", "13b-evicting"] {
            let (name, one) = (peers.scenario(traffic), Envoys::One.scenario(traffic));
            let cached = ("cached share over that of one Envoy", CACHED);
            judge.ratio_to(&name, cached, (&one, PRODUCT), Sense::AtLeast, 0.95);
            let p99 = ("P99 TTFT over that of one Envoy", P99);
            judge.ratio_to(&name, p99, (&one, PRODUCT), Sense::AtMost, 1.15);
        }
    }
    for count in ENVOYS {
        let name = Envoys::Peers(count).scenario("8b-unique");
        let strangers = Envoys::Strangers(count).scenario("8b-unique");
        for (what, figure) in [("P50 TTFT", P50), ("P99 TTFT", P99)] {
            let what = format!("{what} over that of least_request");
            let other = (strangers.as_str(), LEAST_REQUEST);
            judge.ratio_to(&name, (&what, figure), other, Sense::AtMost, 1.0);
        }
    }
    judge.group("Several Envoys that tell each other what they do: as one")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: &[f64], sense: Sense) -> Check {
        Check {
            scenario: String::new(),
            what: String::new(),
            values: values.to_vec(),
            sense,
            bound: 1.0,
        }
    }

    #[test]
    fn a_bound_is_for_the_mean_and_the_worst_seed_is_named() {
        assert!(check(&[0.5, 1.2], Sense::AtMost).is_met());
        assert!(!check(&[0.5, 1.6], Sense::AtMost).is_met());
        assert!(check(&[1.6, 0.5], Sense::AtLeast).is_met());
        assert_eq!(check(&[0.5, 1.6, 1.0], Sense::AtMost).worst(), 1);
        assert_eq!(check(&[0.5, 1.6, 1.0], Sense::AtLeast).worst(), 0);
        assert!(!check(&[], Sense::AtMost).is_met(), "what was not run is not shown");
    }
}
