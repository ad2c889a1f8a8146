//! The thread of one domain at a DPU: a client of the rack, and the rings of the domain's processes.

use super::carrier::Carrier;
use super::complete::{Completed, Stage};
use super::dpu_client::{DpuClient, RegionAt};
use super::mailbox::Reply;
use super::messages::Carried;
use super::serve::DpuContext;
use super::slow::Slow;
use farmem_client::api::{ApiError, ErrorCode, Overview};
use farmem_client::host_parts::api_client;
use farmem_client::serve::pin_to_cpu;
use farmem_client::{Client, ClientOptions, Error, Rack};
use farmem_dpu::Asker;
use farmem_link::dpu::{Registered, Submissions};
use farmem_link::{WakeAt, Waker};
use farmem_machine::{Duration, Instant};
use std::io::{self, Write as _};
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::{self, JoinHandle};

/// Maximum sleep: a waiting process checks whether the DPU counts its beat.
const REST: Duration = Duration::from_millis(10);

/// An order of the door to the thread.
pub(super) enum Order {
    /// A process has been admitted.
    Come(Box<DpuClient>),
    /// A process opened a region.
    Region { asker: Asker, region: u16, at: RegionAt, done: Reply },
    /// A process closes a region; `done` gets the result when none of its requests is pending.
    Close { asker: Asker, region: u16, done: Reply },
    /// A process registers memory by a key; `done` gets the result.
    Register { asker: Asker, rkey: u32, memory: Registered, done: Reply },
    /// A process adds a ring for its threads; `done` gets the result.
    Threads { asker: Asker, submissions: Box<Submissions>, done: Reply },
    /// A request for the counts of a process.
    Carried { asker: Asker, done: Reply },
    /// Pages of an object that should be in static memory; `done` gets true if they will be.
    Fix { asker: Asker, object: u32, pages: Range<u64>, done: Reply },
    /// The DPU's host may be fenced: the thread checks this, and ends if so.
    Doubt,
    /// A process has left. The door gets a notice when none of its requests is pending.
    Go(Asker),
}

/// The thread from the door's point of view.
pub(super) struct DomainThread {
    pub(super) domain: u32,
    /// Number and generation of its host.
    pub(super) life: (u16, u16),
    pub(super) wake: WakeAt,
    pub(super) waker: Waker,
    orders: Sender<Order>,
    pub(super) thread: JoinHandle<()>,
    /// Time since which no process uses its domain.
    pub(super) idle_since: Option<Instant>,
}

/// A thread whose client joins the rack. Meanwhile the door serves other processes.
pub(super) struct Joining {
    pub(super) domain: u32,
    orders: Sender<Order>,
    joined: Receiver<Joined>,
    thread: JoinHandle<()>,
}

impl Joining {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no more threads.
    pub(super) fn begin(ground: DpuContext, domain: u32) -> Result<Self, Error> {
        let (orders, told) = channel();
        let (joined, joining) = sync_channel(1);
        let thread = thread::Builder::new()
            .name(format!("dpu {domain}"))
            .spawn(move || run(&ground, domain, &told, &joined))
            .map_err(|source| Error::System { what: "no thread for a domain".into(), source })?;
        Ok(Self { domain, orders, joined: joining, thread })
    }

    /// Returns the joined thread or its error, or `self` while the client is still joining.
    pub(super) fn done(self) -> Result<Result<DomainThread, Error>, Self> {
        let gone = || Error::Unreachable { what: "the rack, for a DPU's client".into() };
        let joined = match self.joined.try_recv() {
            Ok(joined) => joined,
            Err(TryRecvError::Empty) => return Err(self),
            Err(TryRecvError::Disconnected) => Err(gone()),
        };
        let Self { domain, orders, thread, .. } = self;
        Ok(joined.map(|(life, waker, wake)| DomainThread {
            domain,
            life,
            wake,
            waker,
            orders,
            thread,
            idle_since: None,
        }))
    }
}

impl DomainThread {
    /// Sends an order. Returns false if the thread has ended.
    pub(super) fn tell(&self, order: Order) -> bool {
        let told = self.orders.send(order).is_ok();
        self.waker.wake();
        told
    }

    /// Tells the thread to end, without waiting.
    pub(super) fn let_go(self) -> JoinHandle<()> {
        let Self { orders, waker, thread, .. } = self;
        drop(orders);
        waker.wake();
        thread
    }

    /// Waits until the thread has ended, which happens when no more orders can come.
    ///
    /// # Errors
    /// The thread's panic.
    pub(super) fn end(self) -> thread::Result<()> {
        self.let_go().join()
    }
}

/// A client that has joined: number and generation of its host, and its wakers.
pub(super) type Member = ((u16, u16), Waker, WakeAt);
type Joined = Result<Member, Error>;

