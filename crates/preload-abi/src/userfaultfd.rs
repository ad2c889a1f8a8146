//! An interface to the kernel's userfaultfd: opening with the available rights, and each ioctl.
//!
//! Key type: [`Userfaultfd`]. The module knows descriptors and addresses, not pages of far memory;
//! `farmem_uffd::Window` builds on it. Calls go to the kernel directly (`rustix`), past preloaded libraries.

use crate::permission::{self, DEVICE};
use farmem_wire::message::PAGE_LEN;
use linux_raw_sys::general as raw;
use rustix::io::Errno;
use rustix::ioctl::{self, Updater};
use rustix::mm::UserfaultfdFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// Definitions that `linux-raw-sys` lacks: macros with a cast or a shift, and newer ioctls.
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
    /// The ioctl of the device that opens a userfaultfd; the argument has the flags of the system call.
    pub(super) const DEVICE_NEW: Opcode = opcode::none(GROUP, 0);

    pub(super) const CONTINUE_MODE_WP: u64 = 1 << 1;
    pub(super) const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
}

/// Length of a message in bytes.
pub const MESSAGE_LEN: usize = size_of::<raw::uffd_msg>();
const _: () = assert!(MESSAGE_LEN == 32 && cfg!(target_endian = "little"));

/// The origin of the faults that a userfaultfd serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reach {
    /// Faults of user code only. A system call that accesses a missing page fails with EFAULT. Every user may.
    UserMode,
    /// Also faults of the kernel: `read(2)` and `recv(2)` into far memory work.
    Full,
}

/// Opens the userfaultfd device, which lets a process without the right open one ([`Userfaultfd::open_from`]).
///
/// # Errors
/// The system's error, when there is no device or this process may not open it.
pub fn device() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(DEVICE)
}

/// A set of userfaultfd features, as the kernel's bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features(u64);

impl Features {
    /// The features that a `farmem_uffd::Window` requires (Linux 6.6): missing, minor and write-protect faults
    /// of shared memory, exact addresses, poison, and the faulting thread's id.
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
    /// Reports forks, with a descriptor for the child's copy. The kernel requires CAP_SYS_PTRACE for it.
    pub const FORK: Self = Self::bits_of(&[raw::UFFD_FEATURE_EVENT_FORK]);
    /// Reports ranges that the program discards, moves or unmaps; the program waits for the reader.
    pub const RANGES: Self = Self::bits_of(&[
        raw::UFFD_FEATURE_EVENT_REMAP,
        raw::UFFD_FEATURE_EVENT_REMOVE,
        raw::UFFD_FEATURE_EVENT_UNMAP,
    ]);
    /// Moves pages instead of copying them.
    pub const MOVE: Self = Self::bits_of(&[raw::UFFD_FEATURE_MOVE]);
    /// Sends SIGBUS to the faulting thread instead of a report.
    pub const SIGBUS: Self = Self::bits_of(&[raw::UFFD_FEATURE_SIGBUS]);

    const fn bits_of(bits: &[u32]) -> Self {
        let (mut all, mut at) = (0, 0);
        while at < bits.len() {
            all |= bits[at] as u64;
            at += 1;
        }
        Self(all)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true when the set contains all of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the kernel's bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// The kinds of faults that a range reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faulting(u64);

impl Faulting {
    /// Faults on missing pages.
    pub const MISSING: Self = Self(raw::UFFDIO_REGISTER_MODE_MISSING as u64);
    /// Writes to write-protected pages.
    pub const WRITE_PROTECTED: Self = Self(raw::UFFDIO_REGISTER_MODE_WP as u64);
    /// Faults on pages that are in the file but not mapped.
    pub const MINOR: Self = Self(raw::UFFDIO_REGISTER_MODE_MINOR as u64);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The access right of a page that is put in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// The next write faults.
    ReadOnly,
    /// Writes pass without a report.
    Writable,
}

/// The early end of an ioctl over a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("after {done} bytes: {errno}")]
pub struct Stopped {
    /// Bytes done from the start of the range: a multiple of the page size.
    pub done: usize,
    /// Error at the next page; `AGAIN` after some progress means that the next page failed itself.
    pub errno: Errno,
}

/// Maximum number of retries of an ioctl that met a change of the mappings.
pub const TRIES_MAX: u32 = 1 << 20;

/// The activity that [`OpenError`] reports as refused.
pub const DOING: &str = "serve page faults (userfaultfd)";

/// An error of opening a userfaultfd.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system does not let this user open one, or hides the system call.
    #[error("no permission to {DOING}; {remedy}")]
    NotPermitted {
        /// The remedy for the user.
        remedy: String,
    },
    /// Any other error of the system.
    #[error("cannot {DOING}: {source}")]
    System {
        /// The system's error.
        source: io::Error,
    },
}

/// An open userfaultfd. Its ranges are unregistered on drop; missing pages then read as zeros.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
    reach: Reach,
    by_device: bool,
}

