//! Structures in far memory, in racks of one process.

mod blink_places;
mod blink_tree;
mod btree;
mod fabric;
mod hash_table;
mod heap;
mod incarnation;
mod index_agent;
mod index_edges;
mod keyed;
mod list;
mod ranges;
mod record_tree;
mod records;
mod series;
mod table;
