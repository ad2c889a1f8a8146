use super::*;
use crate::trace::Visit;

fn visit(thread: u16, page: u64, write: bool) -> Visit {
    Visit { thread, page, write, instructions: 0, accesses: 0 }
}

/// A workload of the visits of threads 1 and on, after one of the thread that starts them.
fn workload(visits: &[Visit]) -> Workload {
    let workload = Workload::new(visits);
    assert_eq!(workload.visits(), visits.len());
    workload
}

fn setup(system: System, hosts: u16) -> Setup {
    let regions = Regions::Fixed { order: 0 };
    let any = workload(&[visit(1, 0, false)]);
    Setup { regions, threads: 1, local_pages: 64, ..Setup::in_proportion(system, hosts, &any) }
}

fn play(visits: &[Visit], setup: &Setup) -> Outcome {
    replay(&workload(visits), setup, &mut |_| {})
}

const LOCAL: u64 = 100;

/// Returns the time of the last of these visits in nanoseconds, without those before it.
fn last(visits: &[Visit], setup: &Setup) -> u64 {
    let without = play(&visits[..visits.len() - 1], setup).runtime.as_nanos();
    play(visits, setup).runtime.as_nanos() - without
}

/// A fetch takes a round trip, four hops. A fetch that first recalls the page from its owner takes six,
/// because its read follows the write-back from the switch to the node (PROTOCOL 12.11). MIND needs two round
/// trips for that (MIND 7.2).
#[test]
fn transitions_take_one_round_trip_or_one_and_a_half() {
    let mind = setup(System::Mind, 1);
    let one = play(&[visit(1, 7, false)], &mind).runtime.as_nanos();
    assert!((9_000..9_010).contains(&(one - LOCAL)), "{one} ns");
    // From Shared to Modified, without other sharers.
    assert!((9_000..9_010).contains(&(last(&[visit(1, 7, false), visit(1, 7, true)], &mind) - LOCAL)));
    assert_eq!(last(&[visit(1, 7, true), visit(1, 7, false)], &mind), LOCAL, "it is there");
    // Thread 2, on another host, works locally for long before it accesses the page that thread 1 has
    // written.
    let busy = Visit { accesses: 1_000, ..visit(2, 8, false) };
    let other = |write| [visit(1, 7, true), busy, visit(2, 7, write)];
    for write in [false, true] {
        let taken = last(&other(write), &setup(System::Mind, 2)) - LOCAL;
        assert!((13_500..14_500).contains(&taken), "{taken} ns");
    }
}

/// Under partial store order stores do not wait; a load of the same page does.
#[test]
fn a_relaxed_order_hides_stores_and_not_loads() {
    let stores: Vec<Visit> = (0..8).map(|page| visit(1, page, true)).collect();
    let strict = play(&stores, &setup(System::Mind, 1));
    let relaxed = play(&stores, &setup(System::MindPso, 1));
    assert!(relaxed.runtime.as_nanos() * 5 < strict.runtime.as_nanos());
    assert_eq!((relaxed.visits, relaxed.faults), (8, 8));
    let read = [visit(1, 0, true), visit(1, 0, false)];
    assert!(play(&read, &setup(System::MindPso, 1)).runtime.as_nanos() > 9_000);
}

/// Every access of a software DSM passes its library, and the library's lock.
#[test]
fn a_library_makes_every_access_slow() {
    let visits =
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|thread| Visit { accesses: 9_999, ..visit(thread, 3, false) });
    let gam = |threads| Setup { threads, ..setup(System::Gam, 1) };
    let time = |threads: usize| play(&visits[..threads], &gam(10)).runtime.as_nanos();
    let mind = play(&visits[..1], &setup(System::Mind, 1)).runtime.as_nanos();
    assert!((9..11).contains(&(time(1) / mind)));
    assert!(time(4) < time(1) * 11 / 10, "up to 4 threads it scales");
    assert!(time(10) > time(1) * 13 / 10, "and not for ever");
}

