//! Structures of far memory in which a record is found by its key with one traversal or READ, alone or several together, so that many look-ups can be under way.
//!
//! Key types: [`LookUp`], which structures implement; [`LookedUp`]. A prefetcher for a host looks keys up this way (PD3 6.2): a verified program turns a key into
//! its record at the memory node, and no parser of a user runs there.
//!
//! A structure here does not submit, or wait.

use crate::client::Client;
use crate::error::Error;
use crate::operation::Completed;
use farmem_host::Op;
use std::ops::Range;

/// The result of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookedUp {
    /// A record, whose value is there now.
    Value,
    /// There is no such record.
    Absent,
    /// The record did not come along, or the answer is invalid: a reader that needs it reads it by the structure's own call.
    Elsewhere,
}

/// Finds records by their keys.
pub trait LookUp {
    /// For before the first traversal of a batch: nothing that is found from here on is used for something else before [`LookUp::end`].
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    fn begin(&mut self, client: &mut Client) -> Result<(), Error>;

    /// The traversal that looks a key up; `scratch` is any buffer. `None` of a key that no record can have.
    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op>;

    /// Keys that one operation looks up together, at most.
    fn together(&self) -> usize {
        1
    }

    /// Where the record of a key is: those of one place can be looked up together. `None` of a key that no record can have.
    fn place(&self, _key: &[u8]) -> Option<usize> {
        Some(0)
    }

    /// The operation, a traversal or a gather READ, that looks up several keys of one place, as many as [`LookUp::together`] says at most; `scratch` is any buffer.
    fn op_for(&self, keys: &mut dyn Iterator<Item = &[u8]>, scratch: Vec<u8>) -> Option<Op> {
        self.op(keys.next()?, scratch)
    }

    /// The version and the value of a key's record where it lies in the buffer of the answer, for readers that need no copy; the key was number `at` of those that were looked up together. `None` where
    /// the record did not come along in one piece, or is none: [`LookUp::looked_up`] says which.
    fn in_place(&self, _at: usize, _key: &[u8], _completed: &Completed) -> Option<(u64, Range<usize>)> {
        None
    }

    /// How the value lies in what [`LookUp::in_place`] says, where that has more than the value.
    fn lines(&self) -> Option<Lines> {
        None
    }

    /// The result for a key, which was number `at` of those that were looked up together, from 0; appends its value to `into`.
    fn looked_up(&self, at: usize, key: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp;

    /// For after the last traversal of a batch ended; once for each [`LookUp::begin`].
    ///
    /// # Errors
    /// [`Error`] when what was found must not be used.
    fn end(&mut self, client: &mut Client) -> Result<(), Error>;

    /// Ends the look-ups of this reader: writers need not wait until its reads are surely given up.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer: then it is left as by a program that died.
    fn leave(&mut self, _client: &mut Client) -> Result<(), Error> {
        Ok(())
    }
}

impl<L: LookUp + ?Sized> LookUp for Box<L> {
    fn begin(&mut self, client: &mut Client) -> Result<(), Error> {
        (**self).begin(client)
    }

    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op> {
        (**self).op(key, scratch)
    }

    fn together(&self) -> usize {
        (**self).together()
    }

    fn place(&self, key: &[u8]) -> Option<usize> {
        (**self).place(key)
    }

    fn op_for(&self, keys: &mut dyn Iterator<Item = &[u8]>, scratch: Vec<u8>) -> Option<Op> {
        (**self).op_for(keys, scratch)
    }

    fn in_place(&self, at: usize, key: &[u8], completed: &Completed) -> Option<(u64, Range<usize>)> {
        (**self).in_place(at, key, completed)
    }

    fn lines(&self) -> Option<Lines> {
        (**self).lines()
    }

    fn looked_up(&self, at: usize, key: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp {
        (**self).looked_up(at, key, completed, into)
    }

    fn end(&mut self, client: &mut Client) -> Result<(), Error> {
        (**self).end(client)
    }

    fn leave(&mut self, client: &mut Client) -> Result<(), Error> {
        (**self).leave(client)
    }
}

/// A value that lies in lines of one length, each behind a head that is not its, as records do whose lines have a version each. It is put into a zone from there, without a copy in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lines {
    /// Bytes of a line, a multiple of 8; the last one may have fewer.
    pub line: usize,
    /// Bytes of a line's head, a multiple of 8.
    pub head: usize,
    /// Bytes of the value.
    pub len: usize,
}

impl Lines {
    /// The parts of the value in `data`, one behind the other; together they may have fewer bytes than [`Lines::len`], where `data` has too few.
    ///
    /// # Panics
    /// When lines have no bytes.
    pub fn parts<'d>(&self, data: &'d [u8]) -> impl Iterator<Item = &'d [u8]> {
        let Self { line, head, len } = *self;
        data.chunks(line).scan(len, move |left, line| {
            let part = line.get(head..).unwrap_or_default();
            let part = &part[..part.len().min(*left)];
            *left -= part.len();
            (!part.is_empty()).then_some(part)
        })
    }

    /// True when lines are whole words, and `data` has the whole value.
    #[must_use]
    pub fn is_right(&self, data: &[u8]) -> bool {
        let Self { line, head, len } = *self;
        let whole = [line, head].iter().all(|bytes| bytes.is_multiple_of(8)) && head < line;
        whole && self.parts(data).map(<[u8]>::len).sum::<usize>() == len
    }
}
