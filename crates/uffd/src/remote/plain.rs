//! Pages that the system serves by itself for a while, and how they are watched again.

use super::{Lost, PAGE_LEN, Remote, lost};
use farmem_preload_abi::userfaultfd::Faulting;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::ops::Range;

/// How shared memory gets its pages, as the system's administrator has set it.
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// True when the system gives files of shared memory a page at a time where a program does not ask for more: pages that came unseen can be taken away one by one.
#[must_use]
pub fn pages_come_singly() -> bool {
    // A kernel without huge pages has no such setting.
    std::fs::read_to_string(SHMEM_ENABLED).map_or(true, |setting| {
        ["[never]", "[advise]", "[deny]"].iter().any(|chosen| setting.contains(chosen))
    })
}

impl Remote {
    /// Leaves these pages to the system: present pages may be read and written, and a touch of another gives a page of zeros. Threads that
    /// wait there try again.
    ///
    /// # Errors
    /// [`Lost`]; they are watched as before, as far as they are the program's far memory.
    pub fn unwatch(&self, pages: Range<u64>) -> Result<(), Lost> {
        let (start, len) = self.bytes(&pages);
        // SAFETY: addresses of another process, whose missing pages are to read as zeros.
        let result = unsafe { self.uffd.unregister(start, len) };
        result.map_err(|errno| {
            // The first error is the one reported.
            let _ = self.watch(pages);
            lost(errno)
        })
    }

    /// Faults at missing pages, and first writes to protected ones, are reported again. When it returns, no page comes there unseen any more: the
    /// system takes its lock on the mapping for this, which each fault holds until it has its page.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn watch(&self, pages: Range<u64>) -> Result<(), Lost> {
        let (start, len) = self.bytes(&pages);
        let faulting = Faulting::MISSING.and(Faulting::MINOR).and(Faulting::WRITE_PROTECTED);
        // SAFETY: addresses of another process, which sent the descriptor to have them served.
        unsafe { self.uffd.register(start, len, faulting) }.map_err(|errno| match errno {
            // A process that is gone gives this error, too.
            Errno::NOMEM if self.is_gone() => Lost::Gone,
            errno => lost(errno),
        })
    }

    /// The pages among these that the file has, in memory or swapped out, in runs and in order; none of a file that [is no memfd any
    /// more](Remote::is_spoiled).
    #[must_use]
    pub fn populated(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let page_len = PAGE_LEN as u64;
        let find = |from| rustix::io::retry_on_intr(|| seek(&self.file, from));
        let (mut runs, mut at) = (Vec::new(), pages.start);
        while at < pages.end {
            let start = match find(SeekFrom::Data(at * page_len)) {
                Ok(start) => start / page_len,
                // Nothing more; or the program has cut its own file.
                Err(Errno::NXIO) => break,
                Err(_) => {
                    self.spoil();
                    break;
                }
            };
            if start < at {
                self.spoil();
                break;
            }
            if start >= pages.end {
                break;
            }
            let end = find(SeekFrom::Hole(start * page_len)).map_or(pages.end, |end| end.div_ceil(page_len));
            if end < start {
                self.spoil();
                break;
            }
            // The program may have taken the page away in between: then there is none.
            if end > start {
                runs.push(start..end.min(pages.end));
            }
            at = end.max(start + 1);
        }
        runs
    }

    fn bytes(&self, pages: &Range<u64>) -> (usize, usize) {
        let len = usize::try_from(pages.end - pages.start).expect("pages of one address space") * PAGE_LEN;
        (self.place(pages.start), len)
    }
}
