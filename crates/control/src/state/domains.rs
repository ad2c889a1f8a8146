//! Rows of domains: their numbers, and what domains without users have left (PROTOCOL 8.60).

use crate::record::ChangeKind;
use crate::state::{LogError, State};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// The resources of a domain without users.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    /// True if it has durable memory, memory of named objects or of a card, or memory granted by other
    /// domains.
    pub(crate) stays: bool,
    pub(crate) processes: Vec<u32>,
    /// Temporary allocations, by first byte.
    pub(crate) vmas: Vec<u64>,
    /// Names without memory.
    pub(crate) locks: Vec<u64>,
}

impl Resources {
    pub(crate) const fn is_nothing(&self) -> bool {
        self.processes.is_empty() && self.vmas.is_empty() && !self.stays
    }

    /// Returns true if something can be reclaimed.
    pub(crate) const fn goes(&self) -> bool {
        !self.stays || !self.processes.is_empty() || !self.vmas.is_empty()
    }
}

impl State {
    /// Adds a domain.
    pub(crate) fn create_domain(&mut self, domain: u32, name: &str) {
        self.domains.insert(domain, name.into());
        self.next_domain = domain.wrapping_add(1);
    }

    /// Removes a domain that has nothing left.
    pub(crate) fn remove_domain(&mut self, domain: u32) -> Result<(), LogError> {
        self.domains.remove(&domain).map(drop).ok_or(LogError("an unknown domain goes"))
    }

    /// Returns a number for the next domain: the first free one, in a cycle of all numbers but 0.
    pub(crate) fn free_domain(&self) -> u32 {
        let mut domain = self.next_domain.max(1);
        while self.domains.contains_key(&domain) {
            domain = domain.checked_add(1).unwrap_or(1);
        }
        domain
    }

    /// Returns the domains without users, and their resources.
    pub(crate) fn left_behind(&self) -> BTreeMap<u32, Resources> {
        let mut used: BTreeSet<u32> = self.sessions.values().map(|row| row.domain).collect();
        used.extend(self.connections.values().map(|row| row.domain));
        let open = self.objects.values().filter(|row| !row.hosts.is_empty());
        used.extend(open.map(|row| row.domain));
        used.extend(self.changes.values().filter_map(|change| about(&change.what)));
        let idle = self.domains.keys().filter(|domain| !used.contains(domain));
        let mut left: BTreeMap<u32, Resources> = idle.map(|&domain| (domain, Resources::default())).collect();
        let of_objects: BTreeSet<u64> = self.objects.values().filter_map(|row| row.base).collect();
        for (&base, vma) in &self.vmas {
            for (to, _) in &vma.grants {
                left.entry(*to).and_modify(|left| left.stays = true);
            }
            let Some(left) = left.get_mut(&vma.domain) else { continue };
            match self.space_of(base) {
                Some(_) => {} // goes with the last process
                None if vma.durable || of_objects.contains(&base) => left.stays = true,
                None => left.vmas.push(base),
            }
        }
        for (&object, row) in &self.objects {
            let Some(left) = left.get_mut(&row.domain) else { continue };
            let is_lock = row.base.is_none() && row.ended.is_empty() && row.name.is_some();
            if is_lock { left.locks.push(object) } else { left.stays = true }
        }
        for (&process, domain) in &self.processes {
            left.entry(*domain).and_modify(|left| left.processes.push(process));
        }
        for card in self.nodes.values().filter_map(|row| row.card.as_ref()) {
            left.entry(card.domain).and_modify(|left| left.stays = true);
        }
        left
    }
}

/// Returns the domain that a change brings a user or memory to.
fn about(what: &ChangeKind) -> Option<u32> {
    match what {
        ChangeKind::OpenSession(row) => Some(row.domain),
        ChangeKind::Connect(row) | ChangeKind::Disconnect(row) => Some(row.domain),
        ChangeKind::Allocate { domain, .. } => Some(*domain),
        ChangeKind::Grant { to, .. } => Some(*to),
        ChangeKind::Remap(remap) => remap.starts.map(|_| remap.domain),
        ChangeKind::JoinNode { card, .. } => card.as_ref().map(|card| card.domain),
        ChangeKind::JoinSwitch { .. }
        | ChangeKind::JoinHost { .. }
        | ChangeKind::JoinIndex { .. }
        | ChangeKind::LeaveIndex { .. }
        | ChangeKind::LeaveNode { .. }
        | ChangeKind::LeaveHost { .. }
        | ChangeKind::Free { .. }
        | ChangeKind::OpenDirectory { .. }
        | ChangeKind::Live { .. }
        | ChangeKind::Fence { .. }
        | ChangeKind::AcceptLost { .. }
        | ChangeKind::Migrate(_)
        | ChangeKind::TurnFile { .. } => None,
    }
}
