//! That documents name files, make targets and crates that exist.
//!
//! In: the Markdown files. A relative link must lead to a file; so must a path in backquotes whose first
//! part is a folder of the repository, and a bare file name with a source file's extension must be some
//! file's name. `make x` must be a target and `-p warmpath-x` a crate.

use std::collections::HashSet;

use crate::{Finding, SourceFile};

/// Extensions by which a word in backquotes is a file of ours.
const EXTENSIONS: &[&str] = &["rs", "toml", "yaml", "md", "sh", "jinja"];

/// Names of other projects' files that our documents rightly speak of.
const OTHERS_FILES: &[&str] = &["config.yaml", "values.yaml"];

/// Finds names of things that are not there.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let names = Names::collect(files);
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.is("md")) {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (index, line) in file.text.lines().enumerate() {
            for what in names.missing_in(line, folder) {
                found.push(Finding::new(&file.path, index + 1, what));
            }
        }
    }
    found
}

struct Names<'a> {
    /// Every file and every folder.
    paths: HashSet<&'a str>,
    /// The last part of every file's path.
    file_names: HashSet<&'a str>,
    targets: HashSet<&'a str>,
    crates: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    fn collect(files: &'a [SourceFile]) -> Self {
        let mut names = Self {
            paths: HashSet::new(),
            file_names: HashSet::new(),
            targets: HashSet::new(),
            crates: HashSet::new(),
        };
        for file in files {
            names.paths.insert(&file.path);
            let mut folder = file.path.as_str();
            while let Some((parent, _)) = folder.rsplit_once('/') {
                names.paths.insert(parent);
                folder = parent;
            }
            names.file_names.extend(file.path.rsplit('/').next());
            if file.path == "Makefile" {
                names.targets = make_targets(&file.text);
            }
            if file.path.ends_with("Cargo.toml") {
                let name = file.text.lines().find_map(|line| line.strip_prefix("name = \""));
                names.crates.extend(name.map(|name| name.trim_end_matches('"')));
            }
        }
        names
    }

    fn missing_in(&self, line: &str, folder: &str) -> Vec<String> {
        let mut missing = Vec::new();
        for link in links(line) {
            if !self.exists(link, folder) {
                missing.push(format!("links to {link}, which does not exist"));
            }
        }
        for code in code_spans(line) {
            if self.looks_like_ours(code) && !self.exists(code, folder) {
                missing.push(format!("names {code}, which does not exist"));
            }
        }
        let is_code = line.contains('`') || line.starts_with("    ") || line.starts_with("make ");
        let words: Vec<&str> =
            line.split(|c: char| c.is_whitespace() || c == '`').filter(|w| !w.is_empty()).collect();
        for pair in words.windows(2).filter(|_| is_code) {
            let name = pair[1].trim_end_matches([',', '.', ';', ':', ')']);
            let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
            if pair[0] == "make"
                && is_name
                && names_make(line, name)
                && !self.targets.contains(name)
            {
                missing.push(format!("says make {name}, which is no target"));
            }
            if pair[0] == "-p" && name.starts_with("warmpath-") && !self.crates.contains(name) {
                missing.push(format!("says -p {name}, which is no crate"));
            }
        }
        missing
    }

    fn exists(&self, path: &str, folder: &str) -> bool {
        let path = path.split('#').next().unwrap_or_default().trim_end_matches('/');
        let from_folder = normalize(&format!("{folder}/{path}"));
        path.is_empty()
            || self.paths.contains(normalize(path).as_str())
            || self.paths.contains(from_folder.as_str())
            || (!path.contains('/') && self.file_names.contains(path))
    }

    fn looks_like_ours(&self, code: &str) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        if !code.chars().all(plain) || code.starts_with(['/', '.', '-']) {
            return false;
        }
        match code.split_once('/') {
            Some((first, rest)) => !rest.is_empty() && self.paths.contains(first),
            None => {
                let extension = code.rsplit_once('.').map_or("", |(_, extension)| extension);
                EXTENSIONS.contains(&extension) && !OTHERS_FILES.contains(&code)
            }
        }
    }
}

/// Whether `make name` stands in backquotes or starts the line, rather than in a sentence.
fn names_make(line: &str, name: &str) -> bool {
    let call = format!("make {name}");
    line.trim_start().starts_with(&call) || line.contains(&format!("`{call}"))
}

/// The targets of a Makefile's rules.
pub fn make_targets(makefile: &str) -> HashSet<&str> {
    makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', '#', '.', '$', ' ']))
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, rest)| !name.is_empty() && !rest.starts_with('='))
        .map(|(name, _)| name)
        .collect()
}

/// The targets of a line's links that lead to a file.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?;
        (!target.contains("://") && !target.starts_with('#') && !target.starts_with("mailto:"))
            .then_some(target)
    })
}

/// What stands between a line's single backquotes.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Resolves `.` and `..`.
fn normalize(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;

    fn found_in(text: &str) -> Vec<String> {
        let files = [
            file("docs/guide.md", text),
            file("filter/core/src/route.rs", ""),
            file("filter/core/Cargo.toml", "name = \"warmpath-core\"\n"),
            file("Makefile", "X := y\ndemo: filter\n\ttouch x\n"),
        ];
        check(&files).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn what_exists_passes() {
        let text = "[a](../filter/core/src/route.rs#L3), [b](#here), [c](https://example.com/x)\n\
                    `filter/core`, `route.rs`, `/v1/models`, `application/json`, `make demo KEEP=1`\n\
                    Other proxies make do. `cargo test -p warmpath-core`\n    make demo\n";
        assert_eq!(found_in(text), Vec::<String>::new());
    }

    #[test]
    fn what_is_gone_is_found() {
        assert_eq!(found_in("[a](gone.md)").len(), 1);
        assert_eq!(found_in("see `filter/core/src/gone.rs`").len(), 1);
        assert_eq!(found_in("see `gone.rs`").len(), 1);
        assert_eq!(found_in("run `make gone`, then `make demo`").len(), 1);
        assert_eq!(found_in("    make gone").len(), 1);
        assert_eq!(found_in("`cargo test -p warmpath-gone`").len(), 1);
    }
}
