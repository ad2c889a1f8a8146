//! The DPU as a process: the way of its machine's processes to far memory (SODA III).
//!
//! Key call: [`serve`]. The calling thread is the *door*: processes come to its socket, say in which domain they ask, and open regions. For each domain there is a
//! thread with a client of its own, so a host of the rack: it takes requests from the rings of its processes, a batch at a time, and answers. What is cached is shared
//! by all of them ([`Memory`]).
//!
//! ```text
//!   process == rings ==> thread of its domain == RC ==> memory nodes
//!      |                       |
//!      '--- socket --- door ---+--- decisions, slots, static memory: shared
//! ```

use super::carrier::Memory;
use super::config_of;
use super::intra::Intra;
use super::lane::{Joining, Lane, Order};
use super::region::Objects;
use super::visitor::{REGISTERED_MAX, RegionAt, Terms, Visitor};
use super::words::{self, Ask, Said, VERSION, refusal};
use farmem_client::api::{ApiError, ErrorCode, Locate, Overview};
use farmem_client::own::api_client;
use farmem_client::serve::{Serving, Stop};
use farmem_client::{DpuForward, DpuSection, Error, RackConfig};
use farmem_dpu::Asker;
use farmem_io::dpu::{Answers, Listener, PairSize, Registered, Requests, Submissions, Talk, ready};
use farmem_io::{ApiClient, os_seed};
use farmem_machine::Rng;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Processes that a DPU serves at once.
const GUESTS_MAX: usize = 256;
/// Processes that came and did not yet say who they are.
const STRANGERS_MAX: usize = 32;
/// Regions of a process.
const REGIONS_MAX: usize = 1024;
/// As long as a client joins the rack.
const JOINING: Duration = Duration::from_millis(2);
/// The longest the door waits before it looks whether it is to stop, or to send a process away.
const DOOR: Duration = Duration::from_millis(50);

/// What door and threads share.
#[derive(Clone)]
pub(super) struct Ground {
    pub(super) config: RackConfig,
    pub(super) section: DpuSection,
    /// What its processes show to be of its rack.
    pub(super) mark: String,
    pub(super) memory: Arc<Memory>,
    /// Where the link to processes is not as it is.
    pub(super) intra: Option<Arc<Intra>>,
    pub(super) stop: Stop,
    /// Processes that went, and of which nothing is under way any more.
    pub(super) left: Arc<Mutex<Vec<Asker>>>,
}

/// A process, as the door knows it.
struct Guest {
    talk: Talk,
    domain: u32,
    /// Its regions: the number of the object that each is.
    regions: BTreeMap<u16, u32>,
    gone: Arc<AtomicBool>,
}

/// A process that is to be let in when the client of its domain has joined.
struct Caller {
    talk: Talk,
    ends: (Requests, Answers),
}

/// Serves as the DPU of this machine, for the windows of its processes.
///
/// # Errors
/// [`Error`] when the rack has no `[dpu]`, another DPU has its socket, there is no memory for what it is to cache, or the rack does not answer.
pub fn serve<'a>(config: &'a RackConfig, serving: impl Into<Serving<'a>>) -> Result<(), Error> {
    let mut serving = serving.into();
    let section = config.dpu.clone().ok_or_else(|| Error::Config {
        file: config.file.clone(),
        message: "the rack has no [dpu]: add that line before [hosts], and start the rack again".into(),
    })?;
    let settings = config_of(&section);
    crate::window::check_dpu(settings)?;
    let seed = os_seed().map_err(|source| Error::System { what: "no random numbers".into(), source })?;
    let mut api = api_client(config)?;
    // Whoever cannot reach the rack learns it here, and not when the first process comes.
    drop(api.call(Overview {})?);
    let ground = Ground {
        config: config.clone(),
        mark: section.mark()?,
        memory: Memory::new(settings, Rng::from_seed(seed)),
        intra: Intra::new(section.link).map(Arc::new),
        stop: serving.stop().clone(),
        left: Arc::default(),
        section,
    };
    let listener = Listener::bind(&ground.section.socket)?;
    let mut door = Door {
        ground,
        api,
        lanes: Vec::new(),
        joining: Vec::new(),
        strangers: Vec::new(),
        guests: BTreeMap::new(),
        leaving: Vec::new(),
        objects: Objects::default(),
        next: 0,
    };
    serving.begun();
    door.run(&listener)
}

/// Where processes come in.
struct Door {
    ground: Ground,
    api: ApiClient,
    lanes: Vec<Lane>,
    joining: Vec<(Joining, Vec<Caller>)>,
    strangers: Vec<Talk>,
    guests: BTreeMap<u32, Guest>,
    /// Processes that went, and of which something is under way: until then what they had open is open.
    leaving: Vec<(Asker, u32)>,
    objects: Objects,
    next: u32,
}

