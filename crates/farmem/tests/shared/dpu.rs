//! Windows through a DPU process (SODA): reads return what was written, with other programs present, and when
//! the DPU fails.

use super::rig::TestRack;
use farmem::PAGE_LEN;
use farmem::window::{
    AccessPath, Addressing, Advice, Ahead, DpuStats, Foresight, Memory, Object, Objects, WindowOptions,
    WindowStats, with_objects, with_window,
};
use farmem::{Client, Error, NodeId, Rack, Vma, serve};
use farmem_link::OpenError;
use std::ops::Range;
use std::sync::Barrier;
use std::thread;

/// A DPU with a small cache: 16 entries of 64 KiB, of pages of 16 KiB.
pub(super) const DPU: &str =
    "[dpu]\nstatic = \"512 KiB\"\npage = \"16 KiB\"\nentry = \"64 KiB\"\ncache = \"1 MiB\"\n";
/// A DPU whose cache holds all that a test reads.
const LARGE: &str = "[dpu]\npage = \"16 KiB\"\nentry = \"64 KiB\"\ncache = \"8 MiB\"\n";
pub(super) const DPU_PAGE: u64 = 16 << 10;
/// Bytes of all words, as the rack counts them.
const BYTES: u64 = SIZE as u64;
const SIZE: usize = 2 << 20;
const BOTH: [&str; 2] = ["shm", "udp"];

pub(super) fn rack(transport: &str, dpu: &str) -> TestRack {
    let mut rack = TestRack::start_with(transport, 2, dpu);
    rack.begin("dpu");
    rack
}

pub(super) fn client(rack: &TestRack, domain: &str) -> Client {
    Rack::running(rack.config.clone()).client(domain).unwrap()
}

fn options() -> WindowOptions {
    WindowOptions { place: Addressing::Anywhere, way: AccessPath::DpuProcess, ..WindowOptions::new(64 << 10) }
}

pub(super) fn reading() -> WindowOptions {
    WindowOptions { read_only: true, ..options() }
}

/// Creates an allocation in which each word is its offset times `seed`.
pub(super) fn written(client: &mut Client, seed: u64) -> Vma {
    let vma = client.allocate(BYTES).unwrap();
    let words: Vec<u8> = (0..BYTES / 8).flat_map(|word| (word * seed).to_le_bytes()).collect();
    client.write(vma.base, &words).unwrap();
    vma
}

/// Returns a page of words from `at` on.
fn words(at: usize, seed: u64) -> Vec<u8> {
    let first = at as u64 / 8;
    (first..first + 512).flat_map(|word| (word * seed).to_le_bytes()).collect()
}

/// Runs a program in a window; `None` where this process may not serve faults.
pub(super) fn run<R: Send>(
    client: &mut Client,
    vma: &Vma,
    options: WindowOptions,
    program: impl FnOnce(Memory<'_>) -> R + Send,
) -> Option<(R, WindowStats)> {
    match with_window(client, vma, options, program) {
        Err(Error::Open(refused @ OpenError::NotPermitted { .. })) => {
            eprintln!("skipped: {refused}");
            None
        }
        ran => Some(ran.unwrap()),
    }
}

/// Checks all words, in the order of their addresses.
pub(super) fn check(memory: &Memory<'_>, seed: u64) {
    let mut page = vec![0; PAGE_LEN];
    for at in (0..SIZE).step_by(PAGE_LEN) {
        memory.read(at, &mut page);
        for (place, word) in page.chunks_exact(8).enumerate() {
            let expected = ((at / 8 + place) as u64).wrapping_mul(seed);
            assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), expected, "at {at}");
        }
    }
}

/// Returns true when far memory has all words of an allocation, each three times its offset.
fn is_written(client: &mut Client, vma: &Vma) -> bool {
    let mut far = vec![0; SIZE];
    client.read(vma.base, &mut far).unwrap();
    let mut words = far.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).zip(0..);
    words.all(|(word, at)| word == at * 3)
}

fn dpu(stats: &WindowStats) -> DpuStats {
    stats.dpu.expect("a DPU says what it did")
}

