//! Errors of farmem's library: each says what was wrong, and [`Error::remedy`] what to do.

use farmem_control::api::{ApiError, ErrorCode};
use farmem_wire::{Status, VirtAddr};
use std::path::PathBuf;

/// Why a call failed. After any of them the client goes on working.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address lies in no allocation, or in one that was freed.
    #[error("{addr} is not mapped: it lies in no allocation, or in one that was freed")]
    NotMapped {
        /// The address.
        addr: VirtAddr,
    },
    /// The address is memory that a RoCE card registered, and what was asked for needs more than verbs (PROTOCOL 14.16).
    #[error(
        "{addr} is a card's memory, which has READ, WRITE and atomics only: no traversals, no region requests, no cached pages"
    )]
    CardMemory {
        /// The address.
        addr: VirtAddr,
    },
    /// Bytes that were written are no more: the memory node that had them was started again, or the host that had changed them stopped. No host
    /// reads or writes them before their owner accepts that ([`crate::Client::accept_lost`]); then they are zeros, or as they were before.
    #[error(
        "{len} bytes at {base} are lost: the memory node that had them was started again, or a host stopped that had changed them"
    )]
    MemoryLost {
        /// The first lost address among those that were asked for; of a traversal, in the window where it stopped.
        base: VirtAddr,
        /// Lost bytes from there on, among those that were asked for.
        len: u64,
    },
    /// The domain may not do this with the address.
    #[error("no permission: this client's domain may not do this at {addr}")]
    NoPermission {
        /// The address.
        addr: VirtAddr,
    },
    /// A program stored to a window that is for reading only.
    #[error("a store at {addr}, in a window that is for reading only")]
    ReadOnly {
        /// The page.
        addr: VirtAddr,
    },
    /// The access starts inside an allocation and leaves it.
    #[error("{len} bytes at {addr} leave the allocation they start in")]
    OutOfBounds {
        /// First byte.
        addr: VirtAddr,
        /// Bytes.
        len: u64,
    },
    /// An atomic's address is not a multiple of 8.
    #[error("{addr} is not a multiple of 8, as an atomic's address must be")]
    Misaligned {
        /// The address.
        addr: VirtAddr,
    },
    /// The operation carries at most `max` bytes.
    #[error("{len} bytes are more than the {max} that this operation carries")]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// Bytes it carries.
        max: usize,
    },
    /// The scratch pad does not fit the program.
    #[error("the scratch pad has {have} bytes, the program's has {need}")]
    ScratchLen {
        /// Bytes given.
        have: usize,
        /// Bytes the program has.
        need: usize,
    },
    /// Too many operations are outstanding.
    #[error("too many operations are outstanding")]
    QueueFull,
    /// A structure in far memory has no room left.
    #[error("{what} is full")]
    Full {
        /// The thing.
        what: String,
    },
    /// There is one of this name already.
    #[error("there is already {what}")]
    Exists {
        /// The thing.
        what: String,
    },
    /// There is none of this name.
    #[error("there is no {what}")]
    Missing {
        /// The thing.
        what: String,
    },
    /// No bytes, where there has to be at least one.
    #[error("{what} has no bytes, and needs at least one")]
    Empty {
        /// The thing.
        what: &'static str,
    },
    /// Each time that a record was read, a write of it was under way or came between.
    #[error("the record at {addr} was being written in each of {tries} reads")]
    Torn {
        /// The record.
        addr: VirtAddr,
        /// How often it was read.
        tries: u32,
    },
    /// A write of a record is under way, by another program, and did not end in time.
    #[error("the record at {addr} is locked by {holder}, which did not let go of it in {tries} tries")]
    Locked {
        /// The record.
        addr: VirtAddr,
        /// The writer whose write is under way.
        holder: String,
        /// How often it was looked at.
        tries: u32,
    },
    /// Others kept changing the same place.
    #[error("other programs changed {what} first, in each of {tries} tries")]
    Contended {
        /// The thing.
        what: String,
        /// How often it was tried.
        tries: u32,
    },
    /// This program was not heard of for longer than its lease, and others went on without it: what it held pointers to may be used again.
    #[error("the lease of this program on {heap} ended while it held pointers there")]
    Evicted {
        /// Which heap.
        heap: String,
    },
    /// More of something than there may be.
    #[error("{have} {what}: there may be {least} to {most}")]
    Count {
        /// The thing that is counted.
        what: &'static str,
        /// So many.
        have: usize,
        /// At least.
        least: usize,
        /// At most.
        most: usize,
    },
    /// A key that the structure cannot take.
    #[error("key {key}: {reason}")]
    Key {
        /// The key.
        key: u64,
        /// The reason.
        reason: &'static str,
    },
    /// The bytes in far memory are not the structure that was looked for.
    #[error("the bytes at {addr} are not {what}")]
    Broken {
        /// Where.
        addr: VirtAddr,
        /// The thing that was looked for.
        what: &'static str,
    },
    /// No answer came.
    #[error("no answer from {what}")]
    Unreachable {
        /// The role that was asked.
        what: String,
    },
    /// The rack does not have this client's host any more: every operation fails so from now on.
    #[error(
        "host {host} of this client, in generation {generation}, was taken out of the rack: it was not heard of for the length of its lease, as when its process or machine stood still, or an operator took it out"
    )]
    TakenOut {
        /// The host's number.
        host: u16,
        /// The generation that this client was.
        generation: u16,
    },
    /// The connection broke while the operation was under way.
    #[error("the connection broke; this operation may or may not have been carried out")]
    Interrupted,
    /// A traversal was refused.
    #[error("the traversal stopped at {addr}: {reason}")]
    Traversal {
        /// The pointer it stopped at.
        addr: VirtAddr,
        /// Why.
        reason: TraversalStop,
    },
    /// The control plane refused a request.
    #[error("{}", .0.message)]
    Refused(ApiError),
    /// The rack's description is wrong.
    #[error("{}: {message}", .file.display())]
    Config {
        /// The file.
        file: PathBuf,
        /// Where in it, what was found, what was expected.
        message: String,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// An address, socket or ring could not be opened.
    #[error(transparent)]
    Open(#[from] farmem_link::OpenError),
    /// A role has stopped by itself, because its state can no longer be trusted.
    #[error("{role} stops: {halt}")]
    Halted {
        /// Which.
        role: String,
        /// Why.
        halt: farmem_machine::Halt,
    },
    /// The control plane could not be reached or did not speak its language.
    #[error("{message}")]
    Api {
        /// The event.
        message: String,
    },
    /// This machine's join file cannot be used.
    #[error("{}, which this machine joins the rack with, cannot be used: {why}", file.display())]
    Join {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file with the keys of this user's processes cannot be used.
    #[error("{message}")]
    Keys {
        /// The event.
        message: String,
    },
    /// The server did not prove to be the rack's control plane, and was told nothing.
    #[error("{message}")]
    Untrusted {
        /// The event.
        message: String,
    },
}

/// Why a traversal stopped before its program returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraversalStop {
    /// The pointer is null or lies in no allocation.
    #[error("the pointer is not mapped")]
    NotMapped,
    /// The domain may not read there; not write, for a program that stores.
    #[error("no permission to read there, or to write for a program that stores")]
    NoPermission,
    /// The program read, searched or wrote bytes of its window that are behind the end of the allocation.
    #[error("the program went on in its window where the allocation ends")]
    OutOfBounds,
    /// The program indexed outside its window or scratch pad.
    #[error("the program indexed outside its window or scratch pad")]
    ProgramFault,
    /// The node refused the program.
    #[error("the memory node refused the program")]
    BadProgram,
    /// The program's code does not fit a datagram.
    #[error("the program's code does not fit a datagram of this rack")]
    TooLarge,
    /// The program's scratch pad does not fit a datagram of this rack's path MTU.
    #[error("the program's scratch pad has {len} bytes, a datagram of this rack carries {max}")]
    ScratchTooLarge {
        /// Bytes it has.
        len: usize,
        /// Bytes that a datagram carries.
        max: usize,
    },
    /// The traversal was continued again and again without getting on.
    #[error("it made no progress between two continuations")]
    Stalled,
    /// The program stores, which it can at a memory node only, and was to run at the host.
    #[error("a program that stores runs at the memory nodes only")]
    StoresAtHost,
    /// Another status.
    #[error("the rack answered {0:?}")]
    Other(Status),
}

impl TraversalStop {
    /// True when the program is too large for this rack's datagrams: it can still run at the host.
    pub(crate) const fn is_of_size(self) -> bool {
        matches!(self, Self::TooLarge | Self::ScratchTooLarge { .. })
    }
}

impl Error {
    /// Returns the remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NotMapped { .. } => {
                "allocate before use, and drop addresses when their allocation is freed".into()
            }
            Self::CardMemory { .. } => {
                "use `Client::read`, `write` and atomics there, and memory of a farmem node for the rest: `Client::allocate` takes no other".into()
            }
            Self::MemoryLost { .. } => {
                "write anew what was there, after `Client::accept_lost` of these addresses; what must outlive a memory node needs a copy elsewhere"
                    .into()
            }
            Self::NoPermission { .. } => "ask the owner of the allocation for a grant".into(),
            Self::ReadOnly { .. } => "only load from it, or open the window without `read_only`".into(),
            Self::OutOfBounds { .. } => "keep address and length inside one allocation".into(),
            Self::Misaligned { .. } => "place words for atomics at multiples of 8".into(),
            Self::TooLong { .. } => "split it into smaller pieces".into(),
            Self::ScratchLen { .. } => "make the scratch pad as long as Program::scratch_len says".into(),
            Self::QueueFull => "wait for completions before submitting more".into(),
            Self::Full { .. } => "make it with more room, or give back what is no longer used".into(),
            Self::Exists { .. } => "open it, destroy it first, or use another name".into(),
            Self::Missing { .. } => "create it first, in the same protection domain".into(),
            Self::Empty { .. } => "give it at least one byte".into(),
            Self::Torn { .. } => "read it again; when others write it all the time, replace records in place of writing them".into(),
            Self::Locked { .. } => {
                "try again: when its writer is gone, the lock is taken over as soon as the writer's lease has surely ended".into()
            }
            Self::Contended { .. } => "try again, or spread what is changed over more places".into(),
            Self::Evicted { .. } => {
                "give back all pins and begin the operation anew; between two operations call `Heap::keep` at least once a lease".into()
            }
            Self::Count { .. } => "ask for a number between the two, and see `farmem index plan` for what fits a switch".into(),
            Self::Key { .. } => "use a key the structure's documentation allows".into(),
            Self::Broken { .. } => {
                "open it at the address it was made at, and have one writer at a time".into()
            }
            Self::Unreachable { .. } => {
                "see with `farmem doctor --rack rack.toml` whether that role runs; then whether a firewall keeps UDP port 4791 from it, and whether `pmtu` in rack.toml fits the MTU of every link on the way"
                    .into()
            }
            Self::TakenOut { .. } => "make another client of the rack, and begin anew what was under way: what this one had allocated in a domain without other users is free, unless it was allocated durably; \
                 `host_lease_ms` in rack.toml says how long a host may stand still"
                .into(),
            Self::Interrupted => "read back before doing it again, if doing it twice does harm".into(),
            Self::Traversal { reason, .. } if reason.is_of_size() => {
                "run it at the host (`Policy::Auto` does), or give the rack a larger `pmtu` in rack.toml"
                    .into()
            }
            Self::Traversal { reason: TraversalStop::OutOfBounds, .. } => {
                "allocate each node, the last one too, with all bytes that the program may read of it (`farmem compile --explain` says where), and look whether a length in the node is right"
                    .into()
            }
            Self::Traversal { .. } => "check the structure's pointers and the program's window".into(),
            Self::Refused(error) => error.remedy.clone(),
            Self::Config { .. } => "correct the file; `farmem up --example` prints one that is right".into(),
            Self::System { .. } => {
                "`farmem doctor` says what this machine allows and how to change it".into()
            }
            Self::Halted { .. } => "start it again: it joins with empty tables, is told them anew, and gets new keys. Unless the control \
                 plane was started from a copy of its state: check which users can read the state directory, and stop the rack to remove it"
                .into(),
            Self::Open(_) => String::new(), // its text ends with the remedy
            Self::Api { .. } => {
                "see with `farmem doctor --rack rack.toml` whether the control plane runs: `farmem up` starts a rack of one machine, `systemctl start farmem@control` the control plane of several (docs/operate.md)"
                    .into()
            }
            Self::Join { file, .. } => format!(
                "on the control plane's machine, once it serves there: `farmem join --rack rack.toml`; bring what it prints to {}, mode 0600",
                file.display()
            ),
            Self::Keys { .. } => "mend it, or name another file in FARMEM_KEYS: what its keys were of is the operator's alone then".into(),
            Self::Untrusted { .. } => "find the process that has that port on the control plane's machine: nothing was told to it. After a new state directory there, bring this                  machine what `farmem join --rack rack.toml` prints now"
                .into(),
        }
    }

    /// The control plane's code, when it refused a request.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(error) => Some(error.code),
            _ => None,
        }
    }
}

impl From<farmem_api::ApiCallError> for Error {
    fn from(error: farmem_api::ApiCallError) -> Self {
        match error {
            farmem_api::ApiCallError::Refused(error) => Self::Refused(error),
            it @ farmem_api::ApiCallError::Untrusted { .. } => Self::Untrusted { message: it.to_string() },
            it @ farmem_api::ApiCallError::Keys { .. } => Self::Keys { message: it.to_string() },
            other => Self::Api { message: other.to_string() },
        }
    }
}

impl From<ApiError> for Error {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}
