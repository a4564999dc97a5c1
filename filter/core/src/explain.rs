//! What a request would come to, stage by stage: the read path with everything shown and nothing
//! changed.
//!
//! Each figure comes from the stage that a real request goes through, asked once more; the pick is
//! [`Router::route_in_session`]'s own. A dry run leaves no trace, so the next real request with the same
//! body finds what was explained, unless others came between or it is one of those that are left to Envoy to
//! find backends ([`crate::explore`]).

use serde::Serialize;

use crate::ids::BlockHash;
use crate::load::BackendLoad;
use crate::metrics::Reason;
use crate::pick;
use crate::request::Api;
use crate::route::{Decision, Router, TokenizedPrompt};
use crate::score::{Demand, Match};
use crate::standing::{Asked, Rank, Standing};
use crate::store::SharedStore;

/// Block hashes that are shown; the rest only count.
const HASHES_MAX: usize = 64;

/// Token ids that are shown, from the prompt's start.
const TOKENS_MAX: usize = 4_096;

/// A request, explained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The API by the path; `None` for a path of none.
    pub api: Option<&'static str>,
    /// The model that the request names.
    pub model: Option<String>,
    /// The configured model that answers to it.
    pub configured_model: Option<String>,
    /// The adapter, where the name is one's.
    pub adapter: Option<String>,
    /// The prompt; `None` when it was not read, and then `reason` says why.
    pub prompt: Option<ExplainedPrompt>,
    /// The backends, in the order in which they would be tried; those that would not be are last.
    pub backends: Vec<ExplainedBackend>,
    /// The picked backend; `None` when Envoy is to choose, or nobody is there.
    pub pick: Option<String>,
    /// Why.
    pub reason: &'static str,
    /// The same in words.
    pub because: String,
    /// Tokens that the pick is predicted to have cached.
    pub predicted_cached_tokens: u32,
    /// Whether the residency estimate changed the pick.
    pub is_downgraded: bool,
    /// The policy.
    pub policy: crate::config::Policy,
}

/// A prompt, explained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExplainedPrompt {
    /// Its length.
    pub tokens: usize,
    /// Its first token ids.
    pub token_ids: Vec<u32>,
    /// Tokens in a block.
    pub block_size_tokens: u32,
    /// Full blocks.
    pub blocks: usize,
    /// The first blocks' hashes, in hexadecimal.
    pub block_hashes: Vec<String>,
    /// Blocks that the tree knows.
    pub known_blocks: usize,
    /// Output tokens that are expected.
    pub expected_output_tokens: u32,
    /// Why the engine's count of tokens may differ; `None` when it should not.
    pub approximate: Option<String>,
}

/// A backend as the request sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExplainedBackend {
    /// Its name.
    pub name: String,
    /// Its place in the order, from 1; `None` when it is not in it.
    pub place: Option<usize>,
    /// Whether it may be picked.
    pub rank: Rank,
    /// Whether its cost ties with the least.
    pub ties: bool,
    /// Leading blocks of the prompt that were sent there.
    pub sent_blocks: usize,
    /// Of these, the ones not surely evicted.
    pub held_blocks: usize,
    /// Of these, the ones expected to be there.
    pub resident_blocks: f64,
    /// Leading tokens that requests in flight hold there.
    pub pinned_tokens: u32,
    /// Its load, that of peers and others included.
    pub load: BackendLoad,
    /// The part of the load that others put there.
    pub others: BackendLoad,
    /// How many times as long as on the fastest backend anything takes.
    pub slowness: f64,
    /// Tokens of its KV memory; `None` while unknown.
    pub kv_capacity_tokens: Option<u32>,
    /// The cost and its terms, in tokens of prefill work.
    pub cost: ExplainedCost,
}

/// The terms of a cost; all in tokens of prefill work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExplainedCost {
    /// Work that waits before the request.
    pub pending_prefill: f64,
    /// The request's own.
    pub uncached: f64,
    /// Requests that run there.
    pub running: f64,
    /// KV memory that is missing.
    pub kv_overflow: f64,
    /// The sum.
    pub total: f64,
}

