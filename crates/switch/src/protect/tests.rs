use super::*;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use proptest::prelude::*;

const D: Domain = Domain(7);
const OTHER: Domain = Domain(8);

fn table(budget: usize, grants: &[(u64, u64, Perm)]) -> Protection {
    let mut table = Protection::new(budget);
    for &(base, len, perm) in grants {
        table.set(D, VirtAddr(base), len, perm).expect("a good grant within budget");
        table.assert_invariants();
    }
    table
}

fn entries(table: &Protection) -> Vec<(u64, u8, Perm)> {
    table.iter().map(|(_, base, size_log2, perm)| (base.0, size_log2, perm)).collect()
}

/// The control plane allocates aligned powers of two: each vma is one entry (MIND 4.2, optimisation 1).
#[test]
fn an_aligned_power_of_two_is_one_entry() {
    for size_log2 in 0..=63 {
        let table = table(1, &[(0, 1 << size_log2, Perm::Read)]);
        assert_eq!(entries(&table), [(0, size_log2, Perm::Read)]);
    }
    assert_eq!(entries(&table(1, &[(1 << 62, 1 << 62, Perm::Read)])), [(1 << 62, 62, Perm::Read)]);
}

/// A grant of a part of a vma need not be a power of two: 0x1000..0x8000 is split by alignment.
#[test]
fn an_arbitrary_range_is_split_into_aligned_powers_of_two() {
    let table = table(3, &[(0x1000, 0x7000, Perm::Read)]);
    assert_eq!(
        entries(&table),
        [(0x1000, 12, Perm::Read), (0x2000, 13, Perm::Read), (0x4000, 14, Perm::Read)]
    );
}

/// Two adjacent vmas, then two more: buddies merge, and their parents in turn (MIND 4.2, optimisation 2).
#[test]
fn adjacent_equal_grants_coalesce() {
    let mut table = table(3, &[(0x4000, 0x1000, Perm::Read), (0x6000, 0x2000, Perm::Read)]);
    assert_eq!(entries(&table), [(0x4000, 12, Perm::Read), (0x6000, 13, Perm::Read)]);
    table.set(D, VirtAddr(0x5000), 0x1000, Perm::Read).expect("within budget");
    assert_eq!(entries(&table), [(0x4000, 14, Perm::Read)]);
}

/// Neighbours that are no buddies, or have another class or domain, stay separate.
#[test]
fn what_is_not_equal_buddies_stays_apart() {
    let mut table = table(8, &[(0x1000, 0x1000, Perm::Read), (0x2000, 0x1000, Perm::Read)]);
    assert_eq!(entries(&table), [(0x1000, 12, Perm::Read), (0x2000, 12, Perm::Read)], "no buddies");
    table.set(D, VirtAddr(0x3000), 0x1000, Perm::ReadWrite).expect("within budget");
    table.set(OTHER, VirtAddr(0), 0x1000, Perm::Read).expect("within budget");
    table.assert_invariants();
    assert_eq!(table.usage().used, 4);
}

/// The middle of a vma becomes read-only, then all of it writable again.
#[test]
fn a_part_of_an_entry_is_replaced_and_given_back() {
    let mut table = table(8, &[(0x8000, 0x8000, Perm::ReadWrite), (0xa000, 0x1000, Perm::Read)]);
    let split = [(0x8000, 13, Perm::ReadWrite), (0xa000, 12, Perm::Read), (0xb000, 12, Perm::ReadWrite)];
    assert_eq!(entries(&table)[..3], split);
    assert_eq!(entries(&table)[3..], [(0xc000, 14, Perm::ReadWrite)]);
    assert_eq!(table.check(D, VirtAddr(0xa000), 4096, Perm::ReadWrite), Err(Denial::NoPermission));
    assert_eq!(table.check(D, VirtAddr(0xb000), 4096, Perm::ReadWrite), Ok(()));
    table.set(D, VirtAddr(0xa000), 0x1000, Perm::ReadWrite).expect("within budget");
    assert_eq!(entries(&table), [(0x8000, 15, Perm::ReadWrite)]);
}

/// `None` revokes exactly the named range, across entries and ungranted parts.
#[test]
fn none_takes_a_grant_back() {
    let mut table = table(8, &[(0x8000, 0x8000, Perm::Read)]);
    table.set(D, VirtAddr(0x7000), 0x3000, Perm::None).expect("within budget");
    table.assert_invariants();
    assert_eq!(entries(&table), [(0xa000, 13, Perm::Read), (0xc000, 14, Perm::Read)]);
    table.set(D, VirtAddr(0), u64::MAX, Perm::None).expect("within budget");
    assert_eq!(table, Protection::new(8));
}

