//! The DPU as a process: the way of its machine's processes to far memory (SODA III).
//!
//! Key call: [`serve`]. The calling thread is the *door*: processes come to its socket, say in which domain they ask, and open regions. The door waits for no other thread: the
//! control plane is asked the *control thread* asks, and what a domain's thread does is answered when it says so. For each domain there is a
//! thread with a client of its own, so a host of the rack: it takes requests from the rings of its processes, a batch at a time, and answers. What is cached is shared
//! by all of them ([`Memory`]).
//!
//! ```text
//!   process == rings ==> thread of its domain == RC ==> memory nodes
//!      |                       |
//!      '--- socket --- door ---+--- decisions, slots, static memory: shared
//!                       '-- control == HTTP ==> control plane
//! ```

mod ahead;
mod leaving;
mod questions;

use super::carrier::Memory;
use super::complete::PASSED_MIN;
use super::config_of;
use super::control_rpc::{self, ControlRequest};
use super::domain_thread::{DomainThread, Joining, Order};
use super::dpu_client::{DpuClient, Terms};
use super::intra::Intra;
use super::journal::{Journal, Life};
use super::mailbox::{Mailbox, Notice, Question};
use super::messages::{self, ClientMessage, DpuMessage, VERSION, refusal};
use super::prefetching::{MakeLookUp, Parts, Prefetching};
use super::region::Objects;
use ahead::Promise;
use farmem_client::api::{ActFor, ApiError, ErrorCode, Overview};
use farmem_client::host_parts::api_client;
use farmem_client::serve::{Serving, Stop};
use farmem_client::{DpuForward, DpuSection, Error, RackConfig};
use farmem_dpu::Asker;
use farmem_link::dpu::{Answers, Bell, DpuSocket, Listener, PairSize, Requests, ready};
use farmem_link::limits::memory_of_machine;
use farmem_link::{Clock, os_seed};
use farmem_machine::{Duration as Span, Instant, Rng};
use leaving::{Fence, Leaving};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Processes that a DPU serves at once.
const SESSIONS_MAX: usize = 256;
/// Processes that came and did not yet say hello.
const STRANGERS_MAX: usize = 32;
/// Regions of a process.
const REGIONS_MAX: usize = 1024;
/// The longest that a process waits for what another thread has to do.
const PATIENCE: Span = Span::from_secs(5);
/// As long as a client joins the rack.
const JOINING: Duration = Duration::from_millis(2);
/// The longest the door waits before it looks whether it is to stop, or to send a process away.
const DOOR: Duration = Duration::from_millis(50);

/// State that door and threads share.
#[derive(Clone)]
pub(super) struct DpuContext {
    pub(super) config: RackConfig,
    pub(super) section: DpuSection,
    /// The mark by which processes show that they belong to its rack.
    pub(super) mark: String,
    pub(super) memory: Arc<Memory>,
    /// Where the link to processes is not as it is.
    pub(super) intra: Option<Arc<Intra>>,
    pub(super) stop: Stop,
    /// Processes that went, and of which nothing is under way any more; whether nothing of them may be carried out later.
    pub(super) left: Arc<Mutex<Vec<(Asker, bool)>>>,
}

/// A process, as the door knows it.
struct Session {
    talk: DpuSocket,
    domain: u32,
    /// The host that it is itself.
    life: Life,
    /// The DPU's host in its domain.
    dpu: Life,
    /// Its regions: the number of the object that each is.
    regions: BTreeMap<u16, u32>,
    /// Bytes of its memory that this DPU may fill.
    fills: u64,
    gone: Arc<AtomicBool>,
    /// Memory that it has handed over to be prefetched for.
    parts: Parts,
    /// Bytes that this DPU may fill to prefetch for it: of those, and of its own memory. None once they are given back.
    ahead: u64,
    /// Bytes that this DPU may fill to mirror packets for it.
    mirror: Promise,
    /// The thread that prefetches.
    prefetching: Option<Prefetching>,
    /// The request that it waits for.
    asked: Option<PendingQuestion>,
    /// Questions that were answered later.
    questions: u64,
}

/// A question that the door did not answer at once.
struct PendingQuestion {
    number: u64,
    since: Instant,
    /// The refusal when the thread of the domain cannot.
    refused: DpuMessage,
    /// The region that is being closed, and its object.
    closes: Option<(u16, u32)>,
    /// Prefetching is to begin.
    begins: bool,
}

