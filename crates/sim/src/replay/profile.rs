//! The hardware of MIND's evaluation, as far as the paper gives it: each value with its place there.

use crate::trace::PAGE_LEN;
use farmem_machine::Duration;

/// Match-action rules that the switch has room for (MIND 7.2).
pub const MATCH_ACTION_RULES_MAX: usize = 45_000;

/// What things take, and how much of everything there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// A fetch that needs no invalidation, end to end: one round trip (MIND 7.2: about 9 us; one that needs its owner's bytes first takes about 18
    /// us there; here what it takes follows from this one and the protocol).
    pub round_trip: Duration,
    /// The rate of each link of a blade and of a memory node, in bits a nanosecond (MIND 7: 100 Gbps NICs, one for each).
    pub link_bits: u64,
    /// An access that stays local (MIND 7.2: DRAM latency, below 100 ns).
    pub local: Duration,
    /// How many times as long it takes through a software DSM's library (MIND 7.1: 10 times).
    pub software: u64,
    /// For how long of it the library's lock is held. The paper says that GAM scales linearly up to 4 threads of a blade and less behind them; this
    /// value, the only one here that is ours, gives that.
    pub lock: Duration,
    /// Stores of a thread that wait for their pages at once, where stores need not wait. The paper gives none; x86 processors have some
    /// dozens.
    pub stores_max: usize,
    /// Slots of the directory (MIND 7.2).
    pub slots: usize,
    /// Bytes of a region at first (MIND 7).
    pub region_initial: u64,
    /// The epoch of bounded splitting (MIND 7).
    pub epoch: Duration,
    /// Pages that a blade's local memory holds (MIND 7: 512 MB).
    pub cache_pages: usize,
    /// Pages of a workload (MIND 7: local memory is about a quarter of it).
    pub footprint_pages: usize,
    /// Threads of a blade (MIND 7.1).
    pub threads: u16,
    /// Memory blades (MIND 7.2).
    pub nodes: u16,
    /// How long about to wait when another blade has its turn; doubles up to 64 times. Half a round trip.
    pub backoff: Duration,
    /// After how long a request without an answer comes again (MIND 4.4 gives no value). Ten round trips.
    pub timeout: Duration,
}

impl Profile {
    /// The paper's.
    pub const MIND: Self = Self {
        round_trip: Duration::from_micros(9),
        link_bits: 100,
        local: Duration::from_nanos(100),
        software: 10,
        lock: Duration::from_nanos(150),
        stores_max: 32,
        slots: 30_000,
        region_initial: 16 << 10,
        epoch: Duration::from_millis(100),
        cache_pages: 1 << 17,
        footprint_pages: 1 << 19,
        threads: 10,
        nodes: 8,
        backoff: Duration::from_nanos(4_500),
        timeout: Duration::from_micros(90),
    };

    /// A link between switch and endpoint, less the time for the bytes: what is left of a round trip of a request and a page for each of its four
    /// links (host, switch, node, switch, host).
    pub(super) fn hop(&self) -> u64 {
        let bytes = 2 * self.wire(SMALL_LEN) + 2 * self.wire(PAGE_FRAME_LEN);
        (self.round_trip.as_nanos() - bytes) / 4
    }

    /// How long a link is taken by so many bytes, in nanoseconds.
    pub(super) const fn wire(&self, bytes: u64) -> u64 {
        bytes * 8 / self.link_bits
    }
}

/// Bytes of a message without a page, headers and the gap between frames included.
pub(super) const SMALL_LEN: u64 = 120;
/// Bytes of a message with a page.
pub(super) const PAGE_FRAME_LEN: u64 = PAGE_LEN + SMALL_LEN;
