//! Records of a program for a DPU process, through two rings (PROTOCOL 19.15 to 19.18): pieces of its connections,
//! and reports on its items.
//!
//! Key types: `Piece` and `Word`, the records; [`Line`], the program's end of a ring, which never waits; [`Life`],
//! the state of the DPU as the program knows it.
//!
//! This module does not parse bytes of clients and does not know the zone.

use super::parser_kind::ParserKind;
use farmem_dpu::accesses::Position;
use farmem_dpu::prefetcher::Copy;
use farmem_dpu::view::KeyId;
use farmem_link::Clock;
use farmem_link::dpu::beat::BeatMonitor;
use farmem_link::dpu::{Broken, DpuSocket as Socket, SubmissionSender};
use farmem_machine::{Duration, Instant};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Maximum number of a connection's bytes in one record; a longer piece becomes several.
pub const PIECE_MAX: usize = 16 << 10;
/// Bytes of a record in front of them.
pub(super) const PIECE_HEAD: usize = 26;
/// Maximum number of dropped keys in one record.
pub(super) const DROPS_MAX: usize = 512;
/// Length of the longest report in bytes.
pub(super) const WORD_MAX: usize = 10 + 8 * DROPS_MAX;
/// Interval between two checks of the DPU's beat.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A record of the ring of the tap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Piece<'b> {
    /// A connection begins.
    Opens { connection: u64, parser: ParserKind },
    /// Bytes of a connection; `lost` bytes before them had no room.
    Bytes { connection: u64, position: Position, lost: u64, bytes: &'b [u8] },
    /// A connection ends.
    Closes { connection: u64 },
}

impl<'b> Piece<'b> {
    pub(super) fn emit(self, into: &mut Vec<u8>) {
        into.clear();
        match self {
            Self::Opens { connection, parser } => {
                into.extend_from_slice(&[1, parser.code()]);
                into.extend_from_slice(&connection.to_be_bytes());
            }
            Self::Bytes { connection, position, lost, bytes } => {
                into.extend_from_slice(&[2, 0]);
                for word in [connection, position.0, lost] {
                    into.extend_from_slice(&word.to_be_bytes());
                }
                into.extend_from_slice(bytes);
            }
            Self::Closes { connection } => {
                into.extend_from_slice(&[3, 0]);
                into.extend_from_slice(&connection.to_be_bytes());
            }
        }
    }

    /// Parses a record; `None` if it is invalid.
    pub(super) fn parse(record: &'b [u8]) -> Option<Self> {
        let (&[op, detail], rest) = record.split_first_chunk()?;
        let (connection, rest) = word(rest)?;
        match (op, detail) {
            (1, code) if rest.is_empty() => Some(Self::Opens { connection, parser: ParserKind::of(code)? }),
            (2, 0) => {
                let (position, rest) = word(rest)?;
                let (lost, bytes) = word(rest)?;
                let position = Position(position);
                (bytes.len() <= PIECE_MAX).then_some(Self::Bytes { connection, position, lost, bytes })
            }
            (3, 0) if rest.is_empty() => Some(Self::Closes { connection }),
            _ => None,
        }
    }
}

/// A report of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Report {
    /// The program reads a record itself.
    Asks(KeyId),
    /// The program is about to use a record that it has read.
    Reads { key: KeyId, found: bool },
    /// The program changes a record.
    Changes { key: KeyId, copy: Copy, seen: Position },
    /// The program dropped `count` items: the next ones of the list of dropped keys.
    Drops { count: usize, seen: Position },
}

/// A record of the report ring: the report, and the keys of dropped items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word<'k> {
    pub(super) told: Report,
    dropped: &'k [u8],
}

