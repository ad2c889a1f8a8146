//! The parsers of a program's connections, and their memory (PROTOCOL 19.12).
//!
//! Key type: [`Guards`]. If all parsers together keep too much, the connection whose parser keeps most is cut off. So
//! clients that send half requests on many connections slow down themselves first.
//!
//! Other modules open connections and count their results.

use super::super::memory_by_size::MemoryBySize;
use super::{AnyParser, CONNECTIONS_MAX, Connection};
use farmem_dpu::accesses::{Accesses, Position};
use farmem_dpu::parse::guard::{Cut, FeedResult, Guard};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Maximum number of bytes that all parsers of a program keep: 256 per connection.
const KEPT_MAX: usize = 16 << 20;
/// Further bytes that one built-in parser may keep until the next check: twice its longest line.
const ONE_MAX: usize = 128 << 10;
/// Bytes of a connection in addition to its parser's memory: parser, guard, and a list that may be half empty.
const CONNECTION_LEN: usize = 512;
const _: () =
    assert!(2 * size_of::<(Connection, Guard<AnyParser>)>() + 2 * size_of::<(usize, Connection)>() < 300);

/// Maximum memory of all parsers of a program.
pub const PARSERS_BYTES_MAX: u64 = (KEPT_MAX + ONE_MAX + CONNECTIONS_MAX * CONNECTION_LEN) as u64;

/// The panic that stops a parser which does not end.
struct Stopped;

/// The watched connections, including those that were cut off.
#[derive(Default)]
pub(super) struct Guards {
    all: BTreeMap<Connection, Guard<AnyParser>>,
    /// Memory of the connections' parsers.
    kept: MemoryBySize<Connection>,
}

impl Guards {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn has(&self, connection: Connection) -> bool {
        self.all.contains_key(&connection)
    }

    /// Opens a connection, and replaces an earlier one with its number.
    pub(super) fn open(&mut self, connection: Connection, parser: AnyParser) {
        self.close(connection);
        // Not `panic!`, which would call the hook and print.
        self.all.insert(connection, Guard::new(parser, || resume_unwind(Box::new(Stopped))));
    }

    pub(super) fn close(&mut self, connection: Connection) {
        if let Some(guard) = self.all.remove(&connection) {
            self.kept.weigh(connection, guard.kept(), 0);
        }
    }

    /// Closes all connections of this origin up to this one. Returns their number.
    pub(super) fn close_through(&mut self, connection: Connection) -> u64 {
        let (by, _) = connection;
        let all = self.all.range((by, 0)..=connection).map(|(connection, _)| *connection);
        let all: Vec<Connection> = all.collect();
        all.iter().for_each(|connection| self.close(*connection));
        all.len() as u64
    }

    /// Handles lost bytes of a connection.
    pub(super) fn lost(&mut self, connection: Connection, bytes: u64) -> Option<Cut> {
        let guard = self.all.get_mut(&connection)?;
        let before = guard.kept();
        let cut = guard.lost(bytes);
        let now = guard.kept();
        self.kept.weigh(connection, before, now);
        cut
    }

    /// Parses the next bytes of a connection. Returns the result, or the reason why the connection was cut off;
    /// `None` if the connection is not watched.
    pub(super) fn feed(
        &mut self,
        connection: Connection,
        bytes: &[u8],
        position: Position,
        into: &mut Accesses,
    ) -> Option<Result<FeedResult, Cut>> {
        let guard = self.all.get_mut(&connection)?;
        let before = guard.kept();
        // Only the parser's own state can be inconsistent, and the parser is not called again.
        let fed = catch_unwind(AssertUnwindSafe(|| guard.feed(bytes, position, into)));
        let fed = fed.map_err(|_| guard.panicked());
        let now = guard.kept();
        self.kept.weigh(connection, before, now);
        Some(fed)
    }

