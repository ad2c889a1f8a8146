//! RoCEv2 over UDP sockets: the packets that a RoCE card would send, from user space.
//!
//! The socket is bound to one address, port 4791, and never connected. Only then does the kernel send a known
//! identification (0, don't-fragment), which the ICRC covers (RoCEv2, IBA A17; PROTOCOL 2.9). Answers go to
//! port 4791 of the peer's address, whatever the source port of the request.
//!
//! Consecutive packets of one size to one peer go to the kernel as one segmented send (UDP_SEGMENT,
//! identification `k` in the `k`-th segment). A receiver that enables UDP_GRO gets them as one buffer. On
//! loopback, with one CPU and 64 requests in flight, this yields 527,000 answers of 4 KiB per second, and
//! 142,000 without. A single packet takes the same time with and without.

mod inbound;
mod outbound;
mod sockaddr;
mod socket;
#[cfg(test)]
mod tests;

pub use socket::{BUFFER_BYTES, Buffers};

use crate::peers::Peers;
use crate::{
    Clock, EachRun, FRAME_MAX, Link, LinkCounters, OpenError, Parcel, Sleeper, Wait, Waiting, WakeAt, Waker,
    ip_of,
};
use farmem_machine::{Duration, Lender, Port, Run};
use farmem_wire::icrc::{self, Route};
use farmem_wire::{Gid, UDP_PORT, WireError, bth};
use inbound::{Datagram, Inbound};
use outbound::{Destination, Outbound};
use smallvec::SmallVec;
use sockaddr::SockAddr;
use socket::Socket;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Maximum number of packets of one segmented send in all kernels that support it.
const SEGMENTS_MAX: u16 = 64;
/// Number of polls of the socket before a polling link begins to yield the CPU after each poll.
const SPINS_BEFORE_YIELD: u32 = 512;

/// The settings of a UDP link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpConfig {
    /// The local address, which must not be a wildcard.
    pub gid: Gid,
    /// The way in which the link waits.
    pub waiting: Waiting,
    /// True to accept packets with an unpredictable IP identification, as Soft-RoCE sends them. The link
    /// solves the ICRC for the identification, so the remaining check has the strength of 16 bits (PROTOCOL
    /// 2.10).
    pub solve_unknown_ip_id: bool,
    /// True to accept packets from any UDP port. farmem's roles send from port 4791, which no other process
    /// of their machine can bind; RoCE cards and Soft-RoCE choose other ports. With such peers, any process
    /// at a peer's address may speak for the peer (PROTOCOL 1.6, 1.7).
    pub any_source_port: bool,
    /// Size in bytes of the kernel's buffer in each direction to request; the kernel may grant less
    /// ([`UdpLink::buffers`]).
    pub buffer_bytes: usize,
    /// True to send and receive consecutive packets as one.
    pub segmentation: bool,
}

impl UdpConfig {
    /// Creates default settings: blocking, with segmentation and buffers of [`BUFFER_BYTES`]. All peers are
    /// roles of farmem, with predictable identifications and port 4791.
    #[must_use]
    pub const fn new(gid: Gid) -> Self {
        Self {
            gid,
            waiting: Waiting::Block,
            solve_unknown_ip_id: false,
            any_source_port: false,
            buffer_bytes: BUFFER_BYTES,
            segmentation: true,
        }
    }
}

/// A UDP socket that speaks RoCEv2.
#[derive(Debug)]
pub struct UdpLink {
    socket: Arc<Socket>,
    gid: Gid,
    waiting: Waiting,
    must_solve: bool,
    any_source_port: bool,
    clock: Clock,
    /// True if another thread ran when this link last yielded.
    is_crowded: bool,
    peers: Peers<Destination>,
    /// The sender of the last packet, because most packets arrive in runs.
    last_source: (Gid, Port),
    outbound: Outbound,
    /// Received packets, shared with the link's sleeper, which locks them while it sleeps.
    inbound: Arc<Mutex<Inbound>>,
    counters: LinkCounters,
    /// Counters of frames that left in parcels.
    parcels: Arc<Mutex<LinkCounters>>,
}

