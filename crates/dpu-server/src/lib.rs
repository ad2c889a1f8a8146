//! The DPU beside a host as a driver sees it (SODA): the execution of its decisions, and the process that serves
//! other processes.
//!
//! Key calls: [`serve`], a DPU as a process of its own; [`serve_with`], a DPU that also prefetches for programs
//! ([`crate::AtDpu`]). [`farmem_dpu`] decides. `carrier` moves the bytes, for the DPU process and for a window with a
//! DPU in its own process. `messages` has the messages of the socket, [`farmem_wire::soda`] the records of the rings.
//! [`api`] is byte-addressable far memory for all threads of a program (PD3 6.1).

mod answering;
pub mod api;
pub mod at_dpu;
pub mod carrier;
mod complete;
mod control_rpc;
mod domain_thread;
mod dpu_client;
mod intra;
mod journal;
mod mailbox;
pub mod messages;
mod mirroring;
mod prefetch_messages;
mod prefetching;
mod read_delivery;
mod region;
mod serve;
mod slow;
#[cfg(test)]
mod tests;
mod threads;

pub use at_dpu::{AtDpu, AtDpuOptions};
pub use messages::Foresight;
pub use prefetching::{AnyLookUp, MakeLookUp};
pub use serve::{serve, serve_with};

use farmem_client::{DpuCaching, DpuSection, Error, MESSAGE_MAX, PAGE_LEN};
use farmem_dpu::{Caching, Config, TableConfig};
use farmem_link::OpenError;
use farmem_link::limits::memory_of_machine;
use std::num::NonZeroU32;

/// Returns the DPU's settings from a checked rack description.
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

/// Checks the settings of a DPU.
///
/// # Errors
/// [`Error::Open`] for impossible settings; the error names the possible ones.
pub fn check_dpu(config: Config) -> Result<(), Error> {
    let (page_len, table) = (config.page_len.get(), config.table);
    let wrong = |value: String, remedy: &str| {
        Error::from(OpenError::Setting { setting: "cache of a DPU", value, remedy: remedy.into() })
    };
    if !(page_len as usize).is_multiple_of(PAGE_LEN) || !table.is_valid() {
        let value = format!("entries of {} pages of {page_len} bytes", table.entry_pages);
        return Err(wrong(
            value,
            "a page's length is a multiple of 4096 bytes, and an entry has 1 to 64 pages",
        ));
    }
    // At most 64 pages of less than 2^32 bytes.
    let entry = u64::from(page_len) * u64::from(table.entry_pages);
    if entry > MESSAGE_MAX as u64 {
        let value = format!("entries of {entry} bytes");
        return Err(wrong(value, "use fewer or shorter pages: one READ fetches an entry of at most 2 GiB"));
    }
    let bytes = entry * u64::from(table.slots.get()); // 2^31 times less than 2^32
    if memory_of_machine().is_some_and(|most| bytes > most) {
        let remedy = "use fewer slots or shorter entries: the cache must fit into this machine's memory";
        return Err(wrong(format!("{} slots of {entry} bytes", table.slots), remedy));
    }
    Ok(())
}
