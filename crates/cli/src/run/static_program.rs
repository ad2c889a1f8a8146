//! Checks before the start of a static program, whose system calls the pager answers by ptrace and a filter.

use super::program::Checked;
use crate::args::Run;
use crate::outcome::Failure;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Returns the library that a program requires to be loaded first, if any, and true for a static program that
/// can run with these options.
pub(super) fn split(args: &Run, file: &Path, checked: Checked) -> Result<(Option<OsString>, bool), Failure> {
    match checked {
        Checked::Dynamic(runtime) => Ok((runtime, false)),
        Checked::Static => check(args, file).map(|()| (None, true)),
    }
}

/// Returns an error for options that a static program cannot have, and where this user may not trace programs.
fn check(args: &Run, file: &Path) -> Result<(), Failure> {
    let refused = [
        (args.user_mode_only, "--user-mode-only", "it needs a userfaultfd for faults of the kernel, too"),
        (args.no_filter, "--no-filter", "the filter is how its memory becomes far"),
        (args.share.is_some(), "--share", "named memory comes by the preload library"),
    ];
    if let Some((_, option, why)) = refused.into_iter().find(|(is_given, ..)| *is_given) {
        let message = format!("{} is statically linked, and cannot run with {option}: {why}", file.display());
        return Err(Failure::environment(message, format!("leave out {option}, or link it dynamically")));
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let is_allowed = match scope.trim() {
        "3" => false,
        "2" => may_trace_all(),
        _ => true,
    };
    if is_allowed {
        return Ok(());
    }
    let scope = scope.trim();
    let message = format!(
        "{} is statically linked: farmem traces it (ptrace), which kernel.yama.ptrace_scope = {scope} forbids here",
        file.display()
    );
    let remedy = if scope == "3" {
        "boot with kernel.yama.ptrace_scope=1, or link it dynamically"
    } else {
        "run as root, or `sysctl kernel.yama.ptrace_scope=1`, or link it dynamically"
    };
    Err(Failure::environment(message, remedy))
}

/// True when this process has CAP_SYS_PTRACE.
fn may_trace_all() -> bool {
    const SYS_PTRACE: u64 = 1 << 19;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|bits| bits & SYS_PTRACE != 0)
}
