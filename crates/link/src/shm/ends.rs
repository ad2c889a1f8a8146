//! The two ends of a ring, each with its port, route and doorbell.

use super::atomic::AtomicU64;
use super::mapping::Mapping;
use super::ring::{Broken, Consumer, Producer};
use super::{PUBLISH_EVERY, doorbell, futex};
use farmem_machine::{Duration, Port};
use farmem_wire::icrc::{self, Route};
use farmem_wire::{Gid, UDP_PORT, WireError, bth};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Returns the route of frames from `src` to `dst`, as a UDP socket of farmem would send them.
const fn route(src: Gid, dst: Gid) -> Route {
    Route { src, dst, src_port: UDP_PORT, ip_id: 0 }
}

/// An endpoint's doorbell, its own or a peer's.
#[derive(Debug)]
pub(super) struct Doorbell {
    mapping: Mapping,
    /// The lock that shows that the endpoint is alive; `None` for a peer's doorbell.
    lock: Option<File>,
}

impl Drop for Doorbell {
    /// Releases the lock. Closing the file is not enough: a child that another thread is forking has it open
    /// until its exec.
    fn drop(&mut self) {
        if let Some(file) = &self.lock {
            // The close also releases the lock, but a moment later.
            drop(file.unlock());
        }
    }
}

impl Doorbell {
    pub(super) const fn new(mapping: Mapping, lock: Option<File>) -> Self {
        Self { mapping, lock }
    }

    fn words(&self) -> &[AtomicU64] {
        self.mapping.words()
    }

    /// Returns the number of rings announced to this endpoint.
    pub(super) fn arrivals(&self) -> u64 {
        doorbell::arrivals(self.words())
    }

    /// Ends the owner's wait.
    pub(super) fn call(&self) {
        doorbell::call(self.words());
        self.ring();
    }

    /// Returns the number of such calls.
    pub(super) fn calls(&self) -> u64 {
        doorbell::calls(self.words())
    }

    /// Announces a new ring.
    pub(super) fn announce(&self) {
        doorbell::announce(self.words());
        self.ring();
    }

    /// Wakes the endpoint if it sleeps.
    pub(super) fn ring(&self) {
        if doorbell::must_wake(self.words()) {
            futex::wake(&self.words()[doorbell::SLEEPING]);
        }
    }

    /// Announces sleep, unless `is_here` then finds news that arrived before. Returns true if there is none.
    pub(super) fn falls_asleep_unless(&self, is_here: impl FnOnce() -> bool) -> bool {
        doorbell::fall_asleep(self.words());
        let is_here = is_here();
        if is_here {
            doorbell::wake_up(self.words());
        }
        !is_here
    }

    /// Marks the owner as awake, because it polls its rings, so senders need not ring. A thread that already
    /// sleeps here continues to sleep.
    pub(super) fn stays_awake(&self) {
        if doorbell::is_announced(self.words()) {
            doorbell::wake_up(self.words());
        }
    }

    /// Returns true if the owner sleeps, or is about to.
    #[cfg(test)]
    pub(super) fn is_asleep(&self) -> bool {
        self.words()[doorbell::SLEEPING].load(super::atomic::Ordering::Relaxed) == 1
    }

    /// Sleeps until a peer rings, at most for `most`. Returns at once if a peer has rung since
    /// [`Doorbell::falls_asleep_unless`].
    pub(super) fn sleep(&self, most: Duration) -> io::Result<()> {
        let slept = futex::wait(&self.words()[doorbell::SLEEPING], 1, most);
        doorbell::wake_up(self.words());
        slept
    }
}

/// The writing end of a ring to a peer.
#[derive(Debug)]
pub(super) struct OutRing {
    dst: Gid,
    pub(super) route: Route,
    mapping: Mapping,
    producer: Producer,
    doorbell: Arc<Doorbell>,
    /// True if a frame was written since the last flush.
    is_dirty: bool,
    /// Number of records that are not published yet.
    unpublished: u32,
    is_broken: bool,
}

