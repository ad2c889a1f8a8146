//! A window onto an allocation: far memory by plain loads and stores, with a bounded part of it here.
//!
//! Key call: [`Client::with_window`]. It asks nothing of the rack but READs and WRITEs, so it keeps nobody else out: **one window
//! at a time may write an allocation**, and who reads it by other ways meanwhile finds what was written back so far. Memory that
//! several hosts share coherently is the agent's business, not this module's.
//!
//! The thread that calls serves the window with its client; the program runs on a thread of its own, and on as many more as it likes.
//!
//! ```text
//!            fetch                   a write                 frozen, WRITE sent         its answer
//!   (far) --------> clean (read-only) -------> dirty --------------------------> writing ---------> (far)
//!     ^               |                          ^                                  |
//!     '---------------'                          '----------- a write --------------'
//! ```

use crate::client::{Client, Completed, Ticket, Vma};
use crate::{Error, Op};
use cache::{Cache, Held, Slot};
use farmem_host::agent::Pages as _;
use farmem_io::OpenError;
use farmem_io::Stop;
use farmem_io::pages::{
    Fault, Faults, Groups, Next, Reach, ReadAhead, Ring, Streams, Window, WindowConfig, serve,
};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::VecDeque;
use std::fs;
use std::ops::Range;
use std::thread;

mod cache;

pub use farmem_io::pages::{Handler, HandlerCpu, Memory, Place};

/// What is fetched beside a page that somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ahead {
    /// Nothing.
    None,
    /// The aligned group of so many pages.
    Group(u64),
    /// Up to so many pages of a stream: each fault that goes on where the last fetch ended doubles the next one.
    Stream(u64),
}

/// How a window works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowOptions {
    /// Bytes of the allocation that may be here at once; counted in whole pages, and never exceeded. At least 64 KiB.
    pub local_limit: u64,
    /// Where the program finds it.
    pub place: Place,
    /// What is fetched beside a page that somebody waits for.
    pub ahead: Ahead,
    /// Of 8 pages here, those that rest: unmapped, so that a touch tells that they are in use. 0 evicts in the order of arrival.
    pub resting_eighths: u8,
    /// Where faults are served, and how.
    pub handler: Handler,
    /// False serves faults of user code only, where the system allows no more; system calls on the window then fail with EFAULT.
    pub system_calls: bool,
}

