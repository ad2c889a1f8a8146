//! The lifecycle of a change: begin, answers to its updates, commit or rollback (PROTOCOL 8.14 to 8.17).
//! ```text
//!            begin                all answered Ok
//!   (decided) ----> applying -------------------------> committed
//!                      | refused, silent, joined, left
//!                      v            taken back everywhere
//!                   failed ---------------------------> ended
//! ```

mod kinds;

use crate::bounds::MISSED_MAX;
use crate::record::{
    Cache, Change, ChangeKind, Refusal, Remap, Role, RollbackReason, Span, SwitchRow, VmaRow,
};
use crate::state::{Effect, LogError, State, grants};
use crate::updates::{Entry, LoggedUpdate, Queue, Reach};
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_transport::PeerChange;
use farmem_wire::Gid;
use farmem_wire::message::Update;

/// A port that no member has: nodes are numbered from 1.
const NOBODY: Port = Port::node(0);

impl State {
    /// Queues a harmless update, to see whether a role answers: no role has anything to forget of that port.
    pub(crate) fn probe(&mut self, role: Role, effects: &mut Vec<Effect>) {
        self.enqueue(role, None, LoggedUpdate(Update::PeerGone { port: NOBODY.0 }), None, effects);
    }

    pub(crate) fn begin(
        &mut self,
        id: u64,
        what: &ChangeKind,
        effects: &mut Vec<Effect>,
    ) -> Result<(), LogError> {
        if id < self.next_change {
            return Err(LogError("a change with a number used before"));
        }
        self.next_change = id.saturating_add(1);
        self.fits(what)?;
        let (waits, undo) = (Vec::new(), Vec::new());
        self.changes.insert(id, Change { what: what.clone(), waits, undo, drains: None, failed: None });
        match what {
            ChangeKind::JoinSwitch { gid, home } => {
                self.reset(
                    Role::Switch,
                    RollbackReason::Joined { role: Role::Switch },
                    ChangeKind::is_protection,
                    effects,
                );
                if self.switch.is_some() {
                    self.forget(Port::SWITCH, effects);
                }
                self.switch_generation = self.switch_generation.wrapping_add(1);
                self.epoch += 1;
                self.directory = false;
                self.switch = Some(SwitchRow { gid: *gid, home: *home, joining: Some(id) });
                effects.push(Effect::Peer(PeerChange { port: Port::SWITCH, gid: Some(Gid(*gid)) }));
                self.fill(Role::Switch, effects);
            }
            ChangeKind::JoinNode { .. } => self.begin_join_node(id, what, effects),
            ChangeKind::JoinHost { .. } => self.begin_join_host(id, what, effects)?,
            ChangeKind::JoinIndex { index, row } => self.begin_join_index(id, *index, row, effects),
            ChangeKind::LeaveIndex { index } => self.begin_leave_index(*index, effects)?,
            ChangeKind::LeaveHost { host } => self.begin_leave_host(*host, effects)?,
            ChangeKind::LeaveNode { node, .. } => {
                let port = Port::node(*node);
                self.reset(Role::Node(*node), RollbackReason::Left { port: port.0 }, |_| false, effects);
                self.end_connections_to(*node, effects);
                self.nodes.remove(node).ok_or(LogError("an unknown node leaves"))?;
                effects.push(Effect::Peer(PeerChange { port, gid: None }));
            }
            ChangeKind::Disconnect(row) => {
                self.connections.remove(&row.key()).ok_or(LogError("an unknown connection ends"))?;
            }
            ChangeKind::Allocate { base, size, node, domain, durable, .. } => {
                let row = VmaRow { durable: *durable, ..VmaRow::new(id, *size, *node, *domain) };
                if self.vmas.insert(*base, row).is_some() {
                    return Err(LogError("a vma over another"));
                }
            }
            ChangeKind::Remap(remap) => self.begin_remap(id, remap)?,
            ChangeKind::TurnFile { object, turn, .. } => self.begin_turn(*object, *turn),
            ChangeKind::Fence { host, given_up } => {
                let row = self.hosts.get_mut(host).ok_or(LogError("an unknown host is fenced"))?;
                (row.cache, row.given_up) = (Cache::Fenced, *given_up);
            }
            ChangeKind::OpenSession(_)
            | ChangeKind::Connect(_)
            | ChangeKind::Free { .. }
            | ChangeKind::Grant { .. }
            | ChangeKind::OpenDirectory { .. }
            | ChangeKind::Live { .. }
            | ChangeKind::Migrate(_)
            | ChangeKind::AcceptLost { .. } => {}
        }
        self.tell_all(id, what, effects);
        Ok(())
    }