/// A process that is to be let in when the client of its domain has joined.
struct Caller {
    talk: DpuSocket,
    life: Life,
    ends: (Requests, Answers),
    fills: u64,
}

/// Serves as the DPU of this machine, for the windows of its processes.
///
/// # Errors
/// [`Error`] when the rack has no `[dpu]`, another DPU has its socket, there is no memory for what it is to cache, or the rack does not answer.
pub fn serve<'a>(config: &'a RackConfig, serving: impl Into<Serving<'a>>) -> Result<(), Error> {
    serve_with(config, serving, |_, _| {
        Err(Error::Missing { what: "structure that this DPU knows: it was started without".into() })
    })
}

/// As [`serve`], and prefetches for programs from structures that `make` knows (PROTOCOL 19.15).
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
    // A DPU that cannot reach the rack fails here, and not when the first process comes.
    drop(api.call(Overview {})?);
    let system = |what: &str| {
        let what = what.to_owned();
        move |source| Error::System { what, source }
    };
    let bell = Arc::new(Bell::new().map_err(system("no bell for the DPU's door"))?);
    let (to, came) = channel();
    let mailbox = Mailbox { to, bell };
    let (fenced_to, fenced) = channel();
    let control_requests = control_rpc::begin(api, mailbox.clone(), fenced_to)
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
    let mut door = Door {
        ground,
        clock: Clock::start(),
        fills_max: memory_of_machine().unwrap_or(u64::MAX),
        make,
        aheads: Vec::new(),
        control_requests,
        mailbox,
        came,
        acting: BTreeMap::new(),
        lanes: Vec::new(),
        joining: Vec::new(),
        strangers: Vec::new(),
        sessions: BTreeMap::new(),
        leaving: Vec::new(),
        ending: Vec::new(),
        fences: BTreeMap::new(),
        fenced,
        objects: Objects::default(),
        journal,
        next: 0,
        has_panicked: false,
    };
    serving.begun();
    door.run(&listener)
}