impl<S: SharedStore> Router<'_, S> {
    /// Explains what would become of a request with this path and body.
    #[must_use]
    pub fn explain(
        &self,
        path: &str,
        body_bytes: &[u8],
        session_bytes: Option<&[u8]>,
    ) -> Explanation {
        let decision = self.route_in_session(path, body_bytes, session_bytes);
        let api = Api::from_path(path);
        let parsed = self.parse(path, body_bytes).ok();
        let model = parsed.as_ref().and_then(|request| request.model.clone());
        let approximate =
            parsed.as_ref().and_then(|it| it.approximation.as_ref()).map(|why| format!("{why:?}"));
        let model_index = self.model_index(model.as_deref()).ok();
        let configured = model_index.and_then(|index| self.config.models.get(index));
        let adapter = parsed
            .as_ref()
            .and_then(|request| request.adapter.clone())
            .or_else(|| configured?.adapter(model.as_deref()?).map(str::to_owned));
        let read = parsed.and_then(|request| self.read(request).ok());
        let reason = decision.reason();
        let pick = self.picked_name(&decision);
        let (predicted_cached_tokens, is_downgraded) = match &decision {
            Decision::Pick(pick) => (pick.prompt.cached_tokens, pick.downgraded),
            Decision::Fallback(_) | Decision::Refusal(_) => (0, false),
        };
        let (prompt, backends) = match read {
            Some((prompt, token_ids)) => self.weigh(&prompt, &token_ids, approximate, &decision),
            None => (None, self.unweighed(&decision)),
        };
        Explanation {
            api: api.map(Api::name),
            model,
            configured_model: configured.map(|model| model.name.clone()),
            adapter,
            prompt,
            backends,
            because: because(reason, pick.as_deref()),
            pick,
            reason: reason.label(),
            predicted_cached_tokens,
            is_downgraded,
            policy: self.config.policy,
        }
    }

    fn picked_name(&self, decision: &Decision) -> Option<String> {
        let first = *decision.order().first()?;
        self.config.backend(first).map(|backend| backend.name.clone())
    }

    fn weigh(
        &self,
        prompt: &TokenizedPrompt,
        token_ids: &[u32],
        approximate: Option<String>,
        decision: &Decision,
    ) -> (Option<ExplainedPrompt>, Vec<ExplainedBackend>) {
        let size = self.block_size_tokens(prompt);
        let path = self.walk(prompt).unwrap_or_default();
        let matches = self.matches(prompt, &path).unwrap_or_default();
        let demand: Demand = self.demand(prompt);
        let asked = Asked {
            model_index: Some(prompt.model_index),
            prompt: Some((&demand, &prompt.hashes)),
            matches: &matches,
        };
        let resident = |found: &Match| found.resident_blocks;
        let standings = self.standings(&asked, resident).unwrap_or_default();
        let hex = |hash: &BlockHash| format!("{:016x}", hash.0);
        let explained = ExplainedPrompt {
            tokens: prompt.prompt_tokens,
            token_ids: token_ids.iter().take(TOKENS_MAX).copied().collect(),
            block_size_tokens: size.get(),
            blocks: prompt.hashes.len(),
            block_hashes: prompt.hashes.iter().take(HASHES_MAX).map(hex).collect(),
            known_blocks: path.known_blocks,
            expected_output_tokens: demand.output_tokens,
            approximate,
        };
        let backends = self.ordered(&standings, decision, |standing| {
            matches.get(&standing.id).cloned().unwrap_or_default()
        });
        (Some(explained), backends)
    }

    fn unweighed(&self, decision: &Decision) -> Vec<ExplainedBackend> {
        let matches = ahash::AHashMap::new();
        let asked = Asked { model_index: None, prompt: None, matches: &matches };
        let standings = self.standings(&asked, |_| 0.0).unwrap_or_default();
        self.ordered(&standings, decision, |_| Match::default())
    }

    fn ordered(
        &self,
        standings: &[Standing],
        decision: &Decision,
        matched: impl Fn(&Standing) -> Match,
    ) -> Vec<ExplainedBackend> {
        let candidates = crate::standing::candidates(standings);
        let mut backends: Vec<ExplainedBackend> = standings
            .iter()
            .map(|standing| {
                let place = decision.order().iter().position(|index| *index == standing.index);
                let found = matched(standing);
                let backend = self.config.backend(standing.index);
                ExplainedBackend {
                    name: backend.map(|backend| backend.name.clone()).unwrap_or_default(),
                    place: place.map(|place| place + 1),
                    rank: standing.rank,
                    ties: pick::is_tie(&candidates, standing.index),
                    sent_blocks: found.sent_blocks,
                    held_blocks: found.held_blocks,
                    resident_blocks: found.resident_blocks,
                    pinned_tokens: standing.offer.pinned_tokens,
                    load: standing.offer.load,
                    others: standing.others,
                    slowness: standing.offer.slowness,
                    kv_capacity_tokens: standing.offer.kv_capacity_tokens,
                    cost: ExplainedCost {
                        pending_prefill: standing.cost.pending_prefill,
                        uncached: standing.cost.uncached,
                        running: standing.cost.running,
                        kv_overflow: standing.cost.kv_overflow,
                        total: standing.cost.total(),
                    },
                }
            })
            .collect();
        backends.sort_by_key(|backend| backend.place.unwrap_or(usize::MAX));
        backends
    }
}

fn because(reason: Reason, pick: Option<&str>) -> String {
    let pick = pick.unwrap_or("nobody");
    match reason {
        Reason::PrefixHit => format!("{pick} holds a part of the prompt, and costs least"),
        Reason::PrefixMiss => format!("nobody holds any of the prompt; {pick} costs least"),
        Reason::LoadOverPrefix => {
            format!("others hold a part of the prompt, but {pick} costs less than their load")
        }
        Reason::Policy => format!("the policy, which does not look at prefixes, names {pick}"),
        Reason::Explore => "it is left to Envoy, to find backends that nobody listed".to_owned(),
        Reason::NoBackend => "no backend is known that serves it; Envoy chooses".to_owned(),
        Reason::AllDown => "every backend is passed over for its failures: 503".to_owned(),
        other => format!("the prompt is not read ({}); {pick} has the least load", other.label()),
    }
}
