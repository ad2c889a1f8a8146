//! Tests of tap, `Reporter` and zone as memory of two processes, with both ends in this one: lack of room, losses, and
//! a malicious program.

use super::reporter::Hearing;
use super::ring::{Life, Line, Piece, Word};
use super::tap::{ParserKind, Tap, Watch};
use super::*;
use crate::loading_zone::{Finding, ZoneProducer, make_zone};
use farmem_client::{Client, Completed, Error, LookUp, LookedUp, Op, Rack, VirtAddr};
use farmem_link::dpu::{DpuSocket, Listener, SubmissionSender, Submissions, make_submissions};
use farmem_link::{OpenError, OutsideWaker, WakeAt};
use farmem_machine::{Duration, Rng};
use farmem_paging::Waste;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const SECRET: KeySecret = KeySecret([17, 4791]);
const RING: usize = 1 << 15;
const ZONE: ZoneSize = ZoneSize { items: 16, data: 1 << 12 };
const RECORDS: u64 = 64;

/// A structure of contiguous records of 16 bytes, by number: a version and an item.
struct Records {
    base: u64,
    /// True if the structure cannot be entered, as without a lease.
    is_shut: Arc<AtomicBool>,
    /// Number of attempts to enter the structure.
    entered: Arc<AtomicU32>,
}

impl LookUp for Records {
    fn begin(&mut self, _: &mut Client) -> Result<(), Error> {
        self.entered.fetch_add(1, Ordering::Relaxed);
        let what = || "records, which are shut".to_owned();
        if self.is_shut.load(Ordering::Relaxed) { Err(Error::Missing { what: what() }) } else { Ok(()) }
    }

    fn op(&self, key: &[u8], mut buf: Vec<u8>) -> Option<Op> {
        let number = u64::from_le_bytes(key.try_into().ok()?);
        buf.resize(16, 0);
        (number < RECORDS).then_some(Op::Read { addr: VirtAddr(self.base + number * 16), buf })
    }

    fn looked_up(&self, _: usize, _: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp {
        into.extend_from_slice(&completed.buf);
        if completed.result.is_ok() { LookedUp::Value } else { LookedUp::Elsewhere }
    }

    fn end(&mut self, _: &mut Client) -> Result<(), Error> {
        Ok(())
    }
}

/// Both ends, the files between them, and the program's handles.
struct World {
    files: [OwnedFd; 3],
    tap: Tap,
    beside: Reporter,
    taker: Taker,
    driver: Driver<KeySet, Records, SharedZone>,
    /// A client of the program, and the address of the records.
    client: Client,
    base: u64,
    is_shut: Arc<AtomicBool>,
    entered: Arc<AtomicU32>,
    _door: (Listener, tempfile::TempDir),
}

impl World {
    fn new(rack: &Rack, floors: NonZeroU32) -> Self {
        let mut client = rack.client("far").unwrap();
        let base = client.allocate(RECORDS * 16).unwrap().base.0;
        for number in 0..RECORDS {
            client
                .write(VirtAddr(base + number * 16), &[1_u64, number].map(u64::to_le_bytes).concat())
                .unwrap();
        }
        let files =
            [make_submissions(RING).unwrap(), make_submissions(RING).unwrap(), make_zone(ZONE).unwrap()];
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("door").join("dpu");
        let listener = Listener::bind(&path).unwrap();
        let no_listener = WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 3, 4)) };
        let sender = |file| {
            Arc::new(SubmissionSender::of(file, RING, OutsideWaker::open(&no_listener).unwrap()).unwrap())
        };
        let pieces = sender(&files[0]);
        let life = Arc::new(Life::new(
            DpuSocket::connect(&path).unwrap(),
            Duration::from_secs(1000),
            Arc::clone(&pieces),
        ));
        let tap = Tap::far(Line::new(pieces, Arc::clone(&life), false));
        let (unused, _) = tap::tap(0, SECRET);
        let beside = Reporter::new(unused, SECRET, floors, Change(1));
        let beside = beside.by(tap.clone(), Line::new(sender(&files[1]), life, false));
        let reader = ZoneReader::of(&files[2], ZONE, Finding::Index).unwrap();
        let taker = Taker::new(&reader, &beside);
        let watch = Watch::far(Submissions::of(&files[0], RING).unwrap(), SECRET);
        let hearing = Hearing::far(Submissions::of(&files[1], RING).unwrap());
        let zone = SharedZone::of(ZoneProducer::of(&files[2], ZONE).unwrap());
        let config = Config { flying_keys_max: 40, ..Config::DEFAULT };
        let (view, of_dpu) = (KeySet::new(100), rack.client("far").unwrap());
        let is_shut = Arc::<AtomicBool>::default();
        let entered = Arc::<AtomicU32>::default();
        let records = Records { base, is_shut: Arc::clone(&is_shut), entered: Arc::clone(&entered) };
        let driver = Driver::of(config, view, (watch, hearing, Change(1)), of_dpu, records, zone);
        let _door = (listener, directory);
        Self { files, tap, beside, taker, driver, client, base, is_shut, entered, _door }
    }

    fn flush(&mut self, number: u64, item: u64) {
        let change = self.beside.change(&number.to_le_bytes(), Copy::Dropped);
        let record = [change.0, item].map(u64::to_le_bytes).concat();
        self.client.write(VirtAddr(self.base + number * 16), &record).unwrap();
        self.beside.acknowledged(change);
    }

    fn take(&mut self, number: u64) -> Option<u64> {
        let mut item = Vec::new();
        self.taker.take(&number.to_le_bytes(), &mut item)?;
        Some(u64::from_le_bytes(item[..].try_into().unwrap()))
    }
}