    /// Cuts off the connections with most memory, until the sum is within its bound. Returns their number.
    pub(super) fn make_room(&mut self) -> u64 {
        let mut cut = 0;
        while self.kept.sum() > KEPT_MAX
            && let Some((kept, connection)) = self.kept.most()
        {
            self.kept.weigh(connection, kept, 0);
            self.all.get_mut(&connection).expect("one that keeps something is watched").crowded();
            cut += 1;
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::super::{By, ParserKind, Reading, Watch, ring, tap};
    use super::*;
    use farmem_dpu::parse::records::{Header, Request};
    use farmem_dpu::view::KeySecret;

    fn reading() -> Reading {
        let (_, Watch { reading, .. }) = tap(0, KeySecret([3, 4]));
        reading
    }

    fn bytes(connection: u64, bytes: &[u8]) -> ring::Piece<'_> {
        ring::Piece::Bytes { connection, position: Position::UNKNOWN, lost: 0, bytes }
    }

    /// Returns the sum of the memory that the parsers report.
    fn sum(guards: &Guards) -> usize {
        guards.all.values().map(Guard::kept).sum()
    }

    /// A program opens the maximum number of connections and sends half a line on each. The memory of its parsers is
    /// bounded at each moment: those with most memory are cut off, and a connection with a few bytes is parsed
    /// further. Before the fix, one program took 4 GiB of its DPU (PROTOCOL 19.12).
    #[test]
    fn many_half_lines_are_bounded_together() {
        let mut reading = reading();
        let half = vec![b'k'; 1500];
        reading.take(ring::Piece::Opens { connection: 0, parser: ParserKind::Memcached });
        reading.take(bytes(0, b"get one "));
        for connection in 1..CONNECTIONS_MAX as u64 {
            reading.take(ring::Piece::Opens { connection, parser: ParserKind::Memcached });
            reading.take(bytes(connection, &half));
            assert!(reading.guards.kept.sum() <= KEPT_MAX, "{} bytes", reading.guards.kept.sum());
        }
        assert_eq!(reading.guards.len(), CONNECTIONS_MAX);
        let (kept, open) = (sum(&reading.guards), reading.guards.kept.all().count());
        assert!(kept == reading.guards.kept.sum() && kept > KEPT_MAX / 2 && kept <= KEPT_MAX, "{kept} bytes");
        assert_eq!(reading.seen.crowded, (CONNECTIONS_MAX - open) as u64);
        reading.take(bytes(0, b"two\n"));
        assert_eq!(reading.accesses.len(), 2);
        // A connection that is cut off is skipped, and keeps nothing more.
        let before = reading.seen;
        (1..CONNECTIONS_MAX as u64).for_each(|connection| reading.take(bytes(connection, b"k")));
        assert!(reading.seen.passed_over >= before.passed_over + before.crowded - 1);
        assert!(sum(&reading.guards) <= KEPT_MAX);
        (0..CONNECTIONS_MAX as u64).for_each(|connection| reading.take(ring::Piece::Closes { connection }));
        assert_eq!((reading.guards.kept.sum(), reading.guards.kept.all().count()), (0, 0));
    }

    /// Each built-in parser reports at least the bytes that it cannot act on yet. A connection that begins again, or
    /// loses its bytes, frees them.
    #[test]
    fn each_parser_reports_its_memory() {
        let header = Header { request: Request::Read, key_len: 1000, value_len: 0 };
        let of_page = Header { request: Request::Read, key_len: 8, value_len: 0 };
        for parser in ParserKind::ALL {
            let half = match parser {
                ParserKind::Resp | ParserKind::Memcached => vec![b'k'; 900],
                ParserKind::Http => [&b"GET /"[..], &[b'k'; 900]].concat(),
                ParserKind::HashMap => [&header.emit()[..], &[b'k'; 900]].concat(),
                ParserKind::Pages => [&of_page.emit()[..], &[7; 4]].concat(),
            };
            let mut reading = reading();
            for end in 0..3 {
                reading.take(ring::Piece::Opens { connection: 1, parser });
                half.chunks(7).for_each(|piece| reading.take(bytes(1, piece)));
                assert!(
                    reading.guards.kept.sum() >= half.len(),
                    "{parser:?} keeps {}",
                    reading.guards.kept.sum()
                );
                assert_eq!(reading.guards.kept.sum(), sum(&reading.guards));
                match end {
                    0 => reading.take(ring::Piece::Opens { connection: 1, parser }),
                    1 => reading.lost((By::Program, 1), 1),
                    _ => assert_eq!(reading.guards.close_through((By::Program, 1)), 1),
                }
                assert_eq!(
                    (reading.guards.kept.sum(), reading.guards.kept.all().count()),
                    (0, 0),
                    "{parser:?}"
                );
            }
        }
    }
}
