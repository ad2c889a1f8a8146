//! The system's userfaultfd: opened as far as this process may, every ioctl with its result.
//!
//! Key type: [`Userfaultfd`]. It knows descriptors and addresses, nothing of pages of far memory; `farmem_uffd::Window` is
//! built on it. Structures and constants are those of `linux-raw-sys`; what its Linux headers leave out stands in `ioctls`.
//! The calls go to the kernel directly (`rustix`), past any `mmap` or `madvise` that a preloaded library puts before libc's.

use crate::message::{Messages, parse};
use farmem_wire::message::PAGE_LEN;
use linux_raw_sys::general as raw;
use rustix::io::Errno;
use rustix::ioctl::{self, Updater};
use rustix::mm::UserfaultfdFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// What the headers of `linux-raw-sys` leave out: macros with a cast or a shift in them, and ioctls newer than their list.
mod ioctls {
    use super::raw;
    use rustix::ioctl::{Opcode, opcode};

    pub(super) const GROUP: u8 = 0xaa;
    pub(super) const API: Opcode = opcode::read_write::<raw::uffdio_api>(GROUP, 0x3f);
    pub(super) const REGISTER: Opcode = opcode::read_write::<raw::uffdio_register>(GROUP, 0);
    pub(super) const UNREGISTER: Opcode = opcode::read::<raw::uffdio_range>(GROUP, 1);
    pub(super) const WAKE: Opcode = opcode::read::<raw::uffdio_range>(GROUP, 2);
    pub(super) const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(GROUP, 3);
    pub(super) const ZEROPAGE: Opcode = opcode::read_write::<raw::uffdio_zeropage>(GROUP, 4);
    pub(super) const MOVE: Opcode = opcode::read_write::<raw::uffdio_move>(GROUP, 5);
    pub(super) const WRITEPROTECT: Opcode = opcode::read_write::<raw::uffdio_writeprotect>(GROUP, 6);
    pub(super) const CONTINUE: Opcode = opcode::read_write::<raw::uffdio_continue>(GROUP, 7);
    pub(super) const POISON: Opcode = opcode::read_write::<raw::uffdio_poison>(GROUP, 8);
    /// Of the device: a new userfaultfd, with the flags of the system call as the argument.
    pub(super) const DEVICE_NEW: Opcode = opcode::none(GROUP, 0);

    pub(super) const CONTINUE_MODE_WP: u64 = 1 << 1;
    pub(super) const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
}

/// How far faults are served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reach {
    /// Faults of user code only: a system call that meets a missing page fails with EFAULT. Every user may have that.
    UserMode,
    /// Faults of the kernel too: `read(2)` and `recv(2)` into far memory work.
    Full,
}

/// The right to open it in full: as root, with CAP_SYS_PTRACE, where `vm.unprivileged_userfaultfd` is 1, or by this device.
const DEVICE: &str = "/dev/userfaultfd";

/// The system's device, by which a process that may not open a userfaultfd may have one ([`Userfaultfd::open_from`]).
///
/// # Errors
/// What the system says: there is none, or this process may not open it.
pub fn device() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(DEVICE)
}

/// Features of the kernel's userfaultfd, as its bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features(u64);

impl Features {
    /// What a `farmem_uffd::Window` needs (Linux 6.6): missing, minor and write-protect faults of shared memory, exact
    /// addresses, poison, and who faulted.
    pub const WINDOW: Self = Self::bits_of(&[
        raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP,
        raw::UFFD_FEATURE_MISSING_SHMEM,
        raw::UFFD_FEATURE_MINOR_SHMEM,
        raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
        raw::UFFD_FEATURE_WP_UNPOPULATED,
        raw::UFFD_FEATURE_POISON,
        raw::UFFD_FEATURE_EXACT_ADDRESS,
        raw::UFFD_FEATURE_THREAD_ID,
    ]);
    /// A child's copy is reported, with a descriptor of its own. The system wants CAP_SYS_PTRACE for it.
    pub const FORK: Self = Self::bits_of(&[raw::UFFD_FEATURE_EVENT_FORK]);
    /// Ranges that the program gives back, moves or unmaps are reported, and it waits until the report is read.
    pub const RANGES: Self = Self::bits_of(&[
        raw::UFFD_FEATURE_EVENT_REMAP,
        raw::UFFD_FEATURE_EVENT_REMOVE,
        raw::UFFD_FEATURE_EVENT_UNMAP,
    ]);
    /// Pages are moved instead of copied.
    pub const MOVE: Self = Self::bits_of(&[raw::UFFD_FEATURE_MOVE]);
    /// A fault ends in SIGBUS at the thread that makes it; nothing is reported.
    pub const SIGBUS: Self = Self::bits_of(&[raw::UFFD_FEATURE_SIGBUS]);

