//! The invariant CRC of a frame: full, incremental, and with an unknown IP identification (PROTOCOL 2.7 to
//! 2.10).
//!
//! The ICRC covers the IP and UDP headers as sent, so only a link that knows them can seal and check it; a
//! [`Route`] holds them. The CRC itself comes from crc32fast. This file feeds it, and has the arithmetic
//! modulo its polynomial. With this arithmetic a switch patches a CRC without the payload, and a receiver
//! solves for a header field that it cannot see.
//!
//! Nothing here allocates.

use crate::{Gid, UDP_PORT, WireError, bth};
use alloc::vec::Vec;
use crc32fast::Hasher;

/// Bytes of an ICRC.
pub const LEN: usize = 4;

/// The longest frame: with headers and ICRC it fills an IPv4 packet.
pub const FRAME_LEN_MAX: usize = 65_535 - V4_LEN - UDP_LEN - LEN;

const V4_LEN: usize = 20;
const V6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// Length of the masked local route header, which RoCE does not have (IBA A17.3.3).
const LRH_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// Masked fields count as ones.
const MASK: u8 = 0xff;
/// Covered bytes between an IPv4 header's identification and the frame.
const AFTER_ID: usize = V4_LEN - 6 + UDP_LEN;

/// The fields outside the frame that the ICRC covers. The destination port is always [`UDP_PORT`].
///
/// Two IPv4 addresses make an IPv4 packet: 20 bytes of header, don't-fragment set, no fragments. All other
/// addresses make an IPv6 packet without extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The sender's address.
    pub src: Gid,
    /// The receiver's address.
    pub dst: Gid,
    /// The sender's UDP port.
    pub src_port: u16,
    /// The identification in the IPv4 header; without meaning over IPv6.
    ///
    /// An unconnected Linux socket that never fragments sends 0. The k-th segment of a segmented send has `k`
    /// (PROTOCOL 2.9).
    pub ip_id: u16,
}

impl Route {
    /// Returns both addresses, if this is an IPv4 route.
    fn as_v4(&self) -> Option<([u8; 4], [u8; 4])> {
        Some((self.src.as_v4()?, self.dst.as_v4()?))
    }
}

/// Computes the ICRC of `frame` for `route`. The wire has it in little-endian order.
///
/// # Panics
/// If the frame is shorter than a BTH or longer than [`FRAME_LEN_MAX`].
#[must_use]
pub fn compute(route: &Route, frame: &[u8]) -> u32 {
    assert!(frame.len() <= FRAME_LEN_MAX, "a frame fits an IP packet");
    let (bth, rest) = frame.split_at(bth::LEN);
    let udp_len = len16(UDP_LEN + frame.len() + LEN);
    let mut hasher = Hasher::new();
    // One update per header, not one per field: below a hundred bytes the calls would cost more than the CRC.
    match route.as_v4() {
        Some((src, dst)) => {
            let ip_len = len16(V4_LEN + UDP_LEN + frame.len() + LEN);
            let mut head = [MASK; LRH_LEN + V4_LEN + UDP_LEN + bth::LEN];
            let (ip, udp) = head[LRH_LEN..].split_at_mut(V4_LEN);
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&ip_len);
            ip[4..6].copy_from_slice(&route.ip_id.to_be_bytes());
            ip[6..8].copy_from_slice(&[0x40, 0]);
            ip[9] = PROTOCOL_UDP;
            ip[12..16].copy_from_slice(&src);
            ip[16..20].copy_from_slice(&dst);
            put_udp_and_bth(udp, route.src_port, udp_len, bth);
            hasher.update(&head);
        }
        None => {
            let mut head = [MASK; LRH_LEN + V6_LEN + UDP_LEN + bth::LEN];
            let (ip, udp) = head[LRH_LEN..].split_at_mut(V6_LEN);
            ip[0] = 0x6f;
            ip[4..6].copy_from_slice(&udp_len);
            ip[6] = PROTOCOL_UDP;
            ip[8..24].copy_from_slice(&route.src.0);
            ip[24..40].copy_from_slice(&route.dst.0);
            put_udp_and_bth(udp, route.src_port, udp_len, bth);
            hasher.update(&head);
        }
    }
    hasher.update(rest);
    hasher.finalize()
}

/// Appends the ICRC of the frame that starts at `frame_start` of `packet`.
///
/// # Panics
/// If this frame is shorter than a BTH or longer than [`FRAME_LEN_MAX`].
pub fn seal(route: &Route, packet: &mut Vec<u8>, frame_start: usize) {
    let icrc = compute(route, &packet[frame_start..]);
    packet.extend_from_slice(&icrc.to_le_bytes());
}

/// Checks the ICRC of `packet` and returns the frame without it.
///
/// # Errors
/// [`WireError::Icrc`] if the ICRC does not match; [`WireError::Short`] and [`WireError::Long`] if no frame
/// has this length.
pub fn check<'a>(route: &Route, packet: &'a [u8]) -> Result<&'a [u8], WireError> {
    let (frame, found) = split(packet)?;
    if compute(route, frame) == found { Ok(frame) } else { Err(WireError::Icrc) }
}

