//! An in-process tap (PD3 5.1): an application passes the bytes that it received to the DPU, before it acts on them.
//!
//! Key types: [`Tap`], the application's end, for any number of threads; [`TapConnection`], one per connection;
//! [`Watch`], the DPU's end, which parses. A tap needs no privileges and sees the contents of TLS. A hand-over holds
//! a lock while it copies, and waits for nothing else. Without room, or if the DPU's end is gone, the bytes count as
//! unseen and the parser learns of the gap (PROTOCOL 19.13).
//!
//! If the DPU is a process of its own (`AtDpu` of the crate dpu-server), the pieces go through a ring, and threads
//! share no lock. The DPU's end may then have a second tap in its own process, for a mirror.
//!
//! A tap does not order pieces that several threads pass for one connection, and does not notice a parser that never
//! returns.

mod far;
mod guards;
mod near;

pub use super::parser_kind::{AnyParser, ParserKind};
use super::ring::{self, Line};
use far::{FarTap, FarWatch};
use farmem_dpu::accesses::{ACCESSES_MAX, Accesses, Position};
use farmem_dpu::parse::guard::Cut;
use farmem_dpu::view::KeySecret;
use farmem_link::dpu::{Broken, Submissions};
use guards::Guards;
pub use guards::PARSERS_BYTES_MAX;
use near::{Arrivals, Bell, NearTap, NearWatch, Piece};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Maximum number of watched connections; further ones are unseen.
pub const CONNECTIONS_MAX: usize = 1 << 16;
/// Number of accesses after which they are passed on.
const HAND_ON: usize = ACCESSES_MAX / 2;

/// The channel between the two ends.
#[derive(Debug)]
enum Channel {
    /// A list in this process.
    Near(Arc<NearTap>),
    /// A ring to another process.
    Far(FarTap),
}

/// The application's end.
#[derive(Clone, Debug)]
pub struct Tap {
    way: Arc<Channel>,
}

/// Creates a tap in which at most `bytes_max` bytes wait, plus as many that were taken and are parsed turn by turn.
#[must_use]
pub fn tap(bytes_max: usize, secret: KeySecret) -> (Tap, Watch) {
    let (tap, watch) = NearTap::make(bytes_max, CONNECTIONS_MAX, None);
    (Tap { way: Arc::new(Channel::Near(tap)) }, Watch::of(Source::Near(watch), secret))
}

impl Tap {
    /// Creates a tap whose other end is in a DPU process.
    #[must_use]
    pub fn far(line: Line) -> Self {
        Self { way: Arc::new(Channel::Far(FarTap::new(line))) }
    }

    /// Opens a connection whose bytes this parser reads. Returns `None` if [`CONNECTIONS_MAX`] are open, or if the
    /// DPU is a process, to which no parser can be sent. The connection is unseen then.
    #[must_use]
    pub fn connection(&self, parser: AnyParser) -> Option<TapConnection> {
        match &*self.way {
            Channel::Near(near) => near.open(parser).map(|connection| self.opened(connection)),
            Channel::Far(far) => {
                far.refuse();
                None
            }
        }
    }

    /// Opens a connection of a known protocol, wherever the DPU is. Returns `None` if [`CONNECTIONS_MAX`] are open,
    /// or the DPU cannot be told. The connection is unseen then.
    #[must_use]
    pub fn connection_of(&self, protocol: ParserKind) -> Option<TapConnection> {
        match &*self.way {
            Channel::Near(_) => self.connection(protocol.parser()),
            Channel::Far(far) => far.open(protocol).map(|connection| self.opened(connection)),
        }
    }

    fn opened(&self, connection: u64) -> TapConnection {
        TapConnection { way: Arc::clone(&self.way), connection, missing: AtomicU64::new(0) }
    }

    /// Reports that the application has executed all requests that end in pieces up to `position`.
    pub fn executed(&self, position: Position) {
        match &*self.way {
            Channel::Near(near) => near.executed(position),
            Channel::Far(far) => far.executed(position),
        }
    }

    /// Returns the position up to which requests are executed.
    #[must_use]
    pub fn executed_through(&self) -> Position {
        match &*self.way {
            Channel::Near(near) => near.executed_through(),
            Channel::Far(far) => far.executed_through(),
        }
    }

    /// Returns the number of bytes without room, and of unwatched connections.
    #[must_use]
    pub fn unseen(&self) -> (u64, u64) {
        match &*self.way {
            Channel::Near(near) => near.unseen(),
            Channel::Far(far) => far.unseen(),
        }
    }

    /// Returns true while a DPU may read: a DPU process may have ended.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        match &*self.way {
            Channel::Near(_) => true,
            Channel::Far(far) => !far.is_over(),
        }
    }
}

