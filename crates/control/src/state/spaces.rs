//! Address spaces: the updates of an edit, and its end (PROTOCOL 8.27 to 8.31).

use crate::addresses::first_fit;
use crate::api::PermName;
use crate::record::{Remap, Role, Span, VmaRow};
use crate::state::tables::{Step, protect, step};
use crate::state::{Effect, State};
use crate::syscalls::{Edit, Prot, Space};
use crate::updates::LoggedUpdate;
use alloc::vec::Vec;
use farmem_wire::VirtAddr;
use farmem_wire::message::Update;

impl State {
    /// Restores the address space of a domain, and its processes.
    pub(crate) fn put_space(&mut self, domain: u32, space: &Space, processes: &[u32]) {
        self.spaces.insert(domain, space.clone());
        self.processes.extend(processes.iter().map(|&process| (process, domain)));
    }

    /// Finds the first free place inside the node's memory.
    pub(crate) fn place(&self, node: u16, size: u64) -> Option<u64> {
        let row = self.nodes.get(&node)?;
        let end = row.base + row.capacity;
        let mut taken = self.used(node);
        taken.extend(self.vmas.range(row.base..end).map(|(&base, vma)| (base, vma.size)));
        taken.sort_unstable();
        first_fit(taken.into_iter(), row.base, end, size)
    }

    /// Returns the node in whose range an address lies.
    pub(crate) fn node_at(&self, addr: u64) -> Option<u16> {
        let behind = |(_, row): &(&u16, &crate::record::NodeRow)| addr.wrapping_sub(row.base) < row.capacity;
        self.nodes.iter().find(behind).map(|(&node, _)| node)
    }

    /// Returns the address space that a vma is part of.
    pub(crate) fn space_of(&self, base: u64) -> Option<u32> {
        let owner = self.vmas.get(&base)?.domain;
        self.spaces.get(&owner).filter(|space| space.vma(base).is_some()).map(|_| owner)
    }

    /// Returns the owner's permissions in `base..base + len` of its vma, with gaps as `None`: everything, or
    /// what its address space says.
    pub(crate) fn own_spans(&self, vma: u64, row: &VmaRow, base: u64, len: u64) -> Vec<Span> {
        let Some(space) = self.spaces.get(&row.domain).filter(|space| space.vma(vma).is_some()) else {
            let by_file = self.file_spans(vma, row.size, base, len);
            return by_file.unwrap_or_else(|| Vec::from([Span { base, len, perm: PermName::ReadWrite }]));
        };
        let mapped = space.mapped(base, base + len);
        let spans: Vec<Span> =
            mapped.map(|(from, to, prot)| Span { base: from, len: to - from, perm: perm_of(prot) }).collect();
        crate::state::grants::slice(&spans, base, len)
    }

    /// Returns what `role` is told of an edit.
    pub(crate) fn tell_edit(&self, domain: u32, edit: &Edit, role: Role) -> Vec<Step> {
        let clear = |base, len| match role {
            Role::Switch | Role::Index(_) => Vec::new(),
            Role::Node(node) => {
                let parts = self.parts_at(node, base, len).into_iter();
                parts.map(|(base, len)| step(Update::Clear { base: VirtAddr(base), len }, [])).collect()
            }
        };
        match *edit {
            Edit::Reserve { base, size } => clear(base, size),
            // No host may go on with the earlier bytes from its cache: the switch revokes the pages, and is
            // then told which domain may use them anew.
            Edit::Clear { base, len } if role == Role::Switch => self.turn(domain, base, len, PermName::None),
            Edit::Clear { base, len } => clear(base, len),
            Edit::Map { base, len, prot } => self.turn(domain, base, len, perm_of(prot)),
            Edit::Unmap { base, len } => self.turn(domain, base, len, PermName::None),
            Edit::Release { base } => self.vmas.get(&base).map_or_else(Vec::new, |vma| self.free(base, vma)),
            Edit::Heap { .. } | Edit::Break { .. } => Vec::new(),
        }
    }

    /// Changes the owner's protection of a part of a vma.
    fn turn(&self, domain: u32, base: u64, len: u64, perm: PermName) -> Vec<Step> {
        let Some((vma, row)) = self.vma_at(base) else { return Vec::new() };
        let told = |span: Span| protect(domain, span, row.size);
        let back: Vec<LoggedUpdate> = if row.pending.is_none() {
            self.own_spans(vma, row, base, len).into_iter().map(|span| LoggedUpdate(told(span))).collect()
        } else {
            Vec::from([LoggedUpdate(told(Span { base, len, perm: PermName::None }))])
        };
        Vec::from([(told(Span { base, len, perm }), Some(back))])
    }

    /// Applies the edits of a memory call after switch and nodes have answered.
    pub(crate) fn commit_remap(&mut self, remap: &Remap, effects: &mut Vec<Effect>) {
        for edit in &remap.edits {
            if let Edit::Release { base } = edit {
                self.drop_pieces(*base, effects);
            }
        }
        let mut lost_no_more = Vec::new();
        let space = self.spaces.entry(remap.domain).or_default();
        for edit in &remap.edits {
            space.apply(edit);
            match edit {
                Edit::Reserve { base, .. } => {
                    self.vmas.entry(*base).and_modify(|vma| vma.pending = None);
                }
                Edit::Release { base } => {
                    let size = self.vmas.remove(base).map_or(0, |vma| vma.size);
                    lost_no_more.push((*base, size));
                }
                Edit::Clear { base, len } | Edit::Unmap { base, len } => lost_no_more.push((*base, *len)),
                _ => {}
            }
        }
        lost_no_more.into_iter().for_each(|(base, len)| self.forget_lost(base, len));
        self.processes.extend(remap.starts.map(|process| (process, remap.domain)));
        if let Some(process) = remap.ends {
            self.processes.remove(&process);
        }
        if !self.processes.values().any(|&domain| domain == remap.domain) {
            self.spaces.remove(&remap.domain);
        }
    }

    /// Returns the nodes that an edit concerns: all that have a part of its vma.
    pub(crate) fn nodes_of_edit(&self, edit: &Edit) -> Vec<u16> {
        match edit {
            Edit::Reserve { base, .. }
            | Edit::Clear { base, .. }
            | Edit::Map { base, .. }
            | Edit::Unmap { base, .. }
            | Edit::Release { base } => match self.vma_at(*base) {
                Some((vma, _)) => self.nodes_of_vma(vma),
                None => self.node_at(*base).into_iter().collect(),
            },
            Edit::Heap { .. } | Edit::Break { .. } => Vec::new(),
        }
    }
}

const fn perm_of(prot: Prot) -> PermName {
    match prot {
        Prot::None => PermName::None,
        Prot::Read => PermName::Read,
        Prot::ReadWrite => PermName::ReadWrite,
    }
}
