//! A window onto an allocation: far memory by plain loads and stores, with a bounded part of it here.
//!
//! Key call: [`with_window`]. It requests nothing of the rack but READs and WRITEs, so it keeps no other client out: **one window
//! at a time may write an allocation**, and a client that reads it by other ways meanwhile finds what was written back so far. Memory that
//! several hosts share coherently is the agent's business, not this module's.
//!
//! The thread that calls serves the window with its client; the program runs on a thread of its own, and on as many more as it likes.
//!
//! The page cache ([`farmem_paging::Cache`]) decides which page is fetched, evicted and written back; this module carries it out.

mod beside;
mod parts;
mod through;
mod verbs;

use farmem_client::{Client, Completed, Vma};
use farmem_client::{Error, MESSAGE_MAX, Op};
use farmem_host::agent::Pages as _;
use farmem_io::OpenError;
use farmem_io::Stop;
use farmem_io::pages::{Fault, Faults, Next, Reach, Ring, Window, WindowConfig, serve};
use farmem_paging::{Action, Cache, Cause, Config, Key, Layout, Outcome, Source};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use procfs_core::{FromRead as _, Meminfo};
use std::collections::VecDeque;
use std::mem;
use std::thread;

use beside::{Beside, Wishes};
use through::Through;
use verbs::{Ended, Name, Verbs};

pub use crate::dpu::Foresight;
pub use farmem_dpu::{Caching, Config as DpuConfig, Stats as DpuStats, TableConfig};
pub use farmem_io::pages::{FaultMode, Handler, HandlerCpu, Memory, Number, Numbers, Place};
pub use farmem_paging::{Account, Ahead};

#[cfg(test)]
mod tests;

/// How a window works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowOptions {
    /// Bytes of the allocation that may be here at once; counted in whole pages, and never exceeded. At least 64 KiB.
    pub local_limit: u64,
    /// Where the program finds it.
    pub place: Place,
    /// What is fetched beside a page that a thread waits for.
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
    pub way: Way,
    /// The program only reads: a store to the window is a SIGBUS, and the window ends with [`Error::ReadOnly`]. Any number of such windows may be on an
    /// allocation that none writes.
    pub read_only: bool,
    /// By [`Way::Beside`] and for reading only: bytes that the DPU is to cache statically (SODA III-A), as the first one and how many. They are sought there
    /// first, whatever else is asked for.
    pub fixed: Option<(u64, u64)>,
    /// By [`Way::Beside`]: how the DPU prefetches.
    pub foresight: Foresight,
}

/// Which way the READs and WRITEs of a window go.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Way {
    /// Straight to the memory nodes.
    #[default]
    Direct,
    /// By the cache of a DPU in this process (SODA): its memory comes beside [`WindowOptions::local_limit`].
    Own(DpuConfig),
    /// By the DPU beside this host, another process: `[dpu]` of the rack's description, `farmem role dpu`. When it is gone, or does not serve, it is
    /// fenced, and the window goes on straight to the memory nodes.
    Beside,
}

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
            way: Way::Direct,
            read_only: false,
            fixed: None,
            foresight: Foresight::default(),
        }
    }

    pub(crate) const fn reach(&self) -> Reach {
        if self.system_calls { Reach::Full } else { Reach::UserMode }
    }
}

/// What a window did.
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
    /// What was fetched ahead, and what became of it.
    pub ahead: Account,
    /// What the DPU did, where there is one: the READs and WRITEs above are what it was asked. One beside the host has done it for all its processes.
    pub dpu: Option<DpuStats>,
    /// The DPU beside the host was fenced, and the window went on without it.
    pub dpu_fenced: bool,
}

/// Fewer pages could not hold what one instruction touches, and what several threads do at once.
pub(crate) const FRAMES_MIN: u64 = 16;
/// Pages of one READ at most.
const RUN_MAX: u64 = 64;
/// WRITEs under way at once.
const WRITING_MAX: usize = 64;
/// Pages that are laid to rest in one step, and pages of one WRITE, at most.
const BATCH: usize = 16;
/// Times a READ or WRITE is tried before the window gives up; each waits until the rack counts as gone.
const TRIES_MAX: u32 = 3;

