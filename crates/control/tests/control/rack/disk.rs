//! A store that a test can fill: it accepts lines while it has room.

use farmem_control::{Log, NotKept, Record};
use std::sync::{Arc, Mutex, MutexGuard};

/// The disk that the control plane, which keeps lines, shares with the test, which fills it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<Content>>);

#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) lines: Vec<Record>,
    /// No line is accepted.
    pub(crate) full: bool,
    /// The log cannot be rewritten.
    pub(crate) no_rewrites: bool,
    /// Lines accepted so far, including those that a shorter log replaced.
    pub(crate) taken: u64,
    /// Lines refused so far.
    pub(crate) refused: u64,
    /// How often the log was rewritten.
    pub(crate) rewritten: u64,
    /// Maximum number of lines so far.
    pub(crate) longest: usize,
}

impl Disk {
    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().expect("no test panics with it")
    }

    pub(crate) fn fill(&self, full: bool) {
        self.content().full = full;
    }
}

impl Content {
    fn has_room(&mut self) -> Result<(), NotKept> {
        if self.full {
            self.refused += 1;
            return Err(NotKept { message: "the test's disk is full".into(), remedy: "empty it".into() });
        }
        Ok(())
    }
}

impl Log for Disk {
    fn append(&mut self, line: &Record) -> Result<(), NotKept> {
        let mut content = self.content();
        content.has_room()?;
        content.lines.push(line.clone());
        content.taken += 1;
        content.longest = content.longest.max(content.lines.len());
        Ok(())
    }

    fn rewrite(&mut self, lines: &[Record]) -> Result<(), NotKept> {
        let mut content = self.content();
        if content.no_rewrites {
            return Err(NotKept { message: "no room for a second log".into(), remedy: "make some".into() });
        }
        content.has_room()?;
        content.lines = lines.to_vec();
        content.rewritten += 1;
        Ok(())
    }

    fn lines(&self) -> u64 {
        self.content().lines.len() as u64
    }
}
