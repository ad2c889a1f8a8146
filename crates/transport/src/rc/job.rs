//! A posted request as packets: its PSNs, the contents of each packet, and its completion.

use super::{Completion, Failure, READ_SEGMENT_MAX, RequesterConfig, Work};
use farmem_machine::Outbox;
use farmem_wire::gather::PIECES_MAX;
use farmem_wire::headers::DMA_LEN_MAX;
use farmem_wire::{AtomicEth, Bth, Extension, Gather, Opcode, Packet, Pmtu, Psn, Reth, Rkey, VirtAddr};

/// Most packets whose payloads are taken from a source in one call.
pub(super) const PACKETS_MAX: u32 = 32;

/// Bytes of an atomic's word.
const WORD_LEN: u32 = 8;

/// A posted request with its position in the sequence of packets.
///
/// Sequence numbers have 64 bits and never wrap; a PSN is a sequence number modulo 2^24 (PROTOCOL 4.2).
#[derive(Debug)]
pub(super) struct Job {
    id: u64,
    pub(super) work: Work,
    /// Sequence number of the first packet.
    pub(super) first: u64,
    /// Number of PSNs.
    pub(super) packets: u32,
}

impl Job {
    /// Assigns PSNs to `work`; the caller has checked it with [`refusal`].
    pub(super) fn new(id: u64, work: Work, first: u64, config: &RequesterConfig) -> Self {
        let packets = match work {
            Work::Read { .. }
            | Work::ReadTo { .. }
            | Work::Gather { .. }
            | Work::Write { .. }
            | Work::WriteFrom { .. } => config.pmtu.packets(len_of(&work)),
            Work::KeyedRead { .. } | Work::CmpSwap { .. } | Work::FetchAdd { .. } => 1,
        };
        Self { id, work, first, packets }
    }

