//! What may be found under each key, when each has one client that changes it.

use std::collections::BTreeMap;

/// A change of a key by its client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    /// The value it puts there; none of a removal.
    pub(crate) value: Option<u64>,
    pub(crate) begun: u64,
    /// When it was answered; none while it is open, for ever if it never was.
    pub(crate) ended: Option<u64>,
}

/// What is known of all keys.
#[derive(Default)]
pub(crate) struct Model {
    /// Moments: each client's next step is one.
    pub(crate) now: u64,
    pub(crate) changes: BTreeMap<u64, Vec<Change>>,
    /// Of each key the newest change that a look-up saw, and when that look-up ended.
    pub(crate) seen: BTreeMap<u64, Vec<(usize, u64)>>,
    pub(crate) look_ups: u64,
    pub(crate) failed: u64,
    pub(crate) loads: u64,
    /// Nodes of trees that were put where one had been before.
    pub(crate) again: u64,
}

impl Model {
    pub(crate) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    pub(crate) fn begin(&mut self, key: u64, value: Option<u64>) -> usize {
        let begun = self.tick();
        let changes = self.changes.entry(key).or_default();
        changes.push(Change { value, begun, ended: None });
        changes.len() - 1
    }

    /// What the key's client knows to be there; none when a change of it is open.
    pub(crate) fn known(&self, key: u64) -> Option<Option<u64>> {
        let changes = self.changes.get(&key).map_or(&[][..], Vec::as_slice);
        let open = changes.iter().any(|change| change.ended.is_none());
        (!open).then(|| changes.last().and_then(|change| change.value))
    }

    /// A look-up that began at `begun` found `found`.
    pub(crate) fn check(&mut self, key: u64, begun: u64, found: Option<u64>) {
        let ended = self.tick();
        let changes = self.changes.get(&key).map_or(&[][..], Vec::as_slice);
        let least = changes.iter().rposition(|change| change.ended.is_some_and(|ended| ended < begun));
        let possible = |(n, change): (usize, &Change)| {
            let current = Some(n) >= least && change.begun < ended;
            (change.value == found && (current || change.ended.is_none())).then_some(n)
        };
        let newest = changes.iter().enumerate().filter_map(possible).next_back();
        let untouched = found.is_none() && least.is_none();
        assert!(
            newest.is_some() || untouched,
            "key {key} has {found:?} between {begun} and {ended}, and changes were {changes:?}"
        );
        self.look_ups += 1;
        // Values name their changes; that there is none does not.
        if let (Some(newest), Some(_)) = (newest, found) {
            let open = changes.iter().any(|change| change.ended.is_none());
            let seen = self.seen.entry(key).or_default();
            let before = seen.iter().filter(|(_, at)| *at < begun).map(|(n, _)| *n).max();
            assert!(open || before <= Some(newest), "key {key} goes back from change {before:?} to {newest}");
            seen.retain(|(_, at)| at + 1_000 > ended);
            seen.push((newest, ended));
        }
    }
}
