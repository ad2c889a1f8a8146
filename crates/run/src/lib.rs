//! The pager of `farmem run`: far memory for unmodified programs, with one limit for their memory on this host.
//!
//! Key type: [`Pager`].
//!
//! A process of the program attaches with its memfd and userfaultfd ([`Acceptor`]). From then on, the pager
//! serves its faults by one-sided READs and WRITEs of one client. The memory is private: no other client reads
//! or writes its slots. Named memory, which a run may share with others, belongs to `sharing` and has its own
//! limit. Further requests of a process (addresses, a fork) are calls through its mailbox, ordered with its
//! faults.
//!
//! The page cache decides which pages are fetched, evicted, inactive, written back and retried. [`Private`],
//! around the cache, manages the pages that forks share. This crate connects both to the processes, the pool
//! and the client.

mod beside;
mod calls;
mod cleanup;
mod errno;
mod far;
mod faults;
mod fork;
mod holders;
mod pins;
mod placement;
mod raw_calls;
mod serve;
mod sharing;
mod spans;
mod static_program;
mod stats;
mod thrashing;
mod tracing;

use far::Far;
use farmem_client::{Client, Error};
use farmem_link::{Clock, OpenError, affinity};
use farmem_memory::window::frames_of;
use farmem_paging::private::{Private, Table};
use farmem_paging::{Ahead, Config, ZEROS_MAX};
use farmem_uffd::remote::call::{CONTROL_PAGES, MAILBOXES};
use farmem_uffd::remote::raw::resident_memory;
use farmem_uffd::remote::{
    Accepted, Acceptor, Buffer, Remote, Watch, buffer, kill, pages_come_singly, place,
};
use farmem_uffd::{Fault, Features, Reach, Userfaultfd};
use farmem_wire::message::{Access, PAGE_LEN};
use fork::Snapshot;
use pins::Pins;
use placement::{Placement, ThreadId};
use serve::PagerMove;
use sharing::Sharing;
use spans::{Kind, Spans};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use thrashing::ThrashingTimer;

pub use cleanup::{free_domain, own_domain};
pub use farmem_uffd::remote::raw::{Listener, Started, Watched, spawn};
pub use farmem_uffd::remote::{Guard, call, guard, remove as remove_socket};
pub use static_program::InterceptedPrograms;
pub use stats::PagerStats;

pub use farmem_link::limits::{AddressLimit, largest_resident_set};
pub use farmem_link::signals::{SignalInfo, Signals};

/// The options of a pager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagerOptions {
    /// Bytes of far memory that may be on this host at once, for all processes together. The limit counts whole
    /// pages and is never exceeded. The minimum is [`LOCAL_MIN`].
    pub local_limit: u64,
    /// Maximum number of pages fetched for a stream of faults that continues where the last fetch ended; 1
    /// disables prefetch.
    pub ahead: u64,
    /// Shorter anonymous mappings stay local.
    pub threshold: u64,
    /// True to serve only faults of user code: system calls on far memory then fail with EFAULT.
    pub user_mode_only: bool,
    /// Maximum bytes of far memory committed to all processes together; further requests get ENOMEM. `None` on
    /// a shared rack, which refuses allocations itself.
    pub far_limit: Option<u64>,
    /// Where the pager runs.
    pub placement: CpuPlacement,
}

/// The CPU of the pager.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CpuPlacement {
    /// The CPU of the faulting thread where that is faster, as measured while the program runs.
    #[default]
    Auto,
    /// The kernel's choice.
    Free,
    /// The CPU of the faulting thread.
    Beside,
}

/// The smallest local limit: the pages that one instruction and one system call access, in several threads at
/// once.
pub const LOCAL_MIN: u64 = 256 << 10;

impl PagerOptions {
    /// Returns the default options with this local limit.
    #[must_use]
    pub const fn new(local_limit: u64) -> Self {
        Self {
            local_limit,
            ahead: 16,
            threshold: 128 << 10,
            user_mode_only: false,
            far_limit: None,
            placement: CpuPlacement::Auto,
        }
    }
}

