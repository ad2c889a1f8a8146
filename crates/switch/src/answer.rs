//! Refusals by the switch: a response of the request's kind, with the state that the request brought.
//!
//! A message with an invalid body can still be answered if its [`Envelope`] can be read. This file does not
//! send.

use farmem_wire::message::{Kind, Traverse, Updates, VERSION};
use farmem_wire::{Body, Domain, Header, HostId, Message, ProgramHash, RequestId, Status, VirtAddr};

/// Returns the response to `message` with `status`: a region without data, a traversal's whole state without
/// code (PROTOCOL 6.14).
pub(crate) fn refusal<'a>(message: &Message<'a>, status: Status) -> Message<'a> {
    let body = match message.body {
        Body::RegionRead { addr, len, .. } => Body::RegionRead { addr, len, data: &[] },
        Body::RegionWrite { addr, len, .. } => Body::RegionWrite { addr, len, data: &[] },
        Body::Traverse(traverse) => Body::Traverse(Traverse { code: &[], ..traverse }),
        Body::Batch(batch) => Body::Batch(batch.without_code()),
        Body::Update(updates) => Body::Update(Updates::response(updates.seq, 0)),
    };
    Message { header: message.header.answer(status), body }
}

/// The version-independent part of a message, from which a response can be made (PROTOCOL 6.15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Envelope {
    version: u8,
    kind: Option<Kind>,
    /// True for a response, which is never answered.
    pub(crate) response: bool,
    request: RequestId,
}

impl Envelope {
    /// Reads the envelope; `None` if the payload has no request id.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let (&[version, kind, _status, flags, _, _, _, _], rest) = payload.split_first_chunk::<8>()?;
        let (&request, _) = rest.split_first_chunk::<8>()?;
        Some(Self {
            version,
            kind: Kind::from_bits(kind),
            response: flags & 1 == 1,
            request: RequestId(u64::from_be_bytes(request)),
        })
    }

    /// Returns the status for a message that did not parse.
    pub(crate) const fn status(&self) -> Status {
        if self.version != VERSION {
            Status::Version
        } else if self.kind.is_none() {
            Status::Unsupported
        } else {
            Status::Malformed
        }
    }

    /// Returns an empty response, of the request's kind if it is known.
    pub(crate) fn refusal(&self, domain: Domain, origin: HostId) -> Message<'static> {
        let (addr, len, data) = (VirtAddr::NULL, 0, &[][..]);
        let body = match self.kind {
            Some(Kind::RegionRead) | None => Body::RegionRead { addr, len, data },
            Some(Kind::RegionWrite) => Body::RegionWrite { addr, len, data },
            // A batch gets the answer of its first pair.
            Some(Kind::Traverse | Kind::Batch) => Body::Traverse(Traverse {
                program: ProgramHash([0; 16]),
                cur_ptr: addr,
                iterations: 0,
                limit: 0,
                scratch: &[],
                code: &[],
            }),
            Some(Kind::Update) => Body::Update(Updates::response(0, 0)),
        };
        let header = Header { domain, origin, ..Header::request(self.request, 0) };
        Message { header: header.answer(self.status()), body }
    }
}
