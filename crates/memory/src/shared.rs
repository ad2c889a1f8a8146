//! Coherent far memory: the same addresses, and at any instant the same bytes, for programs on many hosts, by
//! plain loads and stores.
//!
//! Key call: [`SharedSpace::join`], which makes this process a host of the rack with its own page cache
//! ([`SharedSpace`]). The directory at the switch decides which host may read or write a page (MIND 4.3). In
//! this module, faults become requests, and recalls unmap pages of the program. A page is writable at one
//! host only, so atomics work across hosts as across threads, and so do locks based on them.
//!
//! ```text
//!   program's threads      threads that take turns at the pager            rack
//!   touch a page  ------>  at the userfaultfd: Get ------------------> switch --> memory node
//!      ^ wait                      at the link: <------ Data ----------------------'
//!      '---------------------------------- install
//!                                      lease thread <--HTTP--> control plane
//!                                      lease watcher: unmaps all pages when the lease expires
//! ```
//!
//! Shared memory is not durable. If a host dies, its writes since the last write-back are *lost*. An access
//! to a lost page, at any host, ends in SIGBUS, until the owner accepts the old bytes (PROTOCOL 12.25,
//! 12.31).

pub mod fault_source;
mod join;
mod lease;
mod pager;
mod poisoned;
pub mod process;
mod shared_pager;
#[cfg(test)]
mod tests;
pub mod worker;

use crate::window::{AccessPath, FRAMES_MIN, WindowOptions, frames_of};
use farmem_api::ApiClient;
use farmem_client::Vma;
use farmem_client::host_parts::Allocations;
use farmem_client::host_parts::{api_client, number_of_domain};
use farmem_client::{Error, Rack};
use farmem_control::api::{AcceptLost, Allocate, Call, Grant, Overview, PermName, VmaInfo};
use farmem_link::{LinkProfile, OpenError};
use farmem_machine::Duration;
use farmem_paging::Account;
use farmem_uffd::{Memory, Window};
use farmem_wire::message::PAGE_LEN;
use farmem_wire::{NodeId, VirtAddr};
use fault_source::HostHandle;
use shared_pager::lock;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

/// The options of a shared space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareOptions {
    /// Options of the window. [`Addressing::Same`](crate::window::Addressing::Same), unless one process has two spaces
    /// of one rack.
    pub window: WindowOptions,
    /// Time after which a request without an answer is sent again. The time must be longer than a busy
    /// machine delays a thread.
    pub timeout: Duration,
}

impl ShareOptions {
    /// Creates default options with `local_limit` bytes of local memory.
    #[must_use]
    pub fn new(local_limit: u64) -> Self {
        Self { window: WindowOptions::new(local_limit), timeout: Duration::from_millis(20) }
    }

    fn frames_max(&self) -> Result<usize, Error> {
        if self.window.way != AccessPath::Direct || self.window.read_only {
            let value = "by way of a DPU's cache, or read-only".to_owned();
            let remedy = "several hosts write the space, but a DPU's cache serves one host: leave `window.way` and `window.read_only` out".to_owned();
            return Err(OpenError::Setting { setting: "shared space", value, remedy }.into());
        }
        if self.window.chunk as usize != PAGE_LEN {
            let value = format!("chunks of {} bytes", self.window.chunk);
            let remedy = format!("hosts have rights to pages: leave `window.chunk` at {PAGE_LEN}");
            return Err(OpenError::Setting { setting: "shared space", value, remedy }.into());
        }
        frames_of(self.window.local_limit, FRAMES_MIN)
    }
}

