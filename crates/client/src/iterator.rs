//! PULSE's programming model (PULSE 3, 4.1): a look-up in far memory as `init`, `next` and `end` over a
//! scratch pad.
//!
//! A [`FarIterator`] has three parts. `init` returns the start of a traversal and its initial scratch pad.
//! `next` returns the [`Code`] that runs at each node and decides whether the traversal continues. `end`
//! decodes the final scratch pad. A [`Cursor`] executes an iterator for a number of iterations, and can
//! continue afterwards:
//!
//! ```
//! use farmem_client::iterator::{Code, Cursor, Executed, FarIterator, Scratch};
//! use farmem_client::{Rack, VirtAddr};
//!
//! /// The sum of a list of {value, next}.
//! struct Sum {
//!     head: VirtAddr,
//! }
//!
//! impl FarIterator for Sum {
//!     type Output = u64;
//!
//!     fn next(&self) -> Code<'_> {
//!         Code::Text(
//!             ".scratch 8
//!                 ld8 r2, window[0]
//!                 ld8 r3, scratch[0]
//!                 add r3, r2
//!                 st8 scratch[0], r3
//!                 ld8 r4, window[8]
//!                 jeq r4, 0, end
//!                 next r4
//!             end:
//!                 ret",
//!         )
//!     }
//!
//!     fn init(&self, _scratch: &mut Scratch) -> VirtAddr {
//!         self.head
//!     }
//!
//!     fn end(&self, _last: VirtAddr, scratch: &Scratch) -> u64 {
//!         scratch.word(0)
//!     }
//! }
//!
//! let rack = Rack::embedded()?;
//! let mut client = rack.client("sums")?;
//! let head = client.allocate(4096)?.base;
//! for n in 0..10_u64 {
//!     let next = if n < 9 { head.0 + 16 * (n + 1) } else { 0 };
//!     client.write(VirtAddr(head.0 + 16 * n), &[n.to_le_bytes(), next.to_le_bytes()].concat())?;
//! }
//!
//! // Four nodes, and then the rest.
//! let Executed::Paused(rest) = Cursor::new(Sum { head })?.execute(&mut client, 4)? else { panic!("ten nodes") };
//! assert_eq!(rest.iterations(), 4);
//! let Executed::Ended(sum) = rest.execute(&mut client, 1000)? else { panic!("six nodes") };
//! assert_eq!(sum, 45);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Policy`] selects the site. The rack forwards a traversal between memory nodes by itself. A program
//! that stores changes each node once, and runs at the memory nodes only. docs/iterators.md describes the
//! same model in C and C++.

use crate::error::Error;
use crate::far_memory::FarMemory;
use crate::policy::Policy;
use farmem_traversal::{AssembleError, Program, VerifyError};
use farmem_wire::VirtAddr;
use std::fmt;
use thiserror::Error;

/// A look-up in far memory, written by the user.
pub trait FarIterator {
    /// The result of a traversal.
    type Output;

    /// Returns the code for each node, which continues at the next node or ends. The scratch pad has the
    /// length that the code declares.
    fn next(&self) -> Code<'_>;

    /// Fills the scratch pad, which is zero, and returns the start address.
    fn init(&self, scratch: &mut Scratch) -> VirtAddr;

    /// Decodes the scratch pad after the code has returned; `last` is the last node.
    fn end(&self, last: VirtAddr, scratch: &Scratch) -> Self::Output;
}

/// A program, in one of its forms.
#[derive(Clone, Copy, Debug)]
pub enum Code<'a> {
    /// A program in text form (PROTOCOL 10.18).
    Text(&'a str),
    /// A program in encoded form, the output of `farmem compile FILE.c -o FILE`.
    Encoded(&'a [u8]),
    /// A verified program, which cursors can share.
    Program(&'a Program),
}

/// The reason why code is not a program.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CodeError {
    /// The text is invalid at this line and column.
    #[error("the iterator's text: {0}")]
    Text(#[from] AssembleError),
    /// The encoded program is invalid.
    #[error("the iterator's code: {0}")]
    Encoded(#[from] VerifyError),
}

impl Code<'_> {
    /// Returns the verified program.
    ///
    /// # Errors
    /// [`CodeError`] with the first fault.
    pub fn program(&self) -> Result<Program, CodeError> {
        Ok(match self {
            Self::Text(text) => Program::assemble(text)?,
            Self::Encoded(bytes) => Program::decode(bytes)?,
            Self::Program(program) => (*program).clone(),
        })
    }
}

/// The scratch pad: the only state that a traversal carries from node to node. Numbers are little-endian.
#[derive(Clone, PartialEq, Eq)]
pub struct Scratch(Vec<u8>);

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scratch({} bytes)", self.0.len())
    }
}

impl Scratch {
    /// Returns all bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns all bytes, mutably.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Returns the word of 8 bytes at `offset`.
    ///
    /// # Panics
    /// Panics if the word is not within the scratch pad.
    #[must_use]
    pub fn word(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.0[offset..offset + 8].try_into().expect("8 bytes"))
    }

    /// Replaces the word of 8 bytes at `offset`.
    ///
    /// # Panics
    /// Panics if the word is not within the scratch pad.
    pub fn set_word(&mut self, offset: usize, word: u64) {
        self.0[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// An iterator with the complete state of its traversal.
#[derive(Clone, Debug)]
pub struct Cursor<I> {
    iterator: I,
    program: Program,
    policy: Policy,
    cur_ptr: VirtAddr,
    scratch: Scratch,
    iterations: u64,
}

/// The outcome of an execution.
#[derive(Clone, Debug)]
pub enum Executed<I: FarIterator> {
    /// The iterator ended with this result.
    Ended(I::Output),
    /// The limit was reached; this cursor continues from there.
    Paused(Cursor<I>),
}

impl<I: FarIterator> Cursor<I> {
    /// Creates a cursor at the iterator's start (`init`), with the default [`Policy`].
    ///
    /// # Errors
    /// [`CodeError`] if the iterator's code is not a program.
    pub fn new(iterator: I) -> Result<Self, CodeError> {
        let program = iterator.next().program()?;
        let mut scratch = Scratch(vec![0; program.scratch_len()]);
        let cur_ptr = iterator.init(&mut scratch);
        Ok(Self { iterator, program, policy: Policy::default(), cur_ptr, scratch, iterations: 0 })
    }

    /// Sets the policy that selects the site.
    #[must_use]
    pub const fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Runs up to `limit` more iterations.
    ///
    /// # Errors
    /// [`Error::Traversal`] with the pointer at which the program stopped, or an error of
    /// [`FarMemory::dispatch`]. The cursor is lost then, because the progress of a program that stores is
    /// unknown. A traversal that does not store can be repeated.
    pub fn execute(
        mut self,
        memory: &mut (impl FarMemory + ?Sized),
        limit: u32,
    ) -> Result<Executed<I>, Error> {
        let done = memory.dispatch(&self.program, self.cur_ptr, self.scratch.0, limit, &self.policy)?;
        self.scratch = Scratch(done.scratch);
        self.cur_ptr = done.end.cur_ptr;
        self.iterations += u64::from(done.end.iterations);
        Ok(if done.end.returned {
            Executed::Ended(self.iterator.end(self.cur_ptr, &self.scratch))
        } else {
            Executed::Paused(self)
        })
    }

    /// Returns the next node.
    #[must_use]
    pub const fn cur_ptr(&self) -> VirtAddr {
        self.cur_ptr
    }

    /// Returns the number of iterations so far.
    #[must_use]
    pub const fn iterations(&self) -> u64 {
        self.iterations
    }
}
