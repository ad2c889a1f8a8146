//! Traversals that are led through a FatTree of switches, each with its part of the index (PROTOCOL 16.5 to 16.9; Fat-B+Tree IV-A, III-D).
//!
//! ```text
//!             core            fat root: the child of a range, and its server
//!            /    \
//!     aggregation  ...        two node sets each
//!        /    \
//!      edge   edge
//!       |
//!   memory node               starts from the deepest node that was found
//! ```
//!
//! The first hop is the rack's switch. It keeps no state per request, so it does not know whether those above it are there: it watches one traversal
//! at a time that it sent up ([`Fabric`]).

use crate::switch::Outbox;
use crate::{Note, Reason, Switch};
use farmem_index::Descent;
use farmem_machine::{Duration, Instant, Port};
use farmem_transport::ud::Peer;
use farmem_wire::message::{Lead, SWITCHES_MAX};
use farmem_wire::{Body, Message, Pmtu, RequestId};

/// A traversal that was sent up and has not come again for so long has arrived: longer than a host waits before it sends again.
const WATCH_TIME: Duration = Duration::from_millis(200);
/// How much trust there is at most.
const TRUST_MAX: u8 = 8;
/// Below it nothing goes up but what is watched.
const TRUST_OPEN: u8 = 4;
/// What one that came again takes away; one that did not gives one.
const TRUST_LOST: u8 = 3;

/// Whether the switches above are there, as far as the first hop can tell (PROTOCOL 16.8).
///
/// A request that is lost comes again, with a flag. Of one request at a time this remembers the id: a host that sends it again says that it was lost.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    trust: u8,
    is_open: bool,
    /// The request that is watched, and until when.
    watched: Option<(RequestId, Instant)>,
}

impl Default for Fabric {
    fn default() -> Self {
        Self { trust: TRUST_MAX, is_open: true, watched: None }
    }
}

impl Fabric {
    /// True when a request that comes for the first time goes up.
    fn goes_up(&mut self, now: Instant, request: RequestId) -> bool {
        if self.watched.is_some_and(|(_, until)| until <= now) {
            self.watched = None;
            self.trust = (self.trust + 1).min(TRUST_MAX);
            self.is_open |= self.trust >= TRUST_OPEN;
        }
        let watches = self.watched.is_none();
        if watches {
            self.watched = Some((request, now + WATCH_TIME));
        }
        self.is_open || watches
    }

    /// A request that could have gone up came again.
    fn came_again(&mut self, request: RequestId) {
        if self.watched.is_some_and(|(watched, _)| watched == request) {
            self.watched = None;
            self.trust = self.trust.saturating_sub(TRUST_LOST);
            self.is_open &= self.trust > 0;
        }
    }

    pub(crate) fn assert_invariants(&self) {
        assert!(self.trust <= TRUST_MAX, "trust has a bound");
        assert!(self.is_open || self.trust < TRUST_OPEN, "what is trusted is used");
    }
}

impl Switch {
    /// Sends a host's traversal up, if there is a way for it (PROTOCOL 16.6). None: it goes as any other.
    pub(crate) fn lead_up(&mut self, now: Instant, message: &Message<'_>, out: &mut Outbox) -> Option<Note> {
        let Body::Traverse(traverse) = message.body else { return None };
        let (header, root) = (message.header, traverse.cur_ptr);
        let port = Port(self.soft.ways().up(header.domain, root, traverse.program)?);
        let index = port.as_index()?;
        let core = self.tables.peer(port)?;
        if header.again {
            self.fabric.came_again(header.request);
            return None;
        }
        let fits = Pmtu::fitting(message.len()).is_some_and(|pmtu| message.len() + Lead::LEN <= pmtu.bytes());
        // What is refused, or has no node to go to, is refused here.
        if !fits || !matches!(self.route(message), Ok(Some(_))) {
            return None;
        }
        if !self.fabric.goes_up(now, header.request) {
            return None;
        }
        let lead = Lead { header, root, server: None, switches: SWITCHES_MAX, traverse };
        self.send_bytes(core, lead.len(), |bytes| lead.emit(bytes), out);
        Some(Note::LedUp { index })
    }

