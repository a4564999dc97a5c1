//! Tells other Envoys what this VM does, and takes in what theirs do.
//!
//! Nobody lists the peers. One VM asks the peers' cluster each second, without naming a host: whoever answers says
//! who it is and where it listens, and is told by every VM from then on, through the same cluster, by its
//! address. Messages are callouts whose answers nobody waits for.

use std::time::Duration;

use ahash::AHashMap;
use warmpath_core::config::Peers;
use warmpath_core::ids::NowMs;
use warmpath_core::limits::PEER_MESSAGE_BYTES_MAX;
use warmpath_core::metrics::Metric;
use warmpath_core::peers::known::{self, Change};
use warmpath_core::peers::message::MessageError;
use warmpath_core::peers::{self, Message, loads};

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
    // Events of a configuration that this VM has under another one's name, or not yet, are tried with each.
    for plugin in vm.living() {
        let Ok(models) = plugin.models.try_borrow() else { continue };
        let left = std::mem::take(&mut events);
        let Some(taken) = plugin.write(now, |writer| writer.take_in(&models, left)) else { break };
        vm.stats.written(taken.written);
        events = taken.foreign;
        if events.is_empty() {
            break;
        }
    }
    vm.stats.add(Metric::PeerMessages, 1);
    vm.stats.add(Metric::PeerEventsForeign, unknown + events.len() as u64);
    vm.stats.flush();
    Ok(())
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
    told_at: NowMs,
    asked_at: NowMs,
}

impl Teller {
    /// Tells the peers what is new, if it is time, and looks for more of them if this VM is the one that does.
    /// Returns in how many milliseconds there will be something to tell; `None` if there is nothing yet.
    pub fn tell(&mut self, plugin: &Plugin, is_leader: bool, now: NowMs) -> Option<u64> {
        let peers = plugin.config.peers.as_ref()?;
        // Where there are several configurations, one tells for all.
        plugin.vm.teller().filter(|teller| std::ptr::eq(&**teller, plugin))?;
        if is_leader && now.has_passed(HELLO_MS, self.asked_at) {
            self.asked_at = now;
            if let Some(token) = callout(peers, PATH, &[]).get() {
                self.calls.insert(token, Call::Hello);
            }
        }
        let mut ledger = plugin.vm.ledger.try_borrow_mut().ok()?;
        if !ledger.has_news(now) {
            return None;
        }
        let interval_ms = u64::from(peers.interval_ms);
        if !now.has_passed(interval_ms, self.told_at) {
            return Some(interval_ms.saturating_sub(now.since_ms(self.told_at)));
        }
        self.told_at = now;
        let message = ledger.message(plugin.vm.envoy()?, now)?;
        let dropped = ledger.outbox.as_mut().map_or(0, peers::Outbox::take_dropped);
        plugin.vm.stats.add(Metric::PeerEventsDropped, dropped);
        for peer in known::load(&HostStore).unwrap_or_default() {
            self.send(plugin, peers, peer.address, &message);
        }
        None
    }

    fn send(&mut self, plugin: &Plugin, peers: &Peers, address: String, message: &[u8]) {
        let is_to = |call: &&Call| matches!(call, Call::Message { address: to } if *to == address);
        let under_way = self.calls.values().filter(is_to).count();
        let more = [(ENDPOINT_HEADER, address.as_str())];
        let token = match under_way < UNDER_WAY_MAX {
            true => callout(peers, PATH, &more).post(message),
            false => None,
        };
        match token {
            Some(token) => {
                self.calls.insert(token, Call::Message { address });
            }
            None => plugin.vm.stats.add(Metric::PeerMessagesLost, 1),
        }
    }

    /// A callout ended, if it is one of these. `has_headers` is false when it failed.
    pub fn answered(&mut self, plugin: &Plugin, token: u32, has_headers: bool) -> bool {
        let Some(call) = self.calls.remove(&token) else { return false };
        let own = plugin.vm.envoy().map(|envoy| format!("{envoy:016x}"));
        let answer = if has_headers { Greeting::answered() } else { None };
        let other = answer.filter(|it| Some(&it.envoy) != own.as_ref());
        let change = match (&call, other) {
            (Call::Hello, Some(found)) => known::answered(&HostStore, &found.address)
                .inspect(|change| log_change(*change, &found.address)),
            (Call::Hello, None) => return true,
            (Call::Message { address }, Some(taken)) if taken.address == *address => {
                known::answered(&HostStore, address)
            }
            // It failed, or the cluster does not have the address any more and another one answered.
            (Call::Message { address }, _) => {
                plugin.vm.stats.add(Metric::PeerMessagesLost, 1);
                known::failed(&HostStore, address).inspect(|change| log_change(*change, address))
            }
        };
        match change {
            // There may be more.
            Ok(Change::Found) => self.asked_at = NowMs(0),
            Ok(_) => {}
            Err(_) => plugin.vm.stats.add(Metric::StoreUpdatesLost, 1),
        }
        true
    }
}

fn log_change(change: Change, address: &str) {
    match change {
        Change::Found => log::info!("warmpath: the peer at {address} is told from now on"),
        Change::Gone => log::warn!("warmpath: the peer at {address} does not answer any more"),
        Change::None => {}
    }
}

fn callout<'a>(peers: &'a Peers, path: &'a str, more: &'a [(&'a str, &'a str)]) -> Callout<'a> {
    let cluster = peers.cluster.as_str();
    Callout { cluster, authority: cluster, path, more, timeout: TIMEOUT }
}