    const fn bits_of(bits: &[u32]) -> Self {
        let (mut all, mut at) = (0, 0);
        while at < bits.len() {
            all |= bits[at] as u64;
            at += 1;
        }
        Self(all)
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True when all of `other` are among them.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits, as the kernel counts them.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// Which faults of a range are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faulting(u64);

impl Faulting {
    /// No page is there.
    pub const MISSING: Self = Self(raw::UFFDIO_REGISTER_MODE_MISSING as u64);
    /// A page is there, not writable.
    pub const WRITE_PROTECTED: Self = Self(raw::UFFDIO_REGISTER_MODE_WP as u64);
    /// The page is in the file, and not mapped.
    pub const MINOR: Self = Self(raw::UFFDIO_REGISTER_MODE_MINOR as u64);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Whether a page that is put in place may be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// The next write faults.
    ReadOnly,
    /// It is not reported.
    Writable,
}

/// An ioctl over a range ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("after {done} bytes: {errno}")]
pub struct Stopped {
    /// Bytes done before, from the front: a multiple of the page.
    pub done: usize,
    /// Why it went no further; `AGAIN` after some progress means that the next page has a reason of its own.
    pub errno: Errno,
}

/// Times an ioctl is tried again that met a change of the mappings.
pub const TRIES_MAX: u32 = 1 << 20;

/// What is refused to a process that gets no userfaultfd.
pub const DOING: &str = "serve page faults (userfaultfd)";

/// Why there is no userfaultfd.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system does not let this user, or hides it.
    #[error("no permission to {DOING}; {remedy}")]
    NotPermitted {
        /// What to do.
        remedy: String,
    },
    /// Anything else the system said.
    #[error("cannot {DOING}: {source}")]
    System {
        /// What the system said.
        source: io::Error,
    },
}

/// An open userfaultfd. Its ranges are let go when it is dropped: touching a missing page then gives zeros.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
    reach: Reach,
    features: Features,
    by_device: bool,
}

impl Userfaultfd {
    /// Opens one with `features`: by the system call, or by the device where only that is allowed.
    ///
    /// # Errors
    /// [`OpenError::NotPermitted`] when this process may not have that reach, [`OpenError::System`] when the kernel lacks
    /// userfaultfd or one of the features.
    pub fn open(reach: Reach, features: Features) -> Result<Self, OpenError> {
        match (open_by_call(reach), reach) {
            (Err(Errno::PERM), Reach::Full) => match device() {
                Ok(device) => Self::open_from(&device, reach, features),
                Err(_) => Err(not_permitted(Errno::PERM)),
            },
            (opened, _) => Self::with_features(opened.map_err(not_permitted)?, reach, features, false),
        }
    }

    /// Opens one through an open userfaultfd device: one that was inherited from a process that may open it serves as well.
    ///
    /// # Errors
    /// As [`Userfaultfd::open`].
    pub fn open_from(device: &File, reach: Reach, features: Features) -> Result<Self, OpenError> {
        Self::with_features(open_by_device(device, reach).map_err(not_permitted)?, reach, features, true)
    }

    fn with_features(
        fd: OwnedFd,
        reach: Reach,
        features: Features,
        by_device: bool,
    ) -> Result<Self, OpenError> {
        match handshake(&fd, features) {
            Ok(_) => Ok(Self { fd, reach, features, by_device }),
            Err(errno) => {
                // A refused handshake may be made again; without wishes the answer is all that there is.
                let there = handshake(&fd, Features(0)).unwrap_or(Features(0));
                Err(lacking(features, there, errno))
            }
        }
    }

    /// All features that the kernel offers.
    ///
    /// # Errors
    /// As [`Userfaultfd::open`].
    pub fn offered() -> Result<Features, OpenError> {
        let fd = open_by_call(Reach::UserMode).map_err(not_permitted)?;
        handshake(&fd, Features(0)).map_err(|e| lacking(Features(0), Features(0), e))
    }

    /// How far faults are served.
    #[must_use]
    pub const fn reach(&self) -> Reach {
        self.reach
    }

    /// True when the device gave it, false when the system call did.
    #[must_use]
    pub const fn by_device(&self) -> bool {
        self.by_device
    }

    /// Features that are on.
    #[must_use]
    pub const fn features(&self) -> Features {
        self.features
    }