/// Runs `program` with `vma` mapped, at most [`WindowOptions::local_limit`] bytes of it here. What it changed is in far memory
/// when this returns, also when it panics.
///
/// A forked child does not have the window: its touch is a SIGSEGV. When the rack no longer answers, threads that need a page that is
/// not here get a SIGBUS: wrong bytes are never read. So do those that need a page whose bytes are lost ([`Error::MemoryLost`]); all others
/// go on.
///
/// # Errors
/// [`Error::Open`] when this process may not serve faults (with what to do), or the options cannot be; else what kept the window
/// from fetching or from writing back, [`Error::MemoryLost`] among it. Then part of what the program wrote is lost.
///
/// # Panics
/// When `program` does.
pub fn with_window<R: Send>(
    client: &mut Client,
    vma: &Vma,
    options: WindowOptions,
    program: impl FnOnce(Memory<'_>) -> R + Send,
) -> Result<(R, WindowStats), Error> {
    let window = Window::open(&window_config(vma, &options)?)?;
    let stop = Stop::new();
    let kept = client.take_ready();
    let verbs = match options.way {
        Way::Own(config) => Verbs::Through(Box::new(Through::new(client, vma, config))),
        Way::Direct => Verbs::Direct(client),
        Way::Beside => {
            let WindowOptions { read_only, fixed, foresight, .. } = options;
            Verbs::Beside(Box::new(Beside::open(client, vma, Wishes { read_only, fixed, foresight })?))
        }
    };
    let mut server = Server::new(verbs, &window, &options);
    let result = thread::scope(|scope| {
        let end = EndWhenDropped(Ring::new(&window, stop.clone()));
        let thread = scope.spawn(move || {
            let end = end;
            program(end.0.window().memory())
        });
        if let Err(source) = serve(&window, options.handler, &stop, &mut server) {
            window.abandon(); // or the program would wait for ever
            server.failed = Some(Error::System { what: "page faults cannot be read".into(), source });
        }
        thread.join()
    });
    let flushed = server.flush();
    for ended in server.verbs.settle() {
        server.ended(ended);
    }
    let (stats, others) = (server.stats(), mem::take(&mut server.others));
    client.put_ready(kept);
    client.put_ready(others);
    let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    flushed.map(|()| (result, stats))
}

fn window_config(vma: &Vma, options: &WindowOptions) -> Result<WindowConfig, Error> {
    let frames_max = frames_of(options.local_limit, FRAMES_MIN)? as u64;
    if let Way::Own(dpu) = options.way {
        check_dpu(dpu)?;
    }
    check_fixed(vma, options)?;
    let (base, len) = (vma.base, vma.size);
    Ok(WindowConfig {
        base,
        len,
        frames_max: frames_max.min(len / PAGE_LEN as u64),
        place: options.place,
        reach: options.reach(),
        faults: options.faults,
    })
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
fn check_fixed(vma: &Vma, options: &WindowOptions) -> Result<(), Error> {
    let Some((first, len)) = options.fixed else { return Ok(()) };
    let lie_in_it = len > 0 && first.checked_add(len).is_some_and(|end| end <= vma.size);
    if options.way == Way::Beside && options.read_only && lie_in_it {
        return Ok(());
    }
    let value = format!("{len} bytes from {first} on");
    let remedy =
        format!("they lie in the {} bytes of a read-only window by the DPU beside its host", vma.size);
    Err(OpenError::Setting { setting: "static caching", value, remedy }.into())
}

/// # Errors
/// [`Error::Open`] for a DPU that cannot be, with what can.
pub(crate) fn check_dpu(config: DpuConfig) -> Result<(), Error> {
    let (page_len, table) = (config.page_len.get(), config.table);
    let wrong = |value: String, remedy: &str| {
        Error::from(OpenError::Setting { setting: "cache of a DPU", value, remedy: remedy.into() })
    };
    if !(page_len as usize).is_multiple_of(PAGE_LEN) || !table.is_valid() {
        let value = format!("entries of {} pages of {page_len} bytes", table.entry_pages);
        return Err(wrong(value, "a page has a multiple of 4096 bytes, and an entry 1 to 64 pages"));
    }
    // 64 pages of less than 2^32 bytes at most.
    let entry = u64::from(page_len) * u64::from(table.entry_pages);
    if entry > MESSAGE_MAX as u64 {
        let value = format!("entries of {entry} bytes");
        return Err(wrong(value, "one READ brings an entry, 2 GiB at most: fewer or shorter pages"));
    }
    let bytes = entry * u64::from(table.slots.get()); // 2^31 times less than 2^32
    if memory_of_machine().is_some_and(|most| bytes > most) {
        let remedy = "make it smaller than this machine's memory: fewer slots, or shorter entries";
        return Err(wrong(format!("{} slots of {entry} bytes", table.slots), remedy));
    }
    Ok(())
}

/// A page cache of so many frames.
pub(crate) fn cache_config(frames: usize, options: &WindowOptions) -> Config {
    // A window of a page has room for another, which never comes.
    let frames = frames.max(2);
    let inactive = frames * usize::from(options.inactive_eighths.min(8)) / 8;
    Config {
        frames,
        inactive_max: inactive.max(frames / 16).clamp(1, frames - 1),
        inactive_apart: false,
        run_max: RUN_MAX,
        batch_max: BATCH,
        writing_max: WRITING_MAX,
        tries_max: TRIES_MAX,
        ahead: options.ahead,
        stream_writes: false,
    }
}

/// Bytes; `None` where the system does not tell.
fn memory_of_machine() -> Option<u64> {
    Some(Meminfo::from_file("/proc/meminfo").ok()?.mem_total)
}

/// The program ended, well or by a panic: so does the service.
struct EndWhenDropped<'w>(Ring<'w>);

impl Drop for EndWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// An operation of the client, and what the cache calls it.
#[derive(Clone, Copy, Debug)]
enum UnderWay {
    Fetch { op: farmem_paging::Op, first: u64 },
    WriteBack { op: farmem_paging::Op },
}

/// Where the window's pages are: all of them in one allocation.
#[derive(Clone, Copy, Debug)]
struct Whole {
    pages: u64,
}

impl Layout for Whole {
    fn source(&self, key: Key) -> Source {
        if key.page < self.pages { Source::Far(key.page) } else { Source::Elsewhere }
    }

    fn home(&self, key: Key) -> Option<u64> {
        Some(key.page)
    }
}

/// Carries out what the page cache says, by READs and WRITEs.
struct Server<'a> {
    verbs: Verbs<'a>,
    window: &'a Window,
    cache: Cache,
    whole: Whole,
    actions: Vec<Action>,
    under_way: Vec<(Name, UnderWay)>,
    /// Operations that the cache does not wait for any more: the link was lost. Their ends may come yet.
    abandoned: Vec<Name>,
    /// Operations that the client did not take.
    refused: Vec<UnderWay>,
    /// Completions of operations that are not ours.
    others: VecDeque<Completed>,
    bytes_here_max: u64,
    /// Why the latest operation failed, and why bytes were lost.
    why: Option<Error>,
    why_lost: Option<Error>,
    failed: Option<Error>,
    /// Bytes that the program wanted and that are lost; everything else goes on.
    lost: Option<Error>,
    read_only: bool,
}

