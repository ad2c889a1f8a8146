//! Descriptors that come from other programs, inherited or in a message: those of files opened with O_DIRECT lose it, as those that this
//! program opens do (`direct`). A device would write to pages while the pager takes them away.
//!
//! The flag is the open file's, so the program that it came from loses it too. The bytes are the same; they go by way of the system's cache.

use crate::area;
use crate::next::Next;
use libc::{mmsghdr, msghdr, ssize_t};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, Mode, OFlags, RawDir, fcntl_getfl, fcntl_setfl, fstat, open};
use std::ffi::{c_int, c_uint};
use std::mem::{MaybeUninit, transmute};

static RECVMSG: Next = Next::new(c"recvmsg");
static RECVMMSG: Next = Next::new(c"recvmmsg");

/// At the beginning: what was inherited. Without a /proc nothing is found, and devices' writes are not known to be safe.
pub(crate) fn look_at_inherited() {
    let _now = (RECVMSG.known(), RECVMMSG.known());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = open(c"/proc/self/fd", flags, Mode::empty()) else { return };
    let mut room = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&directory, &mut room);
    while let Some(Ok(entry)) = entries.next() {
        let mut digits = entry.file_name().to_bytes().iter();
        let number = digits.try_fold(0_i32, |all, &digit| {
            let digit = char::from(digit).to_digit(10).and_then(|digit| i32::try_from(digit).ok())?;
            all.checked_mul(10)?.checked_add(digit)
        });
        if let Some(fd) = number {
            look_at(fd);
        }
    }
}

/// Takes O_DIRECT from a file or a device. Of pipes it means something else.
fn look_at(fd: c_int) {
    if fd < 0 {
        return;
    }
    // SAFETY: borrowed for this function; one that is closed refuses.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let Ok(flags) = fcntl_getfl(file.as_fd()) else { return };
    if !flags.contains(OFlags::DIRECT) {
        return;
    }
    let kind = fstat(file.as_fd()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    if matches!(kind, Ok(FileType::RegularFile | FileType::BlockDevice))
        && fcntl_setfl(file, flags - OFlags::DIRECT).is_err()
    {
        area::say(&[
            "farmem: a file opened with O_DIRECT cannot be used without: do not read it into far memory\n",
        ]);
    }
}

/// `recvmsg(2)`
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    type Function = unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> ssize_t;
    // SAFETY: libc's function of this name, which has this type.
    let function: Function = unsafe { transmute(RECVMSG.known()) };
    // SAFETY: the caller's promise.
    let count = unsafe { function(fd, message, flags) };
    if count >= 0 && area::is_ready() {
        // SAFETY: received a moment ago.
        unsafe { look_at_message(message) };
    }
    count
}

/// `recvmmsg(2)`
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    room: c_uint,
    flags: c_int,
    patience: *mut libc::timespec,
) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int, *mut libc::timespec) -> c_int;
    // SAFETY: libc's function of this name, which has this type.
    let function: Function = unsafe { transmute(RECVMMSG.known()) };
    // SAFETY: the caller's promise.
    let count = unsafe { function(fd, messages, room, flags, patience) };
    if area::is_ready() {
        for n in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: as many as were received.
            let message = unsafe { messages.add(n) };
            // SAFETY: received a moment ago.
            let message = unsafe { &*message };
            // SAFETY: as above.
            unsafe { look_at_message(&raw const message.msg_hdr) };
        }
    }
    count
}

/// # Safety
/// A message that was received.
unsafe fn look_at_message(message: *const msghdr) {
    // SAFETY: the caller's promise.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !part.is_null() {
        // SAFETY: a header in the message's room.
        let header = unsafe { part.read_unaligned() };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(part) };
            let before = data.addr() - part.addr();
            for n in 0..header.cmsg_len.saturating_sub(before) / size_of::<c_int>() {
                // SAFETY: as many as the header says.
                let place = unsafe { data.cast::<c_int>().add(n) };
                // SAFETY: as above.
                look_at(unsafe { place.read_unaligned() });
            }
        }
        // SAFETY: a header of this message.
        part = unsafe { libc::CMSG_NXTHDR(message, part) };
    }
}
