//! Which allocations a client has made, by the numbers that no later ones get (PROTOCOL 8.47).
//!
//! Key type: [`Allocations`]. A free whose answer does not come may have been carried out, and its addresses may be another allocation's when it is
//! repeated. So each free names its allocation; one that is repeated and finds it gone was carried out before.

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
    /// A free of it was begun, and its answer did not come.
    is_open: bool,
}

impl Allocations {
    /// One was made.
    pub fn made(&mut self, vma: &VmaInfo) {
        self.known.insert(vma.base, Allocation { id: vma.id, is_open: false });
    }

    /// Frees the allocation at `base` in the name of `domain`: the one that this client made, else the one that is there now.
    ///
    /// # Errors
    /// Errors of `ask`; also when there is no allocation of this domain.
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
            // Refused for what may be otherwise later.
            Err(error) if error.code() != Some(ErrorCode::NotFound) => {}
            _ => _ = self.known.remove(&base),
        }
        freed
    }
}

/// True when the request may have been carried out all the same.
const fn is_open(error: &Error) -> bool {
    match error {
        Error::Refused(refused) => matches!(refused.code, ErrorCode::Unavailable | ErrorCode::Storage),
        Error::Api { .. } => true,
        _ => false,
    }
}

/// The allocation that another client made.
fn id_at(base: u64, ask: &mut impl FnMut(Request) -> Result<Response, Error>) -> Result<u64, Error> {
    Ok(answer_to(Locate { addr: base }, ask)?.vma.id)
}
