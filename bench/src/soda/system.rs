//! Where the arrays of a graph are, and what is between them and the program.
//!
//! Key type: [`System`]; [`System::options`] is the one place that makes a window of it.

use farmem::window::{Ahead, Caching, DpuConfig, Foresight, Place, TableConfig, Way, WindowOptions};
use std::num::NonZeroU32;

/// One of the systems that are compared (SODA VI-A).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// All in local memory.
    Local,
    /// A mapped file on a disk, under a limit for memory.
    Disk,
    /// Local memory under a limit, swapped to zram.
    Zram,
    /// A window straight onto a memory node.
    Server,
    /// The same, with up to 256 KiB of what is read in order fetched at once.
    ServerAhead,
    /// The same window as [`System::Server`]'s by way of a DPU that forwards.
    Dpu,
    /// That, with a cache that prefetches what its policy proposes.
    Dynamic,
    /// That, as long as it pays.
    Adaptive,
    /// A DPU that forwards, and has what belongs to vertices in static memory.
    Static,
    /// The window by way of a DPU that is a process of its own, and forwards.
    Process,
    /// The same, with up to 256 KiB of what is read in order asked for at once.
    ProcessAhead,
    /// As [`System::Process`], with a cache that prefetches as long as it pays.
    ProcessAdaptive,
    /// That, forwarding, with what belongs to vertices in static memory.
    ProcessStatic,
}

/// How large the parts of a window are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pages {
    /// Bytes that are fetched at once: 64 KiB in the paper.
    pub(super) page_len: u32,
    /// Pages of an entry of the DPU's table.
    pub(super) entry_pages: u32,
}

impl Pages {
    /// The paper's pages; entries a quarter of its, as graphs are smaller.
    pub(super) const FULL: Self = Self { page_len: 64 << 10, entry_pages: 4 };
    /// For graphs of a few hundred kilobytes.
    pub(super) const QUICK: Self = Self { page_len: 16 << 10, entry_pages: 2 };
}

/// Bytes of a window's own page.
const PAGE: u32 = 4096;
/// What is read in order: chunks at first, and of a stream up to four of them at once.
const AHEAD: u64 = 64;
/// The part of a graph that is here (SODA V: a buffer for a third).
const LOCAL: u64 = 3;
/// The least that a window takes.
const LOCAL_MIN: u64 = 64 << 10;
/// The part of a graph that the DPU has room for: 1 GiB beside graphs of tens (SODA V).
const DPU: u64 = 16;
/// Entries of the DPU's table at least.
const SLOTS_MIN: u64 = 2;

/// Bytes of a graph of `len` bytes that are here.
pub(super) fn local(len: u64) -> u64 {
    (len / LOCAL).max(LOCAL_MIN)
}

/// Entries of the DPU's table for a graph of `len` bytes.
fn slots(len: u64, pages: Pages) -> u64 {
    (len / DPU / u64::from(pages.page_len * pages.entry_pages)).max(SLOTS_MIN)
}

/// The part of a rack's description that is about its DPU: adaptive, with as much room as the DPUs in this process have, and `more` lines. A window that is to be
/// forwarded only says so itself.
pub(super) fn process(len: u64, pages: Pages, more: &str) -> String {
    let Pages { page_len, entry_pages } = pages;
    let entry = u64::from(page_len * entry_pages);
    let (cache, fixed) = (slots(len, pages) * entry, len.next_multiple_of(u64::from(PAGE)));
    format!("[dpu]\npage = {page_len}\nentry = {entry}\ncache = {cache}\nstatic = {fixed}\n{more}")
}

/// The settings of a DPU that is in this process: no figure of it says anything without.
pub(super) fn in_this_process(options: &WindowOptions) -> Option<String> {
    let Way::Own(DpuConfig { page_len, table, caching, .. }) = options.way else { return None };
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
    /// All, in the order in which they take turns.
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

    /// Those whose host is looked at for what it does; the first is what the others are beside.
    pub(super) const HOST_CPU: [Self; 5] =
        [Self::Server, Self::Dpu, Self::Process, Self::ProcessAdaptive, Self::ProcessStatic];

    /// Its part of ids.
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

    /// Whether the same program moves the same bytes each time: not where what is prefetched depends on times that are measured.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        !matches!(self, Self::Adaptive | Self::ServerAhead)
    }

    /// Whether its DPU is a process of its own.
    #[must_use]
    pub const fn has_process(self) -> bool {
        matches!(self, Self::Process | Self::ProcessAhead | Self::ProcessAdaptive | Self::ProcessStatic)
    }

    /// The window on a graph of `len` bytes, of which `vertices` belong to vertices; `None` of systems that have none. All windows are alike but for the DPU, and for what is read ahead where that is the system's name.
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
        let without = if self.has_process() { Way::Beside } else { Way::Direct };
        let way = caching.map_or(without, |caching| {
            Way::Own(DpuConfig {
                page_len: NonZeroU32::new(page_len).expect("a page has bytes"),
                table: TableConfig { slots, entry_pages },
                ..DpuConfig::new(caching)
            })
        });
        Some(WindowOptions {
            place: Place::Anywhere,
            ahead: match (self, u64::from(page_len / PAGE)) {
                (Self::ServerAhead | Self::ProcessAhead, pages) => Ahead::Groups { pages, most: AHEAD },
                (_, pages) => Ahead::Group(pages),
            },
            // Nothing is written: no page is unmapped for a look at whether it is used, which would come out otherwise each time.
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
