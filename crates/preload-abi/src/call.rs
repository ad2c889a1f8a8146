//! The protocol between a program and its pager: handshake messages over a socket, and calls through a
//! mailbox.
//!
//! Key types: [`Hello`], [`Call`].
//!
//! Both sides are programs of one build on one machine, so words are in native format. Nothing here
//! allocates, because the program's side runs inside `malloc`.
//!
//! ```text
//!   page 0         1 .. 8          9 ..
//!   mailboxes      doorbells           far memory                       the memfd, and what the program has mapped
//! ```
//!
//! A calling thread fills a mailbox and writes to its doorbell, a write-protected page. The page fault
//! carries the call. The pager reads the mailbox, executes the call, writes the reply into the mailbox, and
//! lets the write pass. So a call needs no descriptor in the program, wakes exactly the waiting thread, and
//! is ordered with the faults.

use farmem_wire::message::PAGE_LEN;

/// The environment variable that names the pager to a program's processes.
pub const VARIABLE: &str = "FARMEM_RUN";
/// Maximum length of the socket path in [`VARIABLE`], in bytes.
pub const PATH_MAX: usize = 108;
/// Number of threads of one process that can call at once; further threads wait.
pub const MAILBOXES: usize = 4;
/// Words of a mailbox: number, call (5), status, values (4), and spare words.
pub const MAILBOX_WORDS: usize = 16;
/// Index of the word with the number of the mailbox's latest call, from 1. The caller writes it last, before
/// the doorbell.
pub const WORD_NUMBER: usize = 0;
/// Index of the call's first word in a mailbox.
pub const WORD_CALL: usize = 1;
/// Index of the status word in a mailbox: 0, an errno, [`ELSEWHERE`], [`TARGET_ELSEWHERE`] or [`NO_MORE`].
pub const WORD_STATUS: usize = WORD_CALL + CALL_WORDS;
/// Index of the first value in a mailbox. A successful call returns values.
pub const WORD_VALUE: usize = WORD_STATUS + 1;
/// Number of values in a reply.
pub const VALUES: usize = 4;
/// Offset in page 0 of the text that belongs to the first mailbox's call. The other mailboxes' texts follow.
pub const TEXTS: usize = PAGE_LEN / 2;
/// Maximum length of a text, in bytes.
pub const TEXT_MAX: usize = 256;
/// Pages before far memory. Each mailbox has two doorbells: one can be re-protected while the other is in
/// use.
pub const CONTROL_PAGES: usize = 1 + 2 * MAILBOXES;
/// Status of a call on addresses where the program has mapped something else; Linux executes such calls. In a
/// span that a child receives, it means that the parent has mapped something else there. Such spans come
/// first.
pub const ELSEWHERE: u64 = u64::MAX;
/// Status of a [`Call::Resize`] to a fixed address where something else is mapped.
pub const TARGET_ELSEWHERE: u64 = u64::MAX - 1;
/// Status of a call that exceeds the far memory that the pager can commit.
pub const NO_MORE: u64 = u64::MAX - 2;
/// Index in page 0 of the first counter of local bytes. A process counts the bytes of its mappings of memory that
/// stayed local there, one word for each [`LocalReason`].
pub const WORD_LOCAL: usize = MAILBOXES * MAILBOX_WORDS;
/// Maximum number of spans in one message of a reply.
pub const SPANS_MAX: usize = 256;

const _: () =
    assert!((WORD_LOCAL + LocalReason::ALL.len()) * 8 <= TEXTS && WORD_VALUE + VALUES <= MAILBOX_WORDS);
const _: () = assert!(TEXTS + MAILBOXES * TEXT_MAX <= PAGE_LEN);

/// The reason for a mapping to stay local.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalReason {
    /// The program requires an address of its choice.
    Address,
    /// The mapping is for code: executable, and not writable.
    Executable,
    /// The mapping is fixed at an address outside far memory.
    Fixed,
    /// The mapping is of a kind that far memory does not support: a stack, huge pages, or 32-bit addresses.
    Kind,
    /// The mapping is shorter than the threshold.
    Small,
    /// No address range for far memory is free.
    NoRoom,
    /// The mapping is shared with other mappings: anonymous, or of a file in memory.
    Shared,
}

