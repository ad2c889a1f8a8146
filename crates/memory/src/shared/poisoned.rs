//! Pages that cannot be had: a touch of one ends in SIGBUS, for a while.
//!
//! Key type: [`Poisoned`]. A thread that touches such a page gets the signal at once, and the host does not ask the rack for each touch; some time
//! later it requests again, since an owner may have accepted the loss, or allocated the page.

use super::lease::say;
use farmem_machine::{Duration, Instant};
use farmem_paging::Cause;
use farmem_uffd::Mapped;
use farmem_wire::message::Page;
use std::collections::VecDeque;

/// How long a page that cannot be had ends in SIGBUS without being asked for again.
const POISON_TIME: Duration = Duration::from_millis(10);
/// Pages poisoned at once; of more, the oldest are asked for again before their time.
const POISONED_MAX: usize = 4096;

/// Poisoned pages, and until when.
#[derive(Default, Debug)]
pub(super) struct Poisoned {
    pages: VecDeque<(Instant, Page)>,
    /// The first of its kind was told of.
    told: [bool; 2],
}

impl Poisoned {
    /// A page was poisoned. The first says why, on standard error: programs cannot be told otherwise.
    pub(super) fn add(&mut self, page: Page, why: Cause, now: Instant) {
        let is_lost = why == Cause::Lost;
        if !std::mem::replace(&mut self.told[usize::from(is_lost)], true) {
            let addr = page.addr();
            let reason = if is_lost {
                "its latest bytes are lost, with a host whose lease ended or a memory node that was started again"
            } else {
                "it is in no allocation that this domain may use so"
            };
            say(&format!(
                "a touch of the page at {addr} ends in SIGBUS: {reason}. Of more pages only the count is told (`lost`)"
            ));
        }
        self.pages.push_back((now + POISON_TIME, page));
    }

    /// No page is poisoned.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Poison ends: the rack is to say again whether the page can be had.
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
