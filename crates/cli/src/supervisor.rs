//! The processes of a rack: started in order, watched, stopped together.

use crate::role::READY;
use crate::{Failure, output};
use farmem::{RackConfig, serve};

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Time a role may take until it serves.
const READY_TIME_MAX: Duration = Duration::from_secs(20);
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
    /// Starts control plane, switch and memory nodes, and waits until all serve.
    pub(crate) fn start(config: RackConfig) -> Result<Self, Failure> {
        Self::start_with(config, &[])
    }

    /// As [`Supervisor::start`], with more arguments for the memory nodes.
    pub(crate) fn start_with(config: RackConfig, of_nodes: &[String]) -> Result<Self, Failure> {
        serve::make_state(&config)?;
        let mut rack = Self { config, processes: Vec::new() };
        rack.begin("control", None, &[])?;
        rack.begin("switch", None, &[])?;
        // One after the other, so that they are numbered as they are listed.
        for node in rack.config.nodes.clone() {
            rack.begin("node", Some(&node.name), of_nodes)?;
        }
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

    /// Starts a role and waits until it serves.
    fn begin(&mut self, role: &str, node: Option<&str>, further: &[String]) -> Result<(), Failure> {
        let what = node.map_or_else(|| role.to_owned(), |name| format!("{role} {name}"));
        let itself = std::env::current_exe()
            .map_err(|e| Failure::environment(format!("cannot find the farmem command itself: {e}"), ""))?;
        let mut command = Command::new(itself);
        command.arg("role").arg(role).arg("--rack").arg(&self.config.file);
        if let Some(node) = node {
            command.arg("--node").arg(node);
        }
        command.args(further);
        // Its own process group: Ctrl-C reaches the supervisor alone, which then closes the pipes.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|e| {
            Failure::environment(format!("cannot start {what}: {e}"), "`farmem doctor` may know why")
        })?;
        let (say, ready) = channel();
        let stdout = child.stdout.take();
        spawn(move || {
            let mut line = String::new();
            let read = stdout.map(|out| BufReader::new(out).read_line(&mut line));
            if matches!(read, Some(Ok(_))) && line == READY {
                // The supervisor may have given up meanwhile.
                let _given_up = say.send(());
            }
        });
        self.processes.push(Process { what, child });
        self.await_ready(&ready)
    }

    /// Waits until the last process has said that it serves. Nothing else counts: an API that answers may be another rack's, and a
    /// control plane that was started again lists roles which have not joined yet.
    fn await_ready(&mut self, ready: &Receiver<()>) -> Result<(), Failure> {
        let deadline = Instant::now() + READY_TIME_MAX;
        loop {
            match (ready.recv_timeout(LOOK_EVERY), self.processes.last_mut()) {
                (Ok(()), _) => return Ok(()),
                // Its standard output is closed, so it is about to end, if it has not ended.
                (Err(RecvTimeoutError::Disconnected), Some(process)) => drop(process.child.wait()),
                _ => {}
            }
            if let Some(ended) = self.ended() {
                return Err(Failure::environment(ended, "the line above says why"));
            }
            if Instant::now() > deadline {
                let what = self.processes.last().map_or("nothing", |process| process.what.as_str());
                let message = format!("{what} did not come up within {} s", READY_TIME_MAX.as_secs());
                return Err(Failure::environment(message, "is the machine overloaded? see `farmem doctor`"));
            }
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
        // Another rack's roles or a client may be using them: then they stay.
        if let Err(error) = serve::remove_rings(&self.config) {
            output::note(&format!("farmem: the rings stay: {error}"));
        }
    }
}
