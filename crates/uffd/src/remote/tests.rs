//! Tests of the acceptor and the guard without a program. Tests with programs: the system tests of `farmem run`.

use super::call::{HELLO_WORDS, Hello, WELCOME_WORDS, device_request};
use super::{Acceptor, Guard, Remote, Watch, buffer};
use crate::{Reach, SharedMapping};
use farmem_host::agent::Pages as _;
use farmem_link::Clock;
use farmem_machine::Duration as Span;
use farmem_preload_abi::userfaultfd::{Features, Userfaultfd, device};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use rustix::fs::{MemfdFlags, OFlags, fcntl_get_seals, fcntl_getfl, fcntl_setfl, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, send, shutdown, socket_with,
};
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;

fn visitor(acceptor: &Acceptor) -> OwnedFd {
    let invitation = acceptor.invitation();
    let (name, _) = invitation.split_once(':').expect("a name and a token");
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    socket
}

/// A greeting with a file on disk instead of a memfd is refused. Its file system may never answer, so the pager would
/// block in a read and serve no process.
#[test]
fn a_greeting_needs_a_memfd() {
    let hello = Hello { token: 1, base: 1 << 30, len: 1 << 20, snapshot: 0, full: true };
    let memory = memfd_create("far", MemfdFlags::CLOEXEC).unwrap();
    let test = std::env::current_exe().unwrap();
    let plain: OwnedFd = tempfile::tempfile_in(test.parent().unwrap()).unwrap().into();
    let Some(served) = userfaultfd("a_greeting_needs_a_memfd") else { return };
    let is_let_in = |file: OwnedFd| Remote::new(served.try_clone().unwrap(), file, &hello).is_some();
    assert!(is_let_in(memory));
    if fcntl_get_seals(&plain).is_ok() {
        return eprintln!("skipped: what is built here lies in memory, so there is no other file");
    }
    assert!(!is_let_in(plain));
}

/// Opens a userfaultfd of this process, as a program would; prints a line and returns `None` if that is not
/// permitted.
fn userfaultfd(test: &str) -> Option<OwnedFd> {
    match Userfaultfd::open(Reach::UserMode, Features::WINDOW) {
        Ok(served) => Some(served.as_fd().try_clone_to_owned().unwrap()),
        Err(error) => {
            eprintln!("skipped: {test}: {error}");
            None
        }
    }
}

/// A greeting with another descriptor instead of a userfaultfd (a pipe, a device, a counter) is refused, because the
/// pager would block in a read.
#[test]
fn a_greeting_needs_a_userfaultfd() {
    let Some(served) = userfaultfd("a_greeting_needs_a_userfaultfd") else { return };
    let hello = Hello { token: 1, base: 1 << 30, len: 1 << 20, snapshot: 0, full: true };
    let is_let_in = |served: OwnedFd| {
        Remote::new(served, memfd_create("far", MemfdFlags::CLOEXEC).unwrap(), &hello).is_some()
    };
    assert!(is_let_in(served));
    assert!(!is_let_in(File::open("/dev/null").unwrap().into()));
    assert!(!is_let_in(rustix::pipe::pipe().unwrap().0));
    assert!(!is_let_in(rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap()));
}

/// A program clears the non-blocking flag of its userfaultfd, which it shares with its pager. The pager's read does
/// not block, and the flag is set again.
#[test]
fn a_pager_never_blocks_in_a_read() {
    let Some(served) = userfaultfd("a_pager_never_blocks_in_a_read") else { return };
    let hello = Hello { token: 1, base: 1 << 30, len: 1 << 20, snapshot: 0, full: true };
    let file = memfd_create("far", MemfdFlags::CLOEXEC).unwrap();
    let remote = Remote::new(served.try_clone().unwrap(), file, &hello).unwrap();
    fcntl_setfl(&served, OFlags::empty()).unwrap();
    let (ends, ended) = mpsc::channel();
    // Not joined: without the fix it waits for ever.
    std::thread::spawn(move || {
        let full = remote.faults(&mut buffer(), |_, _| unreachable!(), |_| unreachable!());
        ends.send(full).unwrap();
    });
    let full = ended.recv_timeout(Duration::from_secs(60)).expect("the read does not wait");
    assert_eq!(full, Ok(false), "nothing is reported");
    assert!(fcntl_getfl(&served).unwrap().contains(OFlags::NONBLOCK));
}

