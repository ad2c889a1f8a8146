//! A rack around the control plane: a network that can lose, double and delay, and peers that apply updates
//! as the protocol says.
//!
//! The peers are the protocol's other end, not copies of the roles: they keep plain tables, answer through
//! the real [`Inbox`](farmem_transport::ud::Inbox), and check what a role could not (a vma is cleared before
//! it is allocated again).

pub(crate) mod disk;
pub(crate) mod peer;

use disk::Disk;
use farmem_control::api::*;
use farmem_control::keys::Credentials;
use farmem_control::{Config, Control, Note, Out, Record, Submitted};
use farmem_machine::{Action, Duration, Event, Instant, Machine, Outbox, Port, Rng};
use farmem_wire::{Gid, Qkey, Qpn};
use peer::{Budget, RolePeer, Tables};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) type Answer = Result<Response, ApiError>;

/// Far above any number of steps that the tests need; a loop that gets there is stuck.
const STEPS_MAX: u32 = 200_000;
/// A role that is not heard of for this long is dead: no run of lost frames lasts as long.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Faults of the network, in percent of the frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lose: u32,
    pub(crate) double: u32,
    /// Longest extra delay, which also makes frames overtake each other.
    pub(crate) delay_us: u32,
}

#[derive(Clone, Debug)]
struct InFlight {
    due: Instant,
    to_control: bool,
    port: Port,
    bytes: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Rack {
    pub(crate) control: Control,
    pub(crate) config: Config,
    pub(crate) now: Instant,
    pub(crate) faults: Faults,
    /// Ports that are cut off in both directions.
    pub(crate) cut: BTreeSet<Port>,
    pub(crate) peers: BTreeMap<Port, RolePeer>,
    /// Keys of the hosts' endpoints.
    pub(crate) qkeys: BTreeMap<u16, u32>,
    pub(crate) budget: Budget,
    /// Every line kept, as the text a driver would store.
    pub(crate) log: Vec<String>,
    /// Where the control plane keeps its lines itself, if it was lent a log.
    pub(crate) disk: Option<Disk>,
    /// Keeps no answers, notes or log, for tests with very many requests.
    pub(crate) forgets: bool,
    pub(crate) notes: Vec<Note>,
    /// Events in order, for tests that check the order.
    pub(crate) trace: Vec<Step>,
    /// Addresses that the control plane told its driver.
    pub(crate) known: BTreeSet<Port>,
    /// How often the control plane crashed.
    pub(crate) restarts: u32,
    /// Number of actions until the next crash.
    pub(crate) crash_in: Option<usize>,
    wires: Vec<InFlight>,
    /// Pages that were lost when they were pushed from one node to another, by the number of the move.
    pushed_lost: BTreeMap<u64, BTreeSet<u64>>,
    /// Time without a frame after which a role is dead.
    pub(crate) dead_after: Duration,
    /// When the last frame reached a role.
    heard: Instant,
    answers: BTreeMap<u64, Answer>,
    /// Tickets in the order of their answers.
    pub(crate) answered: Vec<u64>,
    asked: BTreeMap<u64, Request>,
    next_ticket: u64,
    /// Keys and build shown with requests from now on.
    pub(crate) shown: Credentials,
    /// Frames to addresses that are not proven.
    pub(crate) challenges: Vec<(Gid, Vec<u8>)>,
    chance: Rng,
    seed: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Kept,
    Sent(Port),
    Replied(u64),
}

impl Rack {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with(seed, config())
    }

    pub(crate) fn with(seed: u64, config: Config) -> Self {
        Self {
            control: Control::new(config.clone(), Rng::from_number(seed)),
            config,
            now: Instant::ZERO,
            faults: Faults::default(),
            cut: BTreeSet::new(),
            peers: BTreeMap::new(),
            qkeys: BTreeMap::new(),
            budget: Budget::default(),
            log: Vec::new(),
            disk: None,
            forgets: false,
            notes: Vec::new(),
            trace: Vec::new(),
            known: BTreeSet::new(),
            restarts: 0,
            crash_in: None,
            wires: Vec::new(),
            pushed_lost: BTreeMap::new(),
            dead_after: DEAD_AFTER,
            heard: Instant::ZERO,
            answers: BTreeMap::new(),
            answered: Vec::new(),
            asked: BTreeMap::new(),
            next_ticket: 1,
            shown: Credentials::default(),
            challenges: Vec::new(),
            chance: Rng::from_number(seed ^ 0xfa17),
            seed,
        }
    }

    /// Lends the control plane a log, before anything has happened.
    pub(crate) fn lend_disk(&mut self) -> Disk {
        let disk = Disk::default();
        self.control =
            Control::new(self.config.clone(), Rng::from_number(self.seed)).with_log(Box::new(disk.clone()));
        self.disk = Some(disk.clone());
        disk
    }

