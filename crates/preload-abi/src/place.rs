//! The addresses of far memory in a program's processes: from [`LOW`] on, or from a random base where something else is there. So one filter
//! of system calls, made before the program starts, knows them.
//!
//! ```text
//!   LOW, or base           + 36 KiB                       + LEN_MAX        base - 4096
//!   mailboxes, doorbells   far memory, up to LEN_MAX      other memory     the gate
//! ```

use farmem_wire::message::PAGE_LEN;
use std::ops::Range;

/// Bytes reserved when the process may reserve so many: far more than programs use, and a small part of the addresses there are.
pub const LEN_MAX: usize = 256 << 30;

/// First address of far memory in a process that has nothing there. Programs that choose addresses for their heaps, as a JVM with compressed
/// object pointers does, choose them from here on.
pub const LOW: usize = 2 << 30;

/// Nothing is here by itself: Linux puts programs, stacks and mappings elsewhere, also with its old layout, and so do Go, ZGC, V8 and the address
/// and thread sanitizers. Where something is all the same, far memory is at some other place and system calls there are not watched.
const BASES: Range<u64> = 0x4000_0000_0000..0x4800_0000_0000;
/// Bases are multiples of this.
const STEP: u64 = 1 << 30;

/// A random base, for processes that have something else at [`LOW`], and for the gate of all.
#[must_use]
pub fn base(chance: u64) -> usize {
    let base = BASES.start + chance % ((BASES.end - BASES.start) / STEP) * STEP;
    usize::try_from(base).expect("addresses of 64 bits")
}

/// The page before a base, in which the preload library has a system call of its own: the filter lets calls from there through.
#[must_use]
pub const fn gate(base: usize) -> usize {
    base.saturating_sub(PAGE_LEN)
}

/// What is in that page: a system call whose number and arguments are in the registers, and a return.
#[cfg(target_arch = "x86_64")]
pub const GATE: [u8; 3] = [0x0f, 0x05, 0xc3]; // syscall; ret
/// What is in that page: a system call whose number and arguments are in the registers, and a return.
#[cfg(target_arch = "aarch64")]
pub const GATE: [u8; 8] = [0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6]; // svc #0; ret

/// Where the system sees a call come from that is made there: behind the instruction.
#[must_use]
pub const fn called_from(gate: usize) -> u64 {
    const INSTRUCTION: usize = if cfg!(target_arch = "x86_64") { 2 } else { 4 };
    (gate + INSTRUCTION) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_in_their_range_and_differ() {
        let all: std::collections::BTreeSet<usize> = (0..1 << 14).map(base).collect();
        assert_eq!(all.len(), 8192);
        assert!(all.iter().all(|&base| BASES.contains(&(base as u64)) && base.is_multiple_of(PAGE_LEN)));
        assert_eq!(base(u64::MAX), base(8191));
    }
}
