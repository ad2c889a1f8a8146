//! Open modes: coherent spaces share an object, hosts that cache without a directory read it together, or one
//! host writes it (PROTOCOL 8.53 to 8.58, SODA III).
//!
//! An object without memory is a lock for all memory of its domain (8.57). All hosts that have an object open
//! have it in the same mode, so the row has one mode. An object that a departed host had open to write is
//! kept from others until no memory node accepts WRITEs of that host any more.

use crate::Control;
use crate::api::{ApiError, ErrorCode, ObjectInfo, OpenMode};
use crate::errors::error;
use crate::record::{ChangeKind, HostRow, Line, ObjectRow, Role};
use crate::requests::Decision;
use crate::state::State;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_wire::message::Update;

/// Maximum number of hosts that a refusal names.
const NAMED_MAX: usize = 4;

impl Control {
    /// Opens the object for the host in this mode, if that is allowed.
    pub(super) fn held(
        &self,
        object: u64,
        row: &ObjectRow,
        host: u16,
        mode: OpenMode,
    ) -> Result<Decision<ObjectInfo>, ApiError> {
        let answer = self.described(object, row);
        let mode = self.admitted(object, row, host, mode)?;
        if let Some(turn) = self.file_opens(object, host, mode)? {
            let base = row.base.unwrap_or_default();
            return Ok(Decision::Begin(ChangeKind::TurnFile { object, base, turn }));
        }
        let place = row.hosts.binary_search(&host);
        if place.is_ok() && mode == row.mode {
            return Ok(Decision::Reply(answer));
        }
        let mut row = ObjectRow { mode, ..row.clone() };
        if let Err(at) = place {
            row.hosts.insert(at, host);
        }
        Ok(Decision::Keep(Line::Object { object, row: Some(row) }, answer))
    }

    /// Returns the mode in which a host that asks for `mode` gets the object.
    fn admitted(
        &self,
        object: u64,
        row: &ObjectRow,
        host: u16,
        mode: OpenMode,
    ) -> Result<OpenMode, ApiError> {
        use OpenMode::{Read, Write};
        if let Some(&gone) = row.ended.first() {
            return Err(self.still_writing(object, row, gone));
        }
        let own = row.hosts.contains(&host);
        let wanted = match (own, row.mode, mode) {
            (true, Read, Write) | (true, Write, Read) => Write,
            (true, has, asked) if has != asked => {
                let message =
                    format!("host {host} has object {object} open {has} already, and asks for it {asked}");
                let remedy = "close it first with `drop_object`, or ask for the mode that the host has";
                return Err(error(ErrorCode::Conflict, message, remedy));
            }
            (_, _, asked) => asked,
        };
        let others: Vec<u16> = row.hosts.iter().copied().filter(|&other| other != host).collect();
        if others.is_empty() || (wanted == row.mode && wanted != Write) {
            return Ok(wanted);
        }
        Err(self.open_elsewhere(object, row, &others, wanted))
    }

    fn open_elsewhere(&self, object: u64, row: &ObjectRow, others: &[u16], wanted: OpenMode) -> ApiError {
        let mut at: Vec<String> =
            others.iter().take(NAMED_MAX).map(|&other| self.state.host_title(other)).collect();
        if others.len() > NAMED_MAX {
            at.push(format!("{} more hosts", others.len() - NAMED_MAX));
        }
        let message = format!("object {object} is open {} at {}, so not {wanted}", row.mode, at.join(", "));
        let first = others[0];
        let generation = self.state.hosts.get(&first).map_or(0, |row| row.generation);
        let remedy = format!(
            "close it there (`drop_object`), or take a host that is gone out of the rack (`leave` with port {} and generation {generation}), then ask again",
            Port::host(first).0,
        );
        error(ErrorCode::Conflict, message, remedy)
    }

    fn still_writing(&self, object: u64, row: &ObjectRow, gone: u16) -> ApiError {
        let role = self.state.roles_that_hear(row, gone).next();
        let actor = || {
            let acts = |row: &&HostRow| row.acts_for.iter().any(|of| of.host == gone);
            let named = self.state.hosts.values().find(acts).map(|row| format!("host {:?}", row.name));
            named.unwrap_or_else(|| "the rack".to_string())
        };
        let at = role.map_or_else(actor, |role| self.state.title(role));
        let message =
            format!("host {gone} had object {object} open to write, and {at} may still let it write");
        let remedy = "ask again when the host has left or joined; a role that does not answer must answer or rejoin first";
        error(ErrorCode::Unavailable, message, remedy)
    }
}

impl ObjectRow {
    /// Creates an object that no host has open yet.
    pub(super) const fn new(domain: u32, name: String) -> Self {
        Self {
            domain,
            name: Some(name),
            length: 0,
            base: None,
            hosts: Vec::new(),
            mode: OpenMode::Shared,
            ended: Vec::new(),
        }
    }

