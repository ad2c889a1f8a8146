//! Endpoints that exchange frames, start late, crash, write invalid data and fall behind.

use super::atomic::{AtomicU64, Ordering};
use super::*;
use proptest::prelude::*;
use std::fs;
use std::path::Path;

const A: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 72, 0, 1]);
const B: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 72, 0, 2]);
const PORT_A: Port = Port(10);
const PORT_B: Port = Port(20);

const WAITING: [Waiting; 3] = [Waiting::Block, Waiting::Precise, Waiting::Spin];

/// A rack's directory that the test removes.
struct TestDir(PathBuf);

impl TestDir {
    fn new(test: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/farmem-test-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn config(&self, gid: Gid) -> ShmConfig {
        ShmConfig { ring_bytes: RING_BYTES_MIN, ..ShmConfig::new(self.0.clone(), gid) }
    }

    fn open(&self, gid: Gid) -> ShmLink {
        ShmLink::open(&self.config(gid)).unwrap()
    }

    /// Returns two endpoints that are peers.
    fn pair(&self) -> (ShmLink, ShmLink) {
        let (mut a, mut b) = (self.open(A), self.open(B));
        a.set_peer(PORT_B, Some(B)).unwrap();
        b.set_peer(PORT_A, Some(A)).unwrap();
        (a, b)
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn frame(n: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0x55; len];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    bytes
}

/// Returns all waiting frames, with their senders.
fn drain(link: &mut ShmLink) -> Vec<(Port, Vec<u8>)> {
    let mut got = Vec::new();
    while link.receive(Wait::No, &mut |port, bytes| got.push((port, bytes.to_vec()))).unwrap() > 0 {}
    got
}

fn ring_words(dir: &Path, src: Gid, dst: Gid) -> Mapping {
    dir::map_ring(dir, src, dst)
}

/// Frames of every length arrive complete, in order and from the right port, in both directions, with many
/// wraps of the ring.
#[test]
fn frames_go_both_ways() {
    let dir = TestDir::new("both-ways");
    let (mut a, mut b) = dir.pair();
    for round in 0..200_u32 {
        let lens = [12, 13, 64, 4096, FRAME_MAX - (round as usize % 9)];
        for (n, len) in (0..).zip(lens) {
            a.send(PORT_B, &frame(round + n, len));
            b.send(PORT_A, &frame(round + n, len));
            a.flush().unwrap();
            b.flush().unwrap();
            assert_eq!(drain(&mut b), [(PORT_A, frame(round + n, len))]);
            assert_eq!(drain(&mut a), [(PORT_B, frame(round + n, len))]);
        }
    }
    assert_eq!((a.counters().lost(), a.counters().frames_in, a.counters().frames_out), (0, 1000, 1000));
    assert_eq!(a.counters().bytes_in, b.counters().bytes_out);
}

/// No frame is visible before the flush; then all are, in one batch.
#[test]
fn frames_leave_with_the_flush() {
    let dir = TestDir::new("flush");
    let (mut a, mut b) = dir.pair();
    for n in 0..3 {
        a.send(PORT_B, &frame(n, 64));
    }
    assert_eq!(drain(&mut b).len(), 0);
    a.flush().unwrap();
    let mut seen = 0;
    assert_eq!(b.receive(Wait::No, &mut |_, _| seen += 1).unwrap(), 3);
    assert_eq!(seen, 3);
}

/// Frames of a parcel are in the ring already; sending the parcel wakes the sleeping end.
#[test]
fn a_parcel_rings_when_it_is_handed_over() {
    let dir = TestDir::new("parcel");
    let (mut a, mut b) = dir.pair();
    assert_eq!(drain(&mut b), []);
    assert!(b.may_sleep(), "from here on it wants to be rung for");
    let mut parcel = ShmParcel::default();
    a.send(PORT_B, &frame(1, 64));
    a.flush_into(&mut parcel);
    assert!(b.doorbell.is_asleep());
    parcel.hand_over();
    assert!(!b.doorbell.is_asleep());
    assert_eq!(drain(&mut b), [(PORT_A, frame(1, 64))]);
    assert!(b.may_sleep());
    parcel.hand_over();
    assert!(b.doorbell.is_asleep(), "once");
    assert_eq!(a.counters().frames_out, 1);
}

/// A node answers a host whose port it does not know: the frame arrives from an unknown port. After
/// `set_peer`, it arrives from its port.
#[test]
fn a_sender_that_the_link_was_not_told_of_is_unknown() {
    let dir = TestDir::new("unknown");
    let (mut a, mut b) = (dir.open(A), dir.open(B));
    a.set_peer(PORT_B, Some(B)).unwrap();
    a.send(PORT_B, &frame(1, 20));
    a.flush().unwrap();
    assert_eq!(drain(&mut b), [(Port::UNKNOWN, frame(1, 20))]);
    assert_eq!(b.counters().unknown_source, 1);
    b.set_peer(PORT_A, Some(A)).unwrap();
    a.send(PORT_B, &frame(2, 20));
    a.flush().unwrap();
    assert_eq!(drain(&mut b), [(PORT_A, frame(2, 20))]);
    b.set_peer(PORT_A, None).unwrap();
    a.send(PORT_B, &frame(3, 20));
    a.flush().unwrap();
    assert_eq!(drain(&mut b), [(Port::UNKNOWN, frame(3, 20))]);
}

/// Frames sent before the receiver started, and during its absence, are delivered after its start.
#[test]
fn a_ring_outlives_its_ends() {
    let dir = TestDir::new("outlives");
    let mut a = dir.open(A);
    a.set_peer(PORT_B, Some(B)).unwrap();
    for life in 0..3 {
        a.send(PORT_B, &frame(life, 30));
        a.flush().unwrap();
        let mut b = dir.open(B);
        b.set_peer(PORT_A, Some(A)).unwrap();
        assert_eq!(drain(&mut b), [(PORT_A, frame(life, 30))]);
    }
    drop(a);
    let mut again = dir.open(A);
    again.set_peer(PORT_B, Some(B)).unwrap();
    again.send(PORT_B, &frame(9, 30));
    again.flush().unwrap();
    assert_eq!(
        drain(&mut dir.open(B)),
        [(Port::UNKNOWN, frame(9, 30))],
        "a sender that starts again goes on"
    );
}

/// A receiver that is too slow costs the sender frames, which the sender counts; other receivers are not
/// affected.
#[test]
fn a_full_ring_loses_frames_and_counts_them() {
    let dir = TestDir::new("full");
    let (mut a, mut b) = dir.pair();
    for n in 0..10 {
        a.send(PORT_B, &frame(n, 4096));
    }
    a.flush().unwrap();
    let got = drain(&mut b);
    assert_eq!(a.counters().full, 10 - got.len() as u64);
    assert_eq!(a.counters().frames_out, got.len() as u64);
    assert!(got.len() >= 3, "the smallest ring holds three of the longest frames");
    a.send(PORT_B, &frame(11, 4096));
    a.flush().unwrap();
    assert_eq!(drain(&mut b), [(PORT_A, frame(11, 4096))], "there is room again");
}

/// Frames that cannot be sent are counted, each kind separately.
#[test]
fn what_cannot_be_sent_is_counted() {
    let dir = TestDir::new("cannot");
    let (mut a, mut b) = dir.pair();
    a.send(Port(99), &frame(0, 64));
    a.send(PORT_B, &frame(0, FRAME_MAX + 1));
    a.send(PORT_B, &frame(0, bth::LEN - 1));
    a.flush().unwrap();
    let counters = a.counters();
    assert_eq!((counters.no_address, counters.long, counters.short, counters.lost()), (1, 1, 1, 3));
    assert_eq!(drain(&mut b), []);
}

/// A bit of a frame in the ring flips: the frame is dropped and counted, and the next one arrives.
#[test]
fn a_flipped_bit_costs_one_frame() {
    let dir = TestDir::new("flip");
    let (mut a, mut b) = dir.pair();
    a.send(PORT_B, &frame(1, 64));
    a.send(PORT_B, &frame(2, 64));
    a.flush().unwrap();
    ring_words(&dir.0, A, B).words()[ring::HEADER_WORDS + 5].fetch_xor(1 << 17, Ordering::Relaxed);
    assert_eq!(drain(&mut b), [(PORT_A, frame(2, 64))]);
    assert_eq!(b.counters().bad_icrc, 1);
}

/// Without the ICRC the same flip is not detected, as configured.
#[test]
fn without_icrc_the_bytes_are_taken_as_they_are() {
    let dir = TestDir::new("no-icrc");
    let open = |gid| ShmLink::open(&ShmConfig { icrc: false, ..dir.config(gid) }).unwrap();
    let (mut a, mut b) = (open(A), open(B));
    a.set_peer(PORT_B, Some(B)).unwrap();
    a.send(PORT_B, &frame(1, 16));
    a.flush().unwrap();
    ring_words(&dir.0, A, B).words()[ring::HEADER_WORDS + 2].fetch_xor(1, Ordering::Relaxed);
    let mut flipped = frame(1, 16);
    flipped[8] ^= 1;
    assert_eq!(drain(&mut b), [(Port::UNKNOWN, flipped)]);
}

/// A peer publishes an impossible index: its ring is given up, once, and another peer continues undisturbed.
#[test]
fn a_lying_peer_loses_its_ring_and_other_peers_lose_nothing() {
    const C: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 72, 0, 3]);
    let dir = TestDir::new("lying");
    let (mut a, mut b) = dir.pair();
    let mut c = dir.open(C);
    c.set_peer(PORT_B, Some(B)).unwrap();
    ring_words(&dir.0, A, B).words()[16].store(1 << 60, Ordering::Relaxed);
    assert_eq!((drain(&mut b), drain(&mut b)), (vec![], vec![]));
    c.send(PORT_B, &frame(5, 64));
    c.flush().unwrap();
    assert_eq!(drain(&mut b), [(Port::UNKNOWN, frame(5, 64))]);
    assert_eq!(b.counters().broken_rings, 1);
    // The consumer's index can be impossible as well.
    ring_words(&dir.0, A, B).words()[32].store(7, Ordering::Relaxed);
    for n in 0..5 {
        a.send(PORT_B, &frame(n, 4096));
    }
    assert_eq!((a.counters().broken_rings, a.counters().lost()), (1, 2), "{:?}", a.counters());
}

