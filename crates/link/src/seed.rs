//! Secrets from the system.

use std::io;

/// Returns 32 random bytes of the kernel, suitable as a seed for keys.
///
/// # Errors
/// The system's error if it has no random bytes.
pub fn os_seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    // SAFETY: pointer and length are those of `seed`, which outlives the call.
    let got = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    if usize::try_from(got) == Ok(seed.len()) { Ok(seed) } else { Err(io::Error::last_os_error()) }
}
