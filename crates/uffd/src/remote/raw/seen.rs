//! The kernel's view of a program's threads and mappings, which is valid after a call without libc.

use super::super::Remote;
use super::super::address_space::Mapped;
use super::super::call::CONTROL_PAGES;
use farmem_wire::message::PAGE_LEN;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Pages of far memory with equal rights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The pages.
    pub pages: Range<u64>,
    /// Permitted accesses, in the form of `mmap`.
    pub protection: u64,
}

/// Overlap of a range of addresses with a process's far memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Touched {
    /// Nothing of far memory.
    Nothing,
    /// The mailboxes: no program has a reason to access them.
    Control,
    /// Far memory.
    Far {
        /// The pages.
        pages: Range<u64>,
        /// True if the range has whole pages of far memory and nothing else.
        whole: bool,
    },
}

/// Returns the process of a thread, and the thread's number in its own pid namespace.
#[must_use]
pub fn process_of(thread: u32) -> Option<(u32, u32)> {
    // Parsed here: all of `Status` takes 58 times the instructions, and every notified call needs this. A name need
    // not be UTF-8.
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let last = |what| {
        let line = status.lines().find_map(|line| line.strip_prefix(what))?;
        line.split_ascii_whitespace().next_back()?.parse().ok()
    };
    Some((last("Tgid:")?, last("NSpid:").unwrap_or(thread)))
}

/// Returns the number in this process's PID namespace of a thread of `process`, whose number in its own namespace is `own`. A page fault
/// carries that number. `None` when the thread has ended.
#[must_use]
pub fn thread_here(process: u32, own: u32) -> Option<u32> {
    let (_, first) = process_of(process)?;
    if first == process {
        return Some(own);
    }
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten();
    let mut numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    numbers.find(|&number| process_of(number).is_some_and(|(_, its_own)| its_own == own))
}

/// The calls that change mappings.
const CHANGES: [i64; 5] =
    [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_pkey_mprotect];

/// Returns true while a thread may be in a call that changes mappings: it runs, or waits in such a call. A thread that waits elsewhere, or has
/// ended, is in none.
#[must_use]
pub fn may_change_mappings(thread: u32) -> bool {
    match fs::read_to_string(format!("/proc/{thread}/syscall")) {
        Ok(call) => {
            let number = call.split_ascii_whitespace().next().and_then(|word| word.parse::<i64>().ok());
            number.is_none_or(|number| CHANGES.contains(&number))
        }
        Err(error) => error.kind() != io::ErrorKind::NotFound && error.raw_os_error() != Some(libc::ESRCH),
    }
}

/// Returns the resident memory of a process in bytes: private anonymous memory, and mappings of files in memory,
/// including far memory.
#[must_use]
pub fn resident_memory(process: u32) -> Option<[u64; 2]> {
    let status = fs::read(format!("/proc/{process}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let bytes = |what| {
        let line = status.lines().find_map(|line| line.strip_prefix(what))?;
        let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        Some(kib * 1024)
    };
    Some([bytes("RssAnon:")?, bytes("RssShmem:")?])
}

/// The break of a process, as seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Break {
    /// The address at the program's start.
    pub start: u64,
    /// The end of the last page.
    pub end: u64,
}

/// Returns the break of a process; `None` if the kernel does not show it.
#[must_use]
pub fn break_of(process: u32) -> Option<Break> {
    /// The field `start_brk` behind the name in `/proc/PID/stat`, counted from 0.
    const FIELD: usize = 44;
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, fields) = stat.rsplit_once(')')?;
    let start: u64 = fields.split_ascii_whitespace().nth(FIELD)?.parse().ok()?;
    let maps = maps_of(process).ok()?;
    let heap = maps.lines().find(|line| line.ends_with("[heap]")).and_then(Mapped::of);
    (start > 0).then(|| Break { start, end: heap.map_or(start, |heap| heap.addresses.end) })
}

/// Returns true if a descriptor of a thread is a pipe, where O_DIRECT means packet mode.
#[must_use]
pub fn is_pipe(thread: u32, descriptor: u64) -> bool {
    let to = fs::read_link(format!("/proc/{thread}/fd/{descriptor}"));
    to.is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"))
}

/// Returns true if the arguments of an `openat2`, at an address of a living thread, contain O_DIRECT. The address
/// must not be in far memory: the read would wait for the pager, which makes it.
#[must_use]
pub fn opens_direct(thread: u32, how: u64) -> bool {
    let mut flags = [0; 8];
    // If this process cannot read the memory, the kernel cannot read it either.
    let read = read_memory(thread, how, &mut flags).is_ok();
    read && u64::from_le_bytes(flags) & u64::from(libc::O_DIRECT.unsigned_abs()) != 0
}

