//! The DPU beside a host as a driver sees it (SODA): what carries out its decisions, and the process that serves others by them.
//!
//! Key calls: [`serve`], a DPU as a process of its own; [`serve_with`], one that also prefetches for programs ([`crate::prefetch::AtDpu`]). [`farmem_dpu`] decides; `carrier` moves the bytes, for a window that has a DPU in its own process as for the
//! process. `words` is what is said over the socket, [`farmem_wire::soda`] what goes through the rings. [`api`] is byte-addressable far memory for all threads of a program (PD3 6.1).

mod answering;
pub mod api;
pub(crate) mod carrier;
mod clerk;
mod complete;
mod intra;
mod landed;
mod lane;
mod mail;
mod mirroring;
mod prefetching;
pub(crate) mod pulse;
mod region;
mod serve;
mod slow;
#[cfg(test)]
mod tests;
mod threads;
mod visitor;
pub(crate) mod words;

pub use prefetching::{AnyLookUp, MakeLookUp};
pub use serve::{serve, serve_with};
pub use words::Foresight;

use farmem_client::{DpuCaching, DpuSection};
use farmem_dpu::{Caching, Config, TableConfig};
use std::num::NonZeroU32;

/// What a rack's description says of its DPUs, as the DPU has it. The description was checked.
fn config_of(section: &DpuSection) -> Config {
    let caching = match section.caching {
        DpuCaching::Off => Caching::Off,
        DpuCaching::Dynamic => Caching::Dynamic,
        DpuCaching::Adaptive => Caching::Adaptive,
    };
    let usual = Config::new(caching);
    let entry_pages = u32::try_from(section.entry / u64::from(section.page)).expect("pages of an entry");
    let slots = u32::try_from(section.cache / section.entry).unwrap_or(u32::MAX);
    Config {
        page_len: NonZeroU32::new(section.page).unwrap_or(usual.page_len),
        table: TableConfig { slots: NonZeroU32::new(slots).unwrap_or(NonZeroU32::MIN), entry_pages },
        fixed_pages_max: section.fixed / u64::from(section.page),
        ..usual
    }
}
