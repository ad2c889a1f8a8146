//! Scans that return records: copies the records that a tree's values point to, in as few datagrams as hold
//! them (PULSE 6: WiredTiger).
//!
//! Key types: [`Records`], the records of a tree; [`RecordScan`], a running scan. A scan begins with a
//! traversal from the root along the leaves. The traversal collects key-address pairs in its scratch pad,
//! then follows the addresses and copies record after record after the pairs until the pad is full. Further
//! traversals start with pairs in the pad and fetch the rest, all in parallel. A scan thus takes two round
//! trips for any number of records, up to the pairs that one pad holds. One READ fetches adjacent records.
//!
//! With several memory nodes, records may lie on other nodes than the leaves. A traversal would carry its pad
//! from node to node. The first traversal therefore collects only pairs, and each memory node receives
//! traversals of its own for its records.
//!
//! # Concurrent readers
//!
//! For pairs, the guarantees of [the tree](super) hold. One load reads a record, and a WRITE of one packet
//! comes before or after that load, so a reader sees whole records. An insert writes the record first and
//! then the tree's leaf. A replacement writes a new record and stores its address in place of the old one
//! ([`BTree::update`]). A replacement may also overwrite the record by one WRITE, if readers may see the new
//! record beside older neighbours. A removed record must stay unchanged until all scans that may have its
//! address have ended.

use super::{BTree, Cursor, LEAVES_MAX, half_open};
use farmem_client::dispatch::Policy;
use farmem_client::task::run_one;
use farmem_client::{Answer, Error, FarMemory, Next, Op, OpQueue, Task, TraversalStop};
use farmem_traversal::{Program, SCRATCH_LEN_MAX, WINDOW_LEN_MAX};
use farmem_wire::VirtAddr;
use std::fmt::Write;
use std::ops::RangeBounds;
use std::sync::Arc;

/// Bytes of the longest record.
pub const RECORD_LEN_MAX: usize = WINDOW_LEN_MAX;
/// Bytes from the start of each record that must be in its allocation, however long the record is: those of a load.
pub const RECORD_ROOM: usize = WINDOW_LEN_MAX;

/// Number of adjacent records from which a READ costs less than their space in scratch pads.
const READ_MIN: usize = 8;

/// The way a scan fetches its records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bring {
    /// In the scratch pads of traversals; at least eight adjacent records by one READ.
    #[default]
    Traversals,
    /// By READs, one per run of adjacent records. This costs least where traversals run at the host.
    Reads,
}

/// The byte offsets of the scratch pad's words.
mod field {
    pub(super) const FROM: usize = 0;
    pub(super) const TO: usize = 8;
    pub(super) const ROOM: usize = 16;
    pub(super) const FILL: usize = 24;
    pub(super) const TAKEN: usize = 32;
    pub(super) const PLACE: usize = 40;
    pub(super) const LEAF: usize = 48;
    pub(super) const ALONG: usize = 56;
    pub(super) const PAIRS: usize = 64;
}
use field::{ALONG, FILL, FROM, LEAF, PAIRS, PLACE, ROOM, TAKEN, TO};

/// The common start of all pads, and the search for the child; see `btree_scan.pulse`.
const DESCENT: &str = "
.def KIND  0
.def KEYS  8
.def SLOTS 128
.def NEXT  SLOTS + 15*8

.def FROM  0    ; the smallest key wanted, at most 2^64 - 2
.def TO    8    ; the first key not wanted any more; 2^64 - 1 wants all
.def ROOM  16   ; bytes for pairs, a multiple of 16
.def FILL  24   ; bytes of pairs taken
.def TAKEN 32   ; of them, bytes of pairs whose records were copied
.def PLACE 40   ; where in the pad the next record goes; 0 as long as pairs are looked for
.def LEAF  48   ; out: the leaf where the pairs end
.def ALONG 56   ; 1 when records are to come along with the pairs
.def PAIRS 64

    ld8 r6, scratch[PLACE]
    jne r6, 0, record
    ld8 r2, scratch[FROM]
    jeq r2, -1, end
    ld8 r4, window[KIND]
    jne r4, 0, leaf

    ld8 r4, window[KEYS + 7*8]
    jlt r2, r4, by4
    mov r5, 8*8
by4:
    ld8 r4, window[r5 + KEYS + 3*8]
    jlt r2, r4, by2
    add r5, 4*8
by2:
    ld8 r4, window[r5 + KEYS + 1*8]
    jlt r2, r4, by1
    add r5, 2*8
by1:
    ld8 r4, window[r5 + KEYS]
    jlt r2, r4, ranked
    add r5, 8
ranked:
    ld8 r5, window[r5 + SLOTS]
    next r5

