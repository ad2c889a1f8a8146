//! Causes of failed operations: the host role's failures and the nodes' statuses as errors of this crate.

use crate::client::Client;
use crate::client::attach::located;
use crate::error::{Error, TraversalStop};
use crate::slots::{Meta, Touch};
use farmem_control::api::{Locate, NodeInfo, Overview};
use farmem_host::{Failure, Op};
use farmem_transport::rc;
use farmem_wire::{Status, UDP_PORT, VirtAddr};

impl Client {
    /// Reads up to [`farmem_host::REGION_DATA_MAX`] bytes through the switch instead of over a connection,
    /// for diagnosis.
    ///
    /// # Errors
    /// [`Error`] if the address is invalid.
    pub fn region_read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        let buf = self.buffer(into.len());
        let (_, buf) = self.carry_out(Op::RegionRead { addr, buf })?;
        into.copy_from_slice(&buf);
        self.recycle(buf);
        Ok(())
    }

    /// Writes up to [`farmem_host::REGION_DATA_MAX`] bytes through the switch instead of over a connection,
    /// for diagnosis.
    ///
    /// # Errors
    /// [`Error`] if the address is invalid.
    pub fn region_write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        let mut buf = self.buffer(0);
        buf.extend_from_slice(data);
        let (_, buf) = self.carry_out(Op::RegionWrite { addr, buf })?;
        self.recycle(buf);
        Ok(())
    }

    /// Returns the error that explains a failure of the host role.
    pub(super) fn explain(&mut self, failure: Failure, meta: Meta, buf_len: usize) -> Error {
        let error = self.explain_failure(failure, meta, buf_len);
        // A fenced host gets no answers and has no connections.
        let may_be =
            matches!(error, Error::Unreachable { .. } | Error::Interrupted | Error::NotMapped { .. });
        // If a thread renews the host's lease, that thread has asked meanwhile. So this method asks only
        // without one, because the control plane may be unreachable as well.
        if may_be && !self.joining && self.renewal.is_none() {
            self.check_fenced();
        }
        if may_be && self.is_fenced() { self.fenced_error() } else { error }
    }

    /// Returns true if this client's host is known to be fenced.
    pub(super) fn is_fenced(&self) -> bool {
        self.fenced || self.renewal.as_ref().is_some_and(|renewal| renewal.is_gone(self.generation))
    }

    pub(super) const fn fenced_error(&self) -> Error {
        Error::Fenced { host: self.host, generation: self.generation }
    }

    /// Asks the control plane whether this generation of the host is in the rack. Call this method after a
    /// failure that a fence can cause.
    pub(super) fn check_fenced(&mut self) {
        let own = (self.host, self.generation);
        if !self.fenced
            && let Ok(seen) = self.path.call_now(Overview {})
        {
            self.fenced = !seen.hosts.iter().any(|at| (at.host, at.generation) == own);
        }
    }

    fn explain_failure(&mut self, failure: Failure, meta: Meta, buf_len: usize) -> Error {
        let Meta { addr, len, touch, .. } = meta;
        match failure {
            Failure::NotConnected { addr } => Error::NotMapped { addr },
            Failure::Unreachable { addr } => Error::Unreachable { what: self.owner_of(addr) },
            Failure::Lost { addr, len } => Error::MemoryLost { base: addr, len },
            Failure::NoSession => {
                Error::Unreachable { what: format!("{}: this client has no session", self.switch_at()) }
            }
            Failure::OutOfBounds { .. } => Error::OutOfBounds { addr, len },
            Failure::Misaligned { addr } => Error::Misaligned { addr },
            Failure::TooLong { .. } if touch == Touch::Traverse => {
                Error::Traversal { addr, reason: TraversalStop::TooLarge }
            }
            Failure::ScratchTooLong { max } => {
                Error::Traversal { addr, reason: TraversalStop::ScratchTooLarge { len: buf_len, max } }
            }
            Failure::TooLong { max } => Error::TooLong { len: buf_len, max },
            Failure::ScratchLen { need } => Error::ScratchLen { have: buf_len, need },
            Failure::QueueFull => Error::QueueFull,
            // The next operation makes the client join again.
            Failure::IdsUsedUp => Error::Interrupted,
            Failure::NoAnswer => {
                Error::Unreachable { what: format!("{}, or from {}", self.switch_at(), self.owner_of(addr)) }
            }
            Failure::Stalled { addr } => Error::Traversal { addr, reason: TraversalStop::Stalled },
            Failure::Refused { status: Status::Lost, addr } => self.memory_lost(addr, len),
            // The switch has no entries for a card's addresses (PROTOCOL 14.16).
            Failure::Refused { status: Status::NotMapped, addr } if self.is_card(addr) => {
                Error::CardMemory { addr }
            }
            Failure::Refused { status, addr } if touch == Touch::Traverse => traversal_error(status, addr),
            Failure::Refused { status, addr } => refusal(status, addr, len),
            Failure::Connection(failure) => self.explain_connection(failure, meta),
        }
    }

    /// Returns the error that explains a failed connection. A NAK contains little, so this method asks the
    /// switch for the cause.
    fn explain_connection(&mut self, failure: rc::Failure, meta: Meta) -> Error {
        let Meta { addr, len, touch } = meta;
        match failure {
            rc::Failure::RemoteAccess | rc::Failure::RemoteOperational if touch == Touch::Keyed => {
                let reason = "its record is not at the node of its connection, or this client's domain may not read it";
                Error::Key { key: addr.0, reason }
            }
            rc::Failure::RemoteAccess | rc::Failure::RemoteOperational => self.diagnose(meta),
            rc::Failure::InvalidRequest => Error::OutOfBounds { addr, len },
            rc::Failure::RetriesExceeded | rc::Failure::RnrRetriesExceeded if touch == Touch::Keyed => {
                let what = format!("the memory node with key {:#x}", addr.0);
                Error::Unreachable { what }
            }
            rc::Failure::RetriesExceeded | rc::Failure::RnrRetriesExceeded => {
                Error::Unreachable { what: self.owner_of(addr) }
            }
            rc::Failure::Flushed => Error::Interrupted,
        }
    }

    /// Returns name and address of the switch.
    fn switch_at(&self) -> String {
        if self.switch.is_empty() {
            return "the switch".into();
        }
        format!("the switch at {}, UDP port {UDP_PORT}", self.switch)
    }

    /// Returns name and address of the memory node that owns `addr`, as far as this client knows.
    fn owner_of(&self, addr: VirtAddr) -> String {
        let holds = |node: &&NodeInfo| addr.0.wrapping_sub(node.base) < node.capacity;
        match self.nodes.iter().chain(&self.cards).find(holds) {
            Some(NodeInfo { name, gid, .. }) => {
                format!("memory node {name} at {gid}, UDP port {UDP_PORT}, which owns {addr}")
            }
            None => format!("the memory node that owns {addr}, at UDP port {UDP_PORT}"),
        }
    }

    /// Returns true if `addr` belongs to a card's memory, as far as this client knows.
    fn is_card(&self, addr: VirtAddr) -> bool {
        let holds = |node: &NodeInfo| node.card != 0 && addr.0.wrapping_sub(node.base) < node.capacity;
        self.cards().iter().any(holds)
    }

    fn diagnose(&mut self, meta: Meta) -> Error {
        let Meta { addr, len, touch, .. } = meta;
        // The switch has no entries for cards; a card refuses accesses outside the memory that it registered.
        if self.is_card(addr) {
            return Error::OutOfBounds { addr, len };
        }
        let mut byte = [0];
        if let Err(error) = self.region_read(addr, &mut byte) {
            return error;
        }
        let last = addr.checked_add(len.saturating_sub(1));
        match last.map(|last| self.region_read(last, &mut byte)) {
            Some(Ok(())) if touch == Touch::Read => Error::Interrupted,
            Some(Ok(())) => Error::NoPermission { addr },
            Some(Err(lost @ Error::MemoryLost { .. })) => lost,
            Some(Err(_)) | None => Error::OutOfBounds { addr, len },
        }
    }

    /// Returns the error for bytes that the node or the switch reported as lost. If they were lost with a
    /// node, the control plane knows the exact range.
    fn memory_lost(&mut self, addr: VirtAddr, len: u64) -> Error {
        let found = self.path.call_now(Locate { addr: addr.0 }).ok();
        let found = found.and_then(|found| located(found).first_lost(addr, len));
        let (base, len) = found.unwrap_or((addr, len));
        Error::MemoryLost { base, len }
    }
}

fn refusal(status: Status, addr: VirtAddr, len: u64) -> Error {
    match status {
        Status::NotMapped => Error::NotMapped { addr },
        Status::NoPermission => Error::NoPermission { addr },
        Status::OutOfBounds => Error::OutOfBounds { addr, len },
        Status::Misaligned => Error::Misaligned { addr },
        Status::Busy => Error::QueueFull,
        _ => Error::Unreachable {
            what: format!("the owner of {addr} in a way this client understands ({status:?})"),
        },
    }
}

fn traversal_error(status: Status, addr: VirtAddr) -> Error {
    let reason = match status {
        Status::NotMapped => TraversalStop::NotMapped,
        Status::NoPermission => TraversalStop::NoPermission,
        Status::OutOfBounds => TraversalStop::OutOfBounds,
        Status::ProgramFault => TraversalStop::ProgramFault,
        Status::BadProgram | Status::UnknownProgram => TraversalStop::BadProgram,
        Status::Busy => return Error::QueueFull,
        other => TraversalStop::Other(other),
    };
    Error::Traversal { addr, reason }
}
