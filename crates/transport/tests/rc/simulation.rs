//! Both halves over a channel that loses, duplicates and reorders, in virtual time; one seed is one world.
//!
//! The model is a plain byte array that executes the requests in the order in which they are posted. A user
//! of a connection must see exactly this (PROTOCOL 4.16, 4.17, 4.18), whatever the channel does.

use crate::support::{BASE, HOST, ModelMemory, NODE, le, requester_config, responder_config, va};
use farmem_machine::{Action, Duration, Instant, Outbox, Port, Rng};
use farmem_transport::rc::{Failure, Note, Requester, RequesterConfig, Responder, ResponderConfig, Work};
use farmem_wire::{Packet, Pmtu, Psn};
use std::collections::{BTreeMap, BTreeSet};

const MEMORY_LEN: usize = 8192;

/// The faults of the channel.
#[derive(Clone, Copy)]
struct Weather {
    loss_percent: u32,
    double_percent: u32,
    /// Delays are random below this, so that packets overtake one another.
    delay_ns_max: u32,
}

/// One connection, its channel, and the model.
struct World {
    rng: Rng,
    weather: Weather,
    now: Instant,
    requester: Requester,
    responder: Responder,
    memory: ModelMemory,
    /// Packets in flight by arrival time; the second number makes the key unique.
    channel: BTreeMap<(Instant, u64), (Port, Vec<u8>)>,
    sent: u64,
    out: Outbox<(), Note>,
    model: Vec<u8>,
    /// The expected outcome of each request, by id.
    expected: BTreeMap<u64, (u64, Vec<u8>)>,
    posted: u64,
    notes: BTreeSet<String>,
}

impl World {
    fn new(seed: u64, weather: Weather) -> Self {
        let mut rng = Rng::from_number(seed);
        // Close to the wrap, on both sides of it.
        let first_psn = Psn::new(0x00ff_fff0).plus(rng.below(32));
        let pmtu = [Pmtu::B256, Pmtu::B512, Pmtu::B1024][rng.below(3) as usize];
        let window_psns = 1 << rng.below(8);
        let depth = 1 + rng.below(16);
        let config = RequesterConfig {
            first_psn,
            pmtu,
            window_psns,
            depth,
            retries_max: 1000,
            timeout: Duration::from_micros(20),
            ..requester_config()
        };
        Self {
            rng,
            weather,
            now: Instant::ZERO,
            requester: Requester::new(config),
            responder: Responder::new(ResponderConfig {
                expected_psn: first_psn,
                pmtu,
                ..responder_config()
            }),
            memory: ModelMemory::new(MEMORY_LEN),
            channel: BTreeMap::new(),
            sent: 0,
            out: Outbox::new(),
            model: vec![0; MEMORY_LEN],
            expected: BTreeMap::new(),
            posted: 0,
            notes: BTreeSet::new(),
        }
    }

