//! The tables against a plain model with one entry per byte.

use super::*;
use crate::store::VecStore;
use alloc::vec;
use proptest::prelude::*;

const ALICE: Domain = Domain(1);
const BOB: Domain = Domain(2);

fn addr(a: u64) -> VirtAddr {
    VirtAddr(a)
}

/// Returns regions over a store of 0x4000 bytes, with 0x1000..0x3000 of the address space at its front.
fn one_range() -> Regions {
    let mut regions = Regions::new(0x4000, 4, 8, 8);
    assert_eq!(regions.add_range(addr(0x1000), 0x2000, 0), Ok(()));
    regions
}

fn ask(regions: &Regions, domain: Domain, at: u64, len: u32, perm: Perm) -> Result<(), AccessError> {
    regions.check();
    regions.check_access(&Access { domain, addr: addr(at), len, perm })
}

/// A domain may access granted memory up to the last byte. Any other access is refused with its reason
/// (PROTOCOL 7.14).
#[test]
fn an_access_needs_a_range_and_a_grant() {
    let mut regions = one_range();
    assert_eq!(ask(&regions, ALICE, 0x1000, 8, Perm::Read), Err(AccessError::NotMapped), "no grant yet");
    assert_eq!(regions.protect(ALICE, addr(0x1000), 0x1000, Perm::Read, 64), Ok(()));

    assert_eq!(ask(&regions, ALICE, 0x1000, 0x1000, Perm::Read), Ok(()));
    assert_eq!(ask(&regions, ALICE, 0x1fff, 1, Perm::Read), Ok(()));
    assert_eq!(
        ask(&regions, ALICE, 0x1fff, 2, Perm::Read),
        Err(AccessError::OutOfBounds),
        "leaves the grant"
    );
    assert_eq!(
        ask(&regions, ALICE, 0x2000, 1, Perm::Read),
        Err(AccessError::NotMapped),
        "starts behind the grant"
    );
    assert_eq!(
        ask(&regions, ALICE, 0x0fff, 2, Perm::Read),
        Err(AccessError::NotMapped),
        "starts before the range"
    );
    assert_eq!(ask(&regions, ALICE, 0x1000, 1, Perm::ReadWrite), Err(AccessError::NoPermission));
    assert_eq!(
        ask(&regions, BOB, 0x1000, 1, Perm::Read),
        Err(AccessError::NotMapped),
        "another domain has nothing"
    );
    assert_eq!(
        ask(&regions, Domain(0), 0x1000, 1, Perm::Read),
        Err(AccessError::NotMapped),
        "no domain has nothing"
    );
}

/// A vma is freed: the grant is revoked, and the same address is now unknown. Its neighbours keep their
/// grants.
#[test]
fn a_freed_vma_is_not_mapped_and_its_neighbours_are() {
    let mut regions = one_range();
    regions.protect(ALICE, addr(0x1000), 0x300, Perm::ReadWrite, 64).unwrap();
    regions.protect(ALICE, addr(0x1100), 0x100, Perm::None, 64).unwrap();
    assert_eq!(ask(&regions, ALICE, 0x1100, 8, Perm::Read), Err(AccessError::NotMapped));
    assert_eq!(ask(&regions, ALICE, 0x10f8, 8, Perm::ReadWrite), Ok(()));
    assert_eq!(ask(&regions, ALICE, 0x10f8, 9, Perm::ReadWrite), Err(AccessError::OutOfBounds));
    assert_eq!(ask(&regions, ALICE, 0x1200, 0x100, Perm::ReadWrite), Ok(()));
    assert_eq!(regions.grant_count, 2);
}

/// An address near 2^64 with a length that wraps must not look like an access to small addresses.
#[test]
fn an_access_past_the_end_of_the_address_space_is_out_of_bounds() {
    let mut regions = Regions::new(0x1000, 4, 8, 8);
    let base = addr((u64::MAX - 0xfff) & !7);
    let len = u64::MAX - base.0;
    regions.add_range(base, len, 0).unwrap();
    regions.protect(ALICE, base, len, Perm::ReadWrite, 64).unwrap();
    assert_eq!(ask(&regions, ALICE, u64::MAX - 1, 1, Perm::Read), Ok(()), "the last byte there can be");
    assert_eq!(ask(&regions, ALICE, u64::MAX - 1, 2, Perm::Read), Err(AccessError::OutOfBounds));
    assert_eq!(ask(&regions, ALICE, u64::MAX - 1, u32::MAX, Perm::Read), Err(AccessError::OutOfBounds));
    assert_eq!(ask(&regions, ALICE, u64::MAX, 1, Perm::Read), Err(AccessError::NotMapped));
}

