//! The state of everything, for an operator: what `GET /_warmpath/status` answers.
//!
//! Read from the shared store when asked for; nothing is kept for it. What only Envoy or a VM knows
//! (counters, loaded bundles) comes from the caller. A store that fails shows as absent.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::Serialize;

use crate::config::{Backend, Policy, Source};
use crate::health::{Availability, HealthTable};
use crate::ids::{BackendId, NowMs};
use crate::index::Index;
use crate::lease;
use crate::limits::BUCKET_BYTES_MAX;
use crate::live::Live;
use crate::load::{BackendLoad, Ledger, Totals};
use crate::parity;
use crate::peers::known;
use crate::residency;
use crate::sightings::Sighting;
use crate::store::SharedStore;

/// Buckets of the tree that are read to estimate how full it is.
const BUCKETS_SAMPLED: u32 = 256;

/// What Envoy and the VM add.
pub struct Known<'a> {
    /// Whether the bundle of each configured model is loaded in this VM.
    pub bundles_loaded: &'a [bool],
    /// Decisions of all workers so far, by reason.
    pub decisions: Vec<(&'static str, u64)>,
    /// Tokens of each model, of all workers so far.
    pub tokens: Vec<ModelTokens>,
    /// Blocks that came into the tree and went from it, of all workers so far.
    pub tree_blocks: (u64, u64),
}

/// Tokens of one model, since Envoy's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelTokens {
    /// Of the prompts that were read.
    pub prompt: u64,
    /// Of these, predicted to be cached.
    pub predicted_cached: u64,
    /// Of these, cached as engines reported.
    pub reported_cached: u64,
    /// Of the prompts, as engines reported.
    pub reported_prompt: u64,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// The configuration's name.
    pub name: String,
    /// The moment, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// The policy.
    pub policy: Policy,
    /// Requests in flight, by the filter's own counts.
    pub in_flight: u64,
    /// Decisions so far, by reason; reasons that never occurred are left out.
    pub decisions: std::collections::BTreeMap<&'static str, u64>,
    /// The backends.
    pub backends: Vec<BackendStatus>,
    /// The models.
    pub models: Vec<ModelStatus>,
    /// The prefix tree.
    pub tree: TreeStatus,
    /// Milliseconds since the VM that scrapes renewed its lease; `None` when nobody has it.
    pub leader_age_ms: Option<u64>,
    /// Other Envoys before the same engines; `None` where none are configured.
    pub peers: Option<PeersStatus>,
}

/// Other Envoys before the same engines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeersStatus {
    /// Addresses to which this Envoy tells what it does.
    pub told: Vec<String>,
    /// Envoys that were heard of lately.
    pub heard: usize,
}

/// One backend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackendStatus {
    /// Its name.
    pub name: String,
    /// Its identity in shared state, in hexadecimal.
    pub id: String,
    /// Its address.
    pub address: Option<String>,
    /// Its own cluster.
    pub cluster: Option<String>,
    /// Who named it.
    pub source: Source,
    /// Names of the models that it serves.
    pub models: Vec<String>,
    /// `healthy`, `trial`, `doubtful`, `down` or `draining`.
    pub state: &'static str,
    /// Failures in a row.
    pub failures: u32,
    /// Milliseconds until it is tried again.
    pub retry_in_ms: Option<u64>,
    /// Load by the filter's own counts.
    pub load: BackendLoad,
    /// Load that peers put there, as they say.
    pub peers: BackendLoad,
    /// Load that others put there, as far as reports tell.
    pub others: BackendLoad,
    /// How many times as long as on the fastest backend anything takes, as this VM learnt.
    pub slowness: f32,
    /// Tokens of its KV memory that decisions reckon with; `None` while unknown.
    pub kv_capacity_tokens: Option<u32>,
    /// What its metrics said last; `None` when they were never read.
    pub report: Option<ReportStatus>,
    /// What a load report in an answer said last; `None` without one.
    pub load_report: Option<LoadReportStatus>,
    /// Its cache.
    pub cache: CacheStatus,
}

