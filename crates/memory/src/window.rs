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
mod options;
mod parts;
mod through;
mod verbs;

use farmem_client::{Client, Completed, Vma};
use farmem_client::{Error, Op};
use farmem_host::agent::Pages as _;
use farmem_io::Stop;
use farmem_io::pages::{Fault, Faults, Next, Ring, Window, serve};
use farmem_paging::{Action, Cache, Cause, Config, Key, Layout, Outcome, Source};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::VecDeque;
use std::mem;
use std::thread;

use beside::{Beside, Wishes};
use options::window_config;
use through::Through;
use verbs::{Ended, Name, Verbs};

pub use crate::dpu::Foresight;
pub use farmem_dpu::{Caching, Config as DpuConfig, Stats as DpuStats, TableConfig};
pub use farmem_io::pages::{FaultMode, Handler, HandlerCpu, Memory, Number, Numbers, Place};
pub use farmem_paging::{Account, Ahead};
pub(crate) use options::check_dpu;
pub use options::{Way, WindowOptions, WindowStats, frames_of};

#[cfg(test)]
mod tests;

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
    let WindowOptions { read_only, fixed, foresight, .. } = options;
    let wishes = Wishes { read_only, fixed, foresight };
    let opened = match options.way {
        Way::Own(config) => {
            Through::open(client, vma, config, wishes).map(|through| Verbs::Through(Box::new(through)))
        }
        Way::Direct => Ok(Verbs::Direct(client)),
        Way::Beside => Beside::open(client, vma, wishes).map(|beside| Verbs::Beside(Box::new(beside))),
    };
    let verbs = match opened {
        Ok(verbs) => verbs,
        Err(error) => {
            client.put_ready(kept);
            return Err(error);
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
            Verbs::Beside(beside) => (beside.stats(), beside.is_direct()),
        };
        let (stats, page) = (self.cache.stats(), PAGE_LEN as u64);
        WindowStats {
            faults: stats.faults,
            missing: stats.missing,
            upgrades: stats.upgrades,
            reactivated: stats.reactivated,
            waited: stats.waited,
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

    /// A thread of the program waits for a page.
    fn touched(&mut self, page: Page, write: bool) {
        let number = (page.addr().0 - self.window.base().0) / PAGE_LEN as u64;
        if write && self.read_only {
            return self.refuse_store(page, number);
        }
        self.cache.fault(Key { space: 0, page: number }, write, &self.whole, &mut self.actions);
        self.carry_out((0, &[]));
    }

    /// A program stored to a window that it only reads: its thread, and all that touch the page from now on, get a SIGBUS.
    fn refuse_store(&mut self, page: Page, number: u64) {
        self.lost.get_or_insert_with(|| Error::ReadOnly { addr: page.addr() });
        let mut window = self.window;
        if window.has_frame(page) {
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
        self.touched(page, fault.write);
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
