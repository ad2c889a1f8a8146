//! The locations of a graph's arrays, and the path between them and the program.
//!
//! Key type: [`System`]; [`System::options`] is the one place that creates a window for it.

use farmem::window::{
    AccessPath, Addressing, Ahead, Caching, DpuConfig, Foresight, TableConfig, WindowOptions,
};
use std::num::NonZeroU32;

/// A compared system (SODA VI-A).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// All in local memory.
    Local,
    /// A mapped file on a disk, under a limit for memory.
    Disk,
    /// Local memory under a limit, swapped to zram.
    Zram,
    /// A window with direct connections to a memory node.
    Server,
    /// As [`System::Server`], fetching up to 256 KiB of a sequential stream at once.
    ServerAhead,
    /// As [`System::Server`], through a forwarding DPU.
    Dpu,
    /// As [`System::Dpu`], with a cache that prefetches by its policy.
    Dynamic,
    /// As [`System::Dynamic`], while prefetching pays.
    Adaptive,
    /// A forwarding DPU with the vertex data in static memory.
    Static,
    /// The window through a forwarding DPU process.
    Process,
    /// As [`System::Process`], requesting up to 256 KiB of a sequential stream at once.
    ProcessAhead,
    /// As [`System::Process`], with a cache that prefetches while that pays.
    ProcessAdaptive,
    /// As [`System::Process`], with the vertex data in static memory.
    ProcessStatic,
}

/// The sizes of a window's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pages {
    /// Bytes fetched at once: 64 KiB in the paper.
    pub(super) page_len: u32,
    /// Pages per entry of the DPU's table.
    pub(super) entry_pages: u32,
}

impl Pages {
    /// The paper's pages; entries are a quarter of the paper's, because graphs are smaller.
    pub(super) const FULL: Self = Self { page_len: 64 << 10, entry_pages: 4 };
    /// For graphs of a few hundred kilobytes.
    pub(super) const QUICK: Self = Self { page_len: 16 << 10, entry_pages: 2 };
}

/// Bytes of a window's own page.
const PAGE: u32 = 4096;
/// Sequential reads: chunks at first, then up to four at once for a stream.
const AHEAD: u64 = 64;
/// The local share of a graph is one in this many (SODA V: a buffer for a third).
const LOCAL: u64 = 3;
/// Smallest local limit of a window.
const LOCAL_MIN: u64 = 64 << 10;
/// The DPU's cache is one in this many of a graph: 1 GiB beside graphs of tens (SODA V).
const DPU: u64 = 16;
/// Fewest entries of the DPU's table.
const SLOTS_MIN: u64 = 2;

/// Returns the local bytes for a graph of `len` bytes.
pub(super) fn local(len: u64) -> u64 {
    (len / LOCAL).max(LOCAL_MIN)
}

/// Returns the entries of the DPU's table for a graph of `len` bytes.
fn slots(len: u64, pages: Pages) -> u64 {
    (len / DPU / u64::from(pages.page_len * pages.entry_pages)).max(SLOTS_MIN)
}

/// Returns the DPU section of a rack's description: adaptive, as large as the DPUs in this process, plus
/// `more` lines. A window without caching requests that itself.
pub(super) fn process(len: u64, pages: Pages, more: &str) -> String {
    let Pages { page_len, entry_pages } = pages;
    let entry = u64::from(page_len * entry_pages);
    let (cache, fixed) = (slots(len, pages) * entry, len.next_multiple_of(u64::from(PAGE)));
    format!("[dpu]\npage = {page_len}\nentry = {entry}\ncache = {cache}\nstatic = {fixed}\n{more}")
}

/// Returns the settings of a DPU in this process, without which its figures say nothing.
pub(super) fn in_this_process(options: &WindowOptions) -> Option<String> {
    let AccessPath::Own(DpuConfig { page_len, table, caching, .. }) = options.way else { return None };
    let entry = u64::from(page_len.get()) * u64::from(table.entry_pages);
    let cache = entry * u64::from(table.slots.get());
    let fixed = options.fixed.map_or(0, |(_, len)| len);
    let caching = match caching {
        Caching::Off => "off",
        Caching::Dynamic => "dynamic",
        Caching::Adaptive => "adaptive",
    };
    Some(format!(
        "DPU in this process: caching {caching}, cache {} KiB in entries of {} KiB, static {} KiB, page {} KiB",
        cache >> 10,
        entry >> 10,
        fixed >> 10,
        page_len.get() >> 10
    ))
}

