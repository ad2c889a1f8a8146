//! Wire formats: RoCEv2 packets as RDMA cards send them, and farmem's messages inside UD SENDs.
//!
//! A *frame* is the bytes from the BTH to the end of the pad. The ICRC behind it covers the IP and UDP
//! headers too, so the link that knows these headers seals and checks it ([`icrc`]). Roles never see an ICRC
//! (docs/decisions, "ICRC at the edge").
//!
//! Each header has two types:
//!
//! - A *view* ([`bth::View`], [`headers::view`]) reads and rewrites fields in place, for links and the
//!   switch.
//! - A *value* (`Bth`, `Reth`, ...) is a small struct of valid fields with `parse` and `emit`.
//!
//! [`Packet`] combines the values of one frame. [`Message`] does the same for the payload of a UD SEND.
//!
//! **Panic contract.** No `parse` and no `new_checked` panics, whatever the bytes. After a view's
//! `new_checked`, none of its getters or setters panics. `emit` panics only if a value breaks a rule that its
//! type documents.
//!
//! Layouts: docs/protocol.md, sections 2 (RoCEv2) and 3 (messages).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bth;
mod error;
pub mod gather;
pub mod headers;
pub mod icrc;
mod ids;
mod keyed;
pub mod message;
mod packet;
pub mod pd3;
mod reader;
pub mod soda;

pub use bth::{Bth, Opcode};
pub use error::WireError;
pub use gather::Gather;
pub use headers::{Aeth, AtomicEth, DMA_LEN_MAX, Deth, Nak, Reth, Syndrome};
pub use ids::{
    Domain, Gid, HostId, NodeId, Perm, Pmtu, ProgramHash, Psn, Qkey, Qpn, RequestId, Rkey, VirtAddr,
};
pub use keyed::{KeyedFrame, KeyedHeader};
pub use message::{Body, Header, Message, RawMessage, Status};
pub use packet::{Datagram, Extension, OpenFrame, Packet};

/// The UDP port of RoCEv2 (InfiniBand Architecture, annex A17).
pub const UDP_PORT: u16 = 4791;
