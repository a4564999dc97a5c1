//! Backends beside the configured ones: pushed by an operator's tool, or learnt from who served.
//!
//! All workers share one list a configuration name. It changes rarely and is small, so it is one
//! JSON value, written by compare-and-swap and read when [`effective`] configurations are made anew,
//! a few times a second; decisions do not read it.
//!
//! An observed backend is found because some requests are left to Envoy's own balancing
//! ([`crate::explore`]), and goes when Envoy no longer knows its address, when it fails like a dead
//! process, or when it has served nothing for [`OBSERVED_AGE_MS`].

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::{Backend, Config, DataParallel, Drain, ModelSet, Source};
use crate::health;
use crate::ids::{BackendId, NowMs};
use crate::limits::BACKENDS_MAX;
use crate::residency::{self, Clock};
use crate::store::{self, SharedStore, StoreError};
use crate::wire::Key;

/// An observed backend that has served nothing for this long goes. A living one is found again by the
/// next request that is left to Envoy.
pub const OBSERVED_AGE_MS: u64 = 600_000;

/// How stale the note of an observed backend's last answer may become: a write each so often a
/// backend.
const SEEN_EVERY_MS: u64 = 10_000;

/// One backend of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Endpoint {
    name: String,
    cluster: Option<String>,
    address: Option<String>,
    kv_capacity_tokens: Option<NonZeroU32>,
    /// By name, for positions change with the configuration; `None` for all.
    models: Option<Vec<String>>,
    data_parallel: Option<DataParallel>,
    source: Source,
    is_draining: bool,
    drain_until_ms: Option<u64>,
    /// When an observed one last served.
    seen_ms: u64,
}

/// The shared list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints(Vec<Endpoint>);

impl Endpoints {
    /// Reads the list of the configuration called `name`.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses the read.
    pub fn load<S: SharedStore>(store: &S, name: &str) -> Result<Self, StoreError> {
        let entry = store.get(&key(name))?;
        Ok(Self::decode(entry.as_ref().map_or(&[], |entry| &entry.value)))
    }

    fn decode(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// `None` leaves the value alone; this type cannot fail to be written.
    fn encode(&self) -> Option<Vec<u8>> {
        serde_json::to_vec(self).ok()
    }
}

/// The configuration with the list's backends after its own.
#[must_use]
pub fn effective(config: &Config, endpoints: &Endpoints) -> Config {
    let mut effective = config.clone();
    for endpoint in &endpoints.0 {
        let wanted = match endpoint.source {
            Source::Observed => config.observe,
            Source::Pushed => config.push,
            Source::Configured => false,
        };
        let backend = backend(config, endpoint);
        let is_new = effective.backends.iter().all(|it| it.id != backend.id && !it.is_at(&backend));
        if wanted && is_new && effective.backends.len() < BACKENDS_MAX {
            effective.backends.push(Arc::new(backend));
        }
    }
    effective
}

/// A backend that was observed at `address`.
#[must_use]
pub fn observed_backend(config: &Config, address: &str) -> Backend {
    backend(config, &observed_endpoint(address, NowMs(0)))
}

fn backend(config: &Config, endpoint: &Endpoint) -> Backend {
    let models = endpoint.models.as_ref().map_or(ModelSet::ALL, |names| {
        let mut set = ModelSet::default();
        let position = |name: &String| config.models.iter().position(|model| model.name == *name);
        names.iter().filter_map(position).for_each(|position| set.insert(position));
        set
    });
    Backend {
        id: BackendId::from_name(&endpoint.name),
        name: endpoint.name.clone(),
        cluster: endpoint.cluster.clone(),
        address: endpoint.address.clone(),
        kv_capacity_tokens: endpoint.kv_capacity_tokens.or(config.kv_capacity_tokens),
        models,
        data_parallel: endpoint.data_parallel,
        source: endpoint.source,
        drain: endpoint.is_draining.then(|| Drain { until: endpoint.drain_until_ms.map(NowMs) }),
    }
}

fn observed_endpoint(address: &str, now: NowMs) -> Endpoint {
    Endpoint {
        name: address.to_owned(),
        cluster: None,
        address: Some(address.to_owned()),
        kv_capacity_tokens: None,
        models: None,
        data_parallel: None,
        source: Source::Observed,
        is_draining: false,
        drain_until_ms: None,
        seen_ms: now.0,
    }
}

/// Notes that `address` served. Returns whether it is new. Writes only if it is, or if the last note
/// is old.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn seen<S: SharedStore>(
    store: &S,
    name: &str,
    address: &str,
    now: NowMs,
) -> Result<bool, StoreError> {
    let mut is_new = false;
    store::update(store, &key(name), |bytes| {
        let mut endpoints = Endpoints::decode(bytes);
        let has_room = endpoints.0.len() < BACKENDS_MAX;
        let known = endpoints.0.iter_mut().find(|it| it.address.as_deref() == Some(address));
        is_new = known.is_none() && has_room;
        match known {
            Some(endpoint) if !now.has_passed(SEEN_EVERY_MS, NowMs(endpoint.seen_ms)) => {
                return None;
            }
            Some(endpoint) => endpoint.seen_ms = now.0,
            None if !has_room => return None,
            None => endpoints.0.push(observed_endpoint(address, now)),
        }
        endpoints.encode()
    })?;
    Ok(is_new)
}

