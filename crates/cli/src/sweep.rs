//! Removal of the remains of killed commands: the rings and the directory of their own rack. The next command
//! of the same kind removes them.
//!
//! A directory is removed only if several facts prove that no process uses it. The name has the form of
//! [`crate::rack_file`], with the id of a process that no longer exists. The path is a directory of this
//! user, and no endpoint in it is held. `farmem doctor` reports the directories that stay.

use farmem::serve::remove_unused_rings;
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};
use std::fs::{self, read_dir};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Directory of the racks' rings.
const RINGS: &str = "/dev/shm";

/// Removes the remains of killed commands of the kind `what` on this machine.
pub(crate) fn sweep(what: &str) {
    let (rings, directories) = (Path::new(RINGS), std::env::temp_dir());
    let names = [rings, &directories].map(read_dir).into_iter().flatten().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    for name in names.filter(|name| maker(name, what).is_some_and(is_gone)) {
        let (rings, directory) = (rings.join(&name), directories.join(&name));
        // A rack over UDP has no rings.
        let unused = match is_own_directory(&rings) {
            true => remove_unused_rings(&rings).is_ok(),
            false => !rings.exists(),
        };
        if unused && is_own_directory(&directory) {
            // A remaining directory does not disturb the next command.
            drop(fs::remove_dir_all(directory));
        }
    }
}

/// Returns the process in the name of a rack of the kind `what`: `farmem-run-123`, or `farmem-run-123-1` for
/// a second directory of process 123.
fn maker(name: &str, what: &str) -> Option<Pid> {
    let rest = name.strip_prefix("farmem-")?.strip_prefix(what)?.strip_prefix('-')?;
    let (process, again) = rest.split_once('-').unwrap_or((rest, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = process.parse().ok().filter(|_| digits(process) && digits(again))?;
    Pid::from_raw(number)
}

/// Returns true when the process does not exist. A process of another user exists.
fn is_gone(process: Pid) -> bool {
    test_kill_process(process) == Err(Errno::SRCH)
}

fn is_own_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of other kinds, and names that users gave to racks, do not match.
    #[test]
    fn only_names_of_the_same_kind_have_a_maker() {
        let of = |name: &str| maker(name, "run").map(Pid::as_raw_pid);
        assert_eq!(of("farmem-run-123"), Some(123));
        assert_eq!(of("farmem-run-123-4"), Some(123));
        for other in [
            "farmem-demo-123",
            "farmem-run",
            "farmem-run-",
            "farmem-run-0",
            "farmem-run-12x",
            "farmem-run-12-",
            "farmem-run-+12",
            "farmem-runs-12",
            "run-12",
            "farmem-run-12-3-4",
            "farmem-run-99999999999",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert!(!is_gone(rustix::process::getpid()) && !is_gone(Pid::INIT));
    }
}
