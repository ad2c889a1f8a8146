//! Objects in files: memory nodes load and save their bytes (PROTOCOL 20.12 to 20.20, SODA IV-A).
//!
//! ```text
//!            load_object           done              open to write          save_object
//!   (no memory) ---> Loading --------------> Loaded ---------------> Writing -----> Unsaved ---> Saving
//!                    ^    | failed            ^  ^                                     ^           |  |
//!        load_object |    v                   |  '---------------- done ---------------|-----------'  |
//!                    '--- Failed   node starts again: Loading      node starts again: Lost <- failed -'
//! ```
//!
//! The log has the state of an object ([`FileRow`]), but not the progress of its node: the control plane asks the node until it reports
//! the end of the task. The number of a task is that of the change that led to it, so it is unique.

mod stages;

use crate::api::{
    Allocate, ApiError, ErrorCode, FileInfo, FileLooked, FileStage, ListObjects, LoadObject, LookFile,
    ObjectListed, ObjectsListed, OpenMode, SaveObject,
};
use crate::errors::{bad, error, not_found};
use crate::record::{ChangeKind, FaultRow, FileEnd, FileRow, FileTurn, Line, ObjectRow, Role};
use crate::replies::reply;
use crate::requests::{Decided, Decision};
use crate::updates::Reach;
use crate::{Actions, Control, DropReason, Note};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Instant;
use farmem_wire::message::{
    FILE_NAME_MAX, FileBody, FileCause, FileFault, FileMessage, FileState, FileTask, is_file_name,
};
use farmem_wire::{RequestId, VirtAddr};

/// Volatile state of files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Requests that wait for a node to look at a file, by ticket.
    looks: BTreeMap<u64, FileInspection>,
    /// Tasks of nodes, by object.
    tasks: BTreeMap<u64, TaskQuestion>,
}

/// A request that waits for a node to look at a file.
#[derive(Debug)]
struct FileInspection {
    node: u16,
    file: String,
    /// The question, once it was sent.
    token: Option<RequestId>,
    asked: u32,
    due: Instant,
}

/// A requested load or save.
#[derive(Debug)]
struct TaskQuestion {
    task: u64,
    /// The node's incarnation.
    life: u16,
    /// Number of questions without an answer.
    asked: u32,
    due: Instant,
    /// Number of completed bytes.
    done: u64,
}

impl Files {
    /// Returns the time of the next question.
    pub(crate) fn due(&self) -> Option<Instant> {
        let looks = self.looks.values().map(|look| look.due);
        looks.chain(self.tasks.values().map(|asked| asked.due)).min()
    }

    /// Returns the number of unanswered requests.
    pub(crate) fn waiting(&self) -> usize {
        self.looks.len()
    }
}

// Requests.
impl Control {
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
            return match self.allocate(&Allocate {
                node: Some(node),
                durable: true,
                ..Allocate::new(row.domain, length)
            })? {
                Decision::Begin(ChangeKind::Allocate { pieces, .. }) if !pieces.is_empty() => {
                    let message = format!(
                        "node {node} has no {length} bytes free in one piece with their own addresses, as an object by file needs"
                    );
                    Err(error(
                        ErrorCode::OutOfMemory,
                        message,
                        "migrate back what left that node, or free it",
                    ))
                }
                Decision::Begin(ChangeKind::Allocate {
                    base, size, node, domain, durable, pieces, ..
                }) => {
                    let (object, file) = (Some((object, length)), Some(file.clone()));
                    Ok(Decision::Begin(ChangeKind::Allocate {
                        base,
                        size,
                        node,
                        domain,
                        durable,
                        object,
                        file,
                        pieces,
                    }))
                }
                _ => unreachable!("an allocation is a change"),
            };
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

// Time and messages of nodes.
impl Control {
    /// Sends the pending questions about files to nodes, again if needed.
    pub(crate) fn update_files(&mut self, out: &mut Actions) {
        self.ask_for_looks(out);
        self.ask_for_tasks(out);
    }

