//! An in-process mirror (PD3 5.1): an application hands over the bytes that it received, before it acts on them.
//!
//! Key types: [`Tap`], the application's, from any number of threads; [`TapConnection`], one for each of its connections; [`Watch`], the DPU's end, which parses. No
//! privileges, and it sees through TLS. Handing over takes a lock for as long as a copy takes and waits for nothing else: when there is no room, or the other end
//! parses no more, the bytes count as not seen, and the parser is told (PROTOCOL 19.13).
//!
//! What it does not do: keep order between threads that hand over pieces of one connection, or find out that a parser never returns.

use farmem_dpu::accesses::{ACCESSES_MAX, Accesses, Position};
use farmem_dpu::parse::Parser;
use farmem_dpu::parse::guard::{Cut, Guard};
use farmem_dpu::view::KeySecret;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
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
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

/// The application's end.
#[derive(Clone, Debug)]
pub struct Tap {
    shared: Arc<Shared>,
}

/// A mirror that holds at most `bytes_max` bytes that were not parsed yet.
#[must_use]
pub fn tap(bytes_max: usize, secret: KeySecret) -> (Tap, Watch) {
    let waiting = Mutex::new(Waiting::default());
    let shared = Arc::new(Shared { waiting, bytes_max, executed: AtomicU64::new(0) });
    let watch = Watch {
        shared: Arc::clone(&shared),
        guards: BTreeMap::new(),
        accesses: Accesses::new(secret),
        bytes: Vec::new(),
        pieces: Vec::new(),
        seen: TapStats::default(),
    };
    (Tap { shared }, watch)
}

impl Tap {
    /// A connection whose bytes this parser reads. `None` when [`CONNECTIONS_MAX`] are open: it is not seen.
    #[must_use]
    pub fn connection(&self, parser: AnyParser) -> Option<TapConnection> {
        let mut waiting = self.shared.lock();
        if waiting.open >= CONNECTIONS_MAX || waiting.opened.len() >= CONNECTIONS_MAX {
            waiting.refused += 1;
            return None;
        }
        waiting.open += 1;
        waiting.next += 1;
        let connection = waiting.next;
        waiting.opened.push((connection, parser));
        Some(TapConnection { shared: Arc::clone(&self.shared), connection })
    }

    /// The application has carried out all requests that end in pieces up to here.
    pub fn executed(&self, position: Position) {
        self.shared.executed.fetch_max(position.0, Ordering::Release);
    }

    /// Up to where it has.
    #[must_use]
    pub fn executed_through(&self) -> Position {
        Position(self.shared.executed.load(Ordering::Acquire))
    }
}

/// A connection of the application. It is over when this is dropped.
#[derive(Debug)]
pub struct TapConnection {
    shared: Arc<Shared>,
    connection: u64,
}

