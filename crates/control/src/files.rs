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

mod requests;
mod rounds;

use alloc::collections::BTreeMap;
use alloc::string::String;
use farmem_machine::Instant;
use farmem_wire::RequestId;

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
