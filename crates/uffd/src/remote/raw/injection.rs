//! Far memory for a program that cannot load a library: one of its threads makes the calls that the preload library
//! would make.
//!
//! Key functions: [`new_memory`], [`child_memory`]. The calls come one by one through a [`Caller`], which waits for
//! their results. The calls name no memory of the program except the gate's page, so none of them touches far memory.

use super::super::call::{ELSEWHERE, Hello};
use super::super::place::{GATE, LEN_MAX};
use super::super::{Remote, is_readable};
use super::process_of;
use crate::{Faulting, Reach, Userfaultfd};
use farmem_wire::message::PAGE_LEN;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

/// Makes a system call in the program, and waits for its result.
pub type Caller<'a> = dyn FnMut(i64, [u64; 6]) -> io::Result<u64> + 'a;

/// A stop of a thread that makes calls for the pager ([`Tracee`](super::Tracee)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The first stop: the thread can make calls.
    Ready,
    /// The call has returned this register.
    Returned(u64),
    /// The call has made a process with this number, which is seized, too. [`Tracee::go_on`](super::Tracee::go_on)
    /// continues the call.
    Forked(u32),
}

/// The result of the notified call of the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The call returns this number, or a negative error number.
    Returns(i64),
    /// The thread makes the call again.
    Again,
}

/// Minimum length of far memory.
const LEN_MIN: u64 = 64 << 20;
/// Offset in the gate's page of the memfd's name, and of the device's.
const NAME: u64 = 64;
const DEVICE: u64 = 128;
/// Offset of the lists of a copy.
const LISTS: u64 = 192;
/// The ioctl of the device that opens a userfaultfd.
const DEVICE_NEW: u64 = 0xaa00;

/// Contents of the gate's page: machine code, and the names that calls take.
#[must_use]
pub fn gate_page() -> Vec<u8> {
    let mut page = vec![0; 256];
    let texts = [(0, &GATE[..]), (64, b"farmem\0"), (128, b"/dev/userfaultfd\0")];
    for (at, text) in texts {
        page[at..at + text.len()].copy_from_slice(text);
    }
    page
}

/// Addresses in the gate's page of two lists of one range each, for a copy by `process_vm_readv`.
#[must_use]
pub const fn copy_lists(gate: u64) -> [u64; 2] {
    [gate + LISTS, gate + LISTS + 16]
}