/// A connection of the application, which ends when this value is dropped.
#[derive(Debug)]
pub struct TapConnection {
    way: Arc<Channel>,
    connection: u64,
    /// Unseen bytes that the DPU process does not know of yet.
    missing: AtomicU64,
}

impl TapConnection {
    /// Passes the next bytes of the connection. Returns the number of the piece over all connections, or
    /// [`Position::UNKNOWN`] if there was no room.
    pub fn received(&self, bytes: &[u8]) -> Position {
        match &*self.way {
            Channel::Near(near) => near.received(self.connection, bytes),
            Channel::Far(far) => far.received(self.connection, &self.missing, bytes),
        }
    }

    /// Reports that a mirror missed bytes; `None` if their number is unknown.
    pub(super) fn lost(&self, bytes: Option<u64>) {
        let bytes = bytes.unwrap_or(u64::MAX);
        match &*self.way {
            Channel::Near(near) => near.lost(self.connection, bytes),
            Channel::Far(far) => far.lost(&self.missing, bytes),
        }
    }
}

impl Drop for TapConnection {
    fn drop(&mut self) {
        match &*self.way {
            Channel::Near(near) => near.close(self.connection),
            Channel::Far(far) => far.close(self.connection),
        }
    }
}

/// Counts of a tap: bytes seen and missed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapStats {
    /// Pieces that were parsed.
    pub pieces: u64,
    /// Bytes that were parsed.
    pub bytes: u64,
    /// Accesses reported by parsers.
    pub accesses: u64,
    /// Accesses left out because the key was too long.
    pub left_out: u64,
    /// Bytes without room.
    pub lost_bytes: u64,
    /// Bytes of connections that had been cut off.
    pub passed_over: u64,
    /// Connections that were not watched, because too many were open.
    pub refused: u64,
    /// Connections cut off because of unparsable bytes.
    pub broken: u64,
    /// Connections cut off because the parser reported more than their bytes can contain.
    pub wild: u64,
    /// Connections cut off because the parser panicked.
    pub panicked: u64,
    /// Connections cut off because bytes were lost.
    pub cut_by_loss: u64,
    /// Connections cut off because all parsers together kept too much, and theirs kept most.
    pub crowded: u64,
}

/// The source of pieces.
#[derive(Debug)]
enum Source {
    Near(NearWatch),
    Far(FarWatch),
}

impl Source {
    /// Returns the position up to which the program has executed requests.
    fn executed(&self) -> Position {
        match self {
            Self::Near(near) => near.executed(),
            Self::Far(far) => far.executed(),
        }
    }
}

/// The origin of a connection's bytes. Each origin numbers its connections by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum By {
    /// The program.
    Program,
    /// A mirror. Its pieces have no position among those of the program.
    Mirror,
}

/// A watched connection.
type Connection = (By, u64);

/// The DPU's end of a tap.
pub struct Watch {
    source: Source,
    /// A tap within this process, in addition to the ring of another one.
    beside: Option<NearWatch>,
    reading: Reading,
}

