//! Cookies, which prove the address of a joining member (PROTOCOL 8.75).

use super::{Kind, Secret};
use crate::api::Request;
use crate::member_address::parse_gid;
use farmem_machine::{Duration, Instant};
use farmem_wire::Gid;
use farmem_wire::message::Cookie;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};

/// Time after which the control plane issues another cookie for the same claim. A cookie is valid for this
/// time at least, and for twice as long at most.
pub const COOKIE_LIFE: Duration = Duration::from_secs(30);

/// The state of a caller's proof of its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AddressProof {
    /// The caller does not know of proofs: an older build, or a program that does not join.
    #[default]
    Unsupported,
    /// The caller waits for a cookie.
    Pending,
    /// The cookie that the caller received.
    Cookie(Cookie),
}

/// The claim of a joining member: its kind, its name and its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressClaim<'a> {
    /// The kind of the member.
    pub kind: Kind,
    /// The name of the member; empty for the switch.
    pub name: &'a str,
    /// The address.
    pub gid: Gid,
}

impl<'a> AddressClaim<'a> {
    /// Returns the claim of a join request; `None` for other requests, and for a text that is no address.
    #[must_use]
    pub fn of(request: &'a Request) -> Option<Self> {
        let (kind, name, gid) = match request {
            Request::JoinSwitch(call) => (Kind::Switch, "", &call.gid),
            Request::JoinNode(call) => (Kind::Node, call.name.as_str(), &call.gid),
            Request::JoinIndex(call) => (Kind::Index, call.name.as_str(), &call.gid),
            Request::JoinHost(call) => (Kind::Host, call.name.as_str(), &call.gid),
            _ => return None,
        };
        parse_gid(gid).ok().map(|gid| Self { kind, name, gid: Gid(gid) })
    }

    /// Returns the tag of the claim. Everyone can compute it: a cookie with the tag is of this claim, unless it
    /// is forged, and no holder of the rack's token finds a claim of another member with the same tag.
    #[must_use]
    pub fn tag(&self) -> u64 {
        let text = Sha256::new_with_prefix(b"farmem claim\0");
        let text = text.chain_update([self.kind as u8]).chain_update(self.gid.0).chain_update(self.name);
        let digest: [u8; 32] = text.finalize().into();
        let (first, _) = digest.split_first_chunk().expect("SHA-256 has 32 bytes");
        u64::from_be_bytes(*first)
    }
}

impl Secret {
    /// Returns the cookie for a claim at this time.
    #[must_use]
    pub fn cookie(&self, claim: &AddressClaim<'_>, now: Instant) -> Cookie {
        let mac = self.cookie_mac(claim, epoch(now)).finalize().into_bytes();
        let (half, _) = mac.split_first_chunk().expect("SHA-256 has 32 bytes");
        Cookie(*half)
    }

    /// Returns true if the cookie was issued for this claim, in the present period or the one before.
    /// Compares in constant time.
    #[must_use]
    pub fn cookie_fits(&self, claim: &AddressClaim<'_>, cookie: Cookie, now: Instant) -> bool {
        let present = epoch(now);
        [Some(present), present.checked_sub(1)].into_iter().flatten().fold(false, |fits, epoch| {
            self.cookie_mac(claim, epoch).verify_truncated_left(&cookie.0).is_ok() | fits
        })
    }

    fn cookie_mac(&self, claim: &AddressClaim<'_>, epoch: u64) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(b"farmem address\0");
        mac.update(&[claim.kind as u8]);
        mac.update(&claim.gid.0);
        mac.update(&epoch.to_be_bytes());
        mac.update(claim.name.as_bytes());
        mac
    }
}

/// Returns the number of the period that a time lies in.
const fn epoch(now: Instant) -> u64 {
    now.as_nanos() / COOKIE_LIFE.as_nanos()
}
