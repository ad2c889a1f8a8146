//! A tap whose other end is in this process: pieces go through a list, under a lock that is held while they are
//! copied.
//!
//! Key types: [`NearTap`], the application's end; [`NearWatch`], the parsing end. If the parsing end sleeps and has a
//! bell, a hand-over wakes it. The parsing end takes all waiting pieces at once, and parses a bounded part of them in
//! each turn.
//!
//! A tap does not parse, and does not wait for room.

use super::super::ring::lock;
use super::AnyParser;
use farmem_dpu::accesses::Position;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum number of waiting pieces with bytes.
pub(super) const PIECES_MAX: usize = 1 << 14;
/// Maximum number of bytes parsed in one turn, or one larger piece: between two turns a DPU counts its beat and takes
/// reports.
pub(super) const TURN_BYTES: usize = 64 << 10;
/// Maximum number of pieces of any kind parsed in one turn.
pub(super) const TURN_PIECES: usize = 1 << 10;

/// Memory of a connection's parser before its first piece, and of its list entry.
const OPENED_LEN: usize = 256;
/// Maximum number of waiting pieces of any kind.
const ANY_PIECES_MAX: usize = 3 * PIECES_MAX;

/// Returns the maximum memory of a list: there are two of each, and either may be half empty.
pub(super) const fn bytes(bytes_max: usize, connections_max: usize) -> u64 {
    let lists = 4 * (bytes_max + ANY_PIECES_MAX * size_of::<Piece>());
    (lists + connections_max * OPENED_LEN) as u64
}

/// The function that wakes the parsing end.
pub(super) type Bell = Box<dyn Fn() + Send + Sync>;

/// A piece that an application has passed for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Piece {
    /// The next `len` bytes of the list.
    Bytes { connection: u64, len: usize, position: Position },
    /// Bytes without room.
    Lost { connection: u64, bytes: u64 },
    /// The connection is closed.
    Closed { connection: u64 },
}

impl Piece {
    const fn len(&self) -> usize {
        match self {
            Self::Bytes { len, .. } => *len,
            Self::Lost { .. } | Self::Closed { .. } => 0,
        }
    }
}

/// Pieces that wait to be parsed.
#[derive(Default)]
struct Waiting {
    /// True while the parsing end sleeps and must be woken for the next piece.
    is_asleep: bool,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    opened: Vec<(u64, AnyParser)>,
    /// If even a loss had no room: all connections up to this one are unseen from here on.
    blind_through: u64,
    /// The number of open connections, and the number of the last one.
    open: usize,
    next: u64,
    position: u64,
    lost_bytes: u64,
    refused: u64,
}

impl Waiting {
    /// Records lost bytes of a connection, behind the waiting pieces.
    fn lost(&mut self, connection: u64, more: u64) {
        self.lost_bytes = self.lost_bytes.saturating_add(more);
        if let Some(Piece::Lost { connection: of, bytes }) = self.pieces.last_mut()
            && *of == connection
        {
            *bytes = bytes.saturating_add(more);
        } else if self.pieces.len() < 2 * PIECES_MAX {
            self.pieces.push(Piece::Lost { connection, bytes: more });
        } else {
            self.blind_through = self.next;
        }
    }
}

/// The application's end.
pub(super) struct NearTap {
    waiting: Mutex<Waiting>,
    bytes_max: usize,
    connections_max: usize,
    executed: AtomicU64,
    bell: Option<Bell>,
}

impl std::fmt::Debug for NearTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NearTap").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl NearTap {
    /// Creates both ends of a list with these bounds.
    pub(super) fn make(
        bytes_max: usize,
        connections_max: usize,
        bell: Option<Bell>,
    ) -> (Arc<Self>, NearWatch) {
        let (waiting, executed) = Default::default();
        let tap = Arc::new(Self { waiting, bytes_max, connections_max, executed, bell });
        let (taken, turn, counted) = Default::default();
        (Arc::clone(&tap), NearWatch { tap, taken, turn, counted })
    }

    /// Returns a new connection's number; `None` if the connection is unseen.
    pub(super) fn open(&self, parser: AnyParser) -> Option<u64> {
        let mut waiting = lock(&self.waiting);
        if waiting.open.max(waiting.opened.len()) >= self.connections_max {
            waiting.refused += 1;
            return None;
        }
        waiting.open += 1;
        waiting.next += 1;
        let connection = waiting.next;
        waiting.opened.push((connection, parser));
        Some(connection)
    }

    pub(super) fn received(&self, connection: u64, bytes: &[u8]) -> Position {
        self.hand_over(|waiting| {
            if waiting.bytes.len() + bytes.len() > self.bytes_max || waiting.pieces.len() >= PIECES_MAX {
                waiting.lost(connection, bytes.len() as u64);
                return Position::UNKNOWN;
            }
            waiting.position += 1;
            let position = Position(waiting.position);
            waiting.bytes.extend_from_slice(bytes);
            waiting.pieces.push(Piece::Bytes { connection, len: bytes.len(), position });
            position
        })
    }

    /// Counts bytes of a connection as unseen.
    pub(super) fn lost(&self, connection: u64, bytes: u64) {
        self.hand_over(|waiting| waiting.lost(connection, bytes));
    }

    pub(super) fn close(&self, connection: u64) {
        let mut waiting = lock(&self.waiting);
        waiting.open -= 1;
        // A guard that does not learn of the end stays until there are too many; it holds nothing necessary.
        if waiting.pieces.len() < ANY_PIECES_MAX {
            waiting.pieces.push(Piece::Closed { connection });
        } else {
            waiting.blind_through = waiting.next;
        }
    }

    pub(super) fn executed(&self, position: Position) {
        self.executed.fetch_max(position.0, Ordering::Release);
    }

    pub(super) fn executed_through(&self) -> Position {
        Position(self.executed.load(Ordering::Acquire))
    }

    /// Returns the number of unseen bytes and connections.
    pub(super) fn unseen(&self) -> (u64, u64) {
        let waiting = lock(&self.waiting);
        (waiting.lost_bytes, waiting.refused)
    }

    /// Calls `does` under the lock, and wakes the other end if it sleeps.
    fn hand_over<R>(&self, does: impl FnOnce(&mut Waiting) -> R) -> R {
        let mut waiting = lock(&self.waiting);
        let done = does(&mut waiting);
        let is_asleep = std::mem::take(&mut waiting.is_asleep);
        drop(waiting);
        if let Some(bell) = self.bell.as_ref().filter(|_| is_asleep) {
            bell();
        }
        done
    }

    #[cfg(test)]
    pub(super) fn pieces(&self) -> usize {
        lock(&self.waiting).pieces.len()
    }
}

