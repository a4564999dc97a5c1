//! The entry point of the fuzz target.

use crate::format::{Kind, assemble};
use crate::{Bundle, BundleSource, SegmentMemo, SpecialTokens, write};

/// A model with a merge, added tokens and both kinds of splitting.
const TOKENIZER: &str = r#"{"version":"1.0","added_tokens":[{"id":7,"content":"<end>",
"single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":true}],
"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},"pre_tokenizer":null,
"post_processor":null,"model":{"type":"BPE","unk_token":"<unk>","fuse_unk":false,
"byte_fallback":false,"ignore_merges":false,"vocab":{"<unk>":0,"a":1,"b":2,"▁":3,"ab":4,"▁ab":5,
"é":6},"merges":[["a","b"],["▁","ab"]]}}"#;

/// Reads `data` as a bundle, and again as the content of sections whose checksums are right: each
/// replaces that of a valid bundle. What reads must tokenize, and a memo must not change the ids.
///
/// # Panics
/// When one of these does not hold.
pub fn fuzz_bundle(data: &[u8]) {
    if let Ok(bundle) = Bundle::read(data.to_vec()) {
        exercise(&bundle);
    }
    let mut sections = valid_sections();
    let mut rest = data;
    while let Some((&[kind, low, high], tail)) = rest.split_first_chunk::<3>() {
        let len = usize::from(u16::from_le_bytes([low, high])).min(tail.len());
        let (content, tail) = tail.split_at(len);
        rest = tail;
        let place = usize::from(kind) % sections.len();
        if let Some((_, section)) = sections.get_mut(place) {
            *section = content.to_vec();
        }
    }
    if let Ok(bundle) = Bundle::read(assemble(&sections)) {
        exercise(&bundle);
    }
}

#[allow(clippy::expect_used, reason = "a fuzz target reports by panic")]
fn valid_sections() -> Vec<(Kind, Vec<u8>)> {
    let bundle = write(&BundleSource {
        name: "fuzz",
        tokenizer_json: TOKENIZER,
        templates: &[],
        special: &SpecialTokens::default(),
        mistral: None,
    })
    .expect("the built-in tokenizer packs");
    let layout = crate::format::Layout::parse(&bundle).expect("a bundle reads back");
    Kind::ALL
        .into_iter()
        .filter_map(|kind| Some((kind, bundle.get(layout.find(kind)?)?.to_vec())))
        .collect()
}

#[allow(clippy::expect_used, reason = "a fuzz target reports by panic")]
fn exercise(bundle: &Bundle) {
    let long = "ab é▁ab<end>\u{10ffff}zzab ".repeat(40);
    let mut memo = SegmentMemo::new(4096, 1);
    for text in ["", "a", "ab ab<end> é", "中\0<end><end>", &long, &long] {
        for special in [false, true] {
            let mut plain = Vec::new();
            let done = bundle.tokenizer.encode_into(text, special, &mut plain);
            let mut remembered = Vec::new();
            let also = bundle.tokenizer.encode_memo(text, special, &mut memo, &mut remembered);
            assert_eq!(done, also, "a memo must not change the outcome");
            assert_eq!(plain, remembered, "a memo must not change the ids");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_built_in_bundle_tokenizes() {
        let bundle = Bundle::read(assemble(&valid_sections())).expect("reads");
        let mut ids = Vec::new();
        bundle.tokenizer.encode_into("ab ab<end>é", false, &mut ids).expect("encodes");
        assert_eq!(ids, [4, 5, 7, 6]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Sections of the valid bundle with some bytes changed, which random data would never hit.
        #[test]
        fn changed_sections_never_panic(
            place in 0usize..12,
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let sections = valid_sections();
            let place = place % sections.len();
            let mut content = sections[place].1.clone();
            for (at, byte) in &changes {
                if !content.is_empty() {
                    let at = at.index(content.len());
                    content[at] = *byte;
                }
            }
            if let Some(cut) = cut {
                content.truncate(cut.index(content.len() + 1));
            }
            let mut data = vec![place as u8];
            data.extend_from_slice(&(content.len() as u16).to_le_bytes());
            data.extend_from_slice(&content);
            fuzz_bundle(&data);
        }

        #[test]
        fn random_data_never_panics(data in vec(any::<u8>(), 0..400)) {
            fuzz_bundle(&data);
        }
    }
}
