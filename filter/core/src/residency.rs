//! Cache clocks: how likely a block that was once on a backend is still there.
//!
//! An engine's prefix cache is an LRU over blocks. A block is still there if fewer *distinct*
//! blocks than the cache holds have been touched since it was: its reuse distance (the LRU stack
//! distance of Mattson et al., 1970). Each backend has a clock that counts the blocks it
//! allocated, cut into epochs of 1/64 of its capacity, and a histogram of how many blocks were last
//! touched in each epoch. A touch moves counts from the old epoch to the newest; the distance of
//! an epoch is the sum of the newer ones.
//!
//! In: touches and allocations of the requests that were routed, and what engines report as cached.
//! Out: [`Clock::weight`], the probability that a block last touched in an epoch is resident. One
//! clock is 552 bytes in the store, read for each holder of a prompt and written twice a request.
//!
//! The distance at which blocks go is learnt from the reports, starting at the capacity: requests
//! that other proxies sent, memory that running requests pin and a capacity that is wrong or unknown
//! all move it. So is how sharply they go: requests that fill the memory with long prompts blur the
//! order in which it is freed.

use crate::answer::AnswerKind;
use crate::ids::BackendId;
use crate::store::{self, SharedStore, StoreError};
use crate::wire::{Key, Reader, Writer};

/// Epochs in one capacity: the resolution of distances is 1.6% of the cache.
pub const EPOCHS_PER_CAPACITY: u32 = 64;

/// Epochs remembered. Hot blocks stay resident over many times the capacity in allocations only if
/// they are touched, so twice the capacity of untouched time is surely gone.
pub const EPOCHS_KEPT: usize = 128;

/// Epochs that one request passes at most, and that the fill of the newest one runs behind at most. Half of
/// what is kept: however many prompts are refused, what was touched lately stays known.
const FILL_EPOCHS_MAX: u32 = EPOCHS_PER_CAPACITY;

/// A stored clock.
const ENCODED_BYTES: usize = 40 + 4 * EPOCHS_KEPT;

/// Blocks an epoch while the capacity is unknown: 4,096 tokens of 16.
const EPOCH_BLOCKS_UNKNOWN: u32 = 256;

/// Centre of the step from resident to gone, as distance over reach. Block partial use and the coarse
/// epochs put it below 1.
const STEP_CENTRE: f32 = 0.95;

/// Width of the step before anything is learnt, and the bounds of what is. Running requests pin blocks
/// out of order, which blurs the LRU order: by little where they are few or short, by a tenth of the
/// cache where they fill it.
const STEP_WIDTH: f32 = 0.1;
const STEP_WIDTH_MIN: f32 = 0.02;
const STEP_WIDTH_MAX: f32 = 0.2;

/// Widths before the centre at which a block is surely there: what is missing of the probability is
/// below 0.3%.
const SURE_WIDTHS: f32 = 6.0;

/// Widths beyond the centre from which the probability falls no more. It must not become zero: of what is
/// surely gone no report is asked for, and a reach that is too short could never be mended.
const GONE_WIDTHS: f32 = 80.0;

/// By how much one request's report moves the width at most, as a share of it.
const WIDTH_LEARNING_RATE: f32 = 0.05;

/// By how much one request's report moves the reach at most, as a share of it. A wrong capacity is
/// mended within a hundred reports near the step; single reports are blurred by what runs.
const LEARNING_RATE: f32 = 0.03;

/// The reach stays within this factor of a capacity that is known: what the engine says of itself
/// is wrong by its share of other traffic, not by orders of magnitude.
const REACH_FACTOR_MAX: f32 = 16.0;

/// Reports in a row that contradict what is surely there, after which the cache is taken to be lost:
/// one may be a request that was computed beside its twin.
const CONTRADICTIONS_OF_THE_LOST: u8 = 3;

/// Epochs of others' blocks in which a prompt may wait to be computed, where the capacity is known; else one,
/// which may be a good part of a small cache.
const UNDER_WAY_EPOCHS: u32 = 4;

/// Share of the reach within which blocks are surely there, however wrong the reach.
const SURELY_THERE_SHARE: f32 = 0.25;

/// What one request did to a backend's cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Blocks that the cache had to allocate: prefill misses and decode output.
    pub allocated_blocks: u32,
    /// Blocks touched that were last touched in the given epoch.
    pub moved: Vec<(u32, u32)>,
    /// All blocks whose last touch is this request, moved ones included.
    pub touched_blocks: u32,
}

