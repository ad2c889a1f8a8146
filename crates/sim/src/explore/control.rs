//! The control plane's moves: resets of a region and sweeps of its node, fencing of a host, a restart of the
//! switch, a split of a region.

use super::message;
use super::model::{Broken, Rules, World, nth, set};
use farmem_control::reset::{self, Order, Reset, Stage};
use farmem_switch::directory::{self, Entry};
use farmem_wire::HostId;
use farmem_wire::message::{Page, Region};

impl World {
    pub(super) fn begin_reset(&mut self, region: Region, rules: &mut Rules) -> Result<(), Broken> {
        if self.resets.iter().all(|reset| reset.region() != region) {
            self.resets.push(Reset::new(region, 1));
        }
        self.reset(region, reset::Event::Begin, rules)
    }

    /// Runs one step of the control plane, whose orders arrive.
    pub(super) fn reset(
        &mut self,
        region: Region,
        event: reset::Event,
        rules: &mut Rules,
    ) -> Result<(), Broken> {
        let fenced = self.fenced;
        let Some(reset) = self.resets.iter_mut().find(|reset| reset.region() == region) else {
            return Ok(());
        };
        let order = reset.step(event, fenced);
        let at = self.at(region.base());
        match order {
            Some(Order::Reset(_)) => self.directory(at, directory::Event::Reset(self.live()), rules),
            Some(Order::Repeat(_)) => self.directory(at, directory::Event::Repeat, rules),
            Some(Order::End(_, seq)) => {
                self.resets.retain(|reset| reset.region() != region);
                self.directory(at, directory::Event::Swept(seq), rules)
            }
            // Carried out by a move of its own: anything may happen first.
            Some(Order::Sweep(..)) | None => Ok(()),
        }
    }

    /// Sweeps the node. Lost bytes are accepted as lost at once, so that the world continues with them.
    pub(super) fn sweep(&mut self, region: Region, rules: &mut Rules) -> Result<(), Broken> {
        let stage = self.resets.iter().find(|reset| reset.region() == region).map(Reset::stage);
        let Some(Stage::Sweeping(seq, _)) = stage else { return Ok(()) };
        let old = |page: &Page| region.contains(*page) && !self.node_has_latest(*page);
        let lost: Vec<Page> = (0..usize::from(rules.config.pages)).map(nth).filter(old).collect();
        for &page in &lost {
            let holder = self.page_states.record(page).lent().map(|(_, holder)| holder);
            if holder.is_none_or(|holder| !self.fenced.contains(holder)) {
                return Err(format!("bytes of {} are lost in silence", message::page(page)));
            }
        }
        let min_seq = rules.guards.sweep_min_seq(seq);
        let fenced = self.fenced;
        let _ = self.page_states_mut().sweep(region, min_seq, fenced);
        for page in (0..usize::from(rules.config.pages)).map(nth).filter(|&page| region.contains(page)) {
            self.page_states_mut().accept_loss(page, page);
        }
        for page in lost {
            self.make_stale(page);
            set(&mut self.node, page, true);
        }
        self.reset(region, reset::Event::Swept(seq), rules)
    }

    /// Ends the lease of a dead host.
    pub(super) fn fence(&mut self, host: HostId, rules: &mut Rules) -> Result<(), Broken> {
        self.fenced = self.fenced.with(host);
        for at in 0..self.entries.len() {
            let (region, entry) = self.entries[at];
            let live = self.live();
            if entry.depends_on(host) && !self.resets.iter().any(|reset| reset.region() == region) {
                self.resets.push(Reset::new(region, 1));
            }
            self.directory(at, directory::Event::Fence(host, live), rules)?;
        }
        Ok(())
    }

    /// Restarts the switch without a directory: every region is reset, under numbers above all used ones.
    pub(super) fn restart(&mut self, rules: &mut Rules) -> Result<(), Broken> {
        self.left.restarts = self.left.restarts.spent();
        let newest = self.entries.iter().map(|(_, entry)| entry.seq()).max().unwrap_or_default();
        for at in 0..self.entries.len() {
            let region = self.entries[at].0;
            self.entries[at].1 = Entry::new(newest);
            self.begin_reset(region, rules)?;
        }
        Ok(())
    }

    pub(super) fn split(&mut self, region: Region, rules: &Rules) {
        let at = self.at(region.base());
        let (low, high) = region.halves().expect("the move is there for larger regions");
        let halves =
            rules.guards.split(region, &self.entries[at].1).expect("the move is there when it can be split");
        self.entries = vec![(low, halves[0]), (high, halves[1])];
    }
}
