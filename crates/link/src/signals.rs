//! Signals that are read instead of delivered, for a process that forwards its signals to another one.
//!
//! Key type: [`Signals`]. Open it before any thread is started, because threads inherit the signal mask.

use crate::OpenError;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;

/// The signals by which a terminal or another process makes a program end, reload or report.
const SIGNALS: [i32; 6] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// A source of interrupt, quit, terminate, hang-up and the two user signals, which are read instead of
/// delivered.
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

/// A received signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignalInfo {
    /// The signal's number.
    pub signal: i32,
    /// True if a process sent the signal to this process alone. A terminal sends a signal to the whole group,
    /// so other processes already have it.
    pub by_process: bool,
}

/// Ignores SIGHUP from here on, for a process whose memory others use: the end of a terminal must not end it.
pub fn ignore_hangups() {
    // SAFETY: SIG_IGN runs no code of this process. The call fails only for invalid signal numbers.
    let _ = unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}

/// Returns true if SIGHUP is ignored, as in a process that `nohup` started.
#[must_use]
pub fn hangups_are_ignored() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call sets no new action, and `action` has space for the present one.
    if unsafe { libc::sigaction(libc::SIGHUP, ptr::null(), action.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so it initialized the action.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

impl Signals {
    /// Blocks the signals in this thread and in all threads that it starts later.
    ///
    /// # Errors
    /// [`OpenError::System`].
    pub fn open() -> Result<Self, OpenError> {
        let system =
            || OpenError::System { doing: "read signals".into(), source: io::Error::last_os_error() };
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `set` has space for a set, which the call initializes.
        let _ = unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for signal in SIGNALS {
            // SAFETY: an initialized set, and a signal's number.
            let _ = unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: an initialized set, and space for the earlier one.
        if unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) } != 0 {
            return Err(system());
        }
        // SAFETY: the call succeeded, so it initialized the set.
        let before = unsafe { before.assume_init() };
        // SAFETY: an initialized set, and valid flags.
        let fd = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(system());
        }
        // SAFETY: the system has just opened the descriptor for this call.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, before })
    }

    /// Restores the earlier signal mask in the program that `command` starts.
    pub fn let_through(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || {
            // SAFETY: the set is complete, and the call is permitted between fork and exec.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) } {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        };
        // SAFETY: the closure only makes that call and allocates nothing.
        unsafe { command.pre_exec(restore) };
    }

    /// Returns the next received signal, if there is one.
    #[must_use]
    pub fn next(&self) -> Option<SignalInfo> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let len = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has the size of one record.
        let count = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), len) };
        if usize::try_from(count) != Ok(len) {
            return None;
        }
        // SAFETY: plain numbers, which the system has written.
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
