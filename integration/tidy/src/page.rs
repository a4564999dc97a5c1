//! That the status page needs nothing but itself, and writes what it is told as text only.
//!
//! In: the page that the filter serves. It works without a network, and names in it come from
//! configurations and engines: a way from a string to markup or code would let them act as the operator.

use crate::sizes::LINES_MAX;
use crate::{Finding, SourceFile};

/// The page.
pub const PAGE: &str = "filter/wasm/src/page.html";

/// What leads out of the page. Schemes and `//host` are enough: without them an address is the listener's.
const OUTWARD: &[&str] =
    &["http:", "https:", "ws:", "wss:", "\"//", "'//", "`//", "(//", "=//", "@import", "import("];

/// What makes markup or code of a string.
const ACTIVE: &[&str] = &[
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "createContextualFragment",
    "setHTMLUnsafe",
    "parseFromString",
    "document.write",
    "srcdoc",
    "javascript:",
    "eval(",
    "Function(",
    "setTimeout('",
    "setTimeout(\"",
];

/// Finds what the page must not have.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![Finding::new(PAGE, 0, "is missing")];
    };
    let mut found = Vec::new();
    let count = page.text.lines().count();
    if count > LINES_MAX {
        found.push(Finding::new(PAGE, 0, format!("{count} lines, {LINES_MAX} allowed")));
    }
    for (index, line) in page.text.lines().enumerate() {
        let mut breach = |what: String| found.push(Finding::new(PAGE, index + 1, what));
        for word in OUTWARD.iter().filter(|word| line.contains(**word)) {
            breach(format!("says {word}: the page loads nothing"));
        }
        for word in ACTIVE.iter().filter(|word| line.contains(**word)) {
            breach(format!("says {word}: write strings as text"));
        }
        if has_handler(line) {
            breach("has a handler as an attribute: use addEventListener".to_owned());
        }
        if line.contains("<script ") || line.contains("<link rel=\"stylesheet") {
            breach("loads a file: the page is one".to_owned());
        }
    }
    found
}

/// Whether a tag has an attribute like `onclick=`.
fn has_handler(line: &str) -> bool {
    line.match_indices(" on").any(|(start, _)| {
        let rest = line[start + 3..].trim_start_matches(|c: char| c.is_ascii_lowercase());
        rest.len() < line.len() - start - 3 && rest.starts_with("=\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;

    fn found_in(line: &str) -> usize {
        check(&[file(PAGE, &format!("<p>fine</p>\n{line}\n"))]).len()
    }

    #[test]
    fn what_loads_acts_or_parses_is_found() {
        for line in [
            "<script src=\"page.js\"></script>",
            "<img src=\"https:/x\">",
            "url(//host/x)",
            "node.innerHTML = name;",
            "document.write(name)",
            "<button onclick=\"go()\">",
        ] {
            assert_eq!(found_in(line), 1, "{line}");
        }
        assert_eq!(check(&[]).len(), 1);
        assert_eq!(check(&[file(PAGE, &"x\n".repeat(LINES_MAX + 1))]).len(), 1);
    }

    #[test]
    fn text_passes() {
        for line in ["node.textContent = name; // only text", "const on = 1;", "<p>on = \"x\"</p>"]
        {
            assert_eq!(found_in(line), 0, "{line}");
        }
    }
}
