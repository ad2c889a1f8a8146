//! The page cache and the agent over a real window, without a rack: the test provides the rack's messages.

use super::poisoned::Poisoned;
use farmem_host::agent::{Action, Agent, Bounds, Event, Mapped as _, Outcome, Pages as _};
use farmem_host::paged::{Notice, PageRequest, Paged};
use farmem_machine::{Duration, Instant};
use farmem_paging::{Ahead, Cache, Cause, Config};
use farmem_uffd::{Addressing, FaultMode, Reach, Window, WindowConfig};
use farmem_wire::message::{
    Access, Data, FetchId, PAGE_LEN, Page, Part, Recall, Refusal, Region, Seq, WriteBackAck,
};
use farmem_wire::{Status, VirtAddr};

const BASE: u64 = 0x5000_0000;
const PAGES: usize = 64;
const FRAMES: usize = 32;

/// Returns a window; `None` if this process may not serve faults.
fn window() -> Option<Window> {
    let config = WindowConfig {
        base: VirtAddr(BASE),
        len: (PAGES * PAGE_LEN) as u64,
        frames_max: FRAMES as u64,
        place: Addressing::Anywhere,
        reach: Reach::UserMode,
        faults: FaultMode::Handler,
    };
    Window::open(&config).inspect_err(|refused| eprintln!("skipped: {refused}")).ok()
}

fn page(index: u64) -> Page {
    Page::of(VirtAddr(BASE + index * PAGE_LEN as u64))
}

/// A host whose memory is a window.
struct Host<'w> {
    agent: Agent,
    paged: Paged<&'w Window>,
    /// The agent's actions that send.
    sent: Vec<Action>,
}

impl<'w> Host<'w> {
    fn new(window: &'w Window, ahead: Ahead) -> Self {
        let config = Config {
            frames: FRAMES,
            inactive_max: FRAMES / 2,
            inactive_apart: false,
            run_max: 8,
            batch_max: 4,
            writing_max: 8,
            tries_max: 1,
            ahead,
            stream_writes: false,
        };
        let bounds = Bounds { pages: FRAMES, ..Bounds::default() };
        Self {
            agent: Agent::new(bounds, FetchId(1)),
            paged: Paged::new(window, Cache::coherent(config, 16), page(0), PAGES as u64),
            sent: Vec::new(),
        }
    }

    fn step(&mut self, event: Event) -> Outcome {
        let mut actions = Vec::new();
        let outcome = self.agent.step(event, &mut actions);
        for action in actions {
            match action {
                Action::Keep(..) => {}
                Action::Install(page, access) => self.paged.install(page, &[3; PAGE_LEN], access),
                Action::Poison(page) => self.paged.poison(page),
                Action::Refuse(page) => self.paged.refuse(page),
                Action::Wake(page) => self.paged.wake(page),
                Action::WriteProtect(page) => self.paged.write_protect(page),
                Action::Unmap(page) => self.paged.unmap(page),
                Action::Release(page) => self.paged.release(page),
                Action::Discard(page) => self.paged.discard(page),
                Action::Clean(page) => self.paged.clean(page),
                sent => self.sent.push(sent),
            }
        }
        outcome
    }

    fn serve_wants(&mut self) {
        while let Some(want) = self.paged.next_request() {
            let outcome = match want {
                PageRequest::Fetch(page, access) => self.step(Event::Fault(page, access)),
                PageRequest::GiveUp(page) => self.step(Event::Evict(page)),
            };
            assert_eq!(outcome, Outcome::Done, "{want:?}");
        }
        self.paged.check(&self.agent);
    }

    /// Lets a thread wait for a page; all requested pages then arrive, with this sequence number.
    fn touch(&mut self, index: u64, access: Access, seq: u64) {
        self.paged.fault(page(index), access);
        self.paged.turn();
        self.serve_wants();
        self.answer_all(seq);
    }

    fn answer_all(&mut self, seq: u64) {
        for sent in std::mem::take(&mut self.sent) {
            match sent {
                Action::Get(get) => {
                    let (page, access, id) = (get.page, get.access, get.id);
                    let data = Data {
                        page,
                        access,
                        id,
                        seq: Seq(seq),
                        granted: true,
                        done_due: false,
                        lost: false,
                        part: Part::WHOLE,
                    };
                    self.step(Event::Data(data));
                }
                Action::WriteBack(write_back) => {
                    let ack =
                        WriteBackAck { page: write_back.page, grant: write_back.grant, ack: write_back.ack };
                    self.step(Event::WriteBackAck(ack));
                }
                _ => {}
            }
        }
        self.paged.turn();
        self.serve_wants();
    }

    fn refusals(&mut self) -> Vec<(Page, Cause)> {
        let notices = self.paged.take_notices();
        let refused = notices.iter().filter_map(|notices| match *notices {
            Notice::Refused(page, why) => Some((page, why)),
            _ => None,
        });
        refused.collect()
    }
}

