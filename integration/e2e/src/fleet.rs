//! Simulated engines, and finding a request in their records.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use warmpath_harness::fleet::{Fleet, FleetOptions, Profile, Served};

use crate::poll;
use crate::prompts::MODEL;

/// The header by which a test finds its request in the engines' records.
pub const ID_HEADER: &str = "x-e2e-id";

/// Engines that answer as fast as the machine can and hold more than any test sends.
pub fn fast(engines: usize) -> FleetOptions {
    let profile = Profile::named("a100-1b").expect("a profile of this name");
    let profile =
        Profile { kv_tokens: 1 << 23, prefill_tokens_per_s: 1e9, decode_step_ms: 1.0, ..profile };
    FleetOptions { engines, profile, speed: 50.0, bundle: None, model: MODEL.to_owned() }
}

/// Engines that give a token every tenth of a second: an answer of thousands lasts longer than any test.
pub fn slow_decode(engines: usize) -> FleetOptions {
    let FleetOptions { profile, bundle, model, .. } = fast(engines);
    let profile = Profile { decode_step_ms: 100.0, ..profile };
    FleetOptions { engines, profile, speed: 1.0, bundle, model }
}

/// An address at which nothing listens.
pub fn dead_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("its address")
}

/// Kills an engine and waits until nothing listens there.
pub async fn kill(fleet: &mut Fleet, engine: usize) {
    fleet.kill(engine);
    let address = fleet.addresses()[engine];
    poll::until("the engine's port to close", async || {
        match tokio::net::TcpStream::connect(address).await {
            Ok(_) => Err("it is open"),
            Err(_) => Ok(()),
        }
    })
    .await;
}

/// Every record of the request with this id, of all living engines.
pub async fn find(fleet: &Fleet, id: &str) -> Vec<Served> {
    let mut served = fleet.served().await.expect("records");
    served.retain(|request| request.header(ID_HEADER) == Some(id));
    served
}

/// The one record of the request with this id.
pub async fn served_once(fleet: &Fleet, id: &str) -> Served {
    let mut found = find(fleet, id).await;
    assert_eq!(found.len(), 1, "request {id} should be served once: {found:?}");
    found.remove(0)
}

/// What the engines count, summed over all of them, all living.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests computed or queued.
    pub open: u64,
    /// Requests that came to their end.
    pub finished: u64,
    /// Requests whose client left.
    pub aborted: u64,
}

/// The engines' counters, summed.
pub async fn totals(fleet: &Fleet) -> Totals {
    let mut totals = Totals::default();
    for engine in 0..fleet.addresses().len() {
        let stats = fleet.stats(engine).await.expect("statistics");
        let count = |name: &str| stats[name].as_u64().expect("a number");
        totals.open += count("running") + count("waiting");
        totals.finished += count("finished");
        totals.aborted += count("aborted");
    }
    totals
}
