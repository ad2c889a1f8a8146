//! The other end of the control plane's updates: a switch or a memory node with plain tables.

use farmem_control::PAGE;
use farmem_machine::{Action, Outbox, Port};
use farmem_transport::ud::{self, BatchAction, Endpoint, Inbox, Peer};
use farmem_wire::message::{
    DirectoryBody, DirectoryMessage, FileBody, FileCause, FileFault, FileMessage, FileState, FileTask,
    HostSet, Listing, Region, RegionRows, Relayed, Seq, SoftMessage, UNKNOWN_MOVE, Update, Updates,
};
use farmem_wire::{Body, Extension, Message, Packet, Perm, Psn, Status};
use std::collections::{BTreeMap, BTreeSet};

/// Size of the blocks by which permissions are kept. Tests grant whole blocks.
pub(crate) const BLOCK: u64 = 1024;

/// A connection at its node: peer's queue pair, peer's port, first PSN, key, domain.
pub(crate) type QueuePairRow = (u32, u32, u32, u32, u32);

/// Updates that a role was told, as tables.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tables {
    /// Port to queue pair and key.
    pub(crate) peers: BTreeMap<u32, (u32, u32)>,
    pub(crate) translations: BTreeMap<(u64, u8), u16>,
    /// Domain and block to class, without `None`.
    pub(crate) perms: BTreeMap<(u32, u64), Perm>,
    /// Queue pair to key, host with its generation, domain.
    pub(crate) sessions: BTreeMap<u32, (u32, (u16, u16), u32)>,
    pub(crate) ranges: BTreeMap<(u64, u64), u64>,
    /// Connections by queue pair.
    pub(crate) queue_pairs: BTreeMap<u32, QueuePairRow>,
    /// Connections that go through the switch, by the queue pair to which the host sends.
    pub(crate) connections: BTreeMap<u32, Relayed>,
    /// First address and size of memory that is not where the range has it: at this offset, or at another
    /// node.
    pub(crate) outliers: BTreeMap<(u64, u8), Outlier>,
    /// Prefixes that are drained.
    pub(crate) vacated: BTreeSet<(u64, u8)>,
}

/// State of addresses at a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outlier {
    Arriving(u64, u64),
    Leaving(u64),
    Here(u64),
    Away,
}

/// How much of each a role has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) peers: usize,
    pub(crate) translations: usize,
    pub(crate) perms: usize,
    pub(crate) sessions: usize,
    pub(crate) queue_pairs: usize,
    pub(crate) connections: usize,
    pub(crate) outliers: usize,
}

impl Default for Budget {
    fn default() -> Self {
        let most = usize::MAX;
        Self {
            peers: most,
            translations: most,
            perms: most,
            sessions: most,
            queue_pairs: most,
            connections: most,
            outliers: most,
        }
    }
}

#[derive(Debug)]
pub(crate) struct RolePeer {
    pub(crate) port: Port,
    pub(crate) home: Endpoint,
    pub(crate) control: Endpoint,
    pub(crate) octet: u8,
    pub(crate) tables: Tables,
    pub(crate) budget: Budget,
    /// Updates applied, in order.
    pub(crate) applied: Vec<Update>,
    pub(crate) batches: u64,
    /// Status with which to refuse the next update.
    pub(crate) refuse_next: Option<Status>,
    /// The numbers of hosts whose generations began anew.
    pub(crate) anew: Vec<u16>,
    inbox: Inbox,
    /// Domains that could use a block since it was last cleared.
    used: BTreeMap<u64, BTreeSet<u32>>,
    /// Pages that count as lost.
    pub(crate) lost: BTreeSet<u64>,
    /// Pages with the bytes that were written to them: cleared in this incarnation, accepted as they are, or
    /// moved here from another node.
    pub(crate) kept: BTreeSet<u64>,
    /// Lost pages among those that this role pushes, by the number of the move: the other node is told so
    /// page by page (PROTOCOL 7.40, 7.44).
    pub(crate) pushes_lost: BTreeMap<u64, BTreeSet<u64>>,
    /// Decided moves to this role whose pages are still to be transferred: number, first byte, bytes.
    pub(crate) arrived: Vec<(u64, u64, u64)>,
    /// The amount left to push that this role reports, or none if it does not answer.
    pub(crate) left_to_push: Option<u32>,
    /// Messages about images, which a test answers.
    pub(crate) soft: Vec<Vec<u8>>,
    /// Answers orders to sweep.
    pub(crate) sweeps: bool,
    /// A region that is being reset, and the hosts that have still to give it up.
    pub(crate) awaits: Option<(Region, Seq, HostSet)>,
    /// Files of the role: length and stamp of each.
    pub(crate) files: BTreeMap<String, (u64, u64)>,
    /// Makes progress with loads and saves. Otherwise the role reports a few times that they are half done,
    /// and then nothing.
    pub(crate) works: bool,
    busy: BTreeMap<u64, u32>,
    /// Results of tasks, by number.
    pub(crate) over: BTreeMap<u64, FileState>,
    /// Files that the role wrote.
    pub(crate) saved: Vec<String>,
}

