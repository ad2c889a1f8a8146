//! The lifecycle of an object in a file, as the log has it (PROTOCOL 20.13 to 20.18).

use crate::addresses::PAGE;
use crate::api::{FileStage, OpenMode, PermName};
use crate::record::{FileEnd, FileRow, FileTurn, Span};
use crate::state::tables::{Step, protect, step, whole};
use crate::state::{LogError, State};
use alloc::string::String;
use alloc::vec::Vec;
use farmem_wire::message::Update;

impl FileRow {
    /// Returns the row for a file that is only looked at.
    pub(crate) const fn looked_at(node: u16, file: String) -> Self {
        Self { node, base: 0, length: 0, file, stage: FileStage::Failed, task: 0, stamp: 0, fault: None }
    }

    /// Returns the owner's permissions: while it is open for writing, the file's bytes are writable, in whole
    /// pages.
    fn spans(&self, size: u64) -> Vec<Span> {
        if self.stage != FileStage::Writing {
            return Vec::from([whole(self.base, size, PermName::Read)]);
        }
        let len = self.length.next_multiple_of(PAGE).min(size);
        let mut spans = Vec::from([whole(self.base, len, PermName::ReadWrite)]);
        if len < size {
            spans.push(whole(self.base + len, size - len, PermName::Read));
        }
        spans
    }

    /// Returns true if its bytes are lost.
    const fn is_lost(&self) -> bool {
        matches!(self.stage, FileStage::Loading | FileStage::Failed | FileStage::Lost)
    }
}

impl State {
    /// Returns the object in a file whose memory is this vma.
    pub(crate) fn file_at(&self, base: u64) -> Option<(u64, &FileRow)> {
        self.files.iter().find(|(_, row)| row.base == base).map(|(&object, row)| (object, row))
    }

    /// Returns the permissions of a vma's owner in `base..base + len`, if the vma belongs to an object in a
    /// file.
    pub(crate) fn file_spans(&self, vma: u64, size: u64, base: u64, len: u64) -> Option<Vec<Span>> {
        let (_, row) = self.file_at(vma)?;
        Some(crate::state::grants::slice(&row.spans(size), base, len))
    }

    /// Assigns memory of a node to an object, whose file is to be loaded there.
    pub(crate) fn place_file(&mut self, number: u64, object: u64, base: u64, length: u64, file: String) {
        let Some((node, size)) = self.vmas.get(&base).map(|vma| (vma.node, vma.size)) else { return };
        let stage = FileStage::Loading;
        let row = FileRow { node, base, length, file, stage, task: number, stamp: 0, fault: None };
        self.files.insert(object, row);
        self.lost.insert(base..base + size);
    }

    /// Begins a change of an object in a file to be written, loaded or saved, before any role is told.
    pub(crate) fn begin_turn(&mut self, object: u64, turn: FileTurn) {
        let Some(file) = self.files.get_mut(&object) else { return };
        match turn {
            FileTurn::Write { .. } => file.stage = FileStage::Writing,
            FileTurn::Load => {}
            FileTurn::Save => {
                file.stage = FileStage::Unsaved;
                if let Some(row) = self.objects.get_mut(&object).filter(|row| row.mode == OpenMode::Write) {
                    row.mode = OpenMode::Read;
                }
            }
        }
    }

    /// Completes the change once all roles know of it.
    pub(crate) fn commit_turn(&mut self, number: u64, object: u64, turn: FileTurn) {
        let (Some(file), Some(row)) = (self.files.get_mut(&object), self.objects.get_mut(&object)) else {
            return;
        };
        match (turn, file.stage) {
            (FileTurn::Write { host }, _) => {
                row.mode = OpenMode::Write;
                if let Err(at) = row.hosts.binary_search(&host) {
                    row.hosts.insert(at, host);
                }
            }
            (FileTurn::Load, FileStage::Failed | FileStage::Lost) => {
                (file.stage, file.task, file.stamp, file.fault) = (FileStage::Loading, number, 0, None);
            }
            (FileTurn::Save, FileStage::Unsaved) => {
                (file.stage, file.task, file.fault) = (FileStage::Saving, number, None);
            }
            // The node restarted meanwhile.
            (FileTurn::Load | FileTurn::Save, _) => {}
        }
    }

