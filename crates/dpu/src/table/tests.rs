//! The table against a plain model under random events.

use super::*;
use farmem_machine::Rng;
use proptest::prelude::{Strategy, any, prop_assert, prop_oneof, proptest};
use std::collections::{BTreeMap, BTreeSet};

const SLOTS: u32 = 4;
const PAGES: u32 = 4;

fn table() -> Table {
    Table::new(TableConfig { slots: NonZeroU32::new(SLOTS).unwrap(), entry_pages: PAGES })
}

fn page(object: u32, page: u64) -> PageId {
    PageId { object, page }
}

/// Loads the entry with this number.
fn load(table: &mut Table, entry: u64, rng: &mut Rng) -> (Slot, Dropped) {
    let begun = table.begin(EntryId { object: 1, entry }, 0b1111, rng).expect("a slot");
    table.loaded(begun.0);
    begun
}

/// A table with every slot pinned has no room; one unpinned slot is the next victim, whatever the random
/// numbers.
#[test]
fn what_is_pinned_stays() {
    let (mut table, mut rng) = (table(), Rng::from_number(1));
    for entry in 0..u64::from(SLOTS) {
        load(&mut table, entry, &mut rng);
        table.pin(page(1, entry * u64::from(PAGES)));
    }
    let next = EntryId { object: 1, entry: 9 };
    assert_eq!(table.begin(next, 0b1111, &mut rng), None);
    let Found::Cached(slot) = table.find(page(1, 2 * u64::from(PAGES))) else { panic!("it was pinned") };
    table.unpin(slot);
    assert_eq!(table.begin(next, 0b1111, &mut rng), Some((slot, Dropped { used: 1, wasted: 3 })));
    assert_eq!(table.find(page(1, 2 * u64::from(PAGES))), Found::Absent);
    table.check();
}

/// A write meets a load. The loaded bytes may be older than the write, so the page is bad. There is no room for the
/// new bytes before the load ends.
#[test]
fn a_page_written_while_it_comes_is_not_good() {
    let (mut table, mut rng) = (table(), Rng::from_number(2));
    let (slot, _) = table.begin(EntryId { object: 1, entry: 0 }, 0b0111, &mut rng).expect("a slot");
    assert_eq!(table.find(page(1, 2)), Found::Loading);
    assert_eq!(table.find(page(1, 3)), Found::Bad, "far memory has no such page");
    table.spoil(page(1, 2));
    assert_eq!(table.room_for(page(1, 2)), None);
    table.loaded(slot);
    assert_eq!(table.find(page(1, 2)), Found::Bad);
    assert_eq!(table.find(page(1, 1)), Found::Cached(slot));
    assert_eq!(table.room_for(page(1, 2)), Some(slot));
    table.renewed(page(1, 2));
    assert_eq!(table.find(page(1, 2)), Found::Cached(slot));
    table.check();
}

/// An object is removed: none of its pages is found, a loading entry does not come back, and its slots serve
/// others.
#[test]
fn an_object_is_forgotten() {
    let (mut table, mut rng) = (table(), Rng::from_number(3));
    load(&mut table, 0, &mut rng);
    let (coming, _) = table.begin(EntryId { object: 1, entry: 1 }, 0b1111, &mut rng).expect("a slot");
    assert_eq!(table.forget(1), Dropped { used: 0, wasted: 4 });
    table.loaded(coming);
    for number in 0..8 {
        assert!(!matches!(table.find(page(1, number)), Found::Cached(_) | Found::Loading), "page {number}");
    }
    for entry in 10..10 + u64::from(SLOTS) {
        load(&mut table, entry, &mut rng);
    }
    table.check();
}

