//! The location of a host's pages: memory of its own process, or of others; and the handle of the host.
//!
//! Key types: `FaultSource`, with two implementers: a [`Window`] of this process, and a [`SharedMapping`] of
//! processes whose faults arrive by another path; [`HostHandle`], whose drop ends the host.

use super::lease::{Objects, say};
use super::shared_pager::{Inbox, PagerRequest, SharedPager, lock};
use super::{ShareOptions, ShareStats, join};
use farmem_client::Error;
use farmem_client::RackConfig;
use farmem_link::{Link, Sleeper, Stop};
use farmem_uffd::{
    Fault, Faults, Handler, Lease, Mapped, Next, Ring, SharedMapping, Watcher, Window, WindowConfig,
    serve_shared,
};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{JoinHandle, scope};

/// The memory that contains a host's pages.
pub(super) trait FaultSource: Sized + Send + Sync + 'static {
    /// Opens the memory at these addresses, without local pages.
    fn open(options: &ShareOptions, span: &Range<u64>, frames_max: usize) -> Result<Self, Error>;

    /// Returns the lease of the pages.
    fn lease(&self) -> &Arc<Lease>;

    /// Serves until the host must end. Returns true if everything was written back.
    fn serve<'a, L: Link + Send>(
        &'a self,
        handler: Handler,
        shared_pager: &SharedPager<&'a Self, L>,
        sleeper: Sleeper,
    ) -> bool
    where
        &'a Self: Mapped;
}

impl FaultSource for Window {
    fn open(options: &ShareOptions, span: &Range<u64>, frames_max: usize) -> Result<Self, Error> {
        let config = WindowConfig {
            base: VirtAddr(span.start),
            len: span.end - span.start,
            frames_max: frames_max as u64,
            place: options.window.place,
            reach: options.window.reach(),
            faults: options.window.faults,
        };
        Ok(Self::open(&config)?.under_lease()?)
    }

    fn lease(&self) -> &Arc<Lease> {
        Self::lease(self).expect("it was opened under one")
    }

    /// Serves faults on a thread of its own, and the link on the calling thread.
    fn serve<'a, L: Link + Send>(
        &'a self,
        handler: Handler,
        shared_pager: &SharedPager<&'a Self, L>,
        sleeper: Sleeper,
    ) -> bool
    where
        &'a Self: Mapped,
    {
        let stop = Stop::new();
        let ring = Ring::new(self, stop.clone());
        let lease = FaultSource::lease(self);
        scope(|scope| {
            // The watcher is a process of its own where the system allows one, and otherwise a thread.
            let apart = self.watch_apart();
            if apart.is_err() {
                match self.watcher() {
                    Ok(watcher) => _ = scope.spawn(move || watch(watcher)),
                    Err(error) => shared_pager
                        .leave([PagerRequest::Fail(format!("the lease cannot be watched: {error}"))]),
                }
            }
            scope.spawn(|| {
                let mut faults = AtDesk { shared_pager, batch: Vec::new(), parcel: L::Parcel::default() };
                if let Err(error) = serve_shared(self, handler, &stop, &mut faults) {
                    self.abandon(); // otherwise the program would wait without end
                    shared_pager.leave([PagerRequest::Fail(format!("page faults cannot be read: {error}"))]);
                }
            });
            let given_up = shared_pager.run(sleeper);
            ring.end();
            lease.stop();
            drop(apart);
            given_up
        })
    }
}

impl FaultSource for SharedMapping {
    fn open(_: &ShareOptions, span: &Range<u64>, frames_max: usize) -> Result<Self, Error> {
        Ok(Self::open(VirtAddr(span.start), span.end - span.start, frames_max as u64)?)
    }

    fn lease(&self) -> &Arc<Lease> {
        Self::lease(self)
    }

    /// Serves the link only. The guard of the programs watches the pages ([`farmem_uffd::remote::Guard`]).
    /// The thread that reads a fault passes it to [`HostHandle::fault`].
    fn serve<'a, L: Link + Send>(
        &'a self,
        _: Handler,
        shared_pager: &SharedPager<&'a Self, L>,
        sleeper: Sleeper,
    ) -> bool
    where
        &'a Self: Mapped,
    {
        shared_pager.run(sleeper)
    }
}

