//! Tests of both ends of a tap.

use super::near::{PIECES_MAX, TURN_BYTES, TURN_PIECES};
use super::*;
use farmem_dpu::parse::records::{Header, Records, Request};
use farmem_dpu::parse::resp::Resp;
use farmem_dpu::parse::{Access, Broken, Op, Parser};
use farmem_link::dpu::{SubmissionSender, make_submissions};
use farmem_link::{OutsideWaker, WakeAt};
use std::net::{IpAddr, Ipv4Addr};
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;

const SECRET: KeySecret = KeySecret([3, 4]);
const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

/// Returns the keys of all waiting pieces, with their positions.
fn drain(watch: &mut Watch) -> Vec<(Vec<u8>, u64)> {
    let mut all = Vec::new();
    let mut turn = || {
        watch.drain(&mut |accesses, _| {
            all.extend(accesses.iter().map(|one| (one.key.to_vec(), one.position.0)));
        })
    };
    while turn().unwrap() {}
    all
}

/// Creates the end of a DPU process, and its program's ring.
fn of_a_process() -> (SubmissionSender, Watch) {
    const RING: usize = 1 << 15;
    let file = make_submissions(RING).unwrap();
    let no_listener = WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 3, 4)) };
    let ring = SubmissionSender::of(&file, RING, OutsideWaker::open(&no_listener).unwrap()).unwrap();
    (ring, Watch::far(Submissions::of(&file, RING).unwrap(), SECRET))
}

/// Pieces of two connections, one split within a request: each access has the number of the piece that completed its
/// key.
#[test]
fn pieces_are_parsed() {
    let (tap, mut watch) = tap(1 << 16, SECRET);
    let one = tap.connection(Box::new(Resp::new())).unwrap();
    let other = tap.connection(Box::new(Resp::new())).unwrap();
    let positions = [one.received(&GET[..7]), other.received(GET), one.received(&GET[7..])];
    assert_eq!(positions.map(|position| position.0), [1, 2, 3]);
    assert_eq!(drain(&mut watch), [(b"k".to_vec(), 2), (b"k".to_vec(), 3)]);
    assert!(!watch.drain(&mut |_, _| panic!("there is nothing")).unwrap());
    drop(one);
    drain(&mut watch);
    assert_eq!(watch.reading.guards.len(), 1);
}

/// The other end does not parse: pieces without room are unseen, and the connection with a torn request is cut off.
/// Another connection, without a loss, continues.
#[test]
fn bytes_without_room_are_unseen() {
    let (tap, mut watch) = tap(3 * GET.len(), SECRET);
    let torn = tap.connection(Box::new(Resp::new())).unwrap();
    let whole = tap.connection(Box::new(Resp::new())).unwrap();
    torn.received(GET);
    whole.received(GET);
    torn.received(&GET[..5]);
    assert_eq!(torn.received(GET), Position::UNKNOWN);
    assert_eq!(drain(&mut watch).len(), 2);
    torn.received(GET);
    whole.received(GET);
    assert_eq!(drain(&mut watch).len(), 1);
    let stats = watch.stats();
    assert_eq!((stats.lost_bytes, stats.cut_by_loss), (GET.len() as u64, 1));
    assert_eq!(stats.passed_over, GET.len() as u64);
}

/// A loss within a value does not end the connection.
#[test]
fn a_loss_within_a_value_is_tolerated() {
    let header = Header { request: Request::Write, key_len: 1, value_len: 100 }.emit();
    let (tap, mut watch) = tap(90, SECRET);
    let connection = tap.connection(Box::new(Records::hash_map())).unwrap();
    connection.received(&[&header[..], b"k", &[7; 60]].concat());
    assert_eq!(connection.received(&[7; 40]), Position::UNKNOWN);
    drain(&mut watch);
    let read = Header { request: Request::Read, key_len: 1, value_len: 0 }.emit();
    connection.received(&[&read[..], b"r"].concat());
    assert_eq!(drain(&mut watch), [(b"r".to_vec(), 2)]);
    assert_eq!(watch.stats().cut_by_loss, 0);
}

/// Too many losses to record: all connections that were open are unseen from then on, and later ones are seen.
#[test]
fn too_many_losses_hide_all_open_connections() {
    let (tap, mut watch) = tap(0, SECRET);
    let pair = [(); 2].map(|()| tap.connection(Box::new(Resp::new())).unwrap());
    for _ in 0..2 * PIECES_MAX {
        pair.iter().for_each(|connection| {
            connection.received(b"x");
        });
    }
    let Channel::Near(near) = &*tap.way else { unreachable!() };
    assert!(near.pieces() <= 2 * PIECES_MAX, "bounded");
    drain(&mut watch);
    assert_eq!(watch.reading.guards.len(), 0);
    let _later = tap.connection(Box::new(Resp::new())).unwrap();
    drain(&mut watch);
    assert_eq!(watch.reading.guards.len(), 1);
}

/// A parser that panics on 'p', reports without end on 'w', and else reports each byte.
struct Bad;

