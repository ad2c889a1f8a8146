//! The encoding of a table's nodes and bodies, and the program that searches for a hash.
//!
//! A *node* is a record of one line: the address of the next node in its chain, the key's hash, and key and
//! value if they fit. Otherwise the node has the address of a *body*, a record with both. Neither ever
//! changes: replacing a value creates a new node.

use crate::heap::{Decoded, HEADER_LEN, LINE_LEN, copy_lines, copy_window, decode};
use farmem_client::Error;
use farmem_wire::VirtAddr;

/// The kind of a node that contains key and value.
pub(crate) const WHOLE: u8 = 2;
/// The kind of a node that contains the address of its body.
pub(crate) const FAR: u8 = 3;
/// The kind of a body.
pub(crate) const BODY: u8 = 4;

/// Bytes of a node before key and value: next, hash, length of the key.
const HEAD_LEN: usize = 28;
/// Bytes of the key's length field.
const KEY_LEN_LEN: usize = 4;
/// Bytes of key and value that a node can hold.
pub const WHOLE_MAX: usize = LINE_LEN - HEADER_LEN - HEAD_LEN;
/// Bytes of a node without key and value.
const FAR_LEN: usize = 32;

/// Offsets in the scratch pad of [`find_program`].
pub(crate) mod pad {
    /// In: hash of the key, 16 bytes.
    pub(crate) const HASH: usize = 0;
    /// In: the bucket's offset in its group; -1 once the bucket was visited.
    pub(crate) const BUCKET: usize = 16;
    /// Out: the first node's address.
    pub(crate) const HEAD: usize = 24;
    /// Out: the number of nodes before the found one.
    pub(crate) const BEFORE: usize = 32;
    /// Out: 1 when a node with this hash was found.
    pub(crate) const FOUND: usize = 40;
    /// Out: the found node's address.
    pub(crate) const AT: usize = 48;
    /// Out: the node. The two words before it belong to the program: the address of the body's next line, and
    /// the number of lines left.
    pub(crate) const NODE: usize = 72;
    /// Out: the lines of the node's body.
    pub(crate) const LINES: usize = NODE + super::LINE_LEN;
}

/// Returns the program that searches for a hash from a bucket on, with a pad for `lines` lines of a body, at
/// least one.
///
/// The memory node compares 128 bits of hash. The caller compares the key.
#[must_use]
pub fn find_program(lines: usize) -> String {
    let scratch = pad::LINES + lines * LINE_LEN;
    let body_at = pad::LINES;
    let mut text = format!(".window {LINE_LEN}\n.scratch {scratch}\n.def BODY_AT {body_at}\n{START}");
    copy_window(&mut text, 0, "NODE");
    text.push_str(FOUND);
    copy_lines(&mut text, body_at, lines);
    text
}

const START: &str = "
.def KIND    13   ; of a record
.def NEXT    32   ; of a node
.def HASH    40
.def BODY    56

.def WANTED  0    ; of the pad: see table/node.rs
.def BUCKET  16
.def HEAD    24
.def BEFORE  32
.def IS_FOUND 40
.def AT      48
.def PLACE   56
.def LEFT    64
.def NODE    72

    ld8 r2, scratch[PLACE]
    jne r2, 0, body
    ld8 r2, scratch[BUCKET]
    jeq r2, -1, node
    ld8 r3, window[r2]        ; a group of buckets: the first node
    st8 scratch[HEAD], r3
    st8 scratch[BUCKET], -1
    jeq r3, 0, missing
    next r3
node:
    ld8 r2, window[HASH]
    ld8 r3, scratch[WANTED]
    jne r2, r3, other
    ld8 r2, window[HASH + 8]
    ld8 r3, scratch[WANTED + 8]
    jeq r2, r3, found
other:
    ld8 r2, scratch[BEFORE]
    add r2, 1
    st8 scratch[BEFORE], r2
    ld8 r3, window[NEXT]
    jeq r3, 0, missing
    next r3
missing:
    ret
