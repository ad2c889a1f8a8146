//! Tests of faults as signals, with threads of this process, and with separate processes that die, fork or install
//! handlers.

use super::super::tests::{
    Numbers, PAGES, assert_four_threads_added, byte, config, filled, four_threads_add, page, run_beside,
};
use super::super::{
    Fault, FaultMode, Faults, Handler, HandlerCpu, Window, WindowConfig, serve, serve_shared,
};
use super::{Next, SLOTS};
use farmem_host::agent::Pages as _;
use farmem_link::Waiting;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

/// Opens a window with room for all pages, whose faults are signals; prints a line and returns `None` if the system
/// denies it.
fn window() -> Option<Window> {
    let config = WindowConfig { faults: FaultMode::Signal, ..config(PAGES as u64) };
    Window::open(&config).inspect_err(|refused| eprintln!("skipped: {refused}")).ok()
}

/// The leader: the faulting thread, or the serving one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Itself,
    Server,
}

/// Serves the window while `program` runs on a thread of its own.
fn served<F: Faults + Send>(
    window: &Window,
    (by, handler): (By, Handler),
    faults: F,
    program: impl FnOnce() + Send,
) -> F {
    run_beside(window, program, faults, |stop, faults| match by {
        By::Itself => serve_shared(window, handler, stop, faults),
        By::Server => serve(window, handler, stop, faults),
    })
}

const SPINS: Handler = Handler { cpu: HandlerCpu::Any, waiting: Waiting::Spin };

fn all() -> [(By, Handler); 4] {
    let handlers = [Handler::default(), SPINS];
    let [block, spin] = handlers;
    [(By::Itself, block), (By::Itself, spin), (By::Server, block), (By::Server, spin)]
}

/// Threads that touch the same pages at the same time all get them, and no addition is lost, whichever thread leads.
#[test]
fn threads_that_touch_one_page_all_get_it() {
    for how in all() {
        let Some(window) = window() else { return };
        eprintln!("{how:?}");
        let numbers = served(&window, how, Numbers::of(&window), || four_threads_add(&window));
        assert_four_threads_added(&window, &numbers);
    }
}

/// A resolver that records which thread served which page.
struct Leaders<'w> {
    window: &'w Window,
    of: BTreeMap<usize, ThreadId>,
}

fn index_of(at: Page) -> usize {
    usize::try_from(at.number() - page(0).number()).unwrap()
}

impl Faults for Leaders<'_> {
    fn fault(&mut self, at: Page, _: Fault) {
        let index = index_of(at);
        self.of.insert(index, thread::current().id());
        let mut window = self.window;
        if window.has(at) {
            window.wake(at);
        } else {
            window.install(at, &filled(u8::try_from(index).unwrap()), Access::Modified);
        }
    }

    fn turn(&mut self) -> Next {
        Next::Sleep
    }
}

/// A thread serves itself, unless it has a signal blocked: it may then be in a handler while it holds a lock.
#[test]
fn a_thread_with_a_blocked_signal_is_served_by_another() {
    let Some(window) = window() else { return };
    let server = thread::current().id();
    let own = std::sync::Mutex::new(None);
    let leaders = Leaders { window: &window, of: BTreeMap::new() };
    let leaders = served(&window, (By::Itself, Handler::default()), leaders, || {
        *own.lock().unwrap() = Some(thread::current().id());
        assert_eq!(byte(&window, 0), 0, "by either thread: from here on the window is served");
        assert_eq!(byte(&window, 1), 1);
        block(libc::SIGUSR1);
        assert_eq!(byte(&window, 2), 2);
    });
    assert_eq!(leaders.of[&1], own.into_inner().unwrap().unwrap());
    assert_eq!(leaders.of[&2], server);
}

fn block(signal: i32) {
    // SAFETY: an all-zero set is empty.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a whole set, and a signal's number.
    assert_eq!(unsafe { libc::sigaddset(&raw mut set, signal) }, 0);
    // SAFETY: a whole set; of this thread alone.
    assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) }, 0);
}

/// A resolver that answers only when the maximum number of threads wait.
struct Patient<'w> {
    window: &'w Window,
    waiting: Vec<Page>,
    most: usize,
    is_full: bool,
}

