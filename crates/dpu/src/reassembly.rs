//! One direction of a TCP connection, reassembled from a mirror's packets (RFC 9293 3.4): in order, each byte
//! once, in a bounded buffer.
//!
//! Key type: [`Stream`]. A mirror is passive: it cannot ask for retransmissions. Duplicate bytes are skipped
//! and early bytes are buffered. If too many are buffered, the missing bytes count as lost and are reported
//! (PROTOCOL 19.13). The module does not verify checksums (the kernel that received the packet does), and
//! does not group packets by connection.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Maximum number of buffered early bytes.
pub const EARLY_BYTES_MAX: usize = 256 << 10;
/// Maximum number of buffered packets.
pub const EARLY_PACKETS_MAX: usize = 64;
/// Memory in bytes that a buffered packet takes beside its bytes: its map entry, perhaps half empty, and the
/// allocator's overhead.
const EARLY_PACKET_LEN: usize = 96;

/// The next part of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next<'a> {
    /// The next bytes.
    Bytes(&'a [u8]),
    /// This many lost bytes; `None` if the beginning of the connection was not seen.
    Lost(Option<u64>),
}

/// The header fields of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Segment {
    /// The sequence number of its first byte.
    pub seq: u32,
    /// True if the packet begins the connection: its number precedes the first byte's.
    pub syn: bool,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub struct Stream {
    /// The sequence number of the next byte.
    next: Option<u32>,
    /// Early packets, by offset from the byte that was next when the first of them arrived.
    early: BTreeMap<u64, Vec<u8>>,
    early_bytes: usize,
    /// Bytes that came in order since then.
    passed: u64,
}

impl Stream {
    /// Handles a packet. Calls `each` for each part that is next now.
    pub fn packet(&mut self, segment: Segment, bytes: &[u8], each: &mut dyn FnMut(Next<'_>)) {
        if segment.syn {
            // A new connection replaces an old one, or the first packet came again.
            let first = segment.seq.wrapping_add(1);
            if self.next != Some(first) || !self.early.is_empty() {
                *self = Self { next: Some(first), ..Self::default() };
            }
        }
        let seq = segment.seq.wrapping_add(u32::from(segment.syn));
        let next = *self.next.get_or_insert_with(|| {
            each(Next::Lost(None));
            seq
        });
        // Half of all sequence numbers are behind, half ahead.
        let ahead = seq.wrapping_sub(next).cast_signed();
        match u32::try_from(ahead) {
            Err(_) => {
                let again = usize::try_from(ahead.unsigned_abs()).unwrap_or(usize::MAX);
                if let Some(new) = bytes.get(again..).filter(|new| !new.is_empty()) {
                    self.pass(new, each);
                }
            }
            Ok(0) => self.pass(bytes, each),
            Ok(ahead) => self.keep(self.passed + u64::from(ahead), bytes),
        }
        self.wake(each);
        while self.early_bytes > EARLY_BYTES_MAX || self.early.len() > EARLY_PACKETS_MAX {
            self.give_up(each);
        }
    }

    /// Gives up missing bytes: the connection continues behind them. Called when the mirror reports a loss.
    pub fn give_up(&mut self, each: &mut dyn FnMut(Next<'_>)) {
        let Some((&at, _)) = self.early.first_key_value() else { return };
        let lost = at - self.passed;
        each(Next::Lost(Some(lost)));
        self.go_on(lost);
        self.wake(each);
    }

    /// Returns the number of buffered early bytes.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.early_bytes
    }

    /// Returns the memory in bytes of all buffered packets.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.early_bytes + self.early.len() * EARLY_PACKET_LEN
    }

