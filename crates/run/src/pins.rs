//! Pages that stay where they are while a system call writes to them past the program's mappings.
//!
//! Key type: [`Pins`], pure. The kernel takes hold of a process's pages for `process_vm_writev`, and writes later. A page that was evicted
//! between the two would be written to when it is no page of the process's any more; nothing tells the pager of it. So a process of the run
//! says before such a call which pages are to stay, and after it that they need not.

use super::{Pager, errno};
use farmem_paging::Key;
use farmem_uffd::remote::call::CONTROL_PAGES;
use farmem_uffd::remote::raw;
use farmem_wire::message::PAGE_LEN;
use std::collections::BTreeMap;
use std::ops::Range;

/// Of the frames, so many may be pinned at once: one of so many.
const PINNED_SHARE: u64 = 4;
/// Of what may be pinned yet, one call gets one of so many: the next one finds something, too.
const GRANTED_SHARE: u64 = 2;

/// Pages that do not go.
#[derive(Debug)]
pub(super) struct Pins {
    pins: BTreeMap<u64, Pin>,
    /// The number of the last one.
    last: u64,
    /// Pages that may be pinned yet; one that is pinned twice counts twice.
    left: u64,
}

#[derive(Debug)]
struct Pin {
    /// The process that asked for it.
    by: u32,
    /// The process whose pages they are.
    of: u32,
    pages: Range<u64>,
}

impl Pins {
    /// None yet, of so many frames.
    pub(super) fn new(frames: usize) -> Self {
        Self { pins: BTreeMap::new(), last: 0, left: (frames as u64 / PINNED_SHARE).max(1) }
    }

    /// Pins the first of the pages, as many as may be; answers the pin's number and how many. `None` while none may be.
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

    /// The process that asked for a pin does not need it any more. Without effect when it has none of that number.
    pub(super) fn unpin(&mut self, by: u32, number: u64) {
        if self.pins.get(&number).is_some_and(|pin| pin.by == by) {
            self.remove(number);
        }
    }

    /// A process is gone: nothing is written for it, nor to it.
    pub(super) fn bury(&mut self, key: u32) {
        let its = self.pins.iter().filter(|(_, pin)| pin.by == key || pin.of == key);
        let its: Vec<u64> = its.map(|(&number, _)| number).collect();
        its.into_iter().for_each(|number| self.remove(number));
    }

    fn remove(&mut self, number: u64) {
        let Pin { pages, .. } = self.pins.remove(&number).expect("a pin that was looked up");
        self.left += pages.end - pages.start;
    }

    /// True when the page stays.
    pub(super) fn has(&self, Key { space, page }: Key) -> bool {
        self.pins.values().any(|pin| pin.of == space && pin.pages.contains(&page))
    }

    /// True when one of the pages stays.
    pub(super) fn has_any(&self, of: u32, pages: &Range<u64>) -> bool {
        let meets = |pin: &Pin| pin.pages.start < pages.end && pages.start < pin.pages.end;
        self.pins.values().any(|pin| pin.of == of && meets(pin))
    }
}

impl Pager {
    /// A process is about to have the system write `len` bytes at `start` of the process `pid`. Answers the pin's number, and how many of
    /// those bytes may be written now.
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
                // The process cannot be looked at: its pages cannot be pinned either.
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
            // Up to there it may be written.
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

    /// Whether a caller in the address space `by`, which is `caller` in its own eyes, counts processes as they are counted here, and not in a
    /// pid namespace of its own.
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

    /// A pinned page stays until the last pin of it is gone; others go.
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

    /// No more than a quarter of the frames is pinned, whichever process asks and however often; one that asks while little is left gets little.
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

    /// Only the process that asked for a pin ends it, and its end does; so does the end of the process whose pages they are.
    #[test]
    fn pins_end_with_their_processes() {
        let mut pins = Pins::new(400);
        let (of_one, _) = pins.pin(1, 2, 0..5).unwrap();
        pins.unpin(2, of_one);
        pins.unpin(1, of_one + 1);
        assert!(pins.has(page(2, 0)));
        pins.bury(1);
        assert!(!pins.has(page(2, 0)));
        pins.pin(1, 2, 0..5).unwrap();
        pins.bury(2);
        assert!(!pins.has(page(2, 0)) && pins.left == 100);
    }
}
