//! Both ends of one memory in one process: what arrives, and the effects of a hostile end.

use super::{
    Answers, Broken, DpuSocket, Listener, PairSize, ProcessEnd, Registered, Requests, SubmissionSender,
    Submissions, make_pair, make_submissions,
};
use crate::shm::RING_BYTES_MIN;
use crate::{Link, OpenError, OutsideWaker, ShmConfig, ShmLink, UdpConfig, UdpLink, Wait, WakeAt};
use farmem_machine::Duration;
use farmem_wire::Gid;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate, memfd_create,
};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, OwnedFd};

const SIZE: PairSize = PairSize { requests: 1 << 12, answers: 1 << 13, registered: 8192 };

/// Returns a waker for an address at which no process listens.
fn no_listener() -> OutsideWaker {
    OutsideWaker::open(&WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 1, 1)) }).unwrap()
}

fn copy(file: &OwnedFd) -> OwnedFd {
    file.as_fd().try_clone_to_owned().unwrap()
}

/// Requests arrive in order and complete, a full ring is reported, and bytes are where the DPU stored them.
#[test]
fn requests_and_answers_go_through() {
    let file = make_pair(SIZE).unwrap();
    let mut process = ProcessEnd::of(&file, SIZE, no_listener()).unwrap();
    let (mut requests, mut answers) = Requests::of(&copy(&file), SIZE).unwrap();
    let mut buf = [0; 1024];
    assert!(requests.may_sleep(), "nothing was asked");
    let mut pushed: u8 = 0;
    while process.push(&[pushed; 100]).unwrap() {
        pushed += 1;
    }
    assert_eq!(pushed, 36, "4096 bytes hold 36 records of 100 bytes in 13 words and a word before");
    assert_eq!(requests.pop(&mut buf).unwrap(), None, "nothing was published");
    process.publish();
    assert!(!requests.may_sleep(), "something was asked");
    requests.stays_awake();
    for n in 0..pushed {
        assert_eq!(requests.pop(&mut buf).unwrap(), Some(100));
        assert_eq!(buf[..100], [n; 100]);
    }
    requests.release();
    assert!(process.push(&[9; 100]).unwrap(), "there is room again");

    assert!(answers.put(8192 - 16, b"sixteen bytes..."));
    assert!(answers.put(0, b"odd"));
    for (addr, len) in [(8192 - 8, 9), (8192, 1), (4, 4), (u64::MAX - 7, 8)] {
        assert!(!answers.put(addr, &vec![1; len]), "{len} bytes at {addr}");
    }
    assert!(answers.push(b"done").unwrap());
    answers.publish();
    process.wait(1, Duration::from_secs(60));
    assert_eq!(process.pop(&mut buf).unwrap(), Some(4));
    assert_eq!(process.pop(&mut buf).unwrap(), None);
    let mut bytes = [0; 16];
    process.take(8192 - 16, &mut bytes);
    assert_eq!(&bytes, b"sixteen bytes...");
    process.take(0, &mut bytes[..3]);
    assert_eq!(&bytes[..3], b"odd");
    let beat = process.beat();
    requests.beat();
    assert_eq!(process.beat(), beat + 1);
}

/// A process requests four pages and rings the doorbell once for all of them, because the DPU sleeps.
/// Requests while the DPU is awake do not ring. The process sleeps until all four are answered, and is woken
/// once, by the last. If the process waits for one answer more, that answer wakes it at once. So does a ring
/// without space for all answers that it waits for (PROTOCOL 17.19).
#[test]
fn one_doorbell_there_and_one_back_for_all_that_is_asked_at_once() {
    let file = make_pair(SIZE).unwrap();
    let mut process = ProcessEnd::of(&file, SIZE, no_listener()).unwrap();
    let (mut requests, mut answers) = Requests::of(&copy(&file), SIZE).unwrap();
    let mut buf = [0; 64];
    let ask = |process: &mut ProcessEnd, count: u8| {
        (0..count).for_each(|n| assert!(process.push(&[n; 20]).unwrap()));
        u32::from(process.publish()) + u32::from(process.publish())
    };
    assert!(requests.may_sleep());
    assert_eq!(ask(&mut process, 4), 1, "one doorbell for four requests");
    assert_eq!(ask(&mut process, 4), 0, "it is awake");
    assert_eq!(std::iter::from_fn(|| requests.pop(&mut buf).unwrap()).count(), 8);
    let say = |answers: &mut Answers| {
        assert!(answers.push(b"done").unwrap());
        answers.publish()
    };
    assert!(process.falls_asleep(4));
    assert_eq!([(); 4].map(|()| say(&mut answers)), [false, false, false, true], "the last one wakes it");
    assert!(!process.falls_asleep(1), "they are there");
    assert_eq!(std::iter::from_fn(|| process.pop(&mut buf).unwrap()).count(), 4);
    assert!(process.falls_asleep(1));
    assert_eq!([(); 2].map(|()| say(&mut answers)), [true, false]);
    assert_eq!(std::iter::from_fn(|| process.pop(&mut buf).unwrap()).count(), 2);
    assert!(process.falls_asleep(1 << 40));
    while answers.push(b"more").unwrap() {}
    assert!(!answers.publish(), "it wants more than the ring has room for");
    assert!(answers.publish_full() && !answers.publish_full());
}

