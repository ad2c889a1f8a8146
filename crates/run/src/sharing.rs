//! What the processes of a run share with those of other runs, on other hosts: named objects, whose pages they have coherently.
//!
//! Key type: [`Sharing`], a host of the rack beside the one that private memory is kept by. Its page cache is a [`SharedMapping`]: one frame for a page,
//! however many processes of this run use it. It has a thread of its own; faults are handed to it, so that neither kind of memory
//! waits for the other. Objects are the control plane's (PROTOCOL 8.33); here is only which process uses which.

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
    /// Joins the rack as a host that shares with all others that name the same `domain`.
    pub(super) fn join(config: &RackConfig, domain: &str, options: ShareOptions) -> Result<Self, Error> {
        let space = HostHandle::of_others(config, domain, options)?;
        Ok(Self { space, api: api_client(config)? })
    }

    /// Where its pages are.
    pub(super) fn shared_mapping(&self) -> &SharedMapping {
        self.space.fault_source()
    }

    /// A thread of a process waits.
    pub(super) fn fault(&self, key: u32, fault: &Fault) {
        if let Some(page) = self.shared_mapping().fault(key, fault) {
            self.space.fault(page, fault.write);
        }
    }

    pub(super) fn stats(&self) -> ShareStats {
        self.space.stats()
    }

    /// The last process has ended: what was written goes to the memory nodes.
    pub(super) fn finish(&self) -> Result<(), Error> {
        self.space.write_back()
    }

    /// What a process asks: an object's number, length, first byte and bytes of memory.
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

    /// No process of the run uses the object any more.
    fn close(&mut self, object: u64) {
        let open = self.space.objects().remove(&object);
        if open {
            let host = self.space.host();
            // A rack that does not answer, or has forgotten this host, has closed it.
            let _closed = self.api.call(DropObject { host, object });
        }
    }
}

/// What a process had whose memory is gone, though it is not known to have ended.
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
    /// Has its processes share named memory with those of other runs that name the same `domain` of the rack.
    ///
    /// # Errors
    /// As [`SharedSpace::join`](farmem_memory::SharedSpace::join).
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

    /// What was done to shared pages; `None` when nothing is shared.
    #[must_use]
    pub fn share_stats(&self) -> Option<ShareStats> {
        self.sharing.as_ref().map(Sharing::stats)
    }

    /// First address and bytes of what is shared, in every process that shares.
    pub(super) fn shared_span(&self) -> Option<(u64, u64)> {
        let (base, len) = self.sharing.as_ref()?.shared_mapping().span();
        Some((base.0, len))
    }

    /// A process comes in; true when it can share what there is to be shared.
    pub(super) fn let_share(&self, key: u32, accepted: &Accepted) -> bool {
        self.sharing
            .as_ref()
            .is_none_or(|sharing| sharing.shared_mapping().join(key, &accepted.remote).is_ok())
    }

    /// A process asks for an object.
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

    /// A process has ended, or runs another program, which may have descriptors of its objects and is about to come in.
    pub(super) fn stop_sharing(&mut self, key: u32, process: Process) {
        let Some(sharing) = &self.sharing else { return };
        sharing.shared_mapping().leave(key);
        let Process { pid, ended, objects, .. } = process;
        if !objects.is_empty() {
            self.moving.push(Moving { pid, ended, objects });
        }
        self.close_of_ended();
    }

    /// The objects that a process had before it ran another program.
    pub(super) fn take_moved(&mut self, pid: u32) -> BTreeSet<u64> {
        let its = |moving: &mut Moving| moving.pid == pid;
        self.moving.extract_if(.., its).flat_map(|moving| moving.objects).collect()
    }

    /// Of those who were to come in again, some have ended instead.
    fn close_of_ended(&mut self) {
        let ended: Vec<Moving> = self.moving.extract_if(.., |moving| moving.has_ended()).collect();
        for Moving { objects, .. } in ended {
            self.close_unused(objects);
        }
    }

    /// Of objects that a process used, those that no other uses are closed.
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

/// The system's number for what came of a call.
fn errno_of(error: &Error, call: Call) -> u64 {
    match (error.code(), call) {
        (Some(ErrorCode::NotFound), _) => errno::NOENT,
        (Some(ErrorCode::Conflict), Call::Open { .. }) => errno::EXIST,
        (Some(ErrorCode::Conflict | ErrorCode::BadRequest), _) => errno::INVAL,
        (Some(ErrorCode::OutOfMemory | ErrorCode::TableFull), _) => errno::NOSPC,
        _ => errno::IO,
    }
}
