//! Messages on their way, and the one that is being filled: a key that is wanted on one of them is sent on no other (PD3 6.1).

use crate::accesses::{Keys, Position};
use crate::changes::Change;
use crate::view::{KeyId, KeySecret};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use hashbrown::HashTable;

/// What is to be done with an item when it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// The host will take and keep it.
    Wanted,
    /// The host will take it, and a request deletes it.
    Deleted,
    /// The host asked for it itself.
    Late,
    /// The host changed it since.
    Overtaken,
    /// The host that wanted it is gone.
    Restarted,
}

/// A key of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    pub(super) key: KeyId,
    /// The last request that wants it.
    pub(super) position: Position,
    pub(super) fate: Fate,
}

/// A message.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The changes up to here had been acknowledged when it was sent.
    pub(super) after: Change,
    pub(super) keys: Vec<Sent>,
}

/// Where a wanted key is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct At {
    op: u64,
    at: u32,
}

/// The wanted keys, each with its place. Nothing depends on their order, which is not looked at.
#[derive(Debug)]
struct Wanted {
    secret: KeySecret,
    places: HashTable<(KeyId, At)>,
}

impl Wanted {
    fn get(&self, key: KeyId) -> Option<At> {
        self.places.find(self.secret.spread(key), |(of, _)| *of == key).map(|(_, at)| *at)
    }

    /// Adds a key that is not there.
    fn insert(&mut self, key: KeyId, at: At) {
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

/// Lists of messages that are kept to be filled again.
const SPARE_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Flight {
    /// Keys that an item is wanted of.
    wanted: Wanted,
    messages: BTreeMap<u64, Message>,
    filling: Message,
    /// Its keys.
    bytes: Keys,
    /// The number of the message that is being filled.
    op: u64,
    /// Keys of all messages.
    keys: u32,
    spare: Vec<Vec<Sent>>,
}

impl Flight {
    /// Nothing is on its way; keys are spread by this secret.
    pub(super) fn new(secret: KeySecret) -> Self {
        Self {
            wanted: Wanted { secret, places: HashTable::new() },
            messages: BTreeMap::new(),
            filling: Message::default(),
            bytes: Keys::default(),
            op: 0,
            keys: 0,
            spare: Vec::new(),
        }
    }

    /// Keys of all messages, also of those that nothing wants any more.
    pub(super) const fn keys(&self) -> u32 {
        self.keys
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// A key of so many bytes may be added to the message that is being filled.
    pub(super) const fn has_room(&self, len: usize, keys_max: u32, bytes_max: u32) -> bool {
        let keys = self.bytes.len();
        keys == 0 || (keys < keys_max as usize && self.bytes.bytes() + len <= bytes_max as usize)
    }

    /// Adds a key to the message that is being filled.
    pub(super) fn add(&mut self, key: KeyId, bytes: &[u8], position: Position) {
        let at = u32::try_from(self.filling.keys.len()).expect("a bounded message");
        self.filling.keys.push(Sent { key, position, fate: Fate::Wanted });
        self.bytes.push(bytes);
        self.keys += 1;
        self.wanted.insert(key, At { op: self.op, at });
    }

    /// The message that was filled is on its way now; nothing when it has no keys.
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

    /// Another request wants a key that is on its way; false when it is not.
    pub(super) fn wanted_too(&mut self, key: KeyId, position: Position) -> bool {
        let Some(sent) = self.sent(key) else { return false };
        sent.position = sent.position.max(position);
        true
    }

    /// A request deletes a key that is on its way.
    pub(super) fn deleted(&mut self, key: KeyId) {
        if let Some(sent) = self.sent(key) {
            sent.fate = Fate::Deleted;
        }
    }

    /// The item of this key is not wanted any more when it comes; false when it was not before.
    pub(super) fn spoil(&mut self, key: KeyId, fate: Fate) -> bool {
        let Some(sent) = self.sent(key) else { return false };
        sent.fate = fate;
        self.wanted.remove(key);
        true
    }

    /// Nothing that is on its way is wanted any more.
    pub(super) fn spoil_all(&mut self) {
        self.wanted.places.clear();
        let all = self.messages.values_mut().flat_map(|message| &mut message.keys);
        for sent in all.filter(|sent| sent.fate != Fate::Late) {
            sent.fate = Fate::Restarted;
        }
    }

    /// A message ended.
    pub(super) fn ended(&mut self, op: u64) -> Message {
        let message = self.messages.remove(&op).expect("a message on its way");
        self.keys -= u32::try_from(message.keys.len()).expect("a bounded message");
        for sent in message.keys.iter().filter(|sent| is_wanted(sent.fate)) {
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

    /// Keys of which is not known yet what becomes of them.
    pub(super) fn open(&self) -> u64 {
        let all = self.messages.values().chain([&self.filling]).flat_map(|message| &message.keys);
        all.filter(|sent| sent.fate != Fate::Late).count() as u64
    }

    pub(super) fn check(&self) {
        let mut keys = 0;
        for (&op, message) in self.messages.iter().chain([(&self.op, &self.filling)]) {
            for (at, sent) in (0..).zip(&message.keys) {
                let here = self.wanted.get(sent.key) == Some(At { op, at });
                assert_eq!(here, is_wanted(sent.fate), "{sent:?} of message {op}");
                keys += 1;
            }
        }
        assert_eq!(keys, self.keys, "each key on its way is counted");
        let wanted = self.messages.values().chain([&self.filling]).flat_map(|message| &message.keys);
        assert_eq!(wanted.filter(|sent| is_wanted(sent.fate)).count(), self.wanted.places.len());
    }

    fn sent(&mut self, key: KeyId) -> Option<&mut Sent> {
        let At { op, at } = self.wanted.get(key)?;
        let message = if op == self.op { Some(&mut self.filling) } else { self.messages.get_mut(&op) };
        Some(&mut message.expect("it has a wanted key").keys[at as usize])
    }
}

const fn is_wanted(fate: Fate) -> bool {
    matches!(fate, Fate::Wanted | Fate::Deleted)
}
