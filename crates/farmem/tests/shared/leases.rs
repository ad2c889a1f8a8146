//! Leases that end, and leases that do not.

use crate::LIMIT;
use crate::programs::look;
use crate::rig::{DOMAIN, PAGE, TestRack};
use farmem::api::DirectoryInfo;
use farmem::{Rack, ShareOptions, VirtAddr};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;
use std::thread::scope;
use std::time::Duration;

fn directory(rack: &TestRack) -> DirectoryInfo {
    let mut client = Rack::running(rack.config.clone()).client(DOMAIN).unwrap();
    client.overview().unwrap().directory
}

/// A process dies with pages that threads of another process wait for, each from a different moment on, so a
/// complaint about an unanswered request is always pending. The waiting process keeps renewing its lease.
/// Only the dead process's lease ends.
#[test]
fn a_wait_for_a_dead_host_keeps_the_own_lease() {
    const WAITING: u64 = 8;
    let rack = TestRack::start("shm", 1);
    let Some(space) = rack.space(ShareOptions::new(LIMIT)) else { return };
    // Each in regions of its own.
    let vmas: Vec<_> = (0..=WAITING).map(|_| space.allocate(512 * PAGE).unwrap()).collect();
    let mine = vmas[0].base;
    space.word(mine).store(5, Ordering::Relaxed);
    let mut args = vec![LIMIT];
    args.extend(vmas[1..].iter().map(|vma| vma.base.0));
    let mut holder = rack.run("hold all", &args);
    holder.await_word("holds");
    holder.kill();
    scope(|scope| {
        for (vma, n) in vmas[1..].iter().zip(0_u32..) {
            let memory = space.memory(vma);
            scope.spawn(move || {
                // A stagger, not a wait: the complaints must not all come at once.
                std::thread::sleep(Duration::from_millis(150) * n);
                assert_eq!(look(memory, 0), None, "lost");
            });
        }
    });
    let info = directory(&rack);
    assert_eq!((info.lapses, info.lost_pages), (1, WAITING), "{info:?}");
    assert_eq!((space.stats().lapses, space.failure()), (0, None));
    assert_eq!(space.word(mine).load(Ordering::Relaxed), 5);
    drop(space);
    let info = directory(&rack);
    assert!((info.lapses, info.fences) == (1, info.leaves + 1), "{info:?}");
}

/// A whole process is stopped and continues after others have overwritten its words. The process loads
/// nothing older than the writer's published progress. The lease watch that takes its pages does not stop
/// with the process (PROTOCOL 12.49).
#[test]
fn a_process_that_was_stopped_loads_nothing_old() {
    const LAST: u64 = 2000;
    const PAGES: u64 = 512;
    let rack = TestRack::start("shm", 1);
    let Some(space) = rack.space(ShareOptions::new(LIMIT)) else { return };
    let vma = space.allocate(PAGES * PAGE).unwrap();
    let at = VirtAddr(vma.base.0 + (PAGES - 1) * PAGE);
    let (word, said) = (space.word(at), rack.said());
    word.store(1, Ordering::Release);
    let mut reader = rack.run("see", &[LIMIT, vma.base.0, at.0, LAST]);
    reader.await_word("sees");
    reader.send("STOP");
    for n in 2..=LAST {
        word.store(n, Ordering::Release);
        said.write_all_at(&n.to_le_bytes(), 0).unwrap();
    }
    reader.send("CONT");
    assert_eq!(reader.answer(), 0, "old loads");
    reader.end();
    assert_eq!((directory(&rack).lapses, space.stats().lapses, space.failure()), (1, 0, None));
}
