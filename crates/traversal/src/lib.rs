//! Traversal programs: the iterator ISA of PULSE (sections 3 and 4.1; PROTOCOL 10).
//!
//! A traversal is `cur_ptr`, a scratch pad and a [`Program`]. One iteration loads a window of memory at
//! `cur_ptr`, computes on it without loops, and either sets the next pointer or ends the traversal. This is
//! the complete state, so any role that has it can continue: another memory node, or the host.
//!
//! [`Program`] exists only verified: [`Program::step`] repeats no check that the verifier made. This crate
//! has no memory and no wire; loads go through a closure of [`run`]. A compiler to machine code starts from
//! [`Program::instructions`] and must agree with [`Program::step`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod asm;
mod cost;
mod disasm;
mod encode;
mod interpret;
mod isa;
mod verify;

pub use asm::AssembleError;
pub use cost::{Accelerator, Cost, Eta};
pub use encode::{ENCODED_LEN_MAX, HEADER_LEN, SLOT_LEN, VERSION};
pub use interpret::{Behind, End, Outcome, State, Step, WindowAccess, run, run_storing};
pub use isa::{
    AluOp, Area, Cond, Insn, LINE_LEN, MemOperand, Operand, Reg, SCRATCH_LEN_MAX, SEARCH_COUNT_MAX,
    SLOTS_MAX, SPILL_LEN, Search, SearchOp, Size, UnaryOp, WINDOW_LEN_MAX, Width,
};
pub use verify::{Rejection, VerifyError};

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use farmem_wire::ProgramHash;
use sha2::{Digest, Sha256};
use verify::Header;

/// A verified program. There is no other way to construct one. Clones share the program: a clone is one word
/// and does not allocate.
#[derive(Clone)]
pub struct Program(Arc<Verified>);

struct Verified {
    encoded: Vec<u8>,
    hash: ProgramHash,
    window_len: usize,
    scratch_len: usize,
    stores: bool,
    longest_path: u16,
    insns: Vec<Insn>,
}

impl Program {
    /// Assembles the text form (PROTOCOL 10.18) and verifies.
    ///
    /// # Errors
    /// [`AssembleError`] with the location in the text and the expectation.
    pub fn assemble(text: &str) -> Result<Self, AssembleError> {
        asm::assemble(text)
    }

    /// Decodes the encoded form (PROTOCOL 10.3) and verifies.
    ///
    /// # Errors
    /// [`VerifyError`] for the first fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, VerifyError> {
        let (header, insns) = encode::decode(bytes)?;
        Self::verify(header, insns)
    }

    /// Verifies decoded instructions, for callers that generate them.
    ///
    /// # Errors
    /// [`VerifyError`] for the first fault; a store to the window is one.
    pub fn from_instructions(
        window_len: usize,
        scratch_len: usize,
        insns: Vec<Insn>,
    ) -> Result<Self, VerifyError> {
        Self::verify(Header::new(window_len, scratch_len, false)?, insns)
    }

    /// Verifies decoded instructions of a program that stores to the window (PROTOCOL 10.10), as
    /// [`Self::from_instructions`].
    ///
    /// # Errors
    /// [`VerifyError`] for the first fault.
    pub fn storing_from_instructions(
        window_len: usize,
        scratch_len: usize,
        insns: Vec<Insn>,
    ) -> Result<Self, VerifyError> {
        Self::verify(Header::new(window_len, scratch_len, true)?, insns)
    }

    fn verify(header: Header, insns: Vec<Insn>) -> Result<Self, VerifyError> {
        let longest_path = verify::verify(&header, &insns)?;
        let encoded = encode::encode(&header, &insns);
        let hash = name(&encoded, header.stores);
        let (window_len, scratch_len) = (usize::from(header.window_len), usize::from(header.scratch_len));
        let stores = header.stores;
        let verified = Verified { encoded, hash, window_len, scratch_len, stores, longest_path, insns };
        Ok(Self(Arc::new(verified)))
    }

    /// Returns the encoded form, the input of [`Self::decode`].
    #[must_use]
    #[inline]
    pub fn encoded(&self) -> &[u8] {
        &self.0.encoded
    }

    /// Returns the name: the first 16 bytes of the SHA-256 of the encoded form, except for the last bit,
    /// which is set if the program stores.
    #[must_use]
    #[inline]
    pub fn hash(&self) -> ProgramHash {
        self.0.hash
    }

    /// Returns the length of the load window in bytes, 1 to 256.
    #[must_use]
    #[inline]
    pub fn window_len(&self) -> usize {
        self.0.window_len
    }

    /// Returns the length of the scratch pad in bytes, 0 to [`SCRATCH_LEN_MAX`].
    #[must_use]
    #[inline]
    pub fn scratch_len(&self) -> usize {
        self.0.scratch_len
    }

    /// Returns true if the program declares that it stores to the window. Its stores become part of far
    /// memory when the iteration ends.
    #[must_use]
    #[inline]
    pub fn stores(&self) -> bool {
        self.0.stores
    }

    /// Returns the memory lines of 64 bytes that the load window takes if `cur_ptr` is aligned to one.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.0.window_len.div_ceil(LINE_LEN)
    }

    /// Returns the instructions on the longest path of one iteration: PULSE's N. RANK and MATCH count as one
    /// per 16 bytes that they search.
    #[must_use]
    pub fn longest_path(&self) -> u16 {
        self.0.longest_path
    }

    /// Returns the instructions of a path of length [`Program::longest_path`], each with its number.
    pub fn on_longest_path(&self) -> impl Iterator<Item = (usize, Insn)> + '_ {
        let insns = &self.0.insns;
        verify::on_longest_path(insns).into_iter().map(|number| (number, insns[number]))
    }

    /// Returns the instructions, in order. Targets are positions in this order, ahead and inside.
    pub fn instructions(&self) -> impl ExactSizeIterator<Item = Insn> + '_ {
        self.0.insns.iter().copied()
    }
}

/// Programs are equal when their encoded forms are.
impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.encoded == other.0.encoded
    }
}

impl Eq for Program {}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("hash", &self.0.hash)
            .field("window_len", &self.0.window_len)
            .field("scratch_len", &self.0.scratch_len)
            .field("stores", &self.0.stores)
            .field("instructions", &self.0.insns.len())
            .finish_non_exhaustive()
    }
}

fn name(encoded: &[u8], stores: bool) -> ProgramHash {
    let digest = Sha256::digest(encoded);
    let mut hash = ProgramHash::default();
    hash.0.copy_from_slice(&digest[..16]);
    hash.0[15] = hash.0[15] & !1 | u8::from(stores);
    hash
}
