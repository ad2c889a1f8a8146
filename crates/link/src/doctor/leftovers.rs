//! Leftovers of earlier racks: unused rings, and addresses that a process still holds.

use super::{Finding, Support};
use farmem_wire::UDP_PORT;
use procfs_core::net::UdpNetEntries;
use procfs_core::{ExplicitSystemInfo, FromReadSI as _, ProcResult};
use std::collections::BTreeSet;
use std::fs::{File, read_dir, read_to_string};
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Parent directory of the racks' rings, and prefix of the directories' names.
const RINGS: (&str, &str) = ("/dev/shm", "farmem-");

pub(super) fn examine() -> Vec<Finding> {
    let mut findings: Vec<Finding> = ring_directories().iter().map(|dir| rings(dir)).collect();
    findings.push(running(held_addresses()));
    findings
}

/// Returns the addresses, of both families, on which a process of this machine has bound UDP port 4791: those
/// of running roles and clients.
///
/// # Errors
/// The error of reading the kernel's tables of UDP sockets.
pub fn held_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let mut held = BTreeSet::new();
    for table in ["/proc/net/udp", "/proc/net/udp6"] {
        match File::open(table) {
            Ok(file) => held.extend(holders(file).map_err(io::Error::other)?),
            // The kernel has no IPv6.
            Err(why) if why.kind() == io::ErrorKind::NotFound && table.ends_with('6') => {}
            Err(why) => return Err(why),
        }
    }
    Ok(held)
}

fn running(holders: io::Result<BTreeSet<IpAddr>>) -> Finding {
    let name = "running roles";
    match holders {
        Ok(none) if none.is_empty() => Finding::ok(name, "no process has bound UDP port 4791"),
        Ok(holders) => {
            let list: Vec<String> = holders.iter().map(IpAddr::to_string).collect();
            Finding::ok(name, format!("processes have bound UDP port 4791 of {}", list.join(", ")))
        }
        Err(why) => {
            let detail = format!("the kernel's table of UDP sockets cannot be read: {why}");
            Finding::new(name, Support::Degraded, detail, "mount /proc: `mount -t proc proc /proc`")
        }
    }
}

fn ring_directories() -> Vec<PathBuf> {
    let (parent, prefix) = RINGS;
    let Ok(entries) = read_dir(parent) else { return Vec::new() };
    let ours = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix));
    entries.flatten().map(|e| e.path()).filter(ours).collect()
}

fn rings(directory: &Path) -> Finding {
    let name = format!("rings in {}", directory.display());
    if is_mapped(directory) {
        return Finding::ok(&name, "in use");
    }
    let remedy = format!("a rack ended without removing its rings: `rm -r {}`", directory.display());
    Finding::new(&name, Support::Degraded, "no process of this user uses the rings", remedy)
}

/// Returns true if a process with readable maps has mapped a file of `directory`.
fn is_mapped(directory: &Path) -> bool {
    let Ok(processes) = read_dir("/proc") else { return true };
    let needle = format!("{}/", directory.display());
    processes
        .flatten()
        .any(|p| read_to_string(p.path().join("maps")).is_ok_and(|maps| maps.contains(&needle)))
}

/// Returns the addresses on which port 4791 is bound, from the kernel's table of UDP sockets.
fn holders(table: impl Read) -> ProcResult<BTreeSet<IpAddr>> {
    // The table contains each address as the number that its bytes form in host order. The other fields have
    // no effect on it.
    let is_little_endian = cfg!(target_endian = "little");
    let system =
        ExplicitSystemInfo { boot_time_secs: 0, ticks_per_second: 0, page_size: 0, is_little_endian };
    let sockets = UdpNetEntries::from_read(table, &system)?.0;
    let local = sockets.iter().map(|socket| socket.local_address);
    Ok(local
        .filter(|address| address.port() == UDP_PORT)
        .map(|address| address.ip().to_canonical())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// The kernel's table as printed on a little-endian machine; the second socket has another port.
    #[test]
    fn holders_are_read_from_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     2190: 0B00477F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7 2\n\
                     2191: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 8 2\n";
        #[cfg(target_endian = "little")]
        assert_eq!(
            holders(table.as_bytes()).unwrap(),
            BTreeSet::from([Ipv4Addr::new(127, 71, 0, 11).into()])
        );
        // The table of IPv6 sockets, which contains an IPv4-mapped address, too.
        let table = "  sl  local_address remote_address st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     90: 000071FD000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 7 2\n\
                     91: 0000000000000000FFFF00000C00477F:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 8 2\n";
        #[cfg(target_endian = "little")]
        assert_eq!(
            holders(table.as_bytes()).unwrap(),
            BTreeSet::from([Ipv4Addr::new(127, 71, 0, 12).into(), "fd71::1".parse().unwrap()])
        );
        assert!(holders(&b""[..]).unwrap().is_empty());
        let finding = running(holders(&b"\nnonsense"[..]).map_err(io::Error::other));
        assert_eq!(finding.state, Support::Degraded, "what cannot be read is not an empty table");
    }

    /// A directory that no process maps is reported as a leftover, with the command that removes it.
    #[test]
    fn unused_rings_are_reported() {
        let finding = rings(Path::new("/dev/shm/farmem-no-such-rack"));
        assert_eq!(finding.state, Support::Degraded);
        assert!(finding.remedy.contains("rm -r /dev/shm/farmem-no-such-rack"));
    }
}
