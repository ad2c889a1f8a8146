//! Location of a client's memory: migration, look-up, and acceptance of losses. The host role decides about
//! operations on memory that migrates (PROTOCOL 11.10).

use crate::client::Client;
use crate::error::Error;
use crate::migrate::plan;
use crate::operation::Vma;
use farmem_control::api::{AcceptLost, Locate, LocatedVma, Migrate};
use farmem_wire::message::PAGE_LEN;
use farmem_wire::{NodeId, VirtAddr};

impl Client {
    /// Moves `len` bytes at `base`, whole pages of one allocation of this domain, to another node, while
    /// programs use them. The bytes move in parts, each a power of two and aligned to earlier moves. A part
    /// moves wholly or not at all.
    ///
    /// # Errors
    /// [`Error::Refused`] if the node does not exist or has too little free memory, or if a node does not
    /// answer.
    pub fn migrate(&mut self, base: VirtAddr, len: u64, to: NodeId) -> Result<(), Error> {
        let located = self.path.call(Locate { addr: base.0 })?;
        for (base, len) in plan(&located, base.0, Some(len))? {
            self.path.call(Migrate { domain: Some(self.domain.0), base, len, node: to.0 })?;
        }
        Ok(())
    }

    /// Returns the parts of the allocation that holds `addr`, each with its node, in ascending order.
    ///
    /// # Errors
    /// [`Error::Refused`] if no allocation holds `addr`.
    pub fn locate(&mut self, addr: VirtAddr) -> Result<Vec<Vma>, Error> {
        let LocatedVma { vma, moved, .. } = self.path.call(Locate { addr: addr.0 })?;
        let part = |base: u64, size: u64, node: u16| Vma { base: VirtAddr(base), size, node: NodeId(node) };
        let (mut parts, mut at) = (Vec::new(), vma.base);
        for piece in moved {
            if at < piece.base {
                parts.push(part(at, piece.base - at, vma.node));
            }
            parts.push(part(piece.base, piece.size, piece.node));
            at = piece.base + piece.size;
        }
        if at < vma.base + vma.size {
            parts.push(part(at, vma.base + vma.size - at, vma.node));
        }
        Ok(parts)
    }

    /// Accepts the loss of lost bytes in `len` bytes at `base`. From then on the bytes are zeros if their
    /// memory node restarted, or have their earlier values if a host that had changed them stopped.
    ///
    /// The method accepts whole pages, and all losses up to its execution. Other bytes do not change.
    ///
    /// # Errors
    /// [`Error::Refused`] if the bytes are not part of an allocation of this domain, or if their node does
    /// not answer or restarts meanwhile.
    pub fn accept_lost(&mut self, base: VirtAddr, len: u64) -> Result<(), Error> {
        let skip = base.0 % PAGE_LEN as u64;
        let (first, len) = (base.0 - skip, len.saturating_add(skip));
        self.path.call(AcceptLost { domain: self.domain.0, base: first, len })
    }
}
