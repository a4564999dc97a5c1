//! Prometheus' own check of a page of metrics: `promtool check metrics`.

use std::io::Write;
use std::process::{Command, Stdio};

use warmpath_harness::paths;

/// The exit status that says that the page was read, and is not to the linter's taste.
const LINT: i32 = 3;

/// What the linter finds, a line each; `None` where there is no promtool. The page must be readable.
pub fn check(page: &str) -> Option<Vec<String>> {
    let program = paths::repository().join(".cache/promtool/promtool");
    if !program.exists() {
        return None;
    }
    let mut child = Command::new(&program)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(page.as_bytes()).expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_read = matches!(output.status.code(), Some(0 | LINT));
    assert!(is_read, "promtool cannot read the page: {said}\n{page}");
    Some(said.lines().map(str::to_owned).collect())
}
