use super::*;
use alloc::collections::BTreeSet;
use alloc::vec;
use proptest::prelude::*;

const PAGES: u64 = REGION_MAX / REGION_MIN;

/// One access that takes a page for writing.
#[derive(Clone, Copy, Debug)]
struct Write {
    host: u8,
    page: u64,
}

/// Counts false invalidations in a directory whose regions are all I or M, so that each region has the pages
/// of its last writer.
///
/// Pages that a writer loses although another page was requested are falsely invalidated.
fn false_invalidations(splitting: &Splitting, history: &[Write]) -> BTreeMap<u64, u64> {
    let mut held: BTreeMap<u64, (u8, BTreeSet<u64>)> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for write in history {
        let Some(region) = splitting.region_of(write.page * PAGE) else { continue };
        let (owner, pages) = held.entry(region.base).or_insert((write.host, BTreeSet::new()));
        if *owner != write.host {
            *counts.entry(region.base).or_insert(0) +=
                pages.iter().filter(|&&page| page != write.page).count() as u64;
            pages.clear();
            *owner = write.host;
        }
        pages.insert(write.page);
    }
    counts
}

fn touched(slots: usize, initial: u64, history: &[Write]) -> Splitting {
    let mut splitting = Splitting::new(slots, initial);
    for write in history {
        splitting.admit(write.page * PAGE);
    }
    splitting.check();
    splitting
}

/// Treats all memory as one vma.
fn one_vma(_: Region) -> bool {
    true
}

fn histories(hosts: u8, blocks: u64, len: usize) -> impl Strategy<Value = Vec<Write>> {
    // Few hot pages make regions that are worth splitting; all pages make regions that are not.
    let page = prop_oneof![
        0..PAGES * blocks,
        (0..blocks, 0..8_u64).prop_map(|(block, page)| block * PAGES + page * 31)
    ];
    prop::collection::vec((0..hosts, page).prop_map(|(host, page)| Write { host, page }), 1..len)
}

fn any_page() -> impl Strategy<Value = u64> {
    prop_oneof![0..64_u64, 0..2 * PAGES]
}

#[test]
fn two_hot_neighbours_are_parted_and_nothing_else_is() {
    // Case 2 of the proof: the one region above t is halved until its two pages have a region each.
    let history: Vec<Write> = (0..100).map(|i| Write { host: i % 2, page: u64::from(i % 2) }).collect();
    let mut splitting = touched(SLOTS, REGION_MAX, &history);
    // With c = 1 a block on its own is exactly at the average. c has risen when the second epoch ends.
    assert_eq!(splitting.epoch(false_invalidations(&splitting, &history), one_vma), []);
    for _ in 0..PAGES.ilog2() {
        let orders = splitting.epoch(false_invalidations(&splitting, &history), one_vma);
        assert_eq!(orders.len(), 1);
        assert!(orders.into_iter().all(|order| splitting.carried_out(order)));
        splitting.check();
    }
    assert_eq!(splitting.epoch(false_invalidations(&splitting, &history), one_vma), []);
    assert_eq!(splitting.used(), 10, "1 + log2 M regions");
    assert_eq!(splitting.region_of(0), Some(Region { base: 0, size: PAGE }));
    assert_eq!(splitting.region_of(PAGE), Some(Region { base: PAGE, size: PAGE }));
    assert_eq!(
        splitting.region_of(REGION_MAX / 2),
        Some(Region { base: REGION_MAX / 2, size: REGION_MAX / 2 })
    );
}

#[test]
fn quiet_regions_grow_back_after_the_hold() {
    let mut splitting = Splitting::new(SLOTS, REGION_INITIAL);
    for addr in (0..REGION_MAX).step_by(16 << 10) {
        assert!(matches!(splitting.admit(addr), Admission::New(_)));
    }
    assert_eq!(splitting.used(), 128);
    for _ in 0..7 {
        let orders = splitting.epoch([], one_vma);
        assert!(orders.into_iter().all(|order| splitting.carried_out(order)));
    }
    assert_eq!(splitting.regions().collect::<Vec<_>>(), [Region { base: 0, size: REGION_MAX }]);
    assert_eq!(splitting.epoch([], one_vma), [], "it is as large as regions get");
}

