//! Keyed READs: where a key leads, and what the responder is to make of it (PROTOCOL 15.4 to 15.7, 16.11 to 16.13; Fat-B+Tree III-D).
//!
//! ```text
//!   host --- READ key, rkey 0 ---> first ----> between ----> last --- READ address, rkey ---> node
//!                                  begin       lead on       lead on, leave
//!                                    `-- temporary header, rkey 0 --'
//! ```
//!
//! With one switch all of it happens at once ([`KeyedRead::finish`]), and no header is on the wire. What is here is pure: it decides about one READ REQUEST, from tables, and keeps nothing.
//!
//! What is refused goes on all the same, in a form that the responder must refuse ([`refuse`]): so its NAK comes in order, and behind what came before.

use crate::protect::Denial;
use crate::{Protection, Translation};
use farmem_index::{Descent, IndexTables};
use farmem_wire::headers::DMA_LEN_MAX;
use farmem_wire::message::Relayed;
use farmem_wire::{Keyed, NodeId, Perm, Reth, Rkey, VirtAddr};

/// A keyed READ on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyedRead {
    /// What stands in the temporary header, where there is one.
    pub keyed: Keyed,
    /// The deepest node that was found so far.
    pub at: VirtAddr,
    /// What it asks for, in bytes.
    pub len: u32,
    /// By which entries of this switch's tables it was found; none when they knew nothing.
    pub descent: Option<Descent>,
}

/// Why a keyed READ is none that a node may carry out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// Its connection has no tree.
    NoRoot,
    /// It asks for more than one path MTU.
    TooLong,
    /// Nothing that the key leads to is at the connection's node.
    Elsewhere,
    /// The domain may not read there.
    Denied(Denial),
    /// Its temporary header names another domain or node than the connection has.
    Misdirected,
}

/// True for a READ that has a key in the place of its address (PROTOCOL 15.4), if it comes from the host of a connection through the switch.
#[must_use]
pub fn is_keyed(reth: &Reth) -> bool {
    reth.rkey == Rkey(0) && reth.dma_len > 0
}

/// What the switch does that a host's keyed READ comes to first: it begins at the root of the connection's tree.
///
/// # Errors
/// [`Refused::NoRoot`] and [`Refused::TooLong`]: it goes on as [`refuse`] says, without a header.
pub fn begin(connection: &Relayed, reth: &Reth) -> Result<KeyedRead, Refused> {
    if reth.dma_len > connection.pmtu as u32 {
        return Err(Refused::TooLong);
    }
    if connection.root.is_null() {
        return Err(Refused::NoRoot);
    }
    let &Relayed { domain, node, rkey, node_qpn, .. } = connection;
    let keyed = Keyed { key: reth.va.0, domain, node, hops: Keyed::HOPS_MAX, rkey, node_qpn };
    Ok(KeyedRead { keyed, at: connection.root, len: reth.dma_len, descent: None })
}

impl KeyedRead {
    /// One that came from another switch, with its header.
    #[must_use]
    pub const fn arrived(keyed: Keyed, reth: &Reth) -> Self {
        Self { keyed, at: reth.va, len: reth.dma_len, descent: None }
    }

    /// What each switch on the way does: the deepest node that it knows, of those at the node that the READ goes to (PROTOCOL 15.5, 16.13).
    ///
    /// `owner` says which node has an address.
    pub fn lead_on(&mut self, index: &IndexTables, owner: impl Fn(VirtAddr) -> Option<NodeId>) {
        let Keyed { key, domain, node, .. } = self.keyed;
        let may_take = |at: VirtAddr| owner(at) == Some(node);
        // A tree that is not known here leads no further at the first switch. Behind it what others found may be a node of its sets.
        let behind = self.keyed.hops < Keyed::HOPS_MAX;
        let led = index.lead(domain, self.at, key, &may_take);
        let led = led.or_else(|| if behind { index.lead_on(domain, self.at, key, &may_take) } else { None });
        if let Some(descent) = led {
            (self.at, self.descent) = (descent.at, Some(descent));
        }
    }

    /// The header for the next switch: none when it has come by too many.
    #[must_use]
    pub fn onward(&self) -> Option<Keyed> {
        let hops = self.keyed.hops.checked_sub(1)?;
        Some(Keyed { hops, ..self.keyed })
    }

    /// What the last index switch does, to whose node it goes: the RETH that the node gets, which checks the domain's protection itself (PROTOCOL 16.13).
    ///
    /// # Errors
    /// [`Refused::Elsewhere`]: it goes on as [`refuse`] says.
    pub fn leave(&self, owner: impl Fn(VirtAddr) -> Option<NodeId>) -> Result<Reth, Refused> {
        if owner(self.at) != Some(self.keyed.node) {
            return Err(Refused::Elsewhere);
        }
        Ok(Reth { va: self.at, rkey: self.keyed.rkey, dma_len: self.len })
    }

    /// What the rack's switch does, which knows the connection: the RETH that the node gets (PROTOCOL 15.5).
    ///
    /// # Errors
    /// [`Refused`]: it goes on as [`refuse`] says.
    pub fn finish(
        &self,
        connection: &Relayed,
        translation: &Translation,
        protection: &Protection,
    ) -> Result<Reth, Refused> {
        let Self { keyed, at, len, .. } = *self;
        if (keyed.domain, keyed.node) != (connection.domain, connection.node) {
            return Err(Refused::Misdirected);
        }
        if len > connection.pmtu as u32 {
            return Err(Refused::TooLong);
        }
        if translation.lookup(at) != Some(keyed.node) {
            return Err(Refused::Elsewhere);
        }
        protection.check(keyed.domain, at, len, Perm::Read).map_err(Refused::Denied)?;
        Ok(Reth { va: at, rkey: connection.rkey, dma_len: len })
    }
}

/// The RETH of a keyed READ that the responder is to refuse: rkey 0 is none's (NAK 0x62), and no responder of ours answers so many bytes (NAK 0x61)
/// (PROTOCOL 15.6).
#[must_use]
pub const fn refuse(reth: &Reth, why: Refused) -> Reth {
    let dma_len = if matches!(why, Refused::TooLong) { DMA_LEN_MAX } else { reth.dma_len };
    Reth { dma_len, ..*reth }
}