impl<'k> Word<'k> {
    pub(super) fn emit(told: Report, dropped: &[KeyId], into: &mut Vec<u8>) {
        into.clear();
        match told {
            Report::Asks(key) => {
                into.extend_from_slice(&[1, 0]);
                into.extend_from_slice(&key.0.to_be_bytes());
            }
            Report::Reads { key, found } => {
                into.extend_from_slice(&[2, u8::from(found)]);
                into.extend_from_slice(&key.0.to_be_bytes());
            }
            Report::Changes { key, copy, seen } => {
                into.extend_from_slice(&[3, u8::from(copy == Copy::Retained)]);
                into.extend_from_slice(&key.0.to_be_bytes());
                into.extend_from_slice(&seen.0.to_be_bytes());
            }
            Report::Drops { seen, .. } => {
                into.extend_from_slice(&[4, 0]);
                into.extend_from_slice(&seen.0.to_be_bytes());
                dropped.iter().for_each(|key| into.extend_from_slice(&key.0.to_be_bytes()));
            }
        }
    }

    /// Parses a record; `None` if it is invalid.
    pub(super) fn parse(record: &'k [u8]) -> Option<Self> {
        let (&[op, detail], rest) = record.split_first_chunk()?;
        let (first, rest) = word(rest)?;
        let alone = |told| rest.is_empty().then_some(Self { told, dropped: &[] });
        match (op, detail) {
            (1, 0) => alone(Report::Asks(KeyId(first))),
            (2, found @ 0..=1) => alone(Report::Reads { key: KeyId(first), found: found == 1 }),
            (3, kept @ 0..=1) => {
                let (seen, rest) = word(rest)?;
                let copy = if kept == 1 { Copy::Retained } else { Copy::Dropped };
                let told = Report::Changes { key: KeyId(first), copy, seen: Position(seen) };
                rest.is_empty().then_some(Self { told, dropped: &[] })
            }
            (4, 0) => {
                let count = rest.len() / 8;
                let told = Report::Drops { count, seen: Position(first) };
                let is_right = rest.len().is_multiple_of(8) && (1..=DROPS_MAX).contains(&count);
                is_right.then_some(Self { told, dropped: rest })
            }
            _ => None,
        }
    }

    pub(super) fn dropped(&self) -> impl Iterator<Item = KeyId> {
        let (keys, _) = self.dropped.as_chunks();
        keys.iter().map(|key| KeyId(u64::from_be_bytes(*key)))
    }
}

fn word(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*word), rest))
}

/// The state of the last check of the DPU.
#[derive(Debug)]
struct Looked {
    pulse: BeatMonitor,
    at: Instant,
}

/// The state of the DPU as the program knows it: by its beat, which it counts even without work, and by its socket
/// (PROTOCOL 19.18).
#[derive(Debug)]
pub struct Life {
    /// The socket to the DPU.
    pub socket: Socket,
    /// Held by the thread that sends a request over the socket.
    pub asks: Mutex<()>,
    /// The ring of the tap, where the DPU counts its beat.
    counted: Arc<SubmissionSender>,
    clock: Clock,
    looked: Mutex<Looked>,
    is_over: AtomicBool,
}

impl Life {
    /// Creates the state of a DPU that reads this ring of a tap.
    #[must_use]
    pub fn new(socket: Socket, lease: Duration, counted: Arc<SubmissionSender>) -> Self {
        let clock = Clock::start();
        let at = clock.now();
        let looked = Mutex::new(Looked { pulse: BeatMonitor::new(lease, counted.beat(), at), at });
        let is_over = AtomicBool::new(false);
        Self { socket, asks: Mutex::new(()), counted, clock, looked, is_over }
    }

    /// Returns true if the DPU has ended, as far as this process knows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Tells the DPU that the program leaves, even if threads still hold ends of rings. The DPU then frees all state
    /// of the program.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.socket.fall_silent();
    }

    /// Checks the DPU's beat from time to time, without waiting.
    pub fn look(&self) {
        let mut looked = match self.looked.try_lock() {
            Ok(looked) => looked,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread checks.
            Err(TryLockError::WouldBlock) => return,
        };
        let now = self.clock.now();
        if now.since(looked.at) < LOOK_EVERY {
            return;
        }
        looked.at = now;
        if !self.socket.is_open() || looked.pulse.is_over(self.counted.beat(), true, now) {
            self.end();
        }
    }
}

