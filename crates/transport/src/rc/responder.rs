//! The responder half of a reliable connection: executes requests in order, once, and answers them.
//!
//! Key type: [`Responder`]. There is no timer and no payload buffer. WRITE payloads go to memory packet by
//! packet, and READ responses go from memory into the frame. [`Memory::check`] decides about access.

use super::{DropReason, Note, READ_LEN_MAX, RESPONDER_DEPTH, ResponderConfig};
use crate::{Access, AccessError, Memory};
use alloc::vec::Vec;
use farmem_machine::{Outbox, Port};
use farmem_wire::{
    Aeth, AtomicEth, Bth, Extension, Gather, Nak, Opcode, Packet, Perm, Psn, Reth, Syndrome, VirtAddr,
};

/// The first RNR wait: 160 us. Each further wait is about three times as long, up to 82 ms (PROTOCOL 4.29).
const RNR_CODE_FIRST: u8 = 8;
const RNR_CODE_STEP: u8 = 3;
const RNR_CODE_MAX: u8 = 26;

/// The responder half of one connection.
#[derive(Debug)]
pub struct Responder {
    config: ResponderConfig,
    /// PSN of the next request packet.
    expected: Psn,
    /// Messages completed, modulo 2^24.
    msn: Psn,
    /// The WRITE whose LAST has not arrived.
    writing: Option<Writing>,
    /// True if a NAK 0x60 was sent for the current gap.
    nak_sent: bool,
    /// The NAK that broke the connection; repeated for each repeated request (PROTOCOL 4.27).
    fault: Option<Nak>,
    /// True if an acknowledgement waits for [`Responder::flush`].
    ack_due: bool,
    /// Consecutive times that memory was not ready for the expected request.
    not_ready: u8,
    saved: SavedReplies,
}

/// A WRITE between its FIRST and its LAST.
#[derive(Clone, Copy, Debug)]
struct Writing {
    /// Address of the next packet's bytes.
    at: VirtAddr,
    /// Bytes still to come.
    left: u32,
}

/// The reason why an expected request is not executed.
enum Fault {
    /// Wrong opcode order, wrong length, or an unsupported opcode.
    Invalid,
    /// Memory refused the access.
    Refused(AccessError),
}

impl From<AccessError> for Fault {
    fn from(refusal: AccessError) -> Self {
        Self::Refused(refusal)
    }
}

impl Responder {
    /// Creates a connection that expects its first request.
    #[must_use]
    pub fn new(config: ResponderConfig) -> Self {
        Self {
            expected: config.expected_psn,
            config,
            msn: Psn::new(0),
            writing: None,
            nak_sent: false,
            fault: None,
            ack_due: false,
            not_ready: 0,
            saved: SavedReplies::default(),
        }
    }

    /// Handles a request packet (destination QPN already matched): accesses `memory` and answers. ACKs that
    /// may wait are kept for [`Responder::flush`].
    pub fn on_packet<M: Memory, O, N: From<Note>>(
        &mut self,
        port: Port,
        packet: &Packet<'_>,
        memory: &mut M,
        out: &mut Outbox<O, N>,
    ) {
        let opcode = packet.bth.opcode;
        if port != self.config.port {
            return drop_packet(DropReason::WrongPort, out);
        }
        if opcode.is_rc_response() || opcode.is_ud() {
            return drop_packet(DropReason::Opcode, out);
        }
        match packet.bth.psn.distance(self.expected) {
            0 => self.on_expected(packet, memory, out),
            1.. => self.on_gap(out),
            _ => self.on_duplicate(packet, memory, out),
        }
    }

    /// Sends the pending ACK, if any. The role calls this after every event, or after a batch of events.
    pub fn flush<O, N: From<Note>>(&mut self, out: &mut Outbox<O, N>) {
        if core::mem::take(&mut self.ack_due) {
            self.acknowledge(Syndrome::Ack, self.expected.minus(1), out);
        }
    }

    /// Asserts every invariant.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        if let Some(writing) = self.writing {
            assert!(writing.left > 0, "a WRITE without bytes to come is over");
        }
        assert!(self.fault.is_none() || self.writing.is_none(), "a fault ends what was under way");
        assert!(!self.nak_sent || self.fault.is_none(), "in error there are no gaps");
    }
}

