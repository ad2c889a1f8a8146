//! Windows onto far memory, on a rack in one process: real page faults, real READs and WRITEs.

use farmem_client::{Client, Error, Rack, VirtAddr, Vma};
use farmem_memory::window::policy::{PageAccess, Prefetch};
use farmem_memory::window::{
    self, AccessPath, Addressing, Advice, Ahead, Caching, DpuConfig, DpuStats, FaultMode, Foresight, Memory,
    Object, PolicyMaker, TableConfig, WindowOptions, WindowStats,
};
use std::io::Write as _;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::thread;

const PAGE: usize = 4096;
/// Bytes of an allocation; the local limit is a quarter of it.
const SIZE: usize = 2 << 20;
const LIMIT: u64 = SIZE as u64 / 4;
/// The program sees the same in every fault mode.
const MODES: [FaultMode; 2] = [FaultMode::Handler, FaultMode::Signal];

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ z >> 31) % end as u64).unwrap()
    }
}

fn client() -> (Client, Vma) {
    let rack = Rack::embedded_with(1, 16 << 20).unwrap();
    let mut client = rack.client("windows").unwrap();
    let vma = client.allocate(SIZE as u64).unwrap();
    (client, vma)
}

/// Returns options for any free address: tests run in parallel, each with a rack whose addresses begin at the
/// same place.
fn options() -> WindowOptions {
    WindowOptions { place: Addressing::Anywhere, ..WindowOptions::new(LIMIT) }
}

fn options_by(faults: FaultMode) -> WindowOptions {
    WindowOptions { faults, ..options() }
}

/// Runs a program in a window; `None`, with the reason on stderr, where this process may not serve faults.
fn run<R: Send>(
    client: &mut Client,
    vma: &Vma,
    options: WindowOptions,
    program: impl FnOnce(Memory<'_>) -> R + Send,
) -> Option<(R, WindowStats)> {
    match window::with_window(client, vma, options, program) {
        Err(Error::Open(refused)) => {
            eprintln!("skipped: {refused}");
            None
        }
        other => Some(other.unwrap()),
    }
}

/// Numbers read through a window match far memory, in any order, while pages come and go.
#[test]
fn numbers_are_read_as_a_slice_is() {
    for faults in MODES {
        let (mut client, vma) = client();
        let value = |n: usize| u32::try_from(n).unwrap().wrapping_mul(0x9e37_79b9);
        let bytes: Vec<u8> = (0..SIZE / 4).flat_map(|n| value(n).to_le_bytes()).collect();
        client.write(vma.base, &bytes).unwrap();
        let ran = run(&mut client, &vma, options_by(faults), |memory| {
            let all = memory.numbers::<u32>(0, SIZE / 4);
            assert_eq!((all.len(), all.is_empty()), (SIZE / 4, false));
            assert!(all.iter().enumerate().all(|(n, found)| found == value(n)));
            let mut chance = Chance(7);
            for _ in 0..2000 {
                let at = chance.below(SIZE / 4);
                assert_eq!(all.at(at), value(at));
                let part = all.part(at..SIZE / 4);
                assert_eq!(part.iter().next_back(), Some(value(SIZE / 4 - 1)));
            }
            let long = memory.numbers::<u64>(8, SIZE / 8 - 1);
            assert_eq!(long.at(0), u64::from(value(2)) | u64::from(value(3)) << 32);
            assert!(memory.numbers::<u64>(SIZE, 0).is_empty(), "none, at the end");
            for wrong in [(4, 1), (SIZE, 1), (0, SIZE / 8 + 1), (0, usize::MAX)] {
                let asked = std::panic::catch_unwind(|| memory.numbers::<u64>(wrong.0, wrong.1));
                assert!(asked.is_err(), "{wrong:?} are not aligned numbers of the window");
            }
        });
        let Some(((), stats)) = ran else { return };
        assert_eq!((stats.write_backs, stats.upgrades), (0, 0), "they are only read");
        assert!(stats.evictions > 0 && stats.bytes_here_max <= LIMIT);
    }
}

fn far_bytes(client: &mut Client, vma: &Vma) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    for (n, part) in bytes.chunks_mut(64 << 10).enumerate() {
        client.read(VirtAddr(vma.base.0 + (n * (64 << 10)) as u64), part).unwrap();
    }
    bytes
}

