//! State of the control plane that outlives a restart: rows, queues, changes in flight.
//!
//! [`State::apply`] is the only way in. The state has no clock, no randomness and no outbox. Consequences for
//! the outside are listed as [`Effect`]s, which a restart ignores.

use crate::record::{
    Cache, Change, ChangeKind, ConnectionRow, FileRow, HostRow, IndexRow, Key, Line, LoggedUpdate, NodeRow,
    ObjectRow, PieceRow, Record, Role, RollbackReason, SessionRow, Span, SwitchRow, VmaRow,
};
use crate::syscalls::Space;
use crate::updates::{Queue, Reach};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_transport::PeerChange;
use farmem_wire::Gid;
use farmem_wire::message::Update;
use rangemap::RangeSet;

/// A port that no member has: nodes are numbered from 1.
const NOBODY: Port = Port::node(0);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct State {
    pub(crate) home: Option<Key>,
    pub(crate) next_change: u64,
    pub(crate) switch_generation: u16,
    /// How often a switch joined. The numbers of regions begin with it.
    pub(crate) epoch: u64,
    /// The switch's directory was opened in this epoch.
    pub(crate) directory: bool,
    pub(crate) switch: Option<SwitchRow>,
    /// A switch has joined: a member that joins as the switch from then on shows its key, even if an earlier
    /// join was rolled back.
    pub(crate) switch_joined: bool,
    pub(crate) nodes: BTreeMap<u16, NodeRow>,
    /// The index switches.
    pub(crate) index: BTreeMap<u16, IndexRow>,
    pub(crate) hosts: BTreeMap<u16, HostRow>,
    pub(crate) domains: BTreeMap<u32, String>,
    /// Where the search for the next domain's number begins, or 0 before the first domain.
    pub(crate) next_domain: u32,
    /// Vmas by first byte.
    pub(crate) vmas: BTreeMap<u64, VmaRow>,
    /// Pieces by first byte.
    pub(crate) pieces: BTreeMap<u64, PieceRow>,
    /// Allocated addresses whose bytes were lost with an earlier incarnation of their node, as whole pages.
    pub(crate) lost: RangeSet<u64>,
    /// Sessions by the switch's queue pair.
    pub(crate) sessions: BTreeMap<u32, SessionRow>,
    /// Connections by host and the host's queue pair: a number assigned by a card is unique at its host only
    /// (PROTOCOL 14.1).
    pub(crate) connections: BTreeMap<(u16, u32), ConnectionRow>,
    /// Address spaces of the domains that have processes, by domain.
    pub(crate) spaces: BTreeMap<u32, Space>,
    /// The domain of each process.
    pub(crate) processes: BTreeMap<u32, u32>,
    pub(crate) next_process: u32,
    /// Named objects, by number.
    pub(crate) objects: BTreeMap<u64, ObjectRow>,
    /// Objects by file, by number.
    pub(crate) files: BTreeMap<u64, FileRow>,
    /// The build that each member named in its last join, also for members that have left.
    pub(crate) builds: BTreeMap<Port, String>,
    pub(crate) queues: BTreeMap<Role, Queue>,
    /// Changes by number, in the order in which they began.
    pub(crate) changes: BTreeMap<u64, Change>,
}

/// Consequence of a line for the outside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// A port has an address, or has none any more.
    Peer(PeerChange),
    /// A change ended.
    Ended { change: u64, what: ChangeKind, result: Result<(), RollbackReason> },
    /// A role must rejoin before it is told anything.
    Gone(Role),
}

/// A member of the rack other than the control plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) port: Port,
    pub(crate) gid: [u8; 16],
    /// Queue pair of the member's endpoint.
    pub(crate) qpn: u32,
    /// Name of the member. The switch has none.
    pub(crate) name: Option<&'a str>,
}

/// A line that does not fit the lines before it, as only a damaged or foreign log has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogError(pub(crate) &'static str);

