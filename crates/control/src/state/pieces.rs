//! Pieces: parts of vmas that are not where their addresses are (MIND 4.1, outliers), and the memory they
//! occupy.
//!
//! An address belongs to the node in whose range it lies, and that node's memory is behind it unless a piece
//! says otherwise. A piece occupies a *place*: memory of its node, named by that node's addresses, which no
//! other vma has then. The memory that a piece left is free for others.

use crate::addresses::{PAGE, first_fit};
use crate::api::MovedInfo;
use crate::record::{ChangeKind, Migration, PieceRow, Role, node_id};
use crate::state::{Effect, State};
use crate::updates::LoggedUpdate;
use alloc::vec::Vec;
use farmem_wire::VirtAddr;
use farmem_wire::message::Update;

/// Returns the binary logarithm of a power of two.
pub(crate) fn log2(size: u64) -> u8 {
    u8::try_from(size.ilog2()).unwrap_or(u8::MAX)
}

/// Builds the update that names the node to which the switch sends requests for a piece.
pub(crate) fn translate(base: u64, piece: &PieceRow) -> Update {
    Update::Translate { base: VirtAddr(base), size_log2: log2(piece.size), node: node_id(piece.node) }
}

/// Builds the update that has a node forget what it knows of these addresses.
pub(crate) fn unplace(base: u64, size: u64) -> Update {
    Update::Unplace { base: VirtAddr(base), size_log2: log2(size) }
}

impl State {
    /// Returns the switch's update when addresses are where the ranges have them again. A whole range gets its
    /// own entry back: the piece had taken its place.
    pub(crate) fn untranslate(&self, base: u64, size: u64) -> Update {
        let (addr, size_log2) = (VirtAddr(base), log2(size));
        let range = self.nodes.iter().find(|(_, row)| (row.base, row.size_log2) == (base, size_log2));
        match range {
            Some((&node, _)) => Update::Translate { base: addr, size_log2, node: node_id(node) },
            None => Update::Untranslate { base: addr, size_log2 },
        }
    }

    /// Returns the node that has the memory of these addresses, and their place there, if all of them are
    /// together.
    pub(crate) fn whereabouts(&self, base: u64, size: u64) -> Option<(u16, u64)> {
        if let Some(piece) = self.pieces.get(&base).filter(|piece| piece.size == size) {
            return Some((piece.node, piece.place));
        }
        let before = self.pieces.range(..base + size).next_back();
        let apart = before.is_none_or(|(&at, piece)| at + piece.size <= base);
        Some((self.node_at(base)?, base)).filter(|_| apart)
    }

