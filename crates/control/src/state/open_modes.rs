//! Open modes of named objects, and the objects that departed hosts had open (PROTOCOL 8.53 to 8.58).

use crate::api::OpenMode;
use crate::record::{ObjectRow, Role};
use crate::state::State;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_wire::message::Update;

impl ObjectRow {
    /// Creates an object that no host has open yet.
    pub(crate) const fn new(domain: u32, name: String) -> Self {
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
    pub(crate) fn let_go(&mut self, host: u16) {
        self.hosts.retain(|&its| its != host);
        if self.hosts.is_empty() {
            self.mode = OpenMode::Shared;
        }
    }

    /// Returns what is wrong with the hosts of the object, if anything is.
    pub(crate) fn mode_fault(&self) -> Option<&'static str> {
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
    pub(crate) fn roles_that_hear(&self, row: &ObjectRow, host: u16) -> impl Iterator<Item = Role> {
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
    pub(crate) fn host_title(&self, host: u16) -> String {
        match self.hosts.get(&host) {
            Some(row) => format!("host {host} ({}, generation {})", row.name, row.generation),
            None => format!("host {host}"),
        }
    }
}
