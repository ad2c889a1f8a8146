//! How a client's requests reach the rack: inside this process, or over a link to other processes.

use crate::answers::answer_to;
use crate::control_rpc::{ControlReply, ControlRpc};
use crate::embedded::World;
use crate::error::Error;
use farmem_api::ApiClient;
use farmem_control::api::{Call, Request, Response};
use farmem_host::{Host, HostRequest, Out};
use farmem_link::{Driver, Link, LinkProfile, Wait, WakeAt, Waker};
use farmem_machine::{Duration, Port};
use farmem_wire::{Domain, Gid, NodeId, Qpn, VirtAddr};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// A way to the control plane, for a client and for what it gave out.
#[derive(Clone)]
pub(crate) struct Asker(Rc<dyn Fn(Request, Tries) -> Result<Response, Error>>);

/// How often a request is made while nothing answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tries {
    /// As long as the client has patience.
    Patient,
    Once,
}

impl Asker {
    fn new(ask: impl Fn(Request, Tries) -> Result<Response, Error> + 'static) -> Self {
        Self(Rc::new(ask))
    }

    /// Asks the control plane, and waits for it as long as the client has patience.
    pub(crate) fn call<C: Call>(&self, call: C) -> Result<C::Answer, Error> {
        answer_to(call, |request| (self.0)(request, Tries::Patient))
    }

    /// Asks the control plane once: for what others wait behind, and for what is as well not done.
    pub(crate) fn call_now<C: Call>(&self, call: C) -> Result<C::Answer, Error> {
        answer_to(call, |request| (self.0)(request, Tries::Once))
    }
}

/// One client's way to the rack. Two implementers: [`InProcess`] and [`OverLink`].
pub(crate) trait Path {
    /// Its way to the control plane.
    fn asker(&self) -> &Asker;
    /// Has the control plane asked without a wait for the answer, which [`Path::told`] has then.
    fn ask_aside(&mut self, number: u64, request: Request) -> Result<(), Error>;
    /// The number of such a question, and what came of it.
    fn told(&mut self) -> Option<ControlReply>;
    /// Tells the host role where `port` is.
    fn set_peer(&mut self, port: Port, gid: Gid) -> Result<(), Error>;
    /// Hands a request to the host role.
    fn submit(&mut self, ask: HostRequest) -> Result<(), Error>;
    /// The host role's next output; waits for it when `wait` is true and something is outstanding, but no longer than for a turn while the control
    /// plane was asked.
    fn poll(&mut self, wait: bool) -> Result<Option<Out>, Error>;
    /// Its next output, when that is at hand.
    fn pop(&mut self) -> Option<Out>;
    /// The memory node that has `addr`, as far as the host role knows.
    fn node_of(&self, domain: Domain, addr: VirtAddr) -> Option<NodeId>;
    /// True when the host role has this connection through the switch, and it did not break.
    fn is_open(&self, qpn: Qpn) -> bool;
    /// Connections beside the first ones that the host role has.
    fn extra_connections_up(&self) -> usize;
    /// Request ids that the host role has left.
    fn ids_left(&self) -> u32;
    /// Bytes of the longest scratch pad that a datagram carries.
    fn traverse_room(&self) -> usize;
    /// Packets sent and received by this host so far.
    fn packets(&self) -> (u64, u64);
    /// The network that its link stands for.
    fn link_profile(&self) -> LinkProfile;
    /// Sends what was gathered, and waits so long at most until anything arrives, or a waker calls; `None` within one process, where nothing arrives by itself.
    fn rest(&mut self, most: Duration) -> Option<Result<(), Error>>;
    /// Wakers that end that wait: from another thread, and from another process.
    fn wakers(&self) -> Option<Result<(Waker, WakeAt), Error>>;
}

impl dyn Path {
    /// Asks the control plane.
    pub(crate) fn call<C: Call>(&mut self, call: C) -> Result<C::Answer, Error> {
        self.asker().call(call)
    }

    /// Sends a call to the control plane once, without waiting for the rack.
    pub(crate) fn call_now<C: Call>(&mut self, call: C) -> Result<C::Answer, Error> {
        self.asker().call_now(call)
    }
}

/// A client of a rack in this process.
pub(crate) struct InProcess {
    world: Rc<RefCell<World>>,
    asker: Asker,
    host: u16,
    told: VecDeque<ControlReply>,
}

impl InProcess {
    pub(crate) fn new(world: Rc<RefCell<World>>, host: u16) -> Self {
        let of = Rc::clone(&world);
        let asker = Asker::new(move |request, _| of.borrow_mut().call(request));
        Self { world, asker, host, told: VecDeque::new() }
    }
}

impl Path for InProcess {
    fn asker(&self) -> &Asker {
        &self.asker
    }

    fn ask_aside(&mut self, number: u64, request: Request) -> Result<(), Error> {
        // Nothing takes long in here.
        let told = self.asker.call(request);
        self.told.push_back((number, told));
        Ok(())
    }

    fn told(&mut self) -> Option<ControlReply> {
        self.told.pop_front()
    }

    fn extra_connections_up(&self) -> usize {
        self.world.borrow().host(self.host).extra_connections_up()
    }

    fn set_peer(&mut self, _: Port, _: Gid) -> Result<(), Error> {
        Ok(()) // ports are the addresses in here
    }

    fn submit(&mut self, ask: HostRequest) -> Result<(), Error> {
        self.world.borrow_mut().submit(self.host, ask);
        Ok(())
    }

