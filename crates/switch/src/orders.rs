//! Messages of the control plane and the nodes about the directory (PROTOCOL 12.41 to 12.45).
//!
//! The control plane starts and ends resets here, and lists, splits and merges regions. The switch keeps no
//! state of a message: the control plane retransmits, and duplicates have no effect. Some table updates also
//! recall pages: those of a removed node, and those that a domain may no longer use.

use crate::directory::{Event, Outcome, Phase, SlotError};
use crate::note::Outbox;
use crate::{Note, Reason, Switch};
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_transport::ud::{Endpoint, Peer};
use farmem_wire::message::{
    DirectoryBody, DirectoryMessage, Listing, Page, ROWS_MAX, Region, RegionRow, RegionRowKind, RegionRows,
    Seq, Update,
};
use farmem_wire::{HostId, NodeId, Perm, RequestId, VirtAddr};

impl Switch {
    /// Applies an update to the directory and to the check of old requests (PROTOCOL 6.26), before the tables
    /// apply it (12.44): afterwards the tables may no longer know the owner of the pages.
    pub(crate) fn before_update(&mut self, update: &Update, out: &mut Outbox) {
        match *update {
            Update::Peer { port, qpn, qkey, .. } => {
                let known = self.tables.peer(Port(port)).map(|peer| peer.endpoint);
                if let Some(node) = Port(port).as_node()
                    && known != Some(Endpoint { qpn, qkey })
                {
                    self.outdated.joined(NodeId(node));
                }
            }
            Update::PeerGone { port } if Port(port).as_node().is_some() => {
                let node = Port(port).as_node().map(NodeId);
                node.into_iter().for_each(|node| self.outdated.node_gone(node));
                for region in self.regions(Page::FIRST, Page::LAST) {
                    let is_there = |page: Page| self.tables.translation.lookup(page.addr()) == node;
                    if region.pages().any(is_there) {
                        self.reset(region.base(), out);
                    }
                }
            }
            Update::Protect { base, len, perm, .. } if perm != Perm::ReadWrite => {
                let last = Page::of(VirtAddr(base.0.saturating_add(len - 1)));
                for region in self.regions(Page::of(base), last) {
                    self.reset(region.base(), out);
                }
            }
            _ => {}
        }
    }

    /// Resets regions that contain pages of a new vma and pages outside it. Such a region exists only if pages of
    /// an earlier vma at these addresses were not recalled (PROTOCOL 12.52).
    fn reset_across(&mut self, base: VirtAddr, len: u64, out: &mut Outbox) {
        let last = Page::of(VirtAddr(base.0.saturating_add(len - 1)));
        for region in self.regions(Page::of(base), last) {
            if !self.tables.vmas.hold(region) {
                self.reset(region.base(), out);
            }
        }
    }

    /// Applies an update that the tables accepted to the directory (PROTOCOL 12.35, 12.36).
    pub(crate) fn after_update(&mut self, update: &Update, out: &mut Outbox) {
        let directory = &mut self.directory;
        match *update {
            Update::Directory { newest } => self.open_directory(newest),
            Update::Protect { base, len, perm: Perm::ReadWrite, .. } => self.reset_across(base, len, out),
            Update::Drain { base, size_log2 } => {
                let last = Page::of(VirtAddr(base.0 + ((1 << size_log2) - 1)));
                for region in self.regions(Page::of(base), last) {
                    self.reset(region.base(), out);
                }
            }
            Update::Live { host, .. } => {
                directory.live = directory.live.with(host);
                directory.heard = directory.heard.with(host);
            }
            Update::Fence { host } => {
                directory.live = directory.live.without(host);
                directory.heard = directory.heard.without(host);
                let live = directory.live;
                for region in self.regions(Page::FIRST, Page::LAST) {
                    self.step(region.base(), Event::Fence(host, live), out);
                }
            }
            Update::PeerGone { port } => {
                if let Some(host) = Port(port).as_host().map(HostId) {
                    self.outdated.host_gone(host);
                    if directory.heard.contains(host) {
                        directory.heard = directory.heard.without(host);
                    }
                }
            }
            _ => {}
        }
    }

    /// Handles a message of the control plane about the directory.
    pub(crate) fn order(&mut self, payload: &[u8], out: &mut Outbox) -> Note {
        let Ok(DirectoryMessage { token, body }) = DirectoryMessage::parse(payload) else {
            return Note::Dropped(Reason::Message);
        };
        // The control plane listens: unsolicited messages may be sent again.
        self.directory.reported_full = false;
        match body {
            DirectoryBody::Reset(page) => self.reset_page(token, page, out),
            DirectoryBody::End(region, seq) => self.end_reset(token, region, seq, out),
            DirectoryBody::List(from) => self.list(token, from, out),
            DirectoryBody::Resize(rows) => self.resize(rows),
            _ => Note::Dropped(Reason::Message),
        }
    }

    /// Handles a node's notice that a page is to be read whose latest bytes a host may have (PROTOCOL 12.29).
    pub(crate) fn visit(&mut self, payload: &[u8], out: &mut Outbox) -> Note {
        match DirectoryMessage::parse(payload) {
            Ok(DirectoryMessage { body: DirectoryBody::Visit(page), .. }) => {
                self.step(page, Event::Refused(page), out)
            }
            _ => Note::Dropped(Reason::Message),
        }
    }

