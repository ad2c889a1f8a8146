//! Pages that the kernel serves by itself for a while, and the return to watching them.

use super::{Lost, PAGE_LEN, Remote, lost};
use farmem_preload_abi::userfaultfd::Faulting;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::ops::Range;

/// The administrator's setting for huge pages in shared memory.
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Returns true if the kernel allocates shared memory in single pages by default, so that pages that appeared
/// unreported can be evicted one by one.
#[must_use]
pub fn pages_come_singly() -> bool {
    // A kernel without huge pages has no such setting.
    std::fs::read_to_string(SHMEM_ENABLED).map_or(true, |setting| {
        ["[never]", "[advise]", "[deny]"].iter().any(|chosen| setting.contains(chosen))
    })
}

impl Remote {
    /// Leaves these pages to the kernel: present pages are accessible, and a touch of an absent one gives a page of
    /// zeros. Waiting threads try again.
    ///
    /// # Errors
    /// [`Lost`]; the pages are watched as before, as far as they are the program's far memory.
    pub fn unwatch(&self, pages: Range<u64>) -> Result<(), Lost> {
        let (start, len) = self.bytes(&pages);
        // SAFETY: addresses of another process, whose missing pages shall read as zeros.
        let result = unsafe { self.uffd.unregister(start, len) };
        result.map_err(|errno| {
            // The first error is the one reported.
            let _ = self.watch(pages);
            lost(errno)
        })
    }

    /// Reports faults at missing pages, and first writes to protected ones, again. When this returns, no page appears
    /// unreported any more: the kernel locks the mapping for this call, and each fault holds that lock until it has
    /// its page.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn watch(&self, pages: Range<u64>) -> Result<(), Lost> {
        let (start, len) = self.bytes(&pages);
        let faulting = Faulting::MISSING.and(Faulting::MINOR).and(Faulting::WRITE_PROTECTED);
        // SAFETY: addresses of another process, which sent the descriptor so that they are served.
        unsafe { self.uffd.register(start, len, faulting) }.map_err(|errno| match errno {
            // A process that has ended gives this error, too.
            Errno::NOMEM if self.is_gone() => Lost::Exited,
            errno => lost(errno),
        })
    }

    /// Returns the pages among these that the file has, in memory or swapped out, as ordered runs. A file that [is
    /// spoiled](Remote::is_spoiled) has none.
    #[must_use]
    pub fn populated(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let page_len = PAGE_LEN as u64;
        let find = |from| rustix::io::retry_on_intr(|| seek(&self.file, from));
        let (mut runs, mut at) = (Vec::new(), pages.start);
        while at < pages.end {
            let start = match find(SeekFrom::Data(at * page_len)) {
                Ok(start) => start / page_len,
                // No more pages, or the program has shrunk its own file.
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
            // The program may have freed the page meanwhile: then there is none.
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