fn read_memory(thread: u32, from: u64, into: &mut [u8]) -> io::Result<()> {
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
    let start = usize::try_from(from).map_err(|_| io::ErrorKind::InvalidInput)?;
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: into.len() };
    // SAFETY: room for as many bytes as are read; the system checks the other address.
    let count = unsafe { libc::process_vm_readv(thread, &raw const local, 1, &raw const remote, 1, 0) };
    if usize::try_from(count) == Ok(into.len()) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Remote {
    /// Returns the overlap of a range of addresses with far memory.
    #[must_use]
    pub fn touched(&self, first: u64, len: u64) -> Touched {
        let page = PAGE_LEN as u64;
        let end = first.saturating_add(len).checked_next_multiple_of(page).unwrap_or(u64::MAX);
        let control = self.address(0)..self.address(CONTROL_PAGES as u64);
        let far = control.end..self.address(self.pages);
        if first < control.end && end > control.start {
            return Touched::Control;
        }
        let (from, to) = (first.max(far.start), end.min(far.end));
        if from >= to {
            return Touched::Nothing;
        }
        let pages = (from - self.base as u64) / page..(to - self.base as u64) / page;
        Touched::Far { pages, whole: first == from && end == to && first.is_multiple_of(page) }
    }

    /// Returns the mappings of the memfd at their original addresses, with their rights, in the order of addresses. A
    /// missing span is unmapped or something else.
    ///
    /// # Errors
    /// The system's error if the process has ended or denies access.
    pub fn seen(&self, process: u32) -> io::Result<Vec<Seen>> {
        Ok(maps_of(process)?.lines().filter_map(|line| self.seen_in(line)).collect())
    }

    fn seen_in(&self, line: &str) -> Option<Seen> {
        let Mapped { addresses, rights, offset, file } = Mapped::of(line)?;
        let first = addresses.start.checked_sub(self.base as u64)?;
        if file != self.id || offset != first {
            return None;
        }
        let bit = |letter, bit: i32| if rights.contains(letter) { u64::from(bit.unsigned_abs()) } else { 0 };
        let protection = bit('r', libc::PROT_READ) | bit('w', libc::PROT_WRITE) | bit('x', libc::PROT_EXEC);
        let len = addresses.end - addresses.start;
        Some(Seen { pages: first / PAGE_LEN as u64..(first + len) / PAGE_LEN as u64, protection })
    }
}

/// Returns the kernel's list of mappings. If the process's first thread has ended, another thread has the list.
fn maps_of(process: u32) -> io::Result<String> {
    // Parsed here: a file with the name "/SYSV1" would make the library's parser panic, and with it the pager. Nor
    // need a name be UTF-8.
    let list = |of: &Path| fs::read(of.join("maps")).ok().filter(|maps| !maps.is_empty()).map(text);
    let itself = PathBuf::from(format!("/proc/{process}"));
    if let Some(maps) = list(&itself) {
        return Ok(maps);
    }
    let mut threads = fs::read_dir(itself.join("task"))?.flatten();
    threads.find_map(|thread| list(&thread.path())).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|bytes| String::from_utf8_lossy(bytes.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    /// A thread name of 15 bytes may end within a character, and a file name may have any bytes. Neither hides a
    /// process or its mappings.
    #[test]
    fn invalid_utf8_names_hide_nothing() {
        let id = std::process::id();
        let named = std::thread::spawn(|| {
            let here = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            rustix::thread::set_name(c"\xd0\xbf\xd1").unwrap();
            (process_of(here), here)
        });
        let (process, thread) = named.join().unwrap();
        assert_eq!(process, Some((id, thread)));
        let file = rustix::fs::memfd_create(c"\xff", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&file, PAGE_LEN as u64).unwrap();
        let (rights, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: the system chooses the address, so that nothing of ours is replaced.
        let mapped = unsafe { rustix::mm::mmap(ptr::null_mut(), PAGE_LEN, rights, flags, &file, 0) }.unwrap();
        let maps = maps_of(id);
        // SAFETY: the mapping that was just made, whole, to which there is no reference.
        unsafe { rustix::mm::munmap(mapped, PAGE_LEN) }.unwrap();
        assert!(maps.unwrap().contains(&format!("{:x}-", mapped.addr())));
    }

    /// A thread that runs may be in a call. One that waits in another call is not, nor one that has ended.
    #[test]
    fn calls_of_threads_are_told() {
        use std::process::{Command, Stdio};
        let mut runs = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        while !may_change_mappings(runs.id()) {
            std::thread::yield_now();
        }
        runs.kill().unwrap();
        runs.wait().unwrap();
        let mut waits = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        while may_change_mappings(waits.id()) {
            std::thread::yield_now();
        }
        drop(waits.stdin.take());
        waits.wait().unwrap();
        assert!(!may_change_mappings(waits.id()));
    }

    /// A thread in another PID namespace has another number there.
    #[test]
    fn threads_of_another_namespace_are_found() {
        use std::process::{Command, Stdio};
        let itself = std::process::id();
        assert_eq!(thread_here(itself, itself), Some(itself));
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut outside = command.stderr(Stdio::null()).spawn().unwrap();
        io::Write::write_all(outside.stdin.as_mut().unwrap(), b"x").unwrap();
        if io::Read::read_exact(outside.stdout.as_mut().unwrap(), &mut [0]).is_err() {
            eprintln!("skipped: threads of another namespace: this user may not make one");
        } else {
            let children = format!("/proc/{0}/task/{0}/children", outside.id());
            let first: u32 = fs::read_to_string(children).unwrap().trim().parse().unwrap();
            assert_eq!(thread_here(first, 1), Some(first));
            assert_eq!(thread_here(first, 2), None);
        }
        drop(outside.stdin.take());
        outside.wait().unwrap();
    }

    #[test]
    fn this_process_is_found() {
        let id = std::process::id();
        let first = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert_eq!(process_of(first), Some((id, first)));
        assert!(maps_of(id).is_ok_and(|maps| maps.lines().all(|line| Mapped::of(line).is_some())));
        assert_eq!((process_of(u32::MAX), resident_memory(u32::MAX)), (None, None));
        assert!(resident_memory(id).is_some_and(|[anonymous, _]| anonymous > 0));
        let (from, mut into) = (*b"bytes", [0; 5]);
        read_memory(id, from.as_ptr().addr() as u64, &mut into).unwrap();
        assert_eq!(into, from);
        assert!(read_memory(id, 8, &mut into).is_err());
    }
}
