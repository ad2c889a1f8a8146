//! Options of a window, and their checks.

use super::buffer::{Laid, Object};
use super::{Addressing, AtLoss, FRAMES_MIN, FaultMode, Handler};
use farmem_client::Error;
use farmem_dpu::{Config as DpuConfig, Policy, Stats as DpuStats};
use farmem_dpu_server::messages::Carried;
use farmem_dpu_server::{Foresight, check_dpu};
use farmem_link::OpenError;
use farmem_link::limits::memory_of_machine;
use farmem_machine::Duration;
use farmem_paging::{Account, Ahead};
use farmem_uffd::{Reach, WindowConfig};
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;

/// The options of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowOptions {
    /// Maximum number of local bytes of the allocation, or of all objects together, in whole chunks. The
    /// limit is never exceeded. At least 16 chunks: 64 KiB with chunks of a page.
    pub local_limit: u64,
    /// Position of the window in the program's addresses.
    pub place: Addressing,
    /// Pages that are fetched in addition to a page for which a thread waits.
    pub ahead: Ahead,
    /// Maximum number of inactive pages out of 8 local pages. An inactive page is unmapped, so that an access
    /// shows that it is in use. With 0, only pages that are being written back become inactive.
    pub inactive_eighths: u8,
    /// The thread that serves faults, and its way to wait.
    pub handler: Handler,
    /// False: serve only faults of user code, where the system allows no more. System calls on the window
    /// then fail with EFAULT.
    pub system_calls: bool,
    /// The mode of faults: one thread serves all, or each thread serves its own.
    pub faults: FaultMode,
    /// Path of READs and WRITEs. For a DPU with pages of 64 KiB, [`Ahead::Group`] of 16 requests whole pages.
    pub way: AccessPath,
    /// True if the program only reads: a store to the window is a SIGBUS, and the window ends with
    /// [`Error::ReadOnly`]. Any number of such windows may exist on an allocation without writers.
    pub read_only: bool,
    /// Bytes that a DPU caches statically for a read-only window (SODA III-A), as offset and length. Every
    /// request is looked up there first.
    pub fixed: Option<(u64, u64)>,
    /// The DPU's prefetch policy.
    pub foresight: Foresight,
    /// The program's own policy for a DPU within this process, instead of `foresight`, which must be the
    /// default then. A DPU in another process has only the policies of [`Foresight`], and runs no program's
    /// code.
    pub policy: Option<PolicyMaker>,
    /// True to measure the CPU time of the serving thread by purpose ([`WindowStats::cpu`]); costs eight more
    /// system calls per fetch.
    pub told_apart: bool,
    /// The effect on a thread that needs unavailable bytes.
    pub at_loss: AtLoss,
    /// Length in bytes of a chunk, the unit of fetches, evictions and write-backs: a power of two from
    /// [`CHUNK_MIN`](super::CHUNK_MIN) to [`CHUNK_MAX`](super::CHUNK_MAX).
    pub chunk: u32,
}

/// The path of a window's READs and WRITEs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AccessPath {
    /// Directly to the memory nodes.
    #[default]
    Direct,
    /// Through the cache of a DPU within this process (SODA), whose memory is in addition to
    /// [`WindowOptions::local_limit`].
    Own(DpuConfig),
    /// Through the host's DPU, another process: `[dpu]` of the rack's description, `farmem role dpu`. If the
    /// DPU dies or does not serve, the window fences it and continues directly with the memory nodes.
    DpuProcess,
}

/// A constructor of a policy for each object of a window, by the object's number. The policy selects the
/// pages that the DPU prefetches when a page is requested (SODA III-A).
///
/// The policy proposes pages of the object, of [`DpuConfig::page_len`] bytes. The DPU fetches whole entries
/// that contain one of them, if caching is on and the traffic stays within its limit.
#[derive(Clone, Copy, Debug)]
pub struct PolicyMaker(pub fn(usize) -> Box<dyn Policy>);

impl PartialEq for PolicyMaker {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for PolicyMaker {}

impl WindowOptions {
    /// Creates default options of a window with `local_limit` bytes of local memory.
    #[must_use]
    pub fn new(local_limit: u64) -> Self {
        Self {
            local_limit,
            place: Addressing::Same,
            ahead: Ahead::None,
            inactive_eighths: 1,
            handler: Handler::default(),
            system_calls: true,
            faults: FaultMode::Handler,
            way: AccessPath::Direct,
            read_only: false,
            fixed: None,
            foresight: Foresight::default(),
            policy: None,
            told_apart: false,
            at_loss: AtLoss::Signal,
            chunk: super::CHUNK_MIN,
        }
    }

    /// Creates default options of a buffer of several objects with `local_limit` bytes of local memory.
    /// Chunks have 64 KiB, at any free addresses (SODA III, V).
    #[must_use]
    pub fn buffer(local_limit: u64) -> Self {
        Self { place: Addressing::Anywhere, chunk: super::CHUNK, ..Self::new(local_limit) }
    }

    pub(crate) const fn reach(&self) -> Reach {
        if self.system_calls { Reach::Full } else { Reach::UserMode }
    }
}

/// CPU time of the thread that serves a window, by purpose.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CpuApart {
    /// Time for data movement: READs and WRITEs, by any process, and copies into and out of the window.
    pub moving: Duration,
    /// Time for everything else: faults and evictions.
    pub faults: Duration,
}

