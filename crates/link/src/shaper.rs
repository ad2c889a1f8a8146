//! Departure times of frames on a link with a profile: a token bucket, then a delay, in order.
//!
//! Key type: [`Shaper`], which is pure: its caller passes the time, and sends the frames. The shaper holds
//! the frames in flight.

use crate::profile::{HELD_BYTES_MAX, LinkProfile, WIRE_OVERHEAD};
use farmem_machine::{Instant, Port, Rng};
use std::collections::VecDeque;

/// Nanoseconds per second: bytes per second times nanoseconds are billionths of a byte.
const BILLION: u128 = 1_000_000_000;

/// The fate of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shaped {
    /// The frame is held, and arrives at this time.
    Delayed(Instant),
    /// The frame is lost by the profile, after its time on the wire.
    Lost,
    /// The frame is lost because the queue is full.
    Full,
}

/// One sender's frames in flight.
#[derive(Debug)]
pub struct Shaper {
    profile: LinkProfile,
    /// Time at which the wire has sent all frames, in nanoseconds times bytes per second. This is the state
    /// of the token bucket, as the time at which it would be full.
    sent_at: u128,
    rng: Rng,
    /// Frames in flight, in order of arrival.
    held: VecDeque<DelayedFrame>,
    held_bytes: u64,
    /// Buffers of sent frames, for reuse.
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct DelayedFrame {
    due: Instant,
    port: Port,
    bytes: Vec<u8>,
}

impl Shaper {
    /// Creates a shaper without frames; `rng` determines the lost frames.
    #[must_use]
    pub const fn new(profile: LinkProfile, rng: Rng) -> Self {
        Self { profile, sent_at: 0, rng, held: VecDeque::new(), held_bytes: 0, spare: Vec::new() }
    }

    /// Returns the profile.
    #[must_use]
    pub const fn profile(&self) -> LinkProfile {
        self.profile
    }

    /// Sends a frame at `now`, which never decreases.
    pub fn send(&mut self, now: Instant, port: Port, frame: &[u8]) -> Shaped {
        let len = frame.len() as u64;
        // Otherwise a full queue would delay later frames by frames that it did not accept.
        if self.held_bytes + len > HELD_BYTES_MAX {
            return Shaped::Full;
        }
        let due = self.leaves(now, len + WIRE_OVERHEAD) + self.profile.delay();
        if self.profile.loss_ppm() > 0 && self.rng.chance(self.profile.loss_ppm(), 1_000_000) {
            return Shaped::Lost;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        self.held_bytes += len;
        self.held.push_back(DelayedFrame { due, port, bytes });
        Shaped::Delayed(due)
    }

    /// Returns when `len` bytes on the wire arrive that the caller sends at `now` and holds itself. None of
    /// them is lost.
    pub fn arrives(&mut self, now: Instant, len: u64) -> Instant {
        self.leaves(now, len) + self.profile.delay()
    }

    /// Returns when a frame of `len` bytes that is sent at `now` has left: when the bucket has enough tokens
    /// after the frames before it.
    fn leaves(&mut self, now: Instant, len: u64) -> Instant {
        let Some(rate) = self.profile.rate().map(u128::from) else { return now };
        let now_at = u128::from(now.as_nanos()) * rate;
        self.sent_at = self.sent_at.max(now_at) + u128::from(len) * BILLION;
        let leaves = self.sent_at.saturating_sub(u128::from(self.profile.burst()) * BILLION).div_ceil(rate);
        // The result saturates some hundred years after the boot.
        now.max(Instant::from_nanos(u64::try_from(leaves).unwrap_or(u64::MAX)))
    }

    /// Returns when the first frame in flight arrives.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.held.front().map(|held| held.due)
    }

