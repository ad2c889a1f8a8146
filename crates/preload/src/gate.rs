//! The library's own system calls on far memory. One instruction makes them, in a page before far memory at an
//! address that all processes of a run share. The run's seccomp filter (docs/run.md) lets calls from that
//! address pass, and asks the pager about others.
//!
//! Without the page, for example before there is far memory, calls are made in the ordinary way. Under a filter
//! that is also correct, but slower.
//!
//! Circle of files: each hook of the program's calls may need another one. A mapping is created by a call through this
//! gate, the gate is a mapping in the area of far memory, and messages to the pager need both.

use crate::area::address;
use crate::maps::of_syscall;
use farmem_preload_abi::place::{GATE, gate};
use farmem_wire::message::PAGE_LEN;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::arch::asm;
use std::ffi::c_long;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Address of the instruction; 0 without the page.
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// Creates the gate before far memory that will begin at `base`. A fork's child inherits it.
pub(crate) fn open(base: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let place = address(gate(base));
    // SAFETY: a new page, which replaces nothing.
    let page = unsafe { mmap_anonymous(place, PAGE_LEN, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let Ok(page) = page else { return };
    if page == place {
        // SAFETY: a page of this library, larger than the code.
        unsafe { page.cast::<u8>().copy_from_nonoverlapping(GATE.as_ptr(), GATE.len()) };
        // SAFETY: a page of this library, and no thread writes to it any more.
        if unsafe { mprotect(page, PAGE_LEN, MprotectFlags::READ | MprotectFlags::EXEC) }.is_ok() {
            PLACE.store(page.expose_provenance(), Ordering::Release);
            return;
        }
    }
    // The system does not allow such a page.
    // SAFETY: the page was just mapped, and no other thread knows it.
    let _ = unsafe { munmap(page, PAGE_LEN) };
}

/// Makes a system call and returns its result.
///
/// # Safety
/// The contract of the system call applies.
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let place = PLACE.load(Ordering::Acquire);
    let [a, b, c, d, e, f] = arguments;
    if place == 0 {
        // SAFETY: guaranteed by the caller; this library does not interpose libc's `syscall`.
        let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
        return of_syscall(result).map(c_long::cast_unsigned).map(usize_of);
    }
    // SAFETY: guaranteed by the caller; the page holds the instruction and a return while the process lives.
    let result = unsafe { through(place, number, arguments) };
    match i32::try_from(result) {
        Ok(errno @ -4095..=-1) => Err(Errno::from_raw_os_error(-errno)),
        _ => Ok(usize_of(result.cast_unsigned())),
    }
}

fn usize_of(word: u64) -> usize {
    usize::try_from(word).expect("an address of this machine")
}

/// Makes a system call in the gate.
///
/// # Safety
/// The contract of the system call applies, and the gate exists.
#[cfg(target_arch = "x86_64")]
unsafe fn through(place: usize, number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    let result;
    // SAFETY: guaranteed by the caller. The kernel preserves all registers but these.
    unsafe {
        asm!(
            "call {place}",
            place = in(reg) place,
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            out("rcx") _, out("r11") _,
        );
    }
    result
}

/// Makes a system call in the gate.
///
/// # Safety
/// The contract of the system call applies, and the gate exists.
#[cfg(target_arch = "aarch64")]
unsafe fn through(place: usize, number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    let result;
    // SAFETY: guaranteed by the caller. The kernel preserves all registers but `x0`, and the branch sets `x30`.
    unsafe {
        asm!(
            "blr {place}",
            place = in(reg) place,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f, in("x8") number,
            out("x30") _,
        );
    }
    result
}