/// A message of [`Pager::serve_program`] to its caller.
#[derive(Debug)]
pub enum Notice<'a> {
    /// The descriptor of signals is readable.
    Signals,
    /// The program has thrashed for five seconds. The counters name the local limit that would help.
    Thrashing(&'a PagerStats),
}

/// The pager, which serves the faults and calls of the run's processes.
#[derive(Debug)]
pub struct Pager {
    far: Far,
    acceptor: Acceptor,
    guard: Option<Guard>,
    sharing: Option<Sharing>,
    raw_calls: raw_calls::RawCalls,
    /// The static programs of the run; `None` when the run serves none.
    statics: Option<static_program::Statics>,
    /// Address of far memory in the processes that have something else at the low addresses.
    base: usize,
    moving: Vec<sharing::Moving>,
    options: PagerOptions,
    processes: BTreeMap<u32, Process>,
    /// Key of the next process.
    next: u32,
    /// Pages of the processes.
    private: Private,
    /// Pages that must stay in place.
    pins: Pins,
    /// Inactive pages.
    pool: Box<[u8]>,
    /// Keys of processes that turned out to be gone.
    gone: Vec<u32>,
    /// Snapshots whose children have not attached yet.
    snapshots: BTreeMap<u64, Snapshot>,
    /// Number of forks so far.
    forks: u64,
    buffer: Buffer,
    reported: Vec<(u64, Fault)>,
    /// Faults at shared pages.
    shared: Vec<Fault>,
    zeros: Box<[u8]>,
    stats: PagerStats,
    /// Time of the latest sample.
    sampled: Option<Instant>,
    thrashing: ThrashingTimer,
    /// True after a failure: the pager sends no more requests to the rack.
    broken: bool,
    placement: Placement,
    clock: Clock,
    /// The CPU to move to, or to leave, at the end of this turn.
    next_move: Option<PagerMove>,
}

/// A process: one program in one address space.
#[derive(Debug)]
struct Process {
    pid: u32,
    remote: Remote,
    ended: OwnedFd,
    spans: Spans,
    /// Numbers of the shared objects that the process used.
    objects: BTreeSet<u64>,
    /// Changes by calls past libc that the pager has not checked yet.
    doubts: Vec<raw_calls::Doubt>,
    /// Number of the latest call of each mailbox.
    called: [u64; MAILBOXES],
    /// Committed pages from the parent's fork. They need room only where the process or its parent writes.
    inherited: u64,
    /// The forking thread; faults of other threads wait.
    forking: Option<u32>,
    deferred: Vec<(u64, bool)>,
    /// The state of a program that has no preload library.
    static_program: Option<static_program::StaticProgram>,
}

/// Maximum number of pages in one READ.
const AHEAD_MAX: u64 = 64;
/// Maximum number of outstanding WRITEs.
const WRITING_MAX: usize = 64;
/// Maximum number of pages evicted in one step, and of pages in one WRITE; the pool's size is a further limit.
const BATCH: usize = 32;
/// Number of attempts of a READ or WRITE. Each waits until the rack counts as unreachable.
const TRIES_MAX: u32 = 2;
/// Number of separate faults at successive pages of zeros before the pager leaves fitting memory to the kernel.
const STRAYS: u32 = 16;
/// Time limit for the children of the last processes to attach after a fork.
const STRAGGLE_MAX: Duration = Duration::from_secs(2);

