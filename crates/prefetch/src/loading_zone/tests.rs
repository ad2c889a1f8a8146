//! Tests of a zone with both ends in this process, and of ends that write invalid data.

use super::*;
use farmem_client::Lines;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const SMALL: ZoneSize = ZoneSize { items: 8, data: 1 << 12 };

fn zone(size: ZoneSize) -> (OwnedFd, ZoneProducer, ZoneReader) {
    let file = make_zone(size).unwrap();
    let producer = ZoneProducer::of(&file, size).unwrap();
    let reader = ZoneReader::of(&file, size, Finding::Index).unwrap();
    (file, producer, reader)
}

fn item<'a>(key: &'a [u8], version: u64, data: &'a [u8]) -> Item<'a> {
    Item { tag: version, id: 0xc001, key, version, data, lines: None }
}

fn put_into(producer: &mut ZoneProducer, item: &Item<'_>) -> Placed {
    producer.put(item, |_, _| {})
}

/// Frees all claimed items. Returns the counts.
fn counts_of(producer: &mut ZoneProducer) -> ZoneCounts {
    producer.clean(|_, _| {});
    producer.counts()
}

fn take(reader: &mut ZoneReader, key: &[u8], least: u64) -> Option<Vec<u8>> {
    let mut buf = vec![0xee; 3];
    let size = reader.check_and_return(key, |version| version >= least, &mut buf)?;
    assert_eq!(buf.len(), size);
    Some(buf)
}

/// Checks that a zone of several megabytes is the same memory for the producer, its reader, and a later reader. The
/// zone has huge pages if the kernel provides them.
///
/// The index has sixteen places for the items of two buckets, and the hash key is random. A zone that is filled to
/// its last item needs a seventeenth one time in fifty: the producer then gives up the oldest item of the pair and
/// counts it.
#[test]
fn a_large_zone_is_shared_whole() {
    const ITEMS: u64 = 1 << 16;
    let size = ZoneSize { items: 1 << 16, data: 1 << 12 };
    let (file, mut producer, mut reader) = zone(size);
    for n in 0..ITEMS {
        assert_eq!(put_into(&mut producer, &item(&n.to_le_bytes(), n, &n.to_be_bytes())), Placed::There);
    }
    drop(reader.clone());
    let mut later = ZoneReader::of(&file, size, Finding::Index).unwrap();
    let mut missed = 0;
    for n in 0..ITEMS {
        let reader = if n % 2 == 0 { &mut reader } else { &mut later };
        match take(reader, &n.to_le_bytes(), n) {
            Some(value) => assert_eq!(value, n.to_be_bytes(), "{n}"),
            None => missed += 1,
        }
    }
    drop((reader, later, file));
    let counts = counts_of(&mut producer);
    assert_eq!((counts.put, counts.taken, counts.old), (ITEMS, ITEMS - missed, missed));
    assert!(missed < 8, "{missed} items were given up");
}

/// Short and long items, also empty ones, are found with both methods, once, with all their bytes. Keys with a common
/// prefix are different keys.
#[test]
fn an_item_is_taken_once() {
    let (_, mut producer, reader) = zone(SMALL);
    let long = [7; 1000];
    let items: [(&[u8], &[u8]); 6] = [
        (b"12345678", b"abcdefgh"),
        (b"k", b""),
        (b"key", b"odd length"),
        (b"key2", &long),
        (&long, b"v"),
        (b"123456789", b"?"),
    ];
    for finding in [Finding::Index, Finding::Scan] {
        let mut reader = reader.for_thread(finding);
        for (key, data) in items {
            assert_eq!(put_into(&mut producer, &item(key, 5, data)), Placed::There);
        }
        producer.publish();
        assert_eq!(take(&mut reader, b"nothing", 0), None);
        assert_eq!(take(&mut reader, b"ke", 0), None);
        for (key, data) in items.into_iter().rev() {
            assert_eq!(take(&mut reader, key, 5).as_deref(), Some(data), "{finding:?}");
            assert_eq!(take(&mut reader, key, 5), None, "{finding:?}");
        }
        assert_eq!(reader.found(), Found { taken: 6, missed: 8, ..Found::default() });
    }
    assert_eq!(counts_of(&mut producer), ZoneCounts { put: 12, taken: 12, ..ZoneCounts::default() });
    assert!(producer.is_empty());
}

