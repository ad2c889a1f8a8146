//! Errors of farmem's library. The message says what is wrong, and [`Error::remedy`] what to do.

use farmem_control::api::{ApiError, ErrorCode};
use farmem_wire::{Status, VirtAddr};
use std::path::PathBuf;

/// The reason why a call failed. The client stays usable after every error except [`Error::Fenced`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No allocation contains the address, or the allocation was freed.
    #[error("{addr} is not mapped: no allocation contains it, or the allocation was freed")]
    NotMapped {
        /// The address.
        addr: VirtAddr,
    },
    /// The address belongs to memory that a RoCE card registered, and the operation needs more than verbs
    /// (PROTOCOL 14.16).
    #[error(
        "{addr} is a card's memory, which supports only READ, WRITE and atomics: no traversals, no region requests, no cached pages"
    )]
    CardMemory {
        /// The address.
        addr: VirtAddr,
    },
    /// Written bytes are lost: their memory node restarted, or a host that had changed them stopped. Every
    /// access fails until the owner accepts the loss ([`crate::Client::accept_lost`]). From then on the bytes
    /// are zeros, or have their earlier values.
    #[error(
        "{len} bytes at {base} are lost: their memory node restarted, or a host that had changed them stopped"
    )]
    MemoryLost {
        /// The first lost address in the accessed range; for a traversal, in the window where it stopped.
        base: VirtAddr,
        /// Number of lost bytes from there on, within the accessed range.
        len: u64,
    },
    /// The domain has no permission for this access.
    #[error("no permission: this client's domain may not do this at {addr}")]
    NoPermission {
        /// The address.
        addr: VirtAddr,
    },
    /// A program stored to a read-only window.
    #[error("store at {addr} in a read-only window")]
    ReadOnly {
        /// Address of the page.
        addr: VirtAddr,
    },
    /// The access starts inside an allocation and ends outside.
    #[error("{len} bytes at {addr} leave the allocation they start in")]
    OutOfBounds {
        /// Address of the first byte.
        addr: VirtAddr,
        /// Length in bytes.
        len: u64,
    },
    /// The address of an atomic operation is not a multiple of 8.
    #[error("{addr} is not a multiple of 8: atomics need an aligned address")]
    Misaligned {
        /// The address.
        addr: VirtAddr,
    },
    /// The operation is longer than `max` bytes.
    #[error("{len} bytes are more than the {max} that this operation carries")]
    TooLong {
        /// Length of the request, in bytes.
        len: usize,
        /// Maximum length, in bytes.
        max: usize,
    },
    /// The scratch pad has another length than the program's.
    #[error("the scratch pad has {have} bytes, the program's has {need}")]
    ScratchLen {
        /// Length of the given scratch pad, in bytes.
        have: usize,
        /// Length that the program requires, in bytes.
        need: usize,
    },
    /// Too many operations are pending.
    #[error("too many operations are pending")]
    QueueFull,
    /// A structure in far memory is full.
    #[error("{what} is full")]
    Full {
        /// The structure.
        what: String,
    },
    /// An object of this name already exists.
    #[error("{what} already exists")]
    Exists {
        /// Kind and name of the object.
        what: String,
    },
    /// No object has this name.
    #[error("there is no {what}")]
    Missing {
        /// Kind and name of the object.
        what: String,
    },
    /// A length is 0 where at least one byte is necessary.
    #[error("{what} has no bytes, and needs at least one")]
    Empty {
        /// The object or operation.
        what: &'static str,
    },
    /// A write overlapped each read of a record.
    #[error("a write overlapped each of {tries} reads of the record at {addr}")]
    Torn {
        /// Address of the record.
        addr: VirtAddr,
        /// Number of reads.
        tries: u32,
    },
    /// Another program's write of a record did not end in time.
    #[error("the record at {addr} is locked by {holder}, which did not release it in {tries} attempts")]
    Locked {
        /// Address of the record.
        addr: VirtAddr,
        /// The writer that holds the lock.
        holder: String,
        /// Number of attempts.
        tries: u32,
    },
    /// Other programs changed the same data before each attempt.
    #[error("other programs changed {what} first in each of {tries} attempts")]
    Contended {
        /// The data.
        what: String,
        /// Number of attempts.
        tries: u32,
    },
    /// This program did not renew its lease in time, and other programs continued without it: they may reuse
    /// the memory behind its pointers.
    #[error("the lease of this program on {heap} expired while the program held pointers there")]
    LeaseExpired {
        /// Name of the heap.
        heap: String,
    },
    /// A number is outside its range.
    #[error("{have} {what}: there may be {least} to {most}")]
    Count {
        /// The counted items.
        what: &'static str,
        /// The given number.
        have: usize,
        /// The minimum.
        least: usize,
        /// The maximum.
        most: usize,
    },
    /// The structure does not accept the key.
    #[error("key {key}: {reason}")]
    Key {
        /// The key.
        key: u64,
        /// The reason.
        reason: &'static str,
    },
    /// The bytes in far memory are not the expected structure.
    #[error("the bytes at {addr} are not {what}")]
    Broken {
        /// Address of the bytes.
        addr: VirtAddr,
        /// The expected structure.
        what: &'static str,
    },
    /// No answer arrived.
    #[error("no answer from {what}")]
    Unreachable {
        /// The role that did not answer.
        what: String,
    },
    /// This client's host was fenced: all later operations fail with this error.
    #[error(
        "host {host} of this client, in generation {generation}, was fenced: its lease expired, for example because its process was suspended, or an operator removed it"
    )]
    Fenced {
        /// The host's number.
        host: u16,
        /// The generation of this client's host.
        generation: u16,
    },
    /// The connection broke while the operation was in flight.
    #[error("the connection broke; this operation may or may not have been executed")]
    Interrupted,
    /// A traversal stopped before its end.
    #[error("the traversal stopped at {addr}: {reason}")]
    Traversal {
        /// The pointer at which the program stopped.
        addr: VirtAddr,
        /// The reason.
        reason: TraversalStop,
    },
    /// The control plane refused a request.
    #[error("{}", .0.message)]
    Refused(ApiError),
    /// The rack's description is invalid.
    #[error("{}: {message}", .file.display())]
    Config {
        /// The file.
        file: PathBuf,
        /// The position in the file, the invalid value and the expected one.
        message: String,
    },
    /// A system call failed.
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
    /// A role has stopped itself, because its state can no longer be trusted.
    #[error("{role} stops: {halt}")]
    Halted {
        /// The role.
        role: String,
        /// The reason.
        halt: farmem_machine::Halt,
    },
    /// The control plane could not be reached, or its answer is not valid.
    #[error("{message}")]
    Api {
        /// The failure.
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
    /// The key file of this user's processes cannot be used.
    #[error("{message}")]
    Keys {
        /// The failure.
        message: String,
    },
    /// The server did not prove that it is the rack's control plane. The client sent it no secret.
    #[error("{message}")]
    Untrusted {
        /// The failure.
        message: String,
    },
}