impl Pager {
    /// Opens a pager that keeps its pages through `client`, whose domain should be the pager's own.
    ///
    /// # Errors
    /// [`Error::Open`] when the faults cannot be served as requested, or the options are invalid.
    pub fn open(client: Client, options: PagerOptions) -> Result<Self, Error> {
        let reach = if options.user_mode_only { Reach::UserMode } else { Reach::Full };
        // The processes open their own userfaultfds later; an error here can still be explained.
        drop(Userfaultfd::open(reach, Features::WINDOW).map_err(OpenError::from)?);
        let pages = frames_of(options.local_limit, LOCAL_MIN / PAGE_LEN as u64)?;
        let pool = (pages / POOL_SHARE).max(POOL_MIN);
        let seed = farmem_link::os_seed()
            .map_err(|source| Error::System { what: "no random numbers from the system".into(), source })?;
        let (token, rest) = seed.split_first_chunk().expect("a seed is longer than a token");
        let (chance, _) = rest.split_first_chunk().expect("a seed is longer than a token and a number");
        let token = u128::from_be_bytes(*token);
        let ahead = options.ahead.clamp(1, AHEAD_MAX);
        let config = Config {
            frames: pages,
            inactive_max: pool,
            inactive_apart: true,
            run_max: ahead,
            batch_max: BATCH.min(pool),
            writing_max: WRITING_MAX,
            tries_max: TRIES_MAX,
            ahead: Ahead::Stream(ahead),
            stream_writes: true,
        };
        let mut private = Private::new(config);
        // In user mode, system calls on far memory must fail from the start, so no memory is left to the
        // kernel.
        if !options.user_mode_only && pages_come_singly() {
            private.allow_plain(STRAYS);
        }
        let may_move = affinity::allowed_cpus().is_ok_and(|cpus| cpus.len() > 1);
        Ok(Self {
            far: Far::new(client),
            acceptor: Acceptor::open(token)?,
            guard: None,
            sharing: None,
            raw_calls: raw_calls::RawCalls::default(),
            statics: None,
            base: place::base(u64::from_be_bytes(*chance)),
            moving: Vec::new(),
            options: PagerOptions { ahead, ..options },
            processes: BTreeMap::new(),
            next: 1,
            private,
            pins: Pins::new(pages - pool),
            pool: vec![0; pool * PAGE_LEN].into(),
            gone: Vec::new(),
            snapshots: BTreeMap::new(),
            forks: 0,
            buffer: buffer(),
            reported: Vec::new(),
            shared: Vec::new(),
            zeros: vec![0; usize::try_from(AHEAD_MAX.max(ZEROS_MAX)).expect("small") * PAGE_LEN].into(),
            stats: PagerStats::default(),
            sampled: None,
            thrashing: ThrashingTimer::default(),
            broken: false,
            placement: Placement::new(if may_move { options.placement } else { CpuPlacement::Free }),
            clock: Clock::start(),
            next_move: None,
        })
    }

    /// Returns the value of the variable [`call::VARIABLE`] for the program.
    #[must_use]
    pub fn invitation(&self) -> String {
        let reach = if self.options.user_mode_only { "user" } else { "full" };
        let sharing = if self.sharing.is_some() { "shared" } else { "own" };
        let (acceptor, threshold) = (self.acceptor.invitation(), self.options.threshold);
        let path = self.path().map_or("", |path| path.to_str().expect("as the acceptor has it"));
        format!("{acceptor}:{threshold}:{reach}:{sharing}:{:x}:{path}", self.base)
    }

    /// Guards the processes that attach from now on against the pager's death.
    ///
    /// The guard also removes shared pages when their lease expires while the pager is stopped.
    ///
    /// # Errors
    /// [`Error::System`] when the guard is gone already.
    pub fn guarded_by(&mut self, guard: Guard) -> Result<(), Error> {
        if let Some(sharing) = &self.sharing {
            let gone = |source| Error::System { what: "the guard is gone".into(), source };
            guard.watch(sharing.shared_mapping()).map_err(gone)?;
        }
        self.guard = Some(guard);
        Ok(())
    }

