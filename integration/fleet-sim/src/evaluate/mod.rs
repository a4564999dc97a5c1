//! The evaluation: every scenario under every arm that it is meant to tell apart.
//!
//! In: seeds. Out: [`Results`], from which [`checks`] judges, [`report`] writes and [`plot`] draws.

pub mod checks;
pub mod plot;
pub mod report;

use std::collections::BTreeMap;

use warmpath_core::config::Policy;

use crate::arm::{Arm, Term};
use crate::batch::{self, Job, JobError};
use crate::measure::Figures;
use crate::scenario::{Envoys, Scenario, Sweep};

/// The product and what it is held against in every scenario.
pub const MAIN: [Arm; 6] = [
    Arm::Policy(Policy::RoundRobin),
    Arm::Policy(Policy::LeastRequest),
    Arm::Policy(Policy::PrefixAffinity),
    Arm::NoResidency,
    Arm::Policy(Policy::KvCost),
    Arm::Oracle,
];

/// The other baselines, where sessions and prefixes differ enough for them.
const OTHERS: [Arm; 3] = [
    Arm::Policy(Policy::Random),
    Arm::Policy(Policy::ConsistentHash),
    Arm::Policy(Policy::Session),
];

/// The score without each of its terms.
pub const ABLATIONS: [Arm; 5] = [
    Arm::Without(Term::PendingPrefill),
    Arm::Without(Term::Uncached),
    Arm::Without(Term::Running),
    Arm::Without(Term::KvOverflow),
    Arm::Without(Term::Slowness),
];

/// Scenarios in which each term is taken away.
pub const ABLATED: [&str; 7] = [
    "13b-fitted-30",
    "13b-evicting-20",
    "8b-churn",
    "8b-dominated",
    "8b-unique",
    "8b-uneven-unique",
    "mooncake-synthetic-8",
];

/// The arms under which a scenario is run.
#[must_use]
pub fn arms(scenario: &Scenario) -> Vec<Arm> {
    let name = scenario.name.as_str();
    let least_request = Arm::Policy(Policy::LeastRequest);
    let product = Arm::Policy(Policy::KvCost);
    let mut arms = if Sweep::of(name).is_some() || name.starts_with("8b-uneven") {
        vec![least_request, Arm::NoResidency, product]
    } else if name.ends_with("-peers") {
        vec![product]
    } else if name.starts_with("13b-told") || Envoys::are_in(name) {
        vec![least_request, product]
    } else {
        MAIN.to_vec()
    };
    if name.starts_with("mooncake") || ["8b-chats", "8b-agents"].contains(&name) {
        arms.extend(OTHERS);
    }
    if ABLATED.contains(&name) {
        arms.extend(ABLATIONS.into_iter().filter(|arm| !arms.contains(arm)).collect::<Vec<_>>());
    }
    arms
}

/// Figures by scenario and arm, one for each seed.
#[derive(Clone, Debug, Default)]
pub struct Results {
    figures: BTreeMap<(String, &'static str), Vec<Figures>>,
    seeds: Vec<u64>,
}

impl Results {
    /// Runs everything.
    ///
    /// # Errors
    /// The first run that failed.
    pub fn run(
        scenarios: &[Scenario],
        seeds: &[u64],
        done: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self, JobError> {
        let mut jobs = Vec::new();
        for scenario in scenarios {
            for arm in arms(scenario) {
                jobs.extend(seeds.iter().map(|&seed| Job {
                    scenario: scenario.clone(),
                    arm,
                    seed,
                }));
            }
        }
        let figures = batch::run_all(&jobs, &|count| done(count, jobs.len()))?;
        let mut results = Self { figures: BTreeMap::new(), seeds: seeds.to_vec() };
        for (job, figures) in jobs.iter().zip(figures) {
            let key = (job.scenario.name.clone(), job.arm.name());
            results.figures.entry(key).or_default().push(figures);
        }
        Ok(results)
    }

    /// The seeds.
    #[must_use]
    pub fn seeds(&self) -> &[u64] {
        &self.seeds
    }

    /// Figures of a scenario under an arm, in the order of the seeds; empty if it was not run.
    #[must_use]
    pub fn of(&self, scenario: &str, arm: Arm) -> &[Figures] {
        self.figures.get(&(scenario.to_owned(), arm.name())).map_or(&[], Vec::as_slice)
    }

    /// One figure for each seed.
    #[must_use]
    pub fn each(&self, scenario: &str, arm: Arm, figure: Figure) -> Vec<f64> {
        self.of(scenario, arm).iter().map(figure).collect()
    }

    /// The mean of one figure; not a number if it was not run.
    #[must_use]
    pub fn mean(&self, scenario: &str, arm: Arm, figure: Figure) -> f64 {
        mean(&self.each(scenario, arm, figure))
    }
}

/// One of a run's figures.
pub type Figure = fn(&Figures) -> f64;

/// The mean; not a number of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
