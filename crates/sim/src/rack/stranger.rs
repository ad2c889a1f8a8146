//! A stranger on the network: it observes packets and sends its own, with a valid ICRC and from an address
//! that no role knows.

use super::Rack;
use farmem_wire::Gid;

/// Returns the stranger's address.
fn stranger() -> Gid {
    Gid::from_v4([10, 9, 9, 9])
}

/// Offsets of the Q_Key of a datagram, behind the BTH.
const QKEY: std::ops::Range<usize> = 12..16;

impl Rack {
    /// Sends a packet of the stranger from time to time, under a plan with one.
    ///
    /// The stranger may know everything but keys: its repeated and forged packets must change nothing
    /// (PROTOCOL 9.16).
    pub(super) fn disturb(&mut self) {
        if self.plan.stranger_ppm == 0 || !self.rng.chance(self.plan.stranger_ppm, 1_000_000) {
            return;
        }
        let count = u32::try_from(self.world.network().len()).unwrap_or(u32::MAX);
        if count == 0 {
            return;
        }
        let nth = self.rng.below(count) as usize;
        // The stranger repeats only undamaged packets: a damaged one with a valid ICRC would be a forgery
        // with a valid key.
        let heard =
            self.world.network().on_the_way().nth(nth).filter(|(_, in_flight)| !in_flight.is_damaged());
        let Some((to, mut frame)) = heard.map(|(_, in_flight)| (in_flight.to, in_flight.frame().to_vec()))
        else {
            return;
        };
        // Now and then the packet goes to another role.
        let all = self.world.all_roles();
        let wrong = all[self.rng.below(u32::try_from(all.len()).expect("few")) as usize];
        let to = if self.rng.chance(1, 4) { wrong.gid() } else { to };
        match self.rng.below(4) {
            // Repeated as it is.
            0 => {}
            // A bit or two changed, and no valid key for the forgery.
            1 | 2 => {
                self.change_key(&mut frame);
                let bits = u32::try_from(frame.len() * 8).unwrap_or(u32::MAX);
                for _ in 0..=self.rng.below(2) {
                    let bit = self.rng.below(bits) as usize;
                    frame[bit / 8] ^= 0x80 >> (bit % 8);
                }
            }
            // Truncated.
            _ => {
                let len = self.rng.below(u32::try_from(frame.len()).unwrap_or(u32::MAX)) as usize;
                frame.truncate(len.max(farmem_wire::bth::LEN));
                self.change_key(&mut frame);
            }
        }
        let now = self.world.now();
        self.world.network_mut().send(now, stranger(), to, &frame);
    }

    fn change_key(&mut self, frame: &mut [u8]) {
        if let Some(key) = frame.get_mut(QKEY) {
            key.copy_from_slice(&self.rng.next_u32().to_be_bytes());
        }
    }
}
