//! Roles as threads: started like the processes of `farmem up`, stopped one by one so that only those under test are alive.

use crate::Failure;
use farmem::RackConfig;
use farmem::api::RackOverview;
use farmem::serve::{self, Stop};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Time the roles may take to join.
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

/// The threads of a rack with one memory node.
pub(super) struct Roles {
    control: Role,
    switch: Role,
    node: Role,
}

impl Roles {
    /// Starts them, all but the node on `cpu`, the node on `node_cpu`, and waits until all have joined.
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

    /// Ends the control plane: all tables are in place.
    pub(super) fn end_control(&mut self) -> Result<(), Failure> {
        self.control.end()
    }

    /// Ends the switch: no triangle will be measured any more.
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

/// A role that has not started.
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
