//! What must be undone however this process ends, killed or by Ctrl-C too: a process of its own waits for that, and does it.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// Does something when it is dropped, or when this process is no more.
#[derive(Debug)]
pub(crate) struct CleanupGuard(Child);

impl CleanupGuard {
    /// `undo` is for a shell, which knows `argument` as `$1`.
    pub(crate) fn begin(undo: &str, argument: &str) -> Result<Self, String> {
        // The pipe closes with the last process that can write to it, which is this one alone.
        let script = format!("while read -r _; do :; done; {undo}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", argument]);
        // Its own process group: what a terminal sends does not reach it.
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

    /// Nothing is undone before it is dropped, and everything once it is.
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
