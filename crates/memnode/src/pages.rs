//! Page messages: pages out to hosts, and back from them (PROTOCOL 12.26, 12.27).
//!
//! [`PageStates`] decides what counts. This file handles the bytes: parts that fit the path on the way out,
//! and the collection of a write-back's parts on the way in.

use crate::node::{MemNode, Outbox};
use crate::note::{DropReason, Note, WriteBackEffect};
use crate::page_states::{GrantReply, PageStates};
use crate::programs::Compile;
use crate::store::Store;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use farmem_machine::Port;
use farmem_wire::message::{
    Data, DirectoryBody, DirectoryMessage, PAGE_LEN, PAGE_SHIFT, Page, PageBody, PageMessage, Part, Read,
    Seq, Sweep, WriteBack, WriteBackAck,
};
use farmem_wire::{Domain, HostId, RequestId, VirtAddr};

/// Most incomplete write-backs. One more drops the oldest, which then begins again.
pub const PARTIAL_MAX: usize = 64;

/// Bytes of a page as a 32-bit number.
pub(crate) const PAGE_BYTES: u32 = 1 << PAGE_SHIFT;

/// The page transfers of a node.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Epoch of the switch under whose numbers pages are served: that of the last sweep of all memory.
    epoch: u64,
    partial: VecDeque<Partial>,
}

/// Parts of a write-back. Its bytes do not change until the node acknowledges them, so parts of different
/// copies fit together.
#[derive(Debug)]
struct Partial {
    host: HostId,
    page: Page,
    grant: Seq,
    count: u8,
    parts: u16,
    bytes: Box<[u8; PAGE_LEN]>,
}

impl Pages {
    pub(crate) fn check(&self) {
        assert!(self.partial.len() <= PARTIAL_MAX, "partial write-backs within their bound");
    }

    /// Adds a part. Returns all bytes if it was the last missing one.
    fn complete(
        &mut self,
        host: HostId,
        write_back: &WriteBack,
        part: Part,
        bytes: &[u8],
    ) -> Option<Box<[u8; PAGE_LEN]>> {
        let name = (host, write_back.page, write_back.grant, part.count);
        let is_it = |known: &Partial| (known.host, known.page, known.grant, known.count) == name;
        let known = self.partial.iter().position(is_it);
        let at = known.unwrap_or_else(|| {
            let free = if self.partial.len() == PARTIAL_MAX { self.partial.pop_front() } else { None };
            let bytes = free.map_or_else(|| Box::new([0; PAGE_LEN]), |free| free.bytes);
            let (host, page, grant, count) = name;
            self.partial.push_back(Partial { host, page, grant, count, parts: 0, bytes });
            self.partial.len() - 1
        });
        let partial = &mut self.partial[at];
        partial.bytes[part.range()].copy_from_slice(bytes);
        partial.parts |= 1 << part.index;
        if partial.parts.count_ones() < u32::from(part.count) {
            return None;
        }
        self.partial.remove(at).map(|partial| partial.bytes)
    }
}

impl<S: Store, C: Compile> MemNode<S, C> {
    /// Returns the states of pages that hosts cache, for checkers.
    pub fn page_states(&self) -> &PageStates {
        self.regions.page_states()
    }

    /// Accepts the bytes of these pages as they are here, for good (PROTOCOL 7.44, 12.31).
    pub(crate) fn accept_lost(&mut self, base: VirtAddr, len: u64) {
        self.regions.page_states_mut().accept_loss(Page::of(base), Page::of(VirtAddr(base.0 + (len - 1))));
    }

    /// Marks these pages as lost with an earlier incarnation of this node (PROTOCOL 7.42).
    pub(crate) fn lose(&mut self, base: VirtAddr, len: u64) {
        self.regions.page_states_mut().lose(Page::of(base), Page::of(VirtAddr(base.0 + (len - 1))));
    }

    /// Voids all grants of these pages, because their bytes become zero (PROTOCOL 12.44).
    pub(crate) fn renew_pages(&mut self, base: VirtAddr, len: u64) {
        self.regions.page_states_mut().renew(Page::of(base), Page::of(VirtAddr(base.0 + (len - 1))));
    }

    /// Handles a message about the directory (PROTOCOL 12.41).
    pub(crate) fn on_directory_message(&mut self, port: Port, payload: &[u8], out: &mut Outbox) {
        let Ok(DirectoryMessage { token, body }) = DirectoryMessage::parse(payload) else {
            return self.drop_frame(DropReason::Malformed, out);
        };
        match (port, body) {
            (Port::CONTROL, DirectoryBody::Sweep(sweep)) => self.sweep(token, sweep, out),
            (Port::SWITCH, DirectoryBody::Clean(page, seq)) => {
                self.regions.page_states_mut().clean(page, seq);
                out.note(Note::PageCleaned);
            }
            (Port::CONTROL, DirectoryBody::Moving(number)) => self.report_move(number, token, out),
            _ => self.drop_frame(DropReason::WrongPort, out),
        }
    }

