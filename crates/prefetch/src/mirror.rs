//! A mirror of an interface's packets in the place of a tap (PD3 5.1): the program need not change or know of the
//! mirror.
//!
//! Key type: [`MirrorTap`], which a thread of the DPU runs. The mirror reassembles each client's connection by
//! sequence numbers and passes the bytes to a tap's connection. So all later steps are the same. Pieces have numbers,
//! but the program does not report its position: see [`crate`] for the cost. A DPU process has a mirror for a program
//! that requests one (`farmem_dpu_server::AtDpu::mirror`).
//!
//! Any client that reaches the server's port may send anything. So bytes that wait for earlier packets are bounded
//! per connection and in sum, and bytes without room only cost speed.
//!
//! A mirror does not see the contents of TLS, or connections that began before it, because their parsers cannot find
//! the next request.

use super::memory_by_size::MemoryBySize;
use super::tap::{AnyParser, Tap, TapConnection};
use farmem_dpu::reassembly::{Next, Segment, Stream};
use farmem_link::OpenError;
use farmem_link::mirror::{Copied, Mirror, MirrorConfig};
use lru::LruCache;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Maximum number of tracked connections. A further one replaces the connection that was silent for longest: a client
/// that vanished never closes its connection.
pub const CONNECTIONS_MAX: usize = 1 << 14;
/// Maximum memory of early packets of all connections in bytes. Beyond that, the connection with most of them skips
/// its gap.
const EARLY_MAX: usize = 16 << 20;
/// Further bytes that one connection may take until the next check: those of a stream and of a packet.
const EARLY_ONE_MAX: usize = 512 << 10;
/// Further bytes of a connection: its entries in lists that may be half empty, its stream, and its end of the tap.
const FOLLOWED_LEN: usize = 512;
const _: () =
    assert!(2 * size_of::<(SocketAddr, Followed)>() + 2 * size_of::<(usize, SocketAddr)>() < FOLLOWED_LEN);

/// Maximum memory of a mirror, without the packet ring ([`MirrorConfig::bytes`]) and its tap.
pub const FOLLOWING_BYTES_MAX: u64 = (EARLY_MAX + EARLY_ONE_MAX + CONNECTIONS_MAX * FOLLOWED_LEN) as u64;

/// Counts of a mirror.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorStats {
    /// Packets with bytes, or that begin a connection.
    pub packets: u64,
    /// Packets without room in the packet ring.
    pub lost_packets: u64,
    /// Gaps that connections skipped, or at which they were cut off.
    pub gaps: u64,
    /// Tracked connections.
    pub connections: u64,
    /// Packets of untracked connections: their begin was not seen, they made room for others, or this machine
    /// forwards them to another one.
    pub passed_over: u64,
    /// Mirrors that failed, for example because their interface went down.
    pub failed: u64,
}

impl MirrorStats {
    /// Returns the sums for a mirror and a later one.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            lost_packets: self.lost_packets + other.lost_packets,
            gaps: self.gaps + other.gaps,
            connections: self.connections + other.connections,
            passed_over: self.passed_over + other.passed_over,
            failed: self.failed + other.failed,
        }
    }
}

/// A connection of a client.
#[derive(Debug)]
struct Followed {
    stream: Stream,
    connection: TapConnection,
}

/// A tap that is fed from copied packets.
pub struct MirrorTap {
    mirror: Mirror,
    following: Following,
}

impl std::fmt::Debug for MirrorTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorTap").field("stats", &self.following.stats).finish_non_exhaustive()
    }
}

impl MirrorTap {
    /// Begins to copy packets; each connection gets a parser of its own.
    ///
    /// # Errors
    /// As [`Mirror::open`].
    pub fn open(
        config: &MirrorConfig,
        tap: Tap,
        parser: impl FnMut() -> AnyParser + Send + 'static,
    ) -> Result<Self, OpenError> {
        Ok(Self { mirror: Mirror::open(config)?, following: Following::new(tap, Box::new(parser)) })
    }

