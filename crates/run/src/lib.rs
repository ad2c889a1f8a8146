//! The pager of `farmem run`: far memory under programs that know nothing of it, one limit for the memory that all of them use here.
//!
//! Key type: [`Pager`]. A process of the program comes in with its memfd and userfaultfd ([`Acceptor`]); from then on its faults are
//! served from here, by one-sided READs and WRITEs of one client. Its memory is private: no other client reads or writes those slots.
//! (Named memory, which a run may share with others, is `sharing`'s, and has a limit of its own.)
//! What a process asks beside (addresses, a fork) comes as a call through its mailbox, in order with its faults.
//!
//! Which page comes, goes, rests, is written back and tried again is the page cache's to say, and what forks share the [`Private`]'s
//! around it; here is what they say it to: processes, the pool, and the client.

mod calls;
mod errno;
mod far;
mod faults;
mod fork;
mod holders;
mod left;
mod past;
mod pins;
mod sharing;
mod spans;

use far::{Far, bytes};
use farmem_client::{Client, Error};
use farmem_link::OpenError;
use farmem_memory::window::frames_of;
use farmem_paging::private::{Private, Table};
use farmem_paging::{Account, Ahead, Config, ZEROS_MAX};
use farmem_uffd::remote::call::{CONTROL_PAGES, LocalReason, MAILBOXES};
use farmem_uffd::remote::raw::anonymous_bytes;
use farmem_uffd::remote::{
    Accepted, Acceptor, Buffer, Event, Remote, Watch, buffer, kill, pages_come_singly, place,
};
use farmem_uffd::{Fault, Features, Reach, Userfaultfd};
use farmem_wire::message::{Access, PAGE_LEN};
use fork::Snapshot;
use pins::Pins;
use sharing::Sharing;
use spans::{Kind, Spans};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

pub use farmem_uffd::remote::raw::{Listener, Started, Watched, spawn};
pub use farmem_uffd::remote::{Guard, call, guard, remove as remove_socket};
pub use left::{free_left, own_domain};

pub use farmem_link::limits::{AddressLimit, largest_resident_set};
pub use farmem_link::signals::{SignalInfo, Signals};

/// How a pager works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagerOptions {
    /// Bytes of far memory that may be here at once, of all processes together; counted in whole pages, and never exceeded. At least
    /// [`LOCAL_MIN`].
    pub local_limit: u64,
    /// Pages fetched at most for a stream of faults that go on where the last fetch ended; 1 fetches each page alone.
    pub ahead: u64,
    /// Anonymous mappings of fewer bytes stay the program's own.
    pub threshold: u64,
    /// True serves faults of user code only: system calls on far memory then fail with EFAULT.
    pub user_mode_only: bool,
    /// Bytes of far memory that all processes together are promised at most: more is ENOMEM when it is asked for. `None` on a rack that
    /// others use, too, which says itself when it has no more.
    pub far_limit: Option<u64>,
}

/// The smallest local limit: what one instruction and one system call touch, of several threads at once.
pub const LOCAL_MIN: u64 = 256 << 10;

impl PagerOptions {
    /// The usual pager, with this much memory here.
    #[must_use]
    pub const fn new(local_limit: u64) -> Self {
        Self { local_limit, ahead: 16, threshold: 128 << 10, user_mode_only: false, far_limit: None }
    }
}

