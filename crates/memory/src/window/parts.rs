//! A window's READs and WRITEs as requests of pages of a DPU: each is cut at page boundaries, and ends with the last of its parts.

use super::buffer::Laid;
use super::verbs::{Ended, Name};
use farmem_client::{Answer, Error, Op};
use farmem_wire::VirtAddr;
use std::collections::BTreeMap;
use std::ops::Range;

/// A READ or WRITE of the window.
#[derive(Debug)]
struct Request {
    write: bool,
    /// Its bytes are in the window's file, or come there.
    placed: bool,
    /// Its bytes, or what is to become them; those of a request of one part may be lent out.
    buf: Vec<u8>,
    count: usize,
    left: usize,
    result: Result<Answer, Error>,
}

/// A part of a page, of one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    request: u64,
    /// Where its bytes are in the request's buffer.
    within: Range<usize>,
    /// The object.
    pub(super) object: usize,
    /// The page, from the object's first byte on.
    pub(super) page: u64,
    /// Where they are in the page.
    pub(super) at: Range<usize>,
}

/// The requests of a window that are under way.
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

    /// Cuts a READ or WRITE of the window, nothing else comes from there; answers the request's number, and its parts are given to `each`: number, part,
    /// and the bytes of a write, or of a read a buffer of one part alone.
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

    /// As [`Parts::begin`], of bytes that are in the window's file, or come there.
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

    /// A request, and its parts by their numbers.
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

    /// Parts that the request has left which has the fewest.
    pub(super) fn least_left(&self) -> usize {
        self.requests.values().map(|request| request.left).min().unwrap_or(1)
    }

    pub(super) const fn laid(&self) -> &Laid {
        &self.laid
    }

    pub(super) fn part(&self, number: u64) -> &Part {
        &self.parts[&number]
    }

    /// A part ended; `buf` has the bytes of a read that went well, and is that of a request of one part. Answers the request when it ended with this.
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