    /// Asks without waiting for the answer.
    pub(crate) fn ask(&mut self, request: impl Into<Request>) -> u64 {
        let request = request.into();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.asked.insert(ticket, request.clone());
        self.event(Event::Local(Submitted { ticket, request, shown: self.shown.clone() }));
        ticket
    }

    /// Returns the answer, if it came.
    pub(crate) fn answer(&self, ticket: u64) -> Option<&Answer> {
        self.answers.get(&ticket)
    }

    /// Lets time pass until the answer is there.
    pub(crate) fn wait(&mut self, ticket: u64) -> Answer {
        for _ in 0..STEPS_MAX {
            if let Some(answer) = self.answers.get(&ticket) {
                return answer.clone();
            }
            assert!(self.step(), "nothing more will happen, and ticket {ticket} has no answer");
        }
        panic!("ticket {ticket} has no answer after {STEPS_MAX} steps");
    }

    /// Asks, waits, and lets the tables settle.
    pub(crate) fn call<C: Call>(&mut self, call: C) -> Result<C::Answer, ApiError> {
        let ticket = self.ask(call);
        let answer = self.wait(ticket);
        self.settle();
        if self.forgets {
            self.answers.clear();
            self.asked.clear();
            self.answered.clear();
            self.trace.clear();
            self.peers.values_mut().for_each(|peer| peer.applied.clear());
        }
        let typed = |response| C::Answer::try_from(response).ok().expect("the answer to this request");
        answer.map(typed)
    }

    pub(crate) fn refused(&mut self, request: impl Into<Request>) -> ApiError {
        let request = request.into();
        let error = self.call(request.clone()).expect_err("a refusal");
        assert!(!error.message.is_empty() && !error.remedy.is_empty(), "{request:?}: {error:?}");
        error
    }

    /// Returns the requests without an answer.
    pub(crate) fn open(&self) -> Vec<u64> {
        self.asked.keys().filter(|ticket| !self.answers.contains_key(ticket)).copied().collect()
    }

    pub(crate) fn request(&self, ticket: u64) -> &Request {
        &self.asked[&ticket]
    }

    /// Runs until no frame is in flight and nothing is to be sent again, except to roles that are cut off or
    /// dead.
    pub(crate) fn settle(&mut self) {
        self.heard = self.now;
        for _ in 0..STEPS_MAX {
            let dead = self.next_due().is_none_or(|due| due > self.heard + self.dead_after);
            if dead || self.wires.is_empty() && !self.cut.is_empty() {
                return;
            }
            self.step();
        }
        panic!("the rack does not come to rest");
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.next_due().is_some_and(|due| due <= end) {
            assert!(self.step());
        }
        self.now = end;
    }

    /// Advances the time while the control plane stands still: no message reaches it, and none of its timers
    /// fires.
    pub(crate) fn stand_still(&mut self, span: Duration) {
        self.now += span;
    }

    /// Runs the next event. Returns false if there will never be another.
    pub(crate) fn step(&mut self) -> bool {
        let Some(due) = self.next_due() else { return false };
        self.now = self.now.max(due);
        let Some(index) = self.wires.iter().position(|wire| wire.due <= self.now) else {
            self.event(Event::Wake);
            return true;
        };
        let wire = self.wires.remove(index);
        if self.cut.contains(&wire.port) {
            return true;
        }
        if wire.to_control {
            self.heard = self.now;
            self.event(Event::Frame { port: wire.port, bytes: &wire.bytes });
        } else if let Some(answer) = self.peers.get_mut(&wire.port).and_then(|peer| peer.hear(&wire.bytes)) {
            self.move_pages(wire.port);
            self.heard = self.now;
            self.carry(true, wire.port, &answer);
        }
        true
    }

