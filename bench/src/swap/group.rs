//! A memory cgroup with a limit, for one process: found, made, and removed again.
//!
//! Key type: [`Group`]. It is made beneath the cgroup that this process is in. Where version 2 does not allow that, since a cgroup that hands
//! controllers down may have no processes of its own, it is made beside it. No cgroup that was there before is changed.
//!
//! The system counts a cgroup's pages CPU by CPU, and adds up every other second, or when it is asked ([`Group::add_up`]). By these sums it decides
//! what it takes away. Where they are old it may find nothing to take, and kills a process that turned its memory over since: a sort, for one.

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

/// Removes the cgroup. A process that was ended, or ends because this one has died, may take a moment to leave it: it is asked for 10 s.
const REMOVE: &str =
    r#"n=0; while test -d "$1" && ! rmdir "$1" && test $n -lt 100; do n=$((n + 1)); sleep 0.1; done"#;

/// Of the two interfaces the one that a hierarchy has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    V1,
    V2,
}

impl Version {
    /// The file that holds a cgroup's limit, in bytes.
    const fn limit(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }

    /// True of a cgroup that is in a hierarchy of this version with memory in it.
    fn has(self, group: &ProcessCGroup) -> bool {
        match self {
            Self::V1 => group.controllers.iter().any(|controller| controller == "memory"),
            Self::V2 => group.hierarchy == 0 && group.controllers.is_empty(),
        }
    }

    /// True of a mount of such a hierarchy.
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

/// A cgroup of this process's own, as long as this lives, or the process. Whoever is in it has to be gone before.
#[derive(Debug)]
pub(crate) struct Group {
    dir: PathBuf,
    version: Version,
    _removed: CleanupGuard,
}

impl Group {
    /// Makes one, wherever one can be made, whose processes may have so many bytes together.
    pub(crate) fn begin(limit: u64) -> Result<Self, String> {
        let read = |path: &str| read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let places = places(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        first(&places, limit)
    }

    pub(crate) const fn version(&self) -> Version {
        self.version
    }

    /// Puts a process into it: what that takes from now on counts.
    pub(crate) fn take_in(&self, process: u32) -> Result<(), String> {
        set(&self.dir.join("cgroup.procs"), &process.to_string())
    }

    /// Does `what`, and has the system add up what the cgroup's processes have, two hundred times a second, while that goes on: on zram a sort
    /// turns its memory over within a tenth of a second.
    pub(crate) fn add_up<T>(&self, what: impl FnOnce() -> T) -> T {
        const EVERY: Duration = Duration::from_millis(5);
        let stat = self.dir.join("memory.stat");
        // It ends with the work, also when that panics.
        let (working, until) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while until.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    // To read it is to ask. Where it cannot be read, the system's own sums have to do.
                    let _sums = read_to_string(&stat);
                }
            });
            let _ends = working;
            what()
        })
    }

    fn begin_at(place: &Place, limit: u64) -> Result<Self, String> {
        let Place { dir, version } = place;
        if *version == Version::V2 {
            let handed_down = dir.join("cgroup.subtree_control");
            let text = read_to_string(&handed_down)
                .map_err(|error| format!("{}: {error}", handed_down.display()))?;
            if !text.split_whitespace().any(|controller| controller == "memory") {
                return Err(format!("{} hands no memory down", dir.display()));
            }
        }
        let dir = dir.join(format!("farmem-bench-{}", std::process::id()));
        // What a process of this number may have left behind is empty, or not ours.
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

/// Where a cgroup may be made.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    dir: PathBuf,
    version: Version,
}

/// The first of the places where one can be made, or why not at each.
fn first(places: &[Place], limit: u64) -> Result<Group, String> {
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

/// The places, the best one first: version 2, beneath and then beside this process's cgroup; then version 1, beneath it. `mountinfo` and
/// `cgroups` are what the system says of this process.
fn places(mountinfo: &str, cgroups: &str) -> Vec<Place> {
    let cgroups = ProcessCGroups::from_read(cgroups.as_bytes()).map(|all| all.0).unwrap_or_default();
    // Others' mounts may have names that cannot be read.
    let mounts: Vec<MountInfo> =
        mountinfo.lines().filter_map(|line| MountInfo::from_line(line).ok()).collect();
    let mut places = Vec::new();
    for version in [Version::V2, Version::V1] {
        // Not outside of what a namespace shows.
        let own = cgroups.iter().find(|group| version.has(group) && !group.pathname.starts_with("/.."));
        let mount = mounts.iter().find(|mount| version.is_at(mount));
        let Some((mount, own)) = mount.zip(own) else { continue };
        // A mount may show a part of the hierarchy only: a container's.
        let Ok(below) = Path::new(&own.pathname).strip_prefix(&mount.root) else { continue };
        let point = &mount.mount_point;
        let dir = if below.as_os_str().is_empty() { point.clone() } else { point.join(below) };
        let beside = dir.parent().filter(|_| version == Version::V2 && dir != *point).map(Path::to_owned);
        places.extend([Some(dir), beside].into_iter().flatten().map(|dir| Place { dir, version }));
    }
    places
}

/// Writes a setting that is there.
fn set(file: &Path, value: &str) -> Result<(), String> {
    let written =
        OpenOptions::new().write(true).open(file).and_then(|mut open| open.write_all(value.as_bytes()));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests;