    /// Queues the updates of a change, or of its next step, for all involved roles.
    pub(crate) fn tell_all(&mut self, id: u64, what: &ChangeKind, effects: &mut Vec<Effect>) {
        for role in self.concerned(what) {
            let steps = self.tell(what, role);
            if role == Role::Switch && what.is_protection() {
                self.drain(id, steps.iter().map(|(update, _)| update));
            }
            for (update, undo) in steps {
                self.enqueue(role, Some(id), LoggedUpdate(update), undo, effects);
            }
        }
    }

    fn begin_remap(&mut self, id: u64, remap: &Remap) -> Result<(), LogError> {
        if let Some(process) = remap.starts {
            self.next_process = process.checked_add(1).ok_or(LogError("there is no further process"))?;
        }
        for (base, size) in remap.reserved() {
            let node = self.node_at(base).ok_or(LogError("a vma on no node"))?;
            let row = VmaRow::new(id, size, node, remap.domain);
            if self.vmas.insert(base, row).is_some() {
                return Err(LogError("a vma over another"));
            }
        }
        Ok(())
    }

    /// Handles the answer to the head of a role's queue.
    pub(crate) fn answered(
        &mut self,
        role: Role,
        seq: u64,
        refusal: Option<Refusal>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), LogError> {
        let queue = self.queues.get_mut(&role).filter(|queue| queue.seq == seq);
        let queue = queue.ok_or(LogError("an answer to no batch"))?;
        let answer = queue.answer(refusal.map(|refusal| usize::from(refusal.index)));
        let answer = answer.ok_or(LogError("an answer to no update"))?;
        self.roll_back(role, &answer.applied);
        for entry in answer.applied {
            self.unwait(role, &entry);
            let applying = entry.change.filter(|_| !entry.withdrawn).and_then(|id| self.changes.get_mut(&id));
            if let (Some(change), Some(undo)) = (applying, entry.undo) {
                change.undo.push((role, undo));
            }
        }
        answer.dropped.iter().for_each(|entry| self.unwait(role, entry));
        if let (Some(entry), Some(Refusal { status, .. })) = (answer.refused, refusal) {
            self.refused(role, &entry, status, effects);
        }
        Ok(())
    }

    /// Rolls back updates that were applied after their change failed, before any later update (PROTOCOL
    /// 8.16): the addresses or the vma may belong to another change by now.
    fn roll_back(&mut self, role: Role, applied: &[Entry]) {
        let mut back = Vec::new();
        for entry in applied.iter().rev().filter(|entry| entry.withdrawn) {
            for &told in entry.undo.iter().flatten() {
                let waited = self.wait_for(entry.change, role);
                back.push(Entry { change: entry.change, waited, ..Entry::plain(told) });
            }
        }
        if let Some(queue) = self.queues.get_mut(&role) {
            queue.push_front(back);
        }
    }

    fn refused(&mut self, role: Role, entry: &Entry, status: u8, effects: &mut Vec<Effect>) {
        self.unwait(role, entry);
        if entry.withdrawn {
            return;
        }
        let change =
            entry.change.filter(|_| entry.undo.is_some()).and_then(|id| Some((id, self.changes.get(&id)?)));
        match change {
            // A node that rejects a peer does not keep it out of the rack. Without the switch no member can
            // work.
            Some((_, change)) if change.what.is_membership() && role != Role::Switch => {
                self.lose(role, effects)
            }
            Some((id, _)) => self.fail(id, RollbackReason::Refused { role, status }, effects),
            None => self.lose(role, effects),
        }
    }

    /// Handles a role that did not answer for long.
    pub(crate) fn silent(&mut self, role: Role, effects: &mut Vec<Effect>) -> Result<(), LogError> {
        let queue = self.queues.get_mut(&role).filter(|queue| queue.outstanding().is_some());
        queue.ok_or(LogError("silence of a role that was not asked"))?.fall_silent();
        let waiting: Vec<u64> =
            self.changes.iter().filter(|(_, c)| waits_on(c, role)).map(|(&id, _)| id).collect();
        for id in waiting {
            let Some(change) = self.changes.get_mut(&id) else { continue };
            change.waits.retain(|(on, _)| *on != role);
            if change.failed.is_none() && !change.what.tolerates(role) {
                self.fail(id, RollbackReason::Silent { role }, effects);
            }
        }
        Ok(())
    }

    /// Handles a restart of the control plane: the callers are gone, so it rolls back all revocable changes.
    pub(crate) fn abandon(&mut self, effects: &mut Vec<Effect>) {
        for id in self.applying(ChangeKind::is_revocable) {
            self.fail(id, RollbackReason::Restarted, effects);
        }
    }

