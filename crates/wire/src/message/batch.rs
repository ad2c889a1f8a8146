//! A batch: one program and several traversals of it in one datagram (PROTOCOL 3.13).
//!
//! Key types: [`Batch`] and its [`Pair`]s; [`PairBuf`], which collects pairs. A pair is a traversal with a
//! request id of its own, so each pair is retransmitted, executed once, continued and answered separately. A
//! batch is equivalent to that many [`super::Traverse`] messages.

use super::{CODE_LEN_MAX, Header, SCRATCH_LEN_MAX, Status, Traverse};
use crate::reader::{Reader, be16, be32, be64, field};
use crate::{Pmtu, ProgramHash, RequestId, VirtAddr, WireError};
use alloc::vec::Vec;

/// Pairs of one batch at most.
pub const PAIRS_MAX: u16 = 64;

/// Bytes before code and pairs: the program's name, the lengths and reserved bytes.
const FIXED_LEN: usize = 24;
/// Bytes of a pair before its scratch pad.
const PAIR_LEN: usize = 24;

/// Several traversals of one program in a request, or the outcomes of several in a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch<'a> {
    program: ProgramHash,
    code: &'a [u8],
    count: u16,
    /// The encoded pairs, validated when the batch was created.
    pairs: &'a [u8],
}

/// One traversal of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair<'a> {
    /// Counter of the pair's request id. Host and generation are those of the header's id.
    pub counter: u32,
    /// Outcome; [`Status::Ok`] in a request.
    pub status: Status,
    /// As [`Traverse::cur_ptr`].
    pub cur_ptr: VirtAddr,
    /// As [`Traverse::iterations`].
    pub iterations: u32,
    /// As [`Traverse::limit`].
    pub limit: u32,
    /// As [`Traverse::scratch`].
    pub scratch: &'a [u8],
}

impl<'a> Pair<'a> {
    /// Creates the pair for the traversal of a request or a response.
    #[must_use]
    pub fn of(request: RequestId, status: Status, traverse: &Traverse<'a>) -> Self {
        let Traverse { cur_ptr, iterations, limit, scratch, .. } = *traverse;
        Self { counter: request.counter(), status, cur_ptr, iterations, limit, scratch }
    }

    /// Returns the number of bytes that [`Pair::emit`] appends.
    #[must_use]
    pub const fn len(&self) -> usize {
        PAIR_LEN + self.scratch.len()
    }

    /// Returns false: a pair is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Appends the pair.
    ///
    /// # Panics
    /// If the scratch pad is longer than [`SCRATCH_LEN_MAX`].
    #[inline(always)]
    pub fn emit(&self, out: &mut Vec<u8>) {
        assert!(self.scratch.len() <= SCRATCH_LEN_MAX, "a scratch pad is within its bound");
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        let scratch_len = self.scratch.len() as u16;
        let mut fixed = [0; PAIR_LEN];
        fixed[..4].copy_from_slice(&self.counter.to_be_bytes());
        fixed[4..8].copy_from_slice(&self.iterations.to_be_bytes());
        fixed[8..16].copy_from_slice(&self.cur_ptr.0.to_be_bytes());
        fixed[16..20].copy_from_slice(&self.limit.to_be_bytes());
        fixed[20..22].copy_from_slice(&scratch_len.to_be_bytes());
        fixed[22] = self.status as u8;
        out.extend_from_slice(&fixed);
        out.extend_from_slice(self.scratch);
    }

    #[inline]
    fn read(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let fixed = r.fixed::<PAIR_LEN>()?;
        let scratch_len = usize::from(be16(fixed, 20));
        let Some(status) = Status::from_bits(fixed[22]) else {
            return Err(WireError::Unknown { what: "pair.status", value: u64::from(fixed[22]) });
        };
        if fixed[23] != 0 {
            return Err(WireError::Reserved { what: "pair.reserved" });
        }
        if scratch_len > SCRATCH_LEN_MAX {
            let (what, most) = ("pair.scratch", SCRATCH_LEN_MAX);
            return Err(WireError::Long { what, most, have: scratch_len });
        }
        Ok(Self {
            counter: be32(fixed, 0),
            status,
            cur_ptr: VirtAddr(be64(fixed, 8)),
            iterations: be32(fixed, 4),
            limit: be32(fixed, 16),
            scratch: r.take(scratch_len)?,
        })
    }
}

