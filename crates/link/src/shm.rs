//! Frames between processes of one machine, through rings in shared memory.
//!
//! All endpoints of a rack share one directory, on tmpfs and accessible to one user only. Every ordered pair
//! of endpoints has a ring `SRC-DST.ring` there, which the first of the two creates. Every endpoint has a
//! doorbell `GID.doorbell`, on which it sleeps and whose lock shows that it is alive. Frames contain the same
//! bytes as on the wire, including the ICRC (source port 4791, IP id 0), unless configured otherwise.
//!
//! A ring outlives its ends: frames that were sent before an endpoint started, or restarted, are delivered
//! late, as on a slow network. If a ring is full, the sender loses the frame and counts it.
//!
//! A process with access to the directory is only trusted not to truncate files. A peer that writes invalid
//! data into a ring loses the ring.

mod dir;
pub(crate) mod doorbell;
mod ends;
pub(crate) mod futex;
pub(crate) mod many;
pub(crate) mod mapping;
pub(crate) mod ring;
#[cfg(test)]
mod tests;

/// The atomics of ring and doorbell, which `tests/ring_loom.rs` replaces by loom's.
mod atomic {
    pub(crate) use crate::word_copy::{load_words, store_words};
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

pub(crate) use dir::bell_at;
pub use dir::{live_endpoints, remove_dir};
pub use mapping::Mapping;
pub use ring::{WORD, load_at, store_at};

use crate::peers::Peers;
use crate::timers::wake_precisely;
use crate::{Clock, FRAME_MAX, Link, LinkCounters, OpenError, Parcel, Sleeper, Wait, Waiting, WakeAt, Waker};
use dir::Dir;
use ends::{Doorbell, InRing, OutRing, Popped};
use farmem_machine::{Duration, Port};
use farmem_wire::{Gid, bth, icrc};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Default size of a ring's data in bytes: twice a full window of 128 packets of 4 KiB.
pub const RING_BYTES: usize = 1 << 20;
/// Minimum size of a ring: three of the longest frames.
pub const RING_BYTES_MIN: usize = 1 << 14;
/// Maximum size of a ring.
pub const RING_BYTES_MAX: usize = 1 << 30;
/// Maximum number of rings of one endpoint in each direction.
pub const RINGS_MAX: usize = 1024;

/// Maximum number of frames per [`Link::receive`].
const BATCH: usize = 64;
/// Number of frames after which a producer publishes before the flush, so that the consumer can start.
const PUBLISH_EVERY: u32 = 16;
/// Number of polls of the rings before a polling link begins to yield the CPU after each poll.
const SPINS_BEFORE_YIELD: u32 = 4096;
/// Number of polls of the rings between two readings of the clock.
const SPINS_PER_CLOCK: u32 = 64;

/// The settings by which an endpoint joins its rack's rings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShmConfig {
    /// The rack's directory, `/dev/shm/farmem-NAME`. Created with mode 0700 if necessary; its parent must
    /// exist.
    pub dir: PathBuf,
    /// The endpoint's address.
    pub gid: Gid,
    /// The way in which the link waits.
    pub waiting: Waiting,
    /// Size in bytes of the data of new rings: a power of two from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`].
    pub ring_bytes: usize,
    /// True if frames have an ICRC; the same value for the whole rack.
    pub icrc: bool,
}

impl ShmConfig {
    /// Creates default settings: blocking, with ICRC and rings of [`RING_BYTES`].
    #[must_use]
    pub const fn new(dir: PathBuf, gid: Gid) -> Self {
        Self { dir, gid, waiting: Waiting::Block, ring_bytes: RING_BYTES, icrc: true }
    }
}

/// An endpoint's rings to and from its peers.
#[derive(Debug)]
pub struct ShmLink {
    dir: Dir,
    gid: Gid,
    waiting: Waiting,
    has_icrc: bool,
    clock: Clock,
    doorbell: Arc<Doorbell>,
    /// Number of wakers' calls at the last check ([`Doorbell::calls`]).
    calls_seen: u64,
    arrivals_seen: u64,
    /// Index in `outs` of each port.
    peers: Peers<usize>,
    outs: Vec<OutRing>,
    /// Indexes in `outs` of rings written to since the last flush.
    dirty: Vec<usize>,
    ins: Vec<InRing>,
    /// Index of the first ring of the next poll, so that no ring starves the others.
    turn: usize,
    /// True if another thread ran when this link last yielded.
    is_crowded: bool,
    sealed: Vec<u8>,
    received: Box<[u8]>,
    counters: LinkCounters,
}

