//! Messages between a process and its DPU over their socket, one JSON value at a time (PROTOCOL 17.4).
//!
//! The messages name the process, open regions, set up static caching, and carry counts. Requests for pages go
//! through the rings ([`farmem_wire::soda`]).

pub use crate::prefetch_messages::{PrefetchHow, PrefetchedMessage};
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

/// A request of a process. The DPU answers each with one [`DpuMessage`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientMessage {
    /// The first message, with the memory of the rings ([`PairSize`]) as a file.
    Hello {
        /// The version of farmem, the same at both ends.
        version: String,
        /// The mark of the rack ([`farmem_client::DpuSection::mark`], PROTOCOL 17.2).
        rack: String,
        /// The domain of all requests of the process.
        domain: u32,
        /// The process's host in that domain. If this host is fenced, the DPU that writes for it is fenced too
        /// (PROTOCOL 8.59).
        host: u16,
        /// The generation of that host.
        generation: u16,
        /// Size of the memory.
        size: PairSize,
    },
    /// The last message: the process has no write in flight, neither here nor directly to memory nodes. There is no
    /// answer (PROTOCOL 17.17).
    Finished {},
    /// Opens an allocation as a region, until the process leaves.
    Open {
        /// The region's number, chosen by the process.
        region: u16,
        /// Address of the allocation's first byte.
        base: u64,
        /// True if the process writes the allocation. No other process has it open then.
        write: bool,
    },
    /// Closes a region. The answer comes when none of its requests is pending.
    Close {
        /// The region.
        region: u16,
    },
    /// Registers memory of the process by a key; the memory comes as a file.
    Register {
        /// The key, neither 0 nor 1.
        rkey: u32,
        /// Maximum number of bytes of it that are allocated at once.
        most: u64,
    },
    /// Adds a ring through which all threads of the process send requests; its memory comes as a file (PROTOCOL
    /// 18.23). Once per process.
    Threads {
        /// Bytes of the ring's data.
        bytes: usize,
    },
    /// Keeps the pages of these bytes in static memory. The answer comes when the DPU begins to read them.
    Fix {
        /// The region, open for reading.
        region: u16,
        /// The first byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Sets the prefetch policy of a region or of a part.
    Policy {
        /// The region.
        region: u16,
        /// The policy.
        policy: Foresight,
        /// The part: offset and length in bytes. Without it, the policy is for the whole region and replaces those of
        /// parts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        part: Option<(u64, u64)>,
    },
    /// Hands over a ring for the bytes that clients send to the process; its memory comes as a file (PROTOCOL 19.15).
    /// Once per process.
    Tap {
        /// Bytes of the ring's data.
        bytes: usize,
    },
    /// Hands over a ring for reports on the process's items, likewise.
    Beside {
        /// Bytes of the ring's data.
        bytes: usize,
    },
    /// Hands over the zone for items, likewise (PROTOCOL 18.8).
    Zone {
        /// Size of the zone.
        size: ZoneSize,
    },
    /// Begins prefetching for a process that has handed over tap, `Reporter` and zone. The answer comes when the DPU's
    /// client has joined.
    Prefetch {
        /// The structure, in the form that the DPU's program understands.
        structure: serde_json::Value,
        /// Settings of the prefetcher.
        how: PrefetchHow,
        /// The last change of the process that far memory has, with all before it.
        through: u64,
    },
    /// Makes the DPU capture what clients send to a process that it prefetches for (PROTOCOL 19.19). The answer comes
    /// when capture runs.
    Mirror {
        /// The packets to capture.
        packets: MirrorConfig,
        /// The parser for their contents.
        parser: ParserKind,
    },
    /// Asks for counts of prefetching for the process.
    Prefetched {},
    /// Asks for counts of the DPU, for all its processes.
    Stats {},
    /// Asks for counts of requests of this process.
    Carried {},
}

/// Counts of a DPU for requests of a process: those of its windows (SODA IV-B), and those of the memory API (PD3
/// 6.1).
///
/// Hardware moves the bytes of a request twice: by DMA between the host's memory and the DPU's, and by RDMA between
/// that and the wire. Here the DPU's CPU does the first, between the host's memory and the buffers of its link. The
/// kernel does the second. Each further transfer counts as a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carried {
    /// Answered requests.
    pub requests: u64,
    /// Moves of a request's bytes between the program's memory, or shared memory, and the buffers of the link.
    pub moves: u64,
    /// Copies of a request's bytes within the DPU: into its cache, or through a ring.
    pub copies: u64,
    /// System calls that moved bytes of registered memory.
    pub calls: u64,
    /// Requests completed by another thread than the receiving one.
    pub passed: u64,
}

