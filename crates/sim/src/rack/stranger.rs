//! A stranger on the network: it hears packets go by and sends its own, with a good ICRC and from an address that no role knows.

use super::Rack;
use farmem_wire::Gid;

/// Where it is.
fn stranger() -> Gid {
    Gid::from_v4([10, 9, 9, 9])
}

/// Where the Q_Key of a datagram is: behind the BTH.
const QKEY: std::ops::Range<usize> = 12..16;

impl Rack {
    /// Under a plan with a stranger: has it send something now and then.
    ///
    /// It may know everything but keys: what it repeats or makes up must change nothing (PROTOCOL 9.16).
    pub(super) fn disturb(&mut self) {
        if self.plan.stranger_ppm == 0 || !self.rng.chance(self.plan.stranger_ppm, 1_000_000) {
            return;
        }
        let count = u32::try_from(self.world.network().len()).unwrap_or(u32::MAX);
        if count == 0 {
            return;
        }
        let nth = self.rng.below(count) as usize;
        // It repeats what it heard whole: a damaged packet with a good ICRC would be a forgery with a good key.
        let heard =
            self.world.network().on_the_way().nth(nth).filter(|(_, in_flight)| !in_flight.is_damaged());
        let Some((to, mut frame)) = heard.map(|(_, in_flight)| (in_flight.to, in_flight.frame().to_vec()))
        else {
            return;
        };
        // Now and then it is sent to a role that it is not for.
        let all = self.world.everybody();
        let wrong = all[self.rng.below(u32::try_from(all.len()).expect("few")) as usize];
        let to = if self.rng.chance(1, 4) { wrong.gid() } else { to };
        match self.rng.below(4) {
            // Again, as it is.
            0 => {}
            // A bit or two of it changed. It does not know a key that works for what it made up.
            1 | 2 => {
                self.change_key(&mut frame);
                let bits = u32::try_from(frame.len() * 8).unwrap_or(u32::MAX);
                for _ in 0..=self.rng.below(2) {
                    let bit = self.rng.below(bits) as usize;
                    frame[bit / 8] ^= 0x80 >> (bit % 8);
                }
            }
            // Cut off.
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