/// Two ranges with touching addresses lie apart in the store, so an access across the border is refused even
/// if both are granted.
#[test]
fn an_access_over_the_seam_of_two_ranges_is_out_of_bounds() {
    let mut regions = Regions::new(0x4000, 4, 8, 8);
    regions.add_range(addr(0x1000), 0x1000, 0x3000).unwrap();
    regions.add_range(addr(0x2000), 0x1000, 0x1000).unwrap();
    regions.protect(ALICE, addr(0x1000), 0x2000, Perm::ReadWrite, 64).unwrap();
    assert_eq!(ask(&regions, ALICE, 0x1ff8, 8, Perm::Read), Ok(()));
    assert_eq!(ask(&regions, ALICE, 0x1ff8, 9, Perm::Read), Err(AccessError::OutOfBounds));
    assert_eq!(ask(&regions, ALICE, 0x2000, 8, Perm::Read), Ok(()));
}

/// Touching grants of different classes: a read crosses both, a write stops at the weaker one.
#[test]
fn an_access_may_go_over_touching_grants_when_each_allows_it() {
    let mut regions = one_range();
    regions.protect(ALICE, addr(0x1000), 0x100, Perm::ReadWrite, 64).unwrap();
    regions.protect(ALICE, addr(0x1100), 0x100, Perm::Read, 64).unwrap();
    assert_eq!(ask(&regions, ALICE, 0x10f0, 0x20, Perm::Read), Ok(()));
    assert_eq!(ask(&regions, ALICE, 0x10f0, 0x20, Perm::ReadWrite), Err(AccessError::NoPermission));
    assert_eq!(ask(&regions, ALICE, 0x10f0, 0x200, Perm::Read), Err(AccessError::OutOfBounds));
}

/// An access of no bytes touches nothing: it is not checked (IBA 9.7.4), and later code must cope with it.
#[test]
fn an_access_of_no_bytes_is_allowed_anywhere_and_does_nothing() {
    let regions = one_range();
    assert_eq!(ask(&regions, ALICE, 0xdead_0000, 0, Perm::ReadWrite), Ok(()));
    let mut store = VecStore::new(0x4000);
    let mut view = View::new(&regions, &mut store);
    let mut out = vec![];
    view.write(addr(0xdead_0000), &[]);
    view.load(addr(0xdead_0000), &mut []);
    view.read(addr(0xdead_0000), 0, &mut out);
    assert!(out.is_empty());
}

/// Each invalid range is refused, with an error that names the reason, and leaves the table unchanged
/// (PROTOCOL 7.8).
#[test]
fn a_range_that_cannot_be_is_refused() {
    let mut regions = one_range();
    let before = regions.ranges.clone();
    let cases = [
        (0x3000, 0x3000, 0x2000, Status::OutOfBounds, "leaves the store"),
        (0x3000, 0x1000, u64::MAX - 7, Status::OutOfBounds, "its offset overflows"),
        (0x2000, 0x1000, 0x2000, Status::Malformed, "its addresses are taken"),
        (0x3000, 0x1000, 0x1000, Status::Malformed, "its bytes are taken"),
        (0x0000, 0x0100, 0x2000, Status::Malformed, "it holds the null pointer"),
        (0x3004, 0x0100, 0x2000, Status::Malformed, "its address is not on a word"),
        (0x3000, 0x0100, 0x2004, Status::Malformed, "its bytes are not on a word"),
        (0x3000, 0x0000, 0x2000, Status::Malformed, "it is empty"),
        (!7, 0x1000, 0x2000, Status::Malformed, "its addresses overflow"),
    ];
    for (base, len, offset, status, why) in cases {
        assert_eq!(regions.add_range(addr(base), len, offset), Err(status), "{why}");
        assert_eq!(regions.ranges, before, "{why}");
        regions.check();
    }
    assert_eq!(regions.add_range(addr(0x1000), 0x2000, 0), Ok(()), "the same again is no error");
    assert_eq!(regions.ranges, before);
}