    /// Ends the change without effect.
    pub(crate) fn end_turn(&mut self, object: u64, turn: FileTurn) {
        let Some(file) = self.files.get_mut(&object) else { return };
        // A role may have let the owner write for a moment.
        if matches!(turn, FileTurn::Write { .. }) && file.stage == FileStage::Writing {
            file.stage = FileStage::Unsaved;
        }
    }

    /// Returns the updates for each role about the change.
    pub(crate) fn tell_turn(&self, object: u64, base: u64, turn: FileTurn) -> Vec<Step> {
        let (Some(vma), Some(file)) = (self.vmas.get(&base), self.files.get(&object)) else {
            return Vec::new();
        };
        let told = |span: Span| protect(vma.domain, span, vma.size);
        let read = told(whole(base, vma.size, PermName::Read));
        match turn {
            FileTurn::Write { .. } => {
                let writing = FileRow { stage: FileStage::Writing, ..file.clone() };
                let spans = writing.spans(vma.size).into_iter();
                let spans = spans.filter(|span| span.perm == PermName::ReadWrite);
                spans.map(|span| step(told(span), [read])).collect()
            }
            // Revoked rights stay revoked: a host that writes again opens the object again.
            FileTurn::Load | FileTurn::Save => Vec::from([step(read, [])]),
        }
    }

    /// Records a node's report of the end of a task.
    pub(crate) fn file_ended(&mut self, object: u64, task: u64, end: FileEnd) -> Result<(), LogError> {
        let open = |row: &&mut FileRow| {
            row.task == task && matches!(row.stage, FileStage::Loading | FileStage::Saving)
        };
        let row = self.files.get_mut(&object).filter(open).ok_or(LogError("the end of no task"))?;
        let loads = row.stage == FileStage::Loading;
        match end {
            FileEnd::Done { stamp } => {
                (row.stage, row.stamp, row.fault) = (FileStage::Loaded, stamp, None);
            }
            FileEnd::Failed(fault) => {
                row.stage = if loads { FileStage::Failed } else { FileStage::Unsaved };
                row.fault = Some(fault);
            }
        }
        let (base, loaded) = (row.base, row.stage == FileStage::Loaded);
        if loads && loaded {
            let size = self.vmas.get(&base).map_or(0, |vma| vma.size);
            self.forget_lost(base, size);
        }
        Ok(())
    }

    /// Handles the restart of a node: loaded files are loaded again, and unsaved bytes are lost (PROTOCOL
    /// 20.17).
    ///
    /// Returns the updates for the switch: the owner may not write lost files any more.
    pub(crate) fn lose_files_of(&mut self, node: u16) -> Vec<Update> {
        let mut told = Vec::new();
        for row in self.files.values_mut().filter(|row| row.node == node) {
            let vma = self.vmas.get(&row.base).filter(|_| row.stage == FileStage::Writing);
            told.extend(
                vma.map(|vma| protect(vma.domain, whole(row.base, vma.size, PermName::Read), vma.size)),
            );
            match row.stage {
                FileStage::Loaded | FileStage::Loading | FileStage::Failed => {
                    (row.stage, row.fault) = (FileStage::Loading, None);
                }
                FileStage::Writing | FileStage::Unsaved | FileStage::Saving | FileStage::Lost => {
                    row.stage = FileStage::Lost;
                }
            }
        }
        told
    }

    /// Returns the first violated invariant of objects in files, if any.
    pub(crate) fn files_fault(&self) -> Option<&'static str> {
        for (object, file) in &self.files {
            let Some(row) = self.objects.get(object).filter(|row| row.base == Some(file.base)) else {
                return Some("a file is that of an object with memory");
            };
            let vma = self.vmas.get(&file.base).filter(|vma| vma.node == file.node);
            let Some(vma) = vma.filter(|_| row.length == file.length) else {
                return Some("an object by file has as many bytes, at the file's node");
            };
            let all = file.base..file.base + vma.size;
            let holds = if file.is_lost() {
                self.lost.gaps(&all).next().is_none()
            } else {
                !self.lost.overlaps(&all)
            };
            if !holds {
                return Some("the bytes of an object by file are lost all together, or not at all");
            }
        }
        None
    }
}
