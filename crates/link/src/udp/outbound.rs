//! Packets to the kernel, in one arena, with one system call per batch.

use super::SEGMENTS_MAX;
use super::sockaddr::SockAddr;
use super::socket::Socket;
use crate::LinkCounters;
use farmem_wire::icrc::{self, Route};
use std::io;
use std::mem;
use std::ops::Range;
use std::ptr;

/// Maximum number of packets of one batch.
const BATCH_PACKETS: usize = 64;
/// Maximum number of bytes of one batch: four of the longest segmented sends.
const BATCH_BYTES: usize = 256 << 10;
/// Maximum number of bytes of one segmented send: an IPv4 packet without its headers, rounded down.
const RUN_BYTES_MAX: usize = 65_000;

/// The location of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destination {
    pub(super) address: SockAddr,
    /// The route, with identification 0.
    pub(super) route: Route,
}

/// Consecutive packets to one peer, all as long as the first except for a shorter last one.
#[derive(Debug)]
struct Run {
    address: SockAddr,
    range: Range<usize>,
    packet_len: usize,
    packets: u16,
    /// True if a shorter packet ended the run.
    is_closed: bool,
}

/// The control message of a segmented send, aligned as the kernel requires.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
struct Control([u8; CONTROL_LEN]);

/// `CMSG_SPACE(sizeof(u16))`.
const CONTROL_LEN: usize = 24;

/// The batch.
pub(super) struct Outbound {
    arena: Vec<u8>,
    runs: Vec<Run>,
    packets: usize,
    segments: bool,
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    controls: Vec<Control>,
    last_refusal: Option<io::Error>,
}

// SAFETY: each flush rewrites the pointers in `headers` and `pieces`, and they are not used between
// flushes.
unsafe impl Send for Outbound {}

impl Outbound {
    pub(super) fn new(segments: bool) -> Self {
        Self {
            arena: Vec::with_capacity(BATCH_BYTES),
            runs: Vec::with_capacity(BATCH_PACKETS),
            packets: 0,
            segments,
            headers: Vec::with_capacity(BATCH_PACKETS),
            pieces: Vec::with_capacity(BATCH_PACKETS),
            controls: Vec::with_capacity(BATCH_PACKETS),
            last_refusal: None,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Returns true if consecutive packets are sent as one.
    pub(super) const fn segments(&self) -> bool {
        self.segments
    }

    pub(super) const fn last_refusal(&self) -> Option<&io::Error> {
        self.last_refusal.as_ref()
    }

    /// Adds a packet, with the ICRC for its position in the run; returns false if the batch is full.
    pub(super) fn push(&mut self, to: &Destination, frame: &[u8]) -> bool {
        let len = frame.len() + icrc::LEN;
        if self.packets == BATCH_PACKETS || self.arena.len() + len > BATCH_BYTES {
            return false;
        }
        let start = self.arena.len();
        let ip_id = match self.runs.last_mut() {
            Some(run) if self.segments && run.takes(to, len) => run.extend(len),
            _ => {
                self.runs.push(Run::new(to, start, len));
                0
            }
        };
        self.arena.extend_from_slice(frame);
        icrc::seal(&Route { ip_id, ..to.route }, &mut self.arena, start);
        self.packets += 1;
        true
    }

    /// Sends the batch. Packets that the kernel refuses are counted as lost.
    pub(super) fn flush(&mut self, socket: &Socket, counters: &mut LinkCounters) {
        let mut first = 0;
        while first < self.runs.len() {
            let sent = match self.send_from(first, socket) {
                Ok(sent) => sent,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    self.refused(first, e, counters);
                    first += 1;
                    continue;
                }
            };
            for run in &self.runs[first..first + sent] {
                counters.frames_out += u64::from(run.packets);
                counters.bytes_out += (run.range.len() - usize::from(run.packets) * icrc::LEN) as u64;
            }
            first += sent;
        }
        self.runs.clear();
        self.arena.clear();
        self.packets = 0;
    }

    /// Sends the runs from index `first` on, in one system call. Returns the number of runs that the kernel
    /// accepted, at least one.
    fn send_from(&mut self, first: usize, socket: &Socket) -> io::Result<usize> {
        let Self { arena, runs, headers, pieces, controls, .. } = self;
        if let [Run { address, range, packets: 1, .. }] = &runs[first..] {
            let bytes = &arena[range.clone()];
            let (to, to_len) = (address.as_ptr(), address.len());
            // SAFETY: the packet lies in the arena and the address in the run; both outlive the call, with
            // the lengths given.
            let sent =
                unsafe { libc::sendto(socket.fd(), bytes.as_ptr().cast(), bytes.len(), 0, to, to_len) };
            return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
        }
        headers.clear();
        pieces.clear();
        controls.clear();
        for run in &runs[first..] {
            let start = arena[run.range.clone()].as_ptr().cast_mut().cast();
            pieces.push(libc::iovec { iov_base: start, iov_len: run.range.len() });
            controls.push(segment_control(run.packet_len));
        }
        for ((run, piece), control) in runs[first..].iter().zip(pieces).zip(controls) {
            headers.push(header(run, piece, control));
        }
        let count = libc::c_uint::try_from(headers.len()).expect("a batch is small");
        // SAFETY: `headers` holds `count` headers, and what they point to (runs, pieces, controls, arena) is
        // not accessed until the call returns. The kernel only reads the packets.
        let sent = unsafe { libc::sendmmsg(socket.fd(), headers.as_mut_ptr(), count, 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Counts a run that the kernel refused.
    fn refused(&mut self, place: usize, e: io::Error, counters: &mut LinkCounters) {
        let packets = u64::from(self.runs[place].packets);
        match e.raw_os_error() {
            Some(libc::EMSGSIZE) => counters.long += packets,
            Some(libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM) => counters.full += packets,
            // The device cannot segment, so packets are sent one by one from now on. These packets were
            // sealed for a run, so they are lost.
            Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP) if packets > 1 => {
                self.segments = false;
                counters.send_refused += packets;
            }
            _ => counters.send_refused += packets,
        }
        self.last_refusal = Some(e);
    }
}

impl std::fmt::Debug for Outbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbound")
            .field("runs", &self.runs)
            .field("segments", &self.segments)
            .finish_non_exhaustive()
    }
}

impl Run {
    const fn new(to: &Destination, start: usize, len: usize) -> Self {
        Self { address: to.address, range: start..start + len, packet_len: len, packets: 1, is_closed: false }
    }

