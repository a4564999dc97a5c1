//! Repository checks: what the compiler and clippy cannot see.
//!
//! In: the repository's files. Out: findings, each with the place and the rule that it breaks. One module
//! a group of rules:
//!
//! - [`sizes`]: how long a source file may be.
//! - [`lints`]: that the workspace's lints are on, and stay on.
//! - [`layers`]: which crate may depend on what, and name what.
//! - [`docs`]: that documents name files, make targets and crates that exist.
//! - [`words`]: what no file may say.
//! - [`page`]: that the status page loads nothing, and takes no string for markup.
//! - [`wasm`]: what the built filter asks of its host.
//!
//! The rules run as tests, `cargo test -p warmpath-tidy`. Each has a test of its own that plants a breach
//! and sees it found.

#![deny(missing_docs)]

use std::fmt;
use std::path::{Path, PathBuf};

pub mod docs;
pub mod layers;
pub mod lints;
pub mod page;
pub mod sizes;
pub mod wasm;
pub mod words;

/// A breach of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the repository.
    pub file: String,
    /// The line, counted from 1; 0 if the whole file is meant.
    pub line: usize,
    /// Which rule, and what to do.
    pub what: String,
}

impl Finding {
    fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// A text file of the repository.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// The path, relative to the repository, with forward slashes.
    pub path: String,
    /// The content.
    pub text: String,
}

impl SourceFile {
    /// Whether the path ends in `.extension`.
    pub fn is(&self, extension: &str) -> bool {
        self.path.strip_suffix(extension).is_some_and(|stem| stem.ends_with('.'))
    }
}

/// The repository that this crate is part of.
pub fn repository() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap_or(crate_dir).to_path_buf()
}

/// Names of what nobody wrote.
const GENERATED: &[&str] = &[".git", ".cache", "target", ".venv", "__pycache__", "node_modules"];

/// Every text file of the repository at `root`, ordered by path. Files that are not UTF-8 are left out.
pub fn read_files(root: &Path) -> std::io::Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let path = entry.path();
            let kind = entry.file_type()?;
            // In a linked worktree `.git` is a file.
            if GENERATED.contains(&entry.file_name().to_string_lossy().as_ref()) {
                continue;
            }
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file()
                && let Ok(text) = String::from_utf8(std::fs::read(&path)?)
            {
                let relative = path.strip_prefix(root).unwrap_or(&path);
                let path = relative.to_string_lossy().replace('\\', "/");
                files.push(SourceFile { path, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

#[cfg(test)]
fn file(path: &str, text: &str) -> SourceFile {
    SourceFile { path: path.to_owned(), text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_directories_and_binary_files_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a/b.rs", "target/c.rs", "a/.cache/d.rs"] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        std::fs::write(dir.path().join("e.bin"), [0xff, 0xfe]).unwrap();
        let files = read_files(dir.path()).unwrap();
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["a/b.rs"]);
    }
}
