//! Probes of the kernel and the hardware.

use super::{Finding, Support};
use crate::MappedStore;
use farmem_engine::Jit;
use farmem_memnode::Store as _;
use farmem_wire::UDP_PORT;
use rustix::fs::statvfs;
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};
use std::fs::{read_dir, read_to_string};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};

pub(super) fn privileges() -> Finding {
    let user = if geteuid().is_root() { "root" } else { "an ordinary user" };
    let list = [
        (CapabilitySet::NET_ADMIN, "NET_ADMIN"),
        (CapabilitySet::NET_RAW, "NET_RAW"),
        (CapabilitySet::BPF, "BPF"),
        (CapabilitySet::SYS_ADMIN, "SYS_ADMIN"),
        (CapabilitySet::SYS_PTRACE, "SYS_PTRACE"),
    ];
    let has = effective();
    let held: Vec<&str> =
        list.into_iter().filter(|&(cap, _)| has.contains(cap)).map(|(_, name)| name).collect();
    let held =
        if held.is_empty() { "none of the capabilities farmem can use".to_owned() } else { held.join(", ") };
    Finding::ok("privileges", format!("{user}, {held}; racks over UDP and shared memory need none"))
}

/// Returns the effective capabilities of this process; none if the system does not report them.
fn effective() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

pub(super) fn cpus() -> Finding {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let detail = format!("{usable} usable by this process");
    match usable {
        1 => Finding::new(
            "CPUs",
            Support::Degraded,
            detail,
            "waiting = \"spin\" needs a second CPU; keep \"block\" and \"same-cpu\"",
        ),
        _ => Finding::ok("CPUs", detail),
    }
}

pub(super) fn udp_port() -> Finding {
    let name = "UDP port 4791";
    // An address in the loopback range that racks do not use by default.
    match UdpSocket::bind((Ipv4Addr::new(127, 255, 47, 91), UDP_PORT)) {
        Ok(_) => Finding::ok(name, "can be opened on a loopback address without a role"),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            let remedy = "another program holds 0.0.0.0:4791, for example the kernel's Soft-RoCE: `rdma link delete NAME`, or run racks in \
                          another network namespace";
            Finding::new(name, Support::Missing, "taken on every address of this machine", remedy)
        }
        Err(e) => {
            let remedy =
                "loopback must have 127.0.0.0/8: `ip address add 127.0.0.1/8 dev lo` and `ip link set lo up`";
            Finding::new(name, Support::Missing, format!("cannot be opened: {e}"), remedy)
        }
    }
}

/// Minimum size of a socket buffer, in bytes: a burst of full windows from several nodes.
const SOCKET_BUFFER_WANTED: u64 = 4 << 20;

pub(super) fn socket_buffers() -> Finding {
    let name = "socket buffers";
    let limit = |what: &str| number(&format!("/proc/sys/net/core/{what}"));
    match (limit("rmem_max"), limit("wmem_max")) {
        (Some(receive), Some(send)) => {
            let detail = format!("at most {} KiB to receive, {} KiB to send", receive >> 10, send >> 10);
            if receive >= SOCKET_BUFFER_WANTED && send >= SOCKET_BUFFER_WANTED {
                Finding::ok(name, detail)
            } else if effective().contains(CapabilitySet::NET_ADMIN) {
                Finding::ok(name, detail + "; this user may exceed that")
            } else {
                let remedy = "bursts may be lost and retransmitted: `sysctl net.core.rmem_max=4194304 net.core.wmem_max=4194304`";
                Finding::new(name, Support::Degraded, detail, remedy)
            }
        }
        _ => Finding::new(name, Support::Degraded, "their limits cannot be read", ""),
    }
}

/// Minimum size of `/dev/shm`, in bytes: the rings of a rack with a few roles.
const SHARED_MEMORY_WANTED: u64 = 64 << 20;