/// A moment on a cache clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    generation: u16,
    epoch: u32,
}

/// What an engine's report says of blocks that were believed to be on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Their distance when the request was routed, in blocks.
    pub distance_blocks: u32,
    /// Share of them that was there.
    pub resident: f32,
}

/// One backend's cache clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Clock {
    /// Counts the lives of the engine: a restarted one holds nothing that its former self held.
    pub generation: u16,
    /// The newest epoch.
    pub epoch: u32,
    /// Blocks that the cache holds; 0 while unknown.
    pub capacity_blocks: u32,
    /// Distance in blocks within which blocks are kept; 0 while neither known nor learnt.
    reach_blocks: f32,
    /// Width of the step from resident to gone, as a share of the reach.
    step_width: f32,
    /// Blocks that this Envoy's requests allocated, since the clock was made.
    pub own_blocks: u64,
    /// Reports in a row that contradict what is surely there.
    contradictions: u8,
    /// Kinds of answers in which this life of the engine has said that something of a prompt was cached, by
    /// [`AnswerKind::bit`].
    hit_kinds: u32,
    /// Kinds in which it has said that nothing was.
    zero_kinds: u32,
    /// Blocks allocated in the newest epoch; less than nothing is what was taken back of epochs that have
    /// passed.
    epoch_fill_blocks: i32,
    /// Blocks last touched in epoch `e`, at `e % EPOCHS_KEPT`.
    last_touched: [u32; EPOCHS_KEPT],
}

impl Clock {
    /// The clock of an empty cache.
    #[must_use]
    pub fn new(capacity_blocks: u32) -> Self {
        Self {
            generation: 0,
            epoch: 0,
            capacity_blocks,
            reach_blocks: capacity_blocks as f32,
            step_width: STEP_WIDTH,
            own_blocks: 0,
            contradictions: 0,
            hit_kinds: 0,
            zero_kinds: 0,
            epoch_fill_blocks: 0,
            last_touched: [0; EPOCHS_KEPT],
        }
    }

    /// Distinct blocks touched since epoch `epoch`, half of that epoch's own included; `None` for
    /// an epoch that is no longer kept.
    #[must_use]
    pub fn distance_blocks(&self, epoch: u32) -> Option<u32> {
        let age = self.epoch.checked_sub(epoch)?;
        if age as usize >= EPOCHS_KEPT {
            return None;
        }
        let newer: u32 = (0..age)
            .map(|back| self.count(self.epoch.wrapping_sub(back)))
            .fold(0, u32::saturating_add);
        Some(newer.saturating_add(self.count(epoch) / 2))
    }

    /// Probability that blocks last touched in `epoch` of life `generation` are resident.
    ///
    /// 1 while the reach is unknown and the epoch is kept: what was sent is believed to be there, as
    /// history-based routers do.
    #[must_use]
    pub fn weight(&self, generation: u16, epoch: u32) -> f32 {
        if generation != self.generation {
            return 0.0;
        }
        self.distance_blocks(epoch).map_or(0.0, |distance| self.weight_at(distance))
    }

    fn weight_at(&self, distance_blocks: u32) -> f32 {
        if self.reach_blocks <= 0.0 {
            return 1.0;
        }
        let beyond = self.beyond_widths(distance_blocks);
        if beyond < -SURE_WIDTHS {
            return 1.0;
        }
        1.0 / (1.0 + beyond.min(GONE_WIDTHS).exp())
    }

    /// How far a distance is beyond the centre of the step, in widths of the step.
    fn beyond_widths(&self, distance_blocks: u32) -> f32 {
        let ratio = distance_blocks as f32 / self.reach_blocks;
        (ratio - STEP_CENTRE) / self.step_width
    }

