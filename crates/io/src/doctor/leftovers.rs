//! What earlier racks left behind: rings that no process uses, and addresses that a process still holds.

use super::{Finding, Support};
use farmem_wire::UDP_PORT;
use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Where racks put their rings, and how the directories' names begin.
const RINGS: (&str, &str) = ("/dev/shm", "farmem-");

pub(super) fn examine() -> Vec<Finding> {
    let mut findings: Vec<Finding> = ring_directories().iter().map(|dir| rings(dir)).collect();
    let holders = holders(&read_to_string("/proc/net/udp").unwrap_or_default());
    if holders.is_empty() {
        findings.push(Finding::ok("running roles", "none has UDP port 4791 of an address"));
    } else {
        let list: Vec<String> = holders.iter().map(Ipv4Addr::to_string).collect();
        findings
            .push(Finding::ok("running roles", format!("UDP port 4791 is theirs on {}", list.join(", "))));
    }
    findings
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
    let remedy = format!("a rack ended without removing them: `rm -r {}`", directory.display());
    Finding::new(&name, Support::Degraded, "no process of this user uses them", remedy)
}

/// True when a process whose maps we may read has a file of `directory` mapped.
fn is_mapped(directory: &Path) -> bool {
    let Ok(processes) = read_dir("/proc") else { return true };
    let needle = format!("{}/", directory.display());
    processes
        .flatten()
        .any(|p| read_to_string(p.path().join("maps")).is_ok_and(|maps| maps.contains(&needle)))
}

/// Addresses on which port 4791 is open, by the kernel's table of UDP sockets.
fn holders(table: &str) -> BTreeSet<Ipv4Addr> {
    let local = |line: &str| {
        let (address, port) = line.split_whitespace().nth(1)?.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let address = u32::from_str_radix(address, 16).ok()?;
        // The kernel prints the address as the number its bytes make in host order.
        #[expect(clippy::host_endian_bytes, reason = "undoing the kernel's host-order print")]
        let bytes = address.to_ne_bytes();
        (port == UDP_PORT).then_some(Ipv4Addr::from(bytes))
    };
    table.lines().skip(1).filter_map(local).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's table as it prints it on a little-endian machine; the second socket has another port.
    #[test]
    fn holders_are_read_from_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     2190: 0B00477F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7 2\n\
                     2191: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 8 2\n";
        #[cfg(target_endian = "little")]
        assert_eq!(holders(table), BTreeSet::from([Ipv4Addr::new(127, 71, 0, 11)]));
        assert!(holders("").is_empty());
    }

    /// A directory that no process maps is a leftover, with the command that removes it.
    #[test]
    fn unused_rings_are_reported() {
        let finding = rings(Path::new("/dev/shm/farmem-no-such-rack"));
        assert_eq!(finding.state, Support::Degraded);
        assert!(finding.remedy.contains("rm -r /dev/shm/farmem-no-such-rack"));
    }
}