/// A window writes all of an allocation, sixteen times the local limit, and reads it again. A client with
/// direct connections reads the same.
#[test]
fn what_is_written_by_way_of_a_dpu_is_in_far_memory() {
    for transport in BOTH {
        for ahead in [Ahead::None, Ahead::Group(4), Ahead::Group(16)] {
            let rack = rack(transport, DPU);
            let mut client = client(&rack, "writes");
            let vma = client.allocate(BYTES).unwrap();
            let ran = run(&mut client, &vma, WindowOptions { ahead, ..options() }, |memory| {
                for at in (0..SIZE).step_by(PAGE_LEN) {
                    let words = words(at, 3);
                    memory.write(at, &words);
                }
                check(&memory, 3);
            });
            let Some(((), stats)) = ran else { return };
            assert!(is_written(&mut client, &vma), "{transport} {ahead:?}");
            let dpu = dpu(&stats);
            assert_eq!(dpu.written, stats.bytes_written_back, "{stats:?}");
            assert_eq!(dpu.asked, stats.bytes_fetched, "{stats:?}");
            assert!(!stats.dpu_fenced);
        }
    }
}

/// Two programs read one allocation in parallel, and a third reads another domain's own. The cache shares
/// what either of the two requested, so far memory serves fewer bytes than they read. A second writer is
/// refused, and so is a reader beside a writer.
#[test]
fn programs_share_a_dpu() {
    for transport in BOTH {
        let rack = rack(transport, LARGE);
        let mut owner = client(&rack, "graphs");
        let vma = written(&mut owner, 5);
        let mut other = client(&rack, "other");
        let own = written(&mut other, 7);
        let ahead = Ahead::Group(4);
        // Unopened allocations are not cached: all are open before one reads.
        let all_open = Barrier::new(3);
        let stats = thread::scope(|scope| {
            let reads = |domain: &'static str, vma: Vma, seed| {
                let (rack, all_open) = (&rack, &all_open);
                move || {
                    let mut client = client(rack, domain);
                    run(&mut client, &vma, WindowOptions { ahead, ..reading() }, |memory| {
                        all_open.wait();
                        check(&memory, seed);
                    })
                }
            };
            let threads = [
                scope.spawn(reads("graphs", vma, 5)),
                scope.spawn(reads("graphs", vma, 5)),
                scope.spawn(reads("other", own, 7)),
            ];
            threads.map(|thread| thread.join().unwrap())
        });
        if stats.iter().any(Option::is_none) {
            return;
        }
        let ((refused, second), last) = run(&mut owner, &vma, options(), |_| {
            let mut third = client(&rack, "graphs");
            let refused = with_window(&mut third, &vma, reading(), |_| ()).unwrap_err();
            (refused.to_string(), with_window(&mut third, &vma, options(), |_| ()).unwrap_err().to_string())
        })
        .unwrap();
        assert!(
            refused.contains("is open at this DPU") && second.contains("writes it"),
            "{refused}; {second}"
        );
        let dpu = dpu(&last);
        assert_eq!(dpu.asked, 3 * BYTES, "each read all of its own");
        assert!(dpu.on_demand + dpu.background < 3 * BYTES, "{dpu:?}");
        assert!(dpu.hits > 0, "{dpu:?}");
    }
}