    /// Takes in what an engine reported: moves the reach and the width towards what explains it. This
    /// is the online gradient of a logistic regression on the place and the width of the step.
    ///
    /// An engine that says of three prompts in a row that nothing is there of what surely was lost its
    /// cache: the clock restarts. What was believed in another life, `asked` being the clock when the
    /// request was sent, teaches this one nothing.
    pub fn learn(&mut self, asked: Mark, evidence: &[Evidence]) {
        if asked.generation != self.generation {
            return;
        }
        let is_contradicted = self.is_contradicted(evidence);
        let (mut error, mut width_error) = (0.0, 0.0);
        for item in evidence {
            let off = item.resident - self.weight_at(item.distance_blocks);
            // Twins that are computed side by side miss each other, in the largest cache.
            if off < 0.0 && !self.is_settled(item.distance_blocks) {
                continue;
            }
            if self.reach_blocks <= 0.0 && off < -0.5 {
                self.reach_blocks = (item.distance_blocks as f32).max(1.0);
            }
            error += off;
            if self.reach_blocks > 0.0 {
                let beyond = self.beyond_widths(item.distance_blocks);
                // Far from the step, surprises have other causes than its width.
                if beyond.abs() < SURE_WIDTHS {
                    width_error += off * beyond;
                }
            }
        }
        self.reach_blocks *= 1.0 + step(LEARNING_RATE, error);
        self.step_width *= 1.0 + step(WIDTH_LEARNING_RATE, width_error);
        self.step_width = self.step_width.clamp(STEP_WIDTH_MIN, STEP_WIDTH_MAX);
        if self.capacity_blocks != 0 {
            let capacity = self.capacity_blocks as f32;
            self.reach_blocks =
                self.reach_blocks.clamp(capacity / REACH_FACTOR_MAX, capacity * REACH_FACTOR_MAX);
        }
        if is_contradicted {
            self.contradictions = self.contradictions.saturating_add(1);
        } else if !evidence.is_empty() {
            self.contradictions = 0;
        }
        if self.contradictions >= CONTRADICTIONS_OF_THE_LOST {
            self.restart();
        }
    }

    /// Takes in that an answer of this kind said how much of its prompt was cached.
    pub fn reports_in(&mut self, kind: AnswerKind, cached_tokens: u32) {
        match cached_tokens {
            0 => self.zero_kinds |= kind.bit(),
            _ => self.hit_kinds |= kind.bit(),
        }
    }

    /// What an answer of this kind means that does not say how much of its prompt was cached. SGLang and
    /// older vLLMs say it of every prompt of which anything was, and never that nothing was.
    #[must_use]
    pub fn meant_by_silence(&self, kind: AnswerKind) -> Option<u32> {
        (self.hit_kinds & !self.zero_kinds & kind.bit() != 0).then_some(0)
    }

    /// Whether nothing is there of blocks that were touched well before, and far from eviction.
    fn is_contradicted(&self, evidence: &[Evidence]) -> bool {
        let Some(first) = evidence.first() else { return false };
        let distance = first.distance_blocks;
        first.resident <= 0.0
            && self.is_settled(distance)
            && (distance as f32) < self.reach_blocks * SURELY_THERE_SHARE
    }

    /// Whether blocks at this distance are in the cache if they ever will be; nearer ones may still be
    /// under way to it.
    fn is_settled(&self, distance_blocks: u32) -> bool {
        let epochs = if self.capacity_blocks == 0 { 1 } else { UNDER_WAY_EPOCHS };
        distance_blocks > self.epoch_blocks().saturating_mul(epochs)
    }

    /// Distance within which blocks are kept, in blocks; 0 while neither known nor learnt.
    #[must_use]
    pub fn reach_blocks(&self) -> u32 {
        self.reach_blocks as u32
    }

    /// Distinct blocks touched that are still expected to be there.
    #[must_use]
    pub fn resident_blocks(&self) -> u32 {
        let oldest = self.epoch.saturating_sub(EPOCHS_KEPT as u32 - 1);
        let expected = |epoch| self.count(epoch) as f32 * self.weight(self.generation, epoch);
        (oldest..=self.epoch).map(expected).sum::<f32>() as u32
    }

    /// How far an epoch is from being forgotten: 0 for the newest, growing without bound.
    #[must_use]
    pub fn staleness(&self, generation: u16, epoch: u32) -> f32 {
        if generation != self.generation {
            return f32::INFINITY;
        }
        self.epoch.saturating_sub(epoch) as f32
    }

    /// Takes in what a request did. The request's own blocks all belong to the epoch that is the
    /// newest afterwards.
    pub fn record(&mut self, activity: &Activity) {
        self.own_blocks = self.own_blocks.saturating_add(activity.allocated_blocks.into());
        self.turn(activity);
    }

    /// Takes in that requests of others allocated blocks, which nobody here can ask for.
    pub fn advance(&mut self, blocks: u32) {
        let moved = Vec::new();
        self.turn(&Activity { allocated_blocks: blocks, moved, touched_blocks: blocks });
    }

