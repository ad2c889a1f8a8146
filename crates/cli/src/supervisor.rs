//! The processes of a rack: started in order, watched, stopped together.

use crate::Failure;
use farmem::api::Response;
use farmem::{RackConfig, Transport};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time a role may take to join.
const JOIN_TIME_MAX: Duration = Duration::from_secs(20);
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time a role may take to end by itself.
const END_TIME_MAX: Duration = Duration::from_secs(3);

struct Process {
    what: String,
    child: Child,
}

/// A running rack. Dropping it stops every process.
pub(crate) struct Supervisor {
    config: RackConfig,
    processes: Vec<Process>,
}

impl Supervisor {
    /// Starts control plane, switch and memory nodes, and waits until all have joined.
    pub(crate) fn start(config: RackConfig) -> Result<Self, Failure> {
        fs::create_dir_all(&config.control.state).map_err(|e| {
            let state = config.control.state.display();
            Failure::environment(
                format!("cannot make the state directory {state}: {e}"),
                "choose another in rack.toml",
            )
        })?;
        let mut rack = Self { config, processes: Vec::new() };
        rack.spawn("control", None)?;
        rack.await_joined("the control plane", |_| true)?;
        rack.spawn("switch", None)?;
        for node in rack.config.nodes.clone() {
            rack.spawn("node", Some(&node.name))?;
        }
        let wanted: Vec<String> = rack.config.nodes.iter().map(|n| n.name.clone()).collect();
        rack.await_joined("the switch and the memory nodes", |overview| match overview {
            Response::Overview { nodes, switch, .. } => {
                *switch && wanted.iter().all(|name| nodes.iter().any(|n| n.name == *name))
            }
            _ => false,
        })?;
        Ok(rack)
    }

    /// The rack's description.
    pub(crate) const fn config(&self) -> &RackConfig {
        &self.config
    }

    /// Role names and process ids.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (&str, u32)> {
        self.processes.iter().map(|p| (p.what.as_str(), p.child.id()))
    }

    /// The first role that has ended, if one has.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.processes.iter_mut().find_map(|p| match p.child.try_wait() {
            Ok(Some(status)) => Some(format!("{} ended: {status}", p.what)),
            Ok(None) => None,
            Err(error) => Some(format!("{} cannot be watched: {error}", p.what)),
        })
    }

    fn spawn(&mut self, role: &str, node: Option<&str>) -> Result<(), Failure> {
        let what = node.map_or_else(|| role.to_owned(), |name| format!("{role} {name}"));
        let itself = std::env::current_exe()
            .map_err(|e| Failure::environment(format!("cannot find the farmem command itself: {e}"), ""))?;
        let mut command = Command::new(itself);
        command.arg("role").arg(role).arg("--rack").arg(&self.config.file);
        if let Some(node) = node {
            command.arg("--node").arg(node);
        }
        // Its own process group: Ctrl-C reaches the supervisor alone, which then closes the pipes.
        command.stdin(Stdio::piped()).process_group(0);
        let child = command.spawn().map_err(|e| {
            Failure::environment(format!("cannot start {what}: {e}"), "`farmem doctor` may know why")
        })?;
        self.processes.push(Process { what, child });
        Ok(())
    }

    fn await_joined(&mut self, what: &str, joined: impl Fn(&Response) -> bool) -> Result<(), Failure> {
        let deadline = Instant::now() + JOIN_TIME_MAX;
        let mut last = String::new();
        loop {
            if let Some(ended) = self.ended() {
                return Err(Failure::environment(ended, "the line above says why"));
            }
            match farmem::serve::overview(&self.config) {
                Ok(overview) if joined(&overview) => return Ok(()),
                Ok(_) => "it answers, and not all roles have joined".clone_into(&mut last),
                Err(error) => last = error.to_string(),
            }
            if Instant::now() > deadline {
                let message = format!("{what} did not come up within {} s: {last}", JOIN_TIME_MAX.as_secs());
                return Err(Failure::environment(message, "`farmem doctor` may know why"));
            }
            sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        for process in &mut self.processes {
            drop(process.child.stdin.take()); // the role reads end of input and ends
        }
        let deadline = Instant::now() + END_TIME_MAX;
        for process in &mut self.processes {
            while Instant::now() < deadline && matches!(process.child.try_wait(), Ok(None)) {
                sleep(LOOK_EVERY);
            }
            // One that does not end is killed; one that has ended does not mind.
            drop(process.child.kill());
            drop(process.child.wait());
        }
        if self.config.transport == Transport::Shm {
            remove_rings(&self.config.rings());
        }
    }
}

fn remove_rings(rings: &Path) {
    if let Err(error) = fs::remove_dir_all(rings)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("farmem: cannot remove {}: {error}", rings.display());
    }
}
