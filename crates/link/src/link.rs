//! The link trait: the seam between a role's driver and UDP sockets or shared-memory rings, which carry its frames.

use crate::{Clock, LinkProfile, OpenError};
use farmem_machine::{Duration, Port, Run};
use farmem_wire::message::PageMessage;
use farmem_wire::{Gid, UDP_PORT};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of the longest frame a link carries, without its ICRC: a whole page and the headers before it (PROTOCOL 12.39). With IP,
/// UDP and ICRC that is an Ethernet of 4200.
pub const FRAME_MAX: usize = PageMessage::FRAME_LEN_MAX;

/// A way for frames to go between ports. Implementers: `UdpLink` and `ShmLink`, and `PacedLink` around either.
///
/// A link is like the network it stands for: it may lose frames (a full ring or socket buffer, a peer that is gone), and
/// counts what it loses. It seals the ICRC on the way out, and hands over only frames whose ICRC was right.
pub trait Link {
    /// A batch of queued frames, taken out of the link.
    type Parcel: Parcel;

    /// Says where `port` is, or with `None` that it left. A port that moves is forgotten at its old address.
    ///
    /// # Errors
    /// When the address cannot be reached over this link: the wrong family, or a ring that cannot be opened.
    fn set_peer(&mut self, port: Port, gid: Option<Gid>) -> io::Result<()>;

    /// Queues a frame (BTH to pad). It leaves with the next [`Link::flush`], or before when the batch is full.
    ///
    /// A frame to a port without an address, or longer than [`FRAME_MAX`], is counted and dropped.
    fn send(&mut self, port: Port, frame: &[u8]);

    /// Queues a frame for an address that no port has, as [`Link::send`] does. Only a network has such
    /// addresses: rings drop the frame and count it.
    fn send_to(&mut self, gid: Gid, frame: &[u8]);

    /// Hands over what is queued. A frame that the system refuses is counted as lost; that is no error.
    ///
    /// # Errors
    /// When the link itself no longer works.
    fn flush(&mut self) -> io::Result<()>;

    /// Moves queued frames into `parcel`, which is handed over first if it was not. The receiver wakes at once on the caller's CPU,
    /// and so the caller may not go on for a while. Callers should hold nothing then that others wait for.
    fn flush_into(&mut self, parcel: &mut Self::Parcel);

    /// Hands every frame that has arrived, up to a batch, to `each`, and answers how many. When there is none it waits as `wait`
    /// says; 0 means that nothing came in that time, or a [`Waker`] called.
    ///
    /// # Errors
    /// When the link itself no longer works. Bad packets are counted, not errors.
    fn receive(&mut self, wait: Wait, each: &mut dyn FnMut(Port, &[u8])) -> io::Result<usize>;

    /// As [`Link::receive`], but hands over consecutive frames of one port together, with the lender of their memory where there is one.
    ///
    /// # Errors
    /// As [`Link::receive`].
    fn receive_runs(&mut self, wait: Wait, each: &mut EachRun<'_>) -> io::Result<usize> {
        self.receive(wait, &mut |port, bytes| each(&Run::new(port, &[bytes])))
    }

    /// Traffic and losses since the link was opened.
    fn counters(&self) -> LinkCounters;

    /// Something that ends a wait in [`Link::receive`] from another thread.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    fn waker(&self) -> io::Result<Waker>;

    /// Where another process of this machine and user ends a wait in [`Link::receive`], by an [`OutsideWaker`].
    fn wake_at(&self) -> WakeAt;

    /// Something that waits for frames beside the link, so that several threads may use it by turns. One at a time sleeps; meanwhile no thread
    /// calls [`Link::receive`] but with [`Wait::No`].
    ///
    /// # Errors
    /// When the system has no more descriptors.
    fn sleeper(&self) -> io::Result<Sleeper>;

    /// Says whether something has arrived, without a call of the system; frames that come from here on end no sleep until [`Link::may_sleep`]
    /// is asked. `None` where only the sleeper can tell.
    fn glance(&mut self) -> Option<bool> {
        None
    }

    /// True when nothing has arrived: then a frame or a [`Waker`] that comes from here on ends the next [`Sleeper::sleep`], or keeps it from
    /// beginning.
    fn may_sleep(&mut self) -> bool;

    /// The time after which the link is to be flushed, or asked to receive, even when nothing arrives; `None` when it holds no frame back.
    /// [`Link::receive`] does not wait beyond it; the caller of a [`Sleeper`] must not.
    fn next_wake(&self) -> Option<Duration> {
        None
    }

    /// The network that it stands for.
    fn profile(&self) -> LinkProfile {
        LinkProfile::NONE
    }
}

/// A consumer of one or more consecutive frames of one port.
pub type EachRun<'a> = dyn FnMut(&Run<'_>) + 'a;

/// Frames on their way out of a [`Link`], to be handed over without it.
pub trait Parcel: Default + Send {
    /// Hands them over, as [`Link::flush`] would have; the link counts them.
    fn hand_over(&mut self);
}

