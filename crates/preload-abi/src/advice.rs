//! The effect of each `madvise` advice on far memory. Pure functions, for calls through libc and past it.

/// The action that an advice requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advised {
    /// Drops the bytes; the next access reads zeros.
    Drop {
        /// True for `MADV_FREE`, which Linux does later, and only for private anonymous memory.
        lazily: bool,
    },
    /// Tells the pager whether children of forks get the bytes.
    Inherit {
        /// True when children get the bytes.
        inherited: bool,
    },
    /// No action: there are no such pages, the pager would fetch them one by one, or children have them in
    /// another way.
    Nothing,
    /// Passes the call on to Linux, which does the right thing.
    System,
    /// Refuses the advice with EINVAL, as a system without the feature does. Linux sees pages of a shared
    /// file here. `MADV_REMOVE` would remove bytes that anonymous memory keeps, and `MADV_GUARD_INSTALL`
    /// would never end.
    Refused,
}

/// `MADV_DONTNEED_LOCKED`: `MADV_DONTNEED` that includes locked pages. The libc crate lacks it.
const DONTNEED_LOCKED: i32 = 24;
/// `MADV_KEEPONFORK`: children get the bytes, which is the default.
const KEEPONFORK: i32 = 19;

/// Returns the action for private far memory.
#[must_use]
pub const fn advised(advice: i32) -> Advised {
    match advice {
        libc::MADV_DONTNEED | DONTNEED_LOCKED => Advised::Drop { lazily: false },
        libc::MADV_FREE => Advised::Drop { lazily: true },
        // Linux never sees this advice: its own fork must not inherit far memory, so the pager keeps the
        // setting.
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

/// Returns the action for shared memory, which keeps its bytes under every advice. Children get it from the
/// preload library, not from the fork of Linux.
#[must_use]
pub const fn advised_shared(advice: i32) -> Advised {
    match advice {
        libc::MADV_REMOVE | libc::MADV_FREE | libc::MADV_HWPOISON => Advised::Refused,
        _ => Advised::Nothing,
    }
}