/// Checks a packet whose IPv4 identification the UDP socket does not show; returns the frame and the
/// identification.
///
/// The check tries `route.ip_id` first, with the full strength of 32 bits. If the ICRC does not match, the
/// check solves for the identification that would make it match. A corrupted packet then passes with
/// probability 2^-16 (PROTOCOL 2.10).
///
/// # Errors
/// The errors of [`check`]; [`WireError::Icrc`] if no identification makes the ICRC match.
pub fn check_any_id<'a>(route: &Route, packet: &'a [u8]) -> Result<(&'a [u8], u16), WireError> {
    let (frame, found) = split(packet)?;
    let difference = compute(route, frame) ^ found;
    if difference == 0 {
        return Ok((frame, route.ip_id));
    }
    if route.as_v4().is_none() {
        return Err(WireError::Icrc);
    }
    // Two packets that differ by `d` in the identification differ by d(x) * x^32 * x^(8 * tail) in the ICRC.
    // So `d` is the difference divided by this power. The quotient has a degree below 16 only if nothing else
    // is wrong.
    let [low @ .., high, last] =
        UNSHIFT.times(difference, len16_of(AFTER_ID + frame.len() + LEN)).to_le_bytes();
    if low != [0, 0] {
        return Err(WireError::Icrc);
    }
    Ok((frame, route.ip_id ^ u16::from_be_bytes([high, last])))
}

/// Updates an ICRC after the covered bytes `old_span` became `new_span`, `tail_len` covered bytes before the
/// ICRC.
///
/// The span may be any run of bytes that the ICRC covers, with masked bytes as ones in both. So a switch
/// rewrites headers without reading the payload (PROTOCOL 2.8).
///
/// # Panics
/// If the spans differ in length, or `tail_len` is more than an IP packet holds.
#[must_use]
pub fn patch(old_icrc: u32, tail_len: usize, old_span: &[u8], new_span: &[u8]) -> u32 {
    assert_eq!(old_span.len(), new_span.len(), "a rewrite keeps the length");
    // Start value and final complement cancel out; the CRC of the difference remains.
    let difference = crc32fast::hash(old_span) ^ crc32fast::hash(new_span);
    old_icrc ^ SHIFT.times(difference, len16_of(tail_len))
}

fn put_udp_and_bth(out: &mut [u8], src_port: u16, udp_len: [u8; 2], bth: &[u8]) {
    out[0..2].copy_from_slice(&src_port.to_be_bytes());
    out[2..4].copy_from_slice(&UDP_PORT.to_be_bytes());
    out[4..6].copy_from_slice(&udp_len);
    out[UDP_LEN..].copy_from_slice(bth);
    out[UDP_LEN + bth::CONGESTION] = MASK;
}

fn split(packet: &[u8]) -> Result<(&[u8], u32), WireError> {
    let (need, most) = (bth::LEN + LEN, FRAME_LEN_MAX + LEN);
    if packet.len() < need {
        return Err(WireError::Short { what: "packet with ICRC", need, have: packet.len() });
    }
    if packet.len() > most {
        return Err(WireError::Long { what: "packet with ICRC", most, have: packet.len() });
    }
    let (frame, icrc) = packet.split_at(packet.len() - LEN);
    Ok((frame, u32::from_le_bytes([icrc[0], icrc[1], icrc[2], icrc[3]])))
}

fn len16(len: usize) -> [u8; 2] {
    len16_of(len).to_be_bytes()
}

fn len16_of(len: usize) -> u16 {
    u16::try_from(len).expect("no part of an IP packet is longer than 65,535 bytes")
}

/// The CRC's polynomial without x^32, reflected as all polynomials here: bit 31 is x^0, bit 0 is x^31.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x^0.
const ONE: u32 = 1 << 31;

/// Powers that append zero bytes: multiplication by x^8n appends n of them.
static SHIFT: Powers = Powers::of(ONE >> 8);
/// Powers that remove zero bytes: multiplication by x^-8n removes n of them.
static UNSHIFT: Powers = Powers::of({
    let mut inverse = ONE;
    let mut bits = 0;
    while bits < 8 {
        inverse = over_x(inverse);
        bits += 1;
    }
    inverse
});

/// The powers 0 to 65,535 of one polynomial. Each is the product of two table entries: 2 KiB instead of 256.
struct Powers {
    low: [u32; 256],
    /// Powers of the 256th power.
    high: [u32; 256],
}

impl Powers {
    const fn of(base: u32) -> Self {
        let low = Self::table(base);
        Self { low, high: Self::table(multiply(low[255], base)) }
    }

    const fn table(base: u32) -> [u32; 256] {
        let mut powers = [ONE; 256];
        let mut n = 1;
        while n < 256 {
            powers[n] = multiply(powers[n - 1], base);
            n += 1;
        }
        powers
    }

    /// Multiplies `value` by the `n`-th power.
    fn times(&self, value: u32, n: u16) -> u32 {
        let [high, low] = n.to_be_bytes();
        let product = multiply(self.low[usize::from(low)], value);
        if high == 0 { product } else { multiply(self.high[usize::from(high)], product) }
    }
}

/// Multiplies two polynomials modulo the CRC's polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut power = ONE;
    while power != 0 {
        if a & power != 0 {
            product ^= b;
        }
        b = times_x(b);
        power >>= 1;
    }
    product
}

const fn times_x(a: u32) -> u32 {
    if a & 1 == 0 { a >> 1 } else { a >> 1 ^ POLYNOMIAL }
}

/// Divides by x: the inverse of [`times_x`]. The polynomial has an x^0, so bit 31 of a reduced product shows
/// the reduction.
const fn over_x(a: u32) -> u32 {
    if a & ONE == 0 { a << 1 } else { (a ^ POLYNOMIAL) << 1 | 1 }
}

#[cfg(test)]
mod tests;
