//! State of the control plane that outlives a restart: rows, queues, changes in flight.
//!
//! [`State::apply`] is the only way in. The state has no clock, no randomness and no outbox. Consequences for
//! the outside are listed as [`Effect`]s, which a restart ignores.

pub(crate) mod acting_hosts;
pub(crate) mod cards;
pub(crate) mod change;
pub(crate) mod claims;
pub(crate) mod domains;
pub(crate) mod draining;
pub(crate) mod files;
pub(crate) mod grants;
pub(crate) mod index_switches;
pub(crate) mod invariants;
pub(crate) mod lost_memory;
pub(crate) mod members;
pub(crate) mod migrations;
pub(crate) mod objects;
pub(crate) mod open_modes;
pub(crate) mod pieces;
pub(crate) mod placement;
pub(crate) mod spaces;
pub(crate) mod tables;
pub(crate) mod titles;
pub(crate) mod vmas;

use crate::record::{
    Change, ChangeKind, ConnectionRow, FileRow, HostRow, IndexRow, Key, Line, NodeRow, ObjectRow, PieceRow,
    Record, Role, RollbackReason, SessionRow, SwitchRow, VmaRow,
};
use crate::syscalls::Space;
use crate::updates::Queue;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_transport::PeerChange;
use rangemap::RangeSet;

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
    MustRejoin(Role),
}

/// A line that does not fit the lines before it, as only a damaged or foreign log has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogError(pub(crate) &'static str);

impl State {
    /// Applies one line. The state is of no use after an error.
    pub(crate) fn apply(&mut self, line: &Line, effects: &mut Vec<Effect>) -> Result<(), LogError> {
        match line {
            Line::Home(key) => self.home = Some(*key),
            Line::Counters { next_change, switch_generation, epoch, directory, switch_joined } => {
                (self.next_change, self.switch_generation) = (*next_change, *switch_generation);
                (self.epoch, self.directory) = (*epoch, *directory);
                self.switch_joined = *switch_joined;
            }
            Line::Domain { domain, name } => self.create_domain(*domain, name),
            Line::DomainGone { domain } => self.remove_domain(*domain)?,
            Line::NextDomain(next) => self.next_domain = *next,
            Line::Switch(row) => self.put_switch(row),
            Line::Node { node, row } => drop(self.nodes.insert(*node, row.clone())),
            Line::Index { index, row } => drop(self.index.insert(*index, row.clone())),
            Line::Host { host, row } => drop(self.hosts.insert(*host, row.clone())),
            Line::Build { port, build } => self.put_build(Port(*port), build.as_deref()),
            Line::Acts { host, of, begins } => self.acts(*host, *of, *begins)?,
            Line::Forgotten { host } => self.forget_cache(*host)?,
            Line::Vma { base, row } => drop(self.vmas.insert(*base, row.clone())),
            Line::Piece { base, row } => drop(self.pieces.insert(*base, *row)),
            Line::Lost { base, len } => self.put_lost(*base, *len)?,
            Line::Space { domain, space, processes } => self.put_space(*domain, space, processes),
            Line::NextProcess(next) => self.next_process = *next,
            Line::Object { object, row } => self.put_object(*object, row.as_ref()),
            Line::File { object, row } => drop(self.files.insert(*object, row.clone())),
            Line::FileEnded { object, task, end } => self.file_ended(*object, *task, *end)?,
            Line::Session(row) => drop(self.sessions.insert(row.key.qpn, row.clone())),
            Line::Connection(row) => drop(self.connections.insert(row.key(), row.clone())),
            Line::Queue { role, queue } => drop(self.queues.insert(*role, queue.clone())),
            Line::InFlight { change, row } => drop(self.changes.insert(*change, row.clone())),
            Line::Began { change, what } => self.begin(*change, what, effects)?,
            Line::Answered { role, seq, refusal } => self.answered(*role, *seq, *refusal, effects)?,
            Line::Silent { role } => self.silent(*role, effects)?,
            Line::Probed { role } => self.probe(*role, effects),
            Line::Restarted => self.abandon(effects),
            Line::Advanced { change } => self.advance(*change, effects)?,
            Line::GivenUp { change, why } => self.give_up(*change, *why, effects)?,
        }
        // Rows of a compacted log come one by one. Only events settle the queues.
        if line.settles() {
            self.settle(effects);
        }
        if line.settles() || matches!(line, Line::Acts { .. }) {
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
}
