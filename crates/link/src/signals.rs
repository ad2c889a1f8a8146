//! Signals as something to read: for a process that stands before another, and passes on what it is sent.
//!
//! Key type: [`Signals`]. Open it before any thread is started: they inherit what is blocked.

use crate::OpenError;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;

/// Signals by which a terminal or another process has a program end, reload or report.
const SIGNALS: [i32; 6] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// Interrupt, quit, terminate, hang up and the two user signals, not delivered but read.
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

/// A signal that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignalInfo {
    /// Its number.
    pub signal: i32,
    /// True when a process sent it to this one alone. A terminal sends to the whole group: others have it already.
    pub by_process: bool,
}

/// Ignores SIGHUP from here on: for a process whose memory others use, which a terminal that closes must not end.
pub fn ignore_hangups() {
    // SAFETY: SIG_IGN runs no code of this process. The call fails only for numbers that are no signal.
    let _ = unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}

/// True when SIGHUP is ignored, as in a process that `nohup` started.
#[must_use]
pub fn hangups_are_ignored() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: no new action is given, and `action` has room for the present one.
    if unsafe { libc::sigaction(libc::SIGHUP, ptr::null(), action.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so it filled the action.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

impl Signals {
    /// From now on they are not delivered to this thread, nor to any that is started later.
    ///
    /// # Errors
    /// [`OpenError::System`].
    pub fn open() -> Result<Self, OpenError> {
        let system =
            || OpenError::System { doing: "read signals".into(), source: io::Error::last_os_error() };
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `set` has room for a set, which the call fills.
        let _ = unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for signal in SIGNALS {
            // SAFETY: a set that was filled, and a signal's number.
            let _ = unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a filled set, and room for the one before.
        if unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) } != 0 {
            return Err(system());
        }
        // SAFETY: the call succeeded, so it filled the set.
        let before = unsafe { before.assume_init() };
        // SAFETY: a filled set, and flags that the call knows.
        let fd = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(system());
        }
        // SAFETY: the system opened it for this call a moment ago.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, before })
    }

    /// The program that `command` starts has them delivered, as it would have without this.
    pub fn let_through(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || {
            // SAFETY: a whole set; the call is one of those that are allowed between fork and exec.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) } {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        };
        // SAFETY: it makes that call and allocates nothing.
        unsafe { command.pre_exec(restore) };
    }

    /// The next that came, if one has.
    #[must_use]
    pub fn next(&self) -> Option<SignalInfo> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let len = size_of::<libc::signalfd_siginfo>();
        // SAFETY: room for one record.
        let count = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), len) };
        if usize::try_from(count) != Ok(len) {
            return None;
        }
        // SAFETY: plain numbers, which the system filled.
        let info = unsafe { info.assume_init() };
        let signal = i32::try_from(info.ssi_signo).ok()?;
        Some(SignalInfo { signal, by_process: info.ssi_code <= 0 })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").field("fd", &self.fd).finish_non_exhaustive()
    }
}