/// A buffer that collects the pairs of a batch.
#[derive(Clone, Debug, Default)]
pub struct PairBuf {
    bytes: Vec<u8>,
    count: u16,
    /// The counter of the first pair.
    first: u32,
    /// True if a pair has another status than [`Status::Ok`].
    has_status: bool,
}

impl PairBuf {
    /// Appends a pair.
    ///
    /// # Panics
    /// If there are [`PAIRS_MAX`] already, or the scratch pad is longer than [`SCRATCH_LEN_MAX`].
    #[inline]
    pub fn push(&mut self, pair: &Pair<'_>) {
        assert!(self.count < PAIRS_MAX, "a batch has at most {PAIRS_MAX} pairs");
        if self.count == 0 {
            self.first = pair.counter;
        }
        self.count += 1;
        self.has_status |= pair.status != Status::Ok;
        pair.emit(&mut self.bytes);
    }

    /// Removes all pairs and keeps the allocation.
    pub fn clear(&mut self) {
        self.bytes.clear();
        (self.count, self.has_status) = (0, false);
    }

    /// Returns the number of pairs.
    #[must_use]
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// Returns the bytes of all pairs.
    #[must_use]
    pub const fn bytes_len(&self) -> usize {
        self.bytes.len()
    }
}

impl<'a> Batch<'a> {
    /// Returns the bytes that code and pairs together have in one datagram.
    #[must_use]
    pub const fn room(pmtu: Pmtu) -> usize {
        pmtu.bytes() - Header::LEN - FIXED_LEN
    }

    /// Creates a batch of the pairs in a buffer, for a message with this header. Does not validate the pairs
    /// again.
    ///
    /// # Panics
    /// If [`Batch::new`] would refuse the batch.
    #[must_use]
    pub fn of(header: &Header, program: ProgramHash, code: &'a [u8], pairs: &'a PairBuf) -> Self {
        assert!(pairs.count > 0, "a batch has a pair");
        assert_eq!(pairs.first, header.request.counter(), "a batch goes by its first pair");
        assert!(code.len() <= CODE_LEN_MAX, "code is within its bound");
        assert!(!header.response || code.is_empty(), "a response carries no code");
        let may_have_status = header.response && header.status == Status::Ok;
        assert!(may_have_status || !pairs.has_status, "pairs have a status where the header has none");
        Self { program, code, count: pairs.count, pairs: &pairs.bytes }
    }

    /// Creates a batch of `count` encoded pairs, for a message with this header.
    ///
    /// # Errors
    /// The [`WireError`] of [`super::Message::parse`] for such a batch: no pair or more than [`PAIRS_MAX`], a
    /// status or no code in a request, code in a response, or a header that does not match the first pair.
    pub fn new(
        header: &Header,
        program: ProgramHash,
        code: &'a [u8],
        count: u16,
        pairs: &'a [u8],
    ) -> Result<Self, WireError> {
        if code.len() > CODE_LEN_MAX || header.response && !code.is_empty() {
            let most = if header.response { 0 } else { CODE_LEN_MAX };
            return Err(WireError::Long { what: "batch.code", most, have: code.len() });
        }
        if !(1..=PAIRS_MAX).contains(&count) {
            return Err(WireError::Unknown { what: "batch.count", value: u64::from(count) });
        }
        let mut r = Reader::new("batch.pairs", pairs);
        for n in 0..count {
            let pair = Pair::read(&mut r)?;
            if n == 0 && pair.counter != header.request.counter() {
                let value = u64::from(pair.counter);
                return Err(WireError::Unknown { what: "counter of the first pair", value });
            }
            // If the whole batch was refused, only the header has the status.
            let ended = pair.status != Status::Ok;
            if ended && (!header.response || header.status != Status::Ok) {
                return Err(WireError::Unknown { what: "status of a pair", value: pair.status as u64 });
            }
        }
        r.end()?;
        Ok(Self { program, code, count, pairs })
    }

