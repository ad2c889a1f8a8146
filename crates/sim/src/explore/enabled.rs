//! The moves that are possible in a world.

use super::model::{Rules, World, nth};
use super::moves::Move;
use farmem_control::reset::Stage;
use farmem_wire::HostId;
use farmem_wire::message::{Access, Region};

impl World {
    /// Lists all possible moves.
    pub(super) fn moves(&self, rules: &Rules, out: &mut Vec<Move>) {
        out.clear();
        self.network_moves(rules, out);
        self.host_moves(rules, out);
        self.timers(self.net.is_empty() || self.left.early.is_any(), out);
        self.traversal_moves(rules, out);
        self.control_moves(rules, out);
    }

    fn network_moves(&self, rules: &Rules, out: &mut Vec<Move>) {
        let mut before = None;
        for &message in &self.net {
            // Equal copies arrive with equal effect.
            if before.replace(message) == Some(message) {
                continue;
            }
            out.push(Move::Deliver(message));
            if self.heeds(message, rules) {
                out.push(Move::Pass(message));
            }
            if self.left.copies.is_any() {
                out.push(Move::DeliverCopy(message));
            }
            if self.left.losses.is_any() {
                out.push(Move::Lose(message));
            }
        }
    }

    fn host_moves(&self, rules: &Rules, out: &mut Vec<Move>) {
        for (id, host) in (0..).map(HostId).zip(&self.hosts).filter(|(_, host)| host.alive) {
            let asks = self.left.requests[usize::from(id.0)].is_any();
            for page in (0..usize::from(rules.config.pages)).map(nth) {
                let now = host.agent.access(page);
                let open = host.agent.requests().any(|(at, _)| at == page);
                let waits =
                    host.agent.writing().any(|(at, writing)| at == page && writing.next_access.is_some());
                if now.is_some() && !open {
                    out.push(Move::Evict(id, page));
                }
                if asks && !open && !waits {
                    let wants =
                        [Access::Shared, Access::Modified].into_iter().filter(|&want| now < Some(want));
                    out.extend(wants.map(|want| Move::Fault(id, page, want)));
                }
            }
        }
    }

    /// Lists the timer moves of everything that waits, if timers may fire.
    pub(super) fn timers(&self, fire: bool, out: &mut Vec<Move>) {
        if !fire {
            return;
        }
        for (id, host) in (0..).map(HostId).zip(&self.hosts).filter(|(_, host)| host.alive) {
            out.extend(host.agent.writing().map(|(page, _)| Move::RetryWriteBack(id, page)));
            out.extend(host.agent.requests().map(|(page, _)| Move::Retry(id, page)));
        }
        let recalling = self.resets.iter().filter(|reset| reset.stage() == Stage::Recalling);
        out.extend(recalling.map(|reset| Move::Repeat(reset.region())));
        let pages = (0..8).map(nth).filter(|&page| self.is_visiting(page));
        out.extend(pages.map(Move::RetryVisit));
    }

    fn traversal_moves(&self, rules: &Rules, out: &mut Vec<Move>) {
        if self.left.visits.is_any() {
            let pages = (0..usize::from(rules.config.pages)).map(nth).filter(|&page| !self.is_visiting(page));
            out.extend(pages.map(Move::Visit));
        }
    }

    fn control_moves(&self, rules: &Rules, out: &mut Vec<Move>) {
        self.duties(out);
        if self.left.crashes.is_any() {
            let live = (0..).zip(&self.hosts).filter(|(_, host)| host.alive);
            out.extend(live.map(|(id, _)| Move::Crash(HostId(id))));
        }
        if self.left.restarts.is_any() {
            out.push(Move::Restart);
        }
        if self.left.resets.is_any() {
            out.extend(self.entries.iter().map(|&(region, _)| Move::Reset(region)));
        }
        if self.left.splits.is_any() {
            let splits = |(region, entry): &&(Region, _)| {
                region.halves().is_some() && rules.guards.split(*region, entry).is_some()
            };
            out.extend(self.entries.iter().filter(splits).map(|&(region, _)| Move::Split(region)));
        }
        if self.left.merges.is_any()
            && let [(_, low), (_, high)] = &self.entries[..]
            && low.merge(high).is_some()
        {
            out.push(Move::Merge);
        }
    }

    /// Lists the moves that the control plane makes sooner or later.
    pub(super) fn duties(&self, out: &mut Vec<Move>) {
        let dead = (0..).map(HostId).zip(&self.hosts).filter(|(_, host)| !host.alive).map(|(id, _)| id);
        out.extend(dead.filter(|&id| !self.fenced.contains(id)).map(Move::Fence));
        let swept = self.resets.iter().filter(|reset| matches!(reset.stage(), Stage::Sweeping(..)));
        out.extend(swept.map(|reset| Move::Sweep(reset.region())));
    }
}