/// What a pager did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PagerStats {
    /// Processes that came in: one for each program that was started, and each child of a fork.
    pub processes: u64,
    /// Forks among them.
    pub forks: u64,
    /// Calls of the processes.
    pub calls: u64,
    /// System calls of theirs that passed the preload library by, and that were asked about.
    pub past_libc: u64,
    /// Faults reported.
    pub faults: u64,
    /// Of those, at pages of zeros.
    pub zeros: u64,
    /// Of those, at pages that were far.
    pub missing: u64,
    /// Of those, at pages that were in the pool, or in another process.
    pub near: u64,
    /// Of those, first writes to a page.
    pub upgrades: u64,
    /// Pages of memory that fitted, and that were left to the system, without a fault: touched or not.
    pub plain: u64,
    /// Those of them that were here when frames were wanted, or at a fork or a move.
    pub taken_over: u64,
    /// READs sent.
    pub fetches: u64,
    /// What was fetched, or made of zeros, before a thread waited for it, and what became of it: pages.
    pub ahead: Account,
    /// Bytes they brought.
    pub bytes_fetched: u64,
    /// Of the pages fetched, those that came again soon after they had gone ([`Refaults`](farmem_paging::Refaults)).
    pub refaults: u64,
    /// The program thrashed: a local limit of so many bytes would have kept three of four of the pages that came again.
    pub local_wanted: Option<u64>,
    /// Pages that were taken from a program to make room.
    pub evictions: u64,
    /// WRITEs sent, each of one page or of several that lie together.
    pub write_backs: u64,
    /// Bytes they carried, also those of WRITEs that were not answered yet when the last process ended.
    pub bytes_written_back: u64,
    /// The most bytes that were here at once.
    pub bytes_here_max: u64,
    /// Bytes of far memory allocated: 0 as long as nothing had to leave.
    pub bytes_far: u64,
    /// Pages that a program wanted, and that were lost with a memory node ([`Error::MemoryLost`]).
    pub lost: u64,
    /// The most bytes of private anonymous memory that one process had in RAM outside far memory, as far as that was looked at.
    pub local_resident: u64,
    /// Bytes of private anonymous mappings that stayed local, of all processes that ended, each counted when it was mapped; by
    /// [`LocalReason`].
    pub mapped_local: [u64; LocalReason::ALL.len()],
}

/// Serves processes.
#[derive(Debug)]
pub struct Pager {
    far: Far,
    acceptor: Acceptor,
    guard: Option<Guard>,
    sharing: Option<Sharing>,
    past: past::Past,
    /// Where all processes have their far memory, if they can.
    base: usize,
    moving: Vec<sharing::Moving>,
    options: PagerOptions,
    processes: BTreeMap<u32, Process>,
    /// The key of the next process.
    next: u32,
    /// Their pages.
    private: Private,
    /// Pages that stay where they are.
    pins: Pins,
    /// Pages that rest.
    pool: Box<[u8]>,
    /// Processes that turned out to be gone.
    gone: Vec<u32>,
    /// Forks whose children have not come yet.
    snapshots: BTreeMap<u64, Snapshot>,
    /// Their number so far.
    forks: u64,
    buffer: Buffer,
    reported: Vec<(u64, Fault)>,
    /// Faults at shared pages.
    shared: Vec<Fault>,
    zeros: Box<[u8]>,
    stats: PagerStats,
    /// When local memory was looked at last.
    sampled: Option<Instant>,
    /// It failed: the rack is not asked for anything more.
    broken: bool,
}

/// A process: one program in one address space.
#[derive(Debug)]
struct Process {
    pid: u32,
    remote: Remote,
    ended: OwnedFd,
    spans: Spans,
    /// Shared objects that it used, by number.
    objects: BTreeSet<u64>,
    /// What was made of its pages past libc and not looked at yet.
    doubts: Vec<past::Doubt>,
    /// The latest call of each mailbox.
    called: [u64; MAILBOXES],
    /// Pages that it was promised by its parent's fork, and may come to need room for only where it or the parent writes.
    inherited: u64,
    /// The thread that forks; faults of others wait.
    forking: Option<u32>,
    deferred: Vec<(u64, bool)>,
}

/// Pages of one READ at most.
const AHEAD_MAX: u64 = 64;
/// WRITEs under way at once.
const WRITING_MAX: usize = 64;
/// Pages that go in one step, and pages of one WRITE, at most; and no more than the pool has.
const BATCH: usize = 32;
/// Times a READ or WRITE is tried before the pager gives up; each waits until the rack counts as gone.
const TRIES_MAX: u32 = 2;
/// Pages of zeros that are touched one after the other, each alone, until memory that fits is left to the system.
const STRAYS: u32 = 16;
/// Time that the last processes' children have to come in after a fork.
const STRAGGLE_MAX: Duration = Duration::from_secs(2);

impl Pager {
    /// A pager that keeps its pages by `client`, whose domain should be its own.
    ///
    /// # Errors
    /// [`Error::Open`] when faults may not be served as far as asked, or the options cannot be.
    pub fn open(client: Client, options: PagerOptions) -> Result<Self, Error> {
        let reach = if options.user_mode_only { Reach::UserMode } else { Reach::Full };
        // What the processes will do themselves; here it can still be said why not.
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
        // System calls on far memory fail from the start, or never.
        if !options.user_mode_only && pages_come_singly() {
            private.allow_plain(STRAYS);
        }
        Ok(Self {
            far: Far::new(client),
            acceptor: Acceptor::open(token)?,
            guard: None,
            sharing: None,
            past: past::Past::default(),
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
            broken: false,
        })
    }

