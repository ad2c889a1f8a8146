//! Random numbers: queue pairs, keys and first PSNs that no one can guess.

use crate::rack::Rack;
use crate::record::Key;
use farmem_wire::Qpn;

/// Draws within which a free queue pair number must have come up: one in 2^24 is taken for each one in use.
const DRAWS_MAX: u32 = 1 << 16;

impl Rack {
    /// Draws a new, unguessable endpoint.
    pub(crate) fn draw_key(&mut self) -> Key {
        Key { qpn: self.draw_qpn(&[]), qkey: self.draw_qkey() }
    }

    /// Draws a queue pair number that is free and none of `others`.
    pub(crate) fn draw_qpn(&mut self, others: &[u32]) -> u32 {
        for _ in 0..DRAWS_MAX {
            let qpn = Qpn::FIRST_FREE + self.rng.below(Qpn::MAX + 1 - Qpn::FIRST_FREE);
            if !others.contains(&qpn) && !self.state.uses_qpn(qpn) {
                return qpn;
            }
        }
        unreachable!("the bounds leave most queue pair numbers free")
    }

    /// Draws an rkey other than zero, which means a keyed READ.
    pub(crate) fn draw_secret(&mut self) -> u32 {
        self.rng.next_u32().max(1)
    }

    /// Draws a Q_Key that a card can send. With the top bit set the card would send its own queue pair's key
    /// instead (PROTOCOL 14.4), and zero means none.
    fn draw_qkey(&mut self) -> u32 {
        (self.rng.next_u32() >> 1).max(1)
    }
}
