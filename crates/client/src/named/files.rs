//! Objects by file: a memory node loads the bytes of a file of its own into far memory, and saves them there (PROTOCOL 20.12 to 20.20, SODA IV-A).
//!
//! No byte of the file passes this client. What it opens is an [`OpenNamed`] as any other, whose bytes are lost (every access says so) until the node has loaded
//! them.

use crate::client::Client;
use crate::error::Error;
use crate::named::{Named, OpenNamed, lost_object};
use farmem_control::api::{
    FileInfo, FileStage, HoldObject, ListObjects, LoadObject, LookFile, ObjectListed, OpenMode, SaveObject,
};
use farmem_wire::{NodeId, VirtAddr};
use std::time::Duration;

/// Time between two looks at how far a node is.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Client {
    /// The number of the memory node of this name.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none.
    pub fn node_named(&mut self, name: &str) -> Result<NodeId, Error> {
        let nodes = self.call(farmem_control::api::Overview {})?.nodes;
        let node = nodes.iter().find(|node| node.name == name);
        node.map(|node| NodeId(node.node))
            .ok_or_else(|| Error::Missing { what: format!("memory node called {name:?}") })
    }

    /// Bytes of a file of a memory node; its name is a path from the node's directory of files on.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no such file, when it is no regular file or empty, and when the node has no files or says nothing.
    pub fn look_file(&mut self, node: NodeId, file: &str) -> Result<u64, Error> {
        Ok(self.call(LookFile { node: node.0, file: file.into() })?.length)
    }

    /// The object called `name` in this client's domain, open to read: when there is none, one is made that has the bytes of a file of that node, which the node begins to
    /// load. One that could not be loaded before is loaded anew. How far that is says [`Client::file_of`].
    ///
    /// # Errors
    /// As [`Client::look_file`] and [`Client::open_named_as`]; [`Error::Refused`] when the node has no room, when the object is of another file, and when what was written to it
    /// was lost: [`Client::accept_file`] takes the file's bytes for that.
    pub fn open_file(&mut self, name: &str, node: NodeId, file: &str) -> Result<OpenNamed, Error> {
        let length = self.look_file(node, file)?;
        let (_, handle) = self.handle(name, true, OpenMode::Read)?;
        let load = LoadObject::new(self.host(), handle.object, node.0, file.into(), length);
        let ObjectListed { base, length, .. } = self.call(load)?;
        self.open(Named { base: VirtAddr(base), length }, handle)
    }

    /// The object's state, and how far its node is with it.
    ///
    /// # Errors
    /// [`Error::Missing`] when it is not by file.
    pub fn file_of(&mut self, named: &OpenNamed) -> Result<FileInfo, Error> {
        let shown = self.shown(named)?;
        shown.file.ok_or_else(|| Error::Missing { what: "file of this object".into() })
    }

    /// Waits until the node has loaded or saved the object; `each` hears how far it is, and may end the wait by saying false.
    ///
    /// # Errors
    /// As [`Client::file_of`]; [`Error::Refused`] with the reason when the load failed, or the save, or what was written was lost.
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

    /// Opens an object that is open to read to be written: from then on it counts as other than its file, until it is saved.
    ///
    /// # Errors
    /// [`Error::Refused`] when another host has it open, and when it is not loaded.
    pub fn write_file(&mut self, named: &mut OpenNamed) -> Result<(), Error> {
        let (host, object) = (self.host(), named.handle.object);
        self.call(HoldObject { host, object, mode: OpenMode::Write })?;
        self.used(object, OpenMode::Write);
        named.handle.mode = OpenMode::Write;
        Ok(())
    }

    /// Has the object's node write its bytes to the file, whole or not at all; [`Client::wait_for_file`] says when it has. What was cached of it must have been written back.
    /// The object is open to read from then on.
    ///
    /// # Errors
    /// [`Error::Refused`] when it is not by file, or lost.
    pub fn save_file(&mut self, named: &mut OpenNamed) -> Result<FileInfo, Error> {
        let (host, object) = (self.host(), named.handle.object);
        let shown = self.call(SaveObject { host, object })?;
        if let Some(uses) = self.opened().borrow_mut().get_mut(&object) {
            uses.mode = OpenMode::Read;
        }
        named.handle.mode = OpenMode::Read;
        shown.file.ok_or_else(|| Error::Missing { what: "file of this object".into() })
    }

    /// Has an object loaded anew whose bytes are lost, with what was written to it and not saved: its owner takes those of the file for them.
    ///
    /// # Errors
    /// [`Error::Refused`] when another host has it open.
    pub fn accept_file(&mut self, named: &OpenNamed) -> Result<FileInfo, Error> {
        let ObjectListed { object, node, length, file, .. } = self.shown(named)?;
        let none = || Error::Missing { what: "file of this object".into() };
        let file = file.ok_or_else(none)?.file;
        let load = LoadObject::new(self.host(), object, node, file, length);
        self.call(LoadObject { accept: true, ..load })?.file.ok_or_else(none)
    }

    /// The named objects of this client's domain.
    ///
    /// # Errors
    /// [`Error::Api`] when the control plane cannot be reached.
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
