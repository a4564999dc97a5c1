//! What a fleet of other size or policy would have made of recorded traffic.
//!
//! In: a trace, a profile, numbers of GPUs and a goal for the P99 of the time to the first token.
//! Out: each policy's figures on each fleet, and the smallest fleet that meets the goal.

use std::path::{Path, PathBuf};

use warmpath_core::config::Policy;
use warmpath_engine_sim::model::Profile;

use crate::arm::Arm;
use crate::batch::{Job, JobError, run_all};
use crate::measure::Figures;
use crate::scenario::{Scenario, Traffic};
use crate::workload::trace::{self, TraceError, TraceFormat};

/// The policies that a user can choose.
pub const POLICIES: [Arm; 6] = [
    Arm::Policy(Policy::RoundRobin),
    Arm::Policy(Policy::LeastRequest),
    Arm::Policy(Policy::ConsistentHash),
    Arm::Policy(Policy::Session),
    Arm::Policy(Policy::PrefixAffinity),
    Arm::Policy(Policy::KvCost),
];

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The recorded traffic.
    pub trace: PathBuf,
    /// What each GPU (or group of GPUs that serves as one engine) can do.
    pub profile: Profile,
    /// Fleet sizes to try.
    pub gpus: Vec<usize>,
    /// How much faster than recorded the traffic comes.
    pub speed: f64,
    /// The seed.
    pub seed: u64,
}

/// One fleet under one policy.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The fleet's size.
    pub gpus: usize,
    /// The policy.
    pub arm: Arm,
    /// What users would have seen.
    pub figures: Figures,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfError {
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A run.
    #[error(transparent)]
    Job(#[from] JobError),
}

/// Simulates every fleet under every policy, by size and then by policy.
///
/// # Errors
/// [`WhatIfError`] when the trace cannot be read or a run fails.
pub fn answer(question: &Question) -> Result<Vec<Answer>, WhatIfError> {
    let format = TraceFormat::of(&question.trace)?;
    let duration_s = duration_s(&question.trace, format, question.speed)?;
    let mut jobs = Vec::new();
    for &gpus in &question.gpus {
        for arm in POLICIES {
            let traffic = Traffic::Trace {
                file: question.trace.clone(),
                format,
                speed: question.speed,
                duration_s,
            };
            let scenario = Scenario::new("what-if", &question.profile, gpus, traffic);
            jobs.push(Job { scenario, arm, seed: question.seed });
        }
    }
    let figures = run_all(&jobs, &|_| {})?;
    Ok(jobs
        .into_iter()
        .zip(figures)
        .map(|(job, figures)| Answer { gpus: job.scenario.backends, arm: job.arm, figures })
        .collect())
}

fn duration_s(path: &Path, format: TraceFormat, speed: f64) -> Result<f64, TraceError> {
    let arrivals = trace::read(path, format, speed)?;
    let last = arrivals.iter().map(|arrival| arrival.at).max().unwrap_or_default();
    // A trace of one moment lasts a second, so that rates are finite.
    Ok(last.as_secs_f64().max(1.0))
}

/// The smallest fleet that meets the goal under `arm`, all requests served.
#[must_use]
pub fn smallest(answers: &[Answer], arm: Arm, ttft_goal_ms: f64) -> Option<usize> {
    answers
        .iter()
        .filter(|answer| answer.arm == arm)
        .filter(|answer| answer.figures.ttft.p99_ms <= ttft_goal_ms)
        .map(|answer| answer.gpus)
        .min()
}
