//! The guard that kills programs whose pager dies, before they can read zeros.
//!
//! Key items: [`Guard`], [`guard`]. When the last descriptor of a userfaultfd is closed, its missing pages read as
//! zeros. So a separate process, the guard, holds a copy of each; meanwhile a thread that touches a missing page
//! waits. When the pager has ended, the guard kills those processes, and only then ends itself. The guard needs no
//! help from them: they may close any descriptor.
//!
//! The pager may also be stopped or frozen while the programs run on. So the guard also revokes shared pages when
//! their lease has ended ([`Watcher`]).

use super::address_space::{FileId, kill_holders};
use crate::SharedMapping;
use crate::lease::{DESCRIPTORS, Watcher, Woken};
use farmem_link::OpenError;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// The pager's side of the guard.
#[derive(Debug)]
pub struct Guard {
    socket: OwnedFd,
}

impl Guard {
    /// Creates the connection. The guard's process calls [`guard`] with the second value.
    ///
    /// # Errors
    /// [`OpenError::System`].
    pub fn open() -> Result<(Self, OwnedFd), OpenError> {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) =
            pair.map_err(|e| OpenError::System { doing: "connect a guard".into(), source: e.into() })?;
        Ok((Self { socket: ours }, theirs))
    }

    /// Guards the process `number` until [`Guard::let_go`], with all processes that have its address space,
    /// identified by `file`.
    ///
    /// # Errors
    /// The system's error if the guard has ended: then the program is not guarded.
    pub fn keep(&self, number: u32, ended: impl AsFd, uffd: impl AsFd, file: impl AsFd) -> Result<(), Errno> {
        let descriptors = [ended.as_fd(), uffd.as_fd(), file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for three");
        self.say(number, &mut ancillary)
    }

    /// Makes the guard revoke the pages of `shared_mapping` when their lease ends, even if this process is stopped.
    ///
    /// # Errors
    /// The system's error if the guard has ended: then the lease is not watched.
    pub fn watch(&self, shared_mapping: &SharedMapping) -> io::Result<()> {
        let lease = shared_mapping.lease();
        let [words, doorbell, kept] = lease.descriptors();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [words, doorbell, kept, shared_mapping.file()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for them");
        self.say(WATCH, &mut ancillary)?;
        lease.watched_by(self.socket.try_clone()?);
        Ok(())
    }

    /// Ends the guard of a process that has ended or has lost its memory.
    pub fn let_go(&self, number: u32) {
        // A guard that has ended guards nothing.
        let _ = self.say(number, &mut SendAncillaryBuffer::default());
    }

    fn say(&self, number: u32, ancillary: &mut SendAncillaryBuffer<'_, '_, '_>) -> Result<(), Errno> {
        let bytes = number.to_le_bytes();
        rustix::io::retry_on_intr(|| {
            sendmsg(&self.socket, &[IoSlice::new(&bytes)], ancillary, SendFlags::NOSIGNAL)
        })
        .map(drop)
    }
}

/// The number of no process: its message starts a watch.
const WATCH: u32 = u32::MAX;

/// Guards until the pager closes the connection or dies, and then kills the processes that are still guarded. Returns
/// their number. The guard also kills them, and returns an error, if it cannot revoke pages whose lease has ended.
///
/// # Errors
/// The system's error.
pub fn guard(socket: impl AsFd) -> io::Result<usize> {
    let mut processes = BTreeMap::new();
    let guarded = guard_all(&socket, &mut processes);
    // A process that has ended ignores the signal.
    let mut killed =
        processes.values().filter(|process| pidfd_send_signal(&process.ended, Signal::KILL).is_ok()).count();
    for GuardedProcess { ended, file, .. } in processes.values() {
        let mut ends = [rustix::event::PollFd::new(ended, rustix::event::PollFlags::IN)];
        // The userfaultfd is held until the process, and every other one with its address space, has ended.
        let _ = rustix::io::retry_on_intr(|| rustix::event::poll(&mut ends, None));
        killed += FileId::of(file).map_or(0, kill_holders);
    }
    guarded.map(|()| killed)
}

fn guard_all(socket: &impl AsFd, processes: &mut BTreeMap<u32, GuardedProcess>) -> io::Result<()> {
    let mut watcher: Option<Watcher> = None;
    loop {
        if let Some(watching) = &mut watcher
            && watching.watch(Some(socket.as_fd()))? == Woken::Stopped
        {
            watcher = None;
        }
        let Some((number, descriptors)) = hear(socket) else { return Ok(()) };
        match <[OwnedFd; DESCRIPTORS]>::try_from(descriptors) {
            Ok(descriptors) if number == WATCH => watcher = Some(Watcher::received(descriptors)?),
            Ok(_) => {}
            Err(descriptors) => match <[OwnedFd; 3]>::try_from(descriptors) {
                Ok([ended, uffd, file]) => {
                    drop(processes.insert(number, GuardedProcess { ended, _uffd: uffd, file }))
                }
                Err(_) => drop(processes.remove(&number)),
            },
        }
    }
}

/// A process that the guard kills when its pager dies.
struct GuardedProcess {
    /// The pidfd.
    ended: OwnedFd,
    /// Held open, so that a thread that touches a missing page waits.
    _uffd: OwnedFd,
    /// The memfd of its far memory, which identifies other processes with its address space.
    file: OwnedFd,
}

/// Receives the next message; `None` at the end.
fn hear(socket: &impl AsFd) -> Option<(u32, Vec<OwnedFd>)> {
    let mut bytes = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other.ok()?,
        }
    };
    let descriptors = ancillary.drain().flat_map(|part| match part {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    (message.bytes == bytes.len()).then(|| (u32::from_le_bytes(bytes), descriptors))
}
