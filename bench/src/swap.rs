//! Local swap space for comparison: zram and swap files, and the memory cgroup that forces a process to use
//! them.
//!
//! All of it needs root, and is removed however this process ends.

mod cleanup_guard;
mod file;
mod group;
mod zram;

pub(crate) use file::SwapFile;
pub(crate) use group::Group;
pub(crate) use zram::Zram;

use std::process::Command;

/// The highest swap priority.
const PRIORITY: &str = "32767";

/// Returns the present swap entry of a path.
#[cfg(test)]
fn swapped_to(path: &str) -> Option<String> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    swaps.lines().find(|line| line.split_whitespace().next() == Some(path)).map(str::to_owned)
}

/// Enables a file or device as swap, before all other swap space.
fn swap_to(path: &str) -> Result<(), String> {
    command("mkswap", &[path])?;
    command("swapon", &["-p", PRIORITY, path])
}

fn command(program: &str, arguments: &[&str]) -> Result<(), String> {
    let ended =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if ended.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&ended.stderr).trim()))
}