found:
    st8 scratch[IS_FOUND], 1
    st8 scratch[AT], r1
";

const FOUND: &str = "
    ld1 r3, window[KIND]
    jne r3, 3, whole
    st8 scratch[PLACE], BODY_AT
    ld8 r3, window[BODY]
    next r3
whole:
    ret
body:
";

/// Encodes key and value as the content of a node or body.
pub(crate) fn pair(key: &[u8], value: &[u8]) -> Vec<u8> {
    let len = u32::try_from(key.len()).expect("a key has bounds");
    [&len.to_le_bytes(), key, value].concat()
}

/// Returns the bytes of the body of a key and value.
pub(crate) const fn body_len(key: usize, value: usize) -> usize {
    KEY_LEN_LEN + key + value
}

/// The contents of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// Key and value, encoded by [`pair`].
    Whole(Vec<u8>),
    /// The address of a body.
    Far(VirtAddr),
}

/// A decoded node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    pub(crate) next: u64,
    pub(crate) hash: [u8; 16],
    pub(crate) held: Contents,
}

impl Node {
    pub(crate) fn content(&self) -> (u8, Vec<u8>) {
        let (kind, held) = match &self.held {
            Contents::Whole(pair) => (WHOLE, pair.clone()),
            Contents::Far(body) => (FAR, body.0.to_le_bytes().to_vec()),
        };
        (kind, [self.next.to_le_bytes().as_slice(), &self.hash, &held].concat())
    }

    /// Returns the bytes of the node's content.
    pub(crate) fn len(&self) -> usize {
        match &self.held {
            Contents::Whole(pair) => FAR_LEN - 8 + pair.len(),
            Contents::Far(_) => FAR_LEN,
        }
    }

    /// Decodes the node whose line was loaded at `at`.
    pub(crate) fn parse(line: &[u8], at: VirtAddr) -> Result<Self, Error> {
        let broken = Error::Broken { addr: at, what: "a node of a table" };
        let Decoded::Whole { kind, content } = decode(line) else { return Err(broken) };
        if !matches!(kind, WHOLE | FAR) || content.len() < HEAD_LEN || kind == FAR && content.len() != FAR_LEN
        {
            return Err(broken);
        }
        let word = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("8 bytes"));
        let held = match kind {
            FAR => Contents::Far(VirtAddr(word(24))),
            _ => Contents::Whole(content[24..].to_vec()),
        };
        Ok(Self { next: word(0), hash: content[8..24].try_into().expect("16 bytes"), held })
    }
}

/// Decodes key and value from the output of [`pair`] at `at`.
pub(crate) fn unpair(content: &[u8], at: VirtAddr) -> Result<(&[u8], &[u8]), Error> {
    let broken = Error::Broken { addr: at, what: "a key and a value" };
    let Some((len, rest)) = content.split_first_chunk::<KEY_LEN_LEN>() else { return Err(broken) };
    rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or(broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_traversal::Program;

    /// The program assembles for every pad that a rack has room for.
    #[test]
    fn the_program_is_assembled() {
        for lines in 1..=crate::heap::lines_in(4032, pad::LINES) {
            let program = Program::assemble(&find_program(lines)).unwrap();
            assert_eq!(program.scratch_len(), pad::LINES + lines * LINE_LEN);
            assert!(!program.stores());
        }
    }

    #[test]
    fn what_is_a_node_is_parsed() {
        let at = VirtAddr(4096);
        for held in [Contents::Whole(pair(b"key", b"value")), Contents::Far(VirtAddr(77))] {
            let node = Node { next: 9, hash: [3; 16], held };
            let (_, content) = node.content();
            assert_eq!(content.len(), node.len());
        }
        assert!(matches!(Node::parse(&[0; LINE_LEN], at), Err(Error::Broken { .. })));
        assert_eq!(unpair(&pair(b"key", b"value"), at).unwrap(), (b"key".as_slice(), b"value".as_slice()));
        assert!(unpair(&[9, 0, 0, 0, 1], at).is_err(), "a key longer than what there is");
    }
}
