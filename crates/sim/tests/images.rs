//! Images of soft state between the control plane and a switch, while the network loses, doubles, holds back and damages packets, and either starts
//! again (PROTOCOL 13.1 to 13.12).
//!
//! At every moment what stands is one whole image that somebody wanted, no epoch names two of them, and epochs grow in each life of the switch. When
//! the faults end the newest image that the control plane remembers stands, to the byte.

use farmem_control::SOFT_WINDOW;
use farmem_control::api::{
    ApiError, Base64, ErrorCode, Request, SoftClear, SoftLoad, SoftLoaded, SoftSection, SoftShow, SoftShown,
};
use farmem_machine::{Duration, Rng};
use farmem_sim::network::Ticket;
use farmem_sim::{Layout, Plan, RoleId, World};
use farmem_switch::Budgets;
use farmem_wire::message::SOFT_PART_MAX;
use std::collections::{BTreeMap, BTreeSet};

/// Sections of an image: kind, id and bytes.
type Sections = BTreeMap<(u16, u32), Vec<u8>>;

/// A switch and a control plane: images concern nobody else.
fn layout(soft_bytes: u32) -> Layout {
    let budgets = Budgets { soft_bytes, ..Budgets::default() };
    Layout { nodes: 0, hosts: 0, budgets, ..Layout::small() }
}

fn load(sections: &Sections) -> SoftLoad {
    let section =
        |(&(kind, id), bytes): (_, &Vec<u8>)| SoftSection { kind, id, bytes: Base64(bytes.clone()) };
    SoftLoad { sections: sections.iter().map(section).collect() }
}

/// Sections of about `len` bytes in all.
fn sections(len: u32, rng: &mut Rng) -> Sections {
    let count = 1 + rng.below(4);
    let each = len / count + 1;
    let section = |n: u32| {
        let with = rng.next_u32().to_le_bytes();
        let bytes =
            (0..rng.below(each)).map(|at| with[at as usize % 4].wrapping_add(at.to_le_bytes()[1])).collect();
        ((u16::try_from(n % 3).unwrap(), n), bytes)
    };
    (0..count).map(section).collect()
}

struct Bench {
    world: World,
    /// Everything that anybody wanted.
    all: BTreeSet<Sections>,
    /// What the control plane remembers to be wanted.
    wanted: Option<Sections>,
    /// Which image each epoch named.
    named: BTreeMap<u64, Sections>,
    /// The switch's life and the epoch that stood last in it.
    last: (u32, u64),
    open: BTreeSet<u64>,
    answers: Vec<Result<SoftLoaded, ErrorCode>>,
}

impl Bench {
    fn new(plan: Plan, seed: u64) -> Self {
        let mut world = World::new(layout(8 << 20), plan, seed, 0);
        world.bring_up();
        let (all, named) = (BTreeSet::from([Sections::new()]), BTreeMap::new());
        Self { world, all, wanted: None, named, last: (0, 0), open: BTreeSet::new(), answers: Vec::new() }
    }

    fn want(&mut self, sections: Sections) {
        self.all.insert(sections.clone());
        let request: Request = if sections.is_empty() { SoftClear {}.into() } else { load(&sections).into() };
        let ticket = self.world.ask(RoleId::Control, request);
        match self.world.take_reply(ticket) {
            // Nobody there to load it: it is not wanted.
            Some(answer) => assert!(answer.is_err(), "it cannot stand already"),
            None => {
                self.wanted = Some(sections);
                self.open.insert(ticket);
            }
        }
    }

    /// The sections that stand.
    fn standing(&self) -> Option<(u64, Sections)> {
        let soft = self.world.switch()?.soft();
        let of = |kind, id| soft.section(kind, id).expect("it has its key").to_vec();
        let sections = soft.image().keys().map(|key| ((key.kind, key.id), of(key.kind, key.id)));
        Some((soft.epoch(), sections.collect()))
    }

    fn check(&mut self) {
        self.world.check();
        let Some((epoch, sections)) = self.standing() else { return };
        let life = self.world.starts_of(RoleId::Switch);
        let (before, least) = self.last;
        if (life, epoch) == self.last {
            return;
        }
        assert!(before != life || epoch >= least, "epoch {epoch} stands after {least}");
        self.last = (life, epoch);
        if epoch == 0 {
            return assert_eq!(sections, Sections::new(), "nothing stands");
        }
        assert!(self.all.contains(&sections), "nobody wanted what stands under epoch {epoch}");
        let named = self.named.entry(epoch).or_insert_with(|| sections.clone());
        assert_eq!(*named, sections, "epoch {epoch} names two images");
    }