impl UdpLink {
    /// Binds the socket.
    ///
    /// # Errors
    /// [`OpenError`] if the address is in use, is not an address of this machine, is not permitted, or is a
    /// wildcard.
    pub fn open(config: &UdpConfig) -> Result<Self, OpenError> {
        let socket = Arc::new(Socket::open(config.gid, config.buffer_bytes)?);
        let coalesces = config.segmentation && socket.coalesce();
        Ok(Self {
            socket,
            gid: config.gid,
            waiting: config.waiting,
            must_solve: config.solve_unknown_ip_id,
            any_source_port: config.any_source_port,
            clock: Clock::start(),
            is_crowded: false,
            peers: Peers::default(),
            last_source: (config.gid, Port::UNKNOWN),
            outbound: Outbound::new(config.segmentation),
            inbound: Arc::new(Mutex::new(Inbound::new(coalesces))),
            counters: LinkCounters::default(),
            parcels: Arc::default(),
        })
    }

    /// Returns the sizes of the socket buffers that the kernel granted.
    #[must_use]
    pub fn buffers(&self) -> Buffers {
        self.socket.buffers()
    }

    /// Returns the system's error for the last refused frame.
    #[must_use]
    pub const fn last_refusal(&self) -> Option<&io::Error> {
        self.outbound.last_refusal()
    }

    /// Receives the available packets with one system call; waits as `flags` and the socket's timeout
    /// specify.
    fn take(&mut self, flags: libc::c_int, each: &mut EachRun<'_>) -> io::Result<Received> {
        let Self { socket, inbound, gid, peers, last_source, must_solve, any_source_port, counters, .. } =
            self;
        let mut inbound = match inbound.try_lock() {
            Ok(inbound) => inbound,
            // The sleeper waits for packets, so none are available.
            Err(TryLockError::WouldBlock) => return Ok(Received::Nothing),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        let Some(datagrams) = inbound.receive(socket, flags)? else { return Ok(Received::Nothing) };
        let mut handed = 0;
        let mut was_woken = false;
        let mut row = RunBuilder::new(&*inbound);
        for place in 0..datagrams {
            let datagram = inbound.datagram(place);
            let Some((src, src_port)) = datagram.from.gid().zip(datagram.from.port()) else { continue };
            // The source port is irrelevant: another process's waker cannot have this address.
            if datagram.bytes.is_empty() && src == *gid {
                was_woken = true;
                continue;
            }
            if src_port != UDP_PORT && !*any_source_port {
                counters.foreign_port += datagram.packets().count().max(1) as u64;
                continue;
            }
            if src != last_source.0 {
                *last_source = (src, peers.port_at(src));
            }
            let port = last_source.1;
            let route = Route { src, dst: *gid, src_port, ip_id: 0 };
            handed += sort(&datagram, route, *must_solve, counters, &mut |frame| row.add(port, frame, each));
            counters.unknown_source += u64::from(port == Port::UNKNOWN);
        }
        row.hand_over(each);
        Ok(if handed == 0 && !was_woken { Received::Rubbish } else { Received::Frames(handed) })
    }

    /// Waits for a packet, then receives the available packets.
    fn wait_precisely(&mut self, most: Duration, each: &mut EachRun<'_>) -> io::Result<Received> {
        let taken = self.take(libc::MSG_DONTWAIT, each)?;
        if !matches!(taken, Received::Nothing) {
            return Ok(taken);
        }
        self.socket.await_packet(most)?;
        self.take(libc::MSG_DONTWAIT, each)
    }

    fn spin(&mut self, most: Duration, each: &mut EachRun<'_>) -> io::Result<usize> {
        let until = self.clock.after(most);
        for spins in 0_u32.. {
            if let Received::Frames(handed) = self.take(libc::MSG_DONTWAIT, each)? {
                return Ok(handed);
            }
            if self.clock.now() >= until {
                break;
            }
            if self.is_crowded || spins > SPINS_BEFORE_YIELD {
                self.is_crowded = Waiting::yields(&self.clock);
            }
        }
        Ok(0)
    }
}

/// Returns the path from the local address to another one.
fn destination(src: Gid, dst: Gid) -> Destination {
    let route = Route { src, dst, src_port: UDP_PORT, ip_id: 0 };
    Destination { address: SockAddr::new(dst, UDP_PORT), route }
}

/// Queues a frame. If the batch is full, it is sent first.
fn push(
    destination: &Destination,
    frame: &[u8],
    outbound: &mut Outbound,
    socket: &Socket,
    counters: &mut LinkCounters,
) {
    if frame.len() < bth::LEN {
        counters.short += 1;
        return;
    }
    if frame.len() > FRAME_MAX {
        counters.long += 1;
        return;
    }
    if !outbound.push(destination, frame) {
        outbound.flush(socket, counters);
        let is_in = outbound.push(destination, frame);
        assert!(is_in, "an empty batch takes a frame");
    }
}

/// Locks a mutex, even a poisoned one: a panic leaves none of these values inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of one receive call.
enum Received {
    /// No packet was available.
    Nothing,
    /// All packets were invalid.
    Rubbish,
    /// The number of valid frames; 0 for a wake-up.
    Frames(usize),
}

/// Maximum number of frames of one run: those of four READ answers of 64 KiB.
const RUN_MAX: usize = 64;

/// A run under construction, from the packets of one system call.
struct RunBuilder<'a> {
    port: Port,
    /// Frames of the run. The capacity is inline and never exceeded, because initializing an array for each
    /// system call would cost time.
    frames: SmallVec<[&'a [u8]; RUN_MAX]>,
    lender: &'a dyn Lender,
}

impl<'a> RunBuilder<'a> {
    fn new(lender: &'a dyn Lender) -> Self {
        Self { port: Port::UNKNOWN, frames: SmallVec::new(), lender }
    }

