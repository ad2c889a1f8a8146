//! Processes of the rack and their memory system calls: memory allocation of programs that run as one on
//! several hosts (MIND 4.1, 6.1).
//!
//! Key type: [`Process`]. All processes of a domain share one address space, on all hosts. The control plane
//! decides as the kernel would: [`Process::map`] is mmap(2), and so on. A refusal is an [`Error::System`]
//! with Linux's error number. Programs access mapped memory by loads and stores of the [`SharedSpace`], at
//! the same address on every host. When the last process ends, all of the memory is freed.

use super::SharedSpace;
use core::ops::BitOr;
use farmem_client::Error;
use farmem_control::api::{
    Brk, Call, Mmap, Mprotect, Munmap, ProcessExit, ProcessInfo, ProcessStart, Returned,
};
use farmem_wire::VirtAddr;
use std::io;

/// The permitted accesses of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prot(u32);

impl Prot {
    /// No access.
    pub const NONE: Self = Self(0);
    /// Loads.
    pub const READ: Self = Self(1);
    /// Stores and loads.
    pub const WRITE: Self = Self(2);
}

impl BitOr for Prot {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The position of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Any free range.
    Anywhere,
    /// This address if it is free.
    Near(VirtAddr),
    /// Exactly this address; replaces an existing mapping (MAP_FIXED).
    Replacing(VirtAddr),
    /// Exactly this address; fails if it is mapped (MAP_FIXED_NOREPLACE).
    Exactly(VirtAddr),
}

const MAP_PRIVATE: u32 = 0x02;
const MAP_FIXED: u32 = 0x10;
const MAP_ANONYMOUS: u32 = 0x20;
const MAP_FIXED_NOREPLACE: u32 = 0x10_0000;

/// A process of the rack, on the host of its space. The process ends with [`Process::exit`] or a drop.
#[derive(Debug)]
pub struct Process<'s> {
    space: &'s SharedSpace,
    number: u32,
    heap: Option<VirtAddr>,
    ended: bool,
}

impl SharedSpace {
    /// Starts a process in this space's domain. The domain's first process sets the maximum size of the heap,
    /// in bytes; 0 is no heap.
    ///
    /// # Errors
    /// [`Error::Refused`] if no memory node has enough free memory for the heap, or there are too many
    /// processes.
    pub fn process(&self, heap: u64) -> Result<Process<'_>, Error> {
        let ProcessInfo { process, heap } = self.call(ProcessStart { domain: self.joined.domain(), heap })?;
        let heap = (heap > 0).then_some(VirtAddr(heap));
        Ok(Process { space: self, number: process, heap, ended: false })
    }
}

impl Process<'_> {
    /// Returns the start of the address space's heap.
    #[must_use]
    pub const fn heap(&self) -> Option<VirtAddr> {
        self.heap
    }

    /// Maps anonymous memory as mmap(2) does: at least `len` zeroed bytes, in whole pages.
    ///
    /// # Errors
    /// [`Error::System`] with EINVAL, ENOMEM or EEXIST; [`Error::Unreachable`] if the memory's node joined
    /// after the space was opened; [`Error::Refused`] if a role does not answer.
    pub fn map(&self, at: At, len: u64, prot: Prot) -> Result<VirtAddr, Error> {
        let (addr, flag) = match at {
            At::Anywhere => (0, 0),
            At::Near(addr) => (addr.0, 0),
            At::Replacing(addr) => (addr.0, MAP_FIXED),
            At::Exactly(addr) => (addr.0, MAP_FIXED_NOREPLACE),
        };
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | flag;
        let base = self.call("mmap", Mmap { process: self.number, addr, len, prot: prot.0, flags })?;
        let (start, span) = self.space.span();
        if base < start.0 || base - start.0 + len > span {
            // This host's programs could not access the range.
            self.unmap(VirtAddr(base), len)?;
            let what = "a memory node that joined after this space was opened: open another space".into();
            return Err(Error::Unreachable { what });
        }
        Ok(VirtAddr(base))
    }

    /// Unmaps pages as munmap(2) does. Later accesses end in SIGBUS.
    ///
    /// # Errors
    /// [`Error::System`] with EINVAL if the range is not whole pages; [`Error::Refused`] if a role does not
    /// answer.
    pub fn unmap(&self, addr: VirtAddr, len: u64) -> Result<(), Error> {
        self.call("munmap", Munmap { process: self.number, addr: addr.0, len }).map(|_| ())
    }

    /// Changes the protection of pages as mprotect(2) does, at every host. Forbidden accesses end in SIGBUS.
    ///
    /// # Errors
    /// [`Error::System`] with EINVAL, EACCES, or ENOMEM at the first page that is not mapped;
    /// [`Error::Refused`] if a role does not answer.
    pub fn protect(&self, addr: VirtAddr, len: u64, prot: Prot) -> Result<(), Error> {
        self.call("mprotect", Mprotect { process: self.number, addr: addr.0, len, prot: prot.0 }).map(drop)
    }

    /// Sets the end of the heap as the system call brk(2) does. Returns the end afterwards, whether or not it
    /// moved.
    ///
    /// # Errors
    /// [`Error::Refused`] if a role does not answer.
    pub fn brk(&self, end: VirtAddr) -> Result<VirtAddr, Error> {
        self.call("brk", Brk { process: self.number, addr: end.0 }).map(VirtAddr)
    }

    /// Ends the process. The last process of a domain frees the address space.
    ///
    /// # Errors
    /// [`Error::Refused`] or [`Error::Api`] if the control plane does not end the process.
    pub fn exit(mut self) -> Result<(), Error> {
        self.ended = true;
        self.space.call(ProcessExit { process: self.number })
    }

    fn call(&self, name: &str, call: impl Call<Answer = Returned>) -> Result<u64, Error> {
        let value = self.space.call(call)?.value;
        u64::try_from(value).map_err(|_negative| {
            let errno = i32::try_from(-value).unwrap_or(i32::MAX);
            Error::System {
                what: format!("{name} in far memory"),
                source: io::Error::from_raw_os_error(errno),
            }
        })
    }
}

/// Ends the process without reporting failure; [`Process::exit`] reports it.
impl Drop for Process<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let _unheard = self.space.call(ProcessExit { process: self.number });
        }
    }
}