/// A range is removed only with its exact bounds; removing an unknown one is no error (PROTOCOL 7.9).
#[test]
fn a_range_goes_as_it_came() {
    let mut regions = one_range();
    assert_eq!(regions.remove_range(addr(0x1000), 0x1000), Err(Status::Malformed), "half of it");
    assert_eq!(regions.remove_range(addr(0x8000), 0x1000), Ok(()), "never here");
    assert!(regions.is_local(addr(0x2fff)));
    assert_eq!(regions.remove_range(addr(0x1000), 0x2000), Ok(()));
    assert!(!regions.is_local(addr(0x1000)));
    assert_eq!(regions.add_range(addr(0x9000), 0x2000, 0), Ok(()), "its bytes are free for another address");
}

/// Both tables have a size; an update that would exceed it is refused and changes nothing.
#[test]
fn full_tables_refuse_by_name() {
    let mut regions = Regions::new(0x1_0000, 2, 3, 8);
    regions.add_range(addr(0x1000), 0x1000, 0).unwrap();
    regions.add_range(addr(0x3000), 0x1000, 0x1000).unwrap();
    assert_eq!(regions.add_range(addr(0x5000), 0x1000, 0x2000), Err(Status::TableFull));

    for at in [0x1000, 0x1100, 0x1200] {
        regions.protect(ALICE, addr(at), 0x80, Perm::Read, 64).unwrap();
    }
    assert_eq!(regions.protect(BOB, addr(0x1000), 0x80, Perm::Read, 64), Err(Status::TableFull));
    assert_eq!(
        regions.protect(ALICE, addr(0x1020), 0x20, Perm::None, 64),
        Err(Status::TableFull),
        "it would split one"
    );
    assert_eq!(ask(&regions, ALICE, 0x1000, 0x80, Perm::Read), Ok(()), "as before");
    assert_eq!(regions.protect(ALICE, addr(0x1080), 0x80, Perm::Read, 64), Ok(()), "it makes one of two");
    assert_eq!(regions.grant_count, 2);
    assert_eq!(regions.protect(BOB, addr(0x1000), 0x80, Perm::Read, 64), Ok(()));
}

/// Domain 0 is no domain and gets no grant (PROTOCOL 7.10).
#[test]
fn domain_zero_is_granted_nothing() {
    let mut regions = one_range();
    assert_eq!(regions.protect(Domain(0), addr(0x1000), 8, Perm::Read, 64), Err(Status::Malformed));
    assert_eq!(
        regions.protect(ALICE, addr(0x1000), 0, Perm::Read, 64),
        Err(Status::Malformed),
        "nor nothing to a domain"
    );
    assert_eq!(
        regions.protect(ALICE, addr(u64::MAX), 2, Perm::Read, 64),
        Err(Status::Malformed),
        "nor what is no address"
    );
    regions.check();
}

/// Clearing crosses the border of two ranges to the right bytes, and does nothing if one byte is not here.
#[test]
fn clear_is_all_or_nothing() {
    let mut regions = Regions::new(0x400, 4, 8, 8);
    regions.add_range(addr(0x1000), 0x100, 0x300).unwrap();
    regions.add_range(addr(0x1100), 0x100, 0x100).unwrap();
    let mut store = VecStore::new(0x400);
    store.write(0, &[0xff; 0x400]);
    let full = store.clone();

    assert_eq!(regions.clear(addr(0x1180), 0x81, &mut store), Err(Status::OutOfBounds));
    assert_eq!(regions.clear(addr(0x0fff), 2, &mut store), Err(Status::NotMapped));
    assert_eq!(regions.clear(addr(u64::MAX), 2, &mut store), Err(Status::Malformed));
    assert_eq!(store, full, "nothing was cleared");

    assert_eq!(regions.clear(addr(0x10f0), 0x20, &mut store), Ok(()));
    let zeros: Vec<usize> = (0..0x400).filter(|&i| store.bytes()[i] == 0).collect();
    let expected: Vec<usize> = (0x100..0x110).chain(0x3f0..0x400).collect();
    assert_eq!(zeros, expected);
}

/// A step of the property test: a change of the tables or an access, over 256 addresses from 0x100 on.
#[derive(Clone, Debug)]
enum Op {
    Add { base: u64, len: u64, offset: u64 },
    Remove { base: u64, len: u64 },
    Protect { domain: Domain, base: u64, len: u64, perm: Perm, vma_log2: u8 },
    Clear { base: u64, len: u64 },
    Write { domain: Domain, at: u64, data: Vec<u8> },
    Read { domain: Domain, at: u64, len: u32 },
    FetchAdd { domain: Domain, at: u64, add: u64 },
}

