//! System calls that a program makes without libc, and so without the preload library: the kernel asks the pager
//! before it executes them.
//!
//! Key types: [`Watched`], the addresses that the filter of a run knows; [`Started`], a program under it;
//! [`Listener`], which receives the calls; [`RawCall`], such a call. The filter is seccomp with user notification: it
//! applies to a thread and all its descendants, whatever programs they run. So it also covers processes without far
//! memory, and the pager lets those calls proceed. Calls of the preload library come from one instruction
//! (`place::gate`), which the filter knows: they are not notified.
//!
//! Memory calls of Linux 6.18, and their effect in a process with far memory when they are made without libc:
//!
//! | calls | on far memory |
//! |---|---|
//! | `madvise` | done as through libc; MADV_FREE and MADV_DOFORK of far memory together with other memory are refused, EINVAL |
//! | `munmap`, `mmap` with MAP_FIXED, `mremap` to there | done by the kernel; then the pager reads the mappings |
//! | `mprotect`, `pkey_mprotect` without a key | done by the kernel where all of it is in use (else ENOMEM); then the pager reads the rights |
//! | `pkey_mprotect` with a key | refused, EINVAL: a fork's child would not have it |
//! | `mremap` of far memory | shrinks; growing and moving are refused, ENOMEM; a second mapping of it, EINVAL |
//! | `remap_file_pages`, `shmat` with SHM_REMAP | refused, EINVAL |
//! | `mseal` | refused, ENOSYS |
//! | `process_madvise` | refused, EINVAL, as before Linux 6.13, except for advice that frees no bytes |
//! | `io_uring_setup` | refused, EPERM, as by `kernel.io_uring_disabled`: no filter sees the operations of a ring |
//! | `socket` with AF_ALG or AF_XDP | refused, EAFNOSUPPORT: a read pins its buffer (AF_ALG), a ring of frames is pinned for good (AF_XDP) |
//! | `ioctl` SG_IO, NVMe commands; all of RDMA verbs, of VFIO and of iommufd | refused, EPERM: a device writes to the pages that it names |
//! | `open`, `openat`, `open_by_handle_at` with O_DIRECT; `fcntl` that sets it | refused, EINVAL, as by file systems without it |
//! | `openat2` | as `openat`; ENOSYS where its arguments lie in far memory |
//! | all of these on shared memory | refused, EINVAL; advice is without effect |
//! | `mmap` of long private anonymous memory, `brk`, `fork`, `clone`, `clone3`, `set_tid_address` and `rseq` of programs without the library | notified only if the run serves such programs (`static_rules`) |
//! | `mmap` elsewhere, or with MAP_FIXED_NOREPLACE; `shmat` else; `map_shadow_stack`, `brk` | not notified: the kernel replaces nothing |
//! | `mlock`, `mlock2`, `mlockall`, `munlock`, `msync`, `mincore`, `mbind`, `move_pages`, `migrate_pages`, `set_mempolicy` and similar calls, `get_mempolicy`, `cachestat`, `pkey_alloc`, `membarrier` | not notified: bytes and rights stay |
//! | `userfaultfd` of the program's own | not notified: the kernel refuses to register a registered range (EBUSY) |
//! | `fork`, `vfork`, `clone`, `clone3` | not notified: the kernel's child has no far memory (MADV_DONTFORK) |
//! | `process_vm_writev` to a process with far memory, from any process of the run | refused, ENOSYS: the written pages would not be pinned |
//! | `vmsplice`, `sendmsg` and others that hold pages to read them; `io_submit`, whose files have no O_DIRECT | not notified: no byte is lost |
//! | calls of 32-bit programs (`int 0x80`) | only O_DIRECT and rings: they cannot name far memory |

mod filter;
pub mod injection;
mod listener;
mod seen;
mod static_rules;
#[cfg(test)]
mod tests;
#[cfg_attr(not(target_arch = "x86_64"), path = "raw/untraced.rs")]
mod tracee;

pub use injection::{Outcome, Stop};
pub use listener::{Listener, Notification, Started, spawn};
pub use seen::{
    Break, Seen, Touched, break_of, is_pipe, may_change_mappings, opens_direct, process_of, resident_memory,
    thread_here,
};
pub use tracee::Tracee;

use super::place;
use static_rules::STATIC_RULES;
use std::ops::Range;

