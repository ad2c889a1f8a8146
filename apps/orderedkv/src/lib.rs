//! An ordered key-value service in far memory with an in-network index (Fat-B+Tree): keys in order, values of
//! up to 64 KiB.
//!
//! Key types: [`Store`], keys and values under a name, from any host; [`Server`], a store behind a port for
//! Redis clients; [`load`], which fills a store from a file; [`serve`], YCSB's workloads A to F on a store.
//! An index agent publishes the store's tree (`farmem index agent --root NAME`).

mod command;
mod keys;
pub mod load;
mod model;
mod server;
mod store;
mod work;

pub use command::{RANGE_MAX, REPLY_LEN_MAX};
pub use keys::{KEY_LEN_MAX, KeyError, KeyKind, KeyType};
pub use server::{CONNECTIONS_MAX, Server, Stop};
pub use store::{Access, Dropped, Pair, Store, StoreError, VALUE_LEN_MAX};
pub use work::{Args, Mix, Operation, Settings, run, serve};