    fn step(&mut self) -> bool {
        let moved = self.world.step();
        self.check();
        let world = &mut self.world;
        let mut answers = Vec::new();
        self.open.retain(|&ticket| {
            let answer = world.take_reply(ticket);
            answers.extend(answer.iter().cloned());
            answer.is_none()
        });
        for answer in answers {
            let answer = answer.map_err(|error: ApiError| error.code);
            // An answer to soft_clear says no epoch.
            self.answers.push(answer.map(|response| response.try_into().unwrap_or(SoftLoaded { epoch: 0 })));
        }
        moved
    }

    fn pass(&mut self, span: Duration) {
        let end = self.world.now() + span;
        self.world.alarm(end);
        while self.world.now() < end && self.step() {}
    }

    fn crash(&mut self, role: RoleId, down: Duration) {
        self.world.crash(role);
        if role == RoleId::Control {
            self.wanted = None;
        }
        self.world.start_later(role, down);
        self.check();
    }

    /// The faults end, and everything under way does.
    fn heal(&mut self) {
        self.world.network_mut().heal();
        self.world.start_all();
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 200_000, "the rack comes to rest");
        }
        assert_eq!(self.open, BTreeSet::new(), "every caller is answered");
    }

    fn show(&mut self) -> SoftShown {
        self.world.call(RoleId::Control, SoftShow {}).expect("the switch is there")
    }
}

/// One world; answers what was answered to its callers.
fn world(plan: Plan, seed: u64, crashes: bool) -> Bench {
    let mut bench = Bench::new(plan, seed);
    let mut rng = Rng::from_number(seed ^ 0x50f7);
    for _ in 0..30 {
        match rng.below(if crashes { 10 } else { 6 }) {
            0..=3 => {
                let len = [100, 5_000, 60_000][rng.below(3) as usize];
                let sections = sections(len, &mut rng);
                bench.want(sections);
            }
            4 => bench.want(Sections::new()),
            5 if rng.chance(1, 2) => {
                // What was wanted before is wanted again.
                let known = bench.all.iter().nth(rng.below(u32::try_from(bench.all.len()).unwrap()) as usize);
                let again = known.expect("one of them").clone();
                bench.want(again);
            }
            5 => _ = bench.world.ask(RoleId::Control, SoftShow {}),
            6..=7 => bench.crash(RoleId::Switch, Duration::from_micros(u64::from(rng.below(3_000)))),
            _ => bench.crash(RoleId::Control, Duration::from_micros(u64::from(rng.below(3_000)))),
        }
        bench.pass(Duration::from_micros(u64::from(rng.below(4_000))));
    }
    bench.heal();
    let (epoch, standing) = bench.standing().expect("the switch is up");
    if let Some(wanted) = &bench.wanted {
        assert_eq!(standing, *wanted, "the newest image that is wanted stands");
    }
    let shown = bench.show();
    assert_eq!(shown.epoch, epoch);
    assert!(crashes || shown.loading_epoch == 0, "nothing is left half done: {shown:?}");
    let last = sections(9_000, &mut rng);
    bench.want(last.clone());
    bench.heal();
    let (newest, standing) = bench.standing().expect("the switch is up");
    assert_eq!(standing, last, "and one that is wanted later does too");
    assert_eq!(bench.answers.last(), Some(&Ok(SoftLoaded { epoch: newest })));
    bench
}

/// What the worlds of a test noted.
fn notes(worlds: impl Iterator<Item = Bench>) -> BTreeSet<String> {
    worlds.flat_map(|bench| bench.world.journal().notes().keys().cloned().collect::<Vec<_>>()).collect()
}

#[test]
fn the_newest_image_stands_whatever_the_network_does() {
    let plans =
        [Plan::CALM, Plan::LOSS, Plan::DUPLICATE, Plan::REORDER, Plan::FLIP, Plan::STORM, Plan::PARTITION];
    let notes = notes(plans.into_iter().flat_map(|plan| (0..12).map(move |seed| world(plan, seed, false))));
    for mark in [
        "switch.SoftLoaded",
        "switch.SoftNotTaken",
        "switch.SoftFlipped",
        "switch.SoftShown",
        "control.Retransmitted(Switch)",
        "control.Dropped(Stale)",
    ] {
        assert!(notes.contains(mark), "no world reaches {mark}: {notes:?}");
    }
}

