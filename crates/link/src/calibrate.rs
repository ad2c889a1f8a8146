//! A measurement of whether a memory node prefetches cache lines faster in bursts or one by one. The
//! measurement uses the node's own store, before the node serves.
//!
//! On some processors a prefetch that misses the TLB delays later prefetches, so bursts of many lines are
//! faster. On others there is no difference, or bursts cost a little. Small tables do not show the effect.

use crate::MappedStore;
use farmem_memnode::{BURST, Compile, Store as _, Trial};
use farmem_wire::message::PAGE_LEN;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Number of bytes of the store for the measurement: more than caches hold. A smaller store does not justify
/// a measurement.
const TRIED: u64 = 256 << 20;
/// Number of pairs of trials. Each takes one or two milliseconds.
const ROUNDS: usize = 7;
/// Minimum speedup of one by one before it is selected. The median of the rounds differs by up to a tenth
/// between starts.
const CLEARLY: f64 = 1.1;

/// Maximum time of the measurement. A slower machine uses the default, which is nearly optimal.
const PATIENCE: Duration = Duration::from_secs(1);
/// Number of bytes that are touched between two checks of the clock.
const CHUNK: usize = 16 << 20;

/// The result of the measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Calibrated {
    /// The best [`Budget::burst`](farmem_memnode::Budget::burst).
    pub burst: usize,
    /// Speedup of one by one over bursts; `None` if the store was too small or the machine too busy.
    pub one_by_one: Option<f64>,
}

/// Measures both methods on the beginning of an unwritten store. Afterwards this part is zero again and takes
/// no memory.
#[must_use]
pub fn calibrate<C: Compile>(store: MappedStore, compile: &mut C) -> (MappedStore, Calibrated) {
    calibrate_within(PATIENCE, store, compile)
}

fn calibrate_within<C: Compile>(
    patience: Duration,
    mut store: MappedStore,
    compile: &mut C,
) -> (MappedStore, Calibrated) {
    let usual = Calibrated { burst: BURST, one_by_one: None };
    if store.len() < TRIED {
        return (store, usual);
    }
    let begun = time(ClockId::Monotonic);
    let is_over = || time(ClockId::Monotonic).saturating_sub(begun) >= patience;
    // All unwritten pages share one physical page, which is in the cache, so each page must be written first.
    for chunk in (0..TRIED).step_by(CHUNK) {
        if is_over() {
            store.discard(0, chunk);
            return (store, usual);
        }
        (chunk..chunk + CHUNK as u64).step_by(PAGE_LEN).for_each(|offset| store.write(offset, &[0]));
    }
    let trial = Trial::new(TRIED);
    let mut rounds = Vec::new();
    for _ in 0..=ROUNDS {
        if is_over() {
            store.discard(0, TRIED);
            return (store, usual);
        }
        let mut times = [0.0; 2];
        for (taken, burst) in times.iter_mut().zip([BURST, 1]) {
            // CPU time of this thread excludes the time that other threads of this machine take.
            let start = time(ClockId::ThreadCPUTime);
            (store, _) = trial.run(store, &mut *compile, burst);
            *taken = (time(ClockId::ThreadCPUTime) - start).as_secs_f64();
        }
        rounds.push(times[0] / times[1]);
    }
    // The first round warms up the caches.
    let one_by_one = middle(&mut rounds[1..]);
    store.discard(0, TRIED);
    (store, Calibrated { burst: choose(one_by_one), one_by_one: Some(one_by_one) })
}

fn choose(one_by_one: f64) -> usize {
    if one_by_one > CLEARLY { 1 } else { BURST }
}

fn middle(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn time(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).expect("a clock that began at 0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_memnode::Interpreted;

    /// The default is bursts, unless one by one is faster by more than starts differ; a disturbed round does
    /// not decide.
    #[test]
    fn the_usual_unless_it_is_clearly_slower() {
        assert_eq!([0.3, 1.0, 1.09].map(choose), [BURST; 3]);
        assert_eq!(choose(1.2), 1);
        assert_eq!(middle(&mut [9.0, 1.1, 1.0, 1.2, 0.1]), 1.1);
    }

    /// A store that fits the caches is not measured.
    #[test]
    fn a_small_store_is_not_tried() {
        let (_, calibrated) = calibrate(MappedStore::new(1 << 20).unwrap(), &mut Interpreted);
        assert_eq!(calibrated, Calibrated { burst: BURST, one_by_one: None });
    }

    /// Without time for the trials, calibration returns the default burst and an empty store.
    #[test]
    fn a_busy_machine_is_not_kept() {
        let store = MappedStore::new(TRIED).unwrap();
        let (store, calibrated) = calibrate_within(Duration::ZERO, store, &mut Interpreted);
        assert_eq!(calibrated, Calibrated { burst: BURST, one_by_one: None });
        let mut bytes = Vec::new();
        store.read(0, 1 << 20, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    /// After a measurement the store is as empty as before, and the choice follows the trial.
    #[test]
    fn the_store_is_left_as_it_was() {
        let (store, calibrated) =
            calibrate_within(Duration::MAX, MappedStore::new(TRIED).unwrap(), &mut Interpreted);
        let Calibrated { burst, one_by_one } = calibrated;
        assert_eq!(burst, choose(one_by_one.expect("it was tried")));
        let mut bytes = Vec::new();
        for offset in (0..TRIED).step_by(1 << 20) {
            bytes.clear();
            store.read(offset, 1 << 20, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 0), "at {offset}");
        }
    }
}
