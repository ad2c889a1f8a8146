//! The processes of a rack: started in order, watched, started again when they die, stopped together.
//!
//! [`Supervisor::start`] starts a rack whose first dead role is its end: a demonstration or a run of its own has lost what it is about.
//! [`Supervisor::tend`] is for a rack that others use: a role that dies is started again, after [`WAIT_MIN`] at first and twice the wait before
//! from then on; one that dies [`DEATHS_MAX`] times in a row, each time before it has served for [`STEADY`], is given up, and the others go on
//! (as systemd's `StartLimitBurst` has it).

mod process;

use crate::{Failure, output};
use farmem::{RackConfig, serve};
use process::{Phase, Process};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) use process::Death;

/// Time a role may take until it serves.
const READY_TIME_MAX: Duration = Duration::from_secs(20);
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time a role may take to end by itself.
const END_TIME_MAX: Duration = Duration::from_secs(3);
/// Time between a role's death and its first new start: longer than a datagram lives on one machine (PROTOCOL 9.2, 9.21).
pub(crate) const WAIT_MIN: Duration = Duration::from_millis(200);
/// A role that has served for so long is well: its earlier deaths do not count any more.
pub(crate) const STEADY: Duration = Duration::from_secs(10);
/// Deaths in a row, each before it was well, after which a role is not started again.
pub(crate) const DEATHS_MAX: u32 = 5;

/// A running rack. Dropping it stops every process.
pub(crate) struct Supervisor {
    config: RackConfig,
    processes: Vec<Process>,
}

/// What became of a role.
pub(crate) enum Happened {
    /// It ended; it is started again after this wait, or given up.
    Died { role: usize, death: Death, again: Option<Duration> },
    /// It serves again.
    Serves { role: usize },
}

impl Supervisor {
    /// Starts control plane, switch, memory nodes, switches of the index and the DPU, and waits until all serve.
    pub(crate) fn start(config: RackConfig) -> Result<Self, Failure> {
        Self::start_with(config, &[])
    }

    /// As [`Supervisor::start`], with more arguments for the memory nodes.
    pub(crate) fn start_with(config: RackConfig, of_nodes: &[String]) -> Result<Self, Failure> {
        let never = || false;
        Ok(Self::begin_all(config, of_nodes, &never)?.expect("no one asks it to stop"))
    }

    /// As [`Supervisor::start`]; none when `is_asked` to stop before all serve. What was started is stopped then.
    pub(crate) fn start_unless(
        config: RackConfig,
        is_asked: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, Failure> {
        Self::begin_all(config, &[], is_asked)
    }

    fn begin_all(
        config: RackConfig,
        of_nodes: &[String],
        is_asked: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, Failure> {
        serve::make_state(&config)?;
        let mut roles = vec![("control", None), ("switch", None)];
        // One after the other, so that they are numbered as they are listed.
        roles.extend(config.nodes.iter().map(|node| ("node", Some(node.name.clone()))));
        roles.extend(config.index.iter().map(|switch| ("index", Some(switch.name.clone()))));
        roles.extend(config.dpu.iter().map(|_| ("dpu", None)));
        let mut rack = Self { config, processes: Vec::new() };
        for (role, name) in roles {
            let further = if role == "node" { of_nodes } else { &[] };
            if !rack.begin(role, name.as_deref(), further, is_asked)? {
                return Ok(None);
            }
        }
        Ok(Some(rack))
    }

    /// The rack's description.
    pub(crate) const fn config(&self) -> &RackConfig {
        &self.config
    }

    /// Role names and process ids; 0 for one that does not run.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (&str, u32)> {
        self.processes.iter().map(|p| (p.what(), p.pid()))
    }

    /// The role with this place in [`Supervisor::processes`].
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

    /// True when the control plane answers, as far as is known.
    pub(crate) fn has_control(&self) -> bool {
        self.processes.first().is_some_and(Process::serves)
    }

    /// True when no role runs, and none will.
    pub(crate) fn is_over(&self) -> bool {
        self.processes.iter().all(|process| matches!(process.phase(), Phase::GivenUp))
    }

    /// True when a role was given up.
    pub(crate) fn has_given_up(&self) -> bool {
        self.processes.iter().any(|process| matches!(process.phase(), Phase::GivenUp))
    }

    /// Looks at every role once: starts again those that died, unless they die again and again. Never waits.
    pub(crate) fn tend(&mut self) -> Vec<Happened> {
        let now = Instant::now();
        let mut happened = Vec::new();
        for role in 0..self.processes.len() {
            // Without a control plane no other role can join: it is waited for, unless it was given up.
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

    /// Starts a role again that was killed, and waits until it serves.
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

    /// Starts a role and waits until it serves; false when `is_asked` to stop before. Nothing else counts than what it says itself: an API that answers may be another rack's, and a
    /// control plane that was started again lists roles which have not joined yet.
    fn begin(
        &mut self,
        role: &'static str,
        node: Option<&str>,
        further: &[String],
        is_asked: &dyn Fn() -> bool,
    ) -> Result<bool, Failure> {
        let mut process = Process::new(role, node, further);
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

/// Which role it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role<'a> {
    Control,
    Switch,
    /// The memory node of this name.
    Node(&'a str),
    /// The switch of the index of this name.
    Index(&'a str),
    /// The DPU of this machine.
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
        // Another rack's roles or a client may be using them: then they stay.
        if let Err(error) = serve::remove_rings(&self.config) {
            output::note(&format!("farmem: the rings stay: {error}"));
        }
    }
}