    /// Drops a role that refused a required update, or missed too much: it gets no more updates until it
    /// rejoins.
    fn lose(&mut self, role: Role, effects: &mut Vec<Effect>) {
        self.reset(role, RollbackReason::Gone { role }, |what| what.tolerates(role), effects);
        effects.push(Effect::MustRejoin(role));
    }

    /// Drops a role's queue. Changes that depend on the role fail, except those `spared`.
    pub(crate) fn reset(
        &mut self,
        role: Role,
        why: RollbackReason,
        spared: impl Fn(&ChangeKind) -> bool,
        effects: &mut Vec<Effect>,
    ) {
        self.queues.remove(&role);
        for change in self.changes.values_mut() {
            change.waits.retain(|(on, _)| *on != role);
            change.undo.retain(|(on, _)| *on != role);
        }
        let hit: Vec<u64> =
            self.applying(|what| !what.is_membership() && !what.is_decided() && !spared(what));
        for id in hit {
            let concerned =
                self.changes.get(&id).is_some_and(|change| self.concerned(&change.what).contains(&role));
            if concerned {
                self.fail(id, why, effects);
            }
        }
    }

    /// Begins the rollback of a change.
    pub(crate) fn fail(&mut self, id: u64, why: RollbackReason, effects: &mut Vec<Effect>) {
        let Some(change) = self.changes.get_mut(&id).filter(|change| change.failed.is_none()) else { return };
        change.failed = Some(why);
        let undo = core::mem::take(&mut change.undo);
        let what = change.what.clone();
        let roles: Vec<Role> = self.queues.keys().copied().collect();
        for role in roles {
            let removed = self.queues.get_mut(&role).map_or(0, |queue| queue.withdraw(id));
            self.subtract(id, role, removed);
        }
        for (role, back) in undo.into_iter().rev() {
            for told in back {
                self.enqueue(role, Some(id), told, None, effects);
            }
        }
        match what {
            ChangeKind::JoinSwitch { .. } => {
                self.switch = None;
                self.reset(Role::Switch, RollbackReason::Joined { role: Role::Switch }, |_| false, effects);
                effects.push(Effect::Peer(PeerChange { port: Port::SWITCH, gid: None }));
            }
            ChangeKind::JoinNode { node, again, .. } => {
                let role = Role::Node(node);
                self.reset(role, RollbackReason::Joined { role }, |what| what.tolerates(role), effects);
                if again {
                    self.nodes.entry(node).and_modify(|row| row.joining = None);
                } else {
                    self.nodes.remove(&node);
                    effects.push(Effect::Peer(PeerChange { port: Port::node(node), gid: None }));
                }
            }
            ChangeKind::JoinIndex { index, .. } => self.end_join_index(id, index, effects),
            ChangeKind::JoinHost { host, .. } => {
                self.hosts.entry(host).and_modify(|row| (row.present, row.joining) = (false, None));
                effects.push(Effect::Peer(PeerChange { port: Port::host(host), gid: None }));
            }
            ChangeKind::Allocate { base, .. } => {
                self.vmas.remove(&base);
            }
            ChangeKind::TurnFile { object, turn, .. } => self.end_turn(object, turn),
            ChangeKind::Remap(remap) => remap.reserved().for_each(|(base, _)| {
                self.vmas.remove(&base);
            }),
            _ => {}
        }
    }

