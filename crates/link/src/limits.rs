//! Memory limits: this machine's memory, and a process's limit of addresses (RLIMIT_AS, `ulimit -v`). The latter is meant for a
//! program, and hits the process that keeps the program's memory as well.
//!
//! Key type: [`AddressLimit`].

use procfs_core::{FromRead as _, Meminfo};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// A limit that this process was started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressLimit {
    before: Rlimit,
    now: Option<u64>,
}

impl AddressLimit {
    /// Lifts it for this process, as far as it may: root as far as it likes, others up to the hard limit. `None` when there was none.
    #[must_use]
    pub fn lift() -> Option<Self> {
        let before = getrlimit(Resource::As);
        before.current?;
        let none = Rlimit { current: None, maximum: None };
        let hard = Rlimit { current: before.maximum, maximum: before.maximum };
        // A refusal leaves the limit as it was.
        let _ = setrlimit(Resource::As, none).or_else(|_| setrlimit(Resource::As, hard));
        let now = getrlimit(Resource::As).current;
        Some(Self { before, now })
    }

    /// Bytes of addresses that this process may still map; `None` for as many as it likes.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        let pages = fs::read_to_string("/proc/self/statm").ok();
        let pages = pages.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let used = pages.unwrap_or(0) * farmem_wire::message::PAGE_LEN as u64;
        self.now.map(|now| now.saturating_sub(used))
    }

    /// The program that `command` starts has the limit that this process was started with.
    pub fn restore(&self, command: &mut Command) {
        let of = |limit: Option<u64>| limit.unwrap_or(libc::RLIM_INFINITY);
        let before = libc::rlimit { rlim_cur: of(self.before.current), rlim_max: of(self.before.maximum) };
        let restore = move || {
            // SAFETY: a whole record; the call is one of those that are allowed between fork and exec.
            match unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const before) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: it makes that call and allocates nothing.
        unsafe { command.pre_exec(restore) };
    }
}

/// The largest resident set that one of the processes had which this one has waited for, or which those had waited for: bytes.
#[must_use]
pub fn largest_resident_set() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: room for one record.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: plain numbers, which the system filled.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024
}

/// Bytes of this machine's memory; `None` where the system does not tell.
#[must_use]
pub fn memory_of_machine() -> Option<u64> {
    Some(Meminfo::from_file("/proc/meminfo").ok()?.mem_total)
}