impl ShmLink {
    /// Opens the endpoint, and joins the rings.
    ///
    /// # Errors
    /// [`OpenError`] if another process is this endpoint, the directory, one of its files or a setting is
    /// invalid, or memory is insufficient.
    pub fn open(config: &ShmConfig) -> Result<Self, OpenError> {
        let dir = Dir::open(&config.dir, config.ring_bytes)?;
        let doorbell = Arc::new(dir.own_bell(config.gid)?);
        let mut link = Self {
            dir,
            gid: config.gid,
            waiting: config.waiting,
            has_icrc: config.icrc,
            clock: Clock::start(),
            arrivals_seen: doorbell.arrivals(),
            calls_seen: doorbell.calls(),
            doorbell,
            peers: Peers::default(),
            outs: Vec::new(),
            dirty: Vec::new(),
            ins: Vec::new(),
            turn: 0,
            is_crowded: false,
            sealed: Vec::with_capacity(FRAME_MAX + icrc::LEN),
            received: vec![0; (FRAME_MAX + icrc::LEN).next_multiple_of(WORD)].into(),
            counters: LinkCounters::default(),
        };
        link.find_new_rings();
        Ok(link)
    }

    /// Opens the rings to this endpoint that are not open yet. An invalid file is counted and ignored.
    fn find_new_rings(&mut self) {
        for src in self.dir.senders_to(self.gid) {
            if self.ins.len() >= RINGS_MAX || self.ins.iter().any(|ring| ring.src() == src) {
                continue;
            }
            match self.dir.in_ring(src, self.gid, self.peers.port_at(src)) {
                Ok(ring) => self.ins.push(ring),
                Err(_) => self.counters.broken_rings += 1,
            }
        }
    }

    /// Opens both rings to the endpoint at `gid`; returns the index of the outgoing one.
    fn open_rings(&mut self, gid: Gid) -> Result<usize, OpenError> {
        let known = self.outs.iter().position(|ring| ring.dst() == gid);
        let place = known.unwrap_or(self.outs.len());
        if place >= RINGS_MAX {
            let remedy = format!("an endpoint has at most {RINGS_MAX} peers in its lifetime; restart it");
            return Err(OpenError::NoRoom { doing: format!("open one more ring, to {gid:?}"), remedy });
        }
        if known.is_none_or(|place| self.outs[place].is_broken()) {
            let ring = self.dir.out_ring(self.gid, gid)?;
            match known {
                Some(place) => self.outs[place] = ring,
                None => self.outs.push(ring),
            }
        }
        if !self.ins.iter().any(|ring| ring.src() == gid) {
            self.ins.push(self.dir.in_ring(gid, self.gid, Port::UNKNOWN)?);
        }
        Ok(place)
    }

    /// Updates the ports of the incoming rings.
    fn label_rings(&mut self) {
        for ring in &mut self.ins {
            ring.port = self.peers.port_at(ring.src());
        }
    }

    /// Polls every ring once; delivers at most a batch.
    fn look(&mut self, each: &mut dyn FnMut(Port, &[u8])) -> usize {
        let arrivals = self.doorbell.arrivals();
        if arrivals != self.arrivals_seen {
            self.arrivals_seen = arrivals;
            self.find_new_rings();
        }
        let broken_before = self.counters.broken_rings;
        let mut handed = 0;
        for step in 0..self.ins.len() {
            let place = (self.turn + step) % self.ins.len();
            handed += self.empty(place, BATCH - handed, each);
            if handed == BATCH {
                break;
            }
        }
        if handed > 0 {
            self.turn = self.turn.wrapping_add(1);
        }
        if self.counters.broken_rings != broken_before {
            self.ins.retain(|ring| !ring.is_broken());
        }
        handed
    }

    /// Delivers at most `most` frames of one ring, and releases their space.
    fn empty(&mut self, place: usize, most: usize, each: &mut dyn FnMut(Port, &[u8])) -> usize {
        let Self { ins, received, counters, has_icrc, .. } = self;
        let ring = &mut ins[place];
        let mut handed = 0;
        for _ in 0..most {
            match ring.pop(received, *has_icrc) {
                Popped::Nothing => break,
                Popped::Frame(frame) => {
                    counters.frames_in += 1;
                    counters.bytes_in += frame.len() as u64;
                    counters.unknown_source += u64::from(ring.port == Port::UNKNOWN);
                    each(ring.port, frame);
                }
                Popped::BadIcrc => counters.bad_icrc += 1,
                Popped::Short => counters.short += 1,
                Popped::Broken => {
                    counters.broken_rings += 1;
                    break;
                }
            }
            handed += 1;
        }
        ring.release();
        handed
    }

    /// Announces sleep; returns true if nothing has arrived. A peer that sends afterwards rings the doorbell.
    fn falls_asleep(&self) -> bool {
        self.doorbell.falls_asleep_unless(|| self.has_more())
    }

    /// Returns true if a ring or the doorbell has news.
    fn has_more(&self) -> bool {
        self.doorbell.arrivals() != self.arrivals_seen
            || self.doorbell.calls() != self.calls_seen
            || self.ins.iter().any(InRing::has_more)
    }

    fn was_woken(&mut self) -> bool {
        let calls = self.doorbell.calls();
        calls != std::mem::replace(&mut self.calls_seen, calls)
    }

