//! The DPU around the prefetcher: it reads the ring and the mirror, sends messages, and fills the zone.

use super::clients::{AnyParser, Piece, key_bytes};
use super::host::{Item, Ringed};
use super::node::Ordered;
use super::{CONNECTIONS, Key, Value, World};
use farmem_dpu::accesses::{Accesses, Position};
use farmem_dpu::changes::Change;
use farmem_dpu::parse::guard::Guard;
use farmem_dpu::prefetcher::{Action, Config, Fetched, Prefetcher};
use farmem_dpu::view::{KeyId, KeySecret, KeySet};
use farmem_paging::{Miss, Waste};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

const SECRET: KeySecret = KeySecret([0x5044_3303, 4791]);
/// Maximum number of keys in flight, small enough to be reached.
const FLYING_KEYS_MAX: u32 = 6;

/// The result for a key: a record, no record, or no answer.
type FetchedKey = (Key, Option<Option<(Change, Value)>>);
/// The result of a message.
type Answer = (u64, Vec<FetchedKey>);

#[derive(Debug)]
pub(super) struct DpuState {
    pub(super) prefetcher: Prefetcher<KeySet>,
    guards: Vec<Guard<AnyParser>>,
    accesses: Accesses,
    /// Messages in flight to the node.
    pub(super) fetches: Vec<(u64, Vec<Key>)>,
    /// Answers in flight from the node.
    pub(super) answers: Vec<Answer>,
    /// Wanted keys in flight, as this world knows, with their message.
    pub(super) wanted: BTreeMap<Key, u64>,
    asks: u64,
}

impl World {
    pub(super) fn id(&self, key: Key) -> KeyId {
        SECRET.id(&key_bytes(self.protocol, key))
    }

    /// Starts a DPU with an empty state; the zone is empty.
    pub(super) fn start_dpu(&mut self) {
        let config = Config {
            batch_keys_max: NonZeroU32::new(3).expect("three"),
            batch_bytes_max: 64,
            flying_keys_max: FLYING_KEYS_MAX,
            recent_keys: NonZeroU32::new(1 << 14).expect("some"),
            keeps: self.shape.keeps,
            secret: SECRET,
        };
        let guard = || {
            let mut guard = self.protocol.guard();
            // The connection is in the middle: it is not parsed until it is replaced.
            let _ = guard.lost(1);
            guard
        };
        self.dpu = Some(DpuState {
            prefetcher: Prefetcher::new(config, KeySet::new(super::KEYS as usize), self.host.through()),
            guards: (0..CONNECTIONS).map(|_| guard()).collect(),
            accesses: Accesses::new(SECRET),
            fetches: Vec::new(),
            answers: Vec::new(),
            wanted: BTreeMap::new(),
            asks: 0,
        });
        self.host.zone.clear();
        self.host.doubled.clear();
        self.host.excused.extend(self.host.cache.keys());
        let asked = self.host.waiting.map(|request| self.id(request.key));
        let ringed = self.host.ring.iter().any(|ringed| matches!(ringed, Ringed::Ask { .. }));
        if let (Some(id), Some(dpu), false) = (asked, &mut self.dpu, ringed) {
            dpu.asks += 1;
            dpu.prefetcher.host_asks(id);
        }
    }

    /// Crashes the DPU: its state is lost, and the host sends unacknowledged changes again.
    pub(super) fn dpu_dies(&mut self) {
        self.event("DPU dies", 0, 0);
        self.note("crashes.dpu");
        self.bury_dpu();
        self.mirror.clear();
        self.connections.iter_mut().for_each(|connection| connection.blind = true);
        self.to_host.iter_mut().for_each(|piece| {
            piece.unseen = true;
            piece.requests.iter_mut().for_each(|request| request.unseen = true);
        });
        self.host.at_hand.iter_mut().for_each(|request| request.unseen = true);
        self.arrive_in_part();
        self.host.ring.clear();
        for (&change, &(key, value)) in &self.host.pending {
            self.node.ordered.push_back(Ordered::Pass { change: Change(change), key, value });
        }
        if let Some(request) = self.host.waiting {
            self.node.ordered.push_back(Ordered::Ask { key: request.key });
        }
    }

