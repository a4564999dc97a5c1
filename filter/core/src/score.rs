//! Matches and loads -> what sending the request to each backend would cost.
//!
//! One formula, in tokens of prefill work:
//!
//! ```text
//! cost(b) = slowness(b) * ( pending_prefill(b) + U * uncached(b)
//!                           + R * decoding(b) + W * prefilling(b) + K * kv_overflow(b) )
//! ```
//!
//! The weights were chosen in simulation, over all workloads of the fleet simulator at once; its
//! report has the figures.
//!
//! Pure: the caller commits the load. Linear in backends plus holders.

use ahash::AHashMap;

use crate::ids::BackendId;
use crate::index::{Holder, Path};
use crate::load::BackendLoad;

/// A probability that is as good as none.
const SURELY_GONE: f64 = 0.0025;

/// A probability that is told as certainty.
const NEARLY_SURE: f64 = 0.9;

/// Share of its uncached tokens by which a prompt is made to cost more on some backends than on others where
/// other Envoys route too. Requests that reach several Envoys within the time of a message are unknown to
/// each other, and would all find the same backend idle. From a quarter on too many go to a busier one.
pub const SCATTER: f64 = 0.1;

/// What a unit of each term costs, in tokens of prefill work. The default is the product; others
/// are for ablations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// A token of prefill that waits before the request: the unit.
    pub pending_prefill: f64,
    /// `U`, a token of the request's own prefill. It costs more than one that waits: the waiting one
    /// is spent anyway, this one delays whoever comes next and displaces cached blocks. At 1 a
    /// burst of identical prompts is computed on every backend, and caches hold more copies of
    /// fewer prefixes; from 2 on too few backends share a prompt that dominates the traffic.
    pub uncached: f64,
    /// `R`, a request that decodes: its share of every step until the newcomer is done. 50 to 200 is
    /// a plateau.
    pub decoding: f64,
    /// `W`, a request that waits for its first token: it will decode, and its tokens count already.
    /// At `R` a burst of identical prompts is computed on every backend; at 0 all of them decode
    /// on one.
    pub prefilling: f64,
    /// `K`, a token beyond the KV memory: the request waits until running ones have freed it, which
    /// takes about as long as computing it.
    pub kv_overflow: f64,
    /// Power of a backend's relative slowness that scales all of its terms.
    pub slowness: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            pending_prefill: 1.0,
            uncached: 1.5,
            decoding: 100.0,
            prefilling: 20.0,
            kv_overflow: 1.0,
            slowness: 1.0,
        }
    }
}

/// What the residency estimate says about one backend and one prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    /// Leading blocks that were sent there, resident or not, up to where a hit may end.
    pub sent_blocks: usize,
    /// Leading blocks that were sent there and are not surely gone, beyond where a hit may end too.
    pub common_blocks: usize,
    /// Leading blocks that were sent there and are not surely gone.
    pub held_blocks: usize,
    /// Expected number of leading blocks still resident: at most `held_blocks`.
    pub resident_blocks: f64,
    /// The same as a prediction of what the engine will report: what is nearly surely there counts whole.
    pub predicted_blocks: f64,
    /// The sent blocks by the epoch of their last touch, for the backend's clock, as far back as it goes.
    pub epochs: Vec<(u32, u32)>,
}

/// How much of a prompt each holder has; `weight` is the probability that what a holder was sent
/// is still there.
#[must_use]
pub fn matches(path: &Path, weight: impl Fn(&Holder) -> f32) -> AHashMap<BackendId, Match> {
    matches_within(path, |_| usize::MAX, weight)
}

