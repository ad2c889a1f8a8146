//! The keys that a caller keeps: in memory, and as the text of a file (PROTOCOL 8.66).

use super::{KEYS_SHOWN_MAX, KINDS, Key, Kind, Whose, wanted};
use crate::api::{Request, Response};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Most keys in a [`Ring`].
pub const RING_MAX: usize = 8192;
/// Most processes, and most objects, whose domain a [`Ring`] remembers; those of the lowest numbers go, which came first.
pub const OWNERS_MAX: usize = 8192;

/// The keys that a caller was told, and for whom: the newest last.
///
/// Others' keys come by [`Ring::merge`]. They never take the place of one that this ring was told itself: who was told it may be using what it is of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ring {
    entries: Vec<Entry>,
    /// Those of them that answers told this ring.
    own: BTreeSet<Id>,
    /// Domains that requests have named, the latest last.
    used: Vec<u32>,
    /// The domain of each process that an answer told of.
    processes: BTreeMap<u32, u32>,
    /// The domain of each object that an answer told of.
    objects: BTreeMap<u64, u32>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    kind: Kind,
    number: u32,
    name: String,
    key: Key,
}

/// Which entry: its kind, number and key.
type Id = (Kind, u32, u128);

/// Most keys of one number or name that are shown: there are several where rings of several racks were put together.
const ALIKE_SHOWN_MAX: usize = KEYS_SHOWN_MAX / 2;

impl Ring {
    /// Takes the key of an answer, if it has one that is new; one that is told again is among the newest then, once the ring is half full. Answers whether
    /// the ring has changed. It also remembers which domain a process or an object is of; that is not in its text.
    pub fn learn(&mut self, request: &Request, answer: &Response) -> bool {
        self.learn_owners(request, answer);
        let Some(entry) = Entry::told(request, answer) else { return false };
        self.own.insert(entry.id());
        let (known, half) = (self.entries.iter().position(|old| *old == entry), self.entries.len() / 2);
        if let Some(at) = known.filter(|&at| at < half && half >= RING_MAX / 4) {
            // It is in use: others go before it.
            self.entries[at..].rotate_left(1);
            return true;
        }
        self.put(entry)
    }

    /// The same for a key that this ring may have already, beside others of its number or name that came by [`Ring::merge`]: it takes their place.
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

    /// Has the oldest go that are too many: domains that others were told of, then domains. Of hosts, nodes and switches there are fewer numbers than places,
    /// and each is in use until another one has its number.
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

    /// It has no room for another key.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.entries.len() >= RING_MAX
    }

    /// Forgets the keys of domains that were here `before` and are not `there`, which are all that were there then: no number of a domain is used twice, so
    /// they are good for nothing. Answers how many went.
    pub fn forget_gone(&mut self, before: &Self, there: &BTreeSet<u32>) -> usize {
        let count = self.entries.len();
        let gone = before.entries.iter().filter(|of| of.kind == Kind::Domain && !there.contains(&of.number));
        let gone: BTreeSet<Id> = gone.map(Entry::id).collect();
        self.entries.retain(|entry| !gone.contains(&entry.id()));
        self.own.retain(|id| !gone.contains(id));
        count - self.entries.len()
    }

    /// The keys that a request wants, as far as they are here. Where the request does not say whose it is, the newest domains' are shown.
    #[must_use]
    pub fn show(&self, request: &Request) -> Vec<Key> {
        let mut keys = Vec::new();
        // Those that this ring was told itself come first.
        let alike = |is: &dyn Fn(&Entry) -> bool| {
            let mut its: Vec<&Entry> = self.entries.iter().rev().filter(|entry| is(entry)).collect();
            its.sort_by_key(|entry| !self.own.contains(&entry.id()));
            its.into_iter().take(ALIKE_SHOWN_MAX).map(|entry| entry.key)
        };
        for whose in wanted(request) {
            match self.known_owner(whose).unwrap_or(whose) {
                Whose::Numbered(kind, number) => {
                    keys.extend(alike(&|entry| (entry.kind, entry.number) == (kind, number)));
                }
                Whose::Named(kind, name) => {
                    keys.extend(alike(&|entry| entry.kind == kind && entry.name == name));
                }
                Whose::Process(_) | Whose::Object(_) | Whose::Address(_) => {
                    let is_used = |entry: &&Entry| self.used.contains(&entry.number);
                    let domains = || self.entries.iter().rev().filter(|entry| entry.kind == Kind::Domain);
                    let all = domains().filter(is_used).chain(domains().filter(|entry| !is_used(entry)));
                    keys.extend(all.map(|entry| entry.key).take(KEYS_SHOWN_MAX - 1));
                }
                Whose::Operator => {}
            }
        }
        keys.truncate(KEYS_SHOWN_MAX);
        keys
    }

    /// The domain that a process or an object is of, as far as an answer told.
    fn known_owner<'a>(&self, whose: Whose<'a>) -> Option<Whose<'a>> {
        let domain = match whose {
            Whose::Process(process) => self.processes.get(&process),
            Whose::Object(object) => self.objects.get(&object),
            _ => None,
        };
        domain.map(|&domain| Whose::Numbered(Kind::Domain, domain))
    }

    /// Takes what another ring has, in its order: behind what this one alone has, and in the place of what has the same number or name here. What this ring was
    /// told itself stays beside it: the other may be of another rack, or have lost it.
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

    /// Remembers that this caller uses the domain that a request names: its key is shown first where a request does not say whose it is.
    pub fn using(&mut self, request: &Request) {
        let of = wanted(request).into_iter().find_map(|whose| match whose {
            Whose::Numbered(Kind::Domain, number) => Some(number),
            _ => None,
        });
        if let Some(domain) = of {
            self.used.retain(|&other| other != domain);
            self.used.push(domain);
            self.used.drain(..self.used.len().saturating_sub(KEYS_SHOWN_MAX - 1));
        }
    }

    /// As text, a line for each key: kind, number, name, key.
    #[must_use]
    pub fn to_text(&self) -> String {
        let lines = self.entries.iter();
        lines
            .map(|Entry { kind, number, name, key }| format!("{} {number} {name} {key}\n", kind.text()))
            .collect()
    }

    /// From text.
    ///
    /// # Errors
    /// The number of the first line that is none, from 1.
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

    /// What an answer tells a key of.
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

    /// A ring goes to a file and comes back, whatever its order; what is no line of it is named.
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
