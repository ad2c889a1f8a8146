//! Far memory by name: the control plane's objects (PROTOCOL 8.33 to 8.37, 8.53 to 8.58) for clients, which reach them by verbs and traversals.
//!
//! Key types: [`Named`], memory that its users share as they like; [`OpenNamed`], memory that is open in a mode, so that windows may cache it: one client writes it, or
//! many read it (SODA III); [`NamedLock`], a name without memory that one client of the rack has. Processes of a shared run map the same objects. A page of one that a host caches coherently is written through that host only: an
//! object is a client's, or a shared run's.

mod files;

use crate::client::Client;
use crate::error::Error;
use crate::manage::take_out_by;
use crate::opened::{Opened, Uses};
use crate::operation::Vma;
use crate::path::Asker;
use farmem_control::api::{
    ApiError, DropObject, ErrorCode, FileInfo, FileStage, HoldObject, HostInfo, Locate, OpenMode, OpenObject,
    ResizeObject, ShowObject, UnlinkObject,
};
use farmem_host::HostRequest;
use farmem_wire::{NodeId, VirtAddr};
use std::rc::Rc;

/// Clients that may be faster, one after the other, than one that takes a lock over.
const TAKE_OVER_TRIES: u32 = 8;

/// Memory that has a name in its protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// First byte.
    pub base: VirtAddr,
    /// Bytes.
    pub length: u64,
}

/// Memory with a name that a client has open in a mode; see [`Client::open_named_as`]. Dropped, it is closed, unless the client has it open otherwise too.
///
/// Cached bytes must be dropped before, and requests under way must have ended: windows see to that before [`Client`] is free again.
pub struct OpenNamed {
    vma: Vma,
    length: u64,
    handle: Handle,
}

impl OpenNamed {
    /// Its memory, for windows.
    #[must_use]
    pub const fn vma(&self) -> &Vma {
        &self.vma
    }

    /// Its bytes: as many as its maker asked for. Its memory has as many or more.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// How it was opened.
    #[must_use]
    pub const fn mode(&self) -> OpenMode {
        self.handle.mode
    }

    /// Closes it, and says what kept the control plane from closing it; a drop does not.
    ///
    /// # Errors
    /// [`Error::Api`] when the control plane cannot be reached: then others may not open it before this client's host has left the rack.
    pub fn close(mut self) -> Result<(), Error> {
        self.handle.close()
    }
}

impl core::fmt::Debug for OpenNamed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("OpenNamed")
            .field("vma", &self.vma)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// A lock by its name, which one client of the rack has; see [`Client::lock_named`]. Dropped, it is free.
pub struct NamedLock {
    handle: Handle,
}

impl NamedLock {
    /// Gives it back, and says what kept the control plane from hearing of it; a drop does not.
    ///
    /// # Errors
    /// [`Error::Api`] when the control plane cannot be reached: then others have it when they have taken it over ([`Client::take_over_named`]).
    pub fn unlock(mut self) -> Result<(), Error> {
        self.handle.close()
    }
}

impl core::fmt::Debug for NamedLock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NamedLock").field("object", &self.handle.object).finish_non_exhaustive()
    }
}

/// One use of an object. It ends once.
struct Handle {
    object: u64,
    mode: OpenMode,
    host: u16,
    opened: Opened,
    asker: Asker,
    has_ended: bool,
}

impl Handle {
    fn close(&mut self) -> Result<(), Error> {
        if core::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        {
            let mut opened = self.opened.borrow_mut();
            // A client that has left has nothing open, and its host's number may be another's.
            let Some(uses) = opened.get_mut(&self.object) else { return Ok(()) };
            uses.handles -= 1;
            if uses.handles > 0 || uses.stays {
                return Ok(());
            }
            opened.remove(&self.object);
        }
        self.asker.call_now(DropObject { host: self.host, object: self.object })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A rack that is gone has forgotten this host too.
        let _closed = self.close();
    }
}