leaf:
    ld8 r3, scratch[TO]
    ld8 r6, scratch[ROOM]
    ld8 r7, scratch[FILL]
";

/// The end of a leaf and of the pairs: continues with the first record when there is room for one.
const BEHIND_PAIRS: &str = "
past:
    jne r4, -1, paired          ; an unused key: only the leaf is over, not the range
over:
    jge r7, r6, paired
    st8 scratch[FILL], r7
    ld8 r5, window[NEXT]
    jeq r5, 0, paired
    next r5
paired:
    st8 scratch[FILL], r7
    st8 scratch[LEAF], r1
    ld8 r4, scratch[ALONG]
    jeq r4, 0, end
    jeq r7, 0, end
    mov r6, r7
    add r6, PAIRS
    jgt r6, LAST, end
    st8 scratch[PLACE], r6
    ld8 r5, scratch[PAIRS + 8]
    next r5
";

/// Runs after a record was copied: continues with the next record that fits.
const BEHIND_RECORD: &str = "
    add r6, LEN
    st8 scratch[PLACE], r6
    ld8 r7, scratch[TAKEN]
    add r7, 16
    st8 scratch[TAKEN], r7
    ld8 r4, scratch[FILL]
    jge r7, r4, end
    jgt r6, LAST, end
    ld8 r5, scratch[r7 + PAIRS + 8]
    next r5
end:
    ret
";

/// Returns the text of the program that scans for records of `len` bytes, a multiple of 8, with a scratch pad
/// of `scratch_len`.
#[must_use]
pub fn records_program(len: usize, scratch_len: usize) -> String {
    let mut text = format!(
        ".window {WINDOW_LEN_MAX}\n.scratch {scratch_len}\n.def LEN {len}\n.def LAST {scratch_len} - LEN\n"
    );
    text.push_str(DESCENT);
    let mut line =
        |line: std::fmt::Arguments<'_>| text.write_fmt(line).expect("a string takes what is written");
    for n in 0..super::KEYS_MAX {
        let behind = if n + 1 == super::KEYS_MAX { "over".to_owned() } else { format!("pair{}", n + 1) };
        line(format_args!(
            "pair{n}:\n ld8 r4, window[KEYS + {n}*8]\n jlt r4, r2, {behind}\n jge r4, r3, past\n jge r7, r6, paired\n \
             st8 scratch[r7 + PAIRS], r4\n ld8 r5, window[SLOTS + {n}*8]\n st8 scratch[r7 + PAIRS + 8], r5\n add r7, 16\n"
        ));
    }
    line(format_args!("jmp over\n{BEHIND_PAIRS}record:\n"));
    for at in (0..len).step_by(8) {
        line(format_args!(" ld8 r5, window[{at}]\n st8 scratch[r6 + {at}], r5\n"));
    }
    text.push_str(BEHIND_RECORD);
    text
}

/// Records of one length at the addresses that a tree's values give.
#[derive(Clone, Debug)]
pub struct Records(Arc<Shape>);

#[derive(Debug)]
struct Shape {
    root: VirtAddr,
    len: usize,
    program: Program,
    bring: Bring,
    /// First address and capacity of each memory node.
    nodes: Vec<(u64, u64)>,
}

impl BTree {
    /// Prepares scans of records of `len` bytes, a multiple of 8 up to [`RECORD_LEN_MAX`], to which this
    /// tree's values point. Each record begins at least [`RECORD_ROOM`] bytes before the end of its
    /// allocation. Adjacent records lie in one allocation.
    ///
    /// # Errors
    /// [`Error::TooLong`] when a datagram of this rack cannot hold a record of `len` bytes, or `len` exceeds
    /// the limit.
    pub fn records(
        &self,
        memory: &(impl FarMemory + ?Sized),
        len: usize,
        bring: Bring,
    ) -> Result<Records, Error> {
        let scratch_len = memory.scratch_len_max().min(SCRATCH_LEN_MAX) / 8 * 8;
        let max = RECORD_LEN_MAX.min(scratch_len.saturating_sub(PAIRS + 16));
        if len == 0 || len > max || !len.is_multiple_of(8) {
            return Err(Error::TooLong { len, max });
        }
        let program = Program::assemble(&records_program(len, scratch_len));
        let program = program.expect("a test assembles it for every length");
        let nodes = memory.nodes().iter().map(|node| (node.base, node.capacity)).collect();
        Ok(Records(Arc::new(Shape { root: self.root(), len, program, bring, nodes })))
    }
}

impl Records {
    /// Returns the bytes of each record.
    #[must_use]
    pub fn record_len(&self) -> usize {
        self.0.len
    }

