//! The read path: request bytes -> decision, one call a stage, each early return a named fallback.

use std::num::NonZeroU32;
use std::rc::Rc;

use ahash::AHashMap;

use crate::blocks::{self, Namespace};
use crate::config::{Config, Policy};
use crate::health::{Availability, HealthTable};
use crate::ids::{BackendId, BackendIndex, BlockHash, NowMs, TokenId};
use crate::index::{Index, Path};
use crate::load::{Ledger, LoadTable};
use crate::metrics::Reason;
use crate::model::{Model, PromptError};
use crate::pick::{self, Candidate, Inputs};
use crate::request::{self, Api, PromptInput, Request, RequestError};
use crate::residency::{self, Clock};
use crate::score::{self, Demand, Match};
use crate::store::{SharedStore, StoreError};

/// Output tokens expected of a request that names no limit, or a high one: engines' users ask for
/// far more than they get.
const OUTPUT_TOKENS_EXPECTED: u32 = 256;

/// Prompts are told apart for tie-breaking by their first 256 tokens of 16-token blocks: enough to
/// separate tenants, short enough that a chat's turns agree.
const AFFINITY_BLOCKS: usize = 16;

/// Everything that a decision reads and does not change.
pub struct Router<'a, S> {
    /// The configuration.
    pub config: &'a Config,
    /// Loaded models, at the positions of the configuration's; `None` until a bundle is there.
    pub models: &'a [Option<Rc<Model>>],
    /// The state shared by all workers.
    pub store: &'a S,
    /// This VM's own load.
    pub ledger: &'a Ledger,
    /// The moment of the decision.
    pub now: NowMs,
    /// A random number, new for each decision.
    pub random: u64,
    /// The number of this decision in its VM.
    pub turn: u64,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The prompt was read, and a policy placed it.
    Pick(Pick),
    /// Something kept the filter from reading the prompt.
    Fallback(Fallback),
}

/// A backend chosen for a prompt that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The backend, and where to retry, best first; never empty.
    pub order: Vec<BackendIndex>,
    /// Why.
    pub reason: Reason,
    /// What the write path needs.
    pub prompt: PlacedPrompt,
}

/// A request placed without its prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Fallback {
    /// Backends by load, best first; empty when Envoy is to choose.
    pub order: Vec<BackendIndex>,
    /// Why.
    pub reason: Reason,
}

/// A prompt with the picked backend's share of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacedPrompt {
    /// Position of its model in the configuration.
    pub model_index: usize,
    /// Length in tokens.
    pub prompt_tokens: usize,
    /// Hashes of its full blocks.
    pub hashes: Vec<BlockHash>,
    /// What the tree knew of them.
    pub path: Path,
    /// Blocks that the picked backend probably holds.
    pub matched: Match,
    /// Tokens in a block.
    pub block_size_tokens: u32,
    /// Tokens that the picked backend is predicted to have cached.
    pub cached_tokens: u32,
    /// Tokens of output expected.
    pub output_tokens: u32,
}

impl Decision {
    /// The reason, for metrics.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Pick(pick) => pick.reason,
            Self::Fallback(fallback) => fallback.reason,
        }
    }

    /// Backends, best first; empty when Envoy is to choose.
    #[must_use]
    pub fn order(&self) -> &[BackendIndex] {
        match self {
            Self::Pick(pick) => &pick.order,
            Self::Fallback(fallback) => &fallback.order,
        }
    }
}

/// A prompt after tokenizing.
struct Prompt {
    model_index: usize,
    tokens: usize,
    hashes: Vec<BlockHash>,
    demand: Demand,
}