    /// Returns the nodes that have a part of the vma, and the node that has its addresses, ascending.
    pub(crate) fn nodes_of_vma(&self, base: u64) -> Vec<u16> {
        let Some(vma) = self.vmas.get(&base) else { return Vec::new() };
        let pieces = self.pieces.range(base..base + vma.size).map(|(_, piece)| piece.node);
        let mut nodes: Vec<u16> = pieces.chain([vma.node]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Returns the parts of `base..base + len`, of one vma, that are at `node`: first byte and bytes,
    /// ascending.
    pub(crate) fn parts_at(&self, node: u16, base: u64, len: u64) -> Vec<(u64, u64)> {
        let (end, home) = (base + len, self.node_at(base) == Some(node));
        let mut parts = Vec::new();
        let mut at = base;
        let before = self.pieces.range(..=base).next_back().map(|(&before, _)| before);
        for (&first, piece) in self.pieces.range(before.unwrap_or(base)..end) {
            let (from, to) = (first.max(base), (first + piece.size).min(end));
            if to <= from {
                continue;
            }
            if home && at < from {
                parts.push((at, from - at));
            }
            if piece.node == node {
                parts.push((from, to - from));
            }
            at = to;
        }
        if home && at < end {
            parts.push((at, end - at));
        }
        parts
    }

    /// Returns the memory of a node that is in use, as its addresses: first byte and bytes, ascending.
    pub(crate) fn used(&self, node: u16) -> Vec<(u64, u64)> {
        let mut used = Vec::new();
        let coming: Vec<(u64, PieceRow)> = self.coming_pieces().collect();
        let homes = self.vmas.iter().filter(|(_, vma)| vma.node == node);
        for (&base, vma) in homes {
            let (mut at, its) = (base, base..base + vma.size);
            let there = self.pieces.range(its.clone()).map(|(&first, &piece)| (first, piece));
            let coming = coming.iter().copied().filter(|(first, _)| its.contains(first));
            for (first, piece) in there.chain(coming) {
                used.push((at, first - at));
                at = first + piece.size;
            }
            used.push((at, base + vma.size - at));
        }
        let pieces = self.pieces.values().chain(coming.iter().map(|(_, piece)| piece));
        let pieces = pieces.filter(|piece| piece.node == node);
        used.extend(pieces.map(|piece| (piece.place, piece.size)));
        // A piece that moves keeps both of its places until the move is over.
        for migration in self.changes.values().filter_map(|change| change.what.migration()) {
            let Migration { size, from, from_place, to, place, .. } = *migration;
            if migration.is_decided() && from == node {
                used.push((from_place, size));
            } else if !migration.is_decided() && to == node {
                used.push((place, size));
            }
        }
        used.retain(|&(_, len)| len > 0);
        used.sort_unstable();
        used
    }

    /// Finds a place in the memory of a node for a piece: its own addresses if they are the node's and free.
    pub(crate) fn place_for(&self, node: u16, base: u64, size: u64) -> Option<u64> {
        let row = self.nodes.get(&node)?;
        let used = self.used(node);
        let is_free = |&(at, len): &(u64, u64)| at + len <= base || base + size <= at;
        if self.node_at(base) == Some(node) && used.iter().all(is_free) {
            return Some(base);
        }
        // Allocated addresses are no place for other pieces even while their memory is free, because the
        // pieces of these addresses may come back.
        let mut taken = used;
        let home = row.base..row.base + row.capacity;
        taken.extend(self.vmas.range(home).map(|(&base, vma)| (base, vma.size)));
        taken.sort_unstable();
        let free = first_fit(taken.into_iter(), row.base, row.base + row.capacity, size);
        free.or_else(|| first_fit(self.used(node).into_iter(), row.base, row.base + row.capacity, size))
    }

    /// Builds the update that tells a node that it has these addresses, at this place.
    pub(crate) fn here(&self, node: u16, base: u64, size: u64, place: u64) -> Update {
        if place == base {
            return unplace(base, size);
        }
        let first = self.nodes.get(&node).map_or(place, |row| row.base);
        Update::Place { base: VirtAddr(base), size_log2: log2(size), offset: place - first }
    }

    /// Builds the update that tells a node that it does not have these addresses any more.
    pub(crate) fn elsewhere(&self, node: u16, base: u64, size: u64) -> Update {
        let (addr, size_log2) = (VirtAddr(base), log2(size));
        if self.node_at(base) == Some(node) {
            Update::Away { base: addr, size_log2 }
        } else {
            unplace(base, size)
        }
    }

    /// Builds the update about a piece for a node that joins, if there is one.
    pub(crate) fn piece_at(&self, base: u64, piece: &PieceRow, node: u16) -> Option<Update> {
        if piece.node == node {
            Some(self.here(node, base, piece.size, piece.place))
        } else {
            (self.node_at(base) == Some(node)).then(|| self.elsewhere(node, base, piece.size))
        }
    }

    /// Returns the parts of vmas from `first` to `last` that are at other nodes than their addresses.
    pub(crate) fn moved(&self, first: u64, last: u64) -> Vec<MovedInfo> {
        let pieces = self.pieces.range(first..=last);
        let away = pieces.filter(|(base, piece)| self.node_at(**base) != Some(piece.node));
        away.map(|(&base, piece)| MovedInfo { base, size: piece.size, node: piece.node }).collect()
    }

    /// Drops the pieces of a vma that is freed. The roles that know of its pieces forget them before they are
    /// told of any later decision.
    pub(crate) fn drop_pieces(&mut self, vma: u64, effects: &mut Vec<Effect>) {
        let Some(row) = self.vmas.get(&vma) else { return };
        let (home, end) = (row.node, vma + row.size);
        let pieces: Vec<(u64, PieceRow)> =
            self.pieces.range(vma..end).map(|(&base, &row)| (base, row)).collect();
        for (base, piece) in pieces {
            self.pieces.remove(&base);
            let forget = LoggedUpdate(unplace(base, piece.size));
            let back = LoggedUpdate(self.untranslate(base, piece.size));
            self.enqueue(Role::Switch, None, back, None, effects);
            self.enqueue(Role::Node(piece.node), None, forget, None, effects);
            if piece.node != home {
                self.enqueue(Role::Node(home), None, forget, None, effects);
            }
        }
    }

    /// Returns the first invariant about pieces that does not hold, if any.
    pub(crate) fn pieces_fault(&self) -> Option<&'static str> {
        let mut end = 0;
        for (&base, piece) in &self.pieces {
            let (size, place) = (piece.size, piece.place);
            let shaped = size.is_power_of_two() && size >= PAGE && base.is_multiple_of(size);
            if !shaped || base < end {
                return Some("pieces are aligned powers of two and do not overlap");
            }
            end = base + size;
            let inside = |(first, vma): (u64, &crate::record::VmaRow)| {
                vma.pending.is_none() && end <= first + vma.size
            };
            if !self.vma_at(base).is_some_and(inside) {
                return Some("a piece is a part of a vma");
            }
            let Some(node) = self.nodes.get(&piece.node) else { return Some("a piece's node has joined") };
            if place < node.base || place + size > node.base + node.capacity || place == base {
                return Some("a piece has memory of its node, not that of its own addresses");
            }
        }
        for &node in self.nodes.keys() {
            let used = self.used(node);
            if used.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
                return Some("no memory is two pieces'");
            }
        }
        None
    }

    /// Iterates over the migrations in flight, without failed ones.
    pub(crate) fn migrations(&self) -> impl Iterator<Item = &Migration> {
        let going = self.changes.values().filter(|change| change.failed.is_none());
        going.filter_map(|change| change.what.migration())
    }
}

impl ChangeKind {
    /// Returns the migration, if it is one.
    pub(crate) const fn migration(&self) -> Option<&Migration> {
        match self {
            Self::Migrate(migration) => Some(migration),
            _ => None,
        }
    }
}
