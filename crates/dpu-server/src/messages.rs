//! Messages between a process and its DPU over their socket, one of JSON at a time (PROTOCOL 17.4): which process comes, which regions are open, what is cached
//! statically, what was done. Requests of pages go through the rings ([`farmem_wire::soda`]).

use crate::at_dpu::{PrefetchHow, PrefetchedMessage};
use farmem_client::api::{ApiError, ErrorCode};
use farmem_client::{Client, DpuSection, Error};
use farmem_dpu::{Evidence, Leap, Neighbours, Nothing, Policy, Stats};
use farmem_link::WakeAt;
use farmem_link::dpu::{DpuSocket, PairSize};
use farmem_machine::Duration;
use farmem_paging::{Account, Advice};
use farmem_prefetch::MirrorConfig;
use farmem_prefetch::loading_zone::ZoneSize;
use farmem_prefetch::tap::ParserKind;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A request of a process. Each is answered by one [`DpuMessage`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientMessage {
    /// The first: with the memory of the rings ([`PairSize`]) as a file beside it.
    Hello {
        /// Both ends are of one version of farmem.
        version: String,
        /// The rack whose memory it wants ([`farmem_client::DpuSection::mark`], PROTOCOL 17.2).
        rack: String,
        /// The domain in which all its requests are.
        domain: u32,
        /// The host that the process is in that domain, and how often it started: when that is taken out of the rack, so is the DPU that writes for it (PROTOCOL 8.59).
        host: u16,
        /// How often that host started.
        generation: u16,
        /// Size of the memory.
        size: PairSize,
    },
    /// An allocation is a region from now on, until the process goes.
    Open {
        /// The region's number, by the process.
        region: u16,
        /// The allocation's first byte.
        base: u64,
        /// The process writes it: no other has it open then.
        write: bool,
    },
    /// A region is closed; answered when nothing of it is under way.
    Close {
        /// The region.
        region: u16,
    },
    /// Memory of the process, as a file beside it, is registered from now on, by a key.
    Register {
        /// The key, neither 0 nor 1.
        rkey: u32,
        /// Bytes of it that are there at once, at most.
        most: u64,
    },
    /// All threads of the process ask through this ring, too: its memory as a file beside it (PROTOCOL 18.23). Once.
    Threads {
        /// Bytes of the ring's data.
        bytes: usize,
    },
    /// Bytes of a region are to be kept in static memory, in whole pages; answered when they begin to be read.
    Fix {
        /// The region, open for reading.
        region: u16,
        /// The first byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// How a region is prefetched from now on, or a part of it.
    Policy {
        /// The region.
        region: u16,
        /// The policy.
        policy: Foresight,
        /// The part: its first byte, and how many. Without it all of the region is meant, also what was said of parts before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        part: Option<(u64, u64)>,
    },
    /// A ring of bytes that the process's clients send: its memory as a file beside it (PROTOCOL 19.15). Once.
    Tap {
        /// Bytes of the ring's data.
        bytes: usize,
    },
    /// A ring of reports of what the process does with its items, likewise.
    Beside {
        /// Bytes of the ring's data.
        bytes: usize,
    },
    /// Items are put into this zone, likewise (PROTOCOL 18.8).
    Zone {
        /// Size of the zone.
        size: ZoneSize,
    },
    /// The DPU is to prefetch for the process, whose tap, `Beside` and zone it has; answered when its client has joined the rack.
    Prefetch {
        /// The structure, in the form that the process which started the DPU knows.
        structure: serde_json::Value,
        /// In this way.
        how: PrefetchHow,
        /// Up to this change of the process far memory has all.
        through: u64,
    },
    /// The DPU is to see, of itself, what clients send to the process that it prefetches for (PROTOCOL 19.19); answered when it does.
    Mirror {
        /// Which packets.
        packets: MirrorConfig,
        /// The parser that reads them.
        parser: ParserKind,
    },
    /// Asks for counts of prefetching for the process.
    Prefetched {},
    /// Asks for counts of the DPU, for all its processes.
    Stats {},
    /// Asks for counts of requests of this process.
    Carried {},
}

/// Counts of a DPU for requests of a process: those of its windows (SODA IV-B), and those of the memory API (PD3 6.1).
///
/// Hardware moves the bytes of a request once between the host's memory and the DPU's (by DMA) and once between that and the wire (by RDMA); here the DPU's CPU does the first, straight between the host's
/// memory and the buffers that its link receives in or sends from, and the system the second. Whatever else moves them is a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carried {
    /// Requests that were answered.
    pub requests: u64,
    /// Times that the DPU moved bytes of one between the program's memory, or what both share, and where they are sent from or received.
    pub moves: u64,
    /// Times that it copied bytes of one to another place of its own: where what it keeps of far memory has them, too, or where they go through a ring.
    pub copies: u64,
    /// Calls of the system that moved bytes of registered memory.
    pub calls: u64,
    /// Requests that another thread than the one that receives completed.
    pub passed: u64,
}

impl Carried {
    pub(super) const NOTHING: Self = Self { requests: 0, moves: 0, copies: 0, calls: 0, passed: 0 };

    /// Both together.
    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            moves: self.moves + other.moves,
            copies: self.copies + other.copies,
            calls: self.calls + other.calls,
            passed: self.passed + other.passed,
        }
    }
}

