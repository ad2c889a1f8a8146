//! Tests of the layout, and the validated read explored exhaustively: every order in which packets of a READ
//! can meet packets of writes.

use super::*;
use std::collections::BTreeSet;

const LENS: [usize; 14] =
    [1, 31, 32, 224, 225, 471, 472, 473, 720, 4000, 65_536, 65_537, RECORD_LEN_MAX - 1, RECORD_LEN_MAX];

fn content(len: usize, byte: u8) -> Vec<u8> {
    (0..=250_u8).cycle().map(|n| byte.wrapping_add(n)).take(len).collect()
}

#[test]
fn what_is_encoded_is_decoded() {
    for len in LENS {
        let (class, tag) = (Class::of(len).unwrap(), Tag::new(3, 9, 77));
        let image = encode(tag, 5, class, &content(len, 1));
        assert_eq!(image.len(), image_len(len));
        let whole = Decoded::Whole { kind: 5, content: content(len, 1) };
        assert_eq!(decode(&image), whole);
        // Decoding ignores the bytes after the record in its block.
        assert_eq!(decode(&[image.as_slice(), &[9; 300]].concat()), whole);
        if len > 1 {
            let cut = &image[..image.len() - 1];
            let wanted = if cut.len() < HEADER_LEN { HEADER_LEN } else { image.len() };
            assert_eq!(decode(cut), Decoded::Longer(wanted));
        }
        let packed = Record { at: VirtAddr(0x40_0000), len: u32::try_from(len).unwrap() }.packed().unwrap();
        let unpacked = Record::unpacked(packed).unwrap();
        assert_eq!(unpacked.at, VirtAddr(0x40_0000));
        let room = image_len(unpacked.len as usize);
        assert!(len <= unpacked.len as usize && room <= class.size().max(LINE_LEN), "{len}: in its block");
    }
    assert!(matches!(Class::of(0), Err(Error::Empty { .. })));
    assert!(matches!(Class::of(RECORD_LEN_MAX + 1), Err(Error::TooLong { max: RECORD_LEN_MAX, .. })));
    assert_eq!(decode(&[0; 512]), Decoded::Not);
    assert_eq!(decode(&[0xff; 511]), Decoded::Torn(Tag(u64::MAX)), "the lock bit is set");
}

/// Blocks lie side by side in their slab, and the load window at the start of each block stays in its page.
/// No record of up to 256 bytes therefore crosses a page. Longer records are line-aligned.
#[test]
fn blocks_keep_to_their_pages() {
    let mut last = 0;
    for number in 0..=u8::MAX {
        let Some(class) = Class::numbered(number) else {
            assert_eq!(usize::from(number), SIZES.len());
            break;
        };
        assert!(class.size() > last, "classes grow");
        last = class.size();
        let slab = (class.slab_pages() * PAGE_LEN) as u64;
        let mut end = 0;
        for at in class.blocks() {
            assert!(at >= end, "no two overlap");
            end = at + class.size() as u64;
            assert!(end <= slab);
            assert!(at % PAGE_LEN as u64 + LINE_LEN as u64 <= PAGE_LEN as u64);
            assert!(at % 32 == 0 && (class.size() <= LINE_LEN || at % LINE_LEN as u64 == 0));
        }
        assert!(slab - end < class.size().max(LINE_LEN) as u64, "no block more has room");
    }
}

#[test]
fn tags_name_their_writer() {
    let tag = Tag::new(63, 0xffff, Tag::COUNT_MAX);
    assert_eq!((tag.writer(), tag.is_locked(), tag.locked().is_locked()), ((63, 0xffff), false, true));
    assert_eq!(tag.locked().writer(), tag.writer());
    assert_ne!(Tag::new(1, 0, 5), Tag::new(0, 1, 5));
}

/// Lines of the record in the model: its content fills all of them.
const LINES: usize = 3;
const LEN: usize = FIRST_SHARE + 2 * SHARE;

/// A writer in the model. `at` counts its steps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Writer {
    tag: u64,
    at: usize,
    /// The tag that the writer saw.
    seen: u64,
    /// True when the writer takes the lock over from a holder with an ended lease. The holder may continue
    /// all the same.
    takes_over: bool,
    /// True when the writer creates a new record in the freed block: one WRITE, no lock.
    puts: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    memory: Vec<u8>,
    writers: Vec<Writer>,
    image: Vec<u8>,
    /// Packets of the READ that the memory node has not read yet.
    unread: BTreeSet<usize>,
}

fn image_of(tag: u64) -> Vec<u8> {
    let class = Class::of(LEN).unwrap();
    encode(Tag(tag), 1, class, &vec![u8::try_from(tag >> 1 & 0xff).unwrap(); LEN])
}

impl World {
    /// Returns the worlds after one step of any party.
    fn next(&self, pmtu: usize) -> Vec<Self> {
        let mut worlds = Vec::new();
        for (number, writer) in self.writers.iter().enumerate() {
            let mut world = self.clone();
            if world.write(number, writer, pmtu) {
                worlds.push(world);
            }
        }
        for &packet in &self.unread {
            // Lost packets are read again later, so any order can occur.
            let mut world = self.clone();
            let bytes = packet * pmtu..((packet + 1) * pmtu).min(self.memory.len());
            world.image[bytes.clone()].copy_from_slice(&self.memory[bytes]);
            world.unread.remove(&packet);
            worlds.push(world);
        }
        worlds
    }