/// A window has an allocation on each of two memory nodes, through one DPU with three threads and three
/// connections to each. The window writes all of both, sixteen times the local limit, and reads it again. A
/// client with direct connections reads the same. Then each is read alone, with the other open.
#[test]
fn two_memory_nodes_are_behind_one_dpu() {
    for transport in BOTH {
        let rack = rack(transport, &format!("{DPU}threads = 3\nconnections = 3\n"));
        let mut client = client(&rack, "nodes");
        let vmas = [1, 2].map(|node| client.allocate_on(BYTES, NodeId(node)).unwrap());
        let objects = vmas.each_ref().map(Object::new);
        let options = WindowOptions { ahead: Ahead::Group(4), ..options() };
        let ran = with_objects(&mut client, &objects, options, |objects| {
            for at in (0..SIZE).step_by(PAGE_LEN) {
                (0..2).for_each(|object| objects.get(object).write(at, &words(at, 3)));
            }
            (0..2).for_each(|object| check(&objects.get(object), 3));
        });
        let stats = match ran {
            Err(Error::Open(refused @ OpenError::NotPermitted { .. })) => {
                return eprintln!("skipped: {refused}");
            }
            ran => ran.unwrap().1,
        };
        assert!(vmas.iter().all(|vma| is_written(&mut client, vma)), "{transport}");
        let dpu = dpu(&stats);
        assert_eq!((dpu.written, dpu.asked), (stats.bytes_written_back, stats.bytes_fetched), "{stats:?}");
        assert!(!stats.dpu_fenced && dpu.written >= 2 * BYTES, "{stats:?}");
        for alone in 0..2 {
            let read = |objects: Objects<'_>| check(&objects.get(alone), 3);
            let ((), stats) =
                with_objects(&mut client, &objects, WindowOptions { read_only: true, ..options }, read)
                    .unwrap();
            assert_eq!((stats.bytes_fetched, stats.dpu_fenced), (BYTES, false), "{transport}: {stats:?}");
        }
    }
}

/// Statically cached bytes are read once from far memory and then never again, however often a program reads
/// them. The program's other requests are counted apart.
#[test]
fn static_caching_hits_each_time() {
    let rack = rack("shm", &format!("{DPU}caching = \"off\"\n"));
    let mut client = client(&rack, "static");
    let vma = written(&mut client, 11);
    let fixed: usize = 256 << 10;
    let bytes = fixed as u64;
    let few = WindowOptions { fixed: Some((0, bytes)), ahead: Ahead::Group(4), ..reading() };
    let ran = run(&mut client, &vma, few, |memory| {
        let mut page = vec![0; PAGE_LEN];
        for _ in 0..4 {
            (0..fixed).step_by(PAGE_LEN).for_each(|at| memory.read(at, &mut page));
        }
    });
    let Some(((), stats)) = ran else { return };
    let once = dpu(&stats);
    assert_eq!(once.background, bytes, "{once:?}");
    assert!(once.fixed >= 3 * bytes / DPU_PAGE, "all but what was asked for before it had come: {once:?}");
    assert_eq!(once.on_demand + once.fixed * DPU_PAGE, once.asked, "{once:?}");
    // A range that is too large, or that is written, is refused.
    let large = WindowOptions { fixed: Some((0, BYTES)), ..reading() };
    let refused = with_window(&mut client, &vma, large, |_| ()).unwrap_err().to_string();
    assert!(refused.contains("cannot be cached statically"), "{refused}");
    let wrong = WindowOptions { fixed: Some((BYTES, 1)), ..reading() };
    assert!(matches!(with_window(&mut client, &vma, wrong, |_| ()), Err(Error::Open(_))));
    assert!(matches!(
        with_window(&mut client, &vma, WindowOptions { fixed: Some((0, 4096)), ..options() }, |_| ()),
        Err(Error::Open(_))
    ));
}

/// The DPU is killed, stopped, or killed and restarted, while a program writes. The program continues and
/// ends well, and a client with direct connections finds every word. The half of the last round that the DPU
/// acknowledged is never written again, so the check covers acknowledged writes. A stopped DPU stays fenced:
/// it had the program's pages. The next DPU serves the next program.
#[test]
fn a_dpu_that_dies_or_hangs_loses_no_byte() {
    let signals = |transport| ["KILL", "STOP", "RESTART"].map(|signal| (transport, signal));
    for (transport, signal) in BOTH.into_iter().flat_map(signals) {
        let mut rack = rack(transport, DPU);
        let mut client = client(&rack, "fails");
        let mut straight = self::client(&rack, "fails");
        let vma = client.allocate(BYTES).unwrap();
        let ran = run(&mut client, &vma, options(), |memory| {
            for seed in [5, 3] {
                for at in (0..SIZE).step_by(PAGE_LEN) {
                    match signal {
                        _ if seed == 5 || at != SIZE / 2 => {}
                        "RESTART" => {
                            rack.kill("dpu");
                            rack.begin("dpu");
                        }
                        signal => rack.send("dpu", signal),
                    }
                    memory.write(at, &words(at, seed));
                }
            }
        });
        let Some(((), stats)) = ran else { return };
        assert!(is_written(&mut straight, &vma), "{signal} {transport}");
        assert!(stats.dpu_fenced, "{signal} {transport}: {stats:?}");
        assert_eq!(rack.is_gone("dpu"), signal != "RESTART", "{signal} {transport}");
        if signal != "RESTART" {
            rack.kill("dpu");
            rack.begin("dpu");
        }
        let ((), stats) = run(&mut client, &vma, reading(), |memory| check(&memory, 3)).unwrap();
        assert!(!stats.dpu_fenced, "{signal} {transport}");
    }
}