/// Dispatch by the packet's position in the sequence.
impl Responder {
    fn on_expected<M: Memory, O, N: From<Note>>(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut M,
        out: &mut Outbox<O, N>,
    ) {
        if let Some(nak) = self.fault {
            drop_packet(DropReason::Broken, out);
            return self.acknowledge(Syndrome::Nak(nak), self.expected, out);
        }
        self.nak_sent = false;
        match self.execute(packet, memory, out) {
            Ok(()) => self.not_ready = 0,
            Err(Fault::Invalid) => self.refuse(Nak::InvalidRequest, Note::InvalidRequest, out),
            Err(Fault::Refused(AccessError::Lent(_) | AccessError::Moving)) => {
                // Later packets are dropped and need no NAK of their own.
                self.nak_sent = true;
                self.not_ready(self.expected, out);
            }
            Err(Fault::Refused(refusal)) => self.refuse(nak_of(refusal), Note::Refused(refusal), out),
        }
    }

    /// Handles a gap (PROTOCOL 4.19): one NAK per gap, which also acknowledges everything before it.
    fn on_gap<O, N: From<Note>>(&mut self, out: &mut Outbox<O, N>) {
        if self.fault.is_some() {
            return drop_packet(DropReason::Broken, out);
        }
        if self.nak_sent {
            return drop_packet(DropReason::AfterGap, out);
        }
        self.nak_sent = true;
        self.ack_due = false;
        out.note(Note::NakSequence.into());
        self.acknowledge(Syndrome::Nak(Nak::PsnSequence), self.expected, out);
    }

    /// Handles a duplicate (PROTOCOL 4.20 to 4.22). Only READs are executed again.
    fn on_duplicate<M: Memory, O, N: From<Note>>(
        &mut self,
        packet: &Packet<'_>,
        memory: &M,
        out: &mut Outbox<O, N>,
    ) {
        use Opcode as O;
        let psn = packet.bth.psn;
        match (packet.bth.opcode, packet.ext) {
            (O::WriteFirst | O::WriteMiddle | O::WriteLast | O::WriteOnly, _) => {
                self.ack_due = true;
                out.note(Note::DuplicateWrite.into());
            }
            (O::ReadRequest, Extension::Reth(reth)) => {
                let same = self.saved.has_read(psn, &reth, &self.config);
                if !same && !self.saved.has_keyed(psn, &reth, &self.config) {
                    return out.note(Note::DuplicateForgotten.into());
                }
                // The first READ did not cover all of these bytes: a new READ's check applies (PROTOCOL
                // 15.8).
                let allowed =
                    if same { self.readmit(memory, &reth) } else { self.admit(memory, &reth, Perm::Read) };
                if let Err(AccessError::Lent(_) | AccessError::Moving) = allowed {
                    return self.not_ready(psn, out);
                }
                if let Err(refusal) = allowed {
                    // NAK 0x63: the other NAKs say that nothing from here on was executed (PROTOCOL 4.27).
                    out.note(Note::Refused(refusal).into());
                    return self.acknowledge(Syndrome::Nak(Nak::RemoteOperational), psn, out);
                }
                out.note(if same { Note::DuplicateRead } else { Note::DuplicateElsewhere }.into());
                self.respond_read(psn, &reth, memory, out);
            }
            (O::GatherRequest, Extension::Reth(reth)) => {
                self.on_duplicate_gather(psn, &reth, packet.payload, memory, out);
            }
            (O::CmpSwap | O::FetchAdd, _) => match self.saved.original(psn) {
                Some(original) => {
                    out.note(Note::DuplicateAtomic.into());
                    self.respond_atomic(psn, original, out);
                }
                None => out.note(Note::DuplicateForgotten.into()),
            },
            _ => drop_packet(DropReason::Opcode, out),
        }
    }

