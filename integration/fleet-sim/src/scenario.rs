//! Scenarios: a fleet and its traffic under one name.

use std::path::{Path, PathBuf};
use std::time::Duration;

use warmpath_engine_sim::model::{Profile, ProfileError};

use crate::workload::trace::{self, TraceError, TraceFormat};
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
    /// A trace.
    Trace {
        /// The file.
        file: PathBuf,
        /// Its format.
        format: TraceFormat,
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
    /// KV memory that the core is told of; `None` leaves it to learn.
    pub told_kv_tokens: Option<u32>,
    /// How many Envoys.
    pub envoys: usize,
    /// How often Envoys tell each other what they do; `None` if never.
    pub told_every: Option<Duration>,
    /// Worker VMs in each.
    pub workers: usize,
    /// What the users do.
    pub traffic: Traffic,
}

impl Scenario {
    /// One Envoy with two workers before `backends` equal engines.
    #[must_use]
    pub fn new(name: &str, profile: &Profile, backends: usize, traffic: Traffic) -> Self {
        Self {
            name: name.to_owned(),
            profile: profile.clone(),
            backends,
            slow_backends: 0,
            told_kv_tokens: Some(profile.kv_tokens),
            envoys: 1,
            told_every: None,
            workers: 2,
            traffic,
        }
    }

    /// How long the users go on, in seconds.
    #[must_use]
    pub fn duration_s(&self) -> f64 {
        match &self.traffic {
            Traffic::Stress(spec) => spec.duration_s,
            Traffic::Open(spec) => spec.duration_s,
            Traffic::Talk(spec) => spec.duration_s,
            Traffic::Trace { duration_s, .. } => *duration_s,
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
            Traffic::Trace { file, format, speed, .. } => {
                Box::new(Open::new(trace::read(file, *format, *speed)?))
            }
        })
    }
}

/// The stress mix of the published runs: 20 users for 30 minutes.
const STRESS: StressSpec = StressSpec {
    users: 20,
    rate_per_s: None,
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

/// The same questions in an open loop, at the rate at which 20 users asked them.
const OPEN: StressSpec = StressSpec { rate_per_s: Some(8.0), ..EVICTING };

const SHORT: StressSpec = StressSpec { duration_s: 900.0, ..OPEN };

const CHURN: StressSpec = StressSpec {
    users: 60,
    documents: 200,
    pool: Pool::Churn { window: 24, advance: 8, every_s: 20.0, fillers: 0.1 },
    output_tokens: 400,
    duration_s: 900.0,
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
    duration_s: 600.0,
};

const AGENTS: TalkSpec = TalkSpec {
    rate_per_s: 1.0,
    prefixes: 12,
    prefix_tokens: (4_000, 8_000),
    turns: (5, 20),
    added_tokens: (100, 800),
    output_tokens: (30, 80),
    wait_s: 1.5,
    duration_s: 600.0,
};

const UNIQUE: OpenSpec = OpenSpec {
    prompts: Prompts::Unique { tokens: (500, 4_000) },
    rate_per_s: 10.0,
    output_tokens: (50, 250),
    burst_requests: 0,
    burst_tokens: 0,
    burst_every_s: 60.0,
    duration_s: 600.0,
};

const DOMINATED: OpenSpec = OpenSpec {
    prompts: Prompts::Dominated { system_tokens: 3_000, question_tokens: (50, 400) },
    rate_per_s: 25.0,
    ..UNIQUE
};

/// A hundred identical new prompts at once, each minute, on an idle fleet.
const BURST: OpenSpec =
    OpenSpec { rate_per_s: 0.0, burst_requests: 100, burst_tokens: 3_000, ..UNIQUE };

/// KV memory of the residency sweeps, in tokens: from a few percent of the documents that are asked
/// about to all of them on each engine.
pub const SWEEP_KV_TOKENS: [u32; 6] = [11_648, 20_000, 30_000, 40_000, 60_000, 142_144];

/// A sweep over KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// 50 documents, 13B.
    Fixed,
    /// Documents that come and go, 8B.
    Churn,
}