    fn add(&mut self, port: Port, frame: &'a [u8], each: &mut EachRun<'_>) {
        if self.frames.len() == RUN_MAX || self.port != port {
            self.hand_over(each);
        }
        self.port = port;
        self.frames.push(frame);
    }

    fn hand_over(&mut self, each: &mut EachRun<'_>) {
        if !self.frames.is_empty() {
            each(&Run { port: self.port, frames: &self.frames, lender: self.lender });
            self.frames.clear();
        }
    }
}

/// Checks the packets of one buffer from the kernel, and passes on the valid ones.
fn sort<'a>(
    datagram: &Datagram<'a>,
    route: Route,
    must_solve: bool,
    counters: &mut LinkCounters,
    each: &mut dyn FnMut(&'a [u8]),
) -> usize {
    let mut handed = 0;
    for (ip_id, packet) in (0..).zip(datagram.packets()) {
        match check(&Route { ip_id, ..route }, packet, must_solve) {
            _ if datagram.is_cut || packet.len() > FRAME_MAX + icrc::LEN => counters.long += 1,
            Ok(frame) => {
                counters.frames_in += 1;
                counters.bytes_in += frame.len() as u64;
                each(frame);
                handed += 1;
            }
            Err(WireError::Short { .. }) => counters.short += 1,
            Err(_) => counters.bad_icrc += 1,
        }
    }
    handed
}

/// Returns the frame in a packet with a correct ICRC. A socket does not see the identification. The function
/// first tries the position in a coalesced buffer, then the positions in a segmented send. All other values
/// are tried only if `must_solve`.
fn check<'a>(route: &Route, packet: &'a [u8], must_solve: bool) -> Result<&'a [u8], WireError> {
    let (frame, ip_id) = icrc::check_any_id(route, packet)?;
    if must_solve || ip_id < SEGMENTS_MAX { Ok(frame) } else { Err(WireError::Icrc) }
}

/// A batch for the kernel, with its socket and counters.
#[derive(Default, Debug)]
pub struct UdpParcel(Option<(Outbound, Arc<Socket>, Arc<Mutex<LinkCounters>>)>);

impl Parcel for UdpParcel {
    fn hand_over(&mut self) {
        if let Some((outbound, socket, counters)) = &mut self.0
            && !outbound.is_empty()
        {
            let mut counted = LinkCounters::default();
            outbound.flush(socket, &mut counted);
            lock(counters).add(counted);
        }
    }
}

