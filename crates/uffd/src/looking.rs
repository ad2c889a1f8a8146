//! Whether to look or to sleep: a thread that looks for what another CPU does has it sooner than one that is woken, and keeps what serves on its own CPU from running.
//!
//! Key type: [`Looking`], which finds out by how it went the last times. Atomics, as several threads may share one, and a signal handler may hold it.

use std::sync::atomic::{AtomicU32, Ordering};

/// The longest that a thread looks before it sleeps, in nanoseconds: several times what a page takes from another CPU.
pub(super) const LOOK_NS_MAX: u64 = 60_000;
/// Times that a thread does not look after it looked in vain: two to the power of how often in a row, up to this power.
const VAIN_MAX: u32 = 6;

/// How looking went.
#[derive(Debug)]
pub(super) struct Looking {
    /// There is another CPU on which anything can happen meanwhile.
    can: bool,
    /// Times in a row that a look was in vain.
    vain: AtomicU32,
    /// Times that no thread looks.
    skip: AtomicU32,
}

impl Looking {
    /// A record without tries.
    pub(super) fn new() -> Self {
        Self {
            can: farmem_link::affinity::cpus_online() > 1,
            vain: AtomicU32::new(0),
            skip: AtomicU32::new(0),
        }
    }

    /// True when looking is worth it this time.
    pub(super) fn is_worth_it(&self) -> bool {
        if !self.can {
            return false;
        }
        let skip = self.skip.load(Ordering::Relaxed);
        self.skip.store(skip.saturating_sub(1), Ordering::Relaxed);
        skip == 0
    }

    /// A look ended, with what was looked for or in vain: then it is left out the next 2, 4, ... 64 times.
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

    /// Looks in vain are left out more and more often; one that was not is followed by the next.
    #[test]
    fn looks_in_vain_become_rare() {
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
