//! `farmem bench pulse`: traversal offload compared with the alternatives for pointers in far memory (PULSE
//! 6).
//!
//! One run measures all systems. They alternate in short rounds, each with its own client, so that
//! disturbances of the machine affect all of them. The systems are page caches of several sizes, one-sided
//! READs, native code at the memory node, and farmem's traversals, with and without the switch's forwarding.
//! Every answer is checked. Exact counts come from racks in this process ([`Fixture`]), the accelerator's
//! table from its model.

mod accelerator;
mod apps;
mod batch;
mod compare;
mod contender;
mod counts;
mod coupled;
mod lookups;
pub(crate) mod node;
mod run;
mod scatter;

pub use compare::Scenario;
pub use contender::App;
pub use counts::{Counted, Fixture, Subject};
pub(crate) use run::measure;
pub(crate) use scatter::Crossings;
pub use scatter::SUBJECTS;
