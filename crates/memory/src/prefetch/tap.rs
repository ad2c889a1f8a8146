//! An in-process mirror (PD3 5.1): an application hands over the bytes that it received, before it acts on them.
//!
//! Key types: [`Tap`], the application's, from any number of threads; [`TapConnection`], one for each of its connections; [`Watch`], the DPU's end, which parses. No
//! privileges, and it sees through TLS. Handing over takes a lock for as long as a copy takes and waits for nothing else: when there is no room, or the other end
//! parses no more, the bytes count as not seen, and the parser is told (PROTOCOL 19.13).
//!
//! The DPU may be a process of its own ([`super::AtDpu`]): then pieces go through a ring, and threads share no lock.
//!
//! What it does not do: keep order between threads that hand over pieces of one connection, or find out that a parser never returns.

mod far;
mod guards;

use super::ring::{self, Line};
use far::{FarTap, FarWatch};
use farmem_dpu::accesses::{ACCESSES_MAX, Accesses, Position};
use farmem_dpu::parse::Parser;
use farmem_dpu::parse::guard::Cut;
use farmem_dpu::view::KeySecret;
use farmem_io::dpu::{Broken, Submissions};
use guards::Guards;
pub(super) use guards::PARSERS_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections that are watched at once; those beyond are not seen.
pub const CONNECTIONS_MAX: usize = 1 << 16;
/// Pieces that wait to be parsed.
const PIECES_MAX: usize = 1 << 14;
/// Accesses after which they are handed on.
const HAND_ON: usize = ACCESSES_MAX / 2;

/// A parser of any kind.
pub type AnyParser = Box<dyn Parser + Send>;

/// A protocol whose parser is here: a DPU that is a process has these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Redis's clients ([`farmem_dpu::parse::resp`]).
    Resp,
    /// memcached's, text and meta.
    Memcached,
    /// HTTP/1.1.
    Http,
    /// Records of the hash map (PROTOCOL 19.14).
    HashMap,
    /// Records of the page server.
    Pages,
}

impl Known {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Resp, Self::Memcached, Self::Http, Self::HashMap, Self::Pages];
}

/// What an application said of a connection.
#[derive(Debug)]
enum Piece {
    /// So many of the bytes are its.
    Bytes { connection: u64, len: usize, position: Position },
    /// Bytes that there was no room for.
    Lost { connection: u64, bytes: u64 },
    /// It is closed.
    Closed { connection: u64 },
}

/// What waits to be parsed.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    opened: Vec<(u64, AnyParser)>,
    /// There was no room even to say what was lost: all connections up to this one are not seen any more.
    blind_through: u64,
    /// Open connections, and the number of the next.
    open: usize,
    next: u64,
    position: u64,
    lost_bytes: u64,
    refused: u64,
}

