//! Fixtures of the tests: plain memory, the two halves of a connection, and packets as lines of text.

use farmem_machine::{Action, Duration, Instant, NoLender, Outbox, Port};
use farmem_transport::rc::{
    Arrivals, Completion, DropReason, Note, Requester, RequesterConfig, Responder, ResponderConfig, Work,
};
use farmem_transport::{Access, AccessError, Memory};
use farmem_wire::{
    Aeth, AtomicEth, Bth, Domain, Extension, Opcode, Packet, Perm, Pmtu, Psn, Qpn, Reth, Rkey, Syndrome,
    VirtAddr,
};

/// The first address of every model memory.
pub(crate) const BASE: u64 = 0x7000_0000_0000;
pub(crate) const RKEY: Rkey = Rkey(0x5eed_cafe);
pub(crate) const DOMAIN: Domain = Domain(7);
pub(crate) const HOST: Port = Port::host(1);
pub(crate) const NODE: Port = Port::node(2);
pub(crate) const HOST_QPN: Qpn = Qpn::new(0x111);
pub(crate) const NODE_QPN: Qpn = Qpn::new(0x222);
pub(crate) const TIMEOUT: Duration = Duration::from_micros(100);

/// One region of plain bytes, for one domain.
#[derive(Debug)]
pub(crate) struct ModelMemory {
    pub(crate) bytes: Vec<u8>,
    /// Permission of the domain.
    pub(crate) perm: Perm,
    /// Number of bytes from the first on that may be written at all.
    pub(crate) writable: usize,
    /// Number of WRITE packets and atomics executed.
    pub(crate) changes: usize,
    /// True if all of the memory moves to another node.
    pub(crate) moving: bool,
}

impl ModelMemory {
    pub(crate) fn new(len: usize) -> Self {
        Self { bytes: vec![0; len], perm: Perm::ReadWrite, writable: len, changes: 0, moving: false }
    }

    /// Creates memory whose bytes encode their offset.
    pub(crate) fn numbered(len: usize) -> Self {
        Self { bytes: numbered(0, len), ..Self::new(len) }
    }

    fn at(&self, addr: VirtAddr, len: usize) -> std::ops::Range<usize> {
        let start = usize::try_from(addr.0.checked_sub(BASE).expect("checked")).expect("checked");
        assert!(start + len <= self.bytes.len(), "the range was checked");
        start..start + len
    }

    fn word(&mut self, addr: VirtAddr) -> &mut [u8] {
        assert!(addr.0.is_multiple_of(8), "the alignment was checked");
        self.changes += 1;
        let at = self.at(addr, 8);
        &mut self.bytes[at]
    }
}

impl Memory for ModelMemory {
    fn check(&self, access: &Access) -> Result<(), AccessError> {
        assert_eq!(access.domain, DOMAIN, "the domain is the connection's");
        let start = access.addr.0.checked_sub(BASE).ok_or(AccessError::NotMapped)?;
        let end = start.checked_add(u64::from(access.len)).ok_or(AccessError::OutOfBounds)?;
        if start >= self.bytes.len() as u64 {
            return Err(AccessError::NotMapped);
        }
        if end > self.bytes.len() as u64 {
            return Err(AccessError::OutOfBounds);
        }
        if self.moving {
            return Err(AccessError::Moving);
        }
        let beyond = access.perm == Perm::ReadWrite && end > self.writable as u64;
        if !self.perm.allows(access.perm) || beyond { Err(AccessError::NoPermission) } else { Ok(()) }
    }

    fn read(&self, addr: VirtAddr, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[self.at(addr, len as usize)]);
    }

    fn load(&self, addr: VirtAddr, window: &mut [u8]) {
        window.copy_from_slice(&self.bytes[self.at(addr, window.len())]);
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) {
        let at = self.at(addr, data.len());
        assert!(at.end <= self.writable, "the permission was checked");
        self.bytes[at].copy_from_slice(data);
        self.changes += 1;
    }

    fn cmp_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> u64 {
        let word = self.word(addr);
        let old = le(word);
        if old == compare {
            word.copy_from_slice(&swap.to_le_bytes());
        }
        old
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> u64 {
        let word = self.word(addr);
        let old = le(word);
        word.copy_from_slice(&old.wrapping_add(add).to_le_bytes());
        old
    }
}

pub(crate) fn le(word: &[u8]) -> u64 {
    u64::from_le_bytes(word.try_into().expect("8 bytes"))
}

/// Returns bytes that encode their offset: no two within 251 are equal.
pub(crate) fn numbered(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| u8::try_from(i % 251).expect("below 251")).collect()
}

/// Returns the address `offset` bytes into every model memory.
pub(crate) fn va(offset: u64) -> VirtAddr {
    VirtAddr(BASE + offset)
}