impl Faults for Patient<'_> {
    fn fault(&mut self, at: Page, _: Fault) {
        self.waiting.push(at);
        self.most = self.most.max(self.waiting.len());
        self.is_full |= self.waiting.len() == SLOTS;
    }

    fn turn(&mut self) -> Next {
        let mut window = self.window;
        if self.is_full {
            for at in self.waiting.drain(..) {
                if window.has(at) {
                    window.wake(at);
                } else {
                    window.install(at, &filled(1), Access::Modified);
                }
            }
        }
        Next::Sleep
    }
}

/// If more threads fault than may wait, the others wait for a slot, and all continue.
#[test]
fn more_threads_than_slots_all_continue() {
    for by in [By::Itself, By::Server] {
        let Some(window) = window() else { return };
        let patient = Patient { window: &window, waiting: Vec::new(), most: 0, is_full: false };
        let went_on = AtomicUsize::new(0);
        let patient = served(&window, (by, Handler::default()), patient, || {
            thread::scope(|scope| {
                for n in 0..SLOTS + 40 {
                    let (window, went_on) = (&window, &went_on);
                    scope.spawn(move || {
                        assert_eq!(byte(window, n % PAGES), 1);
                        went_on.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        });
        assert_eq!((patient.most, went_on.into_inner()), (SLOTS, SLOTS + 40), "{by:?}");
    }
}

/// A thread that touches a window before it is served waits; a window may be served again.
#[test]
fn service_ends_and_begins_again() {
    let Some(window) = window() else { return };
    for (round, how) in all().into_iter().enumerate() {
        thread::scope(|scope| {
            let early = scope.spawn(|| byte(&window, 2 * round));
            let numbers = served(&window, how, Numbers::of(&window), || {
                assert_eq!(usize::from(byte(&window, 2 * round + 1)), 2 * round + 1);
                while !early.is_finished() {
                    thread::yield_now();
                }
            });
            assert_eq!(usize::from(early.join().unwrap()), 2 * round);
            assert_eq!(numbers.reports.len(), 2, "{how:?}");
        });
    }
}

/// System calls on far memory fail, and the window's own methods use a buffer.
#[test]
fn system_calls_fail_and_window_methods_work() {
    let Some(window) = window() else { return };
    served(&window, (By::Itself, Handler::default()), Numbers::of(&window), || {
        let memory = window.memory();
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: a page of the window, which the call may write.
        let into = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().as_ptr(), 8) };
        assert_eq!(rustix::io::read(&zeros, into), Err(rustix::io::Errno::FAULT));
        assert_eq!(memory.read_from(&zeros, PAGE_LEN + 100, 3 * PAGE_LEN).unwrap(), 3 * PAGE_LEN);
        assert_eq!([1, 2, 4].map(|index| byte(&window, index)), [1, 0, 0]);
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(memory.write_to(&ours, 7 * PAGE_LEN, 10).unwrap(), 10);
        let mut got = [0; 10];
        std::io::Read::read_exact(&mut &theirs, &mut got).unwrap();
        assert_eq!(got, [7; 10]);
    });
}

/// The variable that selects the task of a test's process.
const BE: &str = "FARMEM_TEST_SIGNALS";
/// The exit code of a test's handler, to which the signal's code is added.
const EXIT: i32 = 40;
const BUS_ADRERR: i32 = 2;
const BUS_MCEERR_AR: i32 = 4;

/// The replaced handler, for a handler that calls it.
static REPLACED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn exits(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a complete siginfo_t.
    let code = unsafe { (*info).si_code };
    ends(EXIT + code)
}

extern "C" fn calls_the_one_before(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: written before this handler was installed: a handler with SA_SIGINFO.
    let before: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
        unsafe { std::mem::transmute(REPLACED.load(Ordering::Relaxed)) };
    before(signal, info, context);
}

/// Installs a handler for SIGBUS. Returns the one that it replaces.
fn install(handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)) -> usize {
    // SAFETY: all-zero sigactions have no flags and masks.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: whole actions, in a process of its own.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) }, 0);
    before.sa_sigaction
}

/// Touches a mapped file behind its end: a SIGBUS outside any window.
fn touch_behind_a_file() {
    let file = rustix::fs::memfd_create("nothing", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let place = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE_LEN, protection, flags, &file, 0) };
    // SAFETY: mapped, with no file behind it, which is the purpose.
    let _byte = unsafe { place.unwrap().cast::<u8>().read_volatile() };
}

/// A resolver that touches the window that it serves.
struct Touches<'w>(&'w Window);

impl Faults for Touches<'_> {
    fn fault(&mut self, _: Page, _: Fault) {
        let _byte = byte(self.0, 9);
    }

    fn turn(&mut self) -> Next {
        Next::Sleep
    }
}

