//! `process_vm_writev`. The kernel holds the pages that it will write to, and the pager cannot see that. So the
//! library pins the pages before the write, one piece of the range at a time, and unpins them afterwards
//! (`farmem_run`, `pins`).
//!
//! Pages that the kernel only reads need no pin: `process_vm_readv`, `vmsplice` and `MSG_ZEROCOPY` keep the old
//! bytes.

use crate::area;
use crate::gate;
use crate::mailbox;
use crate::maps::failed;
use crate::signals::Blocked;
use farmem_preload_abi::call::Call;
use libc::{c_ulong, iovec, pid_t, ssize_t};
use rustix::io::Errno;
use std::ffi::c_int;

/// `process_vm_writev(2)`
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn process_vm_writev(
    pid: pid_t,
    local: *const iovec,
    local_count: c_ulong,
    remote: *const iovec,
    remote_count: c_ulong,
    flags: c_ulong,
) -> ssize_t {
    // SAFETY: guaranteed by the caller.
    let wrote = unsafe { write_to_process(pid, (local, local_count), (remote, remote_count), flags) };
    wrote.map_or_else(
        |errno| failed(errno, -1),
        |wrote| isize::try_from(wrote).expect("bytes of two address spaces"),
    )
}

/// Writes to a process as the system call does, with pins.
///
/// # Safety
/// The contract of `process_vm_writev(2)` applies.
pub(crate) unsafe fn write_to_process(
    pid: pid_t,
    (local, local_count): (*const iovec, c_ulong),
    (remote, remote_count): (*const iovec, c_ulong),
    flags: c_ulong,
) -> Result<usize, Errno> {
    // SAFETY: guaranteed by the caller.
    let system = || unsafe { system_writev(pid, (local, local_count), (remote, remote_count), flags) };
    let counts = [local_count, remote_count].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    // The kernel reports invalid arguments.
    let plain = flags == 0 && counts.iter().all(|&count| 0 < count && count <= SEGMENTS_MAX);
    if !plain || !area::is_ready() {
        return system();
    }
    // SAFETY: the list has so many entries, guaranteed by the caller.
    let mut source = Cursor::new(unsafe { std::slice::from_raw_parts(local, counts[0]) });
    // SAFETY: see above.
    let mut target = Cursor::new(unsafe { std::slice::from_raw_parts(remote, counts[1]) });
    if source.negative() || target.negative() {
        return system();
    }
    let mut done = 0;
    while let (Some((start, len)), Some(_)) = (target.next(), source.next()) {
        let mut piece = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECE_SEGMENTS];
        let (count, len) = source.gather(&mut piece, len);
        let wrote = match write_piece(pid, &piece[..count], (start, len)) {
            // The process is not of this run: no far memory is written to.
            Err(Errno::SRCH) if done == 0 => return system(),
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
            Ok(wrote) => wrote,
        };
        done += wrote;
        source.advance(wrote);
        target.advance(wrote);
        if wrote == 0 {
            break;
        }
    }
    Ok(done)
}

/// Writes the part of a range that the pager pins, from its start.
fn write_piece(pid: pid_t, from: &[iovec], (start, len): (usize, usize)) -> Result<usize, Errno> {
    // A signal handler that leaves by `longjmp` would leave the pages pinned.
    let (_whole, [pin, granted]) = loop {
        let whole = Blocked::new();
        match pin(pid, start, len) {
            // Other calls hold all available pins, each for one system call.
            Err(Errno::AGAIN) => {
                drop(whole);
                rustix::thread::sched_yield();
            }
            pinned => break (whole, pinned?),
        }
    };
    let len = usize::try_from(granted).unwrap_or(len).min(len);
    let from = Cursor::new(from);
    let mut piece = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECE_SEGMENTS];
    let (count, len) = from.gather(&mut piece, len);
    let to = iovec { iov_base: area::address(start), iov_len: len };
    // SAFETY: the caller's segments, and the target of the caller's write.
    let wrote = unsafe { system_writev(pid, (piece.as_ptr(), count as c_ulong), (&raw const to, 1), 0) };
    if pin != 0 {
        let _always = mailbox::call(Call::Unpin { pin });
    }
    wrote
}

