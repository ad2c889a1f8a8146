//! Counts of address proofs, and when the operator is warned (PROTOCOL 8.75).

use crate::api::ProofCounts;
use farmem_machine::{Duration, Instant};

/// Joins without a proof in one minute from which on the operator is warned: members that join prove their
/// addresses with their next request.
const UNPROVEN_MIN: u64 = 16;
/// Time from one warning to the next.
const WARNING_PERIOD: Duration = Duration::from_secs(60);

/// Counts of proofs since the control plane started.
#[derive(Debug, Default)]
pub(crate) struct Proofs {
    pub(crate) counts: ProofCounts,
    /// Begin of the present period, and the joins without a proof until then.
    period: Option<(Instant, u64)>,
}

impl Proofs {
    /// Counts a join that is refused because its address is not proven. Returns how many joins of the last period
    /// were not proven later, if that period has ended and they are unusually many.
    pub(crate) fn unproven(&mut self, is_wrong: bool, now: Instant) -> Option<u64> {
        let Self { counts, period } = self;
        let open = counts.cookies.saturating_sub(counts.proven);
        counts.cookies += 1;
        counts.wrong += u64::from(is_wrong);
        let (begin, before) = *period.get_or_insert((now, open));
        if now.since(begin) < WARNING_PERIOD {
            return None;
        }
        *period = Some((now, open));
        Some(open.saturating_sub(before)).filter(|&joins| joins >= UNPROVEN_MIN)
    }
}
