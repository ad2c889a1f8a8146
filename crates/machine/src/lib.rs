//! The form every farmem role has: a pure state machine.
//!
//! One call in, everything out, in order. A role owns no clock, socket, thread, lock or system randomness; time comes
//! in as [`Instant`], chance as a seeded [`Rng`], and what it wants done goes out through an [`Outbox`]. That is why the
//! same role runs in a simulated world with faults, inside one process, and over sockets between processes.
//!
//! This crate does not know what a frame holds, and does no input or output.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bucket;
mod halt;
mod outbox;
mod rng;
mod run;
mod time;
mod timers;

pub use bucket::{Bucket, Rate};
pub use halt::Halt;
pub use outbox::{Action, FrameWriter, Outbox};
pub use rng::Rng;
pub use run::{Lender, Loan, NoLender, Run};
pub use time::{Duration, Instant};
pub use timers::{TimerKey, Timers};

/// An endpoint of the rack as a role sees it: a number that the control plane hands out, the same in every role.
///
/// The driver knows what stands behind a port: a socket address, a ring, a simulated link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port(pub u32);

impl Port {
    /// The control plane.
    pub const CONTROL: Self = Self(0);
    /// The switch.
    pub const SWITCH: Self = Self(1);

    /// A sender that no table of the driver knows. Its frames count only if keys and request ids say so.
    pub const UNKNOWN: Self = Self(u32::MAX);

    const INDEX_BASE: u32 = 0x0000_0800;
    const NODE_BASE: u32 = 0x0000_1000;
    const HOST_BASE: u32 = 0x0001_0000;

    /// The port of index switch `index` (PROTOCOL 16.1).
    ///
    /// # Panics
    /// When `index` is 0x800 or more, which no control plane hands out.
    #[must_use]
    pub const fn index(index: u16) -> Self {
        assert!(index < 0x800);
        Self(Self::INDEX_BASE + index as u32)
    }

    /// The port of memory node `node`.
    ///
    /// # Panics
    /// When `node` is 0xf000 or more, which no control plane hands out.
    #[must_use]
    pub const fn node(node: u16) -> Self {
        assert!(node < 0xf000);
        Self(Self::NODE_BASE + node as u32)
    }

    /// True when [`Port::node`] takes the number.
    #[must_use]
    pub const fn is_node(node: u16) -> bool {
        node < 0xf000
    }

    /// The port of host `host`.
    #[must_use]
    pub const fn host(host: u16) -> Self {
        Self(Self::HOST_BASE + host as u32)
    }

    /// The number of the index switch, when this is one's port.
    #[must_use]
    pub const fn as_index(self) -> Option<u16> {
        match self.0.checked_sub(Self::INDEX_BASE) {
            #[expect(clippy::cast_possible_truncation, reason = "the guard bounds it by 0x800")]
            Some(n) if n < 0x800 => Some(n as u16),
            _ => None,
        }
    }

    /// True for the switches: the rack's, and those that hold parts of an index.
    #[must_use]
    pub const fn is_switch(self) -> bool {
        self.0 == Self::SWITCH.0 || self.as_index().is_some()
    }

    /// The node number, when this is a memory node's port.
    #[must_use]
    pub const fn as_node(self) -> Option<u16> {
        match self.0.checked_sub(Self::NODE_BASE) {
            #[expect(clippy::cast_possible_truncation, reason = "the guard bounds it by 0xf000")]
            Some(n) if n < 0xf000 => Some(n as u16),
            _ => None,
        }
    }

    /// The host number, when this is a host's port.
    #[must_use]
    pub const fn as_host(self) -> Option<u16> {
        match self.0.checked_sub(Self::HOST_BASE) {
            #[expect(clippy::cast_possible_truncation, reason = "the guard bounds it by 0xffff")]
            Some(n) if n <= 0xffff => Some(n as u16),
            _ => None,
        }
    }
}

/// What happens to a role.
#[derive(Debug)]
pub enum Event<'a, In> {
    /// A frame arrived: the bytes from the BTH to the end of the pad, ICRC already checked and removed by the driver.
    Frame {
        /// Where it came from, as the driver saw it (source address), not as the frame claims.
        port: Port,
        /// The frame; hostile until parsed.
        bytes: &'a [u8],
    },
    /// The time asked for by [`Machine::next_wake`] has come. Harmless when early or repeated.
    Wake,
    /// A request from the role's own user on this machine.
    Local(In),
}

/// A role: pure, deterministic, complete.
///
/// The same state and the same event give the same actions. No input makes it panic; a broken invariant of its own does.
pub trait Machine {
    /// Requests from the role's own user.
    type In;
    /// Answers to the role's own user.
    type Out;
    /// Trace line, metric and coverage mark in one: small, `Copy`, formatted by others.
    type Note: Copy + core::fmt::Debug;

    /// Takes one event and writes every consequence to `out`, in order.
    fn handle(&mut self, now: Instant, event: Event<'_, Self::In>, out: &mut Outbox<Self::Out, Self::Note>);

    /// Takes frames of one port that came in one receive, in the order in which they came: as so many [`Event::Frame`]. A role that does better with all of them at hand takes them so.
    fn handle_run(&mut self, now: Instant, run: &Run<'_>, out: &mut Outbox<Self::Out, Self::Note>) {
        for &bytes in run.frames {
            self.handle(now, Event::Frame { port: run.port, bytes }, out);
        }
    }

    /// When the role wants [`Event::Wake`] next, if ever. A driver may come later, not never.
    fn next_wake(&self) -> Option<Instant>;

    /// Why the role has stopped, once it has: it takes no event from then on, and its driver ends. Only what two senders with the control
    /// plane's keys say makes a role stop (PROTOCOL 5.11).
    fn halted(&self) -> Option<Halt> {
        None
    }

    /// Asserts every invariant; the simulator calls it after each step.
    ///
    /// # Panics
    /// When one is broken.
    fn check(&self);
}
