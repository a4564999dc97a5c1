//! Engines that die, refuse and break off: their requests go elsewhere, and nothing false is learnt.

use std::time::Duration;

use serde_json::json;
use warmpath_e2e::bed::{Bed, FrontOptions, difference, post, streaming_request};
use warmpath_e2e::client::{Answer, Version};
use warmpath_e2e::fleet::{dead_address, fast, find, kill, served_once};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{BLOCK_TOKENS, completion, prompt};
use warmpath_harness::Variant;
use warmpath_harness::fleet::{Fleet, Served};
use warmpath_harness::http::HttpClient;

const BLOCKS: usize = 24;
const CACHED: Option<u64> = Some((BLOCKS * BLOCK_TOKENS) as u64);

/// Sends prompt `number` over a new connection; the answer, whatever it is.
async fn send(bed: &Bed, number: u32) -> (String, Answer) {
    let mut connection = bed.front.connect(Version::Http1).await;
    post(&mut connection, "/v1/completions", &completion(&prompt(number, BLOCKS)), &[]).await
}

/// Sends prompt `number` as a stream of some length; whether a whole one came back.
async fn send_streaming(bed: &Bed, number: u32) -> (String, bool) {
    let mut connection = bed.front.connect(Version::Http1).await;
    let (id, request) = streaming_request(&connection, &prompt(number, BLOCKS), 5_000);
    let answer = poll::within("an answer or a break", connection.send(request)).await;
    let is_whole = answer.is_ok_and(|answer| answer.body.ends_with(b"data: [DONE]\n\n"));
    (id, is_whole)
}

/// Sends prompt `number` until it is answered; the record, and how many attempts failed.
///
/// By `override_host` Envoy itself goes on to the next engine. By `cluster_header` the first request finds
/// out that an engine is dead, and each second or so another one does, as a trial.
async fn send_until_served(bed: &Bed, variant: Variant, number: u32) -> (Served, u64) {
    for failed in 0..10 {
        let (id, answer) = send(bed, number).await;
        if answer.status == 200 {
            return (served_once(&bed.fleet, &id).await, failed);
        }
        assert_eq!((answer.status, variant), (503, Variant::ClusterHeader), "prompt {number}");
    }
    panic!("prompt {number} is sent to a dead engine again and again");
}

