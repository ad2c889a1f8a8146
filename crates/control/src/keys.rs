//! Who may ask for what: each host, memory node, switch and domain has a secret key, and a request about one shows its key (PROTOCOL 8.66 to 8.70).
//!
//! Key types: [`Key`], which the answer to a join or a creation tells once; [`Shown`], what came with a request; [`Ring`], what a caller
//! keeps. [`wanted`] is the one table of whose keys each request wants. Keys are not kept here but derived: from the rack's secret, the kind and
//! number of what they are of, and the change that brought that in. So none is good for what has the number later.

use crate::api::{
    AcceptLost, ActFor, Allocate, ApiError, Brk, Connect, CreateDomain, Disconnect, DropObject, ErrorCode,
    Free, Grant, HoldObject, JoinHost, JoinIndex, JoinNode, LoadObject, Migrate, Mmap, Mprotect, Munmap,
    OpenObject, OpenSession, ProcessExit, ProcessStart, Recover, Renew, Request, ResizeObject, Response,
    SaveObject, ShowObject, SoftClear, SoftCounts, SoftLoad, SoftRead, Stay, UnlinkObject,
};
use crate::errors::error;
use crate::{Control, Submitted};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use farmem_machine::Port;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Sha256;

/// Most keys that one request shows; what is behind them is not looked at.
pub const KEYS_SHOWN_MAX: usize = 16;
/// Most keys in a [`Ring`]; the oldest goes.
pub const RING_MAX: usize = 8192;
/// Digits of a key's text.
const DIGITS: usize = 32;

/// What all keys of a rack are derived from: at least 32 bytes that nobody can guess.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl Secret {
    /// From the bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(Hmac::new_from_slice(bytes).expect("HMAC takes a key of any length"))
    }

    fn of(&self, owner: Owner) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(b"farmem key\0");
        mac.update(&[owner.kind as u8]);
        mac.update(&owner.number.to_be_bytes());
        mac.update(&owner.since.to_be_bytes());
        mac
    }

    fn key(&self, owner: Owner) -> Key {
        let mac = self.of(owner).finalize().into_bytes();
        let (half, _) = mac.split_first_chunk().expect("SHA-256 has 32 bytes");
        Key(u128::from_be_bytes(*half))
    }

    /// The time it takes does not tell where two keys differ.
    fn is_of(&self, owner: Owner, key: Key) -> bool {
        self.of(owner).verify_truncated_left(&key.0.to_be_bytes()).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The key of a host, memory node, switch or domain: 128 bits, 32 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(u128);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Not the key: what is printed may be kept where others read it.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Text that is no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoKey;

impl fmt::Display for NoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected a key of {DIGITS} hexadecimal digits")
    }
}

impl FromStr for Key {
    type Err = NoKey;

    fn from_str(text: &str) -> Result<Self, NoKey> {
        if text.len() != DIGITS || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NoKey);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| NoKey)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// What came with a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shown {
    /// Keys; the first [`KEYS_SHOWN_MAX`] count.
    pub keys: Vec<Key>,
    /// The operator's token, who may do all.
    pub operator: bool,
}

/// What has keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The rack's switch: number 0, and no name.
    Switch = 1,
    /// A memory node.
    Node = 2,
    /// A switch of the index.
    Index = 3,
    /// A host.
    Host = 4,
    /// A domain.
    Domain = 5,
}

/// Its name in a ring's text.
const KINDS: [(Kind, &str); 5] = [
    (Kind::Switch, "switch"),
    (Kind::Node, "node"),
    (Kind::Index, "index"),
    (Kind::Host, "host"),
    (Kind::Domain, "domain"),
];

impl Kind {
    /// What has this port, and its number.
    fn of(port: u32) -> Option<(Self, u32)> {
        let port = Port(port);
        let node = port.as_node().map(|node| (Self::Node, node));
        let index = port.as_index().map(|index| (Self::Index, index));
        let found = node.or(index).or_else(|| port.as_host().map(|host| (Self::Host, host)));
        found.map(|(kind, number)| (kind, number.into()))
    }

