//! What `madvise` comes to where far memory is, whichever way it is called. Pure.

/// What to do about an advice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advised {
    /// The bytes go; the next touch finds zeros.
    Drop {
        /// The system would take its time, and does so for private anonymous memory only.
        lazily: bool,
    },
    /// The pager does it: whether the children of forks have the bytes.
    Inherit {
        /// They do.
        inherited: bool,
    },
    /// Nothing: there are no such pages, they would be fetched one by one, or a child has them in another way.
    Nothing,
    /// What the system does with it is right.
    System,
    /// Refused (EINVAL), by which programs find out that a system has no such thing. To the system these are pages of a file that is shared: it
    /// would take bytes away that anonymous memory keeps (`MADV_REMOVE`), or never come to an end (`MADV_GUARD_INSTALL`).
    Refused,
}

/// As MADV_DONTNEED, of locked pages too; newer than libc's list.
const DONTNEED_LOCKED: i32 = 24;
/// A child is to have it, as it has.
const KEEPONFORK: i32 = 19;

/// Of private far memory.
#[must_use]
pub const fn advised(advice: i32) -> Advised {
    match advice {
        libc::MADV_DONTNEED | DONTNEED_LOCKED => Advised::Drop { lazily: false },
        libc::MADV_FREE => Advised::Drop { lazily: true },
        // Not the system's: the pager relies on far memory not being inherited by the system's fork.
        libc::MADV_DONTFORK => Advised::Inherit { inherited: false },
        libc::MADV_DOFORK => Advised::Inherit { inherited: true },
        libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_WILLNEED
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_DODUMP
        | libc::MADV_DONTDUMP => Advised::Nothing,
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_POPULATE_READ
        | libc::MADV_POPULATE_WRITE
        | KEEPONFORK => Advised::System,
        _ => Advised::Refused,
    }
}

/// Of shared memory, which keeps its bytes whatever is advised; a child has it in another way than by the system's fork.
#[must_use]
pub const fn advised_shared(advice: i32) -> Advised {
    match advice {
        libc::MADV_REMOVE | libc::MADV_FREE | libc::MADV_HWPOISON => Advised::Refused,
        _ => Advised::Nothing,
    }
}
