//! The thread of a DPU that prefetches for one program. The program has handed over its tap, its reports and its zone
//! as memory (PD3; PROTOCOL 19.15 to 19.18).
//!
//! Key types: [`Parts`], the memory that a program has handed over so far; [`Prefetching`], the thread from the
//! door's point of view. The thread runs the same driver that a program may run itself ([`Driver`]), with a client of
//! its own in the program's domain. The driver copies, checks and bounds everything that the program writes. A
//! program that writes invalid data is disconnected, and no other program is affected, because they share no state.
//!
//! A DPU runs only parsers and structures that it has itself.

use super::domain_thread::{Member, join};
use super::mailbox::{Mailbox, Notice, Question, Reply};
use super::messages::{DpuMessage, refusal};
use super::mirroring::{MirrorRequest, Mirrors};
use super::serve::{DpuContext, told};
use super::slow::Slow;
use farmem_client::api::ErrorCode;
use farmem_client::{Client, Error, LookUp};
use farmem_link::Clock;
use farmem_link::dpu::Submissions;
use farmem_machine::Duration;
use farmem_prefetch::loading_zone::ZoneProducer;
use farmem_prefetch::tap::Watch;
use farmem_prefetch::{Change, Config, Driver, Hearing, HostKeys, KeysConfig, Prefetched, SharedZone};
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

/// Maximum number of programs that a DPU prefetches for. Each has a client of its own, which is a host of the rack.
pub(super) const PROGRAMS_MAX: usize = 16;
/// Maximum sleep: a program checks whether the DPU counts its beat, and some reports wake no thread.
const REST: Duration = Duration::from_millis(5);
/// Time without an answer of far memory after which the thread asks the control plane whether its host is still in
/// the rack.
const DOUBT: Duration = Duration::from_millis(500);

/// A structure of any kind.
pub type AnyLookUp = Box<dyn LookUp + Send>;

/// Makes a structure from the form that a program sends, for the client that looks keys up in it. The function checks
/// every value, and its error names the invalid one. Structures are in other crates, so the process that starts a DPU
/// passes this function.
pub type MakeLookUp = fn(&serde_json::Value, &mut Client) -> Result<AnyLookUp, Error>;

/// Memory that a program has handed over so far.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) tap: Option<Submissions>,
    pub(super) beside: Option<Submissions>,
    pub(super) zone: Option<ZoneProducer>,
}

impl Parts {
    /// Takes all three parts. If one is missing, returns an error that names it and keeps the others.
    pub(super) fn take(&mut self) -> Result<(Submissions, Submissions, ZoneProducer), DpuMessage> {
        let missing = |what: &str| {
            let message = format!("`prefetch` was sent before {what}");
            refusal(ErrorCode::BadRequest, message, "hand over tap, beside and zone first, each once")
        };
        match std::mem::take(self) {
            Self { tap: Some(tap), beside: Some(beside), zone: Some(zone) } => Ok((tap, beside, zone)),
            some => {
                let what = match &some {
                    Self { tap: None, .. } => "tap",
                    Self { beside: None, .. } => "beside",
                    _ => "zone",
                };
                *self = some;
                Err(missing(what))
            }
        }
    }
}

/// The thread's task.
pub(super) struct Job {
    pub(super) ground: DpuContext,
    pub(super) domain: u32,
    pub(super) make: MakeLookUp,
    pub(super) parts: (Submissions, Submissions, ZoneProducer),
    pub(super) structure: serde_json::Value,
    pub(super) config: Config,
    pub(super) keys: usize,
    pub(super) through: Change,
    /// The mailbox that gets the result of the start.
    pub(super) mailbox: Mailbox,
    pub(super) question: Question,
    /// Set when the program must be disconnected.
    pub(super) gone: Arc<AtomicBool>,
}

/// A request of the door to the thread.
pub(super) enum Order {
    /// A request for the thread's counts.
    Tell,
    /// A request to mirror packets.
    Mirror(MirrorRequest),
}

/// The thread from the door's point of view. The thread ends when this value is dropped.
pub(super) struct Prefetching {
    asked: Sender<(Order, Reply)>,
    pub(super) thread: JoinHandle<()>,
}

impl Prefetching {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's error if it has no more threads.
    pub(super) fn begin(job: Job) -> io::Result<Self> {
        let (asked, questions) = channel();
        let name = format!("dpu ahead {}", job.question.session);
        let thread = thread::Builder::new().name(name).spawn(move || run(job, &questions))?;
        Ok(Self { asked, thread })
    }

