//! The requester waits, retransmits, gives up and fails; the test plays the responder.

use crate::support::{Host, TIMEOUT, dropped, fetch_add, read, requester_config, write};
use farmem_machine::{Duration, Instant};
use farmem_transport::rc::{DropReason, Failure, Note, RequesterConfig};
use farmem_wire::{Nak, Syndrome};

use farmem_wire::Opcode::ReadResponseOnly as Only;

/// "Receiver not ready": the requester is silent for the requested time, then repeats its packets. A copy of
/// the NAK meanwhile, or a NAK 0x60 for a packet that came too early, changes nothing. PROTOCOL 4.13, IBA
/// 9.7.5.2.8.
#[test]
fn a_receiver_that_is_not_ready_is_given_time() {
    let mut host = Host::new(requester_config());
    host.post([write(0, 1), write(0, 2)]);
    let sent = host.ack(101, Syndrome::Rnr(14));
    assert_eq!((sent.frames.len(), sent.notes), (0, vec![Note::RnrWait]));
    assert_eq!(host.requester.next_wake(), Some(Instant::ZERO + Duration::from_micros(1280)));
    assert_eq!(host.ack(101, Syndrome::Rnr(14)).notes, dropped(DropReason::Unexpected));
    assert_eq!(host.ack(101, Syndrome::Nak(Nak::PsnSequence)).notes, dropped(DropReason::Unexpected));
    assert_eq!(host.wake().lines(), ["WriteOnly 101 A @0+2 [2]"]);
    host.ack(101, Syndrome::Ack);
    assert_eq!(host.results(), [(0, Ok(0)), (1, Ok(0))]);
}

/// The responder answers a READ after it said "not ready": it contradicts itself, or the packets crossed. The
/// answer counts, the wait ends, and nothing is counted twice. PROTOCOL 4.9, 4.13.
#[test]
fn an_answer_ends_the_wait() {
    let mut host = Host::new(requester_config());
    host.post([read(0, 3), write(512, 1)]);
    host.ack(100, Syndrome::Rnr(14));
    assert_eq!(host.read_response(Only, 100, b"yes").lines(), ["WriteOnly 101 A @512+1 [1]"]);
    host.ack(101, Syndrome::Ack);
    assert_eq!(host.results(), [(0, Ok(0)), (1, Ok(0))]);
    assert_eq!(host.requester.next_wake(), None);
}

/// Silence, then "not ready": the peer is alive, so the count of timeouts starts again. PROTOCOL 4.13, 4.14.
#[test]
fn not_ready_is_a_sign_of_life() {
    let mut host = Host::new(requester_config());
    host.post([write(0, 1)]);
    for _ in 0..3 {
        assert_eq!(host.wake().notes, [Note::TimedOut]);
    }
    assert_eq!(host.ack(100, Syndrome::Rnr(1)).notes, [Note::RnrWait]);
    assert_eq!(host.wake().frames.len(), 1);
    for _ in 0..3 {
        assert_eq!(host.wake().notes, [Note::TimedOut]);
    }
    assert_eq!(host.wake().notes, [Note::Broken(Failure::RetriesExceeded)]);
}

/// A receiver that is never ready: two waits are granted, the third "not ready" in a row breaks the
/// connection. Progress in between restarts the count. PROTOCOL 4.13.
#[test]
fn patience_with_a_receiver_ends() {
    let mut host = Host::new(requester_config());
    host.post([write(0, 1), write(0, 2)]);
    for psn in [100, 100] {
        host.ack(psn, Syndrome::Rnr(1));
        host.wake();
    }
    host.ack(100, Syndrome::Ack);
    for psn in [101, 101] {
        host.ack(psn, Syndrome::Rnr(1));
        host.wake();
    }
    assert_eq!(host.ack(101, Syndrome::Rnr(1)).notes, [Note::Broken(Failure::RnrRetriesExceeded)]);
    assert_eq!(host.results(), [(0, Ok(0)), (1, Err(Failure::RnrRetriesExceeded))]);
}

