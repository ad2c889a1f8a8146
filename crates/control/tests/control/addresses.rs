//! Proof of addresses (PROTOCOL 8.74 to 8.76): a member joins only at an address at which it receives
//! datagrams, and an attacker cannot have a bystander sent more than the attacker sends.

use crate::rack::{Rack, config, gid, text};
use farmem_control::api::*;
use farmem_control::keys::{Credentials, Kind, Secret};
use farmem_control::{AddressClaim, AddressProof, COOKIE_LIFE, Config, Note};
use farmem_machine::{Duration, Instant, Port, Rng};
use farmem_wire::message::{Cookie, CookieMessage, GSI_QKEY, GSI_QPN};
use farmem_wire::{Extension, Gid, Packet, Qkey, Qpn, icrc};
use std::collections::{BTreeSet, VecDeque};

const MIB: u64 = 1 << 20;
/// Time from one warning about unproven addresses to the next.
const MINUTE: Duration = Duration::from_secs(60);
/// The tag of a host h1 at the address of octet 101, as the control plane computes it.
const TAG_OF_H1: u64 = 0x70f0_a74f_758b_0529;

fn proving(secret: u8) -> Config {
    Config { address_secret: Some(Secret::new(&[secret; 32])), ..config() }
}

fn show(rack: &mut Rack, address: AddressProof) {
    rack.shown = Credentials { address, ..Credentials::default() };
}

/// Reads a challenge: the endpoint that it is for, and its cookie.
fn read(frame: &[u8]) -> (Qpn, Qkey, Cookie) {
    let packet = Packet::parse(frame).unwrap();
    let Extension::Deth(deth) = packet.ext else { panic!("{:?}", packet.ext) };
    (packet.bth.dest_qp, deth.qkey, CookieMessage::parse(packet.payload).unwrap().cookie)
}

/// Joins of every kind, each at an address of its own.
fn joins() -> Vec<Request> {
    let card = CardMemory { domain: 1, base: 0x4000_0000_0000, rkey: 5, queue_pairs: vec![31] };
    let of_card = JoinNode {
        qpn: Some(30),
        qkey: Some(9),
        card: Some(card),
        ..JoinNode::new("n2".into(), text(12), MIB)
    };
    let host_of_card = JoinHost { qpn: Some(30), qkey: Some(9), ..JoinHost::new("h2".into(), text(102)) };
    vec![
        JoinSwitch { gid: text(2) }.into(),
        JoinNode::new("n1".into(), text(11), MIB).into(),
        of_card.into(),
        JoinIndex { name: "core".into(), gid: text(30), tier: Tier::Core, below: vec!["n1".into()] }.into(),
        JoinHost::new("h1".into(), text(101)).into(),
        host_of_card.into(),
    ]
}

/// A join of each kind is refused until it shows the cookie that its address received. The refusals change
/// nothing, and send nothing but one small frame each, to the endpoint of a card where a card has one.
#[test]
fn each_kind_of_member_proves_its_address() {
    let mut rack = Rack::with(90, proving(1));
    rack.call(CreateDomain { name: "cards".into() }).unwrap();
    for (request, octet) in joins().into_iter().zip([2, 11, 12, 30, 101, 102]) {
        let before = (rack.control.compact(), rack.known.clone());
        show(&mut rack, AddressProof::Pending);
        let error = rack.refused(request.clone());
        assert_eq!(error.code, ErrorCode::Unproven, "{request:?}: {error:?}");
        assert!(error.message.contains(&text(octet)), "{}", error.message);
        assert_eq!((rack.control.compact(), rack.known.clone()), before, "{request:?}");
        let (to, frame) = rack.challenges.pop().expect("one challenge");
        assert!(rack.challenges.is_empty());
        let (qpn, qkey, cookie) = read(&frame);
        let card = matches!(
            &request,
            Request::JoinNode(JoinNode { qpn: Some(_), .. })
                | Request::JoinHost(JoinHost { qpn: Some(_), .. })
        );
        let endpoint = if card { (Qpn::new(30), Qkey(9)) } else { (GSI_QPN, GSI_QKEY) };
        assert_eq!((to, qpn, qkey), (gid(octet), endpoint.0, endpoint.1), "{request:?}");
        show(&mut rack, AddressProof::Cookie(cookie));
        rack.call(request.clone()).unwrap_or_else(|e| panic!("{request:?}: {e:?}"));
        assert!(rack.challenges.is_empty());
    }
}