    /// Returns true if a packet of `len` bytes to `to` may follow in the same segmented send.
    fn takes(&self, to: &Destination, len: usize) -> bool {
        !self.is_closed
            && len <= self.packet_len
            && self.packets < SEGMENTS_MAX
            && self.range.len() + len <= RUN_BYTES_MAX
            && self.address.gid() == to.address.gid()
    }

    /// Adds a packet; returns its position, which is its identification.
    fn extend(&mut self, len: usize) -> u16 {
        let place = self.packets;
        self.packets += 1;
        self.range.end += len;
        self.is_closed = len < self.packet_len;
        place
    }
}

fn header(run: &Run, piece: &mut libc::iovec, control: &mut Control) -> libc::mmsghdr {
    // SAFETY: a msghdr is integers and pointers; all zero is one without address, pieces and control
    // messages.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = run.address.as_ptr().cast_mut().cast();
    header.msg_namelen = run.address.len();
    header.msg_iov = ptr::from_mut(piece);
    header.msg_iovlen = 1;
    if run.packets > 1 {
        header.msg_control = ptr::from_mut(control).cast();
        header.msg_controllen = CONTROL_LEN;
    }
    libc::mmsghdr { msg_hdr: header, msg_len: 0 }
}

/// Returns the control message with the length of each segment: a cmsghdr (length, level, type), then a u16,
/// padded.
fn segment_control(packet_len: usize) -> Control {
    const { assert!(size_of::<libc::cmsghdr>() == 16) };
    let len = u16::try_from(packet_len).expect("a packet is shorter than 64 KiB");
    let mut bytes = [0; CONTROL_LEN];
    bytes[..8].copy_from_slice(&18_u64.to_le_bytes());
    bytes[8..12].copy_from_slice(&libc::SOL_UDP.to_le_bytes());
    bytes[12..16].copy_from_slice(&libc::UDP_SEGMENT.to_le_bytes());
    bytes[16..18].copy_from_slice(&len.to_le_bytes());
    Control(bytes)
}
