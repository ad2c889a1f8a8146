//! The process's SIGBUS handler: finds the window that was touched; what is none's goes to the handler of before.
//!
//! Key type: [`Registration`]. The handler runs on the stack of the thread that faults and takes no lock itself. A handler that the program installs
//! before the first such window is called for every other SIGBUS; one that it installs later has to call the one that it replaces, as
//! sigaction(2) hands it over.

use super::{Signals, Touch};
use farmem_link::OpenError;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Windows of one process with faults as signals, at once.
const WINDOWS_MAX: usize = 64;

/// A window that the handler may find.
struct Entry {
    signals: AtomicPtr<Signals>,
    /// Threads that look at it at this moment: it stays until they are gone.
    users: AtomicU32,
}

static WINDOWS: [Entry; WINDOWS_MAX] =
    [const { Entry { signals: AtomicPtr::new(ptr::null_mut()), users: AtomicU32::new(0) } }; WINDOWS_MAX];

/// The action installed before; never freed, since the handler may be reading it.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
static INSTALLING: Mutex<()> = Mutex::new(());

/// A window's place among those that the handler finds.
pub(super) struct Registration {
    signals: Box<Signals>,
    entry: &'static Entry,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.signals.fmt(f)
    }
}

impl Registration {
    pub(super) fn new(signals: Box<Signals>) -> Result<Self, OpenError> {
        install().map_err(|source| OpenError::System { doing: "handle SIGBUS".into(), source })?;
        let pointer = ptr::from_ref(&*signals).cast_mut();
        let is_taken = |entry: &&'static Entry| {
            let none = ptr::null_mut();
            entry.signals.compare_exchange(none, pointer, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let entry = WINDOWS.iter().find(is_taken).ok_or_else(|| OpenError::NoRoom {
            doing: "serve the faults of one more window as signals".into(),
            remedy: format!(
                "a process has at most {WINDOWS_MAX} at once; close one, or let a thread serve it"
            ),
        })?;
        Ok(Self { signals, entry })
    }

    pub(super) fn signals(&self) -> &Signals {
        &self.signals
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.entry.signals.store(ptr::null_mut(), Ordering::SeqCst);
        self.signals.close();
        // In a forked child the threads that were counted are not there.
        while self.signals.process == std::process::id() && self.entry.users.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

/// Puts the handler in place, unless it is there, or one that was installed over it since.
fn install() -> io::Result<()> {
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let now = exchange(None)?;
    let is_default = matches!(now.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    if now.sa_sigaction == on_sigbus as *const () as usize
        || !BEFORE.load(Ordering::Acquire).is_null() && !is_default
    {
        return Ok(());
    }
    // Before the handler is in place: it may be called at once.
    BEFORE.store(Box::into_raw(Box::new(now)), Ordering::Release);
    // SAFETY: an all-zero sigaction is one without flags and mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    action.sa_mask = all_but_faults();
    exchange(Some(&action)).map(drop)
}

/// All signals but those of a fault: a fault in what serves ends in a message, not in silence.
fn all_but_faults() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: room for a set, which the call fills.
    let _ = unsafe { libc::sigfillset(set.as_mut_ptr()) };
    for fault in [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT] {
        // SAFETY: a set that was filled, and a signal's number.
        let _ = unsafe { libc::sigdelset(set.as_mut_ptr(), fault) };
    }
    // SAFETY: filled above.
    unsafe { set.assume_init() }
}

/// Sets what SIGBUS does, if anything; answers what it did.
fn exchange(action: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: null or a whole action, and room for the one before.
    if unsafe { libc::sigaction(libc::SIGBUS, action, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it filled it.
    Ok(unsafe { before.assume_init() })
}

/// A number that no other living thread has.
pub(super) fn this_thread() -> usize {
    // SAFETY: it takes nothing, and only reads where the thread's own data are.
    let thread = unsafe { libc::pthread_self() };
    usize::try_from(thread).expect("an address")
}

/// The code of a SIGBUS whose address the system has no page for.
const BUS_ADRERR: i32 = 2;

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { errno.read() };
    // SAFETY: the system hands over a whole siginfo_t.
    let code = unsafe { (*info).si_code };
    if code != BUS_ADRERR || !serve(info, context) {
        pass_on(signal, code, info, context);
    }
    // SAFETY: the thread's own.
    unsafe { errno.write(kept) };
}

/// True when the touch was a window's, and is to be made again.
fn serve(info: *const libc::siginfo_t, context: *const c_void) -> bool {
    // SAFETY: the system hands over a whole siginfo_t.
    let info = unsafe { &*info };
    // SAFETY: of a SIGBUS with such a code the address is there.
    let addr = unsafe { info.si_addr() }.addr();
    for entry in &WINDOWS {
        if entry.signals.load(Ordering::SeqCst).is_null() {
            continue;
        }
        entry.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: not null means that it is alive, for as long as this thread is counted.
        let signals = unsafe { entry.signals.load(Ordering::SeqCst).as_ref() };
        let served = signals.filter(|signals| signals.addrs.contains(&addr)).map(|signals| {
            // A child that is not forked but shares its parent's memory (vfork) has other threads' numbers, and nothing here to do.
            // A page that cannot be had is not served; not every system says so by another code.
            if signals.process != std::process::id() || signals.is_poisoned(addr) {
                return false;
            }
            // Blocked already, unless a handler that was installed later called this one with a mask of its own.
            let mask = all_but_faults();
            // SAFETY: a whole set. When the handler returns the system puts the interrupted code's back.
            let _ = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, ptr::null_mut()) };
            let touch = Touch { addr, write: is_write(context) };
            let served = signals.serve(touch, this_thread(), is_plain(context));
            if !served {
                say(
                    b"farmem: a thread that serves a window touched it: a page cannot wait for itself. What allocates or is called back there must \
                      not lie in far memory\n",
                );
            }
            served
        });
        entry.users.fetch_sub(1, Ordering::SeqCst);
        if let Some(served) = served {
            return served;
        }
    }
    false
}

/// True when the interrupted code is no signal handler: no signal is blocked.
fn is_plain(context: *const c_void) -> bool {
    blocked(context) == 0
}

/// Signals that the interrupted code had blocked, a bit for each from the first on.
fn blocked(context: *const c_void) -> u64 {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the third argument of a handler with SA_SIGINFO.
    let mask = unsafe { &raw const (*context).uc_sigmask };
    bits(mask)
}

fn bits(mask: *const libc::sigset_t) -> u64 {
    // SAFETY: a mask that the system filled, at least its first 64 bits: it has no more signals.
    unsafe { mask.cast::<u64>().read_unaligned() }
}

#[cfg(target_arch = "x86_64")]
fn is_write(context: *const c_void) -> Option<bool> {
    /// Write bit of the processor's error code for a page fault.
    const WRITE: i64 = 1 << 1;
    /// Where that stands among the registers (REG_ERR).
    const ERROR: usize = libc::REG_ERR.cast_unsigned() as usize;
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the third argument of a handler with SA_SIGINFO.
    let error = unsafe { (*context).uc_mcontext.gregs[ERROR] };
    Some(error & WRITE != 0)
}

#[cfg(not(target_arch = "x86_64"))]
const fn is_write(_: *const c_void) -> Option<bool> {
    None
}

fn say(message: &[u8]) {
    // SAFETY: initialized bytes of that length. Nothing can be done when stderr is closed.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
}

/// Calls the handler of before, as it would have been called.
fn pass_on(signal: i32, code: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: it was stored before the handler was installed, and is never freed.
    let before = unsafe { &*BEFORE.load(Ordering::Acquire) };
    let is_sent = code <= 0;
    match before.sa_sigaction {
        libc::SIG_IGN if is_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action of a signal.
            let _ = unsafe { libc::signal(signal, libc::SIG_DFL) };
            if is_sent {
                // SAFETY: the signal is not blocked, and ends the process. Of a fault the system sends it again.
                let _ = unsafe { libc::raise(signal) };
            }
        }
        handler => {
            unmask(signal, before, context);
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: a handler with SA_SIGINFO is such a function.
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: a handler without is such a function.
                let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}

/// Blocks what would be blocked had the handler of before been called by the system: what the interrupted code had blocked, and its own mask.
fn unmask(signal: i32, before: &libc::sigaction, context: *const c_void) {
    let (interrupted, own) = (blocked(context), bits(&raw const before.sa_mask));
    let itself = if before.sa_flags & libc::SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
    // SAFETY: an all-zero set is empty.
    let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set has 64 bits at least.
    unsafe { (&raw mut mask).cast::<u64>().write_unaligned(interrupted | own | itself) };
    // SAFETY: a whole set. When this handler returns the system puts the interrupted code's back.
    let _ = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
}
