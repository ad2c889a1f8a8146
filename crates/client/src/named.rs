//! Far memory by name: the control plane's objects (PROTOCOL 8.33 to 8.37, 8.53 to 8.58) for clients, which
//! access them by verbs and traversals.
//!
//! Key types: [`Named`], memory that all its users may read and write; [`OpenNamed`], memory that is open in
//! a mode; [`NamedLock`], a lock that one client of the rack holds. The mode lets windows cache the memory:
//! one client writes it, or many read it (SODA III).
//!
//! Processes of a shared run map the same objects. If a host caches an object coherently, only that host may
//! write its pages. So either clients or a shared run use an object.

mod files;

use crate::client::Client;
use crate::error::Error;
use crate::manage::fence_host_by;
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

/// Maximum number of attempts to take over a lock that other clients acquire first.
const TAKE_OVER_TRIES: u32 = 8;

/// Memory that has a name in its protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// Address of the first byte.
    pub base: VirtAddr,
    /// Length in bytes.
    pub length: u64,
}

/// A handle of a named object, open in a mode; see [`Client::open_named_as`]. A drop closes the object if
/// this is the client's last handle of it.
///
/// Before the drop, all cached bytes must be dropped and all requests completed. Windows ensure both before
/// they release [`Client`].
pub struct OpenNamed {
    vma: Vma,
    length: u64,
    handle: Handle,
}

impl OpenNamed {
    /// Returns the memory of the object, for windows.
    #[must_use]
    pub const fn vma(&self) -> &Vma {
        &self.vma
    }

    /// Returns the length that the creator requested, in bytes. The memory may be longer.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Returns the mode in which the object was opened.
    #[must_use]
    pub const fn mode(&self) -> OpenMode {
        self.handle.mode
    }

    /// Closes the object and reports failure, which a drop ignores.
    ///
    /// # Errors
    /// [`Error::Api`] if the control plane cannot be reached. Other hosts can then open the object only after
    /// this client's host has left the rack.
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

/// A named lock, which at most one client of the rack holds; see [`Client::lock_named`]. A drop releases the
/// lock.
pub struct NamedLock {
    handle: Handle,
}

impl NamedLock {
    /// Releases the lock and reports failure, which a drop ignores.
    ///
    /// # Errors
    /// [`Error::Api`] if the control plane cannot be reached. Other clients can then acquire the lock only by
    /// [`Client::take_over_named`].
    pub fn unlock(mut self) -> Result<(), Error> {
        self.handle.close()
    }
}

impl core::fmt::Debug for NamedLock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NamedLock").field("object", &self.handle.object).finish_non_exhaustive()
    }
}

/// One use of an object, which ends once.
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
            // A client that has left has no open objects, and another host may have its host's number.
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
        // A stopped rack has no state of this host.
        let _closed = self.close();
    }
}

/// An object that was opened by its name.
struct Object {
    object: u64,
    named: Named,
    /// True if the client had it open as [`Named`] before.
    stayed: bool,
}

impl Client {
    /// Opens the memory called `name` in this client's domain, or creates it with `length` zero bytes.
    /// Concurrent callers get the same memory.
    ///
    /// # Errors
    /// [`Error::Refused`] in one of these cases:
    ///
    /// - The name is not 1 to 255 bytes without `/` and control characters.
    /// - No node has enough free memory.
    /// - The memory exists with another length.
    /// - A client has the memory open by [`Client::open_named_as`].
    pub fn create_named(&mut self, name: &str, length: u64) -> Result<Named, Error> {
        let opened = self.object(name, true)?;
        // The control plane accepts a resize to the length that the object has, so two concurrent callers
        // both succeed (PROTOCOL 8.35).
        let sized = self.call(ResizeObject { host: self.host(), object: opened.object, length });
        let named = sized.map(|sized| Named { base: VirtAddr(sized.base), length: sized.length });
        let known = named.and_then(|named| self.known(named)).map(|(named, _)| named);
        self.or_let_go(&opened, known)
    }

