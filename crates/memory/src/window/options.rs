//! Options of a window, and their checks.

use super::buffer::{Laid, Object};
use super::{AtLoss, FRAMES_MIN, FaultMode, Handler, Place};
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

/// How a window works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowOptions {
    /// Bytes of the allocation, or of all objects together, that may be here at once; counted in whole chunks, and never exceeded. At least 16 of them: 64 KiB with
    /// chunks of a page.
    pub local_limit: u64,
    /// Where the program finds it.
    pub place: Place,
    /// Pages that are fetched beside one that a thread waits for.
    pub ahead: Ahead,
    /// How many of 8 pages here are inactive at most when room is needed: unmapped, so that a touch tells that they are in use. With 0 only pages that
    /// are to be written back become inactive.
    pub inactive_eighths: u8,
    /// Where faults are served, and how.
    pub handler: Handler,
    /// False serves faults of user code only, where the system allows no more; system calls on the window then fail with EFAULT.
    pub system_calls: bool,
    /// Which thread serves faults: one thread serves all, or each thread serves its own.
    pub faults: FaultMode,
    /// Which way READs and WRITEs go. By a DPU with pages of 64 KiB, [`Ahead::Group`] of 16 asks for whole ones.
    pub way: AccessPath,
    /// The program only reads: a store to the window is a SIGBUS, and the window ends with [`Error::ReadOnly`]. Any number of such windows may be on an
    /// allocation that none writes.
    pub read_only: bool,
    /// By way of a DPU and for reading only: bytes that the DPU is to cache statically (SODA III-A), as the first one and how many. They are sought there
    /// first, whatever else is asked for.
    pub fixed: Option<(u64, u64)>,
    /// How the DPU prefetches.
    pub foresight: Foresight,
    /// By way of a DPU in this process: the program's own policy in place of `foresight`, which is the usual one then. A DPU that is a process of its own has those of [`Foresight`], and no code
    /// of a program's in it.
    pub policy: Option<PolicyMaker>,
    /// The CPU time of the thread that serves is told apart ([`WindowStats::cpu`]): that takes eight more calls of the system for a fetch.
    pub told_apart: bool,
    /// The effect on a thread that needs bytes which cannot be had.
    pub at_loss: AtLoss,
    /// Bytes that are fetched, evicted and written back at once: a power of two from [`CHUNK_MIN`](super::CHUNK_MIN) to [`CHUNK_MAX`](super::CHUNK_MAX).
    pub chunk: u32,
}

/// Which way the READs and WRITEs of a window go.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AccessPath {
    /// Straight to the memory nodes.
    #[default]
    Direct,
    /// By the cache of a DPU in this process (SODA): its memory comes beside [`WindowOptions::local_limit`].
    Own(DpuConfig),
    /// By the DPU beside this host, another process: `[dpu]` of the rack's description, `farmem role dpu`. When it is gone, or does not serve, it is
    /// fenced, and the window goes on straight to the memory nodes.
    Beside,
}

/// Makes a policy for each object of a window, by its place among them: which pages the DPU prefetches when one is asked for (SODA III-A). It proposes pages of the object, of
/// [`DpuConfig::page_len`] bytes; whole entries that have one of them come, as far as caching is on and traffic stays within its bound.
#[derive(Clone, Copy, Debug)]
pub struct PolicyMaker(pub fn(usize) -> Box<dyn Policy>);