/// All of them.
pub const SWEEPS: [Sweep; 2] = [Sweep::Fixed, Sweep::Churn];

impl Sweep {
    /// What names of its scenarios begin with.
    fn prefix(self) -> &'static str {
        match self {
            Self::Fixed => "13b-memory-",
            Self::Churn => "8b-memory-",
        }
    }

    /// The sweep that a scenario of this name belongs to.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        SWEEPS.into_iter().find(|sweep| name.starts_with(sweep.prefix()))
    }

    /// The name of its scenario with this much memory.
    #[must_use]
    pub fn scenario(self, kv_tokens: u32) -> String {
        format!("{}{kv_tokens}", self.prefix())
    }
}

/// Traffic before which there are one or several Envoys.
pub const SHARED_TRAFFIC: [&str; 3] = ["8b-churn", "13b-evicting", "8b-unique"];

/// Numbers of Envoys where there are several.
pub const ENVOYS: [usize; 3] = [2, 4, 8];

/// How often they tell each other what they do: the filter's default.
const TOLD_EVERY: Duration = Duration::from_millis(50);

/// The Envoys before a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Envoys {
    /// One.
    One,
    /// Several that tell each other what they do.
    Peers(usize),
    /// Several that tell each other nothing.
    Strangers(usize),
}

impl Envoys {
    /// One, and each number of them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let several =
            ENVOYS.into_iter().flat_map(|count| [Self::Strangers(count), Self::Peers(count)]);
        std::iter::once(Self::One).chain(several).collect()
    }

    /// The name of the scenario with this traffic.
    #[must_use]
    pub fn scenario(self, traffic: &str) -> String {
        match self {
            Self::One => format!("{traffic}-1-envoy"),
            Self::Peers(count) => format!("{traffic}-{count}-peers"),
            Self::Strangers(count) => format!("{traffic}-{count}-strangers"),
        }
    }

    /// Whether a scenario of this name is one of these.
    #[must_use]
    pub fn are_in(name: &str) -> bool {
        ["-1-envoy", "-peers", "-strangers"].iter().any(|end| name.ends_with(end))
    }

    fn before(self, traffic: &Scenario) -> Scenario {
        let (envoys, told_every) = match self {
            Self::One => (1, None),
            Self::Peers(count) => (count, Some(TOLD_EVERY)),
            Self::Strangers(count) => (count, None),
        };
        Scenario { name: self.scenario(&traffic.name), envoys, told_every, ..traffic.clone() }
    }
}

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
    let stress = Traffic::Stress;
    for users in [10, 20, 30] {
        let spec = StressSpec { users, ..STRESS };
        all.push(Scenario::new(&format!("13b-fitted-{users}"), &p13, 8, stress(spec)));
    }
    for users in [10, 20] {
        let spec = StressSpec { users, ..EVICTING };
        all.push(Scenario::new(&format!("13b-evicting-{users}"), &p13, 8, stress(spec)));
    }
    all.push(Scenario::new("8b-50-documents", &p8, 8, stress(OPEN)));
    for percent in [50, 70, 90] {
        let shared = f64::from(percent) / 100.0;
        let spec =
            StressSpec { documents: 5, shared_documents: shared, shared_systems: shared, ..SHORT };
        all.push(Scenario::new(&format!("8b-shared-{percent}"), &p8, 8, stress(spec)));
    }
    all.push(Scenario::new("8b-dominated", &p8, 8, Traffic::Open(DOMINATED)));
    all.push(Scenario::new("8b-churn", &p8_small, 8, stress(CHURN)));
    all.extend(memory(&p8, &p13));
    all.extend(traces(&p8));
    let spec = StressSpec { users: 16, rate_per_s: Some(2.5), ..EVICTING };
    all.push(Scenario::new("70b-50-documents", &p70, 4, stress(spec)));
    let spec = StressSpec { rate_per_s: Some(11.0), ..SHORT };
    all.push(Scenario::new("1b-50-documents", &p1, 8, stress(spec)));
    all.push(Scenario::new("8b-unique", &p8, 8, Traffic::Open(UNIQUE)));
    all.push(Scenario::new("8b-burst", &p8, 8, Traffic::Open(BURST)));
    let busy = OpenSpec { rate_per_s: UNIQUE.rate_per_s, ..BURST };
    all.push(Scenario::new("8b-burst-busy", &p8, 8, Traffic::Open(busy)));
    all.push(Scenario::new("8b-chats", &p8, 8, Traffic::Talk(CHATS)));
    all.push(Scenario::new("8b-agents", &p8, 8, Traffic::Talk(AGENTS)));
    all.extend(variations(&p8, &p8_small, &p13));
    Ok(all)
}