    fn text(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, text)| text)
    }
}

/// Whose key it is: as long as it is there, and no later one of this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    kind: Kind,
    number: u32,
    /// The change that brought it in. Domains have none: no number of theirs is used twice.
    since: u64,
}

/// Whose key a request wants, as the request names it. What is not there has no key: then the request is refused for that, or brings it in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose<'a> {
    /// What has a number.
    Numbered(Kind, u32),
    /// What has a name, as far as it is there.
    Named(Kind, &'a str),
    /// The domain of a process.
    Process(u32),
    /// The domain of an object.
    Object(u64),
    /// The domain of the allocation that holds an address.
    Address(u64),
    /// Nobody's: the operator alone may ask.
    Operator,
}

/// Whose keys a request wants, all of them; none: whoever has the rack's token may ask.
#[must_use]
pub fn wanted(request: &Request) -> Vec<Whose<'_>> {
    let host = |host: u16| Whose::Numbered(Kind::Host, host.into());
    let domain = |domain: u32| Whose::Numbered(Kind::Domain, domain);
    let one = |whose| Vec::from([whose]);
    match request {
        Request::JoinSwitch(_) => one(Whose::Numbered(Kind::Switch, 0)),
        Request::JoinNode(JoinNode { name, card, .. }) => {
            let named = [Whose::Named(Kind::Node, name)];
            named.into_iter().chain(card.as_ref().map(|card| domain(card.domain))).collect()
        }
        Request::JoinIndex(JoinIndex { name, .. }) => one(Whose::Named(Kind::Index, name)),
        Request::JoinHost(JoinHost { name, .. }) => one(Whose::Named(Kind::Host, name)),
        Request::Leave(call) => {
            Kind::of(call.port).map(|(kind, number)| Whose::Numbered(kind, number)).into_iter().collect()
        }
        // That it has ended harms only who says so.
        Request::ActFor(ActFor { host: actor, begins: false, .. }) => one(host(*actor)),
        Request::ActFor(ActFor { host: actor, of_host, .. }) => Vec::from([host(*actor), host(*of_host)]),
        Request::CreateDomain(CreateDomain { name }) => one(Whose::Named(Kind::Domain, name)),
        Request::OpenSession(OpenSession { host: of, domain: to })
        | Request::Connect(Connect { host: of, domain: to, .. })
        | Request::OpenObject(OpenObject { host: of, domain: to, .. })
        | Request::SoftLoad(SoftLoad { host: of, domain: to, .. }) => Vec::from([host(*of), domain(*to)]),
        Request::Disconnect(Disconnect { host: of, .. })
        | Request::Renew(Renew { host: of, .. })
        | Request::Recover(Recover { host: of, .. })
        | Request::Stay(Stay { host: of, .. })
        | Request::DropObject(DropObject { host: of, .. }) => one(host(*of)),
        Request::Allocate(Allocate { domain: of, .. })
        | Request::Free(Free { domain: of, .. })
        | Request::Grant(Grant { domain: of, .. })
        | Request::ProcessStart(ProcessStart { domain: of, .. })
        | Request::AcceptLost(AcceptLost { domain: of, .. })
        | Request::UnlinkObject(UnlinkObject { domain: of, .. })
        | Request::ShowObject(ShowObject { domain: of, .. })
        | Request::SoftClear(SoftClear { domain: of, .. })
        | Request::SoftRead(SoftRead { domain: of, .. })
        | Request::SoftCounts(SoftCounts { domain: of, .. }) => one(domain(*of)),
        Request::ProcessExit(ProcessExit { process })
        | Request::Mmap(Mmap { process, .. })
        | Request::Munmap(Munmap { process, .. })
        | Request::Mprotect(Mprotect { process, .. })
        | Request::Brk(Brk { process, .. }) => one(Whose::Process(*process)),
        Request::HoldObject(HoldObject { host: of, object, .. })
        | Request::ResizeObject(ResizeObject { host: of, object, .. })
        | Request::LoadObject(LoadObject { host: of, object, .. })
        | Request::SaveObject(SaveObject { host: of, object }) => {
            Vec::from([host(*of), Whose::Object(*object)])
        }
        Request::ListObjects(call) => one(call.domain.map_or(Whose::Operator, domain)),
        Request::Migrate(Migrate { domain: of, base, .. }) => one(of.map_or(Whose::Address(*base), domain)),
        // What the rack looks like, and the length of a file that a node offers to all.
        Request::Overview(_)
        | Request::Usage(_)
        | Request::Locate(_)
        | Request::SoftShow(_)
        | Request::LookFile(_) => Vec::new(),
    }
}

