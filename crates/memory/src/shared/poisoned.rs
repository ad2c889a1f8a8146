//! Unavailable pages, whose accesses end in SIGBUS for a while.
//!
//! Key type: [`Poisoned`]. A thread that accesses such a page gets the signal at once, so the host does not
//! send a request for each access. After some time the host requests the page again, because its owner may
//! have accepted the loss or allocated the page.

use super::lease::say;
use farmem_machine::{Duration, Instant};
use farmem_paging::Cause;
use farmem_uffd::Mapped;
use farmem_wire::message::Page;
use std::collections::VecDeque;

/// Time for which an unavailable page ends accesses in SIGBUS without a new request.
const POISON_TIME: Duration = Duration::from_millis(10);
/// Maximum number of poisoned pages; beyond it, the oldest are requested again early.
const POISONED_MAX: usize = 4096;

/// Poisoned pages with the ends of their times.
#[derive(Default, Debug)]
pub(super) struct Poisoned {
    pages: VecDeque<(Instant, Page)>,
    /// True for each kind of cause that was already printed.
    told: [bool; 2],
}

impl Poisoned {
    /// Adds a poisoned page. The first page of each kind prints the cause on standard error, because a signal
    /// carries no text.
    pub(super) fn add(&mut self, page: Page, why: Cause, now: Instant) {
        let is_lost = why == Cause::Lost;
        if !std::mem::replace(&mut self.told[usize::from(is_lost)], true) {
            let addr = page.addr();
            let reason = if is_lost {
                "its latest bytes are lost, because a host's lease expired or a memory node restarted"
            } else {
                "no allocation that this domain may access so contains it"
            };
            say(&format!(
                "an access to the page at {addr} ends in SIGBUS: {reason}. Further such pages are only counted (`lost`)"
            ));
        }
        self.pages.push_back((now + POISON_TIME, page));
    }

    /// Returns true if no page is poisoned.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Unpoisons pages whose time has passed, so that the next access asks the rack again.
    pub(super) fn unpoison(&mut self, now: Instant, memory: &mut impl Mapped) {
        let is_over = |until: Instant, count: usize| until <= now || count > POISONED_MAX;
        while let Some(&(until, page)) = self.pages.front()
            && is_over(until, self.pages.len())
        {
            self.pages.pop_front();
            memory.unpoison(page);
        }
    }
}
