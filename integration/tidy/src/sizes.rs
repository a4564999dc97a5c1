//! How long a source file may be.
//!
//! A file has at most [`LINES_MAX`] lines without its tests. Functions are clippy's to measure
//! (`too_many_lines`); [`crate::lints`] sees to it that clippy does.

use crate::{Finding, SourceFile};

/// Beyond this a file holds more than one idea.
pub const LINES_MAX: usize = 600;

/// Finds Rust files that are too long.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    files
        .iter()
        .filter(|file| file.is("rs") && !is_test_file(&file.path))
        .filter_map(|file| {
            let lines = lines_without_tests(&file.text);
            let what = format!("{lines} lines without tests, {LINES_MAX} allowed: split it");
            (lines > LINES_MAX).then(|| Finding::new(&file.path, 0, what))
        })
        .collect()
}

fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs")
}

/// Lines outside `#[cfg(test)] mod ... { }`. Such a module ends at the first line that closes a brace in
/// the column of its attribute, as rustfmt lays it out.
fn lines_without_tests(text: &str) -> usize {
    let mut count = 0;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let opens_tests = line.trim() == "#[cfg(test)]"
            && lines.peek().is_some_and(|next| {
                next.trim_start().starts_with("mod ") && next.trim_end().ends_with('{')
            });
        if opens_tests {
            let close = format!("{indent}}}");
            for inside in lines.by_ref() {
                if inside == close {
                    break;
                }
            }
        } else {
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;

    #[test]
    fn long_files_are_found_and_tests_do_not_count() {
        let code = "x\n".repeat(LINES_MAX);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    x\n".repeat(900));
        assert_eq!(check(&[file("a/src/b.rs", &format!("{code}{tests}"))]), []);
        assert_eq!(check(&[file("a/tests/b.rs", &code.repeat(2))]), []);
        assert_eq!(check(&[file("a/src/b/tests.rs", &code.repeat(2))]), []);
        let after = format!("{code}{tests}x\n");
        let found = check(&[file("a/src/b.rs", &after)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.starts_with("601 lines"));
    }
}
