//! Memory that moves between nodes while programs use it (PROTOCOL 8.38).
//!
//! Hosts learn of a move from a node's refusal, and follow it (PROTOCOL 11.10): programs do not notice. The
//! model relies on the host's statement whether an operation that it gives up was executed.

use super::calls::{Call, Piece};
use super::{DOMAINS, Rack};
use crate::checker::{Home, Loss};
use farmem_control::api::{AcceptLost, ErrorCode, Migrate, MovedInfo};

/// Maximum number of concurrent moves.
const MOVES_MAX: usize = 3;

impl Rack {
    /// Moves some memory from time to time.
    pub(super) fn move_something(&mut self) {
        let under_way = self.calls.values().filter(|(_, call)| matches!(call, Call::Migrate { .. })).count();
        if !self.moves || under_way >= MOVES_MAX || !self.rng.chance(1, 60) {
            return;
        }
        let mut pieces: Vec<Piece> = (0..self.counters.len()).map(Piece::Counter).collect();
        for (&base, vma) in self.model.vmas.iter().filter(|(_, vma)| vma.piece_len.is_some()) {
            let number = vma.number;
            pieces.extend(vma.pieces().map(|(offset, _)| Piece::Vma { number, base, offset }));
        }
        let piece = pieces[self.rng.below(u32::try_from(pieces.len()).expect("few")) as usize];
        let nodes = u32::try_from(self.nodes().count()).expect("few");
        let node = 1 + u16::try_from(self.rng.below(nodes)).expect("few");
        let Some(home) = self.home_mut(piece).filter(|home| home.to.is_none()) else { return };
        home.leave(node);
        self.migrate(piece, node);
    }

    /// Requests the move of a piece.
    pub(super) fn migrate(&mut self, piece: Piece, node: u16) {
        let Some((domain, base, len)) = self.span_of(piece) else { return };
        self.ask(0, Migrate { domain: Some(domain), base, len, node }, Call::Migrate { piece, node });
    }

    /// Has the owner of a lost piece accept the loss, with some probability or `surely`.
    pub(super) fn accept_sometimes(&mut self, addr: u64, surely: bool) {
        let Some(piece) = self.piece_at(addr) else { return };
        let open = self.home_mut(piece).is_some_and(|home| home.loss != Loss::None && !home.accepting);
        if open && (surely || self.healed.is_some() || self.rng.chance(1, 4)) {
            self.accept_lost(piece);
        }
    }

    /// Requests to accept the loss of a piece.
    pub(super) fn accept_lost(&mut self, piece: Piece) {
        let Some((domain, base, len)) = self.span_of(piece) else { return };
        match piece {
            Piece::Counter(counter) => self.counters[counter].home.accept(),
            Piece::Vma { base, offset, .. } => self.model.accept(base, offset),
        }
        // A list with a node in the piece is dead.
        self.lists_accepted(base..base + len);
        let losses = self.home_mut(piece).map_or(0, |home| home.losses);
        self.ask(0, AcceptLost { domain, base, len }, Call::AcceptLost { piece, losses });
    }

    /// Handles the answer to an acceptance. Returns false if nothing explains a refusal.
    pub(super) fn accepted(&mut self, piece: Piece, losses: u32, refused: Option<ErrorCode>) -> bool {
        let now = self.world.now();
        let Some(home) = self.home_mut(piece) else { return true };
        home.accepted(refused.is_none(), losses, now);
        let changing = match piece {
            Piece::Vma { base, .. } => self.model.vmas[&base].changing,
            Piece::Counter(_) => false,
        };
        refused.is_none_or(|code| changing && code == ErrorCode::NotFound)
    }

    fn piece_at(&self, addr: u64) -> Option<Piece> {
        let len = u64::from(super::COUNTER_VMA_LEN);
        let counter = self.counters.iter().position(|counter| addr.wrapping_sub(counter.addr) < len);
        if let Some(counter) = counter {
            return Some(Piece::Counter(counter));
        }
        let (&base, vma) = self.model.vmas.range(..=addr).next_back()?;
        let offset = addr - base;
        let piece_len = vma.piece_len.unwrap_or(vma.size);
        (offset < vma.size).then(|| Piece::Vma {
            number: vma.number,
            base,
            offset: offset / piece_len * piece_len,
        })
    }

    /// Returns domain, first byte and length of a piece; `None` if its vma was freed.
    fn span_of(&self, piece: Piece) -> Option<(u32, u64, u64)> {
        Some(match piece {
            Piece::Counter(counter) => {
                let domain = counter / (self.counters.len() / DOMAINS);
                (self.domains[domain], self.counters[counter].addr, u64::from(super::COUNTER_VMA_LEN))
            }
            Piece::Vma { number, base, offset } => {
                // The vma may have been freed while the call could not be repeated.
                let vma = self.model.vmas.get(&base).filter(|vma| vma.number == number);
                let vma = vma?;
                (vma.domain, base + offset, vma.piece_len.unwrap_or(vma.size))
            }
        })
    }

    /// Handles the answer to a move. Returns false if nothing explains a refusal.
    pub(super) fn moved(&mut self, piece: Piece, refused: Option<ErrorCode>) -> bool {
        let now = self.world.now();
        let Some(home) = self.home_mut(piece) else {
            // The vma is freed, by whichever call was first.
            return true;
        };
        home.settle(refused.is_none(), now);
        let changing = match piece {
            Piece::Vma { base, .. } => self.model.vmas[&base].changing,
            Piece::Counter(_) => false,
        };
        match refused {
            None | Some(ErrorCode::TableFull | ErrorCode::OutOfMemory) => true,
            Some(ErrorCode::NotFound) => changing,
            Some(_) => false,
        }
    }

    /// Returns the location of a piece; `None` if its vma is freed.
    fn home_mut(&mut self, piece: Piece) -> Option<&mut Home> {
        match piece {
            Piece::Counter(counter) => Some(&mut self.counters[counter].home),
            Piece::Vma { number, base, offset } => {
                let vma = self.model.vmas.get_mut(&base).filter(|vma| vma.number == number)?;
                Some(vma.home_mut(offset))
            }
        }
    }

    pub(super) fn home_of(&self, addr: u64) -> Option<&Home> {
        let len = u64::from(super::COUNTER_VMA_LEN);
        if let Some(counter) = self.counters.iter().find(|counter| addr.wrapping_sub(counter.addr) < len) {
            return Some(&counter.home);
        }
        let (&base, vma) = self.model.vmas.range(..=addr).next_back()?;
        (addr - base < vma.size).then(|| vma.home(addr - base))
    }

    /// Checks that the control plane locates every piece where the answers to the moves left it.
    pub(super) fn compare_homes(&self, moved: &[MovedInfo]) -> Result<(), String> {
        let says = |addr: u64, range: u16| {
            let piece = moved.iter().find(|piece| addr.wrapping_sub(piece.base) < piece.size);
            piece.map_or(range, |piece| piece.node)
        };
        let vmas = self.model.vmas.iter().flat_map(|(&base, vma)| {
            vma.pieces().map(move |(offset, home)| (base + offset, vma.node, home.node))
        });
        let counters =
            self.counters.iter().map(|counter| (counter.addr, counter.range_node, counter.home.node));
        for (addr, range, node) in vmas.chain(counters) {
            let says = says(addr, range);
            if says != node {
                return Err(format!("{addr:#x} is at node {node}, and the control plane says {says}"));
            }
        }
        Ok(())
    }
}
