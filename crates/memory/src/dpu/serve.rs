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
use super::lane::{Lane, Order};
use super::region::Objects;
use super::visitor::{RegionAt, Visitor};
use super::words::{self, Ask, Said, VERSION, refusal};
use farmem_client::api::{ApiError, ErrorCode, Locate, Overview};
use farmem_client::own::api_client;
use farmem_client::serve::{Serving, Stop};
use farmem_client::{DpuSection, Error, RackConfig};
use farmem_dpu::Asker;
use farmem_io::dpu::{Listener, PairSize, Requests, Talk, ready};
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
/// The longest the door waits before it looks whether it is to stop, or to send a process away.
const DOOR: Duration = Duration::from_millis(50);

/// What door and threads share.
#[derive(Clone)]
pub(super) struct Ground {
    pub(super) config: RackConfig,
    pub(super) section: DpuSection,
    pub(super) memory: Arc<Memory>,
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
        memory: Memory::new(settings, Rng::from_seed(seed)),
        stop: serving.stop().clone(),
        left: Arc::default(),
        section,
    };
    let listener = Listener::bind(&ground.section.socket)?;
    let mut door = Door {
        ground,
        api,
        lanes: Vec::new(),
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
            let ready = ready(&all, DOOR).map_err(lost)?;
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
            self.see_off();
            while self.strangers.len() < STRANGERS_MAX
                && let Some(talk) = listener.accept()
            {
                self.strangers.push(talk);
            }
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
        let let_in = match said {
            Ask::Hello { version, domain, size } => self.let_in(&version, domain, size, file),
            other => Err(refusal(ErrorCode::BadRequest, format!("{other:?} before hello"), SAME)),
        };
        match let_in {
            Ok((number, gone, domain, welcome)) => {
                let is_here = say(&talk, &welcome);
                self.guests.insert(number, Guest { talk, domain, regions: BTreeMap::new(), gone });
                if !is_here {
                    self.leave(number);
                }
            }
            Err(refused) => drop(say(&talk, &refused)),
        }
    }

    /// Lets a process in, at the thread of its domain.
    fn let_in(
        &mut self,
        version: &str,
        domain: u32,
        size: PairSize,
        file: Option<OwnedFd>,
    ) -> Result<(u32, Arc<AtomicBool>, u32, Said), Said> {
        if version != VERSION {
            let message = format!("this DPU is of farmem {VERSION}, the process of {version:?}");
            return Err(refusal(ErrorCode::BadRequest, message, SAME));
        }
        if self.guests.len() + self.leaving.len() >= GUESTS_MAX {
            let message = format!("{GUESTS_MAX} processes are at this DPU");
            return Err(refusal(ErrorCode::TableFull, message, "wait until one ends"));
        }
        let file = file.ok_or_else(|| refusal(ErrorCode::BadRequest, "hello comes without memory", SAME))?;
        let ends = Requests::of(&file, size)
            .map_err(|error| refusal(ErrorCode::BadRequest, error.to_string(), SAME))?;
        let number = self.next;
        self.next = number.checked_add(1).ok_or_else(|| {
            refusal(ErrorCode::TableFull, "this DPU has served 2^32 processes", "start it again")
        })?;
        let lease_ms = self.ground.config.control.lease.as_nanos() / 1_000_000;
        let page_len = u32::try_from(self.ground.memory.page_len()).expect("the description was checked");
        let lane = self.lane(domain)?;
        let gone: Arc<AtomicBool> = Arc::default();
        lane.tell(Order::Come(Box::new(Visitor::new(Asker(number), ends, Arc::clone(&gone)))));
        let (host, generation) = lane.life;
        let welcome = Said::Welcome { host, generation, page_len, lease_ms, wake: lane.wake.clone() };
        Ok((number, gone, domain, welcome))
    }

    /// The thread of a domain; begins it where there is none.
    fn lane(&mut self, domain: u32) -> Result<&Lane, Said> {
        self.bury();
        if let Some(at) = self.lanes.iter().position(|lane| lane.domain == domain) {
            return Ok(&self.lanes[at]);
        }
        let known = self.api.call(Overview {}).map_err(|error| told(error.into()))?.domains;
        let Some((_, name)) = known.into_iter().find(|(number, _)| *number == domain) else {
            let message = format!("the rack has no domain {domain}");
            return Err(refusal(
                ErrorCode::NotFound,
                message,
                "say the number that `create_domain` answered",
            ));
        };
        let lane = Lane::begin(self.ground.clone(), domain, name).map_err(told)?;
        self.lanes.push(lane);
        Ok(&self.lanes[self.lanes.len() - 1])
    }

    /// A guest says something, or goes.
    fn hear(&mut self, number: u32) {
        let Some(guest) = self.guests.get(&number) else { return };
        let said = match words::hear::<Ask>(&guest.talk) {
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
            Ask::Open { region, base, write } => self.open(number, region, base, write),
            Ask::Fix { region, offset, len } => self.fix(number, region, offset, len),
            Ask::Policy { region, policy } => {
                let object = self.object(number, region)?;
                self.ground.memory.set_policy(object, policy.policy());
                Ok(Said::Done {})
            }
            Ask::Stats {} => Ok(Said::Stats(self.ground.memory.stats().into())),
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