    fn ask_for_looks(&mut self, out: &mut Actions) {
        let due = self.files.looks.iter().filter(|(_, look)| look.due <= self.now);
        let due: Vec<u64> = due.map(|(&ticket, _)| ticket).collect();
        for ticket in due {
            let Some(look) = self.files.looks.get(&ticket) else { continue };
            let (node, file, asked) = (look.node, look.file.clone(), look.asked);
            if asked > self.config.retries_max || self.state.reach(Role::Node(node)).is_none() {
                self.files.looks.remove(&ticket);
                let gone = self.state.unavailable(Role::Node(node), "does not say what files it has");
                reply(ticket, Err(gone), out);
                continue;
            }
            let life = self.state.generation(Role::Node(node));
            let token = look.token.filter(|token| token.generation() == life);
            let token = token.unwrap_or_else(|| self.next_question(Role::Node(node)));
            self.send_file_message(node, token, FileBody::Lookup(&file), out);
            let due = self.now + self.wait(asked);
            if let Some(look) = self.files.looks.get_mut(&ticket) {
                (look.token, look.asked, look.due) = (Some(token), asked + 1, due);
            }
        }
    }

    fn ask_for_tasks(&mut self, out: &mut Actions) {
        if self.state.files.is_empty() && self.files.tasks.is_empty() {
            return;
        }
        let open = self.state.files.iter().filter(|(_, row)| {
            let hears = matches!(self.state.reach(Role::Node(row.node)), Some(Reach::Ready | Reach::Silent));
            hears && matches!(row.stage, FileStage::Loading | FileStage::Saving)
        });
        let open: Vec<(u64, FileRow)> = open.map(|(&object, row)| (object, row.clone())).collect();
        self.files.tasks.retain(|object, _| open.iter().any(|(its, _)| its == object));
        for (object, row) in open {
            let life = self.state.generation(Role::Node(row.node));
            let fresh = TaskQuestion { task: row.task, life, asked: 0, due: self.now, done: 0 };
            let known = self.files.tasks.get(&object).map(|asked| (asked.task, asked.life));
            if known != Some((row.task, life)) {
                // A joined node is asked behind its tables, which list the lost ranges.
                let queue = self.state.queues.get(&Role::Node(row.node));
                if queue.is_none_or(|queue| queue.outstanding().is_some()) {
                    self.files.tasks.remove(&object);
                    continue;
                }
                self.files.tasks.insert(object, fresh);
            }
            let Some(asked) = self.files.tasks.get_mut(&object).filter(|asked| asked.due <= self.now) else {
                continue;
            };
            asked.asked = asked.asked.saturating_add(1);
            let again = asked.asked - 1;
            let due = self.now + self.wait(again);
            if let Some(asked) = self.files.tasks.get_mut(&object) {
                asked.due = due;
            }
            let Some(size) = self.state.vmas.get(&row.base).map(|vma| vma.size) else { continue };
            let saves = row.stage == FileStage::Saving;
            let task = FileTask {
                task: row.task,
                saves,
                base: VirtAddr(row.base),
                length: row.length,
                size,
                stamp: if saves { 0 } else { row.stamp },
                name: &row.file,
            };
            let token = self.next_question(Role::Node(row.node));
            self.send_file_message(row.node, token, FileBody::Task(task), out);
        }
    }

    fn send_file_message(&mut self, node: u16, token: RequestId, body: FileBody<'_>, out: &mut Actions) {
        let message = FileMessage { token, body };
        self.send_question(Role::Node(node), message.len(), out, |bytes| message.emit(bytes));
    }

    /// Handles a node's report about a file.
    pub(crate) fn on_file_said(&mut self, role: Role, payload: &[u8], out: &mut Actions) {
        let Ok(FileMessage { token, body }) = FileMessage::parse(payload) else {
            return out.note(Note::Dropped(DropReason::Malformed));
        };
        let (Role::Node(node), FileBody::Report(task, state)) = (role, body) else {
            return out.note(Note::Dropped(DropReason::Kind));
        };
        let known = self.is_from_this_life(role, token)
            && if task == 0 { self.looked(token, state, out) } else { self.worked(node, task, state, out) };
        if !known {
            out.note(Note::Dropped(DropReason::Stale));
        }
    }

    fn looked(&mut self, token: RequestId, state: FileState, out: &mut Actions) -> bool {
        let its = |(_, look): &(&u64, &FileInspection)| look.token == Some(token);
        let Some((&ticket, _)) = self.files.looks.iter().find(its) else { return false };
        let Some(FileInspection { node, file, .. }) = self.files.looks.remove(&ticket) else { return false };
        let title = self.state.title(Role::Node(node));
        let result = match state {
            FileState::Done { length, .. } => Ok(FileLooked { length }.into()),
            FileState::Failed(fault) => {
                let row = FileRow::looked_at(node, file);
                Err(explain(&title, &row, fault.into()))
            }
            FileState::Busy { .. } => {
                Err(self.state.unavailable(Role::Node(node), "does not say what files it has"))
            }
        };
        reply(ticket, result, out);
        true
    }

