//! The records of a store's trees: the value of a key, or the address of the tree of the next slices.
//!
//! Key type: [`Entry`].

use farmem::{Error, RecordTree, VirtAddr};

/// The first byte of a value's record.
const VALUE: u8 = 0;
pub(super) const LAYER: u8 = 1;
/// Bytes of a value's record before the rest of its key.
const HEAD: usize = 3;

/// A decoded record.
pub(super) enum Entry {
    /// The value of the one key with this slice, and the rest of the key after the slice.
    Value { rest: Vec<u8>, value: Vec<u8> },
    /// The address of the tree of the next slices.
    Layer(VirtAddr),
}

/// Encodes a value's record.
pub(crate) fn emit(rest: &[u8], value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(rest.len()).expect("a key has at most 512 bytes, twice that encoded");
    [&[VALUE][..], &len.to_le_bytes(), rest, value].concat()
}

pub(super) fn parse(tree: &RecordTree, content: Vec<u8>) -> Result<Entry, Error> {
    let broken = || Error::Broken { addr: tree.tree().address(), what: "a record of an ordered store" };
    match content.split_first() {
        Some((&VALUE, _)) if content.len() >= HEAD => {
            let len = usize::from(u16::from_le_bytes([content[1], content[2]]));
            let rest = content.get(HEAD..HEAD + len).ok_or_else(broken)?.to_vec();
            Ok(Entry::Value { rest, value: content[HEAD + len..].to_vec() })
        }
        Some((&LAYER, address)) => {
            let address = address.try_into().map_err(|_| broken())?;
            Ok(Entry::Layer(VirtAddr(u64::from_le_bytes(address))))
        }
        _ => Err(broken()),
    }
}