    /// Handles a duplicate gather READ (PROTOCOL 4.33): checked as a new one, wherever its pieces are.
    fn on_duplicate_gather<M: Memory, O, N: From<Note>>(
        &mut self,
        psn: Psn,
        reth: &Reth,
        payload: &[u8],
        memory: &M,
        out: &mut Outbox<O, N>,
    ) {
        let gather = match Gather::parse(reth, payload) {
            Ok(gather) if self.saved.has_gather(psn, reth.dma_len, &self.config) => gather,
            _ => return out.note(Note::DuplicateForgotten.into()),
        };
        match self.admit_all(memory, reth, &gather) {
            Ok(()) => {
                out.note(Note::DuplicateElsewhere.into());
                self.respond_gather(psn, reth, &gather, memory, out);
            }
            Err(AccessError::Lent(_) | AccessError::Moving) => self.not_ready(psn, out),
            Err(refusal) => {
                out.note(Note::Refused(refusal).into());
                self.acknowledge(Syndrome::Nak(Nak::RemoteOperational), psn, out);
            }
        }
    }

    /// Answers with an RNR NAK (PROTOCOL 4.29). Each wait is longer than the one before.
    fn not_ready<O, N: From<Note>>(&mut self, psn: Psn, out: &mut Outbox<O, N>) {
        let code = (RNR_CODE_FIRST + RNR_CODE_STEP * self.not_ready).min(RNR_CODE_MAX);
        self.not_ready = self.not_ready.saturating_add(1).min(RNR_CODE_MAX);
        self.ack_due = false;
        out.note(Note::NotReady.into());
        self.acknowledge(Syndrome::Rnr(code), psn, out);
    }

    /// Refuses a request and breaks the connection (PROTOCOL 4.27).
    fn refuse<O, N: From<Note>>(&mut self, nak: Nak, note: Note, out: &mut Outbox<O, N>) {
        self.fault = Some(nak);
        self.writing = None;
        self.ack_due = false;
        out.note(note.into());
        self.acknowledge(Syndrome::Nak(nak), self.expected, out);
    }
}

/// Execution of expected requests (PROTOCOL 4.18).
impl Responder {
    fn execute<M: Memory, O, N: From<Note>>(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut M,
        out: &mut Outbox<O, N>,
    ) -> Result<(), Fault> {
        use Opcode as O;
        match (self.writing, packet.bth.opcode, packet.ext) {
            (None, O::WriteFirst | O::WriteOnly, Extension::Reth(reth)) => {
                self.write_start(packet, &reth, memory)
            }
            (Some(writing), O::WriteMiddle | O::WriteLast, _) => self.write_more(packet, writing, memory),
            (None, O::ReadRequest, Extension::Reth(reth)) => self.read(&reth, memory, out),
            (None, O::GatherRequest, Extension::Reth(reth)) => {
                self.gather(&reth, packet.payload, memory, out)
            }
            (None, O::CmpSwap | O::FetchAdd, Extension::AtomicEth(eth)) => {
                self.atomic(packet.bth.opcode, &eth, memory, out)
            }
            _ => Err(Fault::Invalid),
        }
    }

    /// Starts a WRITE. The whole message is checked before its first byte is written (PROTOCOL 4.25).
    fn write_start<M: Memory>(
        &mut self,
        packet: &Packet<'_>,
        reth: &Reth,
        memory: &mut M,
    ) -> Result<(), Fault> {
        let pmtu = self.config.pmtu as u32;
        let (only, len) = (packet.bth.opcode == Opcode::WriteOnly, packet.payload.len());
        let whole =
            if only { len <= pmtu as usize && len == reth.dma_len as usize } else { reth.dma_len > pmtu };
        if !whole || (!only && len != pmtu as usize) {
            return Err(Fault::Invalid);
        }
        self.admit(memory, reth, Perm::ReadWrite)?;
        if len > 0 {
            memory.write(reth.va, packet.payload);
        }
        self.writing = (!only).then(|| Writing {
            at: VirtAddr(reth.va.0.wrapping_add(u64::from(pmtu))),
            left: reth.dma_len - pmtu,
        });
        self.written(packet);
        Ok(())
    }

