//! Serving a window: the loop that reads faults and hands them to what resolves them.
//!
//! Key items: [`serve`], [`Faults`]. A hand-over costs three to four times less on one CPU than across two (docs/decisions,
//! "same-CPU placement"), so the loop goes where the faulting threads run unless told otherwise.

use super::signal::{Lead, Touch};
use super::{Fault, Message, Patience, Window};
use farmem_link::affinity::cpu_of;
use farmem_link::{Stop, Waiting};
use farmem_wire::message::Page;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, sched_yield};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// The resolver of faults.
pub trait Faults {
    /// A thread waits for `page` until it is installed, remapped, poisoned or woken: in this call, or in a later [`Faults::turn`]. The same
    /// page may be reported many times: by several threads, by one that a signal interrupted, and late, when it is there already.
    fn fault(&mut self, page: Page, fault: Fault);

    /// All that was reported is handed over: do what takes time.
    fn turn(&mut self) -> Next;

    /// Takes what has come, without a wait: a thread whose fault is a signal ([`FaultMode::Signal`](super::FaultMode)) looks for its page so. False when
    /// there is nothing to look at.
    fn look(&mut self) -> bool {
        false
    }

    /// The thread that looked does so no more.
    fn rest(&mut self) {}
}

/// The next step of the loop after a [`Faults::turn`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing is under way: sleep until a thread faults.
    Sleep,
    /// Something is: look what was reported meanwhile, and come back at once.
    Look,
}

/// Where the loop runs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum HandlerCpu {
    /// Where the faulting thread runs; looked up now and then. The cheapest hand-over.
    #[default]
    Follow,
    /// On this CPU.
    Fixed(usize),
    /// Wherever the system puts it.
    Any,
}

/// Where a window is served, and how.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Handler {
    /// Where the loop runs.
    pub cpu: HandlerCpu,
    /// How it waits when no thread faults.
    pub waiting: Waiting,
}

/// Ends a [`serve`], from any thread.
#[derive(Clone, Debug)]
pub struct Ring<'w> {
    window: &'w Window,
    stop: Stop,
}

impl<'w> Ring<'w> {
    /// The handle that ends the service of `window` by `stop`.
    #[must_use]
    pub const fn new(window: &'w Window, stop: Stop) -> Self {
        Self { window, stop }
    }

    /// The window.
    #[must_use]
    pub const fn window(&self) -> &'w Window {
        self.window
    }

    /// Ends it: returns when the loop has heard, or when there is none.
    pub fn end(&self) {
        self.stop.set();
        match self.window.signals() {
            Some(signals) => signals.knock(),
            None => self.window.doorbell().ring(),
        }
    }

    /// Has what resolves faults take its turn, though no thread faulted: returns when the loop has heard, or when there is none.
    pub fn nudge(&self) {
        match self.window.signals() {
            Some(signals) => signals.nudge(),
            None => self.window.doorbell().ring(),
        }
    }
}

/// Serves the window on this thread until `stop` is set and rung for ([`Ring::end`]). One thread at a time serves a window.
///
/// The thread takes no signals meanwhile, and its CPUs are its own again afterwards.
///
/// # Errors
/// When the system takes no more calls. Threads that wait then wait on.
pub fn serve(window: &Window, handler: Handler, stop: &Stop, faults: &mut impl Faults) -> io::Result<()> {
    let Some(signals) = window.signals() else { return serve_reported(window, handler, stop, faults) };
    let _place = Serving::begin(handler, Some(libc::SIGBUS))?;
    signals.attend(handler.waiting, stop, &mut Touches { window, faults });
    Ok(())
}

/// As [`serve`], by what any thread may use: where faults are signals the threads that fault serve themselves, and this one does what is left.
///
/// # Errors
/// As [`serve`].
pub fn serve_shared(
    window: &Window,
    handler: Handler,
    stop: &Stop,
    faults: &mut (impl Faults + Send),
) -> io::Result<()> {
    let Some(signals) = window.signals() else { return serve_reported(window, handler, stop, faults) };
    let _place = Serving::begin(handler, Some(libc::SIGBUS))?;
    signals.attend_shared(handler.waiting, stop, &mut Touches { window, faults });
    Ok(())
}

/// State that a thread is given back when it serves no more.
struct Serving {
    _no_signals: SignalsBlocked,
    _cpus: CpusKept,
}

