//! Wrong passwords, by the address that they came from: who guesses is slow, on however many connections.
//!
//! Key type: [`Guesses`]. A few wrong passwords of an address are free; each one behind them closes that address for a while, in which no password from it is looked at, right or wrong: to tell
//! them apart would be to answer the guess. Other addresses notice nothing, and neither do clients that said who they are before. The table has a bound; what it lets go when it is full
//! are those with the fewest wrong passwords, and nobody is refused for want of room in it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Wrong passwords of an address that close nothing.
const FREE: u32 = 3;
/// How long the next one closes it; each one behind that twice as long, up to so many times.
const HOLD: Duration = Duration::from_millis(250);
const DOUBLINGS_MAX: u32 = 4;
/// Wrong passwords that are counted at most.
const COUNTED_MAX: u32 = FREE + 1 + DOUBLINGS_MAX;
/// In so long one of them is forgotten. A right password forgets none: who has one of a user would guess those of others for nothing.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// Addresses that are known at once.
const ADDRESSES_MAX: usize = 4096;

/// Where a client comes from, as far as guesses count together: an address of IPv4; of IPv6 the 64 bits of its network, of whose addresses one machine may have any.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Origin {
    V4([u8; 4]),
    V6([u8; 8]),
    /// No client: what this server carries out by itself.
    Nobody,
}

impl From<SocketAddr> for Origin {
    fn from(peer: SocketAddr) -> Self {
        match peer.ip().to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
struct Guesser {
    /// Wrong passwords, as of then.
    failures: u32,
    counted: Instant,
    /// No password of it is looked at before.
    closed_until: Instant,
}

impl Guesser {
    /// Wrong passwords that are not forgotten.
    fn failures(&self, now: Instant) -> u32 {
        let times = now.saturating_duration_since(self.counted).as_secs() / FORGOTTEN.as_secs();
        self.failures.saturating_sub(u32::try_from(times).unwrap_or(u32::MAX))
    }
}

/// Addresses that wrong passwords came from of late.
#[derive(Default, Debug)]
pub(crate) struct Guesses(BTreeMap<Origin, Guesser>);

impl Guesses {
    /// True when nobody has guessed of late: then nothing has to be looked up.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Until when no password of an address is looked at, if that is so now.
    pub(crate) fn closed_until(&self, origin: Origin, now: Instant) -> Option<Instant> {
        self.0.get(&origin).map(|guesser| guesser.closed_until).filter(|&until| until > now)
    }

    /// A wrong password came from there; until when the address is closed for it, if it is.
    pub(crate) fn failed(&mut self, origin: Origin, now: Instant) -> Option<Instant> {
        let failures = self.0.get(&origin).map_or(0, |guesser| guesser.failures(now));
        let failures = (failures + 1).min(COUNTED_MAX);
        let doublings = failures.checked_sub(FREE + 1);
        let hold = doublings.map(|times| now + HOLD * (1 << times.min(DOUBLINGS_MAX)));
        if !self.0.contains_key(&origin) && self.0.len() >= ADDRESSES_MAX {
            let least = self.0.iter().min_by_key(|(_, known)| (known.failures(now), known.counted));
            if let Some(least) = least.map(|(origin, _)| *origin) {
                self.0.remove(&least);
            }
        }
        self.0.insert(origin, Guesser { failures, counted: now, closed_until: hold.unwrap_or(now) });
        hold
    }

    /// Addresses all of whose wrong passwords are forgotten go.
    pub(crate) fn forget(&mut self, now: Instant) {
        self.0.retain(|_, guesser| guesser.failures(now) > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Origin {
        Origin::from(SocketAddr::new(text.parse().unwrap(), 4711))
    }

    /// Guesses of an address: three are free, the next ones close it for longer and longer, to a bound, whichever connection they are of; another address is as it was. One is forgotten each half minute.
    #[test]
    fn an_address_is_closed_for_longer_and_longer() {
        let (mut guesses, mut now) = (Guesses::default(), Instant::now());
        let (guesser, other) = (origin("10.0.0.1"), origin("10.0.0.2"));
        assert!(guesses.is_empty());
        let holds = [(); 10].map(|()| {
            let until = guesses.failed(guesser, now);
            assert_eq!(guesses.closed_until(guesser, now), until);
            assert_eq!(guesses.closed_until(other, now), None);
            let hold = until.map_or(Duration::ZERO, |until| until - now);
            now += hold;
            assert_eq!(guesses.closed_until(guesser, now), None);
            hold.as_millis()
        });
        assert_eq!(holds, [0, 0, 0, 250, 500, 1000, 2000, 4000, 4000, 4000]);
        now += 3 * FORGOTTEN;
        assert_eq!(guesses.failed(guesser, now).map(|until| until - now), Some(4 * HOLD));
        now += COUNTED_MAX * FORGOTTEN;
        guesses.forget(now);
        assert!(guesses.is_empty());
        assert_eq!(guesses.failed(guesser, now), None);
    }

    /// More addresses than the table has room for: it stays within its bound, and the one that has guessed most is still known.
    #[test]
    fn the_table_has_a_bound() {
        let (mut guesses, now) = (Guesses::default(), Instant::now());
        let guesser = origin("10.0.0.1");
        (0..9).for_each(|_| _ = guesses.failed(guesser, now));
        for number in 0..2 * u32::try_from(ADDRESSES_MAX).unwrap() {
            let stranger = origin(&std::net::Ipv4Addr::from(0x0b00_0000 + number).to_string());
            assert_eq!(guesses.failed(stranger, now), None, "its first one");
            assert!(guesses.0.len() <= ADDRESSES_MAX);
        }
        assert_eq!(guesses.closed_until(guesser, now), Some(now + 16 * HOLD));
    }

    /// One machine may have all addresses of a network of IPv6: they count together, and an address of IPv4 that is written as one of IPv6 is the same one.
    #[test]
    fn a_machine_has_one_origin() {
        assert_eq!(origin("2001:db8:0:1::1"), origin("2001:db8:0:1:ffff::2"));
        assert_ne!(origin("2001:db8:0:1::1"), origin("2001:db8:0:2::1"));
        assert_eq!(origin("::ffff:10.0.0.1"), origin("10.0.0.1"));
        assert_ne!(origin("10.0.0.1"), origin("10.0.0.2"));
    }
}