    /// Continues a WRITE. The bytes are checked again: the grant may have been revoked since the FIRST.
    fn write_more<M: Memory>(
        &mut self,
        packet: &Packet<'_>,
        writing: Writing,
        memory: &mut M,
    ) -> Result<(), Fault> {
        let pmtu = self.config.pmtu as u32;
        let last = packet.bth.opcode == Opcode::WriteLast;
        let len = if last { writing.left } else { pmtu };
        let in_place = if last { writing.left <= pmtu } else { writing.left > pmtu };
        if !in_place || packet.payload.len() != len as usize {
            return Err(Fault::Invalid);
        }
        let access = Access { domain: self.config.domain, addr: writing.at, len, perm: Perm::ReadWrite };
        memory.check(&access)?;
        memory.write(writing.at, packet.payload);
        let at = VirtAddr(writing.at.0.wrapping_add(u64::from(len)));
        self.writing = (!last).then(|| Writing { at, left: writing.left - len });
        self.written(packet);
        Ok(())
    }

    fn written(&mut self, packet: &Packet<'_>) {
        self.expected = self.expected.plus(1);
        if self.writing.is_none() {
            self.msn = self.msn.plus(1);
        }
        self.ack_due |= packet.bth.ack_req;
    }

    fn read<M: Memory, O, N: From<Note>>(
        &mut self,
        reth: &Reth,
        memory: &M,
        out: &mut Outbox<O, N>,
    ) -> Result<(), Fault> {
        if reth.dma_len > READ_LEN_MAX {
            return Err(Fault::Invalid);
        }
        self.admit(memory, reth, Perm::Read)?;
        let psn = self.expected;
        self.saved.push(Answered { psn, op: AnsweredOp::Read { addr: reth.va, len: reth.dma_len } });
        self.executed(self.config.pmtu.packets(reth.dma_len));
        self.respond_read(psn, reth, memory, out);
        Ok(())
    }

    /// Executes a gather READ (PROTOCOL 4.32). All pieces are checked before any byte is read.
    fn gather<M: Memory, O, N: From<Note>>(
        &mut self,
        reth: &Reth,
        payload: &[u8],
        memory: &M,
        out: &mut Outbox<O, N>,
    ) -> Result<(), Fault> {
        let gather = match Gather::parse(reth, payload) {
            Ok(gather) if reth.dma_len <= READ_LEN_MAX && payload.len() <= self.config.pmtu.bytes() => gather,
            _ => return Err(Fault::Invalid),
        };
        self.admit_all(memory, reth, &gather)?;
        let psn = self.expected;
        self.saved.push(Answered { psn, op: AnsweredOp::Gather { len: reth.dma_len } });
        self.executed(self.config.pmtu.packets(reth.dma_len));
        self.respond_gather(psn, reth, &gather, memory, out);
        Ok(())
    }

    /// Executes an atomic (PROTOCOL 4.26).
    fn atomic<M: Memory, O, N: From<Note>>(
        &mut self,
        opcode: Opcode,
        eth: &AtomicEth,
        memory: &mut M,
        out: &mut Outbox<O, N>,
    ) -> Result<(), Fault> {
        if !eth.va.0.is_multiple_of(8) {
            return Err(AccessError::Misaligned.into());
        }
        self.admit(memory, &Reth { va: eth.va, rkey: eth.rkey, dma_len: 8 }, Perm::ReadWrite)?;
        let original = match opcode {
            Opcode::CmpSwap => memory.cmp_swap(eth.va, eth.compare, eth.swap_or_add),
            _ => memory.fetch_add(eth.va, eth.swap_or_add),
        };
        let psn = self.expected;
        self.saved.push(Answered { psn, op: AnsweredOp::Atomic { original } });
        self.executed(1);
        self.respond_atomic(psn, original, out);
        Ok(())
    }

    /// Advances past a READ or atomic. Its response acknowledges what a pending ACK would (PROTOCOL 4.23).
    fn executed(&mut self, psns: u32) {
        self.expected = self.expected.plus(psns);
        self.msn = self.msn.plus(1);
        self.ack_due = false;
    }

    /// Checks that a request has the key of this connection.
    fn check_key(&self, reth: &Reth) -> Result<(), AccessError> {
        if reth.rkey != self.config.rkey {
            return Err(AccessError::WrongKey(reth.rkey));
        }
        Ok(())
    }