    /// Returns the program's name.
    #[must_use]
    pub const fn program(&self) -> ProgramHash {
        self.program
    }

    /// Returns the program's encoded form; empty if the sender expects that the node has it.
    #[must_use]
    pub const fn code(&self) -> &'a [u8] {
        self.code
    }

    /// Returns the number of pairs, at least 1.
    #[must_use]
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// Returns the first pair. The switch routes all pairs by it.
    #[must_use]
    pub fn first(&self) -> Pair<'a> {
        self.pairs().next().expect("a batch has a pair")
    }

    /// Returns all pairs, in order.
    #[must_use]
    pub fn pairs(&self) -> Pairs<'a> {
        Pairs { rest: Reader::new("batch.pairs", self.pairs), left: self.count }
    }

    /// Returns the pair as the body of a separate message.
    #[must_use]
    pub fn traverse(&self, pair: &Pair<'a>) -> Traverse<'a> {
        let Pair { cur_ptr, iterations, limit, scratch, .. } = *pair;
        Traverse { program: self.program, cur_ptr, iterations, limit, scratch, code: self.code }
    }

    /// Returns the batch without code, for a response.
    #[must_use]
    pub const fn without_code(self) -> Self {
        Self { code: &[], ..self }
    }

    pub(super) fn read(r: &mut Reader<'a>, header: &Header) -> Result<Self, WireError> {
        let fixed = r.fixed::<FIXED_LEN>()?;
        if be32(fixed, 20) != 0 {
            return Err(WireError::Reserved { what: "batch.reserved" });
        }
        let code = r.take(usize::from(be16(fixed, 16)))?;
        Self::new(header, ProgramHash(field(fixed, 0)), code, be16(fixed, 18), r.rest())
    }

    pub(super) fn emit(&self, header: &Header, out: &mut Vec<u8>) {
        assert!(!header.response || self.code.is_empty(), "a response carries no code");
        assert_eq!(self.first().counter, header.request.counter(), "a batch goes by its first pair");
        let code_len = u16::try_from(self.code.len()).expect("code is within its bound");
        let mut fixed = [0; FIXED_LEN];
        fixed[..16].copy_from_slice(&self.program.0);
        fixed[16..18].copy_from_slice(&code_len.to_be_bytes());
        fixed[18..20].copy_from_slice(&self.count.to_be_bytes());
        out.extend_from_slice(&fixed);
        out.extend_from_slice(self.code);
        out.extend_from_slice(self.pairs);
    }

    pub(super) const fn len(&self) -> usize {
        FIXED_LEN + self.code.len() + self.pairs.len()
    }
}

