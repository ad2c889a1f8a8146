//! Images of soft state between the control plane and a switch, while the network loses, duplicates, delays
//! and damages packets, and either role restarts (PROTOCOL 13.1 to 13.12).
//!
//! Two domains publish. At every moment the active image is one whole image published at some time, no epoch
//! names two images, and epochs grow in each incarnation of the switch. When the faults end, the active image
//! is exactly the one that the control plane remembers as published.

use farmem_control::api::{
    ApiError, Base64, CreateDomain, ErrorCode, OpenSession, Request, SoftClear, SoftLoad, SoftLoaded,
    SoftName, SoftSection, SoftShow, SoftShown,
};
use farmem_control::{SOFT_BURST, SOFT_PACE, SOFT_WINDOW};
use farmem_machine::{Duration, Rng};
use farmem_sim::network::Ticket;
use farmem_sim::{Layout, Plan, RoleId, World};
use farmem_switch::Budgets;
use farmem_transport::image::SectionKey;
use farmem_wire::Domain;
use farmem_wire::message::SOFT_PART_MAX;
use std::collections::{BTreeMap, BTreeSet};

/// Sections of an image: bytes by domain, kind and id.
type Sections = BTreeMap<(u32, u16, u64), Vec<u8>>;

/// Returns the length in bytes of an image's header.
const fn head(sections: usize) -> usize {
    8 + 24 * sections
}

/// A switch, a control plane, and two hosts that only publish: host n in domain n.
fn layout(soft_bytes: u32) -> Layout {
    let budgets = Budgets { soft_bytes, ..Budgets::default() };
    Layout { nodes: 0, hosts: 2, budgets, ..Layout::small() }
}

fn bring_up(layout: Layout, plan: Plan, seed: u64) -> World {
    let mut world = World::new(layout, plan, seed, 0);
    world.bring_up();
    for n in 1..=2 {
        open_session(&mut world, n);
    }
    world
}

/// Lets host n publish in domain n.
fn open_session(world: &mut World, n: u16) {
    let domain =
        world.call(RoleId::Control, CreateDomain { name: format!("domain{n}") }).expect("it answers");
    assert_eq!(domain.domain, u32::from(n));
    world.call(RoleId::Control, OpenSession { host: n, domain: domain.domain }).expect("the switch answers");
}

/// A request of a domain.
#[derive(Clone, Debug)]
enum Act {
    Publish(Sections),
    /// Withdraws these sections, or all of the domain.
    Withdraw(u32, Vec<SoftName>),
}

impl Act {
    fn request(&self) -> Request {
        match self {
            Self::Publish(sections) => load(sections).into(),
            Self::Withdraw(domain, sections) => {
                SoftClear { domain: *domain, sections: sections.clone(), switch: None }.into()
            }
        }
    }

    /// Returns the published sections afterwards.
    fn done_to(&self, sections: &Sections) -> Sections {
        let mut sections = sections.clone();
        match self {
            Self::Publish(new) => sections.extend(new.clone()),
            Self::Withdraw(domain, names) => sections.retain(|&(of, kind, id), _| {
                of != *domain || !(names.is_empty() || names.contains(&SoftName { kind, id }))
            }),
        }
        sections
    }
}

/// Returns the request of the host with the number of the sections' domain.
fn load(sections: &Sections) -> SoftLoad {
    let domain = sections.keys().next().map_or(1, |key| key.0);
    let section =
        |(&(_, kind, id), bytes): (_, &Vec<u8>)| SoftSection { kind, id, bytes: Base64(bytes.clone()) };
    let sections = sections.iter().map(section).collect();
    SoftLoad { host: u16::try_from(domain).unwrap(), domain, sections, switch: None }
}

/// Returns random sections of a domain, of about `len` bytes in all.
fn sections(domain: u32, len: u32, rng: &mut Rng) -> Sections {
    let count = 1 + rng.below(4);
    let each = len / count + 1;
    let section = |n: u32| {
        let with = rng.next_u32().to_le_bytes();
        let bytes =
            (0..rng.below(each)).map(|at| with[at as usize % 4].wrapping_add(at.to_le_bytes()[1])).collect();
        ((domain, u16::try_from(n % 3).unwrap(), n.into()), bytes)
    };
    (0..count).map(section).collect()
}

struct Bench {
    world: World,
    /// All published states, one after each change.
    all: BTreeSet<Sections>,
    /// The sections that the control plane remembers as published.
    published: Sections,
    /// True if the control plane restarted and nothing was published since: then it makes no statement about
    /// the active image.
    has_forgotten: bool,
    /// The image of each epoch.
    named: BTreeMap<u64, Sections>,
    /// The switch's incarnation and its last active epoch.
    last: (u32, u64),
    open: BTreeSet<u64>,
    answers: Vec<Result<SoftLoaded, ErrorCode>>,
}

