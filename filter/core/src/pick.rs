//! Costs -> the backend.
//!
//! All policies on one path: each is an order of the available backends, best first. The first is
//! the pick, the rest is where Envoy's retries go. Pure: randomness and the turn number come in.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::config::Policy;
use crate::ids::{BackendId, BackendIndex, BlockHash};

/// Costs within this many tokens of the least are a tie: below one block of a large-block engine,
/// above the rounding of partial blocks.
pub const TIE_TOKENS: f64 = 16.0;

/// Load above the mean that a consistent-hash owner may carry before the next one takes over
/// (Mirrokni et al., Consistent Hashing with Bounded Loads, 2016).
const BOUNDED_LOAD_FACTOR: f64 = 1.25;

/// A backend that may be picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Where it is in the configuration.
    pub index: BackendIndex,
    /// Its identity.
    pub id: BackendId,
    /// Requests in flight there.
    pub running: u32,
    /// Leading blocks of the prompt that were sent there before, resident or not.
    pub sent_blocks: usize,
    /// Cost of this request there, in tokens.
    pub cost: f64,
}

/// What a decision may depend on beside the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Identifies the prompt's beginning, so that every worker breaks a tie alike.
    pub affinity: BlockHash,
    /// Identifies the request's session, if it names one.
    pub session: Option<BlockHash>,
    /// A random number, new for each decision.
    pub random: u64,
    /// The number of this decision in its VM.
    pub turn: u64,
}

/// The candidates in the order in which `policy` wants them; the first is the pick.
#[must_use]
pub fn order(policy: Policy, candidates: &[Candidate], inputs: Inputs) -> Vec<BackendIndex> {
    let mut order: Vec<&Candidate> = candidates.iter().collect();
    match policy {
        Policy::KvCost => by_cost(&mut order, inputs.affinity),
        Policy::LeastRequest => least_request(&mut order, inputs.random),
        Policy::RoundRobin => rotate(&mut order, inputs.turn),
        Policy::Random => rotate(&mut order, inputs.random),
        Policy::ConsistentHash => bounded_hash(&mut order, inputs.affinity),
        Policy::PrefixAffinity => prefix_affinity(&mut order, inputs),
        Policy::Session => match inputs.session {
            Some(session) => by_hash(&mut order, session),
            None => least_request(&mut order, inputs.random),
        },
    }
    order.into_iter().map(|candidate| candidate.index).collect()
}

/// Whether a backend's cost ties with the least.
#[must_use]
pub fn is_tie(candidates: &[Candidate], index: BackendIndex) -> bool {
    let least = candidates.iter().map(|candidate| candidate.cost).fold(f64::INFINITY, f64::min);
    let candidate = candidates.iter().find(|candidate| candidate.index == index);
    candidate.is_some_and(|candidate| candidate.cost <= least + TIE_TOKENS)
}

fn by_cost(order: &mut [&Candidate], affinity: BlockHash) {
    let least = order.iter().map(|candidate| candidate.cost).fold(f64::INFINITY, f64::min);
    // Ties come first, in rendezvous order; the others by cost.
    order.sort_by(|a, b| {
        let (a_ties, b_ties) = (a.cost <= least + TIE_TOKENS, b.cost <= least + TIE_TOKENS);
        b_ties.cmp(&a_ties).then_with(|| {
            if a_ties {
                rendezvous(affinity, b.id).cmp(&rendezvous(affinity, a.id))
            } else {
                a.cost.total_cmp(&b.cost)
            }
        })
    });
}

fn least_request(order: &mut [&Candidate], random: u64) {
    let tie = BlockHash(random);
    order.sort_by_key(|candidate| (candidate.running, rendezvous(tie, candidate.id)));
}

fn rotate(order: &mut [&Candidate], by: u64) {
    if !order.is_empty() {
        let by = (by % order.len() as u64) as usize;
        order.rotate_left(by);
    }
}

fn bounded_hash(order: &mut [&Candidate], affinity: BlockHash) {
    let running: u64 = order.iter().map(|candidate| u64::from(candidate.running)).sum();
    let mean = (running + 1) as f64 / order.len().max(1) as f64;
    let bound = (mean * BOUNDED_LOAD_FACTOR).ceil();
    order.sort_by_key(|candidate| {
        let over = f64::from(candidate.running) + 1.0 > bound;
        (over, std::cmp::Reverse(rendezvous(affinity, candidate.id)))
    });
}

fn by_hash(order: &mut [&Candidate], key: BlockHash) {
    order.sort_by_key(|candidate| std::cmp::Reverse(rendezvous(key, candidate.id)));
}

/// The classic: the longest match, or the hash's owner on a miss; away to the least loaded when
/// that one has more than `2 x median + 2` requests in flight.
fn prefix_affinity(order: &mut [&Candidate], inputs: Inputs) {
    bounded_hash(order, inputs.affinity);
    // Stable: without any match the hash's order stays.
    order.sort_by_key(|candidate| std::cmp::Reverse(candidate.sent_blocks));
    let mut running: Vec<u32> = order.iter().map(|candidate| candidate.running).collect();
    running.sort_unstable();
    let median = running.get(running.len() / 2).copied().unwrap_or(0);
    let most = median.saturating_mul(2).saturating_add(2);
    if order.first().is_some_and(|first| first.running > most) {
        least_request(order, inputs.random);
    }
}