    /// Passes the frames that arrive by `now` to `each`, in order, each with its arrival time.
    pub fn release(&mut self, now: Instant, mut each: impl FnMut(Instant, Port, &[u8])) {
        while self.next().is_some_and(|due| due <= now) {
            let DelayedFrame { due, port, bytes } = self.held.pop_front().expect("it was just seen");
            each(due, port, &bytes);
            self.held_bytes -= bytes.len() as u64;
            if self.spare.len() < SPARE_MAX {
                self.spare.push(bytes);
            }
        }
    }
}

/// Maximum number of buffers for reuse: a window of requests.
const SPARE_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_machine::Duration;

    const PORT: Port = Port(9);

    fn shaper(profile: &str) -> Shaper {
        Shaper::new(profile.parse().unwrap(), Rng::from_number(1))
    }

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    /// Returns a frame that takes `wire` bytes on the wire.
    fn frame(wire: u64) -> Vec<u8> {
        vec![0; usize::try_from(wire - WIRE_OVERHEAD).unwrap()]
    }

    fn due(shaped: Shaped) -> u64 {
        let Shaped::Delayed(at) = shaped else { panic!("{shaped:?}") };
        at.as_nanos()
    }

    /// A frame of 1,000 bytes takes 80 ns at 100 Gbit/s, and arrives 2 us later. The next frame waits for the
    /// wire; after a pause the wire is free.
    #[test]
    fn frames_leave_at_the_rate_and_arrive_after_the_delay() {
        let mut held = shaper("100g-2us");
        let times: Vec<u64> = [0, 0, 200].map(|now| held.arrives(at(now), 1000).as_nanos()).into();
        assert_eq!(times, [2_080, 2_160, 2_280], "held by the caller");
        let mut shaper = shaper("100g-2us");
        let times: Vec<u64> =
            [0, 0, 0, 200, 1_000].map(|now| due(shaper.send(at(now), PORT, &frame(1000)))).into();
        assert_eq!(times, [2_080, 2_160, 2_240, 2_320, 3_080]);
    }

    /// A million bytes over 1 Gbit/s: the last has left after 8 ms to the nanosecond, for any sizes of
    /// frames.
    #[test]
    fn bytes_take_as_long_as_computed() {
        for len in [100, 125, 1_000, 4_000] {
            let mut shaper = shaper("rate=1Gbit/s");
            let last = (0..1_000_000 / len).map(|_| due(shaper.send(at(5), PORT, &frame(len)))).last();
            assert_eq!(last, Some(8_000_005), "in frames of {len}");
        }
    }

    /// A rate at which a byte takes a fraction of a nanosecond has no drift: 3 bytes at a time at 7 Mbit/s.
    #[test]
    fn fractions_of_nanoseconds_are_not_lost() {
        let mut shaper = shaper("rate=7Mbit/s");
        let last = (0..7_000).map(|_| due(shaper.send(at(0), PORT, &frame(125)))).last();
        assert_eq!(last, Some(1_000_000_000));
    }

    /// A burst leaves at once, and further frames wait for tokens. A pause fills the bucket, but not beyond
    /// its size.
    #[test]
    fn a_burst_leaves_at_once_and_no_more() {
        let mut shaper = shaper("rate=1Gbit/s,burst=2kB");
        let mut burst =
            |now| -> Vec<u64> { (0..4).map(|_| due(shaper.send(at(now), PORT, &frame(1000)))).collect() };
        assert_eq!(burst(0), [0, 0, 8_000, 16_000]);
        assert_eq!(burst(1_000_000), [1_000_000, 1_000_000, 1_008_000, 1_016_000]);
    }