impl State {
    /// Applies one line. The state is of no use after an error.
    pub(crate) fn apply(&mut self, line: &Line, effects: &mut Vec<Effect>) -> Result<(), LogError> {
        match line {
            Line::Home(key) => self.home = Some(*key),
            Line::Domain { domain, name } => {
                self.domains.insert(*domain, name.clone());
                self.next_domain = domain.wrapping_add(1);
            }
            Line::DomainGone { domain } => {
                self.domains.remove(domain).ok_or(LogError("an unknown domain goes"))?;
            }
            Line::NextDomain(next) => self.next_domain = *next,
            Line::Object { object, row: Some(row) } => {
                self.objects.insert(*object, row.clone());
            }
            Line::Object { object, row: None } => {
                self.objects.remove(object);
                self.files.remove(object);
            }
            Line::File { object, row } => {
                self.files.insert(*object, row.clone());
            }
            Line::FileEnded { object, task, end } => self.file_ended(*object, *task, *end)?,
            Line::Build { port, build: Some(build) } => {
                self.builds.insert(Port(*port), build.clone());
            }
            Line::Build { port, build: None } => {
                self.builds.remove(&Port(*port));
            }
            Line::Began { change, what } => self.begin(*change, what, effects)?,
            Line::Answered { role, seq, refusal } => self.answered(*role, *seq, *refusal, effects)?,
            Line::Silent { role } => self.silent(*role, effects)?,
            // Every role answers that: there is nothing to forget.
            Line::Probed { role } => {
                let nothing = LoggedUpdate(Update::PeerGone { port: NOBODY.0 });
                self.enqueue(*role, None, nothing, None, effects);
            }
            Line::Restarted => self.abandon(effects),
            Line::Advanced { change } => self.advance(*change, effects)?,
            Line::GivenUp { change, why } => self.give_up(*change, *why, effects)?,
            Line::Piece { base, row } => {
                self.pieces.insert(*base, *row);
            }
            Line::Lost { base, len } => {
                let end = base.checked_add(*len).filter(|_| *len > 0);
                self.lost.insert(*base..end.ok_or(LogError("what is lost is a range of addresses"))?);
            }
            Line::Acts { host, of, begins } => self.acts(*host, *of, *begins)?,
            Line::Forgotten { host } => {
                let row = self.hosts.get_mut(host).filter(|row| row.cache == Cache::Fenced);
                row.ok_or(LogError("a host is forgotten that was not fenced"))?.cache = Cache::Empty;
                self.close_shared(*host);
            }
            Line::Counters { next_change, switch_generation, epoch, directory, switch_joined } => {
                self.next_change = *next_change;
                self.switch_generation = *switch_generation;
                (self.epoch, self.directory) = (*epoch, *directory);
                self.switch_joined = *switch_joined;
            }
            Line::Space { domain, space, processes } => {
                self.spaces.insert(*domain, space.clone());
                self.processes.extend(processes.iter().map(|&process| (process, *domain)));
            }
            Line::NextProcess(next) => self.next_process = *next,
            Line::Switch(row) => {
                self.switch = Some(row.clone());
                // Logs of earlier versions record it in no other way.
                self.switch_joined |= row.joining.is_none();
            }
            Line::Node { node, row } => {
                self.nodes.insert(*node, row.clone());
            }
            Line::Index { index, row } => {
                self.index.insert(*index, row.clone());
            }
            Line::Host { host, row } => {
                self.hosts.insert(*host, row.clone());
            }
            Line::Vma { base, row } => {
                self.vmas.insert(*base, row.clone());
            }
            Line::Session(row) => {
                self.sessions.insert(row.key.qpn, row.clone());
            }
            Line::Connection(row) => {
                self.connections.insert(row.key(), row.clone());
            }
            Line::Queue { role, queue } => {
                self.queues.insert(*role, queue.clone());
            }
            Line::InFlight { change, row } => {
                self.changes.insert(*change, row.clone());
            }
        }
        // Rows of a compacted log come one by one. Only events settle the queues.
        let settles = matches!(
            line,
            Line::Began { .. }
                | Line::Answered { .. }
                | Line::Silent { .. }
                | Line::Probed { .. }
                | Line::Restarted
                | Line::Advanced { .. }
                | Line::GivenUp { .. }
        );
        if settles {
            self.settle(effects);
        }
        if settles || matches!(line, Line::Acts { .. }) {
            self.release_objects();
        }
        Ok(())
    }

