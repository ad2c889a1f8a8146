//! Files whose bytes are those of objects (PROTOCOL 20.6 to 20.11).
//!
//! ```text
//!   control -- Look, Task --> node role -- FileAsk --> driver: opens, reads and writes files, on a thread of its own
//!           <---- Said -----            <-- FileDone --
//! ```
//!
//! The role decides what is read and written, and when pages may be used. It knows no file system: its driver carries each [`FileAsk`] out and
//! answers it with one [`FileDone`], in the order in which they were asked of one file.

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

/// Bytes that are read from a file, or written to it, at once.
pub const FILE_PART: u32 = 256 << 10;
/// Looks, and tasks, that are under way at once; one more is not begun.
pub const TASKS_MAX: usize = 64;
/// Tasks that are over and remembered.
pub const TASKS_KEPT: usize = 1024;

/// Parts of a file that are asked for and not there yet, of one task.
const PARTS_MAX: u64 = 2;

/// What a node tells its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// Where a peer is, before the first frame to it.
    Peer(PeerChange),
    /// Something is to be done with a file. Only a node that was told that its driver has files ([`MemNode::with_files`]) asks for it.
    File(FileAsk),
}

/// Something to be done with the file of this number, which the node chose and uses once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileAsk {
    /// The number.
    pub id: u64,
    /// What is to be done.
    pub what: FileWant,
}

/// What is to be done with a file. Each is answered once, but for [`FileWant::Drop`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileWant {
    /// How long is it? The number is free after that. Answered by [`FileCame::Opened`].
    Look(String),
    /// Open it to be read. Answered by [`FileCame::Opened`].
    Load(String),
    /// Begin a new one that is to take this name. Answered by [`FileCame::Opened`], of length 0.
    Save(String),
    /// Read so many bytes from an offset on. Answered by [`FileCame::Read`].
    Read {
        /// The offset in bytes.
        offset: u64,
        /// Bytes, at most [`FILE_PART`].
        len: u32,
    },
    /// Write these bytes from an offset on. Answered by [`FileCame::Written`].
    Write {
        /// The offset in bytes.
        offset: u64,
        /// At most [`FILE_PART`].
        bytes: Vec<u8>,
    },
    /// Read: look whether it changed. Written: have it take the name of the old one, on the disk (PROTOCOL 20.4, 20.5). The number is free after that.
    /// Answered by [`FileCame::Finished`].
    Finish,
    /// Nothing more is wanted of it: close it, and remove a new one. Not answered.
    Drop,
}