    /// Opens the memory called `name` in this client's domain.
    ///
    /// # Errors
    /// [`Error::Missing`] if the name does not exist; [`Error::Refused`] as for [`Client::create_named`].
    pub fn open_named(&mut self, name: &str) -> Result<Named, Error> {
        let opened = self.object(name, false).map_err(|error| or_missing(error, name))?;
        // An object of length 0 is still being created by another client.
        let known = match opened.named.length {
            0 => Err(missing(name)),
            _ => self.known(opened.named).map(|(named, _)| named),
        };
        self.or_let_go(&opened, known)
    }

    /// Opens or creates the memory called `name`, as [`Client::create_named`] does, in a mode; see
    /// [`Client::open_named_as`]. [`OpenMode::Read`] creates nothing: the memory must exist with this length.
    ///
    /// # Errors
    /// The errors of [`Client::create_named`] and [`Client::open_named_as`].
    pub fn create_named_as(&mut self, name: &str, length: u64, mode: OpenMode) -> Result<OpenNamed, Error> {
        let create = mode != OpenMode::Read;
        let (_, handle) = self.handle(name, create, mode).map_err(|error| or_missing(error, name))?;
        let sized = self.call(ResizeObject { host: self.host(), object: handle.object, length })?;
        self.open(Named { base: VirtAddr(sized.base), length: sized.length }, handle)
    }

    /// Opens the memory called `name` in a mode, until the handle is dropped. With [`OpenMode::Write`], no
    /// other host has it open. With [`OpenMode::Read`], other hosts only read it, so pages may be cached
    /// without coherence messages (SODA III).
    ///
    /// If this client opens an object several times, the widest mode applies until the last handle is
    /// dropped. The mode does not prevent this client, or others of its domain, from writing to the addresses
    /// by other calls.
    ///
    /// # Errors
    /// [`Error::Missing`] if the name does not exist. [`Error::Refused`] with [`ErrorCode::Conflict`] if
    /// another host has the object open in a conflicting mode; the message names host and mode.
    /// [`Error::Refused`] with [`ErrorCode::Unavailable`] while a host that is gone may still write the
    /// object.
    pub fn open_named_as(&mut self, name: &str, mode: OpenMode) -> Result<OpenNamed, Error> {
        let (named, handle) = self.handle(name, false, mode).map_err(|error| or_missing(error, name))?;
        if named.length == 0 {
            return Err(missing(name)); // another client is creating the object
        }
        self.open(named, handle)
    }

