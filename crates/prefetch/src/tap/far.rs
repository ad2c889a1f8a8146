//! A tap whose other end is in the DPU's process: pieces go through a ring, into which all threads of the program
//! write (PROTOCOL 19.16).
//!
//! Key types: [`FarTap`], the program's end; [`FarWatch`], the DPU's end. No thread waits for room. The next piece of
//! a connection reports bytes that had none. The end of a connection that had none is reported before the next
//! connection begins.
//!
//! Both processes must know the parser; a parser cannot be sent.

use super::super::ring::{Line, PIECE_HEAD, PIECE_MAX, Piece, lock};
use super::{CONNECTIONS_MAX, ParserKind};
use farmem_dpu::accesses::Position;
use farmem_link::dpu::{Broken, Submissions};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of records taken before their accesses are handled.
const RECORDS_AT_ONCE: u32 = 256;

/// Connections of a program.
#[derive(Debug, Default)]
struct Connections {
    /// Number of open connections, as far as the DPU knows.
    open: usize,
    /// The number of the last connection.
    last: u64,
    /// Ended connections of which the DPU does not know yet.
    ended: Vec<u64>,
}

/// The program's end.
#[derive(Debug)]
pub(super) struct FarTap {
    line: Line,
    connections: Mutex<Connections>,
    position: AtomicU64,
    lost_bytes: AtomicU64,
    refused: AtomicU64,
}

impl FarTap {
    pub(super) fn new(line: Line) -> Self {
        let (position, lost_bytes, refused) = Default::default();
        Self { line, connections: Mutex::default(), position, lost_bytes, refused }
    }

    /// Returns a new connection's number; `None` if the connection is unseen.
    pub(super) fn open(&self, parser: ParserKind) -> Option<u64> {
        let mut connections = lock(&self.connections);
        let mut record = Vec::new();
        self.tell_ended(&mut connections, &mut record);
        if connections.open < CONNECTIONS_MAX {
            let connection = connections.last + 1;
            Piece::Opens { connection, parser }.emit(&mut record);
            if self.line.push(&record) {
                (connections.open, connections.last) = (connections.open + 1, connection);
                return Some(connection);
            }
        }
        self.refuse();
        None
    }

    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn close(&self, connection: u64) {
        let mut connections = lock(&self.connections);
        connections.ended.push(connection);
        self.tell_ended(&mut connections, &mut Vec::new());
    }

    fn tell_ended(&self, connections: &mut Connections, record: &mut Vec<u8>) {
        while let Some(&connection) = connections.ended.last() {
            Piece::Closes { connection }.emit(record);
            if !self.line.push(record) {
                return;
            }
            connections.ended.pop();
            connections.open -= 1;
        }
    }

    /// Passes bytes of a connection. `missing` counts bytes that the DPU does not know of yet.
    pub(super) fn received(&self, connection: u64, missing: &AtomicU64, bytes: &[u8]) -> Position {
        let position = Position(self.position.fetch_add(1, Ordering::Relaxed) + 1);
        let mut record = Vec::with_capacity(PIECE_HEAD + bytes.len().min(PIECE_MAX));
        let mut rest = bytes;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(PIECE_MAX));
            let lost = missing.swap(0, Ordering::Relaxed);
            Piece::Bytes { connection, position, lost, bytes: part }.emit(&mut record);
            if !self.line.push(&record) {
                self.lose(missing, lost);
                self.lost(missing, rest.len() as u64);
                return Position::UNKNOWN;
            }
            rest = behind;
        }
        position
    }

    /// Counts bytes of a connection as unseen.
    pub(super) fn lost(&self, missing: &AtomicU64, bytes: u64) {
        self.lose(missing, bytes);
        self.lose(&self.lost_bytes, bytes);
    }

    fn lose(&self, count: &AtomicU64, more: u64) {
        if more > 0 {
            let add = |count: u64| Some(count.saturating_add(more));
            // The closure always returns a sum.
            let _before = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }

    pub(super) fn executed(&self, position: Position) {
        self.line.raise_mark(position.0);
    }

    pub(super) fn executed_through(&self) -> Position {
        Position(self.line.mark())
    }

    /// Returns the number of bytes and connections that the DPU did not see.
    pub(super) fn unseen(&self) -> (u64, u64) {
        (self.lost_bytes.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    pub(super) fn is_over(&self) -> bool {
        self.line.is_over()
    }
}

/// The DPU's end. Each record is copied out of the ring before it is read.
#[derive(Debug)]
pub(super) struct FarWatch {
    pieces: Submissions,
    buf: Vec<u8>,
}

impl FarWatch {
    pub(super) fn new(pieces: Submissions) -> Self {
        Self { pieces, buf: vec![0; PIECE_HEAD + PIECE_MAX] }
    }

    /// Takes the program's pieces in order, until `each` returns false. Returns false if there was none.
    pub(super) fn take(&mut self, mut each: impl FnMut(Piece<'_>) -> bool) -> Result<bool, Broken> {
        let mut taken = 0;
        while taken < RECORDS_AT_ONCE {
            let Some(len) = self.pieces.pop(&mut self.buf)? else { break };
            taken += 1;
            if !each(Piece::parse(&self.buf[..len]).ok_or(Broken)?) {
                break;
            }
        }
        self.pieces.release();
        Ok(taken > 0)
    }

    pub(super) fn executed(&self) -> Position {
        Position(self.pieces.mark())
    }

    pub(super) fn may_sleep(&self) -> bool {
        self.pieces.may_sleep()
    }

    pub(super) fn stays_awake(&self) {
        self.pieces.stays_awake();
    }

    pub(super) fn beat(&self) {
        self.pieces.beat();
    }
}