const SPACE: u64 = 0x100;
const STORE: u64 = 0xc0;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let word = |n: u64| (0..n / 8).prop_map(|w| w * 8);
    let domain = prop_oneof![Just(ALICE), Just(BOB)];
    let perm = prop_oneof![Just(Perm::None), Just(Perm::Read), Just(Perm::ReadWrite)];
    let at = || SPACE - 8..SPACE * 2 + 8;
    let op = prop_oneof![
        1 => (word(SPACE), 1..0x60_u64, word(STORE))
            .prop_map(|(base, len, offset)| Op::Add { base: SPACE + base, len, offset }),
        1 => (word(SPACE), 1..0x60_u64).prop_map(|(base, len)| Op::Remove { base: SPACE + base, len }),
        4 => (domain.clone(), at(), 1..0x80_u64, perm, prop_oneof![5..8_u8, Just(64)])
            .prop_map(|(domain, base, len, perm, vma_log2)| {
                // The control plane grants parts of one vma.
                let vma_end = 1_u64.checked_shl(vma_log2.into()).map_or(u64::MAX, |size| (base / size + 1) * size);
                Op::Protect { domain, base, len: len.min(vma_end - base), perm, vma_log2 }
            }),
        1 => (at(), 1..0x20_u64).prop_map(|(base, len)| Op::Clear { base, len }),
        4 => (domain.clone(), at(), prop::collection::vec(any::<u8>(), 0..24))
            .prop_map(|(domain, at, data)| Op::Write { domain, at, data }),
        4 => (domain.clone(), at(), 0..24_u32).prop_map(|(domain, at, len)| Op::Read { domain, at, len }),
        2 => (domain, word(SPACE), any::<u64>())
            .prop_map(|(domain, at, add)| Op::FetchAdd { domain, at: SPACE + at, add }),
    ];
    prop::collection::vec(op, 1..80)
}

/// The model: for each address its byte of the store and its range; for each address and domain a class.
#[derive(Default)]
struct Model {
    place: BTreeMap<u64, (u64, u64)>,
    perm: BTreeMap<(Domain, u64), Perm>,
    /// For each address and domain: the first address and the size of the grant's vma.
    vma: BTreeMap<(Domain, u64), (u64, u8)>,
    bytes: BTreeMap<u64, u8>,
}

impl Model {
    fn here(&self, base: u64, len: u64) -> impl Iterator<Item = Option<(u64, u64)>> {
        (base..base + len).map(|a| self.place.get(&a).copied())
    }

    fn check(&self, domain: Domain, at: u64, len: u64, perm: Perm) -> Result<(), AccessError> {
        let class = |a: u64| self.perm.get(&(domain, a)).copied().unwrap_or_default();
        let mut range = None;
        for a in at..at + len {
            let (first, place) = (a == at, self.place.get(&a));
            let unknown = if first { AccessError::NotMapped } else { AccessError::OutOfBounds };
            let (_, base) = *place.ok_or(unknown)?;
            if *range.get_or_insert(base) != base {
                return Err(AccessError::OutOfBounds);
            }
            if class(a) == Perm::None {
                return Err(unknown);
            }
            if self.vma.get(&(domain, a)) != self.vma.get(&(domain, at)) {
                return Err(AccessError::OutOfBounds);
            }
            if !class(a).allows(perm) {
                return Err(AccessError::NoPermission);
            }
        }
        Ok(())
    }

    fn byte(&self, at: u64) -> u8 {
        self.place.get(&at).and_then(|(offset, _)| self.bytes.get(offset)).copied().unwrap_or(0)
    }

    fn set(&mut self, at: u64, byte: u8) {
        let (offset, _) = self.place[&at];
        self.bytes.insert(offset, byte);
    }
}