/// The program's end of a ring to the DPU.
#[derive(Debug)]
pub struct Line {
    ring: Arc<SubmissionSender>,
    life: Arc<Life>,
    /// True if a record wakes the DPU.
    wakes: bool,
}

impl Line {
    /// Creates an end, whose records wake the DPU if `wakes` is true.
    #[must_use]
    pub const fn new(ring: Arc<SubmissionSender>, life: Arc<Life>, wakes: bool) -> Self {
        Self { ring, life, wakes }
    }

    /// Writes a record. Returns false if there is no room, or no DPU any more.
    pub(super) fn push(&self, record: &[u8]) -> bool {
        if self.is_over() {
            return false;
        }
        self.life.look();
        let pushed = if self.wakes { self.ring.push(record) } else { self.ring.push_quietly(record) };
        pushed.unwrap_or_else(|Broken| {
            // A DPU that writes invalid data counts as dead.
            self.life.end();
            false
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.life.is_over()
    }

    pub(super) fn raise_mark(&self, to: u64) {
        self.ring.raise_mark(to);
    }

    pub(super) fn mark(&self) -> u64 {
        self.ring.mark()
    }
}

/// Locks a value that no panic leaves inconsistent.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_machine::Rng;

    /// Records survive a round trip, each kind with its largest and smallest values. One byte more or less is
    /// invalid, except in a connection's bytes.
    #[test]
    fn records_survive_a_round_trip() {
        let mut record = Vec::new();
        let bytes = [7; PIECE_MAX];
        let opens = ParserKind::ALL.map(|parser| Piece::Opens { connection: u64::MAX, parser });
        let carried = [0, 1, PIECE_MAX].map(|len| Piece::Bytes {
            connection: 3,
            position: Position(u64::MAX),
            lost: 9,
            bytes: &bytes[..len],
        });
        for piece in opens.into_iter().chain(carried).chain([Piece::Closes { connection: 0 }]) {
            piece.emit(&mut record);
            assert!(record.len() <= PIECE_HEAD + PIECE_MAX);
            assert_eq!(Piece::parse(&record), Some(piece));
            record.push(0);
            let more = Piece::parse(&record);
            assert!(more.is_none() || matches!(piece, Piece::Bytes { .. }), "{more:?}");
        }
        let keys: Vec<KeyId> = (0..DROPS_MAX as u64).map(KeyId).collect();
        let (key, seen) = (KeyId(u64::MAX), Position(1));
        for told in [
            Report::Asks(key),
            Report::Reads { key, found: true },
            Report::Reads { key, found: false },
            Report::Changes { key, copy: Copy::Retained, seen },
            Report::Changes { key, copy: Copy::Dropped, seen },
            Report::Drops { count: 1, seen },
            Report::Drops { count: DROPS_MAX, seen },
        ] {
            let dropped = if let Report::Drops { count, .. } = told { &keys[..count] } else { &[] };
            Word::emit(told, dropped, &mut record);
            assert!(record.len() <= WORD_MAX);
            let word = Word::parse(&record).unwrap();
            assert_eq!((word.told, word.dropped().collect::<Vec<_>>()), (told, dropped.to_vec()));
            record.push(0);
            assert_eq!(Word::parse(&record), None);
        }
    }

    /// Random bytes are valid records or none, and never exceed the bounds.
    #[test]
    fn random_records_are_bounded() {
        let mut rng = Rng::from_number(19);
        let mut good = 0;
        for _ in 0..100_000 {
            let mut record: Vec<u8> =
                (0..rng.below(80)).map(|_| u8::try_from(rng.below(256)).unwrap()).collect();
            if let [op, detail, ..] = &mut record[..] {
                (*op, *detail) = (*op % 6, *detail % 3);
            }
            good += u32::from(Piece::parse(&record).is_some());
            if let Some(word) = Word::parse(&record) {
                good += 1;
                assert!(word.dropped().count() <= DROPS_MAX);
            }
        }
        assert!(good > 1000, "{good}");
    }
}
