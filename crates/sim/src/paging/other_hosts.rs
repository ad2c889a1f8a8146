//! The rest of a rack, as one host sees it: a simple model of a directory, a memory node and all other hosts.
//!
//! Key type: [`OtherHosts`]. Regions have two pages. Other hosts are instantaneous: their stores reach far memory
//! at once, and they give pages up at once. The model leaves out only behaviour
//! that the host under test cannot observe.

use farmem_machine::Rng;
use farmem_wire::message::{
    Access, Data, Get, Grant, PAGE_LEN, Page, Part, Recall, RecallAck, Refusal, Region, Seq, WriteBack,
    WriteBackAck,
};
use farmem_wire::{Status, VirtAddr};

/// Number of pages of far memory.
pub(super) const PAGES_U32: u32 = 24;
pub(super) const PAGES: u64 = PAGES_U32 as u64;
/// Binary logarithm of the pages of a region.
const ORDER: u8 = 1;
/// The first page's number.
pub(super) const FIRST: u64 = 512;

/// A message in flight.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    Get(Get),
    Done,
    Ack(RecallAck),
    WriteBack(WriteBack, u64),
    Data(Data, u64),
    Grant(Grant),
    Recall(Recall),
    Written(WriteBackAck),
    Refusal(Refusal),
}

/// A page at its node, and its true state.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Cell {
    /// The last store of any host.
    pub(super) truth: u64,
    /// The node's contents.
    pub(super) far: u64,
    /// PROTOCOL 12.26.
    min_seq: u64,
    lent: u64,
    /// True if its latest bytes died with a host.
    pub(super) lost: bool,
    /// The access that the host under test lacks, if any.
    pub(super) denied: Option<Access>,
    /// True if it was lost, or denied, at some time.
    pub(super) was_lost: bool,
    pub(super) was_denied: bool,
}

impl Cell {
    /// Records a read at the node.
    fn read(&mut self, seq: Seq, access: Access, clean: bool) {
        if clean {
            self.min_seq = self.min_seq.max(seq.0);
        }
        if access == Access::Modified {
            self.lent = self.lent.max(seq.0);
        }
    }
}

/// An entry of the directory.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Entry {
    pub(super) seq: Seq,
    /// The access of the host under test, and of the other hosts.
    pub(super) ours: Option<Access>,
    other_hosts: Option<Access>,
    /// A recall for other hosts: the page, and whether they write.
    recall: Option<(Page, bool)>,
}

/// The rest of the rack.
#[derive(Debug)]
pub(super) struct OtherHosts {
    pub(super) cells: Vec<Cell>,
    pub(super) entries: Vec<Entry>,
    pub(super) stores: u64,
    /// The violation, if any.
    pub(super) wrong: Option<String>,
}

pub(super) fn page(index: u64) -> Page {
    Page::of(VirtAddr((FIRST + index) * PAGE_LEN as u64))
}

pub(super) fn index(page: Page) -> usize {
    usize::try_from(page.number() - FIRST).expect("a page of the world")
}

pub(super) fn pages_of(region: usize) -> impl Iterator<Item = usize> {
    let size = 1 << ORDER;
    region * size..(region + 1) * size
}

impl OtherHosts {
    pub(super) fn new() -> Self {
        let entry = Entry { seq: Seq(1), ..Entry::default() };
        let cell = Cell { min_seq: 1, ..Cell::default() };
        Self {
            cells: vec![cell; index(page(PAGES))],
            entries: vec![entry; index(page(PAGES)) >> ORDER],
            stores: 0,
            wrong: None,
        }
    }