#[test]
fn a_full_directory_gives_up_its_quietest_region() {
    let mut splitting = Splitting::new(3, REGION_MIN);
    for page in [4, 2, 9] {
        splitting.admit(page * PAGE);
    }
    let _ = splitting.epoch([(2 * PAGE, 5), (4 * PAGE, 1), (9 * PAGE, 7)], one_vma);
    let quietest = Region { base: 4 * PAGE, size: PAGE };
    assert_eq!(splitting.admit(100 * PAGE), Admission::Evict(quietest));
    assert!(splitting.forget(quietest));
    assert!(!splitting.forget(quietest), "it is gone");
    assert_eq!(splitting.admit(100 * PAGE), Admission::New(Region { base: 100 * PAGE, size: PAGE }));
    splitting.check();
}

#[test]
fn an_order_that_comes_too_late_changes_nothing() {
    let mut splitting = Splitting::new(8, REGION_INITIAL);
    let Admission::New(region) = splitting.admit(0) else { panic!("there is room") };
    assert!(!splitting.carried_out(Order::Merge(region)), "its halves are not there");
    assert!(splitting.carried_out(Order::Split(region)));
    assert!(!splitting.carried_out(Order::Split(region)), "it is split already");
    assert!(!splitting.carried_out(Order::Split(Region { base: 0, size: PAGE })), "a page has no halves");
    assert!(splitting.carried_out(Order::Merge(region)));
    splitting.check();
}

#[test]
fn a_hole_between_small_regions_gets_one_that_fits() {
    let mut splitting = Splitting::new(8, REGION_INITIAL);
    let Admission::New(region) = splitting.admit(0) else { panic!("there is room") };
    assert!(splitting.carried_out(Order::Split(region)));
    let low = Region { base: 0, size: 8 << 10 };
    assert!(splitting.carried_out(Order::Split(low)));
    assert!(splitting.forget(Region { base: PAGE, size: PAGE }));
    assert_eq!(splitting.admit(PAGE + 1), Admission::New(Region { base: PAGE, size: PAGE }));
    splitting.check();
}

