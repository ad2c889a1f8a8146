//! Page messages: checks of the sender, lookup of the directory entry, and delivery of its actions (PROTOCOL
//! 12.6 to 12.15).
//!
//! [`crate::directory`] decides. This file applies session, protection and translation, as for every other
//! request.

use crate::directory::{Action, Event, Outcome, SlotError, Slots};
use crate::note::Outbox;
use crate::tables::Session;
use crate::{Note, Reason, Switch};
use alloc::vec::Vec;
use farmem_transport::ud::Peer;
use farmem_wire::message::{
    Access, DirectoryBody, Get, HostSet, PAGE_SHIFT, Page, PageBody, PageMessage, Part, REGION_ORDER_FIRST,
    Refusal, Region, Seq, WriteBack, WriteBackAck,
};
use farmem_wire::{Domain, HostId, NodeId, Perm, RequestId, Status};

/// The directory of a switch, initially closed.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) slots: Option<Slots>,
    /// Number of slots.
    budget: usize,
    /// Hosts that may hold pages: those with a lease, and those whose lease has not ended for certain.
    pub(crate) live: HostSet,
    /// Live hosts whose messages count: not a host that left or joined again.
    pub(crate) heard: HostSet,
    /// True if the control plane was told that no slot is free, and has not answered.
    pub(crate) reported_full: bool,
    /// Actions of a step; kept for its allocation.
    actions: Vec<Action>,
    /// Rows of a listing; kept for its allocation.
    pub(crate) rows: Vec<u8>,
}

