//! Small adjacent vmas: no region of the directory has pages of two (PROTOCOL 12.52).

use super::*;
use crate::directory::{Outcome, Phase, Trigger};
use alloc::collections::BTreeMap;
use farmem_wire::message::{
    Access, DirectoryBody, DirectoryMessage, FetchId, Get, Page, PageBody, PageMessage, Read, Region,
    RegionRow, RegionRowKind, RegionRows, Seq,
};
use proptest::prelude::*;

const PAGE: u64 = 4096;
/// The vmas' addresses, where nothing else is granted.
const AREA: u64 = BASE_1 + (1 << 30);
const SESSION_2_20: Endpoint = endpoint(0xabc_104, 0x7002_0020);

fn page(addr: u64) -> Page {
    Page::of(VirtAddr(addr))
}

/// Returns a grant in a vma of 2^`order` pages.
fn grant(domain: u32, base: u64, pages: u64, perm: Perm, order: u8) -> Update {
    let vma_log2 = 12 + order;
    Update::Protect { domain: Domain(domain), base: VirtAddr(base), len: pages * PAGE, perm, vma_log2 }
}

/// Creates a rack with an open directory; both hosts have a session in each domain of the tests.
fn open(budgets: Budgets) -> Scene {
    let mut scene = Scene::new(budgets);
    let live = |host| Update::Live { host: HostId(host), generation: 1 };
    scene.update(&rack());
    scene.update(&[session(SESSION_2_20, 2, 20), live(1), live(2), Update::Directory { newest: Seq(10) }]);
    scene
}

fn get(scene: &mut Scene, host: u16, to: Endpoint, addr: u64, access: Access) -> Vec<Out> {
    let get = Get { page: page(addr), access, id: FetchId(addr) };
    let mut bytes = Vec::new();
    PageMessage { domain: Domain(0), origin: HostId(0), body: PageBody::Get(get) }.emit(&mut bytes);
    scene.deliver(Port::host(host), &datagram(to, &bytes))
}

fn resize(scene: &mut Scene, region: Region, kind: RegionRowKind) -> Vec<Out> {
    let mut rows = Vec::new();
    RegionRow { region, kind, false_invalidations: 0 }.emit(&mut rows);
    let body = DirectoryBody::Resize(RegionRows::new(&rows).expect("one row"));
    let mut bytes = Vec::new();
    DirectoryMessage { token: RequestId(7), body }.emit(&mut bytes);
    scene.deliver(Port::CONTROL, &datagram(HOME, &bytes))
}

/// Returns the regions in use.
fn regions(scene: &Scene) -> Vec<Region> {
    let goes = |phase| matches!(phase, Phase::Resetting | Phase::Collected);
    let all = scene.switch.directory().expect("open").iter();
    all.filter(|(_, entry)| !goes(entry.phase())).map(|(region, _)| region).collect()
}

/// Two domains have adjacent pages. Host 2 takes its page for writing and never gives it back. Host 1,
/// without a grant for that page, is served at once. When both pages were in one region, it waited for an
/// acknowledgement of host 2.
#[test]
fn a_host_without_a_grant_freezes_nobody_s_memory() {
    let mut scene = open(Budgets::default());
    let (mine, theirs) = (AREA, AREA + PAGE);
    let vmas = [grant(10, mine, 1, Perm::ReadWrite, 0), grant(20, theirs, 1, Perm::ReadWrite, 0)];
    scene.update(&vmas);
    let _ = get(&mut scene, 2, SESSION_2_20, theirs, Access::Modified);
    let out = get(&mut scene, 1, SESSION_1_10, mine, Access::Modified);
    assert_eq!(
        out.last(),
        Some(&Out::Note(Note::Page(Outcome::Stepped(Phase::Invalid, Trigger::SoleToWrite))))
    );
    let Some(Out::Send(to, bytes)) = out.first() else { panic!("the page is asked for") };
    let packet = Packet::parse(bytes).expect("a frame");
    let message = PageMessage::parse(packet.payload).expect("about a page");
    let PageBody::Read(Read { page: asked, host, granted, .. }) = message.body else { panic!("a Read") };
    assert_eq!((*to, asked, host, granted), (Port::node(1), page(mine), HostId(1), true));
}

/// The control plane's order to merge regions does not override the borders of vmas.
#[test]
fn halves_in_two_vmas_stay_two_regions() {
    let mut scene = open(Budgets::default());
    scene
        .update(&[grant(10, AREA, 4, Perm::ReadWrite, 2), grant(10, AREA + 4 * PAGE, 4, Perm::ReadWrite, 2)]);
    for at in [AREA, AREA + 4 * PAGE] {
        let _ = get(&mut scene, 1, SESSION_1_10, at, Access::Shared);
    }
    let both = Region::around(page(AREA), 3);
    assert_eq!(
        resize(&mut scene, both, RegionRowKind::Merge),
        [Out::Note(Note::Resized { done: 0, refused: 1 })]
    );
    // In a later vma of that size they may be merged.
    let free = |at| grant(10, at, 4, Perm::None, 2);
    scene.update(&[free(AREA), free(AREA + 4 * PAGE)]);
    assert_eq!(regions(&scene), [], "what is freed is taken back");
    assert_eq!(scene.switch.occupancy().vmas.used, 0);
}