/// An invited process requests the device again and again, and another one connects behind it. Each call answers the
/// first once, and the second in its turn. Before the fix, the first call never ended. A process that has sent
/// something stays when silent ones connect.
#[test]
fn repeated_requests_delay_no_other_process() {
    let acceptor = Acceptor::open(0x123a).unwrap();
    let (first, second) = (visitor(&acceptor), visitor(&acceptor));
    let request = bytes_of(device_request(0x123a));
    for _ in 0..3 {
        send(&first, &request, SendFlags::empty()).unwrap();
    }
    send(&second, &request, SendFlags::empty()).unwrap();
    let strangers: Vec<_> = (0..100).map(|_| visitor(&acceptor)).collect();
    let mut bytes = [0; WELCOME_WORDS * 8];
    let mut is_answered = |socket| rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT).is_ok();
    assert!(acceptor.receive().is_none());
    assert!(is_answered(&first) && !is_answered(&first), "once");
    assert!(is_answered(&second));
    for _ in 0..2 {
        assert!(acceptor.receive().is_none());
        assert!(is_answered(&first), "it stays");
    }
    drop(strangers);
}

/// A process with an invalid greeting, without descriptors or without the token is refused, and the acceptor
/// continues.
#[test]
fn uninvited_processes_are_refused() {
    let acceptor = Acceptor::open(0x1234).unwrap();
    let hello = Hello { token: 0x1234, base: 0, len: 1 << 20, snapshot: 0, full: true };
    let bytes = bytes_of(hello.words());
    let mut events = Vec::new();
    for what in [&b"hello"[..], &[][..], &bytes[..]] {
        let socket = visitor(&acceptor);
        let _ = send(&socket, what, SendFlags::empty());
        drop(socket);
        acceptor.events(None, &mut events).unwrap();
        assert_eq!(events, [Watch::Connections]);
        assert!(acceptor.receive().is_none(), "{what:?}");
    }
    acceptor.events(Some(Duration::ZERO), &mut events).unwrap();
    assert_eq!(events, []);
}

/// Any user of the machine may connect to the pager's socket. A hundred silent connections come first, and an invited
/// process is answered at the next call. Before the fix, the pager waited two seconds for each silent one, and served
/// no fault meanwhile.
#[test]
fn silent_connections_delay_no_process() {
    let acceptor = Acceptor::open(0x1239).unwrap();
    let strangers: Vec<_> = (0..100).map(|_| visitor(&acceptor)).collect();
    let socket = visitor(&acceptor);
    send(&socket, &bytes_of(device_request(0x1239)), SendFlags::empty()).unwrap();
    assert!(acceptor.receive().is_none(), "it does not greet yet");
    let mut bytes = [0; WELCOME_WORDS * 8];
    let (count, _) = rustix::net::recv(&socket, &mut bytes, RecvFlags::DONTWAIT).expect("it is answered");
    assert_eq!(count, bytes.len());
    drop((strangers, socket));
    assert!(acceptor.receive().is_none());
    let mut events = Vec::new();
    acceptor.events(Some(Duration::ZERO), &mut events).unwrap();
    assert_eq!(events, [], "a process that hung up is forgotten");
}

/// A process connects through the socket file, which is removed with the acceptor.
#[test]
fn a_process_connects_by_the_socket_file() {
    let acceptor = Acceptor::open(0x1236).unwrap();
    let path = acceptor.path().expect("the temporary directory is writable").to_owned();
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    send(&socket, &bytes_of(device_request(0x1236)), SendFlags::empty()).unwrap();
    shutdown(&socket, Shutdown::Write).unwrap();
    let mut events = Vec::new();
    acceptor.events(None, &mut events).unwrap();
    assert_eq!(events, [Watch::Connections]);
    assert!(acceptor.receive().is_none(), "it does not greet");
    let mut bytes = [0; WELCOME_WORDS * 8];
    let (count, _) = rustix::net::recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
    assert_eq!(count, bytes.len(), "it is answered");
    drop(acceptor);
    assert!(!path.exists());
}