/// With free frames no page becomes inactive. Without, the oldest pages become inactive and are evicted,
/// changed ones after a write-back. An inactive page that is accessed becomes active again without a request,
/// with its earlier access rights.
#[test]
fn the_oldest_go_when_room_is_short() {
    let Some(window) = window() else { return };
    let mut host = Host::new(&window, Ahead::None);
    (0..16).for_each(|index| host.touch(index, Access::Shared, 1));
    assert_eq!(host.paged.cache().stats().evictions, 0, "there is room");
    (16..31).for_each(|index| host.touch(index, Access::Modified, 1));
    let stats = host.paged.cache().stats();
    assert_eq!((stats.evictions, stats.write_backs, window.frames()), (1, 0, 30), "two are kept free");
    assert!(!window.has(page(0)) && window.has(page(1)));
    // The page is inactive: this access sends no request.
    host.touch(1, Access::Shared, 1);
    let stats = host.paged.cache().stats();
    assert_eq!((stats.reactivated, stats.fetches), (1, 31));
    host.touch(1, Access::Modified, 2);
    assert_eq!(host.paged.cache().stats().upgrades, 1);
    window.memory().write(PAGE_LEN, &[9]); // this thread must not fault, because no thread would serve it
    let mut byte = [0];
    window.memory().read(PAGE_LEN + 1, &mut byte);
    assert_eq!(byte, [3], "beside what was written");
    (32..60).for_each(|index| host.touch(index, Access::Shared, 1));
    // Of the evicted pages, 14 were changed, and the others only read.
    let stats = host.paged.cache().stats();
    assert_eq!((stats.evictions, stats.write_backs, stats.pages_written_back), (29, 14, 14));
    assert_eq!((window.frames(), host.paged.behind().count()), (30, 2));
    assert!(window.has(page(1)), "it was touched");
}

/// Pages that other hosts request are evicted at once. Pages whose write-back is pending stay until it
/// completes. Each eviction is counted by its reason.
#[test]
fn what_goes_is_counted_by_its_reason() {
    let Some(window) = window() else { return };
    let mut host = Host::new(&window, Ahead::None);
    host.touch(0, Access::Modified, 1);
    host.touch(1, Access::Shared, 1);
    host.touch(4, Access::Shared, 1);
    assert_eq!(host.paged.behind().collect::<Vec<_>>(), [page(0)]);
    let recall = |keep| Recall { region: Region::around(page(0), 1), seq: Seq(2), keep, wanted: Some(1) };
    host.step(Event::Recall(recall(true)));
    host.paged.check(&host.agent);
    assert_eq!(host.paged.behind().collect::<Vec<_>>(), [page(0)], "its bytes are on their way");
    // A thread that writes to the page waits for the write-back, and then sends a request.
    host.paged.fault(page(0), Access::Modified);
    assert_eq!((host.paged.next_request(), host.paged.is_awaited(page(0))), (None, true));
    host.answer_all(3);
    assert_eq!(host.paged.behind().count(), 0);
    host.answer_all(3);
    assert_eq!(host.agent.access(page(0)), Some(Access::Modified));
    host.step(Event::Recall(Recall { seq: Seq(4), ..recall(false) }));
    host.paged.check(&host.agent);
    assert_eq!(window.frames(), 2, "one is on its way, and one is not concerned");
    host.answer_all(4);
    let stats = host.paged.cache().stats();
    assert_eq!((stats.revoked, stats.write_backs, stats.evictions, window.frames()), (2, 2, 0, 1));
    host.paged.abandon();
    assert_eq!((window.frames(), window.bytes_taken()), (0, 0));
}

/// The refusal of a page for which no thread waits has no effect. A thread that waits for a refused page gets
/// an error, for a while.
#[test]
fn poison_is_for_those_who_wait_and_ends() {
    let Some(window) = window() else { return };
    let mut host = Host::new(&window, Ahead::Group(4));
    host.paged.fault(page(8), Access::Shared);
    host.serve_wants();
    for sent in std::mem::take(&mut host.sent) {
        let Action::Get(get) = sent else { panic!("{sent:?}") };
        let status = Status::NoPermission;
        host.step(Event::Refusal(Refusal { page: get.page, id: get.id, status }));
    }
    assert_eq!(host.refusals(), [(page(8), Cause::Refused)]);
    let account = host.paged.cache().stats().ahead;
    assert_eq!((account.wanted, account.wasted, account.open()), (3, 3, 0));
    let (mut poisoned, now) = (Poisoned::default(), Instant::from_nanos(1));
    poisoned.add(page(8), Cause::Refused, now);
    poisoned.unpoison(now, host.paged.memory_mut());
    assert!(!poisoned.is_empty(), "its time has begun");
    poisoned.unpoison(now + Duration::from_millis(10), host.paged.memory_mut());
    assert!(poisoned.is_empty());
    host.touch(8, Access::Shared, 1);
    assert!(window.has(page(8)));
    host.paged.memory_mut().unpoison(page(8));
    assert!(window.has(page(8)), "nothing to be healed");
}