impl Bench {
    fn new(plan: Plan, seed: u64) -> Self {
        let world = bring_up(layout(8 << 20), plan, seed);
        let (all, named) = (BTreeSet::from([Sections::new()]), BTreeMap::new());
        let (published, has_forgotten) = (Sections::new(), true);
        let (last, open, answers) = ((0, 0), BTreeSet::new(), Vec::new());
        Self { world, all, published, has_forgotten, named, last, open, answers }
    }

    fn want(&mut self, sections: Sections) {
        self.act(&Act::Publish(sections));
    }

    fn act(&mut self, act: &Act) {
        let ticket = self.world.ask(RoleId::Control, act.request());
        match self.world.take_reply(ticket) {
            // No switch is there to load the image, so the control plane does not keep it.
            Some(answer) => assert!(answer.is_err(), "it cannot be active already"),
            None => {
                self.published = act.done_to(&self.published);
                self.all.insert(self.published.clone());
                self.has_forgotten = false;
                self.open.insert(ticket);
            }
        }
    }

    /// Returns the active epoch and its sections.
    fn active(&self) -> Option<(u64, Sections)> {
        let soft = self.world.switch()?.soft();
        let of = |key| soft.section(key).expect("it has its key").to_vec();
        let sections = soft.image().keys().map(|key| ((key.domain.0, key.kind, key.id), of(key)));
        Some((soft.epoch(), sections.collect()))
    }

    fn check(&mut self) {
        self.world.check();
        let Some((epoch, sections)) = self.active() else { return };
        let life = self.world.starts_of(RoleId::Switch);
        let (before, least) = self.last;
        if (life, epoch) == self.last {
            return;
        }
        assert!(before != life || epoch >= least, "epoch {epoch} is active after {least}");
        self.last = (life, epoch);
        if epoch == 0 {
            return assert_eq!(sections, Sections::new(), "no image is active");
        }
        assert!(self.all.contains(&sections), "never was published the active image of epoch {epoch}");
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
            // The answer to soft_clear has no epoch.
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
        self.world.crash_for(role, down);
        if role == RoleId::Control {
            (self.published, self.has_forgotten) = (Sections::new(), true);
        }
        self.check();
    }

    /// Ends the faults and waits for everything in flight.
    fn heal(&mut self) {
        self.world.end_faults();
        let mut steps = 0..200_000;
        while self.step() {
            assert!(steps.next().is_some(), "the rack comes to rest");
        }
        assert_eq!(self.open, BTreeSet::new(), "every caller is answered");
    }

    fn show(&mut self) -> SoftShown {
        self.world.call(RoleId::Control, SoftShow { switch: None }).expect("the switch is there")
    }
}

/// Runs one world and returns its bench.
fn world(plan: Plan, seed: u64, crashes: bool) -> Bench {
    let mut bench = Bench::new(plan, seed);
    let mut rng = Rng::from_number(seed ^ 0x50f7);
    for _ in 0..30 {
        let domain = 1 + rng.below(2);
        match rng.below(if crashes { 10 } else { 6 }) {
            0..=3 => {
                let len = [100, 5_000, 60_000][rng.below(3) as usize];
                let sections = sections(domain, len, &mut rng);
                bench.want(sections);
            }
            4 => {
                let mut names: Vec<SoftName> =
                    (0..4_u16).map(|n| SoftName { kind: n % 3, id: n.into() }).collect();
                names.truncate(rng.below(3) as usize);
                bench.act(&Act::Withdraw(domain, names));
            }
            5 if rng.chance(1, 2) => {
                // Sections that are published already are published again.
                let own = |(key, _): &(&(u32, u16, u64), &Vec<u8>)| key.0 == domain;
                let again: Sections =
                    bench.published.iter().filter(own).map(|(key, bytes)| (*key, bytes.clone())).collect();
                if !again.is_empty() {
                    bench.want(again);
                }
            }
            5 => _ = bench.world.ask(RoleId::Control, SoftShow { switch: None }),
            6..=7 => bench.crash(RoleId::Switch, Duration::from_micros(u64::from(rng.below(3_000)))),
            _ => bench.crash(RoleId::Control, Duration::from_micros(u64::from(rng.below(3_000)))),
        }
        bench.pass(Duration::from_micros(u64::from(rng.below(4_000))));
    }
    bench.heal();
    let (epoch, active) = bench.active().expect("the switch is up");
    if !bench.has_forgotten {
        assert_eq!(active, bench.published, "what is published is active");
    }
    let shown = bench.show();
    assert_eq!(shown.epoch, epoch);
    assert!(crashes || shown.loading_epoch == 0, "nothing is left half done: {shown:?}");
    let last = sections(1, 9_000, &mut rng);
    bench.want(last);
    bench.heal();
    let (newest, active) = bench.active().expect("the switch is up");
    assert_eq!(active, bench.published, "and what is published later does too");
    assert_eq!(bench.answers.last(), Some(&Ok(SoftLoaded { epoch: newest })));
    bench
}

