//! What a program and its pager say to each other: the words of a greeting over a socket, and of calls through a mailbox.
//!
//! Key types: [`Hello`], [`Call`]. Both sides are programs of one build on one machine, so words are as the machine has them.
//! Nothing here allocates: the program's side runs inside of `malloc`.
//!
//! ```text
//!   page 0         1 .. 8          9 ..
//!   mailboxes      doorbells           far memory                       the memfd, and what the program has mapped
//! ```
//!
//! A thread that calls fills a mailbox and writes to its doorbell, a page that is write-protected. The fault is the call: the pager reads
//! the mailbox, does it, answers in the mailbox, and lets the write pass. So a call needs no descriptor in the program, wakes exactly
//! the thread that waits, and comes in order with the faults.

use farmem_wire::message::PAGE_LEN;

/// The variable that names the pager to a program's processes.
pub const VARIABLE: &str = "FARMEM_RUN";
/// Bytes of the path in it at most.
pub const PATH_MAX: usize = 108;
/// Threads of one process that can call at once; more wait for each other.
pub const MAILBOXES: usize = 4;
/// Words of a mailbox: number, call (5), status, values (4); and some to spare.
pub const MAILBOX_WORDS: usize = 16;
/// Of a mailbox: the number of its latest call, from 1; written last before the doorbell is rung.
pub const WORD_NUMBER: usize = 0;
/// Of a mailbox: the first of the call's words.
pub const WORD_CALL: usize = 1;
/// Of a mailbox: 0, or why not, as a number of the system's; [`ELSEWHERE`].
pub const WORD_STATUS: usize = WORD_CALL + CALL_WORDS;
/// Of a mailbox: the first of the values that a call which went well answers.
pub const WORD_VALUE: usize = WORD_STATUS + 1;
/// Values of an answer.
pub const VALUES: usize = 4;
/// Where the text that goes with the call of the first mailbox is in page 0; those of the others are behind it.
pub const TEXTS: usize = PAGE_LEN / 2;
/// Bytes of a text at most.
pub const TEXT_MAX: usize = 256;
/// Pages before far memory. Each mailbox has two doorbells, so that one can be hung up while the other is in use.
pub const CONTROL_PAGES: usize = 1 + 2 * MAILBOXES;
/// The status of a call about addresses that are mapped to something else: they are the system's. Of a span that a child is told of: the
/// parent has mapped something else there. Such spans come first.
pub const ELSEWHERE: u64 = u64::MAX;
/// The status of a [`Call::Resize`] to a fixed address where something else is mapped.
pub const TARGET_ELSEWHERE: u64 = u64::MAX - 1;
/// The status of a call that would have the pager promise more far memory than there is.
pub const NO_MORE: u64 = u64::MAX - 2;
/// Of page 0: the first of the words in which a process counts the bytes of its private anonymous mappings that stayed local, one word for each
/// [`LocalReason`].
pub const WORD_LOCAL: usize = MAILBOXES * MAILBOX_WORDS;
/// Spans in one message of an answer.
pub const SPANS_MAX: usize = 256;

const _: () =
    assert!((WORD_LOCAL + LocalReason::ALL.len()) * 8 <= TEXTS && WORD_VALUE + VALUES <= MAILBOX_WORDS);
const _: () = assert!(TEXTS + MAILBOXES * TEXT_MAX <= PAGE_LEN);

/// Why a mapping stays local.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalReason {
    /// The program insists on an address of its choice.
    Address,
    /// The mapping is executable.
    Executable,
    /// The mapping is fixed at an address that is not far memory's.
    Fixed,
    /// A stack, or memory of another kind that far memory does not have (huge pages, addresses of 32 bits).
    Kind,
    /// The mapping is shorter than the threshold.
    Small,
    /// The addresses for far memory are used up.
    NoRoom,
}

impl LocalReason {
    /// All reasons, in the order of their words.
    pub const ALL: [Self; 6] =
        [Self::Address, Self::Executable, Self::Fixed, Self::Kind, Self::Small, Self::NoRoom];
}

/// The page of the doorbell that rings for call `number` of a mailbox.
#[must_use]
pub const fn doorbell(mailbox: usize, number: u64) -> usize {
    1 + 2 * mailbox + if number.is_multiple_of(2) { 0 } else { 1 }
}

/// Words of the answer to a [`Hello`]: a status, how many spans follow, and the first byte and bytes of what is shared; 0 when nothing is.
pub const WELCOME_WORDS: usize = 4;
/// Words of a [`Hello`].
pub const HELLO_WORDS: usize = 7;
/// Says that a greeting is one, and of which version.
const MAGIC: u64 = u64::from_le_bytes(*b"farmem02");
/// Says that it is a [`device_request`].
const DEVICE_MAGIC: u64 = u64::from_le_bytes(*b"farmemdv");

/// What a process says when it comes, with its userfaultfd and memfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// That it was invited.
    pub token: u128,
    /// Where it has the memfd mapped.
    pub base: u64,
    /// Bytes of it.
    pub len: u64,
    /// Of a fork's child: what the call [`Call::Fork`] answered; 0 of a new program.
    pub snapshot: u64,
    /// True when faults of the kernel are reported too.
    pub full: bool,
}