impl OutRing {
    pub(super) fn attach(
        src: Gid,
        dst: Gid,
        mapping: Mapping,
        doorbell: Arc<Doorbell>,
    ) -> Result<Self, Broken> {
        let producer = Producer::attach(mapping.words())?;
        let route = route(src, dst);
        Ok(Self {
            dst,
            route,
            mapping,
            producer,
            doorbell,
            is_dirty: false,
            unpublished: 0,
            is_broken: false,
        })
    }

    pub(super) const fn dst(&self) -> Gid {
        self.dst
    }

    pub(super) const fn is_broken(&self) -> bool {
        self.is_broken
    }

    pub(super) const fn is_clean(&self) -> bool {
        !self.is_dirty
    }

    /// Writes a packet; returns false if the ring is full.
    pub(super) fn push(&mut self, packet: &[u8]) -> Result<bool, Broken> {
        self.is_dirty = true;
        if self.is_broken {
            return Ok(false);
        }
        let words = self.mapping.words();
        let is_in = self.producer.push(words, packet).inspect_err(|Broken| self.is_broken = true)?;
        self.unpublished += u32::from(is_in);
        if self.unpublished == PUBLISH_EVERY {
            self.producer.publish(words);
            self.unpublished = 0;
        }
        Ok(is_in)
    }

    /// Publishes the written packets; returns the doorbell that the caller must ring.
    pub(super) fn publish(&mut self) -> &Arc<Doorbell> {
        self.producer.publish(self.mapping.words());
        self.unpublished = 0;
        self.is_dirty = false;
        &self.doorbell
    }
}

/// The reading end of a ring from a peer.
#[derive(Debug)]
pub(super) struct InRing {
    /// The peer's port, as far as the link knows.
    pub(super) port: Port,
    route: Route,
    mapping: Mapping,
    consumer: Consumer,
    is_broken: bool,
}

/// A record taken from a ring.
#[derive(Debug)]
pub(super) enum Popped<'a> {
    /// The ring is empty.
    Nothing,
    /// A frame with a correct ICRC.
    Frame(&'a [u8]),
    /// A frame with a wrong ICRC.
    BadIcrc,
    /// A record that is too short for a frame.
    Short,
    /// The peer wrote invalid data; no more frames will arrive.
    Broken,
}

impl InRing {
    pub(super) fn attach(src: Gid, dst: Gid, port: Port, mapping: Mapping) -> Result<Self, Broken> {
        let consumer = Consumer::attach(mapping.words())?;
        Ok(Self { port, route: route(src, dst), mapping, consumer, is_broken: false })
    }

    pub(super) const fn src(&self) -> Gid {
        self.route.src
    }

    pub(super) const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns true if [`InRing::pop`] has a result.
    pub(super) fn has_more(&self) -> bool {
        self.consumer.has_more(self.mapping.words())
    }

    /// Copies the next record into `buf`, then checks the copy, which the peer cannot change.
    pub(super) fn pop<'a>(&mut self, buf: &'a mut [u8], has_icrc: bool) -> Popped<'a> {
        let len = match self.consumer.pop(self.mapping.words(), buf) {
            Ok(Some(len)) => len,
            Ok(None) => return Popped::Nothing,
            Err(Broken) => {
                self.is_broken = true;
                return Popped::Broken;
            }
        };
        let packet = &buf[..len];
        if !has_icrc {
            return if len < bth::LEN { Popped::Short } else { Popped::Frame(packet) };
        }
        match icrc::check(&self.route, packet) {
            Ok(frame) => Popped::Frame(frame),
            Err(WireError::Short { .. }) => Popped::Short,
            Err(_) => Popped::BadIcrc,
        }
    }

    /// Releases the space of the read records to the peer.
    pub(super) fn release(&mut self) {
        self.consumer.release(self.mapping.words());
    }
}
