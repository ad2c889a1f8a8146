//! Memory of a RoCE card as a memory node: its permitted uses, and its updates (PROTOCOL 14.12 to 14.19).
//!
//! The card checks only its one key, so all of its memory belongs to one domain. It runs no farmem code, so
//! the switch does not know it: operations that need the switch are refused.

use crate::addresses::{PAGE, VA_END};
use crate::api::{ApiError, CardMemory, ErrorCode};
use crate::errors::{LISTED, bad, error};
use crate::rack::Rack;
use crate::record::{ChangeKind, Key, NodeRow};
use crate::requests::card_numbers::card_qpn;
use alloc::collections::BTreeSet;
use alloc::format;

/// Maximum number of queue pairs of a card.
pub(crate) const CARD_QUEUE_PAIRS_MAX: usize = 1024;

impl Rack {
    /// Refuses a card's memory for any other domain than its owner.
    pub(crate) fn card_is_of(&self, node: u16, domain: u32) -> Result<(), ApiError> {
        match self.state.card_of(node) {
            Some(card) if card.domain != domain => {
                let owner = card.domain;
                let message = format!(
                    "node {node} is a card's memory, all of it domain {owner}'s: a card cannot tell domains apart"
                );
                Err(error(ErrorCode::NotOwner, message, "ask as that domain, or use another node"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses an operation that a card's memory does not support.
    pub(crate) fn no_card(&self, node: u16, what: &str) -> Result<(), ApiError> {
        if !self.state.is_card(node) {
            return Ok(());
        }
        let message = format!("node {node} is a card's memory, which cannot be {what}");
        let remedy =
            "it has READ, WRITE and atomics of its own domain only; for the rest use memory of a farmem node";
        Err(error(ErrorCode::Conflict, message, remedy))
    }

    /// Returns a queue pair of a card for a new connection of `domain`, and the card's key; `None` for a node
    /// that is no card.
    pub(crate) fn card_takes(&self, node: u16, domain: u32) -> Result<Option<(u32, u32)>, ApiError> {
        self.card_is_of(node, domain)?;
        let Some(card) = self.state.card_of(node) else { return Ok(None) };
        // A card would serve lost bytes as zeros (PROTOCOL 14.18).
        if let Some(&(base, len)) = self.state.lost_at(node).first() {
            let message = format!(
                "node {node} is a card's memory that was lost, {len} bytes from {base:#x} on among it, and a card cannot refuse them"
            );
            let remedy = "take what was lost as zeros with `accept_lost`, or free it; then connect";
            return Err(error(ErrorCode::Conflict, message, remedy));
        }
        let connected = self.state.connections.values().filter(|row| row.node == node);
        let coming = self.state.changes.values().filter_map(|change| match &change.what {
            ChangeKind::Connect(row) | ChangeKind::Disconnect(row) if row.node == node => Some(row),
            _ => None,
        });
        let taken: BTreeSet<u32> = connected.chain(coming).map(|row| row.peer_qpn).collect();
        let free = card.queue_pairs.iter().find(|qpn| !taken.contains(qpn));
        let most = card.queue_pairs.len();
        free.map(|&qpn| Some((qpn, card.rkey))).ok_or_else(|| {
            let message = format!("all {most} queue pairs of node {node} are connected");
            let remedy =
                "take connections down with `disconnect`, or start the card's agent with more queue pairs";
            error(ErrorCode::TableFull, message, remedy)
        })
    }

    /// Returns the first address of a card's memory, if it is valid.
    pub(crate) fn card_range(
        &self,
        card: &CardMemory,
        capacity: u64,
        home: Option<Key>,
        name: &str,
    ) -> Result<u64, ApiError> {
        let CardMemory { domain, base, rkey, queue_pairs } = card;
        self.domain_known(*domain)?;
        let Some(home) = home else {
            let remedy = "give qpn and qkey of the UD queue pair at which its agent listens";
            return Err(bad("card is given and qpn is not", remedy));
        };
        if *rkey == 0 {
            return Err(bad("rkey is 0", "give the key that the card gave for the memory"));
        }
        if !(1..=CARD_QUEUE_PAIRS_MAX).contains(&queue_pairs.len()) {
            let message = format!("queue_pairs has {} numbers", queue_pairs.len());
            return Err(bad(message, format!("give 1 to {CARD_QUEUE_PAIRS_MAX}")));
        }
        queue_pairs.iter().try_for_each(|&qpn| card_qpn(qpn))?;
        let mut seen = BTreeSet::from([home.qpn]);
        if let Some(twice) = queue_pairs.iter().find(|&&qpn| !seen.insert(qpn)) {
            let message = format!("queue pair {twice} is given twice");
            return Err(bad(message, "give each queue pair once, and not the UD queue pair among them"));
        }
        let size = capacity.checked_next_power_of_two().filter(|&size| size >= PAGE);
        let fits = size.filter(|&size| {
            *base >= PAGE
                && base.is_multiple_of(size)
                && base.checked_add(size).is_some_and(|end| end <= VA_END)
        });
        let Some(size) = fits else {
            let message = format!("base is {base:#x}, for {capacity} bytes");
            let remedy = format!(
                "give a multiple of the capacity (rounded up to a power of two), not 0, that ends by {VA_END:#x}"
            );
            return Err(bad(message, remedy));
        };
        let meets = |row: &NodeRow| row.base < base + size && *base < row.base + (1 << row.size_log2);
        let others = self.state.nodes.iter().filter(|(_, row)| row.name != name);
        match others.into_iter().find(|(_, row)| meets(row)) {
            None => Ok(*base),
            Some((node, row)) => {
                let end = row.base + (1 << row.size_log2);
                let message = format!("node {node} has the addresses {:#x}..{end:#x}", row.base);
                Err(error(ErrorCode::Conflict, message, format!("register the memory elsewhere; {LISTED}")))
            }
        }
    }

    /// Refuses a node that rejoins with another kind: the addresses and domain of its memory cannot change.
    pub(crate) fn same_kind(
        &self,
        node: u16,
        row: &NodeRow,
        card: Option<&CardMemory>,
    ) -> Result<(), ApiError> {
        let was = row.card.as_ref().map(|card| (card.domain, row.base));
        let is = card.map(|card| (card.domain, card.base));
        if was == is {
            return Ok(());
        }
        let shown = |what: Option<(u32, u64)>| match what {
            Some((domain, base)) => format!("a card with memory of domain {domain} at {base:#x}"),
            None => "a memory node of farmem".into(),
        };
        let message = format!("node {node} ({}) was {}, and joins as {}", row.name, shown(was), shown(is));
        Err(error(ErrorCode::Conflict, message, "join as before, or under another name"))
    }
}
