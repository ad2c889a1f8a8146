//! Frames over a real window, driven as an agent would.

use super::*;
use farmem_io::pages::{Place, Reach, Window, WindowConfig};
use farmem_wire::VirtAddr;

const BASE: u64 = 0x5000_0000;
const PAGES: usize = 64;
const FRAMES: usize = 32;

/// `None` where this process may not serve faults.
fn window() -> Option<Window> {
    let config = WindowConfig {
        base: VirtAddr(BASE),
        len: (PAGES * PAGE_LEN) as u64,
        frames_max: FRAMES as u64,
        place: Place::Anywhere,
        reach: Reach::UserMode,
    };
    Window::open(&config).inspect_err(|refused| eprintln!("skipped: {refused}")).ok()
}

fn frames(window: &Window) -> Frames<&Window> {
    Frames::new(window, page(0), PAGES, FRAMES)
}

fn page(index: usize) -> Page {
    Page::of(VirtAddr(BASE + (index * PAGE_LEN) as u64))
}

fn install(frames: &mut Frames<&Window>, index: usize, access: Access) {
    frames.install(page(index), &[3; PAGE_LEN], access);
}

/// While there is room nothing rests. When there is none the oldest do, the youngest never; one that is touched is young again, with the access
/// it had or the one that it gets meanwhile.
#[test]
fn the_oldest_rest_when_room_is_short() {
    let Some(window) = window() else { return };
    let mut frames = frames(&window);
    (0..16).for_each(|index| install(&mut frames, index, Access::Shared));
    frames.rest(4);
    assert_eq!(frames.recency.resting(), 0, "there is room");
    (16..FRAMES).for_each(|index| install(&mut frames, index, Access::Modified));
    frames.rest(4);
    assert_eq!(frames.recency.resting(), FRAMES / 2);
    assert_eq!(frames.victim(), Some(page(0)));
    frames.wake(page(0));
    install(&mut frames, 1, Access::Modified);
    assert_eq!((frames.victim(), frames.tally().rested, frames.tally().upgrades), (Some(page(2)), 1, 1));
    window.memory().write(PAGE_LEN, &[9]); // on this thread: a fault would never be served
    let mut byte = [0];
    window.memory().read(1, &mut byte);
    assert_eq!(byte, [3]);
    frames.rest(8);
    assert_eq!(frames.recency.resting(), FRAMES - AWAKE_MIN, "the youngest stay");
}

/// A page that is on its way to the memory node has its frame, and is nobody's to evict; what goes because others want it is counted apart.
#[test]
fn what_goes_is_counted_by_its_reason() {
    let Some(window) = window() else { return };
    let mut frames = frames(&window);
    install(&mut frames, 0, Access::Modified);
    install(&mut frames, 1, Access::Shared);
    install(&mut frames, 2, Access::Shared);
    assert_eq!(frames.written().collect::<Vec<_>>(), [page(0)]);
    frames.freeze(page(0));
    frames.zap(page(0));
    assert_eq!((frames.going(), frames.victim(), frames.has(page(0))), (1, Some(page(1)), true));
    assert!(!frames.is_written(page(0)));
    frames.release(page(0));
    frames.evicting(true);
    frames.discard(page(1));
    frames.evicting(false);
    let tally = frames.tally();
    assert_eq!((tally.invalidations, tally.write_backs, tally.fetches, tally.frames_max), (1, 1, 3, 3));
    assert_eq!((frames.going(), window.frames()), (0, 1));
    frames.give_all_up();
    assert_eq!((window.frames(), window.bytes_taken(), frames.victim()), (0, 0, None));
}

/// A page nobody waits for may be refused without anybody noticing. One that somebody waits for ends in an error, for a while.
#[test]
fn poison_is_for_those_who_wait_and_ends() {
    let Some(window) = window() else { return };
    let mut frames = frames(&window);
    frames.asked_ahead(page(5));
    frames.poison(page(5));
    assert_eq!(frames.tally().poisoned, 0);
    frames.asked_ahead(page(6));
    frames.wanted(page(6));
    frames.poison(page(6));
    assert_eq!(frames.tally().poisoned, 1);
    let now = Instant::from_nanos(1);
    frames.heal(now);
    assert_eq!(frames.poisoned.len(), 1, "its time begins");
    frames.heal(now + POISON_TIME);
    assert!(frames.poisoned.is_empty());
    install(&mut frames, 6, Access::Shared);
    assert_eq!(frames.take_settled(), [page(6), page(6)]);
}
