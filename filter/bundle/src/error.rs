//! What can go wrong when a bundle is read or a text is tokenized.

/// Why a bundle was refused. All variants mean that the bytes will not become readable by a
/// retry with the same bytes; [`BundleError::Truncated`] and [`BundleError::Checksum`] may be cured
/// by fetching them again.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum BundleError {
    /// The bytes do not start as a bundle does.
    #[error("not a Warmpath bundle")]
    NotABundle,
    /// A bundle of another format version, to be packed again.
    #[error("bundle format version {found}, this build reads version {expected}: pack it again")]
    Version {
        /// The version that the file names.
        found: u32,
        /// The version that this build reads.
        expected: u32,
    },
    /// The file, or something that it lists, is larger than allowed.
    #[error("{what} has {size} bytes or entries, at most {max} are allowed")]
    Oversized {
        /// What is too large.
        what: &'static str,
        /// How large it claims to be.
        size: u64,
        /// How large it may be.
        max: u64,
    },
    /// The file ends early, or goes on after its end.
    #[error("bundle has {found} bytes, its section table needs {expected}")]
    Truncated {
        /// How many bytes there are.
        found: u64,
        /// How many the header and section table ask for.
        expected: u64,
    },
    /// The bytes of a section are not those that were written.
    #[error("checksum of {section} does not match: the bundle is damaged")]
    Checksum {
        /// Which part is damaged.
        section: &'static str,
    },
    /// A section that every bundle needs is missing.
    #[error("bundle has no {section} section")]
    Missing {
        /// Which one.
        section: &'static str,
    },
    /// A section's content contradicts itself.
    #[error("{section} section is malformed: {detail}")]
    Malformed {
        /// Which one.
        section: &'static str,
        /// What is wrong, for a human.
        detail: String,
    },
    /// The tokenizer needs something that this build does not have.
    #[error("tokenizer cannot be built: {detail}")]
    Tokenizer {
        /// What the tokenizer library said.
        detail: String,
    },
}

impl BundleError {
    pub(crate) fn malformed(section: &'static str, detail: impl std::fmt::Display) -> Self {
        Self::Malformed { section, detail: detail.to_string() }
    }
}

/// Why a text could not be tokenized.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenizeError {
    /// The text is longer than [`TEXT_BYTES_MAX`](crate::limits::TEXT_BYTES_MAX).
    #[error("text of {size} bytes, at most {max} are tokenized at once")]
    TooLong {
        /// Its size in bytes.
        size: usize,
        /// The most that is allowed.
        max: usize,
    },
    /// The tokenizer refused the text.
    #[error("tokenizer failed: {detail}")]
    Engine {
        /// What it said.
        detail: String,
    },
}