struct Shared {
    waiting: Mutex<Waiting>,
    bytes_max: usize,
    executed: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that panics is done under it.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn executed(&self) -> Position {
        Position(self.executed.load(Ordering::Acquire))
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

/// What lies between the two ends.
#[derive(Debug)]
enum Way {
    /// A list of this process.
    Near(Arc<Shared>),
    /// A ring to another one.
    Far(FarTap),
}

/// The application's end.
#[derive(Clone, Debug)]
pub struct Tap {
    way: Arc<Way>,
}

/// A mirror that holds at most `bytes_max` bytes that were not parsed yet.
#[must_use]
pub fn tap(bytes_max: usize, secret: KeySecret) -> (Tap, Watch) {
    let waiting = Mutex::new(Waiting::default());
    let shared = Arc::new(Shared { waiting, bytes_max, executed: AtomicU64::new(0) });
    let (bytes, pieces) = (Vec::new(), Vec::new());
    let watch = Watch::of(Source::Near { shared: Arc::clone(&shared), bytes, pieces }, secret);
    (Tap { way: Arc::new(Way::Near(shared)) }, watch)
}

impl Tap {
    pub(super) fn far(line: Line) -> Self {
        Self { way: Arc::new(Way::Far(FarTap::new(line))) }
    }

    /// A connection whose bytes this parser reads. `None` when [`CONNECTIONS_MAX`] are open, and where the DPU is a process of its own, to which no parser goes along: it is not seen.
    #[must_use]
    pub fn connection(&self, parser: AnyParser) -> Option<TapConnection> {
        let shared = match &*self.way {
            Way::Near(shared) => shared,
            Way::Far(far) => {
                far.refuse();
                return None;
            }
        };
        let mut waiting = shared.lock();
        if waiting.open >= CONNECTIONS_MAX || waiting.opened.len() >= CONNECTIONS_MAX {
            waiting.refused += 1;
            return None;
        }
        waiting.open += 1;
        waiting.next += 1;
        let connection = waiting.next;
        waiting.opened.push((connection, parser));
        Some(self.opened(connection))
    }

    /// A connection of a known protocol, wherever the DPU is. `None` when [`CONNECTIONS_MAX`] are open, or it cannot be told: it is not seen.
    #[must_use]
    pub fn connection_of(&self, protocol: Known) -> Option<TapConnection> {
        match &*self.way {
            Way::Near(_) => self.connection(protocol.parser()),
            Way::Far(far) => far.open(protocol).map(|connection| self.opened(connection)),
        }
    }

    fn opened(&self, connection: u64) -> TapConnection {
        TapConnection { way: Arc::clone(&self.way), connection, missing: AtomicU64::new(0) }
    }

    /// The application has carried out all requests that end in pieces up to here.
    pub fn executed(&self, position: Position) {
        match &*self.way {
            Way::Near(shared) => {
                shared.executed.fetch_max(position.0, Ordering::Release);
            }
            Way::Far(far) => far.executed(position),
        }
    }

    /// Up to where it has.
    #[must_use]
    pub fn executed_through(&self) -> Position {
        match &*self.way {
            Way::Near(shared) => shared.executed(),
            Way::Far(far) => far.executed_through(),
        }
    }

    /// Bytes that there was no room for, and connections that were not watched.
    #[must_use]
    pub fn unseen(&self) -> (u64, u64) {
        match &*self.way {
            Way::Near(shared) => {
                let waiting = shared.lock();
                (waiting.lost_bytes, waiting.refused)
            }
            Way::Far(far) => far.unseen(),
        }
    }

    /// True while somebody may look: a DPU that is a process may have gone.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        match &*self.way {
            Way::Near(_) => true,
            Way::Far(far) => !far.is_over(),
        }
    }
}

/// A connection of the application. It is over when this is dropped.
#[derive(Debug)]
pub struct TapConnection {
    way: Arc<Way>,
    connection: u64,
    /// Bytes that were not seen, and the DPU that is a process was not told.
    missing: AtomicU64,
}

impl TapConnection {
    /// The next bytes of the connection. The piece's number, over all connections; [`Position::UNKNOWN`] when there was no room for it.
    pub fn received(&self, bytes: &[u8]) -> Position {
        let connection = self.connection;
        let shared = match &*self.way {
            Way::Near(shared) => shared,
            Way::Far(far) => return far.received(connection, &self.missing, bytes),
        };
        let mut waiting = shared.lock();
        if waiting.bytes.len() + bytes.len() > shared.bytes_max || waiting.pieces.len() >= PIECES_MAX {
            waiting.lost_bytes += bytes.len() as u64;
            waiting.lost(connection, bytes.len() as u64);
            return Position::UNKNOWN;
        }
        waiting.position += 1;
        let position = Position(waiting.position);
        waiting.bytes.extend_from_slice(bytes);
        waiting.pieces.push(Piece::Bytes { connection, len: bytes.len(), position });
        position
    }
}

impl TapConnection {
    /// A mirror did not see so many of its bytes; `None` when it does not know how many.
    pub(super) fn lost(&self, bytes: Option<u64>) {
        let bytes = bytes.unwrap_or(u64::MAX);
        match &*self.way {
            Way::Near(shared) => {
                let mut waiting = shared.lock();
                waiting.lost_bytes = waiting.lost_bytes.saturating_add(bytes);
                waiting.lost(self.connection, bytes);
            }
            Way::Far(far) => far.lost(&self.missing, bytes),
        }
    }
}

