//! Made-up models, trained and shuffled, against a tokenizer that follows the book.

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use common::{ALPHABET, ATOMS, Atoms, Model};
use proptest::collection::vec;
use proptest::prelude::*;
use warmpath_bundle::{Bundle, BundleSource, Segment, SegmentMemo, SpecialTokens, write};

/// Few characters, so that merges meet.
fn characters() -> impl Strategy<Value = Vec<&'static str>> {
    prop::sample::subsequence(ALPHABET.to_vec(), 1..6)
}

fn text_of(characters: Vec<&'static str>) -> impl Strategy<Value = String> {
    let piece = prop::sample::select(characters);
    // Short texts, texts too long for a word key, texts too long for the short merge.
    prop_oneof![
        4 => vec(piece.clone(), 0..12),
        2 => vec(piece.clone(), 12..90),
        1 => vec(piece, 1..4).prop_map(|pieces| pieces.repeat(30)),
    ]
    .prop_map(|pieces| pieces.concat())
}

fn model_of(characters: Vec<&'static str>) -> impl Strategy<Value = Model> {
    let corpus = vec(prop::sample::select(characters.clone()), 20..60);
    let orphans = vec(vec(prop::sample::select(characters), 1..5), 0..4);
    let swaps = prop_oneof![1 => Just(Vec::new()), 1 => vec((0usize..40, 0usize..40), 1..40)];
    let atoms = prop::sample::select(ATOMS.to_vec());
    let picks = vec(0usize..1000, 0..30);
    (atoms, any::<bool>(), 8..=ALPHABET.len(), corpus, picks, swaps, orphans).prop_map(
        |(atoms, ignore_merges, known, corpus, picks, swaps, orphans)| {
            let orphans: Vec<String> = orphans.iter().map(|pieces| pieces.concat()).collect();
            let mut model = Model::trained(atoms, known, &corpus.concat(), &picks)
                .with_swaps(&swaps)
                .with_orphans(&orphans);
            model.ignore_merges = ignore_merges;
            model
        },
    )
}

/// A model and texts of the characters that it was trained on.
fn model_and_texts() -> impl Strategy<Value = (Model, Vec<String>)> {
    characters()
        .prop_flat_map(|characters| (model_of(characters.clone()), vec(text_of(characters), 1..12)))
}

proptest! {
    #[test]
    fn ids_are_those_of_the_book((model, texts) in model_and_texts()) {
        let tokenizer = model.bundle(&[]).tokenizer;
        for text in &texts {
            // Twice: from the tables, then from the caches.
            for round in 0..2 {
                let mut ids = Vec::new();
                tokenizer.encode_into(text, false, &mut ids).expect("encodes");
                prop_assert_eq!(&ids, &model.oracle(text), "{:?}, round {}", text, round);
            }
        }
    }

    #[test]
    fn a_memo_changes_nothing(
        (model, texts) in model_and_texts(),
        order in vec(any::<prop::sample::Index>(), 1..40),
        capacity in prop_oneof![Just(0usize), 50usize..2000],
    ) {
        let bundle = model.bundle(&["<end>", "<image>"]);
        let mut memo = SegmentMemo::new(capacity, 3);
        for index in order {
            let inner = index.get(&texts);
            let text = format!("{inner}<end>{inner}{inner}<image>{inner}<end>");
            let (mut plain, mut remembered) = (vec![5], vec![5]);
            bundle.tokenizer.encode_into(&text, false, &mut plain).expect("encodes");
            bundle
                .tokenizer
                .encode_memo(&text, false, &mut memo, &mut remembered)
                .expect("encodes");
            prop_assert_eq!(plain, remembered);
        }
    }

    #[test]
    fn segments_are_where_the_tokenizer_splits((model, texts) in model_and_texts()) {
        let tokenizer = model.bundle(&["<end>"]).tokenizer;
        let text = texts.join("<end>");
        let mut ids = Vec::new();
        let mut rebuilt = String::new();
        for segment in tokenizer.segments(&text) {
            match segment {
                Segment::Token(id) => {
                    ids.push(id);
                    rebuilt.push_str("<end>");
                }
                Segment::Text { text: inner, offset_bytes } => {
                    prop_assert_eq!(offset_bytes, rebuilt.len());
                    rebuilt.push_str(inner);
                    tokenizer.encode_into(inner, false, &mut ids).expect("encodes");
                }
            }
        }
        prop_assert_eq!(&rebuilt, &text);
        let mut whole = Vec::new();
        tokenizer.encode_into(&text, false, &mut whole).expect("encodes");
        prop_assert_eq!(ids, whole);
    }
}

