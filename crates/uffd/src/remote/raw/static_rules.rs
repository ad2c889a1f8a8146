//! Further rules for a run that serves static programs, which have no library that makes these calls for them.

use super::{AT_START, Condition, Part, REPLACES, RawCall, Rule, bits, int, map};
use farmem_preload_abi::NOT_FAR;

#[cfg(target_arch = "x86_64")]
const COUNT: usize = 7;
#[cfg(not(target_arch = "x86_64"))]
const COUNT: usize = 6;

/// The rules, which come before the others.
pub(super) static STATIC_RULES: [Rule; COUNT] = [
    Rule {
        number: libc::SYS_mmap,
        when: &[&[REPLACES, AT_START], MAPS_DATA, MAPS_WRITABLE_CODE],
        means: map,
    },
    Rule { number: libc::SYS_brk, when: &[&[MOVES_BREAK]], means: set_break },
    Rule {
        number: libc::SYS_clone,
        when: &[&[Condition::PastLibrary, COPIES_MEMORY], &[bits(0, libc::CLONE_CHILD_CLEARTID), THREAD_ID]],
        means: clone,
    },
    Rule { number: libc::SYS_set_tid_address, when: &[&[AT_START]], means: thread_id },
    Rule { number: libc::SYS_rseq, when: &[&[AT_START]], means: record },
    Rule { number: libc::SYS_clone3, when: &[&[Condition::PastLibrary]], means: fork_by_record },
    #[cfg(target_arch = "x86_64")]
    Rule { number: libc::SYS_fork, when: &[&[Condition::PastLibrary]], means: fork },
];

const PRIVATE_ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

const MAPS_DATA: &[Condition] = &[
    SUPPORTED,
    Condition::Bits { argument: 2, mask: libc::PROT_EXEC.cast_unsigned(), value: 0 },
    Condition::Long { argument: 1 },
];
const MAPS_WRITABLE_CODE: &[Condition] =
    &[SUPPORTED, bits(2, libc::PROT_WRITE | libc::PROT_EXEC), Condition::Long { argument: 1 }];
const SUPPORTED: Condition = Condition::Bits {
    argument: 3,
    mask: (libc::MAP_TYPE | libc::MAP_ANONYMOUS | NOT_FAR).cast_unsigned(),
    value: PRIVATE_ANONYMOUS.cast_unsigned(),
};
/// Argument of `clone` with the address of the thread's number (x86-64). The pager looks at the length again.
const CHILD_TID: usize = 3;
const THREAD_ID: Condition = Condition::Far(Part { first: CHILD_TID, len: 0 });
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
                    && is_data(protection)
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
                    && is_data(protection)
            }
            _ => false,
        }
    }
}

/// Returns true for the rights of data, which a program may also execute. Mappings for code alone are local.
const fn is_data(protection: u64) -> bool {
    int(protection) & (libc::PROT_WRITE | libc::PROT_EXEC) != libc::PROT_EXEC
}

const fn set_break(&[to, ..]: &[u64; 6]) -> RawCall {
    RawCall::Break { to }
}

const fn clone(arguments: &[u64; 6]) -> RawCall {
    if int(arguments[0]) & libc::CLONE_VM == 0 {
        return RawCall::Fork;
    }
    RawCall::Register { first: arguments[CHILD_TID], len: THREAD_ID_LEN }
}

const fn thread_id(&[first, ..]: &[u64; 6]) -> RawCall {
    RawCall::Register { first, len: THREAD_ID_LEN }
}

/// Bytes of a thread's number.
const THREAD_ID_LEN: u64 = 4;

const fn record(&[first, len, ..]: &[u64; 6]) -> RawCall {
    RawCall::Register { first, len }
}

const fn fork(_: &[u64; 6]) -> RawCall {
    RawCall::Fork
}

const fn fork_by_record(_: &[u64; 6]) -> RawCall {
    RawCall::ForkByRecord
}