    /// Posts one random request and lets the model execute it at once.
    fn post(&mut self) {
        let id = self.posted;
        self.posted += 1;
        // Few offsets, so that requests overlap.
        let offset = self.rng.below(16) as usize * 64;
        let longest = if self.rng.chance(1, 4) { 6000 } else { 300 };
        let len = self.rng.below(longest) as usize;
        let addr = va(offset as u64);
        let word = || offset..offset + 8;
        let (work, expected) = match self.rng.below(5) {
            0 => {
                let read = self.model[offset..offset + len].to_vec();
                (Work::Read { addr, buf: vec![0xee; len] }, (0, read))
            }
            1 => {
                let (first, step) =
                    (self.rng.next_u32().to_le_bytes()[0], self.rng.next_u32().to_le_bytes()[0] | 1);
                let buf: Vec<u8> = (0..len)
                    .scan(first, |b, _| {
                        *b = b.wrapping_add(step);
                        Some(*b)
                    })
                    .collect();
                self.model[offset..offset + len].copy_from_slice(&buf);
                (Work::Write { addr, buf: buf.clone() }, (0, buf))
            }
            2 => {
                let old = le(&self.model[word()]);
                let add = self.rng.next_u64();
                self.model[word()].copy_from_slice(&old.wrapping_add(add).to_le_bytes());
                (Work::FetchAdd { addr, add }, (old, Vec::new()))
            }
            3 => {
                let pieces = 1 + self.rng.below(4) as usize;
                let each = 1 + len / pieces;
                let offsets: Vec<usize> = (0..pieces).map(|_| self.rng.below(16) as usize * 64).collect();
                let read = offsets.iter().flat_map(|&at| self.model[at..at + each].to_vec()).collect();
                let addrs = offsets.iter().map(|&at| va(at as u64)).collect();
                (Work::Gather { addrs, buf: vec![0xee; pieces * each] }, (0, read))
            }
            _ => {
                let old = le(&self.model[word()]);
                let compare = if self.rng.chance(1, 2) { old } else { !old };
                let swap = self.rng.next_u64();
                if compare == old {
                    self.model[word()].copy_from_slice(&swap.to_le_bytes());
                }
                (Work::CmpSwap { addr, compare, swap }, (old, Vec::new()))
            }
        };
        self.requester.post(id, work).expect("the queue is long enough");
        self.expected.insert(id, expected);
        self.requester.pump(self.now, &mut self.out);
        self.carry();
    }

    /// Moves sent frames into the channel and applies its faults.
    fn carry(&mut self) {
        let mut frames = Vec::new();
        let notes = &mut self.notes;
        self.out.drain(|action| match action {
            Action::Send { port, frame } => frames.push((port, frame.to_vec())),
            Action::Local(()) => unreachable!("nothing was asked"),
            Action::Note(note) => {
                notes.insert(format!("{note:?}"));
            }
        });
        for (port, frame) in frames {
            let copies = if self.rng.chance(self.weather.loss_percent, 100) { 0 } else { 1 }
                + if self.rng.chance(self.weather.double_percent, 100) { 1 } else { 0 };
            for _ in 0..copies {
                let delay = 500 + self.rng.below(self.weather.delay_ns_max);
                let arrival = self.now + Duration::from_nanos(u64::from(delay));
                self.sent += 1;
                self.channel.insert((arrival, self.sent), (port, frame.clone()));
            }
        }
        self.requester.check();
        self.responder.check();
    }

    /// Runs the next arrival or timer. Returns false when no event is left.
    fn step(&mut self) -> bool {
        let arrival = self.channel.first_key_value().map(|(&(at, _), _)| at);
        let wake = self.requester.next_wake();
        let Some(next) = [arrival, wake].into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (_, (port, frame)) = self.channel.pop_first().expect("it was there");
            let packet = Packet::parse(&frame).expect("what we send can be read");
            if port == NODE {
                self.responder.on_packet(HOST, &packet, &mut self.memory, &mut self.out);
                // A role flushes after one event or after several.
                if self.rng.chance(1, 2) || !self.channel.values().any(|(port, _)| *port == NODE) {
                    self.responder.flush(&mut self.out);
                }
            } else {
                self.requester.on_packet(self.now, NODE, &packet, &mut self.out);
            }
        } else {
            self.requester.on_wake(self.now, &mut self.out);
        }
        self.carry();
        true
    }

    /// Takes the completions; every request completes once, in order, as in the model.
    fn collect(&mut self) {
        while let Some(completion) = self.requester.pop_completion() {
            let (&oldest, _) = self.expected.first_key_value().expect("it was posted and did not end before");
            assert_eq!(completion.id, oldest, "requests end in the order they were posted");
            let (value, bytes) = self.expected.remove(&completion.id).expect("it is the oldest");
            assert_eq!(completion.result, Ok(value), "request {}", completion.id);
            assert_eq!(completion.work.buf(), bytes, "request {}", completion.id);
        }
    }
}

