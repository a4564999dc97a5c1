//! Servers of several engines behind one address: each request names the engine that holds its prefix.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use warmpath_e2e::bed::{Front, FrontOptions, difference, post};
use warmpath_e2e::client::Version;
use warmpath_e2e::fleet::dead_address;
use warmpath_e2e::prompts::{MODEL, completion, prompt};
use warmpath_e2e::scripted::Recorder;
use warmpath_harness::{Bootstrap, HarnessError, Variant};

const PATH: &str = "/v1/completions";
const HEADER: &str = "x-data-parallel-rank";
const PROMPTS: u32 = 24;

/// Every server has two engines.
fn two_ranks(bootstrap: &mut Bootstrap) -> Result<(), HarnessError> {
    let backends = bootstrap.filter_config_mut()?["backends"].as_array_mut();
    for backend in backends.into_iter().flatten() {
        backend["data_parallel_size"] = json!(2);
    }
    Ok(())
}

fn options(variant: Variant) -> FrontOptions {
    FrontOptions { edit: two_ranks, ..FrontOptions::new(variant) }
}

/// The server and the rank that each prompt was sent to.
async fn places(front: &Front, servers: &[Recorder]) -> BTreeMap<u32, (usize, String)> {
    let mut connection = front.connect(Version::Http1).await;
    let mut places = BTreeMap::new();
    for number in 0..PROMPTS {
        // A client's own wish is not what the filter reckons with.
        let headers = [(HEADER, "7")];
        let body = completion(&prompt(number, 20));
        let (_, answer) = post(&mut connection, PATH, &body, &headers).await;
        assert_eq!(answer.status, 200);
        let got = servers.iter().enumerate().flat_map(|(server, recorder)| {
            recorder.take().into_iter().map(move |seen| (server, seen.header(HEADER).join(",")))
        });
        let got: Vec<(usize, String)> = got.collect();
        assert_eq!(got.len(), 1, "{got:?}");
        places.extend(got.into_iter().map(|place| (number, place)));
    }
    places
}

async fn ranks(variant: Variant) {
    let servers = [Recorder::start().await, Recorder::start().await];
    let addresses = servers.each_ref().map(Recorder::address);
    let front = options(variant).start(&addresses).await;
    let first = places(&front, &servers).await;
    let distinct: BTreeSet<_> = first.values().collect();
    assert_eq!(distinct.len(), 4, "{distinct:?}");
    assert!(distinct.iter().all(|(_, rank)| ["0", "1"].contains(&rank.as_str())), "{distinct:?}");
    assert_eq!(places(&front, &servers).await, first);
    let status = front.status().await;
    let names: Vec<&Value> =
        status["backends"].as_array().unwrap().iter().map(|backend| &backend["name"]).collect();
    assert_eq!(names, ["engine-0/0", "engine-0/1", "engine-1/0", "engine-1/1"]);
    // A server chooses the engine for responses itself.
    let before = front.decisions().await;
    let body = json!({"model": MODEL, "input": "hi",
        "kv_transfer_params": {"prompt_token_ids": prompt(1, 20)}});
    post(&mut front.connect(Version::Http1).await, "/v1/responses", &body, &[]).await;
    let decisions = difference(&before, &front.decisions().await);
    assert_eq!(decisions.into_iter().collect::<Vec<_>>(), [("rank_unnamed".to_owned(), 1)]);
    front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_returns_to_its_rank_by_cluster_header() {
    ranks(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_returns_to_its_rank_by_override_host() {
    ranks(Variant::OverrideHost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_a_dead_servers_requests_is_known_by_its_rank() {
    let servers = [Recorder::start().await];
    let addresses = [dead_address(), servers[0].address()];
    let front = options(Variant::OverrideHost).start(&addresses).await;
    let first = places(&front, &servers).await;
    assert_eq!(places(&front, &servers).await, first);
    let elsewhere = front.metric("served_elsewhere_total").await;
    assert!(elsewhere > 0, "no request was sent to the dead server");
    front.assert_no_crash().await;
}
