//! Scenarios: a fleet and its traffic under one name.

use std::path::{Path, PathBuf};

use warmpath_engine_sim::model::{Profile, ProfileError};

use crate::workload::trace::{TraceError, read_mooncake};
use crate::workload::{
    Open, OpenSpec, Pool, Prompts, Stress, StressSpec, Talk, TalkSpec, Workload,
};

/// What the users do.
#[derive(Clone, Debug, PartialEq)]
pub enum Traffic {
    /// The closed-loop stress mix.
    Stress(StressSpec),
    /// A Poisson stream, with or without bursts.
    Open(OpenSpec),
    /// Conversations.
    Talk(TalkSpec),
    /// A trace in Mooncake's format.
    Mooncake {
        /// The file.
        file: PathBuf,
        /// How much faster than recorded it is played.
        speed: f64,
        /// Its length at that speed, in seconds.
        duration_s: f64,
    },
}

/// A fleet and its traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name in reports and on the command line.
    pub name: String,
    /// The engines' profile.
    pub profile: Profile,
    /// How many engines.
    pub backends: usize,
    /// How many of them take twice as long for every step.
    pub slow_backends: usize,
    /// What the users do.
    pub traffic: Traffic,
}

impl Scenario {
    /// How long the users go on, in seconds.
    #[must_use]
    pub fn duration_s(&self) -> f64 {
        match &self.traffic {
            Traffic::Stress(spec) => spec.duration_s,
            Traffic::Open(spec) => spec.duration_s,
            Traffic::Talk(spec) => spec.duration_s,
            Traffic::Mooncake { duration_s, .. } => *duration_s,
        }
    }

    /// The workload with this seed.
    ///
    /// # Errors
    /// When a trace cannot be read.
    pub fn workload(&self, seed: u64) -> Result<Box<dyn Workload>, TraceError> {
        Ok(match &self.traffic {
            Traffic::Stress(spec) => Box::new(Stress::new(*spec, seed)),
            Traffic::Open(spec) => Box::new(Open::poisson(spec, seed)),
            Traffic::Talk(spec) => Box::new(Talk::new(*spec, seed)),
            Traffic::Mooncake { file, speed, .. } => {
                Box::new(Open::new(read_mooncake(file, *speed)?))
            }
        })
    }
}

/// The stress mix of the published runs: 20 users for 30 minutes.
const STRESS: StressSpec = StressSpec {
    users: 20,
    documents: 16,
    document_tokens: (2_000, 4_000),
    pool: Pool::Fixed,
    shared_documents: 1.0,
    shared_systems: 0.9,
    output_tokens: 100,
    duration_s: 1_800.0,
};

/// More documents than the fleet's caches hold, at 13B.
const EVICTING: StressSpec =
    StressSpec { documents: 50, document_tokens: (2_000, 8_000), ..STRESS };

const CHURN: StressSpec = StressSpec {
    users: 60,
    documents: 200,
    pool: Pool::Churn { window: 24, advance: 8, every_s: 20.0, fillers: 0.1 },
    output_tokens: 400,
    ..EVICTING
};

const CHATS: TalkSpec = TalkSpec {
    rate_per_s: 2.0,
    prefixes: 20,
    prefix_tokens: (500, 1_500),
    turns: (2, 10),
    added_tokens: (50, 400),
    output_tokens: (50, 300),
    wait_s: 10.0,
    duration_s: 900.0,
};

const AGENTS: TalkSpec = TalkSpec {
    rate_per_s: 1.0,
    prefixes: 12,
    prefix_tokens: (4_000, 8_000),
    turns: (5, 20),
    added_tokens: (100, 800),
    output_tokens: (30, 80),
    wait_s: 1.5,
    duration_s: 900.0,
};

const UNIQUE: OpenSpec = OpenSpec {
    prompts: Prompts::Unique { tokens: (500, 4_000) },
    rate_per_s: 10.0,
    output_tokens: (50, 250),
    burst_requests: 0,
    burst_tokens: 0,
    burst_every_s: 60.0,
    duration_s: 900.0,
};

