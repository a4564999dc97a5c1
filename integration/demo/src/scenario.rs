//! The demo's traffic and why it is what it is.
//!
//! Eight A100 with a 13B model hold 11,648 KV tokens each, 93,184 in all. Fourteen shared prefixes of
//! 2,800 to 3,600 tokens, about 45,000 together, fit into half of the fleet's memory and into no
//! single GPU's, so where a request goes decides whether its prefix is there. A fifth of the requests are
//! turns of chats, each of which repeats everything said before.
//!
//! The rate keeps the GPUs at a utilisation at which each policy can serve everything: no policy's tail
//! is that of a queue that grows without end.

use std::time::Duration;

use warmpath_harness::workload::{Chats, SharedPrefixes, Workload, WorkloadSpec};

/// Engines, one GPU each.
pub const ENGINES: usize = 8;
/// What each engine is.
pub const PROFILE: &str = "a100-13b";
/// KV tokens of each engine, by that profile.
pub const KV_TOKENS: u32 = 11_648;
/// Engine time over wall time.
pub const SPEED: f64 = 6.0;
/// Seconds of traffic, in engine time.
pub const DURATION_S: u64 = 240;

const PREFIXES: u32 = 14;
const PREFIX_TOKENS_MIN: u32 = 2_800;
const PREFIX_TOKENS_MAX: u32 = 3_600;

/// What varies from run to run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Length of the traffic, in engine time.
    pub duration: Duration,
    /// Engine time over wall time.
    pub speed: f64,
    /// The seed of the traffic.
    pub seed: u64,
}

impl Scenario {
    /// The traffic's specification.
    pub fn workload(&self) -> WorkloadSpec {
        WorkloadSpec {
            seed: self.seed,
            duration: self.duration,
            shared: SharedPrefixes {
                count: PREFIXES,
                prefix_tokens: PREFIX_TOKENS_MIN..=PREFIX_TOKENS_MAX,
                question_tokens: 20..=80,
                requests_per_s: 6.0,
            },
            chats: Chats {
                chats_per_s: 0.4,
                turns: 3..=5,
                opening_tokens: 200..=600,
                message_tokens: 20..=80,
                turn_gap_s: 6.0..=15.0,
            },
            output_tokens: 40..=120,
        }
    }

    /// The scenario in words.
    pub fn describe(&self, workload: &Workload) -> String {
        let hot_tokens = u64::from(PREFIXES) * u64::from(PREFIX_TOKENS_MIN + PREFIX_TOKENS_MAX) / 2;
        let fleet_tokens = ENGINES as u64 * u64::from(KV_TOKENS);
        format!(
            "{ENGINES} simulated A100, a 13B model, {KV_TOKENS} KV tokens each ({fleet_tokens} in all).\n\
             {PREFIXES} shared prefixes, about {hot_tokens} tokens together, and multi-turn chats:\n\
             {} requests in {} s of GPU time, which here runs {} times as fast as the clock.",
            workload.requests(),
            self.duration.as_secs(),
            self.speed,
        )
    }
}
