//! Surroundings of the control plane: its driver, its callers, and the roles that receive its updates.

use super::soft::SoftSwitch;
use crate::Run;
use crate::frames::{ReceivedFrame, datagram, enclosed, heard, sent};
use crate::input::Input;
use farmem_control::api::{
    Allocate, Connect, CreateDomain, Endpoint, JoinHost, JoinNode, JoinSwitch, NodeJoined, OpenSession,
    Request, Response, SwitchJoined,
};
use farmem_control::{Config, Control, Note, Out, PAGE, Record, Submitted};
use farmem_machine::{Action, Duration, Event, Instant, Machine as _, Outbox, Port, Rng};
use farmem_transport::ud;
use farmem_wire::message::{DirectoryBody, DirectoryMessage, SoftMessage, Sweep, Updates};
use farmem_wire::{Body, Extension, Gid, Header, Message, Packet, Qkey, Qpn, RequestId, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

const SEED: u64 = 0xc0_117201;
/// Maximum number of answer rounds until every request has an answer.
const ROUNDS_MAX: u32 = 1_000;

/// Batch of updates that is sent to a role and not answered.
#[derive(Clone, Copy, Debug)]
struct Batch {
    header: Header,
    seq: u64,
    count: u16,
}

/// State of the rack when an event sequence begins. The state is built once, because building it takes longer
/// than an event sequence.
struct Joined {
    rows: Vec<Record>,
    own: ud::Endpoint,
    vmas: Vec<u64>,
    queue_pairs: Vec<u32>,
}

static JOINED: LazyLock<Joined> = LazyLock::new(|| {
    let mut rack = Rack::new(Control::new(config(), Rng::from_number(SEED)), Vec::new());
    let gid = |octet: u8| format!("127.0.0.{octet}");
    let requests: [Request; 9] = [
        JoinSwitch { gid: gid(2) }.into(),
        JoinNode::new("n1".into(), gid(11), 16 * PAGE).into(),
        JoinNode::new("n2".into(), gid(12), 16 * PAGE).into(),
        JoinHost::new("h1".into(), gid(101)).into(),
        CreateDomain { name: "d1".into() }.into(),
        CreateDomain { name: "d2".into() }.into(),
        Allocate { domain: 1, size: 8192, node: Some(1), durable: false }.into(),
        OpenSession { host: 1, domain: 1 }.into(),
        Connect::new(1, 1, 2).into(),
    ];
    let run = &mut Run::new();
    for request in requests {
        rack.ask(request, run);
        rack.settle(run);
    }
    assert!(rack.vmas.len() == 2 && rack.queue_pairs.len() == 2, "the rack is set up");
    Joined { rows: rack.control.compact(), own: rack.own, vmas: rack.vmas, queue_pairs: rack.queue_pairs }
});

fn config() -> Config {
    let mut config = Config::new(Gid::from_v4([127, 0, 0, 1]));
    config.retries_max = 2;
    // The setup runs until no update is open. With a lease, the silent host would be expelled during the
    // setup.
    config.host_lease = None;
    config.bounds.vmas_max = 6;
    config.bounds.grants_max = 8;
    config.bounds.sessions_max = 3;
    config.bounds.connections_max = 4;
    config.bounds.domains_max = 4;
    config.bounds.pending_max = 6;
    config
}

pub(super) struct Rack {
    control: Control,
    now: Instant,
    out: Outbox<Out, Note>,
    log: Vec<Record>,
    /// Endpoint of the control plane.
    own: ud::Endpoint,
    /// Newest batch to each role that the control plane regards as unanswered.
    batches: BTreeMap<Port, Batch>,
    /// Open sweep requests, by memory node.
    sweeps: BTreeMap<Port, (RequestId, Sweep)>,
    /// State of the switch that concerns images.
    soft: SoftSwitch,
    /// Numbers of the requests without an answer.
    asked: BTreeSet<u64>,
    tickets: u64,
    restarts: u64,
    /// False until the first event after a start. The first event also triggers the output of the start
    /// itself.
    started: bool,
    /// Addresses for lookup requests. The first address belongs to no allocation.
    vmas: Vec<u64>,
    queue_pairs: Vec<u32>,
}

impl Rack {
    fn new(control: Control, log: Vec<Record>) -> Self {
        Self {
            control,
            now: Instant::ZERO,
            out: Outbox::new(),
            log,
            own: ud::Endpoint { qpn: Qpn::new(0), qkey: Qkey(0) },
            batches: BTreeMap::new(),
            sweeps: BTreeMap::new(),
            soft: SoftSwitch::default(),
            asked: BTreeSet::new(),
            tickets: 0,
            restarts: 0,
            started: false,
            vmas: vec![0x1000],
            queue_pairs: vec![0],
        }
    }

    pub(super) fn joined() -> Self {
        let Joined { rows, own, vmas, queue_pairs } = &*JOINED;
        let control = restored(rows, SEED);
        let (vmas, queue_pairs) = (vmas.clone(), queue_pairs.clone());
        Self { own: *own, vmas, queue_pairs, ..Self::new(control, rows.clone()) }
    }

    pub(super) fn vmas(&self) -> &[u64] {
        let newest = self.vmas.len().saturating_sub(200);
        &self.vmas[newest..]
    }

    pub(super) fn queue_pairs(&self) -> &[u32] {
        &self.queue_pairs
    }

    pub(super) fn ask(&mut self, request: Request, run: &mut Run) {
        self.tickets += 1;
        self.asked.insert(self.tickets);
        let ask = Submitted::new(self.tickets, request);
        self.control.handle(self.now, Event::Local(ask), &mut self.out);
        self.look(true, true, run);
    }

    /// Advances the time by `span` and wakes the control plane, whether or not it set a timer.
    pub(super) fn pass(&mut self, span: Duration, run: &mut Run) {
        self.now += span;
        self.control.handle(self.now, Event::Wake, &mut self.out);
        self.look(true, true, run);
        assert!(self.control.next_wake().is_none_or(|at| at > self.now), "what was due is done");
    }

    /// Delivers a frame to the control plane. A frame that answers no open batch must change nothing.
    pub(super) fn hear(&mut self, (port, frame): &ReceivedFrame, run: &mut Run) {
        run.cases += 1;
        let answered = self.batches.get(port).is_some_and(|batch| self.is_answer(batch, frame));
        if answered {
            self.batches.remove(port);
        }
        let about_images = *port == Port::SWITCH && self.is_about_images(frame);
        self.control.handle(self.now, Event::Frame { port: *port, bytes: frame }, &mut self.out);
        self.look(answered, answered || about_images, run);
    }

    fn is_answer(&self, batch: &Batch, frame: &[u8]) -> bool {
        let Some((to, message)) = heard(frame) else { return false };
        let Body::Update(updates) = message.body else { return false };
        let Header { request, response, status, .. } = message.header;
        let sound = status == Status::Ok || updates.refused < batch.count;
        to == self.own && response && (request, updates.seq) == (batch.header.request, batch.seq) && sound
    }

    /// Returns true when the frame holds a message that may answer a question about images.
    fn is_about_images(&self, frame: &[u8]) -> bool {
        let Ok(packet) = Packet::parse(frame) else { return false };
        let Extension::Deth(deth) = packet.ext else { return false };
        let to = ud::Endpoint { qpn: packet.bth.dest_qp, qkey: deth.qkey };
        to == self.own && self.soft.may_answer(packet.payload)
    }

    /// Returns the switch's answer to the oldest question about images. Most answers are right.
    pub(super) fn soft_answer(&mut self, input: &mut Input<'_>) -> Option<ReceivedFrame> {
        let payload = self.soft.answer(Some(input))?;
        Some((Port::SWITCH, self.enclosed(&payload)))
    }

    /// Returns a role's answer to its open batch. Most answers are right.
    pub(super) fn answer(&self, input: &mut Input<'_>) -> Option<ReceivedFrame> {
        let skip = usize::from(input.u8()) % self.batches.len().max(1);
        let (&port, &batch) = self.batches.iter().nth(skip)?;
        let status = match input.below(16) {
            15 => Status::TableFull,
            14 => input.pick(&[Status::Malformed, Status::Unsupported, Status::OutOfBounds, Status::Busy]),
            _ => Status::Ok,
        };
        if input.one_in(32) {
            let body = Body::Update(Updates::request(batch.seq, 0, &[]).expect("an empty batch"));
            return Some((port, datagram(self.own, &Message { header: batch.header, body })));
        }
        // Sometimes the index lies past the end of the batch.
        let bound = batch.count + u16::from(input.below(8) / 7);
        let refused = if status == Status::Ok { 0 } else { u16::from(input.u8()) % bound };
        Some((port, self.answered(&batch, status, refused)))
    }

    fn answered(&self, batch: &Batch, status: Status, refused: u16) -> Vec<u8> {
        let body = Body::Update(Updates::response(batch.seq, refused));
        datagram(self.own, &Message { header: batch.header.answer(status), body })
    }

    /// Returns the reply that no host had cached a page.
    fn swept(&self, token: RequestId, sweep: Sweep) -> Vec<u8> {
        let mut message = Vec::new();
        DirectoryMessage { token, body: DirectoryBody::Swept(sweep, 0) }.emit(&mut message);
        self.enclosed(&message)
    }

    /// Returns a datagram to the control plane with this payload.
    fn enclosed(&self, payload: &[u8]) -> Vec<u8> {
        enclosed(self.own, payload)
    }

    /// Restarts the control plane from its log, or from the compacted log. Callers with open requests are
    /// gone.
    pub(super) fn restart(&mut self, compact: bool) {
        if compact {
            self.log = self.control.compact();
        }
        self.restarts += 1;
        self.control = restored(&self.log, SEED + self.restarts);
        self.started = false;
        self.asked.clear();
        self.batches.clear();
        self.sweeps.clear();
        self.soft.forget();
    }

    /// Delivers correct answers from all roles until the control plane sends nothing more.
    fn settle(&mut self, run: &mut Run) {
        for _ in 0..ROUNDS_MAX {
            let mut answers: Vec<ReceivedFrame> = self
                .batches
                .iter()
                .map(|(port, batch)| (*port, self.answered(batch, Status::Ok, 0)))
                .collect();
            let sweeps = std::mem::take(&mut self.sweeps).into_iter();
            answers.extend(sweeps.map(|(port, (token, sweep))| (port, self.swept(token, sweep))));
            let to = self.own;
            let soft = std::iter::from_fn(|| self.soft.answer(None));
            answers.extend(soft.map(|payload| (Port::SWITCH, enclosed(to, &payload))));
            if answers.is_empty() && self.control.next_wake().is_none() {
                return;
            }
            answers.iter().for_each(|answer| self.hear(answer, run));
            if let Some(at) = self.control.next_wake() {
                self.now = self.now.max(at);
                self.pass(Duration::ZERO, run);
            }
        }
        panic!("the control plane never comes to rest");
    }

    /// Ends the sequence with a healthy rack: every caller must get an answer, and the log must produce the
    /// current state.
    pub(super) fn end(mut self, run: &mut Run) {
        let cases = run.cases;
        self.settle(run);
        run.cases = cases;
        assert!(self.asked.is_empty(), "never answered: {:?}", self.asked);
        let rows = self.control.compact();
        assert!(restored(&self.log, 1).compact() == rows, "the log leads elsewhere");
        assert!(restored(&rows, 1).compact() == rows, "the short log leads elsewhere");
    }

    /// Checks the output of an event. A decision needs `reason`, an answer needs `to_answer`.
    fn look(&mut self, reason: bool, to_answer: bool, run: &mut Run) {
        self.control.check();
        let (reason, to_answer) = (reason || !self.started, to_answer || !self.started);
        self.started = true;
        let mut out = core::mem::take(&mut self.out);
        out.drain(|action| match action {
            Action::Send { port, frame } => self.sent(port, frame),
            Action::Local(Out::Persist(record)) => {
                assert!(reason, "no reason to decide {record:?}");
                self.log.push(record);
            }
            Action::Local(Out::Reply { ticket, result }) => {
                assert!(to_answer, "no reason to answer {result:?}");
                assert!(self.asked.remove(&ticket), "request {ticket} was answered before");
                if let Ok(response) = result {
                    self.learn(response);
                }
            }
            Action::Local(Out::Peer(_) | Out::Challenge { .. }) => {}
            Action::Note(note) => run.mark(note),
        });
        self.out = out;
    }

    fn learn(&mut self, response: Response) {
        match response {
            Response::Joined(SwitchJoined { control, .. })
            | Response::NodeJoined(NodeJoined { control, .. }) => self.own = endpoint(&control),
            Response::Vma(vma) => self.vmas.push(vma.base),
            Response::Connection(connection) => self.queue_pairs.push(connection.qpn),
            _ => {}
        }
    }

    fn sent(&mut self, port: Port, frame: &[u8]) {
        assert!(port == Port::SWITCH || port.as_node().is_some(), "only roles with tables are updated");
        let payload = Packet::parse(frame).expect("the control plane sends frames").payload;
        if DirectoryMessage::is(payload) {
            let message = DirectoryMessage::parse(payload).expect("the control plane sends messages");
            let DirectoryBody::Sweep(sweep) = message.body else {
                panic!("no host caches pages: {message:?}")
            };
            self.sweeps.insert(port, (message.token, sweep));
            return;
        }
        if SoftMessage::is(payload) {
            assert_eq!(port, Port::SWITCH, "only the switch has images");
            return self.soft.asked(payload);
        }
        let (_, message) = sent(frame);
        let Body::Update(updates) = message.body else { panic!("updates, not {message:?}") };
        assert!(!message.header.response, "the control plane answers no peer");
        let count = u16::try_from(updates.iter().count()).expect("few updates");
        assert!(count > 0, "a batch of nothing");
        self.batches.insert(port, Batch { header: message.header, seq: updates.seq, count });
    }
}

fn restored(log: &[Record], seed: u64) -> Control {
    let control = Control::restore(config(), Rng::from_number(seed), log.iter().cloned());
    control.expect("a log that was written is believed")
}

fn endpoint(endpoint: &Endpoint) -> ud::Endpoint {
    ud::Endpoint { qpn: Qpn::new(endpoint.qpn), qkey: Qkey(endpoint.qkey) }
}