    /// Returns a scan of the first `most` records of `range`, to run as a [`Task`] or as part of one.
    #[must_use]
    pub fn scan(&self, range: impl RangeBounds<u64>, most: usize) -> RecordScan {
        let (from, to) = half_open(&range);
        let cursor = (from < to && most > 0).then_some(Cursor { at: self.0.root, from });
        RecordScan {
            records: self.clone(),
            to,
            most,
            cursor,
            pairs: Vec::new(),
            records_read: Vec::new(),
            order: Vec::new(),
            asked: 0,
            under_way: Vec::new(),
        }
    }

    /// Runs [`Records::scan`] to its end.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn read(
        &self,
        memory: &mut impl FarMemory,
        range: impl RangeBounds<u64>,
        most: usize,
        policy: &Policy,
    ) -> Result<RecordScan, Error> {
        let mut scan = self.scan(range, most);
        run_one(memory, &mut scan, policy)?;
        Ok(scan)
    }

    /// Returns the number of the memory node that holds an address.
    fn home(&self, addr: u64) -> usize {
        self.0.nodes.iter().position(|(base, len)| addr.wrapping_sub(*base) < *len).unwrap_or(0)
    }

    /// Returns a traversal with a fresh pad in which the given fields are set.
    fn traverse(&self, mut scratch: Vec<u8>, cur_ptr: VirtAddr, fields: &[(usize, u64)]) -> Op {
        scratch.clear();
        scratch.resize(self.0.program.scratch_len(), 0);
        fields.iter().for_each(|&(at, word)| put(&mut scratch, at, word));
        Op::Traverse { program: self.0.program.clone(), cur_ptr, scratch, limit: LEAVES_MAX }
    }

    /// Returns how many pairs a pad holds.
    fn pairs_max(&self) -> usize {
        (self.0.program.scratch_len() - PAIRS) / 16
    }

    /// Returns how many records a pad holds together with their pairs.
    fn records_max(&self) -> usize {
        (self.0.program.scratch_len() - PAIRS) / (16 + self.0.len)
    }
}

/// A running scan and its results.
#[derive(Clone, Debug)]
pub struct RecordScan {
    records: Records,
    to: u64,
    most: usize,
    /// The position where the search for pairs continues.
    cursor: Option<Cursor>,
    pairs: Vec<(u64, u64)>,
    /// One record per pair, concatenated; complete at the end.
    records_read: Vec<u8>,
    /// The pairs whose records are still missing, sorted by memory node.
    order: Vec<usize>,
    /// The number of these records already requested.
    asked: usize,
    /// The requests in flight, in the order in which they were sent.
    under_way: Vec<Part>,
}

/// A request of a scan in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// The next pairs.
    Pairs,
    /// This many records, from this position in `order` on, in the pad of a traversal.
    Pad { first: usize, count: usize },
    /// This many adjacent records, from this position in `order` on, by a READ.
    Bytes { first: usize, count: usize },
}

impl RecordScan {
    /// Returns keys and addresses, in ascending order of keys.
    #[must_use]
    pub fn pairs(&self) -> &[(u64, u64)] {
        &self.pairs
    }