    /// Attaches a process.
    fn receive(&mut self) {
        let Some(accepted) = self.acceptor.receive() else { return };
        // The process runs another program now. The memory of the former program is freed; descriptors of
        // objects survive.
        let before = self.processes.iter().find(|(_, process)| process.pid == accepted.pid);
        let mut objects = BTreeSet::new();
        if let Some((&key, process)) = before {
            if process.static_program.is_some() && !process.remote.is_gone() {
                return accepted.refuse(errno::EXIST);
            }
            objects.clone_from(&process.objects);
            self.holder_left(key);
        }
        self.reap_dead_processes();
        match self.settle(&accepted) {
            Some((spans, table, had)) => {
                objects.extend(had);
                self.welcome((spans, table, objects), accepted);
            }
            None => accepted.refuse(errno::INVAL),
        }
    }

    fn welcome(&mut self, had: (Spans, Table, BTreeSet<u64>), accepted: Accepted) {
        let (spans, table, mut objects) = had;
        objects.extend(self.take_moved(accepted.pid));
        let is_far = |kind: &Kind| *kind != Kind::Elsewhere;
        let (elsewhere, far) =
            (spans.all().filter(|(_, kind)| !is_far(kind)), spans.all().filter(|(_, kind)| is_far(kind)));
        let list: Vec<[u64; 3]> = elsewhere
            .chain(far)
            .map(|(pages, kind)| {
                let rights = kind.protection().unwrap_or(call::ELSEWHERE);
                [accepted.remote.address(pages.start), (pages.end - pages.start) * PAGE_LEN as u64, rights]
            })
            .collect();
        let key = self.next;
        self.next += 1;
        // The doorbells must be write-protected before the first call.
        let doorbells = &self.zeros[..(CONTROL_PAGES - 1) * PAGE_LEN];
        let hung = accepted.remote.install(1, doorbells, Access::Shared);
        let watched = self.watch_process(key, &accepted.remote, &accepted.ended);
        let shares = self.let_share(key, &accepted);
        let shared_mapping = self.sharing.as_ref().map(Sharing::shared_mapping);
        let told = hung.is_ok() && watched && shares && accepted.welcome(&list, shared_mapping).is_ok();
        let Accepted { pid, remote, ended, .. } = accepted;
        self.add_process(key, (pid, remote, ended), (spans, table, objects), None);
        if !told {
            self.gone.push(key);
        }
    }

    /// Returns the initial state of a process: empty, or its parent's snapshot.
    fn settle(&mut self, accepted: &Accepted) -> Option<(Spans, Table, BTreeSet<u64>)> {
        let pages = accepted.remote.pages();
        if accepted.hello.snapshot == 0 {
            let spans = Spans::new(CONTROL_PAGES as u64..pages, self.first_page(pages));
            return Some((spans, Table::new(pages), BTreeSet::new()));
        }
        let snapshot = self.snapshots.remove(&accepted.hello.snapshot)?;
        if snapshot.pages != pages {
            self.release(snapshot);
            return None;
        }
        self.stats.forks += 1;
        Some((snapshot.spans, snapshot.table, snapshot.objects))
    }

    /// Returns the first page for a process's mappings without a hint: random in the third quarter, with the
    /// largest alignment. Programs that choose addresses find the first half free.
    fn first_page(&self, pages: u64) -> u64 {
        const STEP: u64 = (1 << 30) / PAGE_LEN as u64;
        let quarter = pages / 4 / STEP * STEP;
        let chance = (self.base as u64 >> 30).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (2 * quarter + chance % (quarter / STEP).max(1) * STEP).max(CONTROL_PAGES as u64)
    }

    /// Frees the memory of a process that has ended or runs another program.
    fn remove_process(&mut self, key: u32) {
        let Some(process) = self.processes.get(&key) else { return };
        self.acceptor.forget(&process.remote);
        self.acceptor.forget(&process.ended);
        if let Some(guard) = &self.guard {
            guard.let_go(key);
        }
        let all = 0..process.remote.pages();
        for (sum, bytes) in self.stats.mapped_local.iter_mut().zip(process.remote.mapped_local()) {
            *sum += bytes;
        }
        self.pins.forget_process(key);
        self.forget(key, all);
        self.private.close(key);
        if let Some(process) = self.processes.remove(&key) {
            self.stop_sharing(key, process);
        }
    }

