//! Coherent far memory: the same addresses, and at any instant the same bytes, for programs on many hosts, by plain loads and stores.
//!
//! Key call: [`SharedSpace::join`], which makes this process one host of the rack with a page cache of its own
//! ([`SharedSpace`]). The directory at the switch decides which host may read or write a page (MIND 4.3); here faults become
//! requests, and recalls take pages from the program. Atomics work across hosts as they do across threads, since a page that is
//! written is at one host alone; so do locks made of them.
//!
//! ```text
//!   program's threads      threads that take turns at the pager            rack
//!   touch a page  ------>  at the userfaultfd: Get ------------------> switch --> memory node
//!      ^ wait                      at the link: <------ Data ----------------------'
//!      '---------------------------------- install
//!                                      lease thread <--HTTP--> control plane
//!                                      lease watcher: takes all pages at the lease's end, also when the other threads do not run
//! ```
//!
//! Shared memory is not durable. A host that dies takes what it had written and not yet given up with it. Those pages are *lost*: a
//! touch of one, at any host, ends in SIGBUS and never in old bytes, until the owner accepts the old ones (PROTOCOL 12.25, 12.31).

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

/// How a shared space works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareOptions {
    /// How its window does. [`Place::Same`](crate::window::Place::Same) unless two spaces of one rack are in one process.
    pub window: WindowOptions,
    /// Time without the page after which a request is sent again: longer than a busy machine makes a thread wait.
    pub timeout: Duration,
}

impl ShareOptions {
    /// The usual space, with this many bytes of memory here.
    #[must_use]
    pub fn new(local_limit: u64) -> Self {
        Self { window: WindowOptions::new(local_limit), timeout: Duration::from_millis(20) }
    }

