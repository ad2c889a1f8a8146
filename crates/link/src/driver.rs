//! The driver of one role over one link: it passes frames and time to the role, and executes the role's
//! actions.
//!
//! The driver has no policy. The role's local outputs go to the caller's `each_out`, together with the link,
//! so that the caller can set addresses of peers.

use crate::{Clock, Link, Wait};
use farmem_machine::{Action, Duration, Event, Instant, Machine, Outbox};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A role with its link and clock.
pub struct Driver<M: Machine, L> {
    machine: M,
    link: L,
    clock: Clock,
    outbox: Outbox<M::Out, M::Note>,
    watch: Box<Watch<M>>,
}

/// A function that receives the role and each of its notes.
type Watch<M> = dyn FnMut(&M, <M as Machine>::Note) + Send;

impl<M: Machine, L: Link> Driver<M, L> {
    /// Creates a driver for a role that has not handled an event.
    pub fn new(machine: M, link: L, clock: Clock) -> Self {
        Self { machine, link, clock, outbox: Outbox::new(), watch: Box::new(|_, _| {}) }
    }

    /// Passes the role and each of its notes to `watch` from now on, for counters and traces.
    pub fn watch_notes(&mut self, watch: impl FnMut(&M, M::Note) + Send + 'static) {
        self.watch = Box::new(watch);
    }

    /// Runs one turn: flushes queued frames, receives a batch, passes the batch and the time to the role, and
    /// sends what the role emits. Waits at most `wait`, and not beyond the role's next wake-up. Returns the
    /// number of received frames.
    ///
    /// # Errors
    /// An error if the link no longer works.
    pub fn turn(&mut self, wait: Wait, each_out: &mut dyn FnMut(M::Out, &mut L)) -> io::Result<usize> {
        self.try_turn(wait, &mut infallible(each_out))
    }

    /// Runs one turn as [`Driver::turn`] does; `each_out` may fail. After a failure, the driver discards the
    /// remaining actions of the turn and flushes no frame, while the role counts them as done. So the driver
    /// must not be used again.
    ///
    /// # Errors
    /// The errors of `each_out`, or of a link that no longer works.
    pub fn try_turn(&mut self, wait: Wait, each_out: &mut EachOut<'_, M, L>) -> io::Result<usize> {
        self.link.flush()?;
        let wait = self.until_next_wake(wait);
        let Self { machine, link, clock, outbox, .. } = self;
        // One reading of the clock serves the whole batch, because all its frames have arrived by then.
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

    /// Returns how long a [`Sleeper`](crate::Sleeper) of the link may sleep now: until the next wake-up of
    /// role or link, at most `most`. `None` if frames have arrived or a wake-up is due.
    pub fn may_sleep(&mut self, most: Duration) -> Option<Duration> {
        let Wait::AtMost(most) = self.until_next_wake(Wait::AtMost(most)) else { return None };
        let most = self.link.next_wake().map_or(most, |due| most.min(due));
        (most > Duration::ZERO && self.link.may_sleep()).then_some(most)
    }

    /// Wakes the role if it is due. Its frames are queued, as by [`Driver::submit`].
    pub fn wake_if_due(&mut self, each_out: &mut dyn FnMut(M::Out, &mut L)) {
        let now = self.machine.next_wake().map(|at| (at, self.clock.now()));
        if let Some((at, now)) = now
            && at <= now
        {
            self.machine.handle(now, Event::Wake, &mut self.outbox);
            self.act(&mut infallible(each_out)).expect("infallible callback");
        }
    }

    /// Passes a local request to the role. The role's frames are queued: the next [`Driver::turn`] or
    /// [`Driver::flush`] sends them, so that consecutive requests share one batch.
    pub fn submit(&mut self, input: M::In, each_out: &mut dyn FnMut(M::Out, &mut L)) {
        self.try_submit(input, &mut infallible(each_out)).expect("infallible callback");
    }

    /// Passes a request as [`Driver::submit`] does, for a caller that can fail; see [`Driver::try_turn`].
    ///
    /// # Errors
    /// The errors of `each_out`.
    pub fn try_submit(&mut self, input: M::In, each_out: &mut EachOut<'_, M, L>) -> io::Result<()> {
        self.machine.handle(self.clock.now(), Event::Local(input), &mut self.outbox);
        self.act(each_out)
    }

    /// Sends the frames that [`Driver::submit`] queued.
    ///
    /// # Errors
    /// An error if the link no longer works.
    pub fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }

    /// Moves queued frames into `parcel`, which the caller sends.
    pub fn flush_into(&mut self, parcel: &mut L::Parcel) {
        self.link.flush_into(parcel);
    }

    /// Returns the role.
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// Returns the role, mutably, for changes that are not events.
    pub const fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// Returns the link.
    pub const fn link(&self) -> &L {
        &self.link
    }

    /// Returns the link, mutably, for example to set addresses of peers.
    pub const fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// Returns the clock of the role.
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the role and the link.
    pub fn into_parts(self) -> (M, L) {
        (self.machine, self.link)
    }

    fn until_next_wake(&self, wait: Wait) -> Wait {
        match (wait, self.machine.next_wake()) {
            (Wait::AtMost(most), Some(at)) => Wait::AtMost(most.min(at.since(self.clock.now()))),
            _ => wait,
        }
    }

    /// Executes the role's actions in order, up to the first failure.
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

/// A flag that ends the threads which drive roles. Copies share one flag.
#[derive(Clone, Default, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Creates a flag that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the flag permanently.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns true once the flag was set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Longest time until an idle driver checks its [`Stop`] again.
const STOP_LATENCY_MAX: Duration = Duration::from_millis(20);

/// Drives a role until `stop` is set, or the role stops by itself ([`Machine::halted`]).
///
/// # Errors
/// An error if the link no longer works.
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