/// Highest-random-weight hash (Thaler and Ravishankar, 1998): the backend with the greatest value
/// owns the key, and only its keys move when it goes.
fn rendezvous(key: BlockHash, backend: BackendId) -> u64 {
    xxh3_64_with_seed(&backend.0.to_le_bytes(), key.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(index: usize, running: u32, cost: f64) -> Candidate {
        Candidate {
            index: BackendIndex(index),
            id: BackendId(index as u32),
            running,
            sent_blocks: 0,
            cost,
        }
    }

    fn inputs(affinity: u64) -> Inputs {
        Inputs { affinity: BlockHash(affinity), session: None, random: affinity, turn: affinity }
    }

    fn first(policy: Policy, candidates: &[Candidate], affinity: u64) -> usize {
        order(policy, candidates, inputs(affinity))[0].0
    }

    #[test]
    fn the_cheapest_is_picked_and_the_rest_follow_by_cost() {
        let candidates = [candidate(0, 0, 300.0), candidate(1, 9, 100.0), candidate(2, 0, 200.0)];
        let order = order(Policy::KvCost, &candidates, inputs(1));
        assert_eq!(order, [BackendIndex(1), BackendIndex(2), BackendIndex(0)]);
        assert!(is_tie(&candidates, BackendIndex(1)));
        assert!(!is_tie(&candidates, BackendIndex(2)));
    }

    #[test]
    fn near_ties_go_by_the_prefix_and_use_all_backends() {
        let candidates: Vec<_> = (0..4).map(|i| candidate(i, 0, i as f64)).collect();
        let mut seen = [0; 4];
        for affinity in 0..1_000 {
            let pick = first(Policy::KvCost, &candidates, affinity);
            assert_eq!(pick, first(Policy::KvCost, &candidates, affinity));
            seen[pick] += 1;
        }
        assert!(seen.iter().all(|&count| count > 150), "{seen:?}");
    }

    #[test]
    fn an_infinite_or_nan_cost_does_not_win_or_panic() {
        let candidates =
            [candidate(0, 0, f64::NAN), candidate(1, 0, f64::INFINITY), candidate(2, 0, 5.0)];
        assert_eq!(first(Policy::KvCost, &candidates, 3), 2);
    }

    #[test]
    fn least_request_spreads_its_ties() {
        let candidates = [candidate(0, 1, 0.0), candidate(1, 0, 0.0), candidate(2, 0, 0.0)];
        let picks: Vec<usize> =
            (0..100).map(|random| first(Policy::LeastRequest, &candidates, random)).collect();
        assert!(picks.contains(&1) && picks.contains(&2) && !picks.contains(&0));
    }

    #[test]
    fn round_robin_takes_turns() {
        let candidates: Vec<_> = (0..3).map(|i| candidate(i, 0, 0.0)).collect();
        let picks: Vec<usize> =
            (0..6).map(|turn| first(Policy::RoundRobin, &candidates, turn)).collect();
        assert_eq!(picks, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_hash_owner_over_the_bound_is_passed_over() {
        let idle: Vec<_> = (0..4).map(|i| candidate(i, 1, 0.0)).collect();
        let owner = first(Policy::ConsistentHash, &idle, 42);
        assert_eq!(owner, first(Policy::ConsistentHash, &idle, 42));
        let mut loaded = idle.clone();
        loaded[owner].running = 10;
        assert_ne!(first(Policy::ConsistentHash, &loaded, 42), owner);
    }

    #[test]
    fn the_classic_follows_the_longest_match_until_it_is_overloaded() {
        let mut candidates: Vec<_> = (0..4).map(|i| candidate(i, 1, 0.0)).collect();
        let owner = first(Policy::PrefixAffinity, &candidates, 42);
        assert_eq!(owner, first(Policy::ConsistentHash, &candidates, 42), "a miss");
        let (longest, longer) = ((owner + 1) % 4, (owner + 2) % 4);
        candidates[longest].sent_blocks = 9;
        candidates[longer].sent_blocks = 8;
        assert_eq!(first(Policy::PrefixAffinity, &candidates, 42), longest);
        candidates[longest].running = 4;
        assert_eq!(first(Policy::PrefixAffinity, &candidates, 42), longest, "2 x 1 + 2");
        candidates[longest].running = 5;
        candidates[longer].running = 0;
        assert_eq!(first(Policy::PrefixAffinity, &candidates, 42), longer, "the least loaded");
    }

    #[test]
    fn a_session_stays_and_requests_without_one_go_by_load() {
        let candidates: Vec<_> = (0..4).map(|i| candidate(i, i as u32, 0.0)).collect();
        let pick = |session, random| {
            let inputs = Inputs { session, ..inputs(random) };
            order(Policy::Session, &candidates, inputs)[0].0
        };
        let mut seen = [false; 4];
        for session in 0..100 {
            let session = Some(BlockHash(session));
            assert_eq!(pick(session, 1), pick(session, 2));
            seen[pick(session, 1)] = true;
        }
        assert_eq!(seen, [true; 4]);
        assert_eq!(pick(None, 7), 0);
    }

    #[test]
    fn no_candidates_no_pick() {
        let policies =
            [Policy::KvCost, Policy::RoundRobin, Policy::ConsistentHash, Policy::PrefixAffinity];
        for policy in policies {
            assert!(order(policy, &[], inputs(1)).is_empty());
        }
    }
}
