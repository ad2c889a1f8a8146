//! The socket file of a pager, in a directory that no other user can enter.
//!
//! Key type: [`SocketFile`]. The directory belongs to the pager and has mode 0700. The directory is in
//! `$XDG_RUNTIME_DIR`, or else in the directory for temporary files. So no other user can connect, however many
//! processes that user has.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, geteuid, test_kill_process};
use std::fs::{self, DirBuilder};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The prefix of the names of a pager's socket and directory; the process's number follows.
pub(super) const PREFIX: &str = "farmem-run-";
/// The name of the socket in the directory.
const SOCKET: &str = "pager";

/// Maximum number of processes that wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening socket, removed with its directory when dropped.
#[derive(Debug)]
pub(super) struct SocketFile {
    pub(super) listener: OwnedFd,
    pub(super) path: PathBuf,
}

impl SocketFile {
    /// Creates a socket in a new directory with this name. Returns `None` if that is impossible, or if an invitation
    /// cannot contain the path.
    pub(super) fn open(name: &str) -> Option<Self> {
        bases().iter().find_map(|base| {
            remove_stale(base);
            Self::open_in(&base.join(name))
        })
    }

    fn open_in(directory: &Path) -> Option<Self> {
        let path = directory.join(SOCKET);
        let fits = |path: &str| !path.contains(':') && path.len() < super::call::PATH_MAX;
        path.to_str().filter(|path| fits(path))?;
        DirBuilder::new().mode(0o700).create(directory).ok()?;
        let listener = SocketAddrUnix::new(&path).and_then(|address| listener(&address));
        if listener.is_err() {
            let _ = fs::remove_dir(directory);
        }
        Some(Self { listener: listener.ok()?, path })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Creates a socket on which `accept` does not block, because there is a second one.
pub(super) fn listener(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, address)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Removes the socket of a pager that has ended, and its directory.
pub fn remove(path: &Path) {
    // A file that is gone already needs no removal.
    let _ = fs::remove_file(path);
    if let Some(directory) = path.parent().filter(|_| path.ends_with(SOCKET)) {
        let _ = fs::remove_dir(directory);
    }
}

/// Returns possible parents of the directory: this user's own runtime directory first.
fn bases() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = own.filter(|base| base.is_absolute() && is_own(base));
    own.into_iter().chain([std::env::temp_dir()]).collect()
}

fn is_own(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.uid() == geteuid().as_raw())
}

/// Removes files of pagers that were killed together with their guards. A socket that answers is in use by a process
/// of another pid namespace.
fn remove_stale(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(maker) = name.to_str().and_then(maker) else { continue };
        let path = entry.path();
        if test_kill_process(maker) != Err(Errno::SRCH) || !is_own(&path) {
            continue;
        }
        // Earlier builds had the socket in the parent directory itself.
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let socket = if is_directory { path.join(SOCKET) } else { path };
        if matches!(answers(&socket), Err(Errno::CONNREFUSED | Errno::NOENT)) {
            remove(&socket);
        }
    }
}

/// Returns the process whose socket or directory has this name: `farmem-run-123-0a1b2c3d`.
fn maker(name: &str) -> Option<Pid> {
    let (process, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let is_ours = number.len() == 8 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = process.bytes().all(|byte| byte.is_ascii_digit());
    Pid::from_raw(process.parse().ok().filter(|_| is_ours && digits)?)
}

fn answers(socket: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let visitor = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&visitor, &SocketAddrUnix::new(socket)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Only this user can enter the directory, and it is removed with the socket. Files of ended processes are
    /// removed when the next pager starts. Files of living processes, and every socket that answers, stay.
    #[test]
    fn a_socket_file_has_a_private_directory() {
        let base = std::env::temp_dir().join(format!("farmem-socket-file-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let open = |name: String| SocketFile::open_in(&base.join(name)).unwrap();
        let own = open(format!("{PREFIX}{}-0a1b2c3d", std::process::id()));
        let directory = own.path.parent().unwrap().to_owned();
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);

        // No process has the largest number.
        let gone = i32::MAX;
        let answering = open(format!("{PREFIX}{gone}-00000001"));
        // A socket that is closed and left, as by a process that was killed.
        let stale = open(format!("{PREFIX}{gone}-00000002"));
        let left = stale.path.clone();
        let kept = base.join("kept");
        fs::rename(left.parent().unwrap(), &kept).unwrap();
        drop(stale);
        fs::rename(&kept, left.parent().unwrap()).unwrap();
        SocketFile::open_in(&base.join("other")).map(std::mem::forget).unwrap();
        assert!(left.exists());
        remove_stale(&base);
        assert!(!left.parent().unwrap().exists());
        assert!(own.path.exists() && answering.path.exists() && base.join("other").exists());
        drop((own, answering));
        assert!(!directory.exists());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn only_names_of_pagers_have_a_maker() {
        assert_eq!(maker("farmem-run-123-0a1b2c3d").map(Pid::as_raw_pid), Some(123));
        for other in [
            "farmem-run-123",
            "farmem-run-123-4",
            "farmem-run-x-0a1b2c3d",
            "farmem-run-0-0a1b2c3d",
            "farmem-demo-1-0a1b2c3d",
        ] {
            assert_eq!(maker(other), None, "{other}");
        }
    }
}
