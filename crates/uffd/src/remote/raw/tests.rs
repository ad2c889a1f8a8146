//! Tests of the filter as the kernel runs it: each test thread installs one, and makes calls.

use super::filter::build;
use super::listener::install;
use super::*;
use proptest::prelude::*;
use std::io;
use std::thread;

const BASE: usize = 0x4123_4000_0000;
/// The error of calls for which the pager would be notified.
const ASKED: i32 = 77;
const VERDICT: u32 = libc::SECCOMP_RET_ERRNO | ASKED.unsigned_abs();

/// Returns for each list of arguments whether the pager would be notified. The call is one without arguments, under
/// the conditions of another.
fn asked(watched: &Watched, when: &'static [&'static [Condition]], calls: Vec<[u64; 6]>) -> Vec<bool> {
    let rules = [Rule { number: libc::SYS_getppid, when, means: no_such }];
    let program = build(watched, &rules, &[], VERDICT);
    let under_it = move || {
        install_alone(&program);
        calls
            .into_iter()
            .map(|[a, b, c, d, e, f]| {
                // SAFETY: a call that takes no arguments.
                let result = unsafe { libc::syscall(libc::SYS_getppid, a, b, c, d, e, f) };
                let refused = result == -1 && io::Error::last_os_error().raw_os_error() == Some(ASKED);
                assert!(refused || result > 0);
                refused
            })
            .collect()
    };
    thread::spawn(under_it).join().expect("the filter lets it live")
}

/// Installs a filter for this thread, which ends soon.
fn install_alone(program: &[libc::sock_filter]) {
    drop(install(program).expect("a filter"));
}

fn overlap(first: u64, len: u64, range: &Range<u64>) -> bool {
    let end = u128::from(first) + u128::from(len);
    first < range.end && end > u128::from(range.start)
}

fn overlaps(first: u64, len: u64, watched: &Watched) -> bool {
    watched.far.iter().any(|range| overlap(first, len, range))
}

