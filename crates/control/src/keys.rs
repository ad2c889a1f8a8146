//! Authorization: each host, memory node, switch and domain has a secret key, and a request about one must
//! present its key (PROTOCOL 8.66 to 8.70).
//!
//! Key types: [`Key`], which the answer to a join or a creation states once; [`Credentials`], the credentials of a
//! request; [`Ring`], the keys of a caller. [`wanted`] is the one table of the keys that each request needs.
//! Keys are derived, not stored: from the rack's secret, the owner's kind and number, and the change that
//! created the owner. So no key is valid for a later owner of the number.

mod authorization;
mod cookies;
mod key;
mod ring;

pub use cookies::{AddressClaim, AddressProof, COOKIE_LIFE};
pub use key::{Key, NoKey};
pub use ring::{OWNERS_MAX, RING_MAX, Ring};

use crate::api::{
    AcceptLost, ActFor, Allocate, Brk, Connect, CreateDomain, Disconnect, DropObject, Free, Grant,
    HoldObject, JoinHost, JoinIndex, JoinNode, LoadObject, Migrate, Mmap, Mprotect, Munmap, OpenObject,
    OpenSession, ProcessExit, ProcessStart, Recover, Renew, Request, ResizeObject, SaveObject, ShowObject,
    SoftClear, SoftCounts, SoftLoad, SoftRead, Stay, UnlinkObject,
};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use farmem_machine::Port;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Maximum number of keys of one request; further ones are ignored.
pub const KEYS_SHOWN_MAX: usize = 16;

/// The secret from which all keys of a rack are derived: at least 32 unpredictable bytes.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl Secret {
    /// Returns the secret of these bytes.
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

    /// Compares in constant time.
    fn is_of(&self, owner: Owner, key: Key) -> bool {
        self.of(owner).verify_truncated_left(&key.0.to_be_bytes()).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The credentials of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// The keys; the first [`KEYS_SHOWN_MAX`] count.
    pub keys: Vec<Key>,
    /// True for the operator's token, which permits everything.
    pub operator: bool,
    /// The caller's build of farmem, if reported (PROTOCOL 8.71).
    pub build: Option<String>,
    /// The caller's proof of the address that it joins with (PROTOCOL 8.74).
    pub address: AddressProof,
}

/// The kinds of key owners.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The rack's switch: number 0, without a name.
    Switch = 1,
    /// A memory node.
    Node = 2,
    /// An index switch.
    Index = 3,
    /// A host.
    Host = 4,
    /// A domain.
    Domain = 5,
}

/// The names of kinds in a ring's text.
const KINDS: [(Kind, &str); 5] = [
    (Kind::Switch, "switch"),
    (Kind::Node, "node"),
    (Kind::Index, "index"),
    (Kind::Host, "host"),
    (Kind::Domain, "domain"),
];

impl Kind {
    /// Returns the kind and number of the member at this port.
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

/// The owner of a key: valid for as long as the owner exists, and for no later one with its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    kind: Kind,
    number: u32,
    /// The change that created the owner. 0 for domains: their numbers are never reused.
    since: u64,
}

/// The owner whose key a request needs, as the request names it. An owner that does not exist has no key:
/// then the request is refused for that reason, or creates the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequiredKey<'a> {
    /// By number.
    Numbered(Kind, u32),
    /// By name, if it exists.
    Named(Kind, &'a str),
    /// The domain of a process.
    Process(u32),
    /// The domain of an object.
    Object(u64),
    /// The domain of the allocation that holds an address.
    Address(u64),
    /// No owner: only the operator may make the request.
    Operator,
}

/// Returns the owners whose keys a request needs, all of them. If there are none, the rack's token suffices.
#[must_use]
pub fn wanted(request: &Request) -> Vec<RequiredKey<'_>> {
    let host = |host: u16| RequiredKey::Numbered(Kind::Host, host.into());
    let domain = |domain: u32| RequiredKey::Numbered(Kind::Domain, domain);
    let one = |whose| Vec::from([whose]);
    match request {
        Request::JoinSwitch(_) => one(RequiredKey::Numbered(Kind::Switch, 0)),
        Request::JoinNode(JoinNode { name, card, .. }) => {
            let named = [RequiredKey::Named(Kind::Node, name)];
            named.into_iter().chain(card.as_ref().map(|card| domain(card.domain))).collect()
        }
        Request::JoinIndex(JoinIndex { name, .. }) => one(RequiredKey::Named(Kind::Index, name)),
        Request::JoinHost(JoinHost { name, .. }) => one(RequiredKey::Named(Kind::Host, name)),
        Request::Leave(call) => Kind::of(call.port)
            .map(|(kind, number)| RequiredKey::Numbered(kind, number))
            .into_iter()
            .collect(),
        // A false report of the end harms only its sender.
        Request::ActFor(ActFor { host: actor, begins: false, .. }) => one(host(*actor)),
        Request::ActFor(ActFor { host: actor, of_host, .. }) => Vec::from([host(*actor), host(*of_host)]),
        Request::CreateDomain(CreateDomain { name }) => one(RequiredKey::Named(Kind::Domain, name)),
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
        | Request::Brk(Brk { process, .. }) => one(RequiredKey::Process(*process)),
        Request::HoldObject(HoldObject { host: of, object, .. })
        | Request::ResizeObject(ResizeObject { host: of, object, .. })
        | Request::LoadObject(LoadObject { host: of, object, .. })
        | Request::SaveObject(SaveObject { host: of, object }) => {
            Vec::from([host(*of), RequiredKey::Object(*object)])
        }
        Request::ListObjects(call) => one(call.domain.map_or(RequiredKey::Operator, domain)),
        Request::Migrate(Migrate { domain: of, base, .. }) => {
            one(of.map_or(RequiredKey::Address(*base), domain))
        }
        // The rack's layout, and the length of a file that a node offers to all.
        Request::Overview(_)
        | Request::Usage(_)
        | Request::Locate(_)
        | Request::SoftShow(_)
        | Request::LookFile(_) => Vec::new(),
    }
}

/// Returns true if a request creates a member, whose key only the answer states.
pub(crate) const fn brings_in(request: &Request) -> bool {
    matches!(
        request,
        Request::JoinSwitch(_) | Request::JoinNode(_) | Request::JoinIndex(_) | Request::JoinHost(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    /// Different owners have different keys, and so has one owner in another rack; a key is valid for its
    /// owner alone.
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

    /// Valid and invalid key texts.
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
}
