//! A directory of files as a memory node uses it (PROTOCOL 20.1 to 20.5).

use super::tree::Tree;
use farmem_memnode::FileOutcome;
use farmem_wire::message::{FileCause, FileFault};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

fn opened(outcome: FileOutcome) -> (u64, u64) {
    let FileOutcome::Opened { length, stamp } = outcome else { panic!("open, not {outcome:?}") };
    (length, stamp)
}

fn cause(outcome: FileOutcome) -> (FileCause, u64) {
    let FileOutcome::Failed(FileFault { cause, at, .. }) = outcome else {
        panic!("a failure, not {outcome:?}")
    };
    (cause, at)
}

fn names(directory: &Path) -> Vec<String> {
    let mut all: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    all
}

/// A file is opened by its name, read in parts, and found unchanged.
#[test]
fn a_file_is_read() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("a/b")).unwrap();
    fs::write(directory.path().join("a/b/own"), b"0123456789").unwrap();
    let mut tree = Tree::open(directory.path()).unwrap();
    let (length, stamp) = opened(tree.look("a/b/own"));
    assert_eq!(length, 10);
    assert_ne!(stamp, 0);
    assert_eq!(opened(tree.load(1, "a/b/own")), (length, stamp));
    assert_eq!(tree.read(1, 3, 4), FileOutcome::Read { offset: 3, bytes: b"3456".to_vec() });
    assert_eq!(tree.finish(1), FileOutcome::Finished { stamp });
}

/// PROTOCOL 20.2: only regular files in the directory are opened, without a wait for a FIFO.
#[test]
fn what_is_no_regular_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), b"secret").unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("own"), b"own").unwrap();
    fs::write(at("empty"), b"").unwrap();
    symlink(outside.path().join("secret"), at("link")).unwrap();
    symlink(at("own"), at("near")).unwrap();
    symlink(outside.path(), at("out")).unwrap();
    symlink("sub", at("sub2")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut tree = Tree::open(directory.path()).unwrap();
    for name in ["sub", "link", "near", "out/secret", "sub2/x", "fifo", "socket", "own/x"] {
        assert_eq!(cause(tree.look(name)).0, FileCause::Kind, "{name}");
        assert_eq!(cause(tree.load(1, name)).0, FileCause::Kind, "{name}");
        assert_eq!(cause(tree.save(1, name)).0, FileCause::Kind, "{name}");
    }
    assert_eq!(cause(tree.look("none")), (FileCause::Missing, 0));
    assert_eq!(cause(tree.save(1, "none/own")), (FileCause::Missing, 0));
    assert_eq!(cause(tree.load(1, "empty")), (FileCause::Length, 0));
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
    assert!(!names(directory.path()).iter().any(|name| name.starts_with(".farmem-")));
}

/// PROTOCOL 20.4: a file that changes during the read is refused. The refusal of a truncated file has the
/// offset. A file that grew or was written is refused at the end.
#[test]
fn what_changes_meanwhile_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("own");
    let mut tree = Tree::open(directory.path()).unwrap();
    fs::write(&path, b"0123456789").unwrap();
    opened(tree.load(1, "own"));
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(6).unwrap();
    assert_eq!(tree.read(1, 0, 4), FileOutcome::Read { offset: 0, bytes: b"0123".to_vec() });
    assert_eq!(cause(tree.read(1, 4, 4)), (FileCause::Short, 6));

    fs::write(&path, b"0123456789").unwrap();
    opened(tree.load(2, "own"));
    fs::write(&path, b"9876543210").unwrap();
    assert_eq!(cause(tree.finish(2)).0, FileCause::Changed);

    opened(tree.load(3, "own"));
    fs::write(&path, b"01234567890").unwrap();
    assert_eq!(cause(tree.finish(3)), (FileCause::Changed, 11));
}

/// PROTOCOL 20.5: a file is replaced atomically, with the permissions of the old one. Leftovers of an ended
/// node are removed.
#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("own");
    fs::write(&path, b"the old bytes").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(directory.path().join(".farmem-1-1"), b"left").unwrap();
    let mut tree = Tree::open(directory.path()).unwrap();
    let before = opened(tree.look("own")).1;
    // After a cancelled save, the old file is unchanged.
    opened(tree.save(1, "own"));
    assert_eq!(tree.write(1, 0, b"new"), FileOutcome::Written { offset: 0 });
    assert_eq!(names(directory.path()).len(), 2, "the old one and the new one, and not what was left");
    tree.forget(1);
    assert_eq!(names(directory.path()), ["own"]);
    assert_eq!(opened(tree.look("own")).1, before);
    // Two saves at once, of which another node in the same directory removes none.
    opened(tree.save(2, "own"));
    opened(tree.save(3, "other"));
    assert_eq!(names(directory.path()).len(), 3);
    assert_eq!(tree.write(2, 4, b"bytes"), FileOutcome::Written { offset: 4 });
    assert_eq!(tree.write(2, 0, b"new "), FileOutcome::Written { offset: 0 });
    let FileOutcome::Finished { stamp } = tree.finish(2) else { panic!("it has its name") };
    assert_eq!(fs::read(&path).unwrap(), b"new bytes");
    assert_eq!(opened(tree.look("own")), (9, stamp));
    assert_ne!(stamp, before);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    tree.forget(3);
    assert_eq!(names(directory.path()), ["own"]);
}
