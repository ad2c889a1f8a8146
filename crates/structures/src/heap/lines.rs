//! Records copied by a traversal: the part of a program that copies a record's lines into the pad, and the
//! decoding at the host.

use super::{Decoded, HEADER_LEN, Header, Heap, LINE_LEN, Record, decode};
use farmem_client::{Error, FarMemory};
use farmem_wire::VirtAddr;
use std::fmt::Write as _;

/// Bound on the lines of a record that a traversal copies: a separate READ is cheaper for longer records.
pub(crate) const LINES_MAX: usize = 8;

/// Returns how many lines fit into a pad of `room` bytes after its first `taken` bytes: at least one, so that
/// a program has one to load.
pub(crate) const fn lines_in(room: usize, taken: usize) -> usize {
    match room.saturating_sub(taken) / LINE_LEN {
        0 => 1,
        lines if lines > LINES_MAX => LINES_MAX,
        lines => lines,
    }
}

/// Emits instructions that copy the window from byte `from` on to the pad at `to`.
pub(crate) fn copy_window(text: &mut String, from: usize, to: &str) {
    for at in (from..LINE_LEN).step_by(8) {
        writeln!(text, " ld8 r3, window[{at}]\n st8 scratch[{to} + {at}], r3").expect("a string takes it");
    }
}

/// Emits the end of a program that copies a record's lines to the pad from `first` on: at most `lines`, one
/// per iteration. A longer record ends the program after its first line.
///
/// The calling program defines two words of the pad, `PLACE` and `LEFT`. It arrives here with the line in the
/// window and `PLACE` in r2: the line's destination.
pub(crate) fn copy_lines(text: &mut String, first: usize, lines: usize) {
    copy_window(text, 0, "r2");
    let (head, share) = (HEADER_LEN - 8, LINE_LEN - 8);
    write!(
        text,
        "
    ld8 r4, scratch[LEFT]
    jne r2, {first}, further
    ld4 r4, window[8]         ; the first line: how many there are
    add r4, {head} + {share} - 1
    div r4, {share}
    jgt r4, {lines}, end      ; too many: they are read
further:
    sub r4, 1
    jeq r4, 0, end
    st8 scratch[LEFT], r4
    add r2, {LINE_LEN}
    st8 scratch[PLACE], r2
    add r1, {LINE_LEN}
    next r1
end:
    ret
"
    )
    .expect("a string takes it");
}

impl Heap {
    /// Returns kind and content of the record at `at`, of which a traversal has copied `lines`. A record that
    /// is longer or was being written is read by one more round trip.
    ///
    /// # Errors
    /// As [`Heap::read`].
    pub(crate) fn fetched(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        at: VirtAddr,
        lines: &[u8],
    ) -> Result<(u8, Vec<u8>), Error> {
        if let Decoded::Whole { kind, content } = decode(lines) {
            return Ok((kind, content));
        }
        // The first line contains the record's length, so one READ is enough.
        let first = lines.get(..LINE_LEN).and_then(Header::parse);
        let len = u32::try_from(first.map_or(1, |header| header.len)).expect("a record's length");
        self.read(memory, Record { at, len })
    }
}
