//! The chats of Mistral models that come with a tekken.json: the prompts of
//! `integration/vectors/vllm/mistral.jsonl`, which `mistral.py` there writes anew.
//!
//! `WARMPATH_MISTRAL` names another file of such prompts, for longer random runs.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde_json::Value;
use warmpath_bundle::{Bundle, MistralFormat, MistralVersion, SegmentMemo, Tokenizer};
use warmpath_core::config::ChatConfig;
use warmpath_core::mistral::{self, Piece};
use warmpath_core::request::{Api, PromptInput, parse};
use warmpath_vllm::family::{read, repository_file, tekken_bundle, vectors};
use warmpath_vllm::recorded::{cached, hex_digest};

use crate::Tally;

const NEWEST: &str = "v15";

/// A version's format; that of the newest is in its bundle.
fn format(version: &str, newest: &MistralFormat) -> MistralFormat {
    let version: MistralVersion = serde_json::from_value(version.into()).unwrap();
    let efforts = newest.efforts.clone().filter(|_| version == newest.version);
    MistralFormat { version, efforts }
}

/// The prompt's text, its special tokens spelled out, and its ids.
fn ours(
    tokenizer: &Tokenizer,
    (api, body): (Api, &str),
    format: &MistralFormat,
    config: &ChatConfig,
) -> Result<(String, Vec<u32>), String> {
    let request = parse(api, body.as_bytes()).map_err(|error| error.to_string())?;
    let PromptInput::Chat(chat) = request.prompt else { panic!("{body}") };
    let written = mistral::write(*chat, format, config).map_err(|error| error.to_string())?;
    let (mut text, mut ids) = (String::new(), Vec::new());
    for piece in &written.pieces {
        match piece {
            Piece::Mark(mark) => {
                text.push_str(mark);
                ids.push(tokenizer.added_token_id(mark).ok_or("a token is missing")?);
            }
            Piece::Text(piece) => {
                text.push_str(piece);
                tokenizer.encode_plain(piece, None, &mut ids).unwrap();
            }
        }
    }
    Ok((text, ids))
}

#[test]
fn mistral_chats_and_texts() {
    let Some(bytes) = cached(tekken_bundle("mistral", NEWEST)) else { return };
    let bundle = Bundle::read(bytes).unwrap();
    let newest = bundle.meta.mistral.unwrap();
    check_texts(&bundle.tokenizer);
    let file = std::env::var_os("WARMPATH_MISTRAL");
    let file = file.map_or_else(|| vectors().join("mistral.jsonl"), PathBuf::from);
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for line in read(&file).lines() {
        let (api, body, traits, prompts): (
            String,
            String,
            Value,
            HashMap<String, (String, String)>,
        ) = serde_json::from_str(line).unwrap();
        let request = (Api::from_name(&api).unwrap(), body.as_str());
        // What the engine refuses is computed nowhere.
        for (version, (text, expected)) in prompts {
            let format = format(&version, &newest);
            let ours = ours(&bundle.tokenizer, request, &format, &crate::config(&traits));
            let compared = ours.map(|(found, ids)| {
                let is_equal = (&found, digest(&ids)) == (&text, expected);
                (is_equal, format!("  vllm: {text:?}\n  ours: {found:?}"))
            });
            tallies.entry(version).or_default().add(&body, compared);
        }
    }
    assert_eq!(tallies.len(), 5);
    for (version, tally) in tallies {
        tally.check(&version, 200);
    }
}

/// The ids of the tokenizers' hostile texts are Mistral's own.
fn check_texts(tokenizer: &Tokenizer) {
    let texts = read(&repository_file("integration/vectors/tokenizers/texts.jsonl"));
    let expected = read(&vectors().join("mistral.texts.tsv"));
    assert!(texts.lines().count() >= 800 && texts.lines().count() == expected.lines().count());
    let mut memo = SegmentMemo::new(8192, 7);
    for (parts, line) in texts.lines().zip(expected.lines()) {
        let parts: Vec<(String, usize)> = serde_json::from_str(parts).unwrap();
        let text: String = parts.iter().map(|(piece, count)| piece.repeat(*count)).collect();
        let fields: Vec<&str> = line.split('\t').collect();
        for (special, expected) in [(false, fields[2]), (true, fields[3])] {
            for _ in 0..2 {
                let mut ids = Vec::new();
                tokenizer.encode_memo(&text, special, &mut memo, &mut ids).unwrap();
                assert_eq!(digest(&ids), expected, "{line}: {text:?}");
            }
        }
    }
}

fn digest(ids: &[u32]) -> String {
    hex_digest(serde_json::to_string(ids).unwrap().as_bytes(), 8)
}
