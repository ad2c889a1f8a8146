//! READs and WRITEs that went out in parts, to several nodes (PROTOCOL 11.10).

use crate::{Answer, Done, Failure, Out};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

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
    /// The first thing that went wrong.
    failure: Option<Failure>,
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

    /// A whole of so many parts; answers its name.
    pub(crate) fn begin(&mut self, ticket: u64, write: bool, buf: Vec<u8>, left: usize) -> u64 {
        self.count += 1;
        self.wholes.insert(self.count, Whole { ticket, write, buf, left, failure: None });
        self.count
    }

    /// A part of a whole: its name, and its buffer.
    pub(crate) fn part(&mut self, whole: u64, part: Part) -> (u64, Vec<u8>) {
        self.count += 1;
        let id = PART | self.count;
        self.parts.insert(id, (whole, part));
        let row = &self.wholes[&whole];
        let buf = if row.write { row.buf[span(part)].to_vec() } else { vec![0; span(part).len()] };
        (id, buf)
    }

    /// A part ended; with the last one the whole does.
    pub(crate) fn ended(&mut self, id: u64, result: Result<Answer, Failure>, buf: Vec<u8>, out: &mut Out) {
        let (name, part) = self.parts.remove(&id).expect("a part ends once");
        let whole = self.wholes.get_mut(&name).expect("a whole ends after its parts");
        match result {
            Ok(_) if !whole.write => whole.buf[span(part)].copy_from_slice(&buf),
            Ok(_) => {}
            Err(failure) => whole.failure = whole.failure.or(Some(failure)),
        }
        whole.left -= 1;
        if whole.left == 0
            && let Some(Whole { ticket, buf, failure, .. }) = self.wholes.remove(&name)
        {
            let result = failure.map_or(Ok(Answer::Done { old: 0 }), Err);
            out.local(Done { ticket, result, buf });
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