    /// The value of the variable [`call::VARIABLE`] for the program.
    #[must_use]
    pub fn invitation(&self) -> String {
        let reach = if self.options.user_mode_only { "user" } else { "full" };
        let sharing = if self.sharing.is_some() { "shared" } else { "own" };
        let (acceptor, threshold) = (self.acceptor.invitation(), self.options.threshold);
        let path = self.path().map_or("", |path| path.to_str().expect("as the acceptor has it"));
        format!("{acceptor}:{threshold}:{reach}:{sharing}:{:x}:{path}", self.base)
    }

    /// From now on processes that come in are guarded against this one's death.
    ///
    /// The guard also takes shared pages away when their lease ends while this process stands still.
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

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> PagerStats {
        let cache = self.private.stats();
        PagerStats {
            zeros: cache.zeros,
            missing: cache.missing,
            near: cache.near + cache.reactivated,
            upgrades: cache.upgrades,
            plain: self.private.plain().handed_over,
            taken_over: self.private.plain().taken_over,
            fetches: cache.fetches,
            ahead: cache.ahead,
            bytes_fetched: bytes(cache.pages_fetched),
            refaults: self.private.refaults().count(),
            // What the pool has is here and costs a fault all the same: the programs' share of the limit is to be as large.
            local_wanted: self
                .private
                .refaults()
                .frames_wanted()
                .map(|frames| bytes((frames * POOL_SHARE as u64).div_ceil(POOL_SHARE as u64 - 1))),
            evictions: self.private.evictions(),
            write_backs: cache.write_backs,
            bytes_written_back: bytes(cache.pages_sent),
            bytes_here_max: bytes(cache.frames_max),
            bytes_far: self.private.bytes_far(),
            lost: self.far.pages_lost,
            ..self.stats
        }
    }

    /// Serves until `program` is readable, which says that the program has ended, and no process of it is left; calls `signalled` when
    /// `signals` is.
    ///
    /// # Errors
    /// What kept it from fetching or writing back, or [`Error::MemoryLost`]: programs that needed it got a SIGBUS. Or [`Error::System`] when the system
    /// takes no more calls; then the processes are best killed.
    pub fn serve(
        &mut self,
        program: impl AsFd,
        signals: impl AsFd,
        signalled: &mut dyn FnMut(),
    ) -> Result<(), Error> {
        let system =
            |source: std::io::Error| Error::System { what: "faults cannot be waited for".into(), source };
        self.acceptor.watch(&program, Watch::Other(PROGRAM)).map_err(|e| system(e.into()))?;
        self.acceptor.watch(&signals, Watch::Other(SIGNALS)).map_err(|e| system(e.into()))?;
        let (mut events, mut ended, mut busy) = (Vec::new(), false, false);
        while !(ended && self.processes.is_empty() && self.snapshots.is_empty()) {
            let over = ended && self.processes.is_empty();
            let patience = if over { STRAGGLE_MAX } else { SAMPLE_TIME_MAX };
            let patience = Some(if busy { Duration::ZERO } else { patience });
            self.acceptor.events(patience, &mut events).map_err(system)?;
            if events.is_empty() && over && !busy {
                break; // forks that failed
            }
            for &event in &events {
                match event {
                    Event::Connections => self.receive(),
                    Event::Faults(key) => self.faulted(key),
                    Event::Ended(key) => self.holder_left(key),
                    Event::Other(SIGNALS) => signalled(),
                    Event::Other(PAST_LIBC) => self.asked(),
                    Event::Other(_) => {
                        self.acceptor.forget(&program);
                        ended = true;
                    }
                }
            }
            self.sample_local_memory();
            busy = self.turn();
            self.end_the_spoiled();
            while let Some(key) = self.gone.pop() {
                self.bury(key);
            }
            self.asked_again();
        }
        self.broken = self.far.failed.is_some();
        let shared = self.sharing.as_ref().map_or(Ok(()), Sharing::finish);
        self.far.failed.take().or_else(|| self.far.lost.take()).map_or(shared, Err)
    }

