//! Memory of this machine that is not in its RAM, to compare with: zram and swap files, and the memory cgroup that makes a process use them.
//!
//! All of it takes root, and is undone however this process ends.

mod cleanup_guard;
mod file;
mod group;
mod zram;

pub(crate) use file::SwapFile;
pub(crate) use group::Group;
pub(crate) use zram::Zram;

use std::process::Command;

/// Of what is swapped to, the highest there is.
const PRIORITY: &str = "32767";

/// What is swapped to at present, by its path; and how.
#[cfg(test)]
fn swapped_to(path: &str) -> Option<String> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    swaps.lines().find(|line| line.split_whitespace().next() == Some(path)).map(str::to_owned)
}

/// Swaps to a file or device, before whatever else is swapped to.
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