/// Merges in an order that no training gives: a character's token may be taken apart again
/// before it is finished, so it must not start whole.
#[test]
fn a_character_whose_bytes_can_be_taken_starts_as_bytes() {
    let bytes = |text: &str| -> Vec<String> {
        text.bytes().map(|byte| common::gpt2_char(byte).to_string()).collect()
    };
    let (e, a) = (bytes("é"), bytes("a"));
    let mut model = Model::trained(Atoms::Bytes, 0, "", &[]);
    // `a` takes the first byte of `é` before its two bytes meet.
    for pair in [(a[0].clone(), e[0].clone()), (e[0].clone(), e[1].clone())] {
        model.tokens.push(format!("{}{}", pair.0, pair.1));
        model.merges.push(pair);
    }
    let tokenizer = model.bundle(&[]).tokenizer;
    for text in ["é", "aé", "éa", "aaéé"] {
        let mut ids = Vec::new();
        tokenizer.encode_into(text, false, &mut ids).expect("encodes");
        assert_eq!(ids, model.oracle(text), "{text}");
    }
}

/// Nothing takes a part of `é`, but what its token merges with comes first: starting with the
/// token would let that merge overtake one of its neighbour's.
#[test]
fn a_character_that_merges_early_starts_as_bytes() {
    let spell = |text: &str| -> String { text.bytes().map(common::gpt2_char).collect() };
    let bytes: Vec<String> = spell("é").chars().map(String::from).collect();
    let mut model = Model::trained(Atoms::Bytes, 0, "", &[]);
    for pair in [
        ("b".to_owned(), spell("é")),
        ("a".to_owned(), "b".to_owned()),
        (bytes[0].clone(), bytes[1].clone()),
    ] {
        model.tokens.push(format!("{}{}", pair.0, pair.1));
        model.merges.push(pair);
    }
    let tokenizer = model.bundle(&[]).tokenizer;
    for text in ["abé", "bé", "abab bébé"] {
        let mut ids = Vec::new();
        tokenizer.encode_into(text, false, &mut ids).expect("encodes");
        assert_eq!(ids, model.oracle(text), "{text}");
    }
}

/// A tokenizer that puts a space before a sequence's first text, and only there.
#[test]
fn a_memo_knows_which_segment_opens_the_sequence() {
    let text = "a b a b a b a b a b a b a b a b a b a b";
    let mut json: serde_json::Value = serde_json::from_str(
        &Model::trained(Atoms::CharsWithUnk, 8, "▁a▁b", &[0, 0]).json(&["<end>"]),
    )
    .expect("JSON");
    json["pre_tokenizer"] = serde_json::json!({
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false,
    });
    let bundle = write(&BundleSource {
        name: "made up",
        tokenizer_json: &json.to_string(),
        templates: &[],
        special: &SpecialTokens::default(),
        mistral: None,
    })
    .expect("packs");
    let tokenizer = Bundle::read(bundle).expect("reads").tokenizer;
    let mut memo = SegmentMemo::new(4096, 0);
    let mut ids_of = |text: &str| {
        let (mut plain, mut remembered) = (Vec::new(), Vec::new());
        tokenizer.encode_into(text, false, &mut plain).expect("encodes");
        tokenizer.encode_memo(text, false, &mut memo, &mut remembered).expect("encodes");
        assert_eq!(plain, remembered, "{text}");
        plain
    };
    let opening = ids_of(text);
    let inner = ids_of(&format!("<end>{text}"));
    assert_ne!(opening, inner[1..], "the first text gets a space");
    assert_eq!(ids_of(text), opening);
}

#[test]
fn the_oracle_joins_what_the_model_joins() {
    let model = Model::trained(Atoms::CharsOnly, 3, "abc", &[0, 0]);
    assert_eq!(model.tokens, ["<unk>", "a", "b", "c", "ab", "abc"]);
    assert_eq!(model.oracle("aabcb"), [1, 5, 2]);
}
