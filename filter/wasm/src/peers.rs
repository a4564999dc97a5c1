//! Tells other Envoys what this VM does, and takes in what theirs do.
//!
//! Nobody lists the peers. One VM asks the peers' cluster each second, without naming a host: whoever answers says
//! who it is and where it listens, and is told by every VM from then on, through the same cluster, by its
//! address. Messages are callouts whose answers nobody waits for.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ahash::AHashMap;
use warmpath_core::config::Peers;
use warmpath_core::ids::NowMs;
use warmpath_core::limits::PEER_MESSAGE_BYTES_MAX;
use warmpath_core::metrics::Metric;
use warmpath_core::peers::known::{self, Change};
use warmpath_core::peers::message::{MessageError, name_hash};
use warmpath_core::peers::{Event, Message, loads};

use crate::host::{self, Callout, HostStore};
use crate::plugin::Plugin;
use crate::stream::ENDPOINT_HEADER;
use crate::vm::Vm;

/// Path of both endpoints: who is there (GET), and a message (POST).
const PATH: &str = "/_warmpath/peers";

/// Header of an answer that names the Envoy.
pub const ENVOY_HEADER: &str = "x-warmpath-envoy";

/// Header of an answer that says where it listens.
pub const ADDRESS_HEADER: &str = "x-warmpath-address";

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Who is there is asked this often; after a find, at once.
const HELLO_MS: u64 = 1_000;

/// Hosts asked at a time.
const HELLOS_MAX: usize = 16;

/// Messages to one peer that may be under way. A peer that takes longer than so many intervals misses some.
const UNDER_WAY_MAX: usize = 4;

/// Who an Envoy is to its peers.
pub struct Greeting {
    /// What it calls itself.
    pub envoy: String,
    /// Where it listens, as `ip:port`.
    pub address: String,
}

impl Greeting {
    /// In a stream's callbacks: this Envoy, at the address that the stream came to.
    pub fn own(vm: &Vm) -> Option<Self> {
        let envoy = format!("{:016x}", vm.envoy()?);
        Some(Self { envoy, address: host::property_text(&["destination", "address"])? })
    }

    /// In the callout's callback: who answered.
    fn answered() -> Option<Self> {
        let is_good = host::callout_header(":status").as_deref() == Some(b"200");
        is_good.then_some(())?;
        let envoy = host::callout_header_text(ENVOY_HEADER)?;
        Some(Self { envoy, address: host::callout_header_text(ADDRESS_HEADER)? })
    }
}

/// Takes in a peer's message.
///
/// # Errors
/// [`MessageError`] when it cannot be read.
pub fn take_in(vm: &Vm, bytes: &[u8]) -> Result<(), MessageError> {
    let bounded = bytes.get(..PEER_MESSAGE_BYTES_MAX).unwrap_or(bytes);
    let (message, unknown) = Message::decode(bounded)?;
    // The cluster may have this Envoy too.
    if vm.envoy() == Some(message.envoy) {
        return Ok(());
    }
    let now = host::now();
    match loads::record(&HostStore, &message, now) {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        Err(_) => vm.stats.add(Metric::StoreUpdatesLost, 1),
    }
    let mut events = message.events;
    events.retain(|event| !keep_endpoint(vm, event, now));
    // What the newest configuration does not know may be another one's.
    for plugin in vm.living() {
        events = take_in_under(&plugin, events, now);
        if !events.is_empty() {
            // Or a backend's that another VM has just learnt of.
            plugin.refresh();
            events = take_in_under(&plugin, events, now);
        }
    }
    vm.stats.add(Metric::PeerMessages, 1);
    vm.stats.add(Metric::PeerEventsForeign, unknown + events.len() as u64);
    vm.stats.flush();
    Ok(())
}

/// Takes in what a configuration knows of; returns the rest.
fn take_in_under(plugin: &Plugin, events: Vec<Event>, now: NowMs) -> Vec<Event> {
    if events.is_empty() {
        return events;
    }
    let Ok(models) = plugin.models.try_borrow() else { return events };
    let taken = plugin.write(now, |writer| writer.take_in(&models, events));
    let Some(taken) = taken else { return Vec::new() };
    plugin.vm.stats.written(taken.written);
    taken.foreign
}

/// Whether `event` is about a host that serves; it is kept where backends are observed.
fn keep_endpoint(vm: &Vm, event: &Event, now: NowMs) -> bool {
    let Event::Serves { config, address } = event else { return false };
    let is_meant =
        |plugin: &Rc<Plugin>| plugin.config.observe && name_hash(&plugin.config.name) == *config;
    if let Some(plugin) = vm.living().find(is_meant)
        && address.parse::<SocketAddr>().is_ok()
    {
        plugin.keep_endpoint(address, now);
    }
    true
}

/// What is under way.
enum Call {
    Hello,
    Message { address: String },
}

/// Tells the peers of one configuration.
#[derive(Default)]
pub struct Teller {
    calls: AHashMap<u32, Call>,
    asked_at: NowMs,
}