impl RolePeer {
    pub(crate) fn new(port: Port, home: Endpoint, control: Endpoint, octet: u8, budget: Budget) -> Self {
        Self {
            port,
            home,
            control,
            octet,
            tables: Tables::default(),
            budget,
            applied: Vec::new(),
            batches: 0,
            refuse_next: None,
            anew: Vec::new(),
            inbox: Inbox::default(),
            used: BTreeMap::new(),
            lost: BTreeSet::new(),
            kept: BTreeSet::new(),
            pushes_lost: BTreeMap::new(),
            arrived: Vec::new(),
            left_to_push: Some(0),
            soft: Vec::new(),
            sweeps: true,
            awaits: None,
            files: BTreeMap::new(),
            works: true,
            busy: BTreeMap::new(),
            over: BTreeMap::new(),
            saved: Vec::new(),
        }
    }

    /// Handles a frame and returns the answer, if there is one.
    pub(crate) fn hear(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let packet = Packet::parse(frame).expect("the control plane sends valid frames");
        assert!(frame.len() <= 1024 + 12, "a batch fits a PMTU of 1024");
        let Extension::Deth(deth) = packet.ext else { panic!("updates travel in UD SENDs") };
        if packet.bth.dest_qp != self.home.qpn || deth.qkey != self.home.qkey {
            return None; // for an earlier join
        }
        if DirectoryMessage::is(packet.payload) {
            return self.hear_of_directory(packet.payload);
        }
        if FileMessage::is(packet.payload) {
            return self.hear_of_files(packet.payload);
        }
        if SoftMessage::is(packet.payload) {
            self.soft.push(packet.payload.to_vec());
            return None;
        }
        let message = Message::parse(packet.payload).expect("the control plane sends valid messages");
        let Body::Update(batch) = message.body else { panic!("the control plane sends updates only") };
        let (status, refused) = match self.inbox.decide(&batch) {
            BatchAction::Ignore => return None,
            BatchAction::Halt => {
                panic!("the control plane never sends other bytes under a number (PROTOCOL 8.19)")
            }
            BatchAction::Again(status, refused) => (status, refused),
            BatchAction::Apply => self.apply_batch(&batch),
        };
        let answer = Message {
            header: message.header.answer(status),
            body: Body::Update(Updates::response(batch.seq, refused)),
        };
        Some(self.to_control(answer.len(), |bytes| answer.emit(bytes)))
    }

