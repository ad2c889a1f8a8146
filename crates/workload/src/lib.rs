//! Description, execution, measurement and reporting of application workloads: the common parts of the
//! commands in `apps/`.
//!
//! Key types: [`Plan`], the common options; [`measure()`], which runs tasks and makes a [`Row`] for each kind
//! of operation; [`load_or_free()`], which leaves nothing in a rack when loading fails; [`Report`], the
//! output; [`ycsb`], the workloads of most commands. Only the application knows its operations, and whether
//! their answers are right.

mod alloc_guard;
mod measure;
mod mix;
mod plan;
mod progress;
mod report;
mod size;
mod stop;
mod text;
pub mod ycsb;

pub use alloc_guard::load_or_free;
pub use measure::measure;
pub use mix::{Keys, Mix};
pub use plan::{Load, Plan, RunAt, on_rack, on_rack_of};
pub use progress::Progress;
pub use report::{Outcome, Report, Row, finish, to_f64};
pub use size::bytes;
pub use stop::{STOPPED, asked as stopped, on_interrupt, on_terminate};
pub use text::{OtherEncoding, other_encoding};

/// The failure of a command, with its remedy.
#[derive(Debug)]
pub struct Failure {
    /// The message.
    pub message: String,
    /// The remedy; empty when the message contains it.
    pub remedy: String,
}

impl Failure {
    /// Creates a failure from a message and a remedy.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { message: message.into(), remedy: remedy.into() }
    }
}

impl From<farmem::Error> for Failure {
    fn from(error: farmem::Error) -> Self {
        Self { message: error.to_string(), remedy: error.remedy() }
    }
}
