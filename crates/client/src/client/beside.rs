//! A client that serves others beside its own calls: the DPU's (SODA).

use super::Client;
use crate::Error;
use farmem_control::api::{Locate, Overview, VmaInfo};
use farmem_io::{WakeAt, Waker};
use farmem_machine::Duration;
use farmem_wire::VirtAddr;
use std::path::{Path, PathBuf};

/// Which host of its rack a client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The host's number.
    pub host: u16,
    /// How often it started.
    pub generation: u16,
    /// The domain of its requests.
    pub domain: u32,
}

impl Client {
    /// Sends what was submitted, and waits for anything to arrive: at most so long, or until a waker of [`Client::wakers`] calls.
    ///
    /// # Errors
    /// [`Error::System`] when the link failed, and within one process, where nothing arrives by itself.
    pub fn rest(&mut self, most: Duration) -> Result<(), Error> {
        self.path.rest(most).unwrap_or_else(|| Err(in_process()))
    }

    /// What ends [`Client::rest`]: from another thread, and from another process of this machine.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no more descriptors, and within one process.
    pub fn wakers(&self) -> Result<(Waker, WakeAt), Error> {
        self.path.wakers().unwrap_or_else(|| Err(in_process()))
    }

    /// Which host it is, as the control plane knows it; `None` when it is no member any more: it was fenced, or its address joined again.
    ///
    /// # Errors
    /// [`Error::Api`] when the control plane cannot be reached.
    pub fn membership(&mut self) -> Result<Option<Membership>, Error> {
        let hosts = self.path.call(Overview {})?.hosts;
        let own = hosts.into_iter().find(|host| host.host == self.host);
        Ok(own.map(|own| Membership { host: own.host, generation: own.generation, domain: self.domain.0 }))
    }

    /// Makes another host leave the rack: no node takes anything of it any more when this returns.
    ///
    /// # Errors
    /// [`Error::Refused`] with `not_found` when there is none of this number and generation.
    pub fn fence(&mut self, host: u16, _generation: u16) -> Result<(), Error> {
        self.path.call(farmem_control::api::Leave { port: farmem_machine::Port::host(host).0 })
    }

    /// The allocation that has the address, and parts of it that are lost or elsewhere not.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is none.
    pub fn vma_at(&mut self, addr: VirtAddr) -> Result<VmaInfo, Error> {
        Ok(self.path.call(Locate { addr: addr.0 })?.vma)
    }

    /// Where the DPU of its rack listens on this machine (`[dpu]` of `rack.toml`); `None` of a rack without.
    #[must_use]
    pub fn dpu_socket(&self) -> Option<&Path> {
        self.dpu.as_deref()
    }

    pub(crate) fn set_dpu_socket(&mut self, socket: Option<PathBuf>) {
        self.dpu = socket;
    }
}

fn in_process() -> Error {
    let source = std::io::ErrorKind::Unsupported.into();
    Error::System {
        what: "the client's rack is in its own process, and no process is beside that".into(),
        source,
    }
}
