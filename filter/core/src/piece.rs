//! What prompts are made of where no template writes them: special tokens, and texts between them in which
//! none is looked for.

use std::borrow::Cow;

/// A piece of a prompt. Each text is tokenized on its own, so that what looks like a special token in it is
/// none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<'a, M> {
    /// A special token.
    Mark(M),
    /// A text without special tokens.
    Text(Cow<'a, str>),
}