/// Counters of a shared space.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ShareStats {
    /// Reported faults, at most one for each wait of a thread. In a run (`farmem run --share`): faults that
    /// the pager passed to the thread for shared pages. For such a fault, no process of the run had the page
    /// locally, or none had it writable.
    pub faults: u64,
    /// Pages fetched.
    pub fetches: u64,
    /// Pages fetched before a thread waited for them, and their use.
    pub ahead: Account,
    /// Read-only pages upgraded to writable.
    pub upgrades: u64,
    /// Accesses that reactivated a page.
    pub reactivated: u64,
    /// Pages evicted for lack of frames.
    pub evictions: u64,
    /// Pages given up because another host requested a page of their region.
    pub invalidations: u64,
    /// Invalidations of pages that the other host did not request: the pages were in one region with a
    /// requested page.
    pub false_invalidations: u64,
    /// Write-backs started, for lack of frames or for other hosts.
    pub write_backs: u64,
    /// Faults that ended in SIGBUS: the page is lost, or the domain has no access.
    pub lost: u64,
    /// Leases that expired before the host had given up its pages: the program lost all its pages each time.
    /// Standard error states the reason.
    pub lapses: u64,
    /// Bytes fetched.
    pub bytes_fetched: u64,
    /// Bytes written back.
    pub bytes_written_back: u64,
    /// Peak of local bytes.
    pub bytes_here_max: u64,
    /// Total fetch time over all pages, in nanoseconds.
    pub waited_ns: u64,
    /// Requests and write-backs sent again.
    pub retries: u64,
    /// Requests refused because another host's request for the region was in progress; each is sent again.
    pub busy: u64,
    /// Packets sent.
    pub packets_out: u64,
    /// Packets received.
    pub packets_in: u64,
}

/// Far memory at this process's addresses, shared with all other hosts of the domain.
///
/// Any thread may use the space. A forked child does not have it: its access is a SIGSEGV. A drop writes
/// changed pages back to the memory nodes, and the process leaves the rack. If that fails, the pages count as
/// lost; call [`SharedSpace::write_back`] to detect this.
pub struct SharedSpace {
    joined: HostHandle<Window>,
    api: Mutex<ApiClient>,
    allocations: Mutex<Allocations>,
    /// The path of the rack's description.
    file: PathBuf,
    link: LinkProfile,
    domain_name: String,
    options: ShareOptions,
}

impl core::fmt::Debug for SharedSpace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (Self { domain_name, .. }, host) = (self, self.host());
        write!(f, "SharedSpace({domain_name:?}, host {host}, from {})", self.window().base())
    }
}

impl SharedSpace {
    /// Joins the rack as a host that shares far memory, by loads and stores, with all hosts that name the
    /// same `domain`.
    ///
    /// As [`Rack::client`] does, this method uses one of the rack's addresses for clients. With
    /// [`Placement::SameCpu`](farmem_client::Placement::SameCpu), it binds the calling thread, and threads
    /// that it starts later, to the rack's CPU. The space contains the memory nodes that have joined so far.
    ///
    /// # Errors
    /// [`Error::Open`] if this process may not serve faults (the message has the remedy), or if the options
    /// are invalid. Also if the rack is within this process. Other errors if the rack does not answer, or if
    /// all its addresses for clients are in use.
    pub fn join(rack: &Rack, domain: &str, options: ShareOptions) -> Result<Self, Error> {
        let Some(config) = rack.config() else {
            return Err(OpenError::Setting {
                setting: "rack",
                value: "embedded".into(),
                remedy: "processes share memory: use a running rack, such as `farmem up` starts".into(),
            }
            .into());
        };
        Ok(Self {
            joined: join::join(config, domain, options)?,
            api: Mutex::new(api_client(config)?),
            allocations: Mutex::default(),
            file: config.file.clone(),
            link: config.link,
            domain_name: domain.to_owned(),
            options,
        })
    }

    /// Returns the profile of the network that the rack's links imitate.
    #[must_use]
    pub const fn link_profile(&self) -> LinkProfile {
        self.link
    }

    /// Allocates at least `size` bytes, rounded up to a power of two of at least 4096. All bytes are zero.
    ///
    /// # Errors
    /// [`Error::Refused`] if no memory node has enough contiguous free memory.
    pub fn allocate(&self, size: u64) -> Result<Vma, Error> {
        let info = self.call(Allocate { domain: self.joined.domain(), size, node: None, durable: false })?;
        lock(&self.allocations).made(&info);
        self.reachable(&info)
    }

    /// Returns the allocation that contains `addr`, of any host.
    ///
    /// # Errors
    /// [`Error::NotMapped`] if no allocation contains `addr`; [`Error::Unreachable`] if its memory node
    /// joined after this space.
    pub fn attach(&self, addr: VirtAddr) -> Result<Vma, Error> {
        let vmas = self.call(Overview {})?.vmas;
        let holds = |vma: &&VmaInfo| addr.0.wrapping_sub(vma.base) < vma.size;
        let info = vmas.iter().find(holds).ok_or(Error::NotMapped { addr })?;
        self.reachable(info)
    }