/// The reason why a traversal stopped before its program returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraversalStop {
    /// The pointer is null, or no allocation contains it.
    #[error("the pointer is not mapped")]
    NotMapped,
    /// The domain has no permission to read there, or to write if the program stores.
    #[error("the domain may not read there, or not write if the program stores")]
    NoPermission,
    /// The program accessed bytes of its window beyond the end of the allocation.
    #[error("the program accessed its window beyond the end of the allocation")]
    OutOfBounds,
    /// The program's index is outside its window or scratch pad.
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
        /// Length of the scratch pad, in bytes.
        len: usize,
        /// Length that a datagram carries, in bytes.
        max: usize,
    },
    /// Continuations of the traversal made no progress.
    #[error("two continuations made no progress")]
    Stalled,
    /// The program stores, so it runs at memory nodes only, but was to run at the host.
    #[error("a program that stores runs at the memory nodes only")]
    StoresAtHost,
    /// Another status of the rack.
    #[error("the rack answered {0:?}")]
    Other(Status),
}

impl TraversalStop {
    /// Returns true if the program is too large for this rack's datagrams. The program can still run at the
    /// host.
    pub(crate) const fn is_of_size(self) -> bool {
        matches!(self, Self::TooLarge | Self::ScratchTooLarge { .. })
    }
}

