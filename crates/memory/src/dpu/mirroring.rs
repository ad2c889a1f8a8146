//! The thread of a DPU that copies what clients send to a program, as an interface of the machine receives it, into a tap beside the program's own (PD3 5.1; PROTOCOL 19.19).
//!
//! Key types: [`Mirrors`], what the thread that prefetches for the program knows of it; [`Wanted`], what a program asked for. It is a thread of its own since it waits for packets, as the other one does for far memory; what it
//! hands over wakes that. A mirror that fails is said, and prefetching goes on without.
//!
//! What it does not do: decide who may have what mirrored; the door does.

use super::mail::Reply;
use super::serve::told;
use super::slow::Slow;
use super::words::{Said, refusal};
use crate::prefetch::mirror::{CONNECTIONS_MAX, FOLLOWING_BYTES_MAX, MirrorTap};
use crate::prefetch::tap::{Known, Tap, Watch};
use crate::prefetch::{MirrorConfig, MirrorStats};
use farmem_client::api::ErrorCode;
use farmem_io::{OpenError, Waker};
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Bytes of the tap that a mirror hands over to: what comes while the other thread waits for far memory.
const TAP_BYTES: usize = 1 << 20;
/// The longest that it waits before it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// What a program asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    pub(super) packets: MirrorConfig,
    pub(super) parser: Known,
}

impl Wanted {
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
    /// It copies no more, or never did.
    Over,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// It is to end.
    stops: bool,
    stats: MirrorStats,
}

/// What both threads know.
type Shared = Arc<Mutex<State>>;

fn with<R>(state: &Shared, does: impl FnOnce(&mut State) -> R) -> R {
    // Nothing that panics is done under it.
    does(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A mirror that was begun.
#[derive(Debug)]
struct Mirroring {
    wanted: Wanted,
    state: Shared,
    thread: JoinHandle<()>,
}

/// The mirror of one program: one at a time.
pub(super) struct Mirrors {
    tap: Tap,
    guest: u32,
    slowdown: f64,
    now: Option<Mirroring>,
    /// What those saw that have ended.
    before: MirrorStats,
}

impl Mirrors {
    /// None yet. What comes is handed over beside what the program does, to an end that `waker` wakes.
    pub(super) fn new(watch: &mut Watch, waker: Waker, guest: u32, slowdown: f64) -> Self {
        let tap = watch.beside(TAP_BYTES, CONNECTIONS_MAX, Box::new(move || waker.wake()));
        Self { tap, guest, slowdown, now: None, before: MirrorStats::default() }
    }

    /// Begins one, by a thread that answers when packets are copied, or why they are not.
    pub(super) fn begin(&mut self, wanted: Wanted, reply: Reply) {
        let is_over = |now: &Mirroring| {
            with(&now.state, |state| state.phase == Phase::Over) || now.thread.is_finished()
        };
        if let Some(ended) = self.now.take_if(|now| is_over(now)) {
            self.before = self.before.and(with(&ended.state, |state| state.stats));
        }
        if let Some(now) = &self.now {
            // Who was not told in time asks again.
            let is_here = now.wanted == wanted && with(&now.state, |state| state.phase == Phase::Copies);
            let said = if is_here { Said::Done {} } else { one_at_a_time() };
            return reply.say_mirrors(said, now.wanted.bytes());
        }
        let state = Shared::default();
        let (name, failed) = (format!("dpu mirror {}", self.guest), reply.clone());
        let job = Job { wanted, tap: self.tap.clone(), state: Arc::clone(&state), slowdown: self.slowdown };
        let wanted = job.wanted.clone();
        match thread::Builder::new().name(name).spawn(move || job.run(reply)) {
            Ok(thread) => self.now = Some(Mirroring { wanted, state, thread }),
            Err(error) => {
                let message = format!("no thread for a mirror: {error}");
                failed.say_mirrors(refusal(ErrorCode::Unavailable, message, "try again"), 0);
            }
        }
    }

    /// What all of them saw.
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

fn one_at_a_time() -> Said {
    let message = "packets are mirrored for this process, or will be in a moment";
    refusal(ErrorCode::Conflict, message, "one mirror at a time: come again by another socket for another")
}

/// What the thread is to do.
struct Job {
    wanted: Wanted,
    tap: Tap,
    state: Shared,
    slowdown: f64,
}

impl Job {
    fn run(self, reply: Reply) {
        let Self { wanted, tap, state, slowdown } = self;
        let Wanted { packets, parser } = &wanted;
        let parser = *parser;
        let mut mirror = match MirrorTap::open(packets, tap, move || parser.parser()) {
            Ok(mirror) => mirror,
            Err(error) => {
                // First: who is refused may ask again at once.
                with(&state, |state| state.phase = Phase::Over);
                return reply.say_mirrors(told(error.into()), 0);
            }
        };
        with(&state, |state| state.phase = Phase::Copies);
        reply.say_mirrors(Said::Done {}, wanted.bytes());
        // What a panic leaves half done is this thread's own.
        let ended = catch_unwind(AssertUnwindSafe(|| attend(&mut mirror, &state, slowdown)));
        let (why, failed) = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => (error.to_string(), 0),
            Err(_) => ("its thread panicked".into(), 1),
        };
        let stats = mirror.stats().and(MirrorStats { failed, ..MirrorStats::default() });
        // Its ring is given back before another one is opened.
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
