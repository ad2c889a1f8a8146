//! Tests of a window with threads, served by the simplest handler: a page's bytes are its number.

use super::*;
use farmem_host::agent::Pages;
use farmem_link::Stop;
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

pub(super) const PAGES: usize = 64;
const BASE: u64 = 0x7000_0000;

pub(super) fn config(frames_max: u64) -> WindowConfig {
    let len = (PAGES * PAGE_LEN) as u64;
    WindowConfig {
        base: VirtAddr(BASE),
        len,
        frames_max,
        place: Addressing::Anywhere,
        reach: Reach::UserMode,
        faults: FaultMode::Handler,
    }
}

/// Opens a window with room for all pages; prints a line and returns `None` if the system denies it.
pub(super) fn window() -> Option<Window> {
    Window::open(&config(PAGES as u64)).inspect_err(|refused| eprintln!("skipped: {refused}")).ok()
}

pub(super) fn page(index: usize) -> Page {
    Page::of(VirtAddr(BASE + (index * PAGE_LEN) as u64))
}

pub(super) fn filled(value: u8) -> [u8; PAGE_LEN] {
    [value; PAGE_LEN]
}

fn bytes_of(window: &Window, at: Page) -> Vec<u8> {
    let mut bytes = Vec::new();
    Pages::read(&window, at, 0..PAGE_LEN, &mut bytes);
    bytes
}

pub(super) fn byte(window: &Window, index: usize) -> u8 {
    let mut byte = [0];
    window.memory().read(index * PAGE_LEN + 5, &mut byte);
    byte[0]
}

/// Asserts that the frames agree with the kernel's count of the file.
pub(super) fn assert_exact(window: &Window, frames: u64) {
    assert_eq!((window.frames(), window.bytes_taken()), (frames, frames * PAGE_LEN as u64));
}

/// Pages that another process wrote to the file become the window's without a copy, runs of them by one call. An
/// absent page does not become one.
#[test]
fn pages_written_to_the_file_become_visible() {
    let Some(window) = window() else { return };
    let file = window.file().unwrap();
    for index in 3..7 {
        let bytes = filled(u8::try_from(index).unwrap());
        assert_eq!(rustix::io::pwrite(&file, &bytes, (index * PAGE_LEN) as u64).unwrap(), PAGE_LEN);
    }
    assert!(rustix::fs::ftruncate(&file, 0).is_err(), "it cannot be cut");
    assert!(window.is_placed(page(3), 4) && !window.is_placed(page(3), 5) && !window.is_placed(page(2), 1));
    let some = vec![1; 40 * PAGE_LEN];
    assert_eq!(rustix::io::pwrite(&file, &some, (20 * PAGE_LEN) as u64).unwrap(), some.len());
    window.clear_placed(page(45), 1);
    let is_placed = |(first, count)| window.is_placed(page(first), count);
    assert_eq!(
        [(20, 25), (20, 26), (46, 14), (45, 15), (46, 15)].map(is_placed),
        [true, false, true, false, false]
    );
    window.clear_placed(page(20), 40);
    assert!(!window.has(page(3)), "it is not the window's yet");
    window.install_placed(page(3), 3, Access::Shared);
    window.clear_placed(page(3), 4);
    assert_exact(&window, 3);
    assert_eq!([3, 4, 5].map(|index| byte(&window, index)), [3, 4, 5]);
    window.put_placed(page(6).addr(), &filled(60));
    window.install_placed(page(6), 1, Access::Modified);
    window.memory().write(6 * PAGE_LEN, &[61]);
    let mut bytes = Vec::new();
    window.read_placed(VirtAddr(page(6).addr().0 - 1), 2, &mut bytes);
    assert_eq!(bytes, [5, 61]);
    window.unmap_run(page(3), 4);
    window.unmap_run(page(4), 2);
    assert_exact(&window, 4);
    window.discard_run(page(4), 3);
    assert_exact(&window, 1);
    assert!(window.has(page(3)) && !window.has(page(6)));
    assert!(catch_unwind(AssertUnwindSafe(|| window.discard_run(page(3), 2))).is_err(), "one is not here");
}