/// An object as it was opened by its name.
struct Object {
    object: u64,
    named: Named,
    /// The client had it open as [`Named`] before.
    stayed: bool,
}

impl Client {
    /// The memory called `name` in this client's domain: the one that is there, else `length` zeros. However many ask at once, there is one.
    ///
    /// # Errors
    /// [`Error::Refused`] when the name is not 1 to 255 bytes without `/` and control characters, no node has room, it is there with another length, or a client has
    /// it open by [`Client::open_named_as`].
    pub fn create_named(&mut self, name: &str, length: u64) -> Result<Named, Error> {
        let opened = self.object(name, true)?;
        // A request for the length that the object has succeeds, also when two clients ask at once (PROTOCOL 8.35).
        let sized = self.call(ResizeObject { host: self.host(), object: opened.object, length });
        let named = sized.map(|sized| Named { base: VirtAddr(sized.base), length: sized.length });
        let known = named.and_then(|named| self.known(named)).map(|(named, _)| named);
        self.or_let_go(&opened, known)
    }

    /// The memory called `name` in this client's domain.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none of this name; [`Error::Refused`] as [`Client::create_named`].
    pub fn open_named(&mut self, name: &str) -> Result<Named, Error> {
        let opened = self.object(name, false).map_err(|error| or_missing(error, name))?;
        // Without a byte, another client is making it.
        let known = match opened.named.length {
            0 => Err(missing(name)),
            _ => self.known(opened.named).map(|(named, _)| named),
        };
        self.or_let_go(&opened, known)
    }

    /// As [`Client::create_named`], open in a mode; see [`Client::open_named_as`]. [`OpenMode::Read`] makes nothing: it opens what is there with this length.
    ///
    /// # Errors
    /// As [`Client::create_named`] and [`Client::open_named_as`].
    pub fn create_named_as(&mut self, name: &str, length: u64, mode: OpenMode) -> Result<OpenNamed, Error> {
        let create = mode != OpenMode::Read;
        let (_, handle) = self.handle(name, create, mode).map_err(|error| or_missing(error, name))?;
        let sized = self.call(ResizeObject { host: self.host(), object: handle.object, length })?;
        self.open(Named { base: VirtAddr(sized.base), length: sized.length }, handle)
    }

    /// The memory called `name` in this client's domain, open in a mode until what is answered is dropped: with [`OpenMode::Write`] no other host has it open, with
    /// [`OpenMode::Read`] others only read it, so that its pages may be cached without asking anybody (SODA III).
    ///
    /// An object that this client opens more than once is open in the widest of these modes, until the last handle is dropped. The mode does not keep this client, or others of its
    /// domain, from writing at the addresses otherwise.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none of this name. [`Error::Refused`] with [`ErrorCode::Conflict`] when another host has it open so that this cannot be, with the host
    /// and the mode; with [`ErrorCode::Unavailable`] while one that is gone may still write it.
    pub fn open_named_as(&mut self, name: &str, mode: OpenMode) -> Result<OpenNamed, Error> {
        let (named, handle) = self.handle(name, false, mode).map_err(|error| or_missing(error, name))?;
        if named.length == 0 {
            return Err(missing(name)); // another client is making it
        }
        self.open(named, handle)
    }

    /// Takes the name away. The memory is freed when no host has it open any more; this one lets go of it at once, but for what [`OpenNamed`] has open.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none of this name.
    pub fn unlink_named(&mut self, name: &str) -> Result<(), Error> {
        let opened = match self.object(name, false) {
            Ok(opened) => Some(opened),
            // A client, perhaps this one, reads or writes it: then this client does not share it.
            Err(error) if matches!(error.code(), Some(ErrorCode::Conflict | ErrorCode::Unavailable)) => None,
            Err(error) => return Err(or_missing(error, name)),
        };
        let domain = self.domain_number();
        let unlinked =
            self.call(UnlinkObject { domain, name: name.into() }).map_err(|error| or_missing(error, name));
        let Some(opened) = opened else { return unlinked };
        self.or_let_go(&opened, unlinked)?;
        self.let_go(opened.object)
    }

