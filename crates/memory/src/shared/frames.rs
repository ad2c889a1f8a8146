//! Which pages of a shared space are here, in which order they were used, and what was done to them.
//!
//! Key type: [`Frames`], the window as the agent sees it. It passes on what the agent wants, and remembers of each page that is here
//! with which access, so that pages can be laid to rest without the agent knowing: a page at rest is unmapped, and a touch of it
//! is answered at once.

use super::lease::say;
use farmem_host::agent::Pages;
use farmem_io::pages::Mapped;
use farmem_machine::{Duration, Instant};
use farmem_paging::{Frame, Recency};
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// A page that is here.
#[derive(Clone, Copy, Debug)]
struct Held {
    page: Page,
    access: Access,
    /// The program has it no more; its bytes are on their way to the memory node.
    going: bool,
}

impl Held {
    fn is_written(&self) -> bool {
        !self.going && self.access == Access::Modified
    }
}

/// What was done to pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Tally {
    pub(super) fetches: u64,
    pub(super) upgrades: u64,
    pub(super) rested: u64,
    pub(super) invalidations: u64,
    pub(super) write_backs: u64,
    pub(super) poisoned: u64,
    pub(super) frames_max: u64,
}

/// The pages here, as many as the local limit allows.
#[derive(Debug)]
pub(super) struct Frames<W> {
    window: W,
    first: u64,
    /// Per page of the window: its frame and one, or 0. The system gives memory for the parts that are used.
    table: Vec<Frame>,
    frames: Vec<Option<Held>>,
    free: Vec<Frame>,
    /// Frames that may go.
    recency: Recency,
    /// Frames whose pages are [`Held::going`].
    going: usize,
    /// Pages asked for that no thread waits for: a refusal is of no interest. Bounded as the requests are.
    ahead: BTreeSet<Page>,
    /// Poisoned pages, and until when: then they are asked for anew.
    poisoned: VecDeque<(Instant, Page)>,
    /// Pages that came, or that cannot be had.
    settled: Vec<Page>,
    /// What happens now is an eviction.
    evicting: bool,
    tally: Tally,
}

/// How long a page that cannot be had ends in SIGBUS without being asked for again.
const POISON_TIME: Duration = Duration::from_millis(10);
/// Pages poisoned at once; of more, the oldest are asked for again before their time.
const POISONED_MAX: usize = 4096;

/// Pages that never rest: what a few threads touch at a time.
const AWAKE_MIN: usize = 8;

impl<W: Mapped> Frames<W> {
    /// No page is here, of `pages` pages from `first` on; at most `frames_max` ever will.
    pub(super) fn new(window: W, first: Page, pages: usize, frames_max: usize) -> Self {
        let count = Frame::try_from(frames_max).expect("a local limit below 16 TiB");
        Self {
            window,
            first: first.number(),
            table: vec![0; pages],
            frames: vec![None; frames_max],
            free: (0..count).rev().collect(),
            recency: Recency::new(frames_max),
            going: 0,
            ahead: BTreeSet::new(),
            poisoned: VecDeque::new(),
            settled: Vec::new(),
            evicting: false,
            tally: Tally::default(),
        }
    }

    pub(super) const fn tally(&self) -> Tally {
        self.tally
    }

    /// Pages that could be here.
    pub(super) fn span(&self) -> Range<u64> {
        self.first..self.first + self.table.len() as u64
    }

    /// True when the page has a frame, whatever becomes of it.
    pub(super) fn has(&self, page: Page) -> bool {
        self.find(page).is_some()
    }

    /// True when the program may have written the page, and nothing was done about it.
    pub(super) fn is_written(&self, page: Page) -> bool {
        self.held(page).is_some_and(|held| held.is_written())
    }

    /// The pages that the program may have written.
    pub(super) fn written(&self) -> impl Iterator<Item = Page> {
        self.frames.iter().flatten().filter(|held| held.is_written()).map(|held| held.page)
    }

