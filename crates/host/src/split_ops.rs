//! READs and WRITEs split into segments, one for each node (PROTOCOL 11.10), and gather READs sent as a READ
//! for each piece (11.15).

use crate::{Answer, Done, Failure, Out, Sink};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use farmem_transport::rc::{SinkPart, SourcePart, Work};
use farmem_wire::VirtAddr;

/// Bit that marks segment ids. No user ticket has it: tickets are below 2^63.
const SEGMENT: u64 = 1 << 63;

/// A segment: its offset in the operation, and its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) skip: u64,
    pub(crate) len: u64,
}

#[derive(Debug)]
struct SplitOp {
    ticket: u64,
    write: bool,
    /// The buffer of a READ or WRITE, if it has one.
    buf: Vec<u8>,
    /// The destination of a READ without a buffer.
    to: Option<SinkPart>,
    /// The source of a WRITE without a buffer.
    from: Option<SourcePart>,
    left: usize,
    /// The failure with the smallest offset, and that offset.
    failure: Option<(u64, Failure)>,
}

/// The operations in flight in segments.
#[derive(Debug, Default)]
pub(crate) struct SplitOps {
    ops: BTreeMap<u64, SplitOp>,
    segments: BTreeMap<u64, (u64, Segment)>,
    count: u64,
}

impl SplitOps {
    /// Returns true if the id names a segment.
    pub(crate) const fn is_segment(id: u64) -> bool {
        id & SEGMENT != 0
    }

    /// Splits a READ or WRITE, or a segment of one. Returns the id and the work of each segment.
    ///
    /// # Panics
    ///
    /// If the operation is an atomic.
    pub(crate) fn split(&mut self, id: u64, work: Work, segments: &[Segment]) -> Vec<(u64, Work)> {
        let (write, first, buf, to, from) = match work {
            Work::Read { addr, buf } => (false, addr, buf, None, None),
            Work::ReadTo { addr, to } => (false, addr, Vec::new(), Some(to), None),
            Work::Write { addr, buf } => (true, addr, buf, None, None),
            Work::WriteFrom { addr, from } => (true, addr, Vec::new(), None, Some(from)),
            Work::KeyedRead { .. } | Work::Gather { .. } | Work::CmpSwap { .. } | Work::FetchAdd { .. } => {
                unreachable!("it has one place")
            }
        };
        let (name, before) = match self.segments.remove(&id) {
            Some((name, segment)) => (name, segment.skip),
            None => {
                self.count += 1;
                let op = SplitOp { ticket: id, write, buf, to, from, left: 1, failure: None };
                self.ops.insert(self.count, op);
                (self.count, 0)
            }
        };
        let op = self.ops.get_mut(&name).expect("an operation ends after its segments");
        op.left += segments.len() - 1;
        let each = segments.iter().map(|&Segment { skip, len }| {
            self.count += 1;
            let id = SEGMENT | self.count;
            let segment = Segment { skip: before + skip, len };
            self.segments.insert(id, (name, segment));
            let addr = VirtAddr(first.0 + skip);
            let work = match (&op.to, &op.from) {
                (Some(to), _) => Work::ReadTo { addr, to: to.part(segment.skip, span(segment).len()) },
                (_, Some(from)) => {
                    Work::WriteFrom { addr, from: from.part(segment.skip, span(segment).len()) }
                }
                _ if write => Work::Write { addr, buf: op.buf[span(segment)].to_vec() },
                _ => Work::Read { addr, buf: vec![0; span(segment).len()] },
            };
            (id, work)
        });
        each.collect()
    }

    /// Makes a segment of each piece of a gather READ. Returns the id and the work of each.
    pub(crate) fn gather(&mut self, ticket: u64, addrs: &[VirtAddr], buf: Vec<u8>) -> Vec<(u64, Work)> {
        let len = buf.len() / addrs.len();
        self.count += 1;
        let name = self.count;
        self.ops.insert(
            name,
            SplitOp { ticket, write: false, buf, to: None, from: None, left: addrs.len(), failure: None },
        );
        let each = (0..).zip(addrs).map(|(piece, &addr)| {
            self.count += 1;
            let id = SEGMENT | self.count;
            self.segments.insert(id, (name, Segment { skip: piece * len as u64, len: len as u64 }));
            (id, Work::Read { addr, buf: vec![0; len] })
        });
        each.collect()
    }

    /// Ends a segment. The operation ends with its last segment.
    pub(crate) fn ended(&mut self, id: u64, result: Result<Answer, Failure>, buf: Vec<u8>, out: &mut Sink) {
        let (name, segment) = self.segments.remove(&id).expect("a segment ends once");
        let op = self.ops.get_mut(&name).expect("an operation ends after its segments");
        match result {
            Ok(_) if !op.write && op.to.is_none() => op.buf[span(segment)].copy_from_slice(&buf),
            Ok(_) => {}
            Err(failure) if op.failure.is_none_or(|(skip, _)| segment.skip < skip) => {
                op.failure = Some((segment.skip, failure));
            }
            Err(_) => {}
        }
        op.left -= 1;
        if op.left == 0
            && let Some(SplitOp { ticket, buf, failure, .. }) = self.ops.remove(&name)
        {
            let result = failure.map_or(Ok(Answer::Done { old: 0 }), |(_, failure)| Err(failure));
            out.local(Out::Done(Done { ticket, result, buf }));
        }
    }

    pub(crate) fn check(&self, outstanding: usize) {
        assert!(self.segments.len() <= outstanding, "a segment is under way on a connection");
        assert!(self.ops.values().all(|op| op.left > 0), "an operation that is under way has segments");
    }
}

fn span(segment: Segment) -> core::ops::Range<usize> {
    let index = |at: u64| usize::try_from(at).expect("a buffer is in memory");
    index(segment.skip)..index(segment.skip + segment.len)
}
