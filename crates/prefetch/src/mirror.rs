//! A mirror of an interface's packets in the place of a tap (PD3 5.1): the program is not changed, and needs not know.
//!
//! Key type: [`MirrorTap`], which a thread of the DPU's turns. It puts each client's connection together by its numbers and hands the bytes on to a tap's connection, so all behind it is the same. Pieces
//! have numbers, but the program does not say how far it is: see [`crate`] for what that costs. A DPU that is a process has one for a program that asks it to (`farmem_dpu_server::AtDpu::mirror`).
//!
//! Any client that reaches the server's port may send anything: bytes that wait for earlier packets are bounded for each connection and in sum, and bytes without room cost speed.
//!
//! A mirror does not see what TLS hides, or connections that began before it: their parsers do not know where a request begins.

use super::kept::Kept;
use super::tap::{AnyParser, Tap, TapConnection};
use farmem_dpu::reassembly::{Next, Segment, Stream};
use farmem_link::OpenError;
use farmem_link::mirror::{Copied, Mirror, MirrorConfig};
use lru::LruCache;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Connections that are followed at once. Where there are more, the one that was heard of longest ago makes room: a client that vanished never says that it ends.
pub const CONNECTIONS_MAX: usize = 1 << 14;
/// Bytes of memory that packets which wait for earlier ones take, of all connections together: where it is more, the connection of which most wait goes on without what it waits for.
const EARLY_MAX: usize = 16 << 20;
/// Bytes that one connection's may take beyond that, until it is looked at: those of a stream, and of a packet.
const EARLY_ONE_MAX: usize = 512 << 10;
/// Bytes of a connection beside that: its places in lists that may be half empty, its stream, and its end of the tap.
const FOLLOWED_LEN: usize = 512;
const _: () =
    assert!(2 * size_of::<(SocketAddr, Followed)>() + 2 * size_of::<(usize, SocketAddr)>() < FOLLOWED_LEN);

/// Memory of a mirror at most, beside the ring that packets are copied into ([`MirrorConfig::bytes`]) and its tap.
pub const FOLLOWING_BYTES_MAX: u64 = (EARLY_MAX + EARLY_ONE_MAX + CONNECTIONS_MAX * FOLLOWED_LEN) as u64;

/// Counts of a mirror.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorStats {
    /// Packets with bytes, or that begin a connection.
    pub packets: u64,
    /// Packets that its ring had no room for.
    pub lost_packets: u64,
    /// Gaps that connections went on behind, or were cut off at.
    pub gaps: u64,
    /// Connections that were followed.
    pub connections: u64,
    /// Packets of connections that were not: their begin was not seen, they made room for others, or this machine passes them on to another one.
    pub passed_over: u64,
    /// Mirrors that failed, as when their interface went: nothing is seen by them from then on.
    pub failed: u64,
}

impl MirrorStats {
    /// Both together: of a mirror, and of one that came after it.
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

/// Copies what clients send into a tap.
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
    /// Begins to copy; each connection gets a parser of its own.
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

    /// Hands on what has come. False when nothing had.
    ///
    /// # Errors
    /// [`OpenError::System`] when the socket failed: nothing is seen any more.
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

    /// Waits until something has come, at most `most`.
    ///
    /// # Errors
    /// As [`MirrorTap::turn`], and when the interface went down or is no more.
    pub fn wait(&mut self, most: Duration) -> Result<(), OpenError> {
        self.mirror.wait(most).map_err(|source| {
            self.following.stats.failed += 1;
            OpenError::System { doing: "wait for a mirror's packets".into(), source }
        })
    }

    /// Counts so far.
    #[must_use]
    pub const fn stats(&self) -> MirrorStats {
        self.following.stats
    }
}

/// The connections that are followed, and what waits of them.
struct Following {
    tap: Tap,
    parser: Box<dyn FnMut() -> AnyParser + Send>,
    /// By when they were heard of.
    followed: LruCache<SocketAddr, Followed>,
    /// Memory that packets which wait for earlier ones take.
    kept: Kept<SocketAddr>,
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
            // An old one of the same client is over.
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

    /// So many packets were lost so far: what connections wait for will not come.
    fn lost(&mut self, packets: u64) {
        if packets != self.stats.lost_packets {
            self.stats.lost_packets = packets;
            let all: Vec<SocketAddr> = self.kept.all().map(|(_, client)| client).collect();
            all.into_iter().for_each(|client| self.give_up(client));
        }
    }

    /// A connection goes on behind what it waits for.
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

    /// Clients begin connections, leave a byte out, and send as much behind it as a stream keeps, on many connections; others send single bytes, each with a gap before it. What waits of all is bounded at each moment,
    /// the connections of which most waits go on behind their gaps, and one with a few bytes waits on, and is put together when its byte comes. Before, they took 4 GiB of the DPU.
    #[test]
    fn what_waits_of_all_connections_is_bounded() {
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
        // One that ends, or begins anew, gives back what it kept.
        for client in 1..4000_u32 {
            let ends = Copied { ends: client % 2 == 0, ..packet(client, 7, client % 2 == 1, b"") };
            following.packet(ends);
        }
        assert_eq!((following.kept.sum(), following.kept.all().count()), (0, 0));
        assert_eq!(following.followed.len(), 2000);
    }

    /// As many clients as may be begin connections and say no more; one among them goes on. Others that come later are seen, in the places of those that were silent for longest, also one that begins anew; the one that goes on is
    /// put together all the time. Before, a mirror saw no new client any more.
    #[test]
    fn who_is_silent_makes_room() {
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