/// Sleeps until the lease expires, and unmaps the pages if it was not renewed. The watcher does nothing else,
/// because the thread that serves the pages may be suspended.
fn watch(mut watcher: Watcher) {
    if let Err(error) = watcher.watch(None) {
        say(&format!(
            "cannot unmap the pages of an expired lease, which this program must not read any more: {error}"
        ));
        std::process::abort();
    }
}

/// A handle of a host that shares memory. A drop writes changed pages to the memory nodes, ends the host's
/// threads, and leaves the rack.
pub struct HostHandle<G> {
    pub(super) fault_source: Arc<G>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) failed: Arc<Mutex<Option<String>>>,
    pub(super) domain: u32,
    pub(super) host: u16,
    pub(super) objects: Objects,
    pub(super) pager: Option<JoinHandle<()>>,
}

impl HostHandle<SharedMapping> {
    /// Joins the rack as a host whose programs are other processes, at one of the rack's addresses.
    ///
    /// # Errors
    /// The errors of [`SharedSpace::join`](super::SharedSpace::join).
    pub fn of_others(config: &RackConfig, domain: &str, options: ShareOptions) -> Result<Self, Error> {
        let mut options = options;
        // The deactivation of a page needs a second copy of it for a moment.
        options.window.local_limit = options.window.local_limit.saturating_sub(PAGE_LEN as u64);
        join::join(config, domain, options)
    }
}

impl<G> HostHandle<G> {
    /// Returns the memory of the host's pages.
    pub fn fault_source(&self) -> &G {
        &self.fault_source
    }

    /// Returns the host's number.
    pub const fn host(&self) -> u16 {
        self.host
    }

    /// Returns the number of the host's domain.
    pub const fn domain(&self) -> u32 {
        self.domain
    }

    /// Returns the numbers of the named objects that the host has open. Code that opens an object adds it
    /// here.
    pub fn objects(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        lock(&self.objects)
    }

    /// Reports that a thread waits for a page.
    pub fn fault(&self, page: Page, write: bool) {
        let access = if write { Access::Modified } else { Access::Shared };
        self.inbox.put([PagerRequest::Fault(page, access)]);
    }

    /// Writes all changed pages back to the memory nodes.
    ///
    /// # Errors
    /// The first error; then some of the changed pages are lost.
    pub fn write_back(&self) -> Result<(), Error> {
        self.answered(PagerRequest::WriteBack).unwrap_or_else(|| Err(self.lost()))
    }

    /// Returns the counters.
    pub fn stats(&self) -> ShareStats {
        self.answered(PagerRequest::Stats).unwrap_or_default()
    }

    /// Returns the reason why far memory is lost, if it is.
    pub fn failure(&self) -> Option<String> {
        lock(&self.failed).clone()
    }

    fn answered<T>(&self, ask: impl FnOnce(Sender<T>) -> PagerRequest) -> Option<T> {
        let (answer, answered) = channel();
        self.inbox.put([ask(answer)]);
        answered.recv().ok()
    }

    fn lost(&self) -> Error {
        let why = self.failure().unwrap_or_else(|| "its pager has ended".into());
        Error::Unreachable { what: format!("the rack, which this space has lost: {why}") }
    }
}

impl<G> core::fmt::Debug for HostHandle<G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Joined(host {})", self.host)
    }
}

impl<G> Drop for HostHandle<G> {
    fn drop(&mut self) {
        self.inbox.put([PagerRequest::End]);
        if let Some(pager) = self.pager.take() {
            // The panic was already printed, and no caller can handle it.
            let _panicked = pager.join();
        }
    }
}

/// Passes faults to the shared pager, in the batches in which they were read.
struct AtDesk<'a, W: Mapped, L: Link> {
    shared_pager: &'a SharedPager<W, L>,
    batch: Vec<PagerRequest>,
    parcel: L::Parcel,
}

impl<W: Mapped, L: Link> Faults for AtDesk<'_, W, L> {
    fn fault(&mut self, page: Page, fault: Fault) {
        let access = if fault.write { Access::Modified } else { Access::Shared };
        self.batch.push(PagerRequest::Fault(page, access));
    }

    fn turn(&mut self) -> Next {
        self.shared_pager.serve(self.batch.drain(..), &mut self.parcel);
        Next::Sleep
    }

    fn look(&mut self) -> bool {
        self.shared_pager.look()
    }

    fn rest(&mut self) {
        self.shared_pager.rest();
    }
}
