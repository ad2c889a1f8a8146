//! Hosts that execute the WRITEs of other hosts, as rows of hosts have them (PROTOCOL 8.59).

use crate::record::Incarnation;
use crate::state::{LogError, State};

impl State {
    /// Returns true if the host is in this generation and has not left.
    pub(crate) fn is_alive(&self, life: Incarnation) -> bool {
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
