//! Reading a bundle.

use std::fmt;

use crate::error::BundleError;
use crate::format::{Kind, Layout};
use crate::limits::{NAME_BYTES_MAX, TEMPLATE_BYTES_MAX, TEMPLATES_MAX};
use crate::meta::{BundleMeta, SpecialTokens};
use crate::tokenizer::Tokenizer;

/// A model's tokenizer, chat templates and metadata, ready for use.
pub struct Bundle {
    /// Turns text into token ids.
    pub tokenizer: Tokenizer,
    /// Chat templates as `(name, Jinja source)`; the one used by default is named `default`. Empty
    /// when the model ships none.
    pub templates: Vec<(String, String)>,
    /// The special tokens that templates name as variables.
    pub special: SpecialTokens,
    /// Where the bundle comes from.
    pub meta: BundleMeta,
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl Bundle {
    /// Reads a bundle. Takes the bytes by value, so that they serve as the tokenizer's memory and
    /// no copy of them stays behind.
    ///
    /// # Errors
    /// Any [`BundleError`]; nothing in a bundle can make this panic or allocate beyond
    /// [`limits`](crate::limits).
    pub fn read(bytes: Vec<u8>) -> Result<Self, BundleError> {
        let layout = Layout::parse(&bytes)?;
        let meta: BundleMeta = layout.json(&bytes, Kind::Meta)?;
        if meta.name.len() > NAME_BYTES_MAX {
            return Err(BundleError::Oversized {
                what: "model name",
                size: meta.name.len() as u64,
                max: NAME_BYTES_MAX as u64,
            });
        }
        let special: SpecialTokens = layout.json(&bytes, Kind::Special)?;
        let templates: Vec<(String, String)> = layout.json(&bytes, Kind::Templates)?;
        check_templates(&templates)?;
        let tokenizer = Tokenizer::read(bytes, &layout, &meta)?;
        Ok(Self { tokenizer, templates, special, meta })
    }
}

fn check_templates(templates: &[(String, String)]) -> Result<(), BundleError> {
    if templates.len() > TEMPLATES_MAX {
        return Err(BundleError::Oversized {
            what: "template list",
            size: templates.len() as u64,
            max: TEMPLATES_MAX as u64,
        });
    }
    match templates.iter().map(|(_, source)| source.len()).max() {
        Some(size) if size > TEMPLATE_BYTES_MAX => Err(BundleError::Oversized {
            what: "template",
            size: size as u64,
            max: TEMPLATE_BYTES_MAX as u64,
        }),
        _ => Ok(()),
    }
}