#[test]
fn the_newest_image_stands_whoever_starts_again() {
    for plan in [Plan::CALM, Plan::REORDER, Plan::STORM] {
        for seed in 0..40 {
            world(plan, seed, true);
        }
    }
}

/// PROTOCOL 13.8: a load on a good network is one question, one Load for each part and one Flip, each answered once.
#[test]
fn a_load_takes_as_many_datagrams_as_it_has_parts() {
    let mut bench = Bench::new(Plan::CALM, 1);
    bench.heal();
    let index = Sections::from([((1, 0), vec![7; 14_400]), ((2, 1), vec![9; 10_800 * 256])]);
    let len = 8 + 2 * 16 + 14_400 + 10_800 * 256;
    let before = bench.world.network().counters().sent;
    let loaded = bench.world.call(RoleId::Control, load(&index)).expect("it stands");
    let parts = (len as u64).div_ceil(SOFT_PART_MAX as u64);
    assert_eq!(bench.world.network().counters().sent - before, 2 * (1 + parts + 1));
    assert_eq!(bench.standing(), Some((loaded.epoch, index.clone())));
    let shown = bench.show();
    assert_eq!((shown.epoch, shown.bytes, shown.loading_epoch), (loaded.epoch, len, 0));
    // The same again: it is asked, and not loaded.
    let before = bench.world.network().counters().sent;
    assert_eq!(bench.world.call(RoleId::Control, load(&index)), Ok(loaded));
    assert_eq!(bench.world.network().counters().sent - before, 2);
}

/// PROTOCOL 13.8: no more is under way than the window, and what one lost Load costs is at most a window.
#[test]
fn a_lost_part_costs_a_window_at_most() {
    let mut bench = Bench::new(Plan::CALM, 2);
    bench.heal();
    let image = Sections::from([((1, 0), vec![7; 100 * SOFT_PART_MAX - 24])]);
    let before = bench.world.network().counters().sent;
    bench.want(image.clone());
    let (mut most, mut lost) = (0, false);
    while bench.standing().is_none_or(|(epoch, _)| epoch == 0) {
        assert!(bench.step());
        let network = bench.world.network_mut();
        let loads: Vec<Ticket> = network
            .on_the_way()
            .filter(|(_, in_flight)| in_flight.to == RoleId::Switch.gid())
            .map(|(ticket, _)| ticket)
            .collect();
        most = most.max(loads.len());
        if loads.len() == SOFT_WINDOW as usize && !lost {
            lost = network.lose(loads[0]).is_some();
        }
    }
    bench.heal();
    assert_eq!(bench.standing().map(|(_, sections)| sections), Some(image));
    assert_eq!(most, SOFT_WINDOW as usize, "no more Loads are under way");
    let sent = bench.world.network().counters().sent - before;
    assert!(lost, "a Load was lost");
    assert!(sent <= 2 * (102 + u64::from(SOFT_WINDOW)), "{sent}");
    assert!(
        bench.world.now().since(farmem_machine::Instant::ZERO) < Duration::from_millis(3),
        "no timer was waited for"
    );
}

/// PROTOCOL 13.11: a switch that starts again is empty, and gets its image back under the same epoch without being asked for.
#[test]
fn a_switch_that_starts_again_gets_its_image_back() {
    let mut bench = Bench::new(Plan::CALM, 3);
    let image = Sections::from([((1, 0), vec![7; 9_000])]);
    bench.want(image.clone());
    bench.heal();
    let before = bench.standing().expect("it is up");
    assert_eq!(before.1, image);
    bench.world.crash(RoleId::Switch);
    bench.world.start(RoleId::Switch);
    while !bench.world.is_up(RoleId::Switch) {
        assert!(bench.step());
    }
    assert_eq!(bench.standing(), Some((0, Sections::new())), "empty, and right");
    bench.heal();
    assert_eq!(bench.standing(), Some(before));
    // Cleared, it does not come back.
    bench.want(Sections::new());
    bench.heal();
    assert!(matches!(bench.standing(), Some((1.., sections)) if sections.is_empty()));
    bench.crash(RoleId::Switch, Duration::ZERO);
    bench.heal();
    assert_eq!(bench.standing(), Some((0, Sections::new())));
}