    fn pass(&mut self, bytes: &[u8], each: &mut dyn FnMut(Next<'_>)) {
        if !bytes.is_empty() {
            each(Next::Bytes(bytes));
            self.go_on(bytes.len() as u64);
        }
    }

    fn go_on(&mut self, by: u64) {
        self.passed += by;
        let by = u32::try_from(by).expect("a packet's bytes, or a distance of 31 bits");
        self.next = self.next.map(|next| next.wrapping_add(by));
    }

    fn keep(&mut self, at: u64, bytes: &[u8]) {
        let known = self.early.get(&at).map_or(0, Vec::len);
        if bytes.len() > known {
            self.early_bytes += bytes.len() - known;
            self.early.insert(at, bytes.to_vec());
        }
    }

    /// Passes on buffered bytes that are next now.
    fn wake(&mut self, each: &mut dyn FnMut(Next<'_>)) {
        while let Some(first) = self.early.first_entry().filter(|first| *first.key() <= self.passed) {
            let (at, bytes) = first.remove_entry();
            self.early_bytes -= bytes.len();
            let again = usize::try_from(self.passed - at).unwrap_or(usize::MAX);
            if let Some(new) = bytes.get(again..) {
                self.pass(new, each);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_machine::Rng;

    /// Feeds packets as (offset, bytes) of one stream that begins at `first`.
    fn put_together(first: u32, packets: &[(u32, &[u8])]) -> (Vec<u8>, Vec<Option<u64>>) {
        let (mut stream, mut all, mut lost) = (Stream::default(), Vec::new(), Vec::new());
        let mut each = |next: Next<'_>| match next {
            Next::Bytes(bytes) => all.extend_from_slice(bytes),
            Next::Lost(count) => lost.push(count),
        };
        let syn = Segment { seq: first.wrapping_sub(1), syn: true };
        stream.packet(syn, &[], &mut each);
        for (offset, bytes) in packets {
            let seq = first.wrapping_add(*offset);
            stream.packet(Segment { seq, syn: false }, bytes, &mut each);
        }
        (all, lost)
    }

    /// Packets in order, twice, overlapping, and early, also across the wrap of sequence numbers.
    #[test]
    fn each_byte_comes_once_and_in_order() {
        for first in [1000, u32::MAX - 3] {
            let packets: [(u32, &[u8]); 6] =
                [(0, b"ab"), (0, b"ab"), (4, b"ef"), (1, b"bcd"), (5, b"fgh"), (2, b"cdefghij")];
            assert_eq!(put_together(first, &packets), (b"abcdefghij".to_vec(), Vec::new()));
        }
    }

    /// A packet never comes: once too many wait for it, its bytes are reported as lost, and the rest
    /// continues.
    #[test]
    fn what_never_comes_is_lost() {
        let piece = [7; 100];
        let packets: Vec<(u32, &[u8])> = (0_u32..)
            .take(EARLY_PACKETS_MAX + 3)
            .filter(|n| *n != 1)
            .map(|n| (n * 100, &piece[..]))
            .collect();
        let (all, lost) = put_together(5, &packets);
        assert_eq!(lost, [Some(100)]);
        assert_eq!(all.len(), packets.len() * 100);
    }

    /// A connection whose beginning was not seen reports that, and continues from there.
    #[test]
    fn a_begin_that_was_not_seen_is_said() {
        let (mut stream, mut heard) = (Stream::default(), 0);
        stream.packet(Segment { seq: 77, syn: false }, b"x", &mut |next| {
            heard += 1;
            match heard {
                1 => assert_eq!(next, Next::Lost(None)),
                _ => assert_eq!(next, Next::Bytes(b"x")),
            }
        });
        assert_eq!(heard, 2);
    }

    /// Random packets of a known stream, some lost, some twice, in a random nearby order: the output is the
    /// stream without the bytes reported lost, and the buffer is bounded.
    #[test]
    fn any_packets_give_the_stream_or_say_what_is_lost() {
        const DATA: u32 = 20_000;
        for seed in 0..300 {
            let mut rng = Rng::from_number(seed);
            let first = rng.next_u32();
            let data: Vec<u8> = (0..DATA).map(|n: u32| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
            let mut packets: Vec<(u32, usize)> = Vec::new();
            let mut at = 0_u32;
            while at < DATA {
                let len = (1 + rng.below(300)).min(DATA - at);
                for _ in 0..=u32::from(rng.chance(1, 8)) {
                    if !rng.chance(1, 20) {
                        packets.push((at, len as usize));
                    }
                }
                at += len;
            }
            for n in 1..packets.len() {
                if rng.chance(1, 4) {
                    packets.swap(n, n - 1);
                }
            }
            let (mut stream, mut at) = (Stream::default(), 0_usize);
            let mut each = |next: Next<'_>| match next {
                Next::Bytes(bytes) => {
                    assert_eq!(bytes, &data[at..at + bytes.len()], "seed {seed} at {at}");
                    at += bytes.len();
                }
                Next::Lost(count) => at += usize::try_from(count.expect("its begin was seen")).unwrap(),
            };
            stream.packet(Segment { seq: first.wrapping_sub(1), syn: true }, &[], &mut each);
            for &(from, len) in &packets {
                let bytes = &data[from as usize..from as usize + len];
                stream.packet(Segment { seq: first.wrapping_add(from), syn: false }, bytes, &mut each);
                assert!(stream.waiting() <= EARLY_BYTES_MAX);
            }
            while stream.waiting() > 0 {
                stream.give_up(&mut each);
            }
            let end = packets.iter().map(|&(from, len)| from as usize + len).max().unwrap();
            assert_eq!(at, end, "seed {seed}");
        }
    }
}
