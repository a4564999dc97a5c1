//! Why a model could not be packed.

use std::path::PathBuf;

/// Why a model could not be packed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// A file that is needed cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not JSON.
    #[error("{}: not JSON: {source}", path.display())]
    Json {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A chat template has a shape that transformers does not know either.
    #[error("{}: {detail}", path.display())]
    Template {
        /// Where it stands.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A tekken.json cannot be used.
    #[error("{}: {detail}", path.display())]
    Tekken {
        /// Where it stands.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A chat template does not compile.
    #[error("chat template: {0}")]
    Compile(#[from] warmpath_template::TemplateError),
    /// The tokenizer cuts or rewrites texts by a regular expression for which the filter has no code.
    #[error(
        "the tokenizer uses a regular expression that is not among those of known models, in a `Split` or a \
         `Replace`: the filter has no engine for others"
    )]
    Pattern,
    /// The tokenizer cannot be packed.
    #[error(transparent)]
    Write(#[from] warmpath_bundle::WriteError),
    /// The bundle cannot be read back.
    #[error("the bundle does not read back: {0}")]
    Read(#[from] warmpath_bundle::BundleError),
    /// The bundle reads back as something else.
    #[error("the bundle's templates or special tokens are not those that went in")]
    ReadBack,
    /// The source tokenizer cannot be run for comparison.
    #[error("the source tokenizer cannot be run for comparison: {detail}")]
    Reference {
        /// What the library said.
        detail: String,
    },
    /// The bundle's tokenizer gives other ids than its source.
    #[error(
        "the bundle's tokenizer differs from its source on {text:?}: {found:?}, not {expected:?}"
    )]
    Mismatch {
        /// The text, shortened.
        text: String,
        /// The bundle's ids, shortened.
        found: Vec<u32>,
        /// The source's ids, shortened.
        expected: Vec<u32>,
    },
}

/// What the library says of regular expressions that it has no code for.
const NO_ENGINE: &str = "system-regex backend";

impl PackError {
    /// The error, with a name of its own where the library's would speak of how it was built.
    pub(crate) fn named(self) -> Self {
        if self.to_string().contains(NO_ENGINE) { Self::Pattern } else { self }
    }

    /// The exit code: 3 when the bundle failed its check, 1 when the input is at fault.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Read(_) | Self::ReadBack | Self::Mismatch { .. } => 3,
            _ => 1,
        }
    }
}