    /// Passes on the packets that have arrived. Returns false if there was none.
    ///
    /// # Errors
    /// [`OpenError::System`] if the socket failed: no further packets are seen.
    pub fn turn(&mut self) -> Result<bool, OpenError> {
        let Self { mirror, following } = self;
        let seen = mirror.turn(&mut |copied| following.packet(copied));
        match mirror.lost() {
            Ok(lost) => following.lost(lost),
            Err(source) => {
                following.stats.failed += 1;
                return Err(OpenError::System { doing: "count a mirror's losses".into(), source });
            }
        }
        Ok(seen > 0)
    }

    /// Waits until a packet arrives, at most `most`.
    ///
    /// # Errors
    /// As [`MirrorTap::turn`], and if the interface went down or no longer exists.
    pub fn wait(&mut self, most: Duration) -> Result<(), OpenError> {
        self.mirror.wait(most).map_err(|source| {
            self.following.stats.failed += 1;
            OpenError::System { doing: "wait for a mirror's packets".into(), source }
        })
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn stats(&self) -> MirrorStats {
        self.following.stats
    }
}

/// The tracked connections, and their early packets.
struct Following {
    tap: Tap,
    parser: Box<dyn FnMut() -> AnyParser + Send>,
    /// Connections in the order of their last packets.
    followed: LruCache<SocketAddr, Followed>,
    /// Memory of early packets.
    kept: MemoryBySize<SocketAddr>,
    stats: MirrorStats,
}

impl Following {
    fn new(tap: Tap, parser: Box<dyn FnMut() -> AnyParser + Send>) -> Self {
        let (kept, stats) = Default::default();
        Self { tap, parser, followed: LruCache::unbounded(), kept, stats }
    }

    fn packet(&mut self, copied: Copied<'_>) {
        let Copied { client, seq, syn, ends, bytes } = copied;
        if syn {
            // An earlier connection of the same client has ended.
            self.end(client);
            let is_full = self.followed.len() == CONNECTIONS_MAX;
            if let Some(silent) = self.followed.peek_lru().filter(|_| is_full).map(|(client, _)| *client) {
                self.end(silent);
            }
            if let Some(connection) = self.tap.connection((self.parser)()) {
                self.stats.connections += 1;
                self.followed.put(client, Followed { stream: Stream::default(), connection });
            }
        }
        let Self { followed, stats, .. } = self;
        let Some(Followed { stream, connection }) = followed.get_mut(&client) else {
            stats.passed_over += 1;
            return;
        };
        stats.packets += u64::from(syn || !bytes.is_empty());
        let before = stream.kept();
        stream.packet(Segment { seq, syn }, bytes, &mut |next| hand_on(connection, next, stats));
        let now = stream.kept();
        self.kept.weigh(client, before, now);
        if ends {
            self.end(client);
        }
        while self.kept.sum() > EARLY_MAX
            && let Some((_, most)) = self.kept.most()
        {
            self.give_up(most);
        }
    }

    /// Records the number of packets lost so far. If it has grown, connections skip their gaps, because the missing
    /// packets will not come.
    fn lost(&mut self, packets: u64) {
        if packets != self.stats.lost_packets {
            self.stats.lost_packets = packets;
            let all: Vec<SocketAddr> = self.kept.all().map(|(_, client)| client).collect();
            all.into_iter().for_each(|client| self.give_up(client));
        }
    }

    /// Makes a connection skip its gap.
    fn give_up(&mut self, client: SocketAddr) {
        let Self { followed, stats, .. } = self;
        let Followed { stream, connection } = followed.peek_mut(&client).expect("what waits is followed");
        let before = stream.kept();
        stream.give_up(&mut |next| hand_on(connection, next, stats));
        let now = stream.kept();
        self.kept.weigh(client, before, now);
    }