    /// Adds the account of an ended DPU to this world's.
    pub(super) fn bury_dpu(&mut self) {
        let Some(dpu) = self.dpu.take() else { return };
        let account = *dpu.prefetcher.account();
        self.hold(account.missed() == dpu.asks, || {
            format!("the host asked {} times, and {} have a cause", dpu.asks, account.missed())
        });
        for cause in Miss::ALL {
            self.notes_add(miss_note(cause), account.missed_by(cause));
        }
        for cause in Waste::ALL {
            self.notes_add(waste_note(cause), account.wasted_by(cause));
        }
        let stats = *dpu.prefetcher.stats();
        for (name, count) in [
            ("wanted", account.wanted),
            ("used", account.used),
            ("late", account.late),
            ("reads", stats.reads),
            ("writes", stats.writes),
            ("held", stats.held),
            ("shared", stats.shared),
            ("over", stats.over),
            ("deleted", stats.deleted),
            ("bounded", stats.bounded),
            ("messages", stats.messages),
        ] {
            self.notes_add(name, count);
        }
    }

    /// Feeds a piece of the mirror, or its loss.
    pub(super) fn see(&mut self, piece: &Piece) {
        self.ring_first();
        let numbered = self.shape.numbered;
        let executed = Position(self.host.executed);
        let fresh = piece.first.then(|| self.protocol.guard());
        let Some(dpu) = &mut self.dpu else { return };
        let guard = &mut dpu.guards[piece.connection];
        if let Some(fresh) = fresh {
            *guard = fresh;
        }
        if piece.lost {
            if guard.lost(piece.bytes.len() as u64).is_some() {
                self.note("cut_off");
            }
            return;
        }
        let position = if numbered { Position(piece.position) } else { Position::UNKNOWN };
        let seen = guard.feed(&piece.bytes, position, &mut dpu.accesses);
        if numbered {
            dpu.prefetcher.executed(executed);
        }
        let said: Vec<(Key, u64)> =
            dpu.accesses.iter().map(|one| (super::clients::item_of(one.key), one.op as u64)).collect();
        let mut out = Vec::new();
        dpu.prefetcher.accesses(&dpu.accesses, &mut out);
        dpu.accesses.clear();
        for (key, op) in said {
            self.event("sees", key, piece.position << 8 | op);
        }
        self.hold(seen.cut.is_none() && seen.left_out == 0, || format!("{seen:?} of a right connection"));
        self.act(out, &[]);
    }

    fn ring_first(&mut self) {
        if self.shape.ring_first {
            while !self.host.ring.is_empty() {
                self.ring();
            }
        }
    }

    /// Handles a request from the host's ring; without a DPU the host sends it itself.
    pub(super) fn ring(&mut self) {
        let Some(ringed) = self.host.ring.pop_front() else { return };
        let key = match ringed {
            Ringed::Write { key, .. } | Ringed::Ask { key } | Ringed::Drop { key, .. } => key,
        };
        let id = self.id(key);
        let mut out = Vec::new();
        if let Some(dpu) = &mut self.dpu {
            match ringed {
                Ringed::Write { change, copy, seen, .. } => {
                    dpu.wanted.remove(&key);
                    dpu.prefetcher.host_writes(change.0, &[id], copy, Position(seen), &mut out);
                    assert_eq!(out, [Action::Pass { ticket: change.0 }]);
                }
                Ringed::Ask { .. } => {
                    dpu.wanted.remove(&key);
                    dpu.asks += 1;
                    dpu.prefetcher.host_asks(id);
                }
                Ringed::Drop { seen, .. } => dpu.prefetcher.host_drops(&[id], Position(seen)),
            }
        }
        match ringed {
            Ringed::Write { change, key, value, .. } => {
                self.node.ordered.push_back(Ordered::Pass { change, key, value });
            }
            Ringed::Ask { key } => self.node.ordered.push_back(Ordered::Ask { key }),
            Ringed::Drop { .. } => {}
        }
    }

    /// Delivers an answer of the node to the DPU.
    pub(super) fn fetched(&mut self, which: usize) {
        self.ring_first();
        let (numbered, executed) = (self.shape.numbered, Position(self.host.executed));
        let Some(dpu) = &mut self.dpu else { return };
        let (op, records) = dpu.answers.remove(which);
        if numbered {
            dpu.prefetcher.executed(executed);
        }
        let each: Vec<Fetched> = records
            .iter()
            .map(|(_, record)| match record {
                None => Fetched::Failed,
                Some(None) => Fetched::Absent,
                Some(Some((version, _))) => Fetched::Item { version: *version },
            })
            .collect();
        dpu.wanted.retain(|_, of| *of != op);
        let mut out = Vec::new();
        dpu.prefetcher.fetched(op, &each, &mut out);
        self.act(out, &records);
    }