    /// Takes the lock called `name` in this client's domain, which is made when there is none: no other client of the rack has it until it is dropped, or until this
    /// client's host leaves the rack. The next holder knows that nothing that this client still sends changes memory of the domain (PROTOCOL 8.57).
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::Conflict`] when another client has it, with its host, or this one already; with [`ErrorCode::Unavailable`] while one that is
    /// gone may still write.
    pub fn lock_named(&mut self, name: &str) -> Result<NamedLock, Error> {
        let (object, _) = self.ask_for(name, true, OpenMode::Write)?;
        if self.opened().borrow().get(&object).is_some_and(|uses| uses.handles > 0) {
            let message = format!("this program itself has {name:?} locked");
            let remedy = "give it back first".into();
            return Err(Error::Refused(ApiError { code: ErrorCode::Conflict, message, remedy }));
        }
        self.used(object, OpenMode::Write).handles += 1;
        let (host, opened, asker) = (self.host(), Rc::clone(self.opened()), self.asker());
        let mode = OpenMode::Write;
        Ok(NamedLock { handle: Handle { object, mode, host, opened, asker, has_ended: false } })
    }

    /// As [`Client::lock_named`], also when another client has it: its host is taken out of the rack first, and from then on whatever it asks for is refused.
    ///
    /// # Errors
    /// As [`Client::lock_named`]; with [`ErrorCode::Conflict`] only when this client has it already, or yet others were faster each time.
    pub fn take_over_named(&mut self, name: &str) -> Result<NamedLock, Error> {
        let mut taken = self.lock_named(name);
        for _ in 0..TAKE_OVER_TRIES {
            if taken.as_ref().err().and_then(Error::code) != Some(ErrorCode::Conflict) {
                break;
            }
            for HostInfo { host, generation, .. } in self.others_with_named(name)? {
                match self.fence(host, generation) {
                    // The host left meanwhile, or joined again: then it is shown in its next life.
                    Err(error) if error.code() == Some(ErrorCode::NotFound) => {}
                    fenced => fenced?,
                }
            }
            taken = self.lock_named(name);
        }
        taken
    }

    /// Returns the other hosts that have the memory or lock called `name` open.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none of this name.
    pub fn others_with_named(&mut self, name: &str) -> Result<Vec<HostInfo>, Error> {
        let (own, domain) = (self.host(), self.domain_number());
        let shown = self.call(ShowObject { domain, name: name.into() });
        let mut hosts = shown.map_err(|error| or_missing(error, name))?.hosts;
        hosts.retain(|info| info.host != own);
        Ok(hosts)
    }

    /// Takes another host out of the rack: nothing that it still sends counts, and its objects may be opened by others. Call this to keep a process that
    /// hangs from doing harm. The next life of the host, if it has begun, stays as it is. Hosts that act for it, as the DPU does by way of which it writes, are taken out as well
    /// (PROTOCOL 8.59): when this answers, nothing that it asked them for is carried out any more.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::NotFound`] when no host of this number is in this generation, or not any more; those that acted for it are out then too.
    pub fn fence(&mut self, host: u16, generation: u16) -> Result<(), Error> {
        take_out_by(host, generation, |request| self.call(request))
    }

    /// Opens again what was open in the life of this client's host before.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason why something cannot be had again.
    pub(crate) fn hold_again(&mut self) -> Result<(), Error> {
        let opened: Vec<(u64, OpenMode)> =
            self.opened().borrow().iter().map(|(&object, uses)| (object, uses.mode)).collect();
        for (object, mode) in opened {
            self.call(HoldObject { host: self.host(), object, mode })?;
        }
        Ok(())
    }

    fn object(&mut self, name: &str, create: bool) -> Result<Object, Error> {
        let (object, named) = self.ask_for(name, create, OpenMode::Shared)?;
        let stayed = core::mem::replace(&mut self.used(object, OpenMode::Shared).stays, true);
        Ok(Object { object, named, stayed })
    }

    /// Passes on the outcome of a request for an object that was opened for it: when that failed, the object is not open for its sake.
    fn or_let_go<T>(&mut self, opened: &Object, came: Result<T, Error>) -> Result<T, Error> {
        if came.is_err() && !opened.stayed {
            // The error is returned already; the object is closed when this client's host leaves.
            let _closed = self.let_go(opened.object);
        }
        came
    }

    /// Closes what was opened as [`Named`], unless there are handles of it.
    fn let_go(&mut self, object: u64) -> Result<(), Error> {
        {
            let mut opened = self.opened().borrow_mut();
            if let Some(uses) = opened.get_mut(&object).filter(|uses| uses.handles > 0) {
                uses.stays = false;
                return Ok(());
            }
            opened.remove(&object);
        }
        self.call(DropObject { host: self.host(), object })
    }

    fn handle(&mut self, name: &str, create: bool, mode: OpenMode) -> Result<(Named, Handle), Error> {
        let (object, named) = self.ask_for(name, create, mode)?;
        self.used(object, mode).handles += 1;
        let (host, opened, asker) = (self.host(), Rc::clone(self.opened()), self.asker());
        Ok((named, Handle { object, mode, host, opened, asker, has_ended: false }))
    }

    fn ask_for(&mut self, name: &str, create: bool, mode: OpenMode) -> Result<(u64, Named), Error> {
        let (host, domain) = (self.host(), self.domain_number());
        let made = self.call(OpenObject { create, mode, ..OpenObject::new(host, domain, name.into()) })?;
        Ok((made.object, Named { base: VirtAddr(made.base), length: made.length }))
    }

    /// The client has the object open, in this mode or one that is wider.
    fn used(&self, object: u64, mode: OpenMode) -> core::cell::RefMut<'_, Uses> {
        core::cell::RefMut::map(self.opened().borrow_mut(), |opened| {
            let uses = opened.entry(object).or_insert(Uses { mode, handles: 0, stays: false });
            if mode == OpenMode::Write {
                uses.mode = mode;
            }
            uses
        })
    }

    fn open(&mut self, named: Named, handle: Handle) -> Result<OpenNamed, Error> {
        let (named, vma) = self.known(named)?;
        Ok(OpenNamed { vma, length: named.length, handle })
    }

    /// Makes its node known to this client, which may have joined later.
    fn known(&mut self, named: Named) -> Result<(Named, Vma), Error> {
        let vma = self.call(Locate { addr: named.base.0 })?.vma;
        if !self.nodes().iter().any(|node| node.node == vma.node) {
            self.connect(vma.node)?;
        }
        // An older route of these addresses may belong to memory that was freed.
        self.tell(HostRequest::Route { base: VirtAddr(vma.base), len: vma.size, node: None })?;
        Ok((named, Vma { base: VirtAddr(vma.base), size: vma.size, node: NodeId(vma.node) }))
    }
}

fn missing(name: &str) -> Error {
    Error::Missing { what: format!("far memory called {name:?}") }
}

fn or_missing(error: Error, name: &str) -> Error {
    if error.code() == Some(ErrorCode::NotFound) { missing(name) } else { error }
}

/// Why an object by file cannot be used, or is not saved.
fn lost_object(file: &FileInfo) -> Error {
    let why = file.error.clone().unwrap_or_else(|| {
        format!(
            "what was written to the object of {:?} and not saved was lost with its memory node",
            file.file
        )
    });
    let (message, remedy) = match file.stage {
        FileStage::Unsaved => {
            (format!("the object was not saved: {why}"), "put that right, then save it again")
        }
        FileStage::Lost => (why, "to take the bytes of the file for it, have it loaded again (`--accept`)"),
        _ => (why, "put that right, then open it again"),
    };
    Error::Refused(ApiError { code: ErrorCode::Conflict, message, remedy: remedy.into() })
}

#[cfg(test)]
mod tests;