/// What an engine's metrics said last. Absent where it does not say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportStatus {
    /// Which engine.
    pub engine: Option<&'static str>,
    /// Milliseconds since; `None` when it never answered.
    pub age_ms: Option<u64>,
    /// Readings that failed since.
    pub failures: u16,
    /// Requests that it computes.
    pub running: Option<u32>,
    /// Requests in its queue.
    pub waiting: Option<u32>,
    /// Share of KV memory in use.
    pub kv_usage: Option<f32>,
    /// Tokens of KV memory.
    pub kv_capacity_tokens: Option<u32>,
    /// Tokens in a block.
    pub block_size_tokens: Option<u32>,
    /// Tokens of all prompts since its start.
    pub prompt_tokens: Option<u64>,
    /// Of these, tokens found in its cache.
    pub prefix_hit_tokens: Option<u64>,
}

/// What a load report in an answer said last.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoadReportStatus {
    /// Milliseconds since.
    pub age_ms: u64,
    /// Requests in its queue.
    pub waiting: u32,
    /// Share of KV memory in use.
    pub kv_usage: f32,
}

/// What is believed of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CacheStatus {
    /// How it is known: `estimated`.
    pub residency: &'static str,
    /// Lives of the cache so far, from 0.
    pub generation: u16,
    /// The clock's newest epoch.
    pub epoch: u32,
    /// Distance within which blocks are kept, in blocks; 0 while unknown.
    pub reach_blocks: u32,
    /// Distinct blocks touched that are believed to be there.
    pub resident_blocks: u32,
    /// Blocks that the cache holds at most; 0 while unknown.
    pub capacity_blocks: u32,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelStatus {
    /// Its name.
    pub name: String,
    /// Whether its bundle is loaded in the VM that answers.
    pub is_loaded: bool,
    /// Tokens in a block that decisions reckon with.
    pub block_size_tokens: u32,
    /// What is configured, where engines contradict it.
    pub configured_block_size_tokens: Option<u32>,
    /// Of the last answers, how many were compared.
    pub parity_answers: u32,
    /// Of these, how many disagreed about the prompt's length.
    pub parity_disagreements: u32,
    /// Whether the model is approximate.
    pub is_approximate: bool,
    /// Its tokens.
    pub tokens: ModelTokens,
}

/// The prefix tree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TreeStatus {
    /// Its buckets.
    pub buckets: u32,
    /// Blocks in it.
    pub blocks: u64,
    /// Bytes in it, estimated from some of its buckets.
    pub bytes: u64,
    /// Bytes that it takes at most.
    pub bytes_max: u64,
}

/// Reads the state of everything.
#[must_use]
pub fn status<S: SharedStore>(
    store: &S,
    live: &Live,
    ledger: &Ledger,
    known: Known<'_>,
    now: NowMs,
) -> Status {
    let config = &live.config;
    let totals = ledger.totals(store, now).unwrap_or_default();
    let health = HealthTable::load(store).unwrap_or_default();
    let slowness = ledger.slowness();
    let backends = config.backends.iter().map(|backend| {
        let slowness = slowness(backend.id);
        backend_status(
            store,
            live,
            backend,
            &Seen { totals: &totals, health: &health, slowness, now },
        )
    });
    let leader = lease::holder(store, &config.name).ok().flatten();
    Status {
        name: config.name.clone(),
        now_ms: now.0,
        policy: config.policy,
        in_flight: totals.loads.values().map(|load| u64::from(load.running)).sum(),
        backends: backends.collect(),
        models: models_status(store, live, known.bundles_loaded, &known.tokens),
        tree: tree_status(store, config.index_buckets, known.tree_blocks),
        leader_age_ms: leader.map(|(_, renewed)| now.since_ms(renewed)),
        peers: config.peers.as_ref().map(|_| PeersStatus {
            told: known::load(store).unwrap_or_default().into_iter().map(|it| it.address).collect(),
            heard: ledger.peers.envoys,
        }),
        decisions: known.decisions.into_iter().filter(|(_, count)| *count > 0).collect(),
    }
}

struct Seen<'a> {
    totals: &'a Totals,
    health: &'a HealthTable,
    slowness: f32,
    now: NowMs,
}