fn run(ground: &DpuContext, domain: u32, orders: &Receiver<Order>, joined: &SyncSender<Joined>) {
    let mut client = match join(ground, domain) {
        Ok((client, told)) => {
            if joined.send(Ok(told)).is_err() {
                return;
            }
            client
        }
        // The door tells the process.
        Err(error) => return drop(joined.send(Err(error))),
    };
    if let Err(error) = serve(ground, &mut client, orders) {
        // stderr may be closed.
        drop(writeln!(io::stderr(), "farmem: the DPU has stopped serving domain {domain}: {error}"));
    }
}

/// Creates a client of the rack in a domain, for the calling thread.
///
/// # Errors
/// The reason why the client cannot join.
pub(super) fn join(ground: &DpuContext, domain: u32) -> Result<(Client, Member), Error> {
    let known = api_client(&ground.config)?.call_now(Overview {})?.domains;
    let Some((_, name)) = known.into_iter().find(|(number, _)| *number == domain) else {
        let message = format!("the rack has no domain {domain}");
        let remedy = "use the number that `create_domain` returned".into();
        return Err(Error::Refused(ApiError { code: ErrorCode::NotFound, message, remedy }));
    };
    let options = ClientOptions { connections: ground.section.connections, ..ClientOptions::default() };
    let client = Rack::running(ground.config.clone()).client_with(&name, options)?;
    if let Some(cpu) = ground.section.cpu {
        let cannot = |source| Error::System { what: format!("cannot run on cpu = {cpu} of [dpu]"), source };
        pin_to_cpu(cpu).map_err(cannot)?;
    }
    let (waker, wake) = client.wakers()?;
    let life = client.life();
    Ok((client, (life, waker, wake)))
}

/// Serves the domain's processes until the DPU stops or its host has been fenced.
fn serve(ground: &DpuContext, client: &mut Client, orders: &Receiver<Order>) -> Result<(), Error> {
    let (waker, _) = client.wakers()?;
    // One thread receives. With an emulated link there is no stage, because each answer waits for its time.
    let more = ground.section.threads - 1;
    let wake = {
        let waker = waker.clone();
        move || waker.wake()
    };
    let begin = || Stage::begin(more, ground.section.slowdown, wake);
    let stage = (more > 0 && ground.intra.is_none()).then(begin).transpose();
    let stage =
        stage.map_err(|source| Error::System { what: "cannot start threads for a domain".into(), source })?;
    let carrier = Carrier::new(client, ground.memory.clone(), Some(waker));
    let mut lane = Serving::new(carrier, stage, ground.section.batch);
    let mut slow = Slow::new(ground.section.slowdown);
    while !ground.stop.is_set() {
        if !lane.begin_turn(orders) {
            break;
        }
        let is_doubtful = std::mem::take(&mut lane.is_doubtful);
        if lane.is_fenced || is_doubtful && !lane.is_member() {
            let what =
                "the rack: this DPU's host was fenced, and its processes continue without the DPU".into();
            return Err(Error::Unreachable { what });
        }
        lane.turn();
        lane.see_off(ground);
        slow.down();
        // Here requests go to memory nodes, and their answers arrive. System timers are coarser than the delays of
        // the emulated link, so the thread does not sleep while a record is on it.
        let holds = lane.dpu_clients.iter().any(DpuClient::holds);
        let may_sleep = !holds
            && !lane.is_doubtful
            && !lane.is_fenced
            && lane.dpu_clients.iter().all(DpuClient::may_sleep)
            && lane.sleeps_without_stage();
        lane.carrier.client.rest(if may_sleep { REST } else { Duration::ZERO })?;
        if holds {
            thread::yield_now();
        }
        lane.dpu_clients.iter().for_each(DpuClient::stays_awake);
    }
    Ok(())
}

/// State of a domain's thread.
pub(super) struct Serving<'a> {
    pub(super) carrier: Carrier<'a>,
    /// The completion threads, if the DPU has more than one thread.
    stage: Option<Stage>,
    pub(super) dpu_clients: Vec<DpuClient>,
    /// Processes that left and have pending requests.
    leaving: Vec<DpuClient>,
    batch: u32,
    /// True after an event that may mean that the host was fenced.
    pub(super) is_doubtful: bool,
    /// True after the control plane has confirmed the fence. The thread does not ask again, because the control plane
    /// may not answer the next time.
    is_fenced: bool,
}

impl<'a> Serving<'a> {
    pub(super) const fn new(carrier: Carrier<'a>, stage: Option<Stage>, batch: u32) -> Self {
        Self {
            carrier,
            stage,
            dpu_clients: Vec::new(),
            leaving: Vec::new(),
            batch,
            is_doubtful: false,
            is_fenced: false,
        }
    }

    /// Takes completed requests and orders. Returns false if the door is gone.
    pub(super) fn begin_turn(&mut self, orders: &Receiver<Order>) -> bool {
        // First: a completed request must not count as pending for a new request or for a process that leaves.
        self.take_completed();
        self.take_orders(orders)
    }

