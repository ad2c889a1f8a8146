//! The raw exchange that replaces the memory node, beside which operations are measured.

use crate::raw::{self, RawSocket};
use farmem::serve::{Stop, pin_to_cpu};
use farmem::{Error, RackConfig, Transport, Waiting};
use std::io;
use std::thread::Scope;

/// Configuration of the raw exchange.
#[derive(Clone, Copy)]
pub(super) struct RawConfig<'a> {
    pub(super) config: &'a RackConfig,
    pub(super) transport: Transport,
    pub(super) waiting: Waiting,
    pub(super) node_cpu: usize,
}

impl RawConfig<'_> {
    pub(super) fn socket(&self) -> Result<RawSocket, Error> {
        Ok(RawSocket::open(self.config.control.address, self.link_waiting())?)
    }

    /// Starts a raw server in the node's place.
    pub(super) fn serve<'scope>(
        &self,
        threads: &'scope Scope<'scope, '_>,
        serve: impl FnOnce(&Stop) -> io::Result<()> + Send + 'scope,
        stop: &'scope Stop,
    ) {
        let cpu = self.node_cpu;
        threads.spawn(move || {
            if let Err(error) = pin_to_cpu(cpu).and_then(|()| serve(stop)) {
                eprintln!("farmem: a raw server ended: {error}");
            }
        });
    }

    pub(super) const fn link_waiting(&self) -> raw::Waiting {
        match self.waiting {
            Waiting::Block => raw::Waiting::Block,
            Waiting::Spin => raw::Waiting::Spin,
        }
    }
}

/// Guard that stops the raw server at the end of a measurement, also after an error. Otherwise the thread
/// scope would wait for the server forever.
pub(super) struct StopGuard<'a>(pub(super) &'a Stop);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// The failure of a raw exchange or stream.
pub(super) const RAW_FAILED: &str = "the raw exchange failed";

/// Returns a converter of the system's errors.
pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::System { what: what.into(), source }
}
