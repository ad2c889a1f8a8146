//! The traversal programs of the tree. Each program descends to the leaf of a key by the same instructions
//! ([`DESCENT`]) and does its own work there, in one iteration.
//!
//! `farmem_index::blink` defines a node's layout. The pad begins with the same words for all programs: the
//! key first, where a switch finds it.

use crate::heap::{LINE_LEN, copy_lines};
use farmem_index::blink::{ASIDE_MAX, ENTRIES_MAX, NODE_LEN};
use std::fmt::Write as _;

/// In: the key. Out, of programs that end at a leaf except scans: the largest key that the leaf may have.
pub(super) const KEY: usize = 0;
/// In: the tree's tag. Out, of programs that end at a leaf except scans: the smallest key that the leaf may
/// have.
pub(super) const TAG: usize = 8;
/// Out: the status. During the descent: steps to the right so far, 0 at first.
pub(super) const STATUS: usize = 16;
/// In and out: the value.
pub(super) const VALUE: usize = 24;
/// In: the capacity of a leaf. Out of a removal: the entries that the leaf still has.
pub(super) const ENTRIES: usize = 32;
/// In: the root, where a descent restarts when its current node leads nowhere. Out: 0 after such a restart.
const ROOT: usize = 40;
/// Bytes of the pad of all programs except scans.
pub(super) const PAD_LEN: usize = 48;

/// Out, in a look-up that copies a record: the record's lines. The two words before them belong to the
/// program: the address of the next line, and the number of lines left.
pub(super) const LINES: usize = PAD_LEN + 16;

/// In, for a scan: the largest key.
pub(super) const LAST: usize = 24;
/// In: the largest number of pair bytes wanted. Out, if there is more: the leaf that has the pad's key.
pub(super) const WANTED: usize = 32;
/// Out: the number of pair bytes returned.
pub(super) const FILLED: usize = 40;
/// In and out, for a scan: as [`ROOT`].
const SCAN_ROOT: usize = 48;
/// Out: the pairs. Pairs of one leaf are unordered.
pub(super) const PAIRS: usize = 56;
/// Bound on the pairs of one scan: what fits into a datagram beside the program.
pub(super) const PAIRS_MAX: usize = 56;

/// The key does not exist. After an insertion: the key did not exist and does now.
pub(super) const MISSING: u64 = 0;
/// The key exists. After a change: the key existed before.
pub(super) const FOUND: u64 = 1;
/// The traversal reached a node of another tree, a place without a known path, or a node whose keys begin
/// after the key, and so did the retry from the root.
pub(super) const LOST: u64 = 2;
/// The leaf has no room.
pub(super) const FULL: u64 = 3;
/// The leaf is being merged: the leaf is closing or taking entries.
pub(super) const CLOSING: u64 = 4;
/// Status of a scan: the scan ended at the last key, or more keys follow from the pad's key on.
pub(super) const MORE: u64 = 5;

/// Descends to the leaf of the key, and to the right. Afterwards r3 has the leaf's head, r7 the number of its
/// entries, r2 the key.
const DESCENT: &str = "
.def HEAD   0
.def RIGHT  8
.def FIRST  16
.def HIGH   24
.def KEYS   32
.def VALUES 144
    ld8 r2, scratch[KEY]
    ld8 r3, window[HEAD]
    mov r4, r3
    shr r4, 24
    and r4, 0xfffffff       ; the tag
    ld8 r5, scratch[TAG]
    jne r4, r5, lost
    mov r6, r3
    shr r6, 61              ; the state
    jge r6, 4, away
    ld8 r4, window[FIRST]
    jlt r2, r4, lost
    ld8 r4, window[HIGH]
    jgt r2, r4, right
    mov r7, r3
    shr r7, 57
    and r7, 15
    mov r8, r3
    shr r8, 52
    and r8, 31              ; the level
    jeq r8, 0, leaf
    rank8 r9, window[KEYS], 14, r2
    jle r9, r7, child       ; the key 2^64 - 1 counts unused entries
    mov r9, r7
child:
    jeq r9, 0, lost
    shl r9, 3
    ld8 r5, window[r9 + VALUES - 8]
    next r5
away:
    jgt r6, 4, lost         ; new or free: an old pointer led here
right:                      ; a dead node leads to the node with its keys
    ld8 r5, scratch[ROOT]
    jeq r5, 0, on           ; it has come from the root by now
    ld8 r5, scratch[STATUS]
    jge r5, ASIDE, lost     ; an old pointer led far to the left
    add r5, 1
    st8 scratch[STATUS], r5