    /// Answers about the directory: no host caches a page here, so there is no region, and nothing to sweep.
    fn hear_of_directory(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let DirectoryMessage { token, body } =
            DirectoryMessage::parse(payload).expect("the control plane sends valid messages");
        let body = match body {
            DirectoryBody::Sweep(_) if !self.sweeps => return None,
            DirectoryBody::Sweep(sweep) => DirectoryBody::Swept(sweep, 0),
            DirectoryBody::Reset(page) => match self.awaits {
                Some((region, seq, hosts)) if region.contains(page) => {
                    DirectoryBody::Awaiting(region, seq, hosts)
                }
                _ => DirectoryBody::Unknown(page),
            },
            DirectoryBody::End(region, seq) => DirectoryBody::Ended(region, seq),
            DirectoryBody::List(from) => {
                let rows = RegionRows::new(&[]).expect("no rows");
                DirectoryBody::Listing(Listing { from, next: None, used: 0, slots: 100, rows })
            }
            DirectoryBody::Resize(_) => return None,
            DirectoryBody::Moving(number) => {
                let of_move = |outlier: &Outlier| *outlier == Outlier::Leaving(number);
                let known = self.tables.outliers.values().any(of_move);
                let left = if known { self.left_to_push? } else { UNKNOWN_MOVE };
                DirectoryBody::Moved(number, left)
            }
            other => panic!("{other:?} is nothing the control plane says"),
        };
        let answer = DirectoryMessage { token, body };
        Some(self.to_control(answer.len(), |bytes| answer.emit(bytes)))
    }

    /// Carries out each task once (PROTOCOL 20.7).
    fn hear_of_files(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        let FileMessage { token, body } =
            FileMessage::parse(payload).expect("the control plane sends valid messages");
        let failed = |cause, at| FileState::Failed(FileFault { cause, errno: 0, at });
        let (number, state) = match body {
            FileBody::Lookup(name) => (
                0,
                match self.files.get(name) {
                    Some(&(length, stamp)) => FileState::Done { length, stamp },
                    None => failed(FileCause::Missing, 0),
                },
            ),
            FileBody::Task(task) => (task.task, self.work(&task, failed)?),
            FileBody::Report(..) => panic!("the control plane asks"),
        };
        let answer = FileMessage { token, body: FileBody::Report(number, state) };
        Some(self.to_control(answer.len(), |bytes| answer.emit(bytes)))
    }

    fn work(
        &mut self,
        task: &FileTask<'_>,
        failed: impl Fn(FileCause, u64) -> FileState,
    ) -> Option<FileState> {
        if let Some(&state) = self.over.get(&task.task) {
            return Some(state);
        }
        if !self.works {
            let busy = self.busy.entry(task.task).or_default();
            *busy += 1;
            let half = FileState::Busy { done: task.length / 2, length: task.length };
            return (*busy <= 3).then_some(half);
        }
        let blocks = task.base.0 / BLOCK..(task.base.0 + task.size) / BLOCK;
        let writers = self
            .tables
            .perms
            .iter()
            .filter(|((_, block), perm)| blocks.contains(block) && **perm == Perm::ReadWrite);
        assert_eq!(writers.count(), 0, "no domain may write an object that is loaded or saved");
        let all: Vec<u64> = pages(task.base.0, task.size).collect();
        let state = if task.saves {
            assert!(all.iter().all(|page| !self.lost.contains(page)), "what is lost is not saved");
            let stamp = self.files.get(task.name).map_or(1, |&(_, stamp)| stamp + 1);
            self.files.insert(task.name.to_owned(), (task.length, stamp));
            self.saved.push(task.name.to_owned());
            FileState::Done { length: task.length, stamp }
        } else {
            assert!(all.iter().all(|page| self.lost.contains(page)), "what is loaded was lost");
            match self.files.get(task.name) {
                None => failed(FileCause::Missing, 0),
                Some(&(length, _)) if length != task.length => failed(FileCause::Length, length),
                Some(&(_, stamp)) if task.stamp != 0 && stamp != task.stamp => failed(FileCause::Changed, 0),
                Some(&(length, stamp)) => {
                    all.iter().for_each(|page| _ = self.lost.remove(page));
                    self.kept.extend(all);
                    FileState::Done { length, stamp }
                }
            }
        };
        self.over.insert(task.task, state);
        Some(state)
    }

