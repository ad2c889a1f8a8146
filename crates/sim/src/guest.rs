//! What can sit where a host does in a simulated rack: the host role, and what is built around it.

use farmem_host::agent::Pages;
use farmem_host::caching::{CacheDone, CacheRequest, CachingHost};
use farmem_host::{Host, HostRequest, Out};
use farmem_machine::Machine;
use std::fmt::Debug;

/// A machine that is a host, or has one in it.
pub trait Guest: Machine<Out: Debug> + Debug {
    /// What it says that a host would not.
    type Own: Debug;

    /// What its host is asked, as it is asked.
    fn ask(ask: HostRequest) -> Self::In;

    /// What it says: its host's words, or its own.
    ///
    /// # Errors
    /// Its own.
    fn said(out: Self::Out) -> Result<Out, Self::Own>;

    /// Its host.
    fn host(&self) -> &Host;
}

impl Guest for Host {
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

impl<P: Pages + Debug> Guest for CachingHost<P> {
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
