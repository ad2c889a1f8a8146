//! Linux error numbers, as the replies to programs carry them.

pub(super) const PERM: u64 = 1;
pub(super) const NOENT: u64 = 2;
pub(super) const SRCH: u64 = 3;
pub(super) const IO: u64 = 5;
pub(super) const AGAIN: u64 = 11;
pub(super) const NOMEM: u64 = 12;
pub(super) const FAULT: u64 = 14;
pub(super) const EXIST: u64 = 17;
pub(super) const INVAL: u64 = 22;
pub(super) const NOSPC: u64 = 28;
pub(super) const NOSYS: u64 = 38;
pub(super) const OPNOTSUPP: u64 = 95;
