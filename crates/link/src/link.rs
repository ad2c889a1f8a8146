//! The link trait: the interface between a role's driver and UDP sockets or shared-memory rings, which carry
//! its frames.

use crate::{Clock, LinkProfile};
use farmem_machine::{Duration, Port, Run};
use farmem_wire::Gid;
use farmem_wire::message::PageMessage;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Length in bytes of the longest frame that a link carries, without ICRC: a whole page and the headers
/// before it (PROTOCOL 12.39). With IP, UDP and ICRC the frame needs an Ethernet MTU of 4200.
pub const FRAME_MAX: usize = PageMessage::FRAME_LEN_MAX;

/// A carrier of frames between ports. Implementers: `UdpLink` and `ShmLink`, and `PacedLink` around either.
///
/// Like a network, a link may lose frames (a full ring or socket buffer, a peer that is gone), and counts
/// losses. A link adds the ICRC to outgoing frames, and delivers only frames with a correct ICRC.
pub trait Link {
    /// A batch of queued frames, taken out of the link.
    type Parcel: Parcel;

    /// Sets the address of `port`; `None` removes it. A port that moves loses its old address.
    ///
    /// # Errors
    /// An error if this link cannot reach the address: the wrong family, or a ring that cannot be opened.
    fn set_peer(&mut self, port: Port, gid: Option<Gid>) -> io::Result<()>;

    /// Queues a frame (BTH to pad). The frame leaves with the next [`Link::flush`], or earlier if the batch
    /// is full.
    ///
    /// A frame to a port without an address, or longer than [`FRAME_MAX`], is counted and dropped.
    fn send(&mut self, port: Port, frame: &[u8]);

    /// Queues a frame for an address that no port has, as [`Link::send`] does. Only a network has such
    /// addresses: rings drop the frame and count it.
    fn send_to(&mut self, gid: Gid, frame: &[u8]);

    /// Sends the queued frames. A frame that the system refuses counts as lost, and is no error.
    ///
    /// # Errors
    /// An error if the link itself no longer works.
    fn flush(&mut self) -> io::Result<()>;

    /// Moves queued frames into `parcel`; frames that it still contains are sent first. Receivers may wake at
    /// once on the caller's CPU and preempt the caller. So the caller should hold no lock.
    fn flush_into(&mut self, parcel: &mut Self::Parcel);

    /// Passes each received frame, up to a batch, to `each`. If none has arrived, waits as `wait` specifies.
    /// Returns the number of frames; 0 after a timeout or a [`Waker`]'s call.
    ///
    /// # Errors
    /// An error if the link itself no longer works. Invalid packets are counted, and are no errors.
    fn receive(&mut self, wait: Wait, each: &mut dyn FnMut(Port, &[u8])) -> io::Result<usize>;

    /// Receives frames as [`Link::receive`] does, but passes consecutive frames of one port together, with
    /// the lender of their memory if there is one.
    ///
    /// # Errors
    /// The errors of [`Link::receive`].
    fn receive_runs(&mut self, wait: Wait, each: &mut EachRun<'_>) -> io::Result<usize> {
        self.receive(wait, &mut |port, bytes| each(&Run::new(port, &[bytes])))
    }

    /// Returns traffic and losses since the link was opened.
    fn counters(&self) -> LinkCounters;

    /// Creates a waker, which ends a wait in [`Link::receive`] from another thread.
    ///
    /// # Errors
    /// The system's error if it has no free file descriptors.
    fn waker(&self) -> io::Result<Waker>;

    /// Returns the address at which an [`OutsideWaker`](crate::OutsideWaker) in another process of this machine
    /// and user ends a wait in [`Link::receive`].
    fn wake_at(&self) -> WakeAt;

    /// Creates a sleeper, which lets several threads wait for frames in turn. While one thread sleeps, other
    /// threads call [`Link::receive`] only with [`Wait::No`].
    ///
    /// # Errors
    /// The system's error if it has no free file descriptors.
    fn sleeper(&self) -> io::Result<Sleeper>;

    /// Returns true if frames have arrived, without a system call. Frames that arrive afterwards end no sleep
    /// until [`Link::may_sleep`] is called. `None` if only the sleeper can tell.
    fn glance(&mut self) -> Option<bool> {
        None
    }

    /// Returns true if nothing has arrived. A later frame or [`Waker`] then ends the next [`Sleeper::sleep`]
    /// or prevents it.
    fn may_sleep(&mut self) -> bool;

    /// Returns the time after which the link must be flushed or polled even if nothing arrives; `None` if it
    /// holds back no frame. [`Link::receive`] does not wait longer, and the caller of a [`Sleeper`] must not.
    fn next_wake(&self) -> Option<Duration> {
        None
    }

    /// Returns the profile of the network that the link imitates.
    fn profile(&self) -> LinkProfile {
        LinkProfile::NONE
    }
}

/// A consumer of one or more consecutive frames of one port.
pub type EachRun<'a> = dyn FnMut(&Run<'_>) + 'a;

/// Outgoing frames of a [`Link`], which are sent without it.
pub trait Parcel: Default + Send {
    /// Sends the frames, as [`Link::flush`] would have done; the link counts them.
    fn hand_over(&mut self);
}