impl<S: SharedStore> Router<'_, S> {
    /// Decides where a request with this path and body goes.
    #[must_use]
    pub fn route(&self, path: &str, body_bytes: &[u8]) -> Decision {
        let Some(api) = Api::from_path(path) else {
            return self.by_load(Reason::OtherPath);
        };
        let request = match request::parse(api, body_bytes) {
            Ok(request) => request,
            Err(error) => return self.by_load(error.into()),
        };
        let prompt = match self.prompt(&request) {
            Ok(prompt) => prompt,
            Err(reason) => return self.by_load(reason),
        };
        let Ok(path) = Index::new(self.config.index_buckets).walk(self.store, &prompt.hashes)
        else {
            return self.by_load(Reason::StoreFailed);
        };
        let Ok(clocks) = self.clocks(&path, prompt.demand.block_size_tokens) else {
            return self.by_load(Reason::StoreFailed);
        };
        let matches = score::matches(&path, &clocks);
        let Ok(candidates) = self.candidates(Some(&prompt.demand), &matches) else {
            return self.by_load(Reason::StoreFailed);
        };
        let affinity = affinity(&prompt.hashes);
        let order = pick::order(self.config.policy, &candidates, self.inputs(affinity));
        match order.first().and_then(|first| self.config.backend(*first)) {
            Some(picked) => Decision::Pick(Pick {
                reason: reason(self.config.policy, picked.id, &matches),
                prompt: placed(prompt, path, matches.get(&picked.id)),
                order,
            }),
            None => Decision::Fallback(Fallback { order, reason: Reason::NoBackend }),
        }
    }

    /// Decides by load alone, because of `reason`.
    #[must_use]
    pub fn by_load(&self, reason: Reason) -> Decision {
        let candidates = self.candidates(None, &AHashMap::new()).unwrap_or_default();
        let policy = match self.config.policy {
            Policy::KvCost | Policy::ConsistentHash => Policy::LeastRequest,
            other => other,
        };
        let order = pick::order(policy, &candidates, self.inputs(BlockHash(self.random)));
        let reason = if order.is_empty() { Reason::NoBackend } else { reason };
        Decision::Fallback(Fallback { order, reason })
    }

    fn prompt(&self, request: &Request) -> Result<Prompt, Reason> {
        let model_index = self.model_index(request.model.as_deref())?;
        let config = self.config.models.get(model_index).ok_or(Reason::UnknownModel)?;
        let tokens = self.tokens(model_index, &request.prompt)?;
        let namespace =
            Namespace { model: &config.name, adapter: "", cache_salt: &request.cache_salt };
        let size = config.block_size_tokens;
        let hashes = blocks::block_hashes(namespace.seed(), &tokens, &[], size);
        let demand = Demand {
            prompt_tokens: tokens.len(),
            output_tokens: request
                .output_tokens_max
                .map_or(OUTPUT_TOKENS_EXPECTED, |max| max.min(OUTPUT_TOKENS_EXPECTED)),
            block_size_tokens: size.get(),
            cacheable_blocks: blocks::cacheable_blocks(tokens.len(), size),
        };
        Ok(Prompt { model_index, tokens: tokens.len(), hashes, demand })
    }

    fn tokens(&self, model_index: usize, prompt: &PromptInput) -> Result<Vec<TokenId>, Reason> {
        // Token ids need no tokenizer.
        if let PromptInput::Tokens(tokens) = prompt {
            return Ok(tokens.clone());
        }
        let model = self.models.get(model_index).and_then(Option::as_deref);
        Ok(model.ok_or(Reason::NoTokenizer)?.tokens(prompt, self.now)?)
    }

    /// A request without a model name goes to the only model there is, as engines have it.
    fn model_index(&self, name: Option<&str>) -> Result<usize, Reason> {
        match name {
            Some(name) => self.config.model_index(name).ok_or(Reason::UnknownModel),
            None if self.config.models.len() == 1 => Ok(0),
            None => Err(Reason::UnknownModel),
        }
    }

    fn clocks(
        &self,
        path: &Path,
        block_size_tokens: u32,
    ) -> Result<AHashMap<BackendId, Clock>, StoreError> {
        let mut clocks = AHashMap::new();
        // Who holds anything later holds the first blocks too; others would not match.
        let holders = path.segments.first().map(|segment| segment.holders.as_slice());
        for holder in holders.unwrap_or_default() {
            let backend = self.config.backends.iter().find(|backend| backend.id == holder.backend);
            let Some(backend) = backend else { continue };
            let capacity = backend.kv_capacity_blocks(block_size_tokens);
            clocks.insert(backend.id, residency::load(self.store, backend.id, capacity)?);
        }
        Ok(clocks)
    }

    /// The available backends with their costs; costs are 0 without a demand.
    fn candidates(
        &self,
        demand: Option<&Demand>,
        matches: &AHashMap<BackendId, Match>,
    ) -> Result<Vec<Candidate>, StoreError> {
        let loads: LoadTable = self.ledger.totals(self.store, self.now)?;
        let health = HealthTable::load(self.store)?;
        let mut candidates = Vec::with_capacity(self.config.backends.len());
        for (index, backend) in self.config.backends.iter().enumerate() {
            if health.availability(backend.id, self.now) == Availability::Down {
                continue;
            }
            let load = loads.get(&backend.id).copied().unwrap_or_default();
            let resident = matches.get(&backend.id).map_or(0.0, |found| found.resident_blocks);
            let capacity = backend.kv_capacity_tokens.map(NonZeroU32::get);
            candidates.push(Candidate {
                index: BackendIndex(index),
                id: backend.id,
                running: load.running,
                pending_prefill_tokens: load.pending_prefill_tokens,
                cost: demand
                    .map_or(0.0, |demand| score::cost(demand, load, resident, capacity).total()),
            });
        }
        Ok(candidates)
    }

    fn inputs(&self, affinity: BlockHash) -> Inputs {
        Inputs { affinity, random: self.random, turn: self.turn }
    }
}

