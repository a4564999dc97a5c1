//! Token ids against the reference library, on hostile texts, for every tokenizer that
//! `integration/vectors/tokenizers/fetch.py` has cached.
//!
//! Tokenizers that are not cached are named and skipped; with `WARMPATH_REQUIRE_VECTORS=1` they
//! are a failure.

use std::path::{Path, PathBuf};

use warmpath_bundle::{Bundle, BundleSource, SegmentMemo, SpecialTokens, Tokenizer, write};
use xxhash_rust::xxh3::xxh3_64;

const NAMES: [&str; 8] =
    ["deepseek_v3", "deepseek_v4", "gemma3", "gpt35turbo", "gptoss", "llama2", "llama3_1", "qwen3"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn texts() -> Vec<String> {
    read(&repository().join("integration/vectors/tokenizers/texts.jsonl"))
        .lines()
        .map(|line| {
            let parts: Vec<(String, usize)> = serde_json::from_str(line).expect("a text");
            parts.iter().map(|(piece, count)| piece.repeat(*count)).collect()
        })
        .collect()
}

/// Packs a cached tokenizer and reads the bundle back.
fn packed(name: &str) -> Option<Tokenizer> {
    let path = repository().join(format!(".cache/tokenizers/{name}/tokenizer.json"));
    if !path.is_file() {
        assert!(std::env::var_os("WARMPATH_REQUIRE_VECTORS").is_none(), "{name} is not cached");
        eprintln!("SKIPPED: {name} is not cached, run integration/vectors/tokenizers/fetch.py");
        return None;
    }
    let bundle = write(&BundleSource {
        name,
        tokenizer_json: &read(&path),
        templates: &[],
        special: &SpecialTokens::default(),
        mistral: None,
    })
    .expect("packs");
    Some(Bundle::read(bundle).expect("reads back").tokenizer)
}

fn digest(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    format!("{:016x}", xxh3_64(&bytes))
}

fn check(name: &str) {
    let Some(tokenizer) = packed(name) else { return };
    let texts = texts();
    let vectors = read(&repository().join(format!("integration/vectors/tokenizers/{name}.tsv")));
    assert!(texts.len() >= 800);
    assert_eq!(vectors.lines().count(), texts.len());
    // Small enough that entries are dropped all the time.
    let mut memo = SegmentMemo::new(8192, 7);
    for (text, line) in texts.iter().zip(vectors.lines()) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [number, count, bare, special] = fields[..] else {
            panic!("{line:?}");
        };
        let (mut ids, mut with_special) = (Vec::new(), Vec::new());
        tokenizer.encode_into(text, false, &mut ids).expect("encodes");
        tokenizer.encode_into(text, true, &mut with_special).expect("encodes");
        assert_eq!(ids.len().to_string(), count, "{name}, text {number}: {text:?}");
        assert_eq!(digest(&ids), bare, "{name}, text {number}: {text:?}");
        assert_eq!(digest(&with_special), special, "{name}, text {number}: {text:?}");
        for _ in 0..2 {
            let mut remembered = Vec::new();
            tokenizer.encode_memo(text, false, &mut memo, &mut remembered).expect("encodes");
            assert_eq!(remembered, ids, "{name}, text {number} from the memo");
        }
        assert!(ids.iter().all(|id| *id < tokenizer.vocab_size()));
    }
    assert!(memo.stats().hits > 100 && memo.stats().misses > 100, "{:?}", memo.stats());
}

macro_rules! golden {
    ($($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                assert!(NAMES.contains(&stringify!($name)));
                check(stringify!($name));
            }
        )*
    };
}

golden!(deepseek_v3, deepseek_v4, gemma3, gpt35turbo, gptoss, llama2, llama3_1, qwen3);

#[test]
fn every_fetched_tokenizer_has_a_test() {
    let sources = read(&repository().join("integration/vectors/tokenizers/sources.json"));
    let sources: Vec<serde_json::Value> = serde_json::from_str(&sources).expect("JSON");
    let mut names: Vec<&str> =
        sources.iter().map(|source| source["name"].as_str().expect("a name")).collect();
    // Not a tokenizer.json: `warmpath-vllm` has its test.
    names.retain(|name| *name != "tekken");
    names.sort_unstable();
    assert_eq!(names, NAMES);
}
