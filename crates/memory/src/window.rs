//! A window onto an allocation: far memory by plain loads and stores, with a bounded part of it cached locally.
//!
//! Key call: [`with_window`]. A window uses only READs and WRITEs, so it does not exclude other clients. **Only one
//! window at a time may write an allocation.** Another reader of the allocation gets the bytes that were written back
//! so far. Memory that hosts share coherently is the agent's task.
//!
//! The calling thread serves the window with its client. The program runs on threads of its own.
//! The page cache ([`farmem_paging::Cache`]) decides which pages are fetched, evicted and written back.

mod buffer;
mod cpu_meter;
mod dpu_path;
mod loss;
mod options;
mod parts;
mod through;
mod verbs;

use farmem_client::{Answer, Client, Completed, Error, Vma};
use farmem_link::Stop;
use farmem_paging::{Action, Cache, Cause, Config, Key, Outcome};
use farmem_uffd::{Fault, Faults, Next, Ring, Window, serve};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::VecDeque;
use std::mem;
use std::thread;

use buffer::{Hints, Laid};
use cpu_meter::Meter;
use dpu_path::{DpuPath, DpuSettings};
use options::window_config;
use parts::{Ended, Name};
use through::Through;
use verbs::Verbs;

pub use buffer::{CHUNK, CHUNK_MAX, CHUNK_MIN, OBJECTS_MAX, Object, Objects};
pub use farmem_dpu::{Caching, Config as DpuConfig, Stats as DpuStats, TableConfig};
pub use farmem_dpu_server::Foresight;
pub use farmem_paging::{Account, Advice, Ahead};
pub use farmem_uffd::{Addressing, FaultMode, Handler, HandlerCpu, Memory, Number, Numbers};
pub use loss::AtLoss;
pub use options::{AccessPath, CpuApart, PolicyMaker, WindowOptions, WindowStats, frames_of};

/// Types of a program's own policy ([`WindowOptions::policy`]), and the built-in policies.
pub mod policy {
    pub use farmem_dpu::{
        Evidence, Leap, Neighbours, Nothing, PageAccess, PageId, Policy, RECENT_LEN, Recent,
    };
    pub use farmem_paging::Prefetch;
}

#[cfg(test)]
mod tests;

/// Minimum number of frames: enough for the pages that one instruction accesses, and for several threads.
pub(crate) const FRAMES_MIN: u64 = 16;
/// Maximum number of pages of one READ.
const RUN_MAX: u64 = 64;
/// Maximum number of WRITEs in flight.
const WRITING_MAX: usize = 64;
/// Maximum number of pages that are deactivated in one step, and of pages of one WRITE.
const BATCH: usize = 16;
/// Number of attempts of a READ or WRITE before the window fails; each attempt waits until the rack counts as dead.
const TRIES_MAX: u32 = 3;

