//! The choice between polling and sleeping. A polling thread notices work of another CPU earlier, but keeps a server
//! on its own CPU from running.
//!
//! Key type: [`Looking`], which adapts to the last results. The fields are atomics, because several threads may share
//! the value and a signal handler may use it.

use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum polling time before a sleep, in nanoseconds: several times what a page from another CPU takes.
pub(super) const LOOK_NS_MAX: u64 = 60_000;
/// Maximum power of two of the number of polls that are skipped after empty polls in a row.
const VAIN_MAX: u32 = 6;

/// The record of polls.
#[derive(Debug)]
pub(super) struct Looking {
    /// True if there is another CPU, on which something can happen meanwhile.
    can: bool,
    /// Number of empty polls in a row.
    vain: AtomicU32,
    /// Number of polls to skip.
    skip: AtomicU32,
}

impl Looking {
    /// Creates an empty record.
    pub(super) fn new() -> Self {
        Self {
            can: farmem_link::affinity::cpus_online() > 1,
            vain: AtomicU32::new(0),
            skip: AtomicU32::new(0),
        }
    }

    /// Returns true if a poll is worthwhile this time.
    pub(super) fn is_worth_it(&self) -> bool {
        if !self.can {
            return false;
        }
        let skip = self.skip.load(Ordering::Relaxed);
        self.skip.store(skip.saturating_sub(1), Ordering::Relaxed);
        skip == 0
    }

    /// Records a poll. After an empty poll, the next 2, 4, ... 64 are skipped.
    pub(super) fn ended(&self, came: bool) {
        let vain = if came { 0 } else { (self.vain.load(Ordering::Relaxed) + 1).min(VAIN_MAX) };
        self.vain.store(vain, Ordering::Relaxed);
        if vain > 0 {
            self.skip.store(1 << vain, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Empty polls make further polls rarer; a successful poll is followed by the next.
    #[test]
    fn empty_polls_become_rare() {
        let looking = Looking { can: true, ..Looking::new() };
        let left_out = || (0..).take_while(|_| !looking.is_worth_it()).count();
        assert_eq!(left_out(), 0);
        for expected in [2, 4, 8, 16, 32, 64, 64] {
            looking.ended(false);
            assert_eq!(left_out(), expected);
        }
        looking.ended(true);
        assert_eq!(left_out(), 0);
        assert!(!Looking { can: false, ..Looking::new() }.is_worth_it());
    }
}