fn backend_status<S: SharedStore>(
    store: &S,
    live: &Live,
    backend: &Arc<Backend>,
    seen: &Seen<'_>,
) -> BackendStatus {
    let (id, now) = (backend.id, seen.now);
    let sighting = seen.totals.sightings.get(&id);
    let trouble = seen.health.get(id);
    let served = live.config.models.iter().enumerate();
    let served = served.filter(|(position, _)| backend.models.contains(*position));
    BackendStatus {
        name: backend.name.clone(),
        id: id.to_string(),
        address: backend.address.clone(),
        cluster: backend.cluster.clone(),
        source: backend.source,
        models: served.map(|(_, model)| model.name.clone()).collect(),
        state: match seen.health.availability(id, live.reported.reported_at(id), now) {
            Availability::Down => "down",
            _ if backend.drain.is_some() => "draining",
            Availability::Doubtful => "doubtful",
            Availability::Trial => "trial",
            Availability::Healthy => "healthy",
        },
        failures: trouble.map_or(0, |trouble| trouble.failures),
        retry_in_ms: trouble.map(|trouble| trouble.retry_at.since_ms(now)),
        load: seen.totals.load(id),
        peers: seen.totals.peers.get(&id).copied().unwrap_or_default(),
        others: live.reported.others(id, sighting, now),
        slowness: seen.slowness,
        kv_capacity_tokens: backend.kv_capacity_tokens.map(NonZeroU32::get),
        report: report_status(live, id, now),
        load_report: sighting.map(|sighting: &Sighting| LoadReportStatus {
            age_ms: now.since_ms(sighting.at),
            waiting: sighting.waiting,
            kv_usage: sighting.kv_usage,
        }),
        cache: cache_status(store, live, backend),
    }
}

fn report_status(live: &Live, id: BackendId, now: NowMs) -> Option<ReportStatus> {
    let state = live.reported.get(id)?;
    let report = &state.report;
    Some(ReportStatus {
        engine: report.engine.map(crate::signals::EngineKind::label),
        age_ms: (state.reported_at != NowMs(0)).then(|| now.since_ms(state.reported_at)),
        failures: state.failures,
        running: report.running,
        waiting: report.waiting,
        kv_usage: report.kv_usage,
        kv_capacity_tokens: report.kv_capacity_tokens().map(NonZeroU32::get),
        block_size_tokens: report.block_size_tokens.map(NonZeroU32::get),
        prompt_tokens: report.prompt_tokens,
        prefix_hit_tokens: report.prefix_hit_tokens,
    })
}

fn cache_status<S: SharedStore>(store: &S, live: &Live, backend: &Backend) -> CacheStatus {
    let models = live.config.models.iter().enumerate();
    let mut served = models.filter(|(position, _)| backend.models.contains(*position));
    let size = served.next().map_or(1, |(_, model)| model.block_size_tokens.get());
    let capacity_blocks = backend.kv_capacity_blocks(size);
    let clock = residency::load(store, backend.id, capacity_blocks)
        .unwrap_or_else(|_| residency::Clock::new(capacity_blocks));
    CacheStatus {
        residency: "estimated",
        generation: clock.generation,
        epoch: clock.epoch,
        reach_blocks: clock.reach_blocks(),
        resident_blocks: clock.resident_blocks(),
        capacity_blocks: clock.capacity_blocks,
    }
}

fn models_status<S: SharedStore>(
    store: &S,
    live: &Live,
    loaded: &[bool],
    tokens: &[ModelTokens],
) -> Vec<ModelStatus> {
    let models = live.config.models.iter().enumerate();
    models
        .map(|(position, model)| {
            let parity = parity::load(store, &model.name).unwrap_or_default();
            let contradiction = live.contradictions.iter().find(|it| it.model_index == position);
            ModelStatus {
                name: model.name.clone(),
                is_loaded: loaded.get(position).copied().unwrap_or(false),
                block_size_tokens: model.block_size_tokens.get(),
                configured_block_size_tokens: contradiction.map(|it| it.configured.get()),
                parity_answers: parity.answers,
                parity_disagreements: parity.disagreements(),
                is_approximate: parity.is_approximate(),
                tokens: tokens.get(position).copied().unwrap_or_default(),
            }
        })
        .collect()
}

fn tree_status<S: SharedStore>(
    store: &S,
    buckets: NonZeroU32,
    (added, evicted): (u64, u64),
) -> TreeStatus {
    let sampled = buckets.get().min(BUCKETS_SAMPLED);
    let index = Index::new(buckets);
    // Prefixes fall into buckets by their hash: any of them are as good a sample as others.
    let bytes: u64 = (0..sampled).map(|bucket| index.bucket_bytes(store, bucket) as u64).sum();
    TreeStatus {
        buckets: buckets.get(),
        blocks: added.saturating_sub(evicted),
        bytes: bytes * u64::from(buckets.get()) / u64::from(sampled),
        bytes_max: u64::from(buckets.get()) * BUCKET_BYTES_MAX as u64,
    }
}
