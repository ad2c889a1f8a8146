//! Signals to processes that tests have started.

use std::process::Command;
use std::time::{Duration, Instant};

/// Bound on the wait for a process that was told to stop; far longer than needed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends a signal to a process, by its name without SIG. After STOP, this returns once all threads of the
/// process have stopped. `kill` does not wait for that, and a thread on another CPU would still run.
///
/// # Panics
/// When the signal cannot be sent, or the process does not stop within a minute.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(status.expect("there is a shell").success(), "kill -{name} {pid}");
    let deadline = Instant::now() + PATIENCE;
    while name == "STOP" && !stands_still(pid) {
        assert!(
            Instant::now() < deadline,
            "not within {} s: all threads of {pid} stand still",
            PATIENCE.as_secs()
        );
        std::thread::yield_now();
    }
}

/// Returns true while all threads of the process are stopped. A thread that ends meanwhile counts as running;
/// the next look does not find it.
fn stands_still(pid: u32) -> bool {
    let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    threads.all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, behind_name)| behind_name.starts_with('T'))
    })
}
