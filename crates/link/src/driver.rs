//! Drives one role over one link: frames in, time when it asks for it, actions out.
//!
//! The driver owns no policy. What a role answers to its own user goes to the caller's `each_out`, together with the link, so
//! that the caller can tell it about peers.

use crate::{Clock, Link, Wait};
use farmem_machine::{Action, Duration, Event, Instant, Machine, Outbox};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A role with the link and the clock it lives by.
pub struct Driver<M: Machine, L> {
    machine: M,
    link: L,
    clock: Clock,
    outbox: Outbox<M::Out, M::Note>,
    watch: Box<Watch<M>>,
}

/// A function that sees the role and each of its notes.
type Watch<M> = dyn FnMut(&M, <M as Machine>::Note) + Send;

impl<M: Machine, L: Link> Driver<M, L> {
    /// A role that has not been told anything yet.
    pub fn new(machine: M, link: L, clock: Clock) -> Self {
        Self { machine, link, clock, outbox: Outbox::new(), watch: Box::new(|_, _| {}) }
    }

    /// Hands the role and every note of it to `watch` from now on: to count it, or to trace it.
    pub fn watch_notes(&mut self, watch: impl FnMut(&M, M::Note) + Send + 'static) {
        self.watch = Box::new(watch);
    }

    /// One turn: sends what is queued, receives a batch (waiting at most `wait`, and not beyond the role's next wake-up), lets the
    /// role act on it and on the time, sends what it wants sent. Answers how many frames came.
    ///
    /// # Errors
    /// When the link no longer works.
    pub fn turn(&mut self, wait: Wait, each_out: &mut dyn FnMut(M::Out, &mut L)) -> io::Result<usize> {
        self.try_turn(wait, &mut infallible(each_out))
    }

    /// As [`Driver::turn`], for a caller that can fail at what the role tells it: nothing the role wanted done after that is done, and no
    /// frame of this turn is flushed. The role believes it was; so the driver must not be used any more.
    ///
    /// # Errors
    /// Errors of `each_out`, or of a link that no longer works.
    pub fn try_turn(&mut self, wait: Wait, each_out: &mut EachOut<'_, M, L>) -> io::Result<usize> {
        self.link.flush()?;
        let wait = self.until_next_wake(wait);
        let Self { machine, link, clock, outbox, .. } = self;
        // One reading of the clock serves the batch: its frames have all arrived by then.
        let mut arrived: Option<Instant> = None;
        let received = link.receive_runs(wait, &mut |run| {
            let now = *arrived.get_or_insert_with(|| clock.now());
            machine.handle_run(now, run, outbox);
        });
        let now = arrived.unwrap_or_else(|| clock.now());
        if machine.next_wake().is_some_and(|at| at <= now) {
            machine.handle(now, Event::Wake, outbox);
        }
        self.act(each_out)?;
        self.link.flush()?;
        received
    }

    /// How long a [`Sleeper`](crate::Sleeper) of the link may sleep now, at most `most`: until the role's next wake-up, or the link's. Not at all
    /// when something has arrived, or the role is due.
    pub fn may_sleep(&mut self, most: Duration) -> Option<Duration> {
        let Wait::AtMost(most) = self.until_next_wake(Wait::AtMost(most)) else { return None };
        let most = self.link.next_wake().map_or(most, |due| most.min(due));
        (most > Duration::ZERO && self.link.may_sleep()).then_some(most)
    }

    /// Wakes the role if it is due. What it sends is queued, as by [`Driver::submit`].
    pub fn wake_if_due(&mut self, each_out: &mut dyn FnMut(M::Out, &mut L)) {
        let now = self.machine.next_wake().map(|at| (at, self.clock.now()));
        if let Some((at, now)) = now
            && at <= now
        {
            self.machine.handle(now, Event::Wake, &mut self.outbox);
            self.act(&mut infallible(each_out)).expect("it cannot fail");
        }
    }

    /// Hands the role a request of its own user. What it sends is queued: the next [`Driver::turn`] or [`Driver::flush`] sends it,
    /// so that several requests in a row share one batch.
    pub fn submit(&mut self, input: M::In, each_out: &mut dyn FnMut(M::Out, &mut L)) {
        self.try_submit(input, &mut infallible(each_out)).expect("it cannot fail");
    }

    /// As [`Driver::submit`], for a caller that can fail; see [`Driver::try_turn`].
    ///
    /// # Errors
    /// Errors of `each_out`.
    pub fn try_submit(&mut self, input: M::In, each_out: &mut EachOut<'_, M, L>) -> io::Result<()> {
        self.machine.handle(self.clock.now(), Event::Local(input), &mut self.outbox);
        self.act(each_out)
    }

    /// Sends what [`Driver::submit`] queued.
    ///
    /// # Errors
    /// When the link no longer works.
    pub fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }

    /// As [`Driver::flush`], for a caller that hands it over itself.
    pub fn flush_into(&mut self, parcel: &mut L::Parcel) {
        self.link.flush_into(parcel);
    }

    /// The role, to look at.
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The role, for what is done to it beside its events.
    pub const fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The link, to look at.
    pub const fn link(&self) -> &L {
        &self.link
    }

    /// The link, to tell it about peers.
    pub const fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// The clock the role lives by.
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Ends the drive.
    pub fn into_parts(self) -> (M, L) {
        (self.machine, self.link)
    }

    fn until_next_wake(&self, wait: Wait) -> Wait {
        match (wait, self.machine.next_wake()) {
            (Wait::AtMost(most), Some(at)) => Wait::AtMost(most.min(at.since(self.clock.now()))),
            _ => wait,
        }
    }

    /// Does what the role wants done, in order, up to the first failure.
    fn act(&mut self, each_out: &mut EachOut<'_, M, L>) -> io::Result<()> {
        let Self { machine, link, outbox, watch, .. } = self;
        let mut result = Ok(());
        outbox.drain(|action| match action {
            _ if result.is_err() => {}
            Action::Send { port, frame } => link.send(port, frame),
            Action::Local(out) => result = each_out(out, link),
            Action::Note(note) => watch(machine, note),
        });
        result
    }
}

/// A fallible consumer of a role's outputs.
pub type EachOut<'a, M, L> = dyn FnMut(<M as Machine>::Out, &mut L) -> io::Result<()> + 'a;

fn infallible<O, L>(each_out: &mut dyn FnMut(O, &mut L)) -> impl FnMut(O, &mut L) -> io::Result<()> {
    |out, link| {
        each_out(out, link);
        Ok(())
    }
}

impl<M: Machine + fmt::Debug, L: fmt::Debug> fmt::Debug for Driver<M, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("machine", &self.machine)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

/// Tells the threads that drive roles to end. Copies share one flag.
#[derive(Clone, Default, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A flag that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the flag, for good.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// True once the flag was set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Time after which a driver that hears nothing looks at its [`Stop`] again.
const STOP_LATENCY_MAX: Duration = Duration::from_millis(20);

/// Drives a role until `stop` is set, or the role stops by itself ([`Machine::halted`]).
///
/// # Errors
/// When the link no longer works.
pub fn run<M: Machine, L: Link>(
    driver: &mut Driver<M, L>,
    stop: &Stop,
    each_out: &mut dyn FnMut(M::Out, &mut L),
) -> io::Result<()> {
    while !stop.is_set() && driver.machine().halted().is_none() {
        driver.turn(Wait::AtMost(STOP_LATENCY_MAX), each_out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