    /// Runs one step of a writer, like `Heap::write` and `Heap::put`. Returns false when no step is left.
    fn write(&mut self, number: usize, writer: &Writer, pmtu: usize) -> bool {
        let tag = Tag(writer.tag);
        let image = image_of(if writer.puts { tag } else { tag.locked() }.0);
        let head = u64::from_le_bytes(self.memory[..8].try_into().unwrap());
        let step = &mut self.writers[number];
        step.at += 1;
        let packets = |from: usize| (from..LINES * LINE_LEN).step_by(pmtu);
        let mut packet = |at: usize, end: usize| {
            let end = (at + pmtu).min(end);
            self.memory[at..end].copy_from_slice(&image[at..end]);
        };
        if writer.puts {
            let Some(at) = packets(0).nth(writer.at) else { return false };
            packet(at, LINES * LINE_LEN);
            return true;
        }
        let count = packets(0).count();
        match writer.at {
            0 => step.seen = head,
            1 => {
                let may_take = !Tag(writer.seen).is_locked() || writer.takes_over;
                if !may_take || head != writer.seen {
                    step.at = usize::MAX - 1; // it looks again, which is another look of the model
                    return true;
                }
                self.memory[..8].copy_from_slice(&Tag(writer.tag).locked().0.to_le_bytes());
            }
            // Twice, as when a connection breaks in between.
            at if at < 2 + 2 * count => packet(packets(0).nth((at - 2) % count).unwrap(), LINES * LINE_LEN),
            at if at == 2 + 2 * count && Tag(head) == Tag(writer.tag).locked() => {
                self.memory[..8].copy_from_slice(&writer.tag.to_le_bytes());
            }
            _ => return false,
        }
        true
    }
}

/// Explores all worlds and returns every content that `accepts` takes for whole. Writers may stop for ever at
/// any step: the visited worlds include these cases.
fn explore(
    writers: &[Writer],
    pmtu: usize,
    accepts: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> (usize, Vec<Vec<u8>>) {
    let memory = image_of(2);
    let packets = (0..memory.len().div_ceil(pmtu)).collect();
    let image = vec![0; memory.len()];
    let start = World { memory, writers: writers.to_vec(), image, unread: packets };
    let mut seen = BTreeSet::from([start.clone()]);
    let mut open = vec![start];
    let mut read = BTreeSet::new();
    while let Some(world) = open.pop() {
        if world.unread.is_empty() {
            read.extend(accepts(&world.image));
            continue;
        }
        for next in world.next(pmtu) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    (seen.len(), read.into_iter().collect())
}

fn whole(image: &[u8]) -> Option<Vec<u8>> {
    match decode(image) {
        Decoded::Whole { content, .. } => Some(content),
        _ => None,
    }
}

/// A rejected design: a version in the first line and again in the last.
fn first_and_last(image: &[u8]) -> Option<Vec<u8>> {
    let last = (LINES - 1) * LINE_LEN;
    (image[0] & 1 == 0 && image[..8] == image[last..last + 8]).then(|| {
        let shares = image.chunks(LINE_LEN).enumerate();
        shares.flat_map(|(n, line)| line[if n == 0 { HEADER_LEN } else { TAG_LEN }..].to_vec()).collect()
    })
}

fn writer(tag: u64, takes_over: bool, puts: bool) -> Writer {
    Writer { tag, at: 0, seen: 0, takes_over, puts }
}

/// The writer scenarios. One writes. Two write, and the second waits for the first, or takes over from a dead
/// or seemingly dead one. The block is freed and reused meanwhile, once and twice.
fn stories() -> Vec<Vec<Writer>> {
    vec![
        vec![writer(4, false, false)],
        vec![writer(4, false, false), writer(6, false, false)],
        vec![writer(4, false, false), writer(6, true, false)],
        vec![writer(4, true, false), writer(6, true, false)],
        vec![writer(4, false, true)],
        vec![writer(4, false, true), writer(6, false, false)],
        vec![writer(4, true, false), writer(6, false, true), writer(8, true, false)],
    ]
}

/// A record that a reader accepts comes from one write, at any path MTU, with the packets of the READ
/// executed at any moments in any order.
#[test]
fn what_is_read_is_of_one_write() {
    let mut worlds = 0;
    for writers in stories() {
        // Three writers in packets of one line take minutes to explore and show nothing new.
        for pmtu in if writers.len() > 2 { [512, 1024].as_slice() } else { &[256, 512, 1024] } {
            let (count, read) = explore(&writers, *pmtu, whole);
            worlds += count;
            for content in &read {
                assert!(
                    content.iter().all(|byte| byte == &content[0]),
                    "half of one, half of another: {writers:?}"
                );
                assert_eq!(content.len(), LEN);
            }
            // The old content and, where there is time, each new one.
            assert!(read.len() > 1, "{writers:?} at {pmtu}");
        }
    }
    assert!(worlds > 10_000, "{worlds} worlds");
}

/// With a version at both ends only, the model finds an error: a READ whose last packet came first, as after
/// a loss.
#[test]
fn a_version_at_both_ends_is_not_enough() {
    let torn = |pmtu| {
        let (_, read) = explore(&[writer(4, false, false)], pmtu, first_and_last);
        read.iter().any(|content| content.iter().any(|byte| byte != &content[0]))
    };
    assert!(torn(256));
}