/// A second process with the same address, foreign files and invalid settings are refused with a remedy.
#[test]
fn what_cannot_be_opened_says_why_and_what_to_do() {
    let dir = TestDir::new("refused");
    let first = dir.open(A);
    let text = ShmLink::open(&dir.config(A)).unwrap_err().to_string();
    assert!(text.contains("another instance is running on 127.72.0.1 in /dev/shm/farmem-test"), "{text}");
    assert_eq!(live_endpoints(&dir.0), ["127.72.0.1"]);
    assert_eq!(remove_dir(&dir.0).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    drop(first);
    assert_eq!(live_endpoints(&dir.0), [""; 0]);

    fs::write(dir.0.join("127.72.0.2.doorbell"), "not a doorbell, but long enough to look like one").unwrap();
    let text = ShmLink::open(&dir.config(B)).unwrap_err().to_string();
    assert!(text.contains("127.72.0.2.doorbell starts with") && text.contains("remove it"), "{text}");
    fs::write(dir.0.join("127.72.0.1-127.72.0.2.ring"), "").unwrap();
    let text = dir.open(A).set_peer(PORT_B, Some(B)).unwrap_err().to_string();
    assert!(text.contains("doorbell starts with"), "{text}");
    fs::remove_file(dir.0.join("127.72.0.2.doorbell")).unwrap();
    let text = dir.open(A).set_peer(PORT_B, Some(B)).unwrap_err().to_string();
    assert!(text.contains(".ring has 0 bytes"), "{text}");

    let odd = ShmConfig { ring_bytes: 5000, ..dir.config(A) };
    let text = ShmLink::open(&odd).unwrap_err().to_string();
    assert!(text.contains("ring_bytes cannot be 5000; it is a power of two"), "{text}");
    let nowhere = ShmConfig { dir: "/dev/shm/no/such".into(), ..dir.config(A) };
    let text = ShmLink::open(&nowhere).unwrap_err().to_string();
    assert!(text.contains("cannot make the directory /dev/shm/no/such"), "{text}");
    remove_dir(&dir.0).unwrap();
    assert!(!dir.0.exists());
}

/// A directory that other users may read is refused, because they could read its rings.
#[test]
fn a_directory_for_everybody_is_refused() {
    let dir = TestDir::new("everybody");
    fs::create_dir(&dir.0).unwrap();
    fs::set_permissions(&dir.0, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let text = ShmLink::open(&dir.config(A)).unwrap_err().to_string();
    assert!(text.contains("is not a directory for user"), "{text}");
}

/// Two threads exchange frames through a small ring, sleeping or polling. Every frame arrives once and in
/// order, although both sleep, wrap and wait for space all the time.
#[test]
fn threads_lose_nothing_when_they_wait_for_each_other() {
    const FRAMES: u32 = 20_000;
    const WINDOW: u32 = 16;
    for waiting in WAITING {
        let dir = TestDir::new(&format!("{waiting:?}"));
        let config = |gid| ShmConfig { waiting, ..dir.config(gid) };
        let (to_b, to_a) = (config(A), config(B));
        let (mut a, mut b) = (ShmLink::open(&to_b).unwrap(), ShmLink::open(&to_a).unwrap());
        a.set_peer(PORT_B, Some(B)).unwrap();
        b.set_peer(PORT_A, Some(A)).unwrap();
        let echo = std::thread::spawn(move || {
            let mut heard = Vec::new();
            let mut next = 0;
            while next < FRAMES {
                let patience = Wait::AtMost(Duration::from_secs(60));
                assert!(
                    b.receive(patience, &mut |port, bytes| heard.push((port, bytes.to_vec()))).unwrap() > 0
                );
                for (port, bytes) in heard.drain(..) {
                    assert_eq!((port, &bytes), (PORT_A, &frame(next, 12 + next as usize % 500)));
                    b.send(port, &bytes[..12]);
                    next += 1;
                }
                b.flush().unwrap();
            }
            b.counters()
        });
        let (mut sent, mut answered) = (0, 0);
        while answered < FRAMES {
            while sent < FRAMES && sent - answered < WINDOW {
                a.send(PORT_B, &frame(sent, 12 + sent as usize % 500));
                sent += 1;
            }
            a.flush().unwrap();
            let patience = Wait::AtMost(Duration::from_secs(60));
            let got = a.receive(patience, &mut |_, bytes| {
                assert_eq!(bytes, frame(answered, 12));
                answered += 1;
            });
            assert!(got.unwrap() > 0);
        }
        assert_eq!(echo.join().unwrap().lost() + a.counters().lost(), 0);
    }
}

/// A waker ends a wait without end, even if the call came before the wait.
#[test]
fn a_waker_ends_the_wait() {
    for waiting in WAITING {
        let dir = TestDir::new(&format!("wake-{waiting:?}"));
        let mut a = ShmLink::open(&ShmConfig { waiting, ..dir.config(A) }).unwrap();
        let waker = a.waker().unwrap();
        let for_ever = Wait::AtMost(Duration::from_secs(1_000_000));
        waker.wake();
        assert_eq!(a.receive(for_ever, &mut |_, _| ()).unwrap(), 0);
        let other = std::thread::spawn(move || waker.wake());
        assert_eq!(a.receive(for_ever, &mut |_, _| ()).unwrap(), 0);
        other.join().unwrap();
    }
}

/// A sleeper ends its sleep when a frame arrives, also one that arrived just before, and when a waker calls.
#[test]
fn a_sleeper_waits_beside_its_link() {
    for waiting in WAITING {
        let dir = TestDir::new(&format!("sleeper-{waiting:?}"));
        let mut a = ShmLink::open(&ShmConfig { waiting, ..dir.config(A) }).unwrap();
        let mut b = ShmLink::open(&dir.config(B)).unwrap();
        a.set_peer(PORT_B, Some(B)).unwrap();
        b.set_peer(PORT_A, Some(A)).unwrap();
        let (mut sleeper, waker) = (a.sleeper().unwrap(), a.waker().unwrap());
        let for_ever = Duration::from_secs(1_000_000);
        while a.receive(Wait::No, &mut |_, _| ()).unwrap() > 0 || !a.may_sleep() {}
        b.send(PORT_A, &frame(1, 40));
        b.flush().unwrap();
        sleeper.sleep(for_ever).unwrap();
        b.send(PORT_A, &frame(2, 40));
        b.flush().unwrap();
        assert!(!a.may_sleep());
        assert_eq!(a.receive(Wait::No, &mut |_, _| ()).unwrap(), 2);
        assert!(a.may_sleep());
        let other = std::thread::spawn(move || waker.wake());
        sleeper.sleep(for_ever).unwrap();
        other.join().unwrap();
        assert!(!a.may_sleep() && a.may_sleep());
    }
}

/// While a thread polls the rings, no peer rings for its frames, and none is lost: a thread that is about to
/// sleep is notified.
#[test]
fn a_glance_keeps_the_bell_still() {
    let dir = TestDir::new("glance");
    let (mut a, mut b) = dir.pair();
    assert_eq!(drain(&mut b), []);
    assert!(b.may_sleep() && b.doorbell.is_asleep());
    assert_eq!(b.glance(), Some(false));
    assert!(!b.doorbell.is_asleep(), "it is awake as long as it looks");
    a.send(PORT_B, &frame(1, 64));
    a.flush().unwrap();
    assert_eq!(b.glance(), Some(true));
    assert!(!b.may_sleep(), "something is here");
    assert_eq!(drain(&mut b), [(PORT_A, frame(1, 64))]);
    b.waker().unwrap().wake();
    assert_eq!(b.glance(), Some(true), "a waker called");
    assert!(!b.may_sleep() && b.may_sleep(), "once");
}

/// A wait without any event ends by itself.
#[test]
fn a_wait_ends_in_time() {
    for waiting in WAITING {
        let dir = TestDir::new(&format!("time-{waiting:?}"));
        let mut a = ShmLink::open(&ShmConfig { waiting, ..dir.config(A) }).unwrap();
        for wait in [Wait::No, Wait::AtMost(Duration::ZERO), Wait::AtMost(Duration::from_micros(50))] {
            assert_eq!(a.receive(wait, &mut |_, _| ()).unwrap(), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// For any content of the ring, its reader does not panic, delivers at most a record's bytes, and ends.
    #[test]
    fn no_nonsense_in_a_ring_harms_its_reader(
        pokes in prop::collection::vec((0..ring::HEADER_WORDS + 32, any::<u64>(), 0..64_u32), 1..40),
        frames in prop::collection::vec(12..100_usize, 0..6),
    ) {
        let words: Vec<AtomicU64> = (0..ring::HEADER_WORDS + 32).map(|_| AtomicU64::new(0)).collect();
        let mut producer = ring::Producer::attach(&words).unwrap();
        let mut consumer = ring::Consumer::attach(&words).unwrap();
        let mut buf = [0; 128];
        for (place, value, shift) in pokes {
            for &len in &frames {
                let _ = producer.push(&words, &frame(7, len));
            }
            producer.publish(&words);
            words[place].store(value >> shift, Ordering::Relaxed);
            for _ in 0..64 {
                match consumer.pop(&words, &mut buf) {
                    Ok(Some(len)) => prop_assert!(len <= buf.len()),
                    Ok(None) | Err(ring::Broken) => break,
                }
            }
            consumer.release(&words);
            let _ = ring::Consumer::attach(&words);
            let _ = ring::Producer::attach(&words);
        }
    }
}