    fn commit(&mut self, id: u64, what: &ChangeKind, effects: &mut Vec<Effect>) {
        match what {
            ChangeKind::JoinSwitch { .. } => {
                if let Some(row) = &mut self.switch {
                    row.joining = None;
                }
                self.switch_joined = true;
                self.queues.entry(Role::Switch).and_modify(Queue::release);
            }
            ChangeKind::JoinNode { node, .. } => {
                self.nodes.entry(*node).and_modify(|row| row.joining = None);
                self.queues.entry(Role::Node(*node)).and_modify(Queue::release);
            }
            ChangeKind::JoinIndex { index, .. } => {
                self.index.entry(*index).and_modify(|row| row.joining = None);
                self.queues.entry(Role::Index(*index)).and_modify(Queue::release);
            }
            ChangeKind::JoinHost { host, .. } => {
                self.hosts.entry(*host).and_modify(|row| row.joining = None);
            }
            ChangeKind::OpenSession(row) => {
                self.sessions.insert(row.key.qpn, row.clone());
            }
            ChangeKind::Connect(row) => {
                self.connections.insert(row.key(), row.clone());
            }
            ChangeKind::Allocate { base, object, file, pieces, .. } => {
                self.vmas.entry(*base).and_modify(|vma| vma.pending = None);
                self.pieces.extend(pieces.iter().copied());
                self.place_object(*object, *base);
                if let (Some((object, length)), Some(file)) = (*object, file) {
                    self.place_file(id, object, *base, length, file.clone());
                }
            }
            ChangeKind::Free { base } => {
                self.drop_pieces(*base, effects);
                if let Some(vma) = self.vmas.remove(base) {
                    self.forget_lost(*base, vma.size);
                }
                self.objects.retain(|_, row| row.base != Some(*base));
                self.files.retain(|_, row| row.base != *base);
            }
            ChangeKind::Remap(remap) => self.commit_remap(remap, effects),
            ChangeKind::TurnFile { object, turn, .. } => self.commit_turn(id, *object, *turn),
            ChangeKind::Grant { vma, base, len, to, perm } => {
                let span = Span { base: *base, len: *len, perm: *perm };
                let spans = grants::overlay(self.grants_of(*vma, *to), span);
                if let Some(vma) = self.vmas.get_mut(vma) {
                    vma.grants.retain(|(domain, _)| domain != to);
                    if !spans.is_empty() {
                        let at = vma.grants.partition_point(|(domain, _)| domain < to);
                        vma.grants.insert(at, (*to, spans));
                    }
                }
            }
            ChangeKind::OpenDirectory { .. } => self.directory = true,
            ChangeKind::Live { host, .. } => {
                let since = self.epoch;
                self.hosts.entry(*host).and_modify(|row| row.cache = Cache::Live { since });
            }
            ChangeKind::LeaveNode { .. }
            | ChangeKind::LeaveHost { .. }
            | ChangeKind::LeaveIndex { .. }
            | ChangeKind::Disconnect(_)
            | ChangeKind::Fence { .. }
            | ChangeKind::Migrate(_) => {}
            ChangeKind::AcceptLost { base, len, .. } => self.forget_lost(*base, *len),
        }
    }

    /// Ends the changes that wait for nothing more, and lets every queue continue.
    pub(crate) fn settle(&mut self, effects: &mut Vec<Effect>) {
        let over = |(_, change): &(&u64, &Change)| change.waits.is_empty() && !change.is_held();
        while let Some(id) = self.changes.iter().find(over).map(|(&id, _)| id) {
            let Some(change) = self.changes.remove(&id) else { break };
            let result = change.failed.map_or(Ok(()), Err);
            if result.is_ok() {
                self.commit(id, &change.what, effects);
            }
            effects.push(Effect::Ended { change: id, what: change.what, result });
        }
        self.queues.values_mut().for_each(Queue::settle);
    }

    /// Adds an update to a role's queue, if the role has one. The change waits for the answer unless the role
    /// is joining, or is silent and the change tolerates that.
    pub(crate) fn enqueue(
        &mut self,
        role: Role,
        change: Option<u64>,
        told: LoggedUpdate,
        undo: Option<Vec<LoggedUpdate>>,
        effects: &mut Vec<Effect>,
    ) {
        let waited = self.wait_for(change, role);
        let Some(queue) = self.queues.get_mut(&role) else { return };
        queue.push(Entry { told, undo, change, waited, withdrawn: false });
        if queue.reach == Reach::Silent && queue.missed > MISSED_MAX {
            self.lose(role, effects);
        }
    }

    /// Makes a change wait for one more answer of a role. Returns false if it need not wait.
    fn wait_for(&mut self, change: Option<u64>, role: Role) -> bool {
        let Some(row) = change.and_then(|id| self.changes.get_mut(&id)) else { return false };
        let waited = match self.queues.get(&role).map(|queue| queue.reach) {
            None | Some(Reach::Silent) => false,
            Some(Reach::Ready) => true,
            Some(Reach::Held) => !row.what.is_membership(),
        };
        if waited {
            match row.waits.iter_mut().find(|(on, _)| *on == role) {
                Some((_, count)) => *count += 1,
                None => row.waits.push((role, 1)),
            }
        }
        waited
    }

    fn unwait(&mut self, role: Role, entry: &Entry) {
        if let Some(id) = entry.change.filter(|_| entry.waited) {
            self.subtract(id, role, 1);
        }
    }

    fn subtract(&mut self, id: u64, role: Role, count: u32) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        for (on, waits) in &mut change.waits {
            if *on == role {
                *waits = waits.saturating_sub(count);
            }
        }
        change.waits.retain(|(_, waits)| *waits > 0);
    }

    /// Returns the changes of this kind that have not failed.
    pub(crate) fn applying(&self, kind: impl Fn(&ChangeKind) -> bool) -> Vec<u64> {
        let hit = self.changes.iter().filter(|(_, change)| change.failed.is_none() && kind(&change.what));
        hit.map(|(&id, _)| id).collect()
    }
}

fn waits_on(change: &Change, role: Role) -> bool {
    change.waits.iter().any(|(on, _)| *on == role)
}