impl Userfaultfd {
    /// Opens a userfaultfd with `features`: by the system call if permitted, else through the device.
    ///
    /// # Errors
    /// [`OpenError::NotPermitted`] without the right to that reach; [`OpenError::System`] without the features.
    pub fn open(reach: Reach, features: Features) -> Result<Self, OpenError> {
        match (open_by_call(reach), reach) {
            (Err(Errno::PERM), Reach::Full) => match device() {
                Ok(device) => Self::open_from(&device, reach, features),
                Err(_) => Err(not_permitted(Errno::PERM)),
            },
            (opened, _) => Self::with_features(opened.map_err(not_permitted)?, reach, features, false),
        }
    }

    /// Opens a userfaultfd through an open device, which may be inherited from a more privileged process.
    ///
    /// # Errors
    /// See [`Userfaultfd::open`].
    pub fn open_from(device: &File, reach: Reach, features: Features) -> Result<Self, OpenError> {
        Self::with_features(open_by_device(device, reach).map_err(not_permitted)?, reach, features, true)
    }

    /// Enables the features of far memory on a userfaultfd that another process has opened.
    ///
    /// # Errors
    /// See [`Userfaultfd::open`].
    pub fn adopt(fd: OwnedFd, reach: Reach) -> Result<Self, OpenError> {
        Self::with_features(fd, reach, Features::WINDOW, false)
    }

    fn with_features(
        fd: OwnedFd,
        reach: Reach,
        features: Features,
        by_device: bool,
    ) -> Result<Self, OpenError> {
        match handshake(&fd, features) {
            Ok(_) => Ok(Self { fd, reach, by_device }),
            Err(errno) => {
                // A refused handshake can be repeated. A request for none returns all features.
                let there = handshake(&fd, Features(0)).unwrap_or(Features(0));
                Err(lacking(features, there, errno))
            }
        }
    }

    /// Returns all features that the kernel offers.
    ///
    /// # Errors
    /// See [`Userfaultfd::open`].
    pub fn offered() -> Result<Features, OpenError> {
        let fd = open_by_call(Reach::UserMode).map_err(not_permitted)?;
        handshake(&fd, Features(0)).map_err(|e| lacking(Features(0), Features(0), e))
    }

    /// Returns the origin of the faults that this userfaultfd serves.
    #[must_use]
    pub const fn reach(&self) -> Reach {
        self.reach
    }

    /// Returns true when the device opened this userfaultfd, false when the system call did.
    #[must_use]
    pub const fn by_device(&self) -> bool {
        self.by_device
    }

    /// Registers `len` bytes at `start`, so that their faults are reported.
    ///
    /// # Errors
    /// The system's error: EBUSY if another userfaultfd has the range, EINVAL for unsuitable memory.
    ///
    /// # Safety
    /// The range is a mapping of the caller, whose threads may wait for this userfaultfd from now on.
    pub unsafe fn register(&self, start: usize, len: usize, faulting: Faulting) -> Result<(), Errno> {
        let mut arg = raw::uffdio_register { range: range(start, len), mode: faulting.0, ioctls: 0 };
        // SAFETY: `arg` is this ioctl's structure; the caller guarantees that the range may fault.
        unsafe { call::<{ ioctls::REGISTER }, _>(&self.fd, &mut arg) }
    }

