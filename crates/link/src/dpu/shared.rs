//! Memory that a process creates and passes to its DPU as a file, with a sealed size. Each end checks the
//! file before use.

use crate::OpenError;
use crate::shm::mapping::Mapping;
use crate::shm::ring::WORD;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
const WHAT: &str = "memory shared with the DPU";

/// Creates memory of `words` words, beginning with `identity`.
pub fn make(words: usize, identity: &[u64]) -> Result<OwnedFd, OpenError> {
    let made = || -> Result<OwnedFd, Errno> {
        let file = memfd_create("farmem-dpu", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (words * WORD) as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok(file)
    };
    let doing = || "share memory with the DPU".to_owned();
    let file = made().map_err(|e| OpenError::System { doing: doing(), source: e.into() })?;
    let memory = Mapping::of(&file, words).map_err(OpenError::system(doing()))?;
    for (word, &value) in memory.words().iter().zip(identity) {
        word.store(value, Ordering::Relaxed);
    }
    Ok(file)
}

/// Maps memory of `words` words, which must begin with `identity`.
pub fn map(file: &OwnedFd, words: usize, identity: &[u64]) -> Result<Mapping, OpenError> {
    map_by(Mapping::of, file, words, identity)
}

/// Maps memory as [`map`] does, with huge pages if possible, for random access.
pub fn map_huge(file: &OwnedFd, words: usize, identity: &[u64]) -> Result<Mapping, OpenError> {
    map_by(Mapping::huge, file, words, identity)
}

fn map_by(
    by: impl FnOnce(&OwnedFd, usize) -> std::io::Result<Mapping>,
    file: &OwnedFd,
    words: usize,
    identity: &[u64],
) -> Result<Mapping, OpenError> {
    let system = |e: Errno| OpenError::System { doing: format!("look at the {WHAT}"), source: e.into() };
    // A file that can shrink could end this process by SIGBUS.
    if !fcntl_get_seals(file).map_err(|_| foreign("is no memory file"))?.contains(SEALS) {
        return Err(foreign("is not sealed"));
    }
    let about = fstat(file).map_err(system)?;
    if usize::try_from(about.st_size).ok() != Some(words * WORD) {
        return Err(foreign("has another size than announced"));
    }
    let memory = by(file, words).map_err(OpenError::system(format!("map the {WHAT}")))?;
    if memory.words().iter().zip(identity).any(|(word, &value)| word.load(Ordering::Relaxed) != value) {
        return Err(foreign("has another header: another version, or corrupt"));
    }
    Ok(memory)
}

/// Returns the error for a file that farmem did not create.
pub fn foreign(why: &str) -> OpenError {
    OpenError::Foreign { path: WHAT.into(), why: why.into() }
}
