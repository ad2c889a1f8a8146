//! Messages in flight, and their descriptions.

use farmem_wire::HostId;
use farmem_wire::message::{
    Access, Data, Done, Get, Grant, Page, Read, Recall, RecallAck, Region, Seq, WriteBack, WriteBackAck,
};
use std::fmt;

/// A message in flight; its kind implies sender and receiver. Its bytes are one bit: whether they are the
/// latest ever written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Message {
    Get(HostId, Get),
    Read(Read),
    Data(HostId, Data, bool),
    Grant(HostId, Grant),
    Done(HostId, Done),
    Recall(HostId, Recall),
    Ack(HostId, RecallAck),
    WriteBack(HostId, WriteBack, bool),
    WriteBackAck(HostId, WriteBackAck),
    /// A traversal at a page, with the switch's state of it.
    Visit(Page, Option<Seq>),
    Refused(Page),
}

impl Message {
    /// Returns the page whose bytes the message carries, and whether they are the latest.
    pub(super) const fn bytes_mut(&mut self) -> Option<(Page, &mut bool)> {
        match self {
            Self::Data(_, Data { page, .. }, latest) | Self::WriteBack(_, WriteBack { page, .. }, latest) => {
                Some((*page, latest))
            }
            _ => None,
        }
    }

    /// Returns every sequence number in the message.
    pub(super) fn seqs(&self) -> impl Iterator<Item = Seq> {
        let (first, second) = match *self {
            Self::Get(..) | Self::Refused(_) => (None, None),
            Self::Read(read) => (Some(read.seq), None),
            Self::Data(_, data, _) => (Some(data.seq), None),
            Self::Grant(_, grant) => (Some(grant.seq), None),
            Self::Done(_, done) => (Some(done.seq), None),
            Self::Recall(_, recall) => (Some(recall.seq), None),
            Self::Ack(_, ack) => (Some(ack.seq), None),
            Self::WriteBack(_, write_back, _) => (Some(write_back.grant), write_back.ack.map(|ack| ack.seq)),
            Self::WriteBackAck(_, ack) => (Some(ack.grant), ack.ack.map(|ack| ack.seq)),
            Self::Visit(_, clean) => (clean, None),
        };
        first.into_iter().chain(second)
    }
}

/// Names of hosts, pages, accesses, regions and flags in traces.
pub(super) fn host(host: HostId) -> char {
    char::from(b'A' + u8::try_from(host.0).expect("few hosts"))
}

pub(super) fn page(page: Page) -> String {
    format!("p{}", page.number())
}

pub(super) const fn access(access: Access) -> &'static str {
    match access {
        Access::Shared => "to read",
        Access::Modified => "to write",
    }
}

pub(super) fn region(region: Region) -> String {
    if region.order() == 0 {
        page(region.base())
    } else {
        format!("{}-{}", page(region.base()), page(region.last()))
    }
}

const fn flag(set: bool, word: &'static str) -> &'static str {
    if set { word } else { "" }
}

struct Bytes(bool);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "latest bytes" } else { "old bytes" })
    }
}

struct Acked(Option<RecallAck>);

impl fmt::Display for Acked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ack) => write!(f, ", ack s{}", ack.seq.0),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Get(from, get) => {
                write!(
                    f,
                    "{} -> switch: get {} {}, r{}",
                    host(from),
                    page(get.page),
                    access(get.access),
                    get.id.0
                )
            }
            Self::Read(read) => write!(
                f,
                "switch -> node: read {} {} for {} r{}, s{}{}{}{}",
                page(read.page),
                access(read.access),
                host(read.host),
                read.id.0,
                read.seq.0,
                flag(read.clean, ", clean"),
                flag(read.behind, ", behind"),
                flag(read.granted, ", granted"),
            ),
            Self::Data(to, data, latest) => write!(
                f,
                "node -> {}: data {} {}, r{}, s{}{}, {}",
                host(to),
                page(data.page),
                access(data.access),
                data.id.0,
                data.seq.0,
                flag(data.granted, ", granted"),
                Bytes(latest),
            ),
            Self::Grant(to, grant) => {
                write!(
                    f,
                    "switch -> {}: grant {}, r{}, s{}",
                    host(to),
                    page(grant.page),
                    grant.id.0,
                    grant.seq.0
                )
            }
            Self::Done(from, done) => {
                write!(f, "{} -> switch: done {}, s{}", host(from), page(done.page), done.seq.0)
            }
            Self::Recall(to, recall) => write!(
                f,
                "switch -> {}: recall {}, s{}{}",
                host(to),
                region(recall.region),
                recall.seq.0,
                flag(recall.keep, ", keep"),
            ),
            Self::Ack(from, ack) => {
                write!(f, "{} -> switch: ack {}, s{}", host(from), region(ack.region), ack.seq.0)
            }
            Self::WriteBack(from, write_back, latest) => write!(
                f,
                "{} -> node: write back {}, g{}{}, {}",
                host(from),
                page(write_back.page),
                write_back.grant.0,
                Acked(write_back.ack),
                Bytes(latest),
            ),
            Self::WriteBackAck(to, ack) => {
                write!(
                    f,
                    "node -> {}: written {}, g{}{}",
                    host(to),
                    page(ack.page),
                    ack.grant.0,
                    Acked(ack.ack)
                )
            }
            Self::Visit(at, Some(seq)) => {
                write!(f, "switch -> node: traversal at {}, clean before s{}", page(at), seq.0)
            }
            Self::Visit(at, None) => write!(f, "switch -> node: traversal at {}", page(at)),
            Self::Refused(at) => write!(f, "node -> switch: {} is lent, traversal refused", page(at)),
        }
    }
}
