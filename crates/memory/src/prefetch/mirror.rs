//! A mirror of an interface's packets in the place of a tap (PD3 5.1): the program is not changed, and needs not know.
//!
//! Key type: [`MirrorTap`], which a thread of the DPU's turns. It puts each client's connection together by its numbers and hands the bytes on to a tap's connection, so all behind it is the same. Pieces
//! have numbers, but the program does not say how far it is: see [`crate::prefetch`] for what that costs.
//!
//! What it does not do: see what TLS hides, or connections that began before it: their parsers do not know where a request begins.

use super::tap::{AnyParser, Tap, TapConnection};
use farmem_dpu::reassembly::{Next, Segment, Stream};
use farmem_io::OpenError;
use farmem_io::mirror::{Mirror, MirrorConfig};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Connections that are followed at once.
const CONNECTIONS_MAX: usize = 1 << 14;

/// What a mirror saw.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MirrorStats {
    /// Packets with bytes, or that begin a connection.
    pub packets: u64,
    /// Packets that its ring had no room for.
    pub lost_packets: u64,
    /// Gaps that connections went on behind, or were cut off at.
    pub gaps: u64,
    /// Connections that were followed.
    pub connections: u64,
    /// Packets of connections that were not: too many were open, or their begin was not seen.
    pub passed_over: u64,
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
    tap: Tap,
    parser: Box<dyn FnMut() -> AnyParser + Send>,
    followed: BTreeMap<SocketAddr, Followed>,
    stats: MirrorStats,
}

impl std::fmt::Debug for MirrorTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorTap").field("stats", &self.stats).finish_non_exhaustive()
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
        let (parser, followed) = (Box::new(parser), BTreeMap::new());
        Ok(Self { mirror: Mirror::open(config)?, tap, parser, followed, stats: MirrorStats::default() })
    }

    /// Hands on what has come. False when nothing had.
    ///
    /// # Errors
    /// [`OpenError::System`] when the socket failed: nothing is seen any more.
    pub fn turn(&mut self) -> Result<bool, OpenError> {
        let Self { mirror, tap, parser, followed, stats } = self;
        let seen = mirror.turn(&mut |copied| {
            if copied.syn && followed.len() < CONNECTIONS_MAX {
                // An old one of the same client is over.
                followed.remove(&copied.client);
                if let Some(connection) = tap.connection(parser()) {
                    stats.connections += 1;
                    followed.insert(copied.client, Followed { stream: Stream::default(), connection });
                }
            }
            let Some(of) = followed.get_mut(&copied.client) else {
                stats.passed_over += 1;
                return;
            };
            stats.packets += u64::from(copied.syn || !copied.bytes.is_empty());
            let segment = Segment { seq: copied.seq, syn: copied.syn };
            let Followed { stream, connection } = of;
            stream.packet(segment, copied.bytes, &mut |next| match next {
                Next::Bytes(bytes) => drop(connection.received(bytes)),
                Next::Lost(bytes) => {
                    stats.gaps += 1;
                    connection.lost(bytes);
                }
            });
            if copied.ends {
                followed.remove(&copied.client);
            }
        });
        let lost = mirror.lost();
        let lost =
            lost.map_err(|source| OpenError::System { doing: "count a mirror's losses".into(), source })?;
        if lost != stats.lost_packets {
            stats.lost_packets = lost;
            // What connections wait for will not come.
            for Followed { stream, connection } in followed.values_mut() {
                stream.give_up(&mut |next| match next {
                    Next::Bytes(bytes) => drop(connection.received(bytes)),
                    Next::Lost(bytes) => {
                        stats.gaps += 1;
                        connection.lost(bytes);
                    }
                });
            }
        }
        Ok(seen > 0)
    }

    /// Waits until something has come, at most `most`.
    ///
    /// # Errors
    /// As [`MirrorTap::turn`].
    pub fn wait(&self, most: Duration) -> Result<(), OpenError> {
        let waited = self.mirror.wait(most);
        waited.map_err(|source| OpenError::System { doing: "wait for a mirror's packets".into(), source })
    }

    /// What it saw.
    #[must_use]
    pub const fn stats(&self) -> MirrorStats {
        self.stats
    }
}
