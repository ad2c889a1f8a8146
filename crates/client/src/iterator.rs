//! PULSE's programming model (PULSE 3, 4.1): a look-up in far memory as `init`, `next` and `end` over a scratch pad.
//!
//! A [`FarIterator`] says where a traversal starts and what is in its scratch pad then (`init`), what happens at each node (`next` and
//! the question whether it is over, in one [`Code`]), and what the scratch pad means afterwards (`end`). A [`Cursor`] executes it for so
//! many iterations and can go on behind that:
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
//! Where it runs a [`Policy`] says; the rack sends it from memory node to memory node by itself. A program that stores changes each node
//! once, and runs at the memory nodes only. docs/iterators.md has the same model in C and C++.

use crate::error::Error;
use crate::far_memory::FarMemory;
use crate::policy::Policy;
use farmem_traversal::{AssembleError, Program, VerifyError};
use farmem_wire::VirtAddr;
use std::fmt;
use thiserror::Error;

/// A look-up in far memory, as its author writes it.
pub trait FarIterator {
    /// The result of a traversal.
    type Output;

    /// Code for each node: goes on to the next one, or ends. The scratch pad has the length that the code declares.
    fn next(&self) -> Code<'_>;

    /// Fills the scratch pad, which is zero, and says where to start.
    fn init(&self, scratch: &mut Scratch) -> VirtAddr;

    /// Decodes the scratch pad when the code has returned; `last` is the node where it did.
    fn end(&self, last: VirtAddr, scratch: &Scratch) -> Self::Output;
}

/// A program, in one of its forms.
#[derive(Clone, Copy, Debug)]
pub enum Code<'a> {
    /// The text form (PROTOCOL 10.18).
    Text(&'a str),
    /// The encoded form: what `farmem compile FILE.c -o FILE` writes.
    Encoded(&'a [u8]),
    /// One that was made before, which many cursors share.
    Program(&'a Program),
}

/// Why code is no program.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CodeError {
    /// The text, with line and column.
    #[error("the iterator's text: {0}")]
    Text(#[from] AssembleError),
    /// The bytes.
    #[error("the iterator's code: {0}")]
    Encoded(#[from] VerifyError),
}

impl Code<'_> {
    /// The verified program.
    ///
    /// # Errors
    /// [`CodeError`] with the first thing that is wrong.
    pub fn program(&self) -> Result<Program, CodeError> {
        Ok(match self {
            Self::Text(text) => Program::assemble(text)?,
            Self::Encoded(bytes) => Program::decode(bytes)?,
            Self::Program(program) => (*program).clone(),
        })
    }
}

/// The scratch pad: the only state that outlives a node. Numbers are little-endian.
#[derive(Clone, PartialEq, Eq)]
pub struct Scratch(Vec<u8>);

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scratch({} bytes)", self.0.len())
    }
}

impl Scratch {
    /// All of its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// All of its bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// The word of 8 bytes at `offset`.
    ///
    /// # Panics
    /// When it leaves the scratch pad.
    #[must_use]
    pub fn word(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.0[offset..offset + 8].try_into().expect("8 bytes"))
    }

    /// Replaces the word of 8 bytes at `offset`.
    ///
    /// # Panics
    /// When it leaves the scratch pad.
    pub fn set_word(&mut self, offset: usize, word: u64) {
        self.0[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// An iterator on its way: all that is needed to go on is in it.
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
    /// The iterator ended, and brought this.
    Ended(I::Output),
    /// The limit was used up; this cursor goes on from there.
    Paused(Cursor<I>),
}

impl<I: FarIterator> Cursor<I> {
    /// `init`: an iterator at its start, to run where the default [`Policy`] says.
    ///
    /// # Errors
    /// [`CodeError`] when its code is no program.
    pub fn new(iterator: I) -> Result<Self, CodeError> {
        let program = iterator.next().program()?;
        let mut scratch = Scratch(vec![0; program.scratch_len()]);
        let cur_ptr = iterator.init(&mut scratch);
        Ok(Self { iterator, program, policy: Policy::default(), cur_ptr, scratch, iterations: 0 })
    }

    /// This iterator, to run where `policy` says.
    #[must_use]
    pub const fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Runs up to `limit` iterations more.
    ///
    /// # Errors
    /// [`Error::Traversal`] with the pointer it stopped at, or what else [`FarMemory::dispatch`] says. The cursor is gone then: how far a
    /// program that stores got is not known. One that does not can be begun anew.
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

    /// The node that comes next.
    #[must_use]
    pub const fn cur_ptr(&self) -> VirtAddr {
        self.cur_ptr
    }

    /// The scratch pad as it is.
    #[must_use]
    pub const fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Iterations so far.
    #[must_use]
    pub const fn iterations(&self) -> u64 {
        self.iterations
    }

    /// Its program.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }
}