/// Counters of a window. If chunks are longer than pages, counters of pages count chunks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WindowStats {
    /// Faults reported.
    pub faults: u64,
    /// Faults at far pages.
    pub missing: u64,
    /// Faults at the first write to a page.
    pub upgrades: u64,
    /// Faults that reactivated a page.
    pub reactivated: u64,
    /// Faults without a free frame, which waited for an eviction, and for the write-back of a changed page.
    pub waited: u64,
    /// READs sent.
    pub fetches: u64,
    /// Bytes fetched.
    pub bytes_fetched: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// WRITEs sent.
    pub write_backs: u64,
    /// Bytes written back.
    pub bytes_written_back: u64,
    /// Peak of local bytes.
    pub bytes_here_max: u64,
    /// Pages fetched ahead, and their use.
    pub ahead: Account,
    /// Ranges of the program's advice beyond the limit, which have no effect.
    pub unadvised: u64,
    /// Counters of the DPU, if there is one: the READs and WRITEs above are requests to it. The host's DPU
    /// counts for all its processes, and returns no counters after a fence.
    pub dpu: Option<DpuStats>,
    /// Counters of the host's DPU for requests of this process: how often it moved and copied their bytes,
    /// and with how many system calls.
    pub carried: Option<Carried>,
    /// CPU time of the serving thread, if requested ([`WindowOptions::told_apart`]).
    pub cpu: Option<CpuApart>,
    /// True if the host's DPU was fenced or released the window, and the window continued without it.
    pub dpu_fenced: bool,
}

/// Returns the configuration of a buffer's window, and its number of local chunks.
pub(super) fn window_config(
    laid: &Laid,
    objects: &[Object],
    options: &WindowOptions,
) -> Result<(WindowConfig, usize), Error> {
    let pages = laid.chunk_len / PAGE_LEN as u64;
    let frames = frames_of(options.local_limit, FRAMES_MIN * pages)? as u64 / pages;
    let frames = frames.min(laid.chunks());
    if let AccessPath::Own(dpu) = options.way {
        check_dpu(dpu)?;
    }
    let alone = &objects[0].vma;
    if objects.len() > 1 && options.place == Addressing::Same {
        let (value, remedy) =
            ("its addresses in far memory".into(), "several objects are placed anywhere".into());
        return Err(OpenError::Setting { setting: "window's place", value, remedy }.into());
    }
    check_fixed(laid, options)?;
    check_policy(options)?;
    let config = WindowConfig {
        base: if objects.len() > 1 { VirtAddr(0) } else { alone.base },
        len: laid.len(),
        frames_max: frames * pages,
        place: options.place,
        reach: options.reach(),
        faults: options.faults,
    };
    Ok((config, usize::try_from(frames).expect("frames are memory of this machine")))
}

/// Returns the number of frames that a local limit allows. State for each frame is allocated at once, so a
/// limit beyond this machine's memory is refused.
///
/// # Errors
/// [`Error::Open`] for fewer than `frames_min` pages, or for more than this machine's memory; the message
/// contains the range.
pub fn frames_of(local_limit: u64, frames_min: u64) -> Result<usize, Error> {
    /// Frame numbers have 32 bits, and one number means no frame.
    const FRAMES_MAX: u64 = u32::MAX as u64 - 1;
    let most = memory_of_machine().map_or(FRAMES_MAX, |bytes| (bytes / PAGE_LEN as u64).min(FRAMES_MAX));
    let frames = local_limit / PAGE_LEN as u64;
    if (frames_min..=most).contains(&frames) {
        return Ok(usize::try_from(frames).expect("pages of this machine's memory"));
    }
    let (least_kib, most_mib) = ((frames_min * PAGE_LEN as u64) >> 10, (most * PAGE_LEN as u64) >> 20);
    let value = format!("{local_limit} bytes");
    let remedy =
        format!("give it {least_kib} KiB at least, and at most this machine's memory, {most_mib} MiB");
    Err(OpenError::Setting { setting: "local limit", value, remedy }.into())
}

/// Checks the bytes for static caching.
///
/// # Errors
/// [`Error::Open`] if the bytes cannot be cached statically.
fn check_fixed(laid: &Laid, options: &WindowOptions) -> Result<(), Error> {
    let Some((first, len)) = options.fixed else { return Ok(()) };
    let lie_in_it = len > 0 && first.checked_add(len).is_some_and(|end| end <= laid.len());
    let read_only = laid.extents().iter().all(|extent| extent.read_only);
    if options.way != AccessPath::Direct && read_only && lie_in_it {
        return Ok(());
    }
    let value = format!("{len} bytes from {first} on");
    let remedy = format!("they lie in the {} bytes of a read-only window that uses a DPU", laid.len());
    Err(OpenError::Setting { setting: "static caching", value, remedy }.into())
}

/// Checks the prefetch policy.
///
/// # Errors
/// [`Error::Open`] for a policy that no DPU would use.
fn check_policy(options: &WindowOptions) -> Result<(), Error> {
    if options.policy.is_none()
        || (matches!(options.way, AccessPath::Own(_)) && options.foresight == Foresight::default())
    {
        return Ok(());
    }
    let (value, remedy) = match options.way {
        AccessPath::Own(_) => {
            (format!("the program's own, in addition to {:?}", options.foresight), "omit one of them")
        }
        _ => (
            format!("the program's own, {:?}", options.way),
            "only a DPU in this process supports it; a DPU in another process has the policies of `Foresight`",
        ),
    };
    Err(OpenError::Setting { setting: "prefetch policy", value, remedy: remedy.into() }.into())
}