fn pin(pid: pid_t, start: usize, len: usize) -> Result<[u64; 2], Errno> {
    let number = |pid: pid_t| u64::try_from(pid).map_err(|_| Errno::SRCH);
    let caller = number(rustix::process::getpid().as_raw_nonzero().get())?;
    let asked = Call::Pin { caller, pid: number(pid)?, start: start as u64, len: len as u64 };
    mailbox::call_with(&[], asked).map(|[pin, granted, ..]| [pin, granted]).map_err(|status| {
        let errno = Errno::from_raw_os_error(c_int::try_from(status).unwrap_or(libc::EFAULT));
        if errno == Errno::OPNOTSUPP {
            area::say(&[
                "farmem: refused: process_vm_writev into shared memory, or from a pid namespace of its own\n",
            ]);
        }
        errno
    })
}

/// Maximum number of segments of one call (IOV_MAX).
const SEGMENTS_MAX: usize = 1024;
/// Maximum number of segments of one piece.
const PIECE_SEGMENTS: usize = 8;

/// A position in a list of segments.
struct Cursor<'a> {
    segments: &'a [iovec],
    /// Number of bytes of the first segment that are already done.
    done: usize,
}

impl<'a> Cursor<'a> {
    const fn new(segments: &'a [iovec]) -> Self {
        Self { segments, done: 0 }
    }

    /// Returns true for a segment length that the kernel refuses.
    fn negative(&self) -> bool {
        self.segments.iter().any(|segment| isize::try_from(segment.iov_len).is_err())
    }

    /// Returns the rest of the first unfinished segment, as address and length.
    fn next(&mut self) -> Option<(usize, usize)> {
        loop {
            let segment = self.segments.first()?;
            if self.done < segment.iov_len {
                return Some((segment.iov_base.addr().wrapping_add(self.done), segment.iov_len - self.done));
            }
            (self.segments, self.done) = (&self.segments[1..], 0);
        }
    }

    /// Fills `piece` with the next segments, up to `len` bytes together. Returns the numbers of segments and
    /// bytes.
    fn gather(&self, piece: &mut [iovec], len: usize) -> (usize, usize) {
        let (mut ahead, mut count, mut bytes) = (Self { ..*self }, 0, 0);
        while count < piece.len() && bytes < len {
            let Some((start, left)) = ahead.next() else { break };
            let part = left.min(len - bytes);
            piece[count] = iovec { iov_base: area::address(start), iov_len: part };
            ahead.done += part;
            bytes += part;
            count += 1;
        }
        (count, bytes)
    }

    fn advance(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let Some((_, left)) = self.next() else { return };
            let part = left.min(bytes);
            self.done += part;
            bytes -= part;
        }
    }
}

/// Calls the kernel's `process_vm_writev`.
///
/// # Safety
/// The contract of `process_vm_writev(2)` applies.
unsafe fn system_writev(
    pid: pid_t,
    (local, local_count): (*const iovec, c_ulong),
    (remote, remote_count): (*const iovec, c_ulong),
    flags: c_ulong,
) -> Result<usize, Errno> {
    let word = |count: c_ulong| usize::try_from(count).expect("words have as many bits");
    let process = isize::try_from(pid).expect("a word holds more").cast_unsigned();
    let arguments = [
        process,
        local.expose_provenance(),
        word(local_count),
        remote.expose_provenance(),
        word(remote_count),
        word(flags),
    ];
    // SAFETY: guaranteed by the caller.
    unsafe { gate::call(libc::SYS_process_vm_writev, arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For every sequence of pieces, the bytes come out in order, each once.
        #[test]
        fn pieces_are_the_whole(lens in proptest::collection::vec(0_usize..50, 1..20), steps in proptest::collection::vec(1_usize..60, 1000)) {
            let starts: Vec<usize> = (0..lens.len()).map(|n| (n + 1) * 1000).collect();
            let segments: Vec<iovec> = starts
                .iter()
                .zip(&lens)
                .map(|(&start, &len)| iovec { iov_base: area::address(start), iov_len: len })
                .collect();
            let plain: Vec<usize> = starts.iter().zip(&lens).flat_map(|(&start, &len)| start..start + len).collect();
            let mut cursor = Cursor::new(&segments);
            let mut seen = Vec::new();
            for len in steps {
                let mut piece = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 3];
                let (count, bytes) = cursor.gather(&mut piece, len);
                prop_assert!(bytes <= len);
                prop_assert_eq!(piece[..count].iter().map(|part| part.iov_len).sum::<usize>(), bytes);
                seen.extend(piece[..count].iter().flat_map(|part| {
                    let start = part.iov_base.addr();
                    start..start + part.iov_len
                }));
                cursor.advance(bytes);
            }
            prop_assert_eq!(seen, plain);
            prop_assert_eq!(cursor.next(), None);
        }
    }
}
