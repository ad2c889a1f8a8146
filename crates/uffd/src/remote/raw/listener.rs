//! A program under a filter, and the descriptor by which its calls are answered.

use super::{RawCall, Watched, filter};
use farmem_link::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::thread::{self, JoinHandle};

/// A program that was started under a filter.
#[derive(Debug)]
pub struct Started {
    /// The program.
    pub child: Child,
    /// The listener for its calls, or the reason for its absence. `None` if no filter was requested.
    pub listener: Option<io::Result<Listener>>,
    /// True if neither the program nor its descendants can gain privileges: otherwise the kernel accepts no filter of
    /// this user.
    pub no_new_privileges: bool,
    /// The thread that started the program, and the channel that ends the thread.
    keeper: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

/// The answering side of a filter, for a program and its descendants. While it is open, their calls wait for an
/// answer; afterwards they fail with ENOSYS.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    /// Notifications that arrived while the program started.
    early: RefCell<VecDeque<Notification>>,
}

/// A thread that waits to make a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notification {
    id: u64,
    /// The thread's number, as this process sees it.
    pub thread: u32,
    /// The call; `None` if no rule is about it.
    pub call: Option<RawCall>,
    /// Time of its arrival, in nanoseconds from the machine's boot.
    pub arrival_ns: u64,
}

/// Starts a program under a filter. If `watched` is `None`, or the kernel accepts no filter, the program starts
/// without one.
///
/// A filter applies to the thread that installs it and to that thread's descendants. So a separate thread installs
/// the filter and starts the program. The thread ends with the returned value, because a program may ask for a signal
/// at its parent's end, and the kernel means the thread.
///
/// A user without CAP_SYS_ADMIN may only filter programs that cannot gain privileges, so setuid has no effect in the
/// program's descendants.
///
/// # Errors
/// The system's error if the program cannot be started.
pub fn spawn(mut command: Command, watched: Option<&Watched>) -> io::Result<Started> {
    let Some(watched) = watched else {
        return Ok(Started {
            child: command.spawn()?,
            listener: None,
            no_new_privileges: false,
            keeper: None,
        });
    };
    let program = filter::program(watched);
    let (say_installed, hear_installed) = mpsc::sync_channel(1);
    let (say, hear) = mpsc::sync_channel(1);
    let (end, until) = mpsc::channel::<()>();
    let starts = Arc::new(AtomicBool::new(false));
    let may_start = Arc::clone(&starts);
    let thread = thread::Builder::new().name("filter".into()).spawn(move || {
        let installed = install(&program);
        let itself = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        if say_installed.send((installed, itself)).is_err() {
            return;
        }
        while !may_start.load(Ordering::Acquire) {
            thread::park();
        }
        if say.send(command.spawn()).is_ok() {
            let _ended = until.recv();
        }
    })?;
    let ended = || io::Error::other("the thread that starts it has ended");
    let (listener, starter) = hear_installed.recv().map_err(|_| ended())?;
    let early = RefCell::new(VecDeque::with_capacity(EARLY_MAX));
    let listener = listener.map(|(fd, without)| (Listener { fd, early }, without));
    // The starting thread is under the filter, too, and its calls may be notified. While it forks, it holds the locks
    // of `malloc`: from here on, nothing in the loop allocates.
    starts.store(true, Ordering::Release);
    thread.thread().unpark();
    let child = loop {
        match hear.try_recv() {
            Ok(child) => break child,
            Err(TryRecvError::Disconnected) => return Err(ended()),
            Err(TryRecvError::Empty) => {}
        }
        match &listener {
            Ok((listener, _)) => listener.let_start(starter),
            // Without a filter no call of the thread waits.
            Err(_) => break hear.recv().map_err(|_| ended())?,
        }
    };
    let keeper = Some((end, thread));
    let no_new_privileges = listener.as_ref().is_ok_and(|(_, without)| *without);
    let listener = Some(listener.map(|(listener, _)| listener));
    Ok(Started { child: child?, listener, no_new_privileges, keeper })
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.keeper.take() {
            drop(end);
            // A panicked thread has printed its message.
            drop(thread.join());
        }
    }
}