fn read(number: u64) -> Vec<u8> {
    let header = parse::records::Header { request: parse::records::Request::Read, key_len: 8, value_len: 0 };
    [&header.emit()[..], &number.to_le_bytes()].concat()
}

/// The program reports more than there is room for, while no driver runs. The program waits for nothing, and counts
/// unseen and unheard reports. The DPU later learns of the gap with the next bytes of that connection, which is cut
/// off; another continues. Acknowledged changes are never lost: with one floor for all, an item older than the last
/// change is taken (PROTOCOL 19.16, 19.17).
#[test]
fn reports_without_room_are_counted_and_acks_kept() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut world = World::new(&rack, NonZeroU32::MIN);
    let [torn, whole] = [(); 2].map(|()| world.tap.connection_of(ParserKind::HashMap).unwrap());
    whole.received(&read(1));
    let long = vec![0; 1000];
    torn.received(&read(2)[..4]);
    let lost = (0..100).filter(|_| torn.received(&long) == Position::UNKNOWN).count() as u64;
    assert!((60..100).contains(&lost), "{lost}");
    assert_eq!(world.tap.unseen(), (lost * 1000, 0));
    (0..RING as u64).for_each(|n| world.beside.asks(&(1000 + n).to_le_bytes()));
    assert!(world.beside.unheard() > 0);
    world.flush(1, 100);
    world.flush(2, 200);
    assert_eq!(world.beside.acknowledged_through(), Change(3));
    world.driver.settle().unwrap();
    // Zeros are no record, and later bytes are not parsed.
    assert_eq!(world.driver.seen().lost_bytes, 0, "it was not told yet");
    torn.received(&read(4));
    whole.received(&read(2));
    world.driver.settle().unwrap();
    let seen = world.driver.seen();
    assert_eq!((seen.lost_bytes, seen.broken), (lost * 1000, 1), "{seen:?}");
    // The record of 1 is older than the last change, whose number is the floor of all.
    assert_eq!([1, 2, 4].map(|number| world.take(number)), [Some(100), Some(200), None]);
    drop((torn, whole));
    world.driver.settle().unwrap();
    assert_eq!(world.driver.seen().refused, 0);
    world.driver.prefetcher().check();
}

