//! A window's READs and WRITEs as requests of a DPU's pages. Each is split at page boundaries, and completes
//! with the last of its parts.

use super::buffer::Laid;
use farmem_client::{Answer, Completed, Error, Op, Ticket};
use farmem_wire::VirtAddr;
use std::collections::BTreeMap;
use std::ops::Range;

/// The identifier of a window's operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Name {
    /// An operation of the client.
    Client(Ticket),
    /// An operation through the DPU.
    Dpu(u64),
}

/// A completed operation.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) name: Name,
    pub(super) result: Result<Answer, Error>,
    pub(super) buf: Vec<u8>,
    /// True if the bytes are in the window's file, and not in `buf`.
    pub(super) placed: bool,
}

impl From<Completed> for Ended {
    fn from(Completed { ticket, result, buf }: Completed) -> Self {
        Self { name: Name::Client(ticket), result, buf, placed: false }
    }
}

/// A READ or WRITE of the window.
#[derive(Debug)]
struct Request {
    write: bool,
    /// True if the bytes are in the window's file, or will be written there.
    placed: bool,
    /// The bytes of the request, or its buffer. A request of one part may lend it to the part.
    buf: Vec<u8>,
    count: usize,
    left: usize,
    result: Result<Answer, Error>,
}

/// A part of a page, of one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    request: u64,
    /// Range of the part in the request's buffer.
    within: Range<usize>,
    /// Number of the object.
    pub(super) object: usize,
    /// Index of the page in the object.
    pub(super) page: u64,
    /// Range of the part in the page.
    pub(super) at: Range<usize>,
}

/// The pending requests of a window.
#[derive(Debug)]
pub(super) struct Parts {
    laid: Laid,
    page_len: usize,
    requests: BTreeMap<u64, Request>,
    parts: BTreeMap<u64, Part>,
    next: u64,
}

impl Parts {
    pub(super) const fn new(laid: Laid, page_len: usize) -> Self {
        Self { laid, page_len, requests: BTreeMap::new(), parts: BTreeMap::new(), next: 0 }
    }

    /// Splits a READ or WRITE of the window; there are no other operations. Returns the request's number.
    /// `each` receives the parts: number, part, and whether the operation is a write. The last argument has
    /// the bytes of a write, or the buffer of a read with one part.
    pub(super) fn begin(&mut self, op: Op, mut each: impl FnMut(u64, &Part, bool, Vec<u8>)) -> u64 {
        let (addr, buf, write) = match op {
            Op::Read { addr, buf } => (addr, buf, false),
            Op::Write { addr, buf } => (addr, buf, true),
            other => unreachable!("a window reads and writes: {other:?}"),
        };
        let (request, parts) = self.cut(addr, buf.len(), write, false);
        if let [(number, part)] = &parts[..] {
            each(*number, part, write, buf);
        } else {
            for (number, part) in &parts {
                let bytes = if write { buf[part.within.clone()].to_vec() } else { Vec::new() };
                each(*number, part, write, bytes);
            }
            self.requests.get_mut(&request).expect("it was put in").buf = buf;
        }
        request
    }

    /// Splits a request as [`Parts::begin`] does, for bytes that are in the window's file, or will be written
    /// there.
    pub(super) fn begin_placed(
        &mut self,
        addr: VirtAddr,
        len: usize,
        write: bool,
        mut each: impl FnMut(u64, &Part),
    ) -> u64 {
        let (request, parts) = self.cut(addr, len, write, true);
        parts.iter().for_each(|(number, part)| each(*number, part));
        request
    }

    /// Splits a request; returns its number and its parts with their numbers.
    fn cut(&mut self, addr: VirtAddr, len: usize, write: bool, placed: bool) -> (u64, Vec<(u64, Part)>) {
        self.next += 1;
        let request = self.next;
        let (object, extent) = self.laid.object_at(addr);
        let start = usize::try_from(addr.0 - extent.base.0).expect("a page of the window");
        let end = start + len;
        let mut parts = Vec::new();
        let mut from = start;
        while from < end {
            let page = from / self.page_len;
            let to = end.min((page + 1) * self.page_len);
            let first = page * self.page_len;
            let part = Part {
                request,
                within: from - start..to - start,
                object,
                page: page as u64,
                at: from - first..to - first,
            };
            self.next += 1;
            self.parts.insert(self.next, part.clone());
            parts.push((self.next, part));
            from = to;
        }
        let count = parts.len();
        let answer = Ok(Answer::Done { old: 0 });
        let row = Request { write, placed, buf: Vec::new(), count, left: count, result: answer };
        self.requests.insert(request, row);
        (request, parts)
    }

    /// Returns the smallest number of remaining parts among the requests.
    pub(super) fn least_left(&self) -> usize {
        self.requests.values().map(|request| request.left).min().unwrap_or(1)
    }

    pub(super) const fn laid(&self) -> &Laid {
        &self.laid
    }

    pub(super) fn part(&self, number: u64) -> &Part {
        &self.parts[&number]
    }

    /// Handles the end of a part. `buf` has the bytes of a successful read; for a request of one part it is
    /// the request's buffer. Returns the request if this was its last part, and a buffer for reuse.
    pub(super) fn ended(
        &mut self,
        number: u64,
        result: Result<(), Error>,
        buf: Vec<u8>,
    ) -> (Option<Ended>, Vec<u8>) {
        let part = self.parts.remove(&number).expect("a part ends once");
        let request = self.requests.get_mut(&part.request).expect("its parts are under way");
        let mut rest = Vec::new();
        if request.placed {
            rest = buf;
        } else if request.count == 1 {
            request.buf = buf;
        } else {
            if !request.write && result.is_ok() {
                request.buf[part.within].copy_from_slice(&buf);
            }
            rest = buf;
        }
        if let Err(error) = result {
            request.result = Err(error);
        }
        request.left -= 1;
        if request.left > 0 {
            return (None, rest);
        }
        let Request { buf, result, placed, .. } = self.requests.remove(&part.request).expect("it was there");
        (Some(Ended { name: Name::Dpu(part.request), result, buf, placed }), rest)
    }
}
