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
use crate::steady::{End, Shot, Steady, Traffic, mix};

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

/// The percentile at `share` of the times to the first token of streams sent in a span of time, in
/// milliseconds.
pub fn ttft_ms(shots: &[Shot], share: f64, from: Duration, to: Duration) -> f64 {
    let sent = shots.iter().filter(|shot| (from..to).contains(&shot.sent) && shot.is_stream);
    let mut times: Vec<Duration> = sent.filter_map(|shot| shot.first_byte).collect();
    times.sort_unstable();
    let at = (times.len() as f64 * share).ceil() as usize;
    times.get(at.saturating_sub(1)).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// Makes Envoy repeat whatever broke off before its answer began; for [`SceneOptions::edit`].
pub fn retry_resets(bootstrap: &mut Bootstrap) -> Result<(), HarnessError> {
    const ROUTE: &str = "/route_config/virtual_hosts/0/routes/1/route/retry_policy";
    if let Some(policy) = bootstrap.http_mut("public")?.pointer_mut(ROUTE) {
        policy["retry_on"] = "connect-failure,refused-stream,reset".into();
    }
    Ok(())
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
        self.after_return().map(|shot| shot.sent - self.back).min()
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

/// What becomes of requests when Envoy's configuration changes.
pub struct Reload {
    /// All requests.
    pub shots: Vec<Shot>,
    /// When the filter's configuration, and when its module changed.
    pub changed: [Duration; 2],
    /// When the traffic ended.
    pub ended: Duration,
}

/// Changes the filter's configuration under traffic, then its module.
pub async fn reload(scene: &mut Scene, traffic: Traffic, phase: Duration) -> Reload {
    let steady = scene.traffic(traffic, 3);
    steady.run_for(phase).await;
    let configured = steady.now();
    let change = |bootstrap: &mut Bootstrap| {
        bootstrap.filter_config_mut()?["body_bytes_max"] = json!(1 << 20);
        Ok(())
    };
    scene.front.envoy.change(change).expect("a changed file");
    steady.run_for(phase).await;
    let module = scene.front.envoy.dir().join("other.wasm");
    other_module(&module);
    let recoded = steady.now();
    scene.front.envoy.change(|bootstrap| bootstrap.set_wasm(&module)).expect("a changed file");
    steady.run_for(phase).await;
    let ended = steady.now();
    Reload { shots: steady.stop().await, changed: [configured, recoded], ended }
}

/// Writes the filter's module with a custom section more: the same code under another hash, which Envoy
/// takes for new code.
fn other_module(file: &std::path::Path) {
    let mut module =
        std::fs::read(warmpath_harness::paths::wasm().expect("the filter")).expect("read");
    let name = b"other";
    // Section 0, its length, and a name with its own length.
    module.extend([0, name.len() as u8 + 1, name.len() as u8]);
    module.extend(name);
    std::fs::write(file, module).expect("written");
}

/// What many faults at random leave behind.
pub struct Chaos {
    /// All requests.
    pub shots: Vec<Shot>,
    /// How often each fault was made.
    pub faults: BTreeMap<&'static str, u32>,
    /// Good answers whose bytes were compared with what the engine says it sent, and those that differ.
    pub compared: usize,
    /// See `compared`.
    pub different: Vec<String>,
    /// Envoy's resident memory in MiB: after a tenth of the time, and at the end.
    pub memory_mib: [f64; 2],
}

/// Makes one fault after another for `time`: engines are killed, stopped, slowed, made to break off and
/// to answer garbage; clients leave.
pub async fn chaos(scene: &mut Scene, time: Duration, seed: u64) -> Chaos {
    let traffic = Traffic { leaves_of: 10, timeout: Duration::from_secs(30), ..Traffic::default() };
    let steady = scene.traffic(traffic, seed);
    let mut faults = BTreeMap::new();
    let mut records = BTreeMap::new();
    let mut early_mib = 0.0;
    let mut random = seed;
    let engines = scene.engines.addresses().len();
    while steady.now() < time {
        random = mix(random);
        let engine = (random % engines as u64) as usize;
        let fault = FAULTS[(random >> 16) as usize % FAULTS.len()];
        *faults.entry(fault).or_insert(0) += 1;
        records.extend(by_id(scene.engines.served_by(engine).await.unwrap_or_default()));
        inflict(scene, engine, fault, Duration::from_millis(500 + (random >> 32) % 2_500)).await;
        if early_mib == 0.0 && steady.now() > time / 10 {
            early_mib = memory_mib(scene.front.envoy.pid());
        }
    }
    let shots = steady.stop().await;
    scene.wait_until_idle().await;
    records.extend(by_id(scene.engines.served().await.expect("records")));
    let mut compared = 0;
    let mut different = Vec::new();
    for shot in shots.iter().filter(|shot| shot.is_good() && shot.end == End::Whole) {
        let Some(record) = records.get(&shot.id).filter(|record| record.sent_hash.is_some()) else {
            continue;
        };
        // A record from before the end of its answer says nothing.
        if !record.finished() {
            continue;
        }
        compared += 1;
        if record.sent_hash.as_ref() != Some(&shot.hash) || record.sent_bytes != shot.bytes {
            different.push(format!("{shot:?}\n{record:?}"));
        }
    }
    let memory_mib = [early_mib, memory_mib(scene.front.envoy.pid())];
    Chaos { shots, faults, compared, different, memory_mib }
}

const FAULTS: [&str; 9] = [
    "kill",
    "stop",
    "slow",
    "reset_before_headers",
    "reset_mid_stream",
    "http_503",
    "hang",
    "garbage_metrics",
    "garbage_usage",
];

async fn inflict(scene: &mut Scene, engine: usize, fault: &str, time: Duration) {
    match fault {
        "kill" => {
            scene.engines.kill(engine);
            tokio::time::sleep(time).await;
            scene.engines.restart(engine).await.expect("an engine");
        }
        "stop" => {
            scene.engines.stop(engine).expect("stopped");
            tokio::time::sleep(time).await;
            scene.engines.go_on(engine).expect("goes on");
        }
        _ => {
            let how = match fault {
                "slow" => json!({"slow_factor": 5.0}),
                "garbage_metrics" => json!({"metrics": "garbage"}),
                "garbage_usage" => json!({"usage": "garbage"}),
                mode => json!({"mode": mode}),
            };
            scene.engines.fail(engine, &how).await.expect("a fault");
            tokio::time::sleep(time).await;
            scene.engines.fail(engine, &json!({"mode": "ok"})).await.expect("no fault");
        }
    }
}

/// Resident memory of a process.
pub fn memory_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
