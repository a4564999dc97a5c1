//! Several Envoys before the same engines, as the examples run them: what one did, the others know.

use std::net::SocketAddr;

use http_body_util::BodyExt;
use hyper::body::Bytes;
use serde_json::{Value, json};
use warmpath_core::ids::BackendId;
use warmpath_core::load::BackendLoad;
use warmpath_core::peers::{Event, Message};
use warmpath_e2e::bed::{Front, post};
use warmpath_e2e::client::{Version, whole};
use warmpath_e2e::fleet::{fast, served_once, slow_decode};
use warmpath_e2e::gateways::{EXAMPLE_MODEL, Gateway};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::prompt;
use warmpath_harness::envoy::free_port;
use warmpath_harness::fleet::{Fleet, FleetOptions, Served};
use warmpath_harness::http::{self, HttpAnswer, HttpClient};
use warmpath_harness::{Peers, paths};

const ENGINES: usize = 3;
const ENVOYS: usize = 2;
const COMPLETIONS: &str = "/v1/completions";
const PEERS: &str = "/_warmpath/peers";

/// Envoys and what they share.
struct Town {
    fronts: Vec<Front>,
    listeners: Vec<SocketAddr>,
    fleet: Fleet,
}

impl Town {
    async fn start(gateway: Gateway, engines: FleetOptions) -> Self {
        let bundle = Some(paths::demo_bundle().expect("the demo's bundle"));
        let options = FleetOptions { bundle, model: EXAMPLE_MODEL.to_owned(), ..engines };
        let fleet = Fleet::start(&options).await.expect("engines");
        let listener = |_| SocketAddr::from(([127, 0, 0, 1], free_port().expect("a port")));
        let listeners: Vec<SocketAddr> = (0..ENVOYS).map(listener).collect();
        let mut fronts = Vec::new();
        for listener in &listeners {
            let peers = Peers { port: listener.port(), all: listeners.clone() };
            let gateway = Gateway { peers: Some(peers), ..gateway.clone() };
            fronts.push(gateway.start(fleet.addresses()).await);
        }
        let town = Self { fronts, listeners, fleet };
        for (index, front) in town.fronts.iter().enumerate() {
            front.wait_for_bundles(3).await;
            let others: Vec<String> = town
                .listeners
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != index)
                .map(|(_, it)| it.to_string())
                .collect();
            poll::until_equal("the others found", json!(others), async || {
                front.status().await["peers"]["told"].clone()
            })
            .await;
        }
        town
    }

    /// Sends new prompts through every Envoy until each knows every engine.
    async fn all_engines_are_found(&self) {
        let mut number = 10_000;
        for (index, front) in self.fronts.iter().enumerate() {
            poll::until("every engine in the status", async || {
                number += 1;
                self.send(index, &prompt(number, 4)).await;
                let backends = front.status().await["backends"].clone();
                if backends.as_array().map(Vec::len) == Some(ENGINES) {
                    Ok(())
                } else {
                    Err(backends)
                }
            })
            .await;
        }
    }

    async fn send(&self, envoy: usize, prompt: &[u32]) -> (Served, String) {
        let mut connection = self.fronts[envoy].connect(Version::Http1).await;
        let body = json!({"model": EXAMPLE_MODEL, "prompt": prompt, "max_tokens": 2});
        let (id, answer) = post(&mut connection, COMPLETIONS, &body, &[]).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let decision = answer.headers["x-warmpath-decision"].to_str().expect("text").to_owned();
        (served_once(&self.fleet, &id).await, decision)
    }

    /// What went wrong between the Envoys.
    async fn losses(&self) -> Vec<(u64, u64)> {
        let mut losses = Vec::new();
        for front in &self.fronts {
            let lost = front.metric("peer_messages_lost_total").await;
            losses.push((lost, front.metric("peer_events_foreign_total").await));
        }
        losses
    }

    /// What an Envoy would do with a prompt.
    async fn explain(&self, envoy: usize, prompt: &[u32]) -> Value {
        let body = json!({"model": EXAMPLE_MODEL, "prompt": prompt, "max_tokens": 2});
        self.fronts[envoy].explain(COMPLETIONS, &body).await
    }
}

async fn ask(method: &str, to: SocketAddr, path: &str, body: &[u8]) -> HttpAnswer {
    let body = Bytes::copy_from_slice(body);
    let request = http::request(method, to, path, &[], body).expect("a request");
    HttpClient::new().send(request).await.expect("an answer")
}

/// Requests of peers on each engine that has any, by an Envoy's status.
async fn peers_requests(front: &Front) -> Vec<u64> {
    let status = front.status().await;
    let backends = status["backends"].as_array().cloned().unwrap_or_default();
    let running = backends.iter().filter_map(|it| it["peers"]["running"].as_u64());
    running.filter(|running| *running > 0).collect()
}