impl WindowOptions {
    /// The usual window, with this much memory here.
    #[must_use]
    pub fn new(local_limit: u64) -> Self {
        Self {
            local_limit,
            place: Place::Same,
            ahead: Ahead::None,
            resting_eighths: 1,
            handler: Handler::default(),
            system_calls: true,
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
    /// Of those, at pages that were far.
    pub missing: u64,
    /// Of those, first writes to a page.
    pub upgrades: u64,
    /// Of those, at pages that rested.
    pub rested: u64,
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
}

/// Fewer pages could not hold what one instruction touches, and what several threads do at once.
pub(crate) const FRAMES_MIN: u64 = 16;
/// Pages of one READ at most.
const RUN_MAX: u64 = 64;
/// WRITEs under way at once.
const WRITING_MAX: usize = 64;
/// Times a READ or WRITE is tried before the window gives up; each waits until the rack counts as gone.
const TRIES_MAX: u32 = 3;

impl Client {
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
        &mut self,
        vma: &Vma,
        options: WindowOptions,
        program: impl FnOnce(Memory<'_>) -> R + Send,
    ) -> Result<(R, WindowStats), Error> {
        let window = Window::open(&window_config(vma, &options)?)?;
        let stop = Stop::new();
        let kept = self.take_ready();
        let mut server = Server::new(self, &window, &options);
        let result = thread::scope(|scope| {
            let end = EndWhenDropped(Ring::new(&window, stop.clone()));
            let thread = scope.spawn(move || {
                let end = end;
                program(end.0.window().memory())
            });
            if let Err(source) = serve(&window, options.handler, &stop, &mut server) {
                window.forsake(); // or the program would wait for ever
                server.failed = Some(Error::System { what: "page faults cannot be read".into(), source });
            }
            thread.join()
        });
        let flushed = server.flush();
        let (stats, others) = (server.stats, std::mem::take(&mut server.others));
        self.put_ready(kept);
        self.put_ready(others);
        let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        flushed.map(|()| (result, stats))
    }
}

fn window_config(vma: &Vma, options: &WindowOptions) -> Result<WindowConfig, Error> {
    let frames_max = frames_of(options.local_limit, FRAMES_MIN)? as u64;
    let (base, len) = (vma.base, vma.size);
    Ok(WindowConfig {
        base,
        len,
        frames_max: frames_max.min(len / PAGE_LEN as u64),
        place: options.place,
        reach: options.reach(),
    })
}

/// The frames that a local limit of so many bytes allows. What is kept for each frame is allocated at once, so a limit that this machine
/// can never use is refused.
pub(crate) fn frames_of(local_limit: u64, frames_min: u64) -> Result<usize, Error> {
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

/// Bytes; `None` where the system does not tell.
fn memory_of_machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kib.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// The program ended, well or by a panic: so does the service.
struct EndWhenDropped<'w>(Ring<'w>);

impl Drop for EndWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What an operation under way is for.
#[derive(Clone, Debug)]
enum Purpose {
    Fetch { pages: Range<u64>, tries: u32 },
    WriteBack { slot: Slot, page: u64, tries: u32 },
}

/// Resolves the window's faults by READs and WRITEs.
struct Server<'a> {
    client: &'a mut Client,
    window: &'a Window,
    cache: Cache,
    ahead: Box<dyn ReadAhead>,
    /// Operations under way: as many as fit the frames that are reserved for them.
    under_way: Vec<(Ticket, Purpose)>,
    fetching: usize,
    /// Pages that threads wait for, and for which there was no frame yet.
    waiting: VecDeque<(u64, bool)>,
    /// Completions of operations that are not ours.
    others: VecDeque<Completed>,
    resting_eighths: usize,
    stats: WindowStats,
    failed: Option<Error>,
    /// Bytes that the program wanted and that are lost; everything else goes on.
    lost: Option<Error>,
}

impl<'a> Server<'a> {
    fn new(client: &'a mut Client, window: &'a Window, options: &WindowOptions) -> Self {
        let frames = usize::try_from(window.frames_max()).expect("frames are memory of this machine");
        let pages =
            usize::try_from(window.len() / PAGE_LEN as u64).expect("a window is in the address space");
        let ahead: Box<dyn ReadAhead> = match options.ahead {
            Ahead::None => Box::new(Groups { pages: 1 }),
            Ahead::Group(pages) => Box::new(Groups { pages: pages.min(RUN_MAX) }),
            Ahead::Stream(pages) => Box::new(Streams::new(pages.min(RUN_MAX))),
        };
        Self {
            client,
            window,
            cache: Cache::new(pages, frames),
            ahead,
            under_way: Vec::with_capacity(frames.min(2 * WRITING_MAX)),
            fetching: 0,
            waiting: VecDeque::new(),
            others: VecDeque::new(),
            resting_eighths: usize::from(options.resting_eighths.min(8)),
            stats: WindowStats::default(),
            failed: None,
            lost: None,
        }
    }

    fn page(&self, index: u64) -> Page {
        Page::of(self.addr(index))
    }

    fn addr(&self, index: u64) -> VirtAddr {
        VirtAddr(self.window.base().0 + index * PAGE_LEN as u64)
    }