pub(crate) fn requester_config() -> RequesterConfig {
    RequesterConfig {
        qpn: HOST_QPN,
        peer_qpn: NODE_QPN,
        port: NODE,
        first_psn: Psn::new(100),
        rkey: RKEY,
        pmtu: Pmtu::B256,
        window_psns: 64,
        depth: 16,
        queue_max: 1000,
        timeout: TIMEOUT,
        retries_max: 3,
        rnr_retries_max: 2,
    }
}

pub(crate) fn responder_config() -> ResponderConfig {
    ResponderConfig {
        qpn: NODE_QPN,
        peer_qpn: HOST_QPN,
        port: HOST,
        expected_psn: Psn::new(100),
        rkey: RKEY,
        domain: DOMAIN,
        pmtu: Pmtu::B256,
    }
}

/// The contents of an outbox.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) notes: Vec<Note>,
}

impl Sent {
    /// Empties the outbox; every frame must be for `port`.
    pub(crate) fn drain(out: &mut Outbox<(), Note>, port: Port) -> Self {
        let mut sent = Self::default();
        out.drain(|action| match action {
            Action::Send { port: to, frame } => {
                assert_eq!(to, port, "frames go to the peer");
                sent.frames.push(frame.to_vec());
            }
            Action::Local(()) => unreachable!("nothing was asked"),
            Action::Note(note) => sent.notes.push(note),
        });
        sent
    }

    /// Returns the frames, one line each; see [`line`].
    pub(crate) fn lines(&self) -> Vec<String> {
        self.frames.iter().map(|frame| line(frame)).collect()
    }
}

/// Formats a frame: opcode, PSN, `A` if it requests an acknowledgement, headers, payload length. Addresses
/// are offsets from [`BASE`].
pub(crate) fn line(frame: &[u8]) -> String {
    let packet = Packet::parse(frame).expect("what we send can be read");
    let Bth { opcode, psn, ack_req, .. } = packet.bth;
    let ask = if ack_req { " A" } else { "" };
    let syndrome = |aeth: Aeth| match aeth.syndrome {
        Syndrome::Ack => format!(" msn={}", aeth.msn.get()),
        other => format!(" {other:?} msn={}", aeth.msn.get()),
    };
    let ext = match packet.ext {
        Extension::Reth(reth) => format!(" @{}+{}", reth.va.0.wrapping_sub(BASE), reth.dma_len),
        Extension::AtomicEth(eth) => {
            format!(" @{} {:#x} if {:#x}", eth.va.0 - BASE, eth.swap_or_add, eth.compare)
        }
        Extension::Aeth(aeth) => syndrome(aeth),
        Extension::AtomicAck(aeth, original) => format!("{} was {original:#x}", syndrome(aeth)),
        _ => String::new(),
    };
    let payload =
        if packet.payload.is_empty() { String::new() } else { format!(" [{}]", packet.payload.len()) };
    format!("{opcode:?} {}{ask}{ext}{payload}", psn.get())
}

/// A requester whose peer the test plays.
pub(crate) struct Host {
    pub(crate) requester: Requester,
    pub(crate) now: Instant,
    out: Outbox<(), Note>,
}

impl Host {
    pub(crate) fn new(config: RequesterConfig) -> Self {
        Self { requester: Requester::new(config), now: Instant::ZERO, out: Outbox::new() }
    }

    /// Posts requests with the ids 0, 1, 2, ... and pumps.
    pub(crate) fn post(&mut self, works: impl IntoIterator<Item = Work>) -> Sent {
        for (id, work) in (0..).zip(works) {
            self.requester.post(id, work).expect("there is room");
        }
        self.requester.pump(self.now, &mut self.out);
        self.sent()
    }

    /// Delivers a response.
    pub(crate) fn take(&mut self, opcode: Opcode, psn: u32, ext: Extension, payload: &[u8]) -> Sent {
        let packet = Packet { bth: Bth::new(opcode, HOST_QPN, Psn::new(psn)), ext, payload };
        self.take_from(NODE, &packet)
    }

    pub(crate) fn take_from(&mut self, port: Port, packet: &Packet<'_>) -> Sent {
        self.requester.on_packet(self.now, port, packet, &mut self.out);
        self.sent()
    }

    /// Delivers an ACKNOWLEDGE.
    pub(crate) fn ack(&mut self, psn: u32, syndrome: Syndrome) -> Sent {
        self.take(Opcode::Acknowledge, psn, aeth(syndrome), &[])
    }

    /// Delivers one packet of a READ response.
    pub(crate) fn read_response(&mut self, opcode: Opcode, psn: u32, payload: &[u8]) -> Sent {
        let middle = opcode == Opcode::ReadResponseMiddle;
        let ext = if middle { Extension::None } else { aeth(Syndrome::Ack) };
        self.take(opcode, psn, ext, payload)
    }

