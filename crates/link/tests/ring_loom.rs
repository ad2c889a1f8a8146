//! The rings and the doorbell under loom: every order in which two threads can see each other's stores.
//!
//! Loom has its own atomics, so this test compiles the files a second time with those. Loom does not model a
//! load that is delayed past a later store of its own thread. The consumer's releasing store of its index
//! guards against that.

#[path = "../src/shm/doorbell.rs"]
#[expect(dead_code, reason = "the announcements are not part of the protocol under test")]
mod doorbell;
#[path = "../src/shm/many.rs"]
mod many;
#[path = "../src/shm/ring.rs"]
#[expect(unreachable_pub, reason = "what is not under test is the crate's")]
mod ring;

#[path = "loom_atomics/mod.rs"]
mod atomic;

use atomic::AtomicU64;
use loom::sync::Arc;
use loom::thread;

/// Returns the words of a ring with `data` words, or of a doorbell.
fn words(data: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..data).map(|_| AtomicU64::new(0)).collect())
}

/// Runs a scenario with a limit of two preemptions, as crossbeam does, which find nearly all races in
/// seconds.
fn explore(story: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(story);
}

/// Three records pass through a ring that holds one and a half of them: the producer waits for space, and the
/// records wrap. The consumer reads each record complete and in order, for any order of visibility.
#[test]
fn records_arrive_whole_and_in_order() {
    explore(|| {
        let ring = words(ring::HEADER_WORDS + 4);
        let theirs = Arc::clone(&ring);
        let producer = thread::spawn(move || {
            let mut end = ring::Producer::attach(&theirs).unwrap();
            for n in 1..=3_u8 {
                while !end.push(&theirs, &[n; 9]).unwrap() {
                    thread::yield_now();
                }
                assert!(end.publish(&theirs));
            }
        });
        let mut end = ring::Consumer::attach(&ring).unwrap();
        let mut buf = [0; 16];
        for n in 1..=3_u8 {
            let len = loop {
                match end.pop(&ring, &mut buf).unwrap() {
                    Some(len) => break len,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(buf[..len], [n; 9]);
            end.release(&ring);
        }
        assert!(!end.has_more(&ring));
        producer.join().unwrap();
    });
}

/// The receiver finds its ring empty and goes to sleep just as the sender publishes. Either the receiver sees
/// the record in its last check, or the sender sees that it must wake the receiver.
#[test]
fn nobody_sleeps_through_a_record() {
    explore(|| {
        let ring = words(ring::HEADER_WORDS + 4);
        let doorbell = words(doorbell::BELL_WORDS);
        let (their_ring, their_bell) = (Arc::clone(&ring), Arc::clone(&doorbell));
        let sender = thread::spawn(move || {
            let mut end = ring::Producer::attach(&their_ring).unwrap();
            assert!(end.push(&their_ring, &[7]).unwrap());
            end.publish(&their_ring);
            doorbell::must_wake(&their_bell)
        });
        let end = ring::Consumer::attach(&ring).unwrap();
        doorbell::fall_asleep(&doorbell);
        let sees_it = end.has_more(&ring);
        if sees_it {
            doorbell::wake_up(&doorbell);
        }
        let is_woken = sender.join().unwrap();
        assert!(sees_it || is_woken, "the receiver sleeps, and the record waits");
    });
}

/// As in [`nobody_sleeps_through_a_record`], for a receiver that waits for both of two records, or for the
/// remaining one. The receiver does not sleep if both are available, and the first alone does not wake it.
#[test]
fn nobody_sleeps_through_as_many_records_as_it_wants() {
    explore(|| {
        let ring = words(ring::HEADER_WORDS + 8);
        let doorbell = words(doorbell::BELL_WORDS);
        let (their_ring, their_bell) = (Arc::clone(&ring), Arc::clone(&doorbell));
        let sender = thread::spawn(move || {
            let mut end = ring::Producer::attach(&their_ring).unwrap();
            [1, 2].map(|sent| {
                assert!(end.push(&their_ring, &[7]).unwrap());
                end.publish(&their_ring);
                doorbell::must_wake_at(&their_bell, sent)
            })
        });
        let mut end = ring::Consumer::attach(&ring).unwrap();
        let mut taken = 0;
        doorbell::fall_asleep_until(&doorbell, 2);
        if end.has_more(&ring) {
            doorbell::wake_up(&doorbell);
            while end.pop(&ring, &mut [0; 8]).unwrap().is_some() {
                taken += 1;
            }
            doorbell::fall_asleep_until(&doorbell, 2);
        }
        let sees_it = end.has_more(&ring);
        let [first, second] = sender.join().unwrap();
        assert!(taken == 2 || sees_it || second, "the receiver sleeps, and both records wait");
        assert!(!first, "it wants two");
    });
}

/// Two threads write, one of them twice, and the consumer polls meanwhile, with a ring that holds two of the
/// three records. A thread that finds no space reports that. No record is read before it is complete, is
/// lost, or arrives twice, and those of one thread arrive in order.
#[test]
fn records_of_many_arrive_whole() {
    explore(|| {
        let ring = words(ring::HEADER_WORDS + 4);
        let theirs = Arc::clone(&ring);
        let other = thread::spawn(move || {
            let pushed = [1_u8, 2].map(|n| many::push(&theirs, &[n; 5]).unwrap());
            pushed.into_iter().zip([1, 2]).filter(|(pushed, _)| *pushed).map(|(_, n)| n).collect::<Vec<u8>>()
        });
        let ours = many::push(&ring, &[9; 8]).unwrap();
        let mut end = many::Consumer::attach(&ring);
        let mut taken = Vec::new();
        let mut look = |end: &mut many::Consumer| {
            let Some(record) = end.next(&ring, 8).unwrap() else { return false };
            let mut bytes = vec![0; record.len];
            many::copy(&ring, record, 0, &mut bytes);
            end.release(&ring);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn record: {bytes:?}");
            assert_eq!(bytes.len(), if bytes[0] == 9 { 8 } else { 5 });
            taken.push(bytes[0]);
            true
        };
        look(&mut end);
        look(&mut end);
        let theirs = other.join().unwrap();
        while look(&mut end) {}
        assert!(!end.has_more(&ring));
        assert_eq!(taken.iter().copied().filter(|n| *n != 9).collect::<Vec<_>>(), theirs);
        assert_eq!(taken.len(), theirs.len() + usize::from(ours));
        assert!(taken.len() >= 2, "there is room for two");
    });
}
