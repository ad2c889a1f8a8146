//! The DPU as a process: the path of its machine's processes to far memory (SODA III).
//!
//! Key call: [`serve`]. The calling thread is the *door*. Processes connect to its socket, name their domain and open
//! regions. The door waits for no other thread. The *control thread* calls the control plane. A domain's thread
//! reports what it has done, and the door answers then. For each domain there is a thread with a client of its own,
//! which is a host of the rack. The thread takes batches of requests from the rings of its processes, and answers
//! them. All threads share the cache ([`Memory`]).
//!
//! ```text
//!   process == rings ==> thread of its domain == RC ==> memory nodes
//!      |                       |
//!      '--- socket --- door ---+--- decisions, slots, static memory: shared
//!                       '-- control == HTTP ==> control plane
//! ```
//!
//! Circle of files: the door and the threads start each other and send each other messages, through the types of
//! `mailbox`.

mod ahead;
mod leaving;
mod questions;

use super::carrier::Memory;
use super::complete::PASSED_MIN;
use super::config_of;
use super::control_rpc::{self, ControlRequest, Outcome};
use super::domain_thread::{DomainThread, Joining, Order};
use super::dpu_client::{DpuClient, Terms};
use super::intra::Intra;
use super::journal::{Journal, Life};
use super::mailbox::{Mailbox, Notice, Question};
use super::messages::{self, ClientMessage, DpuMessage, VERSION, refusal};
use super::prefetching::{MakeLookUp, Parts, Prefetching};
use super::region::Objects;
use ahead::Promise;
use farmem_client::api::{ApiError, ErrorCode, Overview};
use farmem_client::host_parts::api_client;
use farmem_client::serve::{Serving, Stop};
use farmem_client::{DpuForward, DpuSection, Error, RackConfig};
use farmem_dpu::Asker;
use farmem_link::dpu::{Answers, Bell, DpuSocket, Listener, PairSize, Requests, ready};
use farmem_link::limits::memory_of_machine;
use farmem_link::{Clock, os_seed};
use farmem_machine::{Duration as Span, Instant, Rng};
use leaving::{Acts, Fence, Leaving};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of processes that a DPU serves.
const SESSIONS_MAX: usize = 256;
/// Maximum number of connections without a hello.
const STRANGERS_MAX: usize = 32;
/// Maximum number of regions per process.
const REGIONS_MAX: usize = 1024;
/// Maximum time that a process waits for another thread of the DPU.
const PATIENCE: Span = Span::from_secs(5);
/// Polling interval while a client joins the rack.
const JOINING: Duration = Duration::from_millis(2);
/// Maximum time between two checks of the door for a stop, or for processes to disconnect.
const DOOR: Duration = Duration::from_millis(50);

/// State that the door and the threads share.
#[derive(Clone)]
pub(super) struct DpuContext {
    pub(super) config: RackConfig,
    pub(super) section: DpuSection,
    /// The mark by which processes prove that they belong to this rack.
    pub(super) mark: String,
    pub(super) memory: Arc<Memory>,
    /// The emulated link to processes; `None` for plain shared memory.
    pub(super) intra: Option<Arc<Intra>>,
    pub(super) stop: Stop,
    /// Processes that left and have no pending request; false if far memory may still execute one of their writes.
    pub(super) left: Arc<Mutex<Vec<(Asker, bool)>>>,
}

/// A process from the door's point of view.
struct Session {
    talk: DpuSocket,
    domain: u32,
    /// The host of the process.
    life: Life,
    /// The DPU's host in its domain.
    dpu: Life,
    /// Object numbers by region.
    regions: BTreeMap<u16, u32>,
    /// Maximum number of bytes of its memory that this DPU may allocate by writing.
    fills: u64,
    gone: Arc<AtomicBool>,
    /// Memory that the process has handed over for prefetching.
    parts: Parts,
    /// Maximum number of bytes that this DPU may allocate to prefetch for the process, in those parts and in its own
    /// memory. Zero after prefetching failed.
    ahead: u64,
    /// Bytes promised for mirroring packets for the process.
    mirror: Promise,
    /// The thread that prefetches for the process.
    prefetching: Option<Prefetching>,
    /// The request that the process waits for.
    asked: Option<PendingQuestion>,
    /// Number of requests that were answered later.
    questions: u64,
    /// True if the process has said that it has no write in flight.
    is_finished: bool,
}

/// A request that the door did not answer at once.
struct PendingQuestion {
    number: u64,
    since: Instant,
    /// The refusal if the domain's thread cannot execute the request.
    refused: DpuMessage,
    /// The region that closes, and its object.
    closes: Option<(u16, u32)>,
    /// True for a request to begin prefetching.
    begins: bool,
}

