//! Resets and sweeps on the wire: unanswered messages are retransmitted (PROTOCOL 12.41 to 12.43).
//!
//! [`Reset`] has the steps of a reset. This module has the messages, to the switch and to each node with
//! pages of the region, and the resets that the control plane did not order: the switch begins some itself,
//! for a fence or a node that is gone, and reports each when all hosts have given it up. None of this is in
//! the log: the switch knows which regions are being reset, and lists them.

use crate::coherence::Coherence;
use crate::coherence::waits::{RESETS_MAX, Running};
use crate::messages::Actions;
use crate::note::{DropReason, Note};
use crate::rack::Rack;
use crate::record::{Cache, Role};
use crate::reset::{Event, Order, Reset, Stage};
use crate::state::tables::newest;
use crate::updates::Reach;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use farmem_wire::message::{DirectoryBody, DirectoryMessage, HostSet, PAGE_LEN, Page, Region, Seq, Sweep};
use farmem_wire::{HostId, RequestId};

impl Coherence {
    /// Requests the reset of a page's region, unless the limit is reached: then the caller repeats the
    /// request.
    pub(super) fn want_reset(&mut self, rack: &mut Rack, page: Page) {
        if self.wanted.len() < RESETS_MAX {
            self.wanted.entry(page).or_insert(rack.now);
        }
    }

    /// Sends the pending messages that are due, again or for the first time.
    pub(super) fn retransmit(&mut self, rack: &mut Rack, out: &mut Actions) {
        let (now, again) = (rack.now, rack.now + rack.config.timeout);
        let mut pages: Vec<Page> = Vec::new();
        for (&page, due) in self.wanted.iter_mut().filter(|(_, due)| **due <= now) {
            *due = again;
            pages.push(page);
        }
        for page in pages {
            self.tell(rack, Role::Switch, DirectoryBody::Reset(page), out);
        }
        let mut regions: Vec<Region> = Vec::new();
        for running in self.resets.values_mut().filter(|running| running.due <= now) {
            running.due = again;
            regions.push(running.reset.region());
        }
        for region in regions {
            self.send_reset(rack, region, out);
        }
        self.sweep_nodes(rack, out);
    }

    /// Handles a message of the switch or a node about the directory.
    pub(crate) fn on_report(&mut self, rack: &mut Rack, role: Role, payload: &[u8], out: &mut Actions) {
        let Ok(DirectoryMessage { token, body }) = DirectoryMessage::parse(payload) else {
            return out.note(Note::Dropped(DropReason::Malformed));
        };
        let asked = rack.is_from_this_life(role, token);
        match (role, body) {
            (Role::Switch, DirectoryBody::Collected(region, seq)) => self.collected(rack, region, seq, out),
            (Role::Switch, DirectoryBody::Unknown(page)) if asked => {
                self.wanted.remove(&page);
                self.stalls.forget(Region::around(page, 0));
            }
            (Role::Switch, DirectoryBody::Ended(region, seq)) if asked => self.ended(rack, region, seq, out),
            (Role::Switch, DirectoryBody::Listing(listing)) if asked => {
                if !self.drained(rack, token, &listing, out)
                    && !self.listed_for_draining(rack, token, &listing, out)
                {
                    self.listed(rack, token, &listing, out);
                }
            }
            (Role::Switch, DirectoryBody::Awaiting(region, seq, hosts)) if asked => {
                self.awaiting(rack, region, seq, hosts, out);
            }
            (Role::Node(node), DirectoryBody::Moved(number, left)) => {
                self.is_there(rack, node);
                self.pushed(rack, node, number, left);
            }
            (Role::Switch, DirectoryBody::Full(_)) => self.make_room(rack),
            (Role::Node(node), DirectoryBody::Swept(sweep, lost)) if asked => {
                self.swept(rack, node, &sweep, lost, out);
            }
            _ => out.note(Note::Dropped(DropReason::Stale)),
        }
    }

