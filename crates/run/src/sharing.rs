//! Named objects that the processes of a run share coherently with other runs, on other hosts.
//!
//! Key type: [`Sharing`], a second host of the rack beside the one for private memory.
//!
//! Its page cache is a [`SharedMapping`]: one frame for a page, for any number of processes of this run. The
//! cache has its own thread, and the pager hands faults to it, so neither kind of memory waits for the other.
//! The control plane manages objects (PROTOCOL 8.33); this module records which process uses which object.

use super::{Pager, Process, errno};
use farmem_api::ApiClient;
use farmem_client::Error;
use farmem_client::RackConfig;
use farmem_client::host_parts::api_client;
use farmem_client::host_parts::wrong_answer;
use farmem_control::api::{
    DropObject, ErrorCode, HoldObject, ObjectInfo, OpenObject, Request, ResizeObject, Response, UnlinkObject,
};
use farmem_memory::fault_source::HostHandle;
use farmem_memory::{ShareOptions, ShareStats};
use farmem_uffd::remote::Accepted;
use farmem_uffd::remote::call::{Call, VALUES};
use farmem_uffd::{Fault, SharedMapping};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

/// Named objects, and their pages.
#[derive(Debug)]
pub(super) struct Sharing {
    space: HostHandle<SharedMapping>,
    api: ApiClient,
}

impl Sharing {
    /// Joins the rack as a host that shares with all others of the same `domain`.
    pub(super) fn join(config: &RackConfig, domain: &str, options: ShareOptions) -> Result<Self, Error> {
        let space = HostHandle::of_others(config, domain, options)?;
        Ok(Self { space, api: api_client(config)? })
    }

    /// Returns the mapping that holds the shared pages.
    pub(super) fn shared_mapping(&self) -> &SharedMapping {
        self.space.fault_source()
    }

    /// Handles the fault of a waiting thread.
    pub(super) fn fault(&self, key: u32, fault: &Fault) {
        if let Some(page) = self.shared_mapping().fault(key, fault) {
            self.space.fault(page, fault.write);
        }
    }

    pub(super) fn stats(&self) -> ShareStats {
        self.space.stats()
    }

    /// Writes all modified pages back to the memory nodes, after the last process has ended.
    pub(super) fn finish(&self) -> Result<(), Error> {
        self.space.write_back()
    }

    /// Executes a call on an object. Returns the object's number, its length, and the address and length of its
    /// memory.
    fn carry_out(&mut self, call: Call, name: Option<String>) -> Result<[u64; VALUES], u64> {
        let (host, domain) = (self.space.host(), self.space.domain());
        let request: Request = match (call, name) {
            (Call::Open { create, exclusive, .. }, Some(name)) => {
                OpenObject { create, exclusive, ..OpenObject::new(host, domain, name) }.into()
            }
            (Call::Unlink { .. }, Some(name)) => UnlinkObject { domain, name }.into(),
            (Call::Hold { object }, _) => HoldObject::new(host, object).into(),
            (Call::Truncate { object, length }, _) => ResizeObject { host, object, length }.into(),
            _ => return Err(errno::INVAL),
        };
        match self.api.call(request).map_err(Error::from) {
            Ok(Response::Object(ObjectInfo { object, length, base, size })) => {
                self.space.objects().insert(object);
                Ok([object, length, base, size])
            }
            Ok(_) => Ok([0; VALUES]),
            Err(error) => Err(errno_of(&error, call)),
        }
    }

    /// Closes an object that no process of the run uses any more.
    fn close(&mut self, object: u64) {
        let open = self.space.objects().remove(&object);
        if open {
            let host = self.space.host();
            // A rack that does not answer, or has forgotten this host, has closed the object.
            let _closed = self.api.call(DropObject { host, object });
        }
    }
}

/// The objects of a process whose memory is gone, but whose end is not known.
#[derive(Debug)]
pub(super) struct Moving {
    pid: u32,
    ended: OwnedFd,
    objects: BTreeSet<u64>,
}

impl Moving {
    fn has_ended(&self) -> bool {
        farmem_uffd::remote::is_readable(&self.ended)
    }
}

