//! A memory cgroup with a limit for one process: chosen, created, and removed.
//!
//! Key type: [`Group`], created beneath this process's cgroup. Version 2 may forbid that, since a cgroup with
//! enabled controllers may not have processes of its own. The new cgroup is then created beside it. No
//! existing cgroup is changed.
//!
//! The kernel counts a cgroup's pages per CPU, and sums them every other second, or on request
//! ([`Group::add_up`]). The sums decide what is reclaimed. With old sums the kernel may find nothing to
//! reclaim, and kills a process that has replaced its memory since, such as a sort.

use super::cleanup_guard::CleanupGuard;
use procfs_core::process::MountInfo;
use procfs_core::{FromRead as _, ProcessCGroup, ProcessCGroups};
use std::fmt;
use std::fs::{OpenOptions, create_dir, read_to_string, remove_dir};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Removes the cgroup. A process that was ended may take a moment to leave, so the removal retries for 10 s.
const REMOVE: &str =
    r#"n=0; while test -d "$1" && ! rmdir "$1" && test $n -lt 100; do n=$((n + 1)); sleep 0.1; done"#;

/// The cgroup interface of a hierarchy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    V1,
    V2,
}

impl Version {
    /// Returns the file that holds a cgroup's limit, in bytes.
    const fn limit(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }

    /// Returns true for a cgroup in a hierarchy of this version with the memory controller.
    fn has(self, group: &ProcessCGroup) -> bool {
        match self {
            Self::V1 => group.controllers.iter().any(|controller| controller == "memory"),
            Self::V2 => group.hierarchy == 0 && group.controllers.is_empty(),
        }
    }

    /// Returns true for a mount of such a hierarchy.
    fn is_at(self, mount: &MountInfo) -> bool {
        match self {
            Self::V1 => mount.fs_type == "cgroup" && mount.super_options.contains_key("memory"),
            Self::V2 => mount.fs_type == "cgroup2",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        })
    }
}

/// A cgroup that exists while this, or the process, lives. Its processes must end before.
#[derive(Debug)]
pub(crate) struct Group {
    dir: PathBuf,
    version: Version,
    _removed: CleanupGuard,
}

impl Group {
    /// Creates a cgroup, wherever one can be created, whose processes may have this many bytes together.
    pub(crate) fn begin(limit: u64) -> Result<Self, String> {
        let read = |path: &str| read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let places = places(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        first(&places, limit)
    }

    pub(crate) const fn version(&self) -> Version {
        self.version
    }

    /// Moves a process into the cgroup: its memory counts from now on.
    pub(crate) fn take_in(&self, process: u32) -> Result<(), String> {
        set(&self.dir.join("cgroup.procs"), &process.to_string())
    }

    /// Runs `what`, and makes the kernel sum the cgroup's pages two hundred times per second meanwhile. On
    /// zram, a sort replaces its memory within a tenth of a second.
    pub(crate) fn add_up<T>(&self, what: impl FnOnce() -> T) -> T {
        const EVERY: Duration = Duration::from_millis(5);
        let stat = self.dir.join("memory.stat");
        // The summing thread ends with the work, also on a panic.
        let (working, until) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while until.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    // Reading is the request. If it fails, the kernel's own sums must do.
                    let _sums = read_to_string(&stat);
                }
            });
            let _ends = working;
            what()
        })
    }

    fn begin_at(place: &CgroupParent, limit: u64) -> Result<Self, String> {
        let CgroupParent { dir, version } = place;
        if *version == Version::V2 {
            let handed_down = dir.join("cgroup.subtree_control");
            let text = read_to_string(&handed_down)
                .map_err(|error| format!("{}: {error}", handed_down.display()))?;
            if !text.split_whitespace().any(|controller| controller == "memory") {
                return Err(format!("{} hands no memory down", dir.display()));
            }
        }
        let dir = dir.join(format!("farmem-bench-{}", std::process::id()));
        // A leftover of a process with this number is empty, or not ours.
        let _none = remove_dir(&dir);
        create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let removed = CleanupGuard::begin(REMOVE, &dir.to_string_lossy());
        if removed.is_err() {
            let _stays = remove_dir(&dir);
        }
        let group = Self { dir, version: *version, _removed: removed? };
        set(&group.dir.join(version.limit()), &limit.to_string())?;
        Ok(group)
    }
}

/// A place where a cgroup may be created.
#[derive(Clone, PartialEq, Eq, Debug)]
struct CgroupParent {
    dir: PathBuf,
    version: Version,
}

/// Creates a cgroup at the first possible place, or returns the reason for each.
fn first(places: &[CgroupParent], limit: u64) -> Result<Group, String> {
    let mut refused = Vec::new();
    for place in places {
        match Group::begin_at(place, limit) {
            Ok(group) => return Ok(group),
            Err(why) => refused.push(format!("cgroup {}: {why}", place.version)),
        }
    }
    if refused.is_empty() {
        return Err("no cgroups for memory are mounted here".into());
    }
    Err(refused.join("; "))
}

/// Returns the places, the best one first: version 2, beneath and then beside this process's cgroup; then
/// version 1, beneath it. `mountinfo` and `cgroups` are the process's files in /proc.
fn places(mountinfo: &str, cgroups: &str) -> Vec<CgroupParent> {
    let cgroups = ProcessCGroups::from_read(cgroups.as_bytes()).map(|all| all.0).unwrap_or_default();
    // Others' mounts may have unreadable names.
    let mounts: Vec<MountInfo> =
        mountinfo.lines().filter_map(|line| MountInfo::from_line(line).ok()).collect();
    let mut places = Vec::new();
    for version in [Version::V2, Version::V1] {
        // Not outside the namespace.
        let own = cgroups.iter().find(|group| version.has(group) && !group.pathname.starts_with("/.."));
        let mount = mounts.iter().find(|mount| version.is_at(mount));
        let Some((mount, own)) = mount.zip(own) else { continue };
        // A container's mount may show only a part of the hierarchy.
        let Ok(below) = Path::new(&own.pathname).strip_prefix(&mount.root) else { continue };
        let point = &mount.mount_point;
        let dir = if below.as_os_str().is_empty() { point.clone() } else { point.join(below) };
        let beside = dir.parent().filter(|_| version == Version::V2 && dir != *point).map(Path::to_owned);
        places.extend([Some(dir), beside].into_iter().flatten().map(|dir| CgroupParent { dir, version }));
    }
    places
}

/// Writes an existing setting.
fn set(file: &Path, value: &str) -> Result<(), String> {
    let written =
        OpenOptions::new().write(true).open(file).and_then(|mut open| open.write_all(value.as_bytes()));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests;