    fn to_control(&self, len: usize, emit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out: Outbox<(), ()> = Outbox::new();
        let control = Peer { port: Port::CONTROL, endpoint: self.control };
        ud::send_bytes(&mut out, control, self.home.qpn, Psn::new(0), len, emit);
        let mut bytes = Vec::new();
        out.drain(|action| {
            if let Action::Send { frame, .. } = action {
                bytes = frame.to_vec();
            }
        });
        bytes
    }

    /// Returns the same peer for a twin rack, with room for everything.
    pub(crate) fn twin(&self) -> Self {
        let mut twin = Self::new(self.port, self.home, self.control, self.octet, Budget::default());
        twin.tables = self.tables.clone();
        twin.used = self.used.clone();
        twin.inbox = self.inbox.clone();
        (twin.lost, twin.kept) = (self.lost.clone(), self.kept.clone());
        (twin.files, twin.works, twin.over) = (self.files.clone(), self.works, self.over.clone());
        twin
    }

    fn apply_batch(&mut self, batch: &Updates<'_>) -> (Status, u16) {
        let mut result = (Status::Ok, 0);
        for (index, update) in (0..).zip(batch.iter()) {
            if let Err(status) = self.apply(update) {
                result = (status, index);
                break;
            }
            self.applied.push(update);
        }
        self.batches += 1;
        self.inbox.applied(batch, result.0, result.1);
        result
    }

    fn apply(&mut self, update: Update) -> Result<(), Status> {
        if let Some(status) = self.refuse_next.take() {
            return Err(status);
        }
        let node = self.port != Port::SWITCH;
        let t = &mut self.tables;
        match update {
            Update::Peer { port, qpn, qkey, .. } => {
                room(t.peers.len(), t.peers.contains_key(&port), self.budget.peers)?;
                t.peers.insert(port, (qpn.get(), qkey.0));
            }
            Update::PeerGone { port } => {
                t.peers.remove(&port);
            }
            Update::Anew { host } if node => {
                assert!(!t.peers.contains_key(&Port::host(host.0).0), "{host:?} is there");
                self.anew.push(host.0);
            }
            Update::Translate { base, size_log2, node: to } if !node => {
                room(
                    t.translations.len(),
                    t.translations.contains_key(&(base.0, size_log2)),
                    self.budget.translations,
                )?;
                t.translations.insert((base.0, size_log2), to.0);
                t.vacated.remove(&(base.0, size_log2));
            }
            Update::Untranslate { base, size_log2 } if !node => {
                t.translations.remove(&(base.0, size_log2));
                t.vacated.remove(&(base.0, size_log2));
            }
            Update::Drain { base, size_log2 } if !node => {
                assert!(t.translations.contains_key(&(base.0, size_log2)), "what is vacated is translated");
                t.vacated.insert((base.0, size_log2));
            }
            Update::Arrive { .. }
            | Update::Leave { .. }
            | Update::Place { .. }
            | Update::Away { .. }
            | Update::Unplace { .. }
                if node =>
            {
                self.place(update)?
            }
            Update::Protect { domain, base, len, perm, .. } => self.protect(domain.0, base.0, len, perm)?,
            Update::Session { qpn, qkey, host, generation, domain } if !node => {
                room(t.sessions.len(), t.sessions.contains_key(&qpn.get()), self.budget.sessions)?;
                t.sessions.insert(qpn.get(), (qkey.0, (host.0, generation), domain.0));
            }
            Update::SessionGone { qpn } if !node => {
                t.sessions.remove(&qpn.get());
            }
            Update::Range { base, len, offset } if node => {
                t.ranges.insert((base.0, len), offset);
            }
            Update::Clear { base, len } if node => {
                for block in base.0 / BLOCK..(base.0 + len) / BLOCK {
                    self.used.remove(&block);
                }
                self.kept.extend(pages(base.0, len));
                pages(base.0, len).for_each(|page| _ = self.lost.remove(&page));
            }
            Update::QueuePair { qpn, peer_qpn, peer_port, expected_psn, rkey, domain, .. } if node => {
                assert!(t.peers.contains_key(&peer_port), "a connection's host is a peer");
                room(t.queue_pairs.len(), false, self.budget.queue_pairs)?;
                let row = (peer_qpn.get(), peer_port, expected_psn.get(), rkey.0, domain.0);
                assert_eq!(t.queue_pairs.insert(qpn.get(), row), None, "a queue pair is opened once");
            }
            Update::QueuePairGone { qpn } if node => {
                t.queue_pairs.remove(&qpn.get());
            }
            Update::Connection(of) if !node => {
                let replaced = t.connections.contains_key(&of.to_node.get());
                room(t.connections.len(), replaced, self.budget.connections)?;
                for port in [Port::host(of.host.0), Port::node(of.node.0)] {
                    assert!(t.peers.contains_key(&port.0), "the ends of a connection are peers");
                }
                assert_eq!(t.connections.insert(of.to_node.get(), of), None, "a connection is told of once");
            }
            Update::ConnectionGone { to_node } if !node => {
                t.connections.remove(&to_node.get());
            }
            Update::Directory { .. } | Update::Live { .. } | Update::Fence { .. } if !node => {}
            Update::AcceptLost { base, len } if node => {
                self.kept.extend(pages(base.0, len).filter(|page| self.lost.remove(page)));
            }
            Update::Lose { base, len } if node => {
                if t.peers.contains_key(&Port::SWITCH.0) {
                    // For an object by file: behind its Clear, before any host may use it (PROTOCOL 20.13).
                    let used =
                        (base.0 / BLOCK..(base.0 + len) / BLOCK).any(|block| self.used.contains_key(&block));
                    assert!(!used, "it is told before there is a request for it");
                    pages(base.0, len).for_each(|page| assert!(self.kept.remove(&page), "it was cleared"));
                }
                assert!(
                    pages(base.0, len).all(|page| !self.kept.contains(&page)),
                    "what is here is not lost"
                );
                self.lost.extend(pages(base.0, len));
            }
            other => panic!("{other:?} is not for {:?}", self.port),
        }
        Ok(())
    }