    /// Unregisters a range. Threads that wait in it retry their access.
    ///
    /// # Errors
    /// The system's error.
    ///
    /// # Safety
    /// No code relies on reports of missing pages there any more: they read as zeros.
    pub unsafe fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = range(start, len);
        // SAFETY: `arg` is this ioctl's structure; the caller guarantees the rest.
        unsafe { call::<{ ioctls::UNREGISTER }, _>(&self.fd, &mut arg) }?;
        // The kernel wakes waiting threads and then releases the range. In between, a fault under its VMA's own
        // lock (since Linux 6.7) can start to wait. After the ioctl none can, so one more wake is enough.
        self.wake(start, len)
    }

    /// Puts copies of `bytes` in place of missing pages at `start`, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// [`Stopped`] at the first page that exists already, mapped or only in the file (EXIST).
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
        // SAFETY: `arg` is this ioctl's structure, `bytes` outlives the call; the caller guarantees the rest.
        let result = unsafe { call::<{ ioctls::COPY }, _>(&self.fd, &mut arg) };
        stopped(result, arg.copy)
    }

    /// Copies `bytes` as [`Userfaultfd::copy`] does, and continues after early ends.
    ///
    /// # Errors
    /// The system's error for an existing page, or for its address. The pages before it are in place.
    ///
    /// # Safety
    /// See [`Userfaultfd::copy`].
    pub unsafe fn copy_all(&self, start: usize, bytes: &[u8], mapping: Mapping) -> Result<(), Errno> {
        // SAFETY: guaranteed by the caller.
        all_of(bytes.len(), |done| unsafe { self.copy(start + done, &bytes[done..], mapping) })
    }

    /// Maps pages as [`Userfaultfd::map`] does, and continues after early ends.
    ///
    /// # Errors
    /// The system's error for the page that could not be mapped.
    ///
    /// # Safety
    /// See [`Userfaultfd::map`].
    pub unsafe fn map_all(&self, start: usize, len: usize, mapping: Mapping) -> Result<(), Errno> {
        // SAFETY: guaranteed by the caller.
        all_of(len, |done| unsafe { self.map(start + done, len - done, mapping) })
    }

    /// Puts pages of zeros in place of missing ones, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// [`Stopped`] at the first page that exists already.
    ///
    /// # Safety
    /// See [`Userfaultfd::copy`].
    pub unsafe fn zero(&self, start: usize, len: usize) -> Result<(), Stopped> {
        let mut arg = raw::uffdio_zeropage { range: range(start, len), mode: 0, zeropage: 0 };
        // SAFETY: `arg` is this ioctl's structure; the caller guarantees the rest.
        let result = unsafe { call::<{ ioctls::ZEROPAGE }, _>(&self.fd, &mut arg) };
        stopped(result, arg.zeropage)
    }

    /// Maps pages that are in the file, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// [`Stopped`] at the first page that is mapped (EXIST) or not in the file (FAULT).
    ///
    /// # Safety
    /// The range is registered, and readers may see the file's bytes there.
    pub unsafe fn map(&self, start: usize, len: usize, mapping: Mapping) -> Result<(), Stopped> {
        let mode = match mapping {
            Mapping::ReadOnly => ioctls::CONTINUE_MODE_WP,
            Mapping::Writable => 0,
        };
        let mut arg = raw::uffdio_continue { range: range(start, len), mode, mapped: 0 };
        // SAFETY: `arg` is this ioctl's structure; the caller guarantees the rest.
        let result = unsafe { call::<{ ioctls::CONTINUE }, _>(&self.fd, &mut arg) };
        stopped(result, arg.mapped)
    }

    /// Moves pages of private anonymous memory from `from` to `start`, without a copy.
    ///
    /// # Errors
    /// [`Stopped`]: EBUSY for pages that a forked child shares, EINVAL when `start` is not registered here.
    ///
    /// # Safety
    /// See [`Userfaultfd::copy`]. No code relies on the bytes at `from`.
    pub unsafe fn take(&self, start: usize, from: usize, len: usize) -> Result<(), Stopped> {
        let mut arg =
            raw::uffdio_move { dst: start as u64, src: from as u64, len: len as u64, mode: 0, move_: 0 };
        // SAFETY: `arg` is this ioctl's structure; the caller guarantees the rest.
        let result = unsafe { call::<{ ioctls::MOVE }, _>(&self.fd, &mut arg) };
        stopped(result, arg.move_)
    }

    /// Write-protects pages ([`Mapping::ReadOnly`]), or removes the protection and wakes waiting threads. When
    /// the call returns, no earlier store is in flight.
    ///
    /// # Errors
    /// The system's error.
    ///
    /// # Safety
    /// The range is registered, and the pages' owner wants the new state.
    pub unsafe fn protect(&self, start: usize, len: usize, mapping: Mapping) -> Result<(), Errno> {
        let mode = match mapping {
            Mapping::ReadOnly => ioctls::WRITEPROTECT_MODE_WP,
            Mapping::Writable => 0,
        };
        loop {
            let mut arg = raw::uffdio_writeprotect { range: range(start, len), mode };
            // SAFETY: `arg` is this ioctl's structure; the caller guarantees the rest.
            match unsafe { call::<{ ioctls::WRITEPROTECT }, _>(&self.fd, &mut arg) } {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }

    /// Poisons pages: every access, also of a waiting thread, gets SIGBUS, in a system call EFAULT.
    ///
    /// # Errors
    /// [`Stopped`] at the first page that is mapped.
    ///
    /// # Safety
    /// The range is registered.
    pub unsafe fn poison(&self, start: usize, len: usize) -> Result<(), Stopped> {
        let mut arg = raw::uffdio_poison { range: range(start, len), mode: 0, updated: 0 };
        // SAFETY: `arg` is this ioctl's structure; the caller guarantees the rest.
        let result = unsafe { call::<{ ioctls::POISON }, _>(&self.fd, &mut arg) };
        stopped(result, arg.updated)
    }

    /// Poisons one page as [`Userfaultfd::poison`] does, also where a write-protected page was given back.
    ///
    /// # Errors
    /// The system's error: EXIST for a mapped or poisoned page. Threads that waited for it retry.
    ///
    /// # Safety
    /// The page is registered, and no code relies on write protection of a page there.
    pub unsafe fn poison_page(&self, start: usize) -> Result<(), Errno> {
        // SAFETY: guaranteed by the caller.
        let poison = || unsafe { self.poison(start, PAGE_LEN) }.map_err(|stopped| stopped.errno);
        match poison() {
            Err(Errno::EXIST) => {}
            result => return result,
        }
        // A write-protected page that was given back leaves a marker, which poison does not replace.
        // SAFETY: guaranteed by the caller.
        unsafe { self.protect(start, PAGE_LEN, Mapping::Writable) }?;
        poison()
    }

    /// Wakes the threads that wait in the range; they retry their access.
    ///
    /// # Errors
    /// EINVAL when the range does not consist of whole pages.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = range(start, len);
        // SAFETY: `arg` is this ioctl's structure; the ioctl writes no memory.
        unsafe { call::<{ ioctls::WAKE }, _>(&self.fd, &mut arg) }
    }

    /// Reads up to `buffer.len()` messages; in blocking mode, waits for the first one.
    pub fn read(&self, buffer: &mut [[u8; MESSAGE_LEN]]) -> Result<usize, Errno> {
        let bytes = rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, buffer.as_flattened_mut()))?;
        assert!(bytes.is_multiple_of(MESSAGE_LEN), "the kernel hands over whole messages");
        Ok(bytes / MESSAGE_LEN)
    }

    /// Wraps a userfaultfd that another process sent.
    pub const fn received(fd: OwnedFd, reach: Reach) -> Self {
        Self { fd, reach, by_device: false }
    }

    /// Duplicates the descriptor; both refer to one userfaultfd.
    pub fn again(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, ..*self })
    }

    /// Wraps the userfaultfd of a forked child, from the descriptor in a message.
    pub fn of_child(&self, fd: RawFd) -> Self {
        // SAFETY: the kernel installed the descriptor for the reader of the message; no other code knows it.
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

/// Issues an ioctl.
///
/// # Safety
/// `T` is the structure of the ioctl, and the caller may do what the ioctl does.
unsafe fn call<const OPCODE: ioctl::Opcode, T>(fd: &OwnedFd, arg: &mut T) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    let updater = unsafe { Updater::<OPCODE, T>::new(arg) };
    // SAFETY: guaranteed by the caller.
    unsafe { ioctl::ioctl(fd, updater) }
}