on:
    ld8 r5, window[RIGHT]
    jeq r5, 0, lost
    next r5
lost:
    ld8 r5, scratch[ROOT]
    jeq r5, 0, nowhere
    st8 scratch[ROOT], 0
    next r5
nowhere:
    st8 scratch[STATUS], 2
    ret
leaf:
";

/// Refuses a leaf that is being merged.
const WRITABLE: &str = "
    jle r6, 1, live
    st8 scratch[STATUS], 4
    ret
live:
";

/// Increments the head's version modulo 2^24.
const CHANGED: &str = "
    mov r8, r3
    and r8, 0xffffff
    jne r8, 0xffffff, counts
    sub r3, 0x1000000
counts:
    add r3, 1
    st8 window[HEAD], r3
";

fn descent_program(stores: bool, scratch: usize, tail: &str) -> String {
    let stores = if stores { ".stores" } else { "" };
    program(stores, scratch, "", tail)
}

fn program(stores: &str, scratch: usize, before: &str, tail: &str) -> String {
    descending(stores, (scratch, ROOT), before, tail)
}

/// Assembles the text of a program with the root at this word of its pad.
fn descending(stores: &str, (scratch, root): (usize, usize), before: &str, tail: &str) -> String {
    format!(
        ".window {NODE_LEN}\n.scratch {scratch}\n{stores}\n.def KEY {KEY}\n.def TAG {TAG}\n.def STATUS {STATUS}\n.def ROOT {root}\n.def ASIDE {ASIDE_MAX}\n{before}{DESCENT}{tail}"
    )
}

/// Returns the key bounds of the leaf in the pad, so that the next change of one of these keys can start
/// there.
const STORE_BOUNDS: &str = "
    ld8 r5, window[FIRST]
    st8 scratch[TAG], r5
    ld8 r5, window[HIGH]
    st8 scratch[KEY], r5
";

/// Looks up a key in its leaf. Afterwards r5 has the value.
fn found() -> String {
    format!(
        "
    match8 r9, window[KEYS], {ENTRIES_MAX}, r2
    st8 scratch[STATUS], {MISSING}
    jge r9, r7, missing
    shl r9, 3
    ld8 r5, window[r9 + VALUES]
    st8 scratch[{VALUE}], r5
    st8 scratch[STATUS], {FOUND}
"
    )
}

/// Returns the program that looks up a key.
pub(super) fn get() -> String {
    descent_program(false, PAD_LEN, &format!("{STORE_BOUNDS}{}missing:\n    ret\n", found()))
}

/// Returns the program that looks up a key whose value is a record word and copies the record, as far as the
/// pad has room for lines.
pub(super) fn get_record(lines: usize) -> String {
    const { assert!(LINE_LEN == NODE_LEN, "one load has a node, or a line") };
    let before = format!(
        ".def PLACE {PAD_LEN}
.def LEFT {PAD_LEN} + 8
    ld8 r2, scratch[PLACE]
    jne r2, 0, body
"
    );
    let mut tail = format!(
        "{}
    st8 scratch[PLACE], {LINES}
    and r5, -32             ; the low bits are the class of its block
    next r5
missing:
    ret
body:
",
        found()
    );
    copy_lines(&mut tail, LINES, lines);
    program("", LINES + lines * LINE_LEN, &before, &tail)
}

/// Returns the program that stores a value under a key if the leaf has the key or has room.
pub(super) fn insert() -> String {
    let tail = format!(
        "{WRITABLE}{STORE_BOUNDS}
    ld8 r4, scratch[{VALUE}]
    st8 scratch[STATUS], {FOUND}
    match8 r9, window[KEYS], {ENTRIES_MAX}, r2
    jlt r9, r7, there
    st8 scratch[STATUS], {FULL}
    ld8 r5, scratch[{ENTRIES}]
    jge r7, r5, full
    st8 scratch[STATUS], {MISSING}
    mov r9, r7
    mov r5, 1
    shl r5, 57
    add r3, r5              ; one entry more
there:
    shl r9, 3
    ld8 r5, window[r9 + VALUES]
    st8 scratch[{VALUE}], r5
    st8 window[r9 + KEYS], r2
    st8 window[r9 + VALUES], r4
{CHANGED}
full:
    ret
"
    );
    descent_program(true, PAD_LEN, &tail)
}

