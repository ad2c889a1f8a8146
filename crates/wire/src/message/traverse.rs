//! The format of a traversal, common to request, continuation and response (PROTOCOL 3.8; PULSE 4.1, 5).

use super::{Header, Kind};
use crate::reader::{Reader, be16, be32, be64, field};
use crate::{Pmtu, ProgramHash, VirtAddr, WireError};
use alloc::vec::Vec;

/// The largest scratch pad in bytes: what fits a datagram of the largest PMTU. A smaller PMTU allows less.
pub const SCRATCH_LEN_MAX: usize = Traverse::room(Pmtu::B4096);
/// The largest program in a packet, in bytes (a header of 8 and 512 instructions of 8). The PMTU may allow less.
pub const CODE_LEN_MAX: usize = 4104;

/// Bytes before scratch pad and code.
const FIXED_LEN: usize = 40;

/// A traversal: its program and all of its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traverse<'a> {
    /// The program's name.
    pub program: ProgramHash,
    /// The next pointer to follow; in a response, the pointer at the end.
    pub cur_ptr: VirtAddr,
    /// Iterations done so far, on all nodes.
    pub iterations: u32,
    /// Iterations after which the traversal stops with `IterationLimit`.
    pub limit: u32,
    /// The scratch pad; at most [`SCRATCH_LEN_MAX`] bytes. Zeros at its end may be omitted:
    /// [`Traverse::without_zeros`].
    pub scratch: &'a [u8],
    /// The program's encoded form; at most [`CODE_LEN_MAX`] bytes. Empty if the sender expects that the node
    /// has it, and in every response.
    pub code: &'a [u8],
}

impl<'a> Traverse<'a> {
    /// Bytes before scratch pad and code.
    pub const FIXED_LEN: usize = FIXED_LEN;

    /// Returns the bytes that scratch pad and code together have in one datagram.
    #[must_use]
    pub const fn room(pmtu: Pmtu) -> usize {
        pmtu.bytes() - Header::LEN - Self::FIXED_LEN
    }

    /// Returns the part of a scratch pad that must be sent, without blocks of 64 zeros at its end (PROTOCOL
    /// 7.24).
    #[must_use]
    pub fn without_zeros(pad: &[u8]) -> &[u8] {
        let (_, blocks) = pad.as_rchunks::<64>();
        // The comparison covers a whole block, so the compiler vectorizes it.
        let zeros = blocks.iter().rev().take_while(|block| **block == [0; 64]).count();
        &pad[..pad.len() - zeros * 64]
    }

    #[inline(always)]
    pub(super) fn read(r: &mut Reader<'a>, response: bool) -> Result<Self, WireError> {
        let fixed = r.fixed::<FIXED_LEN>()?;
        let (scratch_len, code_len) = (usize::from(be16(fixed, 32)), usize::from(be16(fixed, 34)));
        if be32(fixed, 36) != 0 {
            return Err(WireError::Reserved { what: "traverse.reserved" });
        }
        if scratch_len > SCRATCH_LEN_MAX {
            return Err(WireError::Long {
                what: "traverse.scratch",
                most: SCRATCH_LEN_MAX,
                have: scratch_len,
            });
        }
        let most = if response { 0 } else { CODE_LEN_MAX };
        if code_len > most {
            return Err(WireError::Long { what: "traverse.code", most, have: code_len });
        }
        Ok(Self {
            program: ProgramHash(field(fixed, 0)),
            cur_ptr: VirtAddr(be64(fixed, 16)),
            iterations: be32(fixed, 24),
            limit: be32(fixed, 28),
            scratch: r.take(scratch_len)?,
            code: r.take(code_len)?,
        })
    }

    /// Appends the message of this header and traversal, as [`super::Message::emit`] does. Appends both fixed
    /// parts in one piece.
    ///
    /// # Panics
    /// If [`super::Message::emit`] would panic.
    #[inline(always)]
    pub fn emit(&self, header: &Header, out: &mut Vec<u8>) {
        let mut bytes = [0; Header::LEN + FIXED_LEN];
        let (head, fixed) = bytes.split_at_mut(Header::LEN);
        head.copy_from_slice(&header.bytes(Kind::Traverse));
        fixed.copy_from_slice(&self.fixed(header.response));
        out.extend_from_slice(&bytes);
        self.emit_rest(out);
    }

    /// Returns the bytes in front of scratch pad and code.
    #[inline(always)]
    pub(super) fn fixed(&self, response: bool) -> [u8; FIXED_LEN] {
        assert!(self.scratch.len() <= SCRATCH_LEN_MAX, "a scratch pad is within its bound");
        assert!(self.code.len() <= CODE_LEN_MAX, "a program is within its bound");
        assert!(!response || self.code.is_empty(), "a response carries no code");
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        let (scratch_len, code_len) = (self.scratch.len() as u16, self.code.len() as u16);
        let mut fixed = [0; FIXED_LEN];
        fixed[..16].copy_from_slice(&self.program.0);
        fixed[16..24].copy_from_slice(&self.cur_ptr.0.to_be_bytes());
        fixed[24..28].copy_from_slice(&self.iterations.to_be_bytes());
        fixed[28..32].copy_from_slice(&self.limit.to_be_bytes());
        fixed[32..34].copy_from_slice(&scratch_len.to_be_bytes());
        fixed[34..36].copy_from_slice(&code_len.to_be_bytes());
        fixed
    }

    /// Appends scratch pad and code.
    #[inline(always)]
    pub(super) fn emit_rest(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.scratch);
        if !self.code.is_empty() {
            out.extend_from_slice(self.code);
        }
    }

    /// Returns the bytes of the traversal in a message, behind the header.
    #[must_use]
    pub const fn len(&self) -> usize {
        Self::FIXED_LEN + self.scratch.len() + self.code.len()
    }

    /// Returns false: a traversal is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}