impl Teller {
    /// Tells the peers what is new in the VM, if it is time, and looks for more of them if this plugin's root
    /// context is the one that does. Returns in how many milliseconds there will be something to tell; `None` if
    /// there is nothing yet.
    pub fn tell(&mut self, plugin: &Plugin, is_leader: bool, now: NowMs) -> Option<u64> {
        // Where there are several configurations, each one's tick tells for all, by the newest.
        let teller = plugin.vm.teller()?;
        let peers = teller.config.peers.as_ref()?;
        if is_leader && std::ptr::eq(&*teller, plugin) && now.has_passed(HELLO_MS, self.asked_at) {
            self.asked_at = now;
            self.ask(peers);
        }
        let mut ledger = plugin.vm.ledger.try_borrow_mut().ok()?;
        let interval_ms = u64::from(peers.interval_ms);
        let due_ms = ledger.tells_in_ms(interval_ms, now)?;
        if due_ms > 0 {
            return Some(due_ms);
        }
        let message = ledger.message(plugin.vm.envoy()?, now);
        plugin.vm.stats.add(Metric::PeerEventsDropped, ledger.outbox.take_dropped());
        let next_ms = ledger.tells_in_ms(interval_ms, now);
        drop(ledger);
        for peer in known::load(&HostStore).unwrap_or_default() {
            self.send(plugin, peers, peer.address, &message, now);
        }
        next_ms
    }

    /// Asks who is there: as many hosts, one after the other, as are known, this one and one more.
    fn ask(&mut self, peers: &Peers) {
        let known = known::load(&HostStore).map_or(0, |known| known.len());
        for _ in 0..(known + 2).min(HELLOS_MAX) {
            if let Some(token) = callout(peers, PATH, &[]).get() {
                self.calls.insert(token, Call::Hello);
            }
        }
    }

    fn send(
        &mut self,
        plugin: &Plugin,
        peers: &Peers,
        address: String,
        message: &[u8],
        now: NowMs,
    ) {
        let is_to = |call: &&Call| matches!(call, Call::Message { address: to } if *to == address);
        if self.calls.values().filter(is_to).count() >= UNDER_WAY_MAX {
            plugin.vm.stats.add(Metric::PeerMessagesLost, 1);
            return;
        }
        let more = [(ENDPOINT_HEADER, address.as_str())];
        match callout(peers, PATH, &more).post(message) {
            Some(token) => {
                self.calls.insert(token, Call::Message { address });
            }
            None => lost(plugin, &address, "the cluster is unknown", now),
        }
    }

    /// A callout ended, if it is one of these. `has_headers` is false when it failed.
    pub fn answered(&mut self, plugin: &Plugin, token: u32, has_headers: bool) -> bool {
        let Some(call) = self.calls.remove(&token) else { return false };
        let own = plugin.vm.envoy().map(|envoy| format!("{envoy:016x}"));
        let answer = if has_headers { Greeting::answered() } else { None };
        match (call, answer) {
            (Call::Hello, Some(found)) if Some(&found.envoy) != own.as_ref() => {
                if keep(plugin, &found.address) {
                    // There may be more.
                    self.asked_at = NowMs(0);
                }
            }
            (Call::Hello, _) => {}
            (Call::Message { address }, Some(taken)) if taken.address == address => {
                keep(plugin, &address);
            }
            // The cluster has no such host, or not any more.
            (Call::Message { address }, Some(_)) => {
                lost(plugin, &address, "another host answered in its place", host::now());
            }
            (Call::Message { address }, None) => {
                let status = host::callout_header_text(":status").filter(|_| has_headers);
                let why = status.unwrap_or_else(|| "no answer".to_owned());
                lost(plugin, &address, &why, host::now());
            }
        }
        true
    }
}

/// The peer at `address` answered. Returns whether it is new.
fn keep(plugin: &Plugin, address: &str) -> bool {
    match known::answered(&HostStore, address) {
        Ok(Change::Found) => {
            log::info!("warmpath: the peer at {address} is told from now on");
            true
        }
        Ok(_) => false,
        Err(_) => {
            plugin.vm.stats.add(Metric::StoreUpdatesLost, 1);
            false
        }
    }
}

/// A message did not reach the peer at `address`.
fn lost(plugin: &Plugin, address: &str, why: &str, now: NowMs) {
    plugin.vm.stats.add(Metric::PeerMessagesLost, 1);
    match known::failed(&HostStore, address, now) {
        Ok(Change::Gone) => {
            log::warn!("warmpath: the peer at {address} does not take messages any more: {why}");
        }
        Ok(_) => {}
        Err(_) => plugin.vm.stats.add(Metric::StoreUpdatesLost, 1),
    }
}

fn callout<'a>(peers: &'a Peers, path: &'a str, more: &'a [(&'a str, &'a str)]) -> Callout<'a> {
    let cluster = peers.cluster.as_str();
    Callout { cluster, authority: cluster, path, more, timeout: TIMEOUT }
}