    /// Checks key and memory. A message without bytes accesses nothing and needs neither (PROTOCOL 4.25).
    fn admit<M: Memory>(&self, memory: &M, reth: &Reth, perm: Perm) -> Result<(), AccessError> {
        if reth.dma_len == 0 {
            return Ok(());
        }
        self.check_key(reth)?;
        memory.check(&Access { domain: self.config.domain, addr: reth.va, len: reth.dma_len, perm })
    }

    /// Checks key and memory for the pieces of a gather READ.
    fn admit_all<M: Memory>(&self, memory: &M, reth: &Reth, gather: &Gather<'_>) -> Result<(), AccessError> {
        self.check_key(reth)?;
        let domain = self.config.domain;
        gather
            .places(0, reth.dma_len)
            .try_for_each(|(addr, len)| memory.check(&Access { domain, addr, len, perm: Perm::Read }))
    }

    /// Checks a READ that was executed before.
    fn readmit<M: Memory>(&self, memory: &M, reth: &Reth) -> Result<(), AccessError> {
        if reth.dma_len == 0 {
            return Ok(());
        }
        self.check_key(reth)?;
        let access =
            Access { domain: self.config.domain, addr: reth.va, len: reth.dma_len, perm: Perm::Read };
        memory.check_again(&access)
    }
}

/// Responses.
impl Responder {
    fn acknowledge<O, N>(&self, syndrome: Syndrome, psn: Psn, out: &mut Outbox<O, N>) {
        let bth = Bth::new(Opcode::Acknowledge, self.config.peer_qpn, psn);
        let ext = Extension::Aeth(Aeth { syndrome, msn: self.msn });
        Packet { bth, ext, payload: &[] }.emit(out.frame(self.config.port).bytes());
    }

    fn respond_atomic<O, N>(&self, psn: Psn, original: u64, out: &mut Outbox<O, N>) {
        let bth = Bth::new(Opcode::AtomicAck, self.config.peer_qpn, psn);
        let ext = Extension::AtomicAck(Aeth { syndrome: Syndrome::Ack, msn: self.msn }, original);
        Packet { bth, ext, payload: &[] }.emit(out.frame(self.config.port).bytes());
    }

    /// Answers a READ (PROTOCOL 4.24): packets of PMTU bytes, AETH on all but the middle ones.
    fn respond_read<M: Memory, O, N>(&self, psn: Psn, reth: &Reth, memory: &M, out: &mut Outbox<O, N>) {
        self.respond(psn, reth.dma_len, out, |offset, len, bytes| {
            memory.read(VirtAddr(reth.va.0.wrapping_add(u64::from(offset))), len, bytes);
        });
    }

    fn respond_gather<M: Memory, O, N>(
        &self,
        psn: Psn,
        reth: &Reth,
        gather: &Gather<'_>,
        memory: &M,
        out: &mut Outbox<O, N>,
    ) {
        self.respond(psn, reth.dma_len, out, |offset, len, bytes| {
            gather.places(offset, len).for_each(|(addr, len)| memory.read(addr, len, bytes));
        });
    }

    /// Sends the packets of a response of `len` bytes; `fill` appends the bytes from an offset on.
    fn respond<O, N>(
        &self,
        psn: Psn,
        dma_len: u32,
        out: &mut Outbox<O, N>,
        fill: impl Fn(u32, u32, &mut Vec<u8>),
    ) {
        let pmtu = self.config.pmtu as u32;
        let last = self.config.pmtu.packets(dma_len) - 1;
        let aeth = Extension::Aeth(Aeth { syndrome: Syndrome::Ack, msn: self.msn });
        for index in 0..=last {
            let (opcode, ext) = match (index == 0, index == last) {
                (true, true) => (Opcode::ReadResponseOnly, aeth),
                (true, false) => (Opcode::ReadResponseFirst, aeth),
                (false, false) => (Opcode::ReadResponseMiddle, Extension::None),
                (false, true) => (Opcode::ReadResponseLast, aeth),
            };
            let offset = index * pmtu;
            let len = (dma_len - offset).min(pmtu);
            let bth = Bth::new(opcode, self.config.peer_qpn, psn.plus(index));
            let mut frame = out.frame(self.config.port);
            Packet::emit_with(&bth, &ext, len as usize, frame.bytes(), |bytes| {
                if len > 0 {
                    fill(offset, len, bytes);
                }
            });
        }
    }
}