impl System {
    /// All systems, in the order of alternation.
    pub const ALL: [Self; 13] = [
        Self::Local,
        Self::Disk,
        Self::Zram,
        Self::Server,
        Self::ServerAhead,
        Self::Dpu,
        Self::Dynamic,
        Self::Adaptive,
        Self::Static,
        Self::Process,
        Self::ProcessAhead,
        Self::ProcessAdaptive,
        Self::ProcessStatic,
    ];

    /// The systems whose host CPU time is measured; the first is the baseline.
    pub(super) const HOST_CPU: [Self; 5] =
        [Self::Server, Self::Dpu, Self::Process, Self::ProcessAdaptive, Self::ProcessStatic];

    /// Returns the system's part of ids.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Disk => "disk",
            Self::Zram => "zram",
            Self::Server => "server",
            Self::ServerAhead => "server.ahead",
            Self::Dpu => "dpu",
            Self::Dynamic => "dpu.dynamic",
            Self::Adaptive => "dpu.adaptive",
            Self::Static => "dpu.static",
            Self::Process => "process",
            Self::ProcessAhead => "process.ahead",
            Self::ProcessAdaptive => "process.adaptive",
            Self::ProcessStatic => "process.static",
        }
    }

    /// Returns true when the same program moves the same bytes each time. This fails where prefetching
    /// depends on measured times.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        !matches!(self, Self::Adaptive | Self::ServerAhead)
    }

    /// Returns true when the system's DPU is a separate process.
    #[must_use]
    pub const fn has_process(self) -> bool {
        matches!(self, Self::Process | Self::ProcessAhead | Self::ProcessAdaptive | Self::ProcessStatic)
    }

    /// Returns the window on a graph of `len` bytes, of which the range `vertices` is vertex data; `None` for
    /// systems without a window. All windows agree except for the DPU and the system's read-ahead.
    pub(super) fn options(self, len: u64, vertices: (u64, u64), pages: Pages) -> Option<WindowOptions> {
        let caching = match self {
            Self::Local | Self::Disk | Self::Zram => return None,
            Self::Server | Self::ServerAhead => None,
            Self::Process | Self::ProcessAhead | Self::ProcessAdaptive | Self::ProcessStatic => None,
            Self::Dpu | Self::Static => Some(Caching::Off),
            Self::Dynamic => Some(Caching::Dynamic),
            Self::Adaptive => Some(Caching::Adaptive),
        };
        let Pages { page_len, entry_pages } = pages;
        let slots = slots(len, pages);
        let slots =
            u32::try_from(slots).ok().and_then(NonZeroU32::new).expect("entries of this machine's memory");
        let without = if self.has_process() { AccessPath::DpuProcess } else { AccessPath::Direct };
        let way = caching.map_or(without, |caching| {
            AccessPath::Own(DpuConfig {
                page_len: NonZeroU32::new(page_len).expect("a page has bytes"),
                table: TableConfig { slots, entry_pages },
                ..DpuConfig::new(caching)
            })
        });
        Some(WindowOptions {
            place: Addressing::Anywhere,
            ahead: match (self, u64::from(page_len / PAGE)) {
                (Self::ServerAhead | Self::ProcessAhead, pages) => Ahead::Groups { pages, most: AHEAD },
                (_, pages) => Ahead::Group(pages),
            },
            // Nothing is written: pages stay mapped, because probing their use would give varying results.
            inactive_eighths: 0,
            way,
            read_only: true,
            fixed: matches!(self, Self::Static | Self::ProcessStatic).then_some(vertices),
            foresight: match self {
                Self::Process | Self::ProcessAhead | Self::ProcessStatic => Foresight::Nothing,
                _ => Foresight::Evidence,
            },
            ..WindowOptions::new(local(len))
        })
    }
}
