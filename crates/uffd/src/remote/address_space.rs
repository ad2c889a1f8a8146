//! Address spaces, and the processes that have them.
//!
//! Key type: [`AddressSpace`]. A pid does not identify an address space: a child of `vfork`, or of `clone` with
//! CLONE_VM, has its parent's. Such a child keeps the memory when its parent ends or runs another program. So an
//! address space is identified by the memfd of its far memory: only the accepted address space maps this file,
//! because neither a fork nor an `execve` keeps the mapping.

use super::{Remote, is_readable, kill};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{fstat, major, minor};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A file, as the kernel's lists of mappings name it: device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId {
    device: (u32, u32),
    inode: u64,
}

impl FileId {
    /// Returns the identity of an open file.
    pub(super) fn of(file: impl AsFd) -> rustix::io::Result<Self> {
        let stat = fstat(file)?;
        Ok(Self { device: (major(stat.st_dev), minor(stat.st_dev)), inode: stat.st_ino })
    }
}

/// One line of `/proc/PID/maps`.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Mapped<'a> {
    pub(super) addresses: Range<u64>,
    pub(super) rights: &'a str,
    pub(super) offset: u64,
    pub(super) file: FileId,
}

impl<'a> Mapped<'a> {
    /// Parses a line; `None` when it has another form.
    pub(super) fn of(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (addresses, rights, offset) = (words.next()?, words.next()?, words.next()?);
        let (device, inode) = (words.next()?, words.next()?);
        let (start, end) = addresses.split_once('-')?;
        let (major, minor) = device.split_once(':')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let part = |text| u32::from_str_radix(text, 16).ok();
        Some(Self {
            addresses: number(start)?..number(end)?,
            rights,
            offset: number(offset)?,
            file: FileId { device: (part(major)?, part(minor)?), inode: inode.parse().ok()? },
        })
    }
}

/// The address space of a process at one moment.
#[derive(Default, Debug)]
pub struct AddressSpace {
    /// The files that are mapped shared from their first byte on, including the memfd of far memory.
    files: Vec<FileId>,
}

impl AddressSpace {
    /// Reads the address space of a process or thread, up to the address `until`. For an ended process or an unused
    /// number, it is empty.
    ///
    /// # Errors
    /// The system's error if it denies the access.
    pub fn of(number: u32, until: u64) -> io::Result<Self> {
        let process = PathBuf::from(format!("/proc/{number}"));
        if let Some(space) = Self::read(&process.join("maps"), until)? {
            return Ok(space);
        }
        // The first thread has ended; the others still have the address space.
        let Ok(threads) = fs::read_dir(process.join("task")) else { return Ok(Self::default()) };
        for thread in threads.flatten() {
            if let Some(space) = Self::read(&thread.path().join("maps"), until)? {
                return Ok(space);
            }
        }
        Ok(Self::default())
    }

    /// Reads a list of mappings; `None` for an empty one.
    fn read(list: &Path, until: u64) -> io::Result<Option<Self>> {
        let gone = |error: &io::Error| {
            error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
        };
        let mut list = match File::open(list) {
            Ok(list) => BufReader::new(list),
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (mut space, mut bytes, mut is_empty) = (Self::default(), Vec::new(), true);
        loop {
            bytes.clear();
            match list.read_until(b'\n', &mut bytes) {
                Ok(0) => break,
                Ok(_) => is_empty = false,
                Err(error) if gone(&error) => break,
                Err(error) => return Err(error),
            }
            // A file's name need not be UTF-8.
            let line = String::from_utf8_lossy(&bytes);
            let Some(mapped) = Mapped::of(&line) else { continue };
            if mapped.addresses.start > until {
                break;
            }
            if mapped.offset == 0 && mapped.rights.ends_with('s') {
                space.files.push(mapped.file);
            }
        }
        Ok((!is_empty).then_some(space))
    }
}

/// Returns the processes that have the address space with this file, each with its pidfd.
pub(super) fn holders(file: FileId) -> Vec<(u32, OwnedFd)> {
    let has = |number| AddressSpace::of(number, u64::MAX).is_ok_and(|space| space.files.contains(&file));
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let open = |number: u32| {
        let pid = Pid::from_raw(i32::try_from(number).ok()?)?;
        let ended = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // By now the number may belong to another process.
        (has(number) && !is_readable(&ended)).then_some((number, ended))
    };
    numbers.filter(|&number| has(number)).filter_map(open).collect()
}

/// Maximum number of rounds of [`kill_holders`]: a process that is being killed may make another one.
const ROUNDS_MAX: usize = 64;

/// Kills the processes that have the address space with this file, and waits for their end. Returns their number.
pub(super) fn kill_holders(file: FileId) -> usize {
    let mut killed = 0;
    for _ in 0..ROUNDS_MAX {
        let holders = holders(file);
        if holders.is_empty() {
            break;
        }
        holders.iter().for_each(|(_, ended)| kill(ended));
        for (_, ended) in &holders {
            let mut ends = [PollFd::new(ended, PollFlags::IN)];
            let _ = retry_on_intr(|| poll(&mut ends, None));
        }
        killed += holders.len();
    }
    killed
}

impl Remote {
    /// Returns true if this far memory is in the address space.
    #[must_use]
    pub fn is_in(&self, space: &AddressSpace) -> bool {
        space.files.contains(&self.id)
    }

    /// Returns the processes that have this address space, each with its pidfd.
    #[must_use]
    pub fn holders(&self) -> Vec<(u32, OwnedFd)> {
        holders(self.id)
    }

    /// Returns the memfd, which identifies the address space.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_wire::message::PAGE_LEN;
    use std::ptr;

    #[test]
    fn a_line_of_maps_is_parsed() {
        let line = "400040009000-400040209000 rw-s 00009000 00:01 1234                       /memfd:farmem (deleted)";
        let expected = Mapped {
            addresses: 0x4000_4000_9000..0x4000_4020_9000,
            rights: "rw-s",
            offset: 0x9000,
            file: FileId { device: (0, 1), inode: 1234 },
        };
        assert_eq!(Mapped::of(line), Some(expected));
        assert_eq!(Mapped::of("nonsense"), None);
        assert_eq!(Mapped::of(""), None);
    }

    /// A process is found by a file that it maps, with its own number and those of its threads. A process that maps
    /// another file is not.
    #[test]
    fn an_address_space_is_known_by_its_file() {
        let files = ["one", "other"].map(|name| {
            let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, PAGE_LEN as u64).unwrap();
            file
        });
        let (rights, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: the system chooses the address, so that nothing of ours is replaced.
        let mapped =
            unsafe { rustix::mm::mmap(ptr::null_mut(), PAGE_LEN, rights, flags, &files[0], 0) }.unwrap();
        let [one, other] = files.each_ref().map(|file| FileId::of(file).unwrap());
        let process = std::process::id();
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        for number in [process, thread] {
            let space = AddressSpace::of(number, u64::MAX).unwrap();
            assert!(space.files.contains(&one) && !space.files.contains(&other));
        }
        let below = AddressSpace::of(process, mapped.addr() as u64 - 1).unwrap();
        assert!(!below.files.contains(&one));
        assert!(AddressSpace::of(u32::MAX, u64::MAX).unwrap().files.is_empty());
        let numbers = |file| holders(file).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        assert_eq!((numbers(one), numbers(other)), (vec![process], vec![]));
        // SAFETY: the mapping that was just made, whole, to which there is no reference.
        unsafe { rustix::mm::munmap(mapped, PAGE_LEN) }.unwrap();
    }
}