    /// Returns the shortest log that leads to this state: one row for each entry.
    pub(crate) fn rows(&self) -> Vec<Record> {
        let mut lines = Vec::new();
        lines.extend(self.home.map(Line::Home));
        let (next_change, switch_generation) = (self.next_change, self.switch_generation);
        let (epoch, directory) = (self.epoch, self.directory);
        if (next_change, epoch) != (0, 0) {
            let switch_joined = self.switch_joined;
            lines.push(Line::Counters { next_change, switch_generation, epoch, directory, switch_joined });
        }
        lines.extend(self.domains.iter().map(|(&domain, name)| Line::Domain { domain, name: name.clone() }));
        let follows = self.domains.last_key_value().map_or(0, |(&last, _)| last.wrapping_add(1));
        if self.next_domain != follows {
            lines.push(Line::NextDomain(self.next_domain));
        }
        lines.extend(self.switch.clone().map(Line::Switch));
        lines.extend(self.nodes.iter().map(|(&node, row)| Line::Node { node, row: row.clone() }));
        lines.extend(self.index.iter().map(|(&index, row)| Line::Index { index, row: row.clone() }));
        lines.extend(self.hosts.iter().map(|(&host, row)| Line::Host { host, row: row.clone() }));
        lines.extend(self.vmas.iter().map(|(&base, row)| Line::Vma { base, row: row.clone() }));
        lines.extend(self.pieces.iter().map(|(&base, &row)| Line::Piece { base, row }));
        lines
            .extend(self.lost.iter().map(|lost| Line::Lost { base: lost.start, len: lost.end - lost.start }));
        lines.extend(self.spaces.iter().map(|(&domain, space)| {
            let its = self.processes.iter().filter(|&(_, &of)| of == domain);
            let processes = its.map(|(&process, _)| process).collect();
            Line::Space { domain, space: space.clone(), processes }
        }));
        if self.next_process > 0 {
            lines.push(Line::NextProcess(self.next_process));
        }
        lines.extend(
            self.objects.iter().map(|(&object, row)| Line::Object { object, row: Some(row.clone()) }),
        );
        lines.extend(self.files.iter().map(|(&object, row)| Line::File { object, row: row.clone() }));
        lines.extend(self.sessions.values().cloned().map(Line::Session));
        lines.extend(self.connections.values().cloned().map(Line::Connection));
        lines.extend(
            self.builds.iter().map(|(port, build)| Line::Build { port: port.0, build: Some(build.clone()) }),
        );
        lines.extend(self.queues.iter().map(|(&role, queue)| Line::Queue { role, queue: queue.clone() }));
        lines.extend(self.changes.iter().map(|(&change, row)| Line::InFlight { change, row: row.clone() }));
        lines.into_iter().map(Record).collect()
    }

    /// Returns the permissions of `domain` in the vma at `base`, which it does not own.
    pub(crate) fn grants_of(&self, base: u64, domain: u32) -> &[Span] {
        let vma = self.vmas.get(&base);
        let found = vma.and_then(|vma| vma.grants.iter().find(|(to, _)| *to == domain));
        found.map_or(&[], |(_, spans)| spans)
    }

    /// Returns the vma that holds `addr`.
    pub(crate) fn vma_at(&self, addr: u64) -> Option<(u64, &VmaRow)> {
        let (&base, vma) = self.vmas.range(..=addr).next_back()?;
        (addr - base < vma.size).then_some((base, vma))
    }