impl Waiting {
    /// Says that bytes of a connection were lost, behind what waits.
    fn lost(&mut self, connection: u64, more: u64) {
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

impl Drop for TapConnection {
    fn drop(&mut self) {
        let shared = match &*self.way {
            Way::Near(shared) => shared,
            Way::Far(far) => return far.close(self.connection),
        };
        let mut waiting = shared.lock();
        waiting.open -= 1;
        // A guard that is not told stays until there are too many; it holds nothing that is needed.
        if waiting.pieces.len() < 3 * PIECES_MAX {
            waiting.pieces.push(Piece::Closed { connection: self.connection });
        } else {
            waiting.blind_through = waiting.next;
        }
    }
}

/// What a mirror saw, and what it did not.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapStats {
    /// Pieces that were parsed.
    pub pieces: u64,
    /// Bytes that were parsed.
    pub bytes: u64,
    /// Accesses that parsers said.
    pub accesses: u64,
    /// Of those, what was longer than a key may be.
    pub left_out: u64,
    /// Bytes that there was no room for.
    pub lost_bytes: u64,
    /// Bytes of connections that were cut off before.
    pub passed_over: u64,
    /// Connections that were not watched: too many were open.
    pub refused: u64,
    /// Connections that were cut off because they could not be read on,
    pub broken: u64,
    /// because their parser said more than they had bytes,
    pub wild: u64,
    /// because it panicked,
    pub panicked: u64,
    /// because bytes were lost,
    pub cut_by_loss: u64,
    /// and because all parsers kept too much together, and theirs kept most.
    pub crowded: u64,
}

/// Where pieces come from.
#[derive(Debug)]
enum Source {
    /// The list of this process, and what was taken out of it.
    Near {
        shared: Arc<Shared>,
        bytes: Vec<u8>,
        pieces: Vec<Piece>,
    },
    Far(FarWatch),
}

/// The DPU's end.
pub struct Watch {
    source: Source,
    reading: Reading,
}

/// What is read, and what was.
struct Reading {
    guards: Guards,
    accesses: Accesses,
    seen: TapStats,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("seen", &self.reading.seen).finish_non_exhaustive()
    }
}

impl Watch {
    fn of(source: Source, secret: KeySecret) -> Self {
        let (guards, accesses, seen) = (Guards::default(), Accesses::new(secret), TapStats::default());
        Self { source, reading: Reading { guards, accesses, seen } }
    }

    /// The end of a DPU that is a process; ids of keys are made by the program's secret.
    pub(crate) fn far(pieces: Submissions, secret: KeySecret) -> Self {
        Self::of(Source::Far(FarWatch::new(pieces)), secret)
    }

    /// Parses what waits, and hands on what it says, in one or several parts. False when nothing waited.
    ///
    /// # Errors
    /// [`Broken`] when another process handed over what are no pieces: nothing more is taken.
    pub fn drain(&mut self, each: &mut dyn FnMut(&Accesses, Position)) -> Result<bool, Broken> {
        let Self { source, reading } = self;
        match source {
            Source::Near { shared, bytes, pieces } => Ok(reading.drain(shared, bytes, pieces, each)),
            Source::Far(far) => {
                let taken = far.take(|piece| {
                    reading.take(piece);
                    reading.accesses.len() < HAND_ON
                });
                reading.hand_on(far.executed(), each);
                taken
            }
        }
    }

    /// From here on another process wakes the DPU, unless it handed something over already; true when it has not. A program of this process wakes nobody.
    pub(super) fn may_sleep(&self) -> bool {
        match &self.source {
            Source::Near { .. } => true,
            Source::Far(far) => far.may_sleep(),
        }
    }

    /// Another process need not wake the DPU.
    pub(super) fn stays_awake(&self) {
        if let Source::Far(far) = &self.source {
            far.stays_awake();
        }
    }

    /// Another process sees that the DPU serves.
    pub(super) fn beat(&self) {
        if let Source::Far(far) = &self.source {
            far.beat();
        }
    }