/// The DPU's host of one domain is removed from the rack while windows of two domains write through the DPU.
/// The first window continues with direct connections and ends well. The DPU lives on, and the second window
/// ends through it. Previously the first one ended the process of both. While the first window is open, the
/// DPU opens its allocation for no other process, because direct writes bypass the DPU (PROTOCOL 17.17).
#[test]
fn a_window_that_is_sent_away_goes_on_alone() {
    for transport in BOTH {
        let mut rack = rack(transport, DPU);
        let mut stays = client(&rack, "stays");
        let others = stays.allocate(BYTES).unwrap();
        let write = |memory: &Memory<'_>, bytes: Range<usize>| {
            bytes.step_by(PAGE_LEN).for_each(|at| memory.write(at, &words(at, 3)));
        };
        let fence = |life: (u16, u16)| {
            let hosts = serve::overview(&rack.config).unwrap().hosts;
            let dpu = hosts.iter().find(|row| row.acts_for.contains(&life)).expect("the DPU's host");
            client(&rack, "sent-away").fence(dpu.host, dpu.generation).unwrap();
        };
        let ran = run(&mut stays, &others, options(), |memory| {
            write(&memory, 0..SIZE / 2);
            let mut sent_away = client(&rack, "sent-away");
            let (vma, life) = (sent_away.allocate(BYTES).unwrap(), sent_away.life());
            let ran = run(&mut sent_away, &vma, options(), |memory| {
                write(&memory, 0..SIZE / 2);
                fence(life);
                write(&memory, SIZE / 2..SIZE);
                check(&memory, 3);
                let mut late = client(&rack, "sent-away");
                with_window(&mut late, &vma, reading(), |_| ()).unwrap_err().to_string()
            });
            write(&memory, SIZE / 2..SIZE);
            check(&memory, 3);
            assert!(is_written(&mut sent_away, &vma), "{transport}");
            ran
        });
        let Some((Some((refused, one)), other)) = ran else { return };
        assert!(refused.contains("is open at this DPU"), "{transport}: {refused}");
        assert!(one.dpu_fenced && !other.dpu_fenced, "{transport}: {one:?} {other:?}");
        assert!(!rack.is_gone("dpu"), "{transport}");
        assert!(is_written(&mut stays, &others), "{transport}");
    }
}

/// A memory node restarts while a program's pages are on their way there through the DPU. The pages are lost,
/// and the program's error says so. Previously the error said that far memory does not answer.
#[test]
fn a_write_of_what_is_lost_is_told_as_lost() {
    let mut rack = TestRack::start_with("shm", 1, DPU);
    rack.begin("dpu");
    let mut client = client(&rack, "lost");
    let vma = client.allocate(BYTES).unwrap();
    let ran = with_window(&mut client, &vma, options(), |memory| {
        (0..8 * PAGE_LEN).step_by(PAGE_LEN).for_each(|at| memory.write(at, &words(at, 3)));
        rack.kill("node1");
        rack.begin("node1");
    });
    match ran {
        Err(Error::Open(refused @ OpenError::NotPermitted { .. })) => eprintln!("skipped: {refused}"),
        Err(Error::MemoryLost { base, .. }) => assert!(base.0 - vma.base.0 < 8 * PAGE_LEN as u64),
        other => panic!("{other:?}"),
    }
}