/// Performs random reads and writes of random lengths all over an allocation four times the limit, beside a
/// plain array.
fn churn(memory: Memory<'_>, plain: &mut [u8], seed: u64, range: Range<usize>, steps: usize) {
    let mut chance = Chance(seed);
    for step in 0..steps {
        let at = range.start + chance.below(range.len());
        let len = 1 + chance.below((range.end - at).min(3 * PAGE));
        if chance.below(3) == 0 {
            let value = u8::try_from(step % 251).unwrap();
            memory.write(at, &vec![value; len]);
            plain[at..at + len].fill(value);
        } else {
            let mut got = vec![0; len];
            memory.read(at, &mut got);
            assert_eq!(got, plain[at..at + len], "step {step}: {len} bytes at {at:#x}");
        }
    }
}

/// With an allocation of four times the limit and every policy, reads return written bytes, in the window and
/// afterwards in far memory. Local bytes never exceed the limit.
#[test]
fn an_allocation_four_times_the_limit_is_an_array() {
    let policies = [
        (Ahead::None, 0),
        (Ahead::None, 2),
        (Ahead::Group(8), 1),
        (Ahead::Stream(16), 1),
        (Ahead::Groups { pages: 4, most: 16 }, 1),
        (Ahead::Group(1 << 40), 8),
    ];
    let ways = MODES.into_iter().flat_map(|faults| policies.map(|policy| (faults, policy)));
    for (n, (faults, (ahead, inactive_eighths))) in ways.enumerate() {
        let (mut client, vma) = client();
        let options = WindowOptions { ahead, inactive_eighths, ..options_by(faults) };
        let mut plain = vec![0; SIZE];
        let touched =
            run(&mut client, &vma, options, |memory| churn(memory, &mut plain, n as u64, 0..SIZE, 4000));
        let Some(((), stats)) = touched else { return };
        assert_eq!(far_bytes(&mut client, &vma), plain, "{ahead:?}");
        assert!(stats.bytes_here_max <= LIMIT, "{stats:?}");
        assert!(stats.bytes_here_max >= LIMIT - (64 << 10), "the limit is used: {stats:?}");
        assert!(stats.evictions > 500 && stats.write_backs > 100 && stats.missing > 500, "{stats:?}");
        // Adjacent pages share one WRITE.
        let pages_written = stats.bytes_written_back / PAGE as u64;
        assert!((stats.write_backs..=16 * stats.write_backs).contains(&pages_written), "{stats:?}");
        let pages = stats.bytes_fetched / PAGE as u64;
        assert_eq!(pages == stats.fetches, ahead == Ahead::None, "{stats:?}");
        assert!(stats.reactivated > 0 || inactive_eighths == 0, "{stats:?}");
        let ahead_known = stats.ahead.used + stats.ahead.wasted;
        assert!(ahead_known <= stats.ahead.wanted, "{stats:?}");
        assert_eq!(stats.ahead.wanted > 0, ahead != Ahead::None, "{stats:?}");
        // A second window finds the first one's bytes.
        let Some((found, _)) = run(&mut client, &vma, options, |memory| {
            let mut all = vec![0; SIZE];
            memory.read(0, &mut all);
            all
        }) else {
            return;
        };
        assert!(found == plain, "{ahead:?}");
    }
}

/// Parallel threads in parts of their own, and all of them on one counter; a monitor checks the local limit
/// all the while.
#[test]
fn threads_share_a_window_and_the_limit_holds_all_the_while() {
    MODES.into_iter().for_each(threads_share_a_window);
}

fn threads_share_a_window(faults: FaultMode) {
    const THREADS: usize = 4;
    const PART: usize = SIZE / THREADS;
    let (mut client, vma) = client();
    let Some((most, stats)) = run(&mut client, &vma, options_by(faults), |memory| {
        let done = std::sync::atomic::AtomicUsize::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let done = &done;
                scope.spawn(move || {
                    let mut plain = vec![0; SIZE];
                    let range = thread * PART + PAGE..(thread + 1) * PART;
                    for round in 0..10 {
                        churn(memory, &mut plain, round, range.clone(), 100);
                        memory.word(0).fetch_add(1, Ordering::Relaxed);
                    }
                    done.fetch_add(1, Ordering::Release);
                });
            }
            let mut most = 0;
            while done.load(Ordering::Acquire) < THREADS {
                most = memory.bytes_here().max(most);
                thread::yield_now();
            }
            most
        })
    }) else {
        return;
    };
    assert!(most <= LIMIT && stats.bytes_here_max <= LIMIT, "{most}, {stats:?}");
    assert!(most > LIMIT / 2, "{most}");
    let mut word = [0; 8];
    client.read(vma.base, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 10 * THREADS as u64);
}

