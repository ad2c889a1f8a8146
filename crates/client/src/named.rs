//! Far memory by name: the control plane's objects (PROTOCOL 8.33 to 8.37) for clients, which reach them by verbs and traversals.
//!
//! Key type: [`Named`]. Processes of a shared run map the same objects; what is in one is its users' matter. A page of it that a host caches is
//! written through that host only: an object is a client's, or a shared run's.

use crate::{Client, Error, VirtAddr};
use farmem_control::api::{DropObject, ErrorCode, Locate, OpenObject, ResizeObject, UnlinkObject};
use farmem_host::HostRequest;

/// Memory that has a name in its protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// First byte.
    pub base: VirtAddr,
    /// Bytes.
    pub length: u64,
}

impl Client {
    /// The memory called `name` in this client's domain: the one that is there, else `length` zeros. However many ask at once, there is one.
    ///
    /// # Errors
    /// [`Error::Refused`] when the name is not 1 to 255 bytes without `/` and control characters, no node has room, or it is there with another length.
    pub fn create_named(&mut self, name: &str, length: u64) -> Result<Named, Error> {
        let (object, _) = self.object(name, true)?;
        // A request for the length that the object has succeeds, also when two clients ask at once (PROTOCOL 8.35).
        let sized = self.call(ResizeObject { host: self.host(), object, length })?;
        self.known(Named { base: VirtAddr(sized.base), length: sized.length })
    }

    /// The memory called `name` in this client's domain.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none of this name; [`Error::Refused`] as [`Client::create_named`].
    pub fn open_named(&mut self, name: &str) -> Result<Named, Error> {
        let missing = || Error::Missing { what: format!("far memory called {name:?}") };
        match self.object(name, false) {
            Ok((_, named)) if named.length > 0 => self.known(named),
            // Another client is making it.
            Ok(_) => Err(missing()),
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Err(missing()),
            Err(error) => Err(error),
        }
    }

    /// Takes the name away. The memory is freed when no host has it open any more; this one lets go of it at once.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none of this name.
    pub fn unlink_named(&mut self, name: &str) -> Result<(), Error> {
        let missing = || Error::Missing { what: format!("far memory called {name:?}") };
        let not_found = |error: Error| match error.code() {
            Some(ErrorCode::NotFound) => missing(),
            _ => error,
        };
        let (object, _) = self.object(name, false).map_err(not_found)?;
        let domain = self.domain_number();
        self.call(UnlinkObject { domain, name: name.into() }).map_err(not_found)?;
        self.call(DropObject { host: self.host(), object })
    }

    fn object(&mut self, name: &str, create: bool) -> Result<(u64, Named), Error> {
        let (host, domain) = (self.host(), self.domain_number());
        let made = self.call(OpenObject { host, domain, name: name.into(), create, exclusive: false })?;
        Ok((made.object, Named { base: VirtAddr(made.base), length: made.length }))
    }

    /// Makes its node known to this client, which may have joined later.
    fn known(&mut self, named: Named) -> Result<Named, Error> {
        let vma = self.call(Locate { addr: named.base.0 })?.vma;
        if !self.nodes().iter().any(|node| node.node == vma.node) {
            self.connect(vma.node)?;
        }
        // An older route of these addresses may belong to memory that was freed.
        self.tell(HostRequest::Route { base: VirtAddr(vma.base), len: vma.size, node: None })?;
        Ok(named)
    }
}
