//! Cgroups of other machines, as text, and one of this machine where permitted.

use super::*;
use crate::mind::ZramProbe;
use std::process::Command;

const MIB: u64 = 1 << 20;

fn place(dir: &str, version: Version) -> CgroupParent {
    CgroupParent { dir: dir.into(), version }
}

/// A typical server with version 2 alone: beneath this process's cgroup, else beside it.
#[test]
fn version_2_is_asked_beneath_and_beside() {
    let mounts = "24 30 0:22 / /proc rw,nosuid - proc proc rw\n\
                  29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
    let expected = [
        place("/sys/fs/cgroup/user.slice/user-0.slice/session-3.scope", Version::V2),
        place("/sys/fs/cgroup/user.slice/user-0.slice", Version::V2),
    ];
    assert_eq!(places(mounts, "0::/user.slice/user-0.slice/session-3.scope\n"), expected);
    assert_eq!(places(mounts, "0::/\n"), [place("/sys/fs/cgroup", Version::V2)], "nothing is above the root");
    assert_eq!(places(mounts, "0::/../other\n"), [], "outside of what is to be seen here");
}

/// Both versions are mounted: version 2 is tried first, although memory may belong to version 1.
#[test]
fn version_1_comes_after_version_2() {
    let mounts = "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                  36 31 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
    let cgroups = "9:name=systemd:/\n4:memory:/runs/7\n2:cpu,cpuacct:/cpus\n0::/\n";
    let expected =
        [place("/sys/fs/cgroup/unified", Version::V2), place("/sys/fs/cgroup/memory/runs/7", Version::V1)];
    assert_eq!(places(mounts, cgroups), expected);
    assert_eq!(places(mounts, "2:cpu,cpuacct:/cpus\n"), []);
    assert_eq!(places("", cgroups), []);
}

/// A container without its own namespace sees its part of the hierarchy at the place of the whole.
#[test]
fn a_mount_may_show_a_part() {
    let mounts = "36 31 0:33 /docker/ab12 /sys/fs/cgroup/memory ro master:9 - cgroup cgroup rw,memory";
    let one = |cgroups| places(mounts, cgroups);
    assert_eq!(one("4:memory:/docker/ab12\n"), [place("/sys/fs/cgroup/memory", Version::V1)]);
    assert_eq!(one("4:memory:/docker/ab12/x\n"), [place("/sys/fs/cgroup/memory/x", Version::V1)]);
    assert_eq!(one("4:memory:/docker/cd34\n"), []);
}

/// A refusal names the places and reasons, and leaves nothing there.
#[test]
fn a_refusal_names_each_place() {
    assert_eq!(first(&[], MIB).unwrap_err(), "no cgroups for memory are mounted here");
    let dir = std::env::temp_dir().join(format!("farmem-no-cgroup-{}", std::process::id()));
    create_dir(&dir).unwrap();
    let hands_down = dir.join("cgroup.subtree_control");
    let both = [Version::V2, Version::V1].map(|version| CgroupParent { dir: dir.clone(), version });
    std::fs::write(&hands_down, "cpu pids\n").unwrap();
    // An ordinary directory has no limit file.
    let refused = first(&both, MIB).unwrap_err();
    let expected = format!("cgroup v2: {} hands no memory down; cgroup v1: ", dir.display());
    assert!(refused.starts_with(&expected) && refused.contains("memory.limit_in_bytes"), "{refused}");
    std::fs::write(&hands_down, "cpu memory pids\n").unwrap();
    let refused = first(&both[..1], MIB).unwrap_err();
    assert!(refused.starts_with("cgroup v2: ") && refused.contains("memory.max"), "{refused}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "only what the test wrote");
    std::fs::remove_dir_all(&dir).unwrap();
    let refused = first(&both, MIB).unwrap_err();
    assert_eq!(refused.matches("os error 2").count(), 2, "{refused}");
}

/// A process in a cgroup is killed: the cgroup is removed, also when the measurement panics.
#[test]
fn a_group_goes_whatever_becomes_of_its_process() {
    let script = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        ZramProbe::begin(command).unwrap()
    };
    for ending in ["killed", "panics"] {
        let group = match Group::begin(64 * MIB) {
            Ok(group) => group,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let dir = group.dir.clone();
        let limit = read_to_string(dir.join(group.version.limit())).unwrap();
        assert_eq!(limit.trim(), (64 * MIB).to_string());
        let ended = std::panic::catch_unwind(move || {
            // Dropped in the opposite order: the process ends first.
            let group = group;
            let mut process =
                script(if ending == "killed" { "read word; kill -9 $$" } else { "read word; read never" });
            group.take_in(process.id()).unwrap();
            let members = read_to_string(group.dir.join("cgroup.procs")).unwrap();
            assert_eq!(members.trim(), process.id().to_string());
            assert_eq!(ending, "killed", "a measurement goes wrong");
            process.times().unwrap_err()
        });
        assert_eq!(ended.is_ok(), ending == "killed");
        if let Ok(why) = ended {
            assert!(why.contains("signal: 9"), "{why}");
        }
        assert!(!dir.exists(), "{} is left", dir.display());
    }
}
