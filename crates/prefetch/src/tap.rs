//! An in-process mirror (PD3 5.1): an application hands over the bytes that it received, before it acts on them.
//!
//! Key types: [`Tap`], the application's, from any number of threads; [`TapConnection`], one for each of its connections; [`Watch`], the DPU's end, which parses. No
//! privileges, and it sees through TLS. Handing over takes a lock for as long as a copy takes and waits for nothing else: when there is no room, or the other end
//! parses no more, the bytes count as not seen, and the parser is told (PROTOCOL 19.13).
//!
//! The DPU may be a process of its own (`AtDpu` of the crate dpu-server): then pieces go through a ring, and threads share no lock. Its end may have a tap of its own process beside the ring, for a mirror.
//!
//! A tap does not keep order between threads that hand over pieces of one connection, or find out that a parser never returns.

mod far;
mod guards;
mod near;

use super::ring::{self, Line};
use far::{FarTap, FarWatch};
use farmem_dpu::accesses::{ACCESSES_MAX, Accesses, Position};
use farmem_dpu::parse::Parser;
use farmem_dpu::parse::guard::Cut;
use farmem_dpu::view::KeySecret;
use farmem_link::dpu::{Broken, Submissions};
use guards::Guards;
pub use guards::PARSERS_BYTES_MAX;
use near::{Arrivals, Bell, NearTap, NearWatch, Piece};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Connections that are watched at once; those beyond are not seen.
pub const CONNECTIONS_MAX: usize = 1 << 16;
/// Accesses after which they are handed on.
const HAND_ON: usize = ACCESSES_MAX / 2;

/// A parser of any kind.
pub type AnyParser = Box<dyn Parser + Send>;

/// A protocol whose parser is here: a DPU that is a process has these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParserKind {
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

impl ParserKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Resp, Self::Memcached, Self::Http, Self::HashMap, Self::Pages];
}

/// The channel between the two ends.
#[derive(Debug)]
enum Channel {
    /// A list of this process.
    Near(Arc<NearTap>),
    /// A ring to another one.
    Far(FarTap),
}

/// The application's end.
#[derive(Clone, Debug)]
pub struct Tap {
    way: Arc<Channel>,
}

/// A mirror in which at most `bytes_max` bytes wait, beside as many that were taken and are parsed turn by turn.
#[must_use]
pub fn tap(bytes_max: usize, secret: KeySecret) -> (Tap, Watch) {
    let (tap, watch) = NearTap::make(bytes_max, CONNECTIONS_MAX, None);
    (Tap { way: Arc::new(Channel::Near(tap)) }, Watch::of(Source::Near(watch), secret))
}

impl Tap {
    /// A tap whose other end is in a DPU process.
    #[must_use]
    pub fn far(line: Line) -> Self {
        Self { way: Arc::new(Channel::Far(FarTap::new(line))) }
    }

    /// A connection whose bytes this parser reads. `None` when [`CONNECTIONS_MAX`] are open, and where the DPU is a process of its own, to which no parser goes along: it is not seen.
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

    /// A connection of a known protocol, wherever the DPU is. `None` when [`CONNECTIONS_MAX`] are open, or it cannot be told: it is not seen.
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

    /// The application has carried out all requests that end in pieces up to here.
    pub fn executed(&self, position: Position) {
        match &*self.way {
            Channel::Near(near) => near.executed(position),
            Channel::Far(far) => far.executed(position),
        }
    }

    /// Up to where it has.
    #[must_use]
    pub fn executed_through(&self) -> Position {
        match &*self.way {
            Channel::Near(near) => near.executed_through(),
            Channel::Far(far) => far.executed_through(),
        }
    }

    /// Bytes that there was no room for, and connections that were not watched.
    #[must_use]
    pub fn unseen(&self) -> (u64, u64) {
        match &*self.way {
            Channel::Near(near) => near.unseen(),
            Channel::Far(far) => far.unseen(),
        }
    }

    /// True while a DPU may look: a DPU that is a process may have gone.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        match &*self.way {
            Channel::Near(_) => true,
            Channel::Far(far) => !far.is_over(),
        }
    }
}

/// A connection of the application. It is over when this is dropped.
#[derive(Debug)]
pub struct TapConnection {
    way: Arc<Channel>,
    connection: u64,
    /// Bytes that were not seen, and the DPU that is a process was not told.
    missing: AtomicU64,
}

impl TapConnection {
    /// The next bytes of the connection. The piece's number, over all connections; [`Position::UNKNOWN`] when there was no room for it.
    pub fn received(&self, bytes: &[u8]) -> Position {
        match &*self.way {
            Channel::Near(near) => near.received(self.connection, bytes),
            Channel::Far(far) => far.received(self.connection, &self.missing, bytes),
        }
    }