const DOMINATED: OpenSpec = OpenSpec {
    prompts: Prompts::Dominated { system_tokens: 3_000, question_tokens: (50, 400) },
    rate_per_s: 25.0,
    ..UNIQUE
};

/// Directory of the committed traces.
#[must_use]
pub fn traces_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")
}

/// All scenarios that are judged.
///
/// # Errors
/// When a profile is not known to the engine model.
pub fn all() -> Result<Vec<Scenario>, ProfileError> {
    let p1 = Profile::named("a100-1b")?;
    let p8 = Profile::named("a100-8b")?;
    let p13 = Profile::named("a100-13b")?;
    let p70 = Profile::named("a100-70b")?;
    // Half of a card's memory given to the engine, as in the published residency comparison.
    let p8_small = Profile { kv_tokens: 40_000, ..p8.clone() };
    let mut all = Vec::new();
    let mut add = |name: &str, profile: &Profile, backends: usize, traffic: Traffic| {
        all.push(Scenario {
            name: name.to_owned(),
            profile: profile.clone(),
            backends,
            slow_backends: if name.contains("uneven") { backends / 2 } else { 0 },
            traffic,
        });
    };
    for users in [10, 20, 30] {
        let spec = StressSpec { users, ..STRESS };
        add(&format!("13b-fitted-{users}u"), &p13, 8, Traffic::Stress(spec));
    }
    for users in [10, 20] {
        let spec = StressSpec { users, ..EVICTING };
        add(&format!("13b-evicting-{users}u"), &p13, 8, Traffic::Stress(spec));
    }
    add("8b-50-documents", &p8, 8, Traffic::Stress(EVICTING));
    for percent in [50, 70, 90] {
        let share = f64::from(percent) / 100.0;
        let spec = StressSpec {
            documents: 5,
            shared_documents: share,
            shared_systems: share,
            ..EVICTING
        };
        add(&format!("8b-shared-{percent}"), &p8, 8, Traffic::Stress(spec));
    }
    add("8b-dominated", &p8, 8, Traffic::Open(DOMINATED));
    add("8b-churn", &p8_small, 8, Traffic::Stress(CHURN));
    for (trace, length_s) in [("conversation", 1_872.0), ("synthetic", 1_022.0)] {
        for backends in [4, 8, 16] {
            let speed = f64::from(backends) / 8.0;
            let traffic = Traffic::Mooncake {
                file: traces_dir().join(format!("mooncake_{trace}.jsonl.gz")),
                speed,
                duration_s: length_s / speed,
            };
            add(&format!("mooncake-{trace}-{backends}"), &p8, backends as usize, traffic);
        }
    }
    add("70b-50-documents", &p70, 4, Traffic::Stress(StressSpec { users: 16, ..EVICTING }));
    add("1b-50-documents", &p1, 8, Traffic::Stress(EVICTING));
    add("8b-unique", &p8, 8, Traffic::Open(UNIQUE));
    let burst = OpenSpec { burst_requests: 100, burst_tokens: 3_000, ..UNIQUE };
    add("8b-uneven-unique", &p8, 8, Traffic::Open(OpenSpec { rate_per_s: 6.0, ..UNIQUE }));
    add("8b-uneven-churn", &p8_small, 8, Traffic::Stress(StressSpec { users: 40, ..CHURN }));
    add("8b-uneven-agents", &p8, 8, Traffic::Talk(AGENTS));
    add("8b-burst", &p8, 8, Traffic::Open(OpenSpec { rate_per_s: 0.0, ..burst }));
    add("8b-burst-busy", &p8, 8, Traffic::Open(burst));
    add("8b-chats", &p8, 8, Traffic::Talk(CHATS));
    add("8b-agents", &p8, 8, Traffic::Talk(AGENTS));
    Ok(all)
}
