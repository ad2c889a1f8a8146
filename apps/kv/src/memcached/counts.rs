//! Counts of memcached commands, which `stats` shows.

/// Counts of memcached commands.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(super) sets: u64,
    pub(super) flushes: u64,
    pub(super) cas_hits: u64,
    pub(super) cas_misses: u64,
    pub(super) cas_others: u64,
    pub(super) gets: [u64; 2],
    pub(super) touches: [u64; 2],
    pub(super) deletes: [u64; 2],
    pub(super) ups: [u64; 2],
    pub(super) downs: [u64; 2],
}

impl Counts {
    /// Counts a lookup that found a value; `touched` if it changed the expiry time.
    pub(super) fn hit(&mut self, touched: bool) {
        if touched {
            self.touches[0] += 1;
        } else {
            self.gets[0] += 1;
        }
    }

    pub(super) fn missed(&mut self, touched: bool) {
        if touched {
            self.touches[1] += 1;
        } else {
            self.gets[1] += 1;
        }
    }

    pub(super) fn touched(&mut self, found: bool) {
        self.touches[usize::from(!found)] += 1;
    }

    pub(super) fn deleted(&mut self, found: bool) {
        self.deletes[usize::from(!found)] += 1;
    }

    pub(super) fn added(&mut self, up: bool, found: bool) {
        let counts = if up { &mut self.ups } else { &mut self.downs };
        counts[usize::from(!found)] += 1;
    }
}
