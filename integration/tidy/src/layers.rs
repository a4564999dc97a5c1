//! Which crate may depend on what, and name what.
//!
//! In: the manifests, cargo's dependency tree and the sources. The filter's libraries know no host: no sockets, clocks, threads
//! or runtime, directly or through a dependency. One file of the Wasm crate calls the host. Every version
//! that ends up inside Envoy is exact.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::lints::IN_ENVOY;
use crate::{Finding, SourceFile};

/// The direct dependencies that each library inside the filter may have. Adding one here is a decision:
/// it is code that runs in front of every request.
const ALLOWED: &[(&str, &str, &[&str])] = &[
    ("filter/template", "warmpath-template", &["minijinja", "serde_json", "thiserror"]),
    (
        "filter/bundle",
        "warmpath-bundle",
        &["ahash", "memchr", "serde", "serde_json", "thiserror", "tokenizers", "xxhash-rust"],
    ),
    (
        "filter/core",
        "warmpath-core",
        &[
            "ahash",
            "fastrand",
            // Optional: the configuration's schema, for the documents. Not in the filter.
            "schemars",
            "serde",
            "serde_json",
            "serde_path_to_error",
            "thiserror",
            "warmpath-bundle",
            "warmpath-template",
            "xxhash-rust",
        ],
    ),
];

/// What must not be reachable from those libraries at all.
const FORBIDDEN: &[&str] = &[
    "proxy-wasm",
    "tokio",
    "hyper",
    "reqwest",
    "axum",
    "zmq",
    "zeromq",
    "rayon",
    "wasm-bindgen",
    "schemars",
];

/// Calls to clocks, environment and global randomness, which the core takes as arguments instead.
const IMPURE: &[&str] =
    &["Instant::now", "SystemTime::now", "std::env::", "std::fs::", "TcpStream", "thread::spawn"];

/// The folders whose sources are held to [`IMPURE`].
const PURE: &[&str] = &["filter/core/src/", "filter/template/src/", "filter/bundle/src/"];

/// What `library` is built from for the filter's target, by name: cargo's own answer, which knows features
/// and targets. Does not go to the network.
pub fn built_from(root: &Path, library: &str) -> std::io::Result<BTreeSet<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--package", library, "--edges", "normal", "--prefix", "none"])
        .args(["--target", "wasm32-wasip1", "--offline"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// The libraries that [`check_built_from`] judges.
pub fn libraries() -> impl Iterator<Item = &'static str> {
    ALLOWED.iter().map(|(_, name, _)| *name)
}

/// Finds what must not be among the crates that `library` is built from.
pub fn check_built_from(library: &str, crates: &BTreeSet<String>) -> Vec<Finding> {
    FORBIDDEN
        .iter()
        .filter(|name| crates.contains(**name))
        .map(|name| Finding::new("Cargo.toml", 0, format!("{library} is built from {name}")))
        .collect()
}

/// Finds manifests whose dependencies do not come from the workspace's one list, libraries in the filter
/// with a dependency that they may not have, and versions of theirs that are not exact.
pub fn check_manifests(files: &[SourceFile]) -> Vec<Finding> {
    let mut found = Vec::new();
    let root = files.iter().find(|file| file.path == "Cargo.toml").map(parse).unwrap_or_default();
    let list = root.get("workspace").and_then(|workspace| workspace.get("dependencies"));
    for file in files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        let folder = file.path.trim_end_matches("/Cargo.toml");
        if folder == "filter/fuzz" {
            continue;
        }
        let manifest = parse(file);
        let allowed = ALLOWED.iter().find(|(place, _, _)| *place == folder);
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let section_table = manifest.get(section).and_then(toml::Value::as_table);
            for (name, dependency) in section_table.into_iter().flatten() {
                let mut breach = |what: String| found.push(Finding::new(&file.path, 0, what));
                if !is_from_list(dependency) {
                    breach(format!("{name} must come from the workspace's list"));
                }
                if section != "dependencies" {
                    continue;
                }
                if allowed.is_some_and(|(_, _, names)| !names.contains(&name.as_str())) {
                    breach(format!("may not depend on {name}"));
                }
                let is_exact = list.and_then(|list| list.get(name)).is_some_and(is_exact);
                if IN_ENVOY.contains(&folder) && !is_exact {
                    breach(format!("{name} must have an exact version (=1.2.3)"));
                }
            }
        }
    }
    found
}

