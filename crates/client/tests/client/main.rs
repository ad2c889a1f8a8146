//! Racks and clients: descriptions, verbs, traversals and migration.

mod config;
mod dispatch;
mod forged;
mod iterator;
mod lost_cookie;
mod migrate;