    /// Handles the move of addresses to the node, or from it.
    fn place(&mut self, update: Update) -> Result<(), Status> {
        let (base, size_log2) = match update {
            Update::Arrive { base, size_log2, .. }
            | Update::Leave { base, size_log2, .. }
            | Update::Place { base, size_log2, .. }
            | Update::Away { base, size_log2 }
            | Update::Unplace { base, size_log2 } => (base.0, size_log2),
            other => panic!("{other:?} moves nothing"),
        };
        let key = (base, size_log2);
        let end = base + (1 << size_log2);
        let met = |other: &&(u64, u8)| other.0 < end && base < other.0 + (1 << other.1) && **other != key;
        let others = &mut self.tables.outliers;
        assert_eq!(others.keys().find(met), None, "{update:?} shares addresses with another");
        let known = others.contains_key(&key);
        match update {
            Update::Arrive { .. } | Update::Leave { .. } => room(others.len(), known, self.budget.outliers)?,
            _ => {}
        }
        let place = match update {
            Update::Arrive { offset, .. } | Update::Place { offset, .. } => Some(offset),
            _ => None,
        };
        if let Some(place) = place {
            let taken = |(other, outlier): (&(u64, u8), &Outlier)| match outlier {
                Outlier::Here(at) | Outlier::Arriving(_, at) => {
                    *other != key && *at < place + (1 << size_log2) && place < at + (1 << other.1)
                }
                _ => false,
            };
            assert!(!others.iter().any(taken), "{update:?} shares memory with another");
        }
        let home = self.tables.ranges.keys().any(|&(first, len)| first <= base && base - first < len);
        match (update, others.get(&key)) {
            // A move to another place than the addresses' own was abandoned.
            (Update::Unplace { .. }, Some(Outlier::Arriving(..))) if !home => {}
            (Update::Place { .. } | Update::Unplace { .. }, Some(&Outlier::Arriving(number, _))) => {
                self.arrived.push((number, base, end - base));
            }
            (Update::Leave { number, .. }, _) => {
                let lost = pages(base, end - base).filter(|page| self.lost.contains(page)).collect();
                self.pushes_lost.insert(number, lost);
            }
            // Pages that left their own node and return there never moved.
            (Update::Unplace { .. }, Some(Outlier::Leaving(_))) if home => {}
            (Update::Away { .. }, _)
            | (Update::Unplace { .. }, Some(Outlier::Here(_) | Outlier::Leaving(_))) => {
                pages(base, end - base)
                    .for_each(|page| _ = (self.kept.remove(&page), self.lost.remove(&page)));
            }
            _ => {}
        }
        match update {
            Update::Arrive { number, offset, .. } => {
                (base / BLOCK..end / BLOCK).for_each(|block| _ = self.used.remove(&block));
                others.insert(key, Outlier::Arriving(number, offset));
            }
            Update::Leave { number, .. } => _ = others.insert(key, Outlier::Leaving(number)),
            Update::Place { offset, .. } => _ = others.insert(key, Outlier::Here(offset)),
            Update::Away { .. } => _ = others.insert(key, Outlier::Away),
            _ => _ = others.remove(&key),
        }
        Ok(())
    }