/// How long [`Link::receive`] waits when nothing has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Not at all.
    No,
    /// So long, and up to a few milliseconds more: the system's timers are coarse. It may also be less.
    AtMost(Duration),
}

/// How a link waits; chosen when it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Waiting {
    /// Sleeps in the kernel. Right whenever there are more threads than CPUs.
    #[default]
    Block,
    /// As [`Waiting::Block`], and wakes by the system's finest timers: for a link that holds frames back. Over UDP a wait is two system calls.
    Precise,
    /// Looks again and again, and yields the CPU from time to time. The lowest latency, and one CPU burnt per link.
    Spin,
}

/// A yield that takes longer let another thread run, in nanoseconds.
const YIELD_NS: u64 = 1_000;

impl Waiting {
    /// Lets other threads of this CPU run; true when one did. A thread that spins beside another one does so after each look: what it waits for may be
    /// the other's to do.
    pub fn yields(clock: &Clock) -> bool {
        let before = clock.now();
        std::thread::yield_now();
        clock.now().since(before).as_nanos() >= YIELD_NS
    }
}

/// Traffic and losses of a link since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkCounters {
    /// Frames handed to the role.
    pub frames_in: u64,
    /// Their bytes, ICRC not counted.
    pub bytes_in: u64,
    /// Frames given to the kernel or put into a ring.
    pub frames_out: u64,
    /// Their bytes, ICRC not counted.
    pub bytes_out: u64,
    /// Frames handed over whose sender is no known port.
    pub unknown_source: u64,
    /// Received and dropped: from another source port than the one that farmem's roles send from (PROTOCOL 1.6).
    pub foreign_port: u64,
    /// Received and dropped: the ICRC did not match.
    pub bad_icrc: u64,
    /// Received and dropped: too short to be a frame.
    pub short: u64,
    /// Received or to be sent, and dropped: longer than [`FRAME_MAX`], or than the path carries.
    pub long: u64,
    /// To be sent, and dropped: the port has no address.
    pub no_address: u64,
    /// To be sent, and dropped: the receiver does not keep up (ring or socket buffer full).
    pub full: u64,
    /// To be sent, and dropped: the system refused, for another reason.
    pub send_refused: u64,
    /// To be sent, and dropped: the link's profile wants so many lost.
    pub lost_by_profile: u64,
    /// Held back as the link's profile wants, and then sent.
    pub paced: u64,
    /// By how many nanoseconds they were later than it wants, all together.
    pub late_ns: u64,
    /// Rings closed because what their other end wrote made no sense.
    pub broken_rings: u64,
}

impl LinkCounters {
    /// Adds what another part of the same link counted.
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

    /// Frames lost in either direction, as far as this end knows.
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

/// Ends the wait of one link from any thread. A call while no thread waits ends the next wait at once.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// A waker that does `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// Ends the wait.
    pub fn wake(&self) {
        (self.0)();
    }
}

/// Where processes of the same machine and user end the wait of a link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WakeAt {
    /// An empty datagram to the link's address, from the same address.
    Datagram {
        /// The address.
        address: IpAddr,
    },
    /// The link's doorbell.
    Doorbell {
        /// Its file.
        path: PathBuf,
    },
}

/// Ends the wait of a link of another process, as [`Waker`] does within one.
pub struct OutsideWaker(Box<dyn Fn() + Send + Sync>);

impl OutsideWaker {
    /// A waker of the link that is woken there.
    ///
    /// # Errors
    /// [`OpenError`] when the address is not this machine's, or the file no doorbell.
    pub fn open(at: &WakeAt) -> Result<Self, OpenError> {
        Ok(Self(match at {
            WakeAt::Datagram { address } => {
                let socket = UdpSocket::bind((*address, 0))
                    .map_err(OpenError::system(format!("send from {address}")))?;
                let to = (*address, UDP_PORT);
                // A socket that takes no more has woken it, or the receiver wakes by itself after a while.
                Box::new(move || drop(socket.send_to(&[], to)))
            }
            WakeAt::Doorbell { path } => Box::new(crate::shm::bell_at(path)?),
        }))
    }

    /// Ends the wait.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for OutsideWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OutsideWaker")
    }
}

/// Waits for the frames of one link. When it returns, [`Link::receive`] is to be asked.
pub struct Sleeper(Box<dyn FnMut(Duration) -> io::Result<()> + Send>);

impl Sleeper {
    /// A sleeper that does `sleep`.
    pub(crate) fn new(sleep: impl FnMut(Duration) -> io::Result<()> + Send + 'static) -> Self {
        Self(Box::new(sleep))
    }

    /// Sleeps until a frame arrives or a [`Waker`] calls, for `most` and a few milliseconds at the longest; or less. Only after
    /// [`Link::may_sleep`] said so. That of a link that spins ([`Waiting::Spin`]) returns at once.
    ///
    /// # Errors
    /// When the link itself no longer works.
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
