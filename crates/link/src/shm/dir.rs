//! The directory of a rack's rings and doorbells.

use super::doorbell::BELL_WORDS;
use super::ends::{Doorbell, InRing, OutRing};
use super::mapping::{self, Kind, Opened};
use super::ring::{Broken, HEADER_WORDS, WORD};
use super::{RING_BYTES_MAX, RING_BYTES_MIN};
use crate::{OpenError, parse_gid, private_directory};
use farmem_machine::Port;
use farmem_wire::Gid;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An opened directory.
#[derive(Debug)]
pub(super) struct Dir {
    path: PathBuf,
    ring_words: usize,
}

impl Dir {
    /// Opens or creates the directory, and checks that only this user can access it.
    pub(super) fn open(path: &Path, ring_bytes: usize) -> Result<Self, OpenError> {
        if !ring_bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes) {
            return Err(OpenError::Setting {
                setting: "ring_bytes",
                value: ring_bytes.to_string(),
                remedy: format!("it is a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX}"),
            });
        }
        private_directory(path)?;
        Ok(Self { path: path.into(), ring_words: HEADER_WORDS + ring_bytes / WORD })
    }

    /// Opens the doorbell of this process's endpoint, locked until its drop.
    pub(super) fn own_bell(&self, gid: Gid) -> Result<Doorbell, OpenError> {
        let path = self.bell_path(gid);
        let Opened { mapping, file, .. } = mapping::open_or_create(&path, Kind::Doorbell, BELL_WORDS)?;
        let doing = format!("lock {}", path.display());
        if !lock(&file).map_err(OpenError::system(doing))? {
            let address = format!("{gid:?} in {}", self.path.display());
            return Err(OpenError::InUse { address });
        }
        Ok(Doorbell::new(mapping, Some(file)))
    }

    /// Opens the writing end of the ring from `src` to `dst`. If the ring is new, `dst` is notified.
    pub(super) fn out_ring(&self, src: Gid, dst: Gid) -> Result<OutRing, OpenError> {
        let doorbell = mapping::open_or_create(&self.bell_path(dst), Kind::Doorbell, BELL_WORDS)?;
        let doorbell = Arc::new(Doorbell::new(doorbell.mapping, None));
        let (path, Opened { mapping, is_new, .. }) = self.ring(src, dst)?;
        if is_new {
            doorbell.announce();
        }
        OutRing::attach(src, dst, mapping, doorbell).map_err(|Broken| corrupt(path))
    }

    /// Opens the reading end of the ring from `src`, which is at `port`, to `dst`.
    pub(super) fn in_ring(&self, src: Gid, dst: Gid, port: Port) -> Result<InRing, OpenError> {
        let (path, Opened { mapping, .. }) = self.ring(src, dst)?;
        InRing::attach(src, dst, port, mapping).map_err(|Broken| corrupt(path))
    }

    /// Returns the endpoints that have a ring to `dst`.
    pub(super) fn senders_to(&self, dst: Gid) -> Vec<Gid> {
        let suffix = format!("-{dst:?}.ring");
        let names = names(&self.path);
        names.iter().filter_map(|name| name.strip_suffix(&suffix)).filter_map(parse_gid).collect()
    }

    fn ring(&self, src: Gid, dst: Gid) -> Result<(PathBuf, Opened), OpenError> {
        let path = self.path.join(format!("{src:?}-{dst:?}.ring"));
        let opened = mapping::open_or_create(&path, Kind::Ring, self.ring_words)?;
        let data = opened.mapping.words().len().saturating_sub(HEADER_WORDS);
        if !data.is_power_of_two() || data * WORD < RING_BYTES_MIN {
            return Err(OpenError::Foreign {
                path,
                why: format!("has {data} words of data, which is not a power of two"),
            });
        }
        Ok((path, opened))
    }

    pub(super) fn bell_path(&self, gid: Gid) -> PathBuf {
        self.path.join(format!("{gid:?}.doorbell"))
    }
}

/// Opens the doorbell at `path`, of an endpoint of another process. Returns a function that ends the
/// endpoint's wait.
pub(crate) fn bell_at(path: &Path) -> Result<impl Fn() + Send + Sync + use<>, OpenError> {
    let opened = mapping::open_or_create(path, Kind::Doorbell, BELL_WORDS)?;
    let doorbell = Doorbell::new(opened.mapping, None);
    Ok(move || doorbell.call())
}

fn corrupt(path: PathBuf) -> OpenError {
    OpenError::Foreign { path, why: "has inconsistent indexes: corrupt".into() }
}

/// Number of attempts to take a lock: a process that only tests the lock ([`live_endpoints`]) holds it for a
/// moment.
const LOCK_TRIES_MAX: u32 = 100;

/// Locks the file; returns false if another process holds the lock.
fn lock(file: &File) -> io::Result<bool> {
    for _ in 0..LOCK_TRIES_MAX {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
    Ok(false)
}

/// Returns true if a process holds the lock.
fn is_locked(file: &File) -> bool {
    let taken = file.try_lock_shared();
    if taken.is_ok() {
        drop(file.unlock());
    }
    matches!(taken, Err(TryLockError::WouldBlock))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns the addresses of the endpoints in `dir` that some process holds now.
#[must_use]
pub fn live_endpoints(dir: &Path) -> Vec<String> {
    let names = names(dir);
    let doorbells = names.iter().filter_map(|name| Some((name, name.strip_suffix(".doorbell")?)));
    let is_held = |name: &str| File::open(dir.join(name)).is_ok_and(|file| is_locked(&file));
    doorbells.filter(|(name, _)| is_held(name)).map(|(_, gid)| gid.to_owned()).collect()
}

/// Removes a rack's directory with its rings and doorbells, if no process uses it. If the directory contains
/// other files, these files and the directory stay.
///
/// # Errors
/// `ResourceBusy` if an endpoint is alive; otherwise the system's error.
pub fn remove_dir(dir: &Path) -> io::Result<()> {
    let live = live_endpoints(dir);
    if !live.is_empty() {
        let text = format!("{} is in use by {}; stop them first", dir.display(), live.join(", "));
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
    }
    for name in names(dir) {
        if name.ends_with(".ring") || name.ends_with(".doorbell") {
            fs::remove_file(dir.join(name))?;
        }
    }
    fs::remove_dir(dir)
}

/// Maps a file of another endpoint, for tests that write invalid data into it.
#[cfg(test)]
pub(super) fn map_ring(dir: &Path, src: Gid, dst: Gid) -> mapping::Mapping {
    mapping::open(&dir.join(format!("{src:?}-{dst:?}.ring")), Kind::Ring).expect("the ring is there")
}
