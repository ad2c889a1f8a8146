//! The requester's side: outstanding requests by id, each with a timer and a bounded number of retransmissions.
use farmem_machine::{Duration, Instant, Outbox, Port};
use farmem_wire::RequestId;

/// Outstanding requests; `T` is what the owner keeps for each.
#[derive(Debug)]
pub struct Requester<T> { _t: core::marker::PhantomData<T> }

/// A request that was given up.
#[derive(Debug)]
pub struct Expired<T> {
    /// Its id.
    pub request: RequestId,
    /// What the owner kept.
    pub context: T,
}

#[expect(unused_variables, clippy::unimplemented, reason = "being written")]
impl<T> Requester<T> {
    /// At most `outstanding_max` requests at once; each is sent again every `timeout` (doubling up to 8 times it), at most `retries_max` times.
    pub fn new(outstanding_max: usize, timeout: Duration, retries_max: u32) -> Self { unimplemented!() }
    /// Sends `frame` to `port` and keeps it until [`Requester::finish`]; gives the context back when too many are outstanding.
    pub fn start<O, N>(&mut self, now: Instant, request: RequestId, port: Port, frame: &[u8], context: T, out: &mut Outbox<O, N>) -> Result<(), T> { unimplemented!() }
    /// The context of an outstanding request.
    pub fn get_mut(&mut self, request: RequestId) -> Option<&mut T> { unimplemented!() }
    /// Ends a request: its answer came. `None` for one that is not outstanding (a late or repeated answer).
    pub fn finish(&mut self, request: RequestId) -> Option<T> { unimplemented!() }
    /// Sends again what is due; answers one given-up request per call, `None` when there is no more to do.
    pub fn on_wake<O, N>(&mut self, now: Instant, out: &mut Outbox<O, N>) -> Option<Expired<T>> { unimplemented!() }
    /// When [`Requester::on_wake`] is due.
    pub fn next_wake(&self) -> Option<Instant> { unimplemented!() }
    /// Requests outstanding.
    pub fn len(&self) -> usize { unimplemented!() }
    /// True when none is.
    pub fn is_empty(&self) -> bool { self.len() == 0 }
    /// Asserts every invariant.
    pub fn check(&self) { unimplemented!() }
}