/// Whether a request brings in a member, whose key only its answer tells.
pub(crate) const fn brings_in(request: &Request) -> bool {
    matches!(
        request,
        Request::JoinSwitch(_) | Request::JoinNode(_) | Request::JoinIndex(_) | Request::JoinHost(_)
    )
}

impl Control {
    /// Refuses a request that does not show whose it is.
    pub(crate) fn keys_fit(&self, ask: &Submitted) -> Result<(), ApiError> {
        let Some(secret) = self.config.secret.as_ref().filter(|_| !ask.shown.operator) else { return Ok(()) };
        for whose in wanted(&ask.request) {
            let shown = match self.owner(whose) {
                // Whatever else is wrong with the request says what is not there.
                Found::Nobody => continue,
                Found::Operator => false,
                Found::Owner(owner) => {
                    let keys = ask.shown.keys.iter().take(KEYS_SHOWN_MAX);
                    // All are looked at: which one it was is not told either.
                    keys.fold(false, |found, &key| secret.is_of(owner, key) | found)
                }
            };
            if !shown {
                return Err(not_shown(&ask.request, whose));
            }
        }
        Ok(())
    }

    /// The key that a join or creation is answered with.
    pub(crate) fn key(&self, kind: Kind, number: u32) -> Option<Key> {
        let secret = self.config.secret.as_ref()?;
        match self.owner(Whose::Numbered(kind, number)) {
            Found::Owner(owner) => Some(secret.key(owner)),
            Found::Nobody | Found::Operator => None,
        }
    }

    /// The key of a domain, which may be about to come into being.
    pub(crate) fn domain_key(&self, domain: u32) -> Option<Key> {
        Some(self.config.secret.as_ref()?.key(Owner { kind: Kind::Domain, number: domain, since: 0 }))
    }

    fn owner(&self, whose: Whose<'_>) -> Found {
        let state = &self.state;
        let domain = |domain: u32| {
            let there = state.domains.contains_key(&domain);
            there.then_some(Owner { kind: Kind::Domain, number: domain, since: 0 })
        };
        let found = match whose {
            Whose::Operator => return Found::Operator,
            Whose::Numbered(Kind::Domain, number) => domain(number),
            Whose::Numbered(kind, number) => {
                self.since(kind, number).map(|since| Owner { kind, number, since })
            }
            Whose::Named(Kind::Domain, name) => {
                state.domains.iter().find(|(_, known)| *known == name).and_then(|(&number, _)| domain(number))
            }
            Whose::Named(kind, name) => {
                let mut members = state.members().filter(|member| member.name == Some(name));
                let member =
                    members.find_map(|member| Kind::of(member.port.0).filter(|found| found.0 == kind));
                let found = member.and_then(|(_, number)| Some((number, self.since(kind, number)?)));
                found.map(|(number, since)| Owner { kind, number, since })
            }
            Whose::Process(process) => state.processes.get(&process).and_then(|&of| domain(of)),
            Whose::Object(object) => state.objects.get(&object).and_then(|row| domain(row.domain)),
            Whose::Address(addr) => state.vma_at(addr).and_then(|(_, vma)| domain(vma.domain)),
        };
        found.map_or(Found::Nobody, Found::Owner)
    }

