//! The addresses of roles and clients.

use crate::config::page::{Page, is_of_one_machine};
use crate::config::raw::RawHosts;
use crate::error::Error;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;
use toml::Spanned;

/// Maximum number of addresses that a rack reserves for clients.
pub(super) const HOSTS_MAX: u32 = 4096;

/// The addresses of the roles so far. Each role has its own, and all are of one family, because roles send to
/// each other.
#[derive(Default)]
pub(super) struct TakenAddresses(BTreeSet<IpAddr>);

impl TakenAddresses {
    /// Returns all addresses.
    pub(super) fn all(&self) -> impl Iterator<Item = &IpAddr> {
        self.0.iter()
    }

    pub(super) fn take(&mut self, page: &Page<'_>, of: &str, raw: &Spanned<String>) -> Result<IpAddr, Error> {
        let address = page.address(of, raw)?;
        self.same_family(page, of, address, &raw.span())?;
        if self.0.insert(address) {
            return Ok(address);
        }
        let message = format!("{of} has the address {address}, which is taken: each role needs its own");
        Err(page.fault(&raw.span(), message))
    }

    pub(super) fn same_family(
        &self,
        page: &Page<'_>,
        of: &str,
        address: IpAddr,
        at: &Range<usize>,
    ) -> Result<(), Error> {
        match self.0.first() {
            Some(other) if other.is_ipv4() != address.is_ipv4() => {
                let expected = "expected all addresses of a rack to be IPv4, or all IPv6";
                Err(page.fault(at, format!("{of} has the address {address}, another {other}: {expected}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the clients' addresses, none of which is a role's.
    pub(super) fn hosts(&self, page: &Page<'_>, raw: &RawHosts) -> Result<Vec<IpAddr>, Error> {
        let (first, count) = (page.address("the first client", &raw.first)?, *raw.count.as_ref());
        self.same_family(page, "the first client", first, &raw.first.span())?;
        if count == 0 || count > HOSTS_MAX {
            return Err(page.fault(&raw.count.span(), format!("count is {count}: expected 1 to {HOSTS_MAX}")));
        }
        let hosts: Option<Vec<IpAddr>> = (0..count).map(|n| nth_after(first, n)).collect();
        let hosts = hosts.filter(|all| all.iter().all(is_of_one_machine)).ok_or_else(|| {
            let expected = "expected this number of consecutive addresses of machines";
            page.fault(&raw.count.span(), format!("{count} clients' addresses from {first} on: {expected}"))
        })?;
        match hosts.iter().find(|host| self.0.contains(host)) {
            None => Ok(hosts),
            Some(role) => {
                let message = format!("the clients' addresses include {role}: expected none that a role has");
                Err(page.fault(&raw.first.span(), message))
            }
        }
    }
}

pub(super) fn nth_after(first: IpAddr, n: u32) -> Option<IpAddr> {
    match first {
        IpAddr::V4(a) => u32::from(a).checked_add(n).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(a) => u128::from(a).checked_add(n.into()).map(|bits| IpAddr::V6(bits.into())),
    }
}
