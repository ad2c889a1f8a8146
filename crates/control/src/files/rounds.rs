//! Questions to nodes about files, and their reports (PROTOCOL 20.8).

use crate::api::{ApiError, ErrorCode, FileLooked, FileStage};
use crate::errors::{bad, error, not_found};
use crate::files::{FileInspection, TaskQuestion};
use crate::messages::{Actions, reply};
use crate::note::{DropReason, Note};
use crate::rack::Rack;
use crate::record::{FaultRow, FileEnd, FileRow, Line, Role};
use crate::updates::Reach;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_wire::message::{FileBody, FileCause, FileFault, FileMessage, FileState, FileTask};
use farmem_wire::{RequestId, VirtAddr};

// Time and messages of nodes.
impl Rack {
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

/// Returns the error for a failed file operation.
pub(crate) fn explain(node: &str, row: &FileRow, FaultRow { cause, errno, at }: FaultRow) -> ApiError {
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
