//! Processes of the rack and their memory system calls: what programs on several hosts that are one program allocate with (MIND 4.1, 6.1).
//!
//! Key type: [`Process`]. All processes of a domain have one address space, on whatever hosts they are. The control plane decides, as the
//! kernel would: [`Process::map`] is mmap(2), and so on; what is refused is [`Error::System`] with Linux's error number. What was mapped is
//! reached by loads and stores of the [`SharedSpace`], at the same address on every host. When the last process ends, all of it is given back.

use super::SharedSpace;
use core::ops::BitOr;
use farmem_client::Error;
use farmem_control::api::{
    Brk, Call, Mmap, Mprotect, Munmap, ProcessExit, ProcessInfo, ProcessStart, Returned,
};
use farmem_wire::VirtAddr;
use std::io;

/// Permitted uses of a mapping's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prot(u32);

impl Prot {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Loads.
    pub const READ: Self = Self(1);
    /// Stores, and with them loads.
    pub const WRITE: Self = Self(2);
}

impl BitOr for Prot {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Where a mapping shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Wherever there is room.
    Anywhere,
    /// Here, if there is room.
    Near(VirtAddr),
    /// Exactly here, in the place of what is mapped here (MAP_FIXED).
    Replacing(VirtAddr),
    /// Exactly here, and nowhere if something is mapped here (MAP_FIXED_NOREPLACE).
    Exactly(VirtAddr),
}

const MAP_PRIVATE: u32 = 0x02;
const MAP_FIXED: u32 = 0x10;
const MAP_ANONYMOUS: u32 = 0x20;
const MAP_FIXED_NOREPLACE: u32 = 0x10_0000;

/// A process of the rack, on the host of its space. It ends with [`Process::exit`], or when it is dropped.
#[derive(Debug)]
pub struct Process<'s> {
    space: &'s SharedSpace,
    number: u32,
    heap: Option<VirtAddr>,
    ended: bool,
}

impl SharedSpace {
    /// Starts a process in this space's domain. The domain's first one says how large the heap may become, in bytes; 0 is none.
    ///
    /// # Errors
    /// [`Error::Refused`] when no memory node has room for the heap, or there are too many processes.
    pub fn process(&self, heap: u64) -> Result<Process<'_>, Error> {
        let ProcessInfo { process, heap } = self.call(ProcessStart { domain: self.joined.domain(), heap })?;
        let heap = (heap > 0).then_some(VirtAddr(heap));
        Ok(Process { space: self, number: process, heap, ended: false })
    }
}

impl Process<'_> {
    /// Its number, unique in the rack.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Where the heap of its address space begins.
    #[must_use]
    pub const fn heap(&self) -> Option<VirtAddr> {
        self.heap
    }

    /// mmap(2) of anonymous memory: at least `len` bytes, all zero, in whole pages.
    ///
    /// # Errors
    /// [`Error::System`] with EINVAL, ENOMEM, EEXIST; [`Error::Unreachable`] when the memory is on a node that joined after the space was
    /// opened; [`Error::Refused`] when a role does not answer.
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
            // No program could touch it here.
            self.unmap(VirtAddr(base), len)?;
            let what = "a memory node that joined after this space was opened: open another".into();
            return Err(Error::Unreachable { what });
        }
        Ok(VirtAddr(base))
    }

    /// munmap(2): from here on a touch of these pages ends in SIGBUS.
    ///
    /// # Errors
    /// [`Error::System`] with EINVAL when they are no whole pages; [`Error::Refused`] when a role does not answer.
    pub fn unmap(&self, addr: VirtAddr, len: u64) -> Result<(), Error> {
        self.call("munmap", Munmap { process: self.number, addr: addr.0, len }).map(|_| ())
    }

    /// mprotect(2): at every host. What it forbids ends in SIGBUS.
    ///
    /// # Errors
    /// [`Error::System`] with EINVAL, EACCES, or ENOMEM at the first page that is not mapped; [`Error::Refused`] when a role does not answer.
    pub fn protect(&self, addr: VirtAddr, len: u64, prot: Prot) -> Result<(), Error> {
        self.call("mprotect", Mprotect { process: self.number, addr: addr.0, len, prot: prot.0 }).map(drop)
    }

    /// The system call brk(2): where the heap ends afterwards, whether it moved or not.
    ///
    /// # Errors
    /// [`Error::Refused`] when a role does not answer.
    pub fn brk(&self, end: VirtAddr) -> Result<VirtAddr, Error> {
        self.call("brk", Brk { process: self.number, addr: end.0 }).map(VirtAddr)
    }

    /// Ends it. With the last of its domain the address space is given back.
    ///
    /// # Errors
    /// [`Error::Refused`] or [`Error::Api`] when the control plane does not do it.
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

/// A caller that needs to know that it worked calls [`Process::exit`].
impl Drop for Process<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let _unheard = self.space.call(ProcessExit { process: self.number });
        }
    }
}
