//! READs and WRITEs that went out in parts, to several nodes (PROTOCOL 11.10).

use crate::{Answer, Done, Failure, Out, Sink};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use farmem_transport::rc::Work;
use farmem_wire::VirtAddr;

/// Bit of the names of parts. Whoever submits operations leaves it alone: his tickets are counted from below.
const PART: u64 = 1 << 63;

/// A part: where in the whole, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) skip: u64,
    pub(crate) len: u64,
}

#[derive(Debug)]
struct Whole {
    ticket: u64,
    write: bool,
    buf: Vec<u8>,
    left: usize,
    /// What went wrong, of what is first in it: with where that is.
    failure: Option<(u64, Failure)>,
}

/// What is under way in parts.
#[derive(Debug, Default)]
pub(crate) struct Wholes {
    wholes: BTreeMap<u64, Whole>,
    parts: BTreeMap<u64, (u64, Part)>,
    count: u64,
}

impl Wholes {
    /// True for the name of a part.
    pub(crate) const fn is_part(id: u64) -> bool {
        id & PART != 0
    }

    /// Makes parts of a READ or WRITE, or of a part of one; answers the name of each and what it asks.
    ///
    /// # Panics
    /// When it is an atomic.
    pub(crate) fn split(&mut self, id: u64, work: Work, parts: &[Part]) -> Vec<(u64, Work)> {
        let (write, first, buf) = match work {
            Work::Read { addr, buf } => (false, addr, buf),
            Work::Write { addr, buf } => (true, addr, buf),
            Work::CmpSwap { .. } | Work::FetchAdd { .. } => unreachable!("an atomic has one place"),
        };
        let (name, before) = match self.parts.remove(&id) {
            Some((name, part)) => (name, part.skip),
            None => {
                self.count += 1;
                let whole = Whole { ticket: id, write, buf, left: 1, failure: None };
                self.wholes.insert(self.count, whole);
                (self.count, 0)
            }
        };
        let whole = self.wholes.get_mut(&name).expect("a whole ends after its parts");
        whole.left += parts.len() - 1;
        let each = parts.iter().map(|&Part { skip, len }| {
            self.count += 1;
            let id = PART | self.count;
            let part = Part { skip: before + skip, len };
            self.parts.insert(id, (name, part));
            let addr = VirtAddr(first.0 + skip);
            let work = if write {
                Work::Write { addr, buf: whole.buf[span(part)].to_vec() }
            } else {
                Work::Read { addr, buf: vec![0; span(part).len()] }
            };
            (id, work)
        });
        each.collect()
    }

    /// A part ended; with the last one the whole does.
    pub(crate) fn ended(&mut self, id: u64, result: Result<Answer, Failure>, buf: Vec<u8>, out: &mut Sink) {
        let (name, part) = self.parts.remove(&id).expect("a part ends once");
        let whole = self.wholes.get_mut(&name).expect("a whole ends after its parts");
        match result {
            Ok(_) if !whole.write => whole.buf[span(part)].copy_from_slice(&buf),
            Ok(_) => {}
            Err(failure) if whole.failure.is_none_or(|(skip, _)| part.skip < skip) => {
                whole.failure = Some((part.skip, failure));
            }
            Err(_) => {}
        }
        whole.left -= 1;
        if whole.left == 0
            && let Some(Whole { ticket, buf, failure, .. }) = self.wholes.remove(&name)
        {
            let result = failure.map_or(Ok(Answer::Done { old: 0 }), |(_, failure)| Err(failure));
            out.local(Out::Done(Done { ticket, result, buf }));
        }
    }

    pub(crate) fn check(&self, outstanding: usize) {
        assert!(self.parts.len() <= outstanding, "a part is under way on a connection");
        assert!(self.wholes.values().all(|whole| whole.left > 0), "a whole that is under way has parts");
    }
}

fn span(part: Part) -> core::ops::Range<usize> {
    let index = |at: u64| usize::try_from(at).expect("a buffer is in memory");
    index(part.skip)..index(part.skip + part.len)
}