/// A process that may enter when the client of its domain has joined.
struct Caller {
    talk: DpuSocket,
    life: Life,
    ends: (Requests, Answers),
    fills: u64,
}

/// Serves the processes of this machine as their DPU.
///
/// # Errors
/// [`Error`] if the rack has no `[dpu]`, another DPU has the socket, memory is too small for the cache, or the rack
/// does not answer.
pub fn serve<'a>(config: &'a RackConfig, serving: impl Into<Serving<'a>>) -> Result<(), Error> {
    serve_with(config, serving, |_, _| {
        Err(Error::Missing { what: "structure that this DPU knows: the DPU was started without one".into() })
    })
}

/// Serves as [`serve`] does, and prefetches for programs from structures that `make` supports (PROTOCOL 19.15).
///
/// # Errors
/// As [`serve`].
pub fn serve_with<'a>(
    config: &'a RackConfig,
    serving: impl Into<Serving<'a>>,
    make: MakeLookUp,
) -> Result<(), Error> {
    let mut serving = serving.into();
    let section = config.dpu.clone().ok_or_else(|| Error::Config {
        file: config.file.clone(),
        message: "the rack has no [dpu]: add that line before [hosts], and start the rack again".into(),
    })?;
    let settings = config_of(&section);
    crate::check_dpu(settings)?;
    let seed = os_seed().map_err(|source| Error::System { what: "no random numbers".into(), source })?;
    let mut api = api_client(config)?;
    // If the rack is unreachable, the DPU fails here and not at the first process.
    drop(api.call(Overview {})?);
    let system = |what: &str| {
        let what = what.to_owned();
        move |source| Error::System { what, source }
    };
    let bell = Arc::new(Bell::new().map_err(system("no bell for the DPU's door"))?);
    let (to, came) = channel();
    let mailbox = Mailbox { to, bell };
    let (outcomes_to, outcomes) = channel();
    let control_requests = control_rpc::begin(api, mailbox.clone(), outcomes_to)
        .map_err(system("no thread for the DPU's control requests"))?;
    let ground = DpuContext {
        config: config.clone(),
        mark: section.mark()?,
        memory: Memory::new(settings, Rng::from_seed(seed)),
        intra: Intra::new(section.link).map(Arc::new),
        stop: serving.stop().clone(),
        left: Arc::default(),
        section,
    };
    let listener = Listener::bind(&ground.section.socket)?;
    let journal = Journal::open(&ground.section.socket, &ground.mark)?;
    // A control thread that has ended has panicked and printed its message.
    let _gone = control_requests.send(ControlRequest::Prune(journal.former_lives()));
    let mut door = Door {
        ground,
        clock: Clock::start(),
        fills_max: memory_of_machine().unwrap_or(u64::MAX),
        make,
        aheads: Vec::new(),
        control_requests,
        mailbox,
        came,
        acts: Acts::default(),
        lanes: Vec::new(),
        joining: Vec::new(),
        strangers: Vec::new(),
        sessions: BTreeMap::new(),
        leaving: Vec::new(),
        ending: Vec::new(),
        fences: BTreeMap::new(),
        outcomes,
        objects: Objects::default(),
        journal,
        next: 0,
        has_panicked: false,
    };
    serving.begun();
    door.run(&listener)
}

/// The thread that accepts processes.
struct Door {
    ground: DpuContext,
    clock: Clock,
    /// Maximum number of bytes that all processes together may have this DPU allocate: this machine's memory.
    fills_max: u64,
    /// Makes the structures that the DPU prefetches from.
    make: MakeLookUp,
    /// Threads that prefetched for processes that left, until the threads have ended.
    aheads: Vec<JoinHandle<()>>,
    /// Requests to the control thread.
    control_requests: Sender<ControlRequest>,
    mailbox: Mailbox,
    came: Receiver<(Question, Notice)>,
    acts: Acts,
    lanes: Vec<DomainThread>,
    joining: Vec<(Joining, Vec<Caller>)>,
    strangers: Vec<DpuSocket>,
    sessions: BTreeMap<u32, Session>,
    leaving: Vec<Leaving>,
    /// Hosts of this DPU that must leave the rack before other processes may open what they wrote.
    fences: BTreeMap<Life, Fence>,
    /// Results of requests to the control plane that no process waits for.
    outcomes: Receiver<Outcome>,
    /// Threads of unused domains, until the threads have ended.
    ending: Vec<JoinHandle<()>>,
    objects: Objects,
    journal: Journal,
    next: u32,
    /// True if a domain's thread panicked, perhaps with the decisions locked.
    has_panicked: bool,
}