impl<'a> Server<'a> {
    fn new(verbs: Verbs<'a>, window: &'a Window, options: &WindowOptions) -> Self {
        let frames = usize::try_from(window.frames_max()).expect("frames are memory of this machine");
        let config = cache_config(frames, options);
        let frames = config.frames;
        Self {
            verbs,
            window,
            cache: Cache::new(config),
            whole: Whole { pages: window.len() / PAGE_LEN as u64 },
            actions: Vec::new(),
            under_way: Vec::with_capacity(frames.min(2 * WRITING_MAX)),
            abandoned: Vec::new(),
            refused: Vec::new(),
            others: VecDeque::new(),
            bytes_here_max: 0,
            why: None,
            why_lost: None,
            failed: None,
            lost: None,
            read_only: options.read_only,
        }
    }

    fn addr(&self, page: u64) -> VirtAddr {
        VirtAddr(self.window.base().0 + page * PAGE_LEN as u64)
    }

    fn page(&self, key: Key) -> Page {
        Page::of(self.addr(key.page))
    }

    fn stats(&mut self) -> WindowStats {
        let (dpu, dpu_fenced) = match &mut self.verbs {
            Verbs::Through(through) => (Some(through.stats()), false),
            Verbs::Direct(_) => (None, false),
            Verbs::Beside(beside) => (Some(beside.stats()), beside.is_direct()),
        };
        let (stats, page) = (self.cache.stats(), PAGE_LEN as u64);
        WindowStats {
            faults: stats.faults,
            missing: stats.missing,
            upgrades: stats.upgrades,
            reactivated: stats.reactivated,
            fetches: stats.fetches,
            bytes_fetched: stats.pages_fetched * page,
            evictions: stats.evictions,
            write_backs: stats.write_backs,
            bytes_written_back: stats.pages_written_back * page,
            bytes_here_max: self.bytes_here_max,
            ahead: stats.ahead,
            dpu,
            dpu_fenced,
        }
    }