    /// Handles the report that every host has given the region up. Numbers of an earlier switch are stale.
    fn collected(&mut self, rack: &mut Rack, region: Region, seq: Seq, out: &mut Actions) {
        if seq.epoch() != rack.state.epoch {
            return out.note(Note::Dropped(DropReason::Stale));
        }
        self.wanted.retain(|page, _| !region.contains(*page));
        self.stalls.forget(region);
        let known = self.resets.get(&region.base()).map(|running| running.reset);
        let due = rack.now;
        match known {
            // The switch restarted the reset since.
            Some(reset) if reset.region() != region => _ = self.resets.remove(&region.base()),
            Some(reset) if matches!(reset.stage(), Stage::Ended(old) if old < seq) => {
                self.resets.remove(&region.base());
            }
            Some(_) => {}
            None if self.resets.len() >= RESETS_MAX => return,
            None => {}
        }
        let nodes = self.nodes_of(rack, region);
        let count = u16::try_from(nodes.len()).unwrap_or(u16::MAX);
        let begun = || Running { reset: Reset::new(region, count), nodes: BTreeSet::new(), due };
        let fenced = self.fenced(rack);
        let running = self.resets.entry(region.base()).or_insert_with(begun);
        if let Some(Order::Sweep(..)) = running.reset.step(Event::Report(seq), fenced) {
            running.nodes = nodes;
            if running.nodes.is_empty() {
                // No host holds its pages any more: there is nothing to sweep.
                let _ = running.reset.step(Event::Swept(seq), fenced);
            }
            running.due = rack.now + rack.config.timeout;
            self.send_reset(rack, region, out);
        }
    }

    /// Handles the report of a node's sweep, as a whole or of a region.
    fn swept(&mut self, rack: &mut Rack, node: u16, sweep: &Sweep, lost: u32, out: &mut Actions) {
        out.note(Note::Swept);
        self.counts.lost_pages += u64::from(lost);
        if sweep.opens {
            if sweep.seq == newest(rack.state.epoch) {
                let life = (rack.state.generation(Role::Node(node)), rack.state.epoch);
                self.sweeps.remove(&node);
                self.swept.insert(node, life);
            }
            return;
        }
        let fenced = self.fenced(rack);
        let running = self.resets.get_mut(&sweep.first);
        let Some(running) = running.filter(|running| running.reset.region().last() == sweep.last) else {
            return;
        };
        if running.reset.stage() == stage_of(running.nodes.len(), sweep.seq)
            && running.nodes.remove(&node)
            && let Some(Order::End(region, _)) = running.reset.step(Event::Swept(sweep.seq), fenced)
        {
            running.due = rack.now + rack.config.timeout;
            self.send_reset(rack, region, out);
        }
    }

    fn ended(&mut self, rack: &mut Rack, region: Region, seq: Seq, out: &mut Actions) {
        let over = |running: &Running| {
            (running.reset.region(), running.reset.stage()) == (region, Stage::Ended(seq))
        };
        if self.resets.get(&region.base()).is_some_and(over) {
            self.resets.remove(&region.base());
            self.counts.resets += 1;
            self.look_at_drained(rack);
            self.look_at_draining(rack);
            out.note(Note::ResetEnded);
        }
    }

    /// Sends the messages that a reset waits for.
    fn send_reset(&mut self, rack: &mut Rack, region: Region, out: &mut Actions) {
        let Some(running) = self.resets.get(&region.base()) else { return };
        let nodes: Vec<u16> = running.nodes.iter().copied().collect();
        match running.reset.stage() {
            Stage::Recalling => {}
            Stage::Sweeping(seq, _) => {
                let (first, last) = (region.base(), region.last());
                let sweep = Sweep { first, last, seq, fenced: self.died(rack), opens: false };
                for node in nodes {
                    if rack.state.nodes.contains_key(&node) {
                        self.tell(rack, Role::Node(node), DirectoryBody::Sweep(sweep), out);
                    } else {
                        // The node left, with all its memory.
                        self.swept(rack, node, &sweep, 0, out);
                    }
                }
            }
            Stage::Ended(seq) => _ = self.tell(rack, Role::Switch, DirectoryBody::End(region, seq), out),
        }
    }