impl Door {
    fn run(&mut self, listener: &Listener) -> Result<(), Error> {
        let lost = |source| Error::System { what: "the DPU's socket failed".into(), source };
        while !self.ground.stop.is_set() {
            let talks = self.strangers.iter().chain(self.guests.values().map(|guest| &guest.talk));
            let all: Vec<_> =
                std::iter::once(listener.as_fd()).chain(talks.map(|talk| talk.as_fd())).collect();
            let most = if self.joining.is_empty() { DOOR } else { JOINING };
            let ready = ready(&all, most).map_err(lost)?;
            let (strangers, guests) = ready[1..].split_at(self.strangers.len());
            let speaking: Vec<u32> = self
                .guests
                .keys()
                .zip(guests)
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
            // Those that came first and said nothing make room: whoever comes says so at once.
            let many = self.strangers.len().saturating_sub(STRANGERS_MAX);
            self.strangers.drain(..many);
        }
        for Lane { thread, waker, .. } in self.lanes.drain(..) {
            waker.wake();
            // One that panicked has said so.
            drop(thread.join());
        }
        Ok(())
    }

    /// Processes are sent away that wrote nonsense; what those had open that left is closed.
    fn see_off(&mut self) {
        let gone: Vec<u32> = self
            .guests
            .iter()
            .filter(|(_, guest)| guest.gone.load(Ordering::Acquire))
            .map(|(&n, _)| n)
            .collect();
        gone.into_iter().for_each(|number| self.leave(number));
        self.bury();
        let left = std::mem::take(&mut *self.ground.left.lock().unwrap_or_else(PoisonError::into_inner));
        left.into_iter().for_each(|asker| self.close(asker));
    }

    /// The thread of a domain whose host was fenced has ended, and no node takes anything of it any more: nothing of it is under way.
    fn bury(&mut self) {
        let ended = |lane: &Lane| lane.thread.is_finished();
        while let Some(at) = self.lanes.iter().position(ended) {
            let domain = self.lanes.swap_remove(at).domain;
            let here = self
                .guests
                .iter()
                .filter(|(_, guest)| guest.domain == domain)
                .map(|(&number, _)| Asker(number));
            let left = self.leaving.iter().filter(|(_, of)| *of == domain).map(|&(asker, _)| asker);
            let all: Vec<Asker> = here.chain(left).collect();
            self.guests.retain(|_, guest| guest.domain != domain);
            all.into_iter().for_each(|asker| self.close(asker));
        }
    }

    fn close(&mut self, asker: Asker) {
        self.objects.close(&self.ground.memory, asker);
        self.leaving.retain(|(leaving, _)| *leaving != asker);
    }

    /// A process goes.
    fn leave(&mut self, number: u32) {
        let Some(guest) = self.guests.remove(&number) else { return };
        let asker = Asker(number);
        let lane = self.lanes.iter().find(|lane| lane.domain == guest.domain);
        self.leaving.push((asker, guest.domain));
        // A thread that has ended is buried, and all that was its with it.
        let _told = lane.is_some_and(|lane| lane.tell(Order::Go(asker)));
    }

    /// A process says who it is.
    fn greet(&mut self, talk: Talk) {
        let (said, file) = match words::hear(&talk) {
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
            Ask::Hello { version, rack, domain, size } => {
                self.check((&version, &rack), size, file).map(|ends| (domain, ends))
            }
            other => Err(refusal(ErrorCode::BadRequest, format!("{other:?} before hello"), SAME)),
        };
        match checked {
            Ok((domain, ends)) => self.admit(domain, Caller { talk, ends }),
            Err(refused) => drop(say(&talk, &refused)),
        }
    }