    /// Carries out what the cache said, and what it says about that. `arrived` is what a fetch brought, and its first page.
    fn carry_out(&mut self, arrived: (u64, &[u8])) {
        loop {
            let mut actions = mem::take(&mut self.actions);
            actions.drain(..).for_each(|action| self.act(action, arrived));
            let more = mem::replace(&mut self.actions, actions);
            self.actions.extend(more);
            let Some(refused) = self.refused.pop() else { break };
            self.end(refused, Outcome::Failed);
        }
        if self.cache.has_failed() && self.failed.is_none() {
            let rack = || Error::Unreachable { what: "the rack".into() };
            self.failed = Some(self.why.take().unwrap_or_else(rack));
        }
    }

    fn act(&mut self, action: Action, (start, bytes): (u64, &[u8])) {
        let mut window = self.window;
        match action {
            Action::Fetch { op, first, count, .. } => {
                let buf = self.verbs.client().buffer(count as usize * PAGE_LEN);
                let read = Op::Read { addr: self.addr(first.page), buf };
                self.submit(read, UnderWay::Fetch { op, first: first.page });
            }
            Action::WriteBack { op } => self.write_back(op),
            Action::Install { first, count, access, .. } => {
                let at = usize::try_from(first.page - start).expect("a page of the fetch") * PAGE_LEN;
                window.install_run(self.page(first), &bytes[at..at + count as usize * PAGE_LEN], access);
                let here = window.frames() * PAGE_LEN as u64;
                self.bytes_here_max = self.bytes_here_max.max(here);
            }
            Action::Map { key, access } => window.remap(self.page(key), access),
            Action::Allow { first, count } => {
                for page in first.page..first.page + u64::from(count) {
                    window.remap(Page::of(self.addr(page)), Access::Modified);
                }
            }
            Action::Deactivate { first, count } => {
                for page in first.page..first.page + u64::from(count) {
                    window.unmap(Page::of(self.addr(page)));
                }
            }
            Action::Discard { key } => window.discard(self.page(key)),
            Action::Wake { key } => window.wake(self.page(key)),
            Action::Poison { key, why } => {
                if why == Cause::Lost
                    && let Some(lost) = self.why_lost.take()
                {
                    self.lost.get_or_insert(lost);
                }
                window.poison(self.page(key));
            }
            Action::Zeros { .. } | Action::Copy { .. } | Action::Keep { .. } => {
                unreachable!("all of a window is in far memory, and the window's alone")
            }
        }
    }

    fn write_back(&mut self, op: farmem_paging::Op) {
        let mut buf = self.verbs.client().buffer(0);
        let mut first = None;
        for key in self.cache.pages_of(op) {
            first.get_or_insert(key.page);
            self.window.read(self.page(key), 0..PAGE_LEN, &mut buf);
        }
        let addr = self.addr(first.expect("a write-back of a page at least"));
        self.submit(Op::Write { addr, buf }, UnderWay::WriteBack { op });
    }

    fn submit(&mut self, operation: Op, what: UnderWay) {
        match self.verbs.submit(operation) {
            Ok(name) => self.under_way.push((name, what)),
            Err(error) => {
                self.why = Some(error);
                self.refused.push(what);
            }
        }
    }

