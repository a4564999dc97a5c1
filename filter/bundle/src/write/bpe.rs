//! Compiles a BPE model of a canonical tokenizer.json into the tables of a bundle.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::utils::byte_level::{BYTES_CHAR_LOOKUP, char_to_byte};

use super::{WriteError, seeds};
use crate::bpe::cuts::{Cuts, class_of};
use crate::bpe::index::{
    FLAG_CHAR, FLAG_WHOLE, ID_BITS, ID_MAX, TEXT_AT_MAX, hash_bytes, hash_pair, token_slot,
};
use crate::bpe::{Bpe, BpeConfig};
use crate::format::{Kind, Layout, assemble};
use crate::phf;

/// A vocabulary and its merges, resolved against each other.
pub(super) struct Source {
    byte_level: bool,
    ignore_merges: bool,
    byte_fallback: bool,
    fuse_unk: bool,
    unk_token: Option<u32>,
    /// Token strings by id, as the file spells them.
    tokens: Vec<Option<String>>,
    ids: HashMap<String, u32>,
    /// Left, right and product by rank.
    pub(super) merges: Vec<[u32; 3]>,
    /// The rank of a pair: the last of equal ones, as the library keeps it.
    pub(super) ranks: HashMap<(u32, u32), u32>,
}

impl Source {
    /// Reads `model`; None if it needs what [`Bpe`] does not do: affixes, dropout, or more tokens
    /// or merges than the tables hold. With `ranks_products`, merges in a row that make the same token are of
    /// one rank, so that of two the left one comes first.
    pub(super) fn read(model: &Value, ranks_products: bool) -> Result<Option<Self>, WriteError> {
        let text = |key: &str| model.get(key).and_then(Value::as_str).unwrap_or_default();
        let flag = |key: &str| model.get(key).and_then(Value::as_bool).unwrap_or_default();
        let vocab = model
            .get("vocab")
            .and_then(Value::as_object)
            .ok_or_else(|| source("the model has no vocabulary"))?;
        let merges = model
            .get("merges")
            .and_then(Value::as_array)
            .ok_or_else(|| source("the model has no merges"))?;
        let dropout = model.get("dropout").and_then(Value::as_f64).unwrap_or(0.0);
        let largest = vocab.values().filter_map(Value::as_u64).max().unwrap_or(0);
        if !text("continuing_subword_prefix").is_empty()
            || !text("end_of_word_suffix").is_empty()
            || dropout > 0.0
            || largest > u64::from(ID_MAX)
            || merges.len() > ID_MAX as usize
        {
            return Ok(None);
        }
        let mut tokens = vec![None; largest as usize + 1];
        let mut ids = HashMap::with_capacity(vocab.len());
        for (token, id) in vocab {
            let id = id.as_u64().ok_or_else(|| source(format!("id of {token:?}")))?;
            if let Some(slot) = tokens.get_mut(id as usize) {
                *slot = Some(token.clone());
            }
            ids.insert(token.clone(), id as u32);
        }
        let unk = text("unk_token");
        let mut read = Self {
            byte_level: flag("byte_level"),
            ignore_merges: flag("ignore_merges"),
            byte_fallback: flag("byte_fallback"),
            fuse_unk: flag("fuse_unk"),
            unk_token: None,
            tokens,
            ids,
            merges: Vec::with_capacity(merges.len()),
            ranks: HashMap::with_capacity(merges.len()),
        };
        if !unk.is_empty() && !read.byte_level {
            read.unk_token = Some(read.id(unk)?);
        }
        for (rank, pair) in merges.iter().enumerate() {
            let side = |index| pair.get(index).and_then(Value::as_str).unwrap_or_default();
            let (left, right) = (read.id(side(0))?, read.id(side(1))?);
            let product = read.id(&format!("{}{}", side(0), side(1)))?;
            let is_other = |[_, _, other]: &[u32; 3]| *other != product;
            let rank = match ranks_products {
                true => read.merges.iter().rposition(is_other).map_or(0, |before| before + 1),
                false => rank,
            };
            read.merges.push([left, right, product]);
            read.ranks.insert((left, right), rank as u32);
        }
        Ok(Some(read))
    }

    fn id(&self, token: &str) -> Result<u32, WriteError> {
        self.ids
            .get(token)
            .copied()
            .ok_or_else(|| source(format!("token {token:?} is not in the vocabulary")))
    }