/// Returns the notes of the worlds of a test.
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

/// PROTOCOL 13.8: a load on a good network is one question, one Load for each part and one Flip, each
/// answered once.
#[test]
fn a_load_takes_as_many_datagrams_as_it_has_parts() {
    let mut bench = Bench::new(Plan::CALM, 1);
    bench.heal();
    let index = Sections::from([((1, 1, 0), vec![7; 14_400]), ((1, 2, 1), vec![9; 10_800 * 256])]);
    let len = u32::try_from(head(2) + 14_400 + 10_800 * 256).unwrap();
    let before = bench.world.network().counters().sent;
    let loaded = bench.world.call(RoleId::Control, load(&index)).expect("the image is active");
    let parts = u64::from(len).div_ceil(SOFT_PART_MAX as u64);
    assert_eq!(bench.world.network().counters().sent - before, 2 * (1 + parts + 1));
    assert_eq!(bench.active(), Some((loaded.epoch, index.clone())));
    let shown = bench.show();
    assert_eq!((shown.epoch, shown.bytes, shown.loading_epoch), (loaded.epoch, len, 0));
    // Publishing equal sections again takes a question and no load.
    let before = bench.world.network().counters().sent;
    assert_eq!(bench.world.call(RoleId::Control, load(&index)), Ok(loaded));
    assert_eq!(bench.world.network().counters().sent - before, 2);
}

/// PROTOCOL 13.8: at most a burst is sent per pace, at most a window is in flight, and one lost Load costs at
/// most a window.
#[test]
fn a_lost_part_costs_a_window_at_most() {
    let mut bench = Bench::new(Plan::CALM, 2);
    bench.heal();
    let image = Sections::from([((1, 1, 0), vec![7; 100 * SOFT_PART_MAX - head(1)])]);
    let (before, begun) = (bench.world.network().counters().sent, bench.world.now());
    bench.want(image.clone());
    // The first sighting of each Load; one of the second burst is lost.
    let mut loads: BTreeMap<Ticket, farmem_machine::Instant> = BTreeMap::new();
    let (mut most, mut lost) = (0, false);
    while bench.active().is_none_or(|(epoch, _)| epoch == 0) {
        assert!(bench.step());
        let now = bench.world.now();
        let network = bench.world.network_mut();
        let under_way: Vec<Ticket> = network
            .on_the_way()
            .filter(|(_, in_flight)| in_flight.to == RoleId::Switch.gid())
            .map(|(ticket, _)| ticket)
            .collect();
        most = most.max(under_way.len());
        under_way.iter().for_each(|&ticket| _ = loads.entry(ticket).or_insert(now));
        if loads.len() > 2 * SOFT_BURST as usize && !lost {
            lost = under_way.first().is_some_and(|&ticket| network.lose(ticket).is_some());
        }
    }
    let took = bench.world.now().since(begun);
    bench.heal();
    assert_eq!(bench.active().map(|(_, sections)| sections), Some(image));
    assert!(most <= SOFT_WINDOW as usize, "{most} are under way");
    let times: Vec<farmem_machine::Instant> = loads.into_values().collect();
    // A pace overlaps two bursts at most; one of these may be the Flip.
    for two_bursts in times.windows(2 * SOFT_BURST as usize + 2) {
        let (first, last) = (two_bursts[0], two_bursts[two_bursts.len() - 1]);
        assert!(last.since(first) >= SOFT_PACE, "a burst has {SOFT_BURST} Loads at most");
    }
    let sent = bench.world.network().counters().sent - before;
    assert!(lost, "a Load was lost");
    assert!(sent <= 2 * (102 + u64::from(SOFT_WINDOW)), "{sent}");
    let bursts = sent.div_ceil(2 * u64::from(SOFT_BURST));
    assert!(took < SOFT_PACE.times(bursts + 2), "no timer but the pace was waited for: {took:?}");
}

