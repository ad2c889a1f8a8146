//! Reads of one iteration's window by a host.
//!
//! Nearly always that is one READ. If the allocation ends within the window, the program runs on the bytes
//! that exist, as at a memory node (PROTOCOL 10.23). A host does not know how many bytes exist. The host
//! finds out by READs of other lengths, and only as far as the program accesses the window.
//!
//! Allocations end at a page boundary, so the first of these READs ends there. This READ is the last one,
//! unless a part of a page was granted or the program is invalid.

use crate::error::{Error, TraversalStop};
use farmem_traversal::{Behind, Program, Step};
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;

/// The known part of the window at a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Number of bytes that are known to exist, while the program accesses more.
    there: usize,
    /// The smallest number of bytes that are known not to exist; before a refusal, the length of the window
    /// plus 1.
    refused: usize,
}

impl Window {
    /// Returns the state before the first READ.
    pub(crate) fn new(program: &Program) -> Self {
        Self { there: 0, refused: program.window_len() + 1 }
    }

    /// Returns the number of bytes at `addr` to read now.
    ///
    /// # Errors
    /// The end of the traversal: the number of existing bytes is known exactly, and the program accesses
    /// more.
    pub(crate) fn len(self, addr: VirtAddr, program: &Program) -> Result<usize, Error> {
        let Self { there, refused } = self;
        if refused > program.window_len() {
            return Ok(program.window_len());
        }
        if refused - there < 2 {
            return Err(Error::Traversal { addr, reason: TraversalStop::OutOfBounds });
        }
        let page = PAGE_LEN as u64 - addr.0 % PAGE_LEN as u64;
        let page = usize::try_from(page).expect("at most a page");
        Ok(if there < page && page < refused { page } else { there.midpoint(refused) })
    }

    /// Runs the iteration on the bytes of a READ. Returns `None` if another READ is necessary.
    ///
    /// # Errors
    /// The READ's refusal.
    pub(crate) fn step(
        &mut self,
        program: &Program,
        bytes: &[u8],
        read: Result<(), Error>,
        cur_ptr: &mut VirtAddr,
        scratch: &mut [u8],
    ) -> Result<Option<Step>, Error> {
        match read {
            Ok(()) if bytes.len() == program.window_len() => Ok(Some(program.step(bytes, cur_ptr, scratch))),
            Ok(()) => {
                let before = scratch.to_vec();
                match program.step_cut(bytes, cur_ptr, scratch) {
                    Ok(step) => return Ok(Some(step)),
                    Err(Behind) => self.there = bytes.len(),
                }
                scratch.copy_from_slice(&before);
                Ok(None)
            }
            Err(Error::OutOfBounds { .. }) => {
                self.refused = bytes.len();
                Ok(None)
            }
            Err(error) => Err(stopped(error, *cur_ptr)),
        }
    }
}

/// Converts a READ's refusal to the error of a traversal.
pub(crate) fn stopped(error: Error, addr: VirtAddr) -> Error {
    let reason = match error {
        Error::NotMapped { .. } => TraversalStop::NotMapped,
        Error::NoPermission { .. } => TraversalStop::NoPermission,
        Error::OutOfBounds { .. } => TraversalStop::OutOfBounds,
        other => return other,
    };
    Error::Traversal { addr, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program that reads the first `want` bytes of its window. READs beyond the first `there` bytes
    /// are refused. Returns the lengths of the READs, and the result.
    fn reads(at: u64, there: usize, want: usize) -> (Vec<usize>, Result<Step, Error>) {
        let text =
            format!(".window 256\n.scratch 1\n ld1 r2, window[{}]\n st1 scratch[0], r2\n ret", want - 1);
        let program = Program::assemble(&text).unwrap();
        let (mut cur_ptr, mut scratch) = (VirtAddr(at), [0xee]);
        let (mut window, mut lens, memory) = (Window::new(&program), Vec::new(), [7; 256]);
        let end = loop {
            let len = match window.len(cur_ptr, &program) {
                Ok(len) => len,
                Err(error) => break Err(error),
            };
            lens.push(len);
            let refused = Error::OutOfBounds { addr: cur_ptr, len: len as u64 };
            let read = if len <= there { Ok(()) } else { Err(refused) };
            match window.step(&program, &memory[..len], read, &mut cur_ptr, &mut scratch).unwrap() {
                Some(step) => break Ok(step),
                None => assert_eq!(scratch, [0xee], "as the iteration before left it"),
            }
        };
        assert_eq!((cur_ptr.0, scratch[0] == 7), (at, end.is_ok()));
        (lens, end)
    }

    /// One READ suffices if the window is complete, and two if the allocation ends at the page boundary. For
    /// every end, a program that reads only existing bytes completes, and one that reads a byte more stops,
    /// after a few READs.
    #[test]
    fn the_end_of_an_allocation_is_found_to_the_byte() {
        assert_eq!(reads(0x1000, 256, 256).0, [256]);
        for there in 1..256 {
            let at = 0x2000 - there as u64;
            let (lens, end) = reads(at, there, there);
            assert_eq!((lens, end.ok()), (vec![256, there], Some(Step::Return)));
            for at in [at, 0x1000, 0x1ff0, 0x1fff] {
                let (lens, end) = reads(at, there, there);
                assert!(end.is_ok() && lens.len() <= 11, "{there} bytes at {at:#x}: {lens:?}");
                let (lens, end) = reads(at, there, there + 1);
                let stopped = Error::Traversal { addr: VirtAddr(at), reason: TraversalStop::OutOfBounds };
                assert_eq!(end.unwrap_err().to_string(), stopped.to_string());
                assert!(lens.len() <= 11, "{there} bytes at {at:#x}: {lens:?}");
            }
        }
    }
}
