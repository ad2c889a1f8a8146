//! Supervisor of the processes of a rack: starts them in order, watches, restarts and stops them.
//!
//! [`Supervisor::start`] starts a rack that ends with its first dead role: a demo or a run cannot continue
//! without the role's state.
//!
//! [`Supervisor::tend`] serves a rack that other programs use, and restarts dead roles. The first restart
//! waits `WAIT_MIN`, each further one twice as long. A role that dies `DEATHS_MAX` times in a row, each
//! time before it has served for `STEADY`, is given up. The other roles continue (like systemd's
//! `StartLimitBurst`).

mod process;

use crate::outcome::Failure;
use crate::output;
use farmem::{RackConfig, serve};
use process::{Phase, Process, READY_TIME_MAX};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) use process::{DEATHS_MAX, Death};

/// Time between two checks of the processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Maximum time of a role to end by itself.
const END_TIME_MAX: Duration = Duration::from_secs(3);

/// Running rack. Dropping it stops every process.
pub(crate) struct Supervisor {
    config: RackConfig,
    processes: Vec<Process>,
}

/// Event of a role.
pub(crate) enum Happened {
    /// The role ended. The supervisor restarts it after the wait in `again`, or gives it up.
    Died { role: usize, death: Death, again: Option<Duration> },
    /// The role serves again.
    Serves { role: usize },
}

impl Supervisor {
    /// Starts the control plane, the switch, the memory nodes, the index switches and the DPU, and waits
    /// until all serve.
    pub(crate) fn start(config: RackConfig) -> Result<Self, Failure> {
        Self::start_nodes_by(config, &[])
    }

    /// Starts roles as [`Supervisor::start`] does; memory nodes run by this command instead of `farmem role`.
    pub(crate) fn start_nodes_by(config: RackConfig, by: &[String]) -> Result<Self, Failure> {
        let never = || false;
        Ok(Self::begin_all(config, by, &never)?.expect("no one asks it to stop"))
    }

    /// Starts roles as [`Supervisor::start`] does. Returns `None` when `is_asked` requests a stop before all roles serve;
    /// started roles are then stopped.
    pub(crate) fn start_unless(
        config: RackConfig,
        is_asked: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, Failure> {
        Self::begin_all(config, &[], is_asked)
    }

    fn begin_all(
        config: RackConfig,
        nodes_by: &[String],
        is_asked: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, Failure> {
        serve::make_state(&config)?;
        let mut roles = vec![("control", None), ("switch", None)];
        // The memory nodes start one after the other, so that their numbers follow the order of the
        // description.
        roles.extend(config.nodes.iter().map(|node| ("node", Some(node.name.clone()))));
        roles.extend(config.index.iter().map(|switch| ("index", Some(switch.name.clone()))));
        roles.extend(config.dpu.iter().map(|_| ("dpu", None)));
        let mut rack = Self { config, processes: Vec::new() };
        for (role, name) in roles {
            let by = if role == "node" { nodes_by } else { &[] };
            if !rack.begin(role, name.as_deref(), by, is_asked)? {
                return Ok(None);
            }
        }
        Ok(Some(rack))
    }

    /// Returns the rack's description.
    pub(crate) const fn config(&self) -> &RackConfig {
        &self.config
    }

    /// Returns the names and process ids of the roles. The id of a role without a process is 0.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (&str, u32)> {
        self.processes.iter().map(|p| (p.what(), p.pid()))
    }

    /// Returns the role at this index of [`Supervisor::processes`].
    pub(crate) fn role(&self, role: usize) -> Role<'_> {
        let process = &self.processes[role];
        match (process.role(), process.name()) {
            ("index", Some(name)) => Role::Index(name),
            (_, Some(name)) => Role::Node(name),
            ("switch", None) => Role::Switch,
            ("dpu", None) => Role::Dpu,
            (_, None) => Role::Control,
        }
    }

    /// Returns true when the control plane serves, as far as the supervisor knows.
    pub(crate) fn has_control(&self) -> bool {
        self.processes.first().is_some_and(Process::serves)
    }