/// Memory that could be truncated, is smaller than announced, or belongs to another program is not used. A
/// ring with invalid data is broken.
#[test]
fn what_a_hostile_process_hands_over_is_refused() {
    let sealed = make_pair(SIZE).unwrap();
    let larger = PairSize { registered: 12288, ..SIZE };
    assert!(matches!(Requests::of(&sealed, larger), Err(OpenError::Foreign { .. })));
    let other = PairSize { requests: SIZE.answers, answers: SIZE.requests, ..SIZE };
    assert!(matches!(Requests::of(&sealed, other), Err(OpenError::Foreign { .. })));
    for wrong in [
        PairSize { requests: 4097, ..SIZE },
        PairSize { answers: 0, ..SIZE },
        PairSize { registered: 100, ..SIZE },
        PairSize { registered: usize::MAX / 4096 * 4096, ..SIZE },
    ] {
        assert!(matches!(Requests::of(&sealed, wrong), Err(OpenError::Setting { .. })), "{wrong:?}");
        assert!(matches!(make_pair(wrong), Err(OpenError::Setting { .. })), "{wrong:?}");
    }
    let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&open, 1 << 20).unwrap();
    assert!(matches!(Requests::of(&open, SIZE), Err(OpenError::Foreign { .. })));
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    assert!(matches!(Requests::of(&file, SIZE), Err(OpenError::Foreign { .. })));

    let (mut requests, _) = Requests::of(&sealed, SIZE).unwrap();
    let words = crate::shm::mapping::Mapping::of(&sealed, 1024).unwrap();
    for word in &words.words()[192..512] {
        word.store(0x0101_0101_0101_0101, std::sync::atomic::Ordering::Relaxed);
    }
    assert!(requests.pop(&mut [0; 64]).is_err());
}

/// A process's own memory is read and written within its bounds, including holes. A file that could shrink or
/// grow, or is not a memory file, is refused. If the process forbids writes, the write reports that.
#[test]
fn registered_memory_is_reached_by_offset() {
    let file = |seals: SealFlags| {
        let file = memfd_create("own", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 3 * 4096).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    };
    let both = SealFlags::SHRINK | SealFlags::GROW;
    let memory = Registered::of(file(both), 1 << 20).unwrap();
    assert!(memory.put(4090, &[b"over the ", b"", b"end of a page"]) && memory.calls() == 1);
    assert!(memory.put(3 * 4096 - 4, &[b"last"]));
    let mut bytes = [9; 24];
    assert!(memory.take(4089, &mut [&mut bytes]));
    assert_eq!(&bytes, b"\0over the end of a page\0");
    for (addr, len) in [(3 * 4096 - 3, 4), (3 * 4096, 1), (u64::MAX, 2), (u64::MAX - 1, 1)] {
        assert!(
            !memory.put(addr, &[&vec![1; len]]) && !memory.take(addr, &mut [&mut vec![1; len]]),
            "{len} at {addr}"
        );
    }
    let frozen = Registered::of(file(both | SealFlags::WRITE), 1 << 20).unwrap();
    assert!(!frozen.put(0, &[b"x"]) && frozen.take(0, &mut [&mut [1]]));
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
        assert!(matches!(Registered::of(file(seals), 1 << 20), Err(OpenError::Foreign { .. })), "{seals:?}");
    }
    let plain: OwnedFd = tempfile::tempfile().unwrap().into();
    assert!(matches!(Registered::of(plain, 1 << 20), Err(OpenError::Foreign { .. })));
}

