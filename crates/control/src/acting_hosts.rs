//! Hosts that execute the WRITEs of other hosts: the DPU beside a host is a host of its own (PROTOCOL 8.59).
//!
//! When a host is removed from the rack, its WRITEs must not continue through its DPU. So the control plane
//! records which host acts for which. Every removal of a host also removes the hosts that act for it, and the
//! host's written memory stays reserved while any host acts for it.

use crate::Control;
use crate::api::{ActFor, ErrorCode};
use crate::errors::{bad, error, not_found};
use crate::record::{Incarnation, Line};
use crate::requests::{Decided, Decision};
use crate::state::{LogError, State};
use alloc::format;

/// Maximum number of incarnations for which one host may act.
pub const ACTS_MAX: usize = 1024;

impl Control {
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

impl State {
    /// Returns true if the host is in this generation and has not left.
    fn is_alive(&self, life: Incarnation) -> bool {
        self.hosts.get(&life.host).is_some_and(|row| row.present && row.generation == life.generation)
    }

    /// Returns true if some host executes WRITEs of an earlier incarnation of the host.
    pub(crate) fn is_acted_for(&self, host: u16) -> bool {
        let earlier = |of: &&Incarnation| of.host == host && !self.is_alive(**of);
        self.hosts.values().flat_map(|row| &row.acts_for).find(earlier).is_some()
    }

    /// Applies a log line: a host begins or ends to act for another's incarnation.
    pub(crate) fn acts(&mut self, host: u16, of: Incarnation, begins: bool) -> Result<(), LogError> {
        let row = self.hosts.get_mut(&host).filter(|row| row.present);
        let acts_for = &mut row.ok_or(LogError("a host acts that is not there"))?.acts_for;
        match (acts_for.binary_search(&of), begins) {
            (Err(at), true) => acts_for.insert(at, of),
            (Ok(at), false) => drop(acts_for.remove(at)),
            _ => return Err(LogError("a host begins or ends to act twice")),
        }
        Ok(())
    }
}
