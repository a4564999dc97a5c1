//! Each backend as one request sees it: whether it may be picked, and what it would cost.
//!
//! The ranks say who is considered at all: backends in good order; failing these, those in doubt; and
//! failing these, those that are about to go. Everything that [`crate::explain`] shows is here.

use ahash::AHashMap;

use crate::config::Backend;
use crate::health::{Availability, HealthTable};
use crate::ids::{BackendId, BackendIndex, BlockHash, NowMs};
use crate::load::BackendLoad;
use crate::pick::Candidate;
use crate::reported::Reported;
use crate::score::{Cost, Demand, Match, Offer};

/// What a request asks for.
pub struct Asked<'a> {
    /// Position of its model; `None` while unknown, which every backend may serve.
    pub model_index: Option<usize>,
    /// Its prompt; `None` when it was not read, which costs nothing anywhere.
    pub prompt: Option<(&'a Demand, &'a [BlockHash])>,
    /// Who holds how much of it.
    pub matches: &'a AHashMap<BackendId, Match>,
}

/// Who may be picked: the first rank that anybody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// In good order, or due for a trial.
    Good,
    /// It failed once, or refused work a moment ago.
    Doubtful,
    /// It is being taken away, and others hold as much of the prompt.
    Draining,
    /// Passed over for its failures.
    Down,
    /// It does not serve the model, or has been drained.
    Unfit,
}

/// One backend as one request sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// Where it is in the configuration.
    pub index: BackendIndex,
    /// Its identity.
    pub id: BackendId,
    /// Whether it may be picked.
    pub rank: Rank,
    /// Leading blocks of the prompt that were sent there before, resident or not.
    pub sent_blocks: usize,
    /// The part of its load that others put there.
    pub others: BackendLoad,
    /// What it offers.
    pub offer: Offer,
    /// What the request would cost there; 0 without a prompt.
    pub cost: Cost,
}

/// Whether `backend` is passed over for its failures.
#[must_use]
pub fn is_down(backend: &Backend, signs: (&HealthTable, &Reported), now: NowMs) -> bool {
    availability(backend, signs, now) == Availability::Down
}

fn availability(
    backend: &Backend,
    (health, reported): (&HealthTable, &Reported),
    now: NowMs,
) -> Availability {
    health.availability(backend.id, reported.reported_at(backend.id), now)
}

/// The rank of `backend` for a request of the model at `model_index`; `holds` when it has more of it than
/// any backend that stays and is not down.
#[must_use]
pub fn rank(
    backend: &Backend,
    model_index: Option<usize>,
    holds: bool,
    signs: (&HealthTable, &Reported),
    now: NowMs,
) -> Rank {
    let drained = |it: crate::config::Drain| it.until.is_some_and(|until| until <= now);
    if model_index.is_some_and(|index| !backend.models.contains(index))
        || backend.drain.is_some_and(drained)
    {
        return Rank::Unfit;
    }
    match availability(backend, signs, now) {
        Availability::Down => Rank::Down,
        _ if backend.drain.is_some() && !holds => Rank::Draining,
        Availability::Doubtful => Rank::Doubtful,
        Availability::Healthy | Availability::Trial => Rank::Good,
    }
}

/// The backends of the best rank that may be picked.
#[must_use]
pub fn candidates(standings: &[Standing]) -> Vec<Candidate> {
    let ranks = standings.iter().map(|standing| standing.rank);
    let best = ranks.filter(|rank| *rank < Rank::Down).min();
    let candidate = |standing: &Standing| Candidate {
        index: standing.index,
        id: standing.id,
        running: standing.offer.load.running,
        sent_blocks: standing.sent_blocks,
        cost: standing.cost.total(),
    };
    standings.iter().filter(|standing| Some(standing.rank) == best).map(candidate).collect()
}

/// Those that are down, when nobody may be picked because of that; `None` when nobody would serve the
/// request in the best of times.
#[must_use]
pub fn down(standings: &[Standing]) -> Option<Vec<BackendId>> {
    let down = standings.iter().filter(|standing| standing.rank == Rank::Down);
    Some(down.map(|standing| standing.id).collect::<Vec<_>>()).filter(|ids| !ids.is_empty())
}