    /// Carries out the prefetcher's actions.
    fn act(&mut self, out: Vec<Action>, records: &[FetchedKey]) {
        for action in out {
            match action {
                Action::Fetch { op, keys } => {
                    let keys: Vec<Key> = keys.iter().map(super::clients::item_of).collect();
                    keys.iter().for_each(|&key| self.is_fetched_once(key, op));
                    let dpu = self.dpu.as_mut().expect("it said so");
                    dpu.fetches.push((op, keys));
                }
                Action::Pass { .. } => unreachable!("changes are passed on where they come in"),
                Action::Place { at, item, stamp, .. } => {
                    let (key, record) = records[at as usize];
                    let (_, value) = record.flatten().expect("an item came");
                    let doubled = self.host.cache.contains_key(&key);
                    let excused = doubled && self.host.excused.contains(&key) || self.lies_excused(key);
                    self.place(Item { item, key, stamp, value, taken: false, doubled, excused });
                }
            }
        }
    }

    /// Returns true if the zone has an item that the DPU fetched although the host held it, and could not
    /// know that. When the host drops its own copy, the DPU mistakes that for the end of this item.
    fn lies_excused(&self, key: Key) -> bool {
        self.host.zone.iter().any(|item| item.key == key && !item.taken && item.excused)
    }

    /// Asserts that no key is fetched that is in flight, or whose item is in the zone and acceptable.
    fn is_fetched_once(&mut self, key: Key, op: u64) {
        self.event("fetch", key, op);
        let floor = self.host.changes.floor(self.id(key));
        // An item that was fetched although the host held it counts as a false positive already.
        let lies = self.host.zone.iter().any(|item| {
            item.key == key && !item.taken && !item.doubled && !item.excused && item.stamp >= floor
        });
        let flies = self.dpu.as_mut().expect("it said so").wanted.insert(key, op).is_some();
        self.hold(!flies, || format!("{key} is fetched twice at once"));
        if lies && !(self.shape.ring_first && self.shape.numbered) {
            // The order of a drop and a request that deletes the key is unknown.
            return self.note("false_positives.crossed");
        }
        self.hold(!lies, || format!("{key} is fetched, and lies in the zone"));
    }

    fn place(&mut self, item: Item) {
        if self.host.zone.len() >= self.shape.zone {
            self.clean_taken();
        }
        let full = self.host.zone.len() >= self.shape.zone;
        if full && !self.shape.replaces {
            let dpu = self.dpu.as_mut().expect("it said so");
            return dpu.prefetcher.zone_full(item.item);
        }
        if full {
            self.drop_oldest();
        }
        self.event("place", item.key, item.stamp.0);
        if item.doubled {
            self.host.doubled.insert(item.key);
        }
        self.host.zone.push_back(item);
    }

    /// Cleans the zone: taken items leave, and now and then the oldest untaken one, so that it does not block
    /// the zone for ever.
    pub(super) fn clean(&mut self) {
        self.clean_taken();
        if self.host.zone.len() >= self.shape.zone && self.dpu.is_some() {
            self.drop_oldest();
        }
    }

    fn clean_taken(&mut self) {
        while let (Some(dpu), Some(item)) = (&mut self.dpu, self.host.zone.pop_front_if(|item| item.taken)) {
            dpu.prefetcher.cleaned(item.item, true);
        }
    }

    fn drop_oldest(&mut self) {
        if let (Some(dpu), Some(item)) = (&mut self.dpu, self.host.zone.pop_front()) {
            dpu.prefetcher.cleaned(item.item, item.taken);
        }
    }
}

const fn miss_note(cause: Miss) -> &'static str {
    match cause {
        Miss::Unseen => "miss.unseen",
        Miss::Dropped => "miss.dropped",
        Miss::Late => "miss.late",
        Miss::Overtaken => "miss.overtaken",
        Miss::Full => "miss.full",
        Miss::Bounded => "miss.bounded",
        Miss::Failed => "miss.failed",
        Miss::Absent => "miss.absent",
    }
}

const fn waste_note(cause: Waste) -> &'static str {
    match cause {
        Waste::Unread => "waste.unread",
        Waste::Absent => "waste.absent",
        Waste::Overtaken => "waste.overtaken",
        Waste::Full => "waste.full",
        Waste::Failed => "waste.failed",
        Waste::Restarted => "waste.restarted",
    }
}
