//! The control plane from outside: requests and frames in, answers, frames and log lines out
//! (docs/protocol/08-the-control-plane.md).

mod acts;
mod addresses;
mod cards;
mod damage;
mod fabric;
mod failures;
mod files;
mod histories;
mod images;
mod incarnation;
mod keys;
mod membership;
mod memory;
mod migrations;
mod modes;
mod objects;
mod placement;
mod processes;
mod rack;
mod refusals;
mod storage;
mod through;
mod wear;
