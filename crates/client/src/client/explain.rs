//! Why an operation failed, in words that say what to do: the host role's failures and the nodes' statuses as errors of this crate.

use super::Client;
use super::relocate::first_lost;
use crate::slots::{Meta, Refused, Touch};
use crate::{Error, TraversalStop};
use farmem_control::api::{Request, Response};
use farmem_host::Failure;
use farmem_transport::rc;
use farmem_wire::{Status, VirtAddr};

impl Client {
    /// Turns the role's short failure into one that says what was wrong; mends the connection when it broke.
    pub(super) fn explain(&mut self, failure: Failure, meta: Meta, buf_len: usize) -> Error {
        let Meta { addr, len, touch, .. } = meta;
        match meta.refused {
            Some(Refused::Lost { base, len }) => return Error::MemoryLost { base: VirtAddr(base), len },
            Some(Refused::OutOfBounds) => return Error::OutOfBounds { addr, len },
            None => {}
        }
        match failure {
            Failure::NotConnected { addr } => self.connect_late(addr),
            Failure::NoSession => {
                Error::Unreachable { what: "the switch: this client has no session".into() }
            }
            Failure::OutOfBounds { addr } => Error::OutOfBounds { addr, len },
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
            // The next operation finds the client joined again.
            Failure::IdsUsedUp => Error::Interrupted,
            Failure::NoAnswer => {
                Error::Unreachable { what: format!("the switch and the node that owns {addr}") }
            }
            Failure::Stalled { addr } => Error::Traversal { addr, reason: TraversalStop::Stalled },
            Failure::Refused { status: Status::Lost, addr } => self.memory_lost(addr, len),
            Failure::Refused { status, addr } if touch == Touch::Traverse => traversal_error(status, addr),
            Failure::Refused { status, addr } => refusal(status, addr, len),
            Failure::Connection(failure) => self.explain_connection(failure, meta),
        }
    }

    /// A broken connection is set up again; a NAK says little, so the switch is asked what was wrong.
    fn explain_connection(&mut self, failure: rc::Failure, meta: Meta) -> Error {
        if self.path.is_broken(self.domain, meta.addr)
            && let Some(node) = self.node_of(meta.addr)
            && let Err(error) = self.connect(node)
        {
            return error;
        }
        let Meta { addr, len, .. } = meta;
        match failure {
            rc::Failure::RemoteAccess | rc::Failure::RemoteOperational => self.diagnose(meta),
            rc::Failure::InvalidRequest => Error::OutOfBounds { addr, len },
            rc::Failure::RetriesExceeded | rc::Failure::RnrRetriesExceeded => {
                match self.found_lost(addr, len) {
                    // It answers again, in another life: what it held is lost, whatever became of this operation.
                    Some((base, len)) => Error::MemoryLost { base: VirtAddr(base), len },
                    None => Error::Unreachable { what: format!("the memory node that owns {addr}") },
                }
            }
            rc::Failure::Flushed => Error::Interrupted,
        }
    }

    fn diagnose(&mut self, meta: Meta) -> Error {
        let Meta { addr, len, touch, .. } = meta;
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

    /// Bytes that the node or the switch called lost; which of them, the control plane knows when they went with a node.
    fn memory_lost(&mut self, addr: VirtAddr, len: u64) -> Error {
        let (base, len) = self.found_lost(addr, len).unwrap_or((addr.0, len));
        Error::MemoryLost { base: VirtAddr(base), len }
    }

    /// The first of these bytes that went with a memory node, as far as they go together.
    fn found_lost(&mut self, addr: VirtAddr, len: u64) -> Option<(u64, u64)> {
        match self.path.ask(Request::Locate { addr: addr.0 }) {
            Ok(Response::Located { lost, .. }) => first_lost(&lost, addr.0, len),
            _ => None,
        }
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