async fn engines_die(variant: Variant) {
    let fleet = Fleet::start(&fast(3)).await.unwrap();
    let mut addresses = fleet.addresses().to_vec();
    addresses.push(dead_address());
    let front = FrontOptions::new(variant).start(&addresses).await;
    let mut bed = Bed { front, fleet };
    let holders = an_engine_that_never_lived_costs_little(&bed, variant).await;
    an_engine_that_dies_loses_its_requests(&mut bed, variant, &holders).await;
    an_engine_that_comes_back_is_used_again(&mut bed).await;
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_die_by_cluster_header() {
    engines_die(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_die_by_override_host() {
    engines_die(Variant::OverrideHost).await;
}

/// Lets the longest time pass for which a failing engine is passed over: from here on one is tried again
/// for whatever it is thought to hold.
async fn let_trials_become_due() {
    tokio::time::sleep(Duration::from_millis(5_000)).await;
}

/// Attempts that Envoy made after a first one failed.
async fn retries(bed: &Bed) -> u64 {
    let stats = bed.front.stats().await;
    let retries = stats.iter().filter(|(name, _)| {
        name.starts_with("cluster.engine") && name.ends_with(".upstream_rq_retry")
    });
    retries.map(|(_, count)| count).sum()
}

/// Sends 40 prompts, a quarter of them meant for nobody, and again. Returns who holds each.
async fn an_engine_that_never_lived_costs_little(bed: &Bed, variant: Variant) -> Vec<usize> {
    let mut holders = Vec::new();
    let mut failed = 0;
    for number in 0..40 {
        let (served, failures) = send_until_served(bed, variant, number).await;
        holders.push(served.engine);
        failed += failures;
    }
    let before = retries(bed).await;
    assert!(before > 0, "no request was meant for the dead engine");
    match variant {
        Variant::ClusterHeader => assert!(failed <= 10, "{failed} requests failed"),
        Variant::OverrideHost => assert!(bed.front.metric("served_elsewhere_total").await > 0),
    }
    assert_eq!(bed.front.metric("backend_failures_total").await, failed);
    let_trials_become_due().await;
    // Who served is who holds. The dead engine is not thought to hold any, or it would be tried again.
    for (number, holder) in holders.iter().enumerate() {
        let served = bed.complete(&prompt(number as u32, BLOCKS)).await;
        assert_eq!((served.engine, served.cached_tokens), (*holder, CACHED), "prompt {number}");
    }
    assert_eq!(retries(bed).await, before, "the dead engine was learnt from");
    holders
}

async fn an_engine_that_dies_loses_its_requests(
    bed: &mut Bed,
    variant: Variant,
    holders: &[usize],
) {
    let held: Vec<u32> = (0..40).filter(|number| holders[*number as usize] == 1).collect();
    assert!(held.len() >= 3, "{holders:?}");
    kill(&mut bed.fleet, 1).await;
    let mut moved = Vec::new();
    for number in &held {
        let (served, _) = send_until_served(bed, variant, *number).await;
        assert_eq!(served.cached_tokens, Some(0), "prompt {number}");
        moved.push(served.engine);
    }
    // They stay where they went. A trial may find out once more that the dead engine is dead.
    for (number, engine) in held.iter().zip(moved) {
        let (served, _) = send_until_served(bed, variant, *number).await;
        assert_eq!((served.engine, served.cached_tokens), (engine, CACHED), "prompt {number}");
    }
}

async fn an_engine_that_comes_back_is_used_again(bed: &mut Bed) {
    bed.fleet.restart(1).await.unwrap();
    let mut number = 1_000;
    let mut is_used = async || {
        number += 1;
        let (id, _) = send(bed, number).await;
        find(&bed.fleet, &id).await.iter().any(|served| served.engine == 1)
    };
    poll::until("the engine to be used again", async || is_used().await.then_some(()).ok_or("no"))
        .await;
    // One success is enough.
    let mut used = 0;
    for _ in 0..30 {
        used += usize::from(is_used().await);
    }
    assert!(used >= 3, "{used} of 30");
}

async fn engines_fail(variant: Variant) {
    let bed = Bed::start(&FrontOptions::new(variant), 2).await;
    a_refusal_is_passed_on_and_not_learnt(&bed).await;
    a_500_is_passed_on_and_not_learnt(&bed).await;
    requests_go_elsewhere_after(&bed, "http_503", 1).await;
    requests_go_elsewhere_after(&bed, "reset_before_headers", 2).await;
    requests_go_elsewhere_after(&bed, "reset_mid_stream", 3).await;
    a_broken_stream_is_not_learnt(&bed).await;
    with_every_engine_down_requests_are_refused_for_a_while(&bed).await;
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_fail_by_cluster_header() {
    engines_fail(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_fail_by_override_host() {
    engines_fail(Variant::OverrideHost).await;
}

async fn fail_all(bed: &Bed, mode: &str) {
    for engine in 0..bed.fleet.addresses().len() {
        bed.fleet.fail(engine, mode).await.unwrap();
    }
}

async fn a_refusal_is_passed_on_and_not_learnt(bed: &Bed) {
    let mut connection = bed.front.connect(Version::Http1).await;
    let mut body = completion(&prompt(10, BLOCKS));
    body["max_tokens"] = json!(0);
    for _ in 0..2 {
        let (id, answer) = post(&mut connection, "/v1/completions", &body, &[]).await;
        assert_eq!(answer.status, 400);
        assert_eq!(served_once(&bed.fleet, &id).await.state, "rejected");
    }
    assert_eq!(bed.front.decisions().await.get("prefix_hit"), None);
    assert_eq!(bed.front.metric("backend_failures_total").await, 0);
}

async fn a_500_is_passed_on_and_not_learnt(bed: &Bed) {
    let before = bed.front.decisions().await;
    fail_all(bed, "http_500").await;
    let body = completion(&prompt(11, BLOCKS));
    let client = HttpClient::new();
    let direct =
        client.post_json(bed.fleet.addresses()[0], "/v1/completions", &body).await.unwrap();
    for _ in 0..3 {
        let (id, answer) = send(bed, 11).await;
        assert_eq!((answer.status, &answer.body), (500, &direct.body));
        // It says something about the request, not about the engine: no retry.
        served_once(&bed.fleet, &id).await;
    }
    fail_all(bed, "ok").await;
    assert_eq!(bed.complete(&prompt(11, BLOCKS)).await.cached_tokens, Some(0));
    assert_eq!(bed.complete(&prompt(11, BLOCKS)).await.cached_tokens, CACHED);
    // Three failures and the first success were all misses.
    let decisions = difference(&before, &bed.front.decisions().await);
    assert_eq!((decisions["prefix_miss"], decisions["prefix_hit"]), (4, 1));
    assert_eq!(bed.front.metric("backend_failures_total").await, 0);
}

/// After a failure of the kind `mode`, the same prompt goes to the other engine, which then keeps it.
async fn requests_go_elsewhere_after(bed: &Bed, mode: &str, number: u32) {
    let failures = bed.front.metric("backend_failures_total").await;
    let broken = bed.complete(&prompt(number, BLOCKS)).await.engine;
    bed.fleet.fail(broken, mode).await.unwrap();
    let (id, is_whole) = send_streaming(bed, number).await;
    assert!(!is_whole, "{mode}");
    assert_eq!(served_once(&bed.fleet, &id).await.engine, broken, "{mode}");
    // Should a second have passed on a slow machine, the broken engine may get a trial.
    let moved = poll::until("an answer from the other engine", async || {
        let (id, is_whole) = send_streaming(bed, number).await;
        let served = served_once(&bed.fleet, &id).await;
        if served.engine == broken { Err(is_whole) } else { Ok((served, is_whole)) }
    });
    let (served, is_whole) = moved.await;
    assert_eq!((served.cached_tokens, is_whole), (Some(0), true), "{mode}");
    bed.fleet.fail(broken, "ok").await.unwrap();
    // Whoever serves it from here on has it all.
    assert_eq!(bed.complete(&prompt(number, BLOCKS)).await.cached_tokens, CACHED, "{mode}");
    assert!(bed.front.metric("backend_failures_total").await > failures, "{mode}");
}

async fn a_broken_stream_is_not_learnt(bed: &Bed) {
    let before = bed.front.decisions().await;
    fail_all(bed, "reset_mid_stream").await;
    assert!(!send_streaming(bed, 20).await.1);
    fail_all(bed, "ok").await;
    assert!(send_streaming(bed, 20).await.1);
    let decisions = difference(&before, &bed.front.decisions().await);
    assert_eq!(decisions.into_iter().collect::<Vec<_>>(), [("prefix_miss".to_owned(), 2)]);
    bed.complete(&prompt(20, BLOCKS)).await;
    assert_eq!(difference(&before, &bed.front.decisions().await)["prefix_hit"], 1);
}

async fn with_every_engine_down_requests_are_refused_for_a_while(bed: &Bed) {
    fail_all(bed, "http_503").await;
    let refused = poll::until("a refusal", async || {
        let (id, answer) = send(bed, 30).await;
        let found = find(&bed.fleet, &id).await;
        if found.is_empty() { Ok(answer) } else { Err(answer.status) }
    })
    .await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["code"], 503, "{:?}", refused.body);
    let retry_after = refused.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap();
    assert!((1..=4).contains(&retry_after), "{retry_after}");
    assert!(bed.front.decisions().await["all_down"] > 0);
    // In the shape of the API, whose prompt need not have been read.
    let mut connection = bed.front.connect(Version::Http1).await;
    let (_, answer) = post(&mut connection, "/v1/messages", &json!({"messages": []}), &[]).await;
    assert_eq!(answer.json()["error"]["type"], "overloaded_error", "{:?}", answer.body);
    fail_all(bed, "ok").await;
    poll::until("an answer", async || {
        let (_, answer) = send(bed, 30).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.status) }
    })
    .await;
    for _ in 0..3 {
        let (id, answer) = send(bed, 30).await;
        assert_eq!(answer.status, 200);
        served_once(&bed.fleet, &id).await;
    }
}