impl Parser for Bad {
    fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
        for byte in bytes {
            match byte {
                b'p' => resume_unwind(Box::new("a panic of a parser")),
                b'w' => loop {
                    each(Access { key: b"w", op: Op::Read });
                },
                _ => each(Access { key: &[*byte], op: Op::Read }),
            }
        }
        Ok(())
    }

    fn lost(&mut self, _: u64) -> bool {
        true
    }

    fn kept(&self) -> usize {
        0
    }
}

/// A parser that panics and one that never ends are cut off and counted; others continue.
#[test]
fn a_bad_parser_affects_only_its_connection() {
    let (tap, mut watch) = tap(1 << 16, SECRET);
    let [panics, wild, good] = [(); 3].map(|()| tap.connection(Box::new(Bad)).unwrap());
    panics.received(b"ap");
    wild.received(b"aw");
    good.received(b"a");
    panics.received(b"b");
    wild.received(b"b");
    good.received(b"b");
    let keys: Vec<_> = drain(&mut watch).into_iter().map(|(key, _)| key[0]).collect();
    assert_eq!(keys, *b"aawab");
    let stats = watch.stats();
    assert_eq!((stats.panicked, stats.wild, stats.passed_over), (1, 1, 2));
}

/// A mirror beside a program of another process: each connection has its own parser, although both sides
/// number from 1. Unseen bytes and connections of both are counted. A mirror's pieces have no position, because only the
/// program's own pieces order its requests.
#[test]
fn a_mirror_works_beside_a_programs_ring() {
    let (ring, mut watch) = of_a_process();
    let push = |piece: ring::Piece<'_>| {
        let mut record = Vec::new();
        piece.emit(&mut record);
        assert!(ring.push_quietly(&record).unwrap());
    };
    let rung = Arc::new(AtomicU64::new(0));
    let bell = Arc::clone(&rung);
    let mirror = watch.beside(
        2 * GET.len(),
        2,
        Box::new(move || {
            bell.fetch_add(1, Ordering::Relaxed);
        }),
    );
    let mirrored = [(); 2].map(|()| mirror.connection(ParserKind::Resp.parser()).unwrap());
    assert!(mirror.connection(ParserKind::Resp.parser()).is_none(), "it may have two");
    push(ring::Piece::Opens { connection: 1, parser: ParserKind::Memcached });
    let bytes = |connection, bytes| ring::Piece::Bytes { connection, position: Position(9), lost: 3, bytes };
    push(ring::Piece::Bytes { connection: 1, position: Position(7), lost: 0, bytes: b"get of-program\r\n" });
    ring.raise_mark(100);
    mirrored[0].received(GET);
    let mut all = Vec::new();
    let drained = watch.drain(&mut |accesses, executed| {
        all.extend(accesses.iter().map(|one| (one.key.to_vec(), one.position)));
        assert_eq!(executed, Position(100));
    });
    assert!(drained.unwrap());
    assert_eq!(all, [(b"of-program".to_vec(), Position(7)), (b"k".to_vec(), Position::UNKNOWN)]);
    // One connection of each is cut off and ends; the others are unchanged.
    push(bytes(1, b"get lost\r\n"));
    mirrored[1].received(&GET[..3]);
    mirrored[1].received(GET);
    mirrored[1].received(GET);
    assert!(drain(&mut watch).is_empty());
    push(ring::Piece::Closes { connection: 1 });
    mirrored[0].received(GET);
    assert_eq!(drain(&mut watch), [(b"k".to_vec(), 0)]);
    let seen = watch.stats();
    let unseen = (seen.lost_bytes, seen.refused, seen.cut_by_loss, seen.broken);
    assert_eq!(unseen, (3 + GET.len() as u64, 1, 1, 1), "{seen:?}");
    assert_eq!(watch.reading.guards.len(), 2);
    drop(mirrored);
    assert!(drain(&mut watch).is_empty());
    assert_eq!(watch.reading.guards.len(), 0);
    // A sleeping end is woken once, by the first hand-over; an end with work does not sleep.
    assert_eq!(rung.load(Ordering::Relaxed), 0);
    let connection = mirror.connection(ParserKind::Resp.parser()).unwrap();
    assert!(watch.may_sleep());
    connection.received(GET);
    connection.received(&GET[..2]);
    assert_eq!(rung.load(Ordering::Relaxed), 1);
    assert!(!watch.may_sleep());
    watch.stays_awake();
    drain(&mut watch);
    connection.received(&GET[2..]);
    assert_eq!(rung.load(Ordering::Relaxed), 1);
    assert!(!watch.may_sleep());
    drain(&mut watch);
    assert!(watch.may_sleep());
    push(bytes(2, b""));
    assert!(!watch.may_sleep());
}

/// Returns a piece of `len` bytes: one record with this key.
fn record(key: u64, len: usize) -> Vec<u8> {
    let request = if len == 16 { Request::Read } else { Request::Write };
    let value_len = u32::try_from(len - 16).unwrap();
    let header = Header { request, key_len: 8, value_len }.emit();
    [&header[..], &key.to_be_bytes(), &vec![7; len - 16]].concat()
}

