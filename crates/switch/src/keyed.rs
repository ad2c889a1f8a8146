//! Keyed READs: lookup of the key, and the READ that the responder gets (PROTOCOL 15.4 to 15.7, 16.11 to
//! 16.13; Fat-B+Tree III-D).
//!
//! ```text
//!   host --- READ key, rkey 0 ---> first ----> between ----> last --- READ address, rkey ---> node
//!                                  begin       lead on       lead on, leave
//!                                    `-- temporary header, rkey 0 --'
//! ```
//!
//! With one switch all steps happen at once ([`KeyedRead::finish`]), without a header on the wire. This file
//! is pure: it decides about one READ REQUEST from tables and keeps no state.
//!
//! A refused READ is forwarded in a form that the responder must refuse ([`refuse`]). So its NAK is sent in
//! order, after the answers to earlier requests.

use crate::protect::Denial;
use crate::{Protection, Translation};
use farmem_index::{Descent, IndexTables};
use farmem_wire::headers::DMA_LEN_MAX;
use farmem_wire::message::Relayed;
use farmem_wire::{KeyedHeader, NodeId, Perm, Reth, Rkey, VirtAddr};

/// A keyed READ in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyedRead {
    /// Contents of the temporary header, if there is one.
    pub keyed: KeyedHeader,
    /// The deepest node found so far.
    pub at: VirtAddr,
    /// Requested bytes.
    pub len: u32,
    /// The entries of this switch's tables that were used; none if the tables had no match.
    pub descent: Option<Descent>,
}

/// The reason why a keyed READ is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyedRefusal {
    /// The connection has no tree.
    NoRoot,
    /// The READ asks for more than one path MTU.
    TooLong,
    /// No node of the tree that the key leads to is at the connection's memory node.
    Elsewhere,
    /// The domain may not read there.
    Denied(Denial),
    /// The temporary header has another domain or node than the connection.
    Misdirected,
}

/// Returns true for a READ with a key in place of its address (PROTOCOL 15.4), if a host sends it over a
/// relayed connection.
#[must_use]
pub fn is_keyed(reth: &Reth) -> bool {
    reth.rkey == Rkey(0) && reth.dma_len > 0
}

/// Starts a host's keyed READ at the first switch: at the root of the connection's tree.
///
/// # Errors
/// [`KeyedRefusal::NoRoot`] and [`KeyedRefusal::TooLong`]; the caller forwards the READ as [`refuse`] returns it,
/// without a header.
pub fn begin(connection: &Relayed, reth: &Reth) -> Result<KeyedRead, KeyedRefusal> {
    if reth.dma_len > connection.pmtu as u32 {
        return Err(KeyedRefusal::TooLong);
    }
    if connection.root.is_null() {
        return Err(KeyedRefusal::NoRoot);
    }
    let &Relayed { domain, node, rkey, node_qpn, .. } = connection;
    let keyed = KeyedHeader { key: reth.va.0, domain, node, hops: KeyedHeader::HOPS_MAX, rkey, node_qpn };
    Ok(KeyedRead { keyed, at: connection.root, len: reth.dma_len, descent: None })
}

impl KeyedRead {
    /// Continues a READ that arrived from another switch, with its header.
    #[must_use]
    pub const fn arrived(keyed: KeyedHeader, reth: &Reth) -> Self {
        Self { keyed, at: reth.va, len: reth.dma_len, descent: None }
    }

    /// Descends to the deepest known node, among those at the READ's memory node (PROTOCOL 15.5, 16.13). Each
    /// switch on the path does this.
    ///
    /// `owner` returns the memory node of an address.
    pub fn lead_on(&mut self, index: &IndexTables, owner: impl Fn(VirtAddr) -> Option<NodeId>) {
        let KeyedHeader { key, domain, node, .. } = self.keyed;
        let may_take = |at: VirtAddr| owner(at) == Some(node);
        // At the first switch an unknown tree leads nowhere. Behind it, the node found so far may be one of
        // this switch's sets.
        let behind = self.keyed.hops < KeyedHeader::HOPS_MAX;
        let led = index.lead(domain, self.at, key, &may_take);
        let led = led.or_else(|| if behind { index.lead_on(domain, self.at, key, &may_take) } else { None });
        if let Some(descent) = led {
            (self.at, self.descent) = (descent.at, Some(descent));
        }
    }

    /// Returns the header for the next switch; none if the READ passed too many.
    #[must_use]
    pub fn onward(&self) -> Option<KeyedHeader> {
        let hops = self.keyed.hops.checked_sub(1)?;
        Some(KeyedHeader { hops, ..self.keyed })
    }

    /// Returns the RETH for the node; the last index switch calls this. The node checks the domain's
    /// protection itself (PROTOCOL 16.13).
    ///
    /// # Errors
    /// [`KeyedRefusal::Elsewhere`]; the caller forwards the READ as [`refuse`] returns it.
    pub fn leave(&self, owner: impl Fn(VirtAddr) -> Option<NodeId>) -> Result<Reth, KeyedRefusal> {
        if owner(self.at) != Some(self.keyed.node) {
            return Err(KeyedRefusal::Elsewhere);
        }
        Ok(Reth { va: self.at, rkey: self.keyed.rkey, dma_len: self.len })
    }

    /// Returns the RETH for the node; the rack's switch, which knows the connection, calls this (PROTOCOL
    /// 15.5).
    ///
    /// # Errors
    /// [`KeyedRefusal`]; the caller forwards the READ as [`refuse`] returns it.
    pub fn finish(
        &self,
        connection: &Relayed,
        translation: &Translation,
        protection: &Protection,
    ) -> Result<Reth, KeyedRefusal> {
        let Self { keyed, at, len, .. } = *self;
        if (keyed.domain, keyed.node) != (connection.domain, connection.node) {
            return Err(KeyedRefusal::Misdirected);
        }
        if len > connection.pmtu as u32 {
            return Err(KeyedRefusal::TooLong);
        }
        if translation.lookup(at) != Some(keyed.node) {
            return Err(KeyedRefusal::Elsewhere);
        }
        protection.check(keyed.domain, at, len, Perm::Read).map_err(KeyedRefusal::Denied)?;
        Ok(Reth { va: at, rkey: connection.rkey, dma_len: len })
    }
}

/// Returns the RETH of a keyed READ that the responder must refuse: no connection has rkey 0 (NAK 0x62), and
/// no farmem responder answers that many bytes (NAK 0x61) (PROTOCOL 15.6).
#[must_use]
pub const fn refuse(reth: &Reth, why: KeyedRefusal) -> Reth {
    let dma_len = if matches!(why, KeyedRefusal::TooLong) { DMA_LEN_MAX } else { reth.dma_len };
    Reth { dma_len, ..*reth }
}
