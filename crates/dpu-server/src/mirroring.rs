//! The thread of a DPU that copies what clients send to a program, as an interface of the machine receives it, into a tap beside the program's own (PD3 5.1; PROTOCOL 19.19).
//!
//! Key types: [`Mirrors`], what the thread that prefetches for the program knows of it; [`MirrorRequest`], what a program asked for. It is a thread of its own since it waits for packets, as the other one does for far memory; what it
//! hands over wakes that. A mirror that fails is said, and prefetching goes on without; when what it had handed over was parsed, its tap is given back, and the door is told that nothing is taken for it any more.
//!
//! The door, and not this module, decides what may be mirrored for whom.

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

/// Bytes that wait in the tap that a mirror hands over to: what comes while the other thread waits for far memory.
const TAP_BYTES: usize = 1 << 20;
/// The longest that it waits before it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// A program's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MirrorRequest {
    pub(super) packets: MirrorConfig,
    pub(super) parser: ParserKind,
}

impl MirrorRequest {
    /// Bytes that it takes at most: the ring that the kernel copies packets into, what waits to be put together, and the tap.
    pub(super) const fn bytes(&self) -> u64 {
        let beside = Watch::beside_bytes(TAP_BYTES, CONNECTIONS_MAX);
        self.packets.bytes().saturating_add(FOLLOWING_BYTES_MAX + beside)
    }
}

/// How far a thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Begins,
    Copies,
    /// The mirror copies no more, or never did.
    Over,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// The mirror is to end.
    stops: bool,
    stats: MirrorStats,
}

/// State that both threads share.
type Shared = Arc<Mutex<State>>;

fn with<R>(state: &Shared, does: impl FnOnce(&mut State) -> R) -> R {
    // Nothing that panics is done under it.
    does(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A mirror that was begun.
#[derive(Debug)]
struct Mirroring {
    wanted: MirrorRequest,
    state: Shared,
    thread: JoinHandle<()>,
    /// The reply that tells of its end.
    reply: Reply,
}

impl Mirroring {
    /// Its thread has nothing of a mirror any more.
    fn is_over(&self) -> bool {
        with(&self.state, |state| state.phase == Phase::Over) || self.thread.is_finished()
    }
}

/// The mirror of one program: one at a time.
pub(super) struct Mirrors {
    waker: Waker,
    session: u32,
    slowdown: f64,
    now: Option<Mirroring>,
    /// Counts of mirrors that have ended.
    before: MirrorStats,
}

impl Mirrors {
    /// None yet. What comes is handed over beside what the program does, to an end that `waker` wakes.
    pub(super) fn new(waker: Waker, session: u32, slowdown: f64) -> Self {
        Self { waker, session, slowdown, now: None, before: MirrorStats::default() }
    }

    /// Begins one, by a thread that answers when packets are copied, or why they are not.
    pub(super) fn begin(&mut self, watch: &mut Watch, wanted: MirrorRequest, reply: Reply) {
        // The budget of an ended mirror goes to this one, and is told with its answer.
        let _over = self.take_over();
        if let Some(now) = &self.now {
            // A program that was not told in time asks again.
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

    /// Gives back all of a mirror that is over, when what it had handed over was parsed; the door is told that nothing is taken for it any more.
    pub(super) fn look(&mut self, watch: &mut Watch) {
        // In this order: one that is over hands over nothing more.
        if self.now.as_ref().is_some_and(Mirroring::is_over)
            && watch.beside_is_empty()
            && let Some(Mirroring { reply, .. }) = self.take_over()
        {
            watch.alone();
            // A program that was answered hears nothing of the end; one that was not, since its thread panicked, does.
            let message = "the thread of this mirror has ended";
            reply.say_mirrors(refusal(ErrorCode::Unavailable, message, "ask for the mirror again"), 0);
        }
    }

    /// A mirror that is over, if there is one; what it saw is counted with those before.
    fn take_over(&mut self) -> Option<Mirroring> {
        let over = self.now.take_if(|now| now.is_over())?;
        self.before = self.before.and(with(&over.state, |state| state.stats));
        Some(over)
    }

    /// Counts of all mirrors.
    pub(super) fn seen(&self) -> MirrorStats {
        let now = self.now.as_ref().map(|now| with(&now.state, |state| state.stats));
        self.before.and(now.unwrap_or_default())
    }
}

impl Drop for Mirrors {
    fn drop(&mut self) {
        if let Some(Mirroring { state, thread, .. }) = self.now.take() {
            with(&state, |state| state.stops = true);
            // One that panicked has said so.
            drop(thread.join());
        }
    }
}

fn one_at_a_time() -> DpuMessage {
    let message = "packets are mirrored for this process, or will be in a moment";
    refusal(ErrorCode::Conflict, message, "one mirror at a time: come again by another socket for another")
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
                // Both at once: a refused program may ask again, and a thread that sees the end says nothing before.
                return with(&state, |state| {
                    state.phase = Phase::Over;
                    reply.say_mirrors(refused, 0);
                });
            }
        };
        with(&state, |state| state.phase = Phase::Copies);
        reply.say_mirrors(DpuMessage::Done {}, wanted.bytes());
        // State that a panic leaves half done is this thread's own.
        let ended = catch_unwind(AssertUnwindSafe(|| attend(&mut mirror, &state, slowdown)));
        let (why, failed) = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => (error.to_string(), 0),
            Err(_) => ("its thread panicked".into(), 1),
        };
        let stats = mirror.stats().and(MirrorStats { failed, ..MirrorStats::default() });
        // The ring is given back before another one is opened or promised.
        drop(mirror);
        with(&state, |state| (state.phase, state.stats) = (Phase::Over, stats));
        let MirrorConfig { interface, server, .. } = packets;
        // stderr may be closed.
        drop(writeln!(
            io::stderr(),
            "farmem: the DPU mirrors no more what {interface} receives for {server}, and prefetches by what the program hands over: {why}"
        ));
    }
}

/// Turns a mirror until it is to end.
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
