//! The thread of a DPU that prefetches for one program, which handed over its tap, what it does, and its zone as memory (PD3; PROTOCOL 19.15 to 19.18).
//!
//! Key types: [`Parts`], what a program has handed over so far; [`Prefetching`], the thread as the door knows it. It is the driver that a program may have as a thread of its own
//! ([`Driver`]), with a client of its own in the program's domain. What the program says is copied out, checked, and bounded; a program that says nonsense is sent away, and no other
//! one notices: nothing is shared.
//!
//! Parsers and structures that did not come with the DPU are not run.

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

/// Programs that a DPU prefetches for at once: each has a client of its own, so a host of the rack.
pub(super) const PROGRAMS_MAX: usize = 16;
/// The longest rest: a program looks whether the DPU counts its beat, and what it says without waking anybody is heard.
const REST: Duration = Duration::from_millis(5);
/// How long far memory may not answer before the control plane is asked whether the thread's host is in the rack still.
const DOUBT: Duration = Duration::from_millis(500);

/// A structure of any kind.
pub type AnyLookUp = Box<dyn LookUp + Send>;

/// Makes a structure of the form that a program says, for the client that looks keys up in it: every value is checked, and an error names the one that cannot be. The structures stand beside this
/// crate, so the process that starts a DPU says which there are.
pub type MakeLookUp = fn(&serde_json::Value, &mut Client) -> Result<AnyLookUp, Error>;

/// Memory that a program has handed over so far.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) tap: Option<Submissions>,
    pub(super) beside: Option<Submissions>,
    pub(super) zone: Option<ZoneProducer>,
}

impl Parts {
    /// Takes all three out, or says which is missing, and leaves the others.
    pub(super) fn take(&mut self) -> Result<(Submissions, Submissions, ZoneProducer), DpuMessage> {
        let missing = |what: &str| {
            let message = format!("prefetch comes without {what}");
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
    /// The mailbox that is told when it has begun, or cannot.
    pub(super) mailbox: Mailbox,
    pub(super) question: Question,
    /// Says that the program is to be sent away.
    pub(super) gone: Arc<AtomicBool>,
}

/// A request of the door to the thread.
pub(super) enum Order {
    /// To say what it did.
    Tell,
    /// To have packets mirrored.
    Mirror(MirrorRequest),
}

/// The thread, as the door knows it. It ends when this is dropped.
pub(super) struct Prefetching {
    asked: Sender<(Order, Reply)>,
    pub(super) thread: JoinHandle<()>,
}

impl Prefetching {
    /// Begins it.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub(super) fn begin(job: Job) -> io::Result<Self> {
        let (asked, questions) = channel();
        let name = format!("dpu ahead {}", job.question.session);
        let thread = thread::Builder::new().name(name).spawn(move || run(job, &questions))?;
        Ok(Self { asked, thread })
    }

    /// Asks it for something; false when it has ended.
    pub(super) fn ask(&self, order: Order, reply: Reply) -> bool {
        self.asked.send((order, reply)).is_ok()
    }

    /// Has it end, and does not wait for that.
    pub(super) fn let_go(self) -> JoinHandle<()> {
        self.thread
    }
}

fn run(job: Job, questions: &Receiver<(Order, Reply)>) {
    let gone = Arc::clone(&job.gone);
    let (domain, bell) = (job.domain, job.mailbox.clone());
    // Nothing that another thread uses is half done then.
    let ended = catch_unwind(AssertUnwindSafe(|| serve(job, questions)));
    let why = match ended {
        // Its program was told why not, or asks for nothing of it any more.
        Ok(Ok(false)) => return,
        Ok(Ok(true)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("its thread panicked".into()),
    };
    if let Some(why) = why {
        // stderr may be closed.
        drop(writeln!(
            io::stderr(),
            "farmem: the DPU prefetches no more for a program of domain {domain}: {why}"
        ));
    }
    gone.store(true, Ordering::Release);
    bell.bell.ring();
}

/// False when it could not begin, or was let go.
fn serve(job: Job, questions: &Receiver<(Order, Reply)>) -> Result<bool, Error> {
    let Job { ground, domain, make, parts, structure, config, keys, through, mailbox, question, gone: _ } =
        job;
    let (pieces, words, zone) = parts;
    let begun = join(&ground, domain).and_then(|(mut client, member)| {
        // The structure last: nothing fails after it was entered.
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
    // Nothing is listened to for a program that has gone, however long far memory keeps the next line waiting.
    drop(mirrors);
    // Whatever ended it, the structure's other readers and writers need not wait for this one.
    driver.leave();
    ended.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Turns the driver until the DPU ends, or false when the door let the thread go.
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
            // The program has gone, or was told to try again.
            Err(TryRecvError::Disconnected) => return Ok(false),
        }
        mirrors.look(driver.watch());
        let worked = driver.turn()?;
        slow.down();
        let (now, came) = (clock.now(), driver.came());
        if came.0 != known.0 || came.1 == known.1 && !driver.is_waiting() {
            (known, since) = (came, now);
        } else if now.since(since) >= DOUBT {
            // Nothing came but failures, if those: as when the host was taken out.
            (known, since) = (came, now);
            if !driver.is_member() {
                let what = "the rack: this host of the DPU was taken out of it".into();
                return Err(Error::Unreachable { what });
            }
        }
        driver.rest(if worked { Duration::ZERO } else { REST })?;
    }
    Ok(true)
}
