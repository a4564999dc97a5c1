//! Child processes that never outlive this one.
//!
//! Dropping a [`ChildProcess`] kills it. Should this process itself be killed, so that nothing is dropped,
//! a watchdog does it: a shell that reads from a pipe whose other end only this process holds. The pipe
//! closes with this process, however it ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::HarnessError;

/// A running program whose output goes to a file.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    watchdog: Child,
    log: PathBuf,
}

impl ChildProcess {
    /// Starts `program` with `arguments`; standard output and error go to `log`.
    pub fn start(program: &Path, arguments: &[String], log: &Path) -> Result<Self, HarnessError> {
        let spawn_error = |source| HarnessError::Spawn { program: program.to_path_buf(), source };
        let output = File::create(log).map_err(HarnessError::file(log))?;
        let errors = output.try_clone().map_err(HarnessError::file(log))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(spawn_error)?;
        let watchdog = Command::new("sh")
            .args(["-c", r#"trap "" INT; cat >/dev/null; kill -KILL "$1""#, "sh"])
            .arg(child.id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match watchdog {
            Ok(watchdog) => Ok(Self { child, watchdog, log: log.to_path_buf() }),
            Err(source) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(spawn_error(source))
            }
        }
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How the process ended, or `None` while it runs.
    pub fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(format!("it ended with {status}")),
            Err(error) => Some(format!("it is gone: {error}")),
        }
    }

    /// All of the log so far. Bytes that are not UTF-8 are replaced.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last lines of the log.
    pub fn log_tail(&self) -> String {
        const LINES: usize = 40;
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // The watchdog first: it must not see the pipe close and kill a process id that is free again.
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_child_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = ["60".to_owned()];
        let mut child =
            ChildProcess::start(Path::new("sleep"), &arguments, &dir.path().join("log")).unwrap();
        assert_eq!(child.ended(), None);
        let proc = PathBuf::from(format!("/proc/{}", child.pid()));
        assert!(proc.exists());
        drop(child);
        assert!(!proc.exists());
    }

    #[test]
    fn a_child_dies_with_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = ["60".to_owned()];
        let mut child =
            ChildProcess::start(Path::new("sleep"), &arguments, &dir.path().join("log")).unwrap();
        // What the end of this process would do: the pipe closes.
        drop(child.watchdog.stdin.take());
        let status = child.child.wait().unwrap();
        assert!(!status.success());
    }

    #[test]
    fn the_log_holds_what_was_printed() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = ["-c".to_owned(), "echo out; echo err >&2".to_owned()];
        let mut child =
            ChildProcess::start(Path::new("sh"), &arguments, &dir.path().join("log")).unwrap();
        child.child.wait().unwrap();
        assert_eq!(child.log_tail(), "out\nerr");
        assert!(child.ended().unwrap().contains("exit status: 0"));
    }
}