    /// Starts a fetch for a page that somebody waits for, with what the policy wants beside it; false when no frame is free.
    fn fetch(&mut self, page: u64, write: bool) -> bool {
        if self.cache.find(page).is_some() {
            return true; // another fault's fetch brings it
        }
        if self.failed.is_some() {
            self.poison(page);
            return true;
        }
        let wanted = self.run(page);
        let free = self.make_room(wanted.end - wanted.start);
        if free == 0 {
            return false;
        }
        // Of a run that does not fit, the part from the page on.
        let pages =
            if wanted.end - wanted.start <= free { wanted } else { page..wanted.end.min(page + free) };
        for each in pages.clone() {
            self.cache.insert(each, Held::Fetching { write: write && each == page });
        }
        self.read(pages, 0);
        true
    }

    fn poison(&mut self, page: u64) {
        self.window.poison(Page::of(self.addr(page)));
    }

    /// The pages around `page` that the policy proposes, and that are far.
    fn run(&mut self, page: u64) -> Range<u64> {
        let proposed = self.ahead.propose(page);
        let end = proposed.end.min(self.window.len() / PAGE_LEN as u64);
        let is_far = |cache: &Cache, page| cache.find(page).is_none();
        let before = (proposed.start.min(page)..page).rev().take_while(|&p| is_far(&self.cache, p)).count();
        let behind = (page + 1..end.max(page + 1)).take_while(|&p| is_far(&self.cache, p)).count();
        page - before as u64..page + 1 + behind as u64
    }

    fn read(&mut self, pages: Range<u64>, tries: u32) {
        let len = usize::try_from(pages.end - pages.start).expect("at most RUN_MAX") * PAGE_LEN;
        let buf = self.client.buffer(len);
        let op = Op::Read { addr: self.addr(pages.start), buf };
        self.stats.fetches += u64::from(tries == 0);
        match self.client.submit(op) {
            Ok(ticket) => {
                self.under_way.push((ticket, Purpose::Fetch { pages, tries }));
                self.fetching += 1;
            }
            Err(error) => self.give_up_fetch(pages, error),
        }
    }

    /// Lets clean pages go until `wanted` frames are free or none is left; answers how many are free, at most `wanted`.
    ///
    /// When it must, it starts to write a dirty page back: its frame is free later.
    fn make_room(&mut self, wanted: u64) -> u64 {
        while self.cache.free() < wanted && self.evict_one(self.cache.free() == 0) {}
        self.cache.free().min(wanted)
    }

    /// Evicts the page that goes first; true when that freed a frame. A dirty one is only touched when `also_dirty`.
    fn evict_one(&mut self, also_dirty: bool) -> bool {
        let Some(slot) = self.cache.victim() else { return false };
        let (page, held) = self.cache.at(slot);
        match held {
            Held::Clean => {
                self.window.discard(Page::of(self.addr(page)));
                self.cache.remove(slot);
                self.stats.evictions += 1;
                true
            }
            Held::Dirty if also_dirty && self.failed.is_none() && self.writing() < WRITING_MAX => {
                self.write_back(slot, page, 0);
                false
            }
            _ => false,
        }
    }

    fn writing(&self) -> usize {
        self.under_way.len() - self.fetching
    }