/// Runs one world to its end and returns its notes.
fn run(seed: u64, weather: Weather, requests: u64) -> BTreeSet<String> {
    let mut world = World::new(seed, weather);
    let mut steps = 0;
    while world.posted < requests || world.requester.outstanding() > 0 {
        if world.posted < requests && (world.rng.chance(1, 3) || world.requester.outstanding() == 0) {
            world.post();
        } else {
            assert!(world.step(), "something is outstanding, so something will happen");
        }
        world.collect();
        steps += 1;
        assert!(steps < 1_000_000, "progress");
    }
    // Late copies of requests and answers arrive after all requests completed.
    while world.step() {}
    world.collect();
    assert!(world.expected.is_empty(), "every request ended");
    assert!(world.memory.bytes == world.model, "memory is what the requests made of it");
    world.notes
}

fn run_seeds(seeds: std::ops::Range<u64>, weather: Weather, requests: u64) -> BTreeSet<String> {
    let mut notes = BTreeSet::new();
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed, weather, requests));
        match result {
            Ok(more) => notes.extend(more),
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    notes
}

/// The common case of a rack: a good channel. No packet is sent twice, and neither end makes a note. PROTOCOL
/// 4.17, 4.18.
#[test]
fn on_a_good_channel_nothing_is_sent_twice() {
    let weather = Weather { loss_percent: 0, double_percent: 0, delay_ns_max: 1 };
    let notes = run_seeds(0..300, weather, 40);
    assert!(notes.is_empty(), "{notes:?}");
}

/// A bad channel: 5 % lost, 5 % duplicated, reordering, PSNs around the wrap. Each request completes exactly
/// once with the model's outcome, atomics are executed exactly once, and memory equals the model. PROTOCOL
/// 4.2, 4.9 to 4.14, 4.16 to 4.23.
#[test]
fn a_bad_channel_changes_nothing_but_time() {
    let weather = Weather { loss_percent: 5, double_percent: 5, delay_ns_max: 4000 };
    let notes = run_seeds(1000..3500, weather, 40);
    let all = [
        "AfterGap",
        "DuplicateAtomic",
        "DuplicateRead",
        "DuplicateWrite",
        "ImpliedNak",
        "NakSequence",
        "TimedOut",
        "Unexpected",
        "WentBack",
    ];
    for wanted in all {
        assert!(notes.iter().any(|note| note.contains(wanted)), "no seed reached {wanted}: {notes:?}");
    }
    for never in ["Broken", "Refused", "InvalidRequest", "Misshapen"] {
        assert!(!notes.iter().any(|note| note.contains(never)), "{never} in {notes:?}");
    }
}

/// A very bad channel: a third of all packets is lost, a third duplicated. Requests are slow and still right.
/// PROTOCOL 4.14.
#[test]
fn a_storm_is_survived() {
    let weather = Weather { loss_percent: 33, double_percent: 33, delay_ns_max: 8000 };
    run_seeds(5000..5300, weather, 30);
}

/// The node dies. The oldest request fails for this reason, all others are flushed, each once. Earlier
/// successes stay. PROTOCOL 4.14, 4.17.
#[test]
fn a_dead_node_ends_every_request_once() {
    for seed in 0..300 {
        let mut world = World::new(seed, Weather { loss_percent: 5, double_percent: 5, delay_ns_max: 4000 });
        for _ in 0..30 {
            world.post();
        }
        for _ in 0..world.rng.below(60) {
            world.step();
        }
        world.collect();
        world.channel.clear();
        world.weather.loss_percent = 100;
        world.weather.double_percent = 0;
        while world.step() {}
        let mut left: Vec<u64> = world.expected.keys().copied().collect();
        let mut failure = Failure::RetriesExceeded;
        while let Some(completion) = world.requester.pop_completion() {
            assert_eq!((completion.id, completion.result), (left.remove(0), Err(failure)), "seed {seed}");
            failure = Failure::Flushed;
        }
        assert!(left.is_empty(), "seed {seed}: {left:?} never ended");
        assert_eq!(world.requester.is_broken(), failure == Failure::Flushed);
    }
}

/// The simulated memory starts at the base address. Otherwise the model would test itself.
#[test]
fn the_model_is_at_its_address() {
    assert_eq!(va(0).0, BASE);
}