impl LocalReason {
    /// All reasons, in the order of their words.
    pub const ALL: [Self; 7] =
        [Self::Address, Self::Executable, Self::Fixed, Self::Kind, Self::Small, Self::NoRoom, Self::Shared];
}

/// Returns the page of the doorbell for call `number` of a mailbox.
#[must_use]
pub const fn doorbell(mailbox: usize, number: u64) -> usize {
    1 + 2 * mailbox + if number.is_multiple_of(2) { 0 } else { 1 }
}

/// Words of the reply to a [`Hello`]: the status, the number of spans that follow, and the address and length
/// of the shared mapping (0 without one).
pub const WELCOME_WORDS: usize = 4;
/// Words of a [`Hello`].
pub const HELLO_WORDS: usize = 7;
/// Magic number of a [`Hello`], with the protocol version.
const MAGIC: u64 = u64::from_le_bytes(*b"farmem02");
/// Magic number of a [`device_request`].
const DEVICE_MAGIC: u64 = u64::from_le_bytes(*b"farmemdv");

/// The first message of a process, sent with its userfaultfd and memfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The secret from the invitation, which proves that the process was invited.
    pub token: u128,
    /// Address of the memfd's mapping in the process.
    pub base: u64,
    /// Length of that mapping in bytes.
    pub len: u64,
    /// In a fork's child, the reply to [`Call::Fork`]; 0 in a new program.
    pub snapshot: u64,
    /// True when the userfaultfd also reports faults of the kernel.
    pub full: bool,
}

/// Returns the message by which a process requests the userfaultfd device. A process that has given up root's
/// rights sends it before its [`Hello`], because it may not open a userfaultfd itself. The reply has the
/// format of the reply to a [`Hello`], with the device as the file.
#[must_use]
pub const fn device_request(token: u128) -> [u64; HELLO_WORDS] {
    let (high, low) = halves(token);
    [DEVICE_MAGIC, high, low, 0, 0, 0, 0]
}

impl Hello {
    /// Encodes the message.
    #[must_use]
    pub const fn words(&self) -> [u64; HELLO_WORDS] {
        let (high, low) = halves(self.token);
        [MAGIC, high, low, self.base, self.len, self.snapshot, self.full as u64]
    }

    /// Decodes a message; returns `None` for words that are no [`Hello`].
    #[must_use]
    pub const fn of(words: [u64; HELLO_WORDS]) -> Option<Self> {
        let [magic, high, low, base, len, snapshot, full] = words;
        if magic != MAGIC || full > 1 {
            return None;
        }
        let token = ((high as u128) << 64) | low as u128;
        Some(Self { token, base, len, snapshot, full: full == 1 })
    }
}

const fn halves(token: u128) -> (u64, u64) {
    let [a, b, c, d, e, f, g, h, rest @ ..] = token.to_be_bytes();
    (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from_be_bytes(rest))
}

