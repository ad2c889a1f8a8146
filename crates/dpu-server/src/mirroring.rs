//! The thread of a DPU that captures what clients send to a program from a network interface, into a second tap (PD3
//! 5.1; PROTOCOL 19.19).
//!
//! Key types: [`Mirrors`], the state of the thread that prefetches for the program; [`MirrorRequest`], the program's
//! request. The mirror has a thread of its own because it waits for packets, while the other thread waits for far
//! memory. The mirror wakes the other thread for each hand-over. If a mirror fails, it prints the reason and
//! prefetching continues without it. When everything that it handed over has been parsed, its tap is freed and the
//! door learns that the budget is free.
//!
//! The door decides which packets a program may have mirrored, not this module.

use super::mailbox::Reply;
use super::messages::{DpuMessage, refusal};
use super::serve::told;
use super::slow::Slow;
use farmem_client::api::ErrorCode;
use farmem_link::{OpenError, Waker};
use farmem_prefetch::mirror::{CONNECTIONS_MAX, FOLLOWING_BYTES_MAX, MirrorTap};
use farmem_prefetch::tap::{ParserKind, Tap, Watch};
use farmem_prefetch::{MirrorConfig, MirrorStats};
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Capacity in bytes of the tap of a mirror, for packets that arrive while the other thread waits for far memory.
const TAP_BYTES: usize = 1 << 20;
/// Maximum wait before the mirror checks whether it must end.
const LOOK: Duration = Duration::from_millis(20);

/// A program's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MirrorRequest {
    pub(super) packets: MirrorConfig,
    pub(super) parser: ParserKind,
}

impl MirrorRequest {
    /// Returns the maximum memory of the mirror in bytes: the kernel's packet ring, the reassembly buffers and the
    /// tap.
    pub(super) const fn bytes(&self) -> u64 {
        let beside = Watch::beside_bytes(TAP_BYTES, CONNECTIONS_MAX);
        self.packets.bytes().saturating_add(FOLLOWING_BYTES_MAX + beside)
    }
}

/// The phase of a mirror's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Begins,
    Copies,
    /// The mirror captures nothing more, or never did.
    Over,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// True if the mirror must end.
    stops: bool,
    stats: MirrorStats,
}

/// State that both threads share.
type Shared = Arc<Mutex<State>>;

