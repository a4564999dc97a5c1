//! Whether our count of a model's prompt tokens agrees with the engine's.
//!
//! Every answer names the prompt's length as the engine counted it. Where that differs from ours,
//! the bundle's tokenizer or template is not the engine's, or the engine adds something we do not
//! know of, and predicted hits may not come. The last 100 answers of each model are remembered in
//! the shared store; with more than 1% of them in disagreement the model is *approximate*, which is
//! shown and logged. Routing goes on: our own tokens still bring equal prompts together.
//!
//! One read and one write of 41 bytes an answer.

use crate::ids::NowMs;
use crate::store::{self, SharedStore, StoreError};
use crate::wire::{Key, Reader, Writer};

/// Answers remembered.
pub const WINDOW_ANSWERS: u32 = 100;

/// Disagreements among them that are still no alarm: 1%.
pub const DISAGREEMENTS_TOLERATED: u32 = 1;

/// Time between two warnings about one model, over all workers.
pub const WARNING_PERIOD_MS: u64 = 60_000;

/// What the last answers of one model said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parity {
    /// The last answers, newest in bit 0; a set bit is a disagreement.
    window: u128,
    /// Answers in the window.
    pub answers: u32,
    /// Our length of the last prompt in disagreement.
    pub ours_tokens: u32,
    /// The engine's.
    pub theirs_tokens: u32,
    /// When the last warning was logged.
    warned_at: NowMs,
}

impl Parity {
    /// Disagreements among the remembered answers.
    #[must_use]
    pub fn disagreements(&self) -> u32 {
        self.window.count_ones()
    }

    /// Whether predictions for this model are to be taken as rough.
    #[must_use]
    pub fn is_approximate(&self) -> bool {
        self.disagreements() > DISAGREEMENTS_TOLERATED
    }

    fn push(&mut self, ours_tokens: u32, theirs_tokens: u32) {
        let differs = ours_tokens != theirs_tokens;
        let mask = (1_u128 << WINDOW_ANSWERS) - 1;
        self.window = ((self.window << 1) | u128::from(differs)) & mask;
        self.answers = (self.answers + 1).min(WINDOW_ANSWERS);
        if differs {
            (self.ours_tokens, self.theirs_tokens) = (ours_tokens, theirs_tokens);
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::versioned(bytes)?;
        Some(Self {
            window: u128::from(reader.u64()?) | u128::from(reader.u64()?) << 64,
            answers: reader.u32()?.min(WINDOW_ANSWERS),
            ours_tokens: reader.u32()?,
            theirs_tokens: reader.u32()?,
            warned_at: NowMs(reader.u64()?),
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::versioned(41);
        writer.u64(self.window as u64);
        writer.u64((self.window >> 64) as u64);
        writer.u32(self.answers);
        writer.u32(self.ours_tokens);
        writer.u32(self.theirs_tokens);
        writer.u64(self.warned_at.0);
        writer.finish()
    }
}

/// Takes in one answer of `model`, and returns the state after it.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn record<S: SharedStore>(
    store: &S,
    model: &str,
    ours_tokens: u32,
    theirs_tokens: u32,
) -> Result<Parity, StoreError> {
    let mut parity = Parity::default();
    store::update(store, &key(model), |bytes| {
        parity = Parity::decode(bytes).unwrap_or_default();
        parity.push(ours_tokens, theirs_tokens);
        Some(parity.encode())
    })?;
    Ok(parity)
}

/// The state of `model`.
///
/// # Errors
/// [`StoreError`] when the host refuses the read.
pub fn load<S: SharedStore>(store: &S, model: &str) -> Result<Parity, StoreError> {
    let entry = store.get(&key(model))?;
    Ok(entry.and_then(|entry| Parity::decode(&entry.value)).unwrap_or_default())
}

/// Whether the caller is to warn about `model` now: it is approximate, and nobody warned within the
/// last minute. At most one caller gets `true`.
///
/// # Errors
/// [`StoreError`] when the update was lost.
pub fn claim_warning<S: SharedStore>(
    store: &S,
    now: NowMs,
    model: &str,
) -> Result<bool, StoreError> {
    store::update(store, &key(model), |bytes| {
        let mut parity = Parity::decode(bytes).unwrap_or_default();
        let is_due =
            parity.warned_at == NowMs(0) || now.has_passed(WARNING_PERIOD_MS, parity.warned_at);
        if !parity.is_approximate() || !is_due {
            return None;
        }
        parity.warned_at = now;
        Some(parity.encode())
    })
}

fn key(model: &str) -> Key {
    Key::named("p", model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn a_wrong_template_is_noticed_with_its_second_answer() {
        let store = MemoryStore::default();
        assert!(!record(&store, "m", 10, 12).unwrap().is_approximate());
        let parity = record(&store, "m", 20, 22).unwrap();
        assert!(parity.is_approximate());
        assert_eq!((parity.ours_tokens, parity.theirs_tokens), (20, 22));
        assert_eq!(load(&store, "m").unwrap(), parity);
        assert_eq!(load(&store, "other").unwrap(), Parity::default());
    }

    #[test]
    fn one_disagreement_in_a_hundred_is_tolerated_and_old_ones_are_forgotten() {
        let store = MemoryStore::default();
        for answer in 0..1_000_u32 {
            let theirs = if answer % 100 == 0 { 11 } else { 10 };
            assert!(!record(&store, "m", 10, theirs).unwrap().is_approximate());
        }
        record(&store, "m", 10, 11).unwrap();
        assert!(record(&store, "m", 10, 11).unwrap().is_approximate());
        for _ in 0..100 {
            record(&store, "m", 10, 10).unwrap();
        }
        let parity = load(&store, "m").unwrap();
        assert!(!parity.is_approximate());
        assert_eq!((parity.answers, parity.disagreements()), (100, 0));
    }

    #[test]
    fn one_warning_a_minute() {
        let store = MemoryStore::default();
        assert!(!claim_warning(&store, NowMs(1), "m").unwrap());
        record(&store, "m", 1, 2).unwrap();
        record(&store, "m", 1, 2).unwrap();
        assert!(claim_warning(&store, NowMs(1), "m").unwrap());
        assert!(!claim_warning(&store, NowMs(WARNING_PERIOD_MS), "m").unwrap());
        assert!(claim_warning(&store, NowMs(WARNING_PERIOD_MS + 1), "m").unwrap());
    }
}