    fn sweep(&mut self, token: RequestId, sweep: Sweep, out: &mut Outbox) {
        let Sweep { first, last, seq, fenced, opens } = sweep;
        let lost = self.regions.page_states_mut().sweep_pages(first, last, seq, fenced);
        if opens {
            self.pages.epoch = self.pages.epoch.max(seq.epoch());
        }
        out.note(Note::Swept);
        if let Some(control) = self.peers.get(Port::CONTROL) {
            let lost = u32::try_from(lost).unwrap_or(u32::MAX);
            let message = DirectoryMessage { token, body: DirectoryBody::Swept(sweep, lost) };
            self.peers.emit(control, message.len(), out, |bytes| message.emit(bytes));
        }
    }

    /// Handles a page message. Only the switch sends them, after it checked the rights.
    pub(crate) fn on_page_message(&mut self, port: Port, payload: &[u8], out: &mut Outbox) {
        if port != Port::SWITCH {
            return self.drop_frame(DropReason::WrongPort, out);
        }
        match PageMessage::parse(payload) {
            Ok(PageMessage { body: PageBody::Read(read), .. }) => self.on_page_read(&read, out),
            Ok(PageMessage { origin, body: PageBody::WriteBack(write_back, part, bytes), .. }) => {
                self.on_write_back(origin, &write_back, part, bytes, out);
            }
            Ok(_) => self.drop_frame(DropReason::WrongPort, out),
            Err(_) => self.drop_frame(DropReason::Malformed, out),
        }
    }

    fn on_page_read(&mut self, read: &Read, out: &mut Outbox) {
        let &Read { page, access, host, id, seq, granted, done_due, .. } = read;
        let Some(peer) = self.peers.get(Port::host(host.0)) else {
            return self.drop_frame(DropReason::UnknownPeer, out);
        };
        if !self.regions.is_page_local(page) {
            return self.drop_frame(DropReason::NotHere, out);
        }
        // Grants of an earlier switch are not settled yet (PROTOCOL 12.36).
        if seq.epoch() != self.pages.epoch {
            return self.drop_frame(DropReason::Epoch, out);
        }
        let handed = self.regions.page_states_mut().read(read);
        if handed == GrantReply::Nothing {
            return out.note(Note::PageTooEarly);
        }
        let lost = handed == GrantReply::Loss;
        out.note(Note::PageServed);
        self.buffer.clear();
        if !lost {
            self.store.read(self.regions.offset(page.addr(), PAGE_LEN), PAGE_BYTES, &mut self.buffer);
        }
        let parts = Part::all(self.config.pmtu.bytes()).take(if lost { 1 } else { Part::COUNT_MAX.into() });
        for part in parts {
            let data = Data { page, access, id, seq, granted, done_due, lost, part };
            let bytes = self.buffer.get(part.range()).unwrap_or_default();
            let body = PageBody::Data(data, bytes);
            let message = PageMessage { domain: Domain::default(), origin: host, body };
            self.peers.emit(peer, message.len(), out, |bytes| message.emit(bytes));
        }
    }

    fn on_write_back(
        &mut self,
        origin: HostId,
        write_back: &WriteBack,
        part: Part,
        bytes: &[u8],
        out: &mut Outbox,
    ) {
        let &WriteBack { page, grant, ack } = write_back;
        if !self.regions.is_page_local(page) {
            return self.drop_frame(DropReason::NotHere, out);
        }
        let whole = if part.count == 1 { None } else { self.pages.complete(origin, write_back, part, bytes) };
        if part.count > 1 && whole.is_none() {
            return out.note(Note::PageWritten(WriteBackEffect::NotYet));
        }
        let counts = self.regions.page_states_mut().write_back(page, origin, grant);
        if counts {
            let offset = self.regions.offset(page.addr(), PAGE_LEN);
            self.store.write(offset, whole.as_ref().map_or(bytes, |whole| &whole[..]));
        }
        out.note(Note::PageWritten(if counts { WriteBackEffect::Yes } else { WriteBackEffect::No }));
        let mut send = |port, body| {
            if let Some(peer) = self.peers.get(port) {
                let message = PageMessage { domain: Domain::default(), origin, body };
                self.peers.emit(peer, message.len(), out, |bytes| message.emit(bytes));
            }
        };
        // A host waits for the switch's next step; the writer waits only for its acknowledgement.
        if let Some(ack) = ack {
            send(Port::SWITCH, PageBody::RecallAck(ack));
        }
        send(Port::host(origin.0), PageBody::WriteBackAck(WriteBackAck { page, grant, ack }));
    }
}
