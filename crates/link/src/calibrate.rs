//! How a memory node asks the caches for lines, found out on its own store before it serves.
//!
//! On some processors a prefetch that must look an address up in the page tables holds up what stands behind it, and lines are asked for
//! faster many at a time; on others it makes no difference, or costs a little. Small tables do not show it.

use crate::MappedStore;
use farmem_memnode::{BURST, Compile, Store as _, Trial};
use farmem_wire::message::PAGE_LEN;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Bytes of the store that are tried: more than caches hold. A smaller store is not worth it.
const TRIED: u64 = 256 << 20;
/// Pairs of trials. Each takes a millisecond or two.
const ROUNDS: usize = 7;
/// One by one must be so many times as fast before it is chosen: the middle of the rounds differs by up to a tenth from one start to the next.
const CLEARLY: f64 = 1.1;

/// A machine that needs longer than this has no time for it now: the usual way is not far from the best.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes that are touched between two looks at the clock.
const CHUNK: usize = 16 << 20;

/// Measured speed of this machine's memory and engine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Calibrated {
    /// The best [`Budget::burst`](farmem_memnode::Budget::burst).
    pub burst: usize,
    /// How many times as fast lines come one by one as in bursts; `None` when the store is too small to tell, or the machine too busy.
    pub one_by_one: Option<f64>,
}

/// Tries both ways on the beginning of a store in which nothing was written yet. It is zero again afterwards, and its memory the system's.
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
    // A page that was never written is one that all such pages share, in the cache.
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
            // CPU time of this thread: what others of this machine take does not count.
            let start = time(ClockId::ThreadCPUTime);
            (store, _) = trial.run(store, &mut *compile, burst);
            *taken = (time(ClockId::ThreadCPUTime) - start).as_secs_f64();
        }
        rounds.push(times[0] / times[1]);
    }
    // The first one warms up.
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

    /// Bursts, unless one by one is faster by more than starts differ; a round that was disturbed does not decide.
    #[test]
    fn the_usual_unless_it_is_clearly_slower() {
        assert_eq!([0.3, 1.0, 1.09].map(choose), [BURST; 3]);
        assert_eq!(choose(1.2), 1);
        assert_eq!(middle(&mut [9.0, 1.1, 1.0, 1.2, 0.1]), 1.1);
    }

    /// A store that caches hold is left alone.
    #[test]
    fn a_small_store_is_not_tried() {
        let (_, calibrated) = calibrate(MappedStore::new(1 << 20).unwrap(), &mut Interpreted);
        assert_eq!(calibrated, Calibrated { burst: BURST, one_by_one: None });
    }

    /// A machine without time for it has the usual way, and a store as it was.
    #[test]
    fn a_busy_machine_is_not_kept() {
        let store = MappedStore::new(TRIED).unwrap();
        let (store, calibrated) = calibrate_within(Duration::ZERO, store, &mut Interpreted);
        assert_eq!(calibrated, Calibrated { burst: BURST, one_by_one: None });
        let mut bytes = Vec::new();
        store.read(0, 1 << 20, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    /// One that is tried is as empty as before, and the choice is the one that the trial speaks for.
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