    /// Takes back what a request was expected to do, which it did not: `after` is the clock after
    /// [`Clock::record`]. What others did meanwhile stays, and so does the date of blocks that were there
    /// before, as it does in the tree.
    pub fn take_back(&mut self, activity: &Activity, after: Mark) {
        if self.generation != after.generation {
            return;
        }
        self.own_blocks = self.own_blocks.saturating_sub(activity.allocated_blocks.into());
        let moved = activity.moved.iter().map(|(_, blocks)| *blocks).fold(0, u32::saturating_add);
        if self.is_kept(after.epoch) {
            let touched = self.count_mut(after.epoch);
            *touched = touched.saturating_sub(activity.touched_blocks.saturating_sub(moved));
        }
        let taken = self.fill_of(activity);
        self.epoch_fill_blocks =
            self.epoch_fill_blocks.saturating_sub(taken).max(-self.fill_blocks_max());
    }

    /// Where the clock stands.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark { generation: self.generation, epoch: self.epoch }
    }

    fn is_kept(&self, epoch: u32) -> bool {
        self.epoch.checked_sub(epoch).is_some_and(|age| (age as usize) < EPOCHS_KEPT)
    }

    fn turn(&mut self, activity: &Activity) {
        for &(epoch, blocks) in &activity.moved {
            if self.is_kept(epoch) {
                let count = self.count_mut(epoch);
                *count = count.saturating_sub(blocks);
            }
        }
        let added = self.fill_of(activity);
        self.epoch_fill_blocks =
            self.epoch_fill_blocks.saturating_add(added).min(self.fill_blocks_max());
        let epoch_blocks = i32::try_from(self.epoch_blocks()).unwrap_or(i32::MAX);
        while self.epoch_fill_blocks >= epoch_blocks {
            self.epoch_fill_blocks -= epoch_blocks;
            self.epoch = self.epoch.wrapping_add(1);
            *self.count_mut(self.epoch) = 0;
        }
        let newest = self.count_mut(self.epoch);
        *newest = newest.saturating_add(activity.touched_blocks);
    }

    /// Forgets everything: the engine restarted with an empty cache.
    pub fn restart(&mut self) {
        *self = Self {
            generation: self.generation.wrapping_add(1),
            own_blocks: self.own_blocks,
            // The same engine has the same memory.
            reach_blocks: self.reach_blocks,
            step_width: self.step_width,
            ..Self::new(self.capacity_blocks)
        };
    }

    fn epoch_blocks(&self) -> u32 {
        if self.capacity_blocks == 0 {
            EPOCH_BLOCKS_UNKNOWN
        } else {
            (self.capacity_blocks / EPOCHS_PER_CAPACITY).max(1)
        }
    }

    /// The most that one request may add to the fill, and the least that the fill may be.
    fn fill_blocks_max(&self) -> i32 {
        i32::try_from(self.epoch_blocks().saturating_mul(FILL_EPOCHS_MAX)).unwrap_or(i32::MAX)
    }

    /// What a request adds to the fill.
    fn fill_of(&self, activity: &Activity) -> i32 {
        let fill_max = self.fill_blocks_max();
        i32::try_from(activity.allocated_blocks).unwrap_or(fill_max).min(fill_max)
    }

    fn count(&self, epoch: u32) -> u32 {
        self.last_touched.get(epoch as usize % EPOCHS_KEPT).copied().unwrap_or(0)
    }

    #[allow(clippy::indexing_slicing, reason = "the remainder is below the array's length")]
    fn count_mut(&mut self, epoch: u32) -> &mut u32 {
        &mut self.last_touched[epoch as usize % EPOCHS_KEPT]
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::versioned(bytes)?;
        let mut clock = Self {
            generation: reader.u16()?,
            epoch: reader.u32()?,
            capacity_blocks: reader.u32()?,
            reach_blocks: f32::from_bits(reader.u32()?),
            step_width: f32::from_bits(reader.u32()?),
            own_blocks: reader.u64()?,
            contradictions: reader.u8()?,
            hit_kinds: reader.u32()?,
            zero_kinds: reader.u32()?,
            epoch_fill_blocks: reader.u32()?.cast_signed(),
            last_touched: [0; EPOCHS_KEPT],
        };
        for count in &mut clock.last_touched {
            *count = reader.u32()?;
        }
        Some(clock)
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(ENCODED_BYTES);
        writer.u16(self.generation);
        writer.u32(self.epoch);
        writer.u32(self.capacity_blocks);
        writer.u32(self.reach_blocks.to_bits());
        writer.u32(self.step_width.to_bits());
        writer.u64(self.own_blocks);
        writer.u8(self.contradictions);
        writer.u32(self.hit_kinds);
        writer.u32(self.zero_kinds);
        writer.u32(self.epoch_fill_blocks.cast_unsigned());
        for &count in &self.last_touched {
            writer.u32(count);
        }
        writer.finish()
    }
}