/// PROTOCOL 13.12: the switch keeps what it has when the control plane starts again; nobody has it any more when both did. Epochs grow all the same.
#[test]
fn a_control_plane_that_starts_again_wants_nothing() {
    let mut bench = Bench::new(Plan::CALM, 4);
    let image = Sections::from([((1, 0), vec![7; 9_000])]);
    bench.want(image.clone());
    bench.heal();
    let (first, _) = bench.standing().expect("it is up");
    bench.crash(RoleId::Control, Duration::ZERO);
    bench.heal();
    assert_eq!(bench.standing(), Some((first, image.clone())));
    assert_eq!(bench.show().epoch, first, "and the control plane can tell");
    bench.want(image.clone());
    bench.heal();
    assert_eq!(bench.answers.last(), Some(&Ok(SoftLoaded { epoch: first })), "it stands already");
    bench.crash(RoleId::Control, Duration::ZERO);
    bench.crash(RoleId::Switch, Duration::ZERO);
    bench.heal();
    assert_eq!(bench.standing(), Some((0, Sections::new())));
    bench.want(image);
    bench.heal();
    let (second, _) = bench.standing().expect("it is up");
    assert!(second > first, "{second} after {first}: no two images have one epoch");
}

/// PROTOCOL 13.10: who is refused is told why, and what stood is loaded again where it is needed.
#[test]
fn an_image_that_is_refused_leaves_what_stood() {
    let mut world = World::new(layout(10_000), Plan::CALM, 5, 0);
    world.bring_up();
    let small = Sections::from([((1, 0), vec![7; 9_000])]);
    let large = Sections::from([((1, 0), vec![7; 10_000])]);
    let call = |world: &mut World, sections: &Sections| world.call(RoleId::Control, load(sections));
    let loaded = call(&mut world, &small).expect("it fits");
    let refused = call(&mut world, &large).expect_err("it does not");
    assert_eq!(refused.code, ErrorCode::TableFull, "{refused:?}");
    assert!(refused.message.contains("10024") && refused.message.contains("10000"), "{}", refused.message);
    world.crash(RoleId::Switch);
    world.start(RoleId::Switch);
    while world.step() {}
    let soft = world.switch().expect("it is up").soft();
    assert_eq!((soft.epoch(), soft.section(1, 0)), (loaded.epoch, Some(&[7; 9_000][..])));
    let twice = SoftSection { kind: 1, id: 1, bytes: Base64(vec![1]) };
    for sections in [vec![], vec![twice.clone(), twice]] {
        let refused = world.call(RoleId::Control, SoftLoad { sections }).expect_err("no image");
        assert_eq!(refused.code, ErrorCode::BadRequest, "{refused:?}");
    }
}

/// PROTOCOL 13.10: an image that is wanted later takes the place of one that does not stand yet; who wants the same is answered with it.
#[test]
fn a_later_image_takes_the_place_of_one_that_is_loading() {
    let mut bench = Bench::new(Plan::CALM, 6);
    let (one, two) =
        (Sections::from([((1, 0), vec![1; 90_000])]), Sections::from([((1, 0), vec![2; 90_000])]));
    bench.want(one.clone());
    bench.pass(Duration::from_micros(30));
    bench.want(two.clone());
    bench.pass(Duration::from_micros(30));
    bench.want(two.clone());
    bench.heal();
    let (epoch, standing) = bench.standing().expect("it is up");
    assert_eq!(standing, two);
    let stands = Ok(SoftLoaded { epoch });
    assert_eq!(bench.answers, [Err(ErrorCode::Conflict), stands, stands]);
}

/// PROTOCOL 13.11: callers do not wait for a switch that says nothing; the image stays wanted.
#[test]
fn callers_do_not_wait_for_a_switch_that_is_silent() {
    let mut bench = Bench::new(Plan::CALM, 7);
    let image = Sections::from([((1, 0), vec![1; 90_000])]);
    bench.world.crash(RoleId::Switch);
    bench.want(image.clone());
    while bench.answers.is_empty() {
        assert!(bench.step());
    }
    assert_eq!(bench.answers, [Err(ErrorCode::Unavailable)]);
    let refused = bench.world.ask(RoleId::Control, SoftShow {});
    while bench.world.is_up(RoleId::Switch) {
        assert!(bench.step());
    }
    bench.heal();
    assert!(bench.world.take_reply(refused).is_some());
    assert_eq!(
        bench.standing().map(|(_, sections)| sections),
        Some(image),
        "it is loaded when the switch is there"
    );
}