    fn poll(&mut self, wait: bool) -> Result<Option<Out>, Error> {
        let mut world = self.world.borrow_mut();
        loop {
            if let Some(out) = world.pop(self.host) {
                return Ok(Some(out));
            }
            if !wait || !world.jump() {
                return Ok(None);
            }
        }
    }

    fn pop(&mut self) -> Option<Out> {
        self.world.borrow_mut().pop(self.host)
    }

    fn node_of(&self, domain: Domain, addr: VirtAddr) -> Option<NodeId> {
        self.world.borrow().host(self.host).node_of(domain, addr)
    }

    fn is_open(&self, qpn: Qpn) -> bool {
        self.world.borrow().host(self.host).is_open(qpn)
    }

    fn ids_left(&self) -> u32 {
        self.world.borrow().host(self.host).ids_left()
    }

    fn traverse_room(&self) -> usize {
        self.world.borrow().host(self.host).traverse_room()
    }

    fn packets(&self) -> (u64, u64) {
        self.world.borrow().host_frames(self.host)
    }

    fn link_profile(&self) -> LinkProfile {
        LinkProfile::NONE
    }

    fn rest(&mut self, _: Duration) -> Option<Result<(), Error>> {
        None
    }

    fn wakers(&self) -> Option<Result<(Waker, WakeAt), Error>> {
        None
    }
}

/// A client of a rack in other processes.
pub(crate) struct OverLink<L: Link> {
    driver: Driver<Host, L>,
    asker: Asker,
    control_rpc: ControlRpc,
    out: VecDeque<Out>,
}

/// The longest sleep between two looks at the timers.
const TURN_MAX: Duration = Duration::from_millis(20);
/// The longest sleep while the control plane was asked: a connection that an operation waits for comes within a millisecond or two.
const ANSWER_TURN_MAX: Duration = Duration::from_millis(1);

impl<L: Link> OverLink<L> {
    /// A path that asks by `api`, and by `aside` for requests that no caller waits for.
    pub(crate) fn new(driver: Driver<Host, L>, api: Rc<RefCell<ApiClient>>, aside: ApiClient) -> Self {
        let asker = Asker::new(move |request, tries| {
            let mut api = api.borrow_mut();
            Ok(if tries == Tries::Once { api.call_now(request) } else { api.call(request) }?)
        });
        Self { driver, asker, control_rpc: ControlRpc::new(aside), out: VecDeque::new() }
    }

    fn turn(&mut self, wait: Wait) -> Result<(), Error> {
        let said = &mut self.out;
        let each_out = &mut |out, _: &mut L| said.push_back(out);
        // Frames that were gathered since the last turn leave before this one waits.
        self.driver.wake_if_due(each_out);
        self.driver.turn(wait, each_out).map_err(lost_link)?;
        Ok(())
    }
}

fn lost_link(source: std::io::Error) -> Error {
    Error::System { what: "the link to the rack failed".into(), source }
}

impl<L: Link> Path for OverLink<L> {
    fn asker(&self) -> &Asker {
        &self.asker
    }

    fn ask_aside(&mut self, number: u64, request: Request) -> Result<(), Error> {
        self.control_rpc.ask(number, request)
    }

    fn told(&mut self) -> Option<ControlReply> {
        self.control_rpc.told()
    }

    fn extra_connections_up(&self) -> usize {
        self.driver.machine().extra_connections_up()
    }

    fn set_peer(&mut self, port: Port, gid: Gid) -> Result<(), Error> {
        self.driver.link_mut().set_peer(port, Some(gid)).map_err(lost_link)
    }

    fn submit(&mut self, ask: HostRequest) -> Result<(), Error> {
        let said = &mut self.out;
        self.driver.submit(ask, &mut |out, _: &mut L| said.push_back(out));
        Ok(())
    }

    fn poll(&mut self, wait: bool) -> Result<Option<Out>, Error> {
        if self.out.is_empty() && !wait {
            self.turn(Wait::No)?;
        }
        while wait && self.out.is_empty() && self.driver.machine().outstanding() > 0 {
            if self.control_rpc.is_asked() {
                // The answer does not end a sleep. The client looks for it after each turn.
                self.turn(Wait::AtMost(ANSWER_TURN_MAX))?;
                break;
            }
            self.turn(Wait::AtMost(TURN_MAX))?;
        }
        Ok(self.out.pop_front())
    }

    fn pop(&mut self) -> Option<Out> {
        self.out.pop_front()
    }

    fn node_of(&self, domain: Domain, addr: VirtAddr) -> Option<NodeId> {
        self.driver.machine().node_of(domain, addr)
    }

    fn is_open(&self, qpn: Qpn) -> bool {
        self.driver.machine().is_open(qpn)
    }

    fn ids_left(&self) -> u32 {
        self.driver.machine().ids_left()
    }

    fn traverse_room(&self) -> usize {
        self.driver.machine().traverse_room()
    }

    fn packets(&self) -> (u64, u64) {
        let counters = self.driver.link().counters();
        (counters.frames_out, counters.frames_in)
    }

    fn link_profile(&self) -> LinkProfile {
        self.driver.link().profile()
    }

    fn rest(&mut self, most: Duration) -> Option<Result<(), Error>> {
        Some(self.turn(Wait::AtMost(most.min(TURN_MAX))))
    }

    fn wakers(&self) -> Option<Result<(Waker, WakeAt), Error>> {
        let link = self.driver.link();
        Some(link.waker().map(|waker| (waker, link.wake_at())).map_err(lost_link))
    }
}
