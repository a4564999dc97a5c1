//! The read path: request bytes -> decision, one call a stage, each early return a named fallback.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::rc::Rc;

use ahash::AHashMap;
use xxhash_rust::xxh3::xxh3_64;

use crate::blocks::{self, Namespace};
use crate::config::{Backend, Config, Policy};
pub use crate::decision::{Decision, Fallback, Pick, PlacedPrompt, Refusal};
use crate::explore::{Explorer, Stake};
use crate::health::HealthTable;
use crate::ids::{BackendId, BackendIndex, BlockHash, NowMs, TokenId};
use crate::index::{Holder, Index, Path};
use crate::load::Ledger;
use crate::metrics::Reason;
use crate::model::{self, Model};
use crate::pick::{self, Candidate, Inputs};
use crate::reported::Reported;
use crate::request::{self, Api, ChatFormat, Request};
use crate::residency::{self, Clock};
use crate::score::{self, Cost, Demand, Match, Offer};
use crate::standing::{self, Asked, Standing};
use crate::store::{SharedStore, StoreError};
use crate::window::Window;

/// Output tokens expected of a request that names no limit, or a high one: engines' users ask for
/// far more than they get.
const OUTPUT_TOKENS_EXPECTED: u32 = 256;

/// Prompts are told apart for tie-breaking by their first 256 tokens of 16-token blocks: enough to
/// separate tenants, short enough that a chat's turns agree.
const AFFINITY_BLOCKS: usize = 16;

/// The attention window of models that speak Harmony: every other layer of gpt-oss has one.
const HARMONY_WINDOW_TOKENS: u32 = 128;

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
    /// What engines said last; [`crate::reported::NOTHING`] where they are not asked.
    pub reported: &'a Reported,
    /// This VM's exploration; `None` where backends are not observed.
    pub explorer: Option<&'a Explorer>,
    /// The moment of the decision.
    pub now: NowMs,
    /// A random number, new for each decision.
    pub random: u64,
    /// The number of this decision in its VM.
    pub turn: u64,
}

/// A prompt after tokenizing and hashing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizedPrompt {
    /// Position of its model in the configuration.
    pub model_index: usize,
    /// Length in tokens.
    pub prompt_tokens: usize,
    /// Hashes of its full blocks, from [`blocks::block_hashes`] with the model's block size.
    pub hashes: Vec<BlockHash>,
    /// Most tokens the client wants back; `None` when left to the engine.
    pub output_tokens_max: Option<u32>,
    /// Identifies the request's session, if it names one.
    pub session: Option<BlockHash>,
    /// Leading tokens that the engine would take from its cache; `None` without a bound.
    pub cache_read_tokens_max: Option<u32>,
}