/// A request of a program's process to its pager. Addresses are the program's; ranges consist of whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Allocates addresses for `len` bytes of zeros. The reply is the first address.
    Map {
        /// Length in bytes.
        len: u64,
        /// Access rights, as in `mmap`.
        protection: u64,
        /// Preferred address, used if it is free far memory; else the result has the same alignment. 0 for no
        /// preference.
        hint: u64,
        /// True for MAP_NORESERVE: the pager commits nothing, and a later access may find too little far
        /// memory.
        unreserved: bool,
    },
    /// Replaces a range by zeros, for a fixed mapping.
    Renew {
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        len: u64,
        /// Access rights of the new mapping.
        protection: u64,
        /// See [`Call::Map`].
        unreserved: bool,
    },
    /// Frees addresses.
    Unmap {
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Discards bytes, so that they read as zeros. The status is ENOMEM, after the work, if part of the range
    /// is unmapped.
    Drop {
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        len: u64,
        /// True for MADV_FREE, which Linux does later, and only for private anonymous memory. If only a part
        /// of the range is far memory, the status is EINVAL and nothing changes.
        lazily: bool,
    },
    /// Changes access rights. The reply is the number of bytes changed, up to the first unmapped one.
    Protect {
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        len: u64,
        /// New access rights.
        protection: u64,
    },
    /// Makes the bytes available at more or at other addresses. If the address changes, the caller unmaps the
    /// old range. The reply is the new address, a multiple of the page size, with the access rights in its
    /// low bits. The status is EAGAIN while pages are pinned.
    Resize {
        /// Address of the first byte.
        start: u64,
        /// Current length in bytes.
        len: u64,
        /// New length in bytes.
        new_len: u64,
        /// Placement of the new range: one of [`resize`].
        how: u64,
    },
    /// Announces that the program maps something else over a range.
    Replace {
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Sets whether children of forks get the bytes, or inaccessible addresses. The status is ENOMEM, after
    /// the work, if part of the range is unmapped.
    Inherit {
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        len: u64,
        /// True when children get the bytes, the default.
        inherited: bool,
    },
    /// Announces a fork by this thread. The reply is the snapshot number for the child's [`Hello`]. Other
    /// threads' faults wait until [`Call::Forked`].
    Fork,
    /// Announces that the fork is done or has failed.
    Forked,
    /// Opens the shared object that is named by the mailbox's text. The reply is its number, its length, and
    /// the address and length of its memory, as for all calls about objects.
    Open {
        /// Length of the name in bytes.
        len: u64,
        /// True to create a missing object.
        create: bool,
        /// With `create`: true to refuse an existing object.
        exclusive: bool,
    },
    /// Looks up the shared object of this number, and registers the process as a user of it.
    Hold {
        /// Number of the object.
        object: u64,
    },
    /// Sets the length of a shared object.
    Truncate {
        /// Number of the object.
        object: u64,
        /// New length in bytes.
        length: u64,
    },
    /// Removes the object name that is in the mailbox's text.
    Unlink {
        /// Length of the name in bytes.
        len: u64,
    },
    /// Pins pages of a process of this run before the kernel writes to them past its mappings
    /// (`process_vm_writev`). The pages stay in place until [`Call::Unpin`]. The reply is the pin's number
    /// and the number of writable bytes from `start` on: at least one, possibly fewer than `len`.
    ///
    /// Errors:
    /// - ESRCH when the process is not of this run, or has no far memory.
    /// - EAGAIN while too much is pinned.
    /// - EOPNOTSUPP for shared memory, and for other processes when the caller is in another PID namespace
    ///   than the pager.
    Pin {
        /// The caller's process id in its own PID namespace.
        caller: u64,
        /// Process id of the target process.
        pid: u64,
        /// Address of the first byte in the target process.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Removes a pin, after the write.
    Unpin {
        /// Number of the pin; 0 when no pin was needed.
        pin: u64,
    },
    /// Returns the number of mapped bytes from `start` on, up to the first unmapped one.
    Mapped {
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
}

/// Placement of the new range of a [`Call::Resize`].
pub mod resize {
    /// The range must stay in place.
    pub const IN_PLACE: u64 = 0;
    /// The range may move if there is no room in place.
    pub const MAY_MOVE: u64 = 1;
    /// Values from here on are the fixed target address.
    pub const FIXED_MIN: u64 = 4096;
}

/// Words of a [`Call`].
pub const CALL_WORDS: usize = 5;

impl Call {
    /// Encodes the call for a mailbox.
    #[must_use]
    pub const fn words(self) -> [u64; CALL_WORDS] {
        match self {
            Self::Map { len, protection, hint, unreserved } => [1, len, protection, hint, unreserved as u64],
            Self::Renew { start, len, protection, unreserved } => {
                [2, start, len, protection, unreserved as u64]
            }
            Self::Unmap { start, len } => [3, start, len, 0, 0],
            Self::Drop { start, len, lazily } => [4, start, len, lazily as u64, 0],
            Self::Protect { start, len, protection } => [5, start, len, protection, 0],
            Self::Resize { start, len, new_len, how } => [6, start, len, new_len, how],
            Self::Replace { start, len } => [7, start, len, 0, 0],
            Self::Fork => [8, 0, 0, 0, 0],
            Self::Forked => [9, 0, 0, 0, 0],
            Self::Open { len, create, exclusive } => [10, len, create as u64, exclusive as u64, 0],
            Self::Hold { object } => [11, object, 0, 0, 0],
            Self::Truncate { object, length } => [12, object, length, 0, 0],
            Self::Unlink { len } => [13, len, 0, 0, 0],
            Self::Pin { caller, pid, start, len } => [14, caller, pid, start, len],
            Self::Unpin { pin } => [15, pin, 0, 0, 0],
            Self::Inherit { start, len, inherited } => [16, start, len, inherited as u64, 0],
            Self::Mapped { start, len } => [17, start, len, 0, 0],
        }
    }

    /// Decodes a call from a mailbox; returns `None` for words that are no call.
    #[must_use]
    pub const fn of(words: [u64; CALL_WORDS]) -> Option<Self> {
        Some(match words {
            [1, len, protection, hint, unreserved] => {
                Self::Map { len, protection, hint, unreserved: unreserved != 0 }
            }
            [2, start, len, protection, unreserved] => {
                Self::Renew { start, len, protection, unreserved: unreserved != 0 }
            }
            [3, start, len, ..] => Self::Unmap { start, len },
            [4, start, len, lazily, _] => Self::Drop { start, len, lazily: lazily != 0 },
            [5, start, len, protection, _] => Self::Protect { start, len, protection },
            [6, start, len, new_len, how] => Self::Resize { start, len, new_len, how },
            [7, start, len, ..] => Self::Replace { start, len },
            [8, ..] => Self::Fork,
            [9, ..] => Self::Forked,
            [10, len, create, exclusive, _] => {
                Self::Open { len, create: create != 0, exclusive: exclusive != 0 }
            }
            [11, object, ..] => Self::Hold { object },
            [12, object, length, ..] => Self::Truncate { object, length },
            [13, len, ..] => Self::Unlink { len },
            [14, caller, pid, start, len] => Self::Pin { caller, pid, start, len },
            [15, pin, ..] => Self::Unpin { pin },
            [16, start, len, inherited, _] => Self::Inherit { start, len, inherited: inherited != 0 },
            [17, start, len, ..] => Self::Mapped { start, len },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_and_calls_come_back_as_they_went() {
        let token = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
        let hello = Hello { token, base: 4096, len: 1 << 30, snapshot: 7, full: true };
        assert_eq!(Hello::of(hello.words()), Some(hello));
        let mut other = hello.words();
        other[0] += 1;
        assert_eq!(Hello::of(other), None);
        assert_eq!(Hello::of(device_request(token)), None);
        let (start, len, protection) = (4096, 8192, 3);
        let calls = [
            Call::Map { len, protection, hint: 1 << 40, unreserved: true },
            Call::Renew { start, len, protection, unreserved: true },
            Call::Unmap { start, len },
            Call::Drop { start, len, lazily: true },
            Call::Protect { start, len, protection },
            Call::Resize { start, len, new_len: 4 * len, how: resize::MAY_MOVE },
            Call::Replace { start, len },
            Call::Fork,
            Call::Forked,
            Call::Open { len, create: true, exclusive: false },
            Call::Hold { object: u64::MAX },
            Call::Truncate { object: 7, length: len },
            Call::Unlink { len },
            Call::Pin { caller: 2, pid: 3, start, len },
            Call::Unpin { pin: 4 },
            Call::Inherit { start, len, inherited: true },
            Call::Mapped { start, len },
        ];
        for call in calls {
            assert_eq!(Call::of(call.words()), Some(call));
        }
        assert_eq!(Call::of([0; CALL_WORDS]), None);
    }

    /// Each mailbox has two doorbells, and no two mailboxes share one.
    #[test]
    fn bells_are_apart() {
        let mut doorbells: Vec<usize> =
            (0..MAILBOXES).flat_map(|m| [doorbell(m, 1), doorbell(m, 2)]).collect();
        doorbells.sort_unstable();
        assert_eq!(doorbells, (1..CONTROL_PAGES).collect::<Vec<_>>());
    }
}
