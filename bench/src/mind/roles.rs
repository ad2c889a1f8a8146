//! The roles of a rack as threads of this process, so that raw baseline servers can take their places.

use farmem::serve::{self, Serving, Stop};
use farmem::{Error, RackConfig, Waiting};
use std::sync::mpsc::channel;
use std::thread::{JoinHandle, spawn};

/// The threads of a rack.
pub(crate) struct Roles {
    stop: Stop,
    threads: Vec<JoinHandle<()>>,
    config: RackConfig,
}

impl Roles {
    /// Starts control plane, switch, memory nodes and, if configured, the DPU, each when the previous one
    /// serves.
    pub(crate) fn start(config: &RackConfig) -> Result<Self, Error> {
        let mut roles = Self { stop: Stop::new(), threads: Vec::new(), config: config.clone() };
        // No measurement waits for the control plane: it leaves the CPU to the roles that may spin.
        let calm = RackConfig { waiting: Waiting::Block, ..config.clone() };
        roles.begin(&calm, |config, serving| serve::control(config, serving))?;
        roles.begin(config, |config, serving| serve::switch(config, serving))?;
        for node in 0..config.nodes.len() {
            roles.begin(config, move |config, serving| serve::node(config, &config.nodes[node], serving))?;
        }
        if config.dpu.is_some() {
            roles.begin(config, |config, serving| {
                farmem::dpu::serve_with(config, serving, farmem::form::look_up)
            })?;
        }
        Ok(roles)
    }

    fn begin(
        &mut self,
        config: &RackConfig,
        serve: impl for<'a> FnOnce(&'a RackConfig, Serving<'a>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let (config, stop) = (config.clone(), self.stop.clone());
        let (say, said) = channel();
        self.threads.push(spawn(move || {
            let mut begun = || drop(say.send(Ok(())));
            let served = serve(&config, Serving::new(&stop, &mut begun));
            if let Err(error) = served {
                // After a successful start nothing listens; then the failing service reports the error.
                let _begun = say.send(Err(error));
            }
        }));
        said.recv().unwrap_or_else(|_| Err(Error::Unreachable { what: "a role, which ended".into() }))
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        self.stop.set();
        for thread in self.threads.drain(..) {
            // The panic was printed.
            let _panicked = thread.join();
        }
        // Spaces have ended before; otherwise they own the rings.
        let _in_use = serve::remove_rings(&self.config);
    }
}
