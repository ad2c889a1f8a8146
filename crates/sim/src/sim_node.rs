//! A simulated machine: a role, its address, and its driver.
//!
//! As over sockets, a driver knows the address of a port only from its role (or the control plane). A frame
//! from any other address comes from [`Port::UNKNOWN`], and a frame for a port without an address is dropped.

use crate::describe::Describer;
use crate::{Journal, Network};
use farmem_machine::{Action, Event, Instant, Machine, Outbox, Port};
use farmem_transport::PeerChange;
use farmem_wire::Gid;
use std::collections::BTreeMap;
use std::fmt;

/// The id of a role of the rack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoleId {
    /// The control plane.
    Control,
    /// The switch.
    Switch,
    /// A memory node, by its number.
    Node(u16),
    /// A host, by its number.
    Host(u16),
    /// An index switch, by its number.
    Index(u16),
}

impl RoleId {
    /// Returns the machine's address, which it keeps across restarts.
    #[must_use]
    pub fn gid(self) -> Gid {
        let (kind, number) = match self {
            Self::Control => (0, 1),
            Self::Switch => (0, 2),
            Self::Node(n) => (1, n),
            Self::Host(n) => (2, n),
            Self::Index(n) => (3, n),
        };
        let [high, low] = number.to_be_bytes();
        Gid::from_v4([10, kind, high, low])
    }

    /// Returns the role at an address.
    #[must_use]
    pub fn at(gid: Gid) -> Option<Self> {
        let [_, kind, high, low] = gid.as_v4()?;
        let number = u16::from_be_bytes([high, low]);
        match (kind, number) {
            (0, 1) => Some(Self::Control),
            (0, 2) => Some(Self::Switch),
            (1, n) => Some(Self::Node(n)),
            (2, n) => Some(Self::Host(n)),
            (3, n) => Some(Self::Index(n)),
            _ => None,
        }
    }

    /// Returns the kind of role, as marks name it.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Switch => "switch",
            Self::Node(_) => "node",
            Self::Host(_) => "host",
            Self::Index(_) => "index",
        }
    }
}

impl fmt::Debug for RoleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control | Self::Switch => f.write_str(self.kind()),
            Self::Node(n) | Self::Host(n) | Self::Index(n) => write!(f, "{} {n}", self.kind()),
        }
    }
}

/// The environment that all machines share.
#[derive(Debug)]
pub(crate) struct SimEnv {
    pub(crate) now: Instant,
    pub(crate) network: Network,
    pub(crate) journal: Journal,
    pub(crate) describer: Describer,
    /// Number of frames for ports without an address.
    pub(crate) unroutable: u64,
}

/// A machine; its role is `None` while it is down.
#[derive(Debug)]
pub(crate) struct SimNode<M: Machine> {
    pub(crate) role_id: RoleId,
    pub(crate) role: Option<M>,
    /// Number of starts of the role.
    pub(crate) starts: u32,
    peers: Peers,
    /// Returns the address change in an output, if any.
    peer_of: fn(&M::Out) -> Option<PeerChange>,
    /// Returns the number of traversal visits so far.
    visits: fn(&M) -> u64,
    out: Outbox<M::Out, M::Note>,
}

/// A driver's address table.
#[derive(Debug, Default)]
struct Peers {
    by_port: BTreeMap<Port, Gid>,
    by_gid: BTreeMap<Gid, Port>,
}

impl Peers {
    fn change(&mut self, change: PeerChange) {
        if let Some(old) = self.by_port.remove(&change.port) {
            self.by_gid.remove(&old);
        }
        if let Some(gid) = change.gid {
            self.by_port.insert(change.port, gid);
            self.by_gid.insert(gid, change.port);
        }
    }
}

impl<M: Machine> SimNode<M> {
    /// Returns a machine that is down.
    pub(crate) fn new(role_id: RoleId, peer_of: fn(&M::Out) -> Option<PeerChange>) -> Self {
        let (peers, out) = (Peers::default(), Outbox::new());
        Self { role_id, role: None, starts: 0, peers, peer_of, visits: |_| 0, out }
    }