/// A blade respects its memory limit; dirty pages are written back at eviction, and clean ones are not.
#[test]
fn local_memory_is_bounded() {
    for system in [System::Mind, System::Swap] {
        let setup = Setup { local_pages: 4, ..setup(system, 1) };
        let round: Vec<Visit> = (0..8).chain(0..8).map(|page| visit(1, page, page == 1)).collect();
        let outcome = play(&round, &setup);
        assert_eq!((outcome.visits, outcome.faults, outcome.fetches), (16, 16, 16), "{system:?}");
        assert_eq!(outcome.write_backs, 2, "{system:?}");
        let few: Vec<Visit> = (0..4).chain(0..4).map(|page| visit(1, page, false)).collect();
        assert_eq!(play(&few, &setup).faults, 4, "{system:?}");
    }
}

/// Two threads that write neighbouring pages disturb each other while these are one region, and bounded
/// splitting ends that.
#[test]
fn splitting_ends_false_sharing() {
    let turns = |n: u64| (0..n).flat_map(|_| [visit(1, 0, true), visit(2, 1, true)]).collect::<Vec<Visit>>();
    let with = |regions| play(&turns(20_000), &Setup { regions, ..setup(System::Mind, 2) });
    let apart = with(Regions::Fixed { order: 0 });
    assert_eq!((apart.faults, apart.false_invalidations), (2, 0));
    let together = with(Regions::Fixed { order: 2 });
    assert!(together.false_invalidations > 100, "{together:?}");
    let epoch = Duration::from_micros(200);
    let bounded = with(Regions::Bounded { slots: 100, initial: 16 << 10, epoch });
    assert!(
        bounded.splits >= 2 && bounded.false_invalidations * 5 < together.false_invalidations,
        "{bounded:?}"
    );
}

/// With fewer slots than touched regions, old regions make room, and merging lets fewer do so.
#[test]
fn the_directory_keeps_to_its_slots() {
    // Each in a block of 2 MiB of its own, so that none can be merged.
    let far = (0..40).map(|n| visit(1, n * 600, n % 2 == 0));
    let visits: Vec<Visit> = far.clone().chain(far).collect();
    let regions = Regions::Bounded { slots: 16, initial: 16 << 10, epoch: Duration::from_micros(500) };
    let outcome = play(&visits, &Setup { regions, ..setup(System::Mind, 2) });
    assert_eq!(outcome.visits, 80);
    assert!(outcome.slots_max <= 16 && outcome.slots.iter().all(|&(_, used)| used <= 16));
    assert!(outcome.resets > 0 && outcome.busy > 0, "{outcome:?}");
}

/// A setup always gives one outcome; every system completes a workload that all threads share.
#[test]
fn replays_are_repeatable() {
    let visits = Workload::uniform(4, 256, 50, 50, 20_000, 7);
    assert_eq!((visits.pages(), visits.visits()), (256, 20_000));
    for system in System::ALL.into_iter().filter(|system| system.shares()) {
        let setup = Setup { threads: 2, local_pages: 40, ..Setup::in_proportion(system, 4, &visits) };
        let play = || replay(&visits, &setup, &mut |_| {});
        let outcome = play();
        assert_eq!((outcome.visits, outcome.accesses), (20_000, 20_000));
        assert!(outcome.invalidations > 0 && outcome.throughput() > 0.0);
        assert_eq!(outcome, play());
    }
}

#[test]
fn what_a_program_does_alone_is_left_out() {
    let visits =
        [visit(0, 1, true), visit(1, 2, true), visit(0, 3, true), visit(2, 2, false), visit(0, 9, true)];
    let workload = Workload::new(&visits);
    assert_eq!((workload.visits(), workload.pages(), workload.threads()), (3, 2, 3));
    assert_eq!(Workload::new(&visits[..1]).visits(), 1);
    for system in System::ALL {
        assert_eq!(System::named(system.name()), Some(system));
    }
}