    /// Returns the sequence number after the last packet.
    pub(super) fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }

    /// Returns the index of packet `seq` within this request.
    ///
    /// # Panics
    /// If `seq` is not one of the packets.
    pub(super) fn index_of(&self, seq: u64) -> u32 {
        let index = seq.checked_sub(self.first).and_then(|k| u32::try_from(k).ok());
        let index = index.filter(|&k| k < self.packets);
        index.expect("a packet of this request")
    }

    /// Returns true if only its own response completes the request: READs and atomics (PROTOCOL 4.9).
    pub(super) fn needs_response(&self) -> bool {
        !matches!(self.work, Work::Write { .. } | Work::WriteFrom { .. })
    }

    /// Returns true if the request changes memory.
    pub(super) fn writes(&self) -> bool {
        !self.reads()
    }

    /// Returns true for a READ of any kind.
    pub(super) const fn reads(&self) -> bool {
        matches!(
            self.work,
            Work::Read { .. } | Work::ReadTo { .. } | Work::KeyedRead { .. } | Work::Gather { .. }
        )
    }

    /// Returns the index after the last packet that the request packet at `index` asks for or carries.
    #[inline]
    pub(super) fn request_end(&self, index: u32, segment_packets: u32) -> u32 {
        match self.work {
            Work::Read { .. } | Work::ReadTo { .. } | Work::Gather { .. } => {
                let segment_start = index - index % segment_packets;
                segment_start.saturating_add(segment_packets).min(self.packets)
            }
            _ => index + 1,
        }
    }

    /// Returns offset and length of packet `index` in the buffer.
    #[inline]
    pub(super) fn span(&self, index: u32, config: &RequesterConfig) -> (usize, usize) {
        let pmtu = config.pmtu.bytes();
        let offset = index as usize * pmtu;
        (offset, (len_of(&self.work) as usize).saturating_sub(offset).min(pmtu))
    }

    /// Returns true if this WRITE or atomic would change bytes that the earlier request `read` reads
    /// (PROTOCOL 4.16).
    pub(super) fn must_follow(&self, read: &Self) -> bool {
        let theirs = match read.work {
            Work::Read { addr, .. } | Work::ReadTo { addr, .. } => addr,
            // Such a READ may read any address (PROTOCOL 15.9), or many (4.31).
            Work::KeyedRead { .. } | Work::Gather { .. } => return self.writes(),
            _ => return false,
        };
        let ours = match self.work {
            Work::Read { .. } | Work::ReadTo { .. } | Work::KeyedRead { .. } | Work::Gather { .. } => {
                return false;
            }
            Work::Write { addr, .. }
            | Work::WriteFrom { addr, .. }
            | Work::CmpSwap { addr, .. }
            | Work::FetchAdd { addr, .. } => addr,
        };
        // Neither range exceeds the address space ([`refusal`]), so overlapping ranges contain the start of
        // one another.
        ours.0.wrapping_sub(theirs.0) < u64::from(len_of(&read.work))
            || theirs.0.wrapping_sub(ours.0) < u64::from(len_of(&self.work))
    }

    /// Emits the request packet for packets `index..end` of this request.
    pub(super) fn emit<O, N>(
        &self,
        index: u32,
        end: u32,
        ack_req: bool,
        config: &RequesterConfig,
        out: &mut Outbox<O, N>,
    ) {
        let psn = psn_of(config, self.first + u64::from(index));
        let (opcode, ext) = self.headers(index, end, config);
        let bth = Bth { ack_req, ..Bth::new(opcode, config.peer_qpn, psn) };
        if let Work::Gather { addrs, buf } = &self.work {
            return self.emit_gather(addrs, buf.len(), (index, end), bth, config, out);
        }
        let payload = match &self.work {
            Work::Write { buf, .. } => {
                let (offset, len) = self.span(index, config);
                &buf[offset..offset + len]
            }
            _ => &[],
        };
        Packet { bth, ext, payload }.emit(out.frame(config.port).bytes());
    }

    /// Returns true for a WRITE whose payloads come from a source: [`Job::emit_from`].
    pub(super) const fn is_from(&self) -> bool {
        matches!(self.work, Work::WriteFrom { .. })
    }

    /// Emits packets `index..end` of a WRITE from a source, at most [`PACKETS_MAX`], whose payloads are
    /// taken in one call. If the source fails, returns false and sends nothing.
    #[inline(never)] // its list of pieces would stand in the frame of every other request
    pub(super) fn emit_from<O, N>(
        &self,
        (index, end): (u32, u32),
        asks: impl Fn(u64) -> bool,
        config: &RequesterConfig,
        out: &mut Outbox<O, N>,
    ) -> bool {
        let Work::WriteFrom { from, .. } = &self.work else { unreachable!("it has a stretch") };
        for at in index..end {
            let (opcode, ext) = self.headers(at, at + 1, config);
            let seq = self.first + u64::from(at);
            let bth =
                Bth { ack_req: asks(seq + 1), ..Bth::new(opcode, config.peer_qpn, psn_of(config, seq)) };
            let (_, len) = self.span(at, config);
            Packet::emit_with(&bth, &ext, len, out.frame(config.port).bytes(), |bytes| {
                bytes.resize(bytes.len() + len, 0);
            });
        }
        let (count, (offset, _)) = ((end - index) as usize, self.span(index, config));
        let mut pieces: [&mut [u8]; PACKETS_MAX as usize] = core::array::from_fn(|_| Default::default());
        for (at, (piece, frame)) in (index..).zip(pieces.iter_mut().zip(out.last_frames(count))) {
            // The payload is in front of its pad.
            let (_, len) = self.span(at, config);
            let to = frame.len() - (len.wrapping_neg() & 3);
            *piece = &mut frame[to - len..to];
        }
        let is_taken = from.fill(offset, &mut pieces[..count]);
        if !is_taken {
            out.take_back(count);
        }
        is_taken
    }

    /// Emits the request for packets `index..end` of a gather READ. Only pieces with bytes in these packets
    /// are named (PROTOCOL 4.30).
    fn emit_gather<O, N>(
        &self,
        addrs: &[VirtAddr],
        len: usize,
        (index, end): (u32, u32),
        bth: Bth,
        config: &RequesterConfig,
        out: &mut Outbox<O, N>,
    ) {
        let each = len / addrs.len();
        let (from, _) = self.span(index, config);
        let (last, last_len) = self.span(end - 1, config);
        let to = last + last_len;
        let (skip, named) = (from % each, &addrs[from / each..to.div_ceil(each)]);
        let (first, others) = named.split_first().expect("a packet has bytes of a piece");
        let reth = Reth { va: at(*first, skip), rkey: config.rkey, dma_len: byte_count(to - from) };
        let (len, ext) = (Gather::len_for(named.len()), Extension::Reth(reth));
        Packet::emit_with(&bth, &ext, len, out.frame(config.port).bytes(), |bytes| {
            Gather::emit(byte_count(each), byte_count(skip), others, bytes);
        });
    }

    #[inline]
    fn headers(&self, index: u32, end: u32, config: &RequesterConfig) -> (Opcode, Extension) {
        let rkey = config.rkey;
        match &self.work {
            Work::Read { addr, .. } | Work::ReadTo { addr, .. } => {
                let (from, _) = self.span(index, config);
                let (last, last_len) = self.span(end - 1, config);
                debug_assert!(last + last_len <= len_of(&self.work) as usize);
                let dma_len = byte_count(last + last_len - from);
                (Opcode::ReadRequest, Extension::Reth(Reth { va: at(*addr, from), rkey, dma_len }))
            }
            // The addresses follow (`emit_gather`).
            Work::Gather { .. } => (Opcode::GatherRequest, Extension::None),
            Work::KeyedRead { key, buf } => {
                let reth = Reth { va: VirtAddr(*key), rkey: Rkey(0), dma_len: byte_count(buf.len()) };
                (Opcode::ReadRequest, Extension::Reth(reth))
            }
            Work::Write { addr, buf } => {
                self.write_headers(index, Reth { va: *addr, rkey, dma_len: byte_count(buf.len()) })
            }
            Work::WriteFrom { addr, from } => {
                self.write_headers(index, Reth { va: *addr, rkey, dma_len: byte_count(from.len()) })
            }
            Work::CmpSwap { addr, compare, swap } => {
                let eth = AtomicEth { va: *addr, rkey, swap_or_add: *swap, compare: *compare };
                (Opcode::CmpSwap, Extension::AtomicEth(eth))
            }
            Work::FetchAdd { addr, add } => {
                let eth = AtomicEth { va: *addr, rkey, swap_or_add: *add, compare: 0 };
                (Opcode::FetchAdd, Extension::AtomicEth(eth))
            }
        }
    }

    const fn write_headers(&self, index: u32, reth: Reth) -> (Opcode, Extension) {
        match (index, index + 1 == self.packets) {
            (0, true) => (Opcode::WriteOnly, Extension::Reth(reth)),
            (0, false) => (Opcode::WriteFirst, Extension::Reth(reth)),
            (_, false) => (Opcode::WriteMiddle, Extension::None),
            (_, true) => (Opcode::WriteLast, Extension::None),
        }
    }

    /// Completes the request and returns its buffer.
    pub(super) fn finish(self, result: Result<u64, Failure>) -> Completion {
        finish(self.id, self.work, result)
    }
}