impl Link for UdpLink {
    type Parcel = UdpParcel;

    fn set_peer(&mut self, port: Port, gid: Option<Gid>) -> io::Result<()> {
        match gid {
            Some(gid) if gid.as_v4().is_some() != self.gid.as_v4().is_some() => {
                let text = format!("{:?} cannot reach {gid:?}: one is IPv4, the other IPv6", self.gid);
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
            Some(gid) => self.peers.set(port, gid, destination(self.gid, gid)),
            None => self.peers.forget(port),
        }
        self.last_source = (self.gid, self.peers.port_at(self.gid));
        Ok(())
    }

    fn send(&mut self, port: Port, frame: &[u8]) {
        let Self { peers, outbound, socket, counters, .. } = self;
        match peers.get(port) {
            Some(destination) => push(destination, frame, outbound, socket, counters),
            None => counters.no_address += 1,
        }
    }

    fn send_to(&mut self, gid: Gid, frame: &[u8]) {
        if gid.as_v4().is_some() == self.gid.as_v4().is_some() {
            let to = destination(self.gid, gid);
            let Self { outbound, socket, counters, .. } = self;
            push(&to, frame, outbound, socket, counters);
        } else {
            self.counters.no_address += 1;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.outbound.flush(&self.socket, &mut self.counters);
        Ok(())
    }

    fn flush_into(&mut self, parcel: &mut UdpParcel) {
        parcel.hand_over();
        let (outbound, ..) = parcel.0.get_or_insert_with(|| {
            let outbound = Outbound::new(self.outbound.segments());
            (outbound, Arc::clone(&self.socket), Arc::clone(&self.parcels))
        });
        std::mem::swap(outbound, &mut self.outbound);
    }

    fn receive(&mut self, wait: Wait, each: &mut dyn FnMut(Port, &[u8])) -> io::Result<usize> {
        self.receive_runs(wait, &mut |run| run.frames.iter().for_each(|frame| each(run.port, frame)))
    }

    fn receive_runs(&mut self, wait: Wait, each: &mut EachRun<'_>) -> io::Result<usize> {
        let taken = match wait {
            Wait::AtMost(most) if most > Duration::ZERO => match self.waiting {
                Waiting::Spin => return self.spin(most, each),
                Waiting::Block => {
                    self.socket.set_patience(most)?;
                    self.take(libc::MSG_WAITFORONE, each)?
                }
                Waiting::Precise => self.wait_precisely(most, each)?,
            },
            _ => self.take(libc::MSG_DONTWAIT, each)?,
        };
        Ok(if let Received::Frames(handed) = taken { handed } else { 0 })
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.counters;
        counters.add(*lock(&self.parcels));
        counters
    }

    /// Creates a waker that sends an empty datagram from the socket to itself.
    fn waker(&self) -> io::Result<Waker> {
        let socket = Arc::clone(&self.socket);
        let to_self = SockAddr::new(self.gid, UDP_PORT);
        Ok(Waker::new(move || socket.send_empty(&to_self)))
    }

    fn wake_at(&self) -> WakeAt {
        WakeAt::Datagram { address: ip_of(self.gid) }
    }

    /// Creates a sleeper that receives the datagrams which end its sleep, so that the next receive needs no
    /// system call.
    fn sleeper(&self) -> io::Result<Sleeper> {
        let (socket, inbound, waiting) = (Arc::clone(&self.socket), Arc::clone(&self.inbound), self.waiting);
        Ok(Sleeper::new(move |most| match waiting {
            Waiting::Block => {
                socket.set_patience(most)?;
                lock(&inbound).keep(&socket, libc::MSG_WAITFORONE)
            }
            Waiting::Precise => {
                // Datagrams that were already received must not wait for the next one.
                let mut inbound = lock(&inbound);
                if !inbound.is_kept() {
                    socket.await_packet(most)?;
                }
                inbound.keep(&socket, libc::MSG_DONTWAIT)
            }
            Waiting::Spin => {
                std::thread::yield_now();
                Ok(())
            }
        }))
    }

    fn may_sleep(&mut self) -> bool {
        !lock(&self.inbound).is_kept()
    }
}
