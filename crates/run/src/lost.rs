//! Far memory whose node was started again: the bytes that it had are lost, those that are here are not (PROTOCOL 9.19).
//!
//! A page that was far and is lost is a SIGBUS for the program that touches it, and the reason for the end of [`Pager::serve`]. All others go
//! on. What is written back is a page's latest bytes, whatever was lost: its old ones are accepted as lost first, page by page. Nobody else
//! reads this memory, and a pager that dies in between takes its programs along.

use super::Pager;
use super::evict::BATCH;
use farmem_client::Error;
use farmem_client::{Completed, Ticket};
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;

impl Pager {
    /// A READ was refused because bytes of it are lost. Pages that a stream brings along may be others than those that are: from now on pages are
    /// fetched one by one.
    pub(super) fn lost_on_the_way(
        &mut self,
        ticket: Ticket,
        (key, first, count): (u32, u64, u64),
        error: Error,
    ) {
        if count == 1 {
            self.stats.lost += 1;
            self.lost.get_or_insert(error);
            return self.not_fetched(ticket, key, first, count);
        }
        self.one_by_one = true;
        let wanted = self.not_fetched_yet(ticket, key, first, count);
        self.give_up_frames(key, &wanted);
        for (page, _, _) in wanted {
            // A thread that waits for it asks again, and for it alone.
            self.served(key, page, |remote| remote.wake(page..page + 1));
        }
    }

    /// A WRITE was refused because what was there before is lost: that is accepted, as its pages are written wholly. True when the WRITE may be
    /// sent again.
    pub(super) fn gave_up_old_bytes(&mut self, places: [u32; BATCH], count: usize) -> bool {
        let addr = self.slots.addr(self.pool.at(places[0]).slot);
        self.client.accept_lost(addr, (count * PAGE_LEN) as u64).is_ok()
    }

    /// The name of the memory node that has this address of far memory, as far as the pager knows: for who tells people which one failed.
    #[must_use]
    pub fn name_of_node_at(&self, addr: VirtAddr) -> Option<String> {
        self.client.name_of_node_at(addr)
    }
}

/// Whether an operation ended because bytes of it are lost.
pub(super) fn is_lost(completed: &Completed) -> bool {
    matches!(completed.result, Err(Error::MemoryLost { .. }))
}