/// Iterator over the pairs of a batch.
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    rest: Reader<'a>,
    left: u16,
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Pair<'a>;

    #[inline]
    fn next(&mut self) -> Option<Pair<'a>> {
        self.left = self.left.checked_sub(1)?;
        Some(Pair::read(&mut self.rest).expect("they were read when the batch was made"))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::{Body, Domain, HostId, Message};
    use alloc::vec;
    use proptest::prelude::*;

    const REQUEST: Header = Header {
        domain: Domain(3),
        origin: HostId(4),
        ..Header::request(RequestId::new(HostId(4), 2, 9), 5)
    };
    const PROGRAM: ProgramHash = ProgramHash([0xaa; 16]);

    fn pair(counter: u32, scratch: &[u8]) -> Pair<'_> {
        let cur_ptr = VirtAddr(0x2122_2324_2526_2728);
        Pair { counter, status: Status::Ok, cur_ptr, iterations: 5, limit: 100, scratch }
    }

    fn emitted(pairs: &[Pair<'_>]) -> Vec<u8> {
        let mut bytes = vec![];
        pairs.iter().for_each(|pair| pair.emit(&mut bytes));
        bytes
    }

    fn payload(header: Header, code: &[u8], pairs: &[Pair<'_>]) -> Vec<u8> {
        let mut buf = PairBuf::default();
        pairs.iter().for_each(|pair| buf.push(pair));
        let batch = Batch::of(&header, PROGRAM, code, &buf);
        let bytes = emitted(pairs);
        let count = u16::try_from(pairs.len()).unwrap();
        assert_eq!((buf.count(), buf.bytes_len()), (count, bytes.len()));
        assert_eq!(Batch::new(&header, PROGRAM, code, count, &bytes), Ok(batch));
        let message = Message { header, body: Body::Batch(batch) };
        let mut payload = vec![];
        message.emit(&mut payload);
        assert_eq!(payload.len(), message.len());
        payload
    }

    /// PROTOCOL 3.13, byte by byte.
    #[test]
    fn a_batch_stands_where_the_protocol_says() {
        let payload = payload(REQUEST, b"code", &[pair(9, b"one"), pair(12, b"")]);
        let body = &payload[Header::LEN..];
        assert_eq!((payload[1], &body[..16]), (0x11, &[0xaa; 16][..]));
        assert_eq!(body[16..24], [0, 4, 0, 2, 0, 0, 0, 0]);
        assert_eq!(&body[24..28], b"code");
        let first = [
            0, 0, 0, 9, 0, 0, 0, 5, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0, 0, 0, 100, 0, 3, 0, 0,
        ];
        assert_eq!((&body[28..52], &body[52..55]), (&first[..], &b"one"[..]));
        assert_eq!((body[58], body.len()), (12, 79));
        let Body::Batch(batch) = Message::parse(&payload).unwrap().body else { panic!("a batch") };
        assert_eq!((batch.count(), batch.code(), batch.first()), (2, &b"code"[..], pair(9, b"one")));
        assert_eq!(batch.pairs().collect::<Vec<_>>(), [pair(9, b"one"), pair(12, b"")]);
        let state = batch.traverse(&pair(12, b""));
        assert_eq!((state.program, state.code, state.limit), (PROGRAM, &b"code"[..], 100));
    }

    /// Each malformed batch is refused, and the error names the field: no pair or too many, a status in a
    /// request, code in a response, and a header that does not match the first pair.
    #[test]
    fn a_batch_that_makes_no_sense_is_refused() {
        let good = emitted(&[pair(9, b"")]);
        let (ended, refused) = (REQUEST.answer(Status::Ok), REQUEST.answer(Status::Malformed));
        let new = |header: &Header, code: &'static [u8], count, pairs: &[u8]| {
            Batch::new(header, PROGRAM, code, count, pairs).map(|batch| batch.count())
        };
        assert_eq!(new(&REQUEST, b"code", 1, &good), Ok(1));
        assert_eq!(new(&refused, b"", 1, &good), Ok(1));
        assert!(matches!(new(&ended, b"code", 1, &good), Err(WireError::Long { what: "batch.code", .. })));
        for count in [0, PAIRS_MAX + 1, u16::MAX] {
            let value = u64::from(count);
            let error = WireError::Unknown { what: "batch.count", value };
            assert_eq!(new(&REQUEST, b"", count, &good), Err(error));
        }
        assert!(matches!(new(&REQUEST, b"", 2, &good), Err(WireError::Short { .. })));
        assert!(matches!(new(&REQUEST, b"", 1, &[&good[..], b"x"].concat()), Err(WireError::Long { .. })));
        let other = emitted(&[pair(8, b"")]);
        let error = WireError::Unknown { what: "counter of the first pair", value: 8 };
        assert_eq!(new(&REQUEST, b"", 1, &other), Err(error));
        let busy = emitted(&[Pair { status: Status::Busy, ..pair(9, b"") }]);
        let error = WireError::Unknown { what: "status of a pair", value: 10 };
        assert_eq!(new(&REQUEST, b"", 1, &busy), Err(error));
        assert_eq!(new(&refused, b"", 1, &busy), Err(error), "the header says it of all");
        assert_eq!(new(&ended, b"", 1, &busy), Ok(1));
        for (at, what) in [(22, "pair.status"), (23, "pair.reserved")] {
            let mut bytes = good.clone();
            bytes[at] = 0xff;
            let error = new(&ended, b"", 1, &bytes).unwrap_err();
            assert!(alloc::format!("{error:?}").contains(what), "{error:?}");
        }
        let mut long = good.clone();
        long[20..22].fill(0xff);
        assert!(matches!(new(&REQUEST, b"", 1, &long), Err(WireError::Long { what: "pair.scratch", .. })));
        let mut reserved = payload(REQUEST, b"", &[pair(9, b"")]);
        reserved[Header::LEN + 23] = 1;
        assert_eq!(Message::parse(&reserved), Err(WireError::Reserved { what: "batch.reserved" }));
    }

    /// A sender that creates a malformed batch breaks an invariant: no pair, a header that does not match the
    /// first pair, a status in a request, code in a response. A cleared buffer has none of its former pairs.
    #[test]
    fn a_batch_of_our_own_makes_sense() {
        let busy = Pair { status: Status::Busy, ..pair(9, b"") };
        let answer = REQUEST.answer(Status::Ok);
        let makes = |header: Header, code: &[u8], pairs: &[Pair<'_>]| {
            let mut buf = PairBuf::default();
            buf.push(&busy);
            buf.clear();
            pairs.iter().for_each(|pair| buf.push(pair));
            std::panic::catch_unwind(|| Batch::of(&header, PROGRAM, code, &buf).count()).ok()
        };
        assert_eq!(makes(REQUEST, b"code", &[pair(9, b""), pair(8, b"")]), Some(2));
        assert_eq!(makes(answer, b"", &[busy]), Some(1));
        assert_eq!(makes(REQUEST, b"", &[]), None);
        assert_eq!(makes(REQUEST, b"", &[pair(8, b"")]), None);
        assert_eq!(makes(REQUEST, b"", &[busy]), None);
        assert_eq!(makes(REQUEST.answer(Status::Malformed), b"", &[busy]), None);
        assert_eq!(makes(answer, b"code", &[pair(9, b"")]), None);
        let mut full = PairBuf::default();
        (0..u32::from(PAIRS_MAX)).for_each(|n| full.push(&pair(9 + n, b"")));
        assert!(std::panic::catch_unwind(move || full.push(&pair(9, b""))).is_err());
    }

    /// PROTOCOL 3.3: a message with a byte less or a byte more is refused.
    #[test]
    fn every_truncation_and_every_extra_byte_is_refused() {
        let mut payload = payload(REQUEST, b"code", &[pair(9, b"pad"), pair(10, b"pad")]);
        for have in 0..payload.len() {
            assert!(Message::parse(&payload[..have]).is_err(), "{have} bytes");
        }
        payload.push(0);
        assert!(Message::parse(&payload).is_err());
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(
            response: bool, code in prop::collection::vec(any::<u8>(), 0..64),
            pairs in prop::collection::vec((any::<u32>(), 0..19_u8, any::<u64>(), any::<u32>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..64)), 1..64),
        ) {
            let pairs: Vec<_> = pairs.iter().map(|(counter, status, cur_ptr, iterations, limit, scratch)| Pair {
                counter: *counter,
                status: if response { Status::from_bits(*status).unwrap() } else { Status::Ok },
                cur_ptr: VirtAddr(*cur_ptr),
                iterations: *iterations,
                limit: *limit,
                scratch,
            }).collect();
            let request = Header { request: REQUEST.request.with_counter(pairs[0].counter), ..REQUEST };
            let header = if response { request.answer(Status::Ok) } else { request };
            let code = if response { &[][..] } else { &code };
            let payload = payload(header, code, &pairs);
            let message = Message::parse(&payload).unwrap();
            let Body::Batch(batch) = message.body else { panic!("a batch") };
            prop_assert_eq!(message.header, header);
            prop_assert_eq!((batch.program(), batch.code()), (PROGRAM, code));
            prop_assert_eq!(batch.pairs().collect::<Vec<_>>(), pairs);
        }
    }
}