    fn hold(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.wrong.get_or_insert_with(why);
        }
    }

    /// Returns a value that was never stored before.
    pub(super) fn next_store(&mut self) -> u64 {
        self.stores += 1;
        self.stores
    }

    fn store(&mut self, at: usize) {
        let value = self.next_store();
        (self.cells[at].truth, self.cells[at].far) = (value, value);
    }

    /// Lets other hosts request a page. They get the page at once, or when the host under test has given it up.
    pub(super) fn want(&mut self, of: Page, write: bool, out: &mut Vec<Message>) {
        let at = index(of);
        let entry = &mut self.entries[at >> ORDER];
        if entry.recall.is_some() || self.cells[at].lost {
            return;
        }
        match entry.ours {
            Some(ours) if write || ours == Access::Modified => {
                entry.seq = entry.seq.next();
                entry.recall = Some((of, write));
                self.recall(at >> ORDER, out);
            }
            _ => self.have(at, write),
        }
    }

    /// Sends the recall again.
    pub(super) fn recall(&self, region: usize, out: &mut Vec<Message>) {
        let Entry { seq, recall, .. } = self.entries[region];
        if let Some((of, write)) = recall {
            let wanted = u16::try_from(index(of) & 1).ok();
            out.push(Message::Recall(Recall {
                region: Region::around(of, ORDER),
                seq,
                keep: !write,
                wanted,
            }));
        }
    }

    /// Lets other hosts access a page, where they must see the last store.
    fn have(&mut self, at: usize, write: bool) {
        for at in pages_of(at >> ORDER) {
            let Cell { truth, far, lost, .. } = self.cells[at];
            self.hold(lost || truth == far, || {
                format!("others read {far} of page {at}, and {truth} was stored")
            });
        }
        let entry = &mut self.entries[at >> ORDER];
        entry.other_hosts =
            entry.other_hosts.max(Some(if write { Access::Modified } else { Access::Shared }));
        if write && !self.cells[at].lost {
            self.store(at);
        }
    }

    /// Crashes a host with a page that the host under test does not have: its bytes are lost until a host
    /// accepts the old ones.
    pub(super) fn lose(&mut self, at: usize) {
        let Entry { ours, recall, .. } = self.entries[at >> ORDER];
        if ours.is_none() && recall.is_none() {
            (self.cells[at].lost, self.cells[at].was_lost) = (true, true);
        }
    }

    /// Lets the owner accept the old bytes.
    pub(super) fn accept(&mut self, at: usize) {
        self.cells[at].lost = false;
    }

    /// Changes the access rights of the host under test to a page.
    pub(super) fn deny(&mut self, at: usize, what: Option<Access>) {
        let Entry { ours, recall, .. } = self.entries[at >> ORDER];
        let harmless = what == Some(Access::Modified) && ours < Some(Access::Modified);
        if what.is_none() || harmless || ours.is_none() && recall.is_none() {
            self.cells[at].denied = what;
            self.cells[at].was_denied |= what.is_some();
        }
    }

    /// Handles a message of the host under test and appends the answers.
    pub(super) fn hear(&mut self, message: Message, rng: &mut Rng, out: &mut Vec<Message>) {
        match message {
            Message::Get(get) => self.get(get, rng, out),
            Message::Ack(ack) => self.acknowledged(ack),
            Message::WriteBack(write_back, value) => {
                let WriteBack { page, grant, ack } = write_back;
                let cell = &mut self.cells[index(page)];
                if (cell.min_seq..=cell.lent).contains(&grant.0) {
                    (cell.far, cell.min_seq) = (value, grant.0 + 1);
                }
                ack.into_iter().for_each(|ack| self.acknowledged(ack));
                out.push(Message::Written(WriteBackAck { page, grant, ack }));
            }
            _ => {}
        }
    }

    fn get(&mut self, get: Get, rng: &mut Rng, out: &mut Vec<Message>) {
        let Get { page, access, id } = get;
        let at = index(page);
        let refused = |status| Message::Refusal(Refusal { page, id, status });
        if self.cells[at].denied.is_some_and(|denied| access >= denied) {
            return out.push(refused(Status::NoPermission));
        }
        let entry = &mut self.entries[at >> ORDER];
        if entry.recall.is_some() {
            out.push(refused(Status::Busy));
            return self.recall(at >> ORDER, out);
        }
        if access == Access::Modified || entry.other_hosts == Some(Access::Modified) {
            entry.seq = entry.seq.next();
        }
        entry.other_hosts =
            if access == Access::Modified { None } else { entry.other_hosts.map(|_| Access::Shared) };
        let clean = entry.ours != Some(Access::Modified);
        entry.ours = entry.ours.max(Some(access));
        let seq = entry.seq;
        let cell = &mut self.cells[at];
        cell.read(seq, access, clean);
        // The grant may come separately from the bytes.
        let granted = access == Access::Shared || rng.chance(1, 2);
        if !granted {
            out.push(Message::Grant(Grant { page, id, seq }));
        }
        let done_due = access == Access::Modified;
        let data = Data { page, access, id, seq, granted, done_due, lost: cell.lost, part: Part::WHOLE };
        out.push(Message::Data(data, cell.far));
    }

    /// Handles the acknowledgement of a recall.
    fn acknowledged(&mut self, ack: RecallAck) {
        let region = index(ack.region.base()) >> ORDER;
        let entry = &mut self.entries[region];
        if ack.seq != entry.seq || ack.region.order() != ORDER {
            return;
        }
        let Some((of, write)) = entry.recall.take() else { return };
        entry.ours = entry.ours.map(|_| Access::Shared).filter(|_| !write);
        for at in pages_of(region) {
            self.cells[at].min_seq = self.cells[at].min_seq.max(ack.seq.0);
        }
        self.have(index(of), write);
    }

    /// Fences the host under test after its lease: its state is void, and its unsaved stores are lost.
    pub(super) fn fence(&mut self) -> u64 {
        let mut lost = 0;
        for entry in &mut self.entries {
            *entry = Entry { seq: entry.seq.next(), ..Entry::default() };
        }
        for (at, cell) in self.cells.iter_mut().enumerate() {
            if cell.lent >= cell.min_seq {
                lost += u64::from(cell.truth != cell.far);
                (cell.lost, cell.was_lost) = (true, true);
            }
            cell.min_seq = cell.min_seq.max(self.entries[at >> ORDER].seq.0);
            // Only the old bytes are left.
            cell.truth = cell.far;
        }
        lost
    }

    /// Returns the present access of the host under test to a page.
    pub(super) fn right(&self, at: usize) -> Option<Access> {
        self.entries[at >> ORDER].ours
    }

    /// Returns a region with an open recall.
    pub(super) fn awaited(&self) -> Option<usize> {
        self.entries.iter().position(|entry| entry.recall.is_some())
    }
}