/// A step of gradient descent, bounded by its rate.
fn step(rate: f32, error: f32) -> f32 {
    (rate * error).clamp(-rate, rate)
}

/// The stored clock of `backend`, or a new one with `capacity_blocks`.
///
/// # Errors
/// [`StoreError`] when the host refuses the read.
pub fn load<S: SharedStore>(
    store: &S,
    backend: BackendId,
    capacity_blocks: u32,
) -> Result<Clock, StoreError> {
    let entry = store.get(&key(backend))?;
    Ok(decode_or_new(entry.as_ref().map_or(&[], |entry| &entry.value), capacity_blocks))
}

/// Applies `change` to the stored clock of `backend` and returns the result.
///
/// # Errors
/// [`StoreError`] when the host refuses, or when all attempts lost their race.
pub fn change<S: SharedStore>(
    store: &S,
    backend: BackendId,
    capacity_blocks: u32,
    mut change: impl FnMut(&mut Clock),
) -> Result<Clock, StoreError> {
    let mut result = Clock::new(capacity_blocks);
    store::update(store, &key(backend), |bytes| {
        result = decode_or_new(bytes, capacity_blocks);
        change(&mut result);
        Some(result.encode())
    })?;
    Ok(result)
}

fn decode_or_new(bytes: &[u8], capacity_blocks: u32) -> Clock {
    let mut clock = Clock::decode(bytes).unwrap_or_else(|| Clock::new(capacity_blocks));
    // A configured or reported capacity that changed applies at once; epochs already counted
    // keep their dates.
    if capacity_blocks != 0 && clock.capacity_blocks != capacity_blocks {
        clock.capacity_blocks = capacity_blocks;
        clock.reach_blocks = capacity_blocks as f32;
    }
    clock
}

