//! Cleanup that runs however this process ends, even by a kill or Ctrl-C: a helper process waits for the end
//! and cleans up.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// A guard that runs a command when it is dropped, or when this process ends.
#[derive(Debug)]
pub(crate) struct CleanupGuard(Child);

impl CleanupGuard {
    /// Starts the helper. `undo` is a shell script, with `argument` as `$1`.
    pub(crate) fn begin(undo: &str, argument: &str) -> Result<Self, String> {
        // The pipe closes with the last process that can write to it, which is only this one.
        let script = format!("while read -r _; do :; done; {undo}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", argument]);
        // A separate process group: terminal signals do not reach it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command.spawn().map(Self).map_err(|error| format!("sh: {error}"))
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guard does nothing before it is dropped, and cleans up when it is.
    #[test]
    fn it_undoes_when_dropped() {
        let dir = std::env::temp_dir().join(format!("farmem keeper {}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let mut keeper = CleanupGuard::begin(r#"rmdir "$1""#, dir.to_str().unwrap()).unwrap();
        assert!(keeper.0.try_wait().unwrap().is_none() && dir.exists());
        drop(keeper);
        assert!(!dir.exists());
    }
}
