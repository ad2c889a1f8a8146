//! Data structures in far memory. Memory nodes can traverse the linked ones: hash table, B-link tree, B+tree,
//! list, time series. Two more need a single READ per look-up: a flat hash map and numbered pages.
//!
//! Key types: [`HashTable`], [`BLinkTree`], [`BTree`], [`List`], [`Series`], [`FlatMap`], [`PageStore`]. Each
//! works on any [`FarMemory`](farmem_client::FarMemory). Look-ups run by READs of the host or by a traversal,
//! as a [`Policy`](farmem_client::Policy) says.

mod arena;
pub mod blink_tree;
pub mod btree;
pub mod flat_map;
pub mod form;
pub mod hash_table;
pub mod heap;
pub mod list;
pub mod pages;
pub mod record_tree;
pub mod series;
pub mod table;

pub use arena::Layout;
pub use blink_tree::BLinkTree;
pub use btree::BTree;
pub use flat_map::FlatMap;
pub use hash_table::HashTable;
pub use heap::Heap;
pub use list::List;
pub use pages::PageStore;
pub use record_tree::RecordTree;
pub use series::Series;
pub use table::Table;

/// Assembles a program of this crate.
fn assembled(text: &str) -> farmem_traversal::Program {
    farmem_traversal::Program::assemble(text)
        .expect("the program is part of the crate, and a test assembles it")
}

/// Decodes little-endian words.
fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().expect("a chunk of 8 bytes"));
    bytes.chunks_exact(8).map(word).collect()
}
