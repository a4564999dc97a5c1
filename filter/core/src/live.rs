//! The configuration as it is at a moment: with the endpoints that were pushed or observed, and what
//! engines say of their memory in the place of what was configured.
//!
//! Made anew when one of these changes, so that decisions read plain values.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;

use crate::config::{Backend, Config};
use crate::endpoints::{self, Endpoints};
use crate::ids::BackendId;
use crate::reported::Reported;
use crate::store::{SharedStore, StoreError};

/// Block sizes below this are finer than is worth a hash each.
const BLOCK_SIZE_TOKENS_FINE: u32 = 8;

/// A configuration with what is known besides.
#[derive(Clone, Debug)]
pub struct Live {
    /// The configuration that decisions read.
    pub config: Rc<Config>,
    /// What engines said last.
    pub reported: Reported,
    /// Models whose configured block size engines contradict.
    pub contradictions: Vec<Contradiction>,
    endpoints: Endpoints,
    constants: Vec<Constants>,
}

/// Engines have another block size than was configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Position of the model.
    pub model_index: usize,
    /// What is configured.
    pub configured: NonZeroU32,
    /// What engines say, and is used; `None` when they differ among each other, so that the configured
    /// one stays.
    pub reported: Option<NonZeroU32>,
}

/// What an engine says of itself that does not change while it runs.
type Constants = (BackendId, Option<NonZeroU32>, Option<NonZeroU32>);

impl Live {
    /// The configuration as it was written.
    #[must_use]
    pub fn configured(config: &Config) -> Self {
        Self::build(config, Endpoints::default(), Reported::default())
    }

    /// Reads the shared state, if the configuration has a use for it.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses a read.
    pub fn refresh<S: SharedStore>(
        &self,
        store: &S,
        configured: &Config,
    ) -> Result<Self, StoreError> {
        let endpoints = match configured.observe || configured.push {
            true => Endpoints::load(store, &configured.name)?,
            false => Endpoints::default(),
        };
        let reported = match &configured.scrape {
            Some(_) => Reported::load(store, &configured.name)?,
            None => Reported::default(),
        };
        let is_known = |backend: &Arc<Backend>| {
            let (id, capacity, block_size) = constants(&reported, backend.id);
            self.constants.contains(&(id, capacity, block_size))
        };
        if endpoints == self.endpoints && self.config.backends.iter().all(is_known) {
            let (config, contradictions) = (Rc::clone(&self.config), self.contradictions.clone());
            let constants = self.constants.clone();
            return Ok(Self { config, reported, contradictions, endpoints, constants });
        }
        Ok(Self::build(configured, endpoints, reported))
    }

    fn build(configured: &Config, endpoints: Endpoints, reported: Reported) -> Self {
        let mut config = endpoints::effective(configured, &endpoints);
        let constants: Vec<Constants> =
            config.backends.iter().map(|backend| constants(&reported, backend.id)).collect();
        for (backend, (_, capacity, _)) in config.backends.iter_mut().zip(&constants) {
            if capacity.is_some() && *capacity != backend.kv_capacity_tokens {
                let mut said = Backend::clone(backend);
                said.kv_capacity_tokens = *capacity;
                *backend = Arc::new(said);
            }
        }
        let contradictions = correct_block_sizes(&mut config, &constants);
        Self { config: Rc::new(config), reported, contradictions, endpoints, constants }
    }
}

fn constants(reported: &Reported, id: BackendId) -> Constants {
    (id, reported.kv_capacity_tokens(id), reported.block_size_tokens(id))
}

/// An engine that caches almost token by token (SGLang's page of one) is better tracked in the
/// configured steps, which are whole numbers of its own.
fn is_fine_grained(reported: NonZeroU32, configured: NonZeroU32) -> bool {
    reported.get() < BLOCK_SIZE_TOKENS_FINE && configured.get().is_multiple_of(reported.get())
}