proptest! {
    /// A host without a grant could freeze its neighbour's memory. Whatever vmas there are, and whichever
    /// regions are quiet or loud, no order makes a region of two vmas (PROTOCOL 12.52).
    #[test]
    fn no_region_is_merged_across_vmas(
        sizes in prop::collection::vec(0_u32..11, 1..40),
        touched in prop::collection::vec(any_page(), 1..60),
        noise in prop::collection::vec((any_page(), 0_u64..40), 0..30),
        slots in 8_usize..200,
    ) {
        // The vmas lie back to back, each aligned to its size.
        let mut vmas: BTreeMap<u64, u64> = BTreeMap::new();
        let mut next = 0_u64;
        for order in sizes {
            let base = next.next_multiple_of(PAGE << order);
            vmas.insert(base, PAGE << order);
            next = base + (PAGE << order);
        }
        let holds = |region: Region| {
            let mut overlapped = vmas.iter().filter(|&(&base, &size)| {
                base < region.base + region.size && region.base < base + size
            });
            overlapped.all(|(&base, &size)| base <= region.base && region.base + region.size <= base + size)
        };
        let mut splitting = Splitting::new(slots, REGION_MIN);
        for page in touched {
            if splitting.used() < slots {
                splitting.admit(page * PAGE);
            }
        }
        for _ in 0..12 {
            let bases: Vec<u64> = splitting.regions().map(|region| region.base).collect();
            let counts = noise.iter().filter(|(page, _)| bases.contains(&(page * PAGE)));
            let orders = splitting.epoch(counts.map(|&(page, count)| (page * PAGE, count)), holds);
            for order in orders {
                splitting.carried_out(order);
            }
            prop_assert!(splitting.regions().all(holds), "a region has pages of two vmas");
            splitting.check();
        }
    }

    #[test]
    fn theorem_5_1(history in histories(3, 1, 400), t in 1_u64..60) {
        let mut splitting = touched(SLOTS, REGION_MAX, &history);
        let f: u64 = false_invalidations(&splitting, &history).values().sum();
        let bound = if f > t { (f.div_ceil(t) - 1) * (1 + u64::from(PAGES.ilog2())) } else { 1 };
        let fixed = Threshold { total: u128::from(t), share: 1 };
        for epoch in 0..=PAGES.ilog2() {
            let counts = false_invalidations(&splitting, &history);
            prop_assert!(counts.values().sum::<u64>() <= f, "observation O1: a split never adds");
            for (base, known) in &mut splitting.regions {
                known.count = counts.get(base).copied().unwrap_or(0);
            }
            let orders = splitting.splits(fixed);
            prop_assert!(orders.is_empty() || epoch < PAGES.ilog2(), "pages are reached after log2 M epochs");
            for order in orders {
                prop_assert!(splitting.carried_out(order));
            }
        }
        prop_assert!(splitting.used() as u64 <= bound, "{} regions, the theorem allows {bound}", splitting.used());
        let counts = false_invalidations(&splitting, &history);
        prop_assert!(counts.iter().all(|(_, &count)| count <= t), "no region is above the threshold at the end");
    }

    #[test]
    fn splits_leave_a_twentieth_of_the_slots_free(
        history in histories(4, 6, 600),
        slots in 120_usize..400,
        refused in prop::collection::vec(any::<bool>(), 64),
    ) {
        let mut splitting = touched(slots, REGION_MAX, &history);
        let mut refused = refused.iter().cycle();
        for _ in 0..40 {
            let counts = false_invalidations(&splitting, &history);
            let orders = splitting.epoch(counts, one_vma);
            let distinct: BTreeSet<&Order> = orders.iter().collect();
            prop_assert_eq!(distinct.len(), orders.len());
            for order in orders {
                // A directory refuses regions that are in a transition.
                prop_assert!(*refused.next().expect("it cycles") || splitting.carried_out(order));
                splitting.check();
            }
            prop_assert!(splitting.used() <= slots * SLOT_USE_MAX / 100);
        }
    }

    #[test]
    fn regions_answer_as_a_map_of_pages(
        steps in prop::collection::vec((0..4_u8, 0..64_u64), 1..200),
        slots in 2_usize..40,
    ) {
        let mut splitting = Splitting::new(slots, REGION_INITIAL);
        let mut model: BTreeMap<u64, Region> = BTreeMap::new(); // page -> its region
        for (step, page) in steps {
            let addr = page * PAGE;
            prop_assert_eq!(splitting.region_of(addr), model.get(&page).copied());
            let at_hand = model.get(&page).copied();
            let mut become_ = |gone: Vec<Region>, come: Vec<Region>| {
                model.retain(|_, region| !gone.contains(region));
                for region in come {
                    model.extend((region.base / PAGE..(region.base + region.size) / PAGE).map(|page| (page, region)));
                }
            };
            match (step, at_hand) {
                (0, Some(region)) => prop_assert_eq!(splitting.admit(addr), Admission::Known(region)),
                (0, None) => match splitting.admit(addr) {
                    Admission::New(region) => {
                        prop_assert!(region.contains(addr));
                        become_(vec![], vec![region]);
                    }
                    Admission::Evict(region) => {
                        prop_assert_eq!(splitting.used(), slots);
                        prop_assert!(splitting.forget(region));
                        become_(vec![region], vec![]);
                    }
                    Admission::Known(region) => prop_assert!(false, "{region:?} has no entry"),
                },
                (1, Some(region)) => {
                    prop_assert!(splitting.forget(region));
                    become_(vec![region], vec![]);
                }
                (2, Some(region)) if splitting.used() < slots => {
                    let halves = region.halves();
                    prop_assert_eq!(splitting.carried_out(Order::Split(region)), halves.is_some());
                    if let Some((low, high)) = halves {
                        become_(vec![region], vec![low, high]);
                    }
                }
                (3, Some(region)) => {
                    let Some(parent) = region.parent() else { continue };
                    let (low, high) = parent.halves().expect("it has two");
                    let both = [low, high].iter().all(|half| splitting.region_of(half.base) == Some(*half));
                    prop_assert_eq!(splitting.carried_out(Order::Merge(parent)), both);
                    if both {
                        become_(vec![low, high], vec![parent]);
                    }
                }
                _ => {}
            }
            splitting.check();
        }
    }
}
