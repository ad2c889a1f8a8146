//! Reliable connections: every rule of docs/protocol/04-reliable-connections.md, and both halves together
//! over a bad channel.

mod failures;
mod gather;
mod hostile;
mod keyed;
mod landing;
mod origin;
mod requester;
mod responder;
mod simulation;
mod support;
