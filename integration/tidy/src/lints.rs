//! That the workspace's lints are on, and stay on.
//!
//! A lint that one crate does not inherit, or that a threshold makes toothless, passes silently; these
//! rules make that loud.

use crate::{Finding, SourceFile};

/// Functions are to fit on a screen.
const FUNCTION_LINES_MAX: i64 = 70;

/// Lints that the workspace must deny.
const WORKSPACE_LINTS: &[&str] = &["too_many_lines", "dbg_macro", "todo", "unimplemented"];

/// Lints that a crate inside Envoy must deny: a panic there cuts every stream of its worker.
const NO_PANIC: &[&str] =
    &["clippy::panic", "clippy::unwrap_used", "clippy::expect_used", "clippy::indexing_slicing"];

/// Crates whose code runs inside Envoy.
pub const IN_ENVOY: &[&str] = &["filter/template", "filter/bundle", "filter/core", "filter/wasm"];

/// Finds lints that are off.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(check_thresholds(files));
    for file in files {
        if file.path == "Cargo.toml" {
            found.extend(check_workspace(file));
        } else if is_member_manifest(&file.path) {
            found.extend(check_member(file));
        } else if file.path.ends_with("/src/lib.rs") {
            found.extend(check_crate_root(file));
        }
    }
    found
}

fn is_member_manifest(path: &str) -> bool {
    path.ends_with("/Cargo.toml")
        && (path.starts_with("filter/") || path.starts_with("integration/"))
        && !path.starts_with("filter/fuzz/")
}

fn check_thresholds(files: &[SourceFile]) -> Vec<Finding> {
    let Some(file) = files.iter().find(|file| file.path == "clippy.toml") else {
        return vec![Finding::new("clippy.toml", 0, "is missing")];
    };
    let lines =
        parse(&file.text).and_then(|table| table.get("too-many-lines-threshold")?.as_integer());
    if lines.is_some_and(|lines| lines <= FUNCTION_LINES_MAX) {
        return Vec::new();
    }
    let what = format!("too-many-lines-threshold must be at most {FUNCTION_LINES_MAX}");
    vec![Finding::new(&file.path, 0, what)]
}

fn check_workspace(file: &SourceFile) -> Vec<Finding> {
    let table = parse(&file.text).unwrap_or_default();
    let level = |lint: &str| -> Option<String> {
        let lint = table.get("workspace")?.get("lints")?.get("clippy")?.get(lint)?;
        let level = lint.get("level").unwrap_or(lint);
        Some(level.as_str()?.to_owned())
    };
    WORKSPACE_LINTS
        .iter()
        .filter(|lint| !matches!(level(lint).as_deref(), Some("deny" | "forbid")))
        .map(|lint| Finding::new(&file.path, 0, format!("must deny clippy's {lint}")))
        .collect()
}

fn check_member(file: &SourceFile) -> Vec<Finding> {
    let inherits = parse(&file.text)
        .and_then(|table| table.get("lints")?.get("workspace")?.as_bool())
        .unwrap_or(false);
    if inherits {
        return Vec::new();
    }
    vec![Finding::new(&file.path, 0, "must inherit the lints: [lints] workspace = true")]
}

fn check_crate_root(file: &SourceFile) -> Vec<Finding> {
    let mut found = Vec::new();
    // The SDK's macro exports the module's entry point without a word, and nothing else there is public.
    let has_docs =
        file.text.contains("deny(missing_docs)") || file.path == "filter/wasm/src/lib.rs";
    if !has_docs {
        found.push(Finding::new(&file.path, 1, "must have #![deny(missing_docs)]"));
    }
    let in_envoy = IN_ENVOY.iter().any(|folder| file.path == format!("{folder}/src/lib.rs"));
    if in_envoy {
        for lint in NO_PANIC.iter().filter(|lint| !file.text.contains(*lint)) {
            found.push(Finding::new(&file.path, 1, format!("must deny {lint}")));
        }
    }
    found
}

fn parse(text: &str) -> Option<toml::Table> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;

    const CLIPPY: &str = "too-many-lines-threshold = 70\n";

    #[test]
    fn a_weak_threshold_is_found() {
        assert_eq!(check(&[file("clippy.toml", CLIPPY)]), []);
        assert_eq!(check(&[file("clippy.toml", "too-many-lines-threshold = 100\n")]).len(), 1);
        assert_eq!(check(&[]).len(), 1);
    }

    #[test]
    fn a_lint_that_only_warns_is_found() {
        let lints = WORKSPACE_LINTS.iter().map(|lint| format!("{lint} = \"deny\"\n"));
        let text = format!("[workspace.lints.clippy]\n{}", lints.collect::<String>());
        assert_eq!(check(&[file("clippy.toml", CLIPPY), file("Cargo.toml", &text)]), []);
        let text = text.replace("todo = \"deny\"", "todo = { level = \"warn\" }");
        let found = check(&[file("clippy.toml", CLIPPY), file("Cargo.toml", &text)]);
        assert_eq!(found, [Finding::new("Cargo.toml", 0, "must deny clippy's todo")]);
    }

    #[test]
    fn a_crate_that_does_not_inherit_is_found() {
        let found = check(&[file("clippy.toml", CLIPPY), file("filter/core/Cargo.toml", "")]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_crate_in_envoy_that_may_panic_is_found() {
        let root = "#![deny(missing_docs)]\n#![deny(clippy::panic, clippy::unwrap_used)]\n";
        let files = [file("clippy.toml", CLIPPY), file("filter/core/src/lib.rs", root)];
        assert_eq!(check(&files).len(), 2);
        let files = [file("clippy.toml", CLIPPY), file("integration/demo/src/lib.rs", root)];
        assert_eq!(check(&files), []);
    }
}