    /// A process comes in, at once or when the client of its domain has joined.
    fn admit(&mut self, domain: u32, caller: Caller) {
        self.bury();
        if let Some(at) = self.lanes.iter().position(|lane| lane.domain == domain) {
            return self.let_in(at, caller);
        }
        if !say(&caller.talk, &Said::Soon {}) {
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
    fn let_in(&mut self, lane: usize, Caller { talk, ends }: Caller) {
        let number = self.next;
        self.next += 1; // `check` says when there are no more
        let lease_ms = self.ground.config.control.lease.as_nanos() / 1_000_000;
        let page_len = u32::try_from(self.ground.memory.page_len()).expect("the description was checked");
        let gone: Arc<AtomicBool> = Arc::default();
        let visitor = Visitor::new(Asker(number), ends, Arc::clone(&gone), self.terms());
        let lane = &self.lanes[lane];
        lane.tell(Order::Come(Box::new(visitor)));
        let ((host, generation), domain) = (lane.life, lane.domain);
        let welcome = Said::Welcome { host, generation, page_len, lease_ms, wake: lane.wake.clone() };
        let is_here = say(&talk, &welcome);
        self.guests.insert(number, Guest { talk, domain, regions: BTreeMap::new(), gone });
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
    ) -> Result<(Requests, Answers), Said> {
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
        if self.guests.len() + self.leaving.len() + coming >= GUESTS_MAX {
            let message = format!("{GUESTS_MAX} processes are at this DPU");
            return Err(refusal(ErrorCode::TableFull, message, "wait until one ends"));
        }
        let file = file.ok_or_else(|| refusal(ErrorCode::BadRequest, "hello comes without memory", SAME))?;
        // Those that wait to come in have a number each, later.
        if self.next >= u32::MAX - u32::try_from(GUESTS_MAX).expect("a few") {
            let message = "this DPU has served 2^32 processes";
            return Err(refusal(ErrorCode::TableFull, message, "start it again"));
        }
        Requests::of(&file, size).map_err(|error| refusal(ErrorCode::BadRequest, error.to_string(), SAME))
    }

    /// How processes are served.
    fn terms(&self) -> Terms {
        let blocking = self.ground.section.forward == DpuForward::Blocking;
        Terms { blocking, intra: self.ground.intra.clone() }
    }

    /// The thread of a guest's domain.
    fn lane(&self, domain: u32) -> Result<&Lane, Said> {
        self.lanes.iter().find(|lane| lane.domain == domain).ok_or_else(busy)
    }

    /// A guest says something, or goes.
    fn hear(&mut self, number: u32) {
        let Some(guest) = self.guests.get(&number) else { return };
        let said = match words::hear::<Ask>(&guest.talk) {
            Ok(Some((Ask::Register { rkey }, file))) => {
                self.register(number, rkey, file).unwrap_or_else(|refused| refused)
            }
            Ok(Some((Ask::Threads { bytes }, file))) => {
                self.hear_threads(number, bytes, file).unwrap_or_else(|refused| refused)
            }
            Ok(Some((ask, _))) => self.answer(number, ask).unwrap_or_else(|refused| refused),
            Ok(None) => return self.leave(number),
            Err(error) => refusal(ErrorCode::BadRequest, format!("no message of a process: {error}"), SAME),
        };
        if self.guests.get(&number).is_some_and(|guest| !say(&guest.talk, &said)) {
            self.leave(number);
        }
    }

    fn answer(&mut self, number: u32, ask: Ask) -> Result<Said, Said> {
        match ask {
            Ask::Hello { .. } => Err(refusal(ErrorCode::BadRequest, "hello was said", SAME)),
            // It comes with its file.
            Ask::Register { rkey } => self.register(number, rkey, None),
            Ask::Threads { bytes } => self.hear_threads(number, bytes, None),
            Ask::Open { region, base, write } => self.open(number, region, base, write),
            Ask::Fix { region, offset, len } => self.fix(number, region, offset, len),
            Ask::Policy { region, policy } => {
                let object = self.object(number, region)?;
                self.ground.memory.set_policy(object, policy.policy());
                Ok(Said::Done {})
            }
            Ask::Stats {} => Ok(Said::Stats(self.ground.memory.stats().into())),
            Ask::Copies {} => {
                let domain = self.guest(number)?.domain;
                let copied = self.lane(domain)?.ask(|done| Order::Copies { asker: Asker(number), done });
                copied.map(|(requests, copies)| Said::Copies { requests, copies }).ok_or_else(busy)
            }
        }
    }

    fn guest(&mut self, number: u32) -> Result<&mut Guest, Said> {
        self.guests.get_mut(&number).ok_or_else(|| refusal(ErrorCode::NotFound, "the process is gone", SAME))
    }

    fn object(&mut self, number: u32, region: u16) -> Result<u32, Said> {
        let known = self.guest(number)?.regions.get(&region).copied();
        known.ok_or_else(|| {
            refusal(ErrorCode::NotFound, format!("region {region} is not open"), "open it first")
        })
    }

    fn open(&mut self, number: u32, region: u16, base: u64, write: bool) -> Result<Said, Said> {
        let guest = self.guest(number)?;
        let domain = guest.domain;
        if guest.regions.contains_key(&region) || guest.regions.len() >= REGIONS_MAX {
            let message = format!("region {region} is open, or {REGIONS_MAX} are");
            return Err(refusal(ErrorCode::Conflict, message, "close it, or take another number"));
        }
        let vma = self.api.call(Locate { addr: base }).map_err(|error| told(error.into()))?.vma;
        if vma.base != base {
            let message = format!("{base:#x} is no first byte of an allocation");
            return Err(refusal(ErrorCode::BadRequest, message, "open the whole allocation"));
        }
        let object = self.objects.open(&self.ground.memory, &vma, Asker(number), write, |asker| {
            self.leaving.iter().any(|(leaving, _)| *leaving == asker)
        })?;
        // What was granted may be taken back any time, and the DPU is not told: there each page is asked of its node.
        let at = RegionAt { object, bytes: vma.size, granted: vma.domain == domain };
        self.guest(number)?.regions.insert(region, object);
        self.tell_region(number, region, at)?;
        Ok(Said::Done {})
    }

    /// Tells the thread of the domain, and waits until it knows.
    fn tell_region(&mut self, number: u32, region: u16, at: RegionAt) -> Result<(), Said> {
        let domain = self.guest(number)?.domain;
        self.lane(domain)?
            .ask(|done| Order::Region { asker: Asker(number), region, at, done })
            .ok_or_else(busy)
    }

    /// A process registers memory, which only its thread reads and writes.
    fn register(&mut self, number: u32, rkey: u32, file: Option<OwnedFd>) -> Result<Said, Said> {
        let wrong = |message: String| refusal(ErrorCode::BadRequest, message, SAME);
        let file = file.ok_or_else(|| wrong("memory is registered without a file".into()))?;
        let memory = Registered::of(file).map_err(|error| wrong(error.to_string()))?;
        let domain = self.guest(number)?.domain;
        let asker = Asker(number);
        let lane = self.lane(domain)?;
        match lane.ask(|done| Order::Register { asker, rkey, memory, done }).ok_or_else(busy)? {
            true => Ok(Said::Done {}),
            false => Err(refusal(
                ErrorCode::Conflict,
                format!("the key {rkey} is in use, or {REGISTERED_MAX} are"),
                "take another key from 2 on, and register no more memory than that",
            )),
        }
    }

    /// All threads of a process ask through a ring (PROTOCOL 18.23).
    fn hear_threads(&mut self, number: u32, bytes: usize, file: Option<OwnedFd>) -> Result<Said, Said> {
        let wrong = |message: String| refusal(ErrorCode::BadRequest, message, SAME);
        let file = file.ok_or_else(|| wrong("a ring of threads comes without its memory".into()))?;
        let submissions = Submissions::of(&file, bytes).map_err(|error| wrong(error.to_string()))?;
        let domain = self.guest(number)?.domain;
        let (asker, submissions) = (Asker(number), Box::new(submissions));
        let lane = self.lane(domain)?;
        match lane.ask(|done| Order::Threads { asker, submissions, done }).ok_or_else(busy)? {
            true => Ok(Said::Done {}),
            false => Err(refusal(
                ErrorCode::Conflict,
                "this process has a ring of threads, or the DPU's link to it has a profile",
                "use the ring that there is, and no `link` in [dpu] of rack.toml",
            )),
        }
    }

    fn fix(&mut self, number: u32, region: u16, offset: u64, len: u64) -> Result<Said, Said> {
        let object = self.object(number, region)?;
        let page_len = self.ground.memory.page_len() as u64;
        let end = offset.checked_add(len).filter(|_| len > 0).map(|end| end.div_ceil(page_len));
        let pages = end.map(|end| offset / page_len..end);
        let asker = Asker(number);
        let domain = self.guest(number)?.domain;
        let lane = self.lane(domain)?;
        let fixed = match pages {
            Some(pages) => lane.ask(|done| Order::Fix { asker, object, pages, done }).ok_or_else(busy)?,
            None => false,
        };
        if fixed {
            return Ok(Said::Done {});
        }
        let message = format!("{len} bytes from {offset} on cannot be cached statically");
        let remedy = "they lie in a region that is open for reading, not there yet, and have room: see static of [dpu]";
        Err(refusal(ErrorCode::Conflict, message, remedy))
    }
}

/// What a process of another version does.
const SAME: &str = "use one version of farmem for the DPU and its processes";
const OWN_SOCKET: &str =
    "give the DPU of each rack of this machine a path of its own: `socket = \"PATH\"` in [dpu] of rack.toml";

/// Says something; false when the process does not listen.
fn say(talk: &Talk, said: &Said) -> bool {
    serde_json::to_vec(said).is_ok_and(|said| talk.say_now(&said).is_ok())
}

fn busy() -> Said {
    refusal(ErrorCode::Unavailable, "the DPU's thread of this domain does not answer", "try again")
}

/// What a process is told of what kept the DPU from something.
fn told(error: Error) -> Said {
    match error {
        Error::Refused(error) => Said::Refused(error),
        error => {
            let code = error.code().unwrap_or(ErrorCode::Unavailable);
            Said::Refused(ApiError { code, message: format!("the DPU: {error}"), remedy: error.remedy() })
        }
    }
}
