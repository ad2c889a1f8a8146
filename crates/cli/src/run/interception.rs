//! How the memory of a program becomes far: by libc's functions, or by system calls.
//!
//! Key function: [`choose`], which refuses options that the program cannot have.

use super::program::Checked;
use crate::args::{Intercept, Run};
use crate::outcome::Failure;
use farmem_run::InterceptedPrograms;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// How the memory of a program becomes far.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Interception {
    /// The preload library, for programs that can load it. Holds the library that must be loaded before it, if any.
    pub(super) library: Option<Option<OsString>>,
    /// Programs whose system calls the pager answers.
    pub(super) intercepted: Option<InterceptedPrograms>,
}

impl Interception {
    const fn libc(runtime: Option<OsString>) -> Self {
        Self { library: Some(runtime), intercepted: None }
    }

    const SYSCALLS: Self = Self { library: None, intercepted: Some(InterceptedPrograms::All) };
    /// Dynamic programs that a static one starts have the library.
    const STATIC: Self = Self { library: Some(None), intercepted: Some(InterceptedPrograms::Static) };
}

/// Returns how the memory of a program becomes far. Returns an error where it cannot, with these options or for this
/// user.
pub(super) fn choose(args: &Run, file: &Path, checked: Checked) -> Result<Interception, Failure> {
    let refuse =
        |why: &str, remedy: &str| Err(Failure::environment(format!("{} {why}", file.display()), remedy));
    let allowed = |reason| check(args, file, reason);
    match (args.intercept, checked) {
        (Intercept::Syscalls, _) if cfg!(not(target_arch = "x86_64")) => {
            refuse("cannot run with --intercept syscalls: that is for x86-64", "leave out --intercept")
        }
        (Intercept::Syscalls, _) => allowed(Reason::Option).map(|()| Interception::SYSCALLS),
        (Intercept::Auto | Intercept::Libc, Checked::Glibc(runtime)) => Ok(Interception::libc(runtime)),
        (Intercept::Libc, Checked::Static) => refuse(
            "is statically linked, so no library can be loaded into it",
            "leave out --intercept, or link it dynamically",
        ),
        (Intercept::Auto, Checked::Static) if cfg!(target_arch = "x86_64") => {
            allowed(Reason::Static).map(|()| Interception::STATIC)
        }
        (Intercept::Auto, Checked::Static) => refuse(
            "is statically linked, so no library can be loaded into it",
            "link it dynamically: static programs have far memory on x86-64 only",
        ),
        (Intercept::Auto, Checked::WithoutGlibc { .. }) if cfg!(target_arch = "x86_64") => {
            allowed(Reason::WithoutGlibc).map(|()| Interception::SYSCALLS)
        }
        (Intercept::Auto | Intercept::Libc, Checked::WithoutGlibc { is_musl: true }) => refuse(
            "is linked with musl; the preload library is for glibc",
            "leave out --intercept (x86-64), or use a build for glibc",
        ),
        (Intercept::Auto | Intercept::Libc, Checked::WithoutGlibc { is_musl: false }) => {
            Ok(Interception::libc(None))
        }
    }
}

/// Why the pager answers a program's system calls.
#[derive(Clone, Copy)]
enum Reason {
    Static,
    WithoutGlibc,
    Option,
}

impl Reason {
    /// Returns what holds for the program, and how it would be otherwise.
    const fn texts(self) -> [&'static str; 2] {
        match self {
            Self::Static => ["is statically linked", "link it dynamically"],
            Self::WithoutGlibc => ["is not linked with glibc", "link it with glibc"],
            Self::Option => ["is run with --intercept syscalls", "leave out --intercept"],
        }
    }
}

/// Returns an error for options that exclude far memory by system calls, and where this user may not trace programs.
fn check(args: &Run, file: &Path, reason: Reason) -> Result<(), Failure> {
    let [what, otherwise] = reason.texts();
    let refused = [
        (args.user_mode_only, "--user-mode-only", "it needs a userfaultfd for faults of the kernel, too"),
        (args.no_filter, "--no-filter", "the filter is how its memory becomes far"),
        (args.share.is_some(), "--share", "named memory comes by the preload library"),
    ];
    if let Some((_, option, why)) = refused.into_iter().find(|(is_given, ..)| *is_given) {
        let message = format!("{} {what}, and cannot run with {option}: {why}", file.display());
        return Err(Failure::environment(message, format!("leave out {option}, or {otherwise}")));
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let Some(remedy) = remedy_of(scope.trim(), may_trace_all()) else { return Ok(()) };
    let scope = scope.trim();
    let message = format!(
        "{} {what}: farmem traces it (ptrace), which kernel.yama.ptrace_scope = {scope} forbids here",
        file.display()
    );
    Err(Failure::environment(message, format!("{remedy}, or {otherwise}")))
}

/// Returns the remedy where `kernel.yama.ptrace_scope` forbids tracing; `None` where tracing is allowed, and on a system without Yama.
fn remedy_of(scope: &str, may_trace_all: bool) -> Option<&'static str> {
    match scope {
        "3" => Some("boot with kernel.yama.ptrace_scope=1"),
        "2" if !may_trace_all => Some("run as root, or `sysctl kernel.yama.ptrace_scope=1`"),
        _ => None,
    }
}

/// Returns true if this process has CAP_SYS_PTRACE.
fn may_trace_all() -> bool {
    const SYS_PTRACE: u64 = 1 << 19;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|bits| bits & SYS_PTRACE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scope 1 lets a process trace its descendants. CAP_SYS_PTRACE helps against scope 2, and nothing against 3.
    #[test]
    fn a_ptrace_scope_of_2_or_3_is_refused() {
        for scope in ["", "0", "1"] {
            assert_eq!(remedy_of(scope, false), None);
        }
        assert_eq!(remedy_of("2", true), None);
        assert!(remedy_of("2", false).is_some_and(|remedy| remedy.contains("root")));
        for may_trace_all in [false, true] {
            assert!(remedy_of("3", may_trace_all).is_some_and(|remedy| remedy.contains("boot")));
        }
    }
}