    /// Removes processes whose memory is gone: they run another program, which has not attached.
    fn reap_dead_processes(&mut self) {
        for (&key, process) in &self.processes {
            if process.remote.is_gone() {
                self.gone.push(key);
            }
        }
        while let Some(key) = self.gone.pop() {
            self.remove_process(key);
        }
    }

    /// Kills processes that replaced, sealed or truncated their memory file. Their bytes are lost, and they
    /// must not continue with wrong ones.
    fn kill_spoiled_processes(&mut self) {
        for (&key, process) in self.processes.iter().filter(|(_, process)| process.remote.is_spoiled()) {
            eprintln!("farmem: process {} has spoilt the file of its far memory, and is killed", process.pid);
            kill(&process.ended);
            process.remote.holders().iter().for_each(|(_, ended)| kill(ended));
            self.gone.push(key);
        }
    }

    /// Reads a process's faults, and serves them as far as possible without waiting.
    fn faulted(&mut self, key: u32) {
        let mut reported = std::mem::take(&mut self.reported);
        while let Some(process) = self.processes.get(&key) {
            let each = |page, fault| reported.push((page, fault));
            let more = process.remote.faults(&mut self.buffer, each, |fault| self.shared.push(fault));
            for fault in self.shared.drain(..) {
                if let Some(sharing) = &self.sharing {
                    sharing.fault(key, &fault);
                }
            }
            for (page, fault) in reported.drain(..) {
                self.stats.faults += 1;
                self.note_thread(ThreadId { process: key, own: fault.thread });
                self.fault(key, page, fault);
            }
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    self.gone.push(key);
                    break;
                }
            }
        }
        self.reported = reported;
    }

    /// Samples the memory that the processes have outside far memory, and whether they thrash.
    fn sample(&mut self, notify: &mut dyn FnMut(Notice<'_>)) {
        let now = Instant::now();
        if self.sampled.is_some_and(|at| now.duration_since(at) < SAMPLE_TIME) {
            return;
        }
        self.sampled = Some(now);
        let shared_pages = self.sharing.as_ref().map_or(0, |sharing| sharing.shared_mapping().bytes_taken());
        for process in self.processes.values() {
            let Some([anonymous, shared]) = resident_memory(process.pid) else { continue };
            // The program's far pages are mapped files in memory, too.
            let shared = shared.saturating_sub(process.remote.bytes_taken() + shared_pages);
            if anonymous + shared > self.stats.local_resident {
                self.stats.local_resident = anonymous + shared;
                self.stats.local_shared = shared;
            }
        }
        let refaults = self.private.refaults();
        let (thrashes, frames) = (refaults.is_thrashing(), refaults.frames_wanted());
        if self.thrashing.sample(now, thrashes, refaults.count(), frames) {
            notify(Notice::Thrashing(&self.stats()));
        }
    }

    /// Does pending work that takes time; returns true when more is left.
    fn turn(&mut self) -> bool {
        if !self.far.under_way.is_empty() {
            // This sends the requests; further work is done while they are in flight.
            match self.far.client.poll() {
                Ok(completed) => completed.into_iter().for_each(|completed| self.ended(completed)),
                Err(error) => self.link_lost(error),
            }
            self.take_ends();
        }
        self.private_turn();
        if self.private.cache().is_awaited() && !self.far.under_way.is_empty() {
            self.wait();
        }
        self.private.cache().is_awaited() || self.private.cache().is_short()
    }
}

/// Time between two samples of the processes.
const SAMPLE_TIME: Duration = Duration::from_millis(200);

/// Divisor of the local limit that gives the pool's size.
const POOL_SHARE: usize = 8;
/// Minimum number of pages in the pool.
const POOL_MIN: usize = 16;
/// The identifier of the filter's listener for [`Watch::Other`].
const PAST_LIBC: u32 = 2;