/// A record is prefetched, then written, then prefetched again. A reader that needs the new version gets the new
/// value and never the old one, whichever is first.
#[test]
fn an_item_older_than_a_write_is_never_taken() {
    let (_, mut producer, reader) = zone(SMALL);
    for finding in [Finding::Index, Finding::Scan] {
        let mut reader = reader.for_thread(finding);
        put_into(&mut producer, &item(b"record", 1, b"before"));
        producer.publish();
        assert_eq!(take(&mut reader, b"record", 2), None);
        assert_eq!(take(&mut reader, b"record", 0), None, "it is given up: no later asker gets it either");
        put_into(&mut producer, &item(b"record", 1, b"before"));
        put_into(&mut producer, &item(b"record", 2, b"after"));
        producer.publish();
        assert_eq!(take(&mut reader, b"record", 2).as_deref(), Some(&b"after"[..]));
    }
    let counts = counts_of(&mut producer);
    assert_eq!((counts.put, counts.taken), (6, 2));
    assert!((2..=4).contains(&counts.stale), "{counts:?}");
}

/// PROTOCOL 18.22, a slow program: the zone refuses new items, and keeps those that will be used. Each take makes
/// room for one.
#[test]
fn a_full_zone_waits_for_a_slow_program() {
    let (_, mut producer, mut reader) = zone(SMALL);
    let key = |n: u64| n.to_le_bytes();
    for n in 0..8 {
        assert_eq!(put_into(&mut producer, &item(&key(n), 1, b"v")), Placed::There);
    }
    for _ in 0..7 {
        assert_eq!(put_into(&mut producer, &item(&key(8), 1, b"v")), Placed::Full);
    }
    assert!(take(&mut reader, &key(0), 1).is_some());
    assert_eq!(put_into(&mut producer, &item(&key(8), 1, b"v")), Placed::There);
    assert_eq!(put_into(&mut producer, &item(&key(9), 1, b"v")), Placed::Full);
    assert!((1..9).all(|n| take(&mut reader, &key(n), 1).is_some()));
    let counts = counts_of(&mut producer);
    assert_eq!(counts, ZoneCounts { put: 9, taken: 9, full: 8, ..ZoneCounts::default() });
}

/// PROTOCOL 18.22, dead items: they are given up when consumers have passed them, or when a whole zone of newer ones
/// has been refused.
#[test]
fn a_full_zone_gives_up_dead_items() {
    let (_, mut producer, mut reader) = zone(SMALL);
    let key = |n: u64| n.to_le_bytes();
    for n in 0..8 {
        assert_eq!(put_into(&mut producer, &item(&key(n), 1, b"v")), Placed::There);
    }
    // The first is passed, and half of those behind it are taken.
    assert!((1..5).all(|n| take(&mut reader, &key(n), 1).is_some()));
    assert_eq!(put_into(&mut producer, &item(&key(8), 1, b"v")), Placed::There);
    assert_eq!(take(&mut reader, &key(0), 1), None);
    assert_eq!(counts_of(&mut producer), ZoneCounts { put: 9, taken: 4, old: 1, ..ZoneCounts::default() });
    // From here on no consumer looks.
    let mut refused = 0;
    for n in 9..100 {
        refused += u64::from(put_into(&mut producer, &item(&key(n), 1, b"v")) == Placed::Full);
    }
    let counts = counts_of(&mut producer);
    assert_eq!(counts.full, refused);
    assert_eq!(counts.put, 100 - refused);
    assert!(counts.old > 60 && refused <= 8, "{counts:?}");
    assert!(take(&mut reader, &key(99), 1).is_some(), "the newest is there");
}

