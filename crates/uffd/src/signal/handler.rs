//! The process's SIGBUS handler: it finds the touched window, and passes every other SIGBUS to the earlier handler.
//!
//! Key type: [`Registration`]. The handler runs on the stack of the faulting thread and takes no lock itself. A
//! handler that the program installed before the first such window is called for every other SIGBUS. A handler that
//! is installed later must call the one that it replaces, as returned by sigaction(2).

use super::{Signals, Touch};
use farmem_link::OpenError;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Maximum number of windows of a process whose faults are signals.
const WINDOWS_MAX: usize = 64;

/// An entry for a window in the handler's table.
struct Entry {
    signals: AtomicPtr<Signals>,
    /// Number of threads that use the entry now: the window stays until they are done.
    users: AtomicU32,
}

static WINDOWS: [Entry; WINDOWS_MAX] =
    [const { Entry { signals: AtomicPtr::new(ptr::null_mut()), users: AtomicU32::new(0) } }; WINDOWS_MAX];

/// The action installed before; never freed, since the handler may be reading it.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
static INSTALLING: Mutex<()> = Mutex::new(());

/// The registration of a window with the handler.
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
                "a process has at most {WINDOWS_MAX} such windows; close one, or let a thread serve the window"
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
        // A forked child does not have the counted threads.
        while self.signals.process == std::process::id() && self.entry.users.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

/// Installs the handler, unless it is installed already, or replaced by a later one.
fn install() -> io::Result<()> {
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let now = exchange(None)?;
    let is_default = matches!(now.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    if now.sa_sigaction == on_sigbus as *const () as usize
        || !BEFORE.load(Ordering::Acquire).is_null() && !is_default
    {
        return Ok(());
    }
    // First, because the handler may be called at once.
    BEFORE.store(Box::into_raw(Box::new(now)), Ordering::Release);
    // SAFETY: an all-zero sigaction has no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    action.sa_mask = all_but_faults();
    exchange(Some(&action)).map(drop)
}

/// Returns all signals except those of faults: a fault in the resolver must end with a message.
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

/// Sets the action of SIGBUS if `action` is given. Returns the earlier action.
fn exchange(action: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: null or a whole action, and room for the one before.
    if unsafe { libc::sigaction(libc::SIGBUS, action, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it filled the action.
    Ok(unsafe { before.assume_init() })
}

/// Returns a number that no other living thread has.
pub(super) fn this_thread() -> usize {
    // SAFETY: no arguments; it only reads the address of the thread's own data.
    let thread = unsafe { libc::pthread_self() };
    usize::try_from(thread).expect("an address")
}

/// The code of a SIGBUS at an address without a page.
const BUS_ADRERR: i32 = 2;

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { errno.read() };
    // SAFETY: the kernel passes a complete siginfo_t.
    let code = unsafe { (*info).si_code };
    if code != BUS_ADRERR || !serve(info, context) {
        pass_on(signal, code, info, context);
    }
    // SAFETY: the thread's own.
    unsafe { errno.write(kept) };
}

/// Returns true if the touch was served and must be repeated.
fn serve(info: *const libc::siginfo_t, context: *const c_void) -> bool {
    // SAFETY: the kernel passes a complete siginfo_t.
    let info = unsafe { &*info };
    // SAFETY: a SIGBUS with such a code has an address.
    let addr = unsafe { info.si_addr() }.addr();
    for entry in &WINDOWS {
        if entry.signals.load(Ordering::SeqCst).is_null() {
            continue;
        }
        entry.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: a non-null pointer stays valid while this thread is counted.
        let signals = unsafe { entry.signals.load(Ordering::SeqCst).as_ref() };
        let served = signals.filter(|signals| signals.addrs.contains(&addr)).map(|signals| {
            // A child of vfork shares its parent's memory and has other thread numbers; it must not be served. A
            // poisoned page is not served; some kernels report it with this code.
            if signals.process != std::process::id() || signals.is_poisoned(addr) {
                return false;
            }
            // Blocked already, unless a later handler called this one with its own mask.
            let mask = all_but_faults();
            // SAFETY: a complete set. The kernel restores the interrupted code's mask when the handler returns.
            let _ = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, ptr::null_mut()) };
            let touch = Touch { addr, write: is_write(context) };
            let served = signals.serve(touch, this_thread(), is_plain(context));
            if !served {
                say(
                    b"farmem: a thread that serves a window touched it, and would wait for itself. Memory that this thread uses must not lie \
                      in far memory\n",
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

/// Returns true if the interrupted code is no signal handler: no signal is blocked.
fn is_plain(context: *const c_void) -> bool {
    blocked(context) == 0
}

/// Returns the signals that the interrupted code had blocked, as bits.
fn blocked(context: *const c_void) -> u64 {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the third argument of a handler with SA_SIGINFO.
    let mask = unsafe { &raw const (*context).uc_sigmask };
    bits(mask)
}

fn bits(mask: *const libc::sigset_t) -> u64 {
    // SAFETY: a mask that the kernel filled, with at least 64 bits; there are no more signals.
    unsafe { mask.cast::<u64>().read_unaligned() }
}

#[cfg(target_arch = "x86_64")]
fn is_write(context: *const c_void) -> Option<bool> {
    /// The write bit of the processor's page fault error code.
    const WRITE: i64 = 1 << 1;
    /// Index of the error code among the registers (REG_ERR).
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
    // SAFETY: initialized bytes of that length. A closed stderr is ignored.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
}

/// Calls the earlier handler as the kernel would call it.
fn pass_on(signal: i32, code: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: stored before the handler was installed, and never freed.
    let before = unsafe { &*BEFORE.load(Ordering::Acquire) };
    let is_sent = code <= 0;
    match before.sa_sigaction {
        libc::SIG_IGN if is_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action of a signal.
            let _ = unsafe { libc::signal(signal, libc::SIG_DFL) };
            if is_sent {
                // SAFETY: the signal is not blocked, and ends the process. The kernel repeats the signal of a fault.
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

/// Sets the signal mask that the earlier handler would have: that of the interrupted code, and its own.
fn unmask(signal: i32, before: &libc::sigaction, context: *const c_void) {
    let (interrupted, own) = (blocked(context), bits(&raw const before.sa_mask));
    let itself = if before.sa_flags & libc::SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
    // SAFETY: an all-zero set is empty.
    let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set has 64 bits at least.
    unsafe { (&raw mut mask).cast::<u64>().write_unaligned(interrupted | own | itself) };
    // SAFETY: a complete set. The kernel restores the interrupted code's mask when this handler returns.
    let _ = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
}
