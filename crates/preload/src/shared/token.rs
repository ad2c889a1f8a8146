//! Tokens: a program's descriptors of shared objects. A token is a file without bytes whose name identifies the
//! object.
//!
//! The name distinguishes tokens from other files, and survives `dup`, `fork` and `exec`. A token can be
//! neither mapped nor written.

use super::Object;
use rustix::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use rustix::fs::{
    CWD, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open, readlinkat_raw,
};
use rustix::io::Errno;
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;

/// The contents of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token {
    pub(super) object: u64,
    pub(super) read_only: bool,
}

/// The prefix of a token's name, and the kernel's prefix before it.
const NAME: &CStr = c"farmem-shm-";
const MEMFD: &[u8] = b"/memfd:";
/// Number of digits of the object's number in a token's name. An `r` for read-only or a `w` follows.
const DIGITS: usize = 16;

/// Creates a token for an object.
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
    // The descriptor is write-only, so it cannot be mapped; the file is sealed, so it cannot be written.
    open(link_of(file.as_fd().as_raw_fd(), &mut path), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Capacity for a path from `link_of`, in bytes.
const LINK_LEN: usize = 32;

/// Returns the path of a descriptor's link in /proc.
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

/// Returns the contents of a descriptor that is a token.
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
        /// The path matches the kernel's.
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
            // SAFETY: the kernel refuses the mapping.
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