    /// Closes the object for a host.
    pub(super) fn let_go(&mut self, host: u16) {
        self.hosts.retain(|&its| its != host);
        if self.hosts.is_empty() {
            self.mode = OpenMode::Shared;
        }
    }

    /// Returns what is wrong with the hosts of the object, if anything is.
    pub(super) fn mode_fault(&self) -> Option<&'static str> {
        let ascending = |hosts: &[u16]| hosts.is_sorted_by(|a, b| a < b);
        if !ascending(&self.hosts) || !ascending(&self.ended) {
            return Some("a host has an object open once");
        }
        match self.mode {
            OpenMode::Shared => {}
            OpenMode::Write if self.hosts.len() > 1 => {
                return Some("a host that writes an object is alone with it");
            }
            _ if self.hosts.is_empty() => return Some("an object that no host has open has no mode"),
            _ => {}
        }
        let kept = !self.ended.is_empty() && !self.hosts.is_empty();
        kept.then_some("an object is kept from all while one that is gone may write it")
    }
}

impl State {
    /// Ends the host's incarnation: nothing is open at the host any more. Objects that the host had open to
    /// write are kept from others until no role lets the host write (PROTOCOL 8.56). The same holds for the
    /// objects of the hosts for which it acted.
    pub(crate) fn end_objects(&mut self, host: u16) {
        let acted =
            self.hosts.get_mut(&host).map(|row| core::mem::take(&mut row.acts_for)).unwrap_or_default();
        for row in self
            .objects
            .values_mut()
            .filter(|row| row.ended.iter().any(|&gone| acted.iter().any(|of| of.host == gone)))
        {
            if let Err(at) = row.ended.binary_search(&host) {
                row.ended.insert(at, host);
            }
        }
        for row in self.objects.values_mut().filter(|row| row.hosts.contains(&host)) {
            let wrote = row.mode == OpenMode::Write;
            row.let_go(host);
            if let (true, Err(at)) = (wrote, row.ended.binary_search(&host)) {
                row.ended.insert(at, host);
            }
        }
    }

    /// Closes the shared objects of a host whose lease is over. The host has to hold them again.
    pub(crate) fn close_shared(&mut self, host: u16) {
        let shared = self.objects.values_mut().filter(|row| row.mode.is_shared());
        shared.for_each(|row| row.let_go(host));
    }

    /// Releases the objects that departed hosts had open to write, once no role lets those hosts write any
    /// more (PROTOCOL 8.56).
    pub(crate) fn release_objects(&mut self) {
        let kept: Vec<u64> =
            self.objects.iter().filter(|(_, row)| !row.ended.is_empty()).map(|(&object, _)| object).collect();
        for object in kept {
            let Some(row) = self.objects.get(&object) else { continue };
            let stays =
                |&host: &u16| self.is_acted_for(host) || self.roles_that_hear(row, host).next().is_some();
            let ended = row.ended.iter().copied().filter(stays).collect();
            self.objects.entry(object).and_modify(|row| row.ended = ended);
        }
    }

    /// Returns the roles that have not confirmed the removal of what a host's earlier incarnation could write
    /// an object by: its connections at the memory nodes of the object, and its sessions at the switch. These
    /// roles are still to be told, or must rejoin.
    fn roles_that_hear(&self, row: &ObjectRow, host: u16) -> impl Iterator<Item = Role> {
        let gone = Update::PeerGone { port: Port::host(host).0 };
        let bases = self.memory_of(row);
        let nodes: BTreeSet<u16> = bases.iter().flat_map(|&base| self.nodes_of_vma(base)).collect();
        let switch = self.switch.as_ref().filter(|_| !bases.is_empty()).map(|_| Role::Switch);
        nodes.into_iter().map(Role::Node).chain(switch).filter(move |role| {
            let queue = self.queues.get(role);
            queue.is_none_or(|queue| queue.entries().any(|entry| entry.told.0 == gone))
        })
    }

    /// Returns the vmas that a host with the object open to write may write: the object's own vma, or for a
    /// lock all vmas of its domain (PROTOCOL 8.57).
    fn memory_of(&self, row: &ObjectRow) -> Vec<u64> {
        match row.base {
            Some(base) => Vec::from([base]),
            None => {
                let own = self.vmas.iter().filter(|(_, vma)| vma.domain == row.domain);
                own.map(|(&base, _)| base).collect()
            }
        }
    }

    /// Returns a host's title for messages to people.
    fn host_title(&self, host: u16) -> String {
        match self.hosts.get(&host) {
            Some(row) => format!("host {host} ({}, generation {})", row.name, row.generation),
            None => format!("host {host}"),
        }
    }
}