    /// A reader of what is reported.
    #[must_use]
    pub fn messages(&self) -> Messages<'_> {
        Messages::new(self)
    }

    /// Lets faults of `len` bytes at `start` be reported.
    ///
    /// # Errors
    /// What the system says: EBUSY when another userfaultfd has them, EINVAL for memory that cannot be served so.
    ///
    /// # Safety
    /// The range is a mapping of the caller's, whose threads may wait for this userfaultfd from now on.
    pub unsafe fn register(&self, start: usize, len: usize, faulting: Faulting) -> Result<(), Errno> {
        let mut arg = raw::uffdio_register { range: range(start, len), mode: faulting.0, ioctls: 0 };
        // SAFETY: the structure of this ioctl; that the range may fault is the caller's promise.
        unsafe { call::<{ ioctls::REGISTER }, _>(&self.fd, &mut arg) }
    }

    /// Lets go of a range; who waits in it tries again.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Safety
    /// Nobody relies on its missing pages being reported any more: they read as zeros.
    pub unsafe fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = range(start, len);
        // SAFETY: the structure of this ioctl; the rest is the caller's promise.
        unsafe { call::<{ ioctls::UNREGISTER }, _>(&self.fd, &mut arg) }?;
        // The system wakes who waits before it takes the range back, and a fault under its VMA's own lock (since Linux 6.7) can come to wait
        // between the two. Now none can come any more.
        self.wake(start, len)
    }

    /// Puts copies of `bytes` in place of missing pages at `start`, and wakes who waits for them.
    ///
    /// # Errors
    /// [`Stopped`] at the first page that is there already, mapped or only in the file (EXIST).
    ///
    /// # Safety
    /// The range is registered, and every thread that reads or writes there expects these bytes to appear.
    pub unsafe fn copy(&self, start: usize, bytes: &[u8], mapping: Mapping) -> Result<(), Stopped> {
        let mode = match mapping {
            Mapping::ReadOnly => u64::from(raw::UFFDIO_COPY_MODE_WP),
            Mapping::Writable => 0,
        };
        let (src, len) = (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64);
        let mut arg = raw::uffdio_copy { dst: start as u64, src, len, mode, copy: 0 };
        // SAFETY: the structure of this ioctl, and `bytes` outlive the call; the rest is the caller's promise.
        let result = unsafe { call::<{ ioctls::COPY }, _>(&self.fd, &mut arg) };
        stopped(result, arg.copy)
    }

    /// Puts copies of `bytes` in place of missing pages at `start` as [`Userfaultfd::copy`] does, and goes on where that stops.
    ///
    /// # Errors
    /// What the system says of a page that is there already, or of its address; those before it are in place.
    ///
    /// # Safety
    /// As [`Userfaultfd::copy`].
    pub unsafe fn copy_all(&self, start: usize, bytes: &[u8], mapping: Mapping) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        all_of(bytes.len(), |done| unsafe { self.copy(start + done, &bytes[done..], mapping) })
    }

    /// As [`Userfaultfd::map`], and goes on where the system stopped in the middle.
    ///
    /// # Errors
    /// What the system says of the page where it does not go on.
    ///
    /// # Safety
    /// As [`Userfaultfd::map`].
    pub unsafe fn map_all(&self, start: usize, len: usize, mapping: Mapping) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        all_of(len, |done| unsafe { self.map(start + done, len - done, mapping) })
    }

    /// Puts pages of zeros in place of missing ones, and wakes who waits for them.
    ///
    /// # Errors
    /// [`Stopped`] at the first page that is there already.
    ///
    /// # Safety
    /// As [`Userfaultfd::copy`].
    pub unsafe fn zero(&self, start: usize, len: usize) -> Result<(), Stopped> {
        let mut arg = raw::uffdio_zeropage { range: range(start, len), mode: 0, zeropage: 0 };
        // SAFETY: the structure of this ioctl; the rest is the caller's promise.
        let result = unsafe { call::<{ ioctls::ZEROPAGE }, _>(&self.fd, &mut arg) };
        stopped(result, arg.zeropage)
    }

    /// Maps pages that are in the file, and wakes who waits for them.
    ///
    /// # Errors
    /// [`Stopped`] at the first page that is mapped (EXIST) or not in the file (FAULT).
    ///
    /// # Safety
    /// The range is registered, and what the file holds there is what readers may see.
    pub unsafe fn map(&self, start: usize, len: usize, mapping: Mapping) -> Result<(), Stopped> {
        let mode = match mapping {
            Mapping::ReadOnly => ioctls::CONTINUE_MODE_WP,
            Mapping::Writable => 0,
        };
        let mut arg = raw::uffdio_continue { range: range(start, len), mode, mapped: 0 };
        // SAFETY: the structure of this ioctl; the rest is the caller's promise.
        let result = unsafe { call::<{ ioctls::CONTINUE }, _>(&self.fd, &mut arg) };
        stopped(result, arg.mapped)
    }

    /// Moves pages of private anonymous memory, instead of copying them.
    ///
    /// # Errors
    /// [`Stopped`]: EBUSY for pages that a forked child shares, EINVAL when `start` is not registered here.
    ///
    /// # Safety
    /// As [`Userfaultfd::copy`]; and nothing relies on what is at `from`.
    pub unsafe fn take(&self, start: usize, from: usize, len: usize) -> Result<(), Stopped> {
        let mut arg =
            raw::uffdio_move { dst: start as u64, src: from as u64, len: len as u64, mode: 0, move_: 0 };
        // SAFETY: the structure of this ioctl; the rest is the caller's promise.
        let result = unsafe { call::<{ ioctls::MOVE }, _>(&self.fd, &mut arg) };
        stopped(result, arg.move_)
    }

    /// Makes the next write to each page fault ([`Mapping::ReadOnly`]), or takes that back and wakes who waits. When it returns, no
    /// store from before is on its way.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Safety
    /// The range is registered, and its new state is what the pages' owner wants.
    pub unsafe fn protect(&self, start: usize, len: usize, mapping: Mapping) -> Result<(), Errno> {
        let mode = match mapping {
            Mapping::ReadOnly => ioctls::WRITEPROTECT_MODE_WP,
            Mapping::Writable => 0,
        };
        loop {
            let mut arg = raw::uffdio_writeprotect { range: range(start, len), mode };
            // SAFETY: the structure of this ioctl; the rest is the caller's promise.
            match unsafe { call::<{ ioctls::WRITEPROTECT }, _>(&self.fd, &mut arg) } {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }

    /// Lets every access to the pages end in SIGBUS (EFAULT in system calls), and wakes who waits, for just that.
    ///
    /// # Errors
    /// [`Stopped`] at the first page that is mapped.
    ///
    /// # Safety
    /// The range is registered.
    pub unsafe fn poison(&self, start: usize, len: usize) -> Result<(), Stopped> {
        let mut arg = raw::uffdio_poison { range: range(start, len), mode: 0, updated: 0 };
        // SAFETY: the structure of this ioctl; the rest is the caller's promise.
        let result = unsafe { call::<{ ioctls::POISON }, _>(&self.fd, &mut arg) };
        stopped(result, arg.updated)
    }

    /// Poisons one page as [`Userfaultfd::poison`] does, also where a page was write-protected and then given back.
    ///
    /// # Errors
    /// What the system says: EXIST for a page that is mapped or poisoned already. Who waited for it was woken then, to try again.
    ///
    /// # Safety
    /// The page is registered, and nothing relies on a page there being write-protected.
    pub unsafe fn poison_page(&self, start: usize) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let poison = || unsafe { self.poison(start, PAGE_LEN) }.map_err(|stopped| stopped.errno);
        match poison() {
            Err(Errno::EXIST) => {}
            result => return result,
        }
        // A page that was write-protected leaves a mark where it was, which no poison replaces.
        // SAFETY: the caller's promise.
        unsafe { self.protect(start, PAGE_LEN, Mapping::Writable) }?;
        poison()
    }

    /// Wakes who waits in the range, to try again.
    ///
    /// # Errors
    /// EINVAL when it is not a range of whole pages.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = range(start, len);
        // SAFETY: the structure of this ioctl; it touches no memory.
        unsafe { call::<{ ioctls::WAKE }, _>(&self.fd, &mut arg) }
    }

    /// Reads up to `buffer.len()` messages; waits for the first.
    pub fn read(&self, buffer: &mut [[u8; parse::LEN]]) -> Result<usize, Errno> {
        let bytes = rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, buffer.as_flattened_mut()))?;
        assert!(bytes.is_multiple_of(parse::LEN), "the kernel hands over whole messages");
        Ok(bytes / parse::LEN)
    }

    /// The userfaultfd of another process, which sent it here.
    pub const fn received(fd: OwnedFd, reach: Reach) -> Self {
        Self { fd, reach, features: Features::WINDOW, by_device: false }
    }

    /// The same, by another descriptor.
    pub fn again(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, ..*self })
    }

    /// The userfaultfd of a forked child, from its descriptor in a message.
    pub fn of_child(&self, fd: RawFd) -> Self {
        // SAFETY: the kernel installed the descriptor for the reader of the message, and nothing else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Self { fd, ..*self }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn range(start: usize, len: usize) -> raw::uffdio_range {
    raw::uffdio_range { start: start as u64, len: len as u64 }
}