/// Completes request `id`, posted or not.
pub(super) fn finish(id: u64, work: Work, result: Result<u64, Failure>) -> Completion {
    Completion { id, result, work }
}

/// Returns the reason why no packet can carry this request, if none can (PROTOCOL 4.17, 15.9).
pub(super) fn refusal(work: &Work, pmtu: Pmtu) -> Option<Failure> {
    let (addr, len) = match work {
        Work::Gather { addrs, buf } => return gather_refusal(addrs, buf.len(), pmtu),
        Work::KeyedRead { buf, .. } => {
            let fits = (1..=pmtu.bytes()).contains(&buf.len());
            return (!fits).then_some(Failure::InvalidRequest);
        }
        Work::Read { addr, buf } | Work::Write { addr, buf } => (*addr, buf.len() as u64),
        Work::ReadTo { addr, to } => (*addr, to.len() as u64),
        Work::WriteFrom { addr, from } => (*addr, from.len() as u64),
        Work::CmpSwap { addr, .. } | Work::FetchAdd { addr, .. } => (*addr, u64::from(WORD_LEN)),
    };
    if len > u64::from(DMA_LEN_MAX) {
        Some(Failure::InvalidRequest)
    } else if len > 0 && addr.checked_add(len - 1).is_none() {
        Some(Failure::RemoteAccess)
    } else {
        None
    }
}

/// Returns the reason why no packet can carry this gather READ (PROTOCOL 4.31).
fn gather_refusal(addrs: &[VirtAddr], len: usize, pmtu: Pmtu) -> Option<Failure> {
    let pieces = addrs.len();
    let is_right = (1..=PIECES_MAX).contains(&pieces)
        && Gather::len_for(pieces) <= pmtu.bytes()
        && (1..=DMA_LEN_MAX as usize).contains(&len)
        && len.is_multiple_of(pieces);
    if !is_right {
        return Some(Failure::InvalidRequest);
    }
    let leaves = |addr: &VirtAddr| addr.checked_add((len / pieces) as u64 - 1).is_none();
    addrs.iter().any(leaves).then_some(Failure::RemoteAccess)
}

/// Returns the most PSNs of one READ request packet: a burst that leaves room for others in the window
/// (PROTOCOL 4.8).
pub(super) fn segment_packets(config: &RequesterConfig) -> u32 {
    (READ_SEGMENT_MAX / config.pmtu as u32).min(config.window_psns / 4).max(1)
}

/// Returns the PSN of packet `seq`.
pub(super) fn psn_of(config: &RequesterConfig, seq: u64) -> Psn {
    #[expect(clippy::cast_possible_truncation, reason = "a PSN is the sequence number modulo 2^24")]
    let low = seq as u32;
    config.first_psn.plus(low)
}

#[inline]
fn len_of(work: &Work) -> u32 {
    match work {
        Work::Read { buf, .. }
        | Work::KeyedRead { buf, .. }
        | Work::Gather { buf, .. }
        | Work::Write { buf, .. } => byte_count(buf.len()),
        Work::ReadTo { to, .. } => byte_count(to.len()),
        Work::WriteFrom { from, .. } => byte_count(from.len()),
        Work::CmpSwap { .. } | Work::FetchAdd { .. } => WORD_LEN,
    }
}

fn byte_count(len: usize) -> u32 {
    u32::try_from(len).expect("post refuses what is longer than DMA_LEN_MAX")
}

/// Returns the address `offset` bytes into a request; [`refusal`] made sure that it exists.
fn at(addr: VirtAddr, offset: usize) -> VirtAddr {
    VirtAddr(addr.0 + offset as u64)
}