/// What came of a [`FileAsk`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileDone {
    /// The number of the file.
    pub id: u64,
    /// What came of it.
    pub came: FileCame,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileCame {
    /// It is there.
    Opened {
        /// Its length in bytes.
        length: u64,
        /// Its stamp (PROTOCOL 20.3).
        stamp: u64,
    },
    /// Bytes of it: as many as were asked for.
    Read {
        /// From this offset on.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Bytes were written.
    Written {
        /// From this offset on.
        offset: u64,
    },
    /// It was read to its end and did not change, or it has its name.
    Finished {
        /// Its stamp.
        stamp: u64,
    },
    /// It failed; the driver has closed the file, and removed a new one.
    Failed(FileFault),
}

/// A load or a save that is under way.
#[derive(Debug)]
struct Task {
    /// The file's number at the driver.
    id: u64,
    /// Of the latest question.
    token: RequestId,
    saves: bool,
    base: u64,
    length: u64,
    size: u64,
    stamp: u64,
    /// The first byte that was not asked for.
    next: u64,
    /// Bytes that were asked for and came.
    done: u64,
    /// Parts that are under way.
    parts: u64,
}

/// The files of a node.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// The driver has some.
    has_files: bool,
    /// The number of the file that was opened last.
    last_id: u64,
    /// Looks under way: the question of each, by the file's number.
    looks: BTreeMap<u64, RequestId>,
    /// Under way, by number.
    tasks: BTreeMap<u64, Task>,
    /// Over, by number.
    over: BTreeMap<u64, FileState>,
    /// All tasks of this number and below are forgotten, but those that are here.
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

    /// A task is over.
    fn keep(&mut self, number: u64, state: FileState) {
        self.tasks.remove(&number);
        self.over.insert(number, state);
        if self.over.len() > TASKS_KEPT
            && let Some((number, _)) = self.over.pop_first()
        {
            self.forgotten = self.forgotten.max(number);
        }
    }

    /// The task whose file has this number.
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
    /// The same node, whose driver has files: what it is asked for ([`Out::File`]) it does, and says so ([`FileDone`]).
    #[must_use]
    pub fn with_files(mut self) -> Self {
        self.files.has_files = true;
        self
    }

    /// A message about files: only the control plane sends any.
    pub(crate) fn on_file_message(&mut self, port: Port, payload: &[u8], out: &mut Outbox) {
        if port != Port::CONTROL {
            return self.drop_frame(DropReason::WrongPort, out);
        }
        match FileMessage::parse(payload) {
            Ok(FileMessage { token, body: FileBody::Look(name) }) => self.look_at_file(token, name, out),
            Ok(FileMessage { token, body: FileBody::Task(task) }) => self.on_file_task(token, &task, out),
            Ok(FileMessage { body: FileBody::Said(..), .. }) => self.drop_frame(DropReason::WrongPort, out),
            Err(_) => self.drop_frame(DropReason::Malformed, out),
        }
    }

    fn look_at_file(&mut self, token: RequestId, name: &str, out: &mut Outbox) {
        if let Err(state) = self.may_open(name) {
            return self.say_of_file(token, 0, state, out);
        }
        if self.files.looks.values().any(|known| *known == token) {
            return;
        }
        if self.files.looks.len() >= TASKS_MAX {
            return self.drop_frame(DropReason::Busy, out);
        }
        let id = self.files.next_id();
        self.files.looks.insert(id, token);
        out.local(Out::File(FileAsk { id, what: FileWant::Look(name.into()) }));
    }

    fn on_file_task(&mut self, token: RequestId, asked: &FileTask<'_>, out: &mut Outbox) {
        let number = asked.task;
        if let Some(&state) = self.files.over.get(&number) {
            return self.say_of_file(token, number, state, out);
        }
        if let Some(task) = self.files.tasks.get_mut(&number) {
            task.token = token;
            let state = FileState::Busy { done: task.done, length: task.length };
            return self.say_of_file(token, number, state, out);
        }
        if number <= self.files.forgotten {
            return self.say_of_file(token, number, failed(FileCause::Forgotten), out);
        }
        if self.files.tasks.len() >= TASKS_MAX {
            return self.drop_frame(DropReason::Busy, out);
        }
        let refused = self.may_open(asked.name).err().or_else(|| self.file_memory(asked).err());
        if let Some(state) = refused {
            self.files.keep(number, state);
            out.note(Note::FileFailed);
            return self.say_of_file(token, number, state, out);
        }
        let &FileTask { saves, base, length, size, stamp, name, .. } = asked;
        let id = self.files.next_id();
        let task = Task { id, token, saves, base: base.0, length, size, stamp, next: 0, done: 0, parts: 0 };
        self.files.tasks.insert(number, task);
        let what = if saves { FileWant::Save(name.into()) } else { FileWant::Load(name.into()) };
        out.local(Out::File(FileAsk { id, what }));
        self.say_of_file(token, number, FileState::Busy { done: 0, length }, out);
    }

    fn may_open(&self, name: &str) -> Result<(), FileState> {
        if !self.files.has_files {
            return Err(failed(FileCause::NoDirectory));
        }
        if is_file_name(name) { Ok(()) } else { Err(failed(FileCause::Name)) }
    }

    /// The vma is here: lost as a whole when it is loaded, with nothing lost or at a host when it is saved (PROTOCOL 20.9).
    fn file_memory(&self, task: &FileTask<'_>) -> Result<(), FileState> {
        let (first, last) = pages(task.base.0, task.size);
        let states = self.regions.page_states();
        let ready = if task.saves { states.is_latest(first, last) } else { states.is_lost(first, last) };
        let here = self.regions.is_whole(task.base, task.size);
        if here && ready { Ok(()) } else { Err(failed(FileCause::Memory)) }
    }

    /// The driver did something with a file.
    pub(crate) fn on_file_done(&mut self, done: FileDone, out: &mut Outbox) {
        let FileDone { id, came } = done;
        if let Some(token) = self.files.looks.remove(&id) {
            let state = match came {
                FileCame::Opened { length, stamp } => FileState::Done { length, stamp },
                FileCame::Failed(fault) => FileState::Failed(fault),
                other => unreachable!("{other:?} is no answer to a look"),
            };
            return self.say_of_file(token, 0, state, out);
        }
        // What is not known was dropped while this was on its way.
        let Some(number) = self.files.of_id(id) else { return };
        match came {
            FileCame::Opened { length, stamp } => self.file_opened(number, length, stamp, out),
            FileCame::Read { offset, bytes } => self.file_read(number, offset, &bytes, out),
            FileCame::Written { offset } => {
                if let Some(task) = self.files.tasks.get_mut(&number) {
                    task.parts -= 1;
                    task.done += part_at(offset, task.length);
                }
                self.ask_for_parts(number, out);
            }
            FileCame::Finished { stamp } => self.file_finished(number, stamp, out),
            FileCame::Failed(fault) => self.end_file_task(number, FileState::Failed(fault), out),
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
        // Nobody may use them before all have come; so they are still lost, and here.
        let (first, last) = pages(base, size);
        if !self.regions.is_whole(VirtAddr(base), size) || !self.regions.page_states().is_lost(first, last) {
            return self.drop_file_task(number, failed(FileCause::Memory), out);
        }
        let at = self.regions.offset(VirtAddr(base + offset), bytes.len());
        self.store.write(at, bytes);
        self.ask_for_parts(number, out);
    }

    /// Asks the driver for the next parts, as many as may be under way; when there are none left, to finish.
    fn ask_for_parts(&mut self, number: u64, out: &mut Outbox) {
        loop {
            let Some(task) = self.files.tasks.get_mut(&number).filter(|task| task.parts < PARTS_MAX) else {
                return;
            };
            let (id, offset) = (task.id, task.next);
            if offset == task.length {
                if task.parts == 0 {
                    out.local(Out::File(FileAsk { id, what: FileWant::Finish }));
                }
                return;
            }
            let len = part_at(offset, task.length);
            task.parts += 1;
            task.next += len;
            let (saves, at) = (task.saves, VirtAddr(task.base + offset));
            let len = u32::try_from(len).expect("a part is short");
            let what = if saves {
                let mut bytes = Vec::with_capacity(len as usize);
                self.store.read(self.regions.offset(at, len as usize), len, &mut bytes);
                FileWant::Write { offset, bytes }
            } else {
                FileWant::Read { offset, len }
            };
            out.local(Out::File(FileAsk { id, what }));
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

    /// Gives a task up whose file the driver has open.
    fn drop_file_task(&mut self, number: u64, state: FileState, out: &mut Outbox) {
        if let Some(task) = self.files.tasks.get(&number) {
            out.local(Out::File(FileAsk { id: task.id, what: FileWant::Drop }));
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
            self.say_of_file(token, number, state, out);
        }
    }

    /// These bytes are another's from here on: no task is about them any more (PROTOCOL 20.10).
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

    fn say_of_file(&mut self, token: RequestId, number: u64, state: FileState, out: &mut Outbox) {
        if let Some(control) = self.peers.get(Port::CONTROL) {
            let message = FileMessage { token, body: FileBody::Said(number, state) };
            self.peers.emit(control, message.len(), out, |bytes| message.emit(bytes));
        }
    }
}

/// Bytes of the part at this offset.
fn part_at(offset: u64, length: u64) -> u64 {
    (length - offset).min(FILE_PART.into())
}
