//! Engines as processes, an Envoy in front of them, steady traffic, and something that happens.
//!
//! Each scenario is a function: in, how long its parts last; out, what the clients saw. Tests run them
//! short and judge what was lost; `warmpath-resilience` runs them long and measures.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use warmpath_harness::engines::EngineProcesses;
use warmpath_harness::fleet::Served;
use warmpath_harness::{Bootstrap, HarnessError, Variant};

use crate::bed::{Front, FrontOptions};
use crate::fleet::ID_HEADER;
use crate::poll;
use crate::steady::{Shot, Steady, Traffic};

/// The simulator's arguments: an 8B model on an A100, under the name that the requests ask for.
pub const ENGINE: [&str; 4] = ["--profile", "a100-8b", "--served-model-name", "demo"];

/// Engines and Envoy.
pub struct Scene {
    /// Envoy with the filter.
    pub front: Front,
    /// The engines.
    pub engines: EngineProcesses,
}

/// What differs between scenes.
pub struct SceneOptions {
    /// How the filter names the upstream.
    pub variant: Variant,
    /// How many engines.
    pub engines: usize,
    /// Merged into the filter's configuration.
    pub patch: Value,
    /// Whether the filter is told no backends, and learns them.
    pub observes: bool,
    /// The last edit of Envoy's configuration.
    pub edit: fn(&mut Bootstrap) -> Result<(), HarnessError>,
}

impl SceneOptions {
    /// Eight engines.
    pub fn new(variant: Variant) -> Self {
        Self { variant, engines: 8, patch: json!({}), observes: false, edit: |_| Ok(()) }
    }
}

impl Scene {
    /// Starts engines, then Envoy.
    pub async fn start(options: &SceneOptions) -> Self {
        let engines = EngineProcesses::start(options.engines, &ENGINE).await.expect("engines");
        let mut front = FrontOptions::new(options.variant);
        front.is_dynamic = true;
        front.edit = options.edit;
        // What the engines say of their memory counts.
        front.config_patch =
            json!({"kv_capacity_tokens": null, "decisions": {"response_header": true}});
        warmpath_harness::bootstrap::merge(&mut front.config_patch, &options.patch);
        if options.observes {
            let observes = json!({"backends": [], "observe": true, "endpoint_cluster": "engines"});
            warmpath_harness::bootstrap::merge(&mut front.config_patch, &observes);
        }
        let front = front.start(engines.addresses()).await;
        Self { front, engines }
    }

    /// Starts steady traffic.
    pub fn traffic(&self, traffic: Traffic, seed: u64) -> Steady {
        Steady::start(self.front.address(), traffic, seed)
    }

    /// The filter's name of engine `index`.
    pub fn name(&self, index: usize, observes: bool) -> String {
        if observes {
            self.engines.addresses()[index].to_string()
        } else {
            format!("engine-{index}")
        }
    }

    /// Names of the backends in the status.
    pub async fn backends(&self) -> Vec<String> {
        let status = self.front.status().await;
        let backends = status["backends"].as_array().cloned().unwrap_or_default();
        backends.iter().filter_map(|it| Some(it["name"].as_str()?.to_owned())).collect()
    }

    /// Waits until nothing is in flight by the filter's counts.
    pub async fn wait_until_idle(&self) {
        poll::until_equal("nothing in flight", 0, async || {
            self.front.status().await["in_flight"].as_u64().unwrap_or(u64::MAX)
        })
        .await;
    }

    /// Puts the engines at `indices` into Envoy's cluster, and no others.
    pub fn set_hosts(&mut self, indices: &[usize]) {
        let hosts: Vec<SocketAddr> =
            indices.iter().map(|index| self.engines.addresses()[*index]).collect();
        self.front.envoy.change(|bootstrap| bootstrap.set_hosts(&hosts)).expect("a changed file");
    }
}

/// The engines' records by the id of the request; of several, the last.
pub fn by_id(served: Vec<Served>) -> BTreeMap<String, Served> {
    let id = |it: &Served| it.header(ID_HEADER).map(str::to_owned);
    served.into_iter().filter_map(|it| Some((id(&it)?, it))).collect()
}

/// Requests that did not get what they asked for, with what they got.
pub fn failures(shots: &[Shot]) -> Vec<&Shot> {
    shots.iter().filter(|shot| !shot.is_good()).collect()
}

/// Share of the prompts' tokens that the engines reported as cached, of requests sent in a span of time.
pub fn cached_share(shots: &[Shot], prompt_tokens: u64, from: Duration, to: Duration) -> f64 {
    let sent = shots.iter().filter(|shot| (from..to).contains(&shot.sent));
    let cached: Vec<u64> = sent.filter_map(|shot| shot.cached_tokens).collect();
    let tokens = cached.len() as u64 * prompt_tokens;
    cached.iter().sum::<u64>() as f64 / tokens.max(1) as f64
}