impl<S: SharedStore> Router<'_, S> {
    /// Decides where a request with this path and body goes.
    #[must_use]
    pub fn route(&self, path: &str, body_bytes: &[u8]) -> Decision {
        self.route_in_session(path, body_bytes, None)
    }

    /// Decides where a request with this path and body goes; `session_bytes` is what its session
    /// header says.
    #[must_use]
    pub fn route_in_session(
        &self,
        path: &str,
        body_bytes: &[u8],
        session_bytes: Option<&[u8]>,
    ) -> Decision {
        let request = match self.parse(path, body_bytes) {
            Ok(request) => request,
            Err(reason) => return self.by_load(reason),
        };
        let (is_approximate, is_opaque) = (request.approximation.is_some(), request.is_opaque);
        let prompt = match self.read(request) {
            Ok((prompt, _)) => prompt,
            Err(reason) => return self.by_load(reason),
        };
        let session = session_bytes.map(|bytes| BlockHash(xxh3_64(bytes))).or(prompt.session);
        let mut decision = self.route_tokenized(TokenizedPrompt { session, ..prompt });
        if let Some(prompt) = decision.prompt_mut() {
            (prompt.is_approximate, prompt.is_opaque) = (is_approximate, is_opaque);
        }
        decision
    }

    /// What a request with this path and body asks for.
    ///
    /// # Errors
    /// The reason why it is placed by load.
    pub fn parse(&self, path: &str, body_bytes: &[u8]) -> Result<Request, Reason> {
        let api = readable_api(self.config, path)?;
        if body_bytes.len() > self.config.body_bytes_max as usize {
            return Err(Reason::BodyTooLarge);
        }
        Ok(request::parse_for(api, body_bytes, |model| self.chat_format(model))?)
    }

    /// What engines write the chats of the model called `name` with: as configured, else by its tokenizer.
    fn chat_format(&self, name: Option<&str>) -> ChatFormat {
        let Ok(index) = self.model_index(name) else { return ChatFormat::Template };
        let configured = self.config.models.get(index).and_then(|model| model.chat.chat_format);
        configured.unwrap_or_else(|| {
            let model = self.models.get(index).and_then(Option::as_deref);
            match model.is_some_and(Model::speaks_harmony) {
                true => ChatFormat::Harmony,
                false => ChatFormat::Template,
            }
        })
    }

    /// Decides where a request with this prompt goes.
    #[must_use]
    pub fn route_tokenized(&self, prompt: TokenizedPrompt) -> Decision {
        let Ok(path) = self.walk(&prompt) else {
            return self.by_load(Reason::StoreFailed);
        };
        let Ok(matches) = self.matches(&prompt, &path) else {
            return self.by_load(Reason::StoreFailed);
        };
        self.place(prompt, path, &matches)
    }

    /// What the tree knows of a prompt.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses a read.
    pub fn walk(&self, prompt: &TokenizedPrompt) -> Result<Path, StoreError> {
        Index::new(self.config.index_buckets).walk(self.store, &prompt.hashes)
    }

    /// How much of a prompt, of which the tree knows `path`, each holder has and would use, as far as its
    /// clock tells.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses a read.
    pub fn matches(
        &self,
        prompt: &TokenizedPrompt,
        path: &Path,
    ) -> Result<AHashMap<BackendId, Match>, StoreError> {
        let size = self.block_size_tokens(prompt);
        let path = match prompt.cache_read_tokens_max {
            Some(tokens) => Cow::Owned(path.leading((tokens / size) as usize)),
            None => Cow::Borrowed(path),
        };
        let clocks = self.clocks(&path, size)?;
        let weight = |holder: &Holder| {
            let clock = clocks.get(&holder.backend);
            clock.map_or(0.0, |clock| clock.weight(holder.generation, holder.epoch))
        };
        Ok(match self.window(prompt) {
            Some(window) => {
                let cacheable = blocks::cacheable_blocks(prompt.prompt_tokens, size);
                let hits = window.hits(&path, cacheable);
                let hit = |backend| hits.get(&backend).copied().unwrap_or(0);
                score::matches_within(&path, hit, weight)
            }
            None => score::matches(&path, weight),
        })
    }

    /// The attention window of a prompt's model: as configured, else by its tokenizer.
    pub(crate) fn window(&self, prompt: &TokenizedPrompt) -> Option<Window> {
        let configured = self.config.models.get(prompt.model_index)?;
        let model = self.models.get(prompt.model_index).and_then(Option::as_deref);
        // Engines that run its template have caches of their own kind.
        let is_known = configured.chat.chat_format != Some(ChatFormat::Template)
            && model.is_some_and(Model::speaks_harmony);
        let known = is_known.then_some(HARMONY_WINDOW_TOKENS);
        let tokens = configured.sliding_window_tokens.or(known)?;
        Window::new(tokens, self.block_size_tokens(prompt))
    }

    /// Decides, given what is believed of each backend's cache.
    #[must_use]
    pub fn place(
        &self,
        prompt: TokenizedPrompt,
        path: Path,
        matches: &AHashMap<BackendId, Match>,
    ) -> Decision {
        let (demand, window) = (self.demand(&prompt), self.window(&prompt));
        let resident = |found: &Match| found.resident_blocks;
        let asked = Asked {
            model_index: Some(prompt.model_index),
            prompt: Some((&demand, &prompt.hashes)),
            matches,
        };
        let Ok(standings) = self.standings(&asked, resident) else {
            return self.by_load(Reason::StoreFailed);
        };
        let candidates = standing::candidates(&standings);
        let inputs = Inputs { session: prompt.session, ..self.inputs(affinity(&prompt.hashes)) };
        let mut order = pick::order(self.config.policy, &candidates, inputs);
        let downgraded = self.is_downgraded(&asked, &order, inputs);
        if self.config.policy == Policy::KvCost {
            self.prefer_unspent(&candidates, &mut order, demand.block_size_tokens);
        }
        let picked = order.first().and_then(|first| self.config.backend(*first));
        let matched = picked.and_then(|picked| matches.get(&picked.id));
        let prompt = placed(prompt, &demand, window, path, matched);
        if self.explores(matches, prompt.cached_tokens) {
            // Nobody knows who will serve it.
            let prompt = PlacedPrompt { matched: Match::default(), cached_tokens: 0, ..prompt };
            let (order, reason, prompt) = (vec![], Reason::Explore, Some(prompt));
            return Decision::Fallback(Fallback { order, reason, prompt });
        }
        let Some(picked) = picked else {
            return self.without_candidates(&standings, Some(prompt));
        };
        let reason = reason(self.config.policy, picked.id, matches);
        Decision::Pick(Pick { reason, downgraded, prompt, order })
    }

    /// Nobody may be picked: all are down, or nobody is known who serves the model.
    fn without_candidates(&self, standings: &[Standing], prompt: Option<PlacedPrompt>) -> Decision {
        // Where backends are observed, Envoy may know others.
        let down = standing::down(standings).filter(|_| !self.config.observe);
        match down {
            Some(ids) => {
                let health = HealthTable::load(self.store).unwrap_or_default();
                let retry_after_ms = health.retry_after_ms(ids.into_iter(), self.now).unwrap_or(0);
                let retry_after_s = retry_after_ms.div_ceil(1_000).max(1);
                Decision::Refusal(Refusal { reason: Reason::AllDown, retry_after_s })
            }
            None => {
                Decision::Fallback(Fallback { order: vec![], reason: Reason::NoBackend, prompt })
            }
        }
    }

    /// Whether the request is left to Envoy, which may know backends that are not known here. Requests
    /// whose prompt is not read teach nothing, and are left to it only when nobody is known.
    fn explores(&self, matches: &AHashMap<BackendId, Match>, cached_tokens: u32) -> bool {
        let is_cold = matches.values().all(|found| found.held_blocks == 0);
        let stake = Stake { is_cold, cached_tokens };
        let known = self.config.backends.len();
        self.explorer.is_some_and(|explorer| explorer.is_due(self.now, self.random, known, stake))
    }

    /// Of the two backends that a tie puts first, prefers the one whose cache has seen fewer
    /// allocations: what is new there displaces less. Two choices suffice to spread prefixes evenly
    /// (Mitzenmacher, The Power of Two Choices, 2001), and proxies that know nothing of each other
    /// still choose between the same two.
    fn prefer_unspent(
        &self,
        candidates: &[Candidate],
        order: &mut [BackendIndex],
        block_size_tokens: u32,
    ) {
        let [first, second, ..] = order else { return };
        if !pick::is_tie(candidates, *second) {
            return;
        }
        let spent = |index: BackendIndex| {
            let backend = self.config.backend(index)?;
            let capacity = backend.kv_capacity_blocks(block_size_tokens);
            residency::load(self.store, backend.id, capacity).ok().map(|clock| clock.epoch)
        };
        // A store that fails leaves the order alone.
        if let (Some(of_first), Some(of_second)) = (spent(*first), spent(*second))
            && of_second < of_first
        {
            std::mem::swap(first, second);
        }
    }

    /// Whether another backend would have been picked if everything that was sent were still there.
    fn is_downgraded(&self, asked: &Asked<'_>, order: &[BackendIndex], inputs: Inputs) -> bool {
        // Less than half a block is less than a tie.
        let is_whole = |found: &Match| found.sent_blocks as f64 - found.resident_blocks < 0.5;
        if self.config.policy != Policy::KvCost || asked.matches.values().all(is_whole) {
            return false;
        }
        let sent = |found: &Match| found.sent_blocks as f64;
        self.standings(asked, sent).is_ok_and(|standings| {
            let candidates = standing::candidates(&standings);
            pick::order(self.config.policy, &candidates, inputs).first() != order.first()
        })
    }

    /// Decides by load alone, because of `reason`.
    #[must_use]
    pub fn by_load(&self, reason: Reason) -> Decision {
        let asked = Asked { model_index: None, prompt: None, matches: &AHashMap::new() };
        let standings = self.standings(&asked, |_| 0.0).unwrap_or_default();
        let candidates = standing::candidates(&standings);
        let policy = match self.config.policy {
            Policy::RoundRobin | Policy::Random => self.config.policy,
            Policy::KvCost
            | Policy::LeastRequest
            | Policy::ConsistentHash
            | Policy::PrefixAffinity
            | Policy::Session => Policy::LeastRequest,
        };
        let order = pick::order(policy, &candidates, self.inputs(BlockHash(self.random)));
        if order.is_empty() {
            return self.without_candidates(&standings, None);
        }
        Decision::Fallback(Fallback { order, reason, prompt: None })
    }

    /// Tokenizes and hashes a request's prompt; the token ids come beside.
    ///
    /// # Errors
    /// The reason why the request is placed by load.
    pub fn read(&self, request: Request) -> Result<(TokenizedPrompt, Vec<TokenId>), Reason> {
        let model_index = self.model_index(request.model.as_deref())?;
        let config = self.config.models.get(model_index).ok_or(Reason::UnknownModel)?;
        let adapter =
            request.adapter.as_deref().or_else(|| config.adapter(request.model.as_deref()?));
        let namespace = Namespace {
            model: &config.name,
            adapter: adapter.unwrap_or_default(),
            cache_salt: &request.cache_salt,
        };
        let seed = namespace.seed();
        let output_tokens_max = request.output_tokens_max;
        let cache_read_tokens_max = request.cache_read_tokens_max;
        let session = request.session.as_ref().map(|name| BlockHash(xxh3_64(name.as_bytes())));
        let model = self.models.get(model_index).and_then(Option::as_deref);
        let prompt = model::prompt(model, request, &config.chat, self.now)?;
        let size = config.block_size_tokens;
        let tokenized = TokenizedPrompt {
            model_index,
            prompt_tokens: prompt.tokens.len(),
            hashes: blocks::block_hashes(seed, &prompt.tokens, &prompt.media, size),
            output_tokens_max,
            session,
            cache_read_tokens_max,
        };
        Ok((tokenized, prompt.tokens))
    }

    /// Tokens in a block of a prompt's model.
    #[must_use]
    pub fn block_size_tokens(&self, prompt: &TokenizedPrompt) -> NonZeroU32 {
        let model = self.config.models.get(prompt.model_index);
        model.map_or(NonZeroU32::MIN, |model| model.block_size_tokens)
    }

    /// What a prompt asks of a backend.
    #[must_use]
    pub fn demand(&self, prompt: &TokenizedPrompt) -> Demand {
        let size = self.block_size_tokens(prompt);
        Demand {
            prompt_tokens: prompt.prompt_tokens,
            output_tokens: prompt
                .output_tokens_max
                .map_or(OUTPUT_TOKENS_EXPECTED, |max| max.min(OUTPUT_TOKENS_EXPECTED)),
            block_size_tokens: size.get(),
            cacheable_blocks: blocks::cacheable_blocks(prompt.prompt_tokens, size),
        }
    }

    /// Position of the model that answers to `name`. A request without a model name goes to the only
    /// model there is, as engines have it.
    ///
    /// # Errors
    /// [`Reason::UnknownModel`].
    pub fn model_index(&self, name: Option<&str>) -> Result<usize, Reason> {
        match name {
            Some(name) => self.config.model_index(name).ok_or(Reason::UnknownModel),
            None if self.config.models.len() == 1 => Ok(0),
            None => Err(Reason::UnknownModel),
        }
    }

    fn clocks(
        &self,
        path: &Path,
        block_size_tokens: NonZeroU32,
    ) -> Result<AHashMap<BackendId, Clock>, StoreError> {
        let mut clocks = AHashMap::new();
        // Who holds anything later holds the first blocks too; others would not match.
        let holders = path.segments.first().map(|segment| segment.holders.as_slice());
        for holder in holders.unwrap_or_default() {
            let backend = self.config.backends.iter().find(|backend| backend.id == holder.backend);
            let Some(backend) = backend else { continue };
            let capacity = backend.kv_capacity_blocks(block_size_tokens.get());
            clocks.insert(backend.id, residency::load(self.store, backend.id, capacity)?);
        }
        Ok(clocks)
    }

    /// All backends and what the request would cost on each, of which `resident_blocks` of a match are
    /// taken to be there.
    ///
    /// # Errors
    /// [`StoreError`] when the host refuses a read.
    pub fn standings(
        &self,
        asked: &Asked<'_>,
        resident_blocks: impl Fn(&Match) -> f64,
    ) -> Result<Vec<Standing>, StoreError> {
        let totals = self.ledger.totals(self.store, self.now)?;
        let health = HealthTable::load(self.store)?;
        let slowness = self.ledger.slowness();
        let held =
            |backend: &Backend| asked.matches.get(&backend.id).map_or(0, |found| found.held_blocks);
        let signs = (&health, self.reported);
        let stays = |it: &Backend| it.drain.is_none() && !standing::is_down(it, signs, self.now);
        // Of interest to draining backends only.
        let has_draining = self.config.backends.iter().any(|it| it.drain.is_some());
        let staying = self.config.backends.iter().filter(|it| has_draining && stays(it));
        let held_elsewhere = staying.map(|it| held(it)).max().unwrap_or(0);
        let mut standings = Vec::with_capacity(self.config.backends.len());
        for (index, backend) in self.config.backends.iter().enumerate() {
            let sighting = totals.sightings.get(&backend.id);
            let others = self.reported.others(backend.id, sighting, self.now);
            let mut load = totals.load_with_peers(backend.id);
            load.add(others);
            let matched = asked.matches.get(&backend.id);
            let offer = Offer {
                load,
                slowness: f64::from(slowness(backend.id)),
                resident_blocks: matched.map_or(0.0, &resident_blocks),
                pinned_tokens: asked.prompt.map_or(0, |(demand, hashes)| {
                    self.ledger.pinned_tokens(backend.id, hashes, demand.block_size_tokens)
                }),
                scatter: self.scatter(backend.id),
                kv_capacity_tokens: backend.kv_capacity_tokens.map(NonZeroU32::get),
            };
            let cost = asked.prompt.map_or_else(Cost::default, |(demand, _)| {
                score::cost(&self.config.weights, demand, &offer)
            });
            let holds = held(backend) > held_elsewhere;
            standings.push(Standing {
                index: BackendIndex(index),
                id: backend.id,
                rank: standing::rank(backend, asked.model_index, holds, signs, self.now),
                sent_blocks: matched.map_or(0, |found| found.sent_blocks),
                others,
                offer,
                cost,
            });
        }
        Ok(standings)
    }

    /// [`Offer::scatter`] of a backend: 0 while there are no peers.
    fn scatter(&self, backend: BackendId) -> f64 {
        if self.ledger.peers.envoys == 0 {
            return 0.0;
        }
        let draw = xxh3_64(&(self.random ^ u64::from(backend.0)).to_le_bytes());
        score::SCATTER * (draw >> 32) as f64 / f64::from(u32::MAX)
    }

    fn inputs(&self, affinity: BlockHash) -> Inputs {
        Inputs { affinity, session: None, random: self.random, turn: self.turn }
    }
}

