//! Packets from the kernel, in fixed slots, with one system call for all available packets.
//!
//! A filled slot may be lent ([`Lender`]): the holder of the loan uses its bytes later, on any thread.
//! Meanwhile a spare slot replaces the lent one.

use super::sockaddr::SockAddr;
use super::socket::Socket;
use crate::FRAME_MAX;
use farmem_machine::{Lender, Loan};
use farmem_wire::icrc;
use std::io;
use std::mem;
use std::ptr;
use std::slice::Chunks;
use std::sync::Arc;

/// Maximum number of datagrams per system call: the limit of the receive queue that all connections of the
/// link share. Further datagrams wait in the socket.
pub(super) const SLOTS: usize = 16;
/// Number of consecutive calls with one datagram, after which only one is requested: a search for a second
/// one costs a tenth of a microsecond.
const SINGLES_BEFORE_ONE: u32 = 2;
/// Interval of calls that request all datagrams, so that a burst is noticed.
const ONES_BEFORE_ALL: u32 = 8;
/// Length in bytes of a slot for single packets: the longest packet and one byte more, to detect longer ones.
const SLOT_BYTES: usize = FRAME_MAX + icrc::LEN + 60;
/// Length in bytes of a slot for coalesced packets: the kernel's maximum.
const COALESCED_SLOT_BYTES: usize = 1 << 16;
/// Maximum number of bytes of lent slots, and so of spare ones: the size of all slots for coalesced packets.
pub(super) const LENT_BYTES_MAX: usize = SLOTS * COALESCED_SLOT_BYTES;

/// Space for the control message with the length of coalesced packets.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_LEN]);

const CONTROL_LEN: usize = 64;

/// Memory for one datagram, shared by this end and each [`Loan`] of it.
type Slot = Arc<Box<[u8]>>;

/// The slots.
pub(super) struct Inbound {
    pub(super) slot_bytes: usize,
    /// Slots that the next call fills, except lent ones.
    slots: Vec<Slot>,
    /// Slots that were lent; some loans have ended. Each is created when it is first needed.
    pub(super) spares: Vec<Slot>,
    /// Number of times that a spare slot replaced a lent one.
    pub(super) replaced: u64,
    names: Vec<SockAddr>,
    controls: Vec<Control>,
    pieces: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    /// Number of headers that the last call filled.
    used: usize,
    /// Number of consecutive calls with one datagram.
    singles: u32,
    /// True if the datagrams of the last call were not processed yet.
    is_kept: bool,
}

// SAFETY: the pointers in `pieces` and `headers` lead into slots and the other vectors of the same value.
// Their memory moves with the value to another thread. The memory is not freed before the value's drop: a
// replaced slot is kept with the spare ones.
unsafe impl Send for Inbound {}

/// One buffer from the kernel.
#[derive(Debug)]
pub(super) struct Datagram<'a> {
    pub(super) from: &'a SockAddr,
    pub(super) bytes: &'a [u8],
    /// True if the datagram is longer than its slot.
    pub(super) is_cut: bool,
    /// Length in bytes of each packet except the last.
    packet_len: usize,
}

impl<'a> Datagram<'a> {
    /// Returns the packets of the datagram.
    pub(super) fn packets(&self) -> Chunks<'a, u8> {
        self.bytes.chunks(self.packet_len)
    }
}

impl Inbound {
    pub(super) fn new(coalesces: bool) -> Self {
        let slot_bytes = if coalesces { COALESCED_SLOT_BYTES } else { SLOT_BYTES };
        let mut slots = Self {
            slot_bytes,
            slots: (0..SLOTS).map(|_| new_slot(slot_bytes)).collect(),
            spares: Vec::new(),
            replaced: 0,
            names: vec![SockAddr::none(); SLOTS],
            controls: vec![Control([0; CONTROL_LEN]); SLOTS],
            pieces: vec![libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; SLOTS],
            headers: Vec::new(),
            used: SLOTS,
            singles: 0,
            is_kept: false,
        };
        // SAFETY: a mmsghdr is integers and pointers; all zero is an empty one.
        slots.headers.resize_with(SLOTS, || unsafe { mem::zeroed() });
        slots.prepare();
        slots
    }

    /// Points the headers of the last call to their slots, or to spare ones, with full sizes.
    fn prepare(&mut self) {
        let Self { slots, spares, replaced, names, controls, pieces, headers, used, .. } = self;
        let parts = slots.iter_mut().zip(names).zip(controls).zip(pieces);
        for ((((slot, name), control), piece), header) in parts.zip(headers).take(*used) {
            if Arc::strong_count(slot) > 1 {
                put_spare(slot, spares);
                *replaced += 1;
            }
            let slot = Arc::get_mut(slot).expect("no loan of it is left");
            *piece = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            let header = &mut header.msg_hdr;
            header.msg_name = name.as_mut_ptr().cast();
            header.msg_namelen = SockAddr::CAPACITY;
            header.msg_iov = ptr::from_mut(piece);
            header.msg_iovlen = 1;
            header.msg_control = ptr::from_mut(control).cast();
            header.msg_controllen = CONTROL_LEN;
        }
        *used = 0;
    }