    /// Frees an allocation. Later accesses end in SIGBUS; at hosts that cache its pages, as soon as the pages
    /// are evicted.
    ///
    /// # Errors
    /// [`Error::Refused`] if this domain does not own an allocation that starts at `base`.
    pub fn free(&self, base: VirtAddr) -> Result<(), Error> {
        lock(&self.allocations).free(self.joined.domain(), base, |request| self.call(request))
    }

    /// Grants the domain called `to` access to `len` bytes at `base`, which this domain owns.
    ///
    /// # Errors
    /// [`Error::Refused`] if the bytes are not within one allocation of this domain.
    pub fn grant(&self, base: VirtAddr, len: u64, to: &str, perm: PermName) -> Result<(), Error> {
        let to = number_of_domain(to, |request| self.call(request))?;
        self.call(Grant { domain: self.joined.domain(), base: base.0, len, to, perm })
    }

    /// Accepts the loss of lost pages in this range: later reads return the bytes that the memory nodes have.
    ///
    /// # Errors
    /// [`Error::Refused`] if the bytes are not within one allocation of this domain.
    pub fn accept_lost(&self, base: VirtAddr, len: u64) -> Result<(), Error> {
        self.call(AcceptLost { domain: self.joined.domain(), base: base.0, len })
    }

    /// Returns the bytes of an allocation.
    ///
    /// # Panics
    /// Panics if the allocation is not within this space.
    #[must_use]
    pub fn memory(&self, vma: &Vma) -> Memory<'_> {
        let (offset, len) = (self.offset(vma.base), usize::try_from(vma.size));
        self.window().memory().part(offset, len.expect("what is mapped has an address"))
    }

    /// Returns the little-endian word at `addr` as an atomic, for threads of every host.
    ///
    /// # Panics
    /// Panics if the word is not within this space or is not aligned.
    #[must_use]
    pub fn word(&self, addr: VirtAddr) -> &AtomicU64 {
        self.window().memory().word(self.offset(addr))
    }

    /// Writes all changed pages back to the memory nodes, so that a client without a cache reads the new
    /// bytes. The next access to a page fetches it again.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the memory nodes do not accept the pages, or the rack is lost.
    pub fn write_back(&self) -> Result<(), Error> {
        self.joined.write_back()
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> ShareStats {
        self.joined.stats()
    }

    /// Returns the reason why far memory is lost: the link failed, or the lease expired. From then on every
    /// access to a page ends in SIGBUS.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.joined.failure()
    }

    /// Returns the number of local bytes of far memory, as the kernel counts them.
    #[must_use]
    pub fn bytes_here(&self) -> u64 {
        self.window().bytes_taken()
    }

    /// Returns the first address and the length of the shared memory.
    #[must_use]
    pub fn span(&self) -> (VirtAddr, u64) {
        (self.window().base(), self.window().len())
    }

    /// Returns the number of this process's host.
    #[must_use]
    pub const fn host(&self) -> u16 {
        self.joined.host()
    }

    /// Returns the domain's name.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain_name
    }

    /// Returns the options of the space.
    #[must_use]
    pub const fn options(&self) -> ShareOptions {
        self.options
    }

    fn call<C: Call>(&self, call: C) -> Result<C::Answer, Error> {
        Ok(lock(&self.api).call(call)?)
    }

    fn window(&self) -> &Window {
        self.joined.fault_source()
    }

    fn offset(&self, addr: VirtAddr) -> usize {
        let offset = addr.0.checked_sub(self.window().base().0).and_then(|n| usize::try_from(n).ok());
        offset.unwrap_or_else(|| panic!("{addr} is in the space"))
    }

    fn reachable(&self, vma: &VmaInfo) -> Result<Vma, Error> {
        let offset = vma.base.checked_sub(self.window().base().0);
        if offset.is_none_or(|offset| offset + vma.size > self.window().len()) {
            let what = format!(
                "memory node {}, which joined after this space was opened: open another space",
                vma.node
            );
            return Err(Error::Unreachable { what });
        }
        Ok(Vma { base: VirtAddr(vma.base), size: vma.size, node: NodeId(vma.node) })
    }
}
