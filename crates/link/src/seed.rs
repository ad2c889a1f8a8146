//! Secrets from the system.

use std::io;

/// 32 random bytes from the kernel, good enough to seed what draws keys.
///
/// # Errors
/// When the kernel has none to give.
pub fn os_seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    // SAFETY: the pointer and the length are those of `seed`, which outlives the call.
    let got = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    if usize::try_from(got) == Ok(seed.len()) { Ok(seed) } else { Err(io::Error::last_os_error()) }
}
