//! Damaged, foreign and oversized bundles: each is its own error, none a panic.

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use common::{Atoms, Model};
use warmpath_bundle::{Bundle, BundleError, FORMAT_VERSION, limits};
use xxhash_rust::xxh3::xxh3_64;

fn packed() -> Vec<u8> {
    let picks: Vec<usize> = (0..30).map(|n| n * 7).collect();
    Model::trained(Atoms::Bytes, 0, "ab é ab 中 c ab >>", &picks).packed(&["<end>"])
}

fn refusal(bytes: Vec<u8>) -> BundleError {
    Bundle::read(bytes).expect_err("must be refused")
}

#[test]
fn a_bundle_reads_back_as_it_was_written() {
    let bundle = Bundle::read(packed()).expect("reads");
    assert_eq!(bundle.meta.name, "made up");
    assert_eq!(bundle.meta.model_kind, "BPE");
    assert_eq!(bundle.meta.added_tokens, 1);
    assert_eq!(bundle.templates, [("default".to_owned(), "{{ messages }}".to_owned())]);
    assert_eq!(bundle.special.eos_token.as_deref(), Some("<end>"));
    assert_eq!(bundle.special.bos_token, None);
    assert_eq!(bundle.special.extra, [("image_token".to_owned(), "<image>".to_owned())]);
    let end = bundle.tokenizer.added_token_id("<end>").expect("added");
    assert_eq!(end + 1, bundle.tokenizer.vocab_size());
    assert_eq!(bundle.tokenizer.added_token_id("a"), None);
}

#[test]
fn every_shorter_file_is_refused() {
    let bytes = packed();
    for len in 0..bytes.len() {
        let found = refusal(bytes[..len].to_vec());
        let expected = match len {
            0..8 => matches!(found, BundleError::NotABundle),
            _ => matches!(found, BundleError::Truncated { .. }),
        };
        assert!(expected, "{len} bytes: {found}");
    }
}

#[test]
fn a_longer_file_is_refused() {
    let mut bytes = packed();
    bytes.push(0);
    assert!(matches!(refusal(bytes), BundleError::Truncated { .. }));
}

#[test]
fn every_changed_byte_is_noticed() {
    let bytes = packed();
    let mut sections = std::collections::HashSet::new();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x40;
        match Bundle::read(changed) {
            // Padding between sections is not part of any.
            Ok(_) => assert_eq!(bytes[at], 0, "byte {at}"),
            Err(BundleError::Checksum { section }) => {
                sections.insert(section);
            }
            Err(BundleError::NotABundle) => assert!(at < 8),
            Err(BundleError::Version { .. }) => assert!((8..12).contains(&at)),
            Err(BundleError::Oversized { .. } | BundleError::Truncated { .. }) => {
                assert!((12..16).contains(&at), "byte {at}");
            }
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(sections.contains("header") && sections.len() > 8, "{sections:?}");
}

/// Changes the header and makes its checksum right again.
fn with_header(change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = packed();
    change(&mut bytes);
    let count = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
    let end = 16 + 24 * count;
    let sum = xxh3_64(&bytes[..end]);
    bytes[end..end + 8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn another_version_is_named() {
    let bytes = with_header(|bytes| bytes[8] = 99);
    let expected = BundleError::Version { found: 99, expected: FORMAT_VERSION };
    assert_eq!(refusal(bytes), expected);
}

#[test]
fn a_section_that_claims_too_much_is_refused_before_it_is_read() {
    let bytes = with_header(|bytes| bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes()));
    assert!(matches!(refusal(bytes), BundleError::Oversized { what: "section", .. }));
    let bytes = with_header(|bytes| bytes[24..28].copy_from_slice(&1_000_000u32.to_le_bytes()));
    assert!(matches!(refusal(bytes), BundleError::Malformed { .. }));
}

#[test]
fn too_many_sections_are_refused() {
    let mut bytes = packed();
    bytes[12..16].copy_from_slice(&1000u32.to_le_bytes());
    assert!(matches!(refusal(bytes), BundleError::Oversized { what: "section table", .. }));
}

#[test]
fn a_file_over_the_limit_is_refused() {
    let bytes = vec![0; limits::BUNDLE_BYTES_MAX + 1];
    assert!(matches!(refusal(bytes), BundleError::Oversized { what: "bundle", .. }));
}

#[test]
fn a_missing_section_is_named() {
    // An unknown kind is skipped, so the section that had it is missing.
    let bytes = with_header(|bytes| bytes[16..20].copy_from_slice(&77u32.to_le_bytes()));
    assert_eq!(refusal(bytes), BundleError::Missing { section: "metadata" });
}

#[test]
fn a_section_listed_twice_is_refused() {
    let bytes = with_header(|bytes| bytes.copy_within(16..20, 40));
    assert!(matches!(refusal(bytes), BundleError::Malformed { .. }));
}

#[test]
fn an_unknown_codec_is_refused() {
    let bytes = with_header(|bytes| bytes[20] = 1);
    assert!(matches!(refusal(bytes), BundleError::Malformed { .. }));
}
