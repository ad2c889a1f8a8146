//! The addresses of far memory in a program's processes: from [`LOW`] on, or from a random base where [`LOW`]
//! is in use. The addresses are known before the program starts, so one seccomp filter covers them.
//!
//! ```text
//!   LOW, or base           + 36 KiB                       + LEN_MAX        base - 4096
//!   mailboxes, doorbells   far memory, up to LEN_MAX      other memory     the gate
//! ```

use farmem_wire::message::PAGE_LEN;
use std::ops::Range;

/// Bytes reserved when the process's limits allow it: far more than programs use, and a small part of the
/// address space. Reservations of 1 TiB fit; ZGC's views of its heap, from 4 TiB on, are outside.
pub const LEN_MAX: usize = 2 << 40;

/// First address of far memory, if nothing else is mapped there. Programs that choose heap addresses, like a
/// JVM with compressed object pointers, choose addresses from here on.
pub const LOW: usize = 2 << 30;

/// Range of random bases. Linux never places programs, stacks or mappings here, even with its legacy layout.
/// Neither do Go, ZGC, V8, and the address and thread sanitizers. If the range is in use anyway, far memory
/// is at an arbitrary address, and the filter does not cover its system calls.
const BASES: Range<u64> = 0x4000_0000_0000..0x4800_0000_0000;
/// Alignment of bases.
const STEP: u64 = 1 << 30;

/// Returns a random base, for the gate and for processes that have something else at [`LOW`].
#[must_use]
pub fn base(chance: u64) -> usize {
    let base = BASES.start + chance % ((BASES.end - BASES.start) / STEP) * STEP;
    usize::try_from(base).expect("addresses of 64 bits")
}

/// Returns the address of the gate, the page before a base. The preload library makes system calls from the
/// gate, and the filter lets them pass.
#[must_use]
pub const fn gate(base: usize) -> usize {
    base.saturating_sub(PAGE_LEN)
}

/// Machine code in the gate: a system call with its number and arguments in registers, and a return.
#[cfg(target_arch = "x86_64")]
pub const GATE: [u8; 3] = [0x0f, 0x05, 0xc3]; // syscall; ret
/// Machine code in the gate: a system call with its number and arguments in registers, and a return.
#[cfg(target_arch = "aarch64")]
pub const GATE: [u8; 8] = [0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6]; // svc #0; ret

/// Returns the instruction pointer that the kernel reports for a call from the gate: the address after the
/// instruction.
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