    fn worked(&mut self, node: u16, task: u64, state: FileState, out: &mut Actions) -> bool {
        let its = |(_, row): &(&u64, &FileRow)| {
            (row.node, row.task) == (node, task)
                && matches!(row.stage, FileStage::Loading | FileStage::Saving)
        };
        let Some((&object, row)) = self.state.files.iter().find(its) else { return false };
        let end = match state {
            FileState::Busy { done, .. } => {
                let (now, length) = (self.now, row.length);
                let due = now + self.wait(0);
                if let Some(asked) = self.files.tasks.get_mut(&object).filter(|asked| asked.task == task) {
                    (asked.asked, asked.due, asked.done) = (0, due, done.min(length));
                }
                return true;
            }
            FileState::Done { stamp, .. } => FileEnd::Done { stamp },
            FileState::Failed(fault) => FileEnd::Failed(fault.into()),
        };
        // A report that the log does not accept comes again with the next question.
        if self.keep(Line::FileEnded { object, task, end }, out).is_ok() {
            self.files.tasks.remove(&object);
            out.note(Note::FileEnded);
        }
        true
    }
}

/// Checks a file name (PROTOCOL 20.1).
fn file_name_allowed(name: &str) -> Result<(), ApiError> {
    if is_file_name(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(crate::NAME_LEN_MAX).collect();
    let remedy = format!(
        "give a path from the node's directory of files on, up to {FILE_NAME_MAX} bytes, without `..`, `.`, empty parts and control characters"
    );
    Err(bad(format!("{shown:?} is no name for a file of a memory node"), remedy))
}

/// Returns the error for a failed file operation.
fn explain(node: &str, row: &FileRow, FaultRow { cause, errno, at }: FaultRow) -> ApiError {
    let file = format!("the file {:?} of {node}", row.file);
    let system = if errno == 0 { String::new() } else { format!(" (error number {errno} of the system)") };
    let conflict = |message: String, remedy: &str| error(ErrorCode::Conflict, message, remedy);
    match FileCause::from_bits(cause) {
        Some(FileCause::NoDirectory) => conflict(
            format!("{node} has no directory of files"),
            "name one in rack.toml (`files = \"DIR\"` of its [[node]]) and start the node again",
        ),
        Some(FileCause::Name) => {
            bad(format!("{:?} is no name for a file of {node}", row.file), "give a path inside its directory")
        }
        Some(FileCause::Missing) => {
            not_found(format!("{file} is not there"), "look at what is in the node's directory of files")
        }
        Some(FileCause::Kind) => conflict(
            format!("{file} is no regular file, or a symbolic link is on the way to it"),
            "put a regular file there",
        ),
        Some(FileCause::Denied) => {
            conflict(format!("{file} may not be used{system}"), "let the user of the memory node do that")
        }
        Some(FileCause::Length) if at == 0 => {
            conflict(format!("{file} is empty"), "an object has a byte at least")
        }
        Some(FileCause::Length) => conflict(
            format!("{file} has {at} bytes, not {}", row.length),
            "unlink the object and open the file anew, or put the file back",
        ),
        Some(FileCause::Short) => conflict(
            format!("{file} ends at byte {at}, before its length of {}", row.length),
            "find the program that writes it, then load it again",
        ),
        Some(FileCause::Changed) => conflict(
            format!("{file} changed since it was looked at, or while it was read"),
            "close the object everywhere, then load it again",
        ),
        Some(FileCause::Full) => error(
            ErrorCode::Storage,
            format!("there is no room for {file} at byte {at}{system}"),
            "make room there, then save it again",
        ),
        Some(FileCause::Memory) => {
            conflict(format!("the memory for {file} is not what it has to be"), "load it again")
        }
        Some(FileCause::Forgotten) => {
            conflict(format!("{node} has forgotten what came of {file}"), "ask again")
        }
        Some(FileCause::System) | None => error(
            ErrorCode::Storage,
            format!("the system failed at byte {at} of {file}{system}"),
            "see what the memory node's system says of that disk",
        ),
    }
}

impl From<FileFault> for FaultRow {
    fn from(FileFault { cause, errno, at }: FileFault) -> Self {
        Self { cause: cause as u8, errno, at }
    }
}
