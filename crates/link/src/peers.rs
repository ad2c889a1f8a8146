//! The addresses of roles: ports by number and by address, with a link's state for each.

use farmem_machine::Port;
use farmem_wire::Gid;
use std::collections::BTreeMap;

/// The ports that a link knows. A port has one address. If several ports have the same address, frames from
/// there belong to the one that was set last.
#[derive(Debug)]
pub(crate) struct Peers<T> {
    by_port: BTreeMap<Port, (Gid, T)>,
    by_gid: BTreeMap<Gid, Port>,
}

impl<T> Default for Peers<T> {
    fn default() -> Self {
        Self { by_port: BTreeMap::new(), by_gid: BTreeMap::new() }
    }
}

impl<T> Peers<T> {
    /// Sets the address of `port`, and removes its earlier one.
    pub(crate) fn set(&mut self, port: Port, gid: Gid, peer: T) {
        self.forget(port);
        self.by_port.insert(port, (gid, peer));
        self.by_gid.insert(gid, port);
    }

    /// Removes `port`. If another port has the same address, frames from there belong to it.
    pub(crate) fn forget(&mut self, port: Port) {
        let Some((gid, _)) = self.by_port.remove(&port) else { return };
        if self.by_gid.get(&gid) == Some(&port) {
            self.by_gid.remove(&gid);
            let heir = self.by_port.iter().find(|(_, (other, _))| *other == gid).map(|(&heir, _)| heir);
            self.by_gid.extend(heir.map(|heir| (gid, heir)));
        }
    }

    /// Returns the peer of `port`.
    pub(crate) fn get(&self, port: Port) -> Option<&T> {
        self.by_port.get(&port).map(|(_, peer)| peer)
    }

    /// Returns the port at `gid`; [`Port::UNKNOWN`] if no role is known there.
    pub(crate) fn port_at(&self, gid: Gid) -> Port {
        self.by_gid.get(&gid).copied().unwrap_or(Port::UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Gid = Gid([1; 16]);
    const THERE: Gid = Gid([2; 16]);

    /// A node restarts at another machine: frames from the old address belong to no role any more.
    #[test]
    fn a_port_that_moves_leaves_its_address() {
        let mut peers = Peers::default();
        peers.set(Port(7), HERE, 'a');
        peers.set(Port(7), THERE, 'b');
        assert_eq!(peers.port_at(HERE), Port::UNKNOWN);
        assert_eq!(peers.port_at(THERE), Port(7));
        assert_eq!(peers.get(Port(7)), Some(&'b'));
        peers.forget(Port(7));
        assert_eq!((peers.get(Port(7)), peers.port_at(THERE)), (None, Port::UNKNOWN));
    }

    /// A host's port is assigned again at the same address before the old assignment ends.
    #[test]
    fn the_last_port_named_owns_an_address_until_it_leaves() {
        let mut peers = Peers::default();
        peers.set(Port(7), HERE, ());
        peers.set(Port(8), HERE, ());
        assert_eq!(peers.port_at(HERE), Port(8));
        peers.forget(Port(7));
        assert_eq!(peers.port_at(HERE), Port(8));
        peers.set(Port(7), HERE, ());
        peers.forget(Port(7));
        assert_eq!(peers.port_at(HERE), Port(8), "the one that stays");
    }
}
