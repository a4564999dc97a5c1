//! Reads the engines' metrics by callout, in the one VM that holds the lease.
//!
//! Each engine in its own time: readings are spread over the interval, one that fails is repeated after
//! a growing pause, and none is started while the one before is under way.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use warmpath_core::config::{Backend, Config, Scrape};
use warmpath_core::endpoints;
use warmpath_core::health::HealthTable;
use warmpath_core::ids::{BackendId, NowMs};
use warmpath_core::lease::{self, Candidate};
use warmpath_core::limits::METRICS_BYTES_MAX;
use warmpath_core::live::{Contradiction, Live};
use warmpath_core::metrics::Metric;
use warmpath_core::reported;
use warmpath_core::signals::parse_metrics;
use warmpath_core::turn::Turn;

use crate::host::{self, Callout, HostStore};
use crate::plugin::Plugin;
use crate::stream::ENDPOINT_HEADER;

/// Longest pause after failures: an engine without metrics costs a request each half minute.
const PAUSE_MAX_MS: u64 = 30_000;

/// Pause where no reading can be started.
const UNREACHABLE_PAUSE_MS: u64 = 2_000;

/// Readings of one configuration.
pub struct Scraper {
    candidate: Candidate,
    is_leader: bool,
    targets: AHashMap<BackendId, Target>,
    tokens: AHashMap<u32, Target>,
    contradictions: Vec<Contradiction>,
    rng: fastrand::Rng,
}

#[derive(Clone, Copy)]
struct Target {
    backend: BackendId,
    turn: Turn,
    failures: u32,
    is_under_way: bool,
}

impl Scraper {
    /// The scraper of a configuration made at `born`.
    pub fn new(random: u64, born: NowMs) -> Self {
        Self {
            candidate: Candidate { nonce: random, born },
            is_leader: false,
            targets: AHashMap::default(),
            tokens: AHashMap::default(),
            contradictions: Vec::new(),
            rng: fastrand::Rng::with_seed(random),
        }
    }

    /// Takes or renews the lease; its holder tidies the shared lists. Returns whether this VM has it.
    pub fn renew(&mut self, plugin: &Plugin, live: &Live, now: NowMs) -> bool {
        let name = &plugin.config.name;
        self.is_leader = lease::hold(&HostStore, name, self.candidate, now).unwrap_or(false);
        if !self.is_leader {
            self.targets.clear();
            return false;
        }
        let backends = &live.config.backends;
        let is_known = |id| backends.iter().any(|backend| backend.id == id);
        self.targets.retain(|id, _| is_known(*id));
        let tidied = reported::keep(&HostStore, name, is_known)
            .and_then(|()| endpoints::expire(&HostStore, name, now));
        if tidied.is_err() {
            plugin.vm.stats.add(Metric::StoreUpdatesLost, 1);
        }
        self.warn(live);
        true
    }

