//! The iterator ISA of PULSE (sections 3 and 4.1): text form, verifier, cost, load window, interpreter.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::{string::String, vec::Vec};
use farmem_wire::{ProgramHash, VirtAddr};

/// A verified program. There is no other way to have one.
#[derive(Clone, Debug)]
pub struct Program {}

/// A text that is not a program: where and why.
#[derive(Clone, Debug)]
pub struct AssembleError { /// Line, from 1.
    pub line: usize, /// Why.
    pub reason: String }

/// Bytes that are not a program.
#[derive(Clone, Debug)]
pub struct VerifyError {}

/// A traversal's state beside its program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State { /// Next pointer.
    pub cur_ptr: VirtAddr, /// Scratch pad, of the program's size.
    pub scratch: Vec<u8> }

/// How an iteration ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step { /// NEXT_ITER: `cur_ptr` was updated.
    Next, /// RETURN.
    Return, /// An indexed access left its window or scratch pad.
    Fault }

#[expect(unused_variables, clippy::unimplemented, reason = "being written")]
impl Program {
    /// Assembles the text form and verifies.
    pub fn assemble(text: &str) -> Result<Self, AssembleError> { unimplemented!() }
    /// Decodes the wire form and verifies.
    pub fn decode(bytes: &[u8]) -> Result<Self, VerifyError> { unimplemented!() }
    /// The wire form.
    pub fn encoded(&self) -> &[u8] { unimplemented!() }
    /// Its name.
    pub fn hash(&self) -> ProgramHash { unimplemented!() }
    /// Bytes of the one LOAD at `cur_ptr`, 1 to 256.
    pub fn window_len(&self) -> usize { unimplemented!() }
    /// Bytes of the scratch pad.
    pub fn scratch_len(&self) -> usize { unimplemented!() }
    /// Runs one iteration over the loaded window.
    ///
    /// # Panics
    /// When `window` or `state.scratch` does not have the program's lengths.
    pub fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step { unimplemented!() }
}
