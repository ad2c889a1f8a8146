//! Tests of `farmem run` by an ordinary user: what the user is told, and what the administrator's command
//! permits.

use crate::process::{Dir, farmem, is_root, run_command, without_rights};
use crate::run::{MIB, may_run, number, program};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A user without rights is refused with one command. Root runs the command as printed. Then the user's
/// programs have far memory, in system calls and in forked children too. Without udev, the command is a
/// setting that is stored and applied. Root of a user namespace is refused like the user.
#[test]
fn an_administrator_permits_far_memory_by_one_command() {
    if !may_run("an ordinary user") {
        return;
    }
    if !is_root() || !Path::new("/dev/userfaultfd").exists() {
        return eprintln!("skipped: an ordinary user: the test needs root and /dev/userfaultfd");
    }
    let may_unshare =
        Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|ended| ended.success());
    if !may_unshare || without_rights(farmem(&["--version"]), "an ordinary user").is_none() {
        return eprintln!("skipped: an ordinary user: this machine permits no mount namespace or other user");
    }
    let dir = Dir::new("run-ordinary-user");
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("it is ours");
    let (kernel, forks) = (program(&dir, "kernel", &["-D_GNU_SOURCE"]), program(&dir, "forks", &[]));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/ordinary_user.sh");
    let alone = run_command(Command::new(&forks));
    let mut command = Command::new("unshare");
    command.args(["-m", "sh"]).arg(script).arg(env!("CARGO_BIN_EXE_farmem")).arg(dir.path());
    let ended = run_command({
        command.args([&kernel, &forks]);
        command
    });
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut lines = ended.stdout.lines();
    let last = alone.stdout.lines().last().expect("the program prints its result");
    for expected in [
        "without udev:",
        "1",
        "vm.unprivileged_userfaultfd=1",
        "with udev:",
        "KERNEL==\"userfaultfd\", GROUP=\"65534\", MODE=\"0660\"",
        "660 0 65534",
        "ok        userfaultfd              full, by /dev/userfaultfd: `farmem run` works, and so do system calls on far memory",
        "untouched: read",
        "touched: read",
        "0 7",
        last,
    ] {
        assert_eq!(lines.next(), Some(expected), "{ended:?}");
    }
    let stats: Value = serde_json::from_str(lines.next().expect("statistics")).expect("JSON");
    assert_eq!(number(&stats, "processes"), 1 + number(&stats, "forks"), "{stats}");
    assert!(number(&stats, "forks") > 3 && number(&stats, "evictions") > 0, "{stats}");
    assert!(number(&stats, "largest_local_bytes") <= MIB, "{stats}");
}
