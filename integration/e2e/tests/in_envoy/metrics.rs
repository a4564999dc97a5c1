//! The filter's statistics agree with what the engines say and with each other.

use std::collections::BTreeSet;

use serde_json::json;
use warmpath_e2e::bed::{Bed, FrontOptions, post};
use warmpath_e2e::client::{Connection, Version, whole};
use warmpath_e2e::prompts::{completion, prompt};
use warmpath_e2e::{poll, promtool};
use warmpath_harness::{Bootstrap, Variant, paths};

async fn statistics(variant: Variant) {
    let bed = Bed::start(&FrontOptions::new(variant), 3).await;
    let mut connection = bed.front.connect(Version::Http1).await;
    a_quiet_fleet_is_predicted_exactly(&bed, &mut connection).await;
    decisions_sum_to_requests(&bed, &mut connection).await;
    prometheus_has_labels(&bed).await;
    decisions_are_timed(&bed).await;
    the_documents_list_what_prometheus_sees(&bed).await;
    prometheus_own_tool_finds_little(&bed).await;
    a_wrong_prediction_shows(&bed, &mut connection).await;
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_are_true_by_cluster_header() {
    statistics(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_are_true_by_override_host() {
    statistics(Variant::OverrideHost).await;
}

async fn answers_read(bed: &Bed, count: u64) {
    let agreements = async || bed.front.model_metric("parity_agreements_total").await;
    poll::until_equal("all answers to be read", count, agreements).await;
    assert_eq!(bed.front.model_metric("parity_disagreements_total").await, 0);
}

/// Each prompt as JSON, as a stream, and with a follow-up, one after the other: nothing is evicted, and
/// nothing waits.
async fn a_quiet_fleet_is_predicted_exactly(bed: &Bed, connection: &mut Connection) {
    for number in 0..15 {
        let mut tokens = prompt(number, 20);
        let mut body = completion(&tokens);
        post(connection, "/v1/completions", &body, &[]).await;
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        post(connection, "/v1/completions", &body, &[]).await;
        tokens.extend(prompt(500 + number, 3));
        post(connection, "/v1/completions", &completion(&tokens), &[]).await;
    }
    let served = bed.fleet.served().await.unwrap();
    assert!(served.len() == 45 && served.iter().all(|served| served.finished()));
    let cached: u64 = served.iter().filter_map(|served| served.cached_tokens).sum();
    let tokens: u64 = served.iter().map(|served| served.prompt_tokens).sum();
    assert_eq!(cached, 15 * 2 * 320);
    answers_read(bed, 45).await;
    for (metric, expected) in [
        ("prompt_tokens_total", tokens),
        ("reported_prompt_tokens_total", tokens),
        ("reported_cached_tokens_total", cached),
        ("predicted_cached_tokens_total", cached),
        ("model_approximate", 0),
    ] {
        assert_eq!(bed.front.model_metric(metric).await, expected, "{metric}");
    }
    for (metric, expected) in [
        ("served_elsewhere_total", 0),
        ("backend_failures_total", 0),
        ("store_updates_lost_total", 0),
        ("index_blocks_evicted_total", 0),
        // 20 full blocks of each prompt, and 3 that the follow-up fills.
        ("index_blocks_added_total", 15 * 23),
    ] {
        assert_eq!(bed.front.metric(metric).await, expected, "{metric}");
    }
}

async fn decisions_sum_to_requests(bed: &Bed, connection: &mut Connection) {
    for (method, path, body) in
        [("GET", "/v1/models", ""), ("POST", "/v1/completions", "?"), ("POST", "/v1/x", "{}")]
    {
        let request = connection.request(method, path, &[], whole(body));
        connection.send(request).await.unwrap();
    }
    let decisions = bed.front.decisions().await;
    let expected = [("not_json", 1), ("other_path", 2), ("prefix_hit", 30), ("prefix_miss", 15)];
    let seen: Vec<(&str, u64)> = decisions.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    assert_eq!(seen, expected);
    assert_eq!(bed.front.stats().await["http.public.downstream_rq_total"], 48);
}

async fn prometheus_has_labels(bed: &Bed) {
    let page = bed.front.envoy.prometheus().await.unwrap();
    let ours: Vec<&str> = page.lines().filter(|line| line.contains("warmpath_")).collect();
    let of = |metric: &str| {
        let start = format!("warmpath_{metric}{{");
        ours.iter().copied().filter(move |line| line.starts_with(&start)).collect::<Vec<&str>>()
    };
    let decisions = of("decisions_total");
    for (reason, count) in [("prefix_hit", 30), ("prefix_miss", 15), ("no_tokenizer", 0)] {
        let label = format!("reason=\"{reason}\"");
        let series: Vec<_> = decisions.iter().filter(|line| line.contains(&label)).collect();
        assert_eq!(series.len(), 1, "{reason}: {ours:#?}");
        assert!(series[0].ends_with(&format!(" {count}")), "{series:?}");
    }
    assert!(decisions.iter().all(|line| line.contains("reason=\"")), "{decisions:#?}");
    let agreements = of("parity_agreements_total");
    assert_eq!(agreements.len(), 1);
    assert!(agreements[0].contains("model=\"demo\"") && agreements[0].ends_with(" 45"));
    for metric in ["decision_time_microseconds_count", "requests_in_flight", "vm_memory_bytes"] {
        assert_eq!(of(metric).len(), 1, "{metric}: {ours:#?}");
    }
}

/// One request, one decision with a body that was read or tried. Envoy merges its workers' histograms
/// every few seconds.
async fn decisions_are_timed(bed: &Bed) {
    poll::until_equal("46 timed decisions", Some("46".to_owned()), async || {
        let page = bed.front.envoy.prometheus().await.unwrap();
        let start = "warmpath_decision_time_microseconds_count{";
        let line = page.lines().find(|line| line.starts_with(start))?;
        line.rsplit(' ').next().map(str::to_owned)
    })
    .await;
}

/// Each metric of `docs/metrics.md` is there with its type, and no other.
async fn the_documents_list_what_prometheus_sees(bed: &Bed) {
    let page = bed.front.envoy.prometheus().await.unwrap();
    let seen: BTreeSet<(&str, &str)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE warmpath_")?.split_once(' '))
        .collect();
    let document = paths::repository().join("docs/metrics.md");
    let document = std::fs::read_to_string(document).unwrap();
    let listed: BTreeSet<(&str, &str)> = document.lines().filter_map(listed).collect();
    assert_eq!(seen, listed);
}

/// A metric's name and type in a table's row, or in the line that introduces a table of its labels.
fn listed(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start_matches("| ").strip_prefix("`warmpath_")?;
    let (name, rest) = line.split_once('`')?;
    let name = name.split('{').next()?;
    let kinds = ["counter", "gauge", "histogram"];
    Some((name, *kinds.iter().min_by_key(|kind| rest.find(**kind).unwrap_or(usize::MAX))?))
}

/// What `promtool check metrics` may say: Envoy prints no help texts, and its histograms hold integers,
/// which a decision's seconds are not.
const ALLOWED: &[&str] = &[
    "no help text",
    "warmpath_decision_time_microseconds use base unit \"seconds\" instead of \"microseconds\"",
];

async fn prometheus_own_tool_finds_little(bed: &Bed) {
    let page = bed.front.envoy.prometheus().await.unwrap();
    let is_ours =
        |line: &&str| line.starts_with("warmpath_") || line.starts_with("# TYPE warmpath_");
    let ours: String = page.lines().filter(is_ours).map(|line| format!("{line}\n")).collect();
    assert!(ours.lines().count() > 50, "{ours}");
    let Some(findings) = promtool::check(&ours) else {
        return eprintln!("skipped: promtool on the metrics (make fetch)");
    };
    let is_allowed = |finding: &String| ALLOWED.iter().any(|allowed| finding.ends_with(allowed));
    let (allowed, found): (Vec<String>, Vec<String>) = findings.into_iter().partition(is_allowed);
    assert!(found.is_empty(), "{found:#?}");
    assert!(!allowed.is_empty(), "promtool looked at nothing");
}

/// An engine keeps apart what the filter takes for one: without the model's name it counts in another
/// namespace, and has nothing cached where the filter expects all.
async fn a_wrong_prediction_shows(bed: &Bed, connection: &mut Connection) {
    let read = async |metric| bed.front.model_metric(metric).await;
    let predicted = read("predicted_cached_tokens_total").await;
    let reported = read("reported_cached_tokens_total").await;
    let mut body = completion(&prompt(0, 20));
    body.as_object_mut().unwrap().remove("model");
    post(connection, "/v1/completions", &body, &[]).await;
    answers_read(bed, 46).await;
    assert_eq!(read("predicted_cached_tokens_total").await, predicted + 320);
    assert_eq!(read("reported_cached_tokens_total").await, reported);
}

#[tokio::test(flavor = "multi_thread")]
async fn gauges_of_a_backend_that_was_taken_out_go_to_zero() {
    let mut options = FrontOptions::new(Variant::OverrideHost);
    options.is_dynamic = true;
    let mut bed = Bed::start(&options, 2).await;
    let up = async |bed: &Bed, engine: usize| {
        bed.front.metric(&format!("backend_up.backend.engine-{engine}")).await
    };
    poll::until_equal("both to be up", 2, async || up(&bed, 0).await + up(&bed, 1).await).await;
    let take_out = |bootstrap: &mut Bootstrap| {
        if let Some(backends) = bootstrap.filter_config_mut()?["backends"].as_array_mut() {
            backends.truncate(1);
        }
        Ok(())
    };
    bed.front.envoy.change(take_out).expect("a changed file");
    poll::until_equal("the other to be gone", 0, async || up(&bed, 1).await).await;
    assert_eq!(up(&bed, 0).await, 1);
}
