//! Linked structures in far memory, laid out so that a memory node can traverse them: hash table, B+tree, list, time series.
//!
//! Key types: [`HashTable`], [`BTree`], [`List`], [`Series`]. Each is made of any [`FarMemory`](farmem_client::FarMemory), and finds what it looks for
//! by READs of the host or by a traversal, as a [`Policy`](farmem_client::Policy) says.

mod arena;
pub mod btree;
pub mod hash_table;
pub mod heap;
pub mod list;
pub mod record_tree;
pub mod series;
pub mod table;

pub use arena::Layout;
pub use btree::BTree;
pub use hash_table::HashTable;
pub use heap::Heap;
pub use list::List;
pub use record_tree::RecordTree;
pub use series::Series;
pub use table::Table;
