//! Preventive prefetching beside a program (PD3): the DPU fetches requested items from a structure in far memory
//! before the program looks for them, and puts them where the program looks first.
//!
//! Key types: [`tap::Tap`], to which the program passes its clients' bytes; [`Reporter`], which reports what the
//! program holds, reads and changes; [`Driver`], which a thread of the DPU runs. [`farmem_dpu`] decides. This crate
//! has the threads, a client of the rack, and the zone.
//!
//! ```text
//!   clients --> program -- bytes --> Tap ====> Driver: parse, host view -- traversals --> memory nodes
//!                 |  '- Reporter: asks, changes, drops ==> |                                  |
//!                 '------- looks first ---> Zone <--------- '<-- records with their versions -'
//! ```
//!
//! The driver runs in a thread of the program, or in a DPU process (`farmem_dpu_server::AtDpu`). In the second case
//! the program's ends of tap, `Reporter` and zone are shared memory.
//!
//! The program itself reads and changes far memory.

mod account;
mod answers;
mod driver;
pub mod keys;
pub mod loading_zone;
mod memory_by_size;
pub mod mirror;
mod mix;
mod parser_kind;
mod reporter;
pub mod ring;
pub mod tap;
#[cfg(test)]
mod tests;
mod zone;

pub use account::Prefetched;
pub use answers::ANSWERS_BYTES_MAX;
pub use driver::{Driver, MESSAGES_HELD_MAX};
pub use farmem_dpu::accesses::Position;
pub use farmem_dpu::changes::{Change, Changes, FLOORS};
pub use farmem_dpu::parse;
pub use farmem_dpu::prefetcher::{Config, Copy, Prefetcher, Stats};
pub use farmem_dpu::view::{HostView, KeyId, KeySecret, KeySet};
pub use farmem_link::mirror::{FRAMES as MIRROR_FRAMES, MirrorConfig};
pub use keys::{HostKeys, KeyShards, KeysConfig};
pub use loading_zone::{Found, ZoneReader};
pub use mirror::MirrorStats;
pub use reporter::{Hearing, Reporter, TOLD_MAX};
pub use tap::PARSERS_BYTES_MAX;
pub use zone::{Lines, Placing, SharedZone, Taker, Zone, ZoneCounts, ZoneSize};