/// Where processes come in.
struct Door {
    ground: DpuContext,
    clock: Clock,
    /// Bytes that processes may have this DPU fill, all together: this machine's memory.
    fills_max: u64,
    /// Structures that it prefetches from.
    make: MakeLookUp,
    /// Threads that prefetched for programs that went, until they have ended.
    aheads: Vec<JoinHandle<()>>,
    /// To the control thread.
    control_requests: Sender<ControlRequest>,
    mailbox: Mailbox,
    came: Receiver<(Question, Notice)>,
    /// Hosts that write, for which it acts until nothing of that is under way.
    acting: BTreeMap<Asker, ActFor>,
    lanes: Vec<DomainThread>,
    joining: Vec<(Joining, Vec<Caller>)>,
    strangers: Vec<DpuSocket>,
    sessions: BTreeMap<u32, Session>,
    leaving: Vec<Leaving>,
    /// Hosts of this DPU that are to leave the rack before what was written by them is open to others.
    fences: BTreeMap<Life, Fence>,
    /// Hosts that have left the rack.
    fenced: Receiver<Life>,
    /// Threads of domains that no process uses any more, until they have ended.
    ending: Vec<JoinHandle<()>>,
    objects: Objects,
    journal: Journal,
    next: u32,
    /// A lane did, perhaps while it decided.
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
                    // No descriptors: it is ready to be asked again at once.
                    Err(_) => {
                        std::thread::sleep(JOINING);
                        break;
                    }
                }
            }
            // The oldest silent connections make room: a process that comes says hello at once.
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
        // One that panicked has said so, and left nothing to others.
        aheads.into_iter().for_each(|thread| drop(thread.join()));
        // No thread of it touches anything of theirs now.
        self.sessions.keys().copied().collect::<Vec<_>>().into_iter().for_each(|number| self.leave(number));
        self.leaving.iter_mut().for_each(|leaving| leaving.farewell(false));
        if self.has_panicked {
            // The thread has printed its panic. Cached bytes may be anything now: processes go on without this DPU.
            let source = std::io::Error::other("a thread of this DPU panicked");
            return Err(Error::System { what: "it ends, and its processes go on without it".into(), source });
        }
        Ok(())
    }

    /// Processes are sent away that wrote nonsense; what those had open that are gone is closed.
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
        self.hear_of_fences();
        self.close_gone();
        self.aheads.retain(|thread| !thread.is_finished());
        self.rest();
    }

    /// Ends threads of domains that no process has used for a lease; their hosts leave the rack.
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

    /// Joins the threads of domains whose host was fenced. No node accepts their requests any more, so nothing of them is in flight.
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
                // Some of it may be on its way to a node that has not heard that the host was fenced.
                self.settle(asker, false);
            }
        }
    }

    /// Takes a process's hello.
    fn greet(&mut self, talk: DpuSocket) {
        let (said, file) = match messages::hear(&talk) {
            Ok(Some(said)) => said,
            Ok(None) => return,
            Err(error) => {
                let refused =
                    refusal(ErrorCode::BadRequest, format!("no message of a process: {error}"), SAME);
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

    /// A process comes in, at once or when the client of its domain has joined.
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

    /// Lets in those whose domain's client has joined, and tells the others why it has not.
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

    /// Lets a process in, at the thread of its domain.
    fn let_in(&mut self, lane: usize, Caller { talk, life, ends, fills }: Caller) {
        let number = self.next;
        self.next += 1; // `check` says when there are no more
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
        };
        self.sessions.insert(number, session);
        if !is_here {
            self.leave(number);
        }
    }

    /// Whether a process may come in, and the ends of its rings.
    fn check(
        &mut self,
        (version, rack): (&str, &str),
        size: PairSize,
        file: Option<OwnedFd>,
    ) -> Result<(Requests, Answers), DpuMessage> {
        if version != VERSION {
            let message = format!("this DPU is of farmem {VERSION}, the process of {version:?}");
            return Err(refusal(ErrorCode::BadRequest, message, SAME));
        }
        if rack != self.ground.mark {
            let socket = self.ground.section.socket.display();
            let message = format!("the DPU at {socket} serves another rack than this process asks for");
            return Err(refusal(ErrorCode::Conflict, message, OWN_SOCKET));
        }
        let coming = self.joining.iter().map(|(_, callers)| callers.len()).sum::<usize>();
        if self.sessions.len() + self.leaving.len() + coming >= SESSIONS_MAX {
            let message = format!("{SESSIONS_MAX} processes are at this DPU");
            return Err(refusal(ErrorCode::TableFull, message, "wait until one ends"));
        }
        let file = file.ok_or_else(|| refusal(ErrorCode::BadRequest, "hello comes without memory", SAME))?;
        self.may_fill(size.bytes())?;
        // Processes that wait to come in have a number each, later.
        if self.next >= u32::MAX - u32::try_from(SESSIONS_MAX).expect("a few") {
            let message = "this DPU has served 2^32 processes";
            return Err(refusal(ErrorCode::TableFull, message, "start it again"));
        }
        Requests::of(&file, size).map_err(|error| refusal(ErrorCode::BadRequest, error.to_string(), SAME))
    }

    /// Whether processes may have so many bytes more filled by this DPU.
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
            "memory of {more} bytes for this DPU to fill, beside {filled} that are promised to others: this machine has {}",
            self.fills_max
        );
        Err(refusal(ErrorCode::TableFull, message, "give windows less local memory, or wait until one ends"))
    }

    /// How processes are served.
    fn terms(&self) -> Terms {
        let blocking = self.ground.section.forward == DpuForward::Blocking;
        let patience = self.ground.section.lease;
        let intra = self.ground.intra.clone();
        // Over a link with a profile each answer waits for its time.
        let staged = (self.ground.section.threads > 1 && intra.is_none()).then_some(PASSED_MIN);
        Terms { blocking, intra, staged, patience }
    }

    /// The thread of a session's domain.
    fn lane(&self, domain: u32) -> Result<&DomainThread, DpuMessage> {
        self.lanes.iter().find(|lane| lane.domain == domain).ok_or_else(busy)
    }
}

/// Remedy for a process of another version.
const SAME: &str = "use one version of farmem for the DPU and its processes";
const OWN_SOCKET: &str =
    "give the DPU of each rack of this machine a path of its own: `socket = \"PATH\"` in [dpu] of rack.toml";

/// Says something; false when the process does not listen.
fn say(talk: &DpuSocket, said: &DpuMessage) -> bool {
    serde_json::to_vec(said).is_ok_and(|said| talk.say_now(&said).is_ok())
}

fn busy() -> DpuMessage {
    let message =
        "what the DPU needs for that does not answer: the control plane, or its own thread of this domain";
    refusal(ErrorCode::Unavailable, message, "try again")
}

/// The refusal for a process when the DPU met this error.
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