    /// Whether this VM does what only one must do.
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }

    /// Starts the readings that are due.
    pub fn scrape(&mut self, plugin: &Plugin, live: &Live, now: NowMs) {
        let Some(scrape) = plugin.config.scrape.as_ref().filter(|_| self.is_leader) else { return };
        let health = HealthTable::load(&HostStore).unwrap_or_default();
        for backend in live.config.backends.iter().filter(|it| it.is_first_of_server()) {
            let first_ms = self.rng.u64(..u64::from(scrape.interval_ms));
            let target = self.targets.entry(backend.id).or_insert(Target {
                backend: backend.id,
                turn: Turn::after(now, first_ms),
                failures: 0,
                is_under_way: false,
            });
            // Whoever failed a request is looked for all the time: its return is waited for.
            if health.get(backend.id).is_some() {
                target.turn = target.turn.within(now, scrape.interval_ms.into());
            }
            if target.is_under_way || !target.turn.is_due(now) {
                continue;
            }
            let Some(token) = start(scrape, &live.config, backend) else {
                // No cluster leads there, or not yet.
                target.turn = Turn::after(now, UNREACHABLE_PAUSE_MS);
                continue;
            };
            target.is_under_way = true;
            self.tokens.insert(token, *target);
        }
    }

    /// A callout ended, if it is one of these. `has_headers` is false when it failed.
    pub fn answered(
        &mut self,
        plugin: &Plugin,
        token: u32,
        has_headers: bool,
        body_bytes: usize,
        now: NowMs,
    ) -> bool {
        let Some(mut target) = self.tokens.remove(&token) else { return false };
        let live = plugin.live(now);
        let is_read = has_headers && self.read(plugin, &live, target.backend, body_bytes, now);
        target.failures = if is_read { 0 } else { target.failures.saturating_add(1) };
        let metric = if is_read { Metric::Scrapes } else { Metric::ScrapeFailures };
        plugin.vm.stats.add(metric, 1);
        for silent in engines_of(&live, target.backend).filter(|_| !is_read) {
            if reported::failed(&HostStore, &plugin.config.name, silent.id).is_err() {
                plugin.vm.stats.add(Metric::StoreUpdatesLost, 1);
            }
        }
        let interval_ms =
            plugin.config.scrape.as_ref().map_or(PAUSE_MAX_MS, |it| it.interval_ms.into());
        let doublings = target.failures.min(16);
        let pause_ms = (interval_ms << doublings).min(PAUSE_MAX_MS.max(interval_ms));
        // With a tenth of jitter.
        let wait_ms = pause_ms - pause_ms / 20 + self.rng.u64(..=pause_ms / 10);
        let is_in_pace = target.failures == 0;
        target.turn =
            if is_in_pace { target.turn.next(now, wait_ms) } else { Turn::after(now, wait_ms) };
        target.is_under_way = false;
        self.targets.insert(target.backend, target);
        true
    }

    /// Takes in what a server says of each of its engines; whether it could be read.
    fn read(
        &self,
        plugin: &Plugin,
        live: &Live,
        backend: BackendId,
        body_bytes: usize,
        now: NowMs,
    ) -> bool {
        if host::callout_header(":status").as_deref() != Some(b"200")
            || body_bytes > METRICS_BYTES_MAX
        {
            return false;
        }
        let text = host::callout_body(body_bytes).unwrap_or_default();
        let Some(totals) = plugin.vm.totals(now) else { return false };
        let mut is_read = false;
        for engine in engines_of(live, backend) {
            let Ok(report) = parse_metrics(&text, engine.data_parallel) else { continue };
            is_read = true;
            let own = totals.load_with_peers(engine.id);
            match reported::record(&HostStore, &plugin.config.name, engine.id, &report, own, now) {
                Ok(true) => {
                    plugin.vm.stats.add(Metric::BackendRestarts, 1);
                    let name = &engine.name;
                    log::info!("warmpath: backend {name} was started anew: its cache is empty");
                }
                Ok(false) => {}
                Err(_) => plugin.vm.stats.add(Metric::StoreUpdatesLost, 1),
            }
        }
        is_read
    }

    /// Warns of block sizes that engines contradict, once for each change.
    fn warn(&mut self, live: &Live) {
        if self.contradictions == live.contradictions {
            return;
        }
        self.contradictions.clone_from(&live.contradictions);
        for contradiction in &live.contradictions {
            let model = live.config.models.get(contradiction.model_index);
            let name = model.map_or("", |model| model.name.as_str());
            let configured = contradiction.configured;
            match contradiction.reported {
                Some(reported) => log::warn!(
                    "warmpath: model {name}: block_size_tokens is configured as {configured}, its \
                     engines say {reported}, which is used"
                ),
                None => log::warn!(
                    "warmpath: model {name}: its engines differ in their block sizes; the configured \
                     {configured} is used"
                ),
            }
        }
    }
}

/// The backend and the others of its server; nobody, if it has left.
fn engines_of(live: &Live, id: BackendId) -> impl Iterator<Item = &Backend> {
    let one = live.config.backends.iter().find(|backend| backend.id == id);
    one.into_iter().flat_map(|one| live.config.engines_of(one))
}

/// Starts one reading; `None` where the engine cannot be reached through any cluster.
fn start(scrape: &Scrape, config: &Config, backend: &Arc<Backend>) -> Option<u32> {
    let timeout = Duration::from_millis(scrape.timeout_ms.into());
    let (cluster, address) = (backend.cluster.as_deref(), backend.address.as_deref());
    let path = &scrape.path;
    match (cluster, &config.endpoint_cluster) {
        (Some(cluster), _) => {
            let authority = address.unwrap_or(cluster);
            Callout { cluster, authority, path, more: &[], timeout }.get()
        }
        (None, Some(cluster)) => {
            let authority = address?;
            let more = &[(ENDPOINT_HEADER, authority)];
            Callout { cluster, authority, path, more, timeout }.get()
        }
        (None, None) => None,
    }
}
