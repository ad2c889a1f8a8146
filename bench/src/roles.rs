//! The roles of a rack as threads of this process, so that raw baseline servers can take their places.

use farmem::serve::{self, Serving, Stop, pin_to_cpu};
use farmem::{Error, RackConfig, Waiting};
use std::sync::mpsc::channel;
use std::thread::{JoinHandle, spawn};

/// The thread of a role.
struct Role {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Role {
    fn end(&mut self) {
        self.stop.set();
        // The panic was printed.
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// The threads of a rack: the control plane, the switch, the memory nodes, and the DPU, if configured.
pub(crate) struct Roles {
    all: Vec<Role>,
    config: RackConfig,
}

impl Roles {
    /// Starts the roles, each when the previous one serves.
    pub(crate) fn start(config: &RackConfig) -> Result<Self, Error> {
        Self::start_on(config, None)
    }

    /// Works as [`Roles::start`], with control plane and switch on the first of these CPUs and everything else
    /// on the second.
    pub(crate) fn start_on(config: &RackConfig, cpus: Option<[usize; 2]>) -> Result<Self, Error> {
        let mut roles = Self { all: Vec::new(), config: config.clone() };
        let [first, second] = cpus.map_or([None; 2], |cpus| cpus.map(Some));
        // No measurement waits for the control plane: it leaves the CPU to the roles that may spin.
        let calm = RackConfig { waiting: Waiting::Block, ..config.clone() };
        roles.begin(&calm, first, |config, serving| serve::control(config, serving))?;
        roles.begin(config, first, |config, serving| serve::switch(config, serving))?;
        for node in 0..config.nodes.len() {
            roles.begin(config, second, move |config, serving| {
                serve::node(config, &config.nodes[node], serving)
            })?;
        }
        if config.dpu.is_some() {
            roles.begin(config, second, |config, serving| {
                farmem::dpu::serve_with(config, serving, farmem::form::look_up)
            })?;
        }
        Ok(roles)
    }

    fn begin(
        &mut self,
        config: &RackConfig,
        cpu: Option<usize>,
        serve: impl for<'a> FnOnce(&'a RackConfig, Serving<'a>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let (config, stop) = (config.clone(), Stop::new());
        let (say, said) = channel();
        let until = stop.clone();
        let thread = spawn(move || {
            let mut begun = || drop(say.send(Ok(())));
            let pinned = cpu.map_or(Ok(()), pin_to_cpu);
            let pinned =
                pinned.map_err(|source| Error::System { what: "cannot choose a CPU".into(), source });
            if let Err(error) = pinned.and_then(|()| serve(&config, Serving::new(&until, &mut begun))) {
                // After a successful start nothing listens; then the failing service reports the error.
                let _begun = say.send(Err(error));
            }
        });
        self.all.push(Role { stop, thread: Some(thread) });
        said.recv().unwrap_or_else(|_| Err(Error::Unreachable { what: "a role, which ended".into() }))
    }

    /// Stops the control plane, after all tables are set up.
    pub(crate) fn end_control(&mut self) {
        self.all[0].end();
    }

    /// Stops the switch, after the last request that passes it.
    pub(crate) fn end_switch(&mut self) {
        self.all[1].end();
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        self.all.iter().for_each(|role| role.stop.set());
        self.all.iter_mut().for_each(Role::end);
        // Spaces have ended before; otherwise they own the rings.
        let _in_use = serve::remove_rings(&self.config);
    }
}