    /// Returns the keys with their records, once the scan has ended.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pairs.iter().map(|pair| pair.0).zip(self.records_read.chunks_exact(self.records.0.len))
    }

    /// Takes the result of `part`.
    fn take(&mut self, part: Part, queue: &mut OpQueue) -> Result<(), Error> {
        let completed = queue.take().expect("all that was needed has ended");
        let answer = completed.result?;
        if let Answer::Traversed(end) = answer
            && !end.returned
        {
            return Err(Error::Traversal { addr: end.cur_ptr, reason: TraversalStop::Stalled });
        }
        match part {
            Part::Pairs => self.take_pairs(&completed.buf),
            Part::Pad { first, count } => {
                if size(&completed.buf, TAKEN) != 16 * count {
                    let addr = VirtAddr(self.pairs[self.order[first]].1);
                    return Err(Error::Broken { addr, what: "a traversal's scratch pad" });
                }
                self.keep(first, &completed.buf[PAIRS + 16 * count..][..count * self.records.0.len]);
            }
            Part::Bytes { first, .. } => self.keep(first, &completed.buf),
        }
        queue.recycle(completed.buf);
        Ok(())
    }

    /// Takes the pairs in a pad, and the records after them.
    fn take_pairs(&mut self, pad: &[u8]) {
        let len = self.records.0.len;
        let fill = size(pad, FILL).min(pad.len() - PAIRS) / 16 * 16;
        let taken = (size(pad, TAKEN) / 16).min((pad.len() - PAIRS - fill) / len);
        let first = self.pairs.len();
        let (pairs, _) = pad[PAIRS..PAIRS + fill].as_chunks::<16>();
        self.pairs.extend(pairs.iter().map(|pair| (get(pair, 0), get(pair, 8))));
        self.records_read.extend_from_slice(&pad[PAIRS + fill..][..taken * len]);
        self.records_read.resize(self.pairs.len() * len, 0);
        let (records, pairs) = (&self.records, &self.pairs);
        for node in 0..records.0.nodes.len().max(1) {
            let here = |at: &usize| records.home(pairs[*at].1) == node;
            self.order.extend((first + taken..pairs.len()).filter(here));
        }
        let more = fill == size(pad, ROOM) && self.pairs.len() < self.most;
        self.cursor = self
            .pairs
            .last()
            .filter(|last| more && last.0 < super::KEY_MAX)
            .map(|last| Cursor { at: VirtAddr(get(pad, LEAF)), from: last.0 + 1 });
    }

    /// Copies records to their positions.
    fn keep(&mut self, first: usize, records: &[u8]) {
        let len = self.records.0.len;
        for (at, record) in self.order[first..].iter().zip(records.chunks_exact(len)) {
            self.records_read[at * len..][..len].copy_from_slice(record);
        }
    }

    /// Requests the next pairs, with their records if possible.
    fn need_pairs(&mut self, cursor: Cursor, queue: &mut OpQueue) {
        let along = self.records.0.bring == Bring::Traversals && self.records.0.nodes.len() == 1;
        let room = (self.most - self.pairs.len()).min(self.records.pairs_max()) * 16;
        let fields = [(FROM, cursor.from), (TO, self.to), (ROOM, room as u64), (ALONG, u64::from(along))];
        let op = self.records.traverse(queue.buffer(), cursor.at, &fields);
        queue.need(op);
        self.under_way.push(Part::Pairs);
    }

    /// Returns the next request for missing records.
    fn next_part(&self) -> Part {
        let (first, rest) = (self.asked, &self.order[self.asked..]);
        let addr = |at: usize| self.pairs[at].1;
        let len = self.records.0.len as u64;
        let touching =
            |rest: &[usize]| 1 + rest.windows(2).take_while(|two| addr(two[0]) + len == addr(two[1])).count();
        let run = touching(rest);
        if self.records.0.bring == Bring::Reads || run >= READ_MIN {
            return Part::Bytes { first, count: run };
        }
        let home = self.records.home(addr(rest[0]));
        let scattered = |&n: &usize| {
            let next = &rest[n..];
            self.records.home(addr(next[0])) == home && touching(&next[..next.len().min(READ_MIN)]) < READ_MIN
        };
        let count = (0..rest.len().min(self.records.records_max())).take_while(scattered).count();
        Part::Pad { first, count }
    }

    /// Requests the records that were not requested yet.
    fn need_records(&mut self, queue: &mut OpQueue) {
        while self.asked < self.order.len() {
            let addr = |at: usize| self.pairs[at].1;
            let (part, start) = (self.next_part(), VirtAddr(addr(self.order[self.asked])));
            let (op, count) = match part {
                Part::Pad { first, count } => {
                    let fields = [(FILL, 16 * count as u64), (PLACE, (PAIRS + 16 * count) as u64)];
                    let mut op = self.records.traverse(queue.buffer(), start, &fields);
                    if let Op::Traverse { scratch, .. } = &mut op {
                        for (place, &at) in self.order[first..first + count].iter().enumerate() {
                            put(scratch, PAIRS + 16 * place + 8, addr(at));
                        }
                    }
                    (op, count)
                }
                Part::Bytes { count, .. } => {
                    let mut buf = queue.buffer();
                    buf.resize(count * self.records.0.len, 0);
                    (Op::Read { addr: start, buf }, count)
                }
                Part::Pairs => unreachable!("pairs are asked for before their records"),
            };
            queue.need(op);
            self.under_way.push(part);
            self.asked += count;
        }
    }
}

impl Task for RecordScan {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        for at in 0..self.under_way.len() {
            self.take(self.under_way[at], queue)?;
        }
        self.under_way.clear();
        if let Some(cursor) = self.cursor.take() {
            self.need_pairs(cursor, queue);
        }
        self.need_records(queue);
        Ok(if self.under_way.is_empty() { Next::Done } else { Next::Need })
    }
}

fn put(pad: &mut [u8], at: usize, word: u64) {
    pad[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

fn get(pad: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(pad[at..at + 8].try_into().expect("a range of 8 bytes"))
}

/// Reads a byte count from the pad.
fn size(pad: &[u8], at: usize) -> usize {
    usize::try_from(get(pad, at)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
