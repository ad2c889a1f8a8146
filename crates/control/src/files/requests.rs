//! Requests about objects by file: look, load, save, list (PROTOCOL 20.12 to 20.20).

use crate::api::{
    Allocate, ApiError, ErrorCode, FileInfo, FileStage, ListObjects, LoadObject, LookFile, ObjectListed,
    ObjectsListed, OpenMode, SaveObject,
};
use crate::decision::{Decided, Decision};
use crate::errors::{bad, error};
use crate::files::FileInspection;
use crate::files::rounds::explain;
use crate::rack::Rack;
use crate::record::{ChangeKind, FileRow, FileTurn, ObjectRow, Role};
use alloc::format;
use alloc::string::String;
use farmem_wire::message::{FILE_NAME_MAX, is_file_name};

// Requests.
impl Rack {
    /// Looks a file's length up: the answer comes when its node has reported it.
    pub(crate) fn look_file(&self, call: &LookFile) -> Decided<LookFile> {
        self.node_answers(call.node)?;
        file_name_allowed(&call.file)?;
        Ok(Decision::Look { node: call.node, file: call.file.clone() })
    }

    pub(crate) fn look_wait(&mut self, ticket: u64, node: u16, file: String) {
        let look = FileInspection { node, file, token: None, asked: 0, due: self.now };
        self.files.looks.insert(ticket, look);
    }

    /// Gives an object the bytes of a file, or repeats a failed load.
    pub(crate) fn load_object(&self, call: &LoadObject) -> Decided<LoadObject> {
        let &LoadObject { host, object, node, ref file, length, accept } = call;
        let row = self.opened(host, object)?;
        file_name_allowed(file)?;
        let Some(base) = row.base else {
            if row.mode == OpenMode::Shared {
                let message = format!("host {host} has object {object} open shared");
                return Err(error(ErrorCode::Conflict, message, "open it to write to give it a file"));
            }
            self.no_card(node, "loaded")?;
            let call = Allocate { node: Some(node), durable: true, ..Allocate::new(row.domain, length) };
            return self.allocate_for(object, &call, Some(file.clone()));
        };
        let Some(known) = self.state.files.get(&object) else {
            let message = format!("object {object} has other memory, at {base:#x}");
            return Err(error(ErrorCode::Conflict, message, "make another object for the file"));
        };
        if (known.node, &known.file, known.length) != (node, file, length) {
            let message = format!(
                "object {object} has {} bytes of the file {:?} of node {}, not {length} of {file:?} of node {node}",
                known.length, known.file, known.node
            );
            return Err(error(ErrorCode::Conflict, message, "open it as it is, or make another object"));
        }
        match known.stage {
            FileStage::Failed => {}
            FileStage::Lost if accept => {}
            FileStage::Lost => {
                let message = format!(
                    "unsaved bytes of object {object} were lost when {} restarted",
                    self.state.title(Role::Node(node))
                );
                let remedy = "to accept the bytes of the file in their place, ask with `accept`";
                return Err(error(ErrorCode::Conflict, message, remedy));
            }
            _ => return Ok(Decision::Reply(self.list_row(object, row))),
        }
        self.alone(object, row, host)?;
        self.node_answers(node)?;
        self.switch_answers()?;
        Ok(Decision::Begin(ChangeKind::TurnFile { object, base, turn: FileTurn::Load }))
    }

    /// Saves the bytes of an object to its file.
    pub(crate) fn save_object(&self, &SaveObject { host, object }: &SaveObject) -> Decided<SaveObject> {
        let row = self.opened(host, object)?;
        let Some(file) = self.state.files.get(&object) else {
            let message = format!("object {object} is not by file");
            return Err(error(ErrorCode::Conflict, message, "only objects that a node loaded are saved"));
        };
        match file.stage {
            FileStage::Writing | FileStage::Unsaved => {}
            FileStage::Loaded | FileStage::Saving => return Ok(Decision::Reply(self.list_row(object, row))),
            FileStage::Loading | FileStage::Failed | FileStage::Lost => {
                let message = format!("object {object} is {}: there is nothing to save", file.stage);
                return Err(error(ErrorCode::Conflict, message, "load it first (`load_object`)"));
            }
        }
        self.node_answers(file.node)?;
        self.switch_answers()?;
        let (base, turn) = (file.base, FileTurn::Save);
        Ok(Decision::Begin(ChangeKind::TurnFile { object, base, turn }))
    }

    /// Returns the objects, and the progress of nodes on them.
    pub(crate) fn list_objects(&self, call: &ListObjects) -> Decided<ListObjects> {
        call.domain.map_or(Ok(()), |domain| self.domain_known(domain))?;
        let asked = |row: &ObjectRow| call.domain.is_none_or(|domain| row.domain == domain);
        let rows = self.state.objects.iter().filter(|(_, row)| asked(row));
        let objects = rows.map(|(&object, row)| self.list_row(object, row)).collect();
        Ok(Decision::Reply(ObjectsListed { objects }))
    }