    /// The pages that came, or that cannot be had, since the last call; to be given back.
    pub(super) fn take_settled(&mut self) -> Vec<Page> {
        std::mem::take(&mut self.settled)
    }

    pub(super) fn give_back(&mut self, mut settled: Vec<Page>) {
        settled.clear();
        self.settled = settled;
    }

    /// Frames that will be free without anybody's doing.
    pub(super) const fn going(&self) -> usize {
        self.going
    }

    /// The page that goes first.
    pub(super) fn victim(&self) -> Option<Page> {
        self.recency.victim().map(|frame| self.at(frame).page)
    }

    /// The page counts as used just now.
    pub(super) fn touch(&mut self, page: Page) {
        if let Some(frame) = self.find(page).filter(|&frame| !self.at(frame).going) {
            self.stir(frame);
            self.recency.touch(frame);
        }
    }

    /// From here until it is told otherwise pages go because they are to make room.
    pub(super) const fn evicting(&mut self, yes: bool) {
        self.evicting = yes;
    }

    /// Lays the pages that were used longest ago to rest, until `eighths` of 8 rest. Not while there is room: nothing has to go then.
    /// The youngest stay, so that an instruction that faulted for them is executed.
    pub(super) fn rest(&mut self, eighths: usize) {
        let may_rest = (self.recency.len() * eighths / 8).min(self.recency.len().saturating_sub(AWAKE_MIN));
        if self.free.len() > self.frames.len() / 8 {
            return;
        }
        while self.recency.resting() < may_rest {
            let Some(frame) = self.recency.rest() else { return };
            let page = self.at(frame).page;
            self.window.zap(page);
        }
    }

    /// The page is asked for, and nobody waits for it.
    pub(super) fn asked_ahead(&mut self, page: Page) {
        self.ahead.insert(page);
    }

    /// A thread waits for the page.
    pub(super) fn wanted(&mut self, page: Page) {
        self.ahead.remove(&page);
    }

    /// Poison ends: the rack is to say again whether the page can be had.
    pub(super) fn heal(&mut self, now: Instant) {
        // Where a page is poisoned no clock is at hand.
        let fresh = self.poisoned.iter_mut().rev().take_while(|(until, _)| *until == Instant::ZERO);
        fresh.for_each(|(until, _)| *until = now + POISON_TIME);
        while self
            .poisoned
            .front()
            .is_some_and(|(until, _)| *until <= now || self.poisoned.len() > POISONED_MAX)
        {
            let (_, page) = self.poisoned.pop_front().expect("looked at a moment ago");
            self.window.heal(page);
        }
    }

    /// Takes over what the lease's watcher has taken.
    pub(super) fn absorb(&mut self) {
        self.window.absorb();
    }

    /// The rack is gone: no page may be used any more. What was not written back is lost.
    pub(super) fn give_all_up(&mut self) {
        for frame in 0..self.frames.len() {
            if let Some(Held { page, .. }) = self.frames[frame] {
                self.window.discard(page);
                self.forget(page);
                self.window.wake(page); // who waits asks again, and is refused
            }
        }
    }

    /// A touch of a page that is not here ends in SIGBUS.
    pub(super) fn refuse(&mut self, page: Page) {
        if !self.has(page) {
            self.window.poison(page);
        }
    }

    fn held(&self, page: Page) -> Option<Held> {
        self.find(page).map(|frame| self.at(frame))
    }

    fn find(&self, page: Page) -> Option<Frame> {
        self.table[self.place(page)].checked_sub(1)
    }

    fn at(&self, frame: Frame) -> Held {
        self.frames[frame as usize].expect("a frame that was found holds a page")
    }

    fn at_mut(&mut self, frame: Frame) -> &mut Held {
        self.frames[frame as usize].as_mut().expect("a frame that was found holds a page")
    }

    fn known(&self, page: Page) -> Frame {
        self.find(page).expect("the agent acts on pages that are here")
    }