pub(super) fn shared_memory() -> Finding {
    let name = "/dev/shm";
    match statvfs("/dev/shm").map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)) {
        Ok(free) if free >= SHARED_MEMORY_WANTED => Finding::ok(name, format!("{} MiB free", free >> 20)),
        Ok(free) => {
            let remedy = "transport = \"shm\" needs 64 MiB: `mount -o remount,size=1G /dev/shm`";
            Finding::new(name, Support::Degraded, format!("{} MiB free", free >> 20), remedy)
        }
        Err(e) => {
            let remedy = "transport = \"shm\" needs it: `mount -t tmpfs tmpfs /dev/shm`";
            Finding::new(name, Support::Missing, format!("cannot be looked at: {e}"), remedy)
        }
    }
}

/// Tests whether the system backs a memory node's memory with huge pages.
pub(super) fn huge_pages() -> Finding {
    let name = "huge pages";
    let remedy = "without huge pages, memory nodes read random lines 1.3 to 2.3 times slower: \
                  `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`";
    let setting = read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let Ok(setting) = setting.as_deref().map(chosen) else {
        return Finding::new(name, Support::Degraded, "this kernel has no transparent huge pages", "");
    };
    let backed = MappedStore::new(8 << 20).ok().and_then(|mut store| {
        store.write(0, &[1]);
        store.huge_len()
    });
    match (setting, backed) {
        ("never", _) => Finding::new(name, Support::Degraded, "transparent huge pages are off", remedy),
        (setting, Some(1..)) => {
            Finding::ok(name, format!("transparent huge pages: {setting}; a memory node's memory gets them"))
        }
        (setting, Some(0)) => {
            let detail =
                format!("transparent huge pages: {setting}; a memory node's memory did not get one now");
            let remedy =
                "free memory may be fragmented: `echo 1 > /proc/sys/vm/compact_memory`, then start the nodes";
            Finding::new(name, Support::Degraded, detail, remedy)
        }
        (setting, None) => Finding::ok(name, format!("transparent huge pages: {setting}")),
    }
}

/// Tests the compiler with which memory nodes run programs.
pub(super) fn compiler() -> Finding {
    let name = "compiler";
    match Jit::new(1) {
        Ok(_) => Finding::ok(name, "traversals run as machine code"),
        Err(why) => {
            let remedy = "traversals are interpreted, 3 to 7 times slower; x86-64, aarch64, s390x and riscv64 have a compiler";
            Finding::new(name, Support::Degraded, why.to_string(), remedy)
        }
    }
}

/// Returns the word in brackets of a kernel setting.
fn chosen(text: &str) -> &str {
    text.split(['[', ']']).nth(1).unwrap_or_else(|| text.trim())
}

pub(super) fn xdp() -> Finding {
    let name = "XDP";
    let has = effective();
    let loads =
        has.contains(CapabilitySet::SYS_ADMIN) || has.contains(CapabilitySet::BPF | CapabilitySet::NET_ADMIN);
    let compiled = number("/proc/sys/net/core/bpf_jit_enable");
    match (loads, compiled) {
        (true, Some(1..)) => Finding::ok(name, "programs may be loaded, and are compiled"),
        (true, _) => {
            let remedy = "`sysctl net.core.bpf_jit_enable=1`";
            Finding::new(name, Support::Degraded, "programs may be loaded, and are interpreted", remedy)
        }
        (false, _) => {
            let remedy = "the switch runs in user space; for the fast path run it as root, or give it CAP_BPF and CAP_NET_ADMIN";
            Finding::new(name, Support::Missing, "this user may not load programs", remedy)
        }
    }
}

pub(super) fn rdma() -> Finding {
    let name = "RDMA devices";
    let devices: Vec<String> = read_dir("/sys/class/infiniband")
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    if devices.is_empty() {
        return Finding::ok(name, "none, and none is needed: farmem speaks RoCEv2 from user space");
    }
    Finding::ok(name, format!("{}: they can communicate with farmem's memory nodes", devices.join(", ")))
}

fn number(path: &str) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}
