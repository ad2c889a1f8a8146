//! Cleanup after a killed pager: its domain on a running rack, and its socket file on this host.

use super::Pager;
use farmem_client::host_parts::api_client;
use farmem_client::{Error, RackConfig};
use farmem_control::api::{ErrorCode, Free, Overview, RackOverview};
use std::path::Path;

/// Returns a domain name for one pager that is unique in the rack.
///
/// # Errors
/// [`Error::System`] without random numbers.
pub fn own_domain() -> Result<String, Error> {
    let seed = farmem_link::os_seed()
        .map_err(|source| Error::System { what: "no random numbers from the system".into(), source })?;
    let (number, _) = seed.split_first_chunk().expect("a seed is longer than a number");
    Ok(format!("run-{}-{:016x}", std::process::id(), u64::from_be_bytes(*number)))
}

/// Frees the memory of the domain called `name` on a running rack, after its pager was killed or lost the rack.
/// A missing domain is no error.
///
/// # Errors
/// The rack's error, when it does not answer or refuses.
pub fn free_domain(config: &RackConfig, name: &str) -> Result<(), Error> {
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
    /// Returns the path of the pager's socket file. The pager removes the file on drop; after a killed pager, a
    /// later run removes it.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.acceptor.path()
    }
}

/// Frees the pager's allocations. A rack that does not answer has forgotten them.
impl Drop for Pager {
    fn drop(&mut self) {
        for base in self.private.allocations() {
            if self.broken || self.far.client.free(base).is_err() {
                return;
            }
        }
    }
}
