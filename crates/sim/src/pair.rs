//! The smallest worlds: one requester, one responder, a faulty link, and a model of the memory that predicts
//! every answer.
//!
//! Only the transports are under test, without the roles around them, so that a million operations take a
//! minute.

mod rc;
mod ud;
mod work;

pub(crate) use work::noise;

use crate::campaign::{self, Campaign, Report};
use farmem_wire::Gid;

/// Runs operations over reliable connections: READ, WRITE, CMP_SWAP and FETCH_ADD of 0 to four packets, every
/// PMTU and window, start PSNs within 100 of the wrap (IBA 9.7.5).
///
/// Each read must return the model's bytes, each atomic the old value, each operation must end exactly once,
/// and memory must equal the model at the end, late duplicates included.
pub fn rc_campaign(campaign: &Campaign, progress: &mut dyn FnMut(u64)) -> Report {
    campaign::run("rc", campaign, rc::world, progress)
}

/// Runs requests in datagrams, with retransmission at the requester and de-duplication at the server: each
/// write executes exactly once, and each request ends exactly once.
pub fn ud_campaign(campaign: &Campaign, progress: &mut dyn FnMut(u64)) -> Report {
    campaign::run("ud", campaign, ud::world, progress)
}

/// Returns the requester's address.
fn requester_gid() -> Gid {
    Gid::from_v4([10, 0, 0, 1])
}

/// Returns the responder's address.
fn responder_gid() -> Gid {
    Gid::from_v4([10, 0, 0, 2])
}
