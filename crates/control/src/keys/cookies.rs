//! Cookies, which prove the address of a joining member (PROTOCOL 8.75).

use super::{Kind, Secret};
use farmem_machine::{Duration, Instant};
use farmem_wire::Gid;
use farmem_wire::message::Cookie;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

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
