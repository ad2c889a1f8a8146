//! Rows of memory that RoCE cards registered, and the updates about them (PROTOCOL 14.12 to 14.19).

use crate::api::CardMemory;
use crate::record::{ChangeKind, NodeRow, Role};
use crate::state::State;
use crate::state::tables::{Step, step};
use alloc::vec::Vec;
use farmem_wire::VirtAddr;
use farmem_wire::message::Update;

impl State {
    /// Returns the card data of a node, if it is a card.
    pub(crate) fn card_of(&self, node: u16) -> Option<&CardMemory> {
        self.nodes.get(&node)?.card.as_ref()
    }

    /// Returns the memory nodes of farmem, without cards.
    pub(crate) fn farmem_nodes(&self) -> impl Iterator<Item = (&u16, &NodeRow)> {
        self.nodes.iter().filter(|(_, row)| row.card.is_none())
    }

    pub(crate) fn is_card(&self, node: u16) -> bool {
        self.card_of(node).is_some()
    }

    /// Returns the updates for `role` about a change of a card. The switch gets none, so that it refuses
    /// operations on the card; the card's agent gets the ranges to zero. Returns `None` if the change
    /// involves no card.
    pub(crate) fn tell_of_card(&self, what: &ChangeKind, role: Role) -> Option<Vec<Step>> {
        match what {
            ChangeKind::JoinNode { card: Some(_), .. } => Some(Vec::new()),
            ChangeKind::Allocate { base, size, node, .. } if self.is_card(*node) => Some(match role {
                Role::Switch | Role::Index(_) => Vec::new(),
                Role::Node(_) => Vec::from([step(Update::Clear { base: VirtAddr(*base), len: *size }, [])]),
            }),
            ChangeKind::Free { base } => {
                self.vmas.get(base).filter(|vma| self.is_card(vma.node)).map(|_| Vec::new())
            }
            _ => None,
        }
    }
}