/// A prefetch policy for a region: hints of a program, as by `madvise`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Foresight {
    /// By evidence: neighbours of pages used lately, sequences, strides ([`farmem_dpu::Evidence`]).
    #[default]
    Evidence,
    /// The entry of each page that is asked for (SODA IV-C; [`farmem_dpu::Neighbours`]).
    Neighbours,
    /// Along the majority of distances between pages ([`farmem_dpu::Leap`]).
    Majority,
    /// Nothing: pages are used once, or here and there.
    Nothing,
}

impl Foresight {
    /// The policy for a part that the program gave this advice about; `None` for advice about what is to be here, or to go, which the DPU does not decide.
    pub const fn by_advice(self, advice: Advice) -> Option<Self> {
        match advice {
            Advice::Normal => Some(self),
            Advice::Random => Some(Self::Nothing),
            Advice::Sequential => Some(Self::Neighbours),
            Advice::WillNeed | Advice::Cold | Advice::DontNeed => None,
        }
    }

    /// The policy of this name.
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::Evidence => Box::new(Evidence),
            Self::Neighbours => Box::new(Neighbours),
            Self::Majority => Box::new(Leap::default()),
            Self::Nothing => Box::new(Nothing),
        }
    }
}

/// An answer of the DPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DpuMessage {
    /// The DPU serves; whether the process may come in is said when its client of the domain has joined the rack.
    Soon {},
    /// Come in.
    Welcome {
        /// The host of the rack that asks in the process's domain.
        host: u16,
        /// How often that host started.
        generation: u16,
        /// Bytes of a page.
        page_len: u32,
        /// A DPU that does not count its beat for so many milliseconds while it is asked for something is to be fenced.
        lease_ms: u64,
        /// Where it is woken.
        wake: WakeAt,
    },
    /// The last word: the DPU has nothing more to do with the process, and touches none of its memory from now on (PROTOCOL 17.17).
    Farewell {
        /// Nothing that the process asked is under way, and nothing will be carried out later.
        settled: bool,
    },
    /// Done.
    Done {},
    /// Prefetching begins.
    Prefetches {
        /// Where the thread is woken that reads the process's rings.
        wake: WakeAt,
    },
    /// Counts of prefetching.
    Prefetched(Box<PrefetchedMessage>),
    /// Counts of the DPU.
    Stats(StatsMessage),
    /// Counts for requests of the process.
    Carried(Carried),
    /// Not done.
    Refused(ApiError),
}

/// [`Stats`] as it is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsMessage {
    reads: u64,
    hits: u64,
    late: u64,
    fixed: u64,
    writes: u64,
    asked: u64,
    on_demand: u64,
    background: u64,
    written: u64,
    ahead_wanted: u64,
    ahead_used: u64,
    ahead_late: u64,
    ahead_wasted: u64,
}

