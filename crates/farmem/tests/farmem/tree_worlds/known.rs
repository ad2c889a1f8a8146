//! The set of valid look-up results for each key, when one client changes each key.

use std::collections::BTreeMap;

/// A change of a key by its client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    /// The new value; `None` for a removal.
    pub(crate) value: Option<u64>,
    pub(crate) begun: u64,
    /// The time of the reply; `None` while the change is open, for ever if the reply was lost.
    pub(crate) ended: Option<u64>,
}

/// The history of all keys.
#[derive(Default)]
pub(crate) struct Model {
    /// The current time: each client step advances it by one.
    pub(crate) now: u64,
    pub(crate) changes: BTreeMap<u64, Vec<Change>>,
    /// For each key, the newest change that a look-up saw, and when that look-up ended.
    pub(crate) seen: BTreeMap<u64, Vec<(usize, u64)>>,
    pub(crate) look_ups: u64,
    pub(crate) failed: u64,
    pub(crate) loads: u64,
    /// Nodes that trees placed where another node had been.
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

    /// Returns the value that the key's client expects; `None` while a change of the key is open.
    pub(crate) fn known(&self, key: u64) -> Option<Option<u64>> {
        let changes = self.changes.get(&key).map_or(&[][..], Vec::as_slice);
        let open = changes.iter().any(|change| change.ended.is_none());
        (!open).then(|| changes.last().and_then(|change| change.value))
    }

    /// Checks that a look-up from `begun` until now may have found `found`.
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
        // Values identify their changes; a missing key does not.
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
