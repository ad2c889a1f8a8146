//! Facts about the privileges that each kind of userfaultfd needs.

use crate::rig::{Ended, Rig, alone, fork, load};
use farmem_preload_abi::userfaultfd::OpenError;
use farmem_uffd::{Features, Reach, Userfaultfd};
use std::fs::OpenOptions;

/// The usual user without privileges.
const UNPRIVILEGED: libc::uid_t = 65534;

/// Runs `act` as a user without privileges; returns `None` if this process is not root.
fn as_nobody(act: impl FnOnce() -> i32) -> Option<Ended> {
    let _alone = alone();
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can give up its rights");
        return None;
    }
    let child = fork(|| {
        // SAFETY: changes this child alone: it has one thread.
        assert_eq!(unsafe { libc::setgroups(0, std::ptr::null()) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setgid(UNPRIVILEGED) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setuid(UNPRIVILEGED) }, 0);
        act()
    });
    Some(child.wait())
}

fn unprivileged_is_allowed() -> bool {
    std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|text| text.trim() == "1")
}

/// A user without privileges gets a userfaultfd for user code, with all features of a window, but no full one. The
/// error has the command for an administrator.
#[test]
fn an_unprivileged_user_gets_user_mode_only() {
    if unprivileged_is_allowed() {
        eprintln!("skipped: vm.unprivileged_userfaultfd is 1, so everybody has the right");
        return;
    }
    let ended = as_nobody(|| {
        let refused = Userfaultfd::open(Reach::Full, Features::WINDOW);
        let Err(error @ OpenError::NotPermitted { .. }) = refused else { return 1 };
        let said = error.to_string();
        if !said.contains("sudo sh -c '") {
            return 2;
        }
        match Userfaultfd::open(Reach::UserMode, Features::WINDOW.and(Features::MOVE)) {
            Ok(uffd) if uffd.reach() == Reach::UserMode => 0,
            _ => 3,
        }
    });
    assert!(ended.is_none_or(|ended| ended == Ended::Exit(0)), "{ended:?}");
}

/// A user without privileges gets no events of forks.
#[test]
fn an_unprivileged_user_gets_no_fork_events() {
    let ended = as_nobody(|| {
        let refused = Userfaultfd::open(Reach::UserMode, Features::FORK);
        i32::from(!matches!(refused, Err(OpenError::NotPermitted { .. })))
    });
    assert!(ended.is_none_or(|ended| ended == Ended::Exit(0)), "{ended:?}");
}

/// Only a privileged process may open the device, but an open device gives a full userfaultfd to every process that
/// inherits it.
#[test]
fn an_inherited_device_gives_a_full_userfaultfd() {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    let device = crate::rig::or_skip!(opened);
    let ended = as_nobody(|| {
        if OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").is_ok() {
            return 1;
        }
        let Ok(uffd) = Userfaultfd::open_from(&device, Reach::Full, Features::WINDOW) else { return 2 };
        let rig = Rig::new(uffd);
        let at = rig.app.at(0);
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let reader = Rig::spawn(move || crate::kernel_access::read_into(&zeros, at));
        let done = rig.serve(reader, 7);
        if done == Ok(4096) && load(at) == 0 { 0 } else { 3 }
    });
    assert!(ended.is_none_or(|ended| ended == Ended::Exit(0)), "{ended:?}");
}

/// The error names a missing feature; the offered ones can be queried.
#[test]
fn missing_features_are_named() {
    let offered = crate::rig::or_skip!(Userfaultfd::offered());
    assert!(offered.has(Features::WINDOW), "{:#x}", offered.bits());
}
