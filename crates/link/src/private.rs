//! Files and directories with secrets, which only this user may access.
//!
//! The control plane's state contains every key of the rack, the rack's token gives access to the API, and
//! the rings carry programs' writes. A reader of the state can change the tables of every role. So a path
//! with wider permissions or another owner is refused. The error contains the command that restricts it, and
//! tells the user that others may have read the secrets (PROTOCOL 9.20).

use crate::OpenError;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The widest mode of a private directory.
const DIRECTORY_MODE: u32 = 0o700;
/// The widest mode of a private file.
const FILE_MODE: u32 = 0o600;

/// Creates a directory, or checks the existing one: it must belong to this user, with at most mode 0700.
///
/// # Errors
/// [`OpenError::Exposed`] if others may access it or it belongs to another user, [`OpenError::Foreign`] if it
/// is not a directory.
pub fn private_directory(path: &Path) -> Result<(), OpenError> {
    let made = DirBuilder::new().mode(DIRECTORY_MODE).create(path);
    match made {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            let doing = format!("make the directory {}", path.display());
            return Err(refused(doing, e));
        }
        _ => {}
    }
    let about =
        fs::symlink_metadata(path).map_err(OpenError::system(format!("look at {}", path.display())))?;
    if !about.is_dir() {
        return Err(OpenError::Foreign { path: path.into(), why: "is not a directory".into() });
    }
    check(path, &about, "directory", DIRECTORY_MODE)
}

/// Creates a state directory with its parents, or checks the existing one, following symbolic links; see
/// [`private_directory`]. Returns its path.
///
/// # Errors
/// The errors of [`private_directory`].
pub fn private_state(path: &Path) -> Result<PathBuf, OpenError> {
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above)
            .map_err(|e| refused(format!("make the directory {}", path.display()), e))?;
    }
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    private_directory(&path)?;
    Ok(path)
}

/// Opens a file for reading and writing, and creates it with mode 0600 if necessary. The file must belong to
/// this user, with at most that mode.
///
/// # Errors
/// [`OpenError::Exposed`] if others may read or write it or it belongs to another user,
/// [`OpenError::Foreign`] if it is not a file, [`OpenError::NotPermitted`].
pub fn private_file(path: &Path) -> Result<File, OpenError> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path);
    let file = match opened {
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
            return Err(OpenError::Foreign { path: path.into(), why: "is a symbolic link".into() });
        }
        opened => opened.map_err(|e| refused(format!("open {}", path.display()), e))?,
    };
    let about = file.metadata().map_err(OpenError::system(format!("look at {}", path.display())))?;
    if !about.is_file() {
        return Err(OpenError::Foreign { path: path.into(), why: "is not a file".into() });
    }
    check(path, &about, "file", FILE_MODE)?;
    Ok(file)
}

/// Opens a file with secrets for reading; it must belong to this user, with at most mode 0600. Does not
/// create the file.
///
/// # Errors
/// The errors of [`private_file`], and [`OpenError::System`] if the file does not exist.
pub fn read_private(path: &Path) -> Result<File, OpenError> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|e| refused(format!("open {}", path.display()), e))?;
    let about = file.metadata().map_err(OpenError::system(format!("look at {}", path.display())))?;
    if !about.is_file() {
        return Err(OpenError::Foreign { path: path.into(), why: "is not a file".into() });
    }
    check(path, &about, "file", FILE_MODE)?;
    Ok(file)
}

/// Returns true if the path exists and belongs to this user.
#[must_use]
pub fn is_own(path: &Path) -> bool {
    // SAFETY: geteuid takes no arguments, accesses no memory and cannot fail.
    let us = unsafe { libc::geteuid() };
    fs::metadata(path).is_ok_and(|about| about.uid() == us)
}