/// A driver of this process is refused a `Reporter` whose reports go to another process's DPU; the error names the
/// right one. Before the fix, the driver started and never got a report.
#[test]
fn a_driver_refuses_a_foreign_beside() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let World { mut driver, beside, base, .. } = World::new(&rack, FLOORS);
    let (near, watch) = tap::tap(0, SECRET);
    let new = |beside: &Reporter, watch| {
        let parts = (watch, beside, Change(1));
        let client = rack.client("far").unwrap();
        let records = Records { base, is_shut: Arc::default(), entered: Arc::default() };
        Driver::new(
            Config::DEFAULT,
            KeySet::new(10),
            parts,
            client,
            records,
            SharedZone::make(ZONE).unwrap().0,
        )
    };
    let refused = new(&beside, watch).err().expect("it hears nothing");
    assert!(matches!(refused, Error::Open(OpenError::Setting { .. })), "{refused:?}");
    assert!(refused.to_string().contains("another process"), "{refused}");
    let (_, watch) = tap::tap(0, SECRET);
    assert!(driver.restarted(&beside, watch, Change(1)).is_err());
    let (_, watch) = tap::tap(0, SECRET);
    assert!(new(&Reporter::new(near, SECRET, FLOORS, Change(1)), watch).is_ok());
}

/// A message for a structure that cannot be entered counts as failed, as without an answer of far memory. So a DPU
/// whose host was fenced notices this (PROTOCOL 19.18). Before the fix, only submitted operations counted. When the
/// structure can be entered, items come again.
#[test]
fn a_structure_that_cannot_be_entered_counts_as_failed() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut world = World::new(&rack, FLOORS);
    let connection = world.tap.connection_of(ParserKind::HashMap).unwrap();
    world.is_shut.store(true, Ordering::Relaxed);
    connection.received(&read(1));
    world.driver.settle().unwrap();
    assert_eq!((world.driver.came(), world.take(1)), ((0, 1), None));
    world.is_shut.store(false, Ordering::Relaxed);
    connection.received(&read(2));
    world.driver.settle().unwrap();
    assert_eq!((world.driver.came(), world.take(2)), ((1, 1), Some(2)));
    world.driver.prefetcher().check();
}

/// Two messages in one turn need a structure that cannot be entered. The driver tries once, which may take seconds if
/// far memory is silent, and both fail. The next turn tries again. Before the fix, each message tried, and no report
/// was taken meanwhile.
#[test]
fn a_closed_structure_is_tried_once_per_turn() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut world = World::new(&rack, FLOORS);
    let connection = world.tap.connection_of(ParserKind::HashMap).unwrap();
    let counts = |world: &World| {
        let prefetcher = world.driver.prefetcher();
        prefetcher.check();
        let failed = prefetcher.account().wasted_by(Waste::Failed);
        (world.entered.load(Ordering::Relaxed), prefetcher.stats().messages, failed, world.driver.came())
    };
    world.is_shut.store(true, Ordering::Relaxed);
    connection.received(&(0..40).flat_map(read).collect::<Vec<u8>>());
    assert!(world.driver.turn().unwrap());
    assert_eq!(counts(&world), (1, 2, 40, (0, 1)));
    connection.received(&(0..40).flat_map(read).collect::<Vec<u8>>());
    assert!(world.driver.turn().unwrap());
    assert_eq!(counts(&world), (2, 4, 80, (0, 2)));
    world.is_shut.store(false, Ordering::Relaxed);
    connection.received(&(40..50).flat_map(read).collect::<Vec<u8>>());
    world.driver.settle().unwrap();
    assert_eq!((counts(&world), world.take(44)), ((3, 5, 80, (10, 2)), Some(44)));
}

