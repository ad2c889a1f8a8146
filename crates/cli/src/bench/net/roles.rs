//! Roles as threads. The roles start like the processes of `farmem up`, and stop one by one, so that only the
//! measured roles run.

use crate::Failure;
use farmem::RackConfig;
use farmem::api::RackOverview;
use farmem::serve::{self, Stop};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Maximum time for the roles to join.
const JOIN_TIME_MAX: Duration = Duration::from_secs(20);

struct Role {
    stop: Stop,
    thread: Option<JoinHandle<Result<(), farmem::Error>>>,
}

impl Role {
    fn start(cpu: usize, serve: impl FnOnce(&Stop) -> Result<(), farmem::Error> + Send + 'static) -> Self {
        let stop = Stop::new();
        let flag = stop.clone();
        let thread = spawn(move || {
            serve::pin_to_cpu(cpu).map_err(|source| farmem::Error::System {
                what: format!("cannot run on CPU {cpu}"),
                source,
            })?;
            serve(&flag)
        });
        Self { stop, thread: Some(thread) }
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.stop.set();
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(_)) => {
                Err(Failure::environment("a role panicked", "please report it, with the lines above"))
            }
        }
    }
}

/// Threads of a rack with one memory node.
pub(super) struct Roles {
    control: Role,
    switch: Role,
    node: Role,
}

impl Roles {
    /// Starts the roles and waits until all have joined. The node runs on `node_cpu`, all other roles on
    /// `cpu`.
    pub(super) fn start(config: &RackConfig, cpu: usize, node_cpu: usize) -> Result<Self, Failure> {
        let own = || config.clone();
        let control = Role::start(cpu, {
            let c = own();
            move |stop| serve::control(&c, stop)
        });
        let mut roles = Self { control, switch: idle(), node: idle() };
        roles.await_overview(config, |_| true)?;
        roles.switch = Role::start(cpu, {
            let c = own();
            move |stop| serve::switch(&c, stop)
        });
        roles.node = Role::start(node_cpu, {
            let c = own();
            move |stop| serve::node(&c, &c.nodes[0], stop)
        });
        roles.await_overview(config, |overview| overview.switch && overview.nodes.len() == 1)?;
        Ok(roles)
    }

    /// Stops the control plane, after all tables are set up.
    pub(super) fn end_control(&mut self) -> Result<(), Failure> {
        self.control.end()
    }

    /// Stops the switch, when no triangle remains to be measured.
    pub(super) fn end_switch(&mut self) -> Result<(), Failure> {
        self.switch.end()
    }

    fn await_overview(
        &mut self,
        config: &RackConfig,
        ready: impl Fn(&RackOverview) -> bool,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + JOIN_TIME_MAX;
        loop {
            match serve::overview(config) {
                Ok(overview) if ready(&overview) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Ok(_) if Instant::now() > deadline => {
                    return Err(Failure::environment(
                        "the roles did not join in time",
                        "is the machine overloaded?",
                    ));
                }
                Ok(_) | Err(_) => sleep(Duration::from_millis(5)),
            }
            for role in [&mut self.control, &mut self.switch, &mut self.node] {
                if role.thread.as_ref().is_some_and(JoinHandle::is_finished) {
                    role.end()?;
                }
            }
        }
    }
}

/// Returns a role that has not started.
fn idle() -> Role {
    Role { stop: Stop::new(), thread: None }
}

impl Drop for Roles {
    fn drop(&mut self) {
        for role in [&mut self.node, &mut self.switch, &mut self.control] {
            if let Err(Failure::Farmem(error)) = role.end() {
                eprintln!("farmem: {error}");
            }
        }
    }
}
