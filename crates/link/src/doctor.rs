//! Probes of `farmem doctor`: what this machine supports, and the remedy for each unsupported feature.
//!
//! A probe changes nothing permanently. A machine that lacks or hides a feature yields a finding, never an
//! error.

mod leftovers;
mod links;
mod probes;
mod userfaultfd;

pub use leftovers::held_addresses;
pub use links::{available_memory, is_refused, path_mtu};

/// The degree of support for a feature on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Support {
    /// The feature works fully.
    Ok,
    /// The feature works, but slower or with limits that `detail` names.
    Degraded,
    /// The feature does not work.
    Missing,
}

/// The result of one probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Name of the probed feature.
    pub name: String,
    /// Degree of support.
    pub state: Support,
    /// Observation from which `state` follows.
    pub detail: String,
    /// Advice; empty if the feature works or there is no remedy.
    pub remedy: String,
}

impl Finding {
    fn new(name: &str, state: Support, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.into(), state, detail: detail.into(), remedy: remedy.into() }
    }

    fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self::new(name, Support::Ok, detail, "")
    }
}

/// Runs all probes.
#[must_use]
pub fn examine() -> Vec<Finding> {
    let mut findings = vec![
        probes::privileges(),
        probes::cpus(),
        probes::udp_port(),
        probes::socket_buffers(),
        probes::shared_memory(),
        probes::huge_pages(),
        probes::compiler(),
        userfaultfd::examine(),
        probes::xdp(),
        probes::rdma(),
    ];
    findings.extend(leftovers::examine());
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On every machine, each probe runs once, and each unsupported feature has a remedy, or the statement
    /// that there is none.
    #[test]
    fn every_probe_answers() {
        let findings = examine();
        for name in [
            "privileges",
            "CPUs",
            "UDP port 4791",
            "userfaultfd",
            "huge pages",
            "compiler",
            "XDP",
            "RDMA devices",
            "/dev/shm",
        ] {
            assert_eq!(findings.iter().filter(|f| f.name == name).count(), 1, "{name}");
        }
        assert!(findings.iter().all(|f| !f.detail.is_empty()));
        assert!(findings.iter().all(|f| f.state != Support::Ok || f.remedy.is_empty()));
    }
}