/// The 99th percentile of the times to the first token of streams sent in a span of time, in
/// milliseconds.
pub fn ttft_p99_ms(shots: &[Shot], from: Duration, to: Duration) -> f64 {
    let sent = shots.iter().filter(|shot| (from..to).contains(&shot.sent) && shot.is_stream);
    let mut times: Vec<Duration> = sent.filter_map(|shot| shot.first_byte).collect();
    times.sort_unstable();
    let at = (times.len() * 99).div_ceil(100).saturating_sub(1);
    times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// What becomes of requests when an engine is killed and comes back empty.
pub struct Death {
    /// All requests.
    pub shots: Vec<Shot>,
    /// The killed engine's name.
    pub backend: String,
    /// When it was killed.
    pub killed: Duration,
    /// When it was back.
    pub back: Duration,
    /// Requests that it had in flight when it was killed, by their records.
    pub in_flight: Vec<String>,
}

impl Death {
    /// Requests that failed and were not in flight on the killed engine.
    pub fn failed_besides(&self) -> Vec<&Shot> {
        let mut failed = failures(&self.shots);
        failed.retain(|shot| !self.in_flight.contains(&shot.id));
        failed
    }

    /// From its return to the first answer of the engine to a request that was sent after it.
    pub fn traffic_back_after(&self) -> Option<Duration> {
        let back = self.after_return().map(|shot| shot.sent - self.back).min();
        back
    }

    /// Requests after its return for which cached tokens were predicted there and none were.
    pub fn false_hits(&self) -> Vec<&Shot> {
        let is_false = |shot: &&Shot| shot.predicted_tokens() > 0 && shot.cached_tokens == Some(0);
        self.after_return().filter(is_false).collect()
    }

    fn after_return(&self) -> impl Iterator<Item = &Shot> {
        let is_its = |shot: &&Shot| shot.sent >= self.back && shot.served() == self.backend;
        self.shots.iter().filter(|shot| shot.is_good()).filter(is_its)
    }
}

/// Kills an engine under traffic and starts it again after `absence`.
pub async fn death(
    scene: &mut Scene,
    traffic: Traffic,
    (before, absence, after): (Duration, Duration, Duration),
) -> Death {
    const VICTIM: usize = 3;
    let steady = scene.traffic(traffic, 1);
    steady.run_for(before).await;
    // Killed when it has something to lose.
    let records = poll::until("requests in flight on the engine", async || {
        let records = scene.engines.served_by(VICTIM).await.expect("records");
        let running = records.iter().filter(|it| it.state == "running" || it.state == "waiting");
        if running.count() >= 2 { Ok(records) } else { Err("idle") }
    });
    drop(records.await);
    let killed = steady.now();
    scene.engines.kill(VICTIM);
    steady.run_for(absence).await;
    scene.engines.restart(VICTIM).await.expect("an engine");
    let back = steady.now();
    steady.run_for(after).await;
    let shots = steady.stop().await;
    let backend = scene.name(VICTIM, false);
    // Its records died with it. In flight on it is what was cut or refused and spans the kill.
    let spans = |shot: &Shot| shot.sent <= killed && shot.ended >= killed && !shot.is_good();
    let is_its =
        |shot: &&Shot| spans(shot) && (shot.decision.is_empty() || shot.picked() == backend);
    let in_flight = shots.iter().filter(is_its).map(|shot| shot.id.clone()).collect();
    Death { shots, backend, killed, back, in_flight }
}

/// What becomes of requests when engines are added and taken away.
pub struct Scaling {
    /// All requests.
    pub shots: Vec<Shot>,
    /// When the new engines were added, and when they were taken away.
    pub changed: [Duration; 2],
    /// From being added to its first answer, of each new engine.
    pub first_answers: Vec<Option<Duration>>,
    /// From being taken away to the moment from which the status does not list them.
    pub gone_after: Duration,
    /// Backends at the end.
    pub backends: Vec<String>,
}

/// Doubles the engines under traffic, then takes the new ones away again. The filter observes.
pub async fn scaling(scene: &mut Scene, traffic: Traffic, phase: Duration) -> Scaling {
    let old: Vec<usize> = (0..scene.engines.addresses().len()).collect();
    let steady = scene.traffic(traffic, 2);
    steady.run_for(phase).await;
    let mut all = old.clone();
    for _ in &old {
        all.push(scene.engines.add().await.expect("an engine"));
    }
    let added = steady.now();
    scene.set_hosts(&all);
    steady.run_for(phase).await;
    let removed = steady.now();
    scene.set_hosts(&old);
    let names: Vec<String> = old.iter().map(|index| scene.name(*index, true)).collect();
    poll::until("the status to lose what was taken away", async || {
        let backends = scene.backends().await;
        if backends.iter().all(|it| names.contains(it)) { Ok(()) } else { Err(backends) }
    })
    .await;
    let gone_after = steady.now() - removed;
    steady.run_for(phase).await;
    let shots = steady.stop().await;
    let first_answers = all[old.len()..].iter().map(|index| {
        let name = scene.name(*index, true);
        let answers = shots.iter().filter(|shot| shot.is_good() && shot.served() == name);
        answers.map(|shot| shot.ended.saturating_sub(added)).min()
    });
    let first_answers = first_answers.collect();
    let backends = scene.backends().await;
    Scaling { shots, changed: [added, removed], first_answers, gone_after, backends }
}