/// Notices for the parsing end, in addition to pieces.
#[derive(Default)]
pub(super) struct Arrivals {
    pub(super) opened: Vec<(u64, AnyParser)>,
    /// Bytes and connections that became unseen since the last call.
    pub(super) unseen: (u64, u64),
}

/// A batch of pieces, and the progress of parsing.
#[derive(Debug, Default)]
struct ParsedBatch {
    /// Contiguous bytes of all pieces.
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// Parsed bytes and parsed pieces.
    parsed: (usize, usize),
    /// All connections up to this one are unseen behind the last piece; 0 for none.
    blind_through: u64,
}

impl ParsedBatch {
    fn is_parsed(&self) -> bool {
        self.parsed.1 == self.pieces.len()
    }
}

/// The parsing end.
#[derive(Debug)]
pub(super) struct NearWatch {
    tap: Arc<NearTap>,
    /// The batch. Its lists are reused when it is parsed.
    taken: ParsedBatch,
    /// Bytes and pieces of this turn.
    turn: (usize, usize),
    /// Numbers of unseen bytes and connections that were reported.
    counted: (u64, u64),
}

impl NearWatch {
    /// Begins a turn: takes all waiting pieces, if the last batch is parsed.
    pub(super) fn take(&mut self) -> Arrivals {
        self.turn = (0, 0);
        if !self.taken.is_parsed() {
            return Arrivals::default();
        }
        let ParsedBatch { mut bytes, mut pieces, .. } = std::mem::take(&mut self.taken);
        bytes.clear();
        pieces.clear();
        let mut waiting = lock(&self.tap.waiting);
        let bytes = std::mem::replace(&mut waiting.bytes, bytes);
        let pieces = std::mem::replace(&mut waiting.pieces, pieces);
        let opened = std::mem::take(&mut waiting.opened);
        let blind_through = std::mem::take(&mut waiting.blind_through);
        let now = (waiting.lost_bytes, waiting.refused);
        drop(waiting);
        self.taken = ParsedBatch { bytes, pieces, parsed: (0, 0), blind_through };
        let before = std::mem::replace(&mut self.counted, now);
        Arrivals { opened, unseen: (now.0 - before.0, now.1 - before.1) }
    }

    /// Returns the next piece of this turn, and its bytes.
    pub(super) fn next(&mut self) -> Option<(Piece, &[u8])> {
        let Self { taken: ParsedBatch { bytes, pieces, parsed, .. }, turn, .. } = self;
        let piece = *pieces.get(parsed.1)?;
        let has_room = turn.1 < TURN_PIECES && turn.0 + piece.len() <= TURN_BYTES;
        if turn.1 > 0 && !has_room {
            return None;
        }
        let from = parsed.0;
        for count in [parsed, turn] {
            *count = (count.0 + piece.len(), count.1 + 1);
        }
        Some((piece, &bytes[from..from + piece.len()]))
    }

    /// Returns once, behind the last piece of the batch, the number of the connection up to which all are unseen; 0
    /// for none.
    pub(super) fn blind_through(&mut self) -> u64 {
        if self.taken.is_parsed() { std::mem::take(&mut self.taken.blind_through) } else { 0 }
    }

    /// Returns true if no piece waits.
    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_parsed() && lock(&self.tap.waiting).pieces.is_empty()
    }

    /// Ends parsing. Returns the number of unseen bytes and connections that were not reported.
    pub(super) fn left(self) -> (u64, u64) {
        let waiting = lock(&self.tap.waiting);
        let bytes = waiting.bytes.len() + self.taken.bytes.len() - self.taken.parsed.0;
        let lost = waiting.lost_bytes - self.counted.0;
        (lost.saturating_add(bytes as u64), waiting.refused - self.counted.1)
    }

    pub(super) fn executed(&self) -> Position {
        self.tap.executed_through()
    }

    /// Makes later hand-overs ring the bell. Returns true if no piece waits.
    pub(super) fn may_sleep(&self) -> bool {
        let mut waiting = lock(&self.tap.waiting);
        waiting.is_asleep = true;
        waiting.pieces.is_empty() && self.taken.is_parsed()
    }

    pub(super) fn stays_awake(&self) {
        lock(&self.tap.waiting).is_asleep = false;
    }
}