    /// Removes the name. The memory is freed when the last host closes it. This client closes it at once,
    /// except for its [`OpenNamed`] handles.
    ///
    /// # Errors
    /// [`Error::Missing`] if the name does not exist.
    pub fn unlink_named(&mut self, name: &str) -> Result<(), Error> {
        let opened = match self.object(name, false) {
            Ok(opened) => Some(opened),
            // A client, perhaps this one, has the object open to read or write, so this client does not have
            // it open as shared.
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

    /// Acquires the lock called `name` in this client's domain; creates it if necessary. The client holds the
    /// lock until it drops the guard or its host leaves the rack. Writes of an earlier holder never take
    /// effect after the next acquisition (PROTOCOL 8.57).
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::Conflict`] if this client or another one holds the lock; the
    /// message names the holder's host. [`Error::Refused`] with [`ErrorCode::Unavailable`] while a holder
    /// that is gone may still write.
    pub fn lock_named(&mut self, name: &str) -> Result<NamedLock, Error> {
        let (object, _) = self.ask_for(name, true, OpenMode::Write)?;
        if self.opened().borrow().get(&object).is_some_and(|uses| uses.handles > 0) {
            let message = format!("this program itself holds the lock {name:?}");
            let remedy = "give it back first".into();
            return Err(Error::Refused(ApiError { code: ErrorCode::Conflict, message, remedy }));
        }
        self.used(object, OpenMode::Write).handles += 1;
        let (host, opened, asker) = (self.host(), Rc::clone(self.opened()), self.asker());
        let mode = OpenMode::Write;
        Ok(NamedLock { handle: Handle { object, mode, host, opened, asker, has_ended: false } })
    }

    /// Acquires the lock called `name` even if another client holds it. The control plane first fences that
    /// client's host, and then refuses all its requests.
    ///
    /// # Errors
    /// The errors of [`Client::lock_named`], but [`ErrorCode::Conflict`] only if this client already holds
    /// the lock, or other clients were faster in each attempt.
    pub fn take_over_named(&mut self, name: &str) -> Result<NamedLock, Error> {
        let mut taken = self.lock_named(name);
        for _ in 0..TAKE_OVER_TRIES {
            if taken.as_ref().err().and_then(Error::code) != Some(ErrorCode::Conflict) {
                break;
            }
            for HostInfo { host, generation, .. } in self.others_with_named(name)? {
                match self.fence(host, generation) {
                    // The host has left meanwhile, or has joined again; the next query then shows its new
                    // generation.
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
    /// [`Error::Missing`] if the name does not exist.
    pub fn others_with_named(&mut self, name: &str) -> Result<Vec<HostInfo>, Error> {
        let (own, domain) = (self.host(), self.domain_number());
        let shown = self.call(ShowObject { domain, name: name.into() });
        let mut hosts = shown.map_err(|error| or_missing(error, name))?.hosts;
        hosts.retain(|info| info.host != own);
        Ok(hosts)
    }

    /// Fences another host: the rack ignores everything that it sends from now on, and other clients may open
    /// its objects. Use this method against a process that hangs. A later generation of the host is not
    /// affected.
    ///
    /// A DPU that writes for the host is fenced as well (PROTOCOL 8.59). When this method returns, no request
    /// of the host is executed any more.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::NotFound`] if no host has this number and generation (any more).
    /// Hosts that acted for it are fenced in this case, too.
    pub fn fence(&mut self, host: u16, generation: u16) -> Result<(), Error> {
        fence_host_by(host, generation, |request| self.call(request))
    }

    /// Opens the objects again that the previous generation of this client's host had open.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason why an object cannot be opened again.
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

    /// Returns the result of a request for an object that was opened for it. If the request failed, this
    /// function closes the object unless it was open before.
    fn or_let_go<T>(&mut self, opened: &Object, came: Result<T, Error>) -> Result<T, Error> {
        if came.is_err() && !opened.stayed {
            // The caller gets the first error. If this close fails too, the object is closed when this
            // client's host leaves.
            let _closed = self.let_go(opened.object);
        }
        came
    }

    /// Closes an object that was opened as [`Named`], unless the client has handles of it.
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

    /// Records that the client has the object open in this mode or a wider one.
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

    /// Connects to the node of the object, if the node joined after this client.
    fn known(&mut self, named: Named) -> Result<(Named, Vma), Error> {
        let vma = self.call(Locate { addr: named.base.0 })?.vma;
        if !self.nodes().iter().any(|node| node.node == vma.node) {
            self.connect(vma.node)?;
        }
        // An older route of these addresses may belong to freed memory.
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

/// Returns the error of an object by file that cannot be used or was not saved.
fn lost_object(file: &FileInfo) -> Error {
    let why = file.error.clone().unwrap_or_else(|| {
        format!(
            "what was written to the object of {:?} and not saved was lost with its memory node",
            file.file
        )
    });
    let (message, remedy) = match file.stage {
        FileStage::Unsaved => {
            (format!("the object was not saved: {why}"), "correct that, then save it again")
        }
        FileStage::Lost => (why, "to replace it by the bytes of the file, load it again (`--accept`)"),
        _ => (why, "correct that, then open it again"),
    };
    Error::Refused(ApiError { code: ErrorCode::Conflict, message, remedy: remedy.into() })
}

#[cfg(test)]
mod tests;