/// Processes `len` bytes by calls of `step`, which may end early and gets the number of bytes done.
fn all_of(len: usize, mut step: impl FnMut(usize) -> Result<(), Stopped>) -> Result<(), Errno> {
    let (mut done, mut tries) = (0, 0);
    while done < len {
        match step(done) {
            Ok(()) => return Ok(()),
            // `AGAIN` without progress means that the program changes its mappings right now.
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

/// Converts an ioctl's result. `done` is the kernel's count of bytes, or the error again when no byte was done.
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
    // SAFETY: a descriptor without a range has no effect on memory; registering ranges is unsafe itself.
    unsafe { rustix::mm::userfaultfd(flags(reach)) }
}

/// The ioctl that opens a userfaultfd through the device.
struct DeviceNew(UserfaultfdFlags);

// SAFETY: this ioctl takes flags as a number, writes no memory, and returns a descriptor of the caller.
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
        // SAFETY: the kernel opened the descriptor for this call; no other code knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

fn open_by_device(device: &File, reach: Reach) -> Result<OwnedFd, Errno> {
    // SAFETY: `DeviceNew` matches the device's ioctl; other files refuse it.
    unsafe { ioctl::ioctl(device, DeviceNew(flags(reach))) }
}

/// Enables features; returns all features that the kernel offers.
fn handshake(fd: &OwnedFd, features: Features) -> Result<Features, Errno> {
    let mut arg = raw::uffdio_api { api: u64::from(raw::UFFD_API), features: features.0, ioctls: 0 };
    // SAFETY: `arg` is this ioctl's structure; the ioctl writes no other memory.
    unsafe { call::<{ ioctls::API }, _>(fd, &mut arg) }?;
    Ok(Features(arg.features))
}

fn not_permitted(errno: Errno) -> OpenError {
    match errno {
        Errno::PERM | Errno::ACCESS => OpenError::NotPermitted { remedy: permission::remedy() },
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
