//! Reliable connections: every rule of docs/protocol.md, section 4, and both halves together over a bad channel.

mod failures;
mod hostile;
mod requester;
mod responder;
mod simulation;
mod support;