impl Serving {
    /// With `open` the thread takes that signal: a touch of what it serves is told.
    fn begin(handler: Handler, open: Option<i32>) -> io::Result<Self> {
        let serving = Self { _no_signals: SignalsBlocked::new(open), _cpus: CpusKept::new()? };
        if let HandlerCpu::Fixed(cpu) = handler.cpu {
            farmem_link::pin_to_cpu(cpu)?;
        }
        Ok(serving)
    }
}

/// Brings touches to what resolves faults.
struct Touches<'a, F> {
    window: &'a Window,
    faults: &'a mut F,
}

impl<F: Faults> Lead for Touches<'_, F> {
    fn fault(&mut self, touch: Touch) {
        let fault = self.window.fault_of(touch);
        let page = self.window.page_of(&fault).expect("only touches of the window are served");
        self.faults.fault(page, fault);
    }

    fn turn(&mut self) -> Next {
        self.faults.turn()
    }

    fn look(&mut self) -> bool {
        self.faults.look()
    }

    fn rest(&mut self) {
        self.faults.rest();
    }
}

/// Serves faults as the system reports them.
fn serve_reported(
    window: &Window,
    handler: Handler,
    stop: &Stop,
    faults: &mut impl Faults,
) -> io::Result<()> {
    window.doorbell().listen(window.uffd())?;
    let _place = Serving::begin(handler, None)?;
    let mut follower = (handler.cpu == HandlerCpu::Follow).then(Follower::default);
    let result = turns(window, handler.waiting, stop, &mut follower, faults);
    window.doorbell().leave(window.uffd());
    result
}

fn turns(
    window: &Window,
    waiting: Waiting,
    stop: &Stop,
    follower: &mut Option<Follower>,
    faults: &mut impl Faults,
) -> io::Result<()> {
    let mut messages = window.uffd().messages();
    let (mut next, mut idle) = (Next::Sleep, 0_u32);
    while !(stop.is_set() && next == Next::Sleep) {
        let patience = match (next, waiting) {
            (Next::Sleep, Waiting::Block | Waiting::Precise) => Patience::Endless,
            _ => Patience::None,
        };
        let count = messages.read(patience, &mut |message| match message {
            Message::Fault(fault) if window.doorbell().hears(&fault, window.uffd()) => {}
            Message::Fault(fault) => {
                let page = window.page_of(&fault).expect("only the window and the doorbell are registered");
                if let Some(follower) = follower {
                    follower.saw(fault.thread);
                }
                faults.fault(page, fault);
            }
            other => unreachable!("{other:?} was not asked for"),
        })?;
        if count > 0 || next == Next::Look {
            next = faults.turn();
            idle = 0;
        } else {
            idle += 1;
            if idle.is_multiple_of(SPINS_TO_YIELD) {
                sched_yield();
            }
        }
    }
    Ok(())
}

/// Looks in vain after which a spinning loop lets others run.
const SPINS_TO_YIELD: u32 = 256;

/// Keeps the loop where the threads that fault run.
#[derive(Default)]
struct Follower {
    faults: u32,
    cpu: Option<usize>,
}

/// Faults between two looks at where a faulting thread runs: a look costs as much as several faults.
const FOLLOW_EVERY: u32 = 1024;

impl Follower {
    fn saw(&mut self, thread: u32) {
        let due = self.faults.is_multiple_of(FOLLOW_EVERY);
        self.faults = self.faults.wrapping_add(1);
        if !due {
            return;
        }
        let cpu = cpu_of(thread);
        if cpu.is_some() && cpu != self.cpu {
            // A CPU that this thread may not run on, or a thread that is gone: where the loop is serves too.
            self.cpu = cpu.filter(|&cpu| farmem_link::pin_to_cpu(cpu).is_ok());
        }
    }
}

/// A thread that resolves faults must not run a signal handler that may fault.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new(open: Option<i32>) -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `all` has room for the set, which the call fills.
        let _ = unsafe { libc::sigfillset(all.as_mut_ptr()) };
        if let Some(signal) = open {
            // SAFETY: a set that was filled, and a signal's number.
            let _ = unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
        }
        // SAFETY: a set that was filled, and room for the one before.
        let result = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        assert_eq!(result, 0, "a mask of all signals is one");
        // SAFETY: the call succeeded, so it filled the set.
        Self(unsafe { before.assume_init() })
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set of before, whole.
        let _ = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Gives the thread its CPUs back.
struct CpusKept(CpuSet);

impl CpusKept {
    fn new() -> io::Result<Self> {
        Ok(Self(sched_getaffinity(None)?))
    }
}

impl Drop for CpusKept {
    fn drop(&mut self) {
        // Refused only when the machine lost those CPUs meanwhile.
        let _ = sched_setaffinity(None, &self.0);
    }
}