impl Door {
    fn run(&mut self, listener: &Listener) -> Result<(), Error> {
        let lost = |source| Error::System { what: "the DPU's socket failed".into(), source };
        while !self.ground.stop.is_set() && !self.has_panicked {
            let talks = self.strangers.iter().chain(self.sessions.values().map(|session| &session.talk));
            let own = [listener.as_fd(), self.mailbox.bell.as_fd()];
            let all: Vec<_> = own.into_iter().chain(talks.map(|talk| talk.as_fd())).collect();
            let most = if self.joining.is_empty() { DOOR } else { JOINING };
            let ready = ready(&all, most).map_err(lost)?;
            let (strangers, sessions) = ready[own.len()..].split_at(self.strangers.len());
            let speaking: Vec<u32> = self
                .sessions
                .keys()
                .zip(sessions)
                .filter(|(_, ready)| **ready)
                .map(|(&number, _)| number)
                .collect();
            for (talk, &is_ready) in std::mem::take(&mut self.strangers).into_iter().zip(strangers) {
                if is_ready {
                    self.greet(talk);
                } else {
                    self.strangers.push(talk);
                }
            }
            for number in speaking {
                self.hear(number);
            }
            self.welcome_joined();
            self.take_mail();
            self.see_off();
            for _ in 0..STRANGERS_MAX {
                match listener.accept() {
                    Ok(Some(talk)) => self.strangers.push(talk),
                    Ok(None) => break,
                    // No descriptors are left. The listener would be ready again at once.
                    Err(_) => {
                        std::thread::sleep(JOINING);
                        break;
                    }
                }
            }
            // The oldest silent connections are dropped, because a process sends hello at once.
            let many = self.strangers.len().saturating_sub(STRANGERS_MAX);
            self.strangers.drain(..many);
        }
        let last = std::mem::take(&mut self.lanes).into_iter().map(DomainThread::let_go);
        for thread in std::mem::take(&mut self.ending).into_iter().chain(last.collect::<Vec<_>>()) {
            self.has_panicked |= thread.join().is_err();
        }
        let aheads = self.sessions.values_mut().filter_map(|session| session.prefetching.take());
        let aheads: Vec<_> =
            aheads.map(Prefetching::let_go).chain(std::mem::take(&mut self.aheads)).collect();
        // A panicked thread has printed its message and shares no state.
        aheads.into_iter().for_each(|thread| drop(thread.join()));
        // From here on no thread touches memory of the processes.
        self.sessions.keys().copied().collect::<Vec<_>>().into_iter().for_each(|number| self.leave(number));
        self.leaving.iter_mut().for_each(|leaving| leaving.farewell(false));
        if self.has_panicked {
            // The thread has printed its panic. Cached bytes may be wrong, so processes continue without this DPU.
            let source = std::io::Error::other("a thread of this DPU panicked");
            return Err(Error::System {
                what: "the DPU ends, and its processes continue without the DPU".into(),
                source,
            });
        }
        Ok(())
    }

