//! Migration: a part of a vma moves to another node while in use (PROTOCOL 8.38 to 8.42).
//!
//! ```text
//!   Draining   new node: Arrive, grants.  switch: Drain.  hosts give up what they cache of it
//!   Pushing    old node: Leave. No host uses it there from now on; all that is there goes to the new node
//!   Turning    new node: serves.  switch: sends there.     From here on it is not taken back
//!   Leaving    old node: forgets
//! ```
//!
//! A migration is one change with updates in steps. A step ends when all roles have answered and its condition holds: no host holds
//! pages, all bytes are pushed, the switch is updated ([`crate::coherence`] checks these). Before the third step the old state is in
//! force and can be restored.

use crate::addresses::{MIGRATE_LEN_MAX, PAGE};
use crate::api::{ApiError, ErrorCode, Locate, LocatedVma, Migrate};
use crate::decision::{Decided, Decision};
use crate::errors::{LISTED, bad, bound, error, not_found};
use crate::rack::Rack;
use crate::record::{ChangeKind, Migration, MigrationStep};
use alloc::format;

impl Rack {
    /// Decides a request to move a part of a vma to another node.
    pub(crate) fn migrate(&self, domain: Option<u32>, base: u64, len: u64, node: u16) -> Decided<Migrate> {
        let (vma, row) = match domain {
            Some(domain) => self.domain_known(domain).and_then(|()| self.owned(domain, base))?,
            None => self.vma_with(base)?,
        };
        let end = vma + row.size;
        if !len.is_power_of_two() || len < PAGE || !base.is_multiple_of(len) || base + len > end {
            let message = format!(
                "{len} bytes from {base:#x} are no aligned power of two of the vma {vma:#x}..{end:#x}"
            );
            let remedy = format!(
                "give a power of two of {PAGE} to {} bytes, and a multiple of it as the first",
                row.size
            );
            return Err(bad(message, remedy));
        }
        if len > MIGRATE_LEN_MAX {
            let remedy = format!("move it in parts of at most {MIGRATE_LEN_MAX} bytes");
            return Err(bad(format!("{len} bytes are too many to be moved at once"), remedy));
        }
        self.no_card(node, "migrated")?;
        self.no_card(row.node, "migrated")?;
        self.no_file(vma, "migrated")?;
        self.node_answers(node)?;
        let Some((from, from_place)) = self.state.whereabouts(base, len) else {
            return Err(self.moved_otherwise(base, len));
        };
        if from == node {
            return Ok(Decision::Reply(()));
        }
        self.node_answers(from)?;
        self.switch_joined()?;
        if !self.state.pieces.contains_key(&base) {
            self.room_for_pieces(1)?;
        }
        let Some(place) = self.state.place_for(node, base, len) else {
            let message = format!("node {node} has no {len} aligned bytes free in one piece");
            return Err(error(ErrorCode::OutOfMemory, message, "move less, or free vmas on that node"));
        };
        let (number, size, step) = (self.state.next_change, len, MigrationStep::Draining);
        let migration = Migration { number, vma, base, size, from, from_place, to: node, place, step };
        Ok(Decision::Begin(ChangeKind::Migrate(migration)))
    }

    /// Refuses `more` pieces that the table of pieces has no room for.
    pub(crate) fn room_for_pieces(&self, more: usize) -> Result<(), ApiError> {
        let most = self.config.bounds.pieces_max;
        let moving = self.in_flight(|what| what.migration().is_some());
        let coming = moving + self.state.coming_pieces().count();
        if more > 0 && self.state.pieces.len() + coming + more > most {
            return Err(bound("parts of vmas that were moved", most));
        }
        Ok(())
    }

    /// Returns the error for memory that was moved with other bounds.
    fn moved_otherwise(&self, base: u64, len: u64) -> ApiError {
        let pieces = self.state.pieces.range(..base + len);
        let met = pieces.rev().find(|(at, piece)| *at + piece.size > base);
        let (at, size) = met.map_or((base, len), |(&at, piece)| (at, piece.size));
        let message =
            format!("a part of {base:#x}..{:#x} was moved with {size} bytes from {at:#x}", base + len);
        error(ErrorCode::Conflict, message, format!("move {size} bytes from {at:#x} as a whole"))
    }

    /// Returns the location of a vma.
    pub(crate) fn locate(&self, addr: u64) -> Decided<Locate> {
        let (base, row) = self.vma_with(addr)?;
        let vma = row.info(base);
        let moved = self.state.moved(base, base + (row.size - 1));
        let lost = self.state.lost_in(base, row.size);
        Ok(Decision::Reply(LocatedVma { vma, moved, lost }))
    }

    fn vma_with(&self, addr: u64) -> Result<(u64, &crate::record::VmaRow), ApiError> {
        let found = self.state.vma_at(addr).filter(|(_, vma)| vma.pending.is_none());
        let message = || format!("no vma holds {addr:#x}");
        found.ok_or_else(|| not_found(message(), format!("it may have been freed; {LISTED}")))
    }
}
