//! What a pager leaves when it is killed: on a rack that goes on, where all of it is in a domain of its own, and here.

use super::Pager;
use farmem_client::host_parts::api_client;
use farmem_client::{Error, RackConfig};
use farmem_control::api::{ErrorCode, Free, Overview, RackOverview};
use std::path::Path;

/// A name for the domain of one pager, which no other has, on whatever machine of the rack.
///
/// # Errors
/// [`Error::System`] without random numbers.
pub fn own_domain() -> Result<String, Error> {
    let seed = farmem_link::os_seed()
        .map_err(|source| Error::System { what: "no random numbers from the system".into(), source })?;
    let (number, _) = seed.split_first_chunk().expect("a seed is longer than a number");
    Ok(format!("run-{}-{:016x}", std::process::id(), u64::from_be_bytes(*number)))
}

/// Frees what the domain called `name` has on a running rack, for a pager that was killed, or lost it. There may be nothing.
///
/// # Errors
/// When the rack does not answer, or refuses.
pub fn free_left(config: &RackConfig, name: &str) -> Result<(), Error> {
    let mut api = api_client(config)?;
    let RackOverview { domains, vmas, .. } = api.call(Overview {})?;
    let Some(&(domain, _)) = domains.iter().find(|(_, known)| known == name) else { return Ok(()) };
    for vma in vmas.iter().filter(|vma| vma.domain == domain) {
        match api.call(Free { domain, base: vma.base, id: vma.id }).map_err(Error::from) {
            Err(error) if error.code() == Some(ErrorCode::NotFound) => {} // freed meanwhile
            freed => freed?,
        }
    }
    Ok(())
}

impl Pager {
    /// A socket that is a file. The pager removes it when it is dropped, and a later run is to when it was killed.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.acceptor.path()
    }
}

/// What was allocated is free again; a rack that does not answer has forgotten it.
impl Drop for Pager {
    fn drop(&mut self) {
        for base in self.private.allocations() {
            if self.broken || self.far.client.free(base).is_err() {
                return;
            }
        }
    }
}