fn bytes_of(words: [u64; HELLO_WORDS]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Processes that know the token get the device, if the pager may open it. Others get no answer.
#[test]
fn only_invited_processes_get_the_device() {
    let acceptor = Acceptor::open(0x1234).unwrap();
    for (token, invited) in [(0x1234, true), (0x1235, false)] {
        let socket = visitor(&acceptor);
        send(&socket, &bytes_of(device_request(token)), SendFlags::empty()).unwrap();
        shutdown(&socket, Shutdown::Write).unwrap();
        assert!(acceptor.receive().is_none(), "it does not greet");
        let mut bytes = [0; WELCOME_WORDS * 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message = recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::empty()).unwrap();
        let devices = ancillary.drain().map(|part| match part {
            RecvAncillaryMessage::ScmRights(rights) => rights.count(),
            _ => 0,
        });
        let (len, devices) = (message.bytes, devices.sum::<usize>());
        let expected = if invited { (WELCOME_WORDS * 8, usize::from(device().is_ok())) } else { (0, 0) };
        assert_eq!((len, devices), expected);
        assert_eq!(bytes[0] == 0, !invited || devices == 1, "the status says whether it is there");
    }
}

/// The name of the socket, which every process can read, does not reveal the token.
#[test]
fn the_name_does_not_reveal_the_token() {
    let token = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
    let invitation = Acceptor::open(token).unwrap().invitation();
    let (name, said) = invitation.split_once(':').unwrap();
    assert_eq!(u128::from_str_radix(said, 16), Ok(token));
    assert!(!name.contains(&said[..8]) && !name.contains(&said[24..]));
}

/// A guard whose pager closes the connection ends without killing. A process that was let go does not matter.
#[test]
fn a_guard_ends_with_its_pager() {
    let (ours, theirs) = Guard::open().unwrap();
    let guard = std::thread::spawn(move || super::guard(theirs));
    let file = File::open("/dev/null").unwrap();
    ours.keep(7, &file, &file, &file).unwrap();
    ours.let_go(7);
    drop(ours);
    assert_eq!(guard.join().unwrap().unwrap(), 0);
}

/// A guard kills the processes that were not let go, and returns their number.
#[test]
fn a_guard_returns_the_number_of_killed_processes() {
    let (ours, theirs) = Guard::open().unwrap();
    let guard = std::thread::spawn(move || super::guard(theirs));
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let ended = rustix::process::pidfd_open(
        rustix::process::Pid::from_child(&child),
        rustix::process::PidfdFlags::empty(),
    );
    let file = File::open("/dev/null").unwrap();
    ours.keep(1, ended.unwrap(), &file, &file).unwrap();
    drop(ours);
    assert_eq!(guard.join().unwrap().unwrap(), 1);
    assert!(!child.wait().unwrap().success());
}

/// A guard revokes pages whose lease ends, even if their pager does nothing. The guard continues when the watch is
/// over (PROTOCOL 12.49).
#[test]
fn a_guard_revokes_shared_pages_when_their_lease_ends() {
    let (ours, theirs) = Guard::open().unwrap();
    let guard = std::thread::spawn(move || super::guard(theirs));
    let base = VirtAddr(0x2d00_0000_0000);
    let (shared_mapping, clock) =
        (SharedMapping::open(base, 8 * PAGE_LEN as u64, 8).unwrap(), Clock::start());
    let (mut pages, lease) = (&shared_mapping, shared_mapping.lease());
    assert!(lease.begin(&clock, clock.after(Span::from_secs(3600))));
    ours.watch(&shared_mapping).unwrap();
    pages.install(Page::of(base), &[7; PAGE_LEN], Access::Modified);
    assert!(lease.extend(&clock, clock.now()));
    // The end is earlier than the guard knew: the change rings its doorbell.
    assert!(lease.begin(&clock, clock.now()));
    while lease.takes() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(
        rustix::fs::fstat(shared_mapping.file()).unwrap().st_blocks,
        0,
        "out of every program's reach"
    );
    pages.write_protect(Page::of(base));
    let mut bytes = Vec::new();
    pages.read(Page::of(base), 0..PAGE_LEN, &mut bytes);
    assert_eq!(bytes, [7; PAGE_LEN], "and not lost");
    lease.stop();
    let file = File::open("/dev/null").unwrap();
    ours.keep(7, &file, &file, &file).unwrap();
    ours.let_go(7);
    // The shared mapping has the pager's end of the connection, too, to notice the guard's end.
    drop((ours, shared_mapping));
    guard.join().unwrap().unwrap();
}
