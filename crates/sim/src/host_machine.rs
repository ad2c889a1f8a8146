//! Machines in the place of a host in a simulated rack: the host role, and machines built around it.

use farmem_host::agent::Pages;
use farmem_host::caching::{CacheDone, CacheRequest, CachingHost};
use farmem_host::{Host, HostRequest, Out};
use farmem_machine::Machine;
use std::fmt::Debug;

/// A machine that is a host role or contains one.
pub trait HostMachine: Machine<Out: Debug> + Debug {
    /// Outputs that are not those of the host role.
    type Own: Debug;

    /// Wraps a request to the host role.
    fn ask(ask: HostRequest) -> Self::In;

    /// Splits an output into that of the host role and the machine's own.
    ///
    /// # Errors
    ///
    /// The machine's own output.
    fn said(out: Self::Out) -> Result<Out, Self::Own>;

    /// Returns the host role.
    fn host(&self) -> &Host;
}

impl HostMachine for Host {
    type Own = core::convert::Infallible;

    fn ask(ask: HostRequest) -> HostRequest {
        ask
    }

    fn said(out: Out) -> Result<Out, Self::Own> {
        Ok(out)
    }

    fn host(&self) -> &Host {
        self
    }
}

impl<P: Pages + Debug> HostMachine for CachingHost<P> {
    type Own = CacheDone;

    fn ask(ask: HostRequest) -> CacheRequest {
        CacheRequest::Host(ask)
    }

    fn said(out: CacheDone) -> Result<Out, CacheDone> {
        match out {
            CacheDone::Host(out) => Ok(out),
            own => Err(own),
        }
    }

    fn host(&self) -> &Host {
        Self::host(self)
    }
}