/// Sends well-formed records with false contents: unknown connections, positions and marks of any size, changes of
/// absent items, reads without a request.
fn lies(world: &World, rng: &mut Rng, rings: &[SubmissionSender; 2]) {
    let mut record = Vec::new();
    let mut any = || match rng.below(3) {
        0 => u64::from(rng.below(100)),
        1 => u64::MAX - u64::from(rng.below(3)),
        _ => u64::from_le_bytes(std::array::from_fn(|_| u8::try_from(rng.below(256)).unwrap())),
    };
    let connection = any() % 5;
    let keys: Vec<u8> = (0..any() % 40).flat_map(|_| read(any() % 100)).collect();
    let pieces = [
        Piece::Opens { connection, parser: ParserKind::ALL[usize::try_from(any() % 5).unwrap()] },
        Piece::Opens { connection, parser: ParserKind::HashMap },
        Piece::Bytes { connection, position: Position(any()), lost: 0, bytes: &keys },
        Piece::Bytes {
            connection,
            position: Position(any()),
            lost: (any() % 3).wrapping_mul(any()),
            bytes: &keys,
        },
        Piece::Closes { connection },
    ];
    pieces[usize::try_from(any() % 5).unwrap()].emit(&mut record);
    rings[0].push_quietly(&record).unwrap();
    let (key, seen) = (KeyId(any() % 100), Position(any()));
    let dropped: Vec<KeyId> = (0..1 + any() % 20).map(|_| KeyId(any() % 100)).collect();
    let said = [
        ring::Report::Asks(key),
        ring::Report::Reads { key, found: any() % 2 == 0 },
        ring::Report::Changes { key, copy: Copy::Dropped, seen },
        ring::Report::Changes { key, copy: Copy::Retained, seen },
        ring::Report::Drops { count: dropped.len(), seen },
    ];
    Word::emit(said[usize::try_from(any() % 5).unwrap()], &dropped, &mut record);
    rings[1].push_quietly(&record).unwrap();
    if any() % 8 == 0 {
        rings[usize::try_from(any() % 2).unwrap()].raise_mark(any());
    }
    // Claims, descriptors, the index: all except the front, which identifies the file.
    if any() % 4 == 0 {
        let zone = File::from(world.files[2].try_clone().unwrap());
        let at = 64 + any() % (zone.metadata().unwrap().len() - 72);
        zone.write_all_at(&any().to_le_bytes(), at).unwrap();
    }
}

/// Writes random bytes as records, and into all of the rings' memory.
fn nonsense(world: &World, rng: &mut Rng, rings: &[SubmissionSender; 2]) {
    let bytes: Vec<u8> =
        (0..rng.below(60)).map(|_| u8::try_from(rng.below(256) & rng.below(256)).unwrap()).collect();
    for ring in rings {
        // A ring with damaged counts refuses.
        let _spoilt = ring.push_quietly(&bytes);
    }
    for file in &world.files[..2] {
        let file = File::from(file.try_clone().unwrap());
        let at = 64 + u64::from(rng.below(u32::try_from(file.metadata().unwrap().len()).unwrap() - 128));
        file.write_all_at(&bytes, at).unwrap();
    }
}

/// A program writes arbitrary data into all memory that it shares. Its DPU continues or ends the service, and stays
/// within its bounds. False but well-formed reports affect only the program's own items (PROTOCOL 19.15).
#[test]
fn a_hostile_program_harms_only_itself() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut given_up, mut fetched) = (0, 0);
    for seed in 0..120_u64 {
        let mut rng = Rng::from_number(seed);
        let mut world = World::new(&rack, FLOORS);
        let no_listener = WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 3, 4)) };
        let rings = [0, 1].map(|ring| {
            SubmissionSender::of(&world.files[ring], RING, OutsideWaker::open(&no_listener).unwrap()).unwrap()
        });
        for _ in 0..150 {
            if seed % 3 == 0 {
                nonsense(&world, &mut rng, &rings);
            } else {
                lies(&world, &mut rng, &rings);
            }
            match world.driver.turn() {
                Ok(_) => {}
                Err(Error::System { .. }) if seed % 3 == 0 => {
                    given_up += 1;
                    break;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
            assert!(world.driver.prefetcher().flying() <= 40, "seed {seed}");
            world.driver.prefetcher().check();
        }
        fetched += world.driver.prefetcher().account().wanted;
    }
    assert!(given_up > 20 && fetched > 1000, "{given_up} were given up, {fetched} fetched");
}