    /// Disconnects processes that wrote invalid data, and closes the regions of processes that left.
    fn see_off(&mut self) {
        let gone: Vec<u32> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.gone.load(Ordering::Acquire))
            .map(|(&n, _)| n)
            .collect();
        gone.into_iter().for_each(|number| self.leave(number));
        self.join_ended_threads();
        let left = std::mem::take(&mut *self.ground.left.lock().unwrap_or_else(PoisonError::into_inner));
        left.into_iter().for_each(|(asker, settled)| self.settle(asker, settled));
        self.hear_outcomes();
        self.close_gone();
        self.aheads.retain(|thread| !thread.is_finished());
        self.rest();
    }

    /// Ends the threads of domains that no process has used for a lease. Their hosts leave the rack.
    fn rest(&mut self) {
        let now = self.clock.now();
        let used: BTreeSet<u32> = self.sessions.values().map(|session| session.domain).collect();
        let left = self.leaving.iter().filter(|leaving| leaving.is_in_flight()).map(|leaving| leaving.domain);
        let used: BTreeSet<u32> = used.into_iter().chain(left).collect();
        let lease = self.ground.section.lease;
        let idle = self.lanes.extract_if(.., |lane| {
            if used.contains(&lane.domain) {
                lane.idle_since = None;
                return false;
            }
            now.since(*lane.idle_since.get_or_insert(now)) > lease
        });
        self.ending.extend(idle.map(DomainThread::let_go));
        for thread in self.ending.extract_if(.., |thread| thread.is_finished()) {
            self.has_panicked |= thread.join().is_err();
        }
    }

    /// Joins the threads of domains whose host was fenced. No node accepts their requests, so none of their requests
    /// is in flight.
    fn join_ended_threads(&mut self) {
        let ended = |lane: &DomainThread| lane.thread.is_finished();
        while let Some(at) = self.lanes.iter().position(ended) {
            let lane = self.lanes.swap_remove(at);
            let domain = lane.domain;
            self.has_panicked |= lane.end().is_err();
            let here = self.sessions.iter().filter(|(_, session)| session.domain == domain);
            for number in here.map(|(&number, _)| number).collect::<Vec<u32>>() {
                self.leave(number);
            }
            let left =
                self.leaving.iter().filter(|leaving| leaving.domain == domain && leaving.is_in_flight());
            for asker in left.map(|leaving| leaving.asker).collect::<Vec<Asker>>() {
                // A write may be on its way to a node that does not know of the fence yet.
                self.settle(asker, false);
            }
        }
    }

    /// Receives the hello of a process.
    fn greet(&mut self, talk: DpuSocket) {
        let (said, file) = match messages::hear(&talk) {
            Ok(Some(said)) => said,
            Ok(None) => return,
            Err(error) => {
                let refused =
                    refusal(ErrorCode::BadRequest, format!("this is no message of a process: {error}"), SAME);
                say(&talk, &refused);
                return;
            }
        };
        let checked = match said {
            ClientMessage::Hello { version, rack, domain, host, generation, size } => {
                let ends = self.check((&version, &rack), size, file);
                ends.map(|ends| (domain, (host, generation), ends, size.bytes()))
            }
            other => Err(refusal(ErrorCode::BadRequest, format!("{other:?} before hello"), SAME)),
        };
        match checked {
            Ok((domain, life, ends, fills)) => self.admit(domain, Caller { talk, life, ends, fills }),
            Err(refused) => drop(say(&talk, &refused)),
        }
    }

    /// Admits a process, at once or when the client of its domain has joined.
    fn admit(&mut self, domain: u32, caller: Caller) {
        self.join_ended_threads();
        if let Some(at) = self.lanes.iter().position(|lane| lane.domain == domain) {
            return self.let_in(at, caller);
        }
        if !say(&caller.talk, &DpuMessage::Soon {}) {
            return;
        }
        if let Some((_, callers)) = self.joining.iter_mut().find(|(joining, _)| joining.domain == domain) {
            return callers.push(caller);
        }
        match Joining::begin(self.ground.clone(), domain) {
            Ok(joining) => self.joining.push((joining, vec![caller])),
            Err(error) => drop(say(&caller.talk, &told(error))),
        }
    }

    /// Admits the processes whose client has joined. If the client could not join, the processes get its error.
    fn welcome_joined(&mut self) {
        for (joining, callers) in std::mem::take(&mut self.joining) {
            match joining.done() {
                Err(joining) => self.joining.push((joining, callers)),
                Ok(Ok(lane)) => {
                    self.lanes.push(lane);
                    let at = self.lanes.len() - 1;
                    callers.into_iter().for_each(|caller| self.let_in(at, caller));
                }
                Ok(Err(error)) => {
                    let refused = told(error);
                    for caller in callers {
                        let _gone = say(&caller.talk, &refused);
                    }
                }
            }
        }
    }

    /// Connects a process to the thread of its domain.
    fn let_in(&mut self, lane: usize, Caller { talk, life, ends, fills }: Caller) {
        let number = self.next;
        self.next += 1; // `check` refuses before an overflow
        let lease_ms = self.ground.config.control.lease.as_nanos() / 1_000_000;
        let page_len = u32::try_from(self.ground.memory.page_len()).expect("the description was checked");
        let gone: Arc<AtomicBool> = Arc::default();
        let dpu_client = DpuClient::new(Asker(number), ends, Arc::clone(&gone), self.terms());
        let lane = &self.lanes[lane];
        lane.tell(Order::Come(Box::new(dpu_client)));
        let ((host, generation), domain) = (lane.life, lane.domain);
        let welcome = DpuMessage::Welcome { host, generation, page_len, lease_ms, wake: lane.wake.clone() };
        let is_here = say(&talk, &welcome);
        let session = Session {
            talk,
            domain,
            life,
            dpu: (host, generation),
            regions: BTreeMap::new(),
            fills,
            gone,
            parts: Parts::default(),
            ahead: 0,
            mirror: Promise::default(),
            prefetching: None,
            asked: None,
            questions: 0,
            is_finished: false,
        };
        self.sessions.insert(number, session);
        if !is_here {
            self.leave(number);
        }
    }

    /// Checks that a process may enter. Returns the ends of its rings.
    fn check(
        &mut self,
        (version, rack): (&str, &str),
        size: PairSize,
        file: Option<OwnedFd>,
    ) -> Result<(Requests, Answers), DpuMessage> {
        if version != VERSION {
            let message =
                format!("this DPU has version {VERSION} of farmem, and the process has version {version:?}");
            return Err(refusal(ErrorCode::BadRequest, message, SAME));
        }
        if rack != self.ground.mark {
            let socket = self.ground.section.socket.display();
            let message = format!("the DPU at {socket} serves another rack than this process asks for");
            return Err(refusal(ErrorCode::Conflict, message, OWN_SOCKET));
        }
        let coming = self.joining.iter().map(|(_, callers)| callers.len()).sum::<usize>();
        if self.sessions.len() + self.leaving.len() + coming >= SESSIONS_MAX {
            let message = format!("this DPU already serves {SESSIONS_MAX} processes");
            return Err(refusal(ErrorCode::TableFull, message, "wait until a process ends"));
        }
        let file =
            file.ok_or_else(|| refusal(ErrorCode::BadRequest, "`hello` was sent without memory", SAME))?;
        self.may_fill(size.bytes())?;
        // Each process that waits gets a number later.
        if self.next >= u32::MAX - u32::try_from(SESSIONS_MAX).expect("a few") {
            let message = "this DPU has served 2^32 processes";
            return Err(refusal(ErrorCode::TableFull, message, "start the DPU again"));
        }
        Requests::of(&file, size).map_err(|error| refusal(ErrorCode::BadRequest, error.to_string(), SAME))
    }

    /// Checks that processes may have this DPU allocate `more` bytes.
    fn may_fill(&self, more: u64) -> Result<(), DpuMessage> {
        let coming = self.joining.iter().flat_map(|(_, callers)| callers.iter().map(|caller| caller.fills));
        let of = |session: &Session| {
            session.fills.saturating_add(session.ahead).saturating_add(session.mirror.bytes())
        };
        let filled: u64 = self.sessions.values().map(of).chain(coming).sum();
        if filled.checked_add(more).is_some_and(|all| all <= self.fills_max) {
            return Ok(());
        }
        let message = format!(
            "this DPU would need {more} bytes for this process and {filled} for others: this machine has {}",
            self.fills_max
        );
        Err(refusal(
            ErrorCode::TableFull,
            message,
            "give windows less local memory, or wait until a process ends",
        ))
    }

    /// Returns the terms on which processes are served.
    fn terms(&self) -> Terms {
        let blocking = self.ground.section.forward == DpuForward::Blocking;
        let patience = self.ground.section.lease;
        let intra = self.ground.intra.clone();
        // Over a link with a profile, each answer waits for its time.
        let staged = (self.ground.section.threads > 1 && intra.is_none()).then_some(PASSED_MIN);
        Terms { blocking, intra, staged, patience }
    }

    /// Returns the thread of a domain.
    fn lane(&self, domain: u32) -> Result<&DomainThread, DpuMessage> {
        self.lanes.iter().find(|lane| lane.domain == domain).ok_or_else(busy)
    }
}

/// Remedy for a process of another version.
const SAME: &str = "use one version of farmem for the DPU and its processes";
const OWN_SOCKET: &str =
    "give the DPU of each rack on this machine its own path: `socket = \"PATH\"` in [dpu] of rack.toml";

/// Sends a message without waiting. Returns false if the process does not receive it.
fn say(talk: &DpuSocket, said: &DpuMessage) -> bool {
    serde_json::to_vec(said).is_ok_and(|said| talk.say_now(&said).is_ok())
}

fn busy() -> DpuMessage {
    let message = "the control plane, or the DPU's thread for this domain, does not answer";
    refusal(ErrorCode::Unavailable, message, "try again")
}

/// Returns the refusal for a process when the DPU met this error.
pub(super) fn told(error: Error) -> DpuMessage {
    match error {
        Error::Refused(error) => DpuMessage::Refused(error),
        error => {
            let code = error.code().unwrap_or(ErrorCode::Unavailable);
            DpuMessage::Refused(ApiError {
                code,
                message: format!("the DPU: {error}"),
                remedy: error.remedy(),
            })
        }
    }
}