fn key(backend: BackendId) -> Key {
    Key::new("c/").hex(backend.0.into(), 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn fill(clock: &mut Clock, blocks: u32) {
        clock.record(&Activity { allocated_blocks: blocks, moved: vec![], touched_blocks: blocks });
    }

    #[test]
    fn a_block_fades_after_a_capacity_of_distinct_others() {
        let mut clock = Clock::new(6_400);
        fill(&mut clock, 100);
        let touched = clock.epoch;
        assert!((clock.weight(0, touched) - 1.0).abs() < 1e-6);
        fill(&mut clock, 4_000);
        assert!(clock.weight(0, touched) > 0.95, "{}", clock.weight(0, touched));
        for _ in 0..40 {
            fill(&mut clock, 100);
        }
        assert!(clock.weight(0, touched) < 0.05, "{}", clock.weight(0, touched));
    }

    #[test]
    fn touching_the_same_blocks_again_does_not_age_the_others() {
        let mut clock = Clock::new(6_400);
        fill(&mut clock, 1_000);
        let old = clock.epoch;
        fill(&mut clock, 1_000);
        let mut hot = clock.epoch;
        for _ in 0..1_000 {
            clock.record(&Activity {
                allocated_blocks: 0,
                moved: vec![(hot, 1_000)],
                touched_blocks: 1_000,
            });
            hot = clock.epoch;
        }
        assert!((clock.weight(0, old) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_restart_forgets_at_once() {
        let mut clock = Clock::new(6_400);
        fill(&mut clock, 100);
        let (generation, epoch) = (clock.generation, clock.epoch);
        clock.restart();
        assert!(clock.weight(generation, epoch) == 0.0);
        assert!((clock.weight(clock.generation, clock.epoch) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn an_allocation_of_many_capacities_leaves_the_clock_sane() {
        let mut clock = Clock::new(64);
        fill(&mut clock, 10);
        let old = clock.epoch;
        fill(&mut clock, u32::MAX);
        assert!(clock.weight(0, old) < 1e-6);
        clock.record(&Activity {
            allocated_blocks: 1,
            moved: vec![(old, 5), (u32::MAX, 3)],
            touched_blocks: 1,
        });
        assert!(clock.distance_blocks(clock.epoch).is_some());
    }

    /// A cache that keeps blocks to a distance of `truth`, give or take `blur` of it, asked at random
    /// distances; what the clock makes of it.
    fn learnt(capacity_blocks: u32, truth: f32, blur: f32) -> Clock {
        let mut clock = Clock::new(capacity_blocks);
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..8_000 {
            let distance_blocks = rng.u32(0..40_000);
            let beyond = (distance_blocks as f32 / truth - 1.0) / blur;
            let resident = f32::from(rng.f32() < 1.0 / (1.0 + beyond.exp()));
            clock.learn(clock.mark(), &[Evidence { distance_blocks, resident }]);
        }
        clock
    }

    const SHARP: f32 = 0.001;

    #[test]
    fn the_reach_is_learnt_from_reports_whatever_the_capacity_was_said_to_be() {
        for capacity in [0, 5_000, 10_000, 20_000] {
            for truth in [6_000.0, 12_000.0] {
                let step = learnt(capacity, truth, SHARP).reach_blocks * STEP_CENTRE;
                assert!((step / truth - 1.0).abs() < 0.15, "{capacity}: {step} for {truth}");
            }
        }
        assert!(learnt(100, 40_000.0, SHARP).reach_blocks <= 100.0 * REACH_FACTOR_MAX);
    }

    #[test]
    fn how_sharply_blocks_go_is_learnt_too() {
        let width = |blur| learnt(12_000, 12_000.0, blur).step_width;
        assert!(width(SHARP) < 0.04, "{}", width(SHARP));
        assert!((0.06..0.14).contains(&width(0.1)), "{}", width(0.1));
        assert!(width(0.5) <= STEP_WIDTH_MAX);
        // The probabilities are the cache's own.
        let clock = learnt(12_000, 12_000.0, 0.1);
        for (distance, expected) in [(4_000, 1.0), (10_800, 0.73), (12_000, 0.5), (13_200, 0.27)] {
            let weight = clock.weight_at(distance);
            assert!((weight - expected).abs() < 0.2, "{distance}: {weight}");
        }
    }

    #[test]
    fn a_cache_that_was_lost_unseen_is_noticed_by_what_the_engine_reports() {
        let mut clock = Clock::new(6_400);
        fill(&mut clock, 600);
        let report = |clock: &mut Clock, distance_blocks, resident| {
            clock.learn(clock.mark(), &[Evidence { distance_blocks, resident }]);
            clock.generation
        };
        // Twins that were computed side by side, and what is about to be evicted, say nothing.
        for distance in [0, 100, 1_600, 6_000] {
            assert_eq!((0..9).map(|_| report(&mut clock, distance, 0.0)).max(), Some(0));
        }
        assert_eq!(report(&mut clock, 500, 0.0), 0);
        assert_eq!(report(&mut clock, 500, 0.5), 0);
        assert_eq!((0..3).map(|_| report(&mut clock, 500, 0.0)).collect::<Vec<_>>(), [0, 0, 1]);
    }

    #[test]
    fn what_a_refused_request_was_expected_to_do_is_taken_back() {
        let mut clock = Clock::new(6_400);
        fill(&mut clock, 1_000);
        let (before, old) = (clock.clone(), clock.epoch);
        // More than the whole cache: nothing would be left.
        let activity =
            Activity { allocated_blocks: 9_000, moved: Vec::new(), touched_blocks: 9_000 };
        for _ in 0..500 {
            clock.record(&activity);
            let after = clock.mark();
            clock.take_back(&activity, after);
        }
        assert!(clock.epoch - before.epoch <= FILL_EPOCHS_MAX, "{}", clock.epoch);
        assert_eq!(clock.own_blocks, before.own_blocks);
        let distance = before.distance_blocks(old).unwrap();
        // All of its own epoch has passed, and nothing since.
        assert_eq!(clock.distance_blocks(old), Some(distance));
        // What others did meanwhile stays.
        for _ in 0..500 {
            clock.record(&activity);
            let after = clock.mark();
            fill(&mut clock, 1);
            clock.take_back(&activity, after);
        }
        assert_eq!(clock.own_blocks, before.own_blocks + 500);
        assert_eq!(clock.distance_blocks(old), Some(distance + 500));
    }

    #[test]
    fn clocks_are_shared_through_the_store() {
        let store = MemoryStore::default();
        let backend = BackendId(7);
        let written = change(&store, backend, 640, |clock| fill(clock, 50)).unwrap();
        assert_eq!(load(&store, backend, 640).unwrap(), written);
        assert_eq!(written.encode().len(), ENCODED_BYTES);
        assert_eq!(load(&store, backend, 1_280).unwrap().capacity_blocks, 1_280);
        assert_eq!(load(&store, BackendId(8), 640).unwrap(), Clock::new(640));
    }
}
