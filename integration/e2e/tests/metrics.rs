//! The filter's statistics agree with what the engines say and with each other.

use serde_json::json;
use warmpath_e2e::bed::{Bed, FrontOptions, post};
use warmpath_e2e::client::{Version, whole};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{completion, prompt};
use warmpath_harness::Variant;

#[tokio::test(flavor = "multi_thread")]
async fn decisions_sum_to_requests_and_predictions_equal_what_the_engines_report() {
    for variant in Variant::ALL {
        let bed = Bed::start(&FrontOptions::new(variant), 3).await;
        let mut connection = bed.front.connect(Version::Http1).await;
        // Each prompt three times, as JSON, as a stream with usage, and a follow-up. One after the other:
        // the fleet is quiet, and nothing is ever evicted.
        for number in 0..15 {
            let mut tokens = prompt(number, 20);
            let mut body = completion(&tokens);
            post(&mut connection, "/v1/completions", &body, &[]).await;
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
            post(&mut connection, "/v1/completions", &body, &[]).await;
            tokens.extend(prompt(500 + number, 3));
            post(&mut connection, "/v1/completions", &completion(&tokens), &[]).await;
        }
        // And what the filter does not read.
        for (method, path, body) in
            [("GET", "/v1/models", ""), ("POST", "/v1/completions", "?"), ("POST", "/v1/x", "{}")]
        {
            let request = connection.request(method, path, &[], whole(body));
            connection.send(request).await.unwrap();
        }
        let served = bed.fleet.served().await.unwrap();
        let finished: Vec<_> = served.iter().filter(|served| served.finished()).collect();
        assert_eq!(finished.len(), 45);
        let cached: u64 = finished.iter().filter_map(|served| served.cached_tokens).sum();
        let tokens: u64 = finished.iter().map(|served| served.prompt_tokens).sum();
        assert!(cached > 15 * 2 * 300);
        poll::until_equal("all answers to be read", 45, async || {
            bed.front.metric("parity_agreements_total").await
        })
        .await;
        for (metric, expected) in [
            ("parity_disagreements_total", 0),
            ("prompt_tokens_total", tokens),
            ("reported_prompt_tokens_total", tokens),
            ("reported_cached_tokens_total", cached),
            ("predicted_cached_tokens_total", cached),
            ("served_elsewhere_total", 0),
            ("backend_failures_total", 0),
            ("store_updates_lost_total", 0),
            ("index_blocks_evicted_total", 0),
            // 20 full blocks of each prompt, and 3 that the follow-up fills.
            ("index_blocks_added_total", 15 * 23),
        ] {
            assert_eq!(bed.front.metric(metric).await, expected, "{variant:?}: {metric}");
        }
        let stats = bed.front.stats().await;
        let decisions = bed.front.decisions().await;
        assert_eq!(decisions.values().sum::<u64>(), stats["http.public.downstream_rq_total"]);
        let names: Vec<&str> = decisions.keys().map(String::as_str).collect();
        assert_eq!(names, ["not_json", "other_path", "prefix_hit", "prefix_miss"]);
        assert_eq!((decisions["prefix_hit"], decisions["prefix_miss"]), (30, 15));
        bed.front.assert_no_crash().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_has_the_reason_as_a_label() {
    let bed = Bed::start(&FrontOptions::new(Variant::OverrideHost), 2).await;
    for _ in 0..3 {
        bed.complete(&prompt(1, 20)).await;
    }
    let page = bed.front.envoy.prometheus().await.unwrap();
    let ours: Vec<&str> = page.lines().filter(|line| line.contains("warmpath")).collect();
    let value = |reason: &str| {
        let label = format!("reason=\"{reason}\"");
        let found = ours.iter().find(|line| {
            line.contains("warmpath_decisions_total{") && line.contains(&label)
        });
        found.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    assert_eq!((value("prefix_miss"), value("prefix_hit")), (Some(1), Some(2)), "{ours:#?}");
    // Every reason is one series of the same metric, from the start.
    let series = ours.iter().filter(|line| line.contains("warmpath_decisions_total{")).count();
    assert!(series >= 19, "{ours:#?}");
    assert!(!ours.iter().any(|line| line.contains("reason_prefix_hit")), "{ours:#?}");
    for metric in ["warmpath_decision_time_us", "warmpath_requests_in_flight", "warmpath_vm_memory_bytes"] {
        assert!(ours.iter().any(|line| line.contains(metric)), "{metric}: {ours:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parity_fault_shows() {
    // The engines cut their prompts as the filter does, but this request's model has another name there: the
    // engine counts in another namespace, so it has nothing cached where the filter expects all.
    let mut options = FrontOptions::new(Variant::OverrideHost);
    options.config_patch = json!({"kv_capacity_tokens": 1 << 23});
    let bed = Bed::start(&options, 1).await;
    let mut connection = bed.front.connect(Version::Http1).await;
    let mut body = completion(&prompt(1, 20));
    post(&mut connection, "/v1/completions", &body, &[]).await;
    body.as_object_mut().unwrap().remove("model");
    post(&mut connection, "/v1/completions", &body, &[]).await;
    poll::until_equal("both answers", 2, async || {
        bed.front.metric("parity_agreements_total").await
    })
    .await;
    assert_eq!(bed.front.metric("predicted_cached_tokens_total").await, 320);
    assert_eq!(bed.front.metric("reported_cached_tokens_total").await, 0);
}