    fn end(&mut self, client: SocketAddr) {
        if let Some(Followed { stream, .. }) = self.followed.pop(&client) {
            self.kept.weigh(client, stream.kept(), 0);
        }
    }
}

fn hand_on(connection: &TapConnection, next: Next<'_>, stats: &mut MirrorStats) {
    match next {
        Next::Bytes(bytes) => drop(connection.received(bytes)),
        Next::Lost(bytes) => {
            stats.gaps += 1;
            connection.lost(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tap::{ParserKind, Watch, tap};
    use super::*;
    use farmem_dpu::view::KeySecret;

    fn packet(client: u32, seq: u32, syn: bool, bytes: &[u8]) -> Copied<'_> {
        let client = SocketAddr::new(client.to_be_bytes().into(), 4791);
        Copied { client, seq, syn, ends: false, bytes }
    }

    /// Clients begin many connections, leave a byte out, and send as much as a stream keeps; others send single bytes
    /// with gaps. The waiting bytes of all are bounded at each moment. The connections with most skip their gaps, and
    /// one with a few bytes waits and is reassembled. Before the fix, they took 4 GiB of the DPU.
    #[test]
    fn early_packets_of_all_connections_are_bounded() {
        let (tap, mut watch) = tap(64 << 10, KeySecret([3, 4]));
        let mut following = Following::new(tap, Box::new(|| ParserKind::Memcached.parser()));
        let sum =
            |following: &Following| following.followed.iter().map(|(_, of)| of.stream.kept()).sum::<usize>();
        let drain = |watch: &mut Watch| {
            let mut accesses = 0;
            while watch.drain(&mut |all, _| accesses += all.len()).unwrap() {}
            accesses
        };
        let request = b"get one\r\n";
        following.packet(packet(1, 0, true, b""));
        following.packet(packet(1, 2, false, &request[1..]));
        let bytes = vec![b'k'; 16 << 10];
        for client in 2..200_u32 {
            following.packet(packet(client, 0, true, b""));
            for n in 0..15_u32 {
                following.packet(packet(client, 2 + n * (16 << 10), false, &bytes));
            }
            drain(&mut watch);
            assert!(following.kept.sum() <= EARLY_MAX && following.kept.sum() == sum(&following));
        }
        let gaps = following.stats.gaps;
        assert!(gaps > 100 && following.kept.sum() > EARLY_MAX / 2, "{:?}", following.stats);
        for client in 200..4000_u32 {
            following.packet(packet(client, 0, true, b""));
            for n in 0..60_u32 {
                following.packet(packet(client, 2 + 2 * n, false, b"k"));
            }
            drain(&mut watch);
            assert!(following.kept.sum() <= EARLY_MAX, "{} bytes", following.kept.sum());
        }
        assert_eq!(following.kept.sum(), sum(&following));
        assert!(following.stats.gaps > gaps + 1000, "{:?}", following.stats);
        following.packet(packet(1, 1, false, &request[..1]));
        assert_eq!(drain(&mut watch), 1);
        // A connection that ends, or begins again, frees its bytes.
        for client in 1..4000_u32 {
            let ends = Copied { ends: client % 2 == 0, ..packet(client, 7, client % 2 == 1, b"") };
            following.packet(ends);
        }
        assert_eq!((following.kept.sum(), following.kept.all().count()), (0, 0));
        assert_eq!(following.followed.len(), 2000);
    }

    /// The maximum number of clients begin connections and stay silent, except one. Later clients replace those that
    /// were silent for longest, and the active connection is reassembled all the time. Before the fix, a mirror saw
    /// no new client any more.
    #[test]
    fn silent_connections_make_room() {
        let (tap, mut watch) = tap(1 << 20, KeySecret([3, 4]));
        let mut following = Following::new(tap, Box::new(|| ParserKind::Memcached.parser()));
        let drain = |watch: &mut Watch| {
            let mut accesses = 0;
            while watch.drain(&mut |all, _| accesses += all.len()).unwrap() {}
            accesses
        };
        let (request, most) = (b"get one\r\n", u32::try_from(CONNECTIONS_MAX).unwrap());
        following.packet(packet(0, 0, true, b""));
        for client in 1..3 * most {
            following.packet(packet(client, 0, true, b""));
            if client % 1000 == 0 {
                following.packet(packet(0, 1 + (client / 1000 - 1) * 9, false, request));
                assert_eq!(drain(&mut watch), 1, "at {client}");
            }
            assert!(following.followed.len() <= CONNECTIONS_MAX);
        }
        following.packet(packet(3 * most - 1, 1, false, &request[..4]));
        following.packet(packet(3 * most - 1, 70, true, b""));
        following.packet(packet(3 * most - 1, 71, false, request));
        assert_eq!(drain(&mut watch), 1, "what a connection of before had begun is not before it");
        let before = following.stats.passed_over;
        following.packet(packet(1, 1, false, request));
        assert_eq!((drain(&mut watch), following.stats.passed_over), (0, before + 1));
    }
}