/// The far addresses of a run, for its filter: its processes have far memory only there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watched {
    /// The low addresses, and those of the second base with the gate before them.
    far: [Range<u64>; 2],
    shared: Option<Range<u64>>,
    /// The address of the preload library's calls.
    gate: u64,
    /// Minimum length of a mapping that becomes far in a static program; `None` if static programs are not served.
    static_from: Option<u64>,
}

impl Watched {
    /// Creates the addresses of a run: far memory from `base` on, and the range of shared memory.
    #[must_use]
    pub fn new(base: usize, shared: Option<Range<u64>>) -> Self {
        let first = place::gate(base) as u64;
        let low = place::LOW as u64;
        let far = [low..low + place::LEN_MAX as u64, first..(base + place::LEN_MAX) as u64];
        Self { far, shared, gate: place::called_from(place::gate(base)), static_from: None }
    }

    /// Adds the calls of static programs, whose mappings of at least `threshold` bytes become far.
    #[must_use]
    pub const fn with_static(mut self, threshold: u64) -> Self {
        self.static_from = Some(threshold);
        self
    }
}

/// A notified call. Addresses and lengths are as the program passed them, and may be invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RawCall {
    /// `mmap`.
    Map {
        /// Address of the first byte.
        first: u64,
        /// Length in bytes.
        len: u64,
        /// Rights.
        protection: u64,
        /// Flags.
        flags: i32,
    },
    /// `brk`.
    Break {
        /// The new break of the program.
        to: u64,
    },
    /// A call that makes a process with a copy of the memory.
    Fork,
    /// `clone3`, whose arguments are in memory.
    ForkByRecord,
    /// A call that registers memory to which the kernel writes when a thread cannot wait for a page: a thread's number, which the
    /// kernel clears at the thread's end, or a record of restartable sequences.
    Register {
        /// Address of the first byte.
        first: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A call that unmaps or replaces a mapping.
    Replace {
        /// Address of the first byte.
        first: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A call that changes rights.
    Protect {
        /// Address of the first byte.
        first: u64,
        /// Length in bytes.
        len: u64,
        /// New rights.
        protection: u64,
        /// True with a protection key.
        keyed: bool,
    },
    /// `madvise`.
    Advise {
        /// Address of the first byte.
        first: u64,
        /// Length in bytes.
        len: u64,
        /// The advice.
        advice: i32,
    },
    /// `mremap`.
    Remap {
        /// Address of the first byte.
        first: u64,
        /// Length in bytes.
        len: u64,
        /// The new length in bytes.
        new_len: u64,
        /// True if the mapping stays at its address.
        in_place: bool,
        /// Flags.
        flags: i32,
        /// The new address, which replaces any mapping there.
        target: Option<u64>,
    },
    /// A call that far memory does not support.
    Never {
        /// Address of the first byte.
        first: u64,
        /// Length in bytes.
        len: u64,
        /// The error of a system without the call.
        errno: i32,
    },
    /// A call that a process with far memory cannot make.
    NotHere {
        /// The error of a system without the call.
        errno: i32,
    },
    /// A call that would let a descriptor bypass the page cache.
    SetDirect {
        /// The descriptor.
        descriptor: u64,
    },
    /// A call that writes to memory of a process, without its mappings.
    WriteTo {
        /// The process or a thread of it, in the caller's numbering.
        process: i32,
    },
    /// `openat2`, whose arguments are in memory.
    OpenHow {
        /// Address of the arguments.
        first: u64,
        /// Length of the arguments in bytes.
        len: u64,
    },
}

/// A range of addresses, given by the indices of two arguments.
#[derive(Clone, Copy, Debug)]
struct Part {
    first: usize,
    len: usize,
}

/// A condition on a call's arguments. For numbers and flags the filter reads the low 32 bits, as the kernel does.
#[derive(Clone, Copy, Debug)]
enum Condition {
    /// The argument touches far memory, or shared memory.
    Far(Part),
    /// The call does not come from the preload library.
    PastLibrary,
    /// The bits under the mask have exactly this value.
    Bits { argument: usize, mask: u32, value: u32 },
    /// The argument has another value.
    Not { argument: usize, value: u32 },
    /// The argument is the length of a mapping that becomes far in a static program.
    Long { argument: usize },
}

/// A system call that is notified if all conditions of one of its lines hold.
#[derive(Clone, Copy)]
struct Rule {
    number: i64,
    when: &'static [&'static [Condition]],
    means: fn(&[u64; 6]) -> RawCall,
}

