//! Paths of a client's requests to the rack: within this process, or over a link to other processes.

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

/// A connection to the control plane, shared by a client and its handles.
#[derive(Clone)]
pub(crate) struct Asker(Rc<dyn Fn(Request, Tries) -> Result<Response, Error>>);

/// Number of attempts while the control plane does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tries {
    /// Repeats the request until the client's patience ends.
    Patient,
    Once,
}

impl Asker {
    fn new(ask: impl Fn(Request, Tries) -> Result<Response, Error> + 'static) -> Self {
        Self(Rc::new(ask))
    }

    /// Sends a request to the control plane, and waits at most for the client's patience.
    pub(crate) fn call<C: Call>(&self, call: C) -> Result<C::Answer, Error> {
        answer_to(call, |request| (self.0)(request, Tries::Patient))
    }

    /// Sends a request to the control plane once. For requests that must not block other work, or that may
    /// fail.
    pub(crate) fn call_now<C: Call>(&self, call: C) -> Result<C::Answer, Error> {
        answer_to(call, |request| (self.0)(request, Tries::Once))
    }
}

/// A client's path to the rack. Two implementers: [`InProcess`] and [`OverLink`].
pub(crate) trait Path {
    /// Returns the path to the control plane.
    fn asker(&self) -> &Asker;
    /// Sends a request to the control plane without waiting for the answer; [`Path::told`] returns it later.
    fn ask_aside(&mut self, number: u64, request: Request) -> Result<(), Error>;
    /// Returns the number and result of such a request, if one was answered.
    fn told(&mut self) -> Option<ControlReply>;
    /// Tells the host role the address of `port`.
    fn set_peer(&mut self, port: Port, gid: Gid) -> Result<(), Error>;
    /// Passes a request to the host role.
    fn submit(&mut self, ask: HostRequest) -> Result<(), Error>;
    /// Returns the host role's next output. Waits for it if `wait` is true and an operation is pending. While
    /// the control plane has not answered, the wait takes at most one turn of the event loop.
    fn poll(&mut self, wait: bool) -> Result<Option<Out>, Error>;
    /// Returns the host role's next output, if it is ready.
    fn pop(&mut self) -> Option<Out>;
    /// Returns the memory node that holds `addr`, as far as the host role knows.
    fn node_of(&self, domain: Domain, addr: VirtAddr) -> Option<NodeId>;
    /// Returns true if the host role has this connection through the switch, and it is not broken.
    fn is_open(&self, qpn: Qpn) -> bool;
    /// Returns the number of the host role's open connections other than the first to each node.
    fn extra_connections_up(&self) -> usize;
    /// Returns the number of request ids that the host role has left.
    fn ids_left(&self) -> u32;
    /// Returns the length in bytes of the longest scratch pad that a datagram carries.
    fn traverse_room(&self) -> usize;
    /// Returns the numbers of packets that this host has sent and received.
    fn packets(&self) -> (u64, u64);
    /// Returns the profile of the network that the link imitates.
    fn link_profile(&self) -> LinkProfile;
    /// Sends all queued frames, and waits at most `most` until a frame arrives or a waker calls. Returns
    /// `None` within one process, where nothing arrives by itself.
    fn rest(&mut self, most: Duration) -> Option<Result<(), Error>>;
    /// Returns the wakers that end this wait: one for other threads, one for other processes.
    fn wakers(&self) -> Option<Result<(Waker, WakeAt), Error>>;
}

impl dyn Path {
    /// Sends a request to the control plane and waits for the answer.
    pub(crate) fn call<C: Call>(&mut self, call: C) -> Result<C::Answer, Error> {
        self.asker().call(call)
    }

    /// Sends a request to the control plane once, without waiting for the rack.
    pub(crate) fn call_now<C: Call>(&mut self, call: C) -> Result<C::Answer, Error> {
        self.asker().call_now(call)
    }
}

/// The path of a client of a rack within this process.
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
        // Calls within one process do not block.
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
        Ok(()) // within one process, ports are the addresses
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

/// The path of a client of a rack in other processes.
pub(crate) struct OverLink<L: Link> {
    driver: Driver<Host, L>,
    asker: Asker,
    control_rpc: ControlRpc,
    out: VecDeque<Out>,
}

/// The longest sleep between two checks of the timers.
const TURN_MAX: Duration = Duration::from_millis(20);
/// The longest sleep while a request to the control plane is pending. An operation may wait for a connection,
/// which is set up within one or two milliseconds.
const ANSWER_TURN_MAX: Duration = Duration::from_millis(1);

impl<L: Link> OverLink<L> {
    /// Creates a path that calls the control plane by `api`, and by `aside` for requests that no caller waits
    /// for.
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
        // Frames that were queued since the last turn must leave before this one waits.
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
                // The answer does not end a sleep, so the client looks for it after each turn.
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