    /// Freezes a page, and sends what is in it. It stays readable until the answer comes; a write meanwhile makes it dirty again.
    fn write_back(&mut self, slot: Slot, page: u64, tries: u32) {
        let mut buf = self.client.buffer(0);
        let frozen = self.page(page);
        if tries == 0 {
            self.window.freeze(frozen);
        }
        self.window.read(frozen, 0..PAGE_LEN, &mut buf);
        self.stats.write_backs += u64::from(tries == 0);
        match self.client.submit(Op::Write { addr: self.addr(page), buf }) {
            Ok(ticket) => {
                self.cache.set(slot, Held::Writing(ticket));
                self.under_way.push((ticket, Purpose::WriteBack { slot, page, tries }));
            }
            Err(error) => {
                self.cache.set(slot, Held::Dirty);
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Keeps some frames free for the next faults, and some pages resting.
    fn look_ahead(&mut self) {
        let reserve = self.cache.reserve();
        for _ in 0..reserve {
            if self.cache.free() + self.writing() as u64 >= reserve {
                break;
            }
            self.evict_one(true);
        }
        while self.cache.resting() < self.cache.len() * self.resting_eighths / 8 {
            let Some(page) = self.cache.rest() else { break };
            self.window.zap(Page::of(self.addr(page)));
        }
    }

    fn ended(&mut self, completed: Completed) {
        let Some(at) = self.under_way.iter().position(|(ticket, _)| *ticket == completed.ticket) else {
            return self.others.push_back(completed);
        };
        let (ticket, purpose) = self.under_way.swap_remove(at);
        match purpose {
            Purpose::Fetch { pages, tries } => {
                self.fetching -= 1;
                match completed.result {
                    Ok(_) => self.fetched(pages, &completed.buf),
                    Err(error @ Error::MemoryLost { .. }) => self.lost_on_the_way(pages, error),
                    Err(_) if tries + 1 < TRIES_MAX => self.read(pages, tries + 1),
                    Err(error) => self.give_up_fetch(pages, error),
                }
            }
            Purpose::WriteBack { slot, page, tries } => match completed.result {
                Ok(_) => self.written_back(slot, ticket),
                Err(error) => self.not_written_back((slot, page), ticket, tries, error),
            },
        }
        self.client.recycle(completed.buf);
    }

    fn fetched(&mut self, pages: Range<u64>, bytes: &[u8]) {
        self.stats.bytes_fetched += bytes.len() as u64;
        // The whole run in one call of the system; then the pages that somebody wants to write.
        let alone = pages.end - pages.start == 1;
        let slots =
            pages.clone().map(|page| self.cache.find(page).expect("a page that is fetched has a frame"));
        let writes =
            slots.clone().filter(|&slot| self.cache.at(slot).1 == Held::Fetching { write: true }).count();
        let access = if alone && writes == 1 { Access::Modified } else { Access::Shared };
        self.window.install_run(self.page(pages.start), bytes, access);
        for page in pages {
            let slot = self.cache.find(page).expect("a page that is fetched has a frame");
            let write = self.cache.at(slot).1 == Held::Fetching { write: true };
            if write && !alone {
                self.window.mend(self.page(page), Access::Modified);
            }
            self.cache.set(slot, if write { Held::Dirty } else { Held::Clean });
        }
        self.stats.bytes_here_max = self.stats.bytes_here_max.max(self.window.frames() * PAGE_LEN as u64);
    }

    /// Bytes of these pages are lost: who touches a page of which that is so gets a SIGBUS. Of several, those that a thread waits for are asked for
    /// again, one by one.
    fn lost_on_the_way(&mut self, pages: Range<u64>, error: Error) {
        let alone = pages.end - pages.start == 1;
        if alone {
            self.lost.get_or_insert(error);
        }
        self.ahead = Box::new(Groups { pages: 1 });
        for page in pages {
            let slot = self.cache.find(page).expect("a page that is fetched has a frame");
            self.cache.remove(slot);
            if alone {
                self.poison(page);
            } else {
                self.window.wake(self.page(page));
            }
        }
    }

    fn give_up_fetch(&mut self, pages: Range<u64>, error: Error) {
        self.failed.get_or_insert(error);
        for page in pages {
            let slot = self.cache.find(page).expect("a page that is fetched has a frame");
            self.cache.remove(slot);
            self.poison(page);
        }
    }

    fn written_back(&mut self, slot: Slot, ticket: Ticket) {
        self.stats.bytes_written_back += PAGE_LEN as u64;
        let (page, held) = self.cache.at(slot);
        if held == Held::Writing(ticket) {
            self.window.discard(Page::of(self.addr(page)));
            self.cache.remove(slot);
            self.stats.evictions += 1;
        }
    }

    fn not_written_back(&mut self, (slot, page): (Slot, u64), ticket: Ticket, tries: u32, error: Error) {
        if self.cache.at(slot).1 != Held::Writing(ticket) {
            return; // it was written to meanwhile, and will be written back again
        }
        // Asked again, what is lost is refused again.
        if tries + 1 < TRIES_MAX && !matches!(error, Error::MemoryLost { .. }) {
            return self.write_back(slot, page, tries + 1);
        }
        self.cache.set(slot, Held::Dirty);
        self.failed.get_or_insert(error);
    }

    /// Waits for one operation, and takes the ends of all that have ended then.
    fn wait(&mut self) {
        match self.client.next_completed() {
            Ok(Some(completed)) => self.ended(completed),
            Ok(None) => unreachable!("an operation under way ends"),
            Err(error) => self.link_lost(error),
        }
        while let Some(completed) = self.client.poll_ended() {
            self.ended(completed);
        }
    }

    fn link_lost(&mut self, error: Error) {
        self.failed.get_or_insert(error);
        for (_, purpose) in std::mem::take(&mut self.under_way) {
            match purpose {
                Purpose::Fetch { pages, .. } => {
                    let lost = Error::Unreachable { what: "the rack".into() };
                    self.give_up_fetch(pages, lost);
                }
                Purpose::WriteBack { slot, .. } => self.cache.set(slot, Held::Dirty),
            }
        }
        self.fetching = 0;
    }

    /// Writes back all that is dirty.
    fn flush(&mut self) -> Result<(), Error> {
        for slot in self.cache.slots() {
            while self.writing() >= WRITING_MAX {
                self.wait();
            }
            if let Some((page, Held::Dirty)) = self.cache.occupied(slot)
                && self.failed.is_none()
            {
                self.write_back(slot, page, 0);
            }
        }
        while !self.under_way.is_empty() {
            self.wait();
        }
        self.failed.take().or_else(|| self.lost.take()).map_or(Ok(()), Err)
    }
}

impl Faults for Server<'_> {
    fn fault(&mut self, page: Page, fault: Fault) {
        self.stats.faults += 1;
        let index = (page.addr().0 - self.window.base().0) / PAGE_LEN as u64;
        let Some(slot) = self.cache.find(index) else {
            self.stats.missing += 1;
            // A signal makes a thread fault again while it waits.
            if !self.fetch(index, fault.write) && !self.waiting.iter().any(|&(page, _)| page == index) {
                self.waiting.push_back((index, fault.write));
            }
            return;
        };
        let (_, held) = self.cache.at(slot);
        self.stats.rested += u64::from(self.cache.rests(slot));
        let next = match held {
            Held::Fetching { write } => {
                return self.cache.set(slot, Held::Fetching { write: write || fault.write });
            }
            Held::Dirty => Held::Dirty,
            Held::Clean | Held::Writing(_) if fault.write => {
                self.stats.upgrades += 1;
                Held::Dirty
            }
            // Read by a thread that faulted before the page came.
            Held::Writing(_) => return self.window.mend(page, Access::Shared),
            Held::Clean => Held::Clean,
        };
        self.window.mend(page, if next == Held::Dirty { Access::Modified } else { Access::Shared });
        self.cache.set(slot, next);
    }

    fn turn(&mut self) -> Next {
        if self.fetching > 0 {
            // Sends what was asked for, and clears up while it is on its way.
            match self.client.poll() {
                Ok(completed) => completed.into_iter().for_each(|completed| self.ended(completed)),
                Err(error) => self.link_lost(error),
            }
            self.look_ahead();
        }
        if self.fetching > 0 || (!self.waiting.is_empty() && !self.under_way.is_empty()) {
            self.wait();
        }
        for _ in 0..self.waiting.len() {
            let (page, write) = self.waiting.pop_front().expect("the queue has so many");
            if !self.fetch(page, write) {
                self.waiting.push_front((page, write));
                break;
            }
        }
        // Answers to WRITEs may wait: the pages are still here.
        if self.fetching > 0 || !self.waiting.is_empty() { Next::Look } else { Next::Sleep }
    }
}
