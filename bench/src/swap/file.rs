//! Swap files.

use super::cleanup_guard::CleanupGuard;
use super::swap_to;
use std::fs::{OpenOptions, remove_file};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// A swap file that exists while this lives. The file is removed when this process dies, too.
pub(crate) struct SwapFile {
    path: String,
    _away: CleanupGuard,
}

/// Processes with pages in the file may still be ending, so the removal retries for 10 s.
const TAKE_AWAY: &str = r#"n=0
until swapoff "$1" || ! grep -q "^$1 " /proc/swaps || test $n -ge 100
do n=$((n + 1)); sleep 0.1; done
rm -f "$1""#;

impl SwapFile {
    /// Creates a swap file of this many bytes on a disk, and enables it before all other swap space.
    pub(crate) fn begin(len: u64) -> Result<Self, String> {
        let directory = PathBuf::from("/var/tmp");
        let path = directory.join(format!("farmem-bench-{}.swap", std::process::id()));
        let path = path.to_str().expect("ASCII").to_owned();
        let away = CleanupGuard::begin(TAKE_AWAY, &path)?;
        let file = Self { path, _away: away };
        file.fill(len).map_err(|error| format!("{}: {error}", file.path))?;
        swap_to(&file.path).map(|()| file)
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Writes all blocks: a file with holes cannot be swap space.
    fn fill(&self, len: u64) -> std::io::Result<()> {
        const PIECE: usize = 1 << 20;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path)?;
        for _ in 0..len.div_ceil(PIECE as u64) {
            file.write_all(&[0; PIECE])?;
        }
        file.sync_all().inspect_err(|_| drop(remove_file(&self.path)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PRIORITY, swapped_to};
    use super::*;

    /// The file disappears with its guard and is no longer swap space. While it exists it has the highest
    /// priority.
    #[test]
    fn a_swap_file_leaves_nothing() {
        let file = match SwapFile::begin(8 << 20) {
            Ok(file) => file,
            Err(why) => return eprintln!("SKIPPED: swap files: {why}"),
        };
        let path = file.path().to_owned();
        assert!(swapped_to(&path).is_some_and(|line| line.ends_with(PRIORITY)));
        drop(file);
        assert_eq!(swapped_to(&path), None);
        assert!(!PathBuf::from(path).exists());
    }
}