    /// A traversal from another switch (PROTOCOL 16.7). One that cannot be led on goes back to the rack's switch, which routes it as any other.
    pub(crate) fn lead(&mut self, payload: &[u8], out: &mut Outbox) -> Note {
        let Ok(mut lead) = Lead::parse(payload) else { return Note::Dropped(Reason::Message) };
        if lead.header.hops == 0 {
            return Note::Dropped(Reason::Message);
        }
        let Some(switches) = lead.switches.checked_sub(1) else { return Note::Dropped(Reason::Astray) };
        lead.switches = switches;
        let Ok((descent, next)) = self.lead_on(&mut lead) else { return self.give_back(&lead, out) };
        let note = match (next.port.as_index(), lead.server) {
            (Some(index), _) => {
                self.send_bytes(next, lead.len(), |bytes| lead.emit(bytes), out);
                Note::LedDown { index }
            }
            (None, Some(server)) if next.port == Port::node(server.0) => {
                self.forward(next, lead.message(), out);
                Note::LedOut { node: server }
            }
            (None, _) => return self.give_back(&lead, out),
        };
        if let Some(descent) = descent {
            self.soft.count(&descent);
        }
        note
    }

    /// The next steps of the tree that are known here, and where the way goes on.
    fn lead_on(&self, lead: &mut Lead<'_>) -> Result<(Option<Descent>, Peer), Nowhere> {
        let (index, ways) = (self.soft.index(), self.soft.ways());
        let Lead { header, root, server, ref mut traverse, .. } = *lead;
        let descent = match server {
            None => {
                Some(index.start(header.domain, root, traverse.program, traverse.scratch).ok_or(Nowhere)?)
            }
            Some(_) => index.below(header.domain, root, traverse.cur_ptr, traverse.scratch),
        };
        let at = descent.map_or(traverse.cur_ptr, |descent| descent.at);
        let server =
            server.or_else(|| ways.server_of(at)).filter(|server| Port::is_node(server.0)).ok_or(Nowhere)?;
        let next = ways.next_hop(server).and_then(|port| self.tables.peer(Port(port))).ok_or(Nowhere)?;
        (traverse.cur_ptr, lead.server) = (at, Some(server));
        Ok((descent, next))
    }

    fn give_back(&mut self, lead: &Lead<'_>, out: &mut Outbox) -> Note {
        let Some(rack) = self.tables.peer(Port::SWITCH) else { return Note::Dropped(Reason::NoWay) };
        self.send(rack, &lead.message(), out);
        Note::LedBack
    }
}

/// No way leads on from here.
struct Nowhere;

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_wire::HostId;

    /// What happens to requests one after the other: each goes up or not, and is lost there or not.
    struct Story {
        fabric: Fabric,
        now: Instant,
        counter: u32,
    }

    impl Story {
        fn new() -> Self {
            Self { fabric: Fabric::default(), now: Instant::ZERO, counter: 0 }
        }

        /// So many requests, a microsecond apart; those that go up are lost. Answers how many went up.
        fn lost(&mut self, requests: u32) -> u32 {
            let mut up = 0;
            for _ in 0..requests {
                self.now += Duration::from_micros(1);
                self.counter += 1;
                let request = RequestId::new(HostId(1), 1, self.counter);
                if self.fabric.goes_up(self.now, request) {
                    up += 1;
                    self.fabric.came_again(request);
                }
                self.fabric.assert_invariants();
            }
            up
        }

        /// So many requests, each a time after the one before in which the watched one is known to have arrived.
        fn arrive(&mut self, requests: u32) -> u32 {
            let mut up = 0;
            for _ in 0..requests {
                self.now += WATCH_TIME;
                self.counter += 1;
                up += u32::from(self.fabric.goes_up(self.now, RequestId::new(HostId(1), 1, self.counter)));
                self.fabric.assert_invariants();
            }
            up
        }
    }

    #[test]
    fn a_fabric_that_loses_everything_is_left_after_three() {
        let mut story = Story::new();
        assert_eq!(story.lost(3), 3);
        // One at a time is still tried; here each is known to be lost at once.
        story.fabric.watched = Some((RequestId::new(HostId(9), 1, 1), story.now + WATCH_TIME));
        assert_eq!(story.lost(1_000), 0);
        assert_eq!(story.arrive(100), 100, "and when they arrive, it is used again");
        story.fabric.watched = Some((RequestId::new(HostId(9), 1, 1), story.now + WATCH_TIME));
        assert_eq!(story.lost(10), 10, "what is not watched is not asked for");
    }

    #[test]
    fn one_that_is_lost_now_and_then_changes_nothing() {
        let mut story = Story::new();
        for _ in 0..50 {
            assert_eq!((story.lost(1), story.arrive(5)), (1, 5));
        }
    }

    #[test]
    fn what_recovers_is_used_after_four() {
        let mut story = Story::new();
        story.lost(3);
        assert!(!story.fabric.is_open);
        story.arrive(4);
        assert!(!story.fabric.is_open, "of four the last is not known");
        story.arrive(1);
        assert!(story.fabric.is_open);
    }
}