/// Runs `program` with `vma` mapped, with at most [`WindowOptions::local_limit`] bytes of it local. When this
/// function returns, all writes are in far memory, even if the program panicked.
///
/// A forked child does not have the window: its access is a SIGSEGV. If the rack does not answer any more, threads
/// that need a far page get a SIGBUS; wrong bytes are never read. Threads that need lost bytes
/// ([`Error::MemoryLost`]) get a SIGBUS too; all others continue.
///
/// # Errors
/// [`Error::Open`] if this process may not serve faults (the message contains the remedy), or if the options are
/// invalid. Otherwise the error of a fetch or a write-back, such as [`Error::MemoryLost`]; some writes are lost.
///
/// # Panics
/// Panics if `program` panics.
pub fn with_window<R: Send>(
    client: &mut Client,
    vma: &Vma,
    options: WindowOptions,
    program: impl FnOnce(Memory<'_>) -> R + Send,
) -> Result<(R, WindowStats), Error> {
    with_objects(client, &[Object::new(vma)], options, |objects| program(objects.get(0)))
}

/// Runs `program` as [`with_window`] does, with several objects in one buffer. At most [`WindowOptions::local_limit`]
/// bytes of all objects together are local, in chunks of [`WindowOptions::chunk`] bytes. The least recently used
/// chunks are evicted, whatever their object (SODA III). One buffer writes an object, or many read it; the control
/// plane ensures that for named memory ([`Object::named`]).
///
/// If several threads wait for one chunk, it is fetched once. Changed chunks are written back ahead of need, so no
/// fault waits for a write-back while the network keeps up.
///
/// # Errors
/// The errors of [`with_window`], and [`Error::Open`] for invalid chunks and objects.
///
/// # Panics
/// Panics if `program` panics.
pub fn with_objects<R: Send>(
    client: &mut Client,
    objects: &[Object],
    options: WindowOptions,
    program: impl FnOnce(Objects<'_>) -> R + Send,
) -> Result<(R, WindowStats), Error> {
    let laid = Laid::of(objects, options.chunk, options.read_only)?;
    let (config, frames) = window_config(&laid, objects, &options)?;
    let window = Window::open(&config)?;
    let hints = Hints::default();
    let stop = Stop::new();
    let kept = client.take_ready();
    let WindowOptions { fixed, foresight, policy, .. } = options;
    let wishes = DpuSettings { fixed, foresight, policy };
    let opened = match options.way {
        AccessPath::Own(config) => {
            Through::open(client, &laid, config, wishes).map(|through| Verbs::Through(Box::new(through)))
        }
        AccessPath::Direct => Ok(Verbs::Direct(client)),
        AccessPath::DpuProcess => {
            DpuPath::open(client, &laid, wishes, &window).map(|beside| Verbs::DpuProcess(Box::new(beside)))
        }
    };
    let verbs = match opened {
        Ok(verbs) => verbs,
        Err(error) => {
            client.put_ready(kept);
            return Err(error);
        }
    };
    let mut server = Server::new(verbs, (&window, &hints), laid.clone(), cache_config(frames, &options));
    (server.meter, server.at_loss) = (Meter::new(options.told_apart), options.at_loss);
    server.meter = Meter::new(options.told_apart);
    server.foresight = foresight;
    let (laid, hints) = (&laid, &hints);
    let result = thread::scope(|scope| {
        let end = EndWhenDropped(Ring::new(&window, stop.clone()));
        let thread = scope.spawn(move || {
            let end = end;
            program(Objects::new(&end.0, laid, hints))
        });
        if let Err(source) = serve(&window, options.handler, &stop, &mut server) {
            window.abandon(); // otherwise the program would wait without end
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

/// Returns the configuration of a page cache with this number of chunks.
pub(crate) fn cache_config(frames: usize, options: &WindowOptions) -> Config {
    let pages = u64::from(options.chunk) / PAGE_LEN as u64;
    // The cache needs two frames, even if the window has only one page.
    let frames = frames.max(2);
    let inactive = frames * usize::from(options.inactive_eighths.min(8)) / 8;
    Config {
        frames,
        inactive_max: inactive.max(frames / 16).clamp(1, frames - 1),
        inactive_apart: false,
        run_max: (RUN_MAX / pages).max(1),
        batch_max: BATCH.checked_div(usize::try_from(pages).unwrap_or(BATCH)).unwrap_or(1).max(1),
        writing_max: WRITING_MAX,
        tries_max: TRIES_MAX,
        ahead: options.ahead,
        stream_writes: false,
    }
}

/// A guard that ends the service when the program ends, even by a panic.
struct EndWhenDropped<'w>(Ring<'w>);

impl Drop for EndWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// An operation of the client, with its name in the cache.
#[derive(Clone, Copy, Debug)]
enum UnderWay {
    Fetch { op: farmem_paging::Op, first: u64, count: u32 },
    WriteBack { op: farmem_paging::Op, bytes: u64 },
}

/// The location of a fetch's bytes.
#[derive(Clone, Copy, Debug)]
enum Arrived<'a> {
    /// These bytes, beginning with this chunk.
    Bytes(u64, &'a [u8]),
    /// The window's file.
    Placed,
}

impl Arrived<'_> {
    const NOTHING: Self = Self::Bytes(0, &[]);
}

/// The executor of the page cache's decisions, by READs and WRITEs.
struct Server<'a> {
    verbs: Verbs<'a>,
    window: &'a Window,
    hints: &'a Hints,
    /// The DPU's prefetching for memory without the program's advice.
    foresight: Foresight,
    unadvised: u64,
    cache: Cache,
    laid: Laid,
    actions: Vec<Action>,
    under_way: Vec<(Name, UnderWay)>,
    /// Operations for which the cache no longer waits, because the link failed. Their completions may still arrive.
    abandoned: Vec<Name>,
    /// Operations that the client did not accept.
    refused: Vec<UnderWay>,
    /// Completions of operations that do not belong to this window.
    others: VecDeque<Completed>,
    bytes_here_max: u64,
    bytes_fetched: u64,
    bytes_written_back: u64,
    /// The error of the last failed operation, and the last error of lost bytes.
    why: Option<Error>,
    why_lost: Option<Error>,
    failed: Option<Error>,
    /// The error of lost bytes that the program accessed; the window continues to serve other pages.
    lost: Option<Error>,
    at_loss: AtLoss,
    meter: Meter,
}

impl<'a> Server<'a> {
    fn new(verbs: Verbs<'a>, (window, hints): (&'a Window, &'a Hints), laid: Laid, config: Config) -> Self {
        let frames = config.frames;
        Self {
            verbs,
            window,
            hints,
            foresight: Foresight::default(),
            unadvised: 0,
            cache: Cache::new(config),
            laid,
            actions: Vec::new(),
            under_way: Vec::with_capacity(frames.min(2 * WRITING_MAX)),
            abandoned: Vec::new(),
            refused: Vec::new(),
            others: VecDeque::new(),
            bytes_here_max: 0,
            bytes_fetched: 0,
            bytes_written_back: 0,
            why: None,
            why_lost: None,
            failed: None,
            lost: None,
            at_loss: AtLoss::Signal,
            meter: Meter::default(),
        }
    }

    /// Returns the first page and the number of pages of adjacent chunks of one object.
    fn pages(&self, first: u64, count: u64) -> (Page, usize) {
        let (_, bytes) = self.laid.far(first, count);
        let pages = usize::try_from(bytes).expect("memory of this machine") / PAGE_LEN;
        (Page::of(VirtAddr(self.window.base().0 + first * self.laid.chunk_len)), pages)
    }

    fn stats(&mut self) -> WindowStats {
        let (dpu, carried, dpu_fenced) = match &mut self.verbs {
            Verbs::Through(through) => (Some(through.stats()), None, false),
            Verbs::Direct(_) => (None, None, false),
            Verbs::DpuProcess(beside) => (beside.stats(), beside.carried(), beside.is_direct()),
        };
        let stats = self.cache.stats();
        WindowStats {
            faults: stats.faults,
            missing: stats.missing,
            upgrades: stats.upgrades,
            reactivated: stats.reactivated,
            waited: stats.waited,
            fetches: stats.fetches,
            bytes_fetched: self.bytes_fetched,
            evictions: stats.evictions,
            write_backs: stats.write_backs,
            bytes_written_back: self.bytes_written_back,
            bytes_here_max: self.bytes_here_max,
            ahead: stats.ahead,
            unadvised: self.unadvised + self.verbs.refused(),
            dpu,
            carried,
            cpu: self.meter.apart(),
            dpu_fenced,
        }
    }

    /// Executes the cache's actions, and those that result from them. `arrived` is the result of a fetch.
    fn carry_out(&mut self, arrived: Arrived<'_>) {
        loop {
            let mut actions = mem::take(&mut self.actions);
            let mut rest = &actions[..];
            while let Some((&action, behind)) = rest.split_first() {
                let Action::Discard { key } = action else {
                    self.act(action, arrived);
                    rest = behind;
                    continue;
                };
                // One system call discards adjacent chunks.
                let lie = |(action, page): &(&Action, u64)| matches!(action, Action::Discard { key } if key.page == *page);
                let count = rest.iter().zip(key.page..).take_while(lie).count();
                for (first, count) in self.laid.parts(key.page, count as u64) {
                    let (page, pages) = self.pages(first, count);
                    self.window.discard_run(page, pages);
                }
                rest = &rest[count..];
            }
            actions.clear();
            let more = mem::replace(&mut self.actions, actions);
            self.actions.extend(more);
            let Some(refused) = self.refused.pop() else { break };
            self.end(refused, Outcome::Failed);
        }
        let moving = self.meter.begin();
        self.verbs.leave();
        self.meter.end(moving);
        if self.cache.has_failed() && self.failed.is_none() {
            let rack = || Error::Unreachable { what: "the rack".into() };
            self.failed = Some(self.why.take().unwrap_or_else(rack));
        }
    }

    fn act(&mut self, action: Action, arrived: Arrived<'_>) {
        let window = self.window;
        match action {
            Action::Fetch { op, first, count, .. } => {
                let (addr, len) = self.laid.far(first.page, count.into());
                let moving = self.meter.begin();
                let begun = self.verbs.fetch(addr, usize::try_from(len).expect("memory of this machine"));
                self.meter.end(moving);
                self.begun(begun, UnderWay::Fetch { op, first: first.page, count });
            }
            Action::WriteBack { op } => self.write_back(op),
            Action::Install { first, count, access, .. } => {
                let (page, pages) = self.pages(first.page, count.into());
                let moving = self.meter.begin();
                match arrived {
                    Arrived::Placed => window.install_placed(page, pages, access),
                    Arrived::Bytes(start, bytes) => {
                        let at = usize::try_from((first.page - start) * self.laid.chunk_len);
                        let at = at.expect("a chunk of the fetch");
                        window.install_run(page, &bytes[at..at + pages * PAGE_LEN], access);
                    }
                }
                self.meter.end(moving);
                self.bytes_fetched += (pages * PAGE_LEN) as u64;
                let here = window.frames() * PAGE_LEN as u64;
                self.bytes_here_max = self.bytes_here_max.max(here);
            }
            Action::Map { key, access } => {
                let (page, pages) = self.pages(key.page, 1);
                window.remap_run(page, pages, access);
            }
            Action::Allow { first, count } => {
                for (first, count) in self.laid.parts(first.page, count.into()) {
                    let (page, pages) = self.pages(first, count);
                    window.remap_run(page, pages, Access::Modified);
                }
            }
            Action::Deactivate { first, count } => {
                for (first, count) in self.laid.parts(first.page, count.into()) {
                    let (page, pages) = self.pages(first, count);
                    window.unmap_run(page, pages);
                }
            }
            Action::Discard { key } => {
                let (page, pages) = self.pages(key.page, 1);
                window.discard_run(page, pages);
            }
            Action::Wake { key } => {
                let (page, pages) = self.pages(key.page, 1);
                window.wake_run(page, pages);
            }
            Action::Poison { key, cause: why } => {
                if why == Cause::Lost
                    && let Some(lost) = self.why_lost.take()
                {
                    self.lost.get_or_insert(lost);
                }
                if self.at_loss == AtLoss::Exit {
                    let why = [self.lost.take(), self.why.take(), self.failed.take()];
                    loss::exit(why.into_iter().flatten().next(), self.verbs.client().nodes());
                }
                let (page, pages) = self.pages(key.page, 1);
                window.poison_run(page, pages);
            }
            Action::Zeros { .. } | Action::Copy { .. } | Action::Keep { .. } => {
                unreachable!("all of a window is in far memory, and the window's alone")
            }
        }
    }

    fn write_back(&mut self, op: farmem_paging::Op) {
        let moving = self.meter.begin();
        let mut chunks = self.cache.pages_of(op).map(|key| key.page);
        let first = chunks.next().expect("a write-back of a chunk at least");
        // The chunks are adjacent, in one object.
        let count = 1 + chunks.count() as u64;
        let ((addr, bytes), (page, pages)) = (self.laid.far(first, count), self.pages(first, count));
        let window = self.window;
        let begun = self.verbs.write_back(addr, pages * PAGE_LEN, |buf| window.read_run(page, pages, buf));
        self.meter.end(moving);
        self.begun(begun, UnderWay::WriteBack { op, bytes });
    }

    fn begun(&mut self, begun: Result<Name, Error>, what: UnderWay) {
        match begun {
            Ok(name) => self.under_way.push((name, what)),
            Err(error) => {
                self.why = Some(error);
                self.refused.push(what);
            }
        }
    }

    fn end(&mut self, what: UnderWay, outcome: Outcome) {
        let Self { cache, laid, actions, .. } = self;
        match what {
            UnderWay::Fetch { op, .. } => cache.fetched(op, outcome, laid, actions),
            UnderWay::WriteBack { op, bytes } => {
                self.bytes_written_back += if outcome == Outcome::Done { bytes } else { 0 };
                cache.written_back(op, outcome, laid, actions);
            }
        }
    }

    fn ended(&mut self, ended: Ended) {
        let Ended { name, result, buf, placed } = ended;
        let Some(at) = self.under_way.iter().position(|(other, _)| *other == name) else {
            return self.ended_beside(name, result, buf);
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
        if let UnderWay::Fetch { first, count, .. } = what
            && placed
            && outcome != Outcome::Done
        {
            // Parts may have arrived, and must be cleared before a repetition.
            let (page, pages) = self.pages(first, count.into());
            self.window.clear_placed(page, pages);
        }
        self.end(what, outcome);
        self.carry_out(match what {
            UnderWay::Fetch { .. } if placed => Arrived::Placed,
            UnderWay::Fetch { first, .. } => Arrived::Bytes(first, &buf),
            UnderWay::WriteBack { .. } => Arrived::NOTHING,
        });
        self.verbs.client().recycle(buf);
    }

    /// Handles the completion of an operation for which the cache does not wait.
    fn ended_beside(&mut self, name: Name, result: Result<Answer, Error>, buf: Vec<u8>) {
        if let Some(at) = self.abandoned.iter().position(|other| *other == name) {
            self.abandoned.swap_remove(at);
            return self.verbs.client().recycle(buf);
        }
        let Name::Client(ticket) = name else { unreachable!("what the DPU ends is of this window") };
        self.others.push_back(Completed { ticket, result, buf });
    }

    /// Passes the program's advice on its chunks to the cache.
    fn take_hints(&mut self) {
        loop {
            let hint = self.hints.lock().expect("no thread panics with it").pop_front();
            let Some((chunks, advice)) = hint else { break };
            let (from, to) = (chunks.start * self.laid.chunk_len, chunks.end * self.laid.chunk_len);
            let part = (from, to.min(self.laid.len()) - from);
            let advised = self.cache.advise(0, chunks, advice, &self.laid, &mut self.actions);
            self.unadvised += u64::from(advised.is_err());
            if let Some(policy) = self.foresight.by_advice(advice) {
                self.verbs.advise(part, policy);
            }
            self.carry_out(Arrived::NOTHING);
        }
    }

    /// Handles completed WRITEs if a fault may need their frames, so that no thread waits for a completed operation.
    fn take_ended(&mut self) {
        while self.cache.is_tight() && !self.under_way.is_empty() {
            match self.verbs.poll() {
                Ok(Some(completed)) => self.ended(completed),
                Ok(None) => break,
                Err(error) => return self.link_lost(error),
            }
        }
    }

    /// Handles a fault of a thread of the program.
    fn touched(&mut self, page: Page, write: bool) {
        let offset = page.addr().0 - self.window.base().0;
        let chunk = offset / self.laid.chunk_len;
        match self.laid.extent_of(offset) {
            Some((_, extent)) if write && extent.read_only => {
                let addr = VirtAddr(extent.base.0 + (offset - extent.at));
                return self.refuse_store(addr, chunk);
            }
            Some(_) => {}
            // The page is behind the end of an object.
            None => return self.window.poison_run(page, 1),
        }
        self.take_ended();
        self.cache.fault(Key { space: 0, page: chunk }, write, &self.laid, &mut self.actions);
        self.carry_out(Arrived::NOTHING);
    }

    /// Handles a store to read-only memory: its thread, and all that access the chunk from now on, get a SIGBUS.
    fn refuse_store(&mut self, addr: VirtAddr, chunk: u64) {
        self.lost.get_or_insert(Error::ReadOnly { addr });
        let (page, pages) = self.pages(chunk, 1);
        if self.window.has_frame(page) {
            self.window.discard_run(page, pages);
        }
        self.cache.remove(0, chunk..chunk + 1);
        self.window.poison_run(page, pages);
    }

    /// Waits for one operation, and handles all operations that have completed by then.
    fn wait(&mut self) {
        let moving = self.meter.begin();
        let completed = self.verbs.next_completed();
        self.meter.end(moving);
        match completed {
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
        self.cache.abandon(&self.laid, &mut self.actions);
        self.carry_out(Arrived::NOTHING);
    }

    /// Writes back all dirty chunks.
    fn flush(&mut self) -> Result<(), Error> {
        self.cache.flush(&self.laid, &mut self.actions);
        self.carry_out(Arrived::NOTHING);
        while !self.under_way.is_empty() {
            self.wait();
        }
        self.failed.take().or_else(|| self.lost.take()).map_or(Ok(()), Err)
    }
}

impl Faults for Server<'_> {
    fn fault(&mut self, page: Page, fault: Fault) {
        self.touched(page, fault.write);
    }

    fn turn(&mut self) -> Next {
        self.take_hints();
        if self.cache.is_fetching() {
            // Sends the queued requests, and does background work while they are in flight.
            let moving = self.meter.begin();
            let completed = self.verbs.poll();
            self.meter.end(moving);
            match completed {
                Ok(completed) => completed.into_iter().for_each(|completed| self.ended(completed)),
                Err(error) => self.link_lost(error),
            }
        }
        self.cache.turn(&self.laid, &mut self.actions);
        self.carry_out(Arrived::NOTHING);
        if self.cache.is_awaited() && !self.under_way.is_empty() {
            self.wait();
        }
        // Completions of WRITEs may wait, because the pages are still local.
        if self.cache.is_awaited() { Next::Look } else { Next::Sleep }
    }
}
