//! The message that proves an address: the control plane sends it to the address that a join names
//! (PROTOCOL 8.74).

use super::{Header, VERSION, put_numbered, read_numbered};
use crate::{Qkey, Qpn, WireError};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// The queue pair of a member that has none yet: InfiniBand's general service interface (IBA 16).
pub const GSI_QPN: Qpn = Qpn::new(1);
/// The Q_Key of [`GSI_QPN`], which every endpoint knows.
pub const GSI_QKEY: Qkey = Qkey(0x8001_0000);

/// An unguessable number that only the holder of an address receives; 32 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub [u8; Self::LEN]);

impl Cookie {
    /// Bytes of a cookie.
    pub const LEN: usize = 16;
}

impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Omits the cookie: printed text may be stored where others read it.
impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie")
    }
}

/// The error for text that is no cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CookieError;

impl fmt::Display for CookieError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected a cookie of {} hexadecimal digits", 2 * Cookie::LEN)
    }
}

impl core::error::Error for CookieError {}

impl FromStr for Cookie {
    type Err = CookieError;

    fn from_str(text: &str) -> Result<Self, CookieError> {
        if text.len() != 2 * Self::LEN || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(CookieError);
        }
        u128::from_str_radix(text, 16).map(|number| Self(number.to_be_bytes())).map_err(|_| CookieError)
    }
}

/// A cookie on its way to the address of a joining member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CookieMessage {
    /// The tag of the claim that the cookie proves. A member ignores cookies of other claims (PROTOCOL 8.77).
    pub tag: u64,
    /// The cookie, which the member shows with its next join request.
    pub cookie: Cookie,
}

/// The kind (PROTOCOL 3.4).
const COOKIE: u8 = 0x64;

impl CookieMessage {
    /// Bytes of the message.
    pub const LEN: usize = Header::LEN + Cookie::LEN;

    /// Returns true if the payload is a cookie message of this version.
    #[must_use]
    pub const fn is(payload: &[u8]) -> bool {
        matches!(payload, [VERSION, COOKIE, ..])
    }

    /// Reads a message. Checks its length, its number and its reserved fields.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let (kind, tag, mut r) = read_numbered("cookie message", payload)?;
        if kind != COOKIE {
            return Err(WireError::Unknown { what: "message.kind", value: kind.into() });
        }
        let cookie = Cookie(r.array()?);
        r.end()?;
        Ok(Self { tag, cookie })
    }

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_numbered(out, COOKIE, self.tag);
        out.extend_from_slice(&self.cookie.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;
    use alloc::vec;
    use proptest::prelude::*;

    proptest! {
        /// A message and a text are read as they were written; shorter ones are rejected.
        #[test]
        fn cookies_survive_the_round_trip(tag: u64, bytes in any::<[u8; Cookie::LEN]>()) {
            let cookie = Cookie(bytes);
            let mut message = vec![];
            CookieMessage { tag, cookie }.emit(&mut message);
            prop_assert_eq!(message.len(), CookieMessage::LEN);
            prop_assert!(CookieMessage::is(&message));
            prop_assert_eq!(CookieMessage::parse(&message), Ok(CookieMessage { tag, cookie }));
            for have in 0..message.len() {
                prop_assert!(CookieMessage::parse(&message[..have]).is_err(), "{} bytes", have);
            }
            prop_assert_eq!(cookie.to_string().parse(), Ok(cookie));
        }

        /// Hostile bytes are rejected, or are exactly one message.
        #[test]
        fn hostile_bytes_are_rejected(number in 0..2_u64, rest in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut bytes = vec![];
            put_numbered(&mut bytes, COOKIE, number);
            bytes.extend(rest);
            if let Ok(message) = CookieMessage::parse(&bytes) {
                let mut again = vec![];
                message.emit(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    /// Texts that are no cookie.
    #[test]
    fn a_cookie_has_32_digits() {
        for text in ["", "00", "+0000000000000000000000000000abc", &"0".repeat(33), &"g".repeat(32)] {
            assert_eq!(text.parse::<Cookie>(), Err(CookieError), "{text}");
        }
    }
}