impl Carried {
    pub(super) const NOTHING: Self = Self { requests: 0, moves: 0, copies: 0, calls: 0, passed: 0 };

    /// Returns the sums of both.
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

/// A prefetch policy for a region: a hint of the program, as with `madvise`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Foresight {
    /// By evidence: neighbours of recently used pages, sequences and strides ([`farmem_dpu::Evidence`]).
    #[default]
    Evidence,
    /// The entry of each requested page (SODA IV-C; [`farmem_dpu::Neighbours`]).
    Neighbours,
    /// By the majority of distances between pages ([`farmem_dpu::Leap`]).
    Majority,
    /// No prefetching, for pages that are used once or in random order.
    Nothing,
}

impl Foresight {
    /// Returns the policy for a part with this advice; `None` for advice about presence, which is not a matter of the
    /// DPU.
    pub const fn by_advice(self, advice: Advice) -> Option<Self> {
        match advice {
            Advice::Normal => Some(self),
            Advice::Random => Some(Self::Nothing),
            Advice::Sequential => Some(Self::Neighbours),
            Advice::WillNeed | Advice::Cold | Advice::DontNeed => None,
        }
    }

    /// Returns the implementation of this policy.
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
    /// The DPU serves. A second message tells whether the process may enter, when the DPU's client of the domain has
    /// joined the rack.
    Soon {},
    /// The process may send requests.
    Welcome {
        /// The DPU's host in the process's domain.
        host: u16,
        /// The generation of that host.
        generation: u16,
        /// Bytes of a page.
        page_len: u32,
        /// The lease. A DPU that does not count its beat for so long while a request is pending must be fenced.
        lease_ms: u64,
        /// The doorbell of the domain's thread.
        wake: WakeAt,
    },
    /// The last message: the DPU has no more work for the process, and touches none of its memory (PROTOCOL 17.17).
    Farewell {
        /// True if no operation of the process is in flight, and none will be executed later.
        settled: bool,
    },
    /// Done.
    Done {},
    /// Prefetching begins.
    Prefetches {
        /// The doorbell of the thread that reads the process's rings.
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

/// The form of [`Stats`] in messages.
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

/// The version that both ends must have.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns a refusal.
pub fn refusal(code: ErrorCode, message: impl Into<String>, remedy: impl Into<String>) -> DpuMessage {
    DpuMessage::Refused(ApiError { code, message: message.into(), remedy: remedy.into() })
}

/// Sends a message.
///
/// # Errors
/// The system's error if the other end does not receive it.
pub fn say<T: Serialize>(talk: &DpuSocket, what: &T, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    talk.say(&serde_json::to_vec(what)?, file)
}

/// Tells the DPU that this process, which is about to close its socket, has no write in flight (PROTOCOL 17.17).
pub fn finish(talk: &DpuSocket) {
    // A DPU that does not receive it fences the host of this process.
    let said = serde_json::to_vec(&ClientMessage::Finished {});
    let _unheard = said.is_ok_and(|said| talk.say_now(&said).is_ok());
}

/// Receives the next message and its file; `None` if the other end is gone.
///
/// # Errors
/// The system's error if no message comes in time, or the message is invalid.
pub fn hear<T: for<'a> Deserialize<'a>>(talk: &DpuSocket) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let Some((bytes, file)) = talk.hear()? else { return Ok(None) };
    Ok(Some((serde_json::from_slice(&bytes)?, file)))
}

/// Sends a request to the DPU, and waits for its answer.
///
/// # Errors
/// [`Error::Refused`] with the DPU's refusal, [`Error::System`] if the DPU does not answer.
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

/// Minimum time that a DPU is given to admit a program, and to answer.
pub const ANSWER_TIME_MIN: Duration = Duration::from_secs(10);

/// Connects to the DPU of this machine in the domain of `client`, and waits until the process is admitted.
///
/// `pair` is the memory of the rings. Returns the socket and the DPU's answer, which is a [`DpuMessage::Welcome`]
/// unless the DPU is at fault.
///
/// # Errors
/// [`Error::Open`] if no DPU serves; otherwise as [`ask`].
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
        // The DPU's thread of the domain has ended. A process that connects again gets a new one.
        None => Err(Error::Refused(ApiError {
            code: ErrorCode::Unavailable,
            message: "the DPU has ended the connection to this process".into(),
            remedy: "try again, and check with `farmem doctor --rack rack.toml` that the DPU runs".into(),
        })),
    }
}
