//! Rate limit for new programs of a domain. Verifying one takes some to some hundred microseconds, in which
//! the node serves no other request (PROTOCOL 7.49).

use alloc::collections::BTreeMap;
use farmem_machine::{Bucket, Duration, Instant, Rate};
use farmem_wire::Domain;

/// Rate of new programs of a domain: 128 at once, then one each millisecond.
pub const NEW_PROGRAMS: Rate = Rate { at_once: 128, every: Duration::from_millis(1) };
/// Most domains that are counted. If all of them are active, the domain with the largest allowance is
/// dropped.
const DOMAINS_MAX: usize = 1024;

/// Allowance of each domain.
#[derive(Debug, Default)]
pub(crate) struct ProgramLimiter(BTreeMap<Domain, Bucket>);

impl ProgramLimiter {
    /// Counts a new program of the domain. Returns false, and counts nothing, if the domain exceeds its rate.
    pub(crate) fn admit(&mut self, now: Instant, domain: Domain) -> bool {
        if self.0.len() >= DOMAINS_MAX && !self.0.contains_key(&domain) {
            self.make_room(now);
        }
        self.0.entry(domain).or_default().take(now, NEW_PROGRAMS)
    }

    fn make_room(&mut self, now: Instant) {
        self.0.retain(|_, bucket| !bucket.is_full(now));
        let least = self.0.iter().min_by_key(|(_, bucket)| **bucket).map(|(&domain, _)| domain);
        if let Some(domain) = least.filter(|_| self.0.len() >= DOMAINS_MAX) {
            self.0.remove(&domain);
        }
    }

    /// Asserts the bound.
    pub(crate) fn check(&self) {
        assert!(self.0.len() <= DOMAINS_MAX, "more domains are counted than the bound");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More domains than the bound: active domains keep their count, and the table keeps its bound.
    #[test]
    fn domains_that_are_done_make_room() {
        let (mut limiter, alice) = (ProgramLimiter::default(), Domain(1));
        let now = Instant::from_nanos(1);
        let brought = |limiter: &mut ProgramLimiter| (0..200).filter(|_| limiter.admit(now, alice)).count();
        assert_eq!(brought(&mut limiter), 128);
        for domain in 10..3000 {
            assert!(limiter.admit(now, Domain(domain)));
            limiter.check();
        }
        assert_eq!(brought(&mut limiter), 0, "its count is kept");
    }
}