#[derive(Clone, Debug)]
enum Step {
    Begin(u64, u64),
    Loaded(usize),
    Failed(usize),
    Pin(u64),
    Unpin(usize),
    Spoil(u64),
    Renew(u64),
    Forget(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (entry, one) = (0..8_u64, 0..32_u64);
    let step = prop_oneof![
        3 => (entry, 0..16_u64).prop_map(|(entry, pages)| Step::Begin(entry, pages)),
        3 => any::<usize>().prop_map(Step::Loaded),
        1 => any::<usize>().prop_map(Step::Failed),
        3 => one.clone().prop_map(Step::Pin),
        2 => any::<usize>().prop_map(Step::Unpin),
        2 => one.clone().prop_map(Step::Spoil),
        1 => one.prop_map(Step::Renew),
        1 => (1..3_u32).prop_map(Step::Forget),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// A page is good exactly if the model has it good: its entry was begun with it and loaded, and no write
    /// followed whose bytes were not put there. A pinned slot keeps its entry.
    #[test]
    fn it_is_what_a_plain_model_is(steps in steps(), seed: u64) {
        let (mut table, mut rng) = (table(), Rng::from_number(seed));
        let mut good: BTreeMap<EntryId, BTreeSet<u64>> = BTreeMap::new();
        let mut loading: Vec<(EntryId, Slot)> = Vec::new();
        let mut pinned: Vec<(PageId, Slot)> = Vec::new();
        // The pages of two objects alternate.
        let named = |number: u64| page(1 + (number % 2) as u32, number / 2);
        for step in steps {
            match step {
                Step::Begin(number, pages) => {
                    let entry = EntryId { object: 1 + (number % 2) as u32, entry: number / 2 };
                    if table.has(entry) {
                        continue;
                    }
                    let Some((slot, _)) = table.begin(entry, pages, &mut rng) else { continue };
                    good.retain(|other, _| table.has(*other));
                    good.insert(entry, (0..4).filter(|within| pages & (1 << within) != 0).collect());
                    loading.push((entry, slot));
                }
                Step::Loaded(number) if !loading.is_empty() => {
                    let (entry, slot) = loading.swap_remove(number % loading.len());
                    table.loaded(slot);
                    if good[&entry].is_empty() {
                        good.remove(&entry);
                    }
                    prop_assert!(table.has(entry) == good.contains_key(&entry), "what has no good page goes");
                }
                Step::Failed(number) if !loading.is_empty() => {
                    let (entry, slot) = loading.swap_remove(number % loading.len());
                    (0..4).for_each(|within| table.spoil(page(entry.object, entry.entry * 4 + within)));
                    table.loaded(slot);
                    good.remove(&entry);
                }
                Step::Pin(number) => {
                    if matches!(table.find(named(number)), Found::Cached(_)) {
                        let slot = table.pin(named(number));
                        pinned.push((named(number), slot));
                    }
                }
                Step::Unpin(number) if !pinned.is_empty() => {
                    let (_, slot) = pinned.swap_remove(number % pinned.len());
                    table.unpin(slot);
                }
                Step::Spoil(number) => {
                    let (entry, within) = table.entry_of(named(number));
                    table.spoil(named(number));
                    good.entry(entry).and_modify(|pages| {
                        pages.remove(&u64::from(within));
                    });
                }
                Step::Renew(number) => {
                    if table.room_for(named(number)).is_some() {
                        let (entry, within) = table.entry_of(named(number));
                        table.renewed(named(number));
                        good.get_mut(&entry).expect("it is here").insert(u64::from(within));
                    }
                }
                Step::Forget(object) => {
                    table.forget(object);
                    good.iter_mut().filter(|(entry, _)| entry.object == object).for_each(|(_, pages)| pages.clear());
                    good.retain(|entry, _| table.has(*entry));
                }
                Step::Loaded(_) | Step::Failed(_) | Step::Unpin(_) => {}
            }
            table.check();
            for number in 0..32 {
                let (entry, within) = table.entry_of(named(number));
                let is_good = good.get(&entry).is_some_and(|pages| pages.contains(&u64::from(within)));
                let is_loading = loading.iter().any(|(other, _)| *other == entry);
                match table.find(named(number)) {
                    Found::Cached(_) => prop_assert!(is_good && !is_loading),
                    Found::Loading => prop_assert!(is_good && is_loading),
                    Found::Bad | Found::Absent => prop_assert!(!is_good),
                }
            }
            for (page, slot) in &pinned {
                let (entry, _) = table.entry_of(*page);
                prop_assert!(table.entries.get(&entry) == Some(slot), "{page:?} is pinned in {slot:?}");
            }
        }
    }
}