/// Returns numbers at, beside and far from the edges of halves and ranges.
fn number() -> impl Strategy<Value = u64> {
    let edges = vec![
        0,
        1 << 32,
        u64::from(u32::MAX),
        u64::MAX,
        BASE as u64,
        BASE as u64 - 4096,
        place::LOW as u64,
        (place::LOW + place::LEN_MAX) as u64,
        0x5000_0000_0000,
        0x5000_8000_0000,
        (BASE + place::LEN_MAX) as u64,
        place::LEN_MAX as u64,
        0x1_0000_0000_0000,
        0x7f00_0000_0000,
    ];
    prop_oneof![
        any::<u64>(),
        (prop::sample::select(edges), -2_i64..=2).prop_map(|(edge, by)| edge.wrapping_add_signed(by)),
        (BASE as u64 - (1 << 40)..BASE as u64 + (1 << 40)),
        0_u64..1 << 39,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The filter's halves, carries and jumps agree with plain arithmetic in 128 bits.
    #[test]
    fn range_tests_agree_with_plain_arithmetic(calls in prop::collection::vec((number(), number()), 200)) {
        let shared = 0x5000_0000_0000..0x5000_8000_0000;
        let watched = Watched::new(BASE, Some(shared.clone()));
        let arguments = calls.iter().map(|&(first, len)| [first, len, 0, 0, 0, 0]).collect();
        let answers = asked(&watched, &[&[AT_START]], arguments);
        for ((first, len), answer) in calls.into_iter().zip(answers) {
            let plain = overlaps(first, len, &watched) || overlap(first, len, &shared);
            prop_assert_eq!(answer, plain, "{:x} {:x}", first, len);
        }
    }

    /// Lines of conditions agree with the rules, whichever of their parts hold.
    #[test]
    fn rule_lines_agree_with_plain_code(calls in prop::collection::vec((number(), number(), any::<u64>(), number()), 100)) {
        let watched = Watched::new(BASE, None);
        let rule = RULES.iter().find(|rule| rule.number == libc::SYS_mremap).unwrap();
        let arguments: Vec<[u64; 6]> =
            calls.iter().map(|&(first, len, flags, target)| [first, len, len / 2, flags, target, 0]).collect();
        for ([first, len, new_len, flags, target, _], answer) in arguments.iter().zip(asked(&watched, rule.when, arguments.clone())) {
            let fixed = int(*flags) & libc::MREMAP_FIXED != 0;
            let plain = overlaps(*first, *len, &watched) || (fixed && overlaps(*target, *new_len, &watched));
            prop_assert_eq!(answer, plain);
        }
    }
}

/// Every rule of the table has arguments that notify the pager, and arguments that do not.
#[test]
fn each_rule_notifies_and_allows() {
    let watched = Watched::new(BASE, None);
    let far = BASE as u64 + (1 << 20);
    let flags = |bits: i32| u64::from(bits.unsigned_abs());
    let fixed = flags(libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let direct = flags(libc::O_DIRECT);
    let near = 0x7f00_0000_0000;
    for rule in &RULES {
        let (yes, no): (Vec<[u64; 6]>, Vec<[u64; 6]>) = match rule.number {
            libc::SYS_mmap => (
                vec![[far, 4096, 3, fixed, 0, 0], [BASE as u64 - 8192, 1 << 40, 3, fixed, 0, 0]],
                vec![
                    [far, 4096, 3, fixed & !flags(libc::MAP_FIXED), 0, 0],
                    [far, 4096, 3, fixed | flags(libc::MAP_FIXED_NOREPLACE), 0, 0],
                    [near, 4096, 3, fixed, 0, 0],
                ],
            ),
            libc::SYS_mremap => (
                vec![[far, 4096, 8192, 1, 0, 0], [near, 4096, 4096, 3, far, 0]],
                vec![[near, 4096, 4096, 1, far, 0], [near, 4096, 4096, 3, near, 0]],
            ),
            libc::SYS_fcntl => (
                vec![[3, flags(libc::F_SETFL), direct | 2, 0, 0, 0]],
                vec![[3, flags(libc::F_SETFL), 2, 0, 0, 0], [3, flags(libc::F_GETFL), direct, 0, 0, 0]],
            ),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => (vec![[near, direct, 0, 0, 0, 0]], vec![[near, 0, direct, 0, 0, 0]]),
            libc::SYS_openat | libc::SYS_open_by_handle_at => {
                (vec![[3, near, direct, 0, 0, 0]], vec![[3, near, !direct, direct, 0, 0]])
            }
            libc::SYS_openat2 | libc::SYS_io_uring_setup | libc::SYS_process_vm_writev => {
                (vec![[0; 6]], vec![])
            }
            libc::SYS_process_madvise => (
                vec![[3, near, 1, flags(libc::MADV_DONTNEED), 0, 0], [3, near, 1, 25, 0, 0]],
                vec![
                    [3, near, 1, flags(libc::MADV_COLD), 0, 0],
                    [3, near, 1, flags(libc::MADV_WILLNEED), 0, 0],
                ],
            ),
            libc::SYS_socket => {
                (vec![[flags(libc::AF_ALG), 5, 0, 0, 0, 0]], vec![[flags(libc::AF_UNIX), 5, 0, 0, 0, 0]])
            }
            libc::SYS_ioctl => (
                [0x2285, 0xc048_4e41, 0xc050_4e48, 0xc018_1b01, 0x3b71, 0x3b85]
                    .map(|request| [3, request, near, 0, 0, 0])
                    .into(),
                // TCGETS, FIONREAD, UFFDIO_API, VIDIOC_QUERYCAP.
                [0x5401, 0x541b, 0xc018_aa3f, 0x8068_5600].map(|request| [3, request, far, 0, 0, 0]).into(),
            ),
            libc::SYS_shmat => (vec![[1, near, flags(libc::SHM_REMAP), 0, 0, 0]], vec![[1, far, 0, 0, 0, 0]]),
            _ => (vec![[far, 4096, 0, 0, 0, 0]], vec![[near, 4096, 0, 0, 0, 0]]),
        };
        assert!(asked(&watched, rule.when, yes).into_iter().all(|asked| asked), "{}", rule.number);
        assert!(!asked(&watched, rule.when, no).into_iter().any(|asked| asked), "{}", rule.number);
    }
}

/// Every rule for static programs has arguments that notify the pager, and arguments that do not.
#[test]
fn each_static_rule_notifies_and_allows() {
    const THRESHOLD: u64 = 128 << 10;
    let watched = Watched::new(BASE, None).with_static(THRESHOLD);
    let (far, near) = (BASE as u64 + (1 << 20), 0x7f00_0000_0000);
    let flags = |bits: i32| u64::from(bits.unsigned_abs());
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let map = |first, len, protection, bits| [first, len, protection, flags(bits), u64::MAX, 0];
    for rule in &STATIC_RULES {
        let (yes, no): (Vec<[u64; 6]>, Vec<[u64; 6]>) = match rule.number {
            libc::SYS_mmap => (
                vec![
                    map(0, THRESHOLD, 3, anonymous),
                    map(near, 1 << 33, 0, anonymous | libc::MAP_NORESERVE),
                    map(near, THRESHOLD, 7, anonymous | libc::MAP_NORESERVE),
                    map(far, 4096, 3, anonymous | libc::MAP_FIXED),
                ],
                vec![
                    map(0, THRESHOLD - 1, 3, anonymous),
                    map(0, THRESHOLD, 5, anonymous),
                    map(0, THRESHOLD, 3, anonymous | libc::MAP_STACK),
                    map(0, THRESHOLD, 3, libc::MAP_SHARED | libc::MAP_ANONYMOUS),
                    map(0, THRESHOLD, 3, libc::MAP_PRIVATE),
                    map(near, THRESHOLD, 3, anonymous | libc::MAP_FIXED),
                ],
            ),
            libc::SYS_brk => (vec![[near + 4096, 0, 0, 0, 0, 0]], vec![[0; 6]]),
            libc::SYS_clone => (
                vec![
                    [flags(libc::SIGCHLD), 0, 0, 0, 0, 0],
                    [flags(libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID), near, near, far, near, 0],
                ],
                vec![
                    [flags(libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD), 0, 0, far, 0, 0],
                    [flags(libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID), far, far, near, far, 0],
                ],
            ),
            libc::SYS_set_tid_address | libc::SYS_rseq => {
                (vec![[far, 32, 0, 0, 0, 0]], vec![[near, 32, 0, 0, 0, 0]])
            }
            _ => (vec![[0; 6]], vec![]),
        };
        assert!(asked(&watched, rule.when, yes).into_iter().all(|asked| asked), "{}", rule.number);
        assert!(!asked(&watched, rule.when, no).into_iter().any(|asked| asked), "{}", rule.number);
    }
}

/// Only calls from the gate pass without a notification.
#[test]
fn calls_from_the_gate_pass() {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    // SAFETY: a new mapping.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .unwrap();
    // SAFETY: a page of this test.
    unsafe { page.cast::<u8>().copy_from_nonoverlapping(place::GATE.as_ptr(), place::GATE.len()) };
    // SAFETY: as above.
    unsafe { mprotect(page, 4096, MprotectFlags::READ | MprotectFlags::EXEC) }.unwrap();
    let address = page.expose_provenance();
    let mut watched = Watched::new(BASE, None);
    watched.gate = place::called_from(address);
    let rules = [Rule { number: libc::SYS_getppid, when: &[&[AT_START]], means: no_such }];
    let program = build(&watched, &rules, &[], VERDICT);
    let by_gate = move || {
        install_alone(&program);
        // SAFETY: the page holds a system call and a return, and the call takes no arguments.
        let through = unsafe { through_the_gate(address, libc::SYS_getppid, BASE as u64, 4096) };
        // SAFETY: a call that takes no arguments.
        let past = unsafe { libc::syscall(libc::SYS_getppid, BASE, 4096) };
        (through, past)
    };
    let (through, past) = thread::spawn(by_gate).join().unwrap();
    assert!(through > 0, "{through}");
    assert_eq!(past, -1);
    // SAFETY: the page mapped above.
    unsafe { munmap(page, 4096) }.unwrap();
}

/// Makes a system call through the gate.
///
/// # Safety
/// There is a gate, and the call is one that this test may make.
unsafe fn through_the_gate(gate: usize, number: i64, a: u64, b: u64) -> i64 {
    let result;
    // SAFETY: the caller's promise.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("call {gate}", gate = in(reg) gate, inlateout("rax") number => result, in("rdi") a, in("rsi") b,
            out("rcx") _, out("r11") _);
    }
    // SAFETY: the caller's promise.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("blr {gate}", gate = in(reg) gate, in("x8") number, inlateout("x0") a => result, in("x1") b, out("x30") _);
    }
    result
}

/// No number outside the table is notified.
#[test]
fn other_calls_are_not_notified() {
    let program = build(&Watched::new(BASE, None), &RULES, &COMPAT, VERDICT);
    let under_it = move || {
        install_alone(&program);
        // SAFETY: calls that do nothing with these arguments.
        let alive = [libc::SYS_getppid, libc::SYS_getpid, libc::SYS_gettid]
            .map(|number| unsafe { libc::syscall(number, BASE, 4096, libc::O_DIRECT, libc::O_DIRECT) });
        alive.into_iter().all(|result| result > 0)
    };
    assert!(thread::spawn(under_it).join().unwrap());
}