/// Puts `backends` in the place of all that were pushed before.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn push<S: SharedStore>(
    store: &S,
    config: &Config,
    backends: &[Backend],
) -> Result<(), StoreError> {
    let names = |set: ModelSet| {
        let all = config.models.iter().enumerate();
        let names = all.filter(|(position, _)| set.contains(*position));
        (set != ModelSet::ALL).then(|| names.map(|(_, model)| model.name.clone()).collect())
    };
    let pushed = |backend: &Backend| Endpoint {
        name: backend.name.clone(),
        cluster: backend.cluster.clone(),
        address: backend.address.clone(),
        kv_capacity_tokens: backend.kv_capacity_tokens,
        models: names(backend.models),
        data_parallel: backend.data_parallel,
        source: Source::Pushed,
        is_draining: backend.drain.is_some(),
        drain_until_ms: backend.drain.and_then(|drain| drain.until).map(|until| until.0),
        seen_ms: 0,
    };
    change(store, &config.name, true, |endpoints| {
        // Who pushes the same list again does not put the end of a drain off.
        let drains = |it: &Endpoint| (it.name.clone(), it.drain_until_ms);
        let drains: Vec<_> = endpoints.iter().map(drains).collect();
        endpoints.retain(|it| {
            let is_replaced = |new: &Backend| new.address.is_some() && new.address == it.address;
            it.source != Source::Pushed && !backends.iter().any(is_replaced)
        });
        endpoints.extend(backends.iter().map(|backend| {
            let mut endpoint = pushed(backend);
            let before = drains.iter().find(|(name, _)| *name == endpoint.name);
            let before = before.and_then(|(_, until)| *until);
            endpoint.drain_until_ms =
                endpoint.drain_until_ms.map(|it| before.unwrap_or(it).min(it));
            endpoint
        }));
    })
}

/// Takes the observed backend `id` off the list.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn remove<S: SharedStore>(store: &S, name: &str, id: BackendId) -> Result<(), StoreError> {
    change(store, name, true, |endpoints| {
        endpoints.retain(|endpoint| {
            endpoint.source != Source::Observed || BackendId::from_name(&endpoint.name) != id
        });
    })
}

/// Takes off the list what has served nothing for too long.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn expire<S: SharedStore>(store: &S, name: &str, now: NowMs) -> Result<(), StoreError> {
    // An idle one may well hold what it held.
    change(store, name, false, |endpoints| {
        endpoints.retain_mut(|endpoint| {
            // Ahead, if the clock was set back.
            endpoint.seen_ms = endpoint.seen_ms.min(now.0);
            let age_ms = now.since_ms(NowMs(endpoint.seen_ms));
            endpoint.source != Source::Observed || age_ms < OBSERVED_AGE_MS
        });
    })
}

