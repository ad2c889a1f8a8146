//! Benchmarks that measure farmem and its baselines in the same run.
//!
//! Every benchmark is a list of [`Row`]s in one form ([`Results`]); `farmem bench NAME` prints them as a
//! table or as JSON. Ids are stable and listed in docs/results/. [`Samples`] are times of one kind of
//! operation, [`Machine`] describes the machine, and [`CpuMeter`] measures the CPU time of the working
//! threads.

mod child;
mod cpu;
mod drawing;
mod driver;
pub mod fat;
mod kv;
mod machine;
pub mod mind;
mod native;
mod net;
mod paged;
pub mod pd3;
mod plan;
mod plots;
pub mod pulse;
mod racks;
mod rates;
pub mod raw;
mod roles;
mod row;
pub mod run;
mod samples;
mod sheet;
pub mod soda;
mod swap;
mod touch;

pub use cpu::{CpuMeter, CpuSpan, CpuTime};
pub use driver::{Bench, run_bench};
pub use machine::Machine;
pub use native::{Native, NativeLogic};
pub use paged::{PageCounts, Paged};
pub use plan::Plan;
pub use racks::{NodeKind, Racks, Shape};
pub use row::{Results, Row, link_late, to_f64};
pub use samples::{Samples, rate_row};
use sheet::Sheet;
pub use sheet::{Outcome, Progress};
