//! The special tokens of OpenAI's Harmony format, by which a tokenizer tells that its model speaks it.

use crate::Tokenizer;

/// A special token of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Opens a message.
    Start,
    /// Opens its text.
    Message,
    /// Stands before the channel's name.
    Channel,
    /// Closes a message.
    End,
    /// Closes a call.
    Call,
}

impl Mark {
    /// All marks.
    pub const ALL: [Self; 5] = [Self::Start, Self::Message, Self::Channel, Self::End, Self::Call];

    /// The special token's text.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Start => "<|start|>",
            Self::Message => "<|message|>",
            Self::Channel => "<|channel|>",
            Self::End => "<|end|>",
            Self::Call => "<|call|>",
        }
    }
}

/// The ids of a tokenizer's marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks([u32; Mark::ALL.len()]);

impl Marks {
    /// Those of `tokenizer`; `None` unless it has all.
    #[must_use]
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let mut ids = [0; Mark::ALL.len()];
        for (id, mark) in ids.iter_mut().zip(Mark::ALL) {
            *id = tokenizer.added_token_id(mark.text())?;
        }
        Some(Self(ids))
    }

    /// The id of `mark`.
    #[must_use]
    pub fn id(&self, mark: Mark) -> u32 {
        let Self([start, message, channel, end, call]) = *self;
        match mark {
            Mark::Start => start,
            Mark::Message => message,
            Mark::Channel => channel,
            Mark::End => end,
            Mark::Call => call,
        }
    }
}
