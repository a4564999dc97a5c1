//! The rules, applied to this repository.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use warmpath_tidy::{
    Finding, SourceFile, docs, layers, lints, page, read_files, repository, sizes, wasm, words,
};

fn files() -> Vec<SourceFile> {
    let files = read_files(&repository()).unwrap();
    assert!(files.iter().any(|file| file.path == "Cargo.toml"), "this is not the repository");
    files
}

#[track_caller]
fn none(found: &[Finding]) {
    let lines: Vec<String> = found.iter().map(Finding::to_string).collect();
    assert!(found.is_empty(), "\n{}", lines.join("\n"));
}

#[test]
fn files_are_short() {
    none(&sizes::check(&files()));
}

#[test]
fn lints_are_on() {
    none(&lints::check(&files()));
}

#[test]
fn the_filter_is_built_from_nothing_that_needs_a_host() {
    for library in layers::libraries() {
        let crates = layers::built_from(&repository(), library).unwrap();
        assert!(crates.contains(library), "cargo knows no {library}");
        none(&layers::check_built_from(library, &crates));
    }
}

#[test]
fn dependencies_are_few_exact_and_in_one_list() {
    none(&layers::check_manifests(&files()));
}

#[test]
fn the_core_knows_no_host() {
    none(&layers::check_sources(&files()));
}

#[test]
fn documents_name_what_exists() {
    none(&docs::check(&files()));
}

#[test]
fn nothing_forbidden_is_said() {
    none(&words::check(&files()));
}

#[test]
fn the_status_page_needs_nothing_and_writes_text_only() {
    none(&page::check(&files()));
}

#[test]
fn the_promised_make_targets_exist() {
    let files = files();
    let makefile = files.iter().find(|file| file.path == "Makefile").unwrap();
    let targets = docs::make_targets(&makefile.text);
    let promised = BTreeSet::from(["help", "demo", "test", "check", "filter", "bench", "clean"]);
    let missing: Vec<_> = promised.iter().filter(|name| !targets.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn downloads_are_pinned_by_hash() {
    let files = files();
    let lists: Vec<_> =
        files.iter().filter(|file| file.path.ends_with("-requirements.txt")).collect();
    assert!(!lists.is_empty());
    for list in lists {
        let requirements = list.text.matches("==").count();
        assert!(requirements > 0, "{} pins nothing", list.path);
        assert!(list.text.matches("--hash=sha256:").count() >= requirements, "{}", list.path);
    }
}

#[test]
fn the_built_filter_asks_little_of_its_host() {
    let path = repository().join(".cache/warmpath.wasm");
    let Ok(module) = std::fs::read(&path) else {
        eprintln!("skipped: {} is not built (make filter)", path.display());
        return;
    };
    none(&wasm::check(".cache/warmpath.wasm", &module).unwrap());
}