#[test]
fn a_page_goes_through_its_states_and_its_memory_is_counted() {
    let Some(opened) = window() else { return };
    let mut window = &opened;
    assert_exact(window, 0);
    window.install(page(3), &filled(7), Access::Modified);
    assert_exact(window, 1);
    window.memory().write(3 * PAGE_LEN + 5, &[9]);
    window.write_protect(page(3));
    let mut expected = filled(7);
    expected[5] = 9;
    assert_eq!(bytes_of(window, page(3)), expected);
    assert_eq!(byte(window, 3), 9, "readable while frozen");
    window.unmap(page(3));
    assert_eq!(bytes_of(window, page(3)), expected, "kept until released");
    assert_exact(window, 1);
    window.release(page(3));
    assert_exact(window, 0);
    assert!(!window.has(page(3)));

    window.install(page(3), &filled(1), Access::Shared);
    window.install(page(3), &filled(1), Access::Modified);
    window.memory().write(3 * PAGE_LEN + 5, &[2]); // on this thread: a fault would never be served
    window.unmap(page(3));
    window.remap(page(3), Access::Modified);
    window.memory().write(3 * PAGE_LEN + 5, &[4]);
    assert_eq!(byte(window, 3), 4);
    window.discard(page(3));
    assert_exact(window, 0);

    window.poison(page(4));
    window.poison(page(4));
    assert_exact(window, 0);
    window.install(page(4), &filled(6), Access::Shared);
    assert_eq!(byte(window, 4), 6, "good again");

    let run: Vec<u8> = (0..4).flat_map(|n| filled(10 + n)).collect();
    window.install_run(page(8), &run, Access::Shared);
    assert_exact(window, 5);
    assert_eq!([8, 9, 10, 11].map(|n| byte(window, n)), [10, 11, 12, 13]);
}

/// A caller that breaks a rule gets a panic, and neither exceeds the limit nor changes other bytes.
#[test]
fn broken_rules_panic() {
    let Ok(window) = Window::open(&config(2)) else { return };
    let (a, b) = (page(0), page(1));
    let refused = |what: &str, act: &dyn Fn()| {
        assert!(catch_unwind(AssertUnwindSafe(act)).is_err(), "{what} is refused");
    };
    (&window).install(a, &filled(1), Access::Shared);
    refused("a page out of the window", &|| (&window).install(page(PAGES), &filled(1), Access::Shared));
    refused("a page before the window", &|| (&window).unmap(Page::of(VirtAddr(BASE - 1))));
    refused("Shared over Shared", &|| (&window).install(a, &filled(1), Access::Shared));
    refused("a write_protect of a protected page", &|| (&window).write_protect(a));
    refused("the bytes of no page", &|| drop(bytes_of(&window, b)));
    refused("an unmap of no page", &|| (&window).unmap(page(2)));
    (&window).install(b, &filled(2), Access::Modified);
    refused("the bytes of a page that is written", &|| drop(bytes_of(&window, b)));
    refused("more than the limit", &|| (&window).install(page(3), &filled(3), Access::Shared));
    assert_eq!(window.bytes_taken(), 2 * PAGE_LEN as u64);
    assert_eq!((byte(&window, 0), byte(&window, 1)), (1, 2));
}

#[test]
fn invalid_windows_are_refused_with_a_remedy() {
    let whole = config(1);
    let cases = [
        (WindowConfig { len: 0, ..whole }, "whole pages"),
        (WindowConfig { len: 5000, ..whole }, "whole pages"),
        (WindowConfig { base: VirtAddr(12), ..whole }, "whole pages"),
        (WindowConfig { frames_max: 0, ..whole }, "one page"),
    ];
    for (config, says) in cases {
        let said = Window::open(&config).unwrap_err().to_string();
        assert!(said.contains(says), "{said}");
    }
}

/// A pointer of far memory is valid here; two windows cannot have the same addresses.
#[test]
fn far_memory_has_its_own_addresses() {
    let same = WindowConfig { base: VirtAddr(0x2345_0000_0000), place: Addressing::Same, ..config(1) };
    let Ok(window) = Window::open(&same) else { return };
    assert_eq!(window.memory().as_ptr().addr().get() as u64, same.base.0);
    let refused = Window::open(&same).unwrap_err().to_string();
    assert!(refused.contains("is mapped there"), "{refused}");
    drop(window);
    Window::open(&same).unwrap();
}

/// A resolver that gives each page its number, and counts reports.
#[derive(Default)]
pub(super) struct Numbers<'w> {
    window: Option<&'w Window>,
    pub(super) reports: BTreeMap<usize, u32>,
    pub(super) upgrades: u32,
    /// Number of reports of a page that are left unanswered at first.
    deaf: u32,
    answered: Option<&'w AtomicBool>,
}

impl<'w> Numbers<'w> {
    pub(super) fn of(window: &'w Window) -> Self {
        Self { window: Some(window), ..Self::default() }
    }
}

impl Faults for Numbers<'_> {
    fn fault(&mut self, at: Page, fault: Fault) {
        let mut window = self.window.unwrap();
        let index = usize::try_from(at.number() - page(0).number()).unwrap();
        let reports = self.reports.entry(index).or_default();
        *reports += 1;
        if *reports <= self.deaf {
            return;
        }
        if let Some(answered) = self.answered {
            answered.store(true, Ordering::Release);
        }
        if fault.cause == Cause::WriteProtected {
            self.upgrades += 1;
            window.remap(at, Access::Modified);
        } else if window.has(at) {
            window.wake(at);
        } else {
            window.install(at, &filled(u8::try_from(index).unwrap()), Access::Shared);
        }
    }

    fn turn(&mut self) -> Next {
        Next::Sleep
    }
}

