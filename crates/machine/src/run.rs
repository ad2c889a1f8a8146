//! The frames of one receive, and their memory, which a link can lend beyond the receive.
//!
//! Key types: [`Run`], the frames; [`Lender`], the owner of their memory; [`Loan`], borrowed bytes that do
//! not change. Frames are valid until the handler of the run returns. A handler that needs bytes longer
//! copies them or, if the link has memory to spare, borrows them.

use crate::Port;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt::{self, Debug, Formatter};
use core::ops::{Deref, Range};

/// Frames of one port that arrived in one receive, in order.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Sender of the frames, according to the driver.
    pub port: Port,
    /// The frames, as in [`Event::Frame`](crate::Event::Frame).
    pub frames: &'a [&'a [u8]],
    /// Owner of the frames' memory.
    pub lender: &'a dyn Lender,
}

impl<'a> Run<'a> {
    /// Creates a run whose memory cannot be lent.
    #[must_use]
    pub const fn new(port: Port, frames: &'a [&'a [u8]]) -> Self {
        Self { port, frames, lender: &NoLender }
    }
}

/// The owner of the memory of frames.
pub trait Lender: Debug {
    /// Lends the memory of these bytes of a frame. Returns `None` if the lender lends nothing, or nothing
    /// more: the bytes are then valid only until the handler of the run returns.
    fn lend(&self, bytes: &[u8]) -> Option<Loan>;
}

/// A lender that lends nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoLender;

impl Lender for NoLender {
    fn lend(&self, _: &[u8]) -> Option<Loan> {
        None
    }
}

/// Bytes that do not change until the loan is dropped, on any thread.
#[derive(Clone)]
pub struct Loan {
    memory: Arc<Box<[u8]>>,
    at: Range<usize>,
}

impl Loan {
    /// Creates a loan of `bytes`, if they are in this memory. The owner changes the memory only after all
    /// loans ended ([`Arc::get_mut`]).
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
