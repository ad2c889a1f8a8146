//! Delays for wrong passwords, by the address that sent them.
//!
//! Key type: [`Guesses`]. An address has a few wrong passwords free. Each further one closes the address for
//! a while: no password from it is checked, whether right or wrong, on any connection. Other addresses are
//! not affected, and neither are clients that are logged in. The table is bounded; a full table forgets the
//! address with the fewest wrong passwords.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Wrong passwords of an address that have no consequence.
const FREE: u32 = 3;
/// Time that the first further one closes the address. Each one after it doubles the time, up to
/// `DOUBLINGS_MAX` times.
const HOLD: Duration = Duration::from_millis(250);
const DOUBLINGS_MAX: u32 = 4;
/// The count at which an address stays.
const COUNTED_MAX: u32 = FREE + 1 + DOUBLINGS_MAX;
/// Time after which one wrong password is forgotten. A right password forgets none: a user could otherwise
/// guess the passwords of other users.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// Addresses in the table at most.
const ADDRESSES_MAX: usize = 4096;

/// The source of guesses: an IPv4 address, or the 64-bit network prefix of an IPv6 address, because one
/// machine may have all addresses of that network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum GuessSource {
    V4([u8; 4]),
    V6([u8; 8]),
    /// No client: the server itself, while it replays the log.
    Server,
}

impl From<SocketAddr> for GuessSource {
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

/// The record of an address.
#[derive(Clone, Copy, Debug)]
struct Guesser {
    /// Wrong passwords at the time of the last one.
    failures: u32,
    counted: Instant,
    /// The time before which no password from the address is checked.
    closed_until: Instant,
}

impl Guesser {
    /// Returns the wrong passwords that are not forgotten.
    fn failures(&self, now: Instant) -> u32 {
        let times = now.saturating_duration_since(self.counted).as_secs() / FORGOTTEN.as_secs();
        self.failures.saturating_sub(u32::try_from(times).unwrap_or(u32::MAX))
    }
}

/// Addresses that recently sent wrong passwords.
#[derive(Default, Debug)]
pub(crate) struct Guesses(BTreeMap<GuessSource, Guesser>);

impl Guesses {
    /// Returns whether the table is empty, so that no address needs a lookup.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the time until which passwords from an address are not checked, if they are not now.
    pub(crate) fn closed_until(&self, origin: GuessSource, now: Instant) -> Option<Instant> {
        self.0.get(&origin).map(|guesser| guesser.closed_until).filter(|&until| until > now)
    }

    /// Notes a wrong password. Returns the time until which the address is closed, if it is.
    pub(crate) fn failed(&mut self, origin: GuessSource, now: Instant) -> Option<Instant> {
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

    /// Removes the addresses whose wrong passwords are all forgotten.
    pub(crate) fn forget(&mut self, now: Instant) {
        self.0.retain(|_, guesser| guesser.failures(now) > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> GuessSource {
        GuessSource::from(SocketAddr::new(text.parse().unwrap(), 4711))
    }

    /// An address has three guesses free; further ones close it for longer and longer, up to a bound, on
    /// every connection. Another address is not affected. Every half minute one guess is forgotten.
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

    /// More addresses guess than the table has room for: the table keeps its bound, and the address with the
    /// most guesses stays in it.
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

    /// The addresses of an IPv6 network count together, because one machine may have all of them. An IPv4
    /// address written as IPv6 counts as the IPv4 address.
    #[test]
    fn a_machine_has_one_origin() {
        assert_eq!(origin("2001:db8:0:1::1"), origin("2001:db8:0:1:ffff::2"));
        assert_ne!(origin("2001:db8:0:1::1"), origin("2001:db8:0:2::1"));
        assert_eq!(origin("::ffff:10.0.0.1"), origin("10.0.0.1"));
        assert_ne!(origin("10.0.0.1"), origin("10.0.0.2"));
    }
}
