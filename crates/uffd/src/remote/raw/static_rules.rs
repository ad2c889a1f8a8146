//! Further rules for a run that serves static programs, which have no library that makes these calls for them.

use super::{AT_START, Condition, REPLACES, RawCall, Rule, int, map};

#[cfg(target_arch = "x86_64")]
const COUNT: usize = 5;
#[cfg(not(target_arch = "x86_64"))]
const COUNT: usize = 4;

/// The rules, which come before the others.
pub(super) static STATIC_RULES: [Rule; COUNT] = [
    Rule { number: libc::SYS_mmap, when: &[&[REPLACES, AT_START], MAPS_FAR], means: map },
    Rule { number: libc::SYS_brk, when: &[&[MOVES_BREAK]], means: set_break },
    Rule { number: libc::SYS_clone, when: &[&[Condition::PastLibrary, COPIES_MEMORY]], means: fork },
    Rule { number: libc::SYS_clone3, when: &[&[Condition::PastLibrary]], means: fork_by_record },
    #[cfg(target_arch = "x86_64")]
    Rule { number: libc::SYS_fork, when: &[&[Condition::PastLibrary]], means: fork },
];

/// Flags of private anonymous mappings that far memory does not support.
pub(super) const NOT_FAR: i32 = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_GROWSDOWN
    | libc::MAP_STACK
    | libc::MAP_HUGETLB
    | LOW;
#[cfg(target_arch = "x86_64")]
const LOW: i32 = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const LOW: i32 = 0;
const PRIVATE_ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

const MAPS_FAR: &[Condition] = &[
    Condition::Bits {
        argument: 3,
        mask: (libc::MAP_TYPE | libc::MAP_ANONYMOUS | NOT_FAR).cast_unsigned(),
        value: PRIVATE_ANONYMOUS.cast_unsigned(),
    },
    Condition::Bits { argument: 2, mask: libc::PROT_EXEC.cast_unsigned(), value: 0 },
    Condition::Long { argument: 1 },
];
const MOVES_BREAK: Condition = Condition::Not { argument: 0, value: 0 };
const COPIES_MEMORY: Condition =
    Condition::Bits { argument: 0, mask: libc::CLONE_VM.cast_unsigned(), value: 0 };

impl RawCall {
    /// Returns true for an `mmap` that becomes far if its length is at least `threshold`.
    #[must_use]
    pub const fn maps_far(&self, threshold: u64) -> bool {
        match *self {
            Self::Map { len, protection, flags, .. } => {
                flags & (libc::MAP_TYPE | libc::MAP_ANONYMOUS | NOT_FAR) == PRIVATE_ANONYMOUS
                    && int(protection) & libc::PROT_EXEC == 0
                    && len >= threshold
                    && len > 0
            }
            _ => false,
        }
    }

    /// Returns true for an `mmap` with MAP_FIXED, which replaces mappings.
    #[must_use]
    pub const fn replaces(&self) -> bool {
        match *self {
            Self::Map { flags, .. } => {
                flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED
            }
            _ => false,
        }
    }

    /// Returns true for a fixed `mmap` of private anonymous memory that far memory can replace.
    #[must_use]
    pub const fn renews(&self) -> bool {
        const OTHER: i32 = libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;
        match *self {
            Self::Map { protection, flags, .. } => {
                self.replaces()
                    && flags & (libc::MAP_TYPE | libc::MAP_ANONYMOUS | OTHER) == PRIVATE_ANONYMOUS
                    && int(protection) & libc::PROT_EXEC == 0
            }
            _ => false,
        }
    }
}

const fn set_break(&[to, ..]: &[u64; 6]) -> RawCall {
    RawCall::Break { to }
}

const fn fork(_: &[u64; 6]) -> RawCall {
    RawCall::Fork
}

const fn fork_by_record(_: &[u64; 6]) -> RawCall {
    RawCall::ForkByRecord
}
