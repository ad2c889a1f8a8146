//! A doorbell, which wakes the thread that sleeps in a read of the userfaultfd, without a second descriptor to wait
//! for.
//!
//! The doorbell is a page of its own, which the userfaultfd serves while a handler listens. A touch of the page
//! rings.

use super::{Fault, Stopped};
use farmem_link::OpenError;
use farmem_preload_abi::userfaultfd::{Faulting, Userfaultfd};
use farmem_wire::message::PAGE_LEN;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(super) struct Doorbell {
    page: NonNull<u8>,
    ringing: Mutex<()>,
    listening: AtomicBool,
}

// SAFETY: the page is only touched by a volatile read and by the kernel, and unmapped by its one owner.
unsafe impl Send for Doorbell {}
// SAFETY: as above.
unsafe impl Sync for Doorbell {}

impl Doorbell {
    pub(super) fn open() -> Result<Self, OpenError> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe { mmap_anonymous(ptr::null_mut(), PAGE_LEN, ProtFlags::READ, MapFlags::PRIVATE) };
        let page = page.map_err(|e| OpenError::System { doing: "map a page".into(), source: e.into() })?;
        let page = NonNull::new(page.cast::<u8>()).expect("mmap gives no null");
        let doorbell = Self { page, ringing: Mutex::new(()), listening: AtomicBool::new(false) };
        // SAFETY: the page was mapped above. An unserved page in a child would look like a ring.
        let _ = unsafe { madvise(doorbell.page.as_ptr().cast(), PAGE_LEN, Advice::LinuxDontFork) };
        Ok(doorbell)
    }

    /// Starts to report rings. One thread listens at a time.
    pub(super) fn listen(&self, uffd: &Userfaultfd) -> Result<(), Errno> {
        assert!(!self.listening.swap(true, Ordering::AcqRel), "one thread serves a window");
        // SAFETY: a page of our own that only `ring` touches.
        unsafe { uffd.register(self.at(), PAGE_LEN, Faulting::MISSING) }
    }

    /// Stops listening: a thread that rings now does not wait.
    pub(super) fn leave(&self, uffd: &Userfaultfd) {
        // SAFETY: the page's bytes do not matter. This wakes the waiting threads.
        unsafe { uffd.unregister(self.at(), PAGE_LEN) }.expect("a range of our own");
        self.listening.store(false, Ordering::Release);
    }

    /// Rings. Returns when the listener has noticed, or at once if there is none.
    pub(super) fn ring(&self) {
        let _one_at_a_time = self.ringing.lock().expect("ringing does not panic");
        // SAFETY: frees the page of the last ring, so that the touch faults again.
        unsafe { madvise(self.page.as_ptr().cast(), PAGE_LEN, Advice::LinuxDontNeed) }
            .expect("a page of our own");
        // SAFETY: mapped and readable; the value does not matter.
        let _zero = unsafe { self.page.as_ptr().read_volatile() };
    }

    /// Returns true if the fault was a ring, and answers the ring.
    pub(super) fn hears(&self, fault: &Fault, uffd: &Userfaultfd) -> bool {
        if fault.addr & !(PAGE_LEN - 1) != self.at() {
            return false;
        }
        // SAFETY: the doorbell's page, which reads as zeros.
        match unsafe { uffd.zero(self.at(), PAGE_LEN) } {
            Ok(()) => {}
            Err(Stopped { errno: Errno::EXIST, .. }) => {
                uffd.wake(self.at(), PAGE_LEN).expect("a page of our own");
            }
            Err(stopped) => panic!("the doorbell cannot be answered: {stopped}"),
        }
        true
    }

    fn at(&self) -> usize {
        self.page.as_ptr().expose_provenance()
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        // SAFETY: exactly the page of `open`, and the last owner goes.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), PAGE_LEN) };
    }
}