    /// What it saw so far.
    #[must_use]
    pub const fn stats(&self) -> TapStats {
        self.reading.seen
    }

    /// What makes ids of keys.
    #[must_use]
    pub const fn secret(&self) -> KeySecret {
        self.reading.accesses.secret()
    }
}

impl Reading {
    /// All that waits in a list of this process; `bytes` and `pieces` take its place.
    fn drain(
        &mut self,
        shared: &Shared,
        bytes: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
        each: &mut dyn FnMut(&Accesses, Position),
    ) -> bool {
        bytes.clear();
        let mut waiting = shared.lock();
        std::mem::swap(&mut waiting.bytes, bytes);
        std::mem::swap(&mut waiting.pieces, pieces);
        self.seen.lost_bytes = waiting.lost_bytes;
        self.seen.refused = waiting.refused;
        let opened = std::mem::take(&mut waiting.opened);
        let blind_through = std::mem::take(&mut waiting.blind_through);
        drop(waiting);
        for (connection, parser) in opened {
            self.guards.open(connection, parser);
        }
        let worked = !pieces.is_empty();
        let mut from = 0;
        for piece in pieces.drain(..) {
            match piece {
                Piece::Bytes { connection, len, position } => {
                    self.parse(connection, &bytes[from..from + len], position);
                    from += len;
                }
                Piece::Lost { connection, bytes } => self.lost(connection, bytes),
                Piece::Closed { connection } => self.guards.close(connection),
            }
            if self.accesses.len() >= HAND_ON {
                self.hand_on(shared.executed(), each);
            }
        }
        self.hand_on(shared.executed(), each);
        if blind_through > 0 {
            self.seen.cut_by_loss += self.guards.close_through(blind_through);
        }
        worked
    }

    /// A piece of another process, which may have written anything.
    fn take(&mut self, piece: ring::Piece<'_>) {
        match piece {
            ring::Piece::Opens { connection, parser } => {
                if self.guards.len() < CONNECTIONS_MAX || self.guards.has(connection) {
                    self.guards.open(connection, parser.parser());
                } else {
                    self.seen.refused += 1;
                }
            }
            ring::Piece::Bytes { connection, position, lost, bytes } => {
                if lost > 0 {
                    self.seen.lost_bytes = self.seen.lost_bytes.saturating_add(lost);
                    self.lost(connection, lost);
                }
                self.parse(connection, bytes, position);
            }
            ring::Piece::Closes { connection } => self.guards.close(connection),
        }
    }

    fn lost(&mut self, connection: u64, bytes: u64) {
        let cut = self.guards.lost(connection, bytes);
        self.count(cut);
        self.seen.crowded += self.guards.make_room();
    }

    fn parse(&mut self, connection: u64, bytes: &[u8], position: Position) {
        self.seen.pieces += 1;
        let Some(fed) = self.guards.feed(connection, bytes, position, &mut self.accesses) else {
            self.seen.passed_over += bytes.len() as u64;
            return;
        };
        let cut = match fed {
            Ok(seen) => {
                self.seen.bytes += bytes.len() as u64 - seen.passed_over;
                self.seen.passed_over += seen.passed_over;
                self.seen.accesses += seen.accesses;
                self.seen.left_out += seen.left_out;
                seen.cut
            }
            Err(cut) => Some(cut),
        };
        self.count(cut);
        self.seen.crowded += self.guards.make_room();
    }

    const fn count(&mut self, cut: Option<Cut>) {
        match cut {
            Some(Cut::Broken(_)) => self.seen.broken += 1,
            Some(Cut::Wild) => self.seen.wild += 1,
            Some(Cut::Panicked) => self.seen.panicked += 1,
            Some(Cut::Lost) => self.seen.cut_by_loss += 1,
            Some(Cut::Crowded) => self.seen.crowded += 1,
            None => {}
        }
    }

    fn hand_on(&mut self, executed: Position, each: &mut dyn FnMut(&Accesses, Position)) {
        if !self.accesses.is_empty() {
            each(&self.accesses, executed);
            self.accesses.clear();
        }
    }
}

#[cfg(test)]
mod tests;