/// The last [`RESPONDER_DEPTH`] READs and atomics, for duplicates (PROTOCOL 4.21, 4.22).
#[derive(Debug, Default)]
struct SavedReplies {
    ring: [Option<Answered>; RESPONDER_DEPTH as usize],
    /// Index of the next entry to replace.
    next: usize,
}

/// A READ or atomic that was answered.
#[derive(Clone, Copy, Debug)]
struct Answered {
    psn: Psn,
    op: AnsweredOp,
}

#[derive(Clone, Copy, Debug)]
enum AnsweredOp {
    Read { addr: VirtAddr, len: u32 },
    Gather { len: u32 },
    Atomic { original: u64 },
}

impl SavedReplies {
    fn push(&mut self, answered: Answered) {
        self.ring[self.next] = Some(answered);
        self.next = (self.next + 1) % self.ring.len();
    }

    /// Returns the entries, newest first: after 2^24 packets an old one may have the PSN of a new one.
    fn newest_first(&self) -> impl Iterator<Item = &Answered> {
        let (newer, older) = self.ring.split_at(self.next);
        newer.iter().rev().chain(older.iter().rev()).flatten()
    }

    /// Returns true if a saved READ covers this one, from one of its packet boundaries on.
    fn has_read(&self, psn: Psn, reth: &Reth, config: &ResponderConfig) -> bool {
        let pmtu = config.pmtu as u32;
        self.newest_first().any(|answered| {
            let AnsweredOp::Read { addr, len } = answered.op else { return false };
            let Ok(index) = u32::try_from(psn.distance(answered.psn)) else { return false };
            let Some(offset) = index.checked_mul(pmtu) else { return false };
            let part = index < config.pmtu.packets(len) && reth.dma_len <= len - offset;
            part && reth.va.0 == addr.0.wrapping_add(u64::from(offset))
        })
    }

    /// Returns true if a READ of the same length, of one packet, had this PSN. A repeated keyed READ may be
    /// routed elsewhere (PROTOCOL 15.8).
    fn has_keyed(&self, psn: Psn, reth: &Reth, config: &ResponderConfig) -> bool {
        let one_packet = |len: u32| (1..=config.pmtu as u32).contains(&len) && len == reth.dma_len;
        self.newest_first().any(|answered| {
            let AnsweredOp::Read { len, .. } = answered.op else { return false };
            answered.psn == psn && one_packet(len)
        })
    }

    /// Returns true if a saved gather READ has this PSN and length, or a packet boundary with this PSN and so
    /// many bytes left (PROTOCOL 4.33).
    fn has_gather(&self, psn: Psn, dma_len: u32, config: &ResponderConfig) -> bool {
        let pmtu = config.pmtu as u32;
        self.newest_first().any(|answered| {
            let AnsweredOp::Gather { len } = answered.op else { return false };
            let Ok(index) = u32::try_from(psn.distance(answered.psn)) else { return false };
            let Some(offset) = index.checked_mul(pmtu) else { return false };
            index < config.pmtu.packets(len) && dma_len <= len - offset
        })
    }

    /// Returns the value before the atomic with this PSN.
    fn original(&self, psn: Psn) -> Option<u64> {
        self.newest_first().find_map(|answered| match answered.op {
            AnsweredOp::Atomic { original } if answered.psn == psn => Some(original),
            _ => None,
        })
    }
}

fn drop_packet<O, N: From<Note>>(reason: DropReason, out: &mut Outbox<O, N>) {
    out.note(Note::Dropped(reason).into());
}

fn nak_of(refusal: AccessError) -> Nak {
    match refusal {
        AccessError::Misaligned => Nak::InvalidRequest,
        AccessError::NotMapped
        | AccessError::NoPermission
        | AccessError::OutOfBounds
        | AccessError::Lent(_)
        | AccessError::Moving
        | AccessError::Lost
        | AccessError::Coherent
        | AccessError::WrongKey(_) => Nak::RemoteAccess,
    }
}
