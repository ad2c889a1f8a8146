//! Checkpoints: an algorithm's state in a file, from which it can resume.
//!
//! ```text
//!   0  8  "FARMCKPT"
//!   8  4  version: 2
//!  12  4  1 PageRank, 2 components
//!  16 40  the graph's header (`load::binary`)
//!  56  8  rounds so far
//!  64     PageRank: how far all ranks moved in the last round, 8 bytes; then of each vertex its rank, 8 bytes. Components: of each vertex its label, 4 bytes; then a bit for each whose label changed, in words of 8 bytes
//!  ..  4  CRC-32 of all before
//! ```

use crate::VertexSubset;
use crate::algorithms::{Components, PageRank};
use crate::load::binary::Header;
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

const MAGIC: [u8; 8] = *b"FARMCKPT";
/// Version 1 lacked the movement of ranks, so a converged run took an extra round after a resume.
const VERSION: u32 = 2;
const GRAPH: usize = 16;
const ROUNDS: usize = 56;
const STATE: usize = 64;
const SUM: usize = 4;

/// An algorithm that can be resumed.
pub trait Resumable: Sized {
    /// The algorithm's number in a checkpoint.
    const NUMBER: u32;

    /// Returns the number of rounds so far.
    fn rounds(&self) -> u64;

    /// Appends the state.
    fn save(&self, out: &mut Vec<u8>);

    /// Restores the state that [`Resumable::save`] wrote for this many vertices; `None` for an invalid one.
    fn restore(state: &[u8], vertices: u32, rounds: u64) -> Option<Self>;
}

impl Resumable for PageRank {
    const NUMBER: u32 = 1;

    fn rounds(&self) -> u64 {
        self.rounds()
    }

    fn save(&self, out: &mut Vec<u8>) {
        out.extend(self.moved().to_le_bytes());
        out.extend(self.ranks().iter().flat_map(|rank| rank.to_le_bytes()));
    }

    fn restore(state: &[u8], vertices: u32, rounds: u64) -> Option<Self> {
        let (moved, ranks) = state.split_first_chunk()?;
        let moved = f64::from_le_bytes(*moved);
        let (ranks, []) = ranks.as_chunks() else { return None };
        let ranks: Vec<f64> = ranks.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
        let sound = ranks.len() == vertices as usize
            && ranks.iter().all(|rank| (0.0..=1.0).contains(rank))
            && (moved >= 0.0 && moved.is_infinite() == (rounds == 0));
        sound.then(|| Self::resumed(ranks, moved, rounds))
    }
}

impl Resumable for Components {
    const NUMBER: u32 = 2;

    fn rounds(&self) -> u64 {
        self.rounds()
    }

    fn save(&self, out: &mut Vec<u8>) {
        out.extend(self.labels().iter().flat_map(|label| label.to_le_bytes()));
        out.extend(self.changed().bits().iter().flat_map(|word| word.to_le_bytes()));
    }

    fn restore(state: &[u8], vertices: u32, rounds: u64) -> Option<Self> {
        let (labels, bits) = state.split_at_checked(4 * vertices as usize)?;
        let labels: Vec<u32> = labels.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
        let (bits, []) = bits.as_chunks() else { return None };
        let bits: Vec<u64> = bits.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect();
        let behind = vertices as usize % 64;
        let sound = bits.len() == (vertices as usize).div_ceil(64)
            && bits.last().is_none_or(|last| behind == 0 || last >> behind == 0)
            && (0..).zip(&labels).all(|(vertex, &label)| label <= vertex);
        sound.then(|| Self::resumed(labels, VertexSubset::of_bits(vertices, bits), rounds))
    }
}

/// Encodes a checkpoint.
pub fn bytes(graph: &Header, state: &impl Resumable) -> Vec<u8> {
    fn number<T: Resumable>(_: &T) -> u32 {
        T::NUMBER
    }
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend(number(state).to_le_bytes());
    out.extend(graph.bytes());
    out.extend(state.rounds().to_le_bytes());
    state.save(&mut out);
    let sum = crc32fast::hash(&out);
    out.extend(sum.to_le_bytes());
    out
}