/// PROTOCOL 13.11: a restarted switch is empty, and gets its image back under the same epoch without a
/// request.
#[test]
fn a_switch_that_starts_again_gets_its_image_back() {
    let mut bench = Bench::new(Plan::CALM, 3);
    let image = Sections::from([((1, 1, 0), vec![7; 9_000])]);
    bench.want(image.clone());
    bench.heal();
    let before = bench.active().expect("it is up");
    assert_eq!(before.1, image);
    bench.world.crash(RoleId::Switch);
    bench.world.start(RoleId::Switch);
    while !bench.world.is_up(RoleId::Switch) {
        assert!(bench.step());
    }
    assert_eq!(bench.active(), Some((0, Sections::new())), "empty, and right");
    bench.heal();
    assert_eq!(bench.active(), Some(before));
    // A withdrawn image does not come back.
    bench.act(&Act::Withdraw(1, Vec::new()));
    bench.heal();
    assert!(matches!(bench.active(), Some((1.., sections)) if sections.is_empty()));
    bench.crash(RoleId::Switch, Duration::ZERO);
    bench.heal();
    assert_eq!(bench.active(), Some((0, Sections::new())));
}

/// PROTOCOL 13.12: the switch keeps its image when the control plane restarts; if both restart, the image is
/// gone. Epochs grow all the same.
#[test]
fn a_control_plane_that_starts_again_wants_nothing() {
    let mut bench = Bench::new(Plan::CALM, 4);
    let image = Sections::from([((1, 1, 0), vec![7; 9_000])]);
    bench.want(image.clone());
    bench.heal();
    let (first, _) = bench.active().expect("it is up");
    bench.crash(RoleId::Control, Duration::ZERO);
    bench.heal();
    assert_eq!(bench.active(), Some((first, image.clone())));
    assert_eq!(bench.show().epoch, first, "and the control plane can tell");
    bench.want(image.clone());
    bench.heal();
    assert_eq!(bench.answers.last(), Some(&Ok(SoftLoaded { epoch: first })), "it is active already");
    bench.crash(RoleId::Control, Duration::ZERO);
    bench.crash(RoleId::Switch, Duration::ZERO);
    bench.heal();
    assert_eq!(bench.active(), Some((0, Sections::new())));
    bench.want(image);
    bench.heal();
    let (second, _) = bench.active().expect("it is up");
    assert!(second > first, "{second} after {first}: no two images have one epoch");
}

/// PROTOCOL 13.10: a refused publisher gets the reason, and the previous image is loaded again if needed.
#[test]
fn an_image_that_is_refused_leaves_what_stood() {
    let mut world = bring_up(layout(10_000), Plan::CALM, 5);
    let section = |domain, len| Sections::from([((domain, 1, 0), vec![7; len])]);
    let call = |world: &mut World, sections: &Sections| world.call(RoleId::Control, load(sections));
    let loaded = call(&mut world, &section(1, 9_000)).expect("it fits");
    let refused = call(&mut world, &section(1, 10_000)).expect_err("it does not");
    assert_eq!(refused.code, ErrorCode::TableFull, "{refused:?}");
    assert!(refused.message.contains("10032") && refused.message.contains("10000"), "{}", refused.message);
    // Now the control plane knows the room, and reports its users.
    let refused = call(&mut world, &section(2, 1_000)).expect_err("not beside the other");
    assert_eq!(refused.code, ErrorCode::TableFull, "{refused:?}");
    for what in ["10056", "room for one of 10000", "Domain 2 would have 1000", "others have 9000"] {
        assert!(refused.message.contains(what), "{}", refused.message);
    }
    world.crash(RoleId::Switch);
    world.start(RoleId::Switch);
    while world.step() {}
    let soft = world.switch().expect("it is up").soft();
    let key = SectionKey { domain: Domain(1), kind: 1, id: 0 };
    assert_eq!((soft.epoch(), soft.section(key)), (loaded.epoch, Some(&[7; 9_000][..])));
    let twice = SoftSection { kind: 1, id: 1, bytes: Base64(vec![1]) };
    let no_tree = SoftSection { kind: 0x0d13, id: 256, bytes: Base64(vec![1; 64]) };
    for sections in [vec![], vec![twice.clone(), twice], vec![no_tree]] {
        let call = SoftLoad { host: 1, domain: 1, sections, switch: None };
        let refused = world.call(RoleId::Control, call).expect_err("no image");
        assert_eq!(refused.code, ErrorCode::BadRequest, "{refused:?}");
    }
    for (host, domain) in [(1, 2), (3, 1), (1, 3)] {
        let call = SoftLoad { host, domain, ..load(&section(1, 10)) };
        let refused = world.call(RoleId::Control, call).expect_err("no session");
        assert_eq!(refused.code, ErrorCode::NotFound, "{refused:?}");
    }
}