    fn end(&mut self, what: UnderWay, outcome: Outcome) {
        let Self { cache, whole, actions, .. } = self;
        match what {
            UnderWay::Fetch { op, .. } => cache.fetched(op, outcome, whole, actions),
            UnderWay::WriteBack { op } => cache.written_back(op, outcome, whole, actions),
        }
    }

    fn ended(&mut self, ended: Ended) {
        let Ended { name, result, buf } = ended;
        let Some(at) = self.under_way.iter().position(|(other, _)| *other == name) else {
            return self.ended_beside(Ended { name, result, buf });
        };
        let (_, what) = self.under_way.swap_remove(at);
        let outcome = match (result, what) {
            (Ok(_), _) => Outcome::Done,
            (Err(error @ Error::MemoryLost { .. }), UnderWay::Fetch { .. }) => {
                self.why_lost = Some(error);
                Outcome::Lost
            }
            (Err(error), _) => {
                let lost = matches!(error, Error::MemoryLost { .. });
                self.why = Some(error);
                if lost { Outcome::Lost } else { Outcome::Failed }
            }
        };
        self.end(what, outcome);
        let first = if let UnderWay::Fetch { first, .. } = what { first } else { 0 };
        self.carry_out((first, &buf));
        self.verbs.client().recycle(buf);
    }

    /// What ended is none that the cache waits for.
    fn ended_beside(&mut self, Ended { name, result, buf }: Ended) {
        if let Some(at) = self.abandoned.iter().position(|other| *other == name) {
            self.abandoned.swap_remove(at);
            return self.verbs.client().recycle(buf);
        }
        let Name::Client(ticket) = name else { unreachable!("what the DPU ends is of this window") };
        self.others.push_back(Completed { ticket, result, buf });
    }

    /// A program stored to a window that it only reads: its thread, and all that touch the page from now on, get a SIGBUS.
    fn refuse_store(&mut self, page: Page, number: u64) {
        self.lost.get_or_insert(Error::ReadOnly { addr: page.addr() });
        let mut window = self.window;
        if self.cache.has(Key { space: 0, page: number }) {
            window.unmap(page);
            window.discard(page);
        }
        self.cache.remove(0, number..number + 1);
        window.poison(page);
    }

    /// Waits for one operation, and takes the ends of all that have ended then.
    fn wait(&mut self) {
        match self.verbs.next_completed() {
            Ok(Some(completed)) => self.ended(completed),
            Ok(None) => unreachable!("an operation under way ends"),
            Err(error) => self.link_lost(error),
        }
        while let Some(completed) = self.verbs.poll_ended() {
            self.ended(completed);
        }
    }

    fn link_lost(&mut self, error: Error) {
        self.failed.get_or_insert(error);
        self.abandoned.extend(self.under_way.drain(..).map(|(name, _)| name));
        self.cache.abandon(&self.whole, &mut self.actions);
        self.carry_out((0, &[]));
    }

    /// Writes back all that is dirty.
    fn flush(&mut self) -> Result<(), Error> {
        self.cache.flush(&self.whole, &mut self.actions);
        self.carry_out((0, &[]));
        while !self.under_way.is_empty() {
            self.wait();
        }
        self.failed.take().or_else(|| self.lost.take()).map_or(Ok(()), Err)
    }
}

impl Faults for Server<'_> {
    fn fault(&mut self, page: Page, fault: Fault) {
        let number = (page.addr().0 - self.window.base().0) / PAGE_LEN as u64;
        if fault.write && self.read_only {
            return self.refuse_store(page, number);
        }
        self.cache.fault(Key { space: 0, page: number }, fault.write, &self.whole, &mut self.actions);
        self.carry_out((0, &[]));
    }

    fn turn(&mut self) -> Next {
        if self.cache.is_fetching() {
            // Sends what was asked for, and clears up while it is on its way.
            match self.verbs.poll() {
                Ok(completed) => completed.into_iter().for_each(|completed| self.ended(completed)),
                Err(error) => self.link_lost(error),
            }
        }
        self.cache.turn(&self.whole, &mut self.actions);
        self.carry_out((0, &[]));
        if self.cache.is_awaited() && !self.under_way.is_empty() {
            self.wait();
        }
        // Answers to WRITEs may wait: the pages are still here.
        if self.cache.is_awaited() { Next::Look } else { Next::Sleep }
    }
}
