//! The control plane from outside: requests and frames in, answers, frames and log lines out (docs/protocol.md, section 8).

mod damage;
mod failures;
mod histories;
mod incarnation;
mod membership;
mod memory;
mod migrations;
mod objects;
mod processes;
mod rack;
mod refusals;
mod storage;