/// An access may span entries; each byte must be allowed, and the lowest forbidden one determines the reason.
#[test]
fn every_byte_must_be_allowed() {
    let table = table(
        8,
        &[(0x1000, 0x1000, Perm::ReadWrite), (0x2000, 0x1000, Perm::ReadWrite), (0x3000, 0x1000, Perm::Read)],
    );
    let check = |addr, len, perm| table.check(D, VirtAddr(addr), len, perm);
    assert_eq!(check(0x1000, 0x2000, Perm::ReadWrite), Ok(()), "two entries");
    assert_eq!(check(0x1fff, 2, Perm::ReadWrite), Ok(()), "one byte of each");
    assert_eq!(check(0x1000, 0x3000, Perm::Read), Ok(()), "three entries");
    assert_eq!(check(0x2fff, 2, Perm::ReadWrite), Err(Denial::NoPermission));
    assert_eq!(check(0x3fff, 1, Perm::Read), Ok(()));
    assert_eq!(check(0x3fff, 2, Perm::Read), Err(Denial::OutOfBounds));
    assert_eq!(check(0x2fff, 0x2000, Perm::ReadWrite), Err(Denial::NoPermission), "before it leaves");
    assert_eq!(check(0x4000, 1, Perm::Read), Err(Denial::NotMapped));
    assert_eq!(check(0x0fff, 2, Perm::Read), Err(Denial::NotMapped), "it starts outside");
    assert_eq!(check(0, 1, Perm::Read), Err(Denial::NotMapped), "null");
    assert_eq!(table.check(OTHER, VirtAddr(0x1000), 1, Perm::Read), Err(Denial::NotMapped), "another domain");
    assert_eq!(table.check(Domain(0), VirtAddr(0x1000), 1, Perm::Read), Err(Denial::NotMapped), "no domain");
}

#[test]
fn no_bytes_are_checked_as_one() {
    let table = table(1, &[(0x1000, 0x1000, Perm::Read)]);
    assert_eq!(table.check(D, VirtAddr(0x1fff), 0, Perm::Read), Ok(()));
    assert_eq!(table.check(D, VirtAddr(0x2000), 0, Perm::Read), Err(Denial::NotMapped));
    assert_eq!(table.check(D, VirtAddr(0x1000), 0, Perm::ReadWrite), Err(Denial::NoPermission));
}

/// A domain with the largest possible grant gets no access whose end wraps to address 0.
#[test]
fn an_access_does_not_wrap_around_the_space() {
    let table = table(200, &[(0, u64::MAX, Perm::ReadWrite)]);
    assert_eq!(table.usage().used, 64);
    assert_eq!(table.check(D, VirtAddr(u64::MAX - 1), 1, Perm::Read), Ok(()));
    assert_eq!(table.check(D, VirtAddr(u64::MAX - 1), 2, Perm::Read), Err(Denial::OutOfBounds));
    assert_eq!(table.check(D, VirtAddr(u64::MAX - 8), u32::MAX, Perm::Read), Err(Denial::OutOfBounds));
    assert_eq!(table.check(D, VirtAddr(u64::MAX), 1, Perm::Read), Err(Denial::NotMapped));
}

/// PROTOCOL 6.21.
#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let mut table = table(8, &[(0x1000, 0x1000, Perm::Read)]);
    let before = table.clone();
    for (domain, base, len) in
        [(D, 0x1000, 0), (D, u64::MAX, 1), (D, 1, u64::MAX), (Domain(0), 0x1000, 0x1000)]
    {
        for perm in [Perm::None, Perm::Read, Perm::ReadWrite] {
            assert_eq!(table.set(domain, VirtAddr(base), len, perm), Err(TableError::Malformed));
        }
    }
    assert_eq!(table, before);
}

/// The budget is counted before any change. A grant that does not fit after its split leaves no part of
/// itself. Revoking the middle of an entry is refused too if it needs one entry more than the budget.
#[test]
fn a_refused_update_leaves_the_table_as_it_was() {
    let mut table = table(2, &[(0x8000, 0x8000, Perm::Read)]);
    let before = table.clone();
    assert_eq!(
        table.set(D, VirtAddr(0x1000), 0x3000, Perm::Read),
        Err(TableError::Full),
        "one and two are three"
    );
    assert_eq!(table.set(D, VirtAddr(0xa000), 0x1000, Perm::None), Err(TableError::Full), "1 becomes 3");
    assert_eq!(table, before);
    assert_eq!(table.set(D, VirtAddr(0x8000), 0x4000, Perm::ReadWrite), Ok(()), "1 becomes 2");
    assert_eq!(table.set(D, VirtAddr(0x8000), 0x4000, Perm::Read), Ok(()), "and 1 again");
    assert_eq!(table, before);
    assert_eq!(table.set(D, VirtAddr(0), 0x8000, Perm::Read), Ok(()), "its buddy coalesces with it");
    assert_eq!(entries(&table), [(0, 16, Perm::Read)]);
}

/// The access of one domain to 128 bytes from `origin`, byte by byte.
struct Model {
    origin: u64,
    perms: [[Perm; 128]; 2],
}