fn affinity(hashes: &[BlockHash]) -> BlockHash {
    let last = hashes.len().min(AFFINITY_BLOCKS);
    last.checked_sub(1).and_then(|last| hashes.get(last)).copied().unwrap_or(BlockHash(0))
}

fn reason(policy: Policy, picked: BackendId, matches: &AHashMap<BackendId, Match>) -> Reason {
    if policy != Policy::KvCost {
        return Reason::Policy;
    }
    match (matches.contains_key(&picked), matches.is_empty()) {
        (true, _) => Reason::PrefixHit,
        (false, true) => Reason::PrefixMiss,
        (false, false) => Reason::LoadOverPrefix,
    }
}

fn placed(prompt: Prompt, path: Path, matched: Option<&Match>) -> PlacedPrompt {
    let matched = matched.cloned().unwrap_or_default();
    // Rounded to the likelier whole number of blocks: engines reuse whole blocks.
    let cached_blocks =
        (matched.resident_blocks.round() as usize).min(prompt.demand.cacheable_blocks);
    PlacedPrompt {
        model_index: prompt.model_index,
        prompt_tokens: prompt.tokens,
        hashes: prompt.hashes,
        path,
        matched,
        block_size_tokens: prompt.demand.block_size_tokens,
        cached_tokens: (cached_blocks as u32).saturating_mul(prompt.demand.block_size_tokens),
        output_tokens: prompt.demand.output_tokens,
    }
}

impl From<RequestError> for Reason {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Empty => Self::EmptyBody,
            RequestError::NotUtf8 => Self::NotUtf8,
            RequestError::NotJson => Self::NotJson,
            RequestError::WrongShape(_) => Self::WrongShape,
            RequestError::OwnTemplate => Self::OwnTemplate,
        }
    }
}

impl From<PromptError> for Reason {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::NoTemplate => Self::NoTemplate,
            PromptError::Template(_) => Self::TemplateFailed,
            PromptError::Tokenizer(_) => Self::TokenizerFailed,
        }
    }
}
