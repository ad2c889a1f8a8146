//! The keys of a caller: in memory, and as the text of a file (PROTOCOL 8.66).

use crate::api::{Request, Response};
use crate::keys::key::Key;
use crate::keys::{KEYS_SHOWN_MAX, KINDS, Kind, RequiredKey, wanted};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Maximum number of keys in a [`Ring`].
pub const RING_MAX: usize = 8192;

/// Maximum number of processes, and of objects, whose domain a [`Ring`] remembers; the lowest numbers, which
/// are the oldest, go first.
pub const OWNERS_MAX: usize = 8192;

/// The keys that a caller received, with their owners, the newest last.
///
/// Keys of other callers come by [`Ring::merge`]. They never replace a key that this ring received itself,
/// whose owner may be in use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ring {
    entries: Vec<Entry>,
    /// Entries that this ring received in answers.
    own: BTreeSet<Id>,
    /// Domains named in requests, the latest last.
    used: Vec<u32>,
    /// The domain of each process in an answer.
    processes: BTreeMap<u32, u32>,
    /// The domain of each object in an answer.
    objects: BTreeMap<u64, u32>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    kind: Kind,
    number: u32,
    name: String,
    key: Key,
}

/// The identity of an entry: its kind, number and key.
type Id = (Kind, u32, u128);

/// Maximum number of keys presented for one number or name: there are several if rings of several racks were
/// merged.
const ALIKE_SHOWN_MAX: usize = KEYS_SHOWN_MAX / 2;

impl Ring {
    /// Adds the key of an answer, if it has a new one. A key that is received again becomes one of the
    /// newest, once the ring is half full. Returns true if the ring has changed. Also records the domain of a
    /// process or an object, which is not part of the text.
    pub fn learn(&mut self, request: &Request, answer: &Response) -> bool {
        self.learn_owners(request, answer);
        let Some(entry) = Entry::told(request, answer) else { return false };
        self.own.insert(entry.id());
        let (known, half) = (self.entries.iter().position(|old| *old == entry), self.entries.len() / 2);
        if let Some(at) = known.filter(|&at| at < half && half >= RING_MAX / 4) {
            // The key is in use: others are dropped before it.
            self.entries[at..].rotate_left(1);
            return true;
        }
        self.put(entry)
    }

    /// Adds the key of an answer in place of others with its number or name that came by [`Ring::merge`].
    pub fn learn_newest(&mut self, request: &Request, answer: &Response) {
        if let Some(entry) = Entry::told(request, answer) {
            self.entries.retain(|old| *old != entry);
        }
        self.learn(request, answer);
    }

    fn learn_owners(&mut self, request: &Request, answer: &Response) {
        match (request, answer) {
            (Request::ProcessStart(call), Response::Process(told)) => {
                self.processes.insert(told.process, call.domain);
            }
            (Request::OpenObject(call), Response::Object(told)) => {
                self.objects.insert(told.object, call.domain);
            }
            (Request::ShowObject(call), Response::ObjectShown(told)) => {
                self.objects.insert(told.object, call.domain);
            }
            (Request::ListObjects(_), Response::ObjectsListed(told)) => {
                self.objects.extend(told.objects.iter().map(|listed| (listed.object, listed.domain)));
            }
            _ => {}
        }
        while self.processes.len() > OWNERS_MAX {
            self.processes.pop_first();
        }
        while self.objects.len() > OWNERS_MAX {
            self.objects.pop_first();
        }
    }

    fn put(&mut self, entry: Entry) -> bool {
        if self.entries.contains(&entry) {
            return false;
        }
        let Self { entries, own, .. } = self;
        entries.retain(|old| {
            let stays = old.kind != entry.kind || (old.number != entry.number && old.name != entry.name);
            if !stays {
                own.remove(&old.id());
            }
            stays
        });
        self.entries.push(entry);
        self.make_room();
        true
    }