    /// Sweeps every node once under the numbers of an epoch, and again after its restart (PROTOCOL 12.36).
    fn sweep_nodes(&mut self, rack: &mut Rack, out: &mut Actions) {
        if !rack.state.directory {
            return;
        }
        let epoch = rack.state.epoch;
        let hears =
            |node: &u16| matches!(rack.state.reach(Role::Node(*node)), Some(Reach::Ready | Reach::Silent));
        let open: Vec<u16> = self.unswept(rack).filter(hears).collect();
        let (now, again) = (rack.now, rack.now + rack.config.timeout);
        let fenced = self.died(rack);
        self.sweeps.retain(|node, _| open.contains(node));
        for node in open {
            let due = self.sweeps.entry(node).or_insert(now);
            if *due > now {
                continue;
            }
            *due = again;
            let seq = newest(epoch);
            let sweep = Sweep { first: Page::FIRST, last: Page::LAST, seq, fenced, opens: true };
            self.tell(rack, Role::Node(node), DirectoryBody::Sweep(sweep), out);
        }
    }

    /// Returns the joined nodes that were not swept in this epoch and incarnation.
    pub(super) fn unswept(&self, rack: &Rack) -> impl Iterator<Item = u16> {
        let epoch = rack.state.epoch;
        // No host caches pages of a card's memory.
        let joined = rack.state.nodes.iter().filter(|(_, row)| row.joining.is_none() && row.card.is_none());
        joined
            .filter(move |&(node, row)| self.swept.get(node) != Some(&(row.generation, epoch)))
            .map(|(&node, _)| node)
    }

    /// Returns the nodes that may have pages of a region: those whose range contains it, and those that vmas
    /// in it were moved to.
    pub(super) fn nodes_of(&self, rack: &Rack, region: Region) -> BTreeSet<u16> {
        let (first, last) = (region.base().addr().0, region.last().addr().0 + (PAGE_LEN as u64 - 1));
        let ranges = rack.state.nodes.iter().filter(|(_, row)| row.card.is_none());
        let ranges =
            ranges.filter(|(_, row)| row.base <= last && row.base + ((1 << row.size_log2) - 1) >= first);
        let vmas =
            rack.state.vmas.range(..=last).rev().take_while(|(base, vma)| *base + (vma.size - 1) >= first);
        let of_vmas = vmas.flat_map(|(&base, _)| rack.state.nodes_of_vma(base));
        let of_vmas = of_vmas.filter(|node| rack.state.nodes.get(node).is_some_and(|row| row.card.is_none()));
        let moving = rack.state.migrations().filter(|m| m.base <= last && m.base + (m.size - 1) >= first);
        let moving = moving.flat_map(|migration| [migration.from, migration.to]);
        ranges.map(|(&node, _)| node).chain(of_vmas).chain(moving).collect()
    }

    /// Returns the hosts of whose earlier incarnation pages may be left.
    fn fenced(&self, rack: &Rack) -> HostSet {
        let fenced = rack.state.hosts.iter().filter(|(_, row)| row.cache == Cache::Fenced);
        fenced.fold(HostSet::EMPTY, |set, (&host, _)| set.with(HostId(host)))
    }

    /// Returns those of them that did not give up their pages before.
    fn died(&self, rack: &Rack) -> HostSet {
        let orderly = rack.state.hosts.iter().filter(|(_, row)| row.given_up != 0);
        orderly.fold(self.fenced(rack), |set, (&host, _)| set.without(HostId(host)))
    }

    /// Sends a question, if its role is reachable.
    pub(super) fn tell(
        &mut self,
        rack: &mut Rack,
        role: Role,
        body: DirectoryBody<'_>,
        out: &mut Actions,
    ) -> RequestId {
        let token = rack.next_question(role);
        let message = DirectoryMessage { token, body };
        rack.send_question(role, message.len(), out, |bytes| message.emit(bytes));
        token
    }
}

/// Returns the stage that waits for this many nodes, under this number.
fn stage_of(nodes: usize, seq: Seq) -> Stage {
    Stage::Sweeping(seq, u16::try_from(nodes).unwrap_or(u16::MAX))
}
