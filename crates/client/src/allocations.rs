//! The allocations that a client has made, with ids that are never reused (PROTOCOL 8.47).
//!
//! Key type: [`Allocations`]. A free without an answer may have been executed, and its addresses may belong
//! to another allocation when the client repeats the free. So each free names its allocation by id. If a
//! repeated free does not find the id, an earlier attempt was executed.

use crate::answers::answer_to;
use crate::error::Error;
use farmem_control::api::{ErrorCode, Free, Locate, Request, Response, VmaInfo};
use farmem_wire::VirtAddr;
use std::collections::BTreeMap;

/// The allocations of one client that are not known to be freed, by first byte.
#[derive(Debug, Default)]
pub struct Allocations {
    known: BTreeMap<u64, Allocation>,
}

#[derive(Clone, Copy, Debug)]
struct Allocation {
    id: u64,
    /// True if a free was sent and its answer did not arrive.
    is_open: bool,
}

impl Allocations {
    /// Records a new allocation.
    pub fn made(&mut self, vma: &VmaInfo) {
        self.known.insert(vma.base, Allocation { id: vma.id, is_open: false });
    }

    /// Frees the allocation at `base` for `domain`: the one that this client made, or else the present one.
    ///
    /// # Errors
    /// The errors of `ask`; also if this domain has no allocation at `base`.
    pub fn free(
        &mut self,
        domain: u32,
        base: VirtAddr,
        mut ask: impl FnMut(Request) -> Result<Response, Error>,
    ) -> Result<(), Error> {
        let base = base.0;
        let mut allocation = match self.known.get(&base) {
            Some(&allocation) => allocation,
            None => Allocation { id: id_at(base, &mut ask)?, is_open: false },
        };
        let freed = match answer_to(Free { domain, base, id: allocation.id }, &mut ask) {
            Err(error) if error.code() == Some(ErrorCode::NotFound) && allocation.is_open => Ok(()),
            freed => freed,
        };
        match &freed {
            Err(error) if is_open(error) => {
                allocation.is_open = true;
                self.known.insert(base, allocation);
            }
            // The control plane refused the free for a reason that may change later.
            Err(error) if error.code() != Some(ErrorCode::NotFound) => {}
            _ => _ = self.known.remove(&base),
        }
        freed
    }
}

/// Returns true if the request may have been executed in spite of the error.
const fn is_open(error: &Error) -> bool {
    match error {
        Error::Refused(refused) => matches!(refused.code, ErrorCode::Unavailable | ErrorCode::Storage),
        Error::Api { .. } => true,
        _ => false,
    }
}

/// Returns the id of the allocation at `base`, which another client made.
fn id_at(base: u64, ask: &mut impl FnMut(Request) -> Result<Response, Error>) -> Result<u64, Error> {
    Ok(answer_to(Locate { addr: base }, ask)?.vma.id)
}
