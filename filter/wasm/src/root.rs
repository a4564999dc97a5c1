//! The plugin's life: configuration, the tick, callouts' answers.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;
use warmpath_core::config::Config;
use warmpath_core::ids::NowMs;
use warmpath_core::metrics::Metric;
use warmpath_core::model::Model;
use warmpath_core::parity;

use crate::bundles::Bundles;
use crate::host::{self, HostStore};
use crate::stats::ModelStats;
use crate::stream::Stream;
use crate::vm::Vm;

/// Tick while bundles are missing: routing by tokens starts at most this much later than it could.
const TICK_LOADING: Duration = Duration::from_millis(50);

/// Tick otherwise; leases and gauges are made for it.
const TICK: Duration = Duration::from_secs(1);

/// What a plugin's streams need of it. Streams keep it alive when the configuration changes.
pub struct Plugin {
    /// The checked configuration.
    pub config: Config,
    /// Loaded models, at the positions of the configuration's.
    pub models: RefCell<Vec<Option<Rc<Model>>>>,
    /// Stats of the models, at the same positions.
    pub model_stats: Vec<ModelStats>,
    /// The VM's state.
    pub vm: Rc<Vm>,
}

impl Plugin {
    /// Tells Envoy what the VM and the plugin's models counted.
    pub fn flush_stats(&self) {
        self.vm.stats.flush();
        self.model_stats.iter().for_each(ModelStats::flush);
    }

    /// Shows which models are approximate, and warns about them once a minute.
    fn watch_parity(&self, now: NowMs) {
        for (model, stats) in self.config.models.iter().zip(&self.model_stats) {
            let Ok(parity) = parity::load(&HostStore, &model.name) else { continue };
            stats.approximate(parity.is_approximate());
            if parity.is_approximate()
                && parity::claim_warning(&HostStore, now, &model.name) == Ok(true)
            {
                log::warn!(
                    "warmpath: model {} is approximate: {} of the last {} prompts had another \
                     length in the engine, the last one {} tokens by our count and {} by the \
                     engine's; is its bundle made from the engine's own tokenizer and template?",
                    model.name,
                    parity.disagreements(),
                    parity.answers,
                    parity.ours_tokens,
                    parity.theirs_tokens,
                );
            }
        }
    }
}

/// One plugin configuration in one VM.
#[derive(Default)]
pub struct Root {
    plugin: Option<Rc<Plugin>>,
    bundles: Bundles,
    is_slow_tick: bool,
}

impl Context for Root {
    fn on_http_call_response(
        &mut self,
        token_id: u32,
        num_headers: usize,
        body_size: usize,
        _num_trailers: usize,
    ) {
        let Some(plugin) = &self.plugin else { return };
        let answered = self.bundles.answered(token_id, num_headers > 0, body_size, &plugin.vm);
        if let Some((index, model)) = answered
            && let Ok(mut models) = plugin.models.try_borrow_mut()
            && let Some(slot) = models.get_mut(index)
        {
            *slot = Some(model);
        }
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, plugin_configuration_size: usize) -> bool {
        let json = host::plugin_configuration(plugin_configuration_size);
        let config = match Config::parse(&json) {
            Ok(config) => config,
            Err(error) => {
                log::error!("warmpath: configuration refused: {error}");
                return false;
            }
        };
        let vm = Vm::get();
        let sources = config.models.iter().map(|model| model.bundle.clone());
        let (bundles, models) = Bundles::want(sources, &vm);
        self.bundles = bundles;
        // The first fetch waits for the first tick: while Envoy starts, its clusters are not there yet.
        let model_stats =
            config.models.iter().map(|model| ModelStats::define(&model.name)).collect();
        let models = RefCell::new(models);
        self.plugin = Some(Rc::new(Plugin { config, models, model_stats, vm }));
        self.is_slow_tick = self.bundles.complete();
        host::set_tick_period(if self.is_slow_tick { TICK } else { TICK_LOADING });
        true
    }

    fn on_tick(&mut self) {
        let Some(plugin) = &self.plugin else { return };
        let now = host::now();
        self.bundles.fetch(now, &plugin.vm);
        if !self.is_slow_tick && self.bundles.complete() {
            self.is_slow_tick = true;
            host::set_tick_period(TICK);
        }
        plugin.watch_parity(now);
        let stats = &plugin.vm.stats;
        let Ok(mut ledger) = plugin.vm.ledger.try_borrow_mut() else { return };
        if ledger.heartbeat(&HostStore, now).is_err() {
            stats.add(Metric::StoreUpdatesLost, 1);
        }
        if let Ok(totals) = ledger.totals(&HostStore, now) {
            let in_flight = totals.values().map(|load| u64::from(load.running)).sum();
            stats.record(Metric::InFlight, in_flight);
        }
        plugin.flush_stats();
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        self.plugin.clone().map(|plugin| Box::new(Stream::new(plugin)) as Box<dyn HttpContext>)
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
