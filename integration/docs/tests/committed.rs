//! The committed documents are what the code makes.

#![allow(clippy::unwrap_used)]

use warmpath_docs::{documents, repository};

#[test]
fn documents_are_up_to_date() {
    for document in documents().unwrap() {
        let committed = std::fs::read_to_string(repository().join(document.path));
        let is_same = committed.is_ok_and(|text| text == document.text);
        assert!(is_same, "{} is not what the code makes: run make docs", document.path);
    }
}
