//! The loading zone under loom: every order in which a producer and two consumers can see each other's stores.
//!
//! Loom has its own atomics, so these files are compiled a second time here. Loom does not model a load that is
//! delayed past a later store of its own thread, which the release of a consumer's exchange prevents. Mutations that
//! the tests detect: a claim that is published relaxed, bytes that are copied after the claim, and a producer that
//! overwrites, or restarts, without a claim.

#[path = "../src/loading_zone/item.rs"]
#[expect(unreachable_pub, reason = "what is not under test is the crate's")]
mod item;
#[path = "../src/mix.rs"]
mod mix;
#[path = "../../link/src/shm/ring.rs"]
#[expect(dead_code, unreachable_pub, reason = "the zone uses how bytes are stored and loaded")]
mod ring;
#[path = "../src/loading_zone/steps.rs"]
#[expect(dead_code, unreachable_pub, reason = "what is not under test is the crate's")]
mod steps;

#[path = "../../link/tests/loom_atomics/mod.rs"]
#[expect(unused_imports, reason = "the doorbell's fence")]
mod atomic;

use atomic::AtomicU64;
use item::Item;
use loom::sync::Arc;
use loom::thread;
use steps::{Consumer, Finding, Placed, Producer, Shape};

/// The smallest possible shape: two items, four words of data.
const SHAPE: Shape = Shape { items: 2, data: 4, secret: 1 };

fn zone() -> Arc<Vec<AtomicU64>> {
    Arc::new((0..SHAPE.words()).map(|_| AtomicU64::new(0)).collect())
}

fn item(version: u64, data: &[u8]) -> Item<'_> {
    Item { tag: version, id: 0, key: b"the key", version, data, lines: None }
}

fn put_into(producer: &mut Producer, zone: &[AtomicU64], item: &Item<'_>) -> Placed {
    producer.put(zone, item, &mut |_, _| {})
}

/// Explores with a bound of three preemptions, one more than crossbeam uses, because the tests are short.
fn explore(story: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(story);
}

/// Takes a value whose bytes all name its version.
fn take(zone: &[AtomicU64], finding: Finding, least: u64) -> Option<u64> {
    let mut buf = Vec::new();
    let mut asked = 0;
    let good = |version| {
        asked = version;
        version >= least
    };
    Consumer::new(SHAPE, finding).check_and_return(zone, b"the key", good, &mut buf)?;
    assert!(buf.iter().all(|byte| u64::from(*byte) == asked), "a torn value: {buf:?} of version {asked}");
    assert!(asked >= least, "a version that is not good");
    Some(asked)
}

/// Two consumers look for the same item, while the producer gives it up for newer ones and reuses its place. At most
/// one consumer gets the item, whole, and the producer counts each item's fate.
fn overwritten(finding: Finding, len: usize) {
    explore(move || {
        let zone = zone();
        let mut producer = Producer::attach(SHAPE, &zone).unwrap();
        assert_eq!(put_into(&mut producer, &zone, &item(1, &vec![1; len])), Placed::There);
        producer.publish(&zone);
        let theirs = Arc::clone(&zone);
        let other = thread::spawn(move || take(&theirs, finding, 1));
        // An item that fits beside the first, or is refused until the first is dead or taken.
        let mut put = 1;
        for version in [2, 3] {
            if put_into(&mut producer, &zone, &item(version, &vec![u8::try_from(version).unwrap(); len]))
                == Placed::There
            {
                put += 1;
            }
            producer.publish(&zone);
        }
        let ours = take(&zone, finding, 1);
        let theirs = other.join().unwrap();
        assert!(ours.is_none() || ours != theirs, "{ours:?} was taken twice");
        producer.clean(&zone, &mut |_, _| {});
        let counts = producer.counts();
        assert_eq!((counts.put, counts.spoilt), (put, 0));
        assert_eq!(counts.put, counts.taken + counts.stale + counts.old + producer.len());
        let taken = u64::from(ours.is_some()) + u64::from(theirs.is_some());
        assert!(counts.taken <= taken);
    });
}

/// Items in descriptors, found by the index.
#[test]
fn short_items_by_the_index() {
    overwritten(Finding::Index, 8);
}

/// Items in descriptors, found by a scan.
#[test]
fn short_items_by_a_scan() {
    overwritten(Finding::Scan, 8);
}

/// Items in the data, of which the second wraps around, over the first.
#[test]
fn long_items_by_the_index() {
    overwritten(Finding::Index, 24);
}

/// The producer restarts while a consumer takes an item of its earlier life. At most one consumer has the item,
/// whole, never with overwritten bytes.
#[test]
fn a_new_producer_revokes_no_taken_item() {
    begun_anew(true);
}

/// The producer died before it published the item, which the index shows nevertheless: its number is not reused.
#[test]
fn a_new_producer_reuses_no_number() {
    begun_anew(false);
}

fn begun_anew(publishes: bool) {
    explore(move || {
        let zone = zone();
        let mut first = Producer::attach(SHAPE, &zone).unwrap();
        assert_eq!(put_into(&mut first, &zone, &item(1, &[1; 8])), Placed::There);
        if publishes {
            first.publish(&zone);
        }
        let theirs = Arc::clone(&zone);
        let other = thread::spawn(move || take(&theirs, Finding::Index, 1));
        let mut second = Producer::attach(SHAPE, &zone).unwrap();
        for version in [2, 3] {
            assert_eq!(
                put_into(&mut second, &zone, &item(version, &[u8::try_from(version).unwrap(); 8])),
                Placed::There
            );
        }
        second.publish(&zone);
        let theirs = other.join().unwrap();
        let ours = take(&zone, Finding::Scan, 1);
        assert!(ours.is_some() && ours != Some(1) && ours != theirs, "{ours:?} {theirs:?}");
    });
}

/// A write is flushed while its record is prefetched in the zone. A consumer that knows of the write takes no older
/// version, in any order.
#[test]
fn no_stale_version_is_taken() {
    explore(|| {
        let zone = zone();
        let mut producer = Producer::attach(SHAPE, &zone).unwrap();
        assert_eq!(put_into(&mut producer, &zone, &item(1, &[1; 8])), Placed::There);
        producer.publish(&zone);
        let theirs = Arc::clone(&zone);
        let other = thread::spawn(move || take(&theirs, Finding::Scan, 2));
        assert_eq!(put_into(&mut producer, &zone, &item(2, &[2; 8])), Placed::There);
        producer.publish(&zone);
        let ours = take(&zone, Finding::Index, 1);
        let theirs = other.join().unwrap();
        assert!(theirs.is_none_or(|version| version == 2) && (ours.is_none() || ours != theirs));
    });
}
