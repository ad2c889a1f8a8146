//! Values of a description under check, with the lines of faults.

use crate::config::raw::RawRack;
use crate::config::terms::{CardsConfig, Transport};
use crate::error::Error;
use bytesize::ByteSize;
use farmem_link::{LinkProfile, ProfileError};
use farmem_machine::Duration;
use farmem_switch::directory::SLOTS_DEFAULT;
use farmem_wire::Pmtu;
use farmem_wire::message::PAGE_LEN;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use toml::{Spanned, Value};

/// The text under check, which locates faults.
pub(super) struct Page<'a> {
    pub(super) text: &'a str,
    pub(super) file: &'a Path,
    /// The base directory of relative paths.
    pub(super) beside: &'a Path,
}

impl Page<'_> {
    pub(super) fn fault(&self, at: &Range<usize>, message: String) -> Error {
        let before = &self.text.as_bytes()[..at.start.min(self.text.len())];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        Error::Config { file: self.file.to_owned(), message: format!("line {line}: {message}") }
    }

    pub(super) fn check_name(&self, of: &str, name: &Spanned<String>) -> Result<(), Error> {
        let text = name.as_ref();
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            return Ok(());
        }
        let message = format!("{text:?} is no name for {of}: expected 1 to 64 of A-Z a-z 0-9 . _ -");
        Err(self.fault(&name.span(), message))
    }

    pub(super) fn address(&self, of: &str, raw: &Spanned<String>) -> Result<IpAddr, Error> {
        let parsed: Option<IpAddr> = raw.as_ref().parse().ok();
        parsed.map(|address| address.to_canonical()).filter(is_of_one_machine).ok_or_else(|| {
            let expected = "expected the IP address of one machine, such as 127.71.0.11";
            self.fault(&raw.span(), format!("{of} has the address {:?}: {expected}", raw.as_ref()))
        })
    }

    pub(super) fn pmtu(&self, raw: &Spanned<usize>) -> Result<Pmtu, Error> {
        Pmtu::from_bytes(*raw.as_ref()).ok_or_else(|| {
            let expected =
                "expected 256, 512, 1024 (what links of 1500 bytes carry), 2048 or 4096 (jumbo links)";
            self.fault(&raw.span(), format!("pmtu is {}: {expected}", raw.as_ref()))
        })
    }

    pub(super) fn link(&self, raw: &Spanned<String>) -> Result<LinkProfile, Error> {
        raw.as_ref().parse().map_err(|e: ProfileError| self.fault(&raw.span(), format!("link: {e}")))
    }

    pub(super) fn cards(
        &self,
        raw: &Spanned<CardsConfig>,
        rack: &RawRack,
        any: IpAddr,
    ) -> Result<CardsConfig, Error> {
        let cards = *raw.as_ref();
        if rack.transport == Transport::Shm {
            let message = "[cards] in a rack over rings, which no card reaches: expected transport = \"udp\"";
            return Err(self.fault(&raw.span(), message.into()));
        }
        if cards.unknown_ip_id && any.is_ipv6() {
            let message =
                "unknown_ip_id in a rack of IPv6 addresses, which have no identification: expected none";
            return Err(self.fault(&raw.span(), message.into()));
        }
        Ok(cards)
    }

    /// Returns a path, relative to the file's directory.
    pub(super) fn directory(&self, key: &str, raw: &Spanned<PathBuf>) -> Result<PathBuf, Error> {
        if raw.as_ref().as_os_str().is_empty() {
            return Err(self.fault(&raw.span(), format!("{key} is empty: expected a directory")));
        }
        Ok(self.beside.join(raw.as_ref()))
    }

    /// Returns a number of milliseconds, or the default.
    pub(super) fn time(
        &self,
        key: &str,
        raw: Option<&Spanned<u64>>,
        allowed: RangeInclusive<u64>,
        usual: Duration,
    ) -> Result<Duration, Error> {
        Ok(raw.map(|raw| self.number(key, raw, &allowed)).transpose()?.map_or(usual, Duration::from_millis))
    }

    /// Returns the lease of hosts and domains, which is at least the lease of a host that caches.
    pub(super) fn host_lease(&self, raw: Option<&Spanned<u64>>, lease: Duration) -> Result<Duration, Error> {
        let least = lease.as_nanos() / 1_000_000;
        let usual = farmem_control::HOST_LEASE.max(lease);
        self.time("host_lease_ms", raw, least..=HOST_LEASE_MS_MAX, usual)
    }

    pub(super) fn slots(&self, raw: Option<&Spanned<u64>>) -> Result<usize, Error> {
        let written = raw.map(|raw| self.number("slots", raw, &SLOTS)).transpose()?;
        Ok(written.map_or(SLOTS_DEFAULT, |slots| usize::try_from(slots).expect("at most 2^24")))
    }

    pub(super) fn number(
        &self,
        key: &str,
        raw: &Spanned<u64>,
        allowed: &RangeInclusive<u64>,
    ) -> Result<u64, Error> {
        let number = *raw.as_ref();
        if allowed.contains(&number) {
            return Ok(number);
        }
        let (least, most) = (allowed.start(), allowed.end());
        Err(self.fault(&raw.span(), format!("{key} is {number}: expected {least} to {most}")))
    }

    /// Returns a size: a number of bytes, or a text with a unit.
    pub(super) fn memory(&self, node: &str, raw: &Spanned<Value>) -> Result<u64, Error> {
        self.bytes(&format!("node {node:?} has memory"), raw)
    }

    pub(super) fn bytes(&self, of: &str, raw: &Spanned<Value>) -> Result<u64, Error> {
        let bytes = match raw.as_ref() {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::String(text) => text.parse().ok().map(|size: ByteSize| size.as_u64()),
            _ => None,
        };
        bytes.filter(|&bytes| bytes != 0 && bytes % MEMORY_UNIT == 0).ok_or_else(|| {
            let expected = "expected a multiple of 4096 bytes, at least 4096, such as \"256 MiB\"";
            self.fault(&raw.span(), format!("{of} = {}: {expected}", raw.as_ref()))
        })
    }
}

/// Returns the directory that contains `file`.
pub(super) fn folder(file: &Path) -> &Path {
    file.parent().unwrap_or_else(|| Path::new("."))
}

/// Granularity of a node's memory, in bytes.
pub(super) const MEMORY_UNIT: u64 = PAGE_LEN as u64;

/// Maximum lease of a host that does not cache: one day.
pub(super) const HOST_LEASE_MS_MAX: u64 = 86_400_000;

/// Range of `slots`. A slot takes less than 100 bytes of the switch's memory.
pub(super) const SLOTS: RangeInclusive<u64> = 1..=16_777_216;

pub(super) fn is_of_one_machine(address: &IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !broadcast
}