impl PartialEq for PolicyMaker {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for PolicyMaker {}

impl WindowOptions {
    /// The usual window, with this much memory here.
    #[must_use]
    pub fn new(local_limit: u64) -> Self {
        Self {
            local_limit,
            place: Place::Same,
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

    /// The usual buffer of several objects, with this much memory here: chunks of 64 KiB, wherever there is room for them (SODA III, V).
    #[must_use]
    pub fn buffer(local_limit: u64) -> Self {
        Self { place: Place::Anywhere, chunk: super::CHUNK, ..Self::new(local_limit) }
    }

    pub(crate) const fn reach(&self) -> Reach {
        if self.system_calls { Reach::Full } else { Reach::UserMode }
    }
}

/// CPU time of the thread that serves a window.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CpuApart {
    /// Moving data: READs and WRITEs, by whichever process, and bytes into the window and out of it.
    pub moving: Duration,
    /// All else: faults, which page goes, taking it away.
    pub faults: Duration,
}

/// Counts of a window. Counts of pages are counts of chunks, where these are longer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WindowStats {
    /// Faults reported.
    pub faults: u64,
    /// Faults at pages that were far.
    pub missing: u64,
    /// Faults that were first writes to a page.
    pub upgrades: u64,
    /// Faults that reactivated a page.
    pub reactivated: u64,
    /// Faults that found no room, and waited until a page had gone: been written back, where it was written.
    pub waited: u64,
    /// READs sent.
    pub fetches: u64,
    /// Bytes they brought.
    pub bytes_fetched: u64,
    /// Pages that went.
    pub evictions: u64,
    /// WRITEs sent.
    pub write_backs: u64,
    /// Bytes they carried.
    pub bytes_written_back: u64,
    /// The most bytes that were here at once.
    pub bytes_here_max: u64,
    /// Pages fetched ahead, and their use.
    pub ahead: Account,
    /// Ranges that the program advised of and that were more than are kept: they are used as if nothing had been said.
    pub unadvised: u64,
    /// Counts of the DPU, where there is one: the READs and WRITEs above are requests to it. A DPU beside the host counts for all its processes, and gives no counts any more when it was fenced.
    pub dpu: Option<DpuStats>,
    /// Counts of the DPU beside the host for requests of this process: how often it moved and copied their bytes, and by how many calls of the system.
    pub carried: Option<Carried>,
    /// CPU time of the thread that served it, where that was asked for ([`WindowOptions::told_apart`]).
    pub cpu: Option<CpuApart>,
    /// The DPU beside the host was fenced, or sent the window away, and the window went on without it.
    pub dpu_fenced: bool,
}

/// The window of a buffer, and the chunks it may have here.
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
    if objects.len() > 1 && options.place == Place::Same {
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

/// The frames that a local limit of so many bytes allows. What is kept for each frame is allocated at once, so a limit that this machine
/// can never use is refused.
///
/// # Errors
/// [`Error::Open`] for fewer than `frames_min` pages, or more than this machine's memory, with what it may be.
pub fn frames_of(local_limit: u64, frames_min: u64) -> Result<usize, Error> {
    /// Frames have numbers of 32 bits, and one is none.
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

/// # Errors
/// [`Error::Open`] for bytes that cannot be cached statically.
fn check_fixed(laid: &Laid, options: &WindowOptions) -> Result<(), Error> {
    let Some((first, len)) = options.fixed else { return Ok(()) };
    let lie_in_it = len > 0 && first.checked_add(len).is_some_and(|end| end <= laid.len());
    let read_only = laid.extents().iter().all(|extent| extent.read_only);
    if options.way != AccessPath::Direct && read_only && lie_in_it {
        return Ok(());
    }
    let value = format!("{len} bytes from {first} on");
    let remedy = format!("they lie in the {} bytes of a read-only window by way of a DPU", laid.len());
    Err(OpenError::Setting { setting: "static caching", value, remedy }.into())
}

/// # Errors
/// [`Error::Open`] for a policy that no DPU would ask.
fn check_policy(options: &WindowOptions) -> Result<(), Error> {
    if options.policy.is_none()
        || (matches!(options.way, AccessPath::Own(_)) && options.foresight == Foresight::default())
    {
        return Ok(());
    }
    let (value, remedy) = match options.way {
        AccessPath::Own(_) => {
            (format!("the program's own beside {:?}", options.foresight), "leave one of them out")
        }
        _ => (
            format!("the program's own, {:?}", options.way),
            "a DPU in this process has it; one that is a process of its own has those of `Foresight`",
        ),
    };
    Err(OpenError::Setting { setting: "prefetch policy", value, remedy: remedy.into() }.into())
}