/// A file of 16 MiB may have three allocated pages. No fourth page is written, an allocated one may be
/// written again, and freed pages make space.
#[test]
fn registered_memory_is_filled_to_a_bound() {
    const PAGE: u64 = 4096;
    let file = memfd_create("sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 4096 * PAGE).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let memory = Registered::of(file.try_clone().unwrap(), 3 * PAGE).unwrap();
    let bytes = [7; 4096];
    let written = (0..4096).filter(|page| memory.put(page * PAGE, &[&bytes])).count();
    assert_eq!(written, 3);
    assert_eq!(fstat(&file).unwrap().st_blocks, 3 * 8);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 0, 2 * PAGE).unwrap();
    assert_eq!((100..4096).filter(|page| memory.put(page * PAGE, &[&bytes])).count(), 2);
    assert_eq!(fstat(&file).unwrap().st_blocks, 3 * 8);
    let mut read = [0; 8];
    assert!(memory.take(100 * PAGE, &mut [&mut read]) && read == [7; 8]);
}

/// A message arrives with its file, one at a time. A second DPU does not replace the first one. Each end
/// notices the other one.
#[test]
fn a_process_and_its_dpu_talk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("beside").join("dpu.sock");
    let listener = Listener::bind(&path).unwrap();
    assert!(listener.accept().unwrap().is_none(), "no process came");
    let process = DpuSocket::connect(&path).unwrap();
    let dpu = listener.accept().unwrap().expect("one came");
    assert!(process.other().is_err(), "this process is both ends, and does not end itself");
    assert!(matches!(Listener::bind(&path), Err(OpenError::InUse { .. })));
    let file = make_pair(SIZE).unwrap();
    process.say(b"hello", Some(file.as_fd())).unwrap();
    process.say(b"again", None).unwrap();
    let (said, theirs) = dpu.hear().unwrap().expect("the process is there");
    assert_eq!(said, b"hello");
    assert!(Requests::of(&theirs.expect("the file came along"), SIZE).is_ok());
    let (said, none) = dpu.hear().unwrap().expect("the process is there");
    assert_eq!((&said[..], none.is_none()), (&b"again"[..], true));
    assert!(process.say(&vec![0; super::MESSAGE_MAX + 1], None).is_err());
    assert!(process.is_open() && dpu.is_open());
    drop(process);
    assert!(!dpu.is_open());
    assert!(dpu.hear().unwrap().is_none());
    drop(listener);
    assert!(DpuSocket::connect(&path).is_err() && !path.exists());
    assert!(!path.parent().unwrap().exists(), "what it made goes with it");
    // A killed process leaves its socket.
    crate::private_directory(path.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(Listener::bind(&path).is_ok());
}

/// A second DPU starts at a socket that the first one has just removed to bind it again, as when both start
/// together. The second is refused and names the process of the first. It may start when the first has ended, or
/// was killed.
#[test]
fn a_socket_has_one_dpu() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("beside").join("dpu.sock");
    let first = Listener::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let refused = Listener::bind(&path).unwrap_err().to_string();
    let named = format!("{} (process {})", path.display(), std::process::id());
    assert!(refused.contains(&named), "{refused}");
    drop(first);
    assert!(!path.parent().unwrap().exists(), "what it made goes with it");
    // One that was killed leaves its lock file, which nobody has locked.
    crate::private_directory(path.parent().unwrap()).unwrap();
    let lock = path.with_extension("sock.lock");
    std::io::Write::write_all(&mut crate::private_file(&lock).unwrap(), b"4000000000\n").unwrap();
    let second = Listener::bind(&path).unwrap();
    let holder = std::fs::read_to_string(&lock).unwrap();
    assert_eq!(holder, format!("{}\n", std::process::id()));
    drop(second);
}