/// A dependency on the crate itself, with other features for its own tests, cannot come from the list.
fn is_from_list(dependency: &toml::Value) -> bool {
    let field = |name: &str| dependency.get(name);
    field("workspace").and_then(toml::Value::as_bool) == Some(true)
        || field("path").and_then(toml::Value::as_str) == Some(".")
}

fn is_exact(dependency: &toml::Value) -> bool {
    let version = dependency.get("version").unwrap_or(dependency).as_str();
    version.is_some_and(|version| version.starts_with('=')) || dependency.get("path").is_some()
}

fn parse(file: &SourceFile) -> toml::Table {
    file.text.parse().unwrap_or_default()
}

/// Finds calls that tie the filter's libraries to a machine, and host calls outside the one file for them.
pub fn check_sources(files: &[SourceFile]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut callers = BTreeSet::new();
    for file in files.iter().filter(|file| file.is("rs")) {
        if file.path.starts_with("filter/wasm/") && file.text.contains("hostcalls") {
            callers.insert(file.path.as_str());
        }
        let is_pure = PURE.iter().any(|folder| file.path.starts_with(folder));
        if !is_pure || file.path.ends_with("tests.rs") {
            continue;
        }
        let code = file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (index, line) in code.lines().enumerate() {
            let line_code = line.split("//").next().unwrap_or_default();
            for call in IMPURE.iter().filter(|call| line_code.contains(**call)) {
                let what = format!("calls {call}: take it as an argument");
                found.push(Finding::new(&file.path, index + 1, what));
            }
        }
    }
    if callers.len() > 1 {
        for caller in callers {
            found.push(Finding::new(caller, 0, "one file only may name hostcalls"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;

    fn found_in(core: &str, list: &str) -> Vec<String> {
        let root = format!("[workspace.dependencies]\n{list}\n");
        let core = format!("[dependencies]\n{core}\n");
        let files = [file("Cargo.toml", &root), file("filter/core/Cargo.toml", &core)];
        check_manifests(&files).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn dependencies_are_allowed_listed_and_exact() {
        assert_eq!(found_in("serde.workspace = true", "serde = \"=1.0.1\""), [""; 0]);
        let loose = found_in("serde.workspace = true", "serde = { version = \"1\" }");
        assert_eq!(loose, ["serde must have an exact version (=1.2.3)"]);
        let own = found_in("serde = \"=1.0.1\"", "serde = \"=1.0.1\"");
        assert_eq!(own, ["serde must come from the workspace's list"]);
        let alien = found_in("tokio.workspace = true", "tokio = \"=1.0.1\"");
        assert_eq!(alien, ["may not depend on tokio"]);
    }

    #[test]
    fn a_runtime_deep_in_the_tree_is_found() {
        let crates = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(check_built_from("warmpath-core", &crates(&["serde", "itoa"])), []);
        assert_eq!(check_built_from("warmpath-core", &crates(&["serde", "tokio"])).len(), 1);
    }

    #[test]
    fn host_calls_in_two_files_are_found() {
        let one = [file("filter/wasm/src/host.rs", "use proxy_wasm::hostcalls;")];
        assert_eq!(check_sources(&one), []);
        let two = [one[0].clone(), file("filter/wasm/src/lib.rs", "proxy_wasm::hostcalls::log()")];
        assert_eq!(check_sources(&two).len(), 2);
    }

    #[test]
    fn a_clock_in_the_core_is_found() {
        let clock = "// Instant::now is the caller's.\nlet now = Instant::now();\n";
        let found = check_sources(&[file("filter/core/src/a.rs", clock)]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        assert_eq!(check_sources(&[file("integration/demo/src/a.rs", clock)]), []);
    }
}
