//! Many runs at once, on all cores.
//!
//! In: jobs, each a scenario, an arm and a seed. Out: their figures, in the order of the jobs,
//! whatever order they ran in.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arm::Arm;
use crate::fleet::{self, FleetError, FleetSpec, Run};
use crate::measure::{Figures, figures};
use crate::scenario::Scenario;
use crate::workload::trace::TraceError;

/// One run to make.
#[derive(Clone, Debug)]
pub struct Job {
    /// What is simulated.
    pub scenario: Scenario,
    /// How it is routed.
    pub arm: Arm,
    /// The seed of everything random.
    pub seed: u64,
}

/// Why a run failed. The text has the command that replays it.
#[derive(Debug, thiserror::Error)]
#[error("{replay}: {error}")]
pub struct JobError {
    replay: String,
    error: RunError,
}

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Its fleet.
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

impl Job {
    /// Runs it.
    ///
    /// # Errors
    /// [`JobError`] with the command that replays it.
    pub fn run(&self) -> Result<Run, JobError> {
        self.try_run().map_err(|error| JobError { replay: self.replay(), error })
    }

    fn try_run(&self) -> Result<Run, RunError> {
        let scenario = &self.scenario;
        let spec = FleetSpec {
            profile: scenario.profile.clone(),
            backends: scenario.backends,
            slow_backends: scenario.slow_backends,
            told_kv_tokens: scenario.told_kv_tokens,
            envoys: scenario.envoys,
            told_every: scenario.told_every,
            workers: scenario.workers,
            arm: self.arm,
            seed: self.seed,
        };
        Ok(fleet::run(&spec, scenario.workload(self.seed)?.as_mut())?)
    }

    /// The command that makes this very run again.
    #[must_use]
    pub fn replay(&self) -> String {
        replay(&self.scenario.name, self.arm, self.seed)
    }
}

/// The command that makes one run again.
#[must_use]
pub fn replay(scenario: &str, arm: Arm, seed: u64) -> String {
    format!("warmpath-fleet run --workload {scenario} --policy {} --seed {seed}", arm.name())
}

/// Runs all jobs; `done` is told how many are done after each.
///
/// # Errors
/// The first failure in the order of the jobs.
pub fn run_all(jobs: &[Job], done: &(dyn Fn(usize) + Sync)) -> Result<Vec<Figures>, JobError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, job)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|at| Some((at, jobs.get(at)?)))
                {
                    let result = job.run().map(|run| figures(&run, job.scenario.duration_s()));
                    if let Ok(mut results) = results.lock() {
                        results.push((index, result));
                    }
                    done(finished.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