    /// Checks that no other host has the object open.
    fn alone(&self, object: u64, row: &ObjectRow, host: u16) -> Result<(), ApiError> {
        let Some(other) = row.hosts.iter().find(|&&other| other != host) else { return Ok(()) };
        let message =
            format!("host {other} has object {object} open too, and may have pages of the bytes before");
        Err(error(ErrorCode::Conflict, message, "close it there first (`drop_object`)"))
    }

    /// Checks whether a host may open an object in a file (PROTOCOL 20.15). Returns the change that must come
    /// first, if any.
    pub(crate) fn file_opens(
        &self,
        object: u64,
        host: u16,
        mode: OpenMode,
    ) -> Result<Option<FileTurn>, ApiError> {
        let Some(file) = self.state.files.get(&object) else { return Ok(None) };
        match mode {
            OpenMode::Read => return Ok(None),
            OpenMode::Write => {}
            OpenMode::Shared => {
                let message = format!("object {object} is by file ({:?} of node {})", file.file, file.node);
                return Err(error(ErrorCode::Conflict, message, "open it to `read` or to `write`"));
            }
        }
        match file.stage {
            FileStage::Writing => Ok(None),
            FileStage::Loaded | FileStage::Unsaved => {
                self.node_answers(file.node)?;
                self.switch_answers()?;
                Ok(Some(FileTurn::Write { host }))
            }
            FileStage::Loading | FileStage::Saving => {
                let message = format!("object {object} is {}", file.stage);
                Err(error(ErrorCode::Unavailable, message, "ask again when that is over (`list_objects`)"))
            }
            FileStage::Failed | FileStage::Lost => {
                let message = format!("the bytes of object {object} are lost: it is {}", file.stage);
                Err(error(ErrorCode::Conflict, message, "load it first (`load_object`)"))
            }
        }
    }

    /// Refuses the vma of an object in a file, whose bytes are loaded, not accepted as they are or moved
    /// (PROTOCOL 20.19).
    pub(crate) fn no_file(&self, vma: u64, what: &str) -> Result<(), ApiError> {
        let Some((object, file)) = self.state.file_at(vma) else { return Ok(()) };
        let message = format!(
            "{vma:#x} is the memory of object {object}, by file ({:?}), which is not {what}",
            file.file
        );
        Err(error(ErrorCode::Conflict, message, "use `load_object` and `save_object`"))
    }

    /// Returns the present state of an existing object.
    pub(crate) fn list_object(&self, object: u64) -> ObjectListed {
        match self.state.objects.get(&object) {
            Some(row) => self.list_row(object, row),
            None => unreachable!("it is there: a change about it has just ended"),
        }
    }

    /// Returns the present state of an object.
    fn list_row(&self, object: u64, row: &ObjectRow) -> ObjectListed {
        let vma = row.base.and_then(|base| self.state.vmas.get(&base));
        ObjectListed {
            object,
            domain: row.domain,
            name: row.name.clone(),
            length: row.length,
            base: row.base.unwrap_or(0),
            size: vma.map_or(0, |vma| vma.size),
            node: vma.map_or(0, |vma| vma.node),
            mode: row.mode,
            hosts: row.hosts.clone(),
            file: self.state.files.get(&object).map(|file| self.file_info(object, file)),
        }
    }

    fn file_info(&self, object: u64, file: &FileRow) -> FileInfo {
        let running = matches!(file.stage, FileStage::Loading | FileStage::Saving);
        let asked = self.files.tasks.get(&object).filter(|asked| running && asked.task == file.task);
        let done = if running { asked.map_or(0, |asked| asked.done) } else { file.length };
        let lost = matches!(file.stage, FileStage::Failed | FileStage::Lost);
        FileInfo {
            file: file.file.clone(),
            stage: file.stage,
            unsaved: matches!(file.stage, FileStage::Writing | FileStage::Unsaved | FileStage::Saving),
            done: if lost { 0 } else { done },
            error: file
                .fault
                .map(|fault| explain(&self.state.title(Role::Node(file.node)), file, fault).message),
        }
    }
}

/// Checks a file name (PROTOCOL 20.1).
fn file_name_allowed(name: &str) -> Result<(), ApiError> {
    if is_file_name(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(crate::bounds::NAME_LEN_MAX).collect();
    let remedy = format!(
        "give a path from the node's directory of files on, up to {FILE_NAME_MAX} bytes, without `..`, `.`, empty parts and control characters"
    );
    Err(bad(format!("{shown:?} is no name for a file of a memory node"), remedy))
}