const AT_START: Condition = Condition::Far(Part { first: 0, len: 1 });
const ALWAYS: &[&[Condition]] = &[&[]];

const fn bits(argument: usize, mask: i32) -> Condition {
    Condition::Bits { argument, mask: mask.cast_unsigned(), value: mask.cast_unsigned() }
}

const fn not(argument: usize, value: i32) -> Condition {
    Condition::Not { argument, value: value.cast_unsigned() }
}

const fn is(argument: usize, value: i32) -> Condition {
    Condition::Bits { argument, mask: u32::MAX, value: value.cast_unsigned() }
}

const REPLACES: Condition = Condition::Bits {
    argument: 3,
    mask: (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE).cast_unsigned(),
    value: libc::MAP_FIXED.cast_unsigned(),
};
#[cfg(target_arch = "x86_64")]
const COUNT: usize = 19;
#[cfg(target_arch = "aarch64")]
const COUNT: usize = 18;

/// The table of rules, frequent calls first.
static RULES: [Rule; COUNT] = [
    Rule { number: libc::SYS_openat, when: &[&[bits(2, libc::O_DIRECT)]], means: no_direct },
    #[cfg(target_arch = "x86_64")]
    Rule { number: libc::SYS_open, when: &[&[bits(1, libc::O_DIRECT)]], means: no_direct },
    Rule { number: libc::SYS_mmap, when: &[&[REPLACES, AT_START]], means: map },
    Rule { number: libc::SYS_munmap, when: &[&[AT_START]], means: replace },
    Rule { number: libc::SYS_mprotect, when: &[&[AT_START]], means: protect },
    Rule { number: libc::SYS_madvise, when: &[&[AT_START]], means: advise },
    Rule { number: libc::SYS_fcntl, when: SETS_DIRECT, means: set_direct },
    Rule {
        number: libc::SYS_mremap,
        when: &[&[AT_START], &[bits(3, libc::MREMAP_FIXED), Condition::Far(Part { first: 4, len: 2 })]],
        means: remap,
    },
    Rule { number: libc::SYS_openat2, when: ALWAYS, means: open_how },
    Rule { number: libc::SYS_open_by_handle_at, when: &[&[bits(2, libc::O_DIRECT)]], means: no_direct },
    Rule { number: libc::SYS_io_uring_setup, when: ALWAYS, means: not_permitted },
    Rule {
        number: libc::SYS_process_madvise,
        when: &[&[not(3, libc::MADV_COLD), not(3, libc::MADV_PAGEOUT), not(3, libc::MADV_WILLNEED)]],
        means: no_such,
    },
    Rule { number: libc::SYS_process_vm_writev, when: &[&[Condition::PastLibrary]], means: write_to },
    Rule { number: libc::SYS_pkey_mprotect, when: &[&[AT_START]], means: protect_by_key },
    Rule { number: libc::SYS_remap_file_pages, when: &[&[AT_START]], means: never },
    Rule { number: libc::SYS_mseal, when: &[&[AT_START]], means: never_sealed },
    Rule { number: libc::SYS_shmat, when: &[&[bits(2, libc::SHM_REMAP)]], means: no_such },
    Rule { number: libc::SYS_socket, when: PINNING_FAMILIES, means: no_family },
    Rule { number: libc::SYS_ioctl, when: DEVICE_WRITES, means: not_permitted },
];
const PINNING_FAMILIES: &[&[Condition]] = &[&[is(0, libc::AF_ALG)], &[is(0, libc::AF_XDP)]];
/// Requests that make a device write to the pages of a buffer, or pin them: SG_IO, passthrough commands of NVMe
/// (linux/nvme_ioctl.h), and all requests of RDMA verbs (type 0x1b) and of VFIO and iommufd (type `;`).
const DEVICE_WRITES: &[&[Condition]] = &[
    &[is(1, 0x2285)],
    &[nvme(0x41)],
    &[nvme(0x42)],
    &[nvme(0x43)],
    &[nvme(0x47)],
    &[nvme(0x48)],
    &[nvme(0x49)],
    &[Condition::Bits { argument: 1, mask: 0xff00, value: 0x1b00 }],
    &[Condition::Bits { argument: 1, mask: 0xff00, value: 0x3b00 }],
];

/// Returns the condition for an NVMe request of this number, with any length.
const fn nvme(number: u32) -> Condition {
    Condition::Bits { argument: 1, mask: 0xffff, value: 0x4e00 | number }
}

