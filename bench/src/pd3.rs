//! `farmem bench pd3`: what preventive prefetching is made of, each part beside its baselines (PD3 5 to 8).
//!
//! `pd3.hostview.*` is the ladder of the paper's figure 4, beside the rate at which a core reads lines of a store of the same size: `hostview`. `pd3.zone.*` is the loading
//! zone, beside rings whose consumers share a head (figure 8): `zone`. `pd3.transfer.*` is how requests of many threads come to the DPU: `transfer`.

mod hostview;
mod rings;
mod transfer;
mod zone;

use crate::{Outcome, Plan, Progress, Sheet};

/// Keys of the host view, unless the caller says otherwise: the paper's.
pub const KEYS: usize = 100_000_000;
/// The same of a short run.
const KEYS_QUICK: usize = 1_000_000;
/// Fewest keys that are measured.
pub const KEYS_MIN: usize = 1_000;

/// Measures what `plan` says, and tells it as it comes. `keys` are those of the host view.
pub fn run(plan: &Plan, keys: Option<usize>, mut tell: impl FnMut(Progress<'_>)) -> Outcome {
    let mut sheet = Sheet::new(&plan.only, &mut tell);
    let usual = if plan.quick { KEYS_QUICK } else { KEYS };
    let keys = keys.unwrap_or(usual).max(KEYS_MIN);
    if plan.wants("pd3.hostview.") {
        let rounds = if plan.quick { 2 } else { 9 };
        hostview::measure(hostview::Budget { keys, rounds }, &mut sheet);
    }
    zone::measure(plan, &mut sheet);
    transfer::measure(plan, &mut sheet);
    sheet.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row is there with a figure, in a short run on a few keys, and no answer was wrong.
    #[test]
    fn every_row_is_there() {
        let plan = Plan { quick: true, ..Plan::default() };
        let outcome = run(&plan, Some(20_000), |_| {});
        assert_eq!(outcome.wrong, 0);
        let ids: Vec<&str> = outcome.rows.iter().map(|row| &*row.id).collect();
        let expected =
            hostview::IDS.into_iter().chain(zone::IDS).chain(transfer::IDS_OF_ROWS).collect::<Vec<_>>();
        assert_eq!(ids, expected);
        for row in &outcome.rows {
            assert!(row.value.is_some_and(f64::is_finite), "{row:?}");
        }
    }
}
