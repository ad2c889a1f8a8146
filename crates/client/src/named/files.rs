//! Objects by file: a memory node loads its file into far memory, and saves the file from there (PROTOCOL
//! 20.12 to 20.20, SODA IV-A).
//!
//! No byte of the file passes through this client. An object by file is an ordinary [`OpenNamed`]. Until the
//! node has loaded its bytes, they count as lost, and every access fails with this error.

use crate::client::Client;
use crate::error::Error;
use crate::named::{Named, OpenNamed, lost_object};
use farmem_control::api::{
    FileInfo, FileStage, HoldObject, ListObjects, LoadObject, LookFile, ObjectListed, OpenMode, SaveObject,
};
use farmem_wire::{NodeId, VirtAddr};
use std::time::Duration;

/// Polling interval for the progress of a node.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Client {
    /// Returns the number of the memory node called `name`.
    ///
    /// # Errors
    /// [`Error::Missing`] if the node does not exist.
    pub fn node_named(&mut self, name: &str) -> Result<NodeId, Error> {
        let nodes = self.call(farmem_control::api::Overview {})?.nodes;
        let node = nodes.iter().find(|node| node.name == name);
        node.map(|node| NodeId(node.node))
            .ok_or_else(|| Error::Missing { what: format!("memory node called {name:?}") })
    }

    /// Returns the length in bytes of a file of a memory node. The file's name is a path relative to the
    /// node's directory of files.
    ///
    /// # Errors
    /// [`Error::Refused`] if the file does not exist, is empty or is not a regular file. Also if the node has
    /// no files or does not answer.
    pub fn look_file(&mut self, node: NodeId, file: &str) -> Result<u64, Error> {
        Ok(self.call(LookFile { node: node.0, file: file.into() })?.length)
    }

    /// Opens the object called `name` in this client's domain to read. If it does not exist, the control
    /// plane creates it, and the node begins to load the file into it. A load that failed before is started
    /// again. [`Client::file_of`] returns the progress.
    ///
    /// # Errors
    /// The errors of [`Client::look_file`] and [`Client::open_named_as`]. [`Error::Refused`] also in these
    /// cases:
    ///
    /// - The node has too little free memory.
    /// - The object belongs to another file.
    /// - Unsaved writes to the object were lost; [`Client::accept_file`] replaces them by the file's bytes.
    pub fn open_file(&mut self, name: &str, node: NodeId, file: &str) -> Result<OpenNamed, Error> {
        let length = self.look_file(node, file)?;
        let (_, handle) = self.handle(name, true, OpenMode::Read)?;
        let load = LoadObject::new(self.host(), handle.object, node.0, file.into(), length);
        let ObjectListed { base, length, .. } = self.call(load)?;
        self.open(Named { base: VirtAddr(base), length }, handle)
    }

    /// Returns the state of the object, and the progress of its node.
    ///
    /// # Errors
    /// [`Error::Missing`] if the object is not by file.
    pub fn file_of(&mut self, named: &OpenNamed) -> Result<FileInfo, Error> {
        let shown = self.shown(named)?;
        shown.file.ok_or_else(|| Error::Missing { what: "file of this object".into() })
    }

    /// Waits until the node has loaded or saved the object. `each` receives the progress, and may end the
    /// wait by returning false.
    ///
    /// # Errors
    /// The errors of [`Client::file_of`]; [`Error::Refused`] with the reason if the load or save failed, or
    /// if unsaved writes were lost.
    pub fn wait_for_file(
        &mut self,
        named: &OpenNamed,
        each: &mut dyn FnMut(&FileInfo) -> bool,
    ) -> Result<FileInfo, Error> {
        loop {
            let file = self.file_of(named)?;
            let goes_on = each(&file);
            match file.stage {
                FileStage::Loading | FileStage::Saving if goes_on => std::thread::sleep(LOOK_EVERY),
                FileStage::Failed | FileStage::Lost => return Err(lost_object(&file)),
                FileStage::Unsaved if file.error.is_some() => return Err(lost_object(&file)),
                _ => return Ok(file),
            }
        }
    }

    /// Opens an object, which is open to read, to write as well. From then on the object differs from its
    /// file, until it is saved.
    ///
    /// # Errors
    /// [`Error::Refused`] if another host has the object open, or if it is not loaded.
    pub fn write_file(&mut self, named: &mut OpenNamed) -> Result<(), Error> {
        let (host, object) = (self.host(), named.handle.object);
        self.call(HoldObject { host, object, mode: OpenMode::Write })?;
        self.used(object, OpenMode::Write);
        named.handle.mode = OpenMode::Write;
        Ok(())
    }

    /// Requests that the object's node write its bytes to the file, atomically. [`Client::wait_for_file`]
    /// waits for the completion. The caller must write back all cached bytes before. From then on the object
    /// is open to read only.
    ///
    /// # Errors
    /// [`Error::Refused`] if the object is not by file, or is lost.
    pub fn save_file(&mut self, named: &mut OpenNamed) -> Result<FileInfo, Error> {
        let (host, object) = (self.host(), named.handle.object);
        let shown = self.call(SaveObject { host, object })?;
        if let Some(uses) = self.opened().borrow_mut().get_mut(&object) {
            uses.mode = OpenMode::Read;
        }
        named.handle.mode = OpenMode::Read;
        shown.file.ok_or_else(|| Error::Missing { what: "file of this object".into() })
    }

    /// Reloads an object whose bytes were lost from its file. Writes since the last save are lost; with this
    /// call, the owner accepts that.
    ///
    /// # Errors
    /// [`Error::Refused`] if another host has the object open.
    pub fn accept_file(&mut self, named: &OpenNamed) -> Result<FileInfo, Error> {
        let ObjectListed { object, node, length, file, .. } = self.shown(named)?;
        let none = || Error::Missing { what: "file of this object".into() };
        let file = file.ok_or_else(none)?.file;
        let load = LoadObject::new(self.host(), object, node, file, length);
        self.call(LoadObject { accept: true, ..load })?.file.ok_or_else(none)
    }

    /// Lists the named objects of this client's domain.
    ///
    /// # Errors
    /// [`Error::Api`] if the control plane cannot be reached.
    pub fn objects(&mut self) -> Result<Vec<ObjectListed>, Error> {
        let domain = Some(self.domain_number());
        Ok(self.call(ListObjects { domain })?.objects)
    }

    fn shown(&mut self, named: &OpenNamed) -> Result<ObjectListed, Error> {
        let object = named.handle.object;
        let all = self.objects()?;
        let found = all.into_iter().find(|row| row.object == object);
        found.ok_or_else(|| Error::Missing { what: format!("object {object}") })
    }
}