    fn spin(&mut self, most: Duration, each: &mut dyn FnMut(Port, &[u8])) -> usize {
        let mut until = None;
        for spins in 1_u32.. {
            let handed = self.look(each);
            if handed > 0 || self.was_woken() {
                return handed;
            }
            if spins % SPINS_PER_CLOCK == 0 {
                let now = self.clock.now();
                if now >= *until.get_or_insert(now + most) {
                    break;
                }
            }
            if self.is_crowded || spins > SPINS_BEFORE_YIELD {
                self.is_crowded = Waiting::yields(&self.clock);
            } else {
                std::hint::spin_loop();
            }
        }
        0
    }

    fn block(&mut self, most: Duration, each: &mut dyn FnMut(Port, &[u8])) -> io::Result<usize> {
        let until = self.clock.after(most);
        loop {
            let left = until.since(self.clock.now());
            if left == Duration::ZERO {
                return Ok(0);
            }
            if self.falls_asleep() {
                self.doorbell.sleep(left)?;
            }
            let handed = self.look(each);
            if handed > 0 || self.was_woken() {
                return Ok(handed);
            }
        }
    }
}

/// Doorbells to ring; their owners can already see the frames in the rings.
#[derive(Default, Debug)]
pub struct ShmParcel(Vec<Arc<Doorbell>>);

impl Parcel for ShmParcel {
    fn hand_over(&mut self) {
        self.0.drain(..).for_each(|doorbell| doorbell.ring());
    }
}

impl Link for ShmLink {
    type Parcel = ShmParcel;

    fn set_peer(&mut self, port: Port, gid: Option<Gid>) -> io::Result<()> {
        match gid {
            Some(gid) => {
                let place = self.open_rings(gid)?;
                self.peers.set(port, gid, place);
            }
            None => self.peers.forget(port),
        }
        self.label_rings();
        Ok(())
    }

    fn send(&mut self, port: Port, frame: &[u8]) {
        let Some(&place) = self.peers.get(port) else {
            self.counters.no_address += 1;
            return;
        };
        if frame.len() < bth::LEN {
            self.counters.short += 1;
            return;
        }
        if frame.len() > FRAME_MAX {
            self.counters.long += 1;
            return;
        }
        let ring = &mut self.outs[place];
        let packet = if self.has_icrc {
            self.sealed.clear();
            self.sealed.extend_from_slice(frame);
            icrc::seal(&ring.route, &mut self.sealed, 0);
            &self.sealed
        } else {
            frame
        };
        if ring.is_clean() {
            self.dirty.push(place);
        }
        match ring.push(packet) {
            Ok(true) => {
                self.counters.frames_out += 1;
                self.counters.bytes_out += frame.len() as u64;
            }
            Ok(false) => self.counters.full += 1,
            Err(ring::Broken) => {
                self.counters.broken_rings += 1;
                self.counters.send_refused += 1;
            }
        }
    }

    fn send_to(&mut self, _gid: Gid, _frame: &[u8]) {
        self.counters.no_address += 1;
    }

    fn flush(&mut self) -> io::Result<()> {
        for place in self.dirty.drain(..) {
            self.outs[place].publish().ring();
        }
        Ok(())
    }

    fn flush_into(&mut self, parcel: &mut ShmParcel) {
        for place in self.dirty.drain(..) {
            parcel.0.push(Arc::clone(self.outs[place].publish()));
        }
    }

    fn receive(&mut self, wait: Wait, each: &mut dyn FnMut(Port, &[u8])) -> io::Result<usize> {
        let handed = self.look(each);
        match wait {
            Wait::AtMost(most) if handed == 0 && most > Duration::ZERO && !self.was_woken() => {
                match self.waiting {
                    Waiting::Spin => Ok(self.spin(most, each)),
                    Waiting::Block => self.block(most, each),
                    Waiting::Precise => {
                        wake_precisely();
                        self.block(most, each)
                    }
                }
            }
            _ => Ok(handed),
        }
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }

    fn waker(&self) -> io::Result<Waker> {
        let doorbell = Arc::clone(&self.doorbell);
        Ok(Waker::new(move || doorbell.call()))
    }

    fn wake_at(&self) -> WakeAt {
        WakeAt::Doorbell { path: self.dir.bell_path(self.gid) }
    }

    fn sleeper(&self) -> io::Result<Sleeper> {
        let (doorbell, waiting) = (Arc::clone(&self.doorbell), self.waiting);
        Ok(Sleeper::new(move |most| match waiting {
            Waiting::Block => doorbell.sleep(most),
            Waiting::Precise => {
                wake_precisely();
                doorbell.sleep(most)
            }
            Waiting::Spin => {
                std::thread::yield_now();
                Ok(())
            }
        }))
    }

    fn glance(&mut self) -> Option<bool> {
        self.doorbell.stays_awake();
        Some(self.has_more())
    }

    fn may_sleep(&mut self) -> bool {
        !self.was_woken() && self.falls_asleep()
    }
}
