//! Engines that die, refuse and break off: their requests go elsewhere, and nothing false is learnt.

use serde_json::json;
use warmpath_e2e::bed::{Bed, FrontOptions, difference, post};
use warmpath_e2e::client::{Answer, Version, whole};
use warmpath_e2e::fleet::{ID_HEADER, dead_address, fast, find, kill, served_once};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{BLOCK_TOKENS, completion, prompt};
use warmpath_harness::Variant;
use warmpath_harness::fleet::Fleet;

const BLOCKS: usize = 24;
const CACHED: Option<u64> = Some((BLOCKS * BLOCK_TOKENS) as u64);

/// Sends prompt `number` over a new connection; the answer, whatever it is.
async fn send(bed: &Bed, number: u32) -> (String, Answer) {
    let mut connection = bed.front.connect(Version::Http1).await;
    post(&mut connection, "/v1/completions", &completion(&prompt(number, BLOCKS)), &[]).await
}

/// Prompts that went to `engine`, when each was sent once.
async fn learn(bed: &Bed, numbers: std::ops::Range<u32>, engine: usize) -> Vec<u32> {
    let mut held = Vec::new();
    for number in numbers {
        if bed.complete(&prompt(number, BLOCKS)).await.engine == engine {
            held.push(number);
        }
    }
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_engines_requests_are_retried_on_the_next_one_and_learnt_there() {
    let mut fleet = Fleet::start(&fast(3)).await.unwrap();
    let options = FrontOptions::new(Variant::OverrideHost);
    let front = options.start(fleet.addresses()).await;
    kill(&mut fleet, 0).await;
    let bed = Bed { front, fleet };
    let retries = async || {
        let stats = bed.front.stats().await;
        stats.get("cluster.engines.upstream_rq_retry").copied().unwrap_or_default()
    };
    // Each is answered, by exactly one engine, the dead one's share included.
    let mut holders = Vec::new();
    for number in 0..30 {
        holders.push(bed.complete(&prompt(number, BLOCKS)).await.engine);
    }
    assert!(retries().await > 0, "no request was meant for the dead engine");
    // Who served is who holds: the dead engine is not tried again for these.
    let before = retries().await;
    for (number, holder) in holders.iter().enumerate() {
        let served = bed.complete(&prompt(number as u32, BLOCKS)).await;
        assert_eq!((served.engine, served.cached_tokens), (*holder, CACHED), "prompt {number}");
    }
    assert_eq!(retries().await, before, "the dead engine was learnt from");
    assert!(bed.front.metric("served_elsewhere_total").await > 0);
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_dies_with_its_cache_loses_its_requests_to_the_others() {
    let mut bed = Bed::start(&FrontOptions::new(Variant::OverrideHost), 3).await;
    let held = learn(&bed, 0..30, 1).await;
    assert!(!held.is_empty());
    kill(&mut bed.fleet, 1).await;
    for round in 0..2 {
        for number in &held {
            let served = bed.complete(&prompt(*number, BLOCKS)).await;
            assert_ne!(served.engine, 1);
            // Envoy may have tried the dead engine first in the first round, not in the second: by then
            // somebody living holds the prompt.
            let expected = if round == 0 { Some(0) } else { CACHED };
            assert_eq!(served.cached_tokens, expected, "round {round}, prompt {number}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_cluster_header_the_requests_after_a_failure_go_elsewhere() {
    let mut bed = Bed::start(&FrontOptions::new(Variant::ClusterHeader), 3).await;
    let held = learn(&bed, 0..30, 1).await;
    assert!(!held.is_empty());
    kill(&mut bed.fleet, 1).await;
    let mut failed = 0;
    for number in &held {
        // The first finds out. Each second or so another one does, as a trial.
        for attempt in 0.. {
            assert!(attempt < 10, "prompt {number} is sent to the dead engine again and again");
            let (id, answer) = send(&bed, *number).await;
            if answer.status == 200 {
                assert_ne!(served_once(&bed.fleet, &id).await.engine, 1);
                break;
            }
            assert_eq!(answer.status, 503);
            failed += 1;
        }
    }
    assert!(failed > 0, "nobody tried the dead engine");
    assert_eq!(bed.front.metric("backend_failures_total").await, failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_never_lived_costs_few_requests() {
    for variant in Variant::ALL {
        let fleet = Fleet::start(&fast(2)).await.unwrap();
        let mut addresses = fleet.addresses().to_vec();
        addresses.push(dead_address());
        let front = FrontOptions::new(variant).start(&addresses).await;
        let bed = Bed { front, fleet };
        let mut failed = 0;
        for number in 0..40 {
            let (id, answer) = send(&bed, number).await;
            match answer.status {
                200 => drop(served_once(&bed.fleet, &id).await),
                _ => failed += 1,
            }
        }
        let allowed = if variant == Variant::OverrideHost { 0 } else { 10 };
        assert!(failed <= allowed, "{variant:?}: {failed} of 40 failed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_comes_back_gets_requests_again() {
    for variant in Variant::ALL {
        let mut bed = Bed::start(&FrontOptions::new(variant), 2).await;
        kill(&mut bed.fleet, 0).await;
        for number in 0..20 {
            send(&bed, number).await;
        }
        bed.fleet.restart(0).await.unwrap();
        let mut number = 100;
        poll::until("the engine to be used again", async || {
            number += 1;
            let (id, _) = send(&bed, number).await;
            let served = find(&bed.fleet, &id).await;
            if served.iter().any(|served| served.engine == 0) { Ok(()) } else { Err(served.len()) }
        })
        .await;
        // Well again for good: one success is enough.
        let mut used = 0;
        for number in 200..230 {
            used += usize::from(bed.complete(&prompt(number, BLOCKS)).await.engine == 0);
        }
        assert!(used >= 5, "{variant:?}: {used} of 30");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_500_is_passed_on_and_not_learnt() {
    let bed = Bed::start(&FrontOptions::new(Variant::OverrideHost), 2).await;
    for engine in 0..2 {
        bed.fleet.fail(engine, "http_500").await.unwrap();
    }
    let direct = warmpath_harness::http::HttpClient::new()
        .post_json(bed.fleet.addresses()[0], "/v1/completions", &completion(&prompt(1, BLOCKS)))
        .await
        .unwrap();
    for _ in 0..3 {
        let (id, answer) = send(&bed, 1).await;
        assert_eq!((answer.status, answer.body), (500, direct.body.clone()));
        // It says nothing about the engine, only about the request: no retry.
        served_once(&bed.fleet, &id).await;
    }
    for engine in 0..2 {
        bed.fleet.fail(engine, "ok").await.unwrap();
    }
    assert_eq!(bed.complete(&prompt(1, BLOCKS)).await.cached_tokens, Some(0));
    assert_eq!(bed.complete(&prompt(1, BLOCKS)).await.cached_tokens, CACHED);
    let decisions = bed.front.decisions().await;
    // Three failures and the first success were all misses.
    assert_eq!((decisions["prefix_miss"], decisions["prefix_hit"]), (4, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_passed_on_and_not_learnt() {
    let bed = Bed::start(&FrontOptions::new(Variant::OverrideHost), 2).await;
    let mut connection = bed.front.connect(Version::Http1).await;
    let mut body = completion(&prompt(1, BLOCKS));
    body["max_tokens"] = json!(0);
    for _ in 0..2 {
        let (id, answer) = post(&mut connection, "/v1/completions", &body, &[]).await;
        assert_eq!(answer.status, 400);
        assert_eq!(served_once(&bed.fleet, &id).await.state, "rejected");
    }
    assert_eq!(bed.front.decisions().await.get("prefix_hit"), None);
    assert_eq!(bed.front.metric("backend_failures_total").await, 0);
}

/// After a failure of the kind `mode`, the same prompt goes to the other engine, which then keeps it.
async fn goes_elsewhere_after(variant: Variant, mode: &str) {
    let bed = Bed::start(&FrontOptions::new(variant), 2).await;
    let broken = bed.complete(&prompt(1, BLOCKS)).await.engine;
    bed.fleet.fail(broken, mode).await.unwrap();
    let (id, _) = send_streaming(&bed, 1).await;
    assert_eq!(served_once(&bed.fleet, &id).await.engine, broken, "{variant:?} {mode}");
    // Should a second have passed on a slow machine, the broken engine may get a trial.
    let moved = poll::until("an answer from the other engine", async || {
        let (id, whole) = send_streaming(&bed, 1).await;
        let served = served_once(&bed.fleet, &id).await;
        if served.engine == broken { Err(whole) } else { Ok(served) }
    })
    .await;
    assert_eq!(moved.cached_tokens, Some(0), "{variant:?} {mode}");
    bed.fleet.fail(broken, "ok").await.unwrap();
    // What the broken engine had before is forgotten, or at least no better than the new copy; whoever
    // serves has it all.
    let again = bed.complete(&prompt(1, BLOCKS)).await;
    assert_eq!(again.cached_tokens, CACHED, "{variant:?} {mode}");
    assert!(bed.front.metric("backend_failures_total").await > 0, "{variant:?} {mode}");
    bed.front.assert_no_crash().await;
}

/// Sends prompt `number` as a stream; whether a whole one came back.
async fn send_streaming(bed: &Bed, number: u32) -> (String, bool) {
    let mut connection = bed.front.connect(Version::Http1).await;
    let mut body = completion(&prompt(number, BLOCKS));
    body["stream"] = json!(true);
    body["max_tokens"] = json!(20);
    let id = warmpath_e2e::bed::unique_id();
    let headers = [("content-type", "application/json"), (ID_HEADER, id.as_str())];
    let request = connection.request("POST", "/v1/completions", &headers, whole(body.to_string()));
    let answer = poll::within("an answer or a break", connection.send(request)).await;
    let is_whole = answer.is_ok_and(|answer| answer.status == 200 && ends_well(&answer.body));
    (id, is_whole)
}

fn ends_well(body: &[u8]) -> bool {
    body.ends_with(b"data: [DONE]\n\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_503_requests_go_elsewhere() {
    for variant in Variant::ALL {
        goes_elsewhere_after(variant, "http_503").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reset_without_an_answer_requests_go_elsewhere() {
    for variant in Variant::ALL {
        goes_elsewhere_after(variant, "reset_before_headers").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reset_in_the_middle_of_a_stream_requests_go_elsewhere() {
    for variant in Variant::ALL {
        goes_elsewhere_after(variant, "reset_mid_stream").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_off_reaches_the_client_as_broken_and_is_not_learnt() {
    let bed = Bed::start(&FrontOptions::new(Variant::OverrideHost), 1).await;
    bed.fleet.fail(0, "reset_mid_stream").await.unwrap();
    let before = bed.front.decisions().await;
    let (_, is_whole) = send_streaming(&bed, 1).await;
    assert!(!is_whole);
    bed.fleet.fail(0, "ok").await.unwrap();
    // With its only engine passed over, Envoy serves all the same; then the filter learns again.
    poll::until("a hit", async || {
        bed.complete(&prompt(1, BLOCKS)).await;
        let seen = difference(&before, &bed.front.decisions().await);
        if seen.contains_key("prefix_hit") { Ok(()) } else { Err(seen) }
    })
    .await;
    let seen = difference(&before, &bed.front.decisions().await);
    assert!(seen["prefix_miss"] >= 2, "the broken stream was learnt: {seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_every_engine_passed_over_envoy_serves_by_itself() {
    for variant in Variant::ALL {
        let bed = Bed::start(&FrontOptions::new(variant), 2).await;
        for engine in 0..2 {
            bed.fleet.fail(engine, "http_503").await.unwrap();
        }
        let seen = poll::until("a decision without an engine", async || {
            send(&bed, 1).await;
            let decisions = bed.front.decisions().await;
            if decisions.contains_key("no_backend") { Ok(decisions) } else { Err(decisions) }
        })
        .await;
        for engine in 0..2 {
            bed.fleet.fail(engine, "ok").await.unwrap();
        }
        let (id, answer) = send(&bed, 1).await;
        assert_eq!(answer.status, 200, "{variant:?} {seen:?}");
        served_once(&bed.fleet, &id).await;
        let (id, answer) = send(&bed, 1).await;
        assert_eq!(answer.status, 200);
        served_once(&bed.fleet, &id).await;
    }
}