/// A rack with more small vmas than fit the switch gets a refusal.
#[test]
fn a_further_small_vma_is_refused_by_a_full_table() {
    let mut scene = open(Budgets { vmas: 1, ..Budgets::default() });
    let first = grant(10, AREA, 1, Perm::ReadWrite, 0);
    assert_eq!(scene.update(&[first]).last(), Some(&Out::Note(Note::Updated { seq: 3 })));
    let second = grant(10, AREA + PAGE, 1, Perm::ReadWrite, 0);
    let status = farmem_wire::Status::TableFull;
    assert_eq!(scene.update(&[second]).last(), Some(&Out::Note(Note::UpdateRefused { seq: 4, status })));
    let large = grant(10, AREA + (4 << 20), 512, Perm::ReadWrite, 9);
    let again = grant(20, AREA, 1, Perm::Read, 0);
    assert_eq!(scene.update(&[large, again]).last(), Some(&Out::Note(Note::Updated { seq: 5 })));
    assert_eq!(scene.switch.occupancy().vmas.used, 1);
}

/// The next step of a test.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Allocates a vma of this many pages, at the first free position of its size from there on.
    Allocate {
        domain: u32,
        order: u8,
        from: u64,
    },
    /// Grants or revokes another domain's access to a page of a vma.
    Grant {
        vma: usize,
        domain: u32,
        page: u64,
        perm: Perm,
    },
    Free {
        vma: usize,
    },
    Get {
        host: u16,
        domain: u32,
        page: u64,
        writes: bool,
    },
    Resize {
        page: u64,
        order: u8,
        what: RegionRowKind,
    },
}

fn steps() -> impl Strategy<Value = Step> {
    let domain = || prop_oneof![Just(10_u32), Just(20)];
    let page = || 0..64_u64;
    let perm = prop_oneof![Just(Perm::None), Just(Perm::Read), Just(Perm::ReadWrite)];
    let what =
        prop_oneof![Just(RegionRowKind::Split), Just(RegionRowKind::Merge), Just(RegionRowKind::Merge)];
    prop_oneof![
        3 => (domain(), 0..6_u8, page()).prop_map(|(domain, order, from)| Step::Allocate { domain, order, from }),
        2 => (0..8_usize, domain(), page(), perm)
            .prop_map(|(vma, domain, page, perm)| Step::Grant { vma, domain, page, perm }),
        1 => (0..8_usize).prop_map(|vma| Step::Free { vma }),
        8 => (1..=2_u16, domain(), page(), any::<bool>())
            .prop_map(|(host, domain, page, writes)| Step::Get { host, domain, page, writes }),
        8 => (page(), 0..=6_u8, what).prop_map(|(page, order, what)| Step::Resize { page, order, what }),
    ]
}

proptest! {
    /// Whatever is allocated, granted, freed, requested, split and merged: no region in use has pages of two
    /// vmas.
    #[test]
    fn no_region_overlaps_two_vmas(steps in prop::collection::vec(steps(), 1..60)) {
        let mut scene = open(Budgets::default());
        // Order and owner domain of each vma, by first page of the area.
        let mut vmas: BTreeMap<u64, (u8, u32)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Allocate { domain, order, from } => {
                    let size = 1_u64 << order;
                    let apart = |at: u64, (&base, &(order, _)): (&u64, &(u8, u32))| {
                        base + (1 << order) <= at || at + size <= base
                    };
                    let places = (from / size..64 / size).map(|n| n * size);
                    let mut free = places.filter(|&at| vmas.iter().all(|vma| apart(at, vma)));
                    let Some(base) = free.next() else { continue };
                    vmas.insert(base, (order, domain));
                    scene.update(&[grant(domain, AREA + base * PAGE, size, Perm::ReadWrite, order)]);
                }
                Step::Grant { vma, domain, page, perm } => {
                    let Some((&base, &(order, owner))) = vmas.iter().nth(vma) else { continue };
                    if domain != owner {
                        let at = base + page % (1 << order);
                        scene.update(&[grant(domain, AREA + at * PAGE, 1, perm, order)]);
                    }
                }
                Step::Free { vma } => {
                    let Some((&base, &(order, _))) = vmas.iter().nth(vma) else { continue };
                    vmas.remove(&base);
                    let gone = |domain| grant(domain, AREA + base * PAGE, 1 << order, Perm::None, order);
                    scene.update(&[gone(10), gone(20)]);
                }
                Step::Get { host, domain, page, writes } => {
                    let to = match (host, domain) {
                        (1, 10) => SESSION_1_10,
                        (1, _) => SESSION_1_20,
                        (_, 10) => SESSION_2_10,
                        _ => SESSION_2_20,
                    };
                    let access = if writes { Access::Modified } else { Access::Shared };
                    let _ = get(&mut scene, host, to, AREA + page * PAGE, access);
                }
                Step::Resize { page, order, what } => {
                    let region = Region::around(self::page(AREA + page * PAGE), order);
                    let _ = resize(&mut scene, region, what);
                }
            }
            // The rack's own vmas are large.
            prop_assert_eq!(scene.switch.occupancy().vmas.used, vmas.len());
            for region in regions(&scene) {
                let (first, last) = (region.base().number() - AREA / PAGE, region.last().number() - AREA / PAGE);
                let of = vmas.iter().filter(|&(&base, &(order, _))| base <= last && first < base + (1 << order));
                prop_assert!(of.count() <= 1, "{:?} has pages of two vmas of {:?}", region, vmas);
            }
        }
    }
}
