//! The configurations of `examples/`, as the control plane that each is for makes them Envoy's.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use warmpath_e2e::bed::{Bed, post};
use warmpath_e2e::client::{Answer, Connection, Version, whole};
use warmpath_e2e::fleet::{fast, kill, served_once};
use warmpath_e2e::gateways::{EXAMPLE_MODEL, Gateway};
use warmpath_e2e::poll;
use warmpath_harness::fleet::{Fleet, FleetOptions, Served};
use warmpath_harness::http::HttpClient;
use warmpath_harness::paths;

const CHAT: &str = "/v1/chat/completions";
const ENGINES: usize = 3;
/// The main thread's VM and the two workers'.
const VMS: u64 = 3;

async fn start(gateway: &Gateway) -> Bed {
    let bundle = Some(paths::demo_bundle().expect("the demo's bundle"));
    let options = FleetOptions { bundle, model: EXAMPLE_MODEL.to_owned(), ..fast(ENGINES) };
    let fleet = Fleet::start(&options).await.expect("engines");
    let front = gateway.start(fleet.addresses()).await;
    front.wait_for_bundles(VMS).await;
    Bed { front, fleet }
}

/// A chat of some hundred tokens; each number has a text of its own.
fn chat(number: usize) -> Value {
    chat_of(&format!("Tell me about {number}. ").repeat(60))
}

fn chat_of(text: &str) -> Value {
    let messages = json!([{"role": "user", "content": text}]);
    json!({"model": EXAMPLE_MODEL, "messages": messages, "max_tokens": 2})
}

fn decision(answer: &Answer) -> &str {
    answer.headers["x-warmpath-decision"].to_str().expect("text")
}

async fn send(bed: &Bed, connection: &mut Connection, body: &Value) -> (Served, Answer) {
    let (id, answer) = post(connection, CHAT, body, &[]).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    (served_once(&bed.fleet, &id).await, answer)
}

/// Sends new chats until the status lists every engine.
async fn all_engines_are_found(bed: &Bed, connection: &mut Connection) {
    let mut number = 10_000;
    poll::until("every engine in the status", async || {
        number += 1;
        send(bed, connection, &chat(number)).await;
        let backends = bed.front.status().await["backends"].clone();
        if backends.as_array().map(Vec::len) == Some(ENGINES) { Ok(()) } else { Err(backends) }
    })
    .await;
}

/// Chats come back to their engine, and new ones use several. Returns who holds which.
async fn chats_return(bed: &Bed, connection: &mut Connection) -> BTreeMap<usize, usize> {
    let mut holders = BTreeMap::new();
    for number in 0..12 {
        let (served, answer) = send(bed, connection, &chat(number)).await;
        holders.insert(number, served.engine);
        let decision = decision(&answer);
        let address = bed.fleet.addresses()[served.engine].to_string();
        assert!(decision.starts_with("explore") || decision.contains(&address), "{decision}");
    }
    // The one that was found first has served most, and may get no new one for a while.
    let used: BTreeSet<usize> = holders.values().copied().collect();
    assert!(used.len() > 1, "{holders:?}");
    let mut hits = 0;
    for (number, holder) in &holders {
        let (served, answer) = send(bed, connection, &chat(*number)).await;
        if decision(&answer).starts_with("explore") {
            continue;
        }
        assert_eq!(served.engine, *holder, "chat {number}");
        assert!(decision(&answer).starts_with("prefix_hit"), "{}", decision(&answer));
        let cached = served.cached_tokens.expect("a number");
        assert!(cached > 300, "chat {number}: {cached} tokens");
        assert!(decision(&answer).contains(&format!("cached={cached}")), "{}", decision(&answer));
        hits += 1;
    }
    // Each worker leaves one in sixteen requests, at most, to Envoy: there may be engines that it alone knows.
    assert!(hits >= 10, "{hits} of 12");
    holders
}