/// # Safety
/// `T` is the structure of the ioctl, and what it asks for is allowed.
unsafe fn call<const OPCODE: ioctl::Opcode, T>(fd: &OwnedFd, arg: &mut T) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let updater = unsafe { Updater::<OPCODE, T>::new(arg) };
    // SAFETY: the caller's promise.
    unsafe { ioctl::ioctl(fd, updater) }
}

/// Does `len` bytes by steps that may stop in the middle; each is told how many are done.
fn all_of(len: usize, mut step: impl FnMut(usize) -> Result<(), Stopped>) -> Result<(), Errno> {
    let (mut done, mut tries) = (0, 0);
    while done < len {
        match step(done) {
            Ok(()) => return Ok(()),
            // AGAIN without progress: the program changes its mappings at this moment.
            Err(Stopped { done: 0, errno: Errno::AGAIN }) if tries < TRIES_MAX => {
                tries += 1;
                std::thread::yield_now();
            }
            Err(Stopped { done: 0, errno }) => return Err(errno),
            Err(stopped) => done += stopped.done,
        }
    }
    Ok(())
}

/// `done` is what the kernel wrote back: bytes, or its error again when there are none.
fn stopped(result: Result<(), Errno>, done: i64) -> Result<(), Stopped> {
    result.map_err(|errno| Stopped { done: usize::try_from(done).unwrap_or(0), errno })
}