fn correct_block_sizes(config: &mut Config, constants: &[Constants]) -> Vec<Contradiction> {
    let mut contradictions = Vec::new();
    for (model_index, model) in config.models.iter_mut().enumerate() {
        let serving = config.backends.iter().zip(constants);
        let serving = serving.filter(|(backend, _)| backend.models.contains(model_index));
        let mut sizes: Vec<NonZeroU32> = serving.filter_map(|(_, (_, _, size))| *size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let configured = model.block_size_tokens;
        let reported = match sizes.as_slice() {
            [] => continue,
            [size] if *size == configured || is_fine_grained(*size, configured) => continue,
            [size] => Some(*size),
            _ => None,
        };
        model.block_size_tokens = reported.unwrap_or(configured);
        contradictions.push(Contradiction { model_index, configured, reported });
    }
    contradictions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NowMs;
    use crate::load::BackendLoad;
    use crate::reported;
    use crate::signals::EngineReport;
    use crate::store::MemoryStore;

    fn config() -> Config {
        let json = r#"{"name":"n","push":true,"kv_capacity_tokens":1000,
            "backends":[{"name":"a","cluster":"a","models":["m"]},{"name":"b","cluster":"b"}],
            "models":[{"name":"m","bundle":{"cluster":"c","path":"/m"}},
                      {"name":"n","block_size_tokens":32,"bundle":{"cluster":"c","path":"/n"}}]}"#;
        Config::parse(json.as_bytes()).unwrap()
    }

    fn report(store: &MemoryStore, name: &str, block_size: u32, blocks: u32) {
        let report = EngineReport {
            block_size_tokens: NonZeroU32::new(block_size),
            kv_blocks: NonZeroU32::new(blocks),
            ..EngineReport::default()
        };
        let id = BackendId::from_name(name);
        reported::record(store, "n", id, &report, BackendLoad::default(), NowMs(1)).unwrap();
    }

    fn capacities(live: &Live) -> Vec<u32> {
        let capacity =
            |backend: &Arc<Backend>| backend.kv_capacity_tokens.map_or(0, NonZeroU32::get);
        live.config.backends.iter().map(capacity).collect()
    }

    #[test]
    fn what_engines_say_takes_the_place_of_what_was_configured() {
        let (store, config) = (MemoryStore::default(), config());
        let live = Live::configured(&config).refresh(&store, &config).unwrap();
        assert_eq!(capacities(&live), [1_000, 1_000]);
        report(&store, "a", 32, 100);
        let live = live.refresh(&store, &config).unwrap();
        assert_eq!(capacities(&live), [3_200, 1_000]);
        let sizes = |live: &Live| -> Vec<u32> {
            live.config.models.iter().map(|model| model.block_size_tokens.get()).collect()
        };
        assert_eq!(sizes(&live), [32, 32]);
        let configured = NonZeroU32::new(16).unwrap();
        let mut contradiction =
            Contradiction { model_index: 0, configured, reported: NonZeroU32::new(32) };
        assert_eq!(live.contradictions, [contradiction]);
        // Only `b` serves the second model; on the first one they differ now.
        report(&store, "b", 64, 100);
        let live = live.refresh(&store, &config).unwrap();
        assert_eq!(sizes(&live), [16, 64]);
        contradiction.reported = None;
        assert_eq!(live.contradictions[0], contradiction);
        assert_eq!(live.contradictions.len(), 2);
    }

    #[test]
    fn an_engine_that_caches_token_by_token_is_tracked_in_configured_steps() {
        let (store, config) = (MemoryStore::default(), config());
        report(&store, "a", 1, 10_000);
        report(&store, "b", 1, 10_000);
        let live = Live::configured(&config).refresh(&store, &config).unwrap();
        assert_eq!(live.config.models[0].block_size_tokens.get(), 16);
        assert!(live.contradictions.is_empty());
        assert_eq!(capacities(&live), [10_000, 10_000]);
    }

    #[test]
    fn a_push_is_seen_at_the_next_refresh() {
        let (store, config) = (MemoryStore::default(), config());
        let live = Live::configured(&config);
        let pushed = config.parse_push(br#"{"backends":[{"address":"10.0.0.1:1"}]}"#, NowMs(0));
        endpoints::push(&store, &config, &pushed.unwrap()).unwrap();
        assert_eq!(capacities(&live.refresh(&store, &config).unwrap()), [1_000; 3]);
    }
}
