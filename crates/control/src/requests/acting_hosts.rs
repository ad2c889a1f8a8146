//! Hosts that execute the WRITEs of other hosts: the DPU beside a host is a host of its own (PROTOCOL 8.59).
//!
//! When a host is removed from the rack, its WRITEs must not continue through its DPU. So the control plane
//! records which host acts for which. Every removal of a host also removes the hosts that act for it, and the
//! host's written memory stays reserved while any host acts for it.

use crate::api::{ActFor, ErrorCode};
use crate::decision::{Decided, Decision};
use crate::errors::{bad, error, not_found};
use crate::rack::Rack;
use crate::record::{Incarnation, Line};
use alloc::format;

/// Maximum number of incarnations for which one host may act.
pub const ACTS_MAX: usize = 1024;

impl Rack {
    /// Records that a host begins or ends to act for another.
    pub(crate) fn act_for(&self, call: &ActFor) -> Decided<ActFor> {
        let &ActFor { host, generation, of_host, of_generation, begins } = call;
        let (actor, of) =
            (Incarnation { host, generation }, Incarnation { host: of_host, generation: of_generation });
        if host == of_host {
            return Err(bad(
                format!("host {host} cannot act for itself"),
                "name the host whose WRITEs it carries out",
            ));
        }
        let gone = |life: Incarnation| {
            let message = format!("there is no host {} in generation {}", life.host, life.generation);
            not_found(message, "it has left or joined again: nothing of that life counts any more")
        };
        if !self.state.is_alive(actor) {
            return Err(gone(actor));
        }
        let known = &self.state.hosts[&host].acts_for;
        let is_known = known.binary_search(&of).is_ok();
        if begins && !is_known {
            if !self.state.is_alive(of) {
                return Err(gone(of));
            }
            if known.len() >= ACTS_MAX {
                let message = format!("host {host} acts for {ACTS_MAX} others");
                return Err(error(ErrorCode::TableFull, message, "wait until it has ended for one of them"));
            }
        }
        if begins == is_known {
            return Ok(Decision::Reply(()));
        }
        Ok(Decision::Keep(Line::Acts { host, of, begins }, ()))
    }
}