/// Decodes a checkpoint of this graph.
///
/// # Errors
/// A message when the checkpoint is damaged, or belongs to another graph or algorithm.
pub fn resume<T: Resumable>(bytes: &[u8], graph: &Header) -> Result<T, String> {
    let Some((body, sum)) = bytes.split_last_chunk::<SUM>().filter(|(body, _)| body.len() >= STATE) else {
        return Err(format!("{} bytes: the checkpoint is cut short", bytes.len()));
    };
    if body[..8] != MAGIC {
        return Err("byte 0: no FARMCKPT: this is no checkpoint".into());
    }
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(format!("byte {}: the sum is wrong: the checkpoint is damaged", body.len()));
    }
    let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("four bytes"));
    if word(8) != VERSION {
        let found = word(8);
        return Err(format!(
            "byte 8: version {found}, expected {VERSION}: another farmem wrote the checkpoint"
        ));
    }
    if word(12) != T::NUMBER {
        return Err("byte 12: the checkpoint is of another algorithm".into());
    }
    if body[GRAPH..ROUNDS] != graph.bytes() {
        return Err(format!("byte {GRAPH}: the checkpoint is of another graph"));
    }
    let rounds = u64::from_le_bytes(body[ROUNDS..STATE].try_into().expect("eight bytes"));
    let vertices = u32::try_from(graph.extent.vertices).expect("a graph has 32 bits of vertices");
    T::restore(&body[STATE..], vertices, rounds)
        .ok_or_else(|| format!("byte {STATE}: no state of this algorithm"))
}

/// Read and write permission for all, before the umask.
const MODE: u32 = 0o666;

/// Replaces a file atomically: the file has either the new or the old contents. The umask or the old file
/// determines the permissions. Links are followed. A device or pipe receives the bytes directly, because a
/// rename would replace it by a file. So does a path that is this process's standard output or error, which
/// continues at its current position.
///
/// # Errors
/// The system's error.
pub fn replace<T>(path: &Path, write: impl FnOnce(&mut dyn io::Write) -> io::Result<T>) -> io::Result<T> {
    // The system follows links without a path, such as the pipe behind /dev/stdout.
    let there = match fs::metadata(path) {
        Ok(found)
            if found.is_file()
                && let Some(own) = own_stream(&found)? =>
        {
            let mut out = io::BufWriter::new(own);
            let written = write(&mut out)?;
            out.flush()?;
            return Ok(written);
        }
        Ok(found) if found.is_file() => Some((found.permissions(), fs::canonicalize(path)?)),
        Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => {
            let mut out = io::BufWriter::new(fs::OpenOptions::new().write(true).open(path)?);
            let written = write(&mut out)?;
            out.flush()?;
            return Ok(written);
        }
        // A link to a nonexistent file: the system creates the file at the target.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
            let made = fs::OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
            Some((made.metadata()?.permissions(), fs::canonicalize(path)?))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let keep = there.as_ref().map(|(mode, _)| mode.clone());
    let mode = keep.clone().unwrap_or_else(|| Permissions::from_mode(MODE));
    let path = there.as_ref().map_or(path, |(_, target)| target);
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let mut file = tempfile::Builder::new().permissions(mode).tempfile_in(folder)?;
    let mut out = io::BufWriter::new(&mut file);
    let written = write(&mut out)?;
    out.flush()?;
    drop(out);
    // An existing file's permissions override the umask.
    keep.map_or(Ok(()), |mode| file.as_file().set_permissions(mode))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(written)
}

/// Returns this process's standard output or error, when it is this file.
fn own_stream(found: &fs::Metadata) -> io::Result<Option<fs::File>> {
    for stream in [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()] {
        // A closed stream is not a file.
        let Ok(own) = stream.map(fs::File::from) else { continue };
        let has = own.metadata()?;
        if (has.dev(), has.ino()) == (found.dev(), found.ino()) {
            return Ok(Some(own));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Output to a device: with root, `--output /dev/null` once replaced the device by a file. The test uses
    /// a link, so that a failure does no harm.
    #[test]
    fn a_device_stays_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("full");
        symlink("/dev/full", &link).unwrap();
        let full = replace(&link, |out| out.write_all(b"answer")).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    /// A link leads to a private file: the answer is written, and the file stays private.
    #[test]
    fn links_are_followed_and_modes_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&file, b"before").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        symlink("real", &link).unwrap();
        replace(&link, |out| out.write_all(b"answer")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let (new, dangling) = (folder.path().join("new"), folder.path().join("dangling"));
        symlink("new", &dangling).unwrap();
        replace(&dangling, |out| out.write_all(b"answer")).unwrap();
        assert!(fs::symlink_metadata(&dangling).unwrap().is_symlink());
        assert_eq!(fs::read(&new).unwrap(), b"answer");
        assert_eq!(fs::read(&file).unwrap(), b"answer");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let error = replace(folder.path(), |out| out.write_all(b"answer")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }
}
