//! Pinned pages, which stay in place while a system call writes to them past the program's mappings.
//!
//! Key type: [`Pins`], pure.
//!
//! For `process_vm_writev`, the kernel takes references to a process's pages and writes later. If a page were
//! evicted in between, the write would reach a page that the process no longer has, without notice to the
//! pager. So a process of the run announces the pages before such a call, and releases them after it.

use super::{Pager, errno};
use farmem_paging::Key;
use farmem_uffd::remote::call::CONTROL_PAGES;
use farmem_uffd::remote::raw;
use farmem_wire::message::PAGE_LEN;
use std::collections::BTreeMap;
use std::ops::Range;

/// Divisor of the number of frames that gives the number of pinnable ones.
const PINNED_SHARE: u64 = 4;
/// Divisor of the remaining pinnable pages that gives one call's maximum, so that the next call finds some too.
const GRANTED_SHARE: u64 = 2;

/// The pins of a pager.
#[derive(Debug)]
pub(super) struct Pins {
    pins: BTreeMap<u64, Pin>,
    /// Number of the latest pin.
    last: u64,
    /// Number of pages that may still be pinned; a page that is pinned twice counts twice.
    left: u64,
}

#[derive(Debug)]
struct Pin {
    /// Key of the process that requested the pin.
    by: u32,
    /// Key of the process that has the pages.
    of: u32,
    pages: Range<u64>,
}

impl Pins {
    /// Creates an empty set for so many frames.
    pub(super) fn new(frames: usize) -> Self {
        Self { pins: BTreeMap::new(), last: 0, left: (frames as u64 / PINNED_SHARE).max(1) }
    }

    /// Pins the first of the pages, as many as allowed. Returns the pin's number and the number of pages;
    /// `None` while no page may be pinned.
    fn pin(&mut self, by: u32, of: u32, pages: Range<u64>) -> Option<(u64, u64)> {
        let most = self.left.div_ceil(GRANTED_SHARE);
        let count = (pages.end - pages.start).min(most);
        if count == 0 {
            return None;
        }
        self.left -= count;
        self.last += 1;
        self.pins.insert(self.last, Pin { by, of, pages: pages.start..pages.start + count });
        Some((self.last, count))
    }

    /// Removes a pin of the process `by`. Without effect if the process has no pin of that number.
    pub(super) fn unpin(&mut self, by: u32, number: u64) {
        if self.pins.get(&number).is_some_and(|pin| pin.by == by) {
            self.remove(number);
        }
    }

    /// Removes the pins by and of a process that is gone.
    pub(super) fn forget_process(&mut self, key: u32) {
        let its = self.pins.iter().filter(|(_, pin)| pin.by == key || pin.of == key);
        let its: Vec<u64> = its.map(|(&number, _)| number).collect();
        its.into_iter().for_each(|number| self.remove(number));
    }

    fn remove(&mut self, number: u64) {
        let Pin { pages, .. } = self.pins.remove(&number).expect("a pin that was looked up");
        self.left += pages.end - pages.start;
    }

    /// Returns true when the page is pinned.
    pub(super) fn has(&self, Key { space, page }: Key) -> bool {
        self.pins.values().any(|pin| pin.of == space && pin.pages.contains(&page))
    }

    /// Returns true when one of the pages is pinned.
    pub(super) fn has_any(&self, of: u32, pages: &Range<u64>) -> bool {
        let meets = |pin: &Pin| pin.pages.start < pages.end && pages.start < pin.pages.end;
        self.pins.values().any(|pin| pin.of == of && meets(pin))
    }
}

