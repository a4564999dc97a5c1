//! What no file may say.
//!
//! The repository speaks of itself: no path of somebody's machine, no registry's host name, and nothing
//! that says that the work is not done.

use crate::{Finding, SourceFile};

/// Words and why they are not to be used. Written in two halves, so that this file passes.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("/wo", "rk/", "a path of one machine"),
    ("/tmp/tar", "get-", "a path of one machine"),
    ("crates", ".io", "a registry's host"),
    ("pypi", ".org", "a registry's host"),
    ("python", "hosted.org", "a registry's host"),
    ("npmjs", ".org", "a registry's host"),
    ("debian", ".org", "a registry's host"),
    ("TO", "DO", "do it, or file an issue"),
    ("FIX", "ME", "fix it, or file an issue"),
];

/// Files that tools write, with their registries' names in them.
const LOCK_FILES: &[&str] = &["Cargo.lock"];

/// Finds forbidden words.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in files {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        if LOCK_FILES.contains(&name) {
            continue;
        }
        for (index, line) in file.text.lines().enumerate() {
            for (left, right, why) in FORBIDDEN {
                let word = format!("{left}{right}");
                if has_word(line, &word) {
                    found.push(Finding::new(&file.path, index + 1, format!("says {word}: {why}")));
                }
            }
        }
    }
    found
}

/// Whether `word` stands in `line`, not as a part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let starts_with_letter = word.starts_with(char::is_alphanumeric);
        let ends_with_letter = word.ends_with(char::is_alphanumeric);
        !(starts_with_letter && before.is_some_and(char::is_alphanumeric)
            || ends_with_letter && after.is_some_and(char::is_alphanumeric))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;

    #[test]
    fn each_forbidden_word_is_found() {
        for (left, right, _) in FORBIDDEN {
            let found = check(&[file("a.md", &format!("fine\nsee {left}{right} there\n"))]);
            assert_eq!(found.len(), 1, "{left}{right}");
            assert_eq!(found[0].line, 2);
        }
    }

    #[test]
    fn longer_words_and_lock_files_pass() {
        let word = format!("{}{}", "TO", "DO");
        assert_eq!(check(&[file("a.md", &format!("{word}RA"))]), []);
        assert_eq!(check(&[file("Cargo.lock", &word)]), []);
    }
}
