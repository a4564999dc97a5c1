//! The families of `integration/vectors/vllm/families.json`, packed as Warmpath packs them.

use std::path::{Path, PathBuf};

use serde_json::Value;
use warmpath_harness::paths::repository;
use warmpath_pack::{Encoding, ModelFiles, pack};

/// A path within the repository.
#[must_use]
pub fn repository_file(path: &str) -> PathBuf {
    repository().join(path)
}

/// Where the recorded vectors are.
#[must_use]
pub fn vectors() -> PathBuf {
    repository_file("integration/vectors/vllm")
}

/// Reads a file of the repository as text.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of all families.
///
/// # Panics
/// When the list cannot be read.
#[must_use]
pub fn names() -> Vec<String> {
    let families: Value = serde_json::from_str(&read(&vectors().join("families.json"))).unwrap();
    families.as_object().unwrap().keys().cloned().collect()
}

/// A bundle of DeepSeek V4's tokenizer that writes chats as an encoding of [`warmpath_pack`] does; the path
/// that is missing when the tokenizer is not cached.
///
/// # Panics
/// When it is there and cannot be packed, or there is no such encoding.
pub fn encoding_bundle(name: &str) -> Result<Vec<u8>, PathBuf> {
    packed(name, "deepseek_v4", None, Some(name))
}

/// A bundle of Mistral's tekken.json as one of `version`; the path that is missing when it is not cached.
///
/// # Panics
/// When it is there and cannot be packed, or there is no such version.
pub fn tekken_bundle(name: &str, version: &str) -> Result<Vec<u8>, PathBuf> {
    let cache = repository().join(".cache");
    let path = cache.join("tokenizers/tekken/tekken_240911.json");
    if !path.is_file() {
        return Err(path);
    }
    let mut tekken: Value = serde_json::from_str(&read(&path)).unwrap();
    let versions = read(&vectors().join("mistral.versions.json"));
    let mut versions: Value = serde_json::from_str(&versions).unwrap();
    let own = versions[version].take();
    tekken.as_object_mut().unwrap().extend(own.as_object().expect("a known version").clone());
    tekken["config"]["version"] = version.into();
    let dir = cache.join("tekken").join(version);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("tekken.json"), tekken.to_string()).unwrap();
    let files = ModelFiles::find(&dir, None, None, None).expect("the files");
    Ok(pack(name, &files).expect("packs").bytes)
}

/// The bundle of a family, made of its cached tokenizer and template; the path that is missing when
/// they are not cached.
///
/// # Panics
/// When they are there and cannot be packed.
pub fn bundle(name: &str) -> Result<Vec<u8>, PathBuf> {
    let families: Value = serde_json::from_str(&read(&vectors().join("families.json"))).unwrap();
    let family = &families[name];
    if let Some(version) = family["tekken_version"].as_str() {
        return tekken_bundle(name, version);
    }
    let tokenizer = family["tokenizer"].as_str().expect("a tokenizer");
    packed(name, tokenizer, family["template"].as_str(), family["encoding"].as_str())
}

/// Writes the bundle of a family into `dir`; returns its path.
///
/// # Panics
/// When what it is made of is not cached, or it cannot be written.
#[must_use]
pub fn bundle_file(name: &str, dir: &Path) -> PathBuf {
    let bundle = bundle(name).unwrap_or_else(|missing| panic!("fetch {}", missing.display()));
    let file = dir.join(format!("{name}.wpb"));
    std::fs::write(&file, bundle).expect("writes the bundle");
    file
}

fn packed(
    name: &str,
    tokenizer: &str,
    template: Option<&str>,
    encoding: Option<&str>,
) -> Result<Vec<u8>, PathBuf> {
    let cache = repository().join(".cache");
    let dir = cache.join("tokenizers").join(tokenizer);
    let template = template.map(|name| cache.join("templates").join(format!("{name}.jinja")));
    for path in [&dir.join("tokenizer.json")].into_iter().chain(&template) {
        if !path.is_file() {
            return Err(path.clone());
        }
    }
    let mut files = ModelFiles::find(&dir, None, None, template.as_deref()).expect("the files");
    files.encoding = encoding.map(|name| Encoding::named(name).expect("a known encoding"));
    Ok(pack(name, &files).expect("packs").bytes)
}