    /// Lets a process in.
    fn receive(&mut self) {
        let Some(accepted) = self.acceptor.receive() else { return };
        // The same process with another program: what the one before had is given up, but for descriptors of objects.
        let before = self.processes.iter().find(|(_, process)| process.pid == accepted.pid);
        let mut objects = BTreeSet::new();
        if let Some((&key, process)) = before {
            objects.clone_from(&process.objects);
            self.holder_left(key);
        }
        self.look_for_the_gone();
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
        // The doorbells are hung up before the first call can be made.
        let doorbells = &self.zeros[..(CONTROL_PAGES - 1) * PAGE_LEN];
        let hung = accepted.remote.install(1, doorbells, Access::Shared);
        let watched = self.acceptor.watch(&accepted.remote, Watch::Faults(key)).is_ok()
            && self.acceptor.watch(&accepted.ended, Watch::Ended(key)).is_ok();
        if let Some(guard) = &self.guard
            && guard.keep(key, &accepted.ended, &accepted.remote, accepted.remote.file()).is_err()
        {
            self.guard = None; // it was killed; the programs go on unguarded
        }
        let shares = self.let_share(key, &accepted);
        let shared_mapping = self.sharing.as_ref().map(Sharing::shared_mapping);
        let told = hung.is_ok() && watched && shares && accepted.welcome(&list, shared_mapping).is_ok();
        let Accepted { pid, remote, ended, .. } = accepted;
        let process = Process {
            pid,
            remote,
            ended,
            inherited: spans.promised(),
            spans,
            objects,
            doubts: Vec::new(),
            called: [0; MAILBOXES],
            forking: None,
            deferred: Vec::new(),
        };
        self.processes.insert(key, process);
        self.private.open(key, table);
        self.stats.processes += 1;
        if !told {
            self.gone.push(key);
        }
    }

    /// What a process begins with: nothing, or what its parent had.
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

    /// The page from which a process's mappings without a hint are: random, in the third quarter, and a multiple of the largest alignment.
    fn first_page(&self, pages: u64) -> u64 {
        const STEP: u64 = (1 << 30) / PAGE_LEN as u64;
        let quarter = pages / 4 / STEP * STEP;
        let chance = (self.base as u64 >> 30).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (2 * quarter + chance % (quarter / STEP).max(1) * STEP).max(CONTROL_PAGES as u64)
    }

    /// A process is gone, or has another program: what it had is free.
    fn bury(&mut self, key: u32) {
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
        self.pins.bury(key);
        self.forget(key, all);
        self.private.close(key);
        if let Some(process) = self.processes.remove(&key) {
            self.stop_sharing(key, process);
        }
    }

    /// Processes whose memory is gone without a word: they run another program now that does not come in.
    fn look_for_the_gone(&mut self) {
        for (&key, process) in &self.processes {
            if process.remote.is_gone() {
                self.gone.push(key);
            }
        }
        while let Some(key) = self.gone.pop() {
            self.bury(key);
        }
    }

    /// Processes that put something else in the place of their memory file, or sealed or cut it: their bytes are lost, and they are not left to go on
    /// with others.
    fn end_the_spoiled(&mut self) {
        for (&key, process) in self.processes.iter().filter(|(_, process)| process.remote.is_spoiled()) {
            eprintln!("farmem: process {} has spoilt the file of its far memory, and is killed", process.pid);
            kill(&process.ended);
            process.remote.holders().iter().for_each(|(_, ended)| kill(ended));
            self.gone.push(key);
        }
    }

    /// Reads what a process's threads wait for, and serves it as far as that goes at once.
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

    /// Looks at what the processes have outside far memory, from time to time.
    fn sample_local_memory(&mut self) {
        if self.sampled.is_some_and(|at| at.elapsed() < SAMPLE_TIME_MIN) {
            return;
        }
        self.sampled = Some(Instant::now());
        let all = self.processes.values().filter_map(|process| anonymous_bytes(process.pid));
        self.stats.local_resident = all.fold(self.stats.local_resident, u64::max);
    }

    /// Does what takes time; true when there is more to do.
    fn turn(&mut self) -> bool {
        if !self.far.under_way.is_empty() {
            // Sends what was asked for, and clears up while it is on its way.
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

/// Time between two looks at what processes have outside far memory: at least, and at most.
const SAMPLE_TIME_MIN: Duration = Duration::from_millis(200);
const SAMPLE_TIME_MAX: Duration = Duration::from_secs(1);

/// The pool is this part of the local limit.
const POOL_SHARE: usize = 8;
/// Pages of the pool at least.
const POOL_MIN: usize = 16;
/// Of [`Watch::Other`].
const PROGRAM: u32 = 0;
const SIGNALS: u32 = 1;
const PAST_LIBC: u32 = 2;