    /// Drops the oldest keys beyond the limit: domains from other callers, then domains. Hosts, nodes and
    /// switches have fewer numbers than there are places, and each is in use until another one has its
    /// number.
    fn make_room(&mut self) {
        let Self { entries, own, .. } = self;
        let mut over = entries.len().saturating_sub(RING_MAX);
        for rank in 0..3 {
            entries.retain(|entry| {
                let is_domain = entry.kind == Kind::Domain;
                let may_go = rank == 2 || is_domain && (rank == 1 || !own.contains(&entry.id()));
                let goes = over > 0 && may_go;
                if goes {
                    over -= 1;
                    own.remove(&entry.id());
                }
                !goes
            });
        }
    }

    /// Returns true if the ring has no room for another key.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.entries.len() >= RING_MAX
    }

    /// Drops the keys of domains that were in `before` and are not in `there`, the set of all existing
    /// domains. Numbers of domains are never reused, so these keys are useless. Returns the number of dropped
    /// keys.
    pub fn forget_gone(&mut self, before: &Self, there: &BTreeSet<u32>) -> usize {
        let count = self.entries.len();
        let gone = before.entries.iter().filter(|of| of.kind == Kind::Domain && !there.contains(&of.number));
        let gone: BTreeSet<Id> = gone.map(Entry::id).collect();
        self.entries.retain(|entry| !gone.contains(&entry.id()));
        self.own.retain(|id| !gone.contains(id));
        count - self.entries.len()
    }

    /// Returns the keys that a request needs, as far as they are here. If the request does not name the
    /// domain, the newest domains' keys are returned.
    #[must_use]
    pub fn show(&self, request: &Request) -> Vec<Key> {
        let mut keys = Vec::new();
        // Keys that this ring received itself come first.
        let alike = |is: &dyn Fn(&Entry) -> bool| {
            let mut its: Vec<&Entry> = self.entries.iter().rev().filter(|entry| is(entry)).collect();
            its.sort_by_key(|entry| !self.own.contains(&entry.id()));
            its.into_iter().take(ALIKE_SHOWN_MAX).map(|entry| entry.key)
        };
        for whose in wanted(request) {
            match self.known_owner(whose).unwrap_or(whose) {
                RequiredKey::Numbered(kind, number) => {
                    keys.extend(alike(&|entry| (entry.kind, entry.number) == (kind, number)));
                }
                RequiredKey::Named(kind, name) => {
                    keys.extend(alike(&|entry| entry.kind == kind && entry.name == name));
                }
                RequiredKey::Process(_) | RequiredKey::Object(_) | RequiredKey::Address(_) => {
                    let is_used = |entry: &&Entry| self.used.contains(&entry.number);
                    let domains = || self.entries.iter().rev().filter(|entry| entry.kind == Kind::Domain);
                    let all = domains().filter(is_used).chain(domains().filter(|entry| !is_used(entry)));
                    keys.extend(all.map(|entry| entry.key).take(KEYS_SHOWN_MAX - 1));
                }
                RequiredKey::Operator => {}
            }
        }
        keys.truncate(KEYS_SHOWN_MAX);
        keys
    }

    /// Returns the domain of a process or an object, if an answer stated it.
    fn known_owner<'a>(&self, whose: RequiredKey<'a>) -> Option<RequiredKey<'a>> {
        let domain = match whose {
            RequiredKey::Process(process) => self.processes.get(&process),
            RequiredKey::Object(object) => self.objects.get(&object),
            _ => None,
        };
        domain.map(|&domain| RequiredKey::Numbered(Kind::Domain, domain))
    }

    /// Merges another ring in its order: behind the keys that only this ring has, and in place of entries
    /// with the same number or name. Keys that this ring received itself stay: the other may belong to
    /// another rack, or have lost them.
    pub fn merge(&mut self, other: &Self) {
        let ids: BTreeSet<Id> = other.entries.iter().map(Entry::id).collect();
        let numbers: BTreeSet<(Kind, u32)> = other.entries.iter().map(|of| (of.kind, of.number)).collect();
        let names: BTreeSet<(Kind, &str)> = other.entries.iter().map(|of| (of.kind, &*of.name)).collect();
        let Self { entries, own, .. } = self;
        entries.retain(|entry| {
            let is_alike =
                numbers.contains(&(entry.kind, entry.number)) || names.contains(&(entry.kind, &*entry.name));
            !ids.contains(&entry.id()) && (own.contains(&entry.id()) || !is_alike)
        });
        self.entries.extend(other.entries.iter().cloned());
        self.make_room();
    }

    /// Records that this caller uses the domain named in a request: its key comes first if a request does not
    /// name the domain.
    pub fn using(&mut self, request: &Request) {
        let of = wanted(request).into_iter().find_map(|whose| match whose {
            RequiredKey::Numbered(Kind::Domain, number) => Some(number),
            _ => None,
        });
        if let Some(domain) = of {
            self.used.retain(|&other| other != domain);
            self.used.push(domain);
            self.used.drain(..self.used.len().saturating_sub(KEYS_SHOWN_MAX - 1));
        }
    }

    /// Returns the ring as text, a line for each key: kind, number, name, key.
    #[must_use]
    pub fn to_text(&self) -> String {
        let lines = self.entries.iter();
        lines
            .map(|Entry { kind, number, name, key }| format!("{} {number} {name} {key}\n", kind.text()))
            .collect()
    }

    /// Parses a ring.
    ///
    /// # Errors
    ///
    /// The number of the first invalid line, from 1.
    pub fn from_text(text: &str) -> Result<Self, usize> {
        let mut ring = Self::default();
        for (number, line) in text.lines().enumerate() {
            ring.entries.push(Entry::from_line(line).filter(|_| number < RING_MAX).ok_or(number + 1)?);
        }
        Ok(ring)
    }
}

