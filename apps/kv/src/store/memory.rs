//! The limits of the store: local memory, which is a hard limit, and all data, which Redis calls `maxmemory`.
//! `room` keeps them.

use super::frequency::Settings;

/// Which keys go when there are too many (`maxmemory-policy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    NoEviction,
    AllLru,
    AllRandom,
    AllLfu,
    VolatileLru,
    VolatileRandom,
    VolatileLfu,
    VolatileTtl,
}

impl Policy {
    pub(crate) const ALL: [(&str, Self); 8] = [
        ("noeviction", Self::NoEviction),
        ("allkeys-lru", Self::AllLru),
        ("allkeys-random", Self::AllRandom),
        ("allkeys-lfu", Self::AllLfu),
        ("volatile-lru", Self::VolatileLru),
        ("volatile-random", Self::VolatileRandom),
        ("volatile-lfu", Self::VolatileLfu),
        ("volatile-ttl", Self::VolatileTtl),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, policy)| *policy == self).expect("all have names").0
    }

    /// Returns whether entries count the frequency of use, instead of the last use.
    pub(crate) const fn is_lfu(self) -> bool {
        matches!(self, Self::AllLfu | Self::VolatileLfu)
    }
}

/// The limits, and the present use.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// Bytes of local memory.
    pub(crate) local: usize,
    /// Bytes of all data, local and far; 0 for as much as there is room.
    pub(crate) data_max: usize,
    pub(crate) policy: Policy,
    /// Keys that are compared for one eviction (`maxmemory-samples`).
    pub(crate) samples: usize,
    pub(crate) lfu: Settings,
    /// Bytes of this process that the store does not count.
    pub(crate) overhead: usize,
    /// Local memory has no room for new data.
    pub(crate) is_full: bool,
    /// The error by which far memory refused to take data, when that is why local memory is full.
    pub(super) withheld: Option<String>,
}

impl Memory {
    pub(crate) const fn new(local: usize) -> Self {
        Self {
            local,
            data_max: 0,
            policy: Policy::NoEviction,
            samples: 5,
            lfu: Settings::DEFAULT,
            overhead: 0,
            is_full: false,
            withheld: None,
        }
    }
}
