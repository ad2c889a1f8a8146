//! The memory of a window: a memfd, the program's mapping of it, and the file as the owner's access to the bytes.
//!
//! A second mapping for the owner would cost more. An evicted page is read once, so the mapping would be made for
//! that read (1.1 us, where `pread` takes 0.3). A second mapping would also slow down each hole by 1 us.

use farmem_link::OpenError;
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, SeekFrom, fallocate, fcntl_add_seals, fstat, ftruncate,
    memfd_create, seek,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

/// The addresses of a window in this process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Addressing {
    /// The addresses of far memory, so that a stored pointer means the same to every process and every memory node.
    #[default]
    Same,
    /// Any free addresses: for bytes without pointers, and for several racks in one process.
    Anywhere,
}

/// A memfd and the program's mapping of it.
#[derive(Debug)]
pub(super) struct Views {
    program: View,
    file: OwnedFd,
}

/// A mapping of the whole file.
#[derive(Debug)]
struct View {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a view is an address range; only atomics and the kernel access it, and its one owner unmaps it.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

/// Unit of the kernel's block count of a file, in bytes.
const BLOCK: u64 = 512;

impl Views {
    /// Creates a file of `len` bytes without memory, mapped for the program.
    pub(super) fn open(base: VirtAddr, len: usize, place: Addressing) -> Result<Self, OpenError> {
        let system =
            |e: Errno| OpenError::System { doing: format!("make a window of {len} bytes"), source: e.into() };
        let file =
            memfd_create("farmem-window", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(system)?;
        ftruncate(&file, len as u64).map_err(system)?;
        // A process that receives the file may write it, but not shrink it.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(system)?;
        let program = match place {
            Addressing::Anywhere => View::map(&file, len, None).map_err(system)?,
            Addressing::Same => at_base(&file, len, base)?,
        };
        Ok(Self { program, file })
    }

    /// Returns the address of the program's mapping.
    pub(super) fn program(&self) -> usize {
        self.program.start.as_ptr().expose_provenance()
    }

    /// Returns a pointer to the program's mapping.
    pub(super) const fn program_start(&self) -> NonNull<u8> {
        self.program.start
    }

    /// Returns the length in bytes.
    pub(super) const fn len(&self) -> usize {
        self.program.len
    }

    /// Appends bytes of a page that has a frame.
    pub(super) fn read(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + len, 0);
        let mut done = 0;
        while done < len {
            let count = rustix::io::retry_on_intr(|| {
                rustix::io::pread(&self.file, &mut out[start + done..], (offset + done) as u64)
            });
            done += count.ok().filter(|&count| count > 0).expect("bytes of a file of our own");
        }
    }

    /// Writes bytes to the file; a hole gets frames.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let place = (offset + done) as u64;
            let count = rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.file, &bytes[done..], place));
            done += count.ok().filter(|&count| count > 0).expect("the system has memory for a page here");
        }
    }

    /// Returns the file.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns true if the file has all of these bytes: none of them is in a hole.
    pub(super) fn has(&self, offset: usize, len: usize) -> bool {
        // Without a hole, SEEK_HOLE searches to the end of the file: up to 8 us for 64 KiB in a file of 10 MB.
        // `mincore` checks only these pages, and a page in memory is not a hole.
        if self.is_in_memory(offset, len) {
            return true;
        }
        let end = (offset + len) as u64;
        seek(&self.file, SeekFrom::Hole(offset as u64)).is_ok_and(|hole| hole >= end)
    }

    /// Returns true if the file has all of these pages in memory. A page of the file may also be swapped out.
    fn is_in_memory(&self, offset: usize, len: usize) -> bool {
        const PAGES: usize = 16;
        let bytes = PAGES * PAGE_LEN;
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.program.len), "inside the window");
        (offset..offset + len).step_by(bytes).all(|at| {
            let (mut pages, len) = ([0_u8; PAGES], bytes.min(offset + len - at));
            // SAFETY: inside the view, by the assertion.
            let start = unsafe { self.program.start.add(at) };
            // SAFETY: pages of our own mapping, and a byte for each of them; no page is touched. There is no safe
            // wrapper.
            let said = unsafe { libc::mincore(start.as_ptr().cast(), len, pages.as_mut_ptr()) };
            said == 0 && pages[..len.div_ceil(PAGE_LEN)].iter().all(|page| page & 1 == 1)
        })
    }

    /// Unmaps pages from the program; their frames stay.
    pub(super) fn unmap_from_program(&self, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.program.len), "inside the window");
        // SAFETY: inside the view, by the assertion.
        let start = unsafe { self.program.start.add(offset) };
        // SAFETY: pages of the program's view of a shared file: their bytes stay in the file, and the next touch
        // faults.
        let result = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontNeed) };
        result.expect("pages of our own mapping");
    }

    /// Frees the frames of pages, and unmaps them from all processes.
    pub(super) fn punch(&self, offset: usize, len: usize) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let result = rustix::io::retry_on_intr(|| fallocate(&self.file, mode, offset as u64, len as u64));
        result.expect("a hole in a file of our own");
    }

    pub(super) fn bytes_taken(&self) -> u64 {
        let blocks = fstat(&self.file).expect("a file of our own").st_blocks;
        u64::try_from(blocks).expect("a count") * BLOCK
    }
}

/// Maps the file at its addresses in far memory.
fn at_base(file: &OwnedFd, len: usize, base: VirtAddr) -> Result<View, OpenError> {
    let taken = |why: &str| OpenError::Setting {
        setting: "window's place",
        value: format!("{base}"),
        remedy: format!("{why}; choose a place anywhere, or another va_base for the rack"),
    };
    let place = usize::try_from(base.0).map_err(|_| taken("this machine has no such address"))?;
    match View::map(file, len, Some(place)) {
        Ok(view) if view.start.addr().get() == place => Ok(view),
        Ok(_elsewhere) => Err(taken("this kernel ignores fixed addresses")),
        Err(Errno::EXIST) => Err(taken("something of this process is mapped there")),
        Err(e) => Err(taken(&format!("the system refuses ({e})"))),
    }
}

impl View {
    fn map(file: &OwnedFd, len: usize, at: Option<usize>) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let (hint, flags): (*mut c_void, _) = match at {
            Some(place) => (ptr::with_exposed_provenance_mut(place), flags | MapFlags::FIXED_NOREPLACE),
            None => (ptr::null_mut(), flags),
        };
        // SAFETY: a new mapping; with an address, one that replaces nothing.
        let start = unsafe { mmap(hint, len, protection, flags, file, 0) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let view = Self { start, len };
        // A child would have the addresses without the userfaultfd, and read zeros at missing pages.
        view.advise(Advice::LinuxDontFork)?;
        // Pages are fetched and freed by 4 KiB. A kernel without huge pages refuses the advice, which does not
        // matter.
        let _small_pages_only = view.advise(Advice::LinuxNoHugepage);
        Ok(view)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the whole of a mapping of our own; neither advice touches its bytes.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, advice) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped, and the last owner goes.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
