//! Simulated racks: campaigns with faults, scripts, and worlds of one feature each.

mod campaigns;
mod captured;
mod files;
mod images;
mod keyed;
mod migration;
mod once;
mod published;
mod scripts;
mod small_tree;
mod wear;
