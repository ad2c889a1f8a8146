//! Loads and saves of objects by file (PROTOCOL 20.6 to 20.11).
//!
//! ```text
//!   control -- Lookup, Task --> node role -- FileRequest --> driver: opens, reads and writes files, on a thread of its own
//!           <--- Report ----            <-- FileReply --
//! ```
//!
//! The role decides which bytes are read and written, and when pages may be used. The role does not access a
//! file system: its driver executes each [`FileRequest`] and answers it with one [`FileReply`]. The answers of one
//! file are in the order of its requests.

use crate::node::{MemNode, Outbox};
use crate::note::{DropReason, Note};
use crate::programs::Compile;
use crate::store::Store;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_transport::PeerChange;
use farmem_wire::message::{
    FileBody, FileCause, FileFault, FileMessage, FileState, FileTask, Page, is_file_name,
};
use farmem_wire::{RequestId, VirtAddr};

/// Most bytes of one read from, or write to, a file.
pub const FILE_PART: u32 = 256 << 10;
/// Most lookups and most tasks in progress; one more is not begun.
pub const TASKS_MAX: usize = 64;
/// Most finished tasks that are remembered.
pub const TASKS_KEPT: usize = 1024;

/// Most parts of one task's file that are requested and not yet here.
const PARTS_MAX: u64 = 2;

/// An output of a node to its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// A change of the peer list, before the first frame to the peer.
    Peer(PeerChange),
    /// A request for a file. Only a node whose driver has files ([`MemNode::with_files`]) sends one.
    File(FileRequest),
}

/// A request to the driver for a file. The node chooses the file's number, and uses a number once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileRequest {
    /// Number of the file.
    pub id: u64,
    /// The operation.
    pub op: FileOp,
}

/// An operation on a file. Each is answered once, except [`FileOp::Drop`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileOp {
    /// Looks up the length and forgets the number. Answered by [`FileOutcome::Opened`].
    Look(String),
    /// Opens the file for reading. Answered by [`FileOutcome::Opened`].
    Load(String),
    /// Begins a new file that is to take this name. Answered by [`FileOutcome::Opened`], of length 0.
    Save(String),
    /// Reads a part. Answered by [`FileOutcome::Read`].
    Read {
        /// Offset of the part in bytes.
        offset: u64,
        /// Length in bytes, at most [`FILE_PART`].
        len: u32,
    },
    /// Writes a part. Answered by [`FileOutcome::Written`].
    Write {
        /// Offset of the part in bytes.
        offset: u64,
        /// The bytes, at most [`FILE_PART`].
        bytes: Vec<u8>,
    },
    /// Ends the task and forgets the number. Checks whether a file that was read has changed; renames a new
    /// file over the old one and syncs it (PROTOCOL 20.4, 20.5). Answered by [`FileOutcome::Finished`].
    Finish,
    /// Closes the file, and removes a new one. Not answered.
    Drop,
}

/// The driver's answer to a [`FileRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileReply {
    /// Number of the file.
    pub id: u64,
    /// Outcome of the operation.
    pub outcome: FileOutcome,
}

/// The outcome of an operation on a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileOutcome {
    /// The file is open.
    Opened {
        /// Length in bytes.
        length: u64,
        /// Stamp of the file (PROTOCOL 20.3).
        stamp: u64,
    },
    /// A part was read, in full.
    Read {
        /// Offset of the part.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A part was written.
    Written {
        /// Offset of the part.
        offset: u64,
    },
    /// The file that was read did not change, or the new file has its name.
    Finished {
        /// Stamp of the file.
        stamp: u64,
    },
    /// The operation failed; the driver has closed the file, and removed a new one.
    Failed(FileFault),
}

/// A load or a save in progress.
#[derive(Debug)]
struct Task {
    /// Number of the file.
    id: u64,
    /// Token of the latest question.
    token: RequestId,
    saves: bool,
    base: u64,
    length: u64,
    size: u64,
    stamp: u64,
    /// Offset of the first byte that was not requested.
    next: u64,
    /// Number of bytes that were requested and arrived.
    done: u64,
    /// Number of parts in progress.
    parts: u64,
}

