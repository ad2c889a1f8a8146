//! Memory system calls of processes on several hosts: one address space, with Linux's error numbers (MIND
//! 4.1, 6.1).

use crate::programs::look;
use crate::rig::{PAGE, TestRack};
use farmem::process::{At, Prot};
use farmem::{Error, NodeId, Rack, ShareOptions, SharedSpace, VirtAddr, Vma};
use std::sync::atomic::Ordering;

const LIMIT: u64 = 4 << 20;
const READ_WRITE: Prot = Prot::WRITE;

macro_rules! space_or_skip {
    ($rack:expr) => {
        match $rack.space(ShareOptions::new(LIMIT)) {
            Some(space) => space,
            None => return,
        }
    };
}

fn store(space: &SharedSpace, at: VirtAddr, value: u64) {
    space.word(at).store(value, Ordering::Relaxed);
}

fn load(space: &SharedSpace, at: VirtAddr) -> u64 {
    space.word(at).load(Ordering::Relaxed)
}

/// Returns the error number of a refused call.
fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    match result {
        Err(Error::System { source, .. }) => source.raw_os_error().expect("an error number"),
        other => panic!("{other:?}"),
    }
}

fn mapped_bytes(rack: &TestRack) -> u64 {
    let mut client = Rack::running(rack.config.clone()).client("onlooker").unwrap();
    let nodes = client.overview().unwrap().nodes;
    nodes.iter().map(|node| node.allocated).sum()
}

/// A mapping of one process exists in another, at the same address on another host. An access that mprotect
/// forbids ends in SIGBUS there too. When the last process ends, all memory is freed.
#[test]
fn processes_on_two_hosts_have_one_address_space() {
    for transport in ["shm", "udp"] {
        let rack = TestRack::start(transport, 2);
        let space = space_or_skip!(rack);
        let first = space.process(0).unwrap();
        let at = first.map(At::Anywhere, 4 * PAGE, READ_WRITE).unwrap();
        assert_eq!(load(&space, at), 0, "a mapping is zero");
        store(&space, at, 7);
        let mut other = rack.run("process", &[LIMIT, at.0, at.0 + PAGE]);
        other.await_word("is there");
        other.say("go on");
        other.await_word("has read");
        other.say("go on");
        other.await_word("has written");
        assert_eq!(load(&space, at), 8);

        let second = VirtAddr(at.0 + PAGE);
        store(&space, second, 9);
        first.protect(second, PAGE, Prot::READ).unwrap();
        assert_eq!(load(&space, second), 9, "what may be read is still there");
        other.say("go on");
        other.await_word("has read");
        // The address space persists: the other process was never told to exit.
        other.say("go on");
        assert_eq!(other.signal(), Some(libc::SIGBUS), "no program on any host stores there any more");
        assert_eq!(load(&space, second), 9);
        first.exit().unwrap();
        assert_eq!(space.failure(), None);
    }
}

#[test]
fn calls_fail_as_on_linux() {
    let rack = TestRack::start("shm", 1);
    let space = space_or_skip!(rack);
    let process = space.process(1 << 20).unwrap();
    let at = process.map(At::Anywhere, 2 * PAGE, READ_WRITE).unwrap();
    assert_eq!(errno(process.map(At::Anywhere, 0, READ_WRITE)), libc::EINVAL);
    assert_eq!(errno(process.map(At::Exactly(at), PAGE, READ_WRITE)), libc::EEXIST);
    assert_eq!(errno(process.map(At::Anywhere, 1 << 40, READ_WRITE)), libc::ENOMEM);
    assert_eq!(errno(process.unmap(VirtAddr(at.0 + 1), PAGE)), libc::EINVAL);
    assert_eq!(errno(process.protect(at, 3 * PAGE, READ_WRITE)), libc::ENOMEM);

    // New mappings read as zero, and unmapped pages are gone.
    store(&space, at, 3);
    assert_eq!(process.map(At::Replacing(at), PAGE, READ_WRITE).unwrap(), at);
    assert_eq!(load(&space, at), 0);
    process.unmap(at, PAGE).unwrap();
    let (base, size) = space.span();
    let all = Vma { base, size, node: NodeId(1) };
    let offset = usize::try_from(at.0 - base.0).unwrap();
    assert_eq!(look(space.memory(&all), offset), None);

    // The heap: brk returns its end and does not grow beyond the initial reservation.
    let heap = process.heap().unwrap();
    let end = VirtAddr(heap.0 + 3 * PAGE);
    assert_eq!(process.brk(end).unwrap(), end);
    store(&space, heap, 5);
    assert_eq!(process.brk(VirtAddr(heap.0 + (2 << 20))).unwrap(), end);
    assert_eq!(process.brk(heap).unwrap(), heap);
    assert_eq!(process.brk(end).unwrap(), end);
    assert_eq!(load(&space, heap), 0, "a page that comes back to the heap is zero");
    assert!(mapped_bytes(&rack) > 0);
    process.exit().unwrap();
    assert_eq!(mapped_bytes(&rack), 0);
}