/// A file four times the local limit is read into far memory and written out of it again, by system calls.
#[test]
fn files_go_in_and_out_by_system_calls() {
    MODES.into_iter().for_each(files_go_in_and_out);
}

fn files_go_in_and_out(faults: FaultMode) {
    let (mut client, vma) = client();
    let mut chance = Chance(5);
    let content: Vec<u8> = (0..SIZE - 100).map(|_| u8::try_from(chance.below(256)).unwrap()).collect();
    let place = std::env::temp_dir().join(format!("farmem-window-{}", std::process::id()));
    std::fs::File::create(&place).unwrap().write_all(&content).unwrap();
    let copied = place.with_extension("copy");
    let done = run(&mut client, &vma, options_by(faults), |memory| {
        let (file, copy) = (std::fs::File::open(&place).unwrap(), std::fs::File::create(&copied).unwrap());
        let (mut read, mut written) = (0, 0);
        while read < content.len() {
            read += memory.read_from(&file, 100 + read, content.len() - read).unwrap();
        }
        while written < content.len() {
            written += memory.write_to(&copy, 100 + written, content.len() - written).unwrap();
        }
    });
    if done.is_some() {
        assert!(std::fs::read(&copied).unwrap() == content);
        assert!(far_bytes(&mut client, &vma)[100..] == content);
        std::fs::remove_file(copied).unwrap();
    }
    std::fs::remove_file(place).unwrap();
}

/// The cost of a page: one READ at the first touch, nothing while it is local, one WRITE when it is evicted
/// dirty.
#[test]
fn a_page_costs_what_it_must() {
    MODES.into_iter().for_each(a_page_costs);
}

fn a_page_costs(faults: FaultMode) {
    let (mut client, vma) = client();
    let options = WindowOptions { inactive_eighths: 0, ..options_by(faults) };
    let Some(((), stats)) = run(&mut client, &vma, options, |memory| {
        let mut byte = [0];
        for _ in 0..3 {
            memory.read(5 * PAGE, &mut byte);
            memory.read(6 * PAGE, &mut byte);
        }
        memory.write(6 * PAGE, &[1]);
        memory.write(7 * PAGE, &[1]);
        memory.write(7 * PAGE, &[2]);
    }) else {
        return;
    };
    let expected = WindowStats {
        faults: 4,
        missing: 3,
        upgrades: 1,
        fetches: 3,
        bytes_fetched: 3 * PAGE as u64,
        write_backs: 1, // at the end, of the two adjacent pages
        bytes_written_back: 2 * PAGE as u64,
        bytes_here_max: 3 * PAGE as u64,
        ..WindowStats::default()
    };
    assert_eq!(stats, expected);
}

/// Pages fetched beside a written page are unchanged: they are not written back.
#[test]
fn what_came_beside_a_written_page_is_not_written_back() {
    let (mut client, vma) = client();
    let options = WindowOptions { ahead: Ahead::Group(8), ..options() };
    let Some(((), stats)) = run(&mut client, &vma, options, |memory| memory.write(3 * PAGE, &[1])) else {
        return;
    };
    assert_eq!((stats.fetches, stats.bytes_fetched), (1, 8 * PAGE as u64));
    assert_eq!((stats.write_backs, stats.bytes_written_back), (1, PAGE as u64));
}

/// A program's panic resurfaces at the window's caller, after its writes are safe; the client continues.
#[test]
fn a_panic_leaves_far_memory_whole() {
    MODES.into_iter().for_each(a_panic_leaves_far_memory);
}