    /// Returns the number of datagrams to request: one if they arrive one by one.
    const fn ask(&self) -> usize {
        let ones = self.singles.saturating_sub(SINGLES_BEFORE_ONE);
        if ones.is_multiple_of(ONES_BEFORE_ALL) { SLOTS } else { 1 }
    }

    /// Receives the available datagrams for the next [`Inbound::receive`].
    pub(super) fn keep(&mut self, socket: &Socket, flags: libc::c_int) -> io::Result<()> {
        if !self.is_kept {
            self.is_kept = self.receive(socket, flags)?.is_some();
        }
        Ok(())
    }

    /// Makes the next [`Inbound::receive`] return the datagrams of the last one.
    #[cfg(test)]
    pub(super) fn keep_again(&mut self) {
        self.is_kept = true;
    }

    /// Returns true if the next [`Inbound::receive`] has datagrams without a system call.
    pub(super) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Receives the available datagrams; returns `None` if there are none, or if the wait timed out or was
    /// interrupted.
    pub(super) fn receive(&mut self, socket: &Socket, flags: libc::c_int) -> io::Result<Option<usize>> {
        if mem::take(&mut self.is_kept) {
            return Ok(Some(self.used));
        }
        self.prepare();
        let (headers, none) = (self.headers.as_mut_ptr(), ptr::null_mut());
        let count = libc::c_uint::try_from(self.ask()).expect("few slots");
        // SAFETY: there are at least `count` headers. Each points, with true sizes, to a name, a control
        // buffer and one piece in this value's vectors, and to a slot without loans (`prepare`). No reference
        // into them was used since, and none is used while `self` is borrowed mutably: only filled slots are
        // lent, and `prepare` replaces those.
        let got = unsafe { libc::recvmmsg(socket.fd(), headers, count, flags, none) };
        let Ok(got) = usize::try_from(got) else {
            let e = io::Error::last_os_error();
            let is_nothing =
                matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED));
            return if is_nothing { Ok(None) } else { Err(e) };
        };
        self.used = got;
        // A datagram of several packets is usually followed by more.
        let is_single = got == 1 && self.datagram(0).packets().len() == 1;
        self.singles = if is_single { self.singles.wrapping_add(1) } else { 0 };
        Ok(Some(got))
    }

    /// Returns the datagram in a slot that the last call filled.
    pub(super) fn datagram(&self, place: usize) -> Datagram<'_> {
        let header = &self.headers[..self.used][place];
        let bytes = &self.slots[place][..self.slot_bytes.min(header.msg_len as usize)];
        let is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let control = &self.controls[place].0[..header.msg_hdr.msg_controllen.min(CONTROL_LEN)];
        let packet_len = coalesced_len(control).filter(|&len| len > 0).unwrap_or_else(|| bytes.len().max(1));
        Datagram { from: &self.names[place], bytes, is_cut, packet_len }
    }
}

impl Lender for Inbound {
    /// Lends the slot with bytes of the last call, unless the limit of lent bytes is reached. Loans may end
    /// concurrently, so the count is at least the real number.
    fn lend(&self, bytes: &[u8]) -> Option<Loan> {
        let (slot, loan) =
            self.slots[..self.used].iter().find_map(|slot| Some((slot, Loan::of(slot, bytes)?)))?;
        let lent =
            || self.slots.iter().chain(&self.spares).filter(|slot| Arc::strong_count(slot) > 1).count();
        let has_another = Arc::strong_count(slot) > 2;
        (has_another || lent() * self.slot_bytes <= LENT_BYTES_MAX).then_some(loan)
    }
}

/// Creates a slot of `bytes` bytes.
fn new_slot(bytes: usize) -> Slot {
    Arc::new(vec![0; bytes].into())
}

/// Replaces this slot by a spare slot without loans; the replaced slot becomes a spare one.
fn put_spare(slot: &mut Slot, spares: &mut Vec<Slot>) {
    // A holder may drop its loan at any time, and only this end creates loans.
    match spares.iter_mut().find(|spare| Arc::strong_count(spare) == 1) {
        Some(spare) => mem::swap(slot, spare),
        None => {
            let spare = new_slot(slot.len());
            spares.push(mem::replace(slot, spare));
        }
    }
}

impl std::fmt::Debug for Inbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbound").field("slots", &self.headers.len()).finish_non_exhaustive()
    }
}

/// Returns the packet length in the kernel's control message: a cmsghdr (length, level, type), then an int.
fn coalesced_len(control: &[u8]) -> Option<usize> {
    let int = |at: usize| Some(i32::from_le_bytes(control.get(at..at + 4)?.try_into().ok()?));
    if (int(8)?, int(12)?) != (libc::SOL_UDP, libc::UDP_GRO) {
        return None;
    }
    usize::try_from(int(16)?).ok()
}