/// Maps the empty page of the gate at an address.
///
/// # Errors
/// The system's error, EEXIST if the address is in use.
pub fn open_gate(gate: u64, call: &mut Caller<'_>) -> io::Result<()> {
    let rights = number(libc::PROT_READ | libc::PROT_EXEC);
    let flags = number(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
    call(libc::SYS_mmap, [gate, PAGE_LEN as u64, rights, flags, u64::MAX, 0]).map(drop)
}

/// Reserves far memory for a new program, at the first free one of the addresses. `thread` makes the calls.
///
/// # Errors
/// The system's error of the call that failed. The program keeps its earlier memory.
pub fn new_memory(thread: u32, gate: u64, bases: [usize; 2], call: &mut Caller<'_>) -> io::Result<Remote> {
    forbid_direct(thread, call)?;
    let descriptors = Descriptors::open(gate, call)?;
    let made = (|| {
        let mut why = io::Error::from(Errno::NOMEM);
        for base in bases {
            match reserve_some(base as u64, descriptors.file, call) {
                Ok(len) => {
                    let made = descriptors.take(thread, (base as u64, len), 0).and_then(|remote| {
                        remote.register(1..remote.pages())?;
                        Ok(remote)
                    });
                    return made
                        .inspect_err(|_| drop(call(libc::SYS_munmap, [base as u64, len, 0, 0, 0, 0])));
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    })();
    descriptors.close(call);
    made
}

/// Reserves far memory for a fork's child, at its parent's addresses. `spans` has the address, length and rights of
/// each part in use.
///
/// # Errors
/// The system's error of the call that failed. The child cannot continue then.
pub fn child_memory(
    process: u32,
    gate: u64,
    (base, len): (u64, u64),
    spans: &[[u64; 3]],
    call: &mut Caller<'_>,
) -> io::Result<Remote> {
    let descriptors = Descriptors::open(gate, call)?;
    let made = (|| {
        let remote = descriptors.take(process, (base, len), 1)?;
        // The child has inherited the parent's own mappings there.
        let mut elsewhere: Vec<Range<u64>> =
            spans.iter().filter(|span| span[2] == ELSEWHERE).map(|span| span[0]..span[0] + span[1]).collect();
        elsewhere.sort_by_key(|span| span.start);
        elsewhere.push(base + len..base + len);
        let mut from = base;
        for Range { start, end } in elsewhere {
            if from < start {
                reserve(base, from..start, descriptors.file, call)?;
                let page = |at: u64| (at - base) / PAGE_LEN as u64;
                remote.register(page(from).max(1)..page(start))?;
            }
            from = end;
        }
        for &[start, len, rights] in spans.iter().filter(|span| ![0, ELSEWHERE].contains(&span[2])) {
            call(libc::SYS_mprotect, [start, len, rights, 0, 0, 0])?;
        }
        Ok(remote)
    })();
    descriptors.close(call);
    made
}

/// The program's numbers of its two descriptors.
struct Descriptors {
    file: u64,
    uffd: u64,
}

impl Descriptors {
    fn open(gate: u64, call: &mut Caller<'_>) -> io::Result<Self> {
        let file = call(libc::SYS_memfd_create, [gate + NAME, u64::from(libc::MFD_CLOEXEC), 0, 0, 0, 0])?;
        match open_userfaultfd(gate, call) {
            Ok(uffd) => Ok(Self { file, uffd }),
            Err(error) => {
                call(libc::SYS_close, [file, 0, 0, 0, 0, 0])?;
                Err(error)
            }
        }
    }

    /// Takes both descriptors into this process. A thread may have a descriptor table of its own (CLONE_FILES).
    fn take(&self, thread: u32, (base, len): (u64, u64), snapshot: u64) -> io::Result<Remote> {
        let process = pidfd_of_thread(thread)?;
        let get = |number: u64| -> io::Result<OwnedFd> {
            let number = i32::try_from(number).map_err(|_| io::ErrorKind::InvalidData)?;
            Ok(pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?)
        };
        let (uffd, file) = (get(self.uffd)?, get(self.file)?);
        if !has_file(thread, self.file, &file)? {
            return Err(io::Error::other(
                "the thread has a descriptor table of its own (CLONE_FILES), which needs Linux 6.9",
            ));
        }
        Userfaultfd::adopt(uffd.try_clone()?, Reach::Full).map_err(io::Error::other)?;
        let hello = Hello { token: 0, base, len, snapshot, full: true };
        Remote::new(uffd, file, &hello).ok_or_else(|| Errno::INVAL.into())
    }

    fn close(&self, call: &mut Caller<'_>) {
        for number in [self.file, self.uffd] {
            // The thread has ended, or the descriptor is closed.
            let _closed = call(libc::SYS_close, [number, 0, 0, 0, 0, 0]);
        }
    }
}

/// Opens a userfaultfd in the program: by the system call, else through the device.
fn open_userfaultfd(gate: u64, call: &mut Caller<'_>) -> io::Result<u64> {
    let flags = number(libc::O_CLOEXEC);
    match call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let here = i64::from(libc::AT_FDCWD).cast_unsigned();
            let mode = number(libc::O_RDWR | libc::O_CLOEXEC);
            let device = call(libc::SYS_openat, [here, gate + DEVICE, mode, 0, 0, 0]).map_err(|_| error)?;
            let opened = call(libc::SYS_ioctl, [device, DEVICE_NEW, flags, 0, 0, 0]);
            call(libc::SYS_close, [device, 0, 0, 0, 0, 0])?;
            opened
        }
        other => other,
    }
}

/// Reserves as many addresses from `base` on as the program may have. Returns their number.
fn reserve_some(base: u64, file: u64, call: &mut Caller<'_>) -> io::Result<u64> {
    let mut len = LEN_MAX as u64;
    loop {
        match reserve(base, base..base + len, file, call) {
            Ok(()) => return Ok(len),
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && len > LEN_MIN => len /= 2,
            Err(error) => return Err(error),
        }
    }
}

/// Maps the memfd at free addresses, without rights for the program, and excluded from the kernel's fork, core dumps
/// and huge pages.
fn reserve(base: u64, part: Range<u64>, file: u64, call: &mut Caller<'_>) -> io::Result<()> {
    let flags = number(libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE);
    let (start, len) = (part.start, part.end - part.start);
    call(libc::SYS_mmap, [start, len, 0, flags, file, start - base])?;
    call(libc::SYS_madvise, [start, len, number(libc::MADV_DONTFORK), 0, 0, 0])?;
    for advice in [libc::MADV_DONTDUMP, libc::MADV_NOHUGEPAGE] {
        match call(libc::SYS_madvise, [start, len, number(advice), 0, 0, 0]) {
            // A kernel without huge pages refuses the advice.
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Clears O_DIRECT of the program's open files: a device would bypass its mappings.
fn forbid_direct(thread: u32, call: &mut Caller<'_>) -> io::Result<()> {
    for entry in fs::read_dir(format!("/proc/{thread}/fdinfo"))?.flatten() {
        let Ok(info) = fs::read_to_string(entry.path()) else { continue };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0);
        let descriptor = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
        if let Some(descriptor) = descriptor.filter(|_| flags & libc::O_DIRECT != 0)
            && !super::is_pipe(thread, descriptor)
        {
            let flags = number(flags & !libc::O_DIRECT);
            call(libc::SYS_fcntl, [descriptor, number(libc::F_SETFL), flags, 0, 0, 0])?;
        }
    }
    Ok(())
}

/// Opens a process's pidfd.
///
/// # Errors
/// The system's error if the process has ended.
pub fn pidfd_of(process: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    if is_readable(&pidfd) { Err(Errno::SRCH.into()) } else { Ok(pidfd) }
}

/// Opens a thread's pidfd, by which its descriptors are reached. Before Linux 6.9 only the first thread of a process has one.
fn pidfd_of_thread(thread: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(thread).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    match pidfd_open(pid, PidfdFlags::from_bits_retain(libc::PIDFD_THREAD)) {
        Err(Errno::INVAL) => {
            let (process, _) = process_of(thread).ok_or(Errno::SRCH)?;
            pidfd_of(process)
        }
        other => Ok(other?),
    }
}

/// Returns true when a descriptor of a thread is this file.
fn has_file(thread: u32, descriptor: u64, file: &OwnedFd) -> io::Result<bool> {
    let there = fs::metadata(format!("/proc/{thread}/fd/{descriptor}"))?;
    let here = fstat(file)?;
    Ok((there.dev(), there.ino()) == (here.st_dev, here.st_ino))
}

impl Remote {
    /// Registers these pages, so that their faults are reported.
    fn register(&self, pages: Range<u64>) -> io::Result<()> {
        let faulting = Faulting::MISSING.and(Faulting::MINOR).and(Faulting::WRITE_PROTECTED);
        let len = usize::try_from(pages.end - pages.start).expect("pages of one address space") * PAGE_LEN;
        // SAFETY: addresses of another process, which was just made to map them for far memory.
        unsafe { self.uffd.register(self.place(pages.start), len, faulting) }?;
        Ok(())
    }
}

/// Returns a flag in the form of a register.
fn number(flag: i32) -> u64 {
    u64::from(flag.cast_unsigned())
}

/// Returns true if a process's program has no dynamic linker, and so no preload library.
#[must_use]
pub fn is_static(process: u32) -> bool {
    is_static_file(format!("/proc/{process}/exe")).unwrap_or(false)
}

fn is_static_file(file: String) -> Option<bool> {
    const INTERPRETER: u32 = 3;
    const HEADERS_MAX: usize = 64;
    let file = fs::File::open(file).ok()?;
    let mut header = [0; 64];
    read(&file, &mut header, 0)?;
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let is_native = header.starts_with(b"\x7fELF\x02\x01") && half(18) == MACHINE;
    let mut at = u64::from_le_bytes(header[32..40].try_into().ok()?);
    let count = usize::from(half(56));
    if !is_native || count > HEADERS_MAX {
        return None;
    }
    for _ in 0..count {
        let mut kind = [0; 4];
        read(&file, &mut kind, at)?;
        if u32::from_le_bytes(kind) == INTERPRETER {
            return Some(false);
        }
        at = at.checked_add(u64::from(half(54)))?;
    }
    Some(true)
}

/// The machine of x86-64 in ELF files.
const MACHINE: u16 = 62;

fn read(file: impl AsFd, into: &mut [u8], at: u64) -> Option<()> {
    (rustix::io::pread(file, &mut *into, at).ok()? == into.len()).then_some(())
}
