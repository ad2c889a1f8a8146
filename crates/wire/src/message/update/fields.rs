//! Fields that several updates have: readers that validate them, and writers.

use crate::message::{CACHING_HOSTS_MAX, PAGE_SHIFT};
use crate::reader::{Put, Reader};
use crate::{Gid, HostId, Pmtu, Qkey, Qpn, VirtAddr, WireError};
use alloc::vec::Vec;

pub(super) fn qpn(r: &mut Reader<'_>) -> Result<Qpn, WireError> {
    let bits = r.u32()?;
    if bits > Qpn::MAX {
        return Err(WireError::Unknown { what: "update: a 24-bit number", value: u64::from(bits) });
    }
    Ok(Qpn::new(bits))
}

/// Reads the number of a host that can cache pages (PROTOCOL 12.3).
pub(super) fn caching_host(r: &mut Reader<'_>) -> Result<HostId, WireError> {
    let host = r.u16()?;
    if host >= CACHING_HOSTS_MAX {
        return Err(WireError::Unknown { what: "update.host", value: u64::from(host) });
    }
    Ok(HostId(host))
}

pub(super) fn pmtu(r: &mut Reader<'_>) -> Result<Pmtu, WireError> {
    let bytes = r.u16()?;
    let Some(pmtu) = Pmtu::from_bytes(usize::from(bytes)) else {
        return Err(WireError::Unknown { what: "update.pmtu", value: u64::from(bytes) });
    };
    Ok(pmtu)
}

/// Reads a base that is aligned to its power-of-two size.
pub(super) fn prefix(r: &mut Reader<'_>) -> Result<(VirtAddr, u8), WireError> {
    let (base, size_log2) = (r.u64()?, r.u8()?);
    if size_log2 > 63 {
        return Err(WireError::Unknown { what: "update.size_log2", value: u64::from(size_log2) });
    }
    if base & ((1 << size_log2) - 1) != 0 {
        return Err(WireError::Unknown { what: "update.base, not a multiple of its size", value: base });
    }
    Ok((VirtAddr(base), size_log2))
}

/// Reads an aligned prefix of whole pages.
pub(super) fn pages(r: &mut Reader<'_>) -> Result<(VirtAddr, u8), WireError> {
    let (base, size_log2) = prefix(r)?;
    if u32::from(size_log2) < PAGE_SHIFT {
        return Err(WireError::Unknown { what: "update.size_log2 of pages", value: u64::from(size_log2) });
    }
    Ok((base, size_log2))
}

/// Checks that a range in a node's memory ends below 2^64.
pub(super) fn inside(offset: u64, size_log2: u8) -> Result<u64, WireError> {
    if offset.checked_add(1 << size_log2).is_none() {
        return Err(WireError::Unknown { what: "update.offset", value: offset });
    }
    Ok(offset)
}

pub(super) fn put_pages(tag: u8, base: VirtAddr, size_log2: u8, out: &mut Vec<u8>) {
    out.put_u8(tag);
    out.put_u64(base.0);
    out.put_u8(size_log2);
}

pub(super) fn put_end(port: u32, gid: Gid, qpn: Qpn, qkey: Qkey, out: &mut Vec<u8>) {
    out.put_u32(port);
    out.extend_from_slice(&gid.0);
    out.put_u32(qpn.get());
    out.put_u32(qkey.0);
}

/// Reads a non-empty range that stays inside the address space.
pub(super) fn span(r: &mut Reader<'_>) -> Result<(VirtAddr, u64), WireError> {
    let (base, len) = (r.u64()?, r.u64()?);
    if len == 0 || base.checked_add(len).is_none() {
        return Err(WireError::Unknown { what: "update.len", value: len });
    }
    Ok((VirtAddr(base), len))
}

pub(super) fn put_span(base: VirtAddr, len: u64, out: &mut Vec<u8>) {
    out.put_u64(base.0);
    out.put_u64(len);
}