    /// Takes over the pages of a move to this role, with those of them that are lost.
    pub(crate) fn take_pages(&mut self, (base, len): (u64, u64), lost: &BTreeSet<u64>) {
        let (lost, kept): (Vec<u64>, Vec<u64>) = pages(base, len).partition(|page| lost.contains(page));
        self.lost.extend(lost);
        self.kept.extend(kept);
    }

    /// Returns true if the address is at this node, or arrives there.
    fn has(&self, addr: u64) -> bool {
        let holds =
            |&(&(base, size_log2), _): &(&(u64, u8), &Outlier)| base <= addr && addr - base < 1 << size_log2;
        match self.tables.outliers.iter().find(holds) {
            Some((_, outlier)) => *outlier != Outlier::Away,
            None => self.tables.ranges.keys().any(|&(base, len)| base <= addr && addr - base < len),
        }
    }

    fn protect(&mut self, domain: u32, base: u64, len: u64, perm: Perm) -> Result<(), Status> {
        assert!(base.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK));
        let blocks = base / BLOCK..(base + len) / BLOCK;
        let perms = &mut self.tables.perms;
        if perm == Perm::None {
            perms.retain(|&(of, block), _| of != domain || !blocks.contains(&block));
            return Ok(());
        }
        let new = blocks.clone().filter(|&block| !perms.contains_key(&(domain, block))).count();
        if perms.len() + new > self.budget.perms {
            return Err(Status::TableFull);
        }
        for block in blocks {
            if self.port != Port::SWITCH && !self.has(block * BLOCK) {
                self.tables.perms.insert((domain, block), perm);
                continue;
            }
            let perms = &mut self.tables.perms;
            let used = self.used.entry(block).or_default();
            // The owner of an object by file may only read it.
            let owned = perms.keys().any(|&(_, b)| b == block);
            let clean = self.port == Port::SWITCH || used.is_empty() || used.contains(&domain) || owned;
            assert!(clean, "domain {domain} gets block {block:#x} with what {used:?} left in it");
            used.insert(domain);
            perms.insert((domain, block), perm);
        }
        Ok(())
    }

    /// Returns the permission of `domain` at `addr`.
    pub(crate) fn may(&self, domain: u32, addr: u64) -> Perm {
        self.tables.perms.get(&(domain, addr / BLOCK)).copied().unwrap_or_default()
    }
}

/// Iterates over the pages that contain a byte of the range.
fn pages(base: u64, len: u64) -> impl Iterator<Item = u64> {
    base / PAGE..(base + len).div_ceil(PAGE)
}

fn room(len: usize, there: bool, budget: usize) -> Result<(), Status> {
    if there || len < budget { Ok(()) } else { Err(Status::TableFull) }
}