/// Returns the program that removes a key. The leaf's last entry moves to the free position.
pub(super) fn remove() -> String {
    let tail = format!(
        "{WRITABLE}{STORE_BOUNDS}
    st8 scratch[STATUS], {MISSING}
    match8 r9, window[KEYS], {ENTRIES_MAX}, r2
    jge r9, r7, none
    st8 scratch[STATUS], {FOUND}
    shl r9, 3
    ld8 r5, window[r9 + VALUES]
    st8 scratch[{VALUE}], r5
    sub r7, 1
    st8 scratch[{ENTRIES}], r7
    shl r7, 3
    ld8 r5, window[r7 + KEYS]
    st8 window[r9 + KEYS], r5
    ld8 r5, window[r7 + VALUES]
    st8 window[r9 + VALUES], r5
    st8 window[r7 + KEYS], -1
    st8 window[r7 + VALUES], 0
    mov r5, 1
    shl r5, 57
    sub r3, r5              ; one entry less
{CHANGED}
none:
    ret
"
    );
    descent_program(true, PAD_LEN, &tail)
}

/// Returns the program that collects the pairs from the key on, leaf after leaf. The key in the pad is the
/// first key not yet visited.
pub(super) fn scan() -> String {
    let mut tail = format!("    ld8 r4, scratch[{LAST}]\n    ld8 r5, scratch[{FILLED}]\n");
    for i in 0..ENTRIES_MAX {
        let (key, value) = (8 * i, 8 * i);
        writeln!(
            tail,
            "    jle r7, {i}, taken
    ld8 r9, window[KEYS + {key}]
    jlt r9, r2, not{i}
    jgt r9, r4, not{i}
    st8 scratch[r5 + {PAIRS}], r9
    ld8 r9, window[VALUES + {value}]
    st8 scratch[r5 + {PAIRS} + 8], r9
    add r5, 16
not{i}:"
        )
        .expect("a string takes it");
    }
    let leaf = 16 * ENTRIES_MAX;
    let room = 16 * PAIRS_MAX;
    write!(
        tail,
        "    mov r9, 0
taken:
    st8 scratch[{FILLED}], r5
    st8 scratch[STATUS], {MISSING}
    ld8 r9, window[HIGH]
    jge r9, r4, end
    add r9, 1
    st8 scratch[KEY], r9
    st8 scratch[STATUS], {MORE}
    ld8 r8, scratch[{WANTED}]
    ld8 r9, window[RIGHT]
    jge r5, r8, full
    jgt r5, {room} - {leaf}, full
    jeq r9, 0, lost_here
    next r9
lost_here:
    st8 scratch[STATUS], {LOST}
    ret
full:
    st8 scratch[{WANTED}], r9
end:
    ret
"
    )
    .expect("a string takes it");
    descending("", (PAIRS + room, SCAN_ROOT), "", &tail)
}

/// The pad of [`replace`]: the expected head, the new node, the status.
pub(super) const REPLACED: usize = 8 + NODE_LEN;

/// Returns the program that replaces a node if it has the expected head.
pub(super) fn replace() -> String {
    let mut text = format!(
        ".window {NODE_LEN}\n.scratch {}\n.stores\n    ld8 r2, window[0]\n    ld8 r3, scratch[0]\n    jne r2, r3, other\n",
        REPLACED + 8
    );
    for at in (0..NODE_LEN).step_by(8) {
        writeln!(text, "    ld8 r4, scratch[8 + {at}]\n    st8 window[{at}], r4").expect("a string takes it");
    }
    write!(
        text,
        "    st8 scratch[{REPLACED}], 1\n    ret\nother:\n    st8 scratch[{REPLACED}], 0\n    ret\n"
    )
    .expect("a string takes it");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembled;
    use crate::heap::LINES_MAX;
    use farmem_wire::Pmtu;
    use farmem_wire::message::Traverse;

    /// A request that stores carries its program, and all of the request fits into one datagram of a path MTU
    /// of 1024. A look-up that a memory node does not know yet fits as well. A look-up that copies a record
    /// line needs 2048, a scan 4096.
    #[test]
    fn requests_are_datagrams() {
        for (text, pmtu, stores) in [
            (get(), Pmtu::B1024, false),
            (get_record(1), Pmtu::B2048, false),
            (get_record(LINES_MAX), Pmtu::B4096, false),
            (insert(), Pmtu::B1024, true),
            (remove(), Pmtu::B1024, true),
            (replace(), Pmtu::B1024, true),
            (scan(), Pmtu::B4096, false),
        ] {
            let program = assembled(&text);
            let len = program.scratch_len() + program.encoded().len();
            assert!(len <= Traverse::room(pmtu), "{len} bytes are more than {}", Traverse::room(pmtu));
            assert_eq!(program.stores(), stores);
        }
    }
}