    /// A mirror did not see so many of its bytes; `None` when it does not know how many.
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
    /// Accesses that parsers said.
    pub accesses: u64,
    /// Accesses left out because they were longer than a key may be.
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
    Near(NearWatch),
    Far(FarWatch),
}

impl Source {
    /// How far the program is.
    fn executed(&self) -> Position {
        match self {
            Self::Near(near) => near.executed(),
            Self::Far(far) => far.executed(),
        }
    }
}

/// The source of a connection's bytes. Each numbers its connections by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum By {
    /// The program.
    Program,
    /// A mirror beside it. Its pieces have no place among those of the program.
    Mirror,
}

/// A connection that is watched.
type Connection = (By, u64);

/// The DPU's end.
pub struct Watch {
    source: Source,
    /// A tap of this process beside the ring of another.
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

    /// The end of a DPU that is a process; ids of keys are made by the program's secret.
    pub fn far(pieces: Submissions, secret: KeySecret) -> Self {
        Self::of(Source::Far(FarWatch::new(pieces)), secret)
    }

    /// A tap of this process beside the ring of another, for a mirror, in place of one that is over: at most `bytes_max` bytes wait in it, it has so many connections, and calls `bell` when the DPU sleeps. What comes by it has no
    /// positions: those of the program are numbers of another row.
    pub fn beside(&mut self, bytes_max: usize, connections_max: usize, bell: Bell) -> Tap {
        self.alone();
        let (tap, beside) = NearTap::make(bytes_max, connections_max, Some(bell));
        self.beside = Some(beside);
        Tap { way: Arc::new(Channel::Near(tap)) }
    }

    /// Nothing of such a tap waits to be parsed, if there is one.
    pub fn beside_is_empty(&self) -> bool {
        self.beside.as_ref().is_none_or(NearWatch::is_empty)
    }

    /// Such a tap is over: its memory is given back, and what was not parsed of it counts as not seen.
    pub fn alone(&mut self) {
        let Self { beside, reading: Reading { guards, seen, .. }, .. } = self;
        let Some(beside) = beside.take() else { return };
        let (bytes, connections) = beside.left();
        seen.lost_bytes = seen.lost_bytes.saturating_add(bytes);
        seen.refused += connections;
        guards.close_through((By::Mirror, u64::MAX));
    }

    /// Bytes that such a tap takes at most.
    #[must_use]
    pub const fn beside_bytes(bytes_max: usize, connections_max: usize) -> u64 {
        near::bytes(bytes_max, connections_max)
    }

    /// Parses what waits, as much of it as a turn has room for, and hands on what it says, in one or several parts. False when nothing waited.
    ///
    /// # Errors
    /// [`Broken`] when another process handed over what are no pieces: nothing more is taken.
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

    /// From here on another process, or a mirror beside it, wakes the DPU, unless it handed something over already; true when it has not. A program of this process wakes no DPU.
    pub(super) fn may_sleep(&self) -> bool {
        let may_sleep = match &self.source {
            Source::Near(near) => near.may_sleep(),
            Source::Far(far) => far.may_sleep(),
        };
        // Both are told, whatever the first one says.
        self.beside.as_ref().is_none_or(NearWatch::may_sleep) && may_sleep
    }

    /// Ends that: no hand-over need wake the DPU.
    pub(super) fn stays_awake(&self) {
        match &self.source {
            Source::Near(near) => near.stays_awake(),
            Source::Far(far) => far.stays_awake(),
        }
        self.beside.iter().for_each(NearWatch::stays_awake);
    }

    /// Another process sees that the DPU serves.
    pub(super) fn beat(&self) {
        if let Source::Far(far) = &self.source {
            far.beat();
        }
    }

    /// Counts so far.
    #[must_use]
    pub const fn stats(&self) -> TapStats {
        self.reading.seen
    }

    /// The secret that makes ids of keys.
    #[must_use]
    pub const fn secret(&self) -> KeySecret {
        self.reading.accesses.secret()
    }
}

impl Reading {
    /// Parses the list of this process, as much as a turn has room for.
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
                // Its end of the tap counts them; those that end in what was taken are here still.
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

    /// A connection begins, unless there are too many.
    fn open(&mut self, connection: Connection, parser: AnyParser) {
        if self.guards.len() < CONNECTIONS_MAX || self.guards.has(connection) {
            self.guards.open(connection, parser);
        } else {
            self.seen.refused += 1;
        }
    }

    /// A piece of another process, which may have written anything.
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