    fn place(&self, page: Page) -> usize {
        let place = page.number().checked_sub(self.first).and_then(|n| usize::try_from(n).ok());
        place.filter(|&n| n < self.table.len()).expect("a page of the window")
    }

    /// Maps a page that rests; true when it did.
    fn stir(&mut self, frame: Frame) -> bool {
        let rested = self.recency.rests(frame);
        if rested {
            let Held { page, access, .. } = self.at(frame);
            self.window.mend(page, access);
        }
        rested
    }

    /// The program has it no more.
    fn goes(&mut self, page: Page) {
        let frame = self.known(page);
        self.recency.remove(frame);
        self.at_mut(frame).going = true;
        self.going += 1;
        self.tally.invalidations += u64::from(!self.evicting);
    }

    fn forget(&mut self, page: Page) {
        let frame = self.known(page);
        self.going -= usize::from(self.at(frame).going);
        let place = self.place(page);
        self.table[place] = 0;
        self.frames[frame as usize] = None;
        self.recency.remove(frame);
        self.free.push(frame);
    }
}

impl<W: Mapped> Pages for Frames<W> {
    fn install(&mut self, page: Page, bytes: &[u8; PAGE_LEN], access: Access) {
        self.ahead.remove(&page);
        self.settled.push(page);
        let Some(frame) = self.find(page) else {
            self.window.install(page, bytes, access);
            let frame = self.free.pop().expect("the agent keeps to its bounds");
            let place = self.place(page);
            self.table[place] = frame + 1;
            self.frames[frame as usize] = Some(Held { page, access, going: false });
            self.recency.touch(frame);
            self.tally.fetches += 1;
            let used = (self.frames.len() - self.free.len()) as u64;
            self.tally.frames_max = self.tally.frames_max.max(used);
            return;
        };
        self.tally.upgrades += 1;
        self.at_mut(frame).access = access;
        if !self.stir(frame) {
            self.window.install(page, bytes, access);
        }
        self.recency.touch(frame);
    }

    fn freeze(&mut self, page: Page) {
        let frame = self.known(page);
        self.window.freeze(page);
        self.at_mut(frame).access = Access::Shared;
        self.tally.write_backs += 1;
    }

    fn read(&self, page: Page, range: Range<usize>, out: &mut Vec<u8>) {
        self.window.read(page, range, out);
    }

    fn zap(&mut self, page: Page) {
        self.window.zap(page);
        self.goes(page);
    }

    fn seize(&mut self, page: Page) {
        self.window.seize(page);
        self.tally.write_backs += 1;
        let frame = self.known(page);
        self.at_mut(frame).access = Access::Shared;
        self.goes(page);
    }

    fn release(&mut self, page: Page) {
        self.window.release(page);
        self.forget(page);
    }

    fn discard(&mut self, page: Page) {
        self.window.discard(page);
        self.forget(page);
        self.tally.invalidations += u64::from(!self.evicting);
    }

    fn wake(&mut self, page: Page) {
        match self.find(page).filter(|&frame| !self.at(frame).going) {
            Some(frame) if self.stir(frame) => {
                self.tally.rested += 1;
                self.recency.touch(frame);
            }
            _ => self.window.wake(page),
        }
    }

    fn poison(&mut self, page: Page) {
        if self.ahead.remove(&page) {
            return;
        }
        self.settled.push(page);
        self.tally.poisoned += 1;
        if self.tally.poisoned == 1 {
            let addr = page.addr();
            say(&format!(
                "a touch of the page at {addr} ends in SIGBUS: its latest bytes are lost, with a host whose lease ended or a memory node that was started again, or this domain may not use it. \
                 Of more pages only the count is told (`lost`)"
            ));
        }
        self.window.poison(page);
        self.poisoned.push_back((Instant::ZERO, page));
    }
}

#[cfg(test)]
mod tests;