/// The API of `path`, if its requests' bodies are read.
///
/// # Errors
/// The reason why they are placed by load.
pub fn readable_api(config: &Config, path: &str) -> Result<Api, Reason> {
    match Api::from_path(path) {
        // vLLM reads the header with all other APIs.
        Some(Api::Responses) if config.has_ranks() => Err(Reason::RankUnnamed),
        Some(api) if config.apis.is_on(api) && !api.is_load_only() => Ok(api),
        Some(_) => Err(Reason::LoadOnlyApi),
        None => Err(Reason::OtherPath),
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
    let holds = |found: &Match| found.held_blocks > 0;
    if matches.get(&picked).is_some_and(holds) {
        Reason::PrefixHit
    } else if matches.values().any(holds) {
        Reason::LoadOverPrefix
    } else {
        Reason::PrefixMiss
    }
}

fn placed(
    prompt: TokenizedPrompt,
    demand: &Demand,
    window: Option<Window>,
    path: Path,
    matched: Option<&Match>,
) -> PlacedPrompt {
    let matched = matched.cloned().unwrap_or_default();
    let cached_blocks = (matched.predicted_blocks.round() as usize).min(demand.cacheable_blocks);
    PlacedPrompt {
        model_index: prompt.model_index,
        prompt_tokens: prompt.prompt_tokens,
        hashes: prompt.hashes,
        path,
        matched,
        window,
        block_size_tokens: demand.block_size_tokens,
        cached_tokens: (cached_blocks as u32).saturating_mul(demand.block_size_tokens),
        output_tokens: demand.output_tokens,
        is_approximate: false,
        is_opaque: false,
    }
}