/// A program that writes through the DPU is removed from the rack while it still runs, and another program
/// writes the same memory. Nothing of the first program is written from then on, also not through the DPU:
/// the first ends with an error, and the other's bytes are there.
#[test]
fn a_writer_that_is_fenced_writes_nothing_by_way_of_its_dpu() {
    for transport in BOTH {
        let rack = rack(transport, DPU);
        let mut first = client(&rack, "fenced");
        let vma = first.allocate(BYTES).unwrap();
        let (host, generation) = first.life();
        let write = |memory: &Memory<'_>, seed| {
            for at in (0..SIZE / 2).step_by(PAGE_LEN) {
                memory.write(at, &words(at, seed));
            }
        };
        let ran = with_window(&mut first, &vma, options(), |memory| {
            write(&memory, 3);
            let acting = || {
                let hosts = serve::overview(&rack.config).unwrap().hosts.into_iter();
                hosts.filter(|row| row.acts_for.contains(&(host, generation))).count()
            };
            assert_eq!(acting(), 1, "the DPU's host");
            let mut second = client(&rack, "fenced");
            second.fence(host, generation).unwrap();
            assert_eq!(acting(), 0);
            let others: Vec<u8> = (0..SIZE).step_by(PAGE_LEN).flat_map(|at| words(at, 5)).collect();
            second.write(vma.base, &others).unwrap();
            // The page used last is local.
            let last = SIZE / 2 - PAGE_LEN;
            memory.write(last, &words(last, 7));
        });
        match ran {
            Err(Error::Open(refused @ OpenError::NotPermitted { .. })) => {
                return eprintln!("skipped: {refused}");
            }
            Err(error) => assert!(!matches!(error, Error::Open(_)), "{error}"),
            Ok(ran) => panic!("{transport}: a program that was fenced ended well: {ran:?}"),
        }
        let mut far = vec![0; SIZE];
        client(&rack, "fenced").read(vma.base, &mut far).unwrap();
        let words = far.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        assert!(words.zip(0..).all(|(word, at)| word == at * 5), "{transport}");
    }
}

/// A program advises how it uses parts of what it reads, and the DPU prefetches accordingly: nothing of
/// randomly used parts, the neighbours in sequentially used parts. Advice beyond the bound is counted.
#[test]
fn advice_reaches_the_dpu() {
    let rack = rack("udp", &format!("{LARGE}caching = \"dynamic\"\n"));
    let mut client = client(&rack, "advice");
    let vma = written(&mut client, 5);
    let options = WindowOptions { foresight: Foresight::Nothing, ..reading() };
    let half = BYTES / 2;
    // The first page of every entry of 64 KiB.
    let touch = |objects: &Objects<'_>, bytes: Range<u64>| {
        for at in bytes.step_by(64 << 10) {
            objects.get(0).read(usize::try_from(at).unwrap(), &mut [0; 8]);
        }
    };
    let ran = with_objects(&mut client, &[Object::new(&vma).read_only()], options, |objects| {
        // From then on the window is served.
        touch(&objects, 0..1);
        objects.advise(0, half..BYTES, Advice::Sequential).unwrap();
        // The DPU has processed all advice by the time it accepts another program.
        run(&mut self::client(&rack, "advice"), &vma, reading(), |_| ()).unwrap();
        touch(&objects, 0..BYTES);
    });
    let stats = match ran {
        Err(Error::Open(refused @ OpenError::NotPermitted { .. })) => {
            return eprintln!("skipped: {refused}");
        }
        ran => ran.unwrap().1,
    };
    // Three pages per entry of the second half, which no program requested.
    assert_eq!((dpu(&stats).background, stats.unadvised), (half / 4 * 3, 0), "{stats:?}");
    let ran = with_objects(&mut client, &[Object::new(&vma).read_only()], options, |objects| {
        touch(&objects, 0..1);
        for at in (0..BYTES).step_by(usize::try_from(DPU_PAGE).unwrap()) {
            objects.advise(0, at..at + 1, Advice::Sequential).unwrap();
        }
    });
    let stats = ran.unwrap().1;
    assert!(stats.unadvised >= BYTES / DPU_PAGE - 64, "of {} parts: {stats:?}", BYTES / DPU_PAGE);
}

