//! Numbers that must not be mixed up, each with a type of its own.

use core::fmt;

/// A global virtual address: a byte in far memory, the same on every machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VirtAddr(pub u64);

impl VirtAddr {
    /// The null pointer of far memory. Nothing is ever mapped there.
    pub const NULL: Self = Self(0);

    /// Returns the address `bytes` further on, unless this leaves the 64-bit space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// Returns true for address 0.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The largest queue pair number.
    pub const MAX: u32 = 0x00ff_ffff;
    /// The first QPN that is handed out. 0 and 1 belong to InfiniBand's management, the others below to
    /// farmem's services.
    pub const FIRST_FREE: u32 = 16;

    /// Creates a number from the low 24 bits.
    #[must_use]
    pub const fn new(bits: u32) -> Self {
        Self(bits & Self::MAX)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A packet sequence number: arithmetic modulo 2^24 (PROTOCOL 2.11).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    /// The largest PSN; the next one is 0.
    pub const MAX: u32 = 0x00ff_ffff;

    /// Creates a number from the low 24 bits.
    #[must_use]
    pub const fn new(bits: u32) -> Self {
        Self(bits & Self::MAX)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the PSN `n` packets later, wrapping.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & Self::MAX)
    }

    /// Returns the PSN `n` packets earlier, wrapping.
    #[must_use]
    pub const fn minus(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n) & Self::MAX)
    }

    /// Returns the signed 24-bit difference `self - other`: positive if `self` is later, in `-2^23..2^23`.
    #[must_use]
    pub const fn distance(self, other: Self) -> i32 {
        #[expect(
            clippy::cast_possible_wrap,
            reason = "shifting the 24-bit difference into the sign bit is the point"
        )]
        let shifted = (self.0.wrapping_sub(other.0) << 8) as i32;
        shifted >> 8
    }
}

/// A remote key: a one-sided request must show it to access memory. Random per connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rkey(pub u32);

/// A queue key: a UD message must show it, or the receiver drops the message. Random per endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Qkey(pub u32);

impl Qkey {
    /// The first privileged Q_Key: the top bit is set. Verbs let only privileged users set such a key, and a
    /// sender that is told to use one uses the key of its own queue pair instead (IBA 10.2.5).
    pub const PRIVILEGED: u32 = 1 << 31;
}

/// The number of a memory node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u16);

/// The number of a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct HostId(pub u16);

/// A protection domain (MIND 4.2). 0 is no domain and has no grants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Domain(pub u32);

/// The id of one request: host, generation of the host, and a counter. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RequestId(pub u64);

impl RequestId {
    /// Combines 16 bits of host, 16 of generation and 32 of counter.
    #[must_use]
    pub const fn new(host: HostId, generation: u16, counter: u32) -> Self {
        Self((host.0 as u64) << 48 | (generation as u64) << 32 | counter as u64)
    }

    /// Returns the generation of the host that made the request.
    #[must_use]
    pub const fn generation(self) -> u16 {
        (self.0 >> 32 & 0xffff) as u16
    }

    /// Returns the host that made the request.
    #[must_use]
    pub const fn host(self) -> HostId {
        HostId((self.0 >> 48) as u16)
    }

    /// Returns the counter: the number of the request within the host's generation.
    #[must_use]
    pub const fn counter(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }

    /// Returns the id with another counter, of the same host and generation.
    #[must_use]
    pub const fn with_counter(self, counter: u32) -> Self {
        Self(self.0 >> 32 << 32 | counter as u64)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}.{}.{}", self.0 >> 48, self.0 >> 32 & 0xffff, self.0 & 0xffff_ffff)
    }
}

/// A permission class (MIND 4.2): the accesses that a domain has to a vma. Ordered: a greater class includes
/// a smaller one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Perm {
    /// No access.
    #[default]
    None = 0,
    /// Loads.
    Read = 1,
    /// Loads, stores, atomics.
    ReadWrite = 2,
}

impl Perm {
    /// Returns true if this class includes `wanted`.
    #[must_use]
    pub fn allows(self, wanted: Self) -> bool {
        self >= wanted
    }

    /// Returns the class with this number.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::None),
            1 => Some(Self::Read),
            2 => Some(Self::ReadWrite),
            _ => None,
        }
    }
}

/// A RoCE address: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    const V4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

    /// Returns the GID of an IPv4 address.
    #[must_use]
    pub const fn from_v4(octets: [u8; 4]) -> Self {
        let ([.., ones, last], [a, b, c, d]) = (Self::V4_PREFIX, octets);
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ones, last, a, b, c, d])
    }

    /// Returns the IPv4 address, if the GID contains one.
    #[must_use]
    pub fn as_v4(self) -> Option<[u8; 4]> {
        let (prefix, octets) = self.0.split_at(12);
        if prefix == Self::V4_PREFIX { octets.try_into().ok() } else { None }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_v4() {
            Some([a, b, c, d]) => write!(f, "{a}.{b}.{c}.{d}"),
            None => write!(f, "{}", core::net::Ipv6Addr::from(self.0)),
        }
    }
}

/// The name of a program: the first 128 bits of the SHA-256 of its encoded form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ProgramHash(pub [u8; 16]);

impl ProgramHash {
    /// Returns true if the program stores to far memory: the last bit of its name is set (PROTOCOL 10.17).
    #[must_use]
    pub const fn stores(&self) -> bool {
        self.0[15] & 1 == 1
    }
}

impl fmt::Debug for ProgramHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0[..4] {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("..")
    }
}

/// A path MTU: the payload bytes of a full packet. Both ends of a connection use the same value (PROTOCOL
/// 2.6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum Pmtu {
    /// 256 bytes.
    B256 = 256,
    /// 512 bytes.
    B512 = 512,
    /// 1024 bytes, for links with an MTU of 1500.
    B1024 = 1024,
    /// 2048 bytes.
    B2048 = 2048,
    /// 4096 bytes, for loopback and jumbo links.
    B4096 = 4096,
}

impl Pmtu {
    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self as usize
    }

    /// Returns the smallest PMTU that holds `bytes`.
    #[must_use]
    pub fn fitting(bytes: usize) -> Option<Self> {
        [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096]
            .into_iter()
            .find(|pmtu| bytes <= pmtu.bytes())
    }

    /// Returns the PMTU of exactly `bytes`.
    #[must_use]
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            256 => Some(Self::B256),
            512 => Some(Self::B512),
            1024 => Some(Self::B1024),
            2048 => Some(Self::B2048),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }

    /// Returns the number of packets that `len` bytes need, at least one (PROTOCOL 2.11).
    #[must_use]
    pub const fn packets(self, len: u32) -> u32 {
        let n = len.div_ceil(self as u32);
        if n == 0 { 1 } else { n }
    }
}

#[cfg(test)]
mod tests;