    /// The change that brought a member in, if it is there.
    fn since(&self, kind: Kind, number: u32) -> Option<u64> {
        let state = &self.state;
        let short = u16::try_from(number).ok()?;
        match kind {
            Kind::Switch => (state.switch_joined || state.switch.is_some()).then_some(0),
            Kind::Node => state.nodes.get(&short).map(|row| row.since),
            Kind::Index => state.index.get(&short).map(|row| row.since),
            Kind::Host => state.hosts.get(&short).filter(|row| row.present).map(|row| row.since),
            Kind::Domain => None,
        }
    }
}

/// What came of looking for an owner.
enum Found {
    Owner(Owner),
    Nobody,
    Operator,
}

fn not_shown(request: &Request, whose: Whose<'_>) -> ApiError {
    let what = match whose {
        Whose::Numbered(Kind::Switch, _) => String::from("the switch"),
        Whose::Numbered(kind, number) => format!("{} {number}", kind.text()),
        Whose::Named(kind, name) => format!("{} {name}", kind.text()),
        Whose::Process(process) => format!("the domain of process {process}"),
        Whose::Object(object) => format!("the domain of object {object}"),
        Whose::Address(addr) => format!("the domain of the allocation at {addr:#x}"),
        Whose::Operator => {
            let message = format!("{} without a domain is for the operator", request.name());
            let remedy = "name a domain whose key you hold, or ask with the token in the file `operator` of the control plane's state directory";
            return error(ErrorCode::NotOwner, message, remedy);
        }
    };
    let message = format!("{} wants the key of {what}, which was not shown", request.name());
    let remedy = "ask as who was told it: its user's key file has it; take another name for what is to be new; or ask with the token in the file \
                  `operator` of the control plane's state directory";
    error(ErrorCode::NotOwner, message, remedy)
}

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
    /// the ring has changed.
    pub fn learn(&mut self, request: &Request, answer: &Response) -> bool {
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
            _ => return false,
        };
        let Some(key) = key else { return false };
        let entry = Entry { kind, number, name: String::from(name), key };
        self.own.insert(entry.id());
        let (known, half) = (self.entries.iter().position(|old| *old == entry), self.entries.len() / 2);
        if let Some(at) = known.filter(|&at| at < half && half >= RING_MAX / 4) {
            // It is in use: others go before it.
            self.entries[at..].rotate_left(1);
            return true;
        }
        self.put(entry)
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
            match whose {
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
    use alloc::string::ToString as _;

    /// Different owners have different keys, and so have the same ones of another rack; a key is of its owner alone.
    #[test]
    fn each_owner_has_a_key_of_its_own() {
        let (rack, other) = (Secret::new(&[1; 32]), Secret::new(&[2; 32]));
        let owner = Owner { kind: Kind::Host, number: 3, since: 9 };
        let others =
            [Owner { kind: Kind::Node, ..owner }, Owner { number: 4, ..owner }, Owner { since: 10, ..owner }];
        assert!(rack.is_of(owner, rack.key(owner)));
        assert!(others.iter().all(|&next| !rack.is_of(owner, rack.key(next))));
        assert!(!rack.is_of(owner, other.key(owner)));
        assert!(!rack.is_of(owner, Key(0)));
    }

    /// Text that is a key and text that is none.
    #[test]
    fn keys_are_32_digits() {
        let key = Key(0xabc);
        assert_eq!(key.to_string().parse(), Ok(key));
        for text in [
            "",
            "abc",
            "+0000000000000000000000000000abc",
            &"0".repeat(33),
            "g0000000000000000000000000000000",
        ] {
            assert_eq!(text.parse::<Key>(), Err(NoKey), "{text}");
        }
    }

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