/// Serves the window by numbers while `program` runs on a thread of its own.
fn with_numbers<'w>(
    window: &'w Window,
    handler: Handler,
    numbers: Numbers<'w>,
    program: impl FnOnce() + Send,
) -> Numbers<'w> {
    run_beside(window, program, numbers, |stop, numbers| serve(window, handler, stop, numbers))
}

/// Serves the window with `serves` and `faults` until `program` has ended on a thread of its own. Passes the
/// program's panic on.
pub(super) fn run_beside<F>(
    window: &Window,
    program: impl FnOnce() + Send,
    mut faults: F,
    serves: impl FnOnce(&Stop, &mut F) -> io::Result<()>,
) -> F {
    let stop = Stop::new();
    let ring = Ring::new(window, stop.clone());
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(program));
            ring.end();
            result
        });
        serves(&stop, &mut faults).unwrap();
        thread.join().unwrap().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    faults
}

/// Runs four threads that read each page's number and add one to a word of it.
pub(super) fn four_threads_add(window: &Window) {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for index in 0..PAGES {
                    assert_eq!(usize::from(byte(window, index)), index);
                    window.memory().word(index * PAGE_LEN + 8).fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
}

/// Asserts the result of [`four_threads_add`]: each page was reported, made writable, and has all additions.
pub(super) fn assert_four_threads_added(window: &Window, numbers: &Numbers<'_>) {
    assert_eq!(numbers.reports.len(), PAGES);
    assert!(numbers.upgrades as usize >= PAGES);
    for index in 0..PAGES {
        let number = u64::from_le_bytes([u8::try_from(index).unwrap(); 8]);
        assert_eq!(window.memory().word(index * PAGE_LEN + 8).load(Ordering::Relaxed), number + 4);
    }
    assert_exact(window, PAGES as u64);
}

/// Threads that touch the same pages at the same time all get them, wherever the handler runs.
#[test]
fn threads_that_touch_one_page_all_get_it() {
    let cpu = farmem_link::affinity::allowed_cpus().unwrap()[0];
    let block = farmem_link::Waiting::Block;
    let handlers = [
        Handler::default(),
        Handler { cpu: HandlerCpu::Fixed(cpu), waiting: block },
        Handler { cpu: HandlerCpu::Any, waiting: farmem_link::Waiting::Spin },
    ];
    for handler in handlers {
        let Some(window) = window() else { return };
        let before = farmem_link::affinity::allowed_cpus().unwrap();
        let numbers = with_numbers(&window, handler, Numbers::of(&window), || four_threads_add(&window));
        assert_eq!(
            farmem_link::affinity::allowed_cpus().unwrap(),
            before,
            "the CPUs are the thread's own again"
        );
        assert_four_threads_added(&window, &numbers);
    }
}

/// A thread that waits for a page handles its signals and faults again: only a signal can cause the third report.
#[test]
fn a_signal_interrupts_a_fault_and_does_not_lose_it() {
    extern "C" fn nothing(_: libc::c_int) {}
    let Some(window) = window() else { return };
    // SAFETY: an all-zero sigaction has no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: a complete action whose handler does nothing; no other test uses this signal.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) }, 0);
    let answered = AtomicBool::new(false);
    let numbers = Numbers { deaf: 2, answered: Some(&answered), ..Numbers::of(&window) };
    let numbers = with_numbers(&window, Handler::default(), numbers, || {
        thread::scope(|scope| {
            // SAFETY: returns the id of the calling thread.
            let me = unsafe { libc::pthread_self() };
            let answered = &answered;
            scope.spawn(move || {
                while !answered.load(Ordering::Acquire) {
                    // SAFETY: that thread waits for this one to end, so it exists.
                    unsafe { libc::pthread_kill(me, libc::SIGUSR2) };
                    thread::yield_now();
                }
            });
            assert_eq!(byte(&window, 9), 9);
        });
    });
    assert!(numbers.reports[&9] >= 3);
}

/// A ring without a handler does not wait; a window may be served again; an abandoned page does not read as zeros.
#[test]
fn service_ends_and_begins_again() {
    let Some(window) = window() else { return };
    Ring::new(&window, Stop::new()).end();
    for round in 0..3 {
        let numbers = with_numbers(&window, Handler::default(), Numbers::of(&window), || {
            assert_eq!(usize::from(byte(&window, round)), round);
        });
        assert_eq!(numbers.reports.len(), 1);
    }
    Ring::new(&window, Stop::new()).end();
    window.abandon();
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    let refused = window.memory().read_from(&zeros, 40 * PAGE_LEN, 8).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
    assert_eq!(byte(&window, 2), 2);
}

/// Faults of system calls wait as others do, where that is permitted.
#[test]
fn files_are_read_into_far_memory_and_written_from_it() {
    let full = WindowConfig { reach: Reach::Full, ..config(PAGES as u64) };
    let window = match Window::open(&full) {
        Ok(window) => window,
        Err(refused) => return eprintln!("skipped: {refused}"),
    };
    with_numbers(&window, Handler::default(), Numbers::of(&window), || {
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let memory = window.memory();
        assert_eq!(memory.read_from(&zeros, PAGE_LEN + 100, 3 * PAGE_LEN).unwrap(), 3 * PAGE_LEN);
        assert_eq!([1, 2, 4].map(|index| byte(&window, index)), [1, 0, 0]);
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(memory.write_to(&ours, 7 * PAGE_LEN, 10).unwrap(), 10);
        let mut got = [0; 10];
        io::Read::read_exact(&mut &theirs, &mut got).unwrap();
        assert_eq!(got, [7; 10]);
    });
}

/// Bytes at any offset and of any length are those of a plain array.
#[test]
fn memory_is_an_array_of_bytes() {
    let Some(opened) = window() else { return };
    let mut window = &opened;
    for index in 0..2 {
        window.install(page(index), &filled(0), Access::Modified);
    }
    let mut plain = vec![0_u8; 2 * PAGE_LEN];
    let memory = window.memory();
    for (n, (offset, len)) in
        [(0, 1), (3, 5), (3, 40), (4090, 13), (8, 8), (7, 9), (8191, 1), (100, 0)].into_iter().enumerate()
    {
        let bytes: Vec<u8> = (0..len).map(|i| u8::try_from(16 * n + i % 16).unwrap()).collect();
        memory.write(offset, &bytes);
        plain[offset..offset + len].copy_from_slice(&bytes);
        let mut back = vec![0; len];
        memory.read(offset, &mut back);
        assert_eq!(back, bytes);
    }
    let mut all = vec![0; 2 * PAGE_LEN];
    memory.read(0, &mut all);
    assert_eq!(all, plain);
    assert_eq!(memory.len(), PAGES * PAGE_LEN);
    assert!(!memory.is_empty() && !window.is_empty() && window.len() == memory.len() as u64);
}

/// A part is a memory with its own offsets, and its end is a bound.
#[test]
fn a_part_has_its_own_offsets_and_its_own_end() {
    let Some(opened) = window() else { return };
    let mut window = &opened;
    window.install(page(1), &filled(0), Access::Modified);
    let part = window.memory().part(PAGE_LEN, PAGE_LEN).part(8, 32);
    part.write(0, &[1, 2, 3]);
    part.word(8).store(77, Ordering::Relaxed);
    let mut whole = [0; 24];
    window.memory().read(PAGE_LEN + 8, &mut whole);
    assert_eq!((&whole[..3], whole[8]), (&[1, 2, 3][..], 77));
    assert_eq!(part.as_ptr().addr().get() - window.memory().as_ptr().addr().get(), PAGE_LEN + 8);
    for (offset, len) in [(32, 1), (0, 33), (0, 0)] {
        catch_unwind(|| part.part(offset, len)).unwrap_err();
    }
}

/// A page that was read-only, and so write-protected, can be poisoned after its release.
#[test]
fn a_released_read_only_page_can_be_poisoned() {
    let Some(opened) = window() else { return };
    let mut window = &opened;
    window.install(page(3), &filled(7), Access::Shared);
    assert_eq!(byte(window, 3), 7);
    window.discard(page(3));
    window.poison(page(3));
    assert_exact(window, 0);
    let file = rustix::fs::memfd_create(c"sink", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    window.memory().write_to(&file, 3 * PAGE_LEN, 1).expect_err("no system call reads it");
    window.install(page(3), &filled(8), Access::Shared);
    assert_eq!(byte(window, 3), 8, "good again");
}

/// Removed poison has no effect: the next touch waits, and is served. A cached page stays as it is.
#[test]
fn an_unpoisoned_page_is_served_again() {
    let Some(opened) = window() else { return };
    let mut window = &opened;
    window.poison(page(4));
    Mapped::unpoison(&mut window, page(4));
    window.install(page(5), &filled(50), Access::Shared);
    window.unpoison(page(5));
    window.unpoison(page(6));
    assert_exact(window, 1);
    let numbers = with_numbers(&opened, Handler::default(), Numbers::of(&opened), || {
        assert_eq!([4, 5, 6].map(|index| byte(&opened, index)), [4, 50, 6]);
    });
    assert_eq!(numbers.reports, [(4, 1), (6, 1)].into());
}
