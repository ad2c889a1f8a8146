//! Answers to the callers of committed changes.

use crate::addresses::PAGE;
use crate::api::{
    ConnectionInfo, ConnectionLimits, DirectoryInfo, Endpoint, HostInfo, HostJoined, IndexInfo, IndexJoined,
    NodeInfo, NodeJoined, ProcessInfo, RackOverview, Response, Returned, RoleAddress, SessionInfo,
    SwitchJoined, VmaInfo,
};
use crate::keys::Kind;
use crate::rack::Rack;
use crate::record::{ChangeKind, FileTurn, HostRow, Key, NodeRow, Role, SessionRow, gid_text};
use crate::updates::Reach;
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_transport::rc::{READ_LEN_MAX, RESPONDER_DEPTH};
use farmem_wire::DMA_LEN_MAX;

const PPM: u32 = 1_000_000;

/// The limits of a memory node of farmem, and how long its requesters are advised to wait (PROTOCOL 14.6).
const LIMITS: ConnectionLimits = ConnectionLimits {
    read_len_max: READ_LEN_MAX,
    write_len_max: DMA_LEN_MAX,
    depth: RESPONDER_DEPTH,
    timeout: 14,
    retries: 6,
    rnr_retries: 7,
};

/// The limits of memory that a card registered: the card accepts READs as long as WRITEs.
const CARD_LIMITS: ConnectionLimits = ConnectionLimits { read_len_max: DMA_LEN_MAX, ..LIMITS };

impl Rack {
    /// Returns the answer to a change that was just committed.
    pub(crate) fn success(&self, what: &ChangeKind) -> Response {
        match what {
            ChangeKind::JoinSwitch { gid, home } => {
                let home = endpoint(Port::SWITCH, *gid, *home);
                SwitchJoined { home, control: self.card_endpoint(), key: self.key(Kind::Switch, 0) }.into()
            }
            ChangeKind::JoinIndex { index, row } => {
                let home = endpoint(Port::index(*index), row.gid, row.home);
                let (control, key) = (self.card_endpoint(), self.key(Kind::Index, (*index).into()));
                IndexJoined { index: *index, home, control, key }.into()
            }
            ChangeKind::JoinNode { node, gid, home, base, capacity, .. } => NodeJoined {
                node: *node,
                home: endpoint(Port::node(*node), *gid, *home),
                control: self.card_endpoint(),
                base: *base,
                capacity: *capacity,
                key: self.key(Kind::Node, (*node).into()),
            }
            .into(),
            ChangeKind::JoinHost { host, gid, home, .. } => HostJoined {
                host: *host,
                generation: self.state.hosts.get(host).map_or(0, |row| row.generation),
                home: endpoint(Port::host(*host), *gid, *home),
                nodes: self.node_infos().filter(|node| node.card == 0).collect(),
                cards: self.node_infos().filter(|node| node.card != 0).collect(),
                key: self.key(Kind::Host, (*host).into()),
            }
            .into(),
            ChangeKind::OpenSession(row) => self.session(row).into(),
            ChangeKind::Connect(row) => match self.state.nodes.get(&row.node) {
                Some(node) => ConnectionInfo {
                    node: self.node_info(row.node, node),
                    qpn: row.qpn,
                    peer_qpn: row.through.map_or(row.peer_qpn, |through| through.to_node),
                    first_psn: row.first_psn,
                    rkey: row.rkey,
                    pmtu: row.pmtu,
                    limits: if node.card.is_some() { CARD_LIMITS } else { LIMITS },
                    through: row.through.map(|_| self.switch_place()),
                }
                .into(),
                None => unreachable!("a connection's node is there: its leaving ends the connection"),
            },
            ChangeKind::Allocate { object: Some((object, _)), file: Some(_), .. } => {
                self.list_object(*object).into()
            }
            ChangeKind::Allocate { object: Some((object, _)), .. } => self.object(*object).into(),
            ChangeKind::TurnFile { object, turn: FileTurn::Write { .. }, .. } => self.object(*object).into(),
            ChangeKind::TurnFile { object, .. } => self.list_object(*object).into(),
            ChangeKind::Allocate { base, pieces, .. } => match self.state.vmas.get(base) {
                Some(vma) => {
                    let first = pieces.first().filter(|(at, _)| at == base);
                    let node = first.map_or(vma.node, |(_, piece)| piece.node);
                    VmaInfo { node, ..vma.info(*base) }.into()
                }
                None => unreachable!("what was just allocated is there"),
            },
            ChangeKind::Remap(remap) => match remap.starts {
                Some(process) => {
                    let heap = self.state.spaces.get(&remap.domain).and_then(|space| space.heap_start());
                    ProcessInfo { process, heap: heap.unwrap_or(0) }.into()
                }
                None if remap.ends.is_some() => Response::Done {},
                None => Returned { value: remap.value }.into(),
            },
            ChangeKind::LeaveNode { .. }
            | ChangeKind::LeaveIndex { .. }
            | ChangeKind::LeaveHost { .. }
            | ChangeKind::Disconnect(_)
            | ChangeKind::Free { .. }
            | ChangeKind::OpenDirectory { .. }
            | ChangeKind::Fence { .. }
            | ChangeKind::AcceptLost { .. }
            | ChangeKind::Migrate(_)
            | ChangeKind::Grant { .. } => Response::Done {},
            ChangeKind::Live { host, .. } => self.lease(*host).into(),
        }
    }