fn memory(p8: &Profile, p13: &Profile) -> Vec<Scenario> {
    let mut all = Vec::new();
    for kv_tokens in SWEEP_KV_TOKENS {
        for sweep in SWEEPS {
            let (profile, spec) = match sweep {
                Sweep::Fixed => (p13, EVICTING),
                Sweep::Churn => (p8, StressSpec { users: 40, output_tokens: 100, ..CHURN }),
            };
            let profile = Profile { kv_tokens, ..profile.clone() };
            let traffic = Traffic::Stress(StressSpec { duration_s: 600.0, ..spec });
            all.push(Scenario::new(&sweep.scenario(kv_tokens), &profile, 8, traffic));
        }
    }
    all
}

/// The committed traces, on fleets of three sizes, each with the same load a backend.
fn traces(profile: &Profile) -> Vec<Scenario> {
    let mut all = Vec::new();
    for (trace, length_s) in [("conversation", 1_872.1), ("synthetic", 1_022.1)] {
        for backends in [4, 8, 16] {
            let speed = f64::from(backends) / 8.0;
            let traffic = Traffic::Trace {
                file: traces_dir().join(format!("mooncake_{trace}.jsonl.gz")),
                format: TraceFormat::Mooncake,
                speed,
                duration_s: length_s / speed,
            };
            let name = format!("mooncake-{trace}-{backends}");
            all.push(Scenario::new(&name, profile, backends as usize, traffic));
        }
    }
    all
}

/// What the core is not told, or told wrongly.
fn variations(p8: &Profile, p8_small: &Profile, p13: &Profile) -> Vec<Scenario> {
    let slow_unique = Traffic::Open(OpenSpec { rate_per_s: 6.0, ..UNIQUE });
    let churn = Traffic::Stress(StressSpec { users: 40, ..CHURN });
    let evicting = Traffic::Stress(StressSpec { users: 20, duration_s: 900.0, ..EVICTING });
    let mut all = vec![
        Scenario { slow_backends: 4, ..Scenario::new("8b-uneven-unique", p8, 8, slow_unique) },
        Scenario {
            slow_backends: 4,
            ..Scenario::new("8b-uneven-churn", p8_small, 8, churn.clone())
        },
    ];
    for (name, told_kv_tokens) in [
        ("13b-told-nothing", None),
        ("13b-told-half", Some(p13.kv_tokens / 2)),
        ("13b-told-double", Some(p13.kv_tokens * 2)),
    ] {
        let scenario = Scenario::new(name, p13, 8, evicting.clone());
        all.push(Scenario { told_kv_tokens, ..scenario });
    }
    let unique = Traffic::Open(UNIQUE);
    for (name, profile, traffic) in
        [("8b-churn", p8_small, churn), ("13b-evicting", p13, evicting), ("8b-unique", p8, unique)]
    {
        let traffic = Scenario::new(name, profile, 8, traffic);
        all.extend(Envoys::all().into_iter().map(|envoys| envoys.before(&traffic)));
    }
    all
}
