//! What the switch says when it refuses: a response of the request's kind, with the state the request brought.
//!
//! A message whose body makes no sense can still be answered when its [`Envelope`] can be read. It does not send anything.

use farmem_wire::message::{Kind, Traverse, Updates, VERSION};
use farmem_wire::{Body, Domain, Header, HostId, Message, ProgramHash, RequestId, Status, VirtAddr};

/// The response to `message` with `status`: a region without data, traversals' whole state without code (PROTOCOL 6.14).
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

/// The part of a message that stays where it is in every version: enough to answer by (PROTOCOL 6.15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Envelope {
    version: u8,
    kind: Option<Kind>,
    /// Never answered when set.
    pub(crate) response: bool,
    request: RequestId,
}

impl Envelope {
    /// Reads what can be read; `None` when there is no request id to answer by.
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

    /// What is wrong with a message that did not parse.
    pub(crate) const fn status(&self) -> Status {
        if self.version != VERSION {
            Status::Version
        } else if self.kind.is_none() {
            Status::Unsupported
        } else {
            Status::Malformed
        }
    }

    /// The response: of the request's kind when that is known, with nothing in it.
    pub(crate) fn refusal(&self, domain: Domain, origin: HostId) -> Message<'static> {
        let (addr, len, data) = (VirtAddr::NULL, 0, &[][..]);
        let body = match self.kind {
            Some(Kind::RegionRead) | None => Body::RegionRead { addr, len, data },
            Some(Kind::RegionWrite) => Body::RegionWrite { addr, len, data },
            // Of a batch it is the first pair's answer.
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