/// Compares results. With several reasons for a refusal, both sides must refuse, and must agree on a first
/// byte's reason.
fn same(real: Result<(), AccessError>, model: Result<(), AccessError>) -> bool {
    match (real, model) {
        (Ok(()), Ok(())) => true,
        (Err(a), Err(b)) => (a == AccessError::NotMapped) == (b == AccessError::NotMapped),
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// For any updates, the tables allow exactly what the model allows, and every byte equals the model's.
    #[test]
    fn the_tables_behave_like_a_table_of_bytes(ops in ops()) {
        let mut regions = Regions::new(STORE, 8, 16, 8);
        let mut store = VecStore::new(usize::try_from(STORE).unwrap());
        let mut model = Model::default();
        for op in ops {
            step(&mut regions, &mut store, &mut model, &op);
            regions.check();
        }
        for offset in 0..STORE {
            let expected = model.bytes.get(&offset).copied().unwrap_or(0);
            prop_assert_eq!(store.bytes()[usize::try_from(offset).unwrap()], expected, "at offset {}", offset);
        }
    }
}

fn step(regions: &mut Regions, store: &mut VecStore, model: &mut Model, op: &Op) {
    match op {
        &Op::Add { base, len, offset } => {
            let taken = model.here(base, len).any(|p| p.is_some());
            let used = model.place.values().any(|&(o, _)| (offset..offset + len).contains(&o));
            let again = model.here(base, len).eq((0..len).map(|i| Some((offset + i, base))))
                && model.place.get(&(base + len)).is_none_or(|p| p.1 != base);
            let full = regions.ranges.len() == regions.ranges_max;
            let good = again || !taken && !used && !full && offset + len <= STORE;
            assert_eq!(regions.add_range(addr(base), len, offset).is_ok(), good);
            if good {
                model.place.extend((0..len).map(|i| (base + i, (offset + i, base))));
            }
        }
        &Op::Remove { base, len } => {
            let exact = model.here(base, len).all(|p| p.is_some_and(|p| p.1 == base))
                && model.place.get(&(base + len)).is_none_or(|p| p.1 != base);
            let absent = model.here(base, len).all(|p| p.is_none());
            assert_eq!(regions.remove_range(addr(base), len).is_ok(), exact || absent);
            if exact {
                model.place.retain(|_, p| p.1 != base);
            }
        }
        &Op::Protect { domain, base, len, perm, vma_log2 } => {
            match regions.protect(domain, addr(base), len, perm, vma_log2) {
                Ok(()) => {
                    model.perm.extend((base..base + len).map(|a| ((domain, a), perm)));
                    let first = 1_u64.checked_shl(vma_log2.into()).map_or(0, |size| base / size * size);
                    model.vma.extend((base..base + len).map(|a| ((domain, a), (first, vma_log2))));
                }
                Err(status) => {
                    assert_eq!(status, Status::TableFull);
                    assert!(regions.grant_count + 2 > regions.grants_max, "full before its time");
                }
            }
        }
        &Op::Clear { base, len } => {
            let all = model.here(base, len).all(|p| p.is_some());
            assert_eq!(regions.clear(addr(base), len, store).is_ok(), all);
            if all {
                (base..base + len).for_each(|a| model.set(a, 0));
            }
        }
        Op::Write { domain, at, data } => {
            let len = data.len() as u64;
            if allowed(regions, model, *domain, *at, len, Perm::ReadWrite) {
                View::new(regions, store).write(addr(*at), data);
                (0..).zip(data).for_each(|(i, &byte)| model.set(at + i, byte));
            }
        }
        &Op::Read { domain, at, len } => {
            if allowed(regions, model, domain, at, u64::from(len), Perm::Read) {
                let expected: Vec<u8> = (at..at + u64::from(len)).map(|a| model.byte(a)).collect();
                let (mut read, mut loaded) = (vec![], vec![0xaa; len as usize]);
                let view = View::new(regions, store);
                view.read(addr(at), len, &mut read);
                view.load(addr(at), &mut loaded);
                assert_eq!((&read, &loaded), (&expected, &expected));
            }
        }
        &Op::FetchAdd { domain, at, add } => {
            if allowed(regions, model, domain, at, 8, Perm::ReadWrite) {
                let bytes: Vec<u8> = (at..at + 8).map(|a| model.byte(a)).collect();
                let old = u64::from_le_bytes(bytes.try_into().unwrap());
                let mut view = View::new(regions, store);
                assert_eq!(view.fetch_add(addr(at), add), old);
                assert_eq!(view.cmp_swap(addr(at), old, !old), old.wrapping_add(add), "the sum is there");
                let new = old.wrapping_add(add);
                let new = if new == old { !old } else { new };
                (at..).zip(new.to_le_bytes()).for_each(|(a, byte)| model.set(a, byte));
            }
        }
    }
}

fn allowed(regions: &Regions, model: &Model, domain: Domain, at: u64, len: u64, perm: Perm) -> bool {
    let access = Access { domain, addr: addr(at), len: u32::try_from(len).unwrap(), perm };
    let (real, expected) = (regions.check_access(&access), model.check(domain, at, len, perm));
    assert!(same(real, expected), "{access:?}: {real:?}, and the model says {expected:?}");
    real.is_ok()
}