impl TapConnection {
    /// The next bytes of the connection. The piece's number, over all connections; [`Position::UNKNOWN`] when there was no room for it.
    pub fn received(&self, bytes: &[u8]) -> Position {
        let mut waiting = self.shared.lock();
        let connection = self.connection;
        if waiting.bytes.len() + bytes.len() > self.shared.bytes_max || waiting.pieces.len() >= PIECES_MAX {
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
        let mut waiting = self.shared.lock();
        let bytes = bytes.unwrap_or(u64::MAX);
        waiting.lost_bytes = waiting.lost_bytes.saturating_add(bytes);
        waiting.lost(self.connection, bytes);
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
        let mut waiting = self.shared.lock();
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
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
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
    /// and because bytes were lost.
    pub cut_by_loss: u64,
}

/// The DPU's end.
pub struct Watch {
    shared: Arc<Shared>,
    guards: BTreeMap<u64, Guard<AnyParser>>,
    accesses: Accesses,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    seen: TapStats,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("seen", &self.seen).finish_non_exhaustive()
    }
}

/// What unwinds from a parser that runs wild.
struct Stopped;

impl Watch {
    /// Parses all that waits, and hands on what it says, in one or several parts. False when nothing waited.
    pub fn drain(&mut self, each: &mut dyn FnMut(&Accesses, Position)) -> bool {
        let (opened, blind_through) = self.take();
        for (connection, parser) in opened {
            // Not `panic!`: that would call the hook and print.
            self.guards.insert(connection, Guard::new(parser, || resume_unwind(Box::new(Stopped))));
        }
        let (bytes, mut pieces) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.pieces));
        let worked = !pieces.is_empty();
        let mut from = 0;
        for piece in pieces.drain(..) {
            match piece {
                Piece::Bytes { connection, len, position } => {
                    self.parse(connection, &bytes[from..from + len], position);
                    from += len;
                }
                Piece::Lost { connection, bytes } => {
                    let cut = self.guards.get_mut(&connection).and_then(|guard| guard.lost(bytes));
                    self.count(cut);
                }
                Piece::Closed { connection } => {
                    self.guards.remove(&connection);
                }
            }
            if self.accesses.len() >= HAND_ON {
                self.hand_on(each);
            }
        }
        self.hand_on(each);
        if blind_through > 0 {
            let before = self.guards.len();
            self.guards.retain(|connection, _| *connection > blind_through);
            self.seen.cut_by_loss += (before - self.guards.len()) as u64;
        }
        (self.bytes, self.pieces) = (bytes, pieces);
        worked
    }

    /// What it saw so far.
    #[must_use]
    pub const fn stats(&self) -> TapStats {
        self.seen
    }

    /// What makes ids of keys.
    #[must_use]
    pub const fn secret(&self) -> KeySecret {
        self.accesses.secret()
    }

    fn take(&mut self) -> (Vec<(u64, AnyParser)>, u64) {
        self.bytes.clear();
        let mut waiting = self.shared.lock();
        std::mem::swap(&mut waiting.bytes, &mut self.bytes);
        std::mem::swap(&mut waiting.pieces, &mut self.pieces);
        self.seen.lost_bytes = waiting.lost_bytes;
        self.seen.refused = waiting.refused;
        (std::mem::take(&mut waiting.opened), std::mem::take(&mut waiting.blind_through))
    }

    fn parse(&mut self, connection: u64, bytes: &[u8], position: Position) {
        self.seen.pieces += 1;
        let Some(guard) = self.guards.get_mut(&connection) else {
            self.seen.passed_over += bytes.len() as u64;
            return;
        };
        let accesses = &mut self.accesses;
        // What a parser left half done is its own: it is not called again.
        let fed = catch_unwind(AssertUnwindSafe(|| guard.feed(bytes, position, accesses)));
        let cut = match fed {
            Ok(seen) => {
                self.seen.bytes += bytes.len() as u64 - seen.passed_over;
                self.seen.passed_over += seen.passed_over;
                self.seen.accesses += seen.accesses;
                self.seen.left_out += seen.left_out;
                seen.cut
            }
            Err(_) => Some(guard.panicked()),
        };
        self.count(cut);
    }

    const fn count(&mut self, cut: Option<Cut>) {
        match cut {
            Some(Cut::Broken(_)) => self.seen.broken += 1,
            Some(Cut::Wild) => self.seen.wild += 1,
            Some(Cut::Panicked) => self.seen.panicked += 1,
            Some(Cut::Lost) => self.seen.cut_by_loss += 1,
            None => {}
        }
    }

    fn hand_on(&mut self, each: &mut dyn FnMut(&Accesses, Position)) {
        if !self.accesses.is_empty() {
            each(&self.accesses, Position(self.shared.executed.load(Ordering::Acquire)));
            self.accesses.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_dpu::parse::records::{Header, Records, Request};
    use farmem_dpu::parse::resp::Resp;
    use farmem_dpu::parse::{Access, Broken, Op};

    const SECRET: KeySecret = KeySecret([3, 4]);
    const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

    /// Keys, each with its position.
    fn drain(watch: &mut Watch) -> Vec<(Vec<u8>, u64)> {
        let mut all = Vec::new();
        watch.drain(&mut |accesses, _| {
            all.extend(accesses.iter().map(|one| (one.key.to_vec(), one.position.0)));
        });
        all
    }

    /// Pieces of two connections, one of them split within a request: the accesses come with the numbers of the pieces that made them whole.
    #[test]
    fn what_is_handed_over_is_parsed() {
        let (tap, mut watch) = tap(1 << 16, SECRET);
        let one = tap.connection(Box::new(Resp::new())).unwrap();
        let other = tap.connection(Box::new(Resp::new())).unwrap();
        let positions = [one.received(&GET[..7]), other.received(GET), one.received(&GET[7..])];
        assert_eq!(positions.map(|position| position.0), [1, 2, 3]);
        assert_eq!(drain(&mut watch), [(b"k".to_vec(), 2), (b"k".to_vec(), 3)]);
        assert!(!watch.drain(&mut |_, _| panic!("there is nothing")));
        drop(one);
        drain(&mut watch);
        assert_eq!(watch.guards.len(), 1);
    }

    /// The other end does not parse: what does not fit is not seen, and the connection whose request it tore is cut off; another one, of which nothing is lost, goes on.
    #[test]
    fn what_has_no_room_is_not_seen() {
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

    /// A loss within a value is borne.
    #[test]
    fn a_loss_within_a_value_is_borne() {
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

    /// More losses than can be told apart: all connections that were open then are not seen any more, and later ones are.
    #[test]
    fn countless_losses_blind_what_is_open() {
        let (tap, mut watch) = tap(0, SECRET);
        let pair = [(); 2].map(|()| tap.connection(Box::new(Resp::new())).unwrap());
        for _ in 0..2 * PIECES_MAX {
            pair.iter().for_each(|connection| {
                connection.received(b"x");
            });
        }
        assert!(tap.shared.lock().pieces.len() <= 2 * PIECES_MAX, "bounded");
        drain(&mut watch);
        assert_eq!(watch.guards.len(), 0);
        let _later = tap.connection(Box::new(Resp::new())).unwrap();
        drain(&mut watch);
        assert_eq!(watch.guards.len(), 1);
    }

    /// Panics on 'p', says things for ever on 'w', else says each byte.
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
    }

    /// A parser that panics and one that never ends are cut off and counted; others go on.
    #[test]
    fn bad_parsers_cost_their_own_connection() {
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
}
