//! Socket addresses in the kernel's form.

use farmem_wire::Gid;
use std::mem;

/// An address and port in the kernel's form. All zero is no address.
#[derive(Clone, Copy)]
pub(crate) struct SockAddr {
    storage: libc::sockaddr_storage,
}

/// The families as stored in a `sockaddr_storage`.
const V4: libc::sa_family_t = 2;
const V6: libc::sa_family_t = 10;
const _: () = assert!(libc::AF_INET == 2 && libc::AF_INET6 == 10);

/// Length in bytes of a socket address of each family.
const V4_LEN: libc::socklen_t = 16;
const V6_LEN: libc::socklen_t = 28;
const _: () = assert!(size_of::<libc::sockaddr_in>() == 16 && size_of::<libc::sockaddr_in6>() == 28);

impl SockAddr {
    /// Returns no address.
    pub(crate) const fn none() -> Self {
        // SAFETY: integers only; all zero is the unspecified family.
        Self { storage: unsafe { mem::zeroed() } }
    }

    /// Creates the address with `gid` and `port`.
    pub(crate) fn new(gid: Gid, port: u16) -> Self {
        let mut address = Self::none();
        match gid.as_v4() {
            Some(octets) => {
                let v4 = libc::sockaddr_in {
                    sin_family: V4,
                    sin_port: port.to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_be_bytes(octets).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: a sockaddr_storage is larger than a sockaddr_in and aligned for it.
                unsafe { (&raw mut address.storage).cast::<libc::sockaddr_in>().write(v4) };
            }
            None => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: V6,
                    sin6_port: port.to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: gid.0 },
                    sin6_scope_id: 0,
                };
                // SAFETY: a sockaddr_storage is larger than a sockaddr_in6 and aligned for it.
                unsafe { (&raw mut address.storage).cast::<libc::sockaddr_in6>().write(v6) };
            }
        }
        address
    }

    /// Returns the IP address, if there is one.
    pub(crate) fn gid(&self) -> Option<Gid> {
        match self.storage.ss_family {
            V4 => Some(Gid::from_v4(u32::from_be(self.v4().sin_addr.s_addr).to_be_bytes())),
            V6 => Some(Gid(self.v6().sin6_addr.s6_addr)),
            _ => None,
        }
    }

    /// Returns the UDP port, if there is one.
    pub(crate) fn port(&self) -> Option<u16> {
        match self.storage.ss_family {
            V4 => Some(u16::from_be(self.v4().sin_port)),
            V6 => Some(u16::from_be(self.v6().sin6_port)),
            _ => None,
        }
    }

    fn v4(&self) -> libc::sockaddr_in {
        // SAFETY: a sockaddr_storage is larger than a sockaddr_in and aligned for it, and any bytes are a
        // valid one.
        unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() }
    }

    fn v6(&self) -> libc::sockaddr_in6 {
        // SAFETY: a sockaddr_storage is larger than a sockaddr_in6 and aligned for it, and any bytes are a
        // valid one.
        unsafe { (&raw const self.storage).cast::<libc::sockaddr_in6>().read() }
    }

    /// Returns the length in bytes of the address of its family.
    pub(crate) const fn len(&self) -> libc::socklen_t {
        if self.storage.ss_family == V4 { V4_LEN } else { V6_LEN }
    }

    /// Length in bytes that the kernel may write.
    pub(crate) const CAPACITY: libc::socklen_t = 128;

    pub(crate) const fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) const fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }
}

const _: () = assert!(size_of::<SockAddr>() == 128);

impl std::fmt::Debug for SockAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}:{:?}", self.gid(), self.port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses of both families survive a round trip; an empty one gives nothing.
    #[test]
    fn an_address_survives_the_kernels_form() {
        for gid in [Gid::from_v4([127, 71, 0, 1]), Gid([0xfd; 16])] {
            let address = SockAddr::new(gid, 4791);
            assert_eq!((address.gid(), address.port()), (Some(gid), Some(4791)));
        }
        assert_eq!((SockAddr::none().gid(), SockAddr::none().port()), (None, None));
    }
}