/// A join by an older build of farmem is refused, with the remedy, and nothing is sent to its address.
#[test]
fn an_older_build_is_told_to_update() {
    let mut rack = Rack::with(91, proving(1));
    for request in [JoinHost::new("h1".into(), text(101)).into(), Request::from(JoinSwitch { gid: text(2) })]
    {
        let error = rack.refused(request);
        assert_eq!(error.code, ErrorCode::BadRequest);
        assert!(error.remedy.contains("the control plane's build of farmem"), "{}", error.remedy);
        assert!(rack.challenges.is_empty());
    }
    assert!(rack.call(Overview {}).unwrap().hosts.is_empty());
}

/// A cookie is valid for its kind of member, its name and its address, from one to two lives of a cookie on.
/// A restarted control plane accepts no earlier cookie.
#[test]
fn a_cookie_is_for_one_claim_and_for_some_time() {
    let mut rack = Rack::with(92, proving(1));
    let join = |name: &str, octet| JoinHost::new(name.into(), text(octet));
    show(&mut rack, AddressProof::Pending);
    rack.refused(join("h1", 101));
    let (_, frame) = rack.challenges.pop().unwrap();
    let own = AddressProof::Cookie(read(&frame).2);
    show(&mut rack, own);
    let others: [Request; 3] =
        [join("h2", 101).into(), join("h1", 102).into(), JoinNode::new("h1".into(), text(101), MIB).into()];
    for other in others {
        assert_eq!(rack.refused(other).code, ErrorCode::Unproven);
    }
    rack.pass(COOKIE_LIFE);
    let joined = rack.call(join("h1", 101)).unwrap();
    rack.call(Leave::new(Port::host(joined.host).0)).unwrap();
    rack.pass(COOKIE_LIFE);
    assert_eq!(rack.refused(join("h1", 101)).code, ErrorCode::Unproven);

    let (_, frame) = rack.challenges.pop().unwrap();
    show(&mut rack, AddressProof::Cookie(read(&frame).2));
    rack.config = proving(2);
    rack.restart();
    assert_eq!(rack.refused(join("h1", 101)).code, ErrorCode::Unproven);
}

/// A member that rejoins at its own address needs no further cookie. One that moves does.
#[test]
fn an_address_is_proven_for_a_stay() {
    let mut rack = Rack::with(93, proving(1));
    let join = |octet| JoinHost::new("h1".into(), text(octet));
    show(&mut rack, AddressProof::Pending);
    rack.refused(join(101));
    let (_, frame) = rack.challenges.pop().unwrap();
    show(&mut rack, AddressProof::Cookie(read(&frame).2));
    assert_eq!(rack.call(join(101)).unwrap().generation, 1);
    rack.shown = Credentials::default();
    assert_eq!(rack.call(join(101)).unwrap().generation, 2);
    show(&mut rack, AddressProof::Pending);
    assert_eq!(rack.refused(join(102)).code, ErrorCode::Unproven);
    rack.call(Leave::new(Port::host(1).0)).unwrap();
    assert_eq!(rack.refused(join(101)).code, ErrorCode::Unproven);
}

/// A cookie message has the tag of its claim, which a member computes from its own request. Claims that differ in
/// kind, name or address have other tags.
#[test]
fn a_cookie_has_the_tag_of_its_claim() {
    let mut rack = Rack::with(94, proving(1));
    rack.call(CreateDomain { name: "cards".into() }).unwrap();
    show(&mut rack, AddressProof::Pending);
    let join = |name: &str, octet| JoinHost::new(name.into(), text(octet)).into();
    let others = [join("h2", 101), join("h1", 102), JoinNode::new("h1".into(), text(101), MIB).into()];
    let mut tags = BTreeSet::new();
    for request in joins().into_iter().chain(others) {
        rack.refused(request.clone());
        let (_, frame) = rack.challenges.pop().expect("one challenge");
        let message = CookieMessage::parse(Packet::parse(&frame).unwrap().payload).unwrap();
        assert_eq!(Some(message.tag), AddressClaim::of(&request).map(|claim| claim.tag()), "{request:?}");
        tags.insert(message.tag);
    }
    assert_eq!(tags.len(), 9, "one for each claim");
    assert_eq!(AddressClaim::of(&join("h1", 101)).map(|claim| claim.tag()), Some(TAG_OF_H1));
    assert_eq!(AddressClaim::of(&Overview {}.into()), None);
}

