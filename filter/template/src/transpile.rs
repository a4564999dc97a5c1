//! Rewrites a template of Jinja2 as a template of minijinja that does the same.
//!
//! In: the model's source. Out: source for an environment that
//! [`crate::chat`] builds, and the content format that vLLM would detect.
//!
//! `lexer` resolves white space control and string escapes, `parser` follows
//! Jinja2's grammar, `emit` writes the tree down again. What minijinja does as
//! Jinja2 does stays as it is; operators, subscripts and loops whose meaning
//! differs become calls of the helpers in `py::helpers`. Text is written
//! between delimiters that no template contains, so that nothing in it can be
//! taken for a tag.
//!
//! Linear in the source. Nesting is bounded (see `parser`), so that no walk of
//! the tree can exhaust the stack.

mod ast;
mod detect;
mod emit;
mod lexer;
mod parser;

use crate::chat::ContentFormat;

/// Delimiters of the emitted template: (block start, block end, print start, print end).
/// No source that holds U+0001 is accepted, so they cannot occur in text or strings.
pub(crate) const BLOCK: (&str, &str) = ("\u{1}%", "%\u{1}");
/// See [`BLOCK`].
pub(crate) const PRINT: (&str, &str) = ("\u{1}{", "}\u{1}");
/// See [`BLOCK`]; never written.
pub(crate) const COMMENT: (&str, &str) = ("\u{1}#", "#\u{1}");

/// A template that is ready for minijinja.
#[derive(Debug)]
pub(crate) struct Transpiled {
    /// The emitted source.
    pub(crate) source: String,
    /// The same with every operation that may look into a message's text under guard, see
    /// [`crate::shape`]; `None` where that cannot be written.
    pub(crate) strict: Option<String>,
    /// What shape of content the template iterates over.
    pub(crate) content_format: ContentFormat,
}

/// Why a template cannot be used.
#[derive(Debug)]
pub(crate) struct TranspileError {
    /// Line in the source, from 1.
    pub(crate) line: usize,
    /// Whether Jinja2 would refuse it too.
    pub(crate) is_invalid: bool,
    /// What is wrong.
    pub(crate) reason: String,
}

impl TranspileError {
    /// Jinja2 refuses it too.
    fn invalid(line: usize, reason: impl Into<String>) -> Self {
        Self { line, is_invalid: true, reason: reason.into() }
    }

    /// Valid, but not rendered exactly here.
    fn refused(line: usize, reason: impl Into<String>) -> Self {
        Self { line, is_invalid: false, reason: reason.into() }
    }
}

/// Rewrites one template.
pub(crate) fn transpile(source: &str) -> Result<Transpiled, TranspileError> {
    if source.contains('\u{1}') {
        return Err(TranspileError::refused(0, "the source holds the control character U+0001"));
    }
    let tokens = lexer::tokens(source)?;
    let template = parser::parse(tokens)?;
    Ok(Transpiled {
        source: emit::emit(&template, false)?,
        strict: emit::emit(&template, true).ok(),
        content_format: detect::content_format(&template),
    })
}

#[cfg(test)]
mod tests;