/// The same where a holder's hit ends after so many blocks as `hit` says.
#[must_use]
pub fn matches_within(
    path: &Path,
    hit: impl Fn(BackendId) -> usize,
    weight: impl Fn(&Holder) -> f32,
) -> AHashMap<BackendId, Match> {
    let mut matches: AHashMap<BackendId, Match> = AHashMap::new();
    // Of each holder, the blocks so far and the weight of the last of them.
    let mut reached: AHashMap<BackendId, (usize, f64)> = AHashMap::new();
    for segment in &path.segments {
        for holder in &segment.holders {
            let found = matches.entry(holder.backend).or_default();
            // A gap means that what follows is unreachable: caches match from the first block on.
            let (reach, limit) = reached.entry(holder.backend).or_insert((0, 1.0));
            if *reach != segment.start {
                continue;
            }
            let blocks = segment.matched.min(usize::from(holder.depth));
            *reach += blocks;
            // Engines free a prefix tail first, so a block is never likelier there than the one
            // before it.
            *limit = limit.min(f64::from(weight(holder)));
            if *limit > SURELY_GONE {
                found.common_blocks += blocks;
            }
            let blocks = blocks.min(hit(holder.backend).saturating_sub(segment.start));
            found.sent_blocks += blocks;
            if *limit <= 0.0 || blocks == 0 {
                continue;
            }
            if *limit > SURELY_GONE {
                found.held_blocks += blocks;
            }
            found.resident_blocks += *limit * blocks as f64;
            found.predicted_blocks += predicted_share(*limit) * blocks as f64;
            found.epochs.push((holder.epoch, blocks as u32));
        }
    }
    matches.retain(|_, found| found.sent_blocks.max(found.common_blocks) > 0);
    matches
}

/// What part of blocks an engine is predicted to report that are there with this probability. Caches evict
/// in runs: all of a run that is nearly surely there will be.
fn predicted_share(probability: f64) -> f64 {
    if probability > NEARLY_SURE {
        1.0
    } else if probability < 1.0 - NEARLY_SURE {
        0.0
    } else {
        probability
    }
}

/// What the formula needs to know about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of output that it will probably make.
    pub output_tokens: u32,
    /// Tokens in a block.
    pub block_size_tokens: u32,
    /// Blocks that can be served from a cache at best.
    pub cacheable_blocks: usize,
}

/// One backend's cost and its parts, weighted, all in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Prefill that was dispatched there and has not produced a first byte.
    pub pending_prefill: f64,
    /// Tokens of this prompt that it would have to compute.
    pub uncached: f64,
    /// Its running requests.
    pub running: f64,
    /// Tokens beyond its KV memory.
    pub kv_overflow: f64,
}

impl Cost {
    /// The sum.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.pending_prefill + self.uncached + self.running + self.kv_overflow
    }
}

/// What one backend offers to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// How busy it is.
    pub load: BackendLoad,
    /// How many times as long as on the fastest backend anything takes on it.
    pub slowness: f64,
    /// Leading blocks that it probably has cached.
    pub resident_blocks: f64,
    /// Leading tokens that requests in flight hold in its memory.
    pub pinned_tokens: u32,
    /// Share of its uncached tokens by which the prompt is made to cost more there, up to [`SCATTER`].
    pub scatter: f64,
    /// Tokens of KV memory; `None` while unknown, which leaves the overflow out.
    pub kv_capacity_tokens: Option<u32>,
}