fn a_panic_leaves_far_memory(faults: FaultMode) {
    let (mut client, vma) = client();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        window::with_window(&mut client, &vma, options_by(faults), |memory| {
            memory.write(3, b"kept");
            panic!("on purpose");
        })
    }));
    if let Ok(Err(refused)) = panicked {
        return eprintln!("skipped: {refused}");
    }
    assert!(panicked.is_err());
    let mut bytes = [0; 4];
    client.read(VirtAddr(vma.base.0 + 3), &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
}

/// Invalid options are refused with the valid range. A window is at its far-memory addresses by default.
#[test]
fn options_are_checked_and_addresses_are_far_memorys_own() {
    let (mut client, vma) = client();
    let small = WindowOptions::new(4096);
    let said = window::with_window(&mut client, &vma, small, |_| ()).unwrap_err().to_string();
    assert!(said.contains("64 KiB"), "{said}");
    let same = WindowOptions::new(LIMIT);
    let Some((place, _)) = run(&mut client, &vma, same, |memory| memory.as_ptr().addr().get() as u64) else {
        return;
    };
    assert_eq!(place, vma.base.0);
}

/// Returns a DPU with four entries of four pages of 16 KiB: an eighth of the allocation.
fn dpu(caching: Caching) -> DpuConfig {
    let number = |number: u32| NonZeroU32::new(number).unwrap();
    let table = TableConfig { slots: number(4), entry_pages: 4 };
    DpuConfig { page_len: number(16 << 10), table, ..DpuConfig::new(caching) }
}

/// Through a DPU, with every caching mode and every fetch size, reads return what was written, in the window
/// and in far memory. The DPU's request count matches the window's. Its requests to far memory are at most
/// that, besides prefetches.
#[test]
fn an_allocation_by_way_of_a_dpu_is_an_array() {
    let cachings = [Caching::Off, Caching::Dynamic, Caching::Adaptive];
    let aheads = [Ahead::None, Ahead::Group(4), Ahead::Stream(16), Ahead::Group(64)];
    let ways = cachings.into_iter().flat_map(|caching| aheads.map(|ahead| (caching, ahead)));
    for (n, (caching, ahead)) in ways.enumerate() {
        let (mut client, vma) = client();
        let options = WindowOptions { ahead, way: AccessPath::Own(dpu(caching)), ..options_by(MODES[n % 2]) };
        let mut plain = vec![0; SIZE];
        let touched =
            run(&mut client, &vma, options, |memory| churn(memory, &mut plain, n as u64, 0..SIZE, 1500));
        let Some(((), stats)) = touched else { return };
        assert!(far_bytes(&mut client, &vma) == plain, "{caching:?}, {ahead:?}");
        let dpu = stats.dpu.expect("a DPU says what it did");
        assert_eq!((dpu.asked, dpu.written), (stats.bytes_fetched, stats.bytes_written_back), "{stats:?}");
        match caching {
            Caching::Off => {
                assert_eq!((dpu.on_demand, dpu.background, dpu.hits), (dpu.asked, 0, 0), "{dpu:?}");
            }
            Caching::Dynamic => assert!(dpu.hits > 0 && dpu.on_demand < dpu.asked, "{dpu:?}"),
            Caching::Adaptive => {
                assert!((dpu.on_demand + dpu.background) * 1024 <= dpu.asked * 1075, "{dpu:?}");
            }
        }
    }
}

/// A scan by 64 KiB requests: from the fifth request on, the sequence is detected, and a prefetching DPU has
/// requested the next pages. Each byte moves once.
#[test]
fn a_scan_by_way_of_a_dpu_moves_each_byte_once() {
    let scan = |caching: Caching| -> Option<DpuStats> {
        let (mut client, vma) = client();
        let config = DpuConfig { page_len: NonZeroU32::new(64 << 10).unwrap(), ..dpu(caching) };
        let options = WindowOptions { ahead: Ahead::Group(16), way: AccessPath::Own(config), ..options() };
        let (_, stats) = run(&mut client, &vma, options, |memory| {
            let mut bytes = vec![0; PAGE];
            (0..SIZE).step_by(PAGE).for_each(|at| memory.read(at, &mut bytes));
        })?;
        stats.dpu
    };
    let (Some(off), Some(dynamic)) = (scan(Caching::Off), scan(Caching::Dynamic)) else { return };
    assert_eq!((off.reads, off.on_demand), ((SIZE >> 16) as u64, SIZE as u64));
    assert_eq!(dynamic.on_demand + dynamic.background, SIZE as u64, "{dynamic:?}");
    assert!(dynamic.on_demand <= 6 << 16, "{dynamic:?}");
}