/// The state of a node's file tasks.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// True if the driver has files.
    has_files: bool,
    /// Number of the file that was opened last.
    last_id: u64,
    /// Lookups in progress: file number to token.
    looks: BTreeMap<u64, RequestId>,
    /// Tasks in progress, by number.
    tasks: BTreeMap<u64, Task>,
    /// Finished tasks, by number.
    over: BTreeMap<u64, FileState>,
    /// All tasks up to this number that are not listed here are forgotten.
    forgotten: u64,
}

impl Files {
    pub(crate) fn check(&self) {
        assert!(self.looks.len() <= TASKS_MAX && self.tasks.len() <= TASKS_MAX, "tasks within their bound");
        assert!(self.over.len() <= TASKS_KEPT, "tasks that are over within their bound");
        for (number, task) in &self.tasks {
            assert!(!self.over.contains_key(number), "a task is under way or over");
            assert!(task.done <= task.next && task.next <= task.length, "parts of the file alone");
            assert!(task.parts <= PARTS_MAX, "parts within their bound");
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Records the end of a task.
    fn keep(&mut self, number: u64, state: FileState) {
        self.tasks.remove(&number);
        self.over.insert(number, state);
        if self.over.len() > TASKS_KEPT
            && let Some((number, _)) = self.over.pop_first()
        {
            self.forgotten = self.forgotten.max(number);
        }
    }

    /// Returns the task whose file has this number.
    fn of_id(&self, id: u64) -> Option<u64> {
        self.tasks.iter().find(|(_, task)| task.id == id).map(|(&number, _)| number)
    }
}

const fn failed(cause: FileCause) -> FileState {
    FileState::Failed(FileFault { cause, errno: 0, at: 0 })
}

fn pages(base: u64, size: u64) -> (Page, Page) {
    (Page::of(VirtAddr(base)), Page::of(VirtAddr(base + (size - 1))))
}

impl<S: Store, C: Compile> MemNode<S, C> {
    /// Declares that the driver has files: it executes each request ([`Out::File`]) and answers
    /// ([`FileReply`]).
    #[must_use]
    pub fn with_files(mut self) -> Self {
        self.files.has_files = true;
        self
    }

    /// Handles a message about files; only the control plane sends them.
    pub(crate) fn on_file_message(&mut self, port: Port, payload: &[u8], out: &mut Outbox) {
        if port != Port::CONTROL {
            return self.drop_frame(DropReason::WrongPort, out);
        }
        match FileMessage::parse(payload) {
            Ok(FileMessage { token, body: FileBody::Lookup(name) }) => self.look_at_file(token, name, out),
            Ok(FileMessage { token, body: FileBody::Task(task) }) => self.on_file_task(token, &task, out),
            Ok(FileMessage { body: FileBody::Report(..), .. }) => self.drop_frame(DropReason::WrongPort, out),
            Err(_) => self.drop_frame(DropReason::Malformed, out),
        }
    }

    fn look_at_file(&mut self, token: RequestId, name: &str, out: &mut Outbox) {
        if let Err(state) = self.may_open(name) {
            return self.report_file(token, 0, state, out);
        }
        if self.files.looks.values().any(|known| *known == token) {
            return;
        }
        if self.files.looks.len() >= TASKS_MAX {
            return self.drop_frame(DropReason::Busy, out);
        }
        let id = self.files.next_id();
        self.files.looks.insert(id, token);
        out.local(Out::File(FileRequest { id, op: FileOp::Look(name.into()) }));
    }

    fn on_file_task(&mut self, token: RequestId, asked: &FileTask<'_>, out: &mut Outbox) {
        let number = asked.task;
        if let Some(&state) = self.files.over.get(&number) {
            return self.report_file(token, number, state, out);
        }
        if let Some(task) = self.files.tasks.get_mut(&number) {
            task.token = token;
            let state = FileState::Busy { done: task.done, length: task.length };
            return self.report_file(token, number, state, out);
        }
        if number <= self.files.forgotten {
            return self.report_file(token, number, failed(FileCause::Forgotten), out);
        }
        if self.files.tasks.len() >= TASKS_MAX {
            return self.drop_frame(DropReason::Busy, out);
        }
        let refused = self.may_open(asked.name).err().or_else(|| self.file_memory(asked).err());
        if let Some(state) = refused {
            self.files.keep(number, state);
            out.note(Note::FileFailed);
            return self.report_file(token, number, state, out);
        }
        let &FileTask { saves, base, length, size, stamp, name, .. } = asked;
        let id = self.files.next_id();
        let task = Task { id, token, saves, base: base.0, length, size, stamp, next: 0, done: 0, parts: 0 };
        self.files.tasks.insert(number, task);
        let op = if saves { FileOp::Save(name.into()) } else { FileOp::Load(name.into()) };
        out.local(Out::File(FileRequest { id, op }));
        self.report_file(token, number, FileState::Busy { done: 0, length }, out);
    }

    fn may_open(&self, name: &str) -> Result<(), FileState> {
        if !self.files.has_files {
            return Err(failed(FileCause::NoDirectory));
        }
        if is_file_name(name) { Ok(()) } else { Err(failed(FileCause::Name)) }
    }

    /// Checks the memory of a task. For a load, the vma must be here and lost as a whole. For a save, no byte
    /// may be lost or at a host (PROTOCOL 20.9).
    fn file_memory(&self, task: &FileTask<'_>) -> Result<(), FileState> {
        let (first, last) = pages(task.base.0, task.size);
        let states = self.regions.page_states();
        let ready = if task.saves { states.is_latest(first, last) } else { states.is_lost(first, last) };
        let here = self.regions.is_whole(task.base, task.size);
        if here && ready { Ok(()) } else { Err(failed(FileCause::Memory)) }
    }

    /// Handles the driver's answer.
    pub(crate) fn on_file_done(&mut self, done: FileReply, out: &mut Outbox) {
        let FileReply { id, outcome } = done;
        if let Some(token) = self.files.looks.remove(&id) {
            let state = match outcome {
                FileOutcome::Opened { length, stamp } => FileState::Done { length, stamp },
                FileOutcome::Failed(fault) => FileState::Failed(fault),
                other => unreachable!("{other:?} is no answer to a look"),
            };
            return self.report_file(token, 0, state, out);
        }
        // An unknown file was dropped while its answer was in flight.
        let Some(number) = self.files.of_id(id) else { return };
        match outcome {
            FileOutcome::Opened { length, stamp } => self.file_opened(number, length, stamp, out),
            FileOutcome::Read { offset, bytes } => self.file_read(number, offset, &bytes, out),
            FileOutcome::Written { offset } => {
                if let Some(task) = self.files.tasks.get_mut(&number) {
                    task.parts -= 1;
                    task.done += part_at(offset, task.length);
                }
                self.ask_for_parts(number, out);
            }
            FileOutcome::Finished { stamp } => self.file_finished(number, stamp, out),
            FileOutcome::Failed(fault) => self.end_file_task(number, FileState::Failed(fault), out),
        }
    }

    fn file_opened(&mut self, number: u64, length: u64, stamp: u64, out: &mut Outbox) {
        let Some(task) = self.files.tasks.get(&number) else { return };
        if !task.saves {
            let fault = |cause, at| FileState::Failed(FileFault { cause, errno: 0, at });
            if length != task.length {
                return self.drop_file_task(number, fault(FileCause::Length, length), out);
            }
            if task.stamp != 0 && task.stamp != stamp {
                return self.drop_file_task(number, fault(FileCause::Changed, 0), out);
            }
        }
        self.ask_for_parts(number, out);
    }

    fn file_read(&mut self, number: u64, offset: u64, bytes: &[u8], out: &mut Outbox) {
        let Some(task) = self.files.tasks.get_mut(&number) else { return };
        task.parts -= 1;
        task.done += bytes.len() as u64;
        let (base, size) = (task.base, task.size);
        // No access can use the pages before all bytes have arrived; so the pages are still lost, and here.
        let (first, last) = pages(base, size);
        if !self.regions.is_whole(VirtAddr(base), size) || !self.regions.page_states().is_lost(first, last) {
            return self.drop_file_task(number, failed(FileCause::Memory), out);
        }
        let at = self.regions.offset(VirtAddr(base + offset), bytes.len());
        self.store.write(at, bytes);
        self.ask_for_parts(number, out);
    }

    /// Requests the next parts, up to the limit; when no parts are left, requests the end.
    fn ask_for_parts(&mut self, number: u64, out: &mut Outbox) {
        loop {
            let Some(task) = self.files.tasks.get_mut(&number).filter(|task| task.parts < PARTS_MAX) else {
                return;
            };
            let (id, offset) = (task.id, task.next);
            if offset == task.length {
                if task.parts == 0 {
                    out.local(Out::File(FileRequest { id, op: FileOp::Finish }));
                }
                return;
            }
            let len = part_at(offset, task.length);
            task.parts += 1;
            task.next += len;
            let (saves, at) = (task.saves, VirtAddr(task.base + offset));
            let len = u32::try_from(len).expect("a part is short");
            let op = if saves {
                let mut bytes = Vec::with_capacity(len as usize);
                self.store.read(self.regions.offset(at, len as usize), len, &mut bytes);
                FileOp::Write { offset, bytes }
            } else {
                FileOp::Read { offset, len }
            };
            out.local(Out::File(FileRequest { id, op }));
        }
    }

    fn file_finished(&mut self, number: u64, stamp: u64, out: &mut Outbox) {
        let Some(task) = self.files.tasks.get(&number) else { return };
        let (saves, base, size, length) = (task.saves, task.base, task.size, task.length);
        if !saves {
            let at = self.regions.offset(VirtAddr(base), 1);
            self.store.discard(at + length, size - length);
            let (first, last) = pages(base, size);
            self.regions.page_states_mut().accept_loss(first, last);
        }
        out.note(if saves { Note::FileSaved } else { Note::FileLoaded });
        self.end_file_task(number, FileState::Done { length, stamp }, out);
    }

    /// Ends a task whose file is open at the driver.
    fn drop_file_task(&mut self, number: u64, state: FileState, out: &mut Outbox) {
        if let Some(task) = self.files.tasks.get(&number) {
            out.local(Out::File(FileRequest { id: task.id, op: FileOp::Drop }));
        }
        self.end_file_task(number, state, out);
    }

    fn end_file_task(&mut self, number: u64, state: FileState, out: &mut Outbox) {
        let token = self.files.tasks.get(&number).map(|task| task.token);
        self.files.keep(number, state);
        if matches!(state, FileState::Failed(_)) {
            out.note(Note::FileFailed);
        }
        if let Some(token) = token {
            self.report_file(token, number, state, out);
        }
    }

    /// Ends all tasks on these bytes, because the bytes get another owner (PROTOCOL 20.10).
    pub(crate) fn end_file_tasks(&mut self, base: VirtAddr, len: u64, out: &mut Outbox) {
        if self.files.tasks.is_empty() {
            return;
        }
        let end = base.0.saturating_add(len);
        let meets = |task: &Task| task.base < end && base.0 < task.base + task.size;
        let met: Vec<u64> =
            self.files.tasks.iter().filter(|(_, task)| meets(task)).map(|(&number, _)| number).collect();
        for number in met {
            self.drop_file_task(number, failed(FileCause::Memory), out);
        }
    }

    fn report_file(&mut self, token: RequestId, number: u64, state: FileState, out: &mut Outbox) {
        if let Some(control) = self.peers.get(Port::CONTROL) {
            let message = FileMessage { token, body: FileBody::Report(number, state) };
            self.peers.emit(control, message.len(), out, |bytes| message.emit(bytes));
        }
    }
}

/// Returns the length of the part at this offset.
fn part_at(offset: u64, length: u64) -> u64 {
    (length - offset).min(FILE_PART.into())
}