/// Changes the list, and forgets the troubles of those that went; with `forgets` their caches too, for
/// who returns comes back empty. Who has moved is another process under the old name.
fn change<S: SharedStore>(
    store: &S,
    name: &str,
    forgets: bool,
    mut change: impl FnMut(&mut Vec<Endpoint>),
) -> Result<(), StoreError> {
    let mut gone = Vec::new();
    store::update(store, &key(name), |bytes| {
        let before = Endpoints::decode(bytes);
        let mut after = before.clone();
        change(&mut after.0);
        let is_same = |old: &Endpoint, new: &Endpoint| {
            (&new.name, &new.address, &new.cluster) == (&old.name, &old.address, &old.cluster)
        };
        let stays = |old: &&Endpoint| after.0.iter().any(|new| is_same(old, new));
        gone = before.0.iter().filter(|old| !stays(old)).map(|old| old.name.clone()).collect();
        if before == after { None } else { after.encode() }
    })?;
    for name in gone {
        let id = BackendId::from_name(&name);
        health::forget(store, id)?;
        if forgets {
            residency::change(store, id, 0, Clock::restart)?;
        }
    }
    Ok(())
}

fn key(name: &str) -> Key {
    Key::named("e", name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    const CONFIG: &str = r#"{"name":"n","observe":true,"push":true,"endpoint_cluster":"c",
        "kv_capacity_tokens":1000,"backends":[{"address":"10.0.0.1:1"}],
        "models":[{"name":"m","bundle":{"cluster":"c","path":"/m"}},
                  {"name":"n","bundle":{"cluster":"c","path":"/n"}}]}"#;

    fn config() -> Config {
        Config::parse(CONFIG.as_bytes()).unwrap()
    }

    fn names(store: &MemoryStore) -> Vec<String> {
        let endpoints = Endpoints::load(store, "n").unwrap();
        let effective = effective(&config(), &endpoints);
        effective.backends.iter().map(|backend| backend.name.clone()).collect()
    }

    #[test]
    fn who_serves_is_noted_once_and_goes_when_it_is_old() {
        let store = MemoryStore::default();
        assert_eq!(seen(&store, "n", "10.0.0.2:1", NowMs(1_000)), Ok(true));
        assert_eq!(seen(&store, "n", "10.0.0.2:1", NowMs(2_000)), Ok(false));
        assert_eq!(seen(&store, "n", "10.0.0.1:1", NowMs(2_000)), Ok(true));
        assert_eq!(names(&store), ["10.0.0.1:1", "10.0.0.2:1"], "a configured one is not doubled");
        expire(&store, "n", NowMs(1_000 + OBSERVED_AGE_MS)).unwrap();
        assert_eq!(names(&store), ["10.0.0.1:1"]);
        let unobserved = Config { observe: false, ..config() };
        let list = Endpoints::load(&store, "n").unwrap();
        assert_eq!(effective(&unobserved, &list).backends.len(), 1);
    }

    #[test]
    fn a_push_replaces_the_push_before_and_leaves_the_observed() {
        let store = MemoryStore::default();
        let config = config();
        seen(&store, "n", "10.0.0.9:1", NowMs(0)).unwrap();
        let put = |body: &str| {
            let backends = config.parse_push(body.as_bytes(), NowMs(5_000)).unwrap();
            push(&store, &config, &backends).unwrap();
        };
        put(r#"{"backends":[{"address":"10.0.0.2:1"},{"name":"x","address":"10.0.0.3:1"}]}"#);
        assert_eq!(names(&store), ["10.0.0.1:1", "10.0.0.9:1", "10.0.0.2:1", "x"]);
        put(r#"{"backends":[{"name":"x","address":"10.0.0.3:1","models":["n"],"draining":true,
            "drain_s":60,"kv_capacity_tokens":7}]}"#);
        assert_eq!(names(&store), ["10.0.0.1:1", "10.0.0.9:1", "x"]);
        let effective = effective(&config, &Endpoints::load(&store, "n").unwrap());
        let backend = &effective.backends[2];
        assert!(backend.models.contains(1) && !backend.models.contains(0));
        assert_eq!(backend.drain, Some(Drain { until: Some(NowMs(65_000)) }));
        assert_eq!(backend.kv_capacity_tokens, NonZeroU32::new(7));
        assert_eq!(effective.backends[1].kv_capacity_tokens, NonZeroU32::new(1_000));
    }

    #[test]
    fn who_leaves_the_list_is_forgotten() {
        let store = MemoryStore::default();
        let id = BackendId::from_name("10.0.0.2:1");
        let generation = || residency::load(&store, id, 0).unwrap().generation;
        seen(&store, "n", "10.0.0.2:1", NowMs(0)).unwrap();
        remove(&store, "n", BackendId(1)).unwrap();
        assert_eq!(generation(), 0);
        remove(&store, "n", id).unwrap();
        assert_eq!((names(&store).len(), generation()), (1, 1));
    }

    #[test]
    fn who_comes_back_elsewhere_under_its_old_name_holds_nothing() {
        let (store, config) = (MemoryStore::default(), config());
        let id = BackendId::from_name("x");
        let put = |body: &str| {
            let backends = config.parse_push(body.as_bytes(), NowMs(0)).unwrap();
            push(&store, &config, &backends).unwrap();
            residency::load(&store, id, 0).unwrap().generation
        };
        assert_eq!(put(r#"{"backends":[{"name":"x","address":"10.0.0.2:1"}]}"#), 0);
        assert_eq!(put(r#"{"backends":[{"name":"x","address":"10.0.0.2:1","models":["n"]}]}"#), 0);
        assert_eq!(put(r#"{"backends":[{"name":"x","address":"10.0.0.3:1"}]}"#), 1);
        assert_eq!(put(r#"{"backends":[{"name":"x","cluster":"x"}]}"#), 2);
    }

    #[test]
    fn a_pushed_server_of_several_engines_is_as_many_backends() {
        let (store, config) = (MemoryStore::default(), config());
        let body = r#"{"backends":[{"name":"x","address":"10.0.0.2:1","data_parallel_size":2}]}"#;
        push(&store, &config, &config.parse_push(body.as_bytes(), NowMs(0)).unwrap()).unwrap();
        assert_eq!(names(&store), ["10.0.0.1:1", "x/0", "x/1"]);
        let effective = effective(&config, &Endpoints::load(&store, "n").unwrap());
        let rank = Some(DataParallel { rank: 1, size: 2 });
        assert_eq!(effective.backends[2].data_parallel, rank);
        let taken = r#"{"backends":[{"name":"x","address":"10.0.0.1:1","data_parallel_size":2}]}"#;
        let error = config.parse_push(taken.as_bytes(), NowMs(0)).unwrap_err().to_string();
        assert!(error.contains("[0].name"), "{error}");
    }

    #[test]
    fn a_wrong_push_changes_nothing_and_names_every_problem() {
        let config = config();
        let body = r#"{"backends":[{"address":"10.0.0.1:1"},{"name":"x"},{"address":"y"},
            {"address":"10.0.0.4:1","drain_s":5}]}"#;
        let error = config.parse_push(body.as_bytes(), NowMs(0)).unwrap_err().to_string();
        for path in ["[0].name", "[1].cluster", "[2].address", "[3].drain_s"] {
            assert!(error.contains(path), "{error}");
        }
    }

    #[test]
    fn an_unreadable_list_is_empty() {
        let store = MemoryStore::default();
        store.set(&key("n"), b"{", None).unwrap();
        assert_eq!(Endpoints::load(&store, "n"), Ok(Endpoints::default()));
        assert_eq!(seen(&store, "n", "10.0.0.2:1", NowMs(0)), Ok(true));
    }
}
