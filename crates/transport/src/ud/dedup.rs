//! De-duplication at the server: a request that writes is executed at most once.
use farmem_wire::RequestId;

/// Remembers the answers of the last requests that wrote, per requesting host.
#[derive(Debug)]
pub struct Dedup {}

/// What the server knows of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen<'a> {
    /// Never seen: execute it, then [`Dedup::remember`].
    New,
    /// Executed before: send this answer again.
    Answered(&'a [u8]),
    /// So old that its answer is forgotten: drop it.
    Forgotten,
}

#[expect(unused_variables, clippy::unimplemented, reason = "being written")]
impl Dedup {
    /// Remembers up to `depth` answers for each of up to `hosts_max` hosts; beyond that the host silent longest is forgotten.
    pub fn new(hosts_max: usize, depth: usize) -> Self { unimplemented!() }
    /// What is known of `request`.
    pub fn look(&self, request: RequestId) -> Seen<'_> { unimplemented!() }
    /// Remembers that `request` was executed and answered by the frame `answer`.
    pub fn remember(&mut self, request: RequestId, answer: &[u8]) { unimplemented!() }
}