    fn reset_page(&mut self, token: RequestId, page: Page, out: &mut Outbox) -> Note {
        match self.reset(page, out) {
            Some(outcome) => {
                self.report_awaited(token, page, out);
                Note::Page(outcome)
            }
            None => {
                self.send_to_control(token, DirectoryBody::Unknown(page), out);
                Note::Page(Outcome::Stale)
            }
        }
    }

    /// Reports the hosts that a reset of the page's region waits for (PROTOCOL 12.51).
    fn report_awaited(&mut self, token: RequestId, page: Page, out: &mut Outbox) {
        let found = self.directory.slots.as_mut().and_then(|slots| slots.lookup(page));
        let Some((region, entry)) = found.filter(|(_, entry)| entry.phase() == Phase::Resetting) else {
            return;
        };
        let body = DirectoryBody::Awaiting(region, entry.seq(), entry.set());
        self.send_to_control(token, body, out);
    }

    /// Resets the page's region, or repeats the recall to hosts that did not answer; none if there is no
    /// region.
    fn reset(&mut self, page: Page, out: &mut Outbox) -> Option<Outcome> {
        let live = self.directory.live;
        let (_, entry) = self.directory.slots.as_mut()?.lookup(page)?;
        let again = matches!(entry.phase(), Phase::Resetting | Phase::Collected);
        let event = if again { Event::Repeat } else { Event::Reset(live) };
        match self.step(page, event, out) {
            Note::Page(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Ends a reset and frees the slot: the next request for a page gets a new region.
    fn end_reset(&mut self, token: RequestId, region: Region, seq: Seq, out: &mut Outbox) -> Note {
        let slots = self.directory.slots.as_mut();
        let known = slots.and_then(|slots| slots.lookup(region.base())).is_some_and(|(its, _)| its == region);
        let note =
            if known { self.step(region.base(), Event::Swept(seq), out) } else { Note::Page(Outcome::Stale) };
        if let (Note::Page(Outcome::Stepped(..)), Some(slots)) = (note, self.directory.slots.as_mut()) {
            let removed = slots.remove(region);
            assert_eq!(removed, Ok(()), "no host caches a swept region");
        }
        self.send_to_control(token, DirectoryBody::Ended(region, seq), out);
        note
    }

    fn list(&mut self, token: RequestId, from: Page, out: &mut Outbox) -> Note {
        let mut bytes = core::mem::take(&mut self.directory.rows);
        bytes.clear();
        let (mut next, mut used, mut budget) = (None, 0, 0);
        if let Some(slots) = self.directory.slots.as_mut() {
            (used, budget) = (slots.used(), slots.budget());
            let mut left = ROWS_MAX;
            next = slots.each_from(from, |region, entry| {
                if left == 0 {
                    return false;
                }
                left -= 1;
                let resetting = matches!(entry.phase(), Phase::Resetting | Phase::Collected);
                let kind = if resetting { RegionRowKind::Resetting } else { RegionRowKind::Listed };
                RegionRow { region, kind, false_invalidations: entry.take_false_invalidations() }
                    .emit(&mut bytes);
                true
            });
        }
        let rows = RegionRows::new(&bytes).expect("as many rows as a list has room for");
        let count = |n: usize| u32::try_from(n).expect("slots have 32-bit numbers");
        let listing = Listing { from, next, used: count(used), slots: count(budget), rows };
        self.send_to_control(token, DirectoryBody::Listing(listing), out);
        self.directory.rows = bytes;
        Note::Listed
    }

    /// Splits and merges regions. Regions that are not idle or have changed stay; the next listing shows them
    /// (PROTOCOL 12.16). Halves in two vmas stay too (12.52).
    fn resize(&mut self, rows: RegionRows<'_>) -> Note {
        let (mut done, mut refused) = (0, 0);
        if let Some(slots) = self.directory.slots.as_mut() {
            for row in rows.iter() {
                let result = match row.kind {
                    RegionRowKind::Split => slots.split(row.region).map(drop),
                    RegionRowKind::Merge if !self.tables.vmas.hold(row.region) => Err(SlotError::Bounds),
                    RegionRowKind::Merge => slots.merge(row.region),
                    RegionRowKind::Listed | RegionRowKind::Resetting => continue,
                };
                *if result.is_ok() { &mut done } else { &mut refused } += 1;
            }
        }
        Note::Resized { done, refused }
    }

    /// Asks the control plane to free a slot. The request is sent once until the control plane answers.
    pub(crate) fn report_full(&mut self, page: Page, out: &mut Outbox) {
        if !core::mem::replace(&mut self.directory.reported_full, true) {
            self.send_to_control(RequestId(0), DirectoryBody::Full(page), out);
        }
    }

    pub(crate) fn send_to_control(&mut self, token: RequestId, body: DirectoryBody<'_>, out: &mut Outbox) {
        let control = Peer { port: Port::CONTROL, endpoint: self.tables.control };
        self.tell(control, token, body, out);
    }

    pub(crate) fn tell(&mut self, peer: Peer, token: RequestId, body: DirectoryBody<'_>, out: &mut Outbox) {
        let message = DirectoryMessage { token, body };
        self.send_bytes(peer, message.len(), |bytes| message.emit(bytes), out);
    }

    /// Returns the regions with a page from the first to the last.
    fn regions(&self, first: Page, last: Page) -> Vec<Region> {
        self.directory.slots.as_ref().map_or_else(Vec::new, |slots| slots.overlapping(first, last))
    }
}