impl Pager {
    /// Shares named memory with other runs of the same `domain` of the rack.
    ///
    /// # Errors
    /// See [`SharedSpace::join`](farmem_memory::SharedSpace::join).
    pub fn share(
        &mut self,
        rack: &farmem_client::Rack,
        domain: &str,
        options: ShareOptions,
    ) -> Result<(), Error> {
        let Some(config) = rack.config() else { return Err(wrong_answer("a rack in this process")) };
        self.sharing = Some(Sharing::join(config, domain, options)?);
        Ok(())
    }

    /// Returns the counters of shared pages; `None` when nothing is shared.
    #[must_use]
    pub fn share_stats(&self) -> Option<ShareStats> {
        self.sharing.as_ref().map(Sharing::stats)
    }

    /// Returns address and length of the shared memory, which are the same in every process.
    pub(super) fn shared_span(&self) -> Option<(u64, u64)> {
        let (base, len) = self.sharing.as_ref()?.shared_mapping().span();
        Some((base.0, len))
    }

    /// Attaches a process to the shared memory; returns true on success, or when nothing is shared.
    pub(super) fn let_share(&self, key: u32, accepted: &Accepted) -> bool {
        self.sharing
            .as_ref()
            .is_none_or(|sharing| sharing.shared_mapping().join(key, &accepted.remote).is_ok())
    }

    /// Executes a process's call on an object.
    pub(super) fn call_for_object(
        &mut self,
        key: u32,
        mailbox: usize,
        call: Call,
    ) -> Result<[u64; VALUES], u64> {
        let Some(sharing) = &mut self.sharing else { return Err(errno::NOSYS) };
        let process = self.processes.get_mut(&key).ok_or(errno::FAULT)?;
        let name = match call {
            Call::Open { len, .. } | Call::Unlink { len } => process.remote.text(mailbox, len),
            _ => None,
        };
        let values = sharing.carry_out(call, name)?;
        if values[0] != 0 {
            process.objects.insert(values[0]);
        }
        Ok(values)
    }

    /// Ends the sharing of a process that has ended or runs another program. The new program may inherit
    /// descriptors of objects, and is about to attach.
    pub(super) fn stop_sharing(&mut self, key: u32, process: Process) {
        let Some(sharing) = &self.sharing else { return };
        sharing.shared_mapping().leave(key);
        let Process { pid, ended, objects, .. } = process;
        if !objects.is_empty() {
            self.moving.push(Moving { pid, ended, objects });
        }
        self.close_of_ended();
    }

    /// Returns the objects that a process had before it ran another program.
    pub(super) fn take_moved(&mut self, pid: u32) -> BTreeSet<u64> {
        let its = |moving: &mut Moving| moving.pid == pid;
        self.moving.extract_if(.., its).flat_map(|moving| moving.objects).collect()
    }

    /// Closes the objects of processes that ended instead of attaching again.
    fn close_of_ended(&mut self) {
        let ended: Vec<Moving> = self.moving.extract_if(.., |moving| moving.has_ended()).collect();
        for Moving { objects, .. } in ended {
            self.close_unused(objects);
        }
    }

    /// Closes those of a process's objects that no other process uses.
    pub(super) fn close_unused(&mut self, objects: BTreeSet<u64>) {
        let Some(sharing) = &mut self.sharing else { return };
        for object in objects {
            let uses = |process: &Process| process.objects.contains(&object);
            let awaited = self.snapshots.values().any(|snapshot| snapshot.objects.contains(&object))
                || self.moving.iter().any(|moving| moving.objects.contains(&object));
            if !awaited && !self.processes.values().any(uses) {
                sharing.close(object);
            }
        }
    }
}

/// Returns the errno for the error of a call.
fn errno_of(error: &Error, call: Call) -> u64 {
    match (error.code(), call) {
        (Some(ErrorCode::NotFound), _) => errno::NOENT,
        (Some(ErrorCode::Conflict), Call::Open { .. }) => errno::EXIST,
        (Some(ErrorCode::Conflict | ErrorCode::BadRequest), _) => errno::INVAL,
        (Some(ErrorCode::OutOfMemory | ErrorCode::TableFull), _) => errno::NOSPC,
        _ => errno::IO,
    }
}