impl From<Stats> for StatsMessage {
    fn from(stats: Stats) -> Self {
        let Stats { reads, hits, late, fixed, writes, asked, on_demand, background, written, ahead } = stats;
        let Account { wanted, used, late: ahead_late, wasted, .. } = ahead;
        let (ahead_wanted, ahead_used, ahead_wasted) = (wanted, used, wasted);
        Self {
            reads,
            hits,
            late,
            fixed,
            writes,
            asked,
            on_demand,
            background,
            written,
            ahead_wanted,
            ahead_used,
            ahead_late,
            ahead_wasted,
        }
    }
}

impl From<StatsMessage> for Stats {
    fn from(said: StatsMessage) -> Self {
        let ahead = Account::of(said.ahead_wanted, said.ahead_used, said.ahead_late, said.ahead_wasted);
        let StatsMessage { reads, hits, late, fixed, writes, asked, on_demand, background, written, .. } =
            said;
        Self { reads, hits, late, fixed, writes, asked, on_demand, background, written, ahead }
    }
}

/// The version that both ends say.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A refusal.
pub fn refusal(code: ErrorCode, message: impl Into<String>, remedy: impl Into<String>) -> DpuMessage {
    DpuMessage::Refused(ApiError { code, message: message.into(), remedy: remedy.into() })
}

/// Says something.
///
/// # Errors
/// When the other end does not listen.
pub fn say<T: Serialize>(talk: &DpuSocket, what: &T, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    talk.say(&serde_json::to_vec(what)?, file)
}

/// Receives the other end's next message, and the file beside it; `None` when it is gone.
///
/// # Errors
/// When it says nothing in time, or nothing that makes sense.
pub fn hear<T: for<'a> Deserialize<'a>>(talk: &DpuSocket) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let Some((bytes, file)) = talk.hear()? else { return Ok(None) };
    Ok(Some((serde_json::from_slice(&bytes)?, file)))
}

/// Asks the DPU for something, and waits for its answer.
///
/// # Errors
/// [`Error::Refused`] with what the DPU says, [`Error::System`] when it does not answer.
pub fn ask(
    talk: &DpuSocket,
    what: &ClientMessage,
    file: Option<BorrowedFd<'_>>,
) -> Result<DpuMessage, Error> {
    say(talk, what, file).map_err(lost)?;
    answer(talk)
}

fn lost(source: io::Error) -> Error {
    Error::System { what: "the DPU does not answer".into(), source }
}

/// How long a DPU may take at least to let a program in, and to answer it.
pub const ANSWER_TIME_MIN: Duration = Duration::from_secs(10);

/// Comes to the DPU of this machine in the domain of `client`, with the memory of the rings, and waits until it is let in: how to talk to it, and what it said, [`DpuMessage::Welcome`] if it makes sense.
///
/// # Errors
/// [`Error::Open`] when none serves; as [`ask`].
pub fn come_in(
    section: &DpuSection,
    client: &Client,
    size: PairSize,
    pair: BorrowedFd<'_>,
) -> Result<(DpuSocket, DpuMessage), Error> {
    let talk = DpuSocket::connect(&section.socket)?;
    talk.set_patience(section.patience.max(ANSWER_TIME_MIN)).map_err(lost)?;
    let (version, rack, domain) = (VERSION.into(), section.mark()?, client.domain());
    let (host, generation) = client.life();
    let mut said =
        ask(&talk, &ClientMessage::Hello { version, rack, domain, host, generation, size }, Some(pair))?;
    if said == (DpuMessage::Soon {}) {
        said = answer(&talk)?;
    }
    Ok((talk, said))
}

/// Receives the DPU's next answer.
///
/// # Errors
/// As [`ask`].
pub fn answer(talk: &DpuSocket) -> Result<DpuMessage, Error> {
    match hear(talk).map_err(lost)? {
        Some((DpuMessage::Refused(error), _)) => Err(Error::Refused(error)),
        Some((said, _)) => Ok(said),
        // Its thread of the domain has ended: it has another when one comes again.
        None => Err(Error::Refused(ApiError {
            code: ErrorCode::Unavailable,
            message: "the DPU has sent this process away".into(),
            remedy: "try again, and see with `farmem doctor --rack rack.toml` whether the DPU runs".into(),
        })),
    }
}
