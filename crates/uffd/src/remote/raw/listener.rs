//! A program under a filter, and the descriptor by which its calls are answered.

use super::{RawCall, Watched, filter};
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
    /// Where its calls are answered, or why there is no filter. `None` when none was wanted.
    pub listener: Option<io::Result<Listener>>,
    /// Neither the program nor what it starts can gain rights: the system filters for this user in no other way.
    pub no_new_privileges: bool,
    /// The thread that started it, and what has it end.
    keeper: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

/// Answers the calls of a program and of all that descends from it. While it is open they wait for an answer; afterwards they fail with ENOSYS.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    /// Notifications from before the end of the program's start.
    early: RefCell<VecDeque<Notification>>,
}

/// A thread that waits to make a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notification {
    id: u64,
    /// Its number, as this process sees it.
    pub thread: u32,
    /// The call that it is about to make; `None` when that is nothing of ours.
    pub call: Option<RawCall>,
}

/// Starts a program under a filter, and without one where none is wanted, or the system allows none.
///
/// A filter holds for the thread that takes it on and all that comes from it. So a thread of its own does that and starts the program; it ends
/// with what is returned, as a program may ask to be told of its parent's end, and by that the system means the thread.
///
/// A user without CAP_SYS_ADMIN may only filter programs that can gain no rights: nothing that the program starts is then setuid.
///
/// # Errors
/// The system's error when the program cannot be started.
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
    // The starting thread is under the filter, too, and its calls may be asked about. While it forks, it holds the locks of `malloc`: from
    // here on, nothing in the loop allocates.
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
            // A thread that panicked has said so.
            drop(thread.join());
        }
    }
}

/// Has the calling thread filtered; answers the listener, and whether the thread had to give up to gain rights.
pub(super) fn install(program: &[libc::sock_filter]) -> io::Result<(OwnedFd, bool)> {
    // A call that is being answered is not interrupted by signals, from Linux 5.19 on; before, it is made again.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let any = |flags| match set(program, flags | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => set(program, flags),
        other => other,
    };
    match any(flags) {
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: plain numbers; it holds for this thread and what comes from it.
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
    // SAFETY: a program of that many instructions, which the system copies and does not write to.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    let fd = i32::try_from(result).ok().filter(|&fd| fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the system opened it for this call a moment ago, with close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Time between two looks whether the program has started.
const START_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Room for what the program asks until then: it has one thread, and its children wait for it or end.
const EARLY_MAX: usize = 64;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Listener {
    /// The next thread that waits; `None` when there is none.
    #[must_use]
    pub fn receive(&self) -> Option<Notification> {
        self.early.borrow_mut().pop_front().or_else(|| self.next())
    }

    /// Lets the calls of the thread that starts the program go on. The program's own wait until they are received.
    fn let_start(&self, starter: u32) {
        self.ready_within(&START_LOOK);
        while let Some(asked) = self.next() {
            if asked.thread == starter {
                self.go_on(&asked);
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
        // A thread that was killed meanwhile does not wait any more: then this fails.
        // SAFETY: room for one record, of zeros as the system wants it.
        let result =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, asked.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        // SAFETY: plain numbers, which the system filled.
        let asked = unsafe { asked.assume_init() };
        Some(Notification { id: asked.id, thread: asked.pid, call: RawCall::of(&asked.data) })
    }

    /// True while the thread still waits; so its number was not another's when something was looked up by it.
    #[must_use]
    pub fn still_waits(&self, of: &Notification) -> bool {
        // SAFETY: reads the number that it is given.
        let result =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const of.id) };
        result == 0
    }

    /// The system makes the call.
    pub fn go_on(&self, of: &Notification) {
        let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).expect("a flag of 32 bits");
        self.send(libc::seccomp_notif_resp { id: of.id, val: 0, error: 0, flags });
    }

    /// The call is not made; to the thread it was, with this result.
    pub fn answer(&self, of: &Notification, result: i64) {
        self.send(libc::seccomp_notif_resp { id: of.id, val: result, error: 0, flags: 0 });
    }

    /// The call is not made; to the thread it failed with this number of an error.
    pub fn refuse(&self, of: &Notification, errno: i32) {
        self.send(libc::seccomp_notif_resp { id: of.id, val: 0, error: -errno, flags: 0 });
    }

    /// True when nothing is left of what the filter held for.
    #[must_use]
    pub fn is_over(&self) -> bool {
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
        // A thread that was killed meanwhile needs none.
        // SAFETY: a whole record.
        let _result =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