const SETS_DIRECT: &[&[Condition]] = &[&[is(1, libc::F_SETFL), bits(2, libc::O_DIRECT)]];

/// Rules of 32-bit calls, by their own numbers.
#[cfg(target_arch = "x86_64")]
static COMPAT: [Rule; 8] = [
    Rule { number: 295, when: &[&[bits(2, libc::O_DIRECT)]], means: no_direct },
    Rule { number: 5, when: &[&[bits(1, libc::O_DIRECT)]], means: no_direct },
    Rule { number: 55, when: SETS_DIRECT, means: set_direct },
    Rule { number: 221, when: SETS_DIRECT, means: set_direct },
    Rule { number: 342, when: &[&[bits(2, libc::O_DIRECT)]], means: no_direct },
    Rule { number: 437, when: ALWAYS, means: open_how },
    Rule { number: 425, when: ALWAYS, means: not_permitted },
    Rule { number: 359, when: PINNING_FAMILIES, means: no_family },
];
#[cfg(not(target_arch = "x86_64"))]
static COMPAT: [Rule; 0] = [];

/// The kernel's codes of the native architecture, and of its 32-bit variant.
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;
const AUDIT_ARCH_I386: u32 = 0x4000_0003;

impl RawCall {
    /// Returns the call of a notification.
    fn of(data: &libc::seccomp_data) -> Option<Self> {
        let (rules, number) = if data.arch == AUDIT_ARCH {
            (&RULES[..], data.nr & !filter::X32.cast_signed())
        } else {
            (&COMPAT[..], data.nr)
        };
        let rule = rules.iter().chain(&STATIC_RULES).find(|rule| rule.number == i64::from(number))?;
        Some((rule.means)(&data.args))
    }
}

fn map(&[first, len, protection, flags, ..]: &[u64; 6]) -> RawCall {
    RawCall::Map { first, len, protection, flags: int(flags) }
}

const fn replace(&[first, len, ..]: &[u64; 6]) -> RawCall {
    RawCall::Replace { first, len }
}

const fn protect(&[first, len, protection, ..]: &[u64; 6]) -> RawCall {
    RawCall::Protect { first, len, protection, keyed: false }
}

fn protect_by_key(&[first, len, protection, key, ..]: &[u64; 6]) -> RawCall {
    // No key, or the key that all memory has.
    RawCall::Protect { first, len, protection, keyed: int(key) > 0 }
}

fn advise(&[first, len, advice, ..]: &[u64; 6]) -> RawCall {
    RawCall::Advise { first, len, advice: int(advice) }
}

fn remap(&[first, len, new_len, flags, target, _]: &[u64; 6]) -> RawCall {
    let flags = int(flags);
    let target = (flags & libc::MREMAP_FIXED != 0).then_some(target);
    let in_place = target.is_none() && flags & libc::MREMAP_DONTUNMAP == 0;
    RawCall::Remap { first, len, new_len, in_place, flags, target }
}

const fn never(&[first, len, ..]: &[u64; 6]) -> RawCall {
    RawCall::Never { first, len, errno: libc::EINVAL }
}

const fn never_sealed(&[first, len, ..]: &[u64; 6]) -> RawCall {
    RawCall::Never { first, len, errno: libc::ENOSYS }
}

const fn no_direct(_: &[u64; 6]) -> RawCall {
    RawCall::NotHere { errno: libc::EINVAL }
}

const fn no_such(_: &[u64; 6]) -> RawCall {
    RawCall::NotHere { errno: libc::EINVAL }
}

const fn not_permitted(_: &[u64; 6]) -> RawCall {
    RawCall::NotHere { errno: libc::EPERM }
}

const fn no_family(_: &[u64; 6]) -> RawCall {
    RawCall::NotHere { errno: libc::EAFNOSUPPORT }
}

const fn write_to(&[process, ..]: &[u64; 6]) -> RawCall {
    RawCall::WriteTo { process: int(process) }
}

const fn set_direct(&[descriptor, ..]: &[u64; 6]) -> RawCall {
    RawCall::SetDirect { descriptor }
}

const fn open_how(&[_, _, first, len, ..]: &[u64; 6]) -> RawCall {
    RawCall::OpenHow { first, len }
}

/// Returns the number that the kernel reads from a register.
const fn int(register: u64) -> i32 {
    let [a, b, c, d, ..] = register.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}
