//! Claims that must hold in every state: one writer or many readers, and reads see the latest write.

use super::message::{host, page, region};
use super::model::{Broken, Rules, World, nth};
use farmem_memnode::page_states::Verdict;
use farmem_switch::directory::{Entry, Phase};
use farmem_wire::HostId;
use farmem_wire::message::{Access, Page, Region};

impl World {
    /// Checks every claim about this state.
    ///
    /// # Errors
    ///
    /// The first violated claim.
    pub(super) fn check(&self, rules: &Rules) -> Result<(), Broken> {
        for at in (0..usize::from(rules.config.pages)).map(nth) {
            self.one_writer_or_many_readers(at)?;
            self.readers_have_the_latest(at)?;
            // Without a guard, only effects visible to a program or a traversal count.
            if !rules.guards.any_missing() {
                self.the_latest_is_somewhere(at)?;
                self.what_is_not_lent_is_the_latest(at)?;
            }
        }
        if !rules.guards.any_missing() {
            self.entries
                .iter()
                .try_for_each(|(region, entry)| self.the_directory_is_right(*region, entry))?;
        }
        Ok(())
    }

    fn one_writer_or_many_readers(&self, at: Page) -> Result<(), Broken> {
        let having =
            |access| move |host: &&super::model::Host| host.alive && host.agent.access(at) == Some(access);
        let writers = self.hosts.iter().filter(having(Access::Modified)).count();
        let readers = self.hosts.iter().filter(having(Access::Shared)).count();
        if writers > 1 || writers == 1 && readers > 0 {
            return Err(format!("{} has {writers} writers and {readers} readers", page(at)));
        }
        Ok(())
    }

    fn readers_have_the_latest(&self, at: Page) -> Result<(), Broken> {
        for id in (0..).map(HostId).take(self.hosts.len()) {
            if self.host(id).agent.access(at).is_some() && !self.has_latest(id, at) {
                return Err(format!("{} can read old bytes of {}", host(id), page(at)));
            }
        }
        Ok(())
    }

    /// Checks that the latest bytes are at the node, at a host that may write, or in flight between them, or
    /// died with a host.
    fn the_latest_is_somewhere(&self, at: Page) -> Result<(), Broken> {
        let holds = |id: HostId| {
            let agent = &self.host(id).agent;
            let keeps = agent.access(at).is_some() || agent.writing().any(|(page, _)| page == at);
            keeps && self.has_latest(id, at)
        };
        let held = (0..).map(HostId).take(self.hosts.len()).any(holds);
        let dead = self.hosts.iter().any(|host| !host.alive);
        if self.node_has_latest(at) || held || dead {
            return Ok(());
        }
        Err(format!("no host and no node has the latest bytes of {}", page(at)))
    }

    fn what_is_not_lent_is_the_latest(&self, at: Page) -> Result<(), Broken> {
        if self.page_states.verdict(at) == Verdict::Latest && !self.node_has_latest(at) {
            return Err(format!("{} is not lent, and the node has old bytes", page(at)));
        }
        Ok(())
    }

    /// Checks that the switch's record of each host is at least what the host has.
    fn the_directory_is_right(&self, of: Region, entry: &Entry) -> Result<(), Broken> {
        for (id, agent) in (0..).map(HostId).zip(self.hosts.iter().map(|host| &host.agent)) {
            let caches = |wanted: Option<Access>| {
                agent.cached().any(|(page, cached)| {
                    of.contains(page) && wanted.is_none_or(|access| cached.access == access)
                })
            };
            let writes_back = agent.writing().any(|(page, writing)| {
                of.contains(page) && writing.grant >= self.page_states.record(page).min_seq()
            });
            let wrong = match entry.phase() {
                Phase::Invalid => caches(None) || writes_back,
                Phase::Shared => {
                    caches(Some(Access::Modified)) || writes_back || caches(None) && !entry.set().contains(id)
                }
                Phase::Modified => caches(None) && entry.owner() != Some(id),
                _ => false,
            };
            if wrong {
                return Err(format!("the directory is wrong about {} at {}", region(of), host(id)));
            }
            self.min_seq_is_reached(of, entry, id)?;
        }
        Ok(())
    }

    /// Checks that messages of the current transaction are not void on arrival.
    fn min_seq_is_reached(&self, of: Region, entry: &Entry, id: HostId) -> Result<(), Broken> {
        let Some((requester, request, index)) = entry.transaction() else { return Ok(()) };
        let at = of.page(index);
        let open = self.host(id).agent.requests().find(|(page, open)| *page == at && open.id == request);
        let void = requester == id && open.is_some_and(|(_, open)| open.min_seq > entry.seq());
        if void {
            return Err(format!("{} waits for what it will not take of {}", host(id), page(at)));
        }
        Ok(())
    }
}