/// Installs the filter for the calling thread. Returns the listener, and true if the thread had to give up gaining
/// privileges.
pub(super) fn install(program: &[libc::sock_filter]) -> io::Result<(OwnedFd, bool)> {
    // From Linux 5.19 on, signals do not interrupt a call while it is being answered. Earlier kernels repeat the
    // call.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let any = |flags| match set(program, flags | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => set(program, flags),
        other => other,
    };
    match any(flags) {
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: plain numbers; applies to this thread and its descendants.
            if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
            any(flags).map(|listener| (listener, true))
        }
        other => other.map(|listener| (listener, false)),
    }
}

fn set(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<OwnedFd> {
    let len = libc::c_ushort::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: a program of that many instructions, which the kernel copies and does not write.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    let fd = i32::try_from(result).ok().filter(|&fd| fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel opened it for this call a moment ago, with close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Polling interval of the program's start.
const START_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Capacity for notifications until then: the program has one thread, and its children wait for it or end.
const EARLY_MAX: usize = 64;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Listener {
    /// Returns the next notification; `None` if there is none.
    #[must_use]
    pub fn receive(&self) -> Option<Notification> {
        self.early.borrow_mut().pop_front().or_else(|| self.next())
    }

    /// Lets the calls of the thread that starts the program proceed. Calls of the program wait until they are
    /// received.
    fn let_start(&self, starter: u32) {
        self.ready_within(&START_LOOK);
        while let Some(asked) = self.next() {
            if asked.thread == starter {
                self.let_proceed(&asked);
            } else {
                self.early.borrow_mut().push_back(asked);
            }
        }
    }

    fn next(&self) -> Option<Notification> {
        if !self.ready().contains(PollFlags::IN) {
            return None;
        }
        let mut asked = MaybeUninit::<libc::seccomp_notif>::zeroed();
        // A thread that was killed meanwhile no longer waits: then this fails.
        // SAFETY: room for one record, of zeros as the kernel requires.
        let result =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, asked.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        // SAFETY: plain numbers, which the kernel filled.
        let asked = unsafe { asked.assume_init() };
        let (call, arrival_ns) = (RawCall::of(&asked.data), Clock::boot_time_ns());
        Some(Notification { id: asked.id, thread: asked.pid, call, arrival_ns })
    }

    /// Returns true while the notified thread still waits. So a lookup by its thread id that was made before this
    /// call concerns this thread.
    #[must_use]
    pub fn is_waiting(&self, of: &Notification) -> bool {
        // SAFETY: reads the number that is passed.
        let result =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const of.id) };
        result == 0
    }

    /// Lets the kernel execute the call.
    pub fn let_proceed(&self, of: &Notification) {
        let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).expect("a flag of 32 bits");
        self.send(libc::seccomp_notif_resp { id: of.id, val: 0, error: 0, flags });
    }

    /// Completes the call with `result`; the kernel does not execute it.
    pub fn complete(&self, of: &Notification, result: i64) {
        self.send(libc::seccomp_notif_resp { id: of.id, val: result, error: 0, flags: 0 });
    }

    /// Fails the call with `errno`; the kernel does not execute it.
    pub fn fail(&self, of: &Notification, errno: i32) {
        self.send(libc::seccomp_notif_resp { id: of.id, val: 0, error: -errno, flags: 0 });
    }

    /// Returns true if no thread is under the filter any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.ready().contains(PollFlags::HUP)
    }

    fn ready(&self) -> PollFlags {
        self.ready_within(&NOW)
    }

    fn ready_within(&self, time: &Timespec) -> PollFlags {
        let mut one = [PollFd::new(&self.fd, PollFlags::IN)];
        let polled = rustix::io::retry_on_intr(|| poll(&mut one, Some(time)));
        polled.map_or(PollFlags::empty(), |_| one[0].revents())
    }

    fn send(&self, mut answer: libc::seccomp_notif_resp) {
        // A thread that was killed meanwhile needs no answer.
        // SAFETY: a complete record.
        let _result =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