    /// Transfers the pages that this role pushed and received. Lost pages stay lost while they move (PROTOCOL
    /// 7.40, 7.44).
    fn move_pages(&mut self, port: Port) {
        let Some(peer) = self.peers.get_mut(&port) else { return };
        self.pushed_lost.append(&mut peer.pushes_lost);
        for (number, base, len) in core::mem::take(&mut peer.arrived) {
            let lost = self.pushed_lost.get(&number).expect("what arrives was pushed");
            peer.take_pages((base, len), lost);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.wires.iter().map(|wire| wire.due).chain(self.control.next_wake()).min()
    }

    /// Gives the control plane an event and carries out its actions, in order.
    pub(crate) fn event(&mut self, event: Event<'_, Submitted>) {
        let mut out = Outbox::new();
        self.control.handle(self.now, event, &mut out);
        self.control.check();
        self.read_disk();
        let mut frames = Vec::new();
        let mut joined = Vec::new();
        let mut died = false;
        out.drain(|action| {
            if died {
                return;
            }
            match action {
                Action::Send { port, frame } => {
                    assert!(
                        self.known.contains(&port),
                        "a frame to {port:?}, whose address the driver was not told"
                    );
                    self.trace.push(Step::Sent(port));
                    frames.push((port, frame.to_vec()));
                }
                Action::Local(Out::Persist(record)) => {
                    self.trace.push(Step::Kept);
                    self.log.push(serde_json::to_string(&record).unwrap());
                }
                Action::Local(Out::Peer(change)) => {
                    let known = self.known.contains(&change.port);
                    assert!(change.gid.is_some() || known, "{change:?} is gone and never came");
                    if change.gid.is_some() {
                        self.known.insert(change.port)
                    } else {
                        self.known.remove(&change.port)
                    };
                }
                Action::Local(Out::Challenge { gid, frame }) => self.challenges.push((gid, frame)),
                Action::Local(Out::Reply { ticket, result }) => {
                    self.trace.push(Step::Replied(ticket));
                    self.answered.push(ticket);
                    joined.extend(result.iter().cloned());
                    assert!(self.asked.contains_key(&ticket), "an answer without a request");
                    assert_eq!(self.answers.insert(ticket, result), None, "ticket {ticket} is answered once");
                }
                Action::Note(note) => self.notes.push(note),
            }
            if let Some(left) = &mut self.crash_in {
                *left = left.saturating_sub(1);
                died = *left == 0;
            }
        });
        for response in joined {
            if let Response::HostJoined(HostJoined { host, home, .. }) = &response {
                self.qkeys.insert(*host, home.qkey);
            }
            self.start_peer(&response);
        }
        for (port, frame) in frames {
            self.carry(false, port, &frame);
        }
        if died {
            self.crash_in = None;
            self.restart();
        }
    }

    /// Copies new records from the disk to the log of this test.
    fn read_disk(&mut self) {
        let Some(disk) = &self.disk else { return };
        let content = disk.content();
        if self.forgets || content.lines.len() < self.log.len() {
            self.log.clear();
        }
        if !self.forgets {
            let new = &content.lines[self.log.len()..];
            self.trace.extend(new.iter().map(|_| Step::Kept));
            self.log.extend(new.iter().map(|record| serde_json::to_string(record).unwrap()));
        }
    }

    /// Crashes the control plane and restarts it from its log. A caller without an answer sees a broken
    /// connection.
    pub(crate) fn restart(&mut self) {
        self.seed += 1;
        self.restarts += 1;
        let control = restored(&self.config, self.seed, &self.log);
        self.control = match self.disk.clone() {
            Some(disk) => control.with_log(Box::new(disk)),
            None => control,
        };
        self.known.clear();
        for ticket in self.open() {
            let error =
                ApiError { code: ErrorCode::Unavailable, message: "cut off".into(), remedy: "ask".into() };
            self.answers.insert(ticket, Err(error));
            self.answered.push(ticket);
        }
    }

    /// Checks that the log and the rows both lead to the state of the control plane.
    pub(crate) fn check_log(&self) {
        if let Some(disk) = &self.disk {
            let lines = disk.content().lines.clone();
            let kept = Control::restore(self.config.clone(), Rng::from_number(0), lines).expect("they fit");
            assert_eq!(kept.compact(), self.control.compact(), "the disk leads here");
        }
        if self.forgets {
            return;
        }
        let rows = self.control.compact();
        assert_eq!(restored(&self.config, 0, &self.log).compact(), rows, "the log leads here");
        let again =
            Control::restore(self.config.clone(), Rng::from_number(0), rows.clone()).expect("the rows fit");
        assert_eq!(again.compact(), rows, "the rows lead here");
    }

    /// Checks that the tables of a role are what a role that joins now would be told.
    pub(crate) fn check_tables(&self, port: Port) {
        let mut twin = self.twin();
        if port == Port::SWITCH {
            twin.call(JoinSwitch { gid: text(self.peers[&port].octet) }).expect("the switch may join again");
        } else if let Some(index) = port.as_index() {
            let infos = twin.call(Overview {}).unwrap().index;
            let info = infos.into_iter().find(|info| info.index == index).expect("the switch is known");
            let IndexInfo { name, gid, tier, below, .. } = info;
            twin.call(JoinIndex { name, gid, tier, below }).expect("an index switch may join again");
        } else {
            let join = twin.join_node_request(port);
            twin.call(join).expect("a node may join again");
        }
        let without_connections = |tables: &Tables| Tables { queue_pairs: BTreeMap::new(), ..tables.clone() };
        let (told, full) = (&self.peers[&port].tables, &twin.peers[&port].tables);
        assert_eq!(without_connections(told), without_connections(full), "{port:?} knows what it must");
    }

    /// Returns the same rack in a world without faults, with its control plane restored from the rows.
    fn twin(&self) -> Self {
        let mut twin = Self::with(self.seed + 1000, self.config.clone());
        twin.control =
            Control::restore(self.config.clone(), Rng::from_number(self.seed + 1000), self.control.compact())
                .unwrap();
        twin.now = self.now;
        twin.peers = self.peers.iter().map(|(&port, peer)| (port, peer.twin())).collect();
        twin.pushed_lost = self.pushed_lost.clone();
        twin
    }

    fn join_node_request(&mut self, port: Port) -> JoinNode {
        let nodes = self.call(Overview {}).unwrap().nodes;
        let node = nodes.into_iter().find(|node| node.port == port.0).expect("the node is known");
        JoinNode::new(node.name, node.gid, node.capacity)
    }

    /// Starts a role's process with the answer to its join and empty tables.
    fn start_peer(&mut self, response: &Response) {
        let (Response::Joined(SwitchJoined { home, control, .. })
        | Response::NodeJoined(NodeJoined { home, control, .. })
        | Response::IndexJoined(IndexJoined { home, control, .. })) = response
        else {
            return;
        };
        let peer = RolePeer::new(Port(home.port), key(home), key(control), octet(&home.gid), self.budget);
        self.peers.insert(Port(home.port), peer);
    }

    fn carry(&mut self, to_control: bool, port: Port, bytes: &[u8]) {
        let Faults { lose, double, delay_us } = self.faults;
        let copies = 1 + u32::from(self.chance.chance(double, 100));
        for _ in 0..copies {
            if self.chance.chance(lose, 100) {
                continue;
            }
            let delay = 1 + u64::from(self.chance.below(delay_us + 1));
            let due = self.now + Duration::from_micros(delay);
            self.wires.push(InFlight { due, to_control, port, bytes: bytes.to_vec() });
        }
    }

    /// Takes out the frames in flight to or from the control plane, for tests that hold some back.
    pub(crate) fn take_wires(&mut self) -> Vec<(Port, Vec<u8>)> {
        self.wires.drain(..).map(|wire| (wire.port, wire.bytes)).collect()
    }

    // Common requests of tests.

    pub(crate) fn join_switch(&mut self) -> Result<SwitchJoined, ApiError> {
        self.call(JoinSwitch { gid: text(2) })
    }

    pub(crate) fn join_node(&mut self, number: u8, capacity: u64) -> u16 {
        let name = format!("n{number}");
        self.call(JoinNode::new(name, text(10 + number), capacity)).unwrap().node
    }

    pub(crate) fn join_host(&mut self, number: u8) -> (u16, u16) {
        let join = JoinHost::new(format!("h{number}"), text(100 + number));
        let joined = self.call(join).unwrap();
        (joined.host, joined.generation)
    }

    pub(crate) fn domain(&mut self, name: &str) -> u32 {
        self.call(CreateDomain { name: name.into() }).unwrap().domain
    }

    pub(crate) fn allocate(&mut self, domain: u32, size: u64) -> VmaInfo {
        self.call(Allocate { domain, size, node: None, durable: false }).unwrap()
    }

    pub(crate) fn vmas(&mut self) -> Vec<VmaInfo> {
        self.call(Overview {}).unwrap().vmas
    }

    pub(crate) fn tables(&self, port: Port) -> &Tables {
        &self.peers[&port].tables
    }

    pub(crate) fn noted(&self, note: Note) -> usize {
        self.notes.iter().filter(|&&other| other == note).count()
    }
}

/// Returns the usual configuration without the removal of absent hosts and unused domains, which the tests of
/// `wear` cover.
pub(crate) fn config() -> Config {
    Config { host_lease: None, ..Config::new(gid(1)) }
}

pub(crate) fn restored(config: &Config, seed: u64, log: &[String]) -> Control {
    let records = log.iter().map(|line| serde_json::from_str::<Record>(line).expect("a line reads back"));
    let control = Control::restore(config.clone(), Rng::from_number(seed), records).expect("the log fits");
    control.check();
    control
}

pub(crate) fn grant(vma: &VmaInfo, offset: u64, len: u64, to: u32, perm: PermName) -> Grant {
    Grant { domain: vma.domain, base: vma.base + offset, len, to, perm }
}

pub(crate) fn gid(octet: u8) -> Gid {
    Gid::from_v4([127, 0, 0, octet])
}

pub(crate) fn text(octet: u8) -> String {
    format!("127.0.0.{octet}")
}

fn octet(gid: &str) -> u8 {
    gid.rsplit('.').next().unwrap().parse().unwrap()
}

fn key(endpoint: &Endpoint) -> farmem_transport::ud::Endpoint {
    farmem_transport::ud::Endpoint { qpn: Qpn::new(endpoint.qpn), qkey: Qkey(endpoint.qkey) }
}
