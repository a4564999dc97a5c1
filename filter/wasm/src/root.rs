//! The plugin's life: configuration, the tick, callouts' answers.

use std::rc::Rc;
use std::time::Duration;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;
use warmpath_core::config::{Config, Role};
use warmpath_core::ids::NowMs;
use warmpath_core::metrics::Metric;

use crate::admin::{Admin, Serves};
use crate::backlog;
use crate::bundles::Bundles;
use crate::host::{self, HostStore};
use crate::peers::Teller;
use crate::plugin::Plugin;
use crate::scrape::Scraper;
use crate::stream::Stream;
use crate::vm::Vm;

/// Tick while bundles are missing: routing by tokens starts at most this much later than it could.
const TICK_LOADING_MS: u64 = 50;

/// Tick otherwise: readings of metrics start at most this much later than they are due.
const TICK_MS: u64 = 200;

/// Leases and gauges are made for this.
const HEARTBEAT_MS: u64 = 1_000;

/// One plugin configuration in one VM.
#[derive(Default)]
pub struct Root {
    work: Option<Work>,
    /// What it serves, if it is on an internal listener.
    serves: Option<Serves>,
}

/// What the root context of a routing configuration does.
struct Work {
    plugin: Rc<Plugin>,
    bundles: Bundles,
    scraper: Scraper,
    teller: Teller,
    /// How often there is work.
    period_ms: u64,
    /// What the timer was set to here.
    timer_ms: u64,
    last_work: NowMs,
    last_heartbeat: NowMs,
}

impl Work {
    fn new(config: Config) -> Self {
        let vm = Vm::get();
        let sources = config.models.iter().map(|model| model.bundle.clone());
        let (bundles, models) = Bundles::want(sources, &vm);
        let scraper = Scraper::new(vm.draw().0, host::now());
        let plugin = Rc::new(Plugin::new(config, models, Rc::clone(&vm)));
        vm.register(&plugin);
        vm.open_to_peers();
        // The first fetch waits for the first tick: while Envoy starts, its clusters are not there yet.
        let period_ms = if bundles.complete() { TICK_MS } else { TICK_LOADING_MS };
        host::set_tick_period(Duration::from_millis(period_ms));
        let (last_work, last_heartbeat) = (NowMs(0), NowMs(0));
        let timer_ms = period_ms;
        let teller = Teller::default();
        Self { plugin, bundles, scraper, teller, period_ms, timer_ms, last_work, last_heartbeat }
    }

    fn tick(&mut self) {
        backlog::settle(&self.plugin);
        let now = host::now();
        // Timers may be a little early.
        if now.has_passed(self.period_ms * 9 / 10, self.last_work) {
            self.last_work = now;
            self.work(now);
        }
        let told_in_ms = self.teller.tell(&self.plugin, self.scraper.is_leader(), now);
        // Requests may have asked for this tick: the next one comes when work is due.
        let left_ms = self.period_ms.saturating_sub(now.since_ms(self.last_work));
        let left_ms = told_in_ms.map_or(left_ms, |told| told.min(left_ms)).max(1);
        if self.plugin.take_hurry() || left_ms != self.timer_ms {
            self.timer_ms = left_ms;
            host::set_tick_period(Duration::from_millis(left_ms));
        }
    }

    /// What is to be done each period.
    fn work(&mut self, now: NowMs) {
        let plugin = Rc::clone(&self.plugin);
        self.bundles.fetch(now, &plugin.vm);
        if self.bundles.complete() {
            self.period_ms = TICK_MS;
        }
        let newest = plugin.vm.newest(Some(&plugin.config.name));
        let is_newest = newest.is_some_and(|newest| Rc::ptr_eq(&newest, &plugin));
        if now.has_passed(HEARTBEAT_MS, self.last_heartbeat) {
            self.last_heartbeat = now;
            self.heartbeat(&plugin, is_newest, now);
        }
        plugin.vm.open_to_peers();
        if is_newest {
            self.scraper.scrape(&plugin, &plugin.live(now), now);
        }
    }

    fn heartbeat(&mut self, plugin: &Plugin, is_newest: bool, now: NowMs) {
        plugin.watch_parity(now);
        let stats = &plugin.vm.stats;
        let beat = plugin.vm.ledger.try_borrow_mut().map(|mut it| it.heartbeat(&HostStore, now));
        if matches!(beat, Ok(Err(_))) {
            stats.add(Metric::StoreUpdatesLost, 1);
        }
        if let Some(totals) = plugin.vm.totals(now) {
            let in_flight = totals.loads.values().map(|load| u64::from(load.running)).sum();
            stats.record(Metric::InFlight, in_flight);
            let live = plugin.live(now);
            if is_newest && self.scraper.renew(plugin, &live, now) {
                plugin.show_backends(&live, &totals, now);
            }
        }
    }

    fn answered(&mut self, token: u32, has_headers: bool, body_bytes: usize) {
        let plugin = &self.plugin;
        if self.scraper.answered(plugin, token, has_headers, body_bytes, host::now())
            || self.teller.answered(plugin, token, has_headers)
        {
            return;
        }
        let answered = self.bundles.answered(token, has_headers, body_bytes, &plugin.vm);
        if let Some((indices, model)) = answered
            && let Ok(mut models) = plugin.models.try_borrow_mut()
        {
            for index in indices {
                if let Some(slot) = models.get_mut(*index) {
                    *slot = Some(Rc::clone(&model));
                }
            }
        }
    }
}

impl Context for Root {
    /// The configuration was replaced, and its last stream is over.
    fn on_done(&mut self) -> bool {
        if let Some(work) = &self.work {
            backlog::settle(&work.plugin);
            work.plugin.retire_gauges();
            // Envoy would go on with the timer.
            host::set_tick_period(Duration::ZERO);
        }
        true
    }

    fn on_http_call_response(
        &mut self,
        token_id: u32,
        num_headers: usize,
        body_size: usize,
        _num_trailers: usize,
    ) {
        if let Some(work) = &mut self.work {
            work.answered(token_id, num_headers > 0, body_size);
        }
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, plugin_configuration_size: usize) -> bool {
        let json = host::plugin_configuration(plugin_configuration_size);
        match Role::parse(&json) {
            Ok(Role::Internal { is_for_peers: true }) => self.serves = Some(Serves::Peers),
            Ok(Role::Internal { is_for_peers: false }) => self.serves = Some(Serves::Everything),
            Ok(Role::Router(config)) => self.work = Some(Work::new(*config)),
            Err(error) => {
                log::error!("warmpath: configuration refused: {error}");
                return false;
            }
        }
        true
    }

    fn on_tick(&mut self) {
        if let Some(work) = &mut self.work {
            work.tick();
        }
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        if let Some(serves) = self.serves {
            return Some(Box::new(Admin::new(serves)));
        }
        let work = self.work.as_ref()?;
        Some(Box::new(Stream::new(Rc::clone(&work.plugin))))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