/// Cost of one request on one backend.
#[must_use]
pub fn cost(weights: &Weights, demand: &Demand, offer: &Offer) -> Cost {
    let load = offer.load;
    let prompt_tokens = demand.prompt_tokens as f64;
    let cached_blocks = offer.resident_blocks.min(demand.cacheable_blocks as f64);
    let cached = cached_blocks * f64::from(demand.block_size_tokens);
    // Cached blocks that no request in flight holds leave the free memory too.
    let new_context =
        (prompt_tokens - f64::from(offer.pinned_tokens)).max(0.0) + f64::from(demand.output_tokens);
    let overflow = offer.kv_capacity_tokens.map_or(0.0, |capacity| {
        (f64::from(load.context_tokens) + new_context - f64::from(capacity)).max(0.0)
    });
    let decoding = load.decoding();
    let scale = offer.slowness.powf(weights.slowness);
    Cost {
        pending_prefill: scale * weights.pending_prefill * f64::from(load.pending_prefill_tokens),
        uncached: scale
            * weights.uncached
            * (1.0 + offer.scatter)
            * (prompt_tokens - cached).max(0.0),
        running: scale
            * (weights.decoding * f64::from(decoding)
                + weights.prefilling * f64::from(load.prefilling)),
        kv_overflow: scale * weights.kv_overflow * overflow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Segment;
    use crate::residency::{Activity, Clock};

    const A: BackendId = BackendId(1);
    const B: BackendId = BackendId(2);

    fn holder(backend: BackendId, depth: u8) -> Holder {
        Holder { backend, epoch: 0, generation: 0, depth, shared_depth: 0, retained: 0 }
    }

    fn segment(start: usize, matched: usize, holders: Vec<Holder>) -> Segment {
        Segment { start, matched, node_blocks: 16, holders }
    }

    fn by_clocks(path: &Path, clocks: &[(BackendId, Clock)]) -> AHashMap<BackendId, Match> {
        matches(path, |holder| {
            let clock = clocks.iter().find(|(backend, _)| *backend == holder.backend);
            clock.map_or(0.0, |(_, clock)| clock.weight(holder.generation, holder.epoch))
        })
    }

    #[test]
    fn a_gap_ends_a_match() {
        let path = Path {
            segments: vec![
                segment(0, 16, vec![holder(A, 16), holder(B, 9)]),
                segment(16, 16, vec![holder(A, 16), holder(B, 16)]),
                segment(32, 4, vec![holder(A, 16)]),
            ],
            known_blocks: 36,
        };
        let found = by_clocks(&path, &[(A, Clock::new(0)), (B, Clock::new(0))]);
        assert_eq!(found[&A].held_blocks, 36);
        assert!((found[&A].resident_blocks - 36.0).abs() < 1e-9);
        assert_eq!(found[&B].held_blocks, 9);
    }

    #[test]
    fn evicted_and_unknown_holders_do_not_match() {
        let mut clock = Clock::new(64);
        clock.record(&Activity { allocated_blocks: 640, moved: vec![], touched_blocks: 640 });
        let path = Path {
            segments: vec![segment(0, 16, vec![holder(A, 16), holder(B, 16)])],
            known_blocks: 16,
        };
        let found = by_clocks(&path, &[(A, clock)]);
        assert_eq!(found[&A].sent_blocks, 16);
        assert!(found.values().all(|found| found.held_blocks == 0));
        assert!(found.values().all(|found| found.resident_blocks < 1e-6));
    }

    #[test]
    fn the_cost_is_the_sum_of_its_parts() {
        let demand = Demand {
            prompt_tokens: 1_000,
            output_tokens: 100,
            block_size_tokens: 16,
            cacheable_blocks: 62,
        };
        let load = BackendLoad {
            running: 4,
            prefilling: 1,
            pending_prefill_tokens: 500,
            context_tokens: 10_000,
        };
        let offer = Offer {
            load,
            slowness: 2.0,
            resident_blocks: 50.0,
            pinned_tokens: 512,
            scatter: 0.0,
            kv_capacity_tokens: Some(10_100),
        };
        let weights = Weights {
            pending_prefill: 1.0,
            uncached: 2.0,
            decoding: 10.0,
            prefilling: 5.0,
            kv_overflow: 4.0,
            slowness: 1.0,
        };
        let cost = super::cost(&weights, &demand, &offer);
        assert!((cost.pending_prefill - 2.0 * 500.0).abs() < 1e-9);
        assert!((cost.uncached - 2.0 * 400.0).abs() < 1e-9);
        assert!((cost.running - 2.0 * 35.0).abs() < 1e-9);
        // 10,000 in use, 488 new ones and the output.
        assert!((cost.kv_overflow - 2.0 * 4.0 * 488.0).abs() < 1e-9);
        assert!((cost.total() - 2.0 * 2_887.0).abs() < 1e-9);
        let scattered = super::cost(&weights, &demand, &Offer { scatter: 0.1, ..offer });
        assert!((scattered.total() - cost.total() - 0.1 * 2.0 * 400.0).abs() < 1e-9);
        let unknown =
            Offer { slowness: 1.0, resident_blocks: 1e9, kv_capacity_tokens: None, ..offer };
        let unknown = super::cost(&weights, &demand, &unknown);
        assert!((unknown.uncached - 16.0).abs() < 1e-9);
        assert!(unknown.kv_overflow == 0.0);
    }
}