/// PROTOCOL 13.10: the image being loaded becomes active first. Then later sections are loaded at once; equal
/// requests share its answer.
#[test]
fn what_is_published_while_an_image_is_loading_comes_after_it() {
    let mut bench = Bench::new(Plan::CALM, 6);
    let section = |domain, with| Sections::from([((domain, 1, 0), vec![with; 90_000])]);
    bench.want(section(1, 1));
    let loading = |bench: &Bench| bench.world.switch().map(|switch| switch.soft().shown().loading.epoch);
    while loading(&bench) == Some(0) {
        assert!(bench.step());
    }
    for (domain, with) in [(1, 2), (2, 3), (1, 2)] {
        bench.want(section(domain, with));
        bench.step();
    }
    bench.heal();
    let (epoch, active) = bench.active().expect("it is up");
    assert_eq!(active, section(1, 2).into_iter().chain(section(2, 3)).collect());
    let active = Ok(SoftLoaded { epoch });
    assert_eq!(bench.answers, [Err(ErrorCode::Conflict), active, active, active]);
    assert_eq!(bench.named.len(), 2, "one image for all that came meanwhile: {:?}", bench.named.keys());
}

/// PROTOCOL 13.16: two domains that publish in turn, faster than an image is loaded, both make progress.
#[test]
fn domains_that_publish_all_the_time_do_not_keep_each_other_from_it() {
    let mut bench = Bench::new(Plan::CALM, 8);
    for round in 0..60_u8 {
        for domain in 1..=2 {
            bench.want(Sections::from([((domain, 1, round.into()), vec![round; 2_000])]));
            bench.pass(SOFT_PACE.times(5));
        }
    }
    let before = bench.answers.len();
    assert!(before > 30, "{before} of 120 were answered while others came");
    bench.heal();
    assert!(bench.answers.iter().all(Result::is_ok) && bench.answers.len() == 120, "{:?}", bench.answers);
}

/// PROTOCOL 13.16: a host's sections are withdrawn when it leaves or restarts; those of others stay.
#[test]
fn what_a_session_leaves_is_withdrawn() {
    let mut bench = Bench::new(Plan::CALM, 9);
    let section = |domain| Sections::from([((domain, 1, 0), vec![7; 9_000])]);
    let both: Sections = section(1).into_iter().chain(section(2)).collect();
    bench.want(section(1));
    bench.want(section(2));
    bench.heal();
    assert_eq!(bench.active().map(|active| active.1), Some(both));
    // The switch keeps sessions across restarts.
    bench.crash(RoleId::Switch, Duration::ZERO);
    bench.heal();
    assert_eq!(bench.active().map(|active| active.1.len()), Some(2));
    bench.published = section(2);
    bench.all.insert(section(2));
    bench.crash(RoleId::Host(1), Duration::ZERO);
    bench.heal();
    assert_eq!(bench.active().map(|active| active.1), Some(section(2)));
    open_session(&mut bench.world, 1);
    bench.want(section(1));
    bench.heal();
    assert_eq!(bench.active().map(|active| active.1.len()), Some(2));
    bench.published = section(1);
    bench.all.insert(section(1));
    let port = farmem_machine::Port::host(2).0;
    bench.world.call(RoleId::Control, farmem_control::api::Leave::new(port)).expect("a host may leave");
    bench.heal();
    assert_eq!(bench.active().map(|active| active.1), Some(section(1)));
}

/// PROTOCOL 13.11: callers do not wait for a silent switch; the image stays requested.
#[test]
fn callers_do_not_wait_for_a_switch_that_is_silent() {
    let mut bench = Bench::new(Plan::CALM, 7);
    let image = Sections::from([((1, 1, 0), vec![1; 90_000])]);
    bench.world.crash(RoleId::Switch);
    bench.want(image.clone());
    while bench.answers.is_empty() {
        assert!(bench.step());
    }
    assert_eq!(bench.answers, [Err(ErrorCode::Unavailable)]);
    let refused = bench.world.ask(RoleId::Control, SoftShow { switch: None });
    while bench.world.is_up(RoleId::Switch) {
        assert!(bench.step());
    }
    bench.heal();
    assert!(bench.world.take_reply(refused).is_some());
    assert_eq!(
        bench.active().map(|(_, sections)| sections),
        Some(image),
        "it is loaded when the switch is there"
    );
}
