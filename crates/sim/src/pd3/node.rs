//! The memory node: records with versions; changes and reads in order, fetches in any order.

use super::{Key, Value, World};
use farmem_dpu::changes::Change;
use std::collections::{BTreeMap, VecDeque};

/// A message on the ordered connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ordered {
    Pass { change: Change, key: Key, value: Option<Value> },
    Ask { key: Key },
}

/// Its answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Response {
    Acknowledged(Change),
    Read { key: Key, value: Option<Value> },
}

#[derive(Debug, Default)]
pub(super) struct Node {
    /// Version and value by key.
    pub(super) records: BTreeMap<Key, (Change, Value)>,
    pub(super) ordered: VecDeque<Ordered>,
    pub(super) responses: VecDeque<Response>,
}

impl Node {
    pub(super) fn is_quiet(&self) -> bool {
        self.ordered.is_empty() && self.responses.is_empty()
    }

    fn apply(&mut self, next: Ordered) -> Response {
        match next {
            Ordered::Pass { change, key, value } => {
                match value {
                    Some(value) => self.records.insert(key, (change, value)),
                    None => self.records.remove(&key),
                };
                Response::Acknowledged(change)
            }
            Ordered::Ask { key } => {
                Response::Read { key, value: self.records.get(&key).map(|(_, value)| *value) }
            }
        }
    }
}

impl World {
    /// Lets the node execute a message.
    pub(super) fn node_works(&mut self) {
        let fails = self.rng.chance(self.faults.failed, 1024);
        let fetches = self.dpu.as_ref().map_or(0, |dpu| dpu.fetches.len());
        if fetches > 0 && (self.node.ordered.is_empty() || self.rng.chance(1, 2)) {
            return self.node_fetches(fails);
        }
        let Some(&next) = self.node.ordered.front() else { return };
        if fails {
            // The message will be sent again; it was executed or not.
            if self.rng.chance(1, 2) {
                let _ = self.node.apply(next);
            }
            return self.note("sent_again");
        }
        self.node.ordered.pop_front();
        let response = self.node.apply(next);
        self.node.responses.push_back(response);
    }

    fn node_fetches(&mut self, fails: bool) {
        let any_order = self.faults.any_order;
        let Some(dpu) = &mut self.dpu else { return };
        let among = u32::try_from(dpu.fetches.len()).expect("a few");
        let which = if any_order { self.rng.below(among) as usize } else { 0 };
        let (op, keys) = dpu.fetches.remove(which);
        let records = keys.iter().map(|key| match self.node.records.get(key) {
            _ if fails => None,
            Some(record) => Some(Some(*record)),
            None => Some(None),
        });
        dpu.answers.push((op, keys.iter().copied().zip(records).collect()));
    }

    /// Delivers an answer of the node.
    pub(super) fn answer(&mut self) {
        let any_order = self.faults.any_order;
        let answers = self.dpu.as_ref().map_or(0, |dpu| dpu.answers.len());
        if answers > 0 && (self.node.responses.is_empty() || self.rng.chance(1, 2)) {
            let among = u32::try_from(answers).expect("a few");
            let which = if any_order { self.rng.below(among) as usize } else { 0 };
            return self.fetched(which);
        }
        match self.node.responses.pop_front() {
            Some(Response::Acknowledged(change)) => {
                self.host.pending.remove(&change.0);
                if let Some(dpu) = &mut self.dpu {
                    dpu.prefetcher.acknowledged(change);
                }
            }
            Some(Response::Read { key, value }) => {
                let id = self.id(key);
                if let Some(dpu) = &mut self.dpu {
                    dpu.prefetcher.host_reads(id, value.is_some());
                }
                self.answered(key, value);
            }
            None => {}
        }
    }

    /// Handles changes of a crashed sender: some arrive, and none is answered.
    pub(super) fn arrive_in_part(&mut self) {
        let count = u32::try_from(self.node.ordered.len()).expect("not so many");
        let arrive = self.rng.below(count + 1) as usize;
        for next in std::mem::take(&mut self.node.ordered).into_iter().take(arrive) {
            let _ = self.node.apply(next);
        }
        self.node.responses.clear();
    }

    /// Crashes and restarts the node: all its records are lost.
    pub(super) fn node_dies(&mut self) {
        self.event("node dies", 0, 0);
        self.note("crashes.node");
        self.node.records.clear();
        let mut coming = BTreeMap::new();
        for ringed in &self.host.ring {
            if let super::host::Ringed::Write { key, value, .. } = *ringed {
                coming.insert(key, value);
            }
        }
        // Changes in the ring come behind those in flight.
        for next in &self.node.ordered {
            if let Ordered::Pass { key, value, .. } = *next {
                coming.entry(key).or_insert(value);
            }
        }
        for (key, value) in std::mem::take(&mut self.truth) {
            if let Some(cached) = self.host.cache.get_mut(&key) {
                cached.dirty = true;
                self.truth.insert(key, value);
            } else if coming.get(&key) == Some(&Some(value)) {
                self.truth.insert(key, value);
            } else {
                self.lost.insert(key, value);
            }
        }
        if let Some(dpu) = &mut self.dpu {
            for (op, keys) in std::mem::take(&mut dpu.fetches) {
                dpu.answers.push((op, keys.into_iter().map(|key| (key, None)).collect()));
            }
        }
    }
}
