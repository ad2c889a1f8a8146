//! Where a client's memory is: moving it, asking for it, and taking back what was lost. The host role decides what becomes of operations
//! while it moves (PROTOCOL 11.10).

use crate::client::Client;
use crate::error::Error;
use crate::migrate::plan;
use crate::operation::Vma;
use farmem_control::api::{AcceptLost, Locate, LocatedVma, Migrate};
use farmem_wire::message::PAGE_LEN;
use farmem_wire::{NodeId, VirtAddr};

impl Client {
    /// Moves `len` bytes from `base` on, whole pages of one allocation of this domain, to another node, while programs that use them go on. They
    /// move in parts, each a power of two and where it was moved to before with its bounds then; a part moves wholly or not at all.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no such node, it has no room, or a node does not answer.
    pub fn migrate(&mut self, base: VirtAddr, len: u64, to: NodeId) -> Result<(), Error> {
        let located = self.path.call(Locate { addr: base.0 })?;
        for (base, len) in plan(&located, base.0, Some(len))? {
            self.path.call(Migrate { domain: Some(self.domain.0), base, len, node: to.0 })?;
        }
        Ok(())
    }

    /// The parts of the allocation that holds `addr`, with the node that each is on; ascending.
    ///
    /// # Errors
    /// [`Error::Refused`] when no allocation holds it.
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

    /// The owner takes what was lost of `len` bytes from `base` on as it is now: zeros where the memory node was started again, the bytes of before
    /// where a host had changed them and stopped. Whole pages are accepted, and whatever was lost of them by the time this is carried out; what
    /// was not lost stays as it is.
    ///
    /// # Errors
    /// [`Error::Refused`] when they are no part of an allocation of this domain, their node does not answer, or it was started again meanwhile.
    pub fn accept_lost(&mut self, base: VirtAddr, len: u64) -> Result<(), Error> {
        let skip = base.0 % PAGE_LEN as u64;
        let (first, len) = (base.0 - skip, len.saturating_add(skip));
        self.path.call(AcceptLost { domain: self.domain.0, base: first, len })
    }
}