    /// Sets the visit counter of a role that executes traversals.
    pub(crate) fn visiting(self, visits: fn(&M) -> u64) -> Self {
        Self { visits, ..self }
    }

    /// Starts a role that knows only `peers`.
    pub(crate) fn start(&mut self, role: M, peers: impl IntoIterator<Item = (Port, Gid)>) {
        self.stop();
        self.starts += 1;
        self.role = Some(role);
        peers.into_iter().for_each(|(port, gid)| self.peer(port, gid));
    }

    /// Stops the role; its state is lost.
    pub(crate) fn stop(&mut self) {
        self.role = None;
        self.peers = Peers::default();
    }

    /// Tells the driver the address of a port.
    pub(crate) fn peer(&mut self, port: Port, gid: Gid) {
        self.peers.change(PeerChange { port, gid: Some(gid) });
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.role.as_ref().and_then(Machine::next_wake)
    }

    /// Handles a frame from an address.
    pub(crate) fn frame(&mut self, from: Gid, bytes: &[u8], env: &mut SimEnv, each: impl FnMut(M::Out)) {
        let port = self.port_of(from);
        self.event(Event::Frame { port, bytes }, env, each);
    }

    /// Returns the port at an address, as far as this machine knows.
    pub(crate) fn port_of(&self, from: Gid) -> Port {
        self.peers.by_gid.get(&from).copied().unwrap_or(Port::UNKNOWN)
    }

    /// Passes an event to the role, carries out the resulting actions, and checks the role's invariants.
    pub(crate) fn event(&mut self, event: Event<'_, M::In>, env: &mut SimEnv, mut each: impl FnMut(M::Out)) {
        let Self { role_id, role: Some(role), peers, peer_of, visits, out, .. } = self else { return };
        let (frames, before) = (u64::from(matches!(event, Event::Frame { .. })), visits(role));
        role.handle(env.now, event, out);
        out.drain(|action| match action {
            Action::Send { port, frame } => match peers.by_port.get(&port) {
                Some(&to) => env.send(*role_id, to, frame),
                None => env.nowhere(*role_id, port),
            },
            Action::Note(note) => env.journal.note(role_id.kind(), role_id, &note),
            Action::Local(local) => {
                // Applied in order with the frames: the next one may be for this very port.
                if let Some(change) = peer_of(&local) {
                    peers.change(change);
                }
                each(local);
            }
        });
        env.network.worked(env.now, role_id.gid(), frames, visits(role) - before);
        role.check();
        if let Some(halt) = role.halted() {
            env.journal.line(|| format!("  {role_id:?} stops: {halt}"));
            self.stop();
        }
    }
}

impl SimEnv {
    fn send(&mut self, from: RoleId, to: Gid, frame: &[u8]) {
        let describer = &mut self.describer;
        self.journal
            .line(|| format!("  {from:?} -> {}: {}", name(to), describer.frame(from.gid(), to, frame)));
        self.network.send(self.now, from.gid(), to, frame);
    }

    /// Drops a frame for a port without an address.
    fn nowhere(&mut self, from: RoleId, port: Port) {
        self.unroutable += 1;
        self.journal.line(|| format!("  {from:?} has no address for {port:?}"));
    }
}

/// Returns the name of the role at an address.
pub(crate) fn name(gid: Gid) -> String {
    RoleId::at(gid).map_or_else(|| format!("{gid:?}"), |role_id| format!("{role_id:?}"))
}

#[cfg(test)]
mod tests {
    use super::RoleId;

    /// Every machine is found by its address.
    #[test]
    fn addresses_name_machines() {
        let nodes = [RoleId::Node(1), RoleId::Node(700)];
        let others = [RoleId::Control, RoleId::Switch, RoleId::Host(3), RoleId::Index(2)];
        for role_id in others.into_iter().chain(nodes) {
            assert_eq!(RoleId::at(role_id.gid()), Some(role_id));
        }
        assert_eq!(format!("{:?} {:?}", RoleId::Switch, RoleId::Node(7)), "switch node 7");
    }
}
