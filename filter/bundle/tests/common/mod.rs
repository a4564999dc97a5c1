//! Small models made up for tests, and the plainest possible tokenizer to compare with.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use warmpath_bundle::{Bundle, BundleSource, SpecialTokens, write};

/// How a made-up model reads text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atoms {
    /// Bytes in the GPT-2 alphabet.
    Bytes,
    /// Characters, with tokens for bytes to fall back to.
    CharsWithBytes,
    /// Characters, with an unknown token.
    CharsWithUnk,
    /// Characters, with an unknown token for each run of unknown ones.
    CharsWithFusedUnk,
    /// Characters; unknown ones vanish.
    CharsOnly,
}

pub const ATOMS: [Atoms; 5] = [
    Atoms::Bytes,
    Atoms::CharsWithBytes,
    Atoms::CharsWithUnk,
    Atoms::CharsWithFusedUnk,
    Atoms::CharsOnly,
];

/// The characters of the test texts; made-up models know the first ones.
pub const ALPHABET: [&str; 14] =
    ["a", "b", "c", "▁", ">", "é", "中", " ", "\n", "国", "😀", "Z", "\u{301}", "ß"];

/// A made-up BPE model.
#[derive(Debug, Clone)]
pub struct Model {
    pub atoms: Atoms,
    pub ignore_merges: bool,
    /// Token strings as the file spells them; the index is the id.
    pub tokens: Vec<String>,
    pub merges: Vec<(String, String)>,
}

impl Model {
    /// Trains on `corpus`: each pick chooses one of the pairs that stand side by side in it, and
    /// joins that pair throughout.
    pub fn trained(atoms: Atoms, known_chars: usize, corpus: &str, picks: &[usize]) -> Self {
        let mut tokens: Vec<String> = match atoms {
            Atoms::Bytes => (0..=255).map(|byte| gpt2_char(byte).to_string()).collect(),
            Atoms::CharsWithBytes => (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect(),
            _ => vec!["<unk>".to_owned()],
        };
        let known = &ALPHABET[..known_chars.min(ALPHABET.len())];
        if atoms != Atoms::Bytes {
            tokens.extend(known.iter().map(|char| (*char).to_owned()));
        }
        let mut model = Self { atoms, ignore_merges: false, tokens, merges: Vec::new() };
        for pick in picks {
            let symbols = model.symbols(corpus);
            let pairs: Vec<&[String]> = symbols
                .windows(2)
                .filter(|pair| pair.concat().len() <= 40 && !pair.concat().contains('<'))
                .collect();
            if pairs.is_empty() {
                break;
            }
            let pair = pairs[pick % pairs.len()];
            let product = pair.concat();
            if !model.tokens.contains(&product) {
                model.tokens.push(product);
            }
            model.merges.push((pair[0].clone(), pair[1].clone()));
        }
        model
    }

    /// Puts merges in an order that no training gives.
    pub fn with_swaps(mut self, swaps: &[(usize, usize)]) -> Self {
        for (one, other) in swaps {
            if !self.merges.is_empty() {
                let len = self.merges.len();
                self.merges.swap(one % len, other % len);
            }
        }
        self
    }

    /// Adds tokens that no merge makes.
    pub fn with_orphans(mut self, texts: &[String]) -> Self {
        for text in texts {
            let token = self.spelled(text);
            if !token.is_empty() && !self.tokens.contains(&token) {
                self.tokens.push(token);
            }
        }
        self
    }

    fn spelled(&self, text: &str) -> String {
        match self.atoms {
            Atoms::Bytes => text.bytes().map(gpt2_char).collect(),
            _ => text.to_owned(),
        }
    }

    /// Its tokenizer.json.
    pub fn json(&self, added: &[&str]) -> String {
        let vocab: Map<String, Value> =
            self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
        let added: Vec<Value> = added
            .iter()
            .enumerate()
            .map(|(index, content)| {
                json!({
                    "id": self.tokens.len() + index, "content": content, "single_word": false,
                    "lstrip": false, "rstrip": false, "normalized": false, "special": true,
                })
            })
            .collect();
        let unk = matches!(self.atoms, Atoms::CharsWithUnk | Atoms::CharsWithFusedUnk);
        let pre_tokenizer = match self.atoms {
            Atoms::Bytes => json!({
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": false,
            }),
            _ => Value::Null,
        };
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": null,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": null,
            "decoder": null,
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": unk.then_some("<unk>"),
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": self.atoms == Atoms::CharsWithFusedUnk,
                "byte_fallback": self.atoms == Atoms::CharsWithBytes,
                "ignore_merges": self.ignore_merges,
                "vocab": vocab,
                "merges": self.merges,
            },
        })
        .to_string()
    }

    /// The ids of a text without added tokens, by the book.
    pub fn oracle(&self, text: &str) -> Vec<u32> {
        let id = |token: &str| {
            let place = self.tokens.iter().position(|known| known == token);
            place.map(|place| place as u32)
        };
        let whole = id(&self.spelled(text)).filter(|_| self.ignore_merges);
        match whole {
            Some(id) => vec![id],
            None => self
                .symbols(text)
                .iter()
                .map(|symbol| id(symbol).expect("symbols are tokens"))
                .collect(),
        }
    }

    /// Merges the pair of lowest rank, the leftmost of equals, until none is left.
    fn symbols(&self, text: &str) -> Vec<String> {
        let ranks: HashMap<(&str, &str), usize> = self
            .merges
            .iter()
            .enumerate()
            .map(|(rank, (left, right))| ((left.as_str(), right.as_str()), rank))
            .collect();
        let mut symbols: Vec<String> = Vec::new();
        let mut after_unk = false;
        for char in self.spelled(text).chars() {
            let char = char.to_string();
            let known = self.tokens.contains(&char);
            match self.atoms {
                _ if known => symbols.push(char),
                Atoms::CharsWithBytes => {
                    symbols.extend(char.bytes().map(|byte| format!("<0x{byte:02X}>")));
                }
                Atoms::CharsWithUnk => symbols.push("<unk>".to_owned()),
                Atoms::CharsWithFusedUnk if !after_unk => symbols.push("<unk>".to_owned()),
                _ => {}
            }
            after_unk = !known;
        }
        loop {
            let best = symbols
                .windows(2)
                .enumerate()
                .filter_map(|(at, pair)| {
                    Some((*ranks.get(&(pair[0].as_str(), pair[1].as_str()))?, at))
                })
                .min();
            let Some((_, at)) = best else { break };
            let right = symbols.remove(at + 1);
            symbols[at].push_str(&right);
        }
        symbols
    }

    /// Packed and read back.
    pub fn bundle(&self, added: &[&str]) -> Bundle {
        Bundle::read(self.packed(added)).expect("reads back")
    }

    /// Packed.
    pub fn packed(&self, added: &[&str]) -> Vec<u8> {
        write(&BundleSource {
            name: "made up",
            tokenizer_json: &self.json(added),
            templates: &[("default".to_owned(), "{{ messages }}".to_owned())],
            special: &SpecialTokens {
                eos_token: Some("<end>".to_owned()),
                extra: vec![("image_token".to_owned(), "<image>".to_owned())],
                ..SpecialTokens::default()
            },
            mistral: None,
        })
        .expect("packs")
    }
}

/// The character that GPT-2's alphabet has for a byte: itself if it is visible, else one from
/// U+0100 on, in order.
pub fn gpt2_char(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if visible(byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|other| !visible(*other)).count() as u32;
    char::from_u32(0x100 + place).expect("a character")
}
