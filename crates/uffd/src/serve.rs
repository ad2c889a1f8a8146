//! The service of a window: the loop that reads faults and passes them to a resolver.
//!
//! Key items: [`serve`], [`Faults`]. A thread switch on one CPU costs three to four times less than one between two
//! CPUs (docs/decisions, "same-CPU placement"). So by default the loop moves to the CPU of the faulting threads.

use super::next::Next;
use super::signal::{Lead, Touch};
use super::{Fault, Message, Messages, Patience, Window};
use farmem_link::affinity::cpu_of;
use farmem_link::{Stop, Waiting};
use farmem_wire::message::Page;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, sched_yield};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// The resolver of faults.
pub trait Faults {
    /// Handles a fault: a thread waits for `page` until the page is installed, remapped, poisoned or woken, in this
    /// call or in a later [`Faults::turn`]. The same page may be reported many times: by several threads, after a
    /// signal, and late, when it is installed already.
    fn fault(&mut self, page: Page, fault: Fault);

    /// Does the work that takes time. All reported faults have been passed.
    fn turn(&mut self) -> Next;

    /// Processes completions without waiting. A thread whose fault is a signal
    /// ([`FaultMode::Signal`](super::FaultMode)) polls for its page in this way. Returns false if nothing can be
    /// polled.
    fn look(&mut self) -> bool {
        false
    }

    /// Ends the polling of a thread.
    fn rest(&mut self) {}
}

/// The CPU of the loop.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum HandlerCpu {
    /// The CPU of the faulting thread, looked up from time to time. The cheapest thread switch.
    #[default]
    Follow,
    /// This CPU.
    Fixed(usize),
    /// Any CPU that the kernel chooses.
    Any,
}

/// The CPU and the waiting mode of a window's service.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Handler {
    /// The CPU of the loop.
    pub cpu: HandlerCpu,
    /// The waiting mode when no thread faults.
    pub waiting: Waiting,
}

/// Ends a [`serve`], from any thread.
#[derive(Clone, Debug)]
pub struct Ring<'w> {
    window: &'w Window,
    stop: Stop,
}

impl<'w> Ring<'w> {
    /// Creates the handle that ends the service of `window` by `stop`.
    #[must_use]
    pub const fn new(window: &'w Window, stop: Stop) -> Self {
        Self { window, stop }
    }

    /// Returns the window.
    #[must_use]
    pub const fn window(&self) -> &'w Window {
        self.window
    }

    /// Ends the service. Returns when the loop has noticed, or at once if there is no loop.
    pub fn end(&self) {
        self.stop.set();
        match self.window.signals() {
            Some(signals) => signals.knock(),
            None => self.window.doorbell().ring(),
        }
    }

    /// Makes the loop call [`Faults::turn`] without a fault. Returns when the loop has noticed, or at once if there
    /// is no loop.
    pub fn nudge(&self) {
        match self.window.signals() {
            Some(signals) => signals.nudge(),
            None => self.window.doorbell().ring(),
        }
    }
}

/// Serves the window on this thread until [`Ring::end`] sets `stop`. Only one thread at a time serves a window.
///
/// The thread blocks signals meanwhile, and gets its CPU mask back afterwards.
///
/// # Errors
/// The system's error if a call fails. Waiting threads then continue to wait.
pub fn serve(window: &Window, handler: Handler, stop: &Stop, faults: &mut impl Faults) -> io::Result<()> {
    let Some(signals) = window.signals() else { return serve_reported(window, handler, stop, faults) };
    let _place = Serving::begin(handler, Some(libc::SIGBUS))?;
    signals.attend(handler.waiting, stop, &mut Touches { window, faults });
    Ok(())
}

/// Serves a window as [`serve`] does, with a resolver that any thread may use. If faults are signals, the faulting
/// threads serve themselves, and this thread does the rest.
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

/// Restores the thread's signal mask and CPUs when the service ends.
struct Serving {
    _no_signals: SignalsBlocked,
    _cpus: CpusKept,
}

impl Serving {
    /// Blocks signals except `open`. With that signal, a touch of the served window prints a message.
    fn begin(handler: Handler, open: Option<i32>) -> io::Result<Self> {
        let serving = Self { _no_signals: SignalsBlocked::new(open), _cpus: CpusKept::new()? };
        if let HandlerCpu::Fixed(cpu) = handler.cpu {
            farmem_link::pin_to_cpu(cpu)?;
        }
        Ok(serving)
    }
}

/// Passes touches to the resolver.
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

/// Serves faults that the kernel reports.
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
    let mut messages = Messages::new(window.uffd());
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

/// Number of empty polls after which a spinning loop yields.
const SPINS_TO_YIELD: u32 = 256;

/// Keeps the loop on the CPU of the faulting threads.
#[derive(Default)]
struct Follower {
    faults: u32,
    cpu: Option<usize>,
}

/// Faults between two look-ups of a faulting thread's CPU: a look-up costs as much as several faults.
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
            // If the thread may not run on that CPU, or has ended, the loop stays where it is.
            self.cpu = cpu.filter(|&cpu| farmem_link::pin_to_cpu(cpu).is_ok());
        }
    }
}

/// The blocked signals of a thread that resolves faults: a signal handler there could fault itself.
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
        // SAFETY: the complete earlier set.
        let _ = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Restores the thread's CPU mask.
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