    /// Returns the bytes allocated on `node`, counted where they are. With `pending`, allocations in flight
    /// are included.
    pub(crate) fn allocated(&self, node: u16, pending: bool) -> u64 {
        let Some(row) = self.nodes.get(&node) else { return 0 };
        let range = row.base..row.base.saturating_add(row.capacity);
        let homes = self.vmas.range(range.clone()).map(|(_, vma)| vma);
        let homes: u64 = homes.filter(|vma| pending || vma.pending.is_none()).map(|vma| vma.size).sum();
        let coming = || self.coming_pieces().filter(|_| pending);
        let pieces = || self.pieces.iter().map(|(&base, &piece)| (base, piece)).chain(coming());
        let away: u64 = pieces().filter(|(base, _)| range.contains(base)).map(|(_, piece)| piece.size).sum();
        let here = pieces().filter(|(_, piece)| piece.node == node);
        homes - away + here.map(|(_, piece)| piece.size).sum::<u64>()
    }

    pub(crate) fn reach(&self, role: Role) -> Option<Reach> {
        self.queues.get(&role).map(|queue| queue.reach)
    }

    pub(crate) fn generation(&self, role: Role) -> u16 {
        match role {
            Role::Switch => self.switch_generation,
            Role::Node(node) => self.nodes.get(&node).map_or(0, |row| row.generation),
            Role::Index(index) => self.index.get(&index).map_or(0, |row| row.generation),
        }
    }

    /// Returns the endpoint of a role.
    pub(crate) fn home_of(&self, role: Role) -> Option<Key> {
        match role {
            Role::Switch => self.switch.as_ref().map(|row| row.home),
            Role::Node(node) => self.nodes.get(&node).map(|row| row.home),
            Role::Index(index) => self.index.get(&index).map(|row| row.home),
        }
    }

    /// Returns true if an endpoint or a connection has this queue pair number.
    pub(crate) fn uses_qpn(&self, qpn: u32) -> bool {
        let connection = |row: &ConnectionRow| row.qpns().any(|its| its == qpn);
        self.home.is_some_and(|key| key.qpn == qpn)
            || self.switch.as_ref().is_some_and(|row| row.home.qpn == qpn)
            || self.nodes.values().any(|row| row.home.qpn == qpn)
            || self.index.values().any(|row| row.home.qpn == qpn)
            || self.hosts.values().any(|row| row.home.qpn == qpn)
            || self.sessions.contains_key(&qpn)
            || self.connections.values().any(connection)
            || self.changes.values().any(|change| match &change.what {
                ChangeKind::OpenSession(row) => row.key.qpn == qpn,
                ChangeKind::Connect(row) | ChangeKind::Disconnect(row) => connection(row),
                _ => false,
            })
    }

    /// Iterates over all members: the switch, memory nodes, index switches, and hosts that have not left.
    pub(crate) fn members(&self) -> impl Iterator<Item = Member<'_>> {
        fn member<'a>(port: Port, gid: [u8; 16], home: Key, name: Option<&'a str>) -> Member<'a> {
            Member { port, gid, qpn: home.qpn, name }
        }
        let switch = self.switch.iter().map(|row| member(Port::SWITCH, row.gid, row.home, None));
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|(&node, row)| member(Port::node(node), row.gid, row.home, Some(&row.name)));
        let index = self.index.iter();
        let index = index.map(|(&index, row)| member(Port::index(index), row.gid, row.home, Some(&row.name)));
        let hosts = self.hosts.iter().filter(|(_, row)| row.present);
        let hosts = hosts.map(|(&host, row)| member(Port::host(host), row.gid, row.home, Some(&row.name)));
        switch.chain(nodes).chain(index).chain(hosts)
    }

    /// Returns the addresses of all members.
    pub(crate) fn peers(&self) -> Vec<PeerChange> {
        self.members().map(|Member { port, gid, .. }| PeerChange { port, gid: Some(Gid(gid)) }).collect()
    }
}