/// A waker of another process ends the wait of either link, and nothing else: no frame is delivered, and
/// nothing is counted.
#[test]
fn the_wait_of_a_link_is_ended_from_outside() {
    let gid = Gid::from_v4([127, 77, 1, 2]);
    let dir = tempfile::tempdir().unwrap();
    let rings = dir.path().join("rings");
    let ring_bytes = RING_BYTES_MIN;
    let shm = ShmLink::open(&ShmConfig { ring_bytes, ..ShmConfig::new(rings, gid) }).unwrap();
    let udp = UdpLink::open(&UdpConfig::new(gid)).unwrap();
    fn ends<L: Link>(mut link: L) {
        let waker = OutsideWaker::open(&link.wake_at()).unwrap();
        waker.wake();
        // A wait that does not end would last an hour, and the test too.
        let most = Duration::from_secs(3600);
        assert_eq!(link.receive(Wait::AtMost(most), &mut |_, _| panic!("a frame")).unwrap(), 0);
        assert_eq!((link.counters().lost(), link.counters().foreign_port), (0, 0));
    }
    ends(shm);
    ends(udp);
}

/// Threads submit requests without a lock. Each request arrives once and complete, in the order of its
/// thread. A full ring is reported, and a DPU that is about to sleep is notified.
#[test]
fn requests_of_many_threads_go_through() {
    const THREADS: u32 = 4;
    const EACH: u64 = 5_000;
    let file = make_submissions(1 << 12).unwrap();
    let sender = SubmissionSender::of(&file, 1 << 12, no_listener()).unwrap();
    let mut end = Submissions::of(&copy(&file), 1 << 12).unwrap();
    assert!(end.may_sleep(), "nothing was asked");
    end.stays_awake();
    let mut next = [0; THREADS as usize];
    std::thread::scope(|threads| {
        for thread in 0..u64::from(THREADS) {
            let sender = &sender;
            threads.spawn(move || {
                for n in 0..EACH {
                    let record = (thread << 32 | n).to_le_bytes().repeat(1 + usize::try_from(n % 9).unwrap());
                    while !sender.push(&record).unwrap() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut buf = [0; 128];
        while next.iter().sum::<u64>() < u64::from(THREADS) * EACH {
            let Some(len) = end.pop(&mut buf).unwrap() else {
                end.release();
                std::thread::yield_now();
                continue;
            };
            let words = buf[..len].as_chunks::<8>().0;
            let word = u64::from_le_bytes(words[0]);
            assert!(words.iter().all(|other| u64::from_le_bytes(*other) == word), "a torn record");
            let (thread, n) = (usize::try_from(word >> 32).unwrap(), word & 0xffff_ffff);
            assert_eq!(len, 8 * (1 + usize::try_from(n % 9).unwrap()));
            assert_eq!(n, next[thread], "the next of its thread");
            next[thread] += 1;
        }
        end.release();
    });
    assert_eq!(end.pop(&mut [0; 128]).unwrap(), None);
    let mut pushed = 0;
    while sender.push(&[7; 100]).unwrap() {
        pushed += 1;
    }
    assert_eq!(pushed, 36, "4096 bytes hold 36 records of 100 bytes in 13 words and a word before");
    assert!(!end.may_sleep(), "something was asked");
}

/// Bytes of a record are copied from any offset, even if the ring wraps within the record.
#[test]
fn any_part_of_a_record_is_copied() {
    const LEN: usize = 203;
    let file = make_submissions(1 << 12).unwrap();
    let sender = SubmissionSender::of(&file, 1 << 12, no_listener()).unwrap();
    let mut end = Submissions::of(&copy(&file), 1 << 12).unwrap();
    // A record has 27 words, and the ring 512.
    for round in 0..40 {
        let bytes: Vec<u8> = (0..203).map(|at| at ^ round).collect();
        assert!(sender.push(&bytes).unwrap());
        assert_eq!(end.next(LEN - 1), Err(Broken), "it is longer");
        let record = end.next(LEN).unwrap().unwrap();
        assert_eq!((record.len(), record.is_empty()), (LEN, false));
        for from in 0..=LEN {
            for to in [from, LEN.min(from + 3), LEN.min(from + 9), LEN] {
                let mut into = vec![0xee; to - from];
                end.copy(record, from, &mut into);
                assert!(into == bytes[from..to], "round {round}: {from}..{to}");
            }
        }
        assert_eq!(end.next(LEN), Ok(None));
        end.release();
    }
}

/// A thread is writing its record. Earlier records of other threads are read, and later ones wait until this
/// one is complete. Nothing is read twice from a ring that was read to its end and not released. Old bytes
/// are not taken for a record of the next round.
#[test]
fn a_record_waits_for_those_before_it_only() {
    let file = make_submissions(1 << 12).unwrap();
    let sender = SubmissionSender::of(&file, 1 << 12, no_listener()).unwrap();
    let mut end = Submissions::of(&copy(&file), 1 << 12).unwrap();
    let memory = super::shared::map(&file, 128 + 64 + 512, &[]).unwrap();
    let word = |place: usize| &memory.words()[128 + place];
    let order = std::sync::atomic::Ordering::Relaxed;
    let mut buf = [0; 16];
    for round in 0..200_u64 {
        let bytes = round.to_le_bytes();
        assert!(sender.push(&bytes).unwrap());
        // The state of a thread that reserved two words, and was suspended.
        let slow = usize::try_from(word(16).fetch_add(2, order)).unwrap();
        assert!(sender.push(&bytes).unwrap());
        assert_eq!(end.pop(&mut buf).unwrap(), Some(8));
        assert_eq!((end.pop(&mut buf).unwrap(), end.may_sleep()), (None, true), "round {round}");
        end.release();
        word(64 + (slow + 1) % 512).store(u64::MAX, order);
        word(64 + slow % 512).store(8 | (!8 & 0xffff_ffff) << 32, order);
        assert!(!end.may_sleep());
        let all = [(); 2].map(|()| {
            assert_eq!(end.pop(&mut buf).unwrap(), Some(8));
            u64::from_le_bytes(*buf.first_chunk().unwrap())
        });
        assert_eq!(all, [u64::MAX, round]);
        end.release();
        end.stays_awake();
    }
    let pushed = (0..).take_while(|_| sender.push(&[7; 8]).unwrap()).count();
    assert_eq!(pushed, 256);
    let popped = (0..).take_while(|_| end.pop(&mut buf).unwrap().is_some()).count();
    assert_eq!((popped, end.pop(&mut buf).unwrap()), (256, None));
    end.release();
    assert_eq!(end.pop(&mut buf).unwrap(), None);
}

/// A program that writes arbitrary data into its ring loses the ring. The DPU reports that or finds no
/// record, does not leave the ring, and does not loop on a record. A DPU that writes arbitrary data is
/// detected, or requests fail.
#[test]
fn nonsense_in_a_ring_of_many_breaks_it_and_nothing_else() {
    let numbers = [0, 1, 511, 512, 513, 1 << 32, u64::MAX, u64::MAX - 511];
    // First words of records of no byte, of one word, and of more than the ring has.
    let records = [0, 8, 4096].map(|len: u64| len | (!len & 0xffff_ffff) << 32);
    let mut broken = 0;
    for reserved in numbers {
        for first in numbers.into_iter().chain(records) {
            let file = make_submissions(1 << 12).unwrap();
            let mut end = Submissions::of(&copy(&file), 1 << 12).unwrap();
            let sender = SubmissionSender::of(&file, 1 << 12, no_listener()).unwrap();
            let memory = super::shared::map(&file, 128 + 64 + 512, &[]).unwrap();
            let at = |place: usize, value| {
                memory.words()[128 + place].store(value, std::sync::atomic::Ordering::Relaxed)
            };
            at(16, reserved);
            at(64, first);
            let mut buf = [0; 64];
            // Each record has at least one word.
            let looks = (0..600).map_while(|_| end.pop(&mut buf).transpose()).collect::<Result<Vec<_>, _>>();
            broken += u32::from(looks == Err(Broken));
            at(32, first);
            let pushes =
                (0..600).map(|_| sender.push(&[1; 8])).take_while(|pushed| *pushed == Ok(true)).count();
            assert!(pushes <= 512 / 2, "{pushes} records of two words");
        }
    }
    assert!(broken > 40, "{broken}");
    let text = make_submissions(5000).unwrap_err().to_string();
    assert!(text.contains("a power of two from 4 KiB to 256 MiB"), "{text}");
    assert!(matches!(Submissions::of(&make_pair(SIZE).unwrap(), 1 << 12), Err(OpenError::Foreign { .. })));
}
