//! How an application's workload is described, carried out on a rack, measured and reported: what the commands in `apps/` have in common.
//!
//! Key types: [`Plan`], what every such command can be told; [`measure()`], which carries tasks out and makes a [`Row`] of each kind of
//! operation; [`load_or_free()`], which leaves nothing in a rack when loading fails; [`Report`], what is printed; [`ycsb`], whose workloads most of them carry out. What the operations are, and whether their answers are right, only the application knows.

mod alloc_guard;
mod measure;
mod mix;
mod plan;
mod progress;
mod report;
mod size;
mod stop;
pub mod ycsb;

pub use alloc_guard::load_or_free;
pub use measure::measure;
pub use mix::{Keys, Mix};
pub use plan::{Load, Plan, RunAt, on_rack, on_rack_of};
pub use progress::Progress;
pub use report::{Outcome, Report, Row, finish, to_f64};
pub use size::bytes;
pub use stop::{STOPPED, asked as stopped};

/// Why a command could not do its work: what, and what to do about it.
#[derive(Debug)]
pub struct Failure {
    /// What happened.
    pub message: String,
    /// What to do, empty when the message says it.
    pub remedy: String,
}

impl Failure {
    /// What happened, and what to do.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { message: message.into(), remedy: remedy.into() }
    }
}

impl From<farmem::Error> for Failure {
    fn from(error: farmem::Error) -> Self {
        Self { message: error.to_string(), remedy: error.remedy() }
    }
}