impl Entry {
    const fn id(&self) -> Id {
        (self.kind, self.number, self.key.0)
    }

    /// Returns the entry for the key in an answer.
    fn told(request: &Request, answer: &Response) -> Option<Self> {
        let (kind, number, name, key) = match (request, answer) {
            (Request::JoinSwitch(_), Response::Joined(told)) => (Kind::Switch, 0, "-", told.key),
            (Request::JoinNode(call), Response::NodeJoined(told)) => {
                (Kind::Node, told.node.into(), call.name.as_str(), told.key)
            }
            (Request::JoinIndex(call), Response::IndexJoined(told)) => {
                (Kind::Index, told.index.into(), call.name.as_str(), told.key)
            }
            (Request::JoinHost(call), Response::HostJoined(told)) => {
                (Kind::Host, told.host.into(), call.name.as_str(), told.key)
            }
            (Request::CreateDomain(call), Response::Domain(told)) => {
                (Kind::Domain, told.domain, call.name.as_str(), told.key)
            }
            _ => return None,
        };
        Some(Self { kind, number, name: String::from(name), key: key? })
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let (kind, _) = *KINDS.iter().find(|(_, text)| *text == kind)?;
        let (number, name) = (words.next()?.parse().ok()?, words.next()?);
        let key = words.next()?.parse().ok()?;
        words.next().is_none().then(|| Self { kind, number, name: String::from(name), key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring survives a round trip through its text, in any order; the number of an invalid line is
    /// reported.
    #[test]
    fn a_ring_comes_back_from_its_text() {
        let entry =
            |kind, number, name: &str| Entry { kind, number, name: name.into(), key: Key(number.into()) };
        let mut ring = Ring::default();
        for entry in [entry(Kind::Switch, 0, "-"), entry(Kind::Host, 3, "h"), entry(Kind::Domain, 3, "d")] {
            assert!(ring.put(entry));
        }
        assert_eq!(Ring::from_text(&ring.to_text()).unwrap(), ring);
        assert!(ring.put(entry(Kind::Domain, 4, "d")), "the name is another's now");
        assert_eq!(ring.entries.len(), 3);
        let key = Key(1);
        for bad in [
            "nonsense".into(),
            format!("host x h {key}"),
            format!("host 1 h {key} more"),
            String::from("host 1 h 1"),
        ] {
            assert_eq!(Ring::from_text(&format!("host 1 h {key}\n{bad}\n")), Err(2), "{bad}");
        }
    }
}
