//! Sleep on a shared word, and wake-up of its sleepers.

use super::atomic::AtomicU64;
use farmem_machine::Duration;
use std::io;
use std::ptr;

/// Sleeps while the low half of `word` is `expected`, at most for `most`. May return early without a reason.
pub(crate) fn wait(word: &AtomicU64, expected: u32, most: Duration) -> io::Result<()> {
    let nanos = most.as_nanos();
    let span = libc::timespec {
        tv_sec: libc::time_t::try_from(nanos / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::try_from(nanos % 1_000_000_000).expect("less than a second"),
    };
    let (op, address) = (libc::FUTEX_WAIT, low_half(word));
    // SAFETY: `address` is 4-aligned and mapped while `word` is borrowed; `span` outlives the call.
    // FUTEX_PRIVATE is not set, because processes share the word.
    let done = unsafe { libc::syscall(libc::SYS_futex, address, op, expected, &raw const span) };
    if done == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT) => Ok(()),
        _ => Err(e),
    }
}

/// Wakes one sleeper of `word`, if there is one.
pub(crate) fn wake(word: &AtomicU64) {
    // SAFETY: as in `wait`; FUTEX_WAKE reads no memory.
    let _ = unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, 1, ptr::null::<u8>()) };
}

/// Returns the address of a word's low half, because a futex has 32 bits. The low half is first on
/// little-endian machines, which farmem requires.
const fn low_half(word: &AtomicU64) -> *const u32 {
    const { assert!(cfg!(target_endian = "little")) };
    word.as_ptr().cast_const().cast()
}