/// A holder of the rack's token names addresses of others without end. `usage` counts the cookies and the wrong
/// proofs, and a note says so once a minute. Members that join, many at once, cause none.
#[test]
fn joins_without_a_proof_are_counted_and_noted() {
    let mut rack = Rack::with(95, proving(1));
    let join = |octet: u8| JoinHost::new(format!("h{octet}"), text(octet));
    let hosts: Vec<u8> = (101..=140).collect();
    show(&mut rack, AddressProof::Pending);
    hosts.iter().for_each(|&octet| drop(rack.refused(join(octet))));
    for ((_, frame), &octet) in std::mem::take(&mut rack.challenges).into_iter().zip(&hosts) {
        show(&mut rack, AddressProof::Cookie(read(&frame).2));
        rack.call(join(octet)).unwrap();
    }
    let proofs = rack.call(Usage {}).unwrap().proofs;
    assert_eq!(proofs, ProofCounts { cookies: 40, wrong: 0, proven: 40 });
    show(&mut rack, AddressProof::Cookie(Cookie([7; Cookie::LEN])));
    for _ in 0..3 {
        rack.pass(MINUTE);
        (0..20).for_each(|_| drop(rack.refused(join(200))));
    }
    rack.pass(MINUTE);
    rack.refused(join(200));
    let noted: Vec<&Note> = rack.notes.iter().filter(|note| matches!(note, Note::Unproven(_))).collect();
    assert_eq!(noted, [&Note::Unproven(20); 3]);
    let proofs = rack.call(Usage {}).unwrap().proofs;
    assert_eq!(proofs, ProofCounts { cookies: 101, wrong: 61, proven: 40 });
}

// --- Every state of a small world, and many seeds of the control plane ---

/// The least that a join request takes on the wire: its head and its body, without TLS, TCP and IP.
const REQUEST_BYTES: usize = 160;
/// The most that a bystander may receive for each byte of the attacker.
const AMPLIFICATION_MAX: usize = 3;

/// The addresses of the world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Address {
    /// A bystander's, of which the attacker sees nothing.
    Bystander,
    /// The attacker's own, until it passes to another bystander.
    Passing,
    /// The honest host's.
    Honest,
}

impl Address {
    const ALL: [Self; 3] = [Self::Bystander, Self::Passing, Self::Honest];

    fn octet(self) -> u8 {
        101 + self as u8
    }

    fn claim(self) -> AddressClaim<'static> {
        let name = ["h0", "h1", "h2"][self as usize];
        AddressClaim { kind: Kind::Host, name, gid: gid(self.octet()) }
    }

    fn of(to: Gid) -> Self {
        Self::ALL.into_iter().find(|address| gid(address.octet()) == to).expect("an address of the world")
    }
}

/// The control plane: its rules for joins alone, or the whole role.
trait Plane {
    /// Asks to join at an address. Returns the cookies that were sent, and whether the host is a member now.
    fn ask(
        &mut self,
        at: Address,
        proof: AddressProof,
        now: Instant,
    ) -> (Vec<(Address, Cookie, usize)>, bool);
    fn leave(&mut self, at: Address);
    /// Starts again, with another secret.
    fn restart(&mut self);
    fn has(&self, at: Address) -> bool;
}

/// The rules for joins, of the functions that the role uses.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Rules {
    members: BTreeSet<Address>,
    life: u8,
}

impl Plane for Rules {
    fn ask(
        &mut self,
        at: Address,
        proof: AddressProof,
        now: Instant,
    ) -> (Vec<(Address, Cookie, usize)>, bool) {
        let secret = Secret::new(&[self.life; 32]);
        let fits =
            matches!(proof, AddressProof::Cookie(cookie) if secret.cookie_fits(&at.claim(), cookie, now));
        if fits || self.members.contains(&at) {
            self.members.insert(at);
            return (Vec::new(), true);
        }
        (vec![(at, secret.cookie(&at.claim(), now), CookieMessage::LEN + 20)], false)
    }

    fn leave(&mut self, at: Address) {
        self.members.remove(&at);
    }

    fn restart(&mut self) {
        self.life += 1;
    }

    fn has(&self, at: Address) -> bool {
        self.members.contains(&at)
    }
}

struct Role {
    rack: Rack,
    rules: Rules,
}

