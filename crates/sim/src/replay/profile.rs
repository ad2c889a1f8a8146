//! The hardware of MIND's evaluation, as far as the paper gives it: each value with its source there.

use crate::trace::PAGE_LEN;
use farmem_machine::Duration;

/// Capacity of the switch in match-action rules (MIND 7.2).
pub const MATCH_ACTION_RULES_MAX: usize = 45_000;

/// Times and capacities of the hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// A fetch without an invalidation, end to end: one round trip (MIND 7.2: about 9 us; one that needs its
    /// owner's bytes first takes about 18 us there; here that time follows from this value and the protocol).
    pub round_trip: Duration,
    /// The rate of each link of a blade and of a memory node, in bits per nanosecond (MIND 7: 100 Gbps NICs,
    /// one for each).
    pub link_bits: u64,
    /// A local access (MIND 7.2: DRAM latency, below 100 ns).
    pub local: Duration,
    /// Factor of an access through a software DSM's library (MIND 7.1: 10 times).
    pub software: u64,
    /// Time for which such an access holds the library's lock. The paper says that GAM scales linearly up to
    /// 4 threads of a blade and less beyond; this value, the only one chosen here, gives that.
    pub lock: Duration,
    /// Maximum number of pending stores of a thread under partial store order. The paper gives none; x86
    /// processors have some dozens.
    pub stores_max: usize,
    /// Number of slots of the directory (MIND 7.2).
    pub slots: usize,
    /// Initial region length in bytes (MIND 7).
    pub region_initial: u64,
    /// The epoch of bounded splitting (MIND 7).
    pub epoch: Duration,
    /// Capacity of a blade's local memory in pages (MIND 7: 512 MB).
    pub cache_pages: usize,
    /// Number of pages of a workload (MIND 7: local memory is about a quarter of it).
    pub footprint_pages: usize,
    /// Number of threads of a blade (MIND 7.1).
    pub threads: u16,
    /// Number of memory blades (MIND 7.2).
    pub nodes: u16,
    /// Mean wait while another blade is being served; doubles up to 64 times. Half a round trip.
    pub backoff: Duration,
    /// Time without an answer after which a request is repeated (MIND 4.4 gives no value). Ten round trips.
    pub timeout: Duration,
}

impl Profile {
    /// The paper's hardware.
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

    /// Returns the latency of a link between switch and endpoint, without the time for the bytes: the rest of
    /// the round trip of a request and a page, divided by its four links (host, switch, node, switch, host).
    pub(super) fn hop(&self) -> u64 {
        let bytes = 2 * self.wire(SMALL_LEN) + 2 * self.wire(PAGE_FRAME_LEN);
        (self.round_trip.as_nanos() - bytes) / 4
    }

    /// Returns the time in nanoseconds for which `bytes` occupy a link.
    pub(super) const fn wire(&self, bytes: u64) -> u64 {
        bytes * 8 / self.link_bits
    }
}

/// Length in bytes of a message without a page, including headers and the inter-frame gap.
pub(super) const SMALL_LEN: u64 = 120;
/// Length in bytes of a message with a page.
pub(super) const PAGE_FRAME_LEN: u64 = PAGE_LEN + SMALL_LEN;
