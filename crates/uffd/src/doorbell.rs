//! A doorbell: wakes the thread that sleeps in a read of the userfaultfd, without a second descriptor to wait for.
//!
//! The doorbell is a page of its own that the userfaultfd serves while a handler listens. To ring is to touch it.

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

// SAFETY: the page is only touched by a volatile read and by the system, and unmapped by its one owner.
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
        // SAFETY: the page of a moment ago. A child must not have it unserved and think that it rang.
        let _ = unsafe { madvise(doorbell.page.as_ptr().cast(), PAGE_LEN, Advice::LinuxDontFork) };
        Ok(doorbell)
    }

    /// From here on a ring is reported. One listens at a time.
    pub(super) fn listen(&self, uffd: &Userfaultfd) -> Result<(), Errno> {
        assert!(!self.listening.swap(true, Ordering::AcqRel), "one thread serves a window");
        // SAFETY: a page of our own that only `ring` touches.
        unsafe { uffd.register(self.at(), PAGE_LEN, Faulting::MISSING) }
    }

    /// The handler does not listen any more: a thread that rings now does not wait.
    pub(super) fn leave(&self, uffd: &Userfaultfd) {
        // SAFETY: the page's bytes are of no interest. This wakes the threads that wait.
        unsafe { uffd.unregister(self.at(), PAGE_LEN) }.expect("a range of our own");
        self.listening.store(false, Ordering::Release);
    }

    /// Returns when the listener heard, or at once when there is none.
    pub(super) fn ring(&self) {
        let _one_at_a_time = self.ringing.lock().expect("ringing does not panic");
        // SAFETY: the page of the last ring is given back, so that the touch faults again.
        unsafe { madvise(self.page.as_ptr().cast(), PAGE_LEN, Advice::LinuxDontNeed) }
            .expect("a page of our own");
        // SAFETY: mapped and readable; the value is of no interest.
        let _zero = unsafe { self.page.as_ptr().read_volatile() };
    }

    /// True when the fault was a ring, which is answered.
    pub(super) fn hears(&self, fault: &Fault, uffd: &Userfaultfd) -> bool {
        if fault.addr & !(PAGE_LEN - 1) != self.at() {
            return false;
        }
        // SAFETY: the doorbell's page: zeros are what is read there.
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