/// Checks the owner and the permissions of a path that holds secrets.
fn check(path: &Path, about: &Metadata, kind: &str, most: u32) -> Result<(), OpenError> {
    // SAFETY: geteuid takes no arguments, accesses no memory and cannot fail.
    let us = unsafe { libc::geteuid() };
    let (owner, mode) = (about.uid(), about.mode() & 0o7777);
    let is_not = format!("is not a {kind} for user {us} alone (mode {most:04o})");
    let exposed = |why: String, remedy: String| OpenError::Exposed { path: path.into(), why, remedy };
    let shown = path.display();
    if owner != us {
        return Err(exposed(
            format!("{is_not}: it belongs to user {owner}"),
            format!("run as user {owner}, choose another, or as root: chown {us} {shown}"),
        ));
    }
    if mode & 0o777 & !most != 0 {
        return Err(exposed(
            format!("{is_not}: it has mode {mode:04o}"),
            format!(
                "run: chmod {most:o} {shown}; it contains the keys of the rack, so start with a new directory if others may have read it"
            ),
        ));
    }
    Ok(())
}

fn refused(doing: String, source: io::Error) -> OpenError {
    if source.kind() == io::ErrorKind::PermissionDenied {
        OpenError::NotPermitted {
            doing,
            remedy: "run as its owner, or choose another state directory".into(),
        }
    } else {
        OpenError::System { doing, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    /// The permission bits of a mode.
    const PERMISSIONS: u32 = 0o7777;

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & PERMISSIONS
    }

    /// Whatever the umask, only this user can access new files; narrower permissions of existing files do not
    /// change.
    #[test]
    fn what_is_made_is_for_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (directory, file) = (folder.path().join("a"), folder.path().join("a/file"));
        private_directory(&directory).unwrap();
        drop(private_file(&file).unwrap());
        assert_eq!([mode(&directory), mode(&file)], [0o700, 0o600]);
        let text = private_directory(&folder.path().join("no/such")).unwrap_err().to_string();
        assert!(text.contains("cannot make the directory"), "{text}");
        chmod(&directory, 0o500);
        private_directory(&directory).unwrap();
        drop(private_file(&file).unwrap());
        assert_eq!(mode(&directory), 0o500);
    }

    /// PROTOCOL 9.20: any wider permission of another user is refused with the path, the mode and the command
    /// that restricts it; nothing is changed.
    #[test]
    fn what_others_may_get_at_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let (directory, file) = (folder.path().join("state"), folder.path().join("control.redb"));
        private_directory(&directory).unwrap();
        drop(private_file(&file).unwrap());
        for more in [0o040, 0o004, 0o020, 0o002, 0o010, 0o001, 0o055, 0o077] {
            chmod(&directory, 0o700 | more);
            let text = private_directory(&directory).unwrap_err().to_string();
            let expected =
                [format!("mode {:04o}", 0o700 | more), format!("chmod 700 {}", directory.display())];
            assert!(expected.iter().all(|part| text.contains(part)), "{text}");
            assert_eq!(mode(&directory), 0o700 | more);
            chmod(&file, 0o600 | more);
            let text = private_file(&file).unwrap_err().to_string();
            let expected = [format!("mode {:04o}", 0o600 | more), format!("chmod 600 {}", file.display())];
            assert!(expected.iter().all(|part| text.contains(part)), "{text}");
        }
    }

    /// A symbolic link in a directory of all users is not followed, and files of other types are refused.
    #[test]
    fn links_and_other_things_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        private_directory(&target).unwrap();
        symlink(&target, &link).unwrap();
        assert!(matches!(private_directory(&link), Err(OpenError::Foreign { .. })));
        assert!(private_file(&link).unwrap_err().to_string().contains("is a symbolic link"));
        let file = folder.path().join("file");
        drop(private_file(&file).unwrap());
        assert!(matches!(private_directory(&file), Err(OpenError::Foreign { .. })));
    }

    /// A path of another user is refused whatever its mode, because its owner can open it to all at any time.
    #[test]
    fn what_another_user_owns_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (directory, file) = (folder.path().join("state"), folder.path().join("file"));
        private_directory(&directory).unwrap();
        drop(private_file(&file).unwrap());
        if chown(&directory, Some(65_534), None).is_err() {
            return eprintln!("skipped: not root: no file of another user can be made");
        }
        chown(&file, Some(65_534), None).unwrap();
        for text in [private_directory(&directory).unwrap_err(), private_file(&file).unwrap_err()] {
            let text = text.to_string();
            assert!(text.contains("belongs to user 65534") && text.contains("run as user 65534"), "{text}");
        }
    }
}
