//! Frames of one receive, and the memory that they lie in, lent to whoever goes on with them when the receive is over.
//!
//! Key types: [`Run`], what a link hands to a role; [`Lender`], who has the memory; [`Loan`], bytes of it that stay as they are. A frame's bytes are there until whoever takes the run returns: what is wanted longer is copied or, where
//! the link has memory to spare, lent.

use crate::Port;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt::{self, Debug, Formatter};
use core::ops::{Deref, Range};

/// Frames of one port that came in one receive, in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Where they came from, as the driver saw it.
    pub port: Port,
    /// The frames, as those of [`Event::Frame`](crate::Event::Frame).
    pub frames: &'a [&'a [u8]],
    /// Who has the memory that they lie in.
    pub lender: &'a dyn Lender,
}

impl<'a> Run<'a> {
    /// Frames whose memory nobody lends.
    #[must_use]
    pub const fn new(port: Port, frames: &'a [&'a [u8]]) -> Self {
        Self { port, frames, lender: &NoLender }
    }
}

/// Who has the memory that frames lie in.
pub trait Lender: Debug {
    /// Lends the memory that these bytes of a frame lie in. `None` where none is lent, or where as much is lent as may be: then the bytes are there only until whoever took the run returns.
    fn lend(&self, bytes: &[u8]) -> Option<Loan>;
}

/// Lends nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoLender;

impl Lender for NoLender {
    fn lend(&self, _: &[u8]) -> Option<Loan> {
        None
    }
}

/// Bytes that stay as they are until this is dropped, by whichever thread.
#[derive(Clone)]
pub struct Loan {
    memory: Arc<Box<[u8]>>,
    at: Range<usize>,
}

impl Loan {
    /// `bytes`, if they are bytes of this memory, which its owner changes only when it has it alone again ([`Arc::get_mut`]).
    #[must_use]
    pub fn of(memory: &Arc<Box<[u8]>>, bytes: &[u8]) -> Option<Self> {
        let start = bytes.as_ptr().addr().checked_sub(memory.as_ptr().addr())?;
        let end = start.checked_add(bytes.len()).filter(|&end| end <= memory.len())?;
        Some(Self { memory: Arc::clone(memory), at: start..end })
    }
}

impl Deref for Loan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.at.clone()]
    }
}

impl Debug for Loan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("at", &self.at).finish_non_exhaustive()
    }
}
