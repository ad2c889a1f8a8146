//! Changes that revoke rights wait until no host holds pages that it got by them (PROTOCOL 12.47).

use crate::record::Cache;
use crate::state::State;
use farmem_wire::Perm;
use farmem_wire::message::Update;

impl State {
    /// Makes a change that revokes rights wait: the switch recalls the pages from all hosts (PROTOCOL 12.43),
    /// and the change completes when they are given up (PROTOCOL 12.47). Until then a program could still use
    /// its pages.
    pub(crate) fn drain<'a>(&mut self, id: u64, updates: impl Iterator<Item = &'a Update>) {
        if self.hosts.values().all(|row| row.cache == Cache::Empty) {
            return;
        }
        let less = updates.filter_map(|update| match *update {
            Update::Protect { base, len, perm, .. } if perm != Perm::ReadWrite => {
                Some((base.0, base.0.saturating_add(len - 1)))
            }
            _ => None,
        });
        let all = less.reduce(|(first, last), (base, end)| (first.min(base), last.max(end)));
        if let Some(change) = self.changes.get_mut(&id) {
            change.drains = all;
        }
    }
}