async fn what_one_envoy_sent_the_other_finds(gateway: Gateway) {
    let town = Town::start(gateway, fast(ENGINES)).await;
    town.all_engines_are_found().await;
    for number in 0..12 {
        let prompt = prompt(number, 20);
        let (first, _) = town.send(0, &prompt).await;
        // The message is on its way for some milliseconds.
        poll::until("the other Envoy to know", async || {
            let explained = town.explain(1, &prompt).await;
            if explained["reason"] == "prefix_hit" { Ok(()) } else { Err(town.losses().await) }
        })
        .await;
        // Some are left to Envoy, to find engines, and may go anywhere.
        let mut holders = vec![first.engine];
        let (second, decision) = poll::until("a pick", async || {
            let (served, decision) = town.send(1, &prompt).await;
            if !decision.starts_with("explore") {
                return Ok((served, decision));
            }
            holders.push(served.engine);
            Err(decision)
        })
        .await;
        let address = town.fleet.addresses()[second.engine].to_string();
        assert!(decision.starts_with("prefix_hit") && decision.contains(&address), "{decision}");
        assert_eq!(second.cached_tokens, Some(320), "prompt {number}");
        assert!(decision.contains("cached=320"), "{decision}");
        assert!(holders.contains(&second.engine), "{} is none of {holders:?}", second.engine);
    }
    for front in &town.fronts {
        assert!(front.metric("peer_messages_total").await > 0);
        assert_eq!(front.metric("peer_events_dropped_total").await, 0);
        front.assert_no_crash().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_and_kubernetes() {
    what_one_envoy_sent_the_other_finds(Gateway::dns()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn istio() {
    what_one_envoy_sent_the_other_finds(Gateway::istio()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_gateway() {
    what_one_envoy_sent_the_other_finds(Gateway::envoy_gateway()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_envoy_runs_counts_for_the_other_until_it_ends_or_the_envoy_does() {
    let mut town = Town::start(Gateway::dns(), slow_decode(ENGINES)).await;
    town.all_engines_are_found().await;
    let open = async |town: &Town, number: u32| {
        let mut connection = town.fronts[0].connect(Version::Http1).await;
        let body = json!({"model": EXAMPLE_MODEL, "prompt": prompt(number, 4), "max_tokens": 100_000, "stream": true});
        let headers = [("content-type", "application/json")];
        let request = connection.request("POST", COMPLETIONS, &headers, whole(body.to_string()));
        let response = poll::within("a head", connection.start(request)).await.expect("an answer");
        let mut body = response.into_body();
        poll::within("a token", body.frame()).await.expect("a token").expect("no error");
        (connection, body)
    };
    let running = async |town: &Town| -> u64 { peers_requests(&town.fronts[1]).await.iter().sum() };
    let streams = (open(&town, 1).await, open(&town, 2).await);
    poll::until_equal("both streams at the other Envoy", 2, async || running(&town).await).await;
    assert_eq!(town.fronts[1].status().await["in_flight"], 0, "they are not its own");
    // They are told again each second, so that they do not end with the lease.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert_eq!(running(&town).await, 2);
    drop(streams.0);
    poll::until_equal("one stream left", 1, async || running(&town).await).await;

    // The Envoy goes, and with it its load, and in the end its address.
    let second = town.fronts.pop().expect("an Envoy");
    drop(std::mem::replace(&mut town.fronts, vec![second]));
    let rest = &town.fronts[0];
    poll::until_equal("no load of the dead", 0, async || peers_requests(rest).await.len()).await;
    poll::until_equal("nobody to tell", json!({"told": [], "heard": 0}), async || {
        let mut connection = rest.connect(Version::Http1).await;
        let body = json!({"model": EXAMPLE_MODEL, "prompt": prompt(3, 4), "max_tokens": 1});
        post(&mut connection, COMPLETIONS, &body, &[]).await;
        rest.status().await["peers"].clone()
    })
    .await;
    rest.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_peers_listener_takes_messages_and_nothing_else() {
    let town = Town::start(Gateway::dns(), fast(ENGINES)).await;
    let (front, listener) = (&town.fronts[0], town.listeners[0]);
    for path in [
        "/_warmpath/",
        "/_warmpath/status",
        "/_warmpath/backends",
        "/_warmpath/explain/v1/completions",
        "/",
    ] {
        for method in ["GET", "PUT", "POST"] {
            assert_eq!(ask(method, listener, path, b"{}").await.status, 404, "{method} {path}");
        }
    }
    assert_eq!(ask("PUT", listener, PEERS, b"").await.status, 405);
    // Clients cannot reach it.
    assert_eq!(ask("GET", front.address(), PEERS, b"").await.status, 404);

    let greeting = ask("GET", listener, PEERS, b"").await;
    assert_eq!(greeting.json()["address"], listener.to_string());
    let envoy = greeting.json()["envoy"].as_str().expect("a name").to_owned();
    let own = u64::from_str_radix(&envoy, 16).expect("a number");

    let event = Event::Decoded { backend: BackendId(7), blocks: u32::MAX };
    let load = BackendLoad { running: u32::MAX, prefilling: 1, ..BackendLoad::default() };
    let message = Message {
        envoy: own ^ 1,
        vm: 5,
        sequence: 3,
        loads: vec![(BackendId(7), load)],
        events: vec![event.clone(), event],
    };
    let bytes = message.encode();
    for broken in [&b""[..], b"{}", &bytes[..bytes.len() - 1], &[9, 9, 9], &[2; 2 << 20]] {
        let status = ask("POST", listener, PEERS, broken).await.status;
        assert!([400, 413].contains(&status), "{status} for {} bytes", broken.len());
    }
    let foreign = async || front.metric("peer_events_foreign_total").await;
    assert_eq!(foreign().await, 0);
    // Twice the same message, and one of its own: once it is taken in.
    let of_its_own = Message { envoy: own, vm: 6, ..message.clone() };
    for message in [&message, &message, &of_its_own] {
        assert_eq!(ask("POST", listener, PEERS, &message.encode()).await.status, 200);
    }
    poll::until_equal("events about engines that nobody knows", 2, foreign).await;
    let served = town.send(0, &prompt(1, 20)).await.0;
    assert_eq!(served.prompt_tokens, 323);
    front.assert_no_crash().await;
}
