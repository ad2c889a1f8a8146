//! Descriptors from other programs, inherited or received in a message. The library removes O_DIRECT from their
//! files, as from files that this program opens itself (`direct`). Otherwise a device could write to pages
//! while the pager removes them.
//!
//! The flag belongs to the open file description, so the sending program loses it too. The bytes are the same;
//! they pass through the page cache.

use crate::area;
use crate::next::Next;
use libc::{mmsghdr, msghdr, ssize_t};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, Mode, OFlags, RawDir, fcntl_getfl, fcntl_setfl, fstat, open};
use std::ffi::{c_int, c_uint};
use std::mem::{MaybeUninit, transmute};

static RECVMSG: Next = Next::new(c"recvmsg");
static RECVMMSG: Next = Next::new(c"recvmmsg");

/// Checks the inherited descriptors at the start. Without a /proc the check finds none, and direct I/O of
/// devices stays unsafe.
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

/// Removes O_DIRECT from a file or a block device. On pipes the flag means packet mode.
fn look_at(fd: c_int) {
    if fd < 0 {
        return;
    }
    // SAFETY: borrowed for this function; a closed descriptor gives an error.
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
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    type Function = unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> ssize_t;
    // SAFETY: the symbol is libc's function of this name, which has this type.
    let function: Function = unsafe { transmute(RECVMSG.known()) };
    // SAFETY: guaranteed by the caller.
    let count = unsafe { function(fd, message, flags) };
    if count >= 0 && area::is_ready() {
        // SAFETY: the message was just received.
        unsafe { look_at_message(message) };
    }
    count
}

/// `recvmmsg(2)`
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    room: c_uint,
    flags: c_int,
    patience: *mut libc::timespec,
) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int, *mut libc::timespec) -> c_int;
    // SAFETY: the symbol is libc's function of this name, which has this type.
    let function: Function = unsafe { transmute(RECVMMSG.known()) };
    // SAFETY: guaranteed by the caller.
    let count = unsafe { function(fd, messages, room, flags, patience) };
    if area::is_ready() {
        for n in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the index is less than the number of received messages.
            let message = unsafe { messages.add(n) };
            // SAFETY: the message was just received.
            let message = unsafe { &*message };
            // SAFETY: see above.
            unsafe { look_at_message(&raw const message.msg_hdr) };
        }
    }
    count
}

/// Checks the descriptors in a message.
///
/// # Safety
/// The message was received.
unsafe fn look_at_message(message: *const msghdr) {
    // SAFETY: guaranteed by the caller.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !part.is_null() {
        // SAFETY: a header in the message's buffer.
        let header = unsafe { part.read_unaligned() };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: see above.
            let data = unsafe { libc::CMSG_DATA(part) };
            let before = data.addr() - part.addr();
            for n in 0..header.cmsg_len.saturating_sub(before) / size_of::<c_int>() {
                // SAFETY: the index is less than the header's count.
                let place = unsafe { data.cast::<c_int>().add(n) };
                // SAFETY: see above.
                look_at(unsafe { place.read_unaligned() });
            }
        }
        // SAFETY: a header of this message.
        part = unsafe { libc::CMSG_NXTHDR(message, part) };
    }
}