impl Plane for Role {
    fn ask(
        &mut self,
        at: Address,
        proof: AddressProof,
        now: Instant,
    ) -> (Vec<(Address, Cookie, usize)>, bool) {
        self.rack.now = self.rack.now.max(now);
        show(&mut self.rack, proof);
        let answer = self.rack.call(JoinHost::new(at.claim().name.into(), text(at.octet())));
        let sent = self
            .rack
            .challenges
            .drain(..)
            .map(|(to, frame)| (Address::of(to), read(&frame).2, frame.len()))
            .collect();
        let answer = answer.map(|_: HostJoined| true).or_else(|error| match error.code {
            ErrorCode::Unproven => Ok(false),
            _ => Err(error),
        });
        let joined = answer.expect("no other refusal");
        let expected = self.rules.ask(at, proof, self.rack.now);
        assert_eq!((&expected.0, expected.1), (&sent, joined), "the role keeps to its rules");
        (sent, joined)
    }

    fn leave(&mut self, at: Address) {
        self.rules.leave(at);
        let seen = self.rack.call(Overview {}).unwrap();
        let host = seen.hosts.iter().find(|host| host.name == at.claim().name).expect("it is a member").host;
        self.rack.call(Leave::new(Port::host(host).0)).unwrap();
    }

    fn restart(&mut self) {
        self.rules.restart();
        self.rack.config = proving(self.rules.life);
        self.rack.restart();
    }

    fn has(&self, at: Address) -> bool {
        self.rules.has(at)
    }
}

/// A step of the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The attacker asks with a cookie that it knows, or without one.
    Attack(Address, Option<Cookie>),
    /// The attacker gives its membership up.
    Leave(Address),
    /// The honest host asks with the cookie that it received last.
    Honest,
    /// The network delivers a datagram, perhaps late, and perhaps again later. A datagram that it does not
    /// deliver is lost.
    Deliver(Address, Cookie),
    /// A life of a cookie passes.
    Time,
    /// The attacker's address passes to a bystander.
    Pass,
    Restart,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct World<P> {
    plane: P,
    epoch: u8,
    restarts: u8,
    /// Datagrams that were sent, but for those to the bystander. Delivered ones stay, and may come again.
    wires: BTreeSet<(Address, Cookie)>,
    /// Cookies that the attacker received.
    known: BTreeSet<Cookie>,
    /// The cookie that the honest host received last.
    held: Option<Cookie>,
    /// The epoch and the restarts when the attacker's address passed.
    passed: Option<(u8, u8)>,
    attacks: u8,
    sent: usize,
    received: usize,
}

/// Bounds of the explored world.
const EPOCHS_MAX: u8 = 2;
const RESTARTS_MAX: u8 = 1;
const ATTACKS_MAX: u8 = 3;

impl<P: Plane> World<P> {
    fn new(plane: P) -> Self {
        let (wires, known) = (BTreeSet::new(), BTreeSet::new());
        Self {
            plane,
            epoch: 0,
            restarts: 0,
            wires,
            known,
            held: None,
            passed: None,
            attacks: 0,
            sent: 0,
            received: 0,
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + COOKIE_LIFE.times(self.epoch.into())
    }

    /// Returns true if a bystander has the address.
    fn is_of_bystander(&self, at: Address) -> bool {
        at == Address::Bystander || at == Address::Passing && self.passed.is_some()
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Honest];
        if self.attacks < ATTACKS_MAX {
            let cookies = || self.known.iter().map(|&cookie| Some(cookie)).chain([None]);
            let targets = [Address::Bystander, Address::Passing];
            steps.extend(
                targets.into_iter().flat_map(|at| cookies().map(move |cookie| Step::Attack(at, cookie))),
            );
        }
        steps.extend(self.plane.has(Address::Passing).then_some(Step::Leave(Address::Passing)));
        steps.extend(self.wires.iter().map(|&(to, cookie)| Step::Deliver(to, cookie)));
        steps.extend((self.epoch < EPOCHS_MAX).then_some(Step::Time));
        steps.extend(self.passed.is_none().then_some(Step::Pass));
        steps.extend((self.restarts < RESTARTS_MAX).then_some(Step::Restart));
        steps
    }

    /// Puts cookies on the wire. What reaches the bystander changes nothing.
    fn send(&mut self, sent: &[(Address, Cookie, usize)]) {
        let datagrams = sent.iter().map(|&(to, cookie, _)| (to, cookie));
        self.wires.extend(datagrams.filter(|(to, _)| *to != Address::Bystander));
    }