fn with<R>(state: &Shared, does: impl FnOnce(&mut State) -> R) -> R {
    // No caller's closure panics.
    does(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A started mirror.
#[derive(Debug)]
struct Mirroring {
    wanted: MirrorRequest,
    state: Shared,
    thread: JoinHandle<()>,
    /// The reply that reports the end of the mirror.
    reply: Reply,
}

impl Mirroring {
    /// Returns true if the mirror's thread has released its resources.
    fn is_over(&self) -> bool {
        with(&self.state, |state| state.phase == Phase::Over) || self.thread.is_finished()
    }
}

/// The mirror of one program, at most one at a time.
pub(super) struct Mirrors {
    waker: Waker,
    session: u32,
    slowdown: f64,
    now: Option<Mirroring>,
    /// Sum of the counts of ended mirrors.
    before: MirrorStats,
}

impl Mirrors {
    /// Creates the state without a mirror. Captured bytes go to a second tap, whose reader `waker` wakes.
    pub(super) fn new(waker: Waker, session: u32, slowdown: f64) -> Self {
        Self { waker, session, slowdown, now: None, before: MirrorStats::default() }
    }

    /// Starts a mirror. Its thread answers when it captures packets, or with the reason why it cannot.
    pub(super) fn begin(&mut self, watch: &mut Watch, wanted: MirrorRequest, reply: Reply) {
        // The budget of an ended mirror passes to this one, and is reported with its answer.
        let _over = self.take_over();
        if let Some(now) = &self.now {
            // A program that got no answer in time asks again.
            let is_here = now.wanted == wanted && with(&now.state, |state| state.phase == Phase::Copies);
            let said = if is_here { DpuMessage::Done {} } else { one_at_a_time() };
            return reply.say_mirrors(said, now.wanted.bytes());
        }
        let state = Shared::default();
        let (name, answer) = (format!("dpu mirror {}", self.session), reply.clone());
        let waker = self.waker.clone();
        let tap = watch.beside(TAP_BYTES, CONNECTIONS_MAX, Box::new(move || waker.wake()));
        let job = Job { wanted, tap, state: Arc::clone(&state), slowdown: self.slowdown };
        let wanted = job.wanted.clone();
        match thread::Builder::new().name(name).spawn(move || job.run(reply)) {
            Ok(thread) => self.now = Some(Mirroring { wanted, state, thread, reply: answer }),
            Err(error) => {
                watch.alone();
                let message = format!("no thread for a mirror: {error}");
                answer.say_mirrors(refusal(ErrorCode::Unavailable, message, "try again"), 0);
            }
        }
    }

    /// Frees an ended mirror when everything that it handed over has been parsed, and tells the door that its budget
    /// is free.
    pub(super) fn look(&mut self, watch: &mut Watch) {
        // In this order: an ended mirror hands over nothing more.
        if self.now.as_ref().is_some_and(Mirroring::is_over)
            && watch.beside_is_empty()
            && let Some(Mirroring { reply, .. }) = self.take_over()
        {
            watch.alone();
            // A program that has its answer ignores this reply. After a panic of the thread, it is the answer.
            let message = "the mirror's thread has ended";
            reply.say_mirrors(refusal(ErrorCode::Unavailable, message, "ask for the mirror again"), 0);
        }
    }

    /// Takes the mirror if it has ended, and adds its counts.
    fn take_over(&mut self) -> Option<Mirroring> {
        let over = self.now.take_if(|now| now.is_over())?;
        self.before = self.before.and(with(&over.state, |state| state.stats));
        Some(over)
    }

    /// Returns the counts of all mirrors.
    pub(super) fn seen(&self) -> MirrorStats {
        let now = self.now.as_ref().map(|now| with(&now.state, |state| state.stats));
        self.before.and(now.unwrap_or_default())
    }
}

impl Drop for Mirrors {
    fn drop(&mut self) {
        if let Some(Mirroring { state, thread, .. }) = self.now.take() {
            with(&state, |state| state.stops = true);
            // A panicked thread has printed its message.
            drop(thread.join());
        }
    }
}

fn one_at_a_time() -> DpuMessage {
    let message = "this process has a mirror, or the DPU is starting one";
    refusal(
        ErrorCode::Conflict,
        message,
        "use one mirror per connection to the DPU, and another connection for another mirror",
    )
}

/// The thread's task.
struct Job {
    wanted: MirrorRequest,
    tap: Tap,
    state: Shared,
    slowdown: f64,
}

impl Job {
    fn run(self, reply: Reply) {
        let Self { wanted, tap, state, slowdown } = self;
        let MirrorRequest { packets, parser } = &wanted;
        let parser = *parser;
        let mut mirror = match MirrorTap::open(packets, tap, move || parser.parser()) {
            Ok(mirror) => mirror,
            Err(error) => {
                let refused = told(error.into());
                // Both under one lock: a refused program may ask again, and a thread that sees the end says nothing
                // before.
                return with(&state, |state| {
                    state.phase = Phase::Over;
                    reply.say_mirrors(refused, 0);
                });
            }
        };
        with(&state, |state| state.phase = Phase::Copies);
        reply.say_mirrors(DpuMessage::Done {}, wanted.bytes());
        // A panic leaves only state of this thread inconsistent.
        let ended = catch_unwind(AssertUnwindSafe(|| attend(&mut mirror, &state, slowdown)));
        let (why, failed) = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => (error.to_string(), 0),
            Err(_) => ("its thread panicked".into(), 1),
        };
        let stats = mirror.stats().and(MirrorStats { failed, ..MirrorStats::default() });
        // The ring is freed before another one is opened or promised.
        drop(mirror);
        with(&state, |state| (state.phase, state.stats) = (Phase::Over, stats));
        let MirrorConfig { interface, server, .. } = packets;
        // stderr may be closed.
        drop(writeln!(
            io::stderr(),
            "farmem: the DPU has stopped mirroring what {interface} receives for {server}, and prefetches by the bytes that the program hands over: {why}"
        ));
    }
}

/// Runs a mirror until it must end.
fn attend(mirror: &mut MirrorTap, state: &Shared, slowdown: f64) -> Result<(), OpenError> {
    let mut slow = Slow::new(slowdown);
    while !with(state, |state| state.stops) {
        let worked = mirror.turn()?;
        with(state, |state| state.stats = mirror.stats());
        slow.down();
        if !worked {
            mirror.wait(LOOK)?;
        }
    }
    Ok(())
}
