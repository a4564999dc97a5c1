//! One part of the page each: a scenario, and what its clients saw.

use std::time::Duration;

use comfy_table::{Table, presets};
use serde_json::json;
use warmpath_e2e::scene::{
    self, ENGINE, Scene, SceneOptions, cached_share, failures, retry_resets, ttft_ms,
};
use warmpath_e2e::steady::{Shot, Traffic};
use warmpath_harness::Variant;

/// Tokens of a prompt of [`Traffic::default`]: 100 blocks and 24 tokens of its own.
const PROMPT_TOKENS: u64 = 100 * 16 + 24;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header);
    rows.into_iter().for_each(|row| {
        table.add_row(row);
    });
    table.to_string()
}

fn in_seconds(time: Option<Duration>) -> String {
    time.map_or_else(|| "never".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
}

/// An engine is killed by SIGKILL and started again 20 s later.
pub async fn death() -> String {
    let plain = SceneOptions::new(Variant::ClusterHeader);
    let retrying = SceneOptions { edit: retry_resets, ..SceneOptions::new(Variant::OverrideHost) };
    let without_streams = Traffic { streams_of: 0, ..Traffic::default() };
    let mut rows = Vec::new();
    for (name, options, traffic) in [
        ("`cluster_header`, no retries", plain, Traffic::default()),
        ("`override_host`, retries on reset, no streams", retrying, without_streams),
    ] {
        let mut scene = Scene::start(&options).await;
        let phases = (seconds(20), seconds(20), seconds(20));
        let death = scene::death(&mut scene, traffic, phases).await;
        rows.push([
            name.to_owned(),
            death.shots.len().to_string(),
            death.in_flight.len().to_string(),
            death.failed_besides().len().to_string(),
            in_seconds(death.traffic_back_after()),
            death.false_hits().len().to_string(),
        ]);
    }
    let header = [
        "route",
        "requests",
        "failed in flight on it",
        "failed besides",
        "traffic back after",
        "false hits after its return",
    ];
    format!(
        "## An engine is killed, and starts again empty 20 s later\n\n{}\n",
        table(header, rows)
    )
}

/// Four engines become eight and four again, and nobody tells the filter.
pub async fn scaling() -> String {
    let base = SceneOptions::new(Variant::OverrideHost);
    let options = SceneOptions { engines: 4, observes: true, ..base };
    let mut scene = Scene::start(&options).await;
    let scaling = scene::scaling(&mut scene, Traffic::default(), seconds(20)).await;
    let last = scaling.first_answers.iter().copied().max().flatten();
    let all = scaling.first_answers.iter().all(Option::is_some);
    let row = [
        scaling.shots.len().to_string(),
        failures(&scaling.shots).len().to_string(),
        in_seconds(last.filter(|_| all)),
        in_seconds(Some(scaling.gone_after)),
        scaling.backends.len().to_string(),
    ];
    let header = [
        "requests",
        "failed",
        "last new engine serves after",
        "status has lost the removed after",
        "backends at the end",
    ];
    format!(
        "## Four engines become eight, then four again, observed (EDS file)\n\n{}\n",
        table(header, vec![row])
    )
}

/// One engine becomes five times slower.
pub async fn slow(seed: u64) -> String {
    let mut rows = Vec::new();
    for (name, engines, slows) in
        [("7 healthy engines", 7, false), ("8, of which one is 5 times slower", 8, true)]
    {
        let base = SceneOptions::new(Variant::OverrideHost);
        let scene = Scene::start(&SceneOptions { engines, ..base }).await;
        let steady = scene.traffic(Traffic::default(), seed);
        steady.run_for(seconds(20)).await;
        if slows {
            scene.engines.fail(3, &json!({"slow_factor": 5.0})).await.expect("a slow engine");
        }
        let slowed = steady.now();
        steady.run_for(seconds(100)).await;
        let end = steady.now();
        let shots = steady.stop().await;
        let span = |from: u64, to: u64| {
            let (from, to) = (slowed + seconds(from), slowed + seconds(to));
            ttft_cells(&shots, from, to.min(end))
        };
        let [p50_first, p99_first] = span(0, 20);
        let [p50, p99] = span(20, 100);
        let is_its = |shot: &&Shot| shot.sent > slowed && shot.served() == "engine-3";
        let share = shots.iter().filter(is_its).count() as f64
            / shots.iter().filter(|shot| shot.sent > slowed).count().max(1) as f64;
        let failed = failures(&shots).len().to_string();
        let share = format!("{:.1}%", share * 100.0);
        rows.push([name.to_owned(), failed, p50_first, p99_first, p50, p99, share]);
    }
    let header = [
        "fleet",
        "failed",
        "TTFT P50, first 20 s",
        "P99",
        "TTFT P50, 20 to 100 s after",
        "P99",
        "requests to engine 3",
    ];
    format!("## One engine becomes 5 times slower\n\n{}\n", table(header, rows))
}

fn ttft_cells(shots: &[Shot], from: Duration, to: Duration) -> [String; 2] {
    [0.50, 0.99].map(|share| format!("{:.0} ms", ttft_ms(shots, share, from, to)))
}

/// No engine's metrics answer any more.
pub async fn metrics(seed: u64) -> String {
    let mut rows = Vec::new();
    for (name, fails) in [("answer", false), ("hang", true), ("answer", false), ("hang", true)] {
        let scene = Scene::start(&SceneOptions::new(Variant::OverrideHost)).await;
        if fails {
            for engine in 0..8 {
                scene.engines.fail(engine, &json!({"metrics": "hang"})).await.expect("hangs");
            }
        }
        let steady = scene.traffic(Traffic::default(), seed);
        steady.run_for(seconds(60)).await;
        let end = steady.now();
        let shots = steady.stop().await;
        let from = seconds(15);
        let [p50, p99] = ttft_cells(&shots, from, end);
        rows.push([
            name.to_owned(),
            failures(&shots).len().to_string(),
            format!("{:.1}%", cached_share(&shots, PROMPT_TOKENS, from, end) * 100.0),
            p50,
            p99,
        ]);
    }
    let header = ["metrics", "failed", "cached share", "TTFT P50", "P99"];
    format!("## The engines' metrics stop answering\n\n{}\n", table(header, rows))
}

/// The filter's configuration changes, then its module.
pub async fn reload() -> String {
    let mut scene = Scene::start(&SceneOptions::new(Variant::OverrideHost)).await;
    let reload = scene::reload(&mut scene, Traffic::default(), seconds(20)).await;
    let share = |from: Duration, to: Duration| {
        format!("{:.1}%", cached_share(&reload.shots, PROMPT_TOKENS, from, to) * 100.0)
    };
    let mut rows = Vec::new();
    let [configured, recoded] = reload.changed;
    for (name, at, end) in
        [("its configuration", configured, recoded), ("its module", recoded, reload.ended)]
    {
        let sent = |shot: &&&Shot| (at - seconds(10)..end).contains(&shot.sent);
        rows.push([
            name.to_owned(),
            failures(&reload.shots).iter().filter(sent).count().to_string(),
            share(at - seconds(10), at),
            share(at, at + seconds(5)),
            share(at + seconds(5), end),
        ]);
    }
    let header =
        ["what changes", "failed", "cached share, 10 s before", "5 s after", "until the end"];
    format!("## The filter is reloaded by LDS\n\n{}\n", table(header, rows))
}

/// Faults at random.
pub async fn chaos(time: Duration, seed: u64) -> String {
    let mut scene = Scene::start(&SceneOptions::new(Variant::OverrideHost)).await;
    let chaos = scene::chaos(&mut scene, time, seed).await;
    let failed = failures(&chaos.shots).len();
    let faults: Vec<String> =
        chaos.faults.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
    let stats = scene.front.stats().await;
    let in_flight = &scene.front.status().await["in_flight"];
    let crashes: u64 = stats
        .iter()
        .filter(|(name, _)| name.contains("vm_reload") || name.contains("crash"))
        .map(|(_, count)| count)
        .sum();
    let row = [
        chaos.shots.len().to_string(),
        failed.to_string(),
        format!("{} of {}", chaos.different.len(), chaos.compared),
        in_flight.to_string(),
        crashes.to_string(),
        format!("{:.0} to {:.0} MiB", chaos.memory_mib[0], chaos.memory_mib[1]),
    ];
    let header = [
        "requests",
        "failed",
        "answers that differ from what the engine sent",
        "in flight afterwards",
        "crashes",
        "Envoy's memory, after a tenth and at the end",
    ];
    format!(
        "## Faults at random, for {:.0} minutes\n\nOne after another, each for 0.5 to 3 s on one of the \
        eight engines ({}): {}. One stream in ten is left by its client.\n\n{}\n",
        time.as_secs_f64() / 60.0,
        ENGINE.join(" "),
        faults.join(", "),
        table(header, vec![row])
    )
}