/// Parsers, and their counts.
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
        Self { source, beside: None, reading: Reading { guards, accesses, seen } }
    }

    /// Creates the end of a DPU process; the program's secret creates the ids of keys.
    pub fn far(pieces: Submissions, secret: KeySecret) -> Self {
        Self::of(Source::Far(FarWatch::new(pieces)), secret)
    }

    /// Creates a second tap within this process, for a mirror. The new tap replaces an earlier one.
    ///
    /// At most `bytes_max` bytes wait in it, it has at most `connections_max` connections, and it calls `bell` while
    /// the DPU sleeps. Its pieces have no positions, because the program numbers only its own.
    pub fn beside(&mut self, bytes_max: usize, connections_max: usize, bell: Bell) -> Tap {
        self.alone();
        let (tap, beside) = NearTap::make(bytes_max, connections_max, Some(bell));
        self.beside = Some(beside);
        Tap { way: Arc::new(Channel::Near(tap)) }
    }

    /// Returns true if no piece of the second tap waits to be parsed.
    pub fn beside_is_empty(&self) -> bool {
        self.beside.as_ref().is_none_or(NearWatch::is_empty)
    }

    /// Removes the second tap and frees its memory. Its unparsed bytes count as unseen.
    pub fn alone(&mut self) {
        let Self { beside, reading: Reading { guards, seen, .. }, .. } = self;
        let Some(beside) = beside.take() else { return };
        let (bytes, connections) = beside.left();
        seen.lost_bytes = seen.lost_bytes.saturating_add(bytes);
        seen.refused += connections;
        guards.close_through((By::Mirror, u64::MAX));
    }

    /// Returns the maximum memory of the second tap in bytes.
    #[must_use]
    pub const fn beside_bytes(bytes_max: usize, connections_max: usize) -> u64 {
        near::bytes(bytes_max, connections_max)
    }

    /// Parses waiting pieces, at most those of one turn, and passes the accesses on in one or more parts. Returns
    /// false if nothing waited.
    ///
    /// # Errors
    /// [`Broken`] if another process wrote an invalid piece: nothing more is taken.
    pub fn drain(&mut self, each: &mut dyn FnMut(&Accesses, Position)) -> Result<bool, Broken> {
        let Self { source, beside, reading } = self;
        let worked = match source {
            Source::Near(near) => reading.drain(By::Program, near, NearWatch::executed, each),
            Source::Far(far) => {
                let taken = far.take(|piece| {
                    reading.take(piece);
                    reading.accesses.len() < HAND_ON
                });
                reading.hand_on(far.executed(), each);
                taken?
            }
        };
        let Some(beside) = beside else { return Ok(worked) };
        Ok(reading.drain(By::Mirror, beside, |_| source.executed(), each) || worked)
    }

    /// Announces that another process, or a mirror, must wake the DPU from now on. Returns false if it has handed
    /// over something already. A program in this process wakes no DPU.
    pub(super) fn may_sleep(&self) -> bool {
        let may_sleep = match &self.source {
            Source::Near(near) => near.may_sleep(),
            Source::Far(far) => far.may_sleep(),
        };
        // Both must know, whatever the first returns.
        self.beside.as_ref().is_none_or(NearWatch::may_sleep) && may_sleep
    }

    /// Announces that no hand-over need wake the DPU.
    pub(super) fn stays_awake(&self) {
        match &self.source {
            Source::Near(near) => near.stays_awake(),
            Source::Far(far) => far.stays_awake(),
        }
        self.beside.iter().for_each(NearWatch::stays_awake);
    }

    /// Counts the beat that shows another process that the DPU serves.
    pub(super) fn beat(&self) {
        if let Source::Far(far) = &self.source {
            far.beat();
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn stats(&self) -> TapStats {
        self.reading.seen
    }

    /// Returns the secret that creates ids of keys.
    #[must_use]
    pub const fn secret(&self) -> KeySecret {
        self.reading.accesses.secret()
    }
}

impl Reading {
    /// Parses a list of this process, at most the pieces of one turn.
    fn drain(
        &mut self,
        by: By,
        near: &mut NearWatch,
        executed: impl Fn(&NearWatch) -> Position,
        each: &mut dyn FnMut(&Accesses, Position),
    ) -> bool {
        let Arrivals { opened, unseen } = near.take();
        self.seen.lost_bytes = self.seen.lost_bytes.saturating_add(unseen.0);
        self.seen.refused += unseen.1;
        for (connection, parser) in opened {
            match by {
                // The program's end counts them; those that end in this batch are still here.
                By::Program => self.guards.open((by, connection), parser),
                By::Mirror => self.open((by, connection), parser),
            }
        }
        let mut worked = false;
        while let Some((piece, bytes)) = near.next() {
            worked = true;
            match piece {
                Piece::Bytes { connection, position, .. } => {
                    let position = if by == By::Program { position } else { Position::UNKNOWN };
                    self.parse((by, connection), bytes, position);
                }
                Piece::Lost { connection, bytes } => self.lost((by, connection), bytes),
                Piece::Closed { connection } => self.guards.close((by, connection)),
            }
            if self.accesses.len() >= HAND_ON {
                self.hand_on(executed(near), each);
            }
        }
        self.hand_on(executed(near), each);
        let blind_through = near.blind_through();
        if blind_through > 0 {
            self.seen.cut_by_loss += self.guards.close_through((by, blind_through));
        }
        worked
    }

    /// Opens a connection, unless there are too many.
    fn open(&mut self, connection: Connection, parser: AnyParser) {
        if self.guards.len() < CONNECTIONS_MAX || self.guards.has(connection) {
            self.guards.open(connection, parser);
        } else {
            self.seen.refused += 1;
        }
    }

    /// Handles a piece of another process, which may contain anything.
    fn take(&mut self, piece: ring::Piece<'_>) {
        let by = By::Program;
        match piece {
            ring::Piece::Opens { connection, parser } => self.open((by, connection), parser.parser()),
            ring::Piece::Bytes { connection, position, lost, bytes } => {
                if lost > 0 {
                    self.seen.lost_bytes = self.seen.lost_bytes.saturating_add(lost);
                    self.lost((by, connection), lost);
                }
                self.parse((by, connection), bytes, position);
            }
            ring::Piece::Closes { connection } => self.guards.close((by, connection)),
        }
    }

    fn lost(&mut self, connection: Connection, bytes: u64) {
        let cut = self.guards.lost(connection, bytes);
        self.count(cut);
        self.seen.crowded += self.guards.make_room();
    }

    fn parse(&mut self, connection: Connection, bytes: &[u8], position: Position) {
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