impl Error {
    /// Returns the remedy, as a sentence.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NotMapped { .. } => {
                "allocate before use, and drop addresses when their allocation is freed".into()
            }
            Self::CardMemory { .. } => {
                "use `Client::read`, `write` and atomics there; for other operations use memory of a farmem node, which `Client::allocate` returns".into()
            }
            Self::MemoryLost { .. } => {
                "call `Client::accept_lost` for these addresses, then write the data again; keep a copy elsewhere of data that must survive a memory node"
                    .into()
            }
            Self::NoPermission { .. } => "ask the owner of the allocation for a grant".into(),
            Self::ReadOnly { .. } => "only load from it, or open the window without `read_only`".into(),
            Self::OutOfBounds { .. } => "keep address and length inside one allocation".into(),
            Self::Misaligned { .. } => "place words for atomics at multiples of 8".into(),
            Self::TooLong { .. } => "split it into smaller pieces".into(),
            Self::ScratchLen { .. } => "make the scratch pad as long as Program::scratch_len says".into(),
            Self::QueueFull => "wait for completions before submitting more".into(),
            Self::Full { .. } => "create it with more capacity, or free unused entries".into(),
            Self::Exists { .. } => "open it, destroy it first, or use another name".into(),
            Self::Missing { .. } => "create it first, in the same protection domain".into(),
            Self::Empty { .. } => "give it at least one byte".into(),
            Self::Torn { .. } => "read the record again; if other programs write it all the time, replace records instead of overwriting them".into(),
            Self::Locked { .. } => {
                "try again: if the writer is gone, the lock is taken over as soon as the writer's lease has expired".into()
            }
            Self::Contended { .. } => "try again, or distribute the writes over more addresses".into(),
            Self::LeaseExpired { .. } => {
                "release all pins and repeat the operation; call `Heap::keep` between operations at least once per lease".into()
            }
            Self::Count { .. } => "give a number in this range; `farmem index plan` shows what fits a switch".into(),
            Self::Key { .. } => "use a key that the structure's documentation allows".into(),
            Self::Broken { .. } => {
                "open it at the address where it was created, and let one program write at a time".into()
            }
            Self::Unreachable { .. } => {
                "check with `farmem doctor --rack rack.toml` that the role runs, that no firewall blocks UDP port 4791, and that `pmtu` in rack.toml fits the MTU of every link on the path"
                    .into()
            }
            Self::Fenced { .. } => "create another client of the rack and repeat pending operations: allocations of a domain without other users are freed, except durable ones; \
                 `host_lease_ms` in rack.toml is the longest time that a host may be suspended"
                .into(),
            Self::Interrupted => "read the memory before you repeat the operation, unless it is idempotent".into(),
            Self::Traversal { reason, .. } if reason.is_of_size() => {
                "run it at the host (`Policy::Auto` does), or give the rack a larger `pmtu` in rack.toml"
                    .into()
            }
            Self::Traversal { reason: TraversalStop::OutOfBounds, .. } => {
                "allocate each node, the last one too, with all bytes that the program may read of it (`farmem compile --explain` says where), and check the lengths in the node"
                    .into()
            }
            Self::Traversal { .. } => "check the structure's pointers and the program's window".into(),
            Self::Refused(error) => error.remedy.clone(),
            Self::Config { .. } => "correct the file; `farmem up --example` prints a valid one".into(),
            Self::System { .. } => {
                "`farmem doctor` says what this machine allows and how to change it".into()
            }
            Self::Halted { .. } => "restart the role: it joins with empty tables, and gets tables and keys from the control plane. If the control \
                 plane was not started from a copy of its state, check which users can read the state directory; to remove the directory, stop the rack"
                .into(),
            Self::Open(_) => String::new(), // the error's text contains the remedy
            Self::Api { .. } => {
                "check with `farmem doctor --rack rack.toml` that the control plane runs: `farmem up` starts a rack of one machine, `systemctl start farmem@control` the control plane of several machines (docs/operate.md)"
                    .into()
            }
            Self::Join { file, .. } => format!(
                "on the control plane's machine, while it serves: run `farmem join --rack rack.toml`; copy the output to {}, with mode 0600",
                file.display()
            ),
            Self::Keys { .. } => "repair the file, or name another one in FARMEM_KEYS: then only the operator can use the memory of the lost keys".into(),
            Self::Untrusted { .. } => "find the process that has that port on the control plane's machine; it received no secret. After a new state directory there, copy the output of `farmem join --rack rack.toml` to this machine"
                .into(),
        }
    }

    /// Returns the control plane's error code if the control plane refused the request.
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