fn flags(reach: Reach) -> UserfaultfdFlags {
    /// Serves faults of user code only.
    const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(raw::UFFD_USER_MODE_ONLY);
    match reach {
        Reach::Full => UserfaultfdFlags::CLOEXEC,
        Reach::UserMode => UserfaultfdFlags::CLOEXEC | USER_MODE_ONLY,
    }
}

fn open_by_call(reach: Reach) -> Result<OwnedFd, Errno> {
    // SAFETY: a descriptor that has no range yet does nothing to memory; what registers ranges is unsafe itself.
    unsafe { rustix::mm::userfaultfd(flags(reach)) }
}

/// Asks the device for a userfaultfd.
struct DeviceNew(UserfaultfdFlags);

// SAFETY: this ioctl takes flags as a number, writes no memory, and returns a descriptor that is the caller's.
unsafe impl ioctl::Ioctl for DeviceNew {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> ioctl::Opcode {
        ioctls::DEVICE_NEW
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        std::ptr::without_provenance_mut(self.0.bits() as usize)
    }

    unsafe fn output_from_ptr(
        fd: ioctl::IoctlOutput,
        _: *mut core::ffi::c_void,
    ) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the kernel opened it for this call a moment ago, and nothing else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

fn open_by_device(device: &File, reach: Reach) -> Result<OwnedFd, Errno> {
    // SAFETY: `DeviceNew` is this ioctl as the device knows it; another file refuses it.
    unsafe { ioctl::ioctl(device, DeviceNew(flags(reach))) }
}

/// Settles the features; answers all that the kernel offers.
fn handshake(fd: &OwnedFd, features: Features) -> Result<Features, Errno> {
    let mut arg = raw::uffdio_api { api: u64::from(raw::UFFD_API), features: features.0, ioctls: 0 };
    // SAFETY: the structure of this ioctl; it touches no other memory.
    unsafe { call::<{ ioctls::API }, _>(fd, &mut arg) }?;
    Ok(Features(arg.features))
}

fn not_permitted(errno: Errno) -> OpenError {
    match errno {
        Errno::PERM | Errno::ACCESS => OpenError::NotPermitted {
            remedy: format!(
                "run as root, give the program CAP_SYS_PTRACE (`setcap cap_sys_ptrace=ep PROGRAM`), make {DEVICE} readable and \
                 writable for its user, or `sysctl vm.unprivileged_userfaultfd=1`"
            ),
        },
        Errno::NOSYS => OpenError::NotPermitted {
            remedy: "this kernel has none, or a container's seccomp profile hides it: a kernel with CONFIG_USERFAULTFD and a \
                     profile that allows userfaultfd(2) are needed"
                .into(),
        },
        other => OpenError::System { source: other.into() },
    }
}

fn lacking(wanted: Features, there: Features, errno: Errno) -> OpenError {
    let missing = wanted.0 & !there.0;
    if errno == Errno::PERM {
        return not_permitted(errno);
    }
    let source = if missing == 0 {
        errno.into()
    } else {
        let why =
            format!("this kernel lacks features {missing:#x}; Linux 6.6 or newer has what far memory needs");
        io::Error::new(io::ErrorKind::Unsupported, why)
    };
    OpenError::System { source }
}