/// Requests that the filter leaves to Envoy: their headers reach the balancer as it left them.
async fn clients_cannot_name_the_engine(bed: &Bed, connection: &mut Connection) {
    let first = bed.fleet.addresses()[0].to_string();
    let forged = [("x-gateway-destination-endpoint", &*first), ("x-warmpath-cluster", "none")];
    let before = served_by_envoy(bed).await;
    for _ in 0..12 {
        let request = connection.request("GET", "/v1/models", &forged, whole(""));
        let answer = poll::within("an answer", connection.send(request)).await.expect("an answer");
        assert_eq!(answer.status, 200);
    }
    let after = served_by_envoy(bed).await;
    let used = after.iter().filter(|(engine, count)| before.get(*engine) != Some(*count));
    assert!(used.count() > 1, "all went to {first}, which the client named: {after:?}");
}

/// How many requests Envoy sent to each engine.
async fn served_by_envoy(bed: &Bed) -> BTreeMap<String, u64> {
    hosts(bed, "rq_total").await
}

/// A figure of each engine in Envoy's eyes.
async fn hosts(bed: &Bed, figure: &str) -> BTreeMap<String, u64> {
    let client = HttpClient::new();
    let page = client.get(bed.front.envoy.admin(), "/clusters").await.expect("an answer").text();
    let figure = format!("::{figure}::");
    let counts = page.lines().filter_map(|line| {
        let (host, count) = line.split_once(&figure)?;
        let (_, address) = host.split_once("::")?;
        Some((address.to_owned(), count.parse().ok()?))
    });
    let is_engine = |(address, _): &(String, u64)| {
        bed.fleet.addresses().iter().any(|one| one.to_string() == *address)
    };
    counts.filter(is_engine).collect()
}

/// What every example must do.
async fn works(bed: &mut Bed) {
    let mut connection = bed.front.connect(Version::Http1).await;
    all_engines_are_found(bed, &mut connection).await;
    let holders = chats_return(bed, &mut connection).await;

    clients_cannot_name_the_engine(bed, &mut connection).await;

    // Bodies beyond what a proxy buffers by itself, over both versions of HTTP.
    let long = chat_of(&"a long story ".repeat(160_000));
    for version in [Version::Http1, Version::Http2] {
        let mut connection = bed.front.connect(version).await;
        let (_, answer) = send(bed, &mut connection, &long).await;
        assert!(decision(&answer).contains("prompt=480004"), "{}", decision(&answer));
    }

    // The filter's own endpoints are not for clients.
    let request = connection.request("GET", "/_warmpath/status", &[], whole(""));
    let answer = poll::within("an answer", connection.send(request)).await.expect("an answer");
    assert_eq!(answer.status, 404);

    // What a dead engine held is served by another one.
    let dead = holders[&0];
    kill(&mut bed.fleet, dead).await;
    // Istio does not try again what was sent into a connection that is being closed.
    let address = bed.fleet.addresses()[dead].to_string();
    poll::until_equal("no connection to the dead", Some(0), async || {
        hosts(bed, "cx_active").await.get(&address).copied()
    })
    .await;
    for (number, _) in holders.iter().filter(|(_, holder)| **holder == dead) {
        let (id, answer) = post(&mut connection, CHAT, &chat(*number), &[]).await;
        assert_eq!(answer.status, 200, "chat {number}: {:?}", answer.body);
        assert_ne!(served_once(&bed.fleet, &id).await.engine, dead, "chat {number}");
    }
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_and_kubernetes_run_one_envoy() {
    let mut bed = start(&Gateway::dns()).await;
    let metrics = bed.front.envoy.listener("metrics").await.expect("its address");
    let client = HttpClient::new();
    let get = async |path: &str| client.get(metrics, path).await.expect("an answer");
    assert_eq!(get("/ready").await.status, 200);
    let page = get("/stats/prometheus").await.text();
    assert!(page.contains("warmpath_bundles_loaded_total"), "{page}");
    for path in ["/quitquitquit", "/config_dump", "/stats", "/"] {
        assert_eq!(get(path).await.status, 404, "{path}");
    }
    works(&mut bed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn own_machines() {
    works(&mut start(&Gateway::own_machines()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn istio() {
    works(&mut start(&Gateway::istio()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_gateway() {
    works(&mut start(&Gateway::envoy_gateway()).await).await;
}