impl Pager {
    /// Pins pages before a system call writes `len` bytes at `start` of the process `pid`. Returns the pin's
    /// number, and the number of bytes that may be written now.
    pub(super) fn pin(
        &mut self,
        by: u32,
        (caller, pid): (u64, u64),
        (start, len): (u64, u64),
    ) -> Result<[u64; 2], u64> {
        let of = if pid == caller {
            by
        } else if self.counts_as_here(by, caller) {
            match u32::try_from(pid).map_or(Ok(None), |pid| self.with_memory_of(pid)) {
                Ok(Some(of)) => of,
                Ok(None) => return Err(errno::SRCH),
                // The pager cannot inspect the process, so it cannot pin its pages either.
                Err(_) => return Err(errno::PERM),
            }
        } else {
            return Err(errno::OPNOTSUPP);
        };
        let end = start.checked_add(len).filter(|_| len > 0).ok_or(errno::INVAL)?;
        if let Some((shared, bytes)) = self.shared_span()
            && start < shared + bytes
            && shared < end
        {
            // The part before the shared memory may be written.
            return if start < shared {
                self.pin(by, (caller, pid), (start, shared - start))
            } else {
                Err(errno::OPNOTSUPP)
            };
        }
        let remote = &self.processes[&of].remote;
        let far = remote.address(CONTROL_PAGES as u64)..remote.address(remote.pages());
        if end <= far.start || far.end <= start {
            return Ok([0, len]);
        }
        if start < far.start {
            return Ok([0, far.start - start]);
        }
        let first = start / PAGE_LEN as u64 * PAGE_LEN as u64;
        let pages = remote.range(first, end.min(far.end) - first).ok_or(errno::INVAL)?;
        let (pin, count) = self.pins.pin(by, of, pages).ok_or(errno::AGAIN)?;
        let until = (first + count * PAGE_LEN as u64).min(end);
        Ok([pin, until - start])
    }

    /// Returns true when the caller, in the address space `by`, is in the pager's PID namespace. `caller` is
    /// its own number for itself.
    fn counts_as_here(&self, by: u32, caller: u64) -> bool {
        u64::from(self.processes[&by].pid) == caller
            || u32::try_from(caller).is_ok_and(|caller| {
                raw::process_of(caller) == Some((caller, caller))
                    && matches!(self.with_memory_of(caller), Ok(Some(key)) if key == by)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(space: u32, page: u64) -> Key {
        Key { space, page }
    }

    /// A pinned page stays until its last pin is removed; other pages are not pinned.
    #[test]
    fn pinned_pages_stay() {
        let mut pins = Pins::new(400);
        let (first, count) = pins.pin(1, 2, 10..20).unwrap();
        assert_eq!(count, 10);
        let (second, _) = pins.pin(3, 2, 19..21).unwrap();
        assert!(
            pins.has(page(2, 10))
                && pins.has(page(2, 20))
                && !pins.has(page(2, 21))
                && !pins.has(page(1, 10))
        );
        assert!(pins.has_any(2, &(0..11)) && !pins.has_any(2, &(0..10)) && !pins.has_any(1, &(0..100)));
        pins.unpin(1, first);
        assert!(!pins.has(page(2, 18)) && pins.has(page(2, 19)));
        pins.unpin(3, second);
        assert!(!pins.has(page(2, 19)));
        assert_eq!(pins.left, 100);
    }

    /// At most a quarter of the frames is pinned, for any number of calls by any process. A call gets few pages
    /// while few are left.
    #[test]
    fn pins_are_bounded() {
        let mut pins = Pins::new(64);
        let mut granted = Vec::new();
        while let Some((_, count)) = pins.pin(1, 2, 0..1000) {
            granted.push(count);
        }
        assert_eq!(granted, [8, 4, 2, 1, 1]);
        pins.unpin(1, 3);
        assert_eq!(pins.pin(1, 2, 0..1000).map(|(_, count)| count), Some(1));
        assert_eq!(Pins::new(1).pin(1, 2, 0..9).map(|(_, count)| count), Some(1));
    }

    /// A pin ends with a call of the process that requested it, or with the end of either process.
    #[test]
    fn pins_end_with_their_processes() {
        let mut pins = Pins::new(400);
        let (of_one, _) = pins.pin(1, 2, 0..5).unwrap();
        pins.unpin(2, of_one);
        pins.unpin(1, of_one + 1);
        assert!(pins.has(page(2, 0)));
        pins.forget_process(1);
        assert!(!pins.has(page(2, 0)));
        pins.pin(1, 2, 0..5).unwrap();
        pins.forget_process(2);
        assert!(!pins.has(page(2, 0)) && pins.left == 100);
    }
}