/// A window opens while the DPU is stopped: it uses direct connections, and the DPU is fenced. Bytes that the
/// DPU had acknowledged before are there.
#[test]
fn a_window_that_finds_the_dpu_silent_goes_straight() {
    for transport in BOTH {
        let mut rack = rack(transport, DPU);
        let mut client = client(&rack, "silent");
        let vma = client.allocate(BYTES).unwrap();
        let write = |memory: Memory<'_>| {
            for at in (0..SIZE).step_by(PAGE_LEN) {
                memory.write(at, &words(at, 3));
            }
        };
        let Some(((), stats)) = run(&mut client, &vma, options(), write) else { return };
        assert!(!stats.dpu_fenced, "{transport}");
        rack.send("dpu", "STOP");
        let ((), stats) = run(&mut client, &vma, reading(), |memory| check(&memory, 3)).unwrap();
        assert!(stats.dpu_fenced && stats.dpu.is_none(), "{transport}: {stats:?}");
        assert!(rack.is_gone("dpu"), "{transport}");
        rack.kill("dpu");
    }
}

/// Returns the allowed CPUs of a thread, from its `status` in `/proc`.
fn cpus(status: &str) -> String {
    let status = std::fs::read_to_string(status).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap().trim().to_owned()
}

/// A domain's threads, the receiver and the completers, run on the CPU that the rack's description names, and
/// on no other.
#[test]
fn a_domains_threads_are_on_the_cpu_that_is_named() {
    let mine = cpus("/proc/thread-self/status");
    let last = mine.rsplit([',', '-']).next().unwrap();
    let rack = rack("shm", &format!("{DPU}threads = 3\ncpu = {last}\n"));
    let mut client = client(&rack, "pinned");
    let vma = client.allocate(BYTES).unwrap();
    let ran = run(&mut client, &vma, reading(), |memory| {
        memory.read(0, &mut [0; 8]);
        let threads = std::fs::read_dir(format!("/proc/{}/task", rack.pid("dpu"))).unwrap();
        let of_domain = threads.filter_map(|thread| {
            let thread = thread.unwrap().path().display().to_string();
            let name = std::fs::read_to_string(format!("{thread}/comm")).unwrap();
            let of = name.strip_prefix("dpu ")?;
            let is_a_domains = of.starts_with("stage ") || of.starts_with(|c: char| c.is_ascii_digit());
            is_a_domains.then(|| cpus(&format!("{thread}/status")))
        });
        of_domain.collect::<Vec<_>>()
    });
    let Some((allowed, _)) = ran else { return };
    assert_eq!(allowed, vec![last; 3], "of {mine}");
}

/// The errors for a rack without a DPU and for a DPU that does not run differ. When the DPU runs, the window
/// uses it.
#[test]
fn a_rack_without_a_dpu_says_so() {
    let rack = TestRack::start("shm", 1);
    let mut client = client(&rack, "none");
    let vma = client.allocate(BYTES).unwrap();
    let missing = with_window(&mut client, &vma, options(), |_| ()).unwrap_err();
    assert!(matches!(missing, Error::Missing { .. }) && missing.to_string().contains("[dpu]"), "{missing}");
    let mut rack = rack_without_process();
    let mut client = self::client(&rack, "none");
    let vma = client.allocate(BYTES).unwrap();
    let gone = with_window(&mut client, &vma, options(), |_| ()).unwrap_err().to_string();
    assert!(gone.contains("reach a DPU"), "{gone}");
    rack.begin("dpu");
    if let Some(((), stats)) = run(&mut client, &vma, reading(), |memory| memory.read(0, &mut [0])) {
        assert!(!stats.dpu_fenced && dpu(&stats).reads > 0, "{stats:?}");
        assert_eq!(dpu(&stats).asked, stats.bytes_fetched, "{stats:?}");
    }
}

pub(super) fn rack_without_process() -> TestRack {
    TestRack::start_with("shm", 1, DPU)
}