/// The time that [`Link::receive`] waits if nothing has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// No time.
    No,
    /// At most this time plus a few milliseconds, because the system's timers are coarse; possibly less.
    AtMost(Duration),
}

/// The way in which a link waits, chosen when it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Waiting {
    /// Sleeps in the kernel; suitable whenever there are more threads than CPUs.
    #[default]
    Block,
    /// Sleeps as [`Waiting::Block`] does, with the system's finest timers, for a link that holds frames back.
    /// Over UDP a wait takes two system calls.
    Precise,
    /// Polls, and yields the CPU from time to time: lowest latency, one CPU per link.
    Spin,
}

/// Minimum duration of a yield that let another thread run, in nanoseconds.
const YIELD_NS: u64 = 1_000;

impl Waiting {
    /// Yields the CPU to other threads; returns true if one ran. A thread that polls beside another thread
    /// calls this function after each poll, because it may wait for that thread's work.
    pub fn yields(clock: &Clock) -> bool {
        let before = clock.now();
        std::thread::yield_now();
        clock.now().since(before).as_nanos() >= YIELD_NS
    }
}

/// Traffic and losses of a link since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkCounters {
    /// Frames passed to the role.
    pub frames_in: u64,
    /// Bytes of these frames, without ICRC.
    pub bytes_in: u64,
    /// Frames passed to the kernel or written to a ring.
    pub frames_out: u64,
    /// Bytes of these frames, without ICRC.
    pub bytes_out: u64,
    /// Delivered frames whose sender is not a known port.
    pub unknown_source: u64,
    /// Received frames dropped because their source port is not that of farmem's roles (PROTOCOL 1.6).
    pub foreign_port: u64,
    /// Received frames dropped because of a wrong ICRC.
    pub bad_icrc: u64,
    /// Received frames dropped because they are too short.
    pub short: u64,
    /// Frames dropped in either direction because they are longer than [`FRAME_MAX`], or than the path
    /// carries.
    pub long: u64,
    /// Outgoing frames dropped because the port has no address.
    pub no_address: u64,
    /// Outgoing frames dropped because the receiver is too slow (ring or socket buffer full).
    pub full: u64,
    /// Outgoing frames dropped because the system refused them for another reason.
    pub send_refused: u64,
    /// Outgoing frames dropped to imitate the loss of the link's profile.
    pub lost_by_profile: u64,
    /// Frames delayed by the link's profile, and then sent.
    pub paced: u64,
    /// Total extra delay of these frames beyond the profile, in nanoseconds.
    pub late_ns: u64,
    /// Rings closed because the other end wrote invalid data.
    pub broken_rings: u64,
}

impl LinkCounters {
    /// Adds the counters of another part of the same link.
    pub(crate) const fn add(&mut self, more: Self) {
        let Self {
            frames_in,
            bytes_in,
            frames_out,
            bytes_out,
            unknown_source,
            foreign_port,
            bad_icrc,
            short,
            long,
            no_address,
            full,
            send_refused,
            lost_by_profile,
            paced,
            late_ns,
            broken_rings,
        } = more;
        self.frames_in += frames_in;
        self.bytes_in += bytes_in;
        self.frames_out += frames_out;
        self.bytes_out += bytes_out;
        self.unknown_source += unknown_source;
        self.foreign_port += foreign_port;
        self.bad_icrc += bad_icrc;
        self.short += short;
        self.long += long;
        self.no_address += no_address;
        self.full += full;
        self.send_refused += send_refused;
        self.lost_by_profile += lost_by_profile;
        self.paced += paced;
        self.late_ns = self.late_ns.saturating_add(late_ns);
        self.broken_rings += broken_rings;
    }

    /// Returns the number of frames lost in either direction, as far as this end knows.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.bad_icrc
            + self.short
            + self.long
            + self.no_address
            + self.full
            + self.send_refused
            + self.lost_by_profile
    }
}

/// A waker, which ends the wait of one link from any thread. A call while no thread waits ends the next wait
/// at once.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// Creates a waker that calls `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// Ends the wait.
    pub fn wake(&self) {
        (self.0)();
    }
}

/// The address at which processes of the same machine and user end the wait of a link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WakeAt {
    /// The link's address, for an empty datagram from the same address.
    Datagram {
        /// The address.
        address: IpAddr,
    },
    /// The link's doorbell.
    Doorbell {
        /// Path of its file.
        path: PathBuf,
    },
}

/// A wait for the frames of one link. After each sleep, the caller calls [`Link::receive`].
pub struct Sleeper(Box<dyn FnMut(Duration) -> io::Result<()> + Send>);

impl Sleeper {
    /// Creates a sleeper that calls `sleep`.
    pub(crate) fn new(sleep: impl FnMut(Duration) -> io::Result<()> + Send + 'static) -> Self {
        Self(Box::new(sleep))
    }

    /// Sleeps until a frame arrives or a [`Waker`] calls, at most for `most` and a few milliseconds, possibly
    /// less. The caller calls [`Link::may_sleep`] before. The sleeper of a link that polls
    /// ([`Waiting::Spin`]) returns at once.
    ///
    /// # Errors
    /// An error if the link itself no longer works.
    pub fn sleep(&mut self, most: Duration) -> io::Result<()> {
        (self.0)(most)
    }
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sleeper")
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}