    /// Delivers packets of READ responses that come together.
    pub(crate) fn take_together(&mut self, packets: &[(Opcode, u32, &[u8])]) -> Sent {
        let mut arrivals = Arrivals::new(&NoLender);
        for &(opcode, psn, payload) in packets {
            let middle = opcode == Opcode::ReadResponseMiddle;
            let ext = if middle { Extension::None } else { aeth(Syndrome::Ack) };
            let packet = Packet { bth: Bth::new(opcode, HOST_QPN, Psn::new(psn)), ext, payload };
            self.requester.on_packet_among(self.now, NODE, &packet, &mut arrivals, &mut self.out);
        }
        drop(arrivals);
        self.sent()
    }

    /// Advances the time to the requester's next wake, and wakes it.
    pub(crate) fn wake(&mut self) -> Sent {
        self.now = self.requester.next_wake().expect("a timer runs");
        self.requester.on_wake(self.now, &mut self.out);
        self.sent()
    }

    /// Abandons the connection.
    pub(crate) fn abandon(&mut self) -> Sent {
        self.requester.abandon(&mut self.out);
        self.sent()
    }

    fn sent(&mut self) -> Sent {
        self.requester.check();
        Sent::drain(&mut self.out, NODE)
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.requester.pop_completion()).collect()
    }

    /// Returns the completions without their buffers: id and result.
    pub(crate) fn results(&mut self) -> Vec<(u64, Result<u64, farmem_transport::rc::Failure>)> {
        self.completions().into_iter().map(|completion| (completion.id, completion.result)).collect()
    }
}

/// A responder with its memory; the test plays the peer.
pub(crate) struct Node {
    pub(crate) responder: Responder,
    pub(crate) memory: ModelMemory,
    out: Outbox<(), Note>,
}

impl Node {
    pub(crate) fn new(config: ResponderConfig, memory: ModelMemory) -> Self {
        Self { responder: Responder::new(config), memory, out: Outbox::new() }
    }

    /// Creates a new connection to the same memory.
    pub(crate) fn reconnect(&mut self, config: ResponderConfig) {
        self.responder = Responder::new(config);
    }

    /// Creates a node with 4096 numbered bytes.
    pub(crate) fn usual() -> Self {
        Self::new(responder_config(), ModelMemory::numbered(4096))
    }

    /// Delivers a request packet that asks for an acknowledgement; pending ACKs stay pending.
    pub(crate) fn take(&mut self, opcode: Opcode, psn: u32, ext: Extension, payload: &[u8]) -> Sent {
        let bth = Bth { ack_req: true, ..Bth::new(opcode, NODE_QPN, Psn::new(psn)) };
        self.take_from(HOST, &Packet { bth, ext, payload })
    }

    pub(crate) fn take_from(&mut self, port: Port, packet: &Packet<'_>) -> Sent {
        self.responder.on_packet(port, packet, &mut self.memory, &mut self.out);
        self.responder.check();
        Sent::drain(&mut self.out, HOST)
    }

    pub(crate) fn flush(&mut self) -> Sent {
        self.responder.flush(&mut self.out);
        self.responder.check();
        Sent::drain(&mut self.out, HOST)
    }

    pub(crate) fn read(&mut self, psn: u32, offset: u64, len: u32) -> Sent {
        self.take(Opcode::ReadRequest, psn, reth(offset, len), &[])
    }

    pub(crate) fn write(&mut self, psn: u32, offset: u64, data: &[u8]) -> Sent {
        let len = u32::try_from(data.len()).expect("short");
        self.take(Opcode::WriteOnly, psn, reth(offset, len), data)
    }

    pub(crate) fn fetch_add(&mut self, psn: u32, offset: u64, add: u64) -> Sent {
        let eth = AtomicEth { va: va(offset), rkey: RKEY, swap_or_add: add, compare: 0 };
        self.take(Opcode::FetchAdd, psn, Extension::AtomicEth(eth), &[])
    }
}

pub(crate) fn reth(offset: u64, dma_len: u32) -> Extension {
    Extension::Reth(Reth { va: va(offset), rkey: RKEY, dma_len })
}

pub(crate) fn aeth(syndrome: Syndrome) -> Extension {
    Extension::Aeth(Aeth { syndrome, msn: Psn::new(1) })
}

/// Joins the payloads of frames.
pub(crate) fn payloads(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().flat_map(|frame| Packet::parse(frame).expect("readable").payload.to_vec()).collect()
}

/// Returns a READ of `len` bytes.
pub(crate) fn read(offset: u64, len: usize) -> Work {
    Work::Read { addr: va(offset), buf: vec![0; len] }
}

/// Returns a WRITE of `len` numbered bytes.
pub(crate) fn write(offset: u64, len: usize) -> Work {
    Work::Write { addr: va(offset), buf: numbered(0, len) }
}

/// Returns a FETCH_ADD of 5.
pub(crate) fn fetch_add(offset: u64) -> Work {
    Work::FetchAdd { addr: va(offset), add: 5 }
}

/// Returns the note of a dropped packet.
pub(crate) fn dropped(reason: DropReason) -> Vec<Note> {
    vec![Note::Dropped(reason)]
}