/// Far more waits than a turn takes, from a program of this process and from a mirror. Each turn takes whole pieces
/// of at most 64 KiB, a longer one alone, and a bounded number of short ones. Nothing is lost or reordered, and an
/// end with work does not sleep. Before the fix, one turn parsed all, and a process saw no beat of its DPU meanwhile.
#[test]
fn a_turn_takes_a_bounded_part() {
    const PIECE: usize = 10 << 10;
    let (near, of_near) = tap(1 << 20, SECRET);
    let (_ring, mut of_far) = of_a_process();
    let beside = of_far.beside(1 << 20, 4, Box::new(|| {}));
    for (tap, mut watch) in [(near, of_near), (beside, of_far)] {
        let connections = [(); 2].map(|()| tap.connection(ParserKind::HashMap.parser()).unwrap());
        let mut many = 0;
        let hand_over = |many: &mut usize, count: usize, len: usize| {
            for _ in 0..count {
                connections[*many % 2].received(&record(*many as u64, len));
                *many += 1;
            }
        };
        hand_over(&mut many, 13, PIECE);
        hand_over(&mut many, 1, 2 * TURN_BYTES);
        hand_over(&mut many, 1, PIECE);
        hand_over(&mut many, 2 * TURN_PIECES + 7, 16);
        hand_over(&mut many, 20, PIECE);
        let (mut turns, mut keys) = (Vec::new(), Vec::new());
        loop {
            let before = watch.stats();
            let turned = watch.drain(&mut |accesses, _| {
                keys.extend(accesses.iter().map(|one| u64::from_be_bytes(one.key.try_into().unwrap())));
            });
            if !turned.unwrap() {
                break;
            }
            let now = watch.stats();
            turns.push((now.pieces - before.pieces, now.bytes - before.bytes));
            if turns.len() == 1 {
                hand_over(&mut many, 8, PIECE);
            }
            assert_eq!(watch.may_sleep(), watch.beside_is_empty() && keys.len() == many, "after {turns:?}");
            watch.stays_awake();
        }
        let (piece, long, short) = (PIECE as u64, 2 * TURN_BYTES as u64, TURN_PIECES as u64);
        // Behind the last long one come as many short ones as a turn has pieces for.
        let first_short = short - 1;
        let expected = [
            (6, 6 * piece),
            (6, 6 * piece),
            (1, piece),
            (1, long),
            (short, piece + 16 * first_short),
            (short, 16 * short),
            (8 + 6, 16 * 8 + 6 * piece),
            (6, 6 * piece),
            (6, 6 * piece),
            (2, 2 * piece),
            (6, 6 * piece),
            (2, 2 * piece),
        ];
        assert_eq!(turns, expected);
        assert!(turns.iter().all(|(_, bytes)| *bytes <= TURN_BYTES as u64 || *bytes == long));
        assert_eq!(keys, (0..many as u64).collect::<Vec<_>>());
        assert_eq!((watch.stats().lost_bytes, tap.unseen()), (0, (0, 0)));
    }
}

/// A mirror ends with half a request parsed and more waiting. All memory is freed, unparsed bytes count as unseen,
/// and its connections end. The next mirror, with the same connection numbers, is parsed from its first byte on. The
/// program's own connections are unchanged.
#[test]
fn an_ended_mirror_leaves_no_state() {
    let (ring, mut watch) = of_a_process();
    let mut opens = Vec::new();
    ring::Piece::Opens { connection: 1, parser: ParserKind::Resp }.emit(&mut opens);
    assert!(ring.push_quietly(&opens).unwrap());
    for _ in 0..2 {
        let mirror = watch.beside(3 * TURN_BYTES, 2, Box::new(|| {}));
        let Channel::Near(near) = &*mirror.way else { unreachable!() };
        let memory = Arc::downgrade(near);
        let both = [(); 2].map(|()| mirror.connection(ParserKind::Resp.parser()).unwrap());
        assert!(mirror.connection(ParserKind::Resp.parser()).is_none());
        both[0].received(GET);
        both[1].received(&GET[..7]);
        let before = watch.stats();
        assert_eq!(drain(&mut watch), [(b"k".to_vec(), 0)]);
        assert_eq!((watch.reading.guards.len(), watch.beside_is_empty()), (3, true));
        both[0].received(&[b'x'; TURN_BYTES]);
        both[0].received(GET);
        watch.drain(&mut |_, _| ()).unwrap();
        both[1].received(&GET[7..]);
        both[1].received(&[b'x'; 3 * TURN_BYTES]);
        assert!(!watch.beside_is_empty());
        drop((both, mirror));
        watch.alone();
        assert!(memory.upgrade().is_none() && watch.beside_is_empty());
        let (lost, refused) =
            (watch.stats().lost_bytes - before.lost_bytes, watch.stats().refused - before.refused);
        assert_eq!((lost, refused), ((2 * GET.len() - 7 + 3 * TURN_BYTES) as u64, 1));
        assert_eq!(watch.reading.guards.len(), 1);
    }
}
