//! Which crate may depend on what, and name what.
//!
//! In: `cargo metadata` and the sources. The filter's libraries know no host: no sockets, clocks, threads
//! or runtime, directly or through a dependency. One file of the Wasm crate calls the host. Every version
//! that ends up inside Envoy is exact.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{Finding, SourceFile};

/// The direct dependencies that each library inside the filter may have. Adding one here is a decision:
/// it is code that runs in front of every request.
const ALLOWED: &[(&str, &[&str])] = &[
    ("warmpath-template", &["minijinja", "minijinja-contrib", "serde", "serde_json", "thiserror"]),
    (
        "warmpath-bundle",
        &[
            "ahash",
            "serde",
            "serde_json",
            "thiserror",
            "tokenizers",
            "xxhash-rust",
            "fancy-regex",
            "regex-automata",
            "memchr",
        ],
    ),
    (
        "warmpath-core",
        &[
            "ahash",
            "fastrand",
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
const FORBIDDEN: &[&str] =
    &["proxy-wasm", "tokio", "hyper", "reqwest", "axum", "zmq", "zeromq", "rayon", "wasm-bindgen"];

/// Calls to clocks, environment and global randomness, which the core takes as arguments instead.
const IMPURE: &[&str] =
    &["Instant::now", "SystemTime::now", "std::env::", "std::fs::", "TcpStream", "thread::spawn"];

/// The folders whose sources are held to [`IMPURE`].
const PURE: &[&str] = &["filter/core/src/", "filter/template/src/", "filter/bundle/src/"];

/// `cargo metadata` of the workspace at `root`, without going to the network.
pub fn metadata(root: &Path) -> std::io::Result<Value> {
    let tool = |variable: &str, default: &str| {
        std::env::var_os(variable).unwrap_or_else(|| default.into())
    };
    let version = run(Command::new(tool("RUSTC", "rustc")).arg("-vV").current_dir(root))?;
    let version = String::from_utf8_lossy(&version).into_owned();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    let mut cargo = Command::new(tool("CARGO", "cargo"));
    // Crates of other platforms need not have been downloaded.
    cargo.args(["metadata", "--format-version", "1", "--offline", "--filter-platform", host]);
    Ok(serde_json::from_slice(&run(cargo.current_dir(root))?)?)
}

fn run(command: &mut Command) -> std::io::Result<Vec<u8>> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Finds dependencies that break the layers, and versions that are not exact.
pub fn check_dependencies(metadata: &Value) -> Vec<Finding> {
    let graph = Graph::read(metadata);
    let mut found = Vec::new();
    for (library, allowed) in ALLOWED {
        for dependency in graph.direct(library) {
            if !allowed.contains(&dependency.as_str()) {
                let what = format!("{library} may not depend on {dependency}");
                found.push(Finding::new("Cargo.toml", 0, what));
            }
        }
        let reached = graph.reachable(library);
        for forbidden in FORBIDDEN.iter().filter(|name| reached.contains(**name)) {
            let what = format!("{library} reaches {forbidden} through its dependencies");
            found.push(Finding::new("Cargo.toml", 0, what));
        }
    }
    found.extend(check_versions(metadata));
    found
}

/// Every registry dependency of a crate under `filter/` must be exact (`=1.2.3`).
fn check_versions(metadata: &Value) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in members(metadata) {
        let manifest = text(&package["manifest_path"]);
        if !manifest.contains("/filter/") {
            continue;
        }
        for dependency in array(&package["dependencies"]) {
            let (name, version) = (text(&dependency["name"]), text(&dependency["req"]));
            let is_normal = dependency["kind"].is_null();
            let is_ours = dependency["source"].is_null();
            if is_normal && !is_ours && !version.starts_with('=') {
                let what = format!("{name} {version} of {} must be exact", text(&package["name"]));
                found.push(Finding::new("Cargo.toml", 0, what));
            }
        }
    }
    found
}

/// Finds manifests whose dependencies do not come from the workspace's one list.
pub fn check_manifests(files: &[SourceFile]) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        if file.path.starts_with("filter/fuzz/") {
            continue;
        }
        let manifest: toml::Table = file.text.parse().unwrap_or_default();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(section) = manifest.get(section).and_then(toml::Value::as_table) else {
                continue;
            };
            for (name, dependency) in section {
                if dependency.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                    let what = format!("{name} must come from the workspace's list");
                    found.push(Finding::new(&file.path, 0, what));
                }
            }
        }
    }
    found
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

/// Who depends on whom, by package name, build-time and test-time dependencies left out.
struct Graph {
    dependencies: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn read(metadata: &Value) -> Self {
        let names: BTreeMap<&str, &str> = array(&metadata["packages"])
            .map(|package| (text(&package["id"]), text(&package["name"])))
            .collect();
        let mut dependencies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in array(&metadata["resolve"]["nodes"]) {
            let Some(name) = names.get(text(&node["id"])) else { continue };
            let entry = dependencies.entry((*name).to_owned()).or_default();
            for dependency in array(&node["deps"]) {
                let is_normal = array(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null());
                if is_normal && let Some(name) = names.get(text(&dependency["pkg"])) {
                    entry.insert((*name).to_owned());
                }
            }
        }
        Self { dependencies }
    }

    fn direct(&self, name: &str) -> impl Iterator<Item = &String> {
        self.dependencies.get(name).into_iter().flatten()
    }

    fn reachable(&self, name: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&str> = self.direct(name).map(String::as_str).collect();
        while let Some(name) = next.pop() {
            if reached.insert(name) {
                next.extend(self.direct(name).map(String::as_str));
            }
        }
        reached
    }
}

fn members(metadata: &Value) -> impl Iterator<Item = &Value> {
    let members: BTreeSet<&str> = array(&metadata["workspace_members"]).map(text).collect();
    array(&metadata["packages"]).filter(move |package| members.contains(text(&package["id"])))
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::file;

    fn sample(requirement: &str, dependency: &str, beyond: &str) -> Value {
        let edge = |to: &str| json!({"pkg": to, "dep_kinds": [{"kind": null}]});
        let package =
            |name: &str| json!({"id": name, "name": name, "manifest_path": "/x/registry"});
        json!({
            "workspace_members": ["warmpath-core"],
            "packages": [
                {"id": "warmpath-core", "name": "warmpath-core", "manifest_path": "/r/filter/core/Cargo.toml",
                 "dependencies": [{"name": dependency, "req": requirement, "kind": null, "source": "registry"}]},
                package(dependency),
                package(beyond),
            ],
            "resolve": {"nodes": [
                {"id": "warmpath-core", "deps": [edge(dependency)]},
                {"id": dependency, "deps": [edge(beyond)]},
                {"id": beyond, "deps": []},
            ]},
        })
    }

    #[test]
    fn layers_and_versions_are_checked() {
        assert_eq!(check_dependencies(&sample("=1.0.0", "serde", "itoa")), []);
        assert_eq!(check_dependencies(&sample("^1.0.0", "serde", "itoa")).len(), 1);
        assert_eq!(check_dependencies(&sample("=1.0.0", "left-pad", "itoa")).len(), 1);
        assert_eq!(check_dependencies(&sample("=1.0.0", "serde", "tokio")).len(), 1);
    }

    #[test]
    fn a_version_of_its_own_is_found() {
        let good = "[dependencies]\nserde.workspace = true\n";
        assert_eq!(check_manifests(&[file("a/Cargo.toml", good)]), []);
        let bad = "[dev-dependencies]\nserde = \"1\"\n";
        assert_eq!(check_manifests(&[file("a/Cargo.toml", bad)]).len(), 1);
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
