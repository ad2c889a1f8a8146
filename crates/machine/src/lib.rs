//! The common form of farmem's roles: a pure state machine.
//!
//! One call takes an event and returns all its effects, in order. A role owns no clock, socket, thread, lock
//! or system randomness. Time comes in as [`Instant`], randomness as a seeded [`Rng`], and effects go out
//! through an [`Outbox`]. So the same role runs in a simulated world with faults, inside one process, and
//! over sockets between processes.
//!
//! This crate does not interpret frames and does no input or output.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod backoff;
mod bucket;
mod halt;
mod outbox;
mod rng;
mod run;
mod time;

pub use backoff::Backoff;
pub use bucket::{Bucket, Rate};
pub use halt::Halt;
pub use outbox::{Action, FrameWriter, Outbox};
pub use rng::Rng;
pub use run::{Lender, Loan, NoLender, Run};
pub use time::{Duration, Instant};

/// An endpoint of the rack from a role's view: a number that the control plane assigns, the same in every
/// role.
///
/// The driver maps a port to a socket address, a ring or a simulated link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port(pub u32);

impl Port {
    /// The control plane.
    pub const CONTROL: Self = Self(0);
    /// The switch.
    pub const SWITCH: Self = Self(1);

    /// A sender that is not in the driver's tables. Its frames count only by their keys and request ids.
    pub const UNKNOWN: Self = Self(u32::MAX);

    const INDEX_BASE: u32 = 0x0000_0800;
    const NODE_BASE: u32 = 0x0000_1000;
    const HOST_BASE: u32 = 0x0001_0000;

    /// Returns the port of index switch `index` (PROTOCOL 16.1).
    ///
    /// # Panics
    /// If `index` is 0x800 or more, which the control plane never assigns.
    #[must_use]
    pub const fn index(index: u16) -> Self {
        assert!(index < 0x800);
        Self(Self::INDEX_BASE + index as u32)
    }

    /// Returns the port of memory node `node`.
    ///
    /// # Panics
    /// If `node` is 0xf000 or more, which the control plane never assigns.
    #[must_use]
    pub const fn node(node: u16) -> Self {
        assert!(node < 0xf000);
        Self(Self::NODE_BASE + node as u32)
    }

    /// Returns true if [`Port::node`] accepts the number.
    #[must_use]
    pub const fn is_node(node: u16) -> bool {
        node < 0xf000
    }

    /// Returns the port of host `host`.
    #[must_use]
    pub const fn host(host: u16) -> Self {
        Self(Self::HOST_BASE + host as u32)
    }

    /// Returns the index switch's number, if this is the port of one.
    #[must_use]
    pub const fn as_index(self) -> Option<u16> {
        match self.0.checked_sub(Self::INDEX_BASE) {
            #[expect(clippy::cast_possible_truncation, reason = "the guard bounds it by 0x800")]
            Some(n) if n < 0x800 => Some(n as u16),
            _ => None,
        }
    }

    /// Returns true for switches: the rack's, and index switches.
    #[must_use]
    pub const fn is_switch(self) -> bool {
        self.0 == Self::SWITCH.0 || self.as_index().is_some()
    }

    /// Returns the node number, if this is a memory node's port.
    #[must_use]
    pub const fn as_node(self) -> Option<u16> {
        match self.0.checked_sub(Self::NODE_BASE) {
            #[expect(clippy::cast_possible_truncation, reason = "the guard bounds it by 0xf000")]
            Some(n) if n < 0xf000 => Some(n as u16),
            _ => None,
        }
    }

    /// Returns the host number, if this is a host's port.
    #[must_use]
    pub const fn as_host(self) -> Option<u16> {
        match self.0.checked_sub(Self::HOST_BASE) {
            #[expect(clippy::cast_possible_truncation, reason = "the guard bounds it by 0xffff")]
            Some(n) if n <= 0xffff => Some(n as u16),
            _ => None,
        }
    }
}

/// An input of a role.
#[derive(Debug)]
pub enum Event<'a, In> {
    /// A frame arrived: the bytes from the BTH to the end of the pad, ICRC already checked and removed by the driver.
    Frame {
        /// The sender according to the driver (source address), not according to the frame.
        port: Port,
        /// The frame, untrusted until parsed.
        bytes: &'a [u8],
    },
    /// The time of [`Machine::next_wake`] has come. An early or repeated wake has no effect.
    Wake,
    /// A request from the role's own user on this machine.
    Local(In),
}

/// A role: pure, deterministic, complete.
///
/// Equal states and equal events give equal actions. No input makes a role panic; a broken invariant of its
/// own does.
pub trait Machine {
    /// Requests from the role's own user.
    type In;
    /// Answers to the role's own user.
    type Out;
    /// Trace line, metric and coverage mark in one: small, `Copy`, formatted by the driver.
    type Note: Copy + core::fmt::Debug;

    /// Handles one event and appends every effect to `out`, in order.
    fn handle(&mut self, now: Instant, event: Event<'_, Self::In>, out: &mut Outbox<Self::Out, Self::Note>);

    /// Handles frames of one port that arrived in one receive, in order, as one [`Event::Frame`] each. A role
    /// may override this to handle them together.
    fn handle_run(&mut self, now: Instant, run: &Run<'_>, out: &mut Outbox<Self::Out, Self::Note>) {
        for &bytes in run.frames {
            self.handle(now, Event::Frame { port: run.port, bytes }, out);
        }
    }

    /// Returns the time of the next [`Event::Wake`], if any. A driver may be late, but must wake.
    fn next_wake(&self) -> Option<Instant>;

    /// Returns the reason why the role has stopped, if it has: it then handles no event, and its driver ends.
    /// Only contradicting updates with the control plane's keys stop a role (PROTOCOL 5.11).
    fn halted(&self) -> Option<Halt> {
        None
    }

    /// Asserts every invariant; the simulator calls it after each step.
    ///
    /// # Panics
    /// If an invariant is broken.
    fn check(&self);
}