/// In a full zone every item is found by the index, although buckets have eight places and hold two on average.
#[test]
fn a_full_index_finds_every_item() {
    let size = ZoneSize { items: 1 << 14, data: 1 << 12 };
    let (_, mut producer, mut reader) = zone(size);
    for round in 0..4_u64 {
        for n in 0..1 << 14 {
            assert_eq!(
                put_into(&mut producer, &item(&(round << 32 | n).to_le_bytes(), 1, b"v")),
                Placed::There
            );
        }
        for n in (0..1 << 14_u64).rev() {
            assert!(take(&mut reader, &(round << 32 | n).to_le_bytes(), 1).is_some(), "{n} in round {round}");
        }
    }
    assert_eq!(
        counts_of(&mut producer),
        ZoneCounts { put: 4 << 14, taken: 4 << 14, ..ZoneCounts::default() }
    );
}

/// The producer learns the fate of each item once. When the program restarts, all other items are dropped, and none
/// of them can be taken.
#[test]
fn each_item_has_one_fate() {
    let (_, mut producer, mut reader) = zone(SMALL);
    let mut fates = Vec::new();
    for tag in 1..=4_u64 {
        let key = tag.to_le_bytes();
        let item = Item { tag, ..item(&key, tag, b"v") };
        assert_eq!(producer.put(&item, |tag, fate| fates.push((tag, fate))), Placed::There);
    }
    assert!(take(&mut reader, &2_u64.to_le_bytes(), 0).is_some());
    assert_eq!(take(&mut reader, &1_u64.to_le_bytes(), 2), None);
    assert!(take(&mut reader, &4_u64.to_le_bytes(), 0).is_some());
    producer.clean(|tag, fate| fates.push((tag, fate)));
    assert_eq!(fates, [(1, Fate::Stale), (2, Fate::Taken)], "up to the first that can be taken");
    producer.empty(|tag, fate| fates.push((tag, fate)));
    assert_eq!(fates[2..], [(3, Fate::Old), (4, Fate::Taken)]);
    assert!(producer.is_empty() && take(&mut reader, &3_u64.to_le_bytes(), 0).is_none());
}

/// A value in lines is stored without their headers, wherever it ends. A value with missing bytes, or lines that are
/// not whole words, is refused.
#[test]
fn a_value_in_lines_is_stored_without_headers() {
    let (_, mut producer, mut reader) = zone(SMALL);
    let data: Vec<u8> = (0..=255).cycle().take(600).collect();
    let value: Vec<u8> = data.chunks(64).flat_map(|line| &line[8..]).copied().collect();
    for (version, len) in (1..).zip([0, 1, 7, 55, 56, 57, 112, 500, value.len()]) {
        let lines = Some(Lines { line: 64, head: 8, len });
        let item = Item { lines, ..item(b"key", version, &data) };
        assert_eq!(put_into(&mut producer, &item), Placed::There, "{len}");
        assert_eq!(take(&mut reader, b"key", version).as_deref(), Some(&value[..len]), "{len}");
    }
    let of = |line, head, len| Lines { line, head, len };
    for lines in [of(64, 8, value.len() + 1), of(60, 8, 8), of(64, 4, 8), of(64, 64, 0), of(0, 0, 0)] {
        let item = Item { lines: Some(lines), ..item(b"key", 20, &data) };
        assert_eq!(put_into(&mut producer, &item), Placed::Misfit, "{lines:?}");
    }
}

/// An item that never fits has another result than one without room.
#[test]
fn an_item_that_never_fits_is_refused() {
    let (_, mut producer, _) = zone(SMALL);
    let long = vec![0; 5000];
    for (key, data) in [(&b""[..], &b"v"[..]), (b"k", &long), (&vec![1; KEY_MAX + 1], b"v")] {
        assert_eq!(put_into(&mut producer, &item(key, 1, data)), Placed::Misfit);
    }
    for _ in 0..20 {
        assert_ne!(put_into(&mut producer, &item(b"k", 1, &long[..4000])), Placed::Misfit);
    }
}

/// A restarted DPU does not reuse items of its earlier life: none of them can be taken, even by a reader that has
/// found one.
#[test]
fn a_restarted_producer_reuses_no_item() {
    let (file, mut producer, mut reader) = zone(SMALL);
    put_into(&mut producer, &item(b"one", 1, b"v"));
    put_into(&mut producer, &item(b"two", 1, b"v"));
    producer.publish();
    assert!(take(&mut reader, b"one", 1).is_some());
    let mut next = ZoneProducer::of(&file, SMALL).unwrap();
    for finding in [Finding::Index, Finding::Scan] {
        assert_eq!(take(&mut reader.for_thread(finding), b"two", 1), None);
    }
    put_into(&mut next, &item(b"two", 2, b"w"));
    assert_eq!(take(&mut reader, b"two", 1).as_deref(), Some(&b"w"[..]));
}