    /// Sends an order. Returns false if the thread has ended.
    pub(super) fn ask(&self, order: Order, reply: Reply) -> bool {
        self.asked.send((order, reply)).is_ok()
    }

    /// Tells the thread to end, without waiting.
    pub(super) fn let_go(self) -> JoinHandle<()> {
        self.thread
    }
}

fn run(job: Job, questions: &Receiver<(Order, Reply)>) {
    let gone = Arc::clone(&job.gone);
    let (domain, bell) = (job.domain, job.mailbox.clone());
    // No state of another thread is inconsistent then.
    let ended = catch_unwind(AssertUnwindSafe(|| serve(job, questions)));
    let why = match ended {
        // The program has its refusal, or has left.
        Ok(Ok(false)) => return,
        Ok(Ok(true)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("its thread panicked".into()),
    };
    if let Some(why) = why {
        // stderr may be closed.
        drop(writeln!(
            io::stderr(),
            "farmem: the DPU has stopped prefetching for a program of domain {domain}: {why}"
        ));
    }
    gone.store(true, Ordering::Release);
    bell.bell.ring();
}

/// Prefetches for the program. Returns false if prefetching could not begin, or the door ended it.
fn serve(job: Job, questions: &Receiver<(Order, Reply)>) -> Result<bool, Error> {
    let Job { ground, domain, make, parts, structure, config, keys, through, mailbox, question, gone: _ } =
        job;
    let (pieces, words, zone) = parts;
    let begun = join(&ground, domain).and_then(|(mut client, member)| {
        // The structure last: after entering it, nothing fails.
        let view = HostKeys::new(KeysConfig::new(keys))?;
        Ok((make(&structure, &mut client)?, client, member, view))
    });
    let (look_up, client, (_, waker, wake), view): (AnyLookUp, Client, Member, HostKeys) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            mailbox.say(question, Notice::Prefetches(Err(told(error))));
            return Ok(false);
        }
    };
    let watch = Watch::far(pieces, config.secret);
    let mut mirrors = Mirrors::new(waker, question.session, ground.section.slowdown);
    let hearing = Hearing::far(words);
    let mut driver =
        Driver::of(config, view, (watch, hearing, through), client, look_up, SharedZone::of(zone));
    mailbox.say(question, Notice::Prefetches(Ok(wake)));
    let ended = catch_unwind(AssertUnwindSafe(|| attend(&mut driver, &mut mirrors, &ground, questions)));
    // No packets are captured for a program that has left, even if far memory delays the next line.
    drop(mirrors);
    // Other readers and writers of the structure need not wait for this one, whatever ended it.
    driver.leave();
    ended.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Runs the driver until the DPU ends. Returns false if the door ended the thread.
fn attend(
    driver: &mut Driver<HostKeys, AnyLookUp, SharedZone>,
    mirrors: &mut Mirrors,
    ground: &DpuContext,
    questions: &Receiver<(Order, Reply)>,
) -> Result<bool, Error> {
    let mut slow = Slow::new(ground.section.slowdown);
    let clock = Clock::start();
    let (mut known, mut since) = (driver.came(), clock.now());
    while !ground.stop.is_set() {
        match questions.try_recv() {
            Ok((Order::Tell, reply)) => {
                reply.say_prefetched(Prefetched { mirror: mirrors.seen(), ..driver.prefetched() });
            }
            Ok((Order::Mirror(wanted), reply)) => mirrors.begin(driver.watch(), wanted, reply),
            Err(TryRecvError::Empty) => {}
            // The program has left, or must try again.
            Err(TryRecvError::Disconnected) => return Ok(false),
        }
        mirrors.look(driver.watch());
        let worked = driver.turn()?;
        slow.down();
        let (now, came) = (clock.now(), driver.came());
        if came.0 != known.0 || came.1 == known.1 && !driver.is_waiting() {
            (known, since) = (came, now);
        } else if now.since(since) >= DOUBT {
            // Nothing or only failures arrived, as after a fence of the host.
            (known, since) = (came, now);
            if !driver.is_member() {
                let what = "the rack: this host of the DPU was removed from the rack".into();
                return Err(Error::Unreachable { what });
            }
        }
        driver.rest(if worked { Duration::ZERO } else { REST })?;
    }
    Ok(true)
}
