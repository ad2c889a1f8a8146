//! Reliable connections: every rule of docs/protocol/04-reliable-connections.md, and both halves together
//! over a bad channel.

mod failures;
mod gather;
mod hostile;
mod keyed;
mod requester;
mod responder;
mod simulation;
mod sink;
mod source;
mod support;