/// No answer at all: all packets are retransmitted three times, then the connection fails with a typed
/// failure. PROTOCOL 4.14, IBA 9.9.2.4.1.
#[test]
fn silence_is_given_up() {
    let mut host = Host::new(requester_config());
    let first = host.post([write(0, 1), read(512, 9), write(0, 2)]).lines();
    for retry in 1..=3 {
        let sent = host.wake();
        assert_eq!((sent.lines(), sent.notes), (first.clone(), vec![Note::TimedOut]));
        assert_eq!(host.now, Instant::ZERO + TIMEOUT.times(retry));
    }
    assert_eq!(host.wake().notes, [Note::Broken(Failure::RetriesExceeded)]);
    let flushed = Err(Failure::Flushed);
    assert_eq!(host.results(), [(0, Err(Failure::RetriesExceeded)), (1, flushed), (2, flushed)]);
    assert_eq!((host.requester.is_broken(), host.requester.next_wake()), (true, None));
}

/// Progress, even by one packet of many, restarts the timer and the count. A wake that comes early has no
/// effect. PROTOCOL 4.14.
#[test]
fn progress_starts_the_timer_anew() {
    let mut host = Host::new(requester_config());
    host.post([write(0, 1000)]);
    for psn in 100..103 {
        for _ in 0..3 {
            host.wake();
        }
        host.now += Duration::from_micros(40);
        host.ack(psn, Syndrome::Ack);
        assert_eq!(host.requester.next_wake(), Some(host.now + TIMEOUT));
    }
    let mut out = farmem_machine::Outbox::<(), Note>::new();
    host.requester.on_wake(host.now, &mut out);
    assert!(out.is_empty());
}

/// The three NAKs that break a connection. The refused request fails with its reason, earlier requests have
/// succeeded, and later ones are flushed, also those posted afterwards. Nothing is sent any more. PROTOCOL
/// 4.15, IBA 9.9.3.
#[test]
fn a_refusal_ends_the_connection() {
    let cases = [
        (Nak::InvalidRequest, Failure::InvalidRequest),
        (Nak::RemoteAccess, Failure::RemoteAccess),
        (Nak::RemoteOperational, Failure::RemoteOperational),
    ];
    for (nak, failure) in cases {
        let mut host = Host::new(requester_config());
        host.post([write(0, 1), read(512, 1000), write(0, 2), fetch_add(8)]);
        // The NAK acknowledges the WRITE and refuses the READ.
        assert_eq!(host.ack(101, Syndrome::Nak(nak)).notes, [Note::Broken(failure)]);
        let flushed = Err(Failure::Flushed);
        assert_eq!(host.results(), [(0, Ok(0)), (1, Err(failure)), (2, flushed), (3, flushed)]);
        assert_eq!(host.requester.next_wake(), None);
        assert_eq!(host.ack(105, Syndrome::Ack).notes, dropped(DropReason::Broken));
        assert_eq!(host.post([write(0, 3)]).frames.len(), 0);
        assert_eq!(host.results(), [(0, flushed)]);
    }
}

/// The owner abandons the connection to set up a new one: every posted request is flushed once, sent or not,
/// and no timer runs. Abandoning it again has no effect. PROTOCOL 4.17.
#[test]
fn an_abandoned_connection_flushes_everything() {
    let mut host = Host::new(RequesterConfig { window_psns: 1, ..requester_config() });
    host.post([write(0, 1), read(512, 9)]);
    assert_eq!(host.abandon().notes, [Note::Broken(Failure::Flushed)]);
    assert_eq!(host.results(), [(0, Err(Failure::Flushed)), (1, Err(Failure::Flushed))]);
    assert_eq!((host.requester.is_broken(), host.requester.next_wake()), (true, None));
    assert!(host.abandon().notes.is_empty() && host.results().is_empty());
}

/// A WRITE is refused, but the response to the READ before it was lost. The READ did succeed and must
/// complete so: it is repeated first, and the WRITE is refused again after it. PROTOCOL 4.10, 4.15, 4.27.
#[test]
fn what_is_before_a_refusal_succeeds() {
    let mut host = Host::new(requester_config());
    let first = host.post([read(0, 4), write(512, 1)]).lines();
    let sent = host.ack(101, Syndrome::Nak(Nak::RemoteAccess));
    assert_eq!((sent.lines(), sent.notes), (first, vec![Note::ImpliedNak]));
    host.read_response(Only, 100, b"good");
    host.ack(101, Syndrome::Nak(Nak::RemoteAccess));
    assert_eq!(host.results(), [(0, Ok(0)), (1, Err(Failure::RemoteAccess))]);
}