impl Directory {
    pub(crate) const fn new(budget: usize) -> Self {
        Self {
            slots: None,
            budget,
            live: HostSet::EMPTY,
            heard: HostSet::EMPTY,
            reported_full: false,
            actions: Vec::new(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn assert_invariants(&self) {
        if let Some(slots) = &self.slots {
            slots.assert_invariants();
        }
    }
}

impl Switch {
    /// Opens the directory with the slots of its budget; from here on pages are served. No region of which
    /// hosts may still cache pages has numbers above `newest`. After a restart all pages must have been
    /// recalled first (PROTOCOL 12.36).
    pub fn open_directory(&mut self, newest: Seq) {
        self.directory.slots = Some(Slots::new(self.directory.budget, newest));
    }

    /// Returns the directory, for observers.
    #[must_use]
    pub const fn directory(&self) -> Option<&Slots> {
        self.directory.slots.as_ref()
    }

    /// Handles a page message over a session. Only hosts with a lease may send them (PROTOCOL 12.35).
    pub(crate) fn page_of_host(&mut self, session: Session, payload: &[u8], out: &mut Outbox) -> Note {
        let Ok(message) = PageMessage::parse(payload) else { return Note::Dropped(Reason::Message) };
        let host = session.host;
        if !self.directory.heard.contains(host) && !matches!(message.body, PageBody::Get(_)) {
            return Note::Dropped(Reason::NoLease);
        }
        match message.body {
            PageBody::Get(get) => match self.admit(session, &get, out) {
                Ok(()) => self.step(get.page, Event::Get(host, get), out),
                Err(status) => {
                    let refusal = Refusal { page: get.page, id: get.id, status };
                    self.send_to_host(host, PageBody::Refusal(refusal), out);
                    Note::PageRefused(status)
                }
            },
            PageBody::Done(done) => self.step(done.page, Event::Done(host, done), out),
            PageBody::RecallAck(ack) => self.step(ack.region.base(), Event::Ack(host, ack), out),
            PageBody::WriteBack(write_back, part, _) => {
                self.write_back(session, &message, write_back, part, out)
            }
            _ => Note::Dropped(Reason::Message),
        }
    }

    /// Handles a page message of a memory node: an acknowledgement on behalf of a host.
    pub(crate) fn page_of_node(&mut self, payload: &[u8], out: &mut Outbox) -> Note {
        match PageMessage::parse(payload) {
            Ok(PageMessage { origin, body: PageBody::RecallAck(ack), .. }) => {
                self.step(ack.region.base(), Event::Ack(origin, ack), out)
            }
            Ok(_) => Note::Dropped(Reason::NotContinuation),
            Err(_) => Note::Dropped(Reason::Message),
        }
    }

    /// Checks whether a request may reach the directory, and adds an entry for it if there is none.
    fn admit(&mut self, session: Session, get: &Get, out: &mut Outbox) -> Result<(), Status> {
        if !self.directory.heard.contains(session.host) {
            return Err(Status::Unsupported);
        }
        let perm = match get.access {
            Access::Shared => Perm::Read,
            Access::Modified => Perm::ReadWrite,
        };
        self.check_page(session.domain, get.page, perm)?;
        // The page moves to another node, which ends soon.
        if self.tables.translation.is_vacated(get.page.addr()) {
            return Err(Status::Busy);
        }
        // After a restart the directory is closed until no host has old pages, which ends soon.
        let slots = self.directory.slots.as_mut().ok_or(Status::Busy)?;
        if slots.lookup(get.page).is_some() {
            return Ok(());
        }
        // Regions share no page, so a new region next to smaller ones is smaller too. In a small vma it does
        // not cross the border (PROTOCOL 12.52).
        let regions = (0..=REGION_ORDER_FIRST).rev().map(|order| Region::around(get.page, order));
        for region in regions.filter(|&region| self.tables.vmas.hold(region)) {
            match slots.add(region) {
                Ok(_) => return Ok(()),
                Err(SlotError::Overlaps) => {}
                Err(_) => break,
            }
        }
        self.report_full(get.page, out);
        Err(Status::Busy)
    }

    /// Checks a domain's access to a page; returns the page's node.
    fn check_page(&self, domain: Domain, page: Page, perm: Perm) -> Result<(NodeId, Peer), Status> {
        const LEN: u32 = 1 << PAGE_SHIFT;
        self.tables.protection.check(domain, page.addr(), LEN, perm)?;
        let node = self.tables.translation.lookup(page.addr()).ok_or(Status::NotMapped)?;
        // The node left and is to join again.
        let peer = self.tables.node(node).ok_or(Status::Busy)?;
        Ok((node, peer))
    }

    fn node_of(&self, page: Page) -> Option<(NodeId, Peer)> {
        let node = self.tables.translation.lookup(page.addr())?;
        Some((node, self.tables.node(node)?))
    }

    /// Steps the page's entry and sends its actions.
    pub(crate) fn step(&mut self, page: Page, event: Event, out: &mut Outbox) -> Note {
        let mut actions = core::mem::take(&mut self.directory.actions);
        let entry = self.directory.slots.as_mut().and_then(|slots| slots.lookup(page));
        let outcome = entry.map_or(Outcome::Stale, |(region, entry)| entry.step(region, event, &mut actions));
        for action in actions.drain(..) {
            self.act(action, out);
        }
        self.directory.actions = actions;
        Note::Page(outcome)
    }

    fn act(&mut self, action: Action, out: &mut Outbox) {
        match action {
            Action::Recall(hosts, recall) => {
                for host in hosts.iter() {
                    self.send_to_host(host, PageBody::Recall(hosts, recall), out);
                }
            }
            Action::Grant(host, grant) => self.send_to_host(host, PageBody::Grant(grant), out),
            Action::Busy(host, refusal) => self.send_to_host(host, PageBody::Refusal(refusal), out),
            Action::Read(read) => {
                // If the page's node left meanwhile, this is as a lost message: the host retries and gets the
                // answer.
                if let Some((_, node)) = self.node_of(read.page) {
                    self.send_page(node, Domain::default(), read.host, PageBody::Read(read), out);
                }
            }
            Action::Report(region, seq) => {
                self.send_to_control(RequestId(0), DirectoryBody::Collected(region, seq), out);
            }
            Action::Resume(page, seq) => {
                if let Some((_, node)) = self.node_of(page) {
                    self.tell(node, RequestId(0), DirectoryBody::Clean(page, seq), out);
                }
            }
            // The node has already told the reader to retry.
            Action::Delay(_) => {}
        }
    }

    /// Forwards a write-back (PROTOCOL 12.27). The node knows to which host it lent the page. The domain's
    /// present rights are not checked, or writes made under the grant would be lost. A write-back of a page
    /// that is mapped nowhere is acknowledged as void.
    fn write_back(
        &mut self,
        session: Session,
        message: &PageMessage<'_>,
        write_back: WriteBack,
        part: Part,
        out: &mut Outbox,
    ) -> Note {
        let Session { host, domain, .. } = session;
        let WriteBack { page, grant, .. } = write_back;
        let Some((node, peer)) = self.node_of(page) else {
            let ack = WriteBackAck { page, grant, ack: None };
            self.send_to_host(host, PageBody::WriteBackAck(ack), out);
            return Note::PageRefused(Status::NotMapped);
        };
        self.send_page(peer, domain, host, message.body, out);
        // A waiting request follows at once.
        if let Some(ack) = write_back.ack
            && part.is_last()
        {
            let passing = self.step(ack.region.base(), Event::Passing(host, page, ack), out);
            if matches!(passing, Note::Page(Outcome::Stepped(..))) {
                return passing;
            }
        }
        Note::PageForwarded { node }
    }

    fn send_to_host(&mut self, host: HostId, body: PageBody<'_>, out: &mut Outbox) {
        if let Some(peer) = self.tables.host(host) {
            self.send_page(peer, Domain::default(), host, body, out);
        }
    }

    fn send_page(
        &mut self,
        peer: Peer,
        domain: Domain,
        origin: HostId,
        body: PageBody<'_>,
        out: &mut Outbox,
    ) {
        let message = PageMessage { domain, origin, body };
        self.send_bytes(peer, message.len(), |bytes| message.emit(bytes), out);
    }
}