/// What a process says before its greeting when it may not open a userfaultfd itself, as one that gave up root's rights: it asks for the
/// system's device, by which it may. It is answered as a greeting is, with the device instead of a file.
#[must_use]
pub const fn device_request(token: u128) -> [u64; HELLO_WORDS] {
    let (high, low) = halves(token);
    [DEVICE_MAGIC, high, low, 0, 0, 0, 0]
}

impl Hello {
    /// As it travels.
    #[must_use]
    pub const fn words(&self) -> [u64; HELLO_WORDS] {
        let (high, low) = halves(self.token);
        [MAGIC, high, low, self.base, self.len, self.snapshot, self.full as u64]
    }

    /// From the words that came; `None` when they are no greeting.
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

/// What a program's process asks for. Addresses are the program's; ranges are of whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Addresses for `len` bytes of zeros. The answer is the first.
    Map {
        /// Bytes.
        len: u64,
        /// What may be done there, as `mmap` has it.
        protection: u64,
        /// Where the program would like to have it, if that is in far memory and free; else as aligned as this. 0 for anywhere.
        hint: u64,
        /// Nothing is promised (MAP_NORESERVE): there may be too little far memory when it is touched.
        unreserved: bool,
    },
    /// Zeros in the place of what is there, for a fixed mapping.
    Renew {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
        /// What may be done there.
        protection: u64,
        /// As of [`Call::Map`].
        unreserved: bool,
    },
    /// The addresses are not used any more.
    Unmap {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
    },
    /// The bytes are not needed any more; zeros are as good. ENOMEM, when it is done, where some are not in use.
    Drop {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
        /// The system would take its time (MADV_FREE), and does so for private anonymous memory only: EINVAL, and nothing is done, where only a part is
        /// far.
        lazily: bool,
    },
    /// What may be done there is another. The answer is how many bytes it holds for: up to the first that are not in use.
    Protect {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
        /// What may be done.
        protection: u64,
    },
    /// The bytes shall be found at more or other addresses; the old ones are to be unmapped when they are others. The answer is where; an address is
    /// a multiple of the page, and the low bits of the answer say what may be done there. EAGAIN while pages are pinned.
    Resize {
        /// First byte.
        start: u64,
        /// Bytes now.
        len: u64,
        /// Bytes from then on.
        new_len: u64,
        /// How: one of [`resize`].
        how: u64,
    },
    /// Something else is mapped there from now on.
    Replace {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
    },
    /// Whether the children of forks have the bytes, or addresses that cannot be touched. ENOMEM, when it is done, where some are not in use.
    Inherit {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
        /// They have them, as at first.
        inherited: bool,
    },
    /// This thread is about to fork. The answer is what the child greets with. Until [`Call::Forked`] other threads' faults wait.
    Fork,
    /// It has forked, or could not.
    Forked,
    /// The shared object whose name is the mailbox's text. The answer is its number, length, first byte and bytes of memory, as of all
    /// calls about objects.
    Open {
        /// Bytes of the name.
        len: u64,
        /// Makes it when there is none.
        create: bool,
        /// With `create`: refuses one that is there.
        exclusive: bool,
    },
    /// The shared object of this number.
    Hold {
        /// The object.
        object: u64,
    },
    /// The shared object gets a length.
    Truncate {
        /// The object.
        object: u64,
        /// Bytes.
        length: u64,
    },
    /// The name that is the mailbox's text is free again.
    Unlink {
        /// Bytes of the name.
        len: u64,
    },
    /// The system is about to write to a process of this run, past its mappings (`process_vm_writev`): its pages there shall stay until
    /// [`Call::Unpin`]. The answer is the pin's number, and how many bytes from `start` on may be written: at least one, and
    /// maybe fewer than asked. ESRCH when the process is not of this run, or has no far memory; EAGAIN while too much is pinned; EOPNOTSUPP for
    /// shared memory, and for other processes when the caller does not know them by the numbers that the pager does.
    Pin {
        /// The number that the caller has in its own eyes.
        caller: u64,
        /// The process that is written to.
        pid: u64,
        /// First byte, in that process.
        start: u64,
        /// Bytes.
        len: u64,
    },
    /// The system has written.
    Unpin {
        /// The pin's number; 0 for one that was not needed.
        pin: u64,
    },
    /// How many bytes are mapped, up to the first that are not.
    Mapped {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
    },
}

/// How [`Call::Resize`] may find other addresses.
pub mod resize {
    /// Not at all.
    pub const IN_PLACE: u64 = 0;
    /// When there is no room in place.
    pub const MAY_MOVE: u64 = 1;
    /// Bigger values: at this address.
    pub const FIXED_MIN: u64 = 4096;
}

/// Words of a [`Call`].
pub const CALL_WORDS: usize = 5;

impl Call {
    /// As it stands in a mailbox.
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

    /// From a mailbox; `None` when there is no call in it.
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

    /// A mailbox has two doorbells, and no two mailboxes share one.
    #[test]
    fn bells_are_apart() {
        let mut doorbells: Vec<usize> =
            (0..MAILBOXES).flat_map(|m| [doorbell(m, 1), doorbell(m, 2)]).collect();
        doorbells.sort_unstable();
        assert_eq!(doorbells, (1..CONTROL_PAGES).collect::<Vec<_>>());
    }
}