    /// Returns true when every role is given up.
    pub(crate) fn is_over(&self) -> bool {
        self.processes.iter().all(|process| matches!(process.phase(), Phase::GivenUp))
    }

    /// Returns true when a role was given up.
    pub(crate) fn has_given_up(&self) -> bool {
        self.processes.iter().any(|process| matches!(process.phase(), Phase::GivenUp))
    }

    /// Checks every role once and restarts dead ones, unless they died too often. The method never waits.
    pub(crate) fn tend(&mut self) -> Vec<Happened> {
        let now = Instant::now();
        let mut happened = Vec::new();
        for role in 0..self.processes.len() {
            // No other role can join without a control plane. The restart waits for it, unless the control
            // plane was given up.
            let may_start =
                role == 0 || self.has_control() || matches!(self.processes[0].phase(), Phase::GivenUp);
            let process = &mut self.processes[role];
            if let Some((death, again)) = process.has_died(now) {
                happened.push(Happened::Died { role, death, again });
            } else if process.has_begun_to_serve(Duration::ZERO) {
                happened.push(Happened::Serves { role });
            } else if may_start && process.is_due(now) {
                process.start_again(&self.config);
            }
        }
        happened
    }

    /// Restarts a killed role and waits until it serves.
    pub(crate) fn begin_again(&mut self, what: &str) -> Result<(), Failure> {
        let deadline = Instant::now() + READY_TIME_MAX;
        while Instant::now() < deadline {
            for happened in self.tend() {
                match happened {
                    Happened::Serves { role } if self.processes[role].what() == what => return Ok(()),
                    Happened::Died { role, death, again: None } => {
                        let message = format!("{} ended: {death}", self.processes[role].what());
                        return Err(Failure::environment(message, "the line above says why"));
                    }
                    Happened::Serves { .. } | Happened::Died { .. } => {}
                }
            }
            sleep(LOOK_EVERY);
        }
        let message = format!("{what} did not come up again within {} s", READY_TIME_MAX.as_secs());
        Err(Failure::environment(message, "is the machine overloaded? see `farmem doctor`"))
    }

    /// Starts a role and waits until it serves. Returns false when `is_asked` requests a stop before. Only
    /// the role's own line counts. An API that answers may belong to another rack. A restarted control plane
    /// lists roles that have not joined yet.
    fn begin(
        &mut self,
        role: &'static str,
        node: Option<&str>,
        by: &[String],
        is_asked: &dyn Fn() -> bool,
    ) -> Result<bool, Failure> {
        let mut process = Process::new(role, node, by);
        let cannot = |why| Failure::environment(why, "`farmem doctor` may know why");
        process.start(&self.config).map_err(cannot)?;
        self.processes.push(process);
        loop {
            for process in &mut self.processes {
                if let Some(death) = process.death() {
                    let ended = format!("{} ended: {death}", process.what());
                    return Err(Failure::environment(ended, "the line above says why"));
                }
            }
            if is_asked() {
                return Ok(false);
            }
            let Some(process) = self.processes.last_mut() else { return Ok(true) };
            if process.has_begun_to_serve(LOOK_EVERY) {
                return Ok(true);
            }
            if process.is_late(Instant::now()) {
                let message =
                    format!("{} did not come up within {} s", process.what(), READY_TIME_MAX.as_secs());
                return Err(Failure::environment(message, "is the machine overloaded? see `farmem doctor`"));
            }
        }
    }
}

/// Kind and name of a role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role<'a> {
    Control,
    Switch,
    /// Memory node of this name.
    Node(&'a str),
    /// Index switch of this name.
    Index(&'a str),
    /// DPU of this machine.
    Dpu,
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(Process::ask_to_end);
        let deadline = Instant::now() + END_TIME_MAX;
        for process in &mut self.processes {
            while Instant::now() < deadline && process.runs() {
                sleep(LOOK_EVERY);
            }
            process.kill();
        }
        // Another rack's roles or a client may be using the rings. The rings then stay.
        if let Err(error) = serve::remove_rings(&self.config) {
            output::note(&format!("farmem: the rings stay: {error}"));
        }
    }
}
