//! Look-ups by key in structures of far memory. One traversal or READ finds one record, or several, so many
//! look-ups can be in flight.
//!
//! Key types: [`LookUp`], the trait that structures implement; [`LookedUp`], a result. A prefetcher for a
//! host looks keys up this way (PD3 6.2). A verified program finds the record of a key at the memory node, so
//! no user parser runs there.
//!
//! Implementations do not submit operations and do not wait.

use crate::client::Client;
use crate::error::Error;
use crate::operation::Completed;
use farmem_host::Op;
use std::ops::Range;

/// The result of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookedUp {
    /// The record exists, and its value was appended.
    Value,
    /// The record does not exist.
    Absent,
    /// The answer does not contain the record, or is invalid. A reader that needs the record reads it by the
    /// structure's own method.
    Elsewhere,
}

/// A structure that finds records by their keys.
pub trait LookUp {
    /// Begins a batch of look-ups. Until [`LookUp::end`], memory of records that the batch finds is not
    /// reused.
    ///
    /// # Errors
    /// [`Error`] if far memory does not answer.
    fn begin(&mut self, client: &mut Client) -> Result<(), Error>;

    /// Returns the traversal that looks up `key`, with `scratch` as its buffer; `None` if no record can have
    /// this key.
    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op>;

    /// Returns the maximum number of keys per operation.
    fn together(&self) -> usize {
        1
    }

    /// Returns the group of a key. One operation can look up several keys of the same group. `None` if no
    /// record can have this key.
    fn place(&self, _key: &[u8]) -> Option<usize> {
        Some(0)
    }

    /// Returns one operation, a traversal or a gather READ, that looks up several keys of one group, at most
    /// [`LookUp::together`] of them. `scratch` becomes its buffer.
    fn op_for(&self, keys: &mut dyn Iterator<Item = &[u8]>, scratch: Vec<u8>) -> Option<Op> {
        self.op(keys.next()?, scratch)
    }

    /// Returns the version of a record and the range of its value in the answer's buffer, for readers that
    /// avoid a copy. `at` is the key's position in the batch, from 0. `None` if the record is absent or not
    /// contiguous; [`LookUp::looked_up`] tells which.
    fn in_place(&self, _at: usize, _key: &[u8], _completed: &Completed) -> Option<(u64, Range<usize>)> {
        None
    }

    /// Returns the layout of the value within the range of [`LookUp::in_place`], if headers interrupt the
    /// value.
    fn lines(&self) -> Option<Lines> {
        None
    }

    /// Returns the result for the key at position `at` in the batch, from 0, and appends its value to `into`.
    fn looked_up(&self, at: usize, key: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp;

    /// Ends a batch of look-ups, after its last traversal has completed. Call this method once for each
    /// [`LookUp::begin`].
    ///
    /// # Errors
    /// [`Error`] if the caller must not use the results of the batch.
    fn end(&mut self, client: &mut Client) -> Result<(), Error>;

    /// Ends this reader's use of the structure, so that writers need not wait for the end of its lease.
    ///
    /// # Errors
    /// [`Error`] if far memory does not answer. The structure's state is then as after a reader that died.
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

/// The layout of a value in lines of equal length, each with a header that is not part of the value. Records
/// have this layout if each line has a version. The value is copied from the lines directly into a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lines {
    /// Length of a line in bytes, a multiple of 8. The last line may be shorter.
    pub line: usize,
    /// Length of a line's header in bytes, a multiple of 8.
    pub head: usize,
    /// Length of the value in bytes.
    pub len: usize,
}

impl Lines {
    /// Returns the parts of the value in `data`, in order. If `data` is too short, the parts together are
    /// shorter than [`Lines::len`].
    ///
    /// # Panics
    /// Panics if [`Lines::line`] is 0.
    pub fn parts<'d>(&self, data: &'d [u8]) -> impl Iterator<Item = &'d [u8]> {
        let Self { line, head, len } = *self;
        data.chunks(line).scan(len, move |left, line| {
            let part = line.get(head..).unwrap_or_default();
            let part = &part[..part.len().min(*left)];
            *left -= part.len();
            (!part.is_empty()).then_some(part)
        })
    }

    /// Returns true if lines and headers are whole words and `data` contains the whole value.
    #[must_use]
    pub fn is_right(&self, data: &[u8]) -> bool {
        let Self { line, head, len } = *self;
        let whole = [line, head].iter().all(|bytes| bytes.is_multiple_of(8)) && head < line;
        whole && self.parts(data).map(<[u8]>::len).sum::<usize>() == len
    }
}