/// A file that is no zone of this size is refused before any other word is used.
#[test]
fn another_file_is_refused() {
    let file = make_zone(SMALL).unwrap();
    let larger = ZoneSize { items: 16, ..SMALL };
    assert!(ZoneReader::of(&file, larger, Finding::Index).unwrap_err().to_string().contains("another size"));
    for size in
        [ZoneSize { items: 3, ..SMALL }, ZoneSize { items: 1, ..SMALL }, ZoneSize { data: 1 << 11, ..SMALL }]
    {
        assert!(make_zone(size).unwrap_err().to_string().contains("a power of two"), "{size:?}");
    }
    let (memory, _) = map(&file, SMALL).unwrap();
    memory.words()[9].store(u64::MAX, Ordering::Relaxed);
    assert!(
        ZoneProducer::of(&file, SMALL).unwrap_err().to_string().contains("numbers that no producer writes")
    );
    memory.words()[1].store(2, Ordering::Relaxed);
    assert!(ZoneProducer::of(&file, SMALL).unwrap_err().to_string().contains("another version"));
}

/// Four readers and a producer run at once, by index and by scan, with values that name key and version in every
/// word. Each value is whole and has its key, and no version of a key is taken twice. Each item is taken, stale,
/// given up, or still there.
#[test]
fn threads_take_whole_values_once() {
    const PUTS: u64 = 60_000;
    const KEYS: u64 = 24;
    let size = ZoneSize { items: 16, data: 1 << 12 };
    let (_, mut producer, reader) = zone(size);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let taken = std::thread::scope(|threads| {
        let readers: Vec<_> = (0..4_u64)
            .map(|number| {
                let finding = if number % 2 == 0 { Finding::Index } else { Finding::Scan };
                let mut reader = reader.for_thread(finding);
                let is_over = &is_over;
                threads.spawn(move || {
                    let (mut all, mut buf, mut n) = (Vec::new(), Vec::new(), number);
                    while !is_over.load(Ordering::Acquire) {
                        n += 1;
                        let key = n % KEYS;
                        // The third reader accepts no odd version.
                        let good = |version: u64| number != 3 || version.is_multiple_of(2);
                        if reader.check_and_return(&key.to_le_bytes(), good, &mut buf).is_some() {
                            let (words, rest) = buf.as_chunks::<8>();
                            let word = u64::from_le_bytes(words[0]);
                            assert!(
                                rest.is_empty() && words.iter().all(|w| u64::from_le_bytes(*w) == word),
                                "a torn value"
                            );
                            assert_eq!(word % KEYS, key, "a value of another key");
                            assert!(good(word), "a version that is not good");
                            all.push(word);
                        }
                    }
                    (all, reader.found())
                })
            })
            .collect();
        for n in 0..PUTS {
            // Short and long values.
            let value =
                n.to_le_bytes().repeat(if n % 3 == 0 { 1 } else { 2 + usize::try_from(n % 29).unwrap() });
            let _ = put_into(&mut producer, &item(&(n % KEYS).to_le_bytes(), n, &value));
            producer.publish();
        }
        is_over.store(true, Ordering::Release);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    let all: Vec<u64> = taken.iter().flat_map(|(all, _)| all.iter().copied()).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "a value was taken twice");
    let counts = counts_of(&mut producer);
    assert_eq!(counts.put + counts.full, PUTS);
    assert_eq!(counts.put, counts.taken + counts.stale + counts.old + producer.len());
    assert_eq!(counts.spoilt, 0);
    let claimed: u64 = taken.iter().map(|(_, found)| found.taken).sum();
    assert_eq!(claimed, all.len() as u64);
    assert!(claimed >= counts.taken, "what the producer has not come to is taken too");
}

#[derive(Clone, Debug)]
enum Act {
    Put {
        key: u8,
        version: u64,
        len: usize,
    },
    Check {
        key: u8,
        least: u64,
        scan: bool,
    },
    /// The other end, or a fault in its process, writes a word.
    Scribble {
        at: usize,
        value: u64,
    },
}

fn act(scribbles: u32) -> impl Strategy<Value = Act> {
    let value = prop_oneof![
        any::<u64>(),
        0..64_u64,
        (0..64_u64).prop_map(|n| n << 16),
        (0..64_u64).prop_map(|n| u64::MAX - n)
    ];
    prop_oneof![
        40 => (0..12_u8, 0..4_u64, 0..600_usize).prop_map(|(key, version, len)| Act::Put { key, version, len }),
        40 => (0..12_u8, 0..4_u64, any::<bool>()).prop_map(|(key, least, scan)| Act::Check { key, least, scan }),
        scribbles => (0..900_usize, value).prop_map(|(at, value)| Act::Scribble { at, value }),
    ]
}

fn key_of(key: u8) -> Vec<u8> {
    vec![key; 1 + usize::from(key) * 3]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Compares the zone with a plain list: each taken item was put, has a good version, and was not taken before. An
    /// item that is not taken is absent or was dropped.
    #[test]
    fn a_zone_agrees_with_a_list(acts in proptest::collection::vec(act(0), 1..300)) {
        let (_, mut producer, reader) = zone(SMALL);
        let mut readers = [reader.for_thread(Finding::Index), reader.for_thread(Finding::Scan)];
        // Items that can be taken: by key, versions and values.
        let mut there: BTreeMap<u8, VecDeque<(u64, Vec<u8>)>> = BTreeMap::new();
        let mut put = 0_u64;
        for act in acts {
            match act {
                Act::Put { key, version, len } => {
                    let data = vec![u8::try_from(put % 251).unwrap(); len];
                    let before = counts_of(&mut producer);
                    if put_into(&mut producer, &item(&key_of(key), version, &data)) == Placed::There {
                        there.entry(key).or_default().push_back((version, data));
                    }
                    producer.publish();
                    put += 1;
                    prop_assert_eq!(counts_of(&mut producer).spoilt, before.spoilt);
                }
                Act::Check { key, least, scan } => {
                    let taken = take(&mut readers[usize::from(scan)], &key_of(key), least);
                    let list = there.entry(key).or_default();
                    if let Some(data) = taken {
                        let at = list.iter().position(|(version, value)| *version >= least && *value == data);
                        prop_assert!(at.is_some(), "nothing like that was put");
                        list.remove(at.unwrap());
                    }
                }
                Act::Scribble { .. } => {}
            }
        }
        let counts = counts_of(&mut producer);
        prop_assert_eq!(counts.put, counts.taken + counts.stale + counts.old + producer.len());
        let taken: u64 = readers.iter().map(|reader| reader.found().taken).sum();
        prop_assert!(counts.taken <= taken && taken <= counts.put);
    }

    /// An end writes any word: neither end panics, leaves the zone, or takes long; each returned size is possible.
    #[test]
    fn invalid_data_only_makes_items_fail(acts in proptest::collection::vec(act(60), 1..300)) {
        let (file, mut producer, reader) = zone(SMALL);
        let (memory, shape) = map(&file, SMALL).unwrap();
        let mut readers = [reader.for_thread(Finding::Index), reader.for_thread(Finding::Scan)];
        let mut buf = Vec::new();
        for act in acts {
            match act {
                Act::Put { key, version, len } => {
                    let _ = put_into(&mut producer, &item(&key_of(key), version, &vec![key; len]));
                    producer.publish();
                }
                Act::Check { key, least, scan } => {
                    let reader = &mut readers[usize::from(scan)];
                    let size = reader.check_and_return(&key_of(key), |version| version >= least, &mut buf);
                    prop_assert!(size.unwrap_or(0) <= SMALL.data);
                }
                Act::Scribble { at, value } => memory.words()[8 + at % (shape.words() - 8)].store(value, Ordering::Relaxed),
            }
        }
        let counts = counts_of(&mut producer);
        prop_assert_eq!(counts.put, counts.taken + counts.stale + counts.old + counts.spoilt + producer.len());
    }
}