    pub(crate) fn session(&self, row: &SessionRow) -> SessionInfo {
        let gid = self.state.switch.as_ref().map_or([0; 16], |row| row.gid);
        SessionInfo { switch: endpoint(Port::SWITCH, gid, row.key), domain: row.domain }
    }

    /// Returns where the switch is.
    fn switch_place(&self) -> RoleAddress {
        let gid = self.state.switch.as_ref().map_or([0; 16], |row| row.gid);
        RoleAddress { port: Port::SWITCH.0, gid: gid_text(gid) }
    }

    /// Describes the rack, with what `coherence` and `soft` know of the directory and the index.
    pub(crate) fn overview(&self, directory: DirectoryInfo, index: Vec<IndexInfo>) -> RackOverview {
        let hosts = self.state.hosts.iter().filter(|(_, row)| row.present && row.joining.is_none());
        let hosts = hosts.map(|(&host, row)| row.info(host));
        let vmas = self.state.vmas.iter().filter(|(_, vma)| vma.pending.is_none());
        let vmas = vmas.map(|(&base, vma)| vma.info(base));
        RackOverview {
            nodes: self.node_infos().collect(),
            hosts: hosts.collect(),
            vmas: vmas.collect(),
            moved: self.state.moved(0, u64::MAX),
            domains: self.state.domains.iter().map(|(&domain, name)| (domain, name.clone())).collect(),
            balance_ppm: self.balance_ppm(),
            directory,
            index,
            switch: self.state.reach(Role::Switch).is_some_and(|reach| reach != Reach::Held),
            switch_answers: self.answers(Role::Switch),
        }
    }

    /// Computes Jain's index of the allocation on the nodes (MIND 7.2), in millionths: 1,000,000 when all
    /// nodes have the same, and 1,000,000 divided by the number of nodes when one has everything.
    fn balance_ppm(&self) -> u32 {
        let there = self.state.nodes.iter().filter(|(_, row)| row.joining.is_none() && row.card.is_none());
        let pages: Vec<u128> =
            there.map(|(&node, _)| u128::from(self.state.allocated(node, false) / PAGE)).collect();
        let sum: u128 = pages.iter().sum();
        let squares: u128 = pages.iter().map(|pages| pages * pages).sum();
        if squares == 0 {
            return PPM;
        }
        u32::try_from(sum * sum * u128::from(PPM) / (squares * pages.len() as u128)).unwrap_or(PPM)
    }

    fn node_infos(&self) -> impl Iterator<Item = NodeInfo> + '_ {
        let there = self.state.nodes.iter().filter(|(_, row)| row.joining.is_none());
        there.map(|(&node, row)| self.node_info(node, row))
    }

    fn node_info(&self, node: u16, row: &NodeRow) -> NodeInfo {
        NodeInfo {
            node,
            name: row.name.clone(),
            port: Port::node(node).0,
            gid: gid_text(row.gid),
            base: row.base,
            capacity: row.capacity,
            allocated: self.state.allocated(node, false),
            generation: row.generation,
            answers: self.answers(Role::Node(node)),
            lost: self.lost_with(node).bytes,
            card: row.card.as_ref().map_or(0, |card| card.domain),
        }
    }

    pub(crate) fn card_endpoint(&self) -> Endpoint {
        let home = self.state.home.unwrap_or(Key { qpn: 0, qkey: 0 });
        endpoint(Port::CONTROL, self.config.gid.0, home)
    }
}

impl HostRow {
    /// Describes the host for users.
    pub(crate) fn info(&self, host: u16) -> HostInfo {
        let acts_for = self.acts_for.iter().map(|of| (of.host, of.generation)).collect();
        let (name, gid) = (self.name.clone(), gid_text(self.gid));
        HostInfo { host, name, gid, generation: self.generation, acts_for }
    }
}

fn endpoint(port: Port, gid: [u8; 16], key: Key) -> Endpoint {
    Endpoint { port: port.0, gid: gid_text(gid), qpn: key.qpn, qkey: key.qkey }
}
