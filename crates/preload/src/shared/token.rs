//! Tokens: descriptors that a program has of shared objects. A token is a file without bytes, whose name says which object it is.
//!
//! It is told from other files by that name, which survives `dup`, `fork` and `exec`; and it can be neither mapped nor written.

use super::Object;
use rustix::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use rustix::fs::{
    CWD, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open, readlinkat_raw,
};
use rustix::io::Errno;
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;

/// What a descriptor of an object says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token {
    pub(super) object: u64,
    pub(super) read_only: bool,
}

/// What a token's name begins with, and what the system puts before it.
const NAME: &CStr = c"farmem-shm-";
const MEMFD: &[u8] = b"/memfd:";
/// Digits of an object's number in a token's name; behind them `r` when it was opened to be read only.
const DIGITS: usize = 16;

/// A descriptor for an object.
pub(super) fn token(object: &Object, read_only: bool) -> Result<OwnedFd, Errno> {
    let mut name = [0_u8; 64];
    let prefix = NAME.to_bytes();
    name[..prefix.len()].copy_from_slice(prefix);
    for (n, digit) in name[prefix.len()..][..DIGITS].iter_mut().enumerate() {
        let nibble = object.number >> (4 * (DIGITS - 1 - n)) & 15;
        *digit = b"0123456789abcdef"[usize::try_from(nibble).unwrap_or(0)];
    }
    name[prefix.len() + DIGITS] = if read_only { b'r' } else { b'w' };
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| Errno::INVAL)?;
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, object.length)?;
    fcntl_add_seals(&file, SealFlags::WRITE)?;
    let mut path = [0; LINK_LEN];
    // For writing, of which nothing can be mapped; and sealed, to which nothing can be written.
    open(link_of(file.as_fd().as_raw_fd(), &mut path), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Bytes of a path below.
const LINK_LEN: usize = 32;

/// The file by which the system says what a descriptor is.
fn link_of(fd: c_int, path: &mut [u8; LINK_LEN]) -> &CStr {
    const PREFIX: &[u8] = b"/proc/self/fd/";
    path[..PREFIX.len()].copy_from_slice(PREFIX);
    let (mut digits, mut count, mut left) = ([0_u8; 10], 0, fd.unsigned_abs());
    loop {
        digits[count] = b'0' + u8::try_from(left % 10).unwrap_or(0);
        count += 1;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    for (to, digit) in path[PREFIX.len()..].iter_mut().zip(digits[..count].iter().rev()) {
        *to = *digit;
    }
    path[PREFIX.len() + count] = 0;
    CStr::from_bytes_until_nul(path).unwrap_or(c"")
}

/// The object that a descriptor is of.
pub(super) fn identify(fd: c_int) -> Option<Token> {
    if fd < 0 {
        return None;
    }
    let (mut path, mut space) = ([0; LINK_LEN], [MaybeUninit::uninit(); 128]);
    let (link, _) = readlinkat_raw(CWD, link_of(fd, &mut path), &mut space).ok()?;
    let text = link.strip_prefix(MEMFD)?.strip_prefix(NAME.to_bytes())?;
    let (digits, rest) = text.split_at_checked(DIGITS)?;
    let object = digits.iter().try_fold(0_u64, |all, &digit| {
        let nibble = char::from(digit).to_digit(16)?;
        Some(all << 4 | u64::from(nibble))
    })?;
    let read_only = match rest.first()? {
        b'r' => true,
        b'w' => false,
        _ => return None,
    };
    Some(Token { object, read_only })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_wire::message::PAGE_LEN;
    use proptest::prelude::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap};

    proptest! {
        /// Descriptors are called as the system calls them.
        #[test]
        fn numbers_come_back(fd in 0..i32::MAX) {
            let mut path = [0; LINK_LEN];
            let link = link_of(fd, &mut path).to_str().unwrap().to_owned();
            prop_assert_eq!(link, format!("/proc/self/fd/{fd}"));
        }
    }

    #[test]
    fn tokens_are_told_by_their_names() {
        for (number, read_only) in [(1, true), (u64::MAX, false), (0x0123_4567_89ab_cdef, false)] {
            let object = Object { number, length: 5000, base: 0, size: 0 };
            let file = token(&object, read_only).unwrap();
            assert_eq!(identify(file.as_fd().as_raw_fd()), Some(Token { object: number, read_only }));
            let copy = file.try_clone().unwrap();
            assert_eq!(identify(copy.as_raw_fd()), Some(Token { object: number, read_only }));
            // SAFETY: a mapping that is refused.
            let mapped =
                unsafe { mmap(std::ptr::null_mut(), PAGE_LEN, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
            assert_eq!(mapped, Err(Errno::ACCESS));
            assert_eq!(rustix::io::write(&file, b"x"), Err(Errno::PERM));
        }
        let other = memfd_create(c"farmem-shm-no", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(identify(other.as_raw_fd()), None);
        assert_eq!(identify(-1), None);
        assert_eq!(identify(0), None);
    }
}