/// Acts only in a separate process, selected by the variable.
#[test]
fn task_of_a_separate_process() {
    let Ok(be) = std::env::var(BE) else { return };
    if be == "before" || be == "poisoned" || be == "sent" {
        install(exits);
    }
    let Some(window) = window() else { ends(SKIPPED) };
    if be == "after" {
        REPLACED.store(install(calls_the_one_before), Ordering::Relaxed);
    }
    if be == "too many" {
        let one = WindowConfig { faults: FaultMode::Signal, ..config(1) };
        let others: Vec<Window> =
            std::iter::from_fn(|| Window::open(&one).inspect_err(|refused| eprintln!("{refused}")).ok())
                .collect();
        eprintln!("{} were opened", 1 + others.len());
        drop(others);
        ends(if Window::open(&one).is_ok() { EXIT } else { SKIPPED });
    }
    let how = (By::Itself, Handler::default());
    if be == "itself" {
        served(&window, how, Touches(&window), || assert_eq!(byte(&window, 1), 1));
    }
    served(&window, how, Numbers::of(&window), || {
        assert_eq!(byte(&window, 3), 3);
        match be.as_str() {
            "before" | "after" | "default" => touch_behind_a_file(),
            "poisoned" => {
                (&window).poison(page(5));
                byte(&window, 5);
            }
            "blocked" => {
                block(libc::SIGBUS);
                byte(&window, 5);
            }
            // SAFETY: a signal to this process, which handles it.
            "sent" => assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0),
            "forks" => {
                let at = window.memory().as_ptr();
                // SAFETY: the child touches memory, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: not mapped here, by MADV_DONTFORK: it ends the child.
                    let byte = unsafe { at.as_ptr().read_volatile() };
                    ends(i32::from(byte))
                }
                let mut status = 0;
                // SAFETY: room for a status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
                assert_eq!(byte(&window, 6), 6, "the parent goes on");
                ends(EXIT);
            }
            other => panic!("{other:?} is nothing to be"),
        }
        panic!("{be} went on");
    });
}

const SKIPPED: i32 = 77;

fn ends(code: i32) -> ! {
    // SAFETY: it ends this process, which has nothing to leave behind.
    unsafe { libc::_exit(code) }
}

/// Runs a task in a process of its own; returns `None` if that may not serve faults.
fn process(be: &str) -> Option<Output> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "signal::tests::task_of_a_separate_process", "--nocapture"]).env(BE, be);
    let output = command.output().unwrap();
    (output.status.code() != Some(SKIPPED)).then_some(output)
}

/// A SIGBUS outside any window goes to the earlier handler, or to the program's. So does that of a poisoned page.
#[test]
fn other_signals_reach_the_earlier_handler() {
    let ends = [
        ("before", vec![Ok(EXIT + BUS_ADRERR)]),
        ("after", vec![Err(libc::SIGBUS)]),
        ("default", vec![Err(libc::SIGBUS)]),
        // The first if the kernel is built without CONFIG_MEMORY_FAILURE.
        ("poisoned", vec![Ok(EXIT + BUS_ADRERR), Ok(EXIT + BUS_MCEERR_AR)]),
        ("sent", vec![Ok(EXIT + libc::SI_TKILL)]),
        ("blocked", vec![Err(libc::SIGBUS)]),
        ("forks", vec![Ok(EXIT)]),
    ];
    for (be, may_end) in ends {
        let Some(Output { status, stderr, .. }) = process(be) else { return };
        let ended = status.code().ok_or_else(|| status.signal().unwrap());
        assert!(may_end.contains(&ended), "{be} ended with {ended:?}: {}", String::from_utf8_lossy(&stderr));
    }
}

/// A resolver that touches its own window is killed with a message, because its page cannot wait for itself.
#[test]
fn a_resolver_must_not_touch_its_window() {
    let Some(Output { status, stderr, .. }) = process("itself") else { return };
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{said}");
    assert!(said.contains("a thread that serves a window touched it"), "{said}");
}

/// A process has a maximum number of windows. The next is refused with a remedy, and closed windows make room.
#[test]
fn the_number_of_windows_is_bounded() {
    let Some(Output { status, stderr, .. }) = process("too many") else { return };
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(EXIT), "{said}");
    assert!(said.contains("64 were opened") && said.contains("at most 64 such windows"), "{said}");
}