/// A policy that always wants the entry of page 40.
#[derive(Debug)]
struct KnownPages;

impl Prefetch<PageAccess<'_>> for KnownPages {
    type Proposal = Range<u64>;

    fn propose(&mut self, access: &PageAccess<'_>) -> Range<u64> {
        assert_eq!((access.page.object, access.entry_pages), (0, 4));
        40..41
    }
}

/// A program has its own policy, which knows one page: the first request brings that page's entry, and
/// nothing else. Where the program advises random use nothing comes, and when it withdraws the advice the
/// entry does. A policy that would never be used is refused.
#[test]
fn a_program_has_its_own_policy() {
    let (mut client, vma) = client();
    let own = WindowOptions {
        way: AccessPath::Own(dpu(Caching::Dynamic)),
        read_only: true,
        policy: Some(PolicyMaker(|_| Box::new(KnownPages))),
        ..options()
    };
    let mut read = |options, pages: &[usize], advice: &[(Advice, usize)]| -> Option<DpuStats> {
        let program = |objects: window::Objects<'_>| {
            let touch = |page: usize| objects.get(0).read(page * (16 << 10), &mut [0; 8]);
            pages.iter().copied().for_each(touch);
            for &(advice, page) in advice {
                objects.advise(0, 0..SIZE as u64, advice).unwrap();
                touch(page);
            }
        };
        match window::with_objects(&mut client, &[Object::new(&vma)], options, program) {
            Err(Error::Open(refused @ farmem_link::OpenError::NotPermitted { .. })) => {
                eprintln!("skipped: {refused}");
                None
            }
            ran => ran.unwrap().1.dpu,
        }
    };
    let Some(dpu) = read(own, &[0, 41, 43], &[]) else { return };
    assert_eq!((dpu.reads, dpu.hits + dpu.late), (3, 2), "{dpu:?}");
    assert_eq!((dpu.background, dpu.on_demand), (64 << 10, PAGE as u64), "{dpu:?}");
    let usual = read(WindowOptions { policy: None, ..own }, &[0, 41], &[]).unwrap();
    assert_eq!((usual.hits + usual.late, usual.background), (0, 0), "{usual:?}");
    // Advice reaches the DPU asynchronously, possibly a moment after the first page request.
    let mut soon = |advice: &[(Advice, usize)], reads, background| {
        let mut tries = (0..100).map(|_| read(own, &[], advice).unwrap());
        assert!(tries.any(|dpu| (dpu.reads, dpu.background) == (reads, background)), "{advice:?}");
    };
    soon(&[(Advice::Random, 0)], 1, 0);
    soon(&[(Advice::Random, 0), (Advice::Normal, 20)], 2, 64 << 10);
    for wrong in [
        WindowOptions { way: AccessPath::Direct, ..own },
        WindowOptions { way: AccessPath::DpuProcess, ..own },
        WindowOptions { foresight: Foresight::Majority, ..own },
    ] {
        let error = window::with_window(&mut client, &vma, wrong, |_| ()).unwrap_err().to_string();
        assert!(error.contains("prefetch policy"), "{error}");
    }
}

/// An invalid DPU configuration, and a DPU beside hosts that write what it would cache.
#[test]
fn a_dpu_that_cannot_be_is_refused() {
    let (mut client, vma) = client();
    let good = dpu(Caching::Dynamic);
    for (wrong, said) in [
        (DpuConfig { page_len: NonZeroU32::new(5000).unwrap(), ..good }, "a multiple of 4096"),
        (DpuConfig { table: TableConfig { entry_pages: 65, ..good.table }, ..good }, "1 to 64 pages"),
        (DpuConfig { table: TableConfig { entry_pages: 0, ..good.table }, ..good }, "1 to 64 pages"),
        (DpuConfig { table: TableConfig { slots: NonZeroU32::MAX, ..good.table }, ..good }, "fewer slots"),
    ] {
        let options = WindowOptions { way: AccessPath::Own(wrong), ..options() };
        let error = window::with_window(&mut client, &vma, options, |_| ()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