impl Model {
    const DOMAINS: [Domain; 2] = [D, OTHER];

    fn perm(&self, domain: usize, addr: u64) -> Perm {
        let at = addr.checked_sub(self.origin).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.perms[domain].get(at).copied()).unwrap_or(Perm::None)
    }

    fn check(&self, domain: usize, addr: u64, len: u32, wanted: Perm) -> Result<(), Denial> {
        for at in 0..u64::from(len.max(1)) {
            let perm = addr.checked_add(at).map_or(Perm::None, |addr| self.perm(domain, addr));
            match perm {
                Perm::None if at == 0 => return Err(Denial::NotMapped),
                Perm::None => return Err(Denial::OutOfBounds),
                perm if !perm.allows(wanted) => return Err(Denial::NoPermission),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the fewest entries: single bytes, of which equal buddies are merged until there are none.
    fn entries(&self) -> BTreeSet<(Domain, u64, u8, Perm)> {
        let mut entries = BTreeSet::new();
        for (domain, name) in Self::DOMAINS.into_iter().enumerate() {
            let granted = |&addr: &u64| self.perm(domain, addr) != Perm::None;
            let bytes = (self.origin..self.origin + 128).filter(granted);
            entries.extend(bytes.map(|addr| (name, addr, 0, self.perm(domain, addr))));
        }
        loop {
            let buddies = |&&(domain, base, size_log2, perm): &&(Domain, u64, u8, Perm)| {
                base >> size_log2 & 1 == 0
                    && entries.contains(&(domain, base + (1 << size_log2), size_log2, perm))
            };
            let Some(&(domain, base, size_log2, perm)) = entries.iter().find(buddies) else {
                return entries;
            };
            entries.remove(&(domain, base, size_log2, perm));
            entries.remove(&(domain, base + (1 << size_log2), size_log2, perm));
            entries.insert((domain, base, size_log2 + 1, perm));
        }
    }
}

fn perms() -> impl Strategy<Value = Perm> {
    prop_oneof![Just(Perm::None), Just(Perm::Read), Just(Perm::ReadWrite)]
}

fn origins() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just((1 << 40) - 37), Just((1 << 63) - 64), Just(u64::MAX - 128)]
}

proptest! {
    /// PROTOCOL 6.17, 6.22: after any history of grants the table answers as a table of bytes does and has
    /// the fewest possible entries. It refuses exactly the updates that would exceed the budget.
    #[test]
    fn the_table_is_the_coalesced_form_of_a_plain_one(
        origin in origins(),
        budget in 1usize..40,
        grants in prop::collection::vec((0usize..2, 0usize..128, 1usize..128, perms()), 1..30),
        accesses in prop::collection::vec((0usize..2, 0u64..140, 0u32..140, perms()), 20),
    ) {
        let mut table = Protection::new(budget);
        let mut model = Model { origin, perms: [[Perm::None; 128]; 2] };
        for (domain, from, len, perm) in grants {
            let to = (from + len).min(128);
            let before = model.perms;
            model.perms[domain][from..to].fill(perm);
            let fits = model.entries().len() <= budget;
            let (base, len) = (VirtAddr(origin + from as u64), (to - from) as u64);
            let expected = if fits { Ok(()) } else { Err(TableError::Full) };
            prop_assert_eq!(table.set(Model::DOMAINS[domain], base, len, perm), expected);
            if !fits {
                model.perms = before;
            }
            table.assert_invariants();
            let entries: Vec<_> = table.iter().map(|(d, base, size_log2, perm)| (d, base.0, size_log2, perm)).collect();
            prop_assert_eq!(entries, model.entries().into_iter().collect::<Vec<_>>());
        }
        for (domain, at, len, perm) in accesses {
            let addr = origin.saturating_add(at).saturating_sub(6);
            let answer = table.check(Model::DOMAINS[domain], VirtAddr(addr), len, perm);
            prop_assert_eq!(answer, model.check(domain, addr, len, perm), "{:#x} + {}", addr, len);
        }
    }

    /// PROTOCOL 6.22: a range of `len` bytes anywhere takes at most `2 * log2(len)` entries, which cover it
    /// exactly, aligned and in order.
    #[test]
    fn a_range_is_split_into_few_aligned_blocks(base in any::<u64>(), shift in 0u32..64, len in any::<u64>()) {
        let len = (len >> shift).max(1).min(u64::MAX - base.min(u64::MAX - 1));
        let base = base.min(u64::MAX - 1);
        let mut next = base;
        let mut count = 0;
        for (block, size_log2) in blocks(base..base + len) {
            prop_assert_eq!(block, next);
            prop_assert_eq!(block & ((1 << size_log2) - 1), 0);
            next += 1 << size_log2;
            count += 1;
        }
        prop_assert_eq!(next, base + len);
        prop_assert!(count <= (2 * len.ilog2()).max(1), "{} entries for {} bytes", count, len);
    }
}