    /// Executes all waiting orders. Returns false if the door is gone.
    fn take_orders(&mut self, orders: &Receiver<Order>) -> bool {
        loop {
            match orders.try_recv() {
                Ok(Order::Come(dpu_client)) => self.dpu_clients.push(*dpu_client),
                Ok(Order::Region { asker, region, at, done }) => {
                    let known =
                        self.dpu_client(asker).map(|dpu_client| dpu_client.regions.insert(region, at));
                    done.say(known.is_some());
                }
                Ok(Order::Close { asker, region, done }) => match self.dpu_client(asker) {
                    Some(dpu_client) => dpu_client.close(region, done),
                    None => done.say(false),
                },
                Ok(Order::Register { asker, rkey, memory, done }) => {
                    let known = self.dpu_client(asker);
                    done.say(known.is_some_and(|dpu_client| dpu_client.register(rkey, memory)));
                }
                Ok(Order::Threads { asker, submissions, done }) => {
                    let known = self.dpu_client(asker);
                    done.say(known.is_some_and(|dpu_client| dpu_client.hear_threads(*submissions)));
                }
                Ok(Order::Carried { asker, done }) => {
                    done.say_carried(
                        self.dpu_client(asker).map_or(Carried::NOTHING, |dpu_client| dpu_client.carried()),
                    );
                }
                Ok(Order::Fix { asker, object, pages, done }) => {
                    done.say(self.carrier.fix(asker, object, pages));
                }
                Ok(Order::Doubt) => self.is_doubtful = true,
                Ok(Order::Go(asker)) => {
                    let at = self.dpu_clients.iter().position(|dpu_client| dpu_client.asker() == asker);
                    let dpu_client = at.map(|at| self.dpu_clients.swap_remove(at));
                    // The process left without waiting for its requests.
                    self.is_doubtful |= dpu_client.as_ref().is_some_and(|dpu_client| !dpu_client.is_idle());
                    self.leaving.extend(dpu_client);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn dpu_client(&mut self, asker: Asker) -> Option<&mut DpuClient> {
        self.dpu_clients.iter_mut().find(|dpu_client| dpu_client.asker() == asker)
    }

    /// Takes requests of processes, and answers those that have ended.
    pub(super) fn turn(&mut self) {
        for dpu_client in &mut self.dpu_clients {
            dpu_client.take_requests(&mut self.carrier, self.batch);
        }
        self.carrier.look_into_inbox();
        while let Some(completed) = self.carrier.client.poll_ended() {
            // This client has no other requests.
            drop(self.carrier.took(completed));
        }
        while let Some(ended) = self.carrier.next_ended() {
            // Far memory did not report the failure. If the host was fenced, no process gets an answer: each finds
            // out and reads from the nodes.
            if ended.has_failed() && !self.is_member() {
                self.is_fenced = true;
                return;
            }
            let Self { dpu_clients, leaving, carrier, stage, .. } = self;
            let mut all = dpu_clients.iter_mut().chain(leaving);
            match all.find(|dpu_client| dpu_client.waits_for(ended.ticket)) {
                Some(dpu_client) => dpu_client.answer(carrier, ended, stage.as_mut()),
                None => carrier.finish(ended, None, |_| {}),
            }
        }
        self.dpu_clients.iter().for_each(DpuClient::publish);
    }

    /// Takes the requests that the stage has completed. Returns true if there was one.
    fn take_completed(&mut self) -> bool {
        let Self { dpu_clients, leaving, carrier, stage, .. } = self;
        let mut took = false;
        while let Some(Completed { asker, bytes, buf }) = stage.as_ref().and_then(Stage::take) {
            took = true;
            carrier.client.recycle(buf);
            let dpu_client =
                dpu_clients.iter_mut().chain(&mut *leaving).find(|dpu_client| dpu_client.asker() == asker);
            dpu_client.expect("it is here until all of it is completed").completed(bytes);
        }
        took
    }

    /// Returns true if the thread may sleep; the stage wakes it if a process waits for a completion.
    fn sleeps_without_stage(&mut self) -> bool {
        let Some(stage) = &self.stage else { return true };
        let awaited = !self.leaving.is_empty() || self.dpu_clients.iter().any(DpuClient::awaits_stage);
        stage.await_it(awaited);
        // Requests that were completed before the stage knew.
        !awaited || !self.take_completed()
    }

    /// Returns false if the host was fenced. If the control plane does not answer, the host counts as a member.
    fn is_member(&mut self) -> bool {
        self.carrier.client.is_member().unwrap_or(true)
    }

    /// Reports to the door the processes that left and have no pending requests.
    fn see_off(&mut self, ground: &DpuContext) {
        if self.leaving.is_empty() {
            return;
        }
        let mut left = ground.left.lock().unwrap_or_else(PoisonError::into_inner);
        self.leaving.retain(|dpu_client| {
            if dpu_client.is_idle() {
                left.push((dpu_client.asker(), dpu_client.is_settled()));
            }
            !dpu_client.is_idle()
        });
    }
}

impl Drop for Serving<'_> {
    /// Disconnects the remaining processes, and fails pending actions so that other domains' threads do not wait for
    /// them.
    fn drop(&mut self) {
        self.dpu_clients.iter().for_each(DpuClient::send_away);
        // No thread of the stage writes anything from here on.
        self.stage = None;
        self.carrier.leave();
    }
}