    fn frames_max(&self) -> Result<usize, Error> {
        if self.window.way != AccessPath::Direct || self.window.read_only {
            let value = "by way of a DPU's cache, or for reading only".to_owned();
            let remedy = "several hosts write it, and a DPU's cache is of one: leave `window.way` and `window.read_only` out".to_owned();
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

/// Counts of a shared space.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ShareStats {
    /// Faults reported, at most one for each time a thread waited. In a run (`farmem run --share`): the faults that its pager handed on to the thread
    /// that gets shared pages, because no process of the run had the page here, or none had it writable.
    pub faults: u64,
    /// Pages that came.
    pub fetches: u64,
    /// Pages that were asked for before a thread waited for them, and what became of them.
    pub ahead: Account,
    /// Pages that were here to be read and may be written since.
    pub upgrades: u64,
    /// Touches that reactivated a page.
    pub reactivated: u64,
    /// Pages that went to make room.
    pub evictions: u64,
    /// Pages that went because another host wanted them, or others of their region.
    pub invalidations: u64,
    /// Invalidations that the other host had not asked for: the pages lay in one region with a page that it had.
    pub false_invalidations: u64,
    /// Write-backs begun, to make room or for others.
    pub write_backs: u64,
    /// Pages that could not be had, and ended in SIGBUS: lost, or not this domain's.
    pub lost: u64,
    /// Leases that ended without being given up: the program lost all its pages each time. Standard error says why.
    pub lapses: u64,
    /// Bytes that came.
    pub bytes_fetched: u64,
    /// Bytes that were written back.
    pub bytes_written_back: u64,
    /// The most bytes that were here at once.
    pub bytes_here_max: u64,
    /// Time that pages took to come, in nanoseconds, summed over the pages.
    pub waited_ns: u64,
    /// Requests and write-backs that were sent again.
    pub retries: u64,
    /// Requests refused because another host had its turn; each is sent again.
    pub busy: u64,
    /// Packets sent.
    pub packets_out: u64,
    /// Packets received.
    pub packets_in: u64,
}

/// Far memory under this process's addresses, shared with every other host of the domain.
///
/// Any thread may use it. A forked child does not have it: its touch is a SIGSEGV. When it is dropped, what was written goes to the memory
/// nodes, and the process leaves the rack; if that fails the pages count as lost, so call [`SharedSpace::write_back`] to know.
pub struct SharedSpace {
    joined: HostHandle<Window>,
    api: Mutex<ApiClient>,
    allocations: Mutex<Allocations>,
    /// The rack's description.
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
    /// Joins the rack as a host that shares far memory with all others that name the same `domain`, by loads and stores.
    ///
    /// As [`Rack::client`] it takes one of the rack's addresses for clients, and with [`Placement::SameCpu`](farmem_client::Placement::SameCpu) binds
    /// the calling thread, and those it starts later, to the rack's CPU. The rack's memory nodes of this moment are what is shared.
    ///
    /// # Errors
    /// [`Error::Open`] when this process may not serve faults (with what to do), the options cannot be, or the rack is one in this process;
    /// else when the rack does not answer, or all its addresses for clients are in use.
    pub fn join(rack: &Rack, domain: &str, options: ShareOptions) -> Result<Self, Error> {
        let Some(config) = rack.config() else {
            return Err(OpenError::Setting {
                setting: "rack",
                value: "embedded".into(),
                remedy: "memory is shared between processes: use a rack that runs, as `farmem up` starts it"
                    .into(),
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

    /// The network that the rack's links stand for.
    #[must_use]
    pub const fn link_profile(&self) -> LinkProfile {
        self.link
    }

    /// Allocates at least `size` bytes, rounded up to a power of two of at least 4096. All bytes are zero.
    ///
    /// # Errors
    /// [`Error::Refused`] when no memory node has that much free in one piece.
    pub fn allocate(&self, size: u64) -> Result<Vma, Error> {
        let info = self.call(Allocate { domain: self.joined.domain(), size, node: None, durable: false })?;
        lock(&self.allocations).made(&info);
        self.reachable(&info)
    }

    /// The allocation that `addr` lies in, made by any host.
    ///
    /// # Errors
    /// [`Error::NotMapped`] when there is none; [`Error::Unreachable`] when it is on a memory node that joined after this space.
    pub fn attach(&self, addr: VirtAddr) -> Result<Vma, Error> {
        let vmas = self.call(Overview {})?.vmas;
        let holds = |vma: &&VmaInfo| addr.0.wrapping_sub(vma.base) < vma.size;
        let info = vmas.iter().find(holds).ok_or(Error::NotMapped { addr })?;
        self.reachable(info)
    }

    /// Frees an allocation. A touch of it ends in SIGBUS from then on, at hosts that have pages of it as soon as those go.
    ///
    /// # Errors
    /// [`Error::Refused`] when this domain does not own an allocation that starts at `base`.
    pub fn free(&self, base: VirtAddr) -> Result<(), Error> {
        lock(&self.allocations).free(self.joined.domain(), base, |request| self.call(request))
    }

    /// Lets the domain called `to` use `len` bytes at `base`, which this domain owns.
    ///
    /// # Errors
    /// [`Error::Refused`] when they are not in one allocation of this domain.
    pub fn grant(&self, base: VirtAddr, len: u64, to: &str, perm: PermName) -> Result<(), Error> {
        let to = number_of_domain(to, |request| self.call(request))?;
        self.call(Grant { domain: self.joined.domain(), base: base.0, len, to, perm })
    }

    /// Takes the old bytes of the lost pages among these: from here on they are read again, as the memory nodes have them.
    ///
    /// # Errors
    /// [`Error::Refused`] when they are not in one allocation of this domain.
    pub fn accept_lost(&self, base: VirtAddr, len: u64) -> Result<(), Error> {
        self.call(AcceptLost { domain: self.joined.domain(), base: base.0, len })
    }

    /// An allocation's bytes.
    ///
    /// # Panics
    /// When they are not all in this space.
    #[must_use]
    pub fn memory(&self, vma: &Vma) -> Memory<'_> {
        let (offset, len) = (self.offset(vma.base), usize::try_from(vma.size));
        self.window().memory().part(offset, len.expect("what is mapped has an address"))
    }

    /// The little-endian word at `addr`, to be used as an atomic: by threads of every host.
    ///
    /// # Panics
    /// When it is not in this space, or not aligned.
    #[must_use]
    pub fn word(&self, addr: VirtAddr) -> &AtomicU64 {
        self.window().memory().word(self.offset(addr))
    }

    /// Writes back to the memory nodes everything that was written so far, so that a client that reads without a cache finds it. A page
    /// is fetched again at its next touch.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when the memory nodes do not take it, or the rack is lost.
    pub fn write_back(&self) -> Result<(), Error> {
        self.joined.write_back()
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> ShareStats {
        self.joined.stats()
    }

    /// Why nothing can be had any more: the link broke, or the lease ended. Each touch of a page ends in SIGBUS then.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.joined.failure()
    }

    /// Bytes of far memory that are here, as the system counts the memory they take.
    #[must_use]
    pub fn bytes_here(&self) -> u64 {
        self.window().bytes_taken()
    }

    /// First address and bytes of what is shared.
    #[must_use]
    pub fn span(&self) -> (VirtAddr, u64) {
        (self.window().base(), self.window().len())
    }

    /// The host this process is.
    #[must_use]
    pub const fn host(&self) -> u16 {
        self.joined.host()
    }

    /// The domain's name.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain_name
    }

    /// How it works.
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
            let what =
                format!("memory node {}, which joined after this space was opened: open another", vma.node);
            return Err(Error::Unreachable { what });
        }
        Ok(Vma { base: VirtAddr(vma.base), size: vma.size, node: NodeId(vma.node) })
    }
}