    /// The id of a token by its spelling in the file.
    pub(super) fn find(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    pub(super) fn token_count(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn id_space(&self) -> usize {
        self.tokens.len()
    }

    /// The bytes that a token stands for in text; None for ids without a token, and for tokens
    /// that no text can spell.
    pub(super) fn text_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.tokens.get(id as usize)?.as_ref()?;
        if self.byte_level {
            token.chars().map(char_to_byte).collect()
        } else {
            Some(token.clone().into_bytes())
        }
    }

    /// The tokens of the 256 bytes, or none if the model has none. Bytes that occur in no text may
    /// lack one.
    pub(super) fn byte_tokens(&self) -> Result<Vec<u32>, WriteError> {
        if !self.byte_level && !self.byte_fallback {
            return Ok(Vec::new());
        }
        (0..=255u8)
            .map(|byte| {
                let spelling = if self.byte_level {
                    BYTES_CHAR_LOOKUP
                        .get(usize::from(byte))
                        .map(char::to_string)
                        .unwrap_or_default()
                } else {
                    format!("<0x{byte:02X}>")
                };
                match self.find(&spelling) {
                    Some(id) => Ok(id),
                    None if self.byte_level && matches!(byte, 0xC0 | 0xC1 | 0xF5..) => Ok(u32::MAX),
                    None => Err(source(format!("no token for byte {byte:#04x}"))),
                }
            })
            .collect()
    }

    /// Where words may be cut, see [`Cuts`]; None when every word must stay whole.
    fn cuts(&self) -> Option<Cuts> {
        // With `ignore_merges`, a whole word is looked up first, whatever merges make of it.
        // Characters that vanish, or that become one unknown token in a run, are joined by no
        // merge, and yet not independent.
        let unknown_stays = self.byte_level || self.byte_fallback || self.unk_token.is_some();
        let fused = self.fuse_unk && !self.byte_fallback && self.unk_token.is_some();
        if self.ignore_merges || !unknown_stays || fused {
            return None;
        }
        let bytes = self.byte_tokens().ok()?;
        let mut cuts = Cuts::everywhere();
        for [left, right, _] in &self.merges {
            // An unknown token stands for text of any class.
            if [Some(*left), Some(*right)].contains(&self.unk_token) {
                return None;
            }
            for before in self.edge_classes(*left, &bytes, |text| text.chars().next_back()) {
                for after in self.edge_classes(*right, &bytes, |text| text.chars().next()) {
                    cuts.join(before, after);
                }
            }
        }
        Some(cuts)
    }

    /// The classes that a token's text may have at one edge.
    fn edge_classes(
        &self,
        id: u32,
        bytes: &[u32],
        edge: impl Fn(&str) -> Option<char>,
    ) -> Vec<usize> {
        let Some(text) = self.text_bytes(id) else {
            // No text spells this token, so no cut matters to it.
            return Vec::new();
        };
        let mut classes = Vec::new();
        match std::str::from_utf8(&text) {
            Ok(text) => classes.extend(edge(text).map(class_of)),
            // Bytes of a character that is cut off: of any class but ASCII, at either edge.
            Err(_) => {
                let lossy = String::from_utf8_lossy(&text);
                classes.extend(edge(&lossy).map(class_of));
            }
        }
        if !self.byte_level
            && let Some(byte) = bytes.iter().position(|byte| *byte == id)
        {
            classes.push(class_of(char::from(byte as u8)));
        }
        // In bytes, `▁` is a character like others.
        if self.byte_level && classes.iter().any(|class| *class >= 128) {
            classes = vec![class_of('▁'), class_of('é')];
        }
        classes
    }

    /// The sections of the model.
    pub(super) fn compile(&self) -> Result<Vec<(Kind, Vec<u8>)>, WriteError> {
        let config = BpeConfig {
            byte_level: self.byte_level,
            byte_tokens: self.byte_tokens()?,
            unk_token: self.unk_token,
            fuse_unk: self.fuse_unk,
        };
        let (text, places) = self.texts()?;
        let mut sections = vec![
            (Kind::BpeConfig, serde_json::to_vec(&config)?),
            (Kind::Tokens, text),
            (Kind::TokenIndex, self.index_section(&places, &HashMap::new())?),
            (Kind::Merges, self.merges_section()?),
            (Kind::Products, self.products_section()),
        ];
        let flags = self.flags(&sections)?;
        let index = self.index_section(&places, &flags)?;
        if let Some((_, section)) = sections.iter_mut().find(|(kind, _)| *kind == Kind::TokenIndex)
        {
            *section = index;
        }
        sections.extend(self.cuts().map(|cuts| (Kind::Joints, cuts.to_bytes())));
        Ok(sections)
    }

    /// The texts of all tokens that text can spell, and where each is.
    fn texts(&self) -> Result<(Vec<u8>, Vec<Place>), WriteError> {
        let mut out = Vec::new();
        let mut places = Vec::new();
        for id in 0..self.tokens.len() as u32 {
            let Some(text) = self.text_bytes(id).filter(|text| !text.is_empty()) else {
                continue;
            };
            let len = u16::try_from(text.len())
                .map_err(|_| source(format!("token {id} has {} bytes", text.len())))?;
            let at = out.len();
            if at > TEXT_AT_MAX {
                return Err(source("the vocabulary has more than 16 MB of text"));
            }
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(&text);
            places.push(Place { id, at, text });
        }
        Ok((out, places))
    }

    fn index_section(
        &self,
        places: &[Place],
        flags: &HashMap<u32, u32>,
    ) -> Result<Vec<u8>, WriteError> {
        let key =
            |index: usize, seed| places.get(index).map_or(0, |place| hash_bytes(&place.text, seed));
        let slot = |index: usize, hash| {
            places.get(index).map_or(u64::MAX, |place| {
                let flags = flags.get(&place.id).copied().unwrap_or(0);
                token_slot(hash, place.at, place.id | flags)
            })
        };
        phf::build(places.len(), key, slot).ok_or_else(|| source("two tokens have the same bytes"))
    }

    fn merges_section(&self) -> Result<Vec<u8>, WriteError> {
        let entries: Vec<((u32, u32), u32)> = {
            let mut entries: Vec<_> =
                self.ranks.iter().map(|(pair, rank)| (*pair, *rank)).collect();
            entries.sort_unstable_by_key(|(_, rank)| *rank);
            entries
        };
        let pair = |index: usize| entries.get(index).copied().unwrap_or_default();
        phf::build(
            entries.len(),
            |index, seed| {
                let ((left, right), _) = pair(index);
                hash_pair(left, right, seed)
            },
            |index, _| {
                let ((left, right), rank) = pair(index);
                let key = u64::from(left) << ID_BITS | u64::from(right);
                key << ID_BITS | u64::from(rank)
            },
        )
        .ok_or_else(|| source("the merge table cannot be built"))
    }

    fn products_section(&self) -> Vec<u8> {
        self.merges.iter().flat_map(|[_, _, product]| product.to_le_bytes()).collect()
    }

    /// Flags of each token, found by running the model on the token's own text.
    fn flags(&self, sections: &[(Kind, Vec<u8>)]) -> Result<HashMap<u32, u32>, WriteError> {
        let bundle = assemble(sections);
        let unreadable = |error: crate::BundleError| source(error.to_string());
        let layout = Layout::parse(&bundle).map_err(unreadable)?;
        let model = Bpe::read(bundle, &layout).map_err(unreadable)?;
        let seeds = self.byte_level.then(|| seeds::Seeds::new(self)).transpose()?;
        let mut scratch = crate::bpe::BpeScratch::new();
        let mut flags = HashMap::new();
        for id in 0..self.tokens.len() as u32 {
            let Some(bytes) = self.text_bytes(id) else { continue };
            let Ok(text) = std::str::from_utf8(&bytes) else { continue };
            let mut flag = 0;
            if self.ignore_merges || model.merges_to(text, id, &mut scratch) {
                flag |= FLAG_WHOLE;
            }
            if seeds.as_ref().is_some_and(|seeds| seeds.is_safe(text, id)) {
                flag |= FLAG_CHAR;
            }
            flags.insert(id, flag);
        }
        Ok(flags)
    }
}

/// A token's text and its place in the section.
struct Place {
    id: u32,
    at: usize,
    text: Vec<u8>,
}

pub(super) fn source(detail: impl Into<String>) -> WriteError {
    WriteError::Source(detail.into())
}