    fn take(&mut self, step: Step) {
        let now = self.now();
        match step {
            Step::Attack(at, cookie) => {
                self.attacks += 1;
                self.sent += REQUEST_BYTES;
                let was = self.plane.has(at);
                let proof = cookie.map_or(AddressProof::Pending, AddressProof::Cookie);
                let (sent, joined) = self.plane.ask(at, proof, now);
                for &(to, _, len) in &sent {
                    self.received += if self.is_of_bystander(to) { len + icrc::LEN } else { 0 };
                }
                self.send(&sent);
                if joined && !was {
                    assert_ne!(at, Address::Bystander, "a member whose address nobody proved");
                    let late = self.passed.filter(|_| at == Address::Passing);
                    let in_time = late
                        .is_none_or(|(epoch, restarts)| self.epoch <= epoch + 1 && self.restarts == restarts);
                    assert!(
                        in_time,
                        "a proof outlived its cookie: {} {} {late:?}",
                        self.epoch, self.restarts
                    );
                }
            }
            Step::Leave(at) => self.plane.leave(at),
            Step::Honest => {
                let proof = self.held.map_or(AddressProof::Pending, AddressProof::Cookie);
                let (sent, joined) = self.plane.ask(Address::Honest, proof, now);
                self.send(&sent);
                if !joined {
                    self.held = None;
                }
            }
            Step::Deliver(Address::Honest, cookie) => self.held = Some(cookie),
            Step::Deliver(to, cookie) if !self.is_of_bystander(to) => {
                self.known.insert(cookie);
            }
            Step::Deliver(..) => {}
            Step::Time => self.epoch += 1,
            Step::Pass => self.passed = Some((self.epoch, self.restarts)),
            Step::Restart => {
                self.restarts += 1;
                self.plane.restart();
            }
        }
        assert!(self.received <= AMPLIFICATION_MAX * self.sent, "{} of {} bytes", self.received, self.sent);
    }

    /// Lets the honest host go on alone, over a network that delivers: it joins.
    fn honest_joins(mut self) {
        for _ in 0..3 {
            self.take(Step::Honest);
            if self.plane.has(Address::Honest) {
                return;
            }
            let own = self.wires.iter().filter(|(to, _)| *to == Address::Honest).copied().collect::<Vec<_>>();
            let fresh = Secret::new(&[self.restarts; 32]).cookie(&Address::Honest.claim(), self.now());
            assert!(own.contains(&(Address::Honest, fresh)), "it was sent the present cookie");
            self.take(Step::Deliver(Address::Honest, fresh));
        }
        panic!("the honest host does not join");
    }
}

/// Every state of the world: an attacker that holds the rack's token asks for any address with any cookie that
/// it knows, datagrams are lost, duplicated and late, an address passes from the attacker to a bystander, and
/// the control plane restarts. No member has an address that it did not prove, bystanders receive no more than
/// the attacker sends, and an honest host can join from every state.
#[test]
fn every_state_of_a_small_world_is_safe() {
    let start = World::new(Rules::default());
    let (mut seen, mut queue) = (BTreeSet::from([start.clone()]), VecDeque::from([start]));
    let mut steps = 0_u64;
    while let Some(world) = queue.pop_front() {
        world.clone().honest_joins();
        for step in world.steps() {
            steps += 1;
            let mut next = world.clone();
            next.take(step);
            if seen.insert(next.clone()) {
                queue.push_back(next);
            }
        }
    }
    eprintln!("{} states, {steps} steps", seen.len());
    assert!(seen.len() > 10_000, "{} states", seen.len());
}

/// Random orders of the same steps keep the whole role safe: it does what the rules of the explored world say.
#[test]
fn random_orders_of_the_whole_role_are_safe() {
    let mut joined = 0;
    for seed in 0..60 {
        let rules = Rules::default();
        let mut world = World::new(Role { rack: Rack::with(seed, proving(rules.life)), rules });
        let mut chance = Rng::from_number(seed);
        for _ in 0..60 {
            let steps = world.steps();
            let most = u32::try_from(steps.len()).unwrap();
            world.take(steps[chance.below(most) as usize]);
        }
        joined +=
            usize::from(world.plane.has(Address::Passing)) + usize::from(world.plane.has(Address::Honest));
        world.plane.rack.check_log();
    }
    assert!(joined > 20, "{joined} joins");
}
