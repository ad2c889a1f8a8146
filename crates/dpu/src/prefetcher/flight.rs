//! Messages in flight, and the one being filled. A wanted key is in one message only (PD3 6.1).

use crate::accesses::{Keys, Position};
use crate::changes::Change;
use crate::view::{KeyId, KeySecret};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use hashbrown::HashTable;

/// The treatment of an item on arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// The host will take and keep the item.
    Expected,
    /// The host will take the item, and a request deletes it.
    Deleted,
    /// The host read the item itself.
    Late,
    /// The host changed the item since.
    Overtaken,
    /// The host restarted since.
    Restarted,
}

/// A key of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    pub(super) key: KeyId,
    /// The last request that wants the key.
    pub(super) position: Position,
    pub(super) fate: Fate,
}

/// A message.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The acknowledgement watermark at the time of sending.
    pub(super) after: Change,
    pub(super) keys: Vec<Sent>,
}

/// The place of a wanted key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MessageSlot {
    op: u64,
    at: u32,
}

/// The wanted keys with their places. The order of the table is never used.
#[derive(Debug)]
struct ExpectedKeys {
    secret: KeySecret,
    places: HashTable<(KeyId, MessageSlot)>,
}

impl ExpectedKeys {
    fn get(&self, key: KeyId) -> Option<MessageSlot> {
        self.places.find(self.secret.spread(key), |(of, _)| *of == key).map(|(_, at)| *at)
    }

    /// Adds a key that is not in the table.
    fn insert(&mut self, key: KeyId, at: MessageSlot) {
        assert_eq!(self.get(key), None, "{key:?} is on its way already");
        let secret = self.secret;
        self.places.insert_unique(secret.spread(key), (key, at), |(key, _)| secret.spread(*key));
    }

    fn remove(&mut self, key: KeyId) {
        if let Ok(entry) = self.places.find_entry(self.secret.spread(key), |(of, _)| *of == key) {
            entry.remove();
        }
    }
}

/// Maximum number of vectors kept for reuse.
const SPARE_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Flight {
    /// Keys whose items are wanted.
    wanted: ExpectedKeys,
    messages: BTreeMap<u64, Message>,
    filling: Message,
    /// The bytes of its keys.
    bytes: Keys,
    /// The number of the message being filled.
    op: u64,
    /// Number of keys of all messages.
    keys: u32,
    spare: Vec<Vec<Sent>>,
}

impl Flight {
    /// Returns an empty state. The secret spreads the keys.
    pub(super) fn new(secret: KeySecret) -> Self {
        Self {
            wanted: ExpectedKeys { secret, places: HashTable::new() },
            messages: BTreeMap::new(),
            filling: Message::default(),
            bytes: Keys::default(),
            op: 0,
            keys: 0,
            spare: Vec::new(),
        }
    }

    /// Returns the number of keys of all messages, wanted or not.
    pub(super) const fn keys(&self) -> u32 {
        self.keys
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns true if a key of `len` bytes fits the message being filled.
    pub(super) const fn has_room(&self, len: usize, keys_max: u32, bytes_max: u32) -> bool {
        let keys = self.bytes.len();
        keys == 0 || (keys < keys_max as usize && self.bytes.bytes() + len <= bytes_max as usize)
    }

    /// Adds a key to the message being filled.
    pub(super) fn add(&mut self, key: KeyId, bytes: &[u8], position: Position) {
        let at = u32::try_from(self.filling.keys.len()).expect("a bounded message");
        self.filling.keys.push(Sent { key, position, fate: Fate::Expected });
        self.bytes.push(bytes);
        self.keys += 1;
        self.wanted.insert(key, MessageSlot { op: self.op, at });
    }

    /// Sends the message being filled. Returns `None` if it has no keys.
    pub(super) fn send(&mut self, after: Change) -> Option<(u64, Keys)> {
        if self.filling.keys.is_empty() {
            return None;
        }
        let keys = self.spare.pop().unwrap_or_default();
        let message = core::mem::replace(&mut self.filling, Message { after: Change(0), keys });
        self.messages.insert(self.op, Message { after, ..message });
        self.op += 1;
        Some((self.op - 1, core::mem::take(&mut self.bytes)))
    }

    /// Records another request for a key in flight. Returns false if the key is not in flight.
    pub(super) fn join_flight(&mut self, key: KeyId, position: Position) -> bool {
        let Some(sent) = self.sent(key) else { return false };
        sent.position = sent.position.max(position);
        true
    }

    /// Records a request that deletes a key in flight.
    pub(super) fn deleted(&mut self, key: KeyId) {
        if let Some(sent) = self.sent(key) {
            sent.fate = Fate::Deleted;
        }
    }

    /// Marks the item of a key as unwanted on arrival. Returns false if it was not wanted before.
    pub(super) fn spoil(&mut self, key: KeyId, fate: Fate) -> bool {
        let Some(sent) = self.sent(key) else { return false };
        sent.fate = fate;
        self.wanted.remove(key);
        true
    }

    /// Marks all items in flight as unwanted.
    pub(super) fn spoil_all(&mut self) {
        self.wanted.places.clear();
        let all = self.messages.values_mut().flat_map(|message| &mut message.keys);
        for sent in all.filter(|sent| sent.fate != Fate::Late) {
            sent.fate = Fate::Restarted;
        }
    }

    /// Removes a message that ended.
    pub(super) fn ended(&mut self, op: u64) -> Message {
        let message = self.messages.remove(&op).expect("a message on its way");
        self.keys -= u32::try_from(message.keys.len()).expect("a bounded message");
        for sent in message.keys.iter().filter(|sent| is_expected(sent.fate)) {
            self.wanted.remove(sent.key);
        }
        message
    }

    pub(super) fn keys_of(&self, op: u64) -> usize {
        self.messages.get(&op).expect("a message on its way").keys.len()
    }

    pub(super) fn give_back(&mut self, mut message: Message) {
        if self.spare.len() < SPARE_MAX {
            message.keys.clear();
            self.spare.push(message.keys);
        }
    }

    /// Returns the number of keys without an outcome yet.
    pub(super) fn open(&self) -> u64 {
        let all = self.messages.values().chain([&self.filling]).flat_map(|message| &message.keys);
        all.filter(|sent| sent.fate != Fate::Late).count() as u64
    }

    pub(super) fn check(&self) {
        let mut keys = 0;
        for (&op, message) in self.messages.iter().chain([(&self.op, &self.filling)]) {
            for (at, sent) in (0..).zip(&message.keys) {
                let here = self.wanted.get(sent.key) == Some(MessageSlot { op, at });
                assert_eq!(here, is_expected(sent.fate), "{sent:?} of message {op}");
                keys += 1;
            }
        }
        assert_eq!(keys, self.keys, "each key on its way is counted");
        let wanted = self.messages.values().chain([&self.filling]).flat_map(|message| &message.keys);
        assert_eq!(wanted.filter(|sent| is_expected(sent.fate)).count(), self.wanted.places.len());
    }

    fn sent(&mut self, key: KeyId) -> Option<&mut Sent> {
        let MessageSlot { op, at } = self.wanted.get(key)?;
        let message = if op == self.op { Some(&mut self.filling) } else { self.messages.get_mut(&op) };
        Some(&mut message.expect("it has a wanted key").keys[at as usize])
    }
}

const fn is_expected(fate: Fate) -> bool {
    matches!(fate, Fate::Expected | Fate::Deleted)
}