    /// The memory node passes the answer to a READ of 1 MiB for a card to the link at once (PROTOCOL 14.11).
    /// A burst of 64 KiB leaves at once, and at any time at most this burst plus 10 Gbit/s; all frames leave
    /// in order.
    #[test]
    fn a_long_answer_is_paced() {
        let mut shaper = shaper("rate=10Gbit/s,burst=64KiB");
        let (packets, wire) = (1024, 1024 + 16 + WIRE_OVERHEAD);
        let times: Vec<u64> = (0..packets).map(|_| due(shaper.send(at(0), PORT, &frame(wire)))).collect();
        let at_once = times.iter().filter(|&&time| time == 0).count() as u64;
        assert_eq!(at_once, (64 << 10) / wire);
        for (sent, time) in (1..).zip(&times) {
            // The rate of 10 Gbit/s is 1.25 bytes per nanosecond.
            assert!(sent * wire * 4 <= ((64 << 10) * 4) + time * 5 + 4, "{sent} by {time}");
        }
        assert!(times.is_sorted());
        assert_eq!(times.last(), Some(&((packets * wire - (64 << 10)) * 4).div_ceil(5)));
    }

    /// Frames arrive in order and at their time, not earlier.
    #[test]
    fn order_is_kept_and_nothing_comes_early() {
        let mut shaper = shaper("rate=1Gbit/s,delay=1us");
        for n in 0..100_u8 {
            shaper.send(at(u64::from(n)), Port(n.into()), &[n; 30]);
        }
        let mut came = Vec::new();
        let mut now = at(0);
        while let Some(next) = shaper.next() {
            shaper.release(Instant::from_nanos(next.as_nanos() - 1), |_, _, _| panic!("early"));
            assert!(next >= now);
            now = next;
            shaper.release(now, |due, port, bytes| came.push((due, port, bytes.to_vec())));
        }
        let sent: Vec<_> = (0..100_u8)
            // A frame of 100 bytes takes 800 ns; frames sent one nanosecond apart wait for the wire.
            .map(|n| (at(1_000 + 800 * (u64::from(n) + 1)), Port(n.into()), vec![n; 30]))
            .collect();
        assert_eq!(came, sent);
        assert_eq!(shaper.held_bytes, 0);
    }

    /// Without a rate only the delay applies, and it is exact.
    #[test]
    fn a_delay_alone_is_exact() {
        let mut shaper = shaper("delay=7us");
        for sent_ns in [0, 1, 1, 50_000] {
            assert_eq!(due(shaper.send(at(sent_ns), PORT, &frame(4000))), sent_ns + 7_000);
        }
        assert_eq!(shaper.next(), Some(at(0) + Duration::from_micros(7)));
    }

    /// The share of lost frames is the configured one, lost frames take their time on the wire, and the same
    /// seed loses the same frames.
    #[test]
    fn loss_is_a_share_of_all_and_takes_its_time() {
        let run = || {
            let mut shaper = shaper("rate=1Gbit/s,loss=10%");
            let sent: Vec<Shaped> = (0..10_000).map(|_| shaper.send(at(0), PORT, &frame(125))).collect();
            (sent, due(shaper.send(at(0), PORT, &frame(125))))
        };
        let ((sent, after), again) = (run(), run());
        assert_eq!((&sent, after), (&again.0, again.1));
        let lost = sent.iter().filter(|&&shaped| shaped == Shaped::Lost).count();
        assert!((900..1100).contains(&lost), "{lost} of 10,000");
        assert_eq!(after, 10_001 * 1000, "those that were lost too");
    }

    /// A sender that is permanently faster than its wire loses the frames beyond the queue; queued frames
    /// still arrive.
    #[test]
    fn a_full_queue_loses_the_newest() {
        let mut shaper = shaper("rate=1Mbit/s");
        let frame = vec![0; 4096];
        let room = HELD_BYTES_MAX / 4096;
        for _ in 0..room {
            due(shaper.send(at(0), PORT, &frame));
        }
        assert_eq!(shaper.send(at(0), PORT, &frame), Shaped::Full);
        let first = shaper.next().unwrap();
        let mut came = 0;
        shaper.release(first, |_, _, _| came += 1);
        assert_eq!(came, 1);
        let next = due(shaper.send(first, PORT, &frame));
        assert_eq!(next, (room + 1) * (4096 + WIRE_OVERHEAD) * 8 * 1000);
    }
}
