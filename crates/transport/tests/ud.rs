//! Datagram requests: every rule of docs/protocol/05-datagram-requests.md.

use farmem_machine::{Action, Duration, Halt, Instant, Outbox, Port, Rng};
use farmem_transport::ud::{
    AnswerBudget, BatchAction, Dedup, Endpoint, Inbox, Peer, RequestState, Requester, retries_in, send,
};
use farmem_wire::message::Updates;
use farmem_wire::{
    Body, Domain, Extension, Header, HostId, Message, Opcode, Packet, Psn, Qkey, Qpn, RequestId, Status,
    VirtAddr,
};
use std::collections::{BTreeMap, BTreeSet};

const TIMEOUT: Duration = Duration::from_micros(10);

fn id(counter: u32) -> RequestId {
    RequestId::new(HostId(3), 1, counter)
}

fn at(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

/// Returns the frames of an outbox with their receivers.
fn frames(out: &mut Outbox<(), ()>) -> Vec<(Port, Vec<u8>)> {
    let mut frames = Vec::new();
    out.drain(|action| match action {
        Action::Send { port, frame } => frames.push((port, frame.to_vec())),
        other => panic!("only frames: {other:?}"),
    });
    frames
}

/// A message leaves as a UD SEND to the peer's queue pair, with the peer's key and the sender's queue pair,
/// and parses again. PROTOCOL 5.1.
#[test]
fn a_message_shows_the_peers_key() {
    let endpoint = Endpoint { qpn: Qpn::new(0x44), qkey: Qkey(0xfeed) };
    let body = Body::RegionRead { addr: VirtAddr(0x1000), len: 9, data: &[] };
    let message = Message { header: Header { domain: Domain(0), ..Header::request(id(7), 4) }, body };
    let mut out = Outbox::new();
    send(&mut out, Peer { port: Port::SWITCH, endpoint }, Qpn::new(0x55), Psn::new(6), &message);
    let frames = frames(&mut out);
    let (port, frame) = &frames[0];
    let packet = Packet::parse(frame).expect("readable");
    assert_eq!((*port, frames.len()), (Port::SWITCH, 1));
    assert_eq!(
        (packet.bth.opcode, packet.bth.dest_qp, packet.bth.psn.get()),
        (Opcode::UdSendOnly, endpoint.qpn, 6)
    );
    let Extension::Deth(deth) = packet.ext else { panic!("a datagram has a DETH") };
    assert_eq!((deth.qkey, deth.src_qp.get()), (endpoint.qkey, 0x55));
    assert_eq!(Message::parse(packet.payload), Ok(message));
}

/// No answer comes. The request is retransmitted after 1, 2, 4, 8 and 8 times the timeout; then it expires,
/// once, and its context comes back. PROTOCOL 5.2, 5.3.
#[test]
fn a_silent_server_is_asked_ever_more_slowly() {
    let mut requester = Requester::new(4, TIMEOUT, 5);
    assert_eq!(requester.start(at(0), id(1), "context"), Ok(()));
    let (mut wakes, mut sent) = (Vec::new(), Vec::new());
    loop {
        let now = requester.next_wake().expect("a timer runs");
        wakes.push(now.as_nanos() / 10_000);
        let early = Instant::from_nanos(now.as_nanos() - 1);
        let expired = requester.on_wake(early, |request, _| panic!("{request:?} is not due"));
        assert!(expired.is_none(), "not before its time");
        if let Some(expired) = requester.on_wake(now, |request, &context| sent.push((request, context))) {
            assert_eq!((expired.request, expired.context), (id(1), "context"));
            break;
        }
        requester.check();
    }
    assert_eq!(wakes, [1, 3, 7, 15, 23, 31]);
    assert_eq!(sent, [(id(1), "context"); 5]);
    assert!(requester.is_empty() && requester.next_wake().is_none());
    assert_eq!(requester.finish(id(1)), None, "the answer comes now: late");
}

/// A requester that tolerates this much silence gives a request up then, at most one wait later. Waits grow,
/// so there are fewer of them than timeouts. PROTOCOL 5.2, 5.3.
#[test]
fn repetitions_last_for_the_silence_that_is_borne() {
    let moments = [0, 1, 39, 40, 41, 300, 4000, 60_000].map(Duration::from_millis);
    for (silence, timeout) in moments.iter().flat_map(|&silence| [1, 40, 5000].map(|ms| (silence, ms))) {
        let timeout = Duration::from_millis(timeout);
        let mut requester = Requester::new(1, timeout, retries_in(silence, timeout));
        assert_eq!(requester.start(at(0), id(1), ()), Ok(()));
        let mut last = at(0);
        let given_up = loop {
            let now = requester.next_wake().expect("a timer runs");
            if requester.on_wake(now, |_, ()| {}).is_some() {
                break now;
            }
            last = now;
        };
        assert!(last < at(0) + silence || last == at(0), "{silence:?} of {timeout:?}: {last:?}");
        assert!(given_up >= at(0) + silence, "{silence:?} of {timeout:?}: {given_up:?}");
    }
}

/// An answer completes its request. A second copy, and an answer to no request, complete nothing. PROTOCOL
/// 5.1.
#[test]
fn an_answer_counts_once() {
    let mut requester = Requester::new(4, TIMEOUT, 3);
    for counter in 0..3 {
        assert_eq!(requester.start(at(0), id(counter), counter), Ok(()));
    }
    assert_eq!(requester.get(id(1)), Some(&1));
    assert_eq!(requester.finish(id(1)), Some(1));
    assert_eq!(requester.finish(id(1)), None);
    assert_eq!(requester.get(id(1)), None);
    assert_eq!(requester.finish(id(99)), None);
    assert_eq!(requester.len(), 2);
    requester.check();
}

/// One request too many: its owner gets it back. An answer makes room. PROTOCOL 5.4.
#[test]
fn outstanding_requests_are_bounded() {
    let mut requester = Requester::new(2, TIMEOUT, 3);
    for counter in 0..2 {
        assert_eq!(requester.start(at(0), id(counter), ()), Ok(()));
    }
    assert_eq!(requester.start(at(0), id(2), ()), Err(()));
    requester.finish(id(0));
    assert_eq!(requester.start(at(0), id(2), ()), Ok(()));
}

/// Several requests expire at once: each call returns one, until there are none. Requests that are only due
/// are retransmitted. PROTOCOL 5.3.
#[test]
fn expired_requests_come_one_by_one() {
    let mut requester = Requester::new(8, TIMEOUT, 0);
    for counter in 0..3 {
        requester.start(at(0), id(counter), counter).expect("room");
    }
    let expired: Vec<_> =
        std::iter::from_fn(|| requester.on_wake(at(10), |_, _| {})).map(|e| e.context).collect();
    assert_eq!(expired, [0, 1, 2]);
}

/// One request stays outstanding while millions complete behind it: the timers of completed requests must not
/// pile up. PROTOCOL 5.4.
#[test]
fn timers_of_finished_requests_do_not_pile_up() {
    let mut requester = Requester::new(4, Duration::from_secs(1), 3);
    requester.start(at(0), id(0), ()).expect("room");
    for counter in 1..1000 {
        requester.start(at(u64::from(counter)), id(counter), ()).expect("room");
        requester.finish(id(counter)).expect("outstanding");
        requester.check();
        assert_eq!(requester.next_wake(), Some(Instant::ZERO + Duration::from_secs(1)), "the stuck one's");
    }
}

/// Random starts, answers and wakes beside a model that keeps a plain list of (id, next send, sends): the same sends at the
/// same times, the same requests given up. PROTOCOL 5.1 to 5.4.
#[test]
fn the_requester_equals_its_model() {
    let mut expirations = 0;
    for seed in 0..300 {
        let mut rng = Rng::from_number(seed);
        let mut requester = Requester::new(16, TIMEOUT, 4);
        let mut model: BTreeMap<RequestId, (Instant, u32)> = BTreeMap::new();
        let mut now = Instant::ZERO;
        for counter in 0..300 {
            now += Duration::from_nanos(u64::from(rng.below(6_000)));
            match rng.below(3) {
                0 => {
                    let started = requester.start(now, id(counter), counter);
                    assert_eq!(started.is_ok(), model.len() < 16);
                    if started.is_ok() {
                        model.insert(id(counter), (now + TIMEOUT, 0));
                    }
                }
                1 => {
                    let answered = id(rng.below(counter + 1));
                    assert_eq!(requester.finish(answered).is_some(), model.remove(&answered).is_some());
                }
                _ => {
                    let (mut again, mut given_up) = (BTreeSet::new(), BTreeSet::new());
                    for (&request, (due, retries)) in &mut model {
                        if *due <= now && *retries == 4 {
                            given_up.insert(request);
                        } else if *due <= now {
                            *retries += 1;
                            *due = now + TIMEOUT.times([1, 2, 4, 8, 8][*retries as usize]);
                            again.insert(request.counter());
                        }
                    }
                    model.retain(|request, _| !given_up.contains(request));
                    let (mut sent, mut expired) = (Vec::new(), BTreeSet::new());
                    while let Some(it) = requester.on_wake(now, |_, &counter| sent.push(counter)) {
                        expired.insert(it.request);
                    }
                    assert_eq!(expired, given_up, "seed {seed}");
                    expirations += given_up.len();
                    assert_eq!(sent.len(), again.len(), "seed {seed}: each once");
                    assert_eq!(sent.into_iter().collect::<BTreeSet<_>>(), again, "seed {seed}");
                }
            }
            requester.check();
            assert_eq!(requester.next_wake(), model.values().map(|&(due, _)| due).min(), "seed {seed}");
            assert_eq!(requester.len(), model.len());
        }
    }
    assert!(expirations > 100, "{expirations}");
}

/// The answer to a write was lost and the write is repeated. It is not executed; the stored answer is sent
/// again. A request never seen is new, also if later ones overtook it. PROTOCOL 5.5.
#[test]
fn a_repeated_write_gets_its_answer_again() {
    let mut dedup = Dedup::new(4, 3, AnswerBudget::UNBOUNDED);
    assert_eq!(dedup.lookup(id(5)), RequestState::New);
    dedup.remember(id(5), 0, b"five");
    dedup.remember(id(7), 0, b"seven");
    assert_eq!(dedup.lookup(id(5)), RequestState::Answered(b"five"));
    assert_eq!(dedup.lookup(id(6)), RequestState::New, "overtaken, not lost");
    dedup.remember(id(6), 0, b"six");
    assert_eq!(dedup.lookup(id(6)), RequestState::Answered(b"six"));
    assert_eq!(dedup.lookup(id(7)), RequestState::Answered(b"seven"));
    let executed_twice = std::panic::catch_unwind(move || dedup.remember(id(6), 0, b"again"));
    assert!(executed_twice.is_err(), "a broken invariant of ours");
}

/// Three answers are stored. An older write may have been executed, so it is dropped. This holds even for a
/// write that never arrived before: the server cannot tell. PROTOCOL 5.6.
#[test]
fn what_is_forgotten_is_not_executed() {
    let mut dedup = Dedup::new(4, 3, AnswerBudget::UNBOUNDED);
    for counter in [10, 20, 30, 40] {
        dedup.remember(id(counter), 0, b"a");
    }
    assert_eq!(dedup.lookup(id(10)), RequestState::Forgotten);
    assert_eq!(dedup.lookup(id(9)), RequestState::Forgotten);
    assert_eq!(dedup.lookup(id(11)), RequestState::New);
    // A late request below all stored ones is executed, answered, and forgotten at once.
    dedup.remember(id(15), 0, b"b");
    assert_eq!(dedup.lookup(id(15)), RequestState::Forgotten);
    assert_eq!([20, 30, 40].map(|c| dedup.lookup(id(c))), [RequestState::Answered(b"a"); 3]);
}

/// A host restarts and counts from the beginning. Its new requests are new. Packets of its earlier lives are
/// dropped, whatever the number of lives without a write in between. PROTOCOL 5.7.
#[test]
fn a_restarted_host_starts_afresh() {
    let request = |generation, counter| RequestId::new(HostId(3), generation, counter);
    let mut dedup = Dedup::new(4, 3, AnswerBudget::UNBOUNDED);
    for (before, after) in [(1, 2), (1, 0x8001), (1, 0xffff)] {
        dedup.remember(request(before, 1000), 0, b"old");
        assert_eq!(dedup.lookup(request(after, 1)), RequestState::New, "{before} {after}");
        dedup.remember(request(after, 1), 0, b"new");
        assert_eq!(dedup.lookup(request(after, 1)), RequestState::Answered(b"new"));
        assert_eq!(dedup.lookup(request(before, 1000)), RequestState::Forgotten);
        assert_eq!(dedup.lookup(request(before, 1001)), RequestState::Forgotten);
        dedup = Dedup::new(4, 3, AnswerBudget::UNBOUNDED);
    }
}

/// A host has left. Its writes are not executed again, its answers are dropped, and its next life is
/// accepted. PROTOCOL 5.7.
#[test]
fn the_answers_of_a_host_that_left_are_not_kept() {
    let request = |generation, counter| RequestId::new(HostId(3), generation, counter);
    let mut dedup = Dedup::new(4, 3, AnswerBudget::UNBOUNDED);
    dedup.remember(request(1, 5), 40, b"five");
    dedup.begin(request(1, 6), 9, 40);
    dedup.host_left(HostId(3));
    dedup.host_left(HostId(4));
    dedup.finish(request(1, 6), 9, b"late");
    assert_eq!([5, 6, 7].map(|counter| dedup.lookup(request(1, counter))), [RequestState::Forgotten; 3]);
    assert_eq!(dedup.begun_in(0, u64::MAX).count(), 0);
    assert_eq!(dedup.forgotten().collect::<Vec<_>>(), [request(1, u32::MAX)]);
    assert_eq!(dedup.lookup(request(2, 1)), RequestState::New);
    dedup.remember(request(2, 1), 0, b"new");
    assert_eq!(dedup.lookup(request(2, 1)), RequestState::Answered(b"new"));
}

/// Hosts request long answers to fill the server's memory. Within its room the server keeps all answers,
/// beyond it each host's share of the latest. Requests with dropped answers are not executed again. A host
/// with short answers loses none. A host that leaves frees room. PROTOCOL 5.13.
#[test]
fn answers_take_no_more_than_their_room() {
    const DEPTH: usize = 64;
    let (long, room) = ([0x55; 4000], AnswerBudget { all: 200_000, share: 20_000 });
    let mut dedup = Dedup::new(64, DEPTH, room);
    let request = |host, counter| RequestId::new(HostId(host), 1, counter);
    let count = u32::try_from(DEPTH).unwrap();
    (0..count).for_each(|n| dedup.remember(request(1, n), 0, &[7; 60]));
    for host in 2..50 {
        for n in 0..count {
            dedup.remember(request(host, n), 0, &long);
            assert_eq!(dedup.lookup(request(host, n)), RequestState::Answered(&long), "the latest");
        }
        let kept =
            (0..count).filter(|&n| dedup.lookup(request(host, n)) == RequestState::Answered(&long)).count();
        let forgotten =
            (0..count).filter(|&n| dedup.lookup(request(host, n)) == RequestState::Forgotten).count();
        assert_eq!(kept + forgotten, DEPTH, "host {host}: none is new");
        assert!(kept * long.len() >= room.share - long.len(), "host {host} has its share: {kept}");
        assert!(dedup.taken() <= room.all + usize::from(host) * room.share, "{} bytes", dedup.taken());
    }
    assert!(dedup.taken() > room.all, "it was full");
    assert!((0..count).all(|n| dedup.lookup(request(1, n)) == RequestState::Answered(&[7; 60])));
    // Answered from the last to the first: the earlier ones are dropped, so finishing them has no effect.
    (0..count).for_each(|n| dedup.begin(request(50, n), 0, 0));
    (0..count).rev().for_each(|n| dedup.finish(request(50, n), 0, &long));
    let kept = (0..count).filter(|&n| dedup.lookup(request(50, n)) == RequestState::Answered(&long)).count();
    assert_eq!(kept, room.share / long.len() + 1, "its share, and the one that went over it");

    (2..50).for_each(|host| dedup.host_left(HostId(host)));
    (0..count).for_each(|n| dedup.remember(RequestId::new(HostId(2), 2, n), 0, &[1; 500]));
    assert!(
        (0..count)
            .all(|n| dedup.lookup(RequestId::new(HostId(2), 2, n)) == RequestState::Answered(&[1; 500]))
    );
    (1..64).for_each(|host| dedup.host_left(HostId(host)));
    assert_eq!(dedup.taken(), 0);
}

/// Two hosts fit. A third replaces the host that wrote longest ago; the other keeps its answers. PROTOCOL
/// 5.8.
#[test]
fn the_host_silent_longest_is_forgotten() {
    let of = |host, counter| RequestId::new(HostId(host), 1, counter);
    let mut dedup = Dedup::new(2, 3, AnswerBudget::UNBOUNDED);
    dedup.remember(of(1, 1), 0, b"1");
    dedup.remember(of(2, 1), 0, b"2");
    dedup.remember(of(1, 2), 0, b"1");
    dedup.remember(of(3, 1), 0, b"3");
    assert_eq!(dedup.lookup(of(1, 1)), RequestState::Answered(b"1"));
    assert_eq!(dedup.lookup(of(3, 1)), RequestState::Answered(b"3"));
    assert_eq!(dedup.lookup(of(2, 1)), RequestState::New);
}

/// A request visits a server, leaves it, and returns with fewer hops left. Copies arrive at any moment: none
/// is executed, and each gets the outcome of the last visit, because that visit proves that the others were
/// answered. PROTOCOL 5.5, 7.36.
#[test]
fn visits_of_a_request_are_remembered_by_the_last() {
    let mut dedup = Dedup::new(4, 3, AnswerBudget::UNBOUNDED);
    dedup.begin(id(5), 9, 0);
    assert_eq!([9, 10].map(|hops| dedup.lookup_visit(id(5), hops)), [RequestState::UnderWay; 2]);
    assert_eq!(dedup.lookup_visit(id(5), 8), RequestState::New);
    dedup.finish(id(5), 9, b"went on");
    assert_eq!([9, 10].map(|hops| dedup.lookup_visit(id(5), hops)), [RequestState::Answered(b"went on"); 2]);
    dedup.begin(id(5), 7, 0);
    assert_eq!([7, 8, 9].map(|hops| dedup.lookup_visit(id(5), hops)), [RequestState::UnderWay; 3]);
    dedup.finish(id(5), 9, b"late");
    assert_eq!(dedup.lookup_visit(id(5), 7), RequestState::UnderWay, "that was another visit");
    dedup.finish(id(5), 7, b"ended");
    dedup.finish(id(5), 7, b"again");
    assert_eq!([7, 9].map(|hops| dedup.lookup_visit(id(5), hops)), [RequestState::Answered(b"ended"); 2]);
    assert_eq!(dedup.lookup_visit(id(5), 6), RequestState::New);
    let executed_twice = std::panic::catch_unwind(move || dedup.begin(id(5), 7, 0));
    assert!(executed_twice.is_err(), "a broken invariant of ours");
}

/// Three visits are stored, and a fourth request arrives while they are in progress: the oldest is never
/// executed again. A visit that finishes after it was forgotten has no effect. PROTOCOL 5.6.
#[test]
fn a_visit_may_be_forgotten_while_it_is_under_way() {
    let mut dedup = Dedup::new(4, 3, AnswerBudget::UNBOUNDED);
    for counter in [10, 20, 30, 40] {
        dedup.begin(id(counter), 9, 0);
    }
    assert_eq!(dedup.lookup_visit(id(10), 9), RequestState::Forgotten);
    assert_eq!(dedup.lookup_visit(id(10), 3), RequestState::Forgotten, "so is a later visit");
    dedup.finish(id(10), 9, b"x");
    assert_eq!(dedup.lookup_visit(id(10), 9), RequestState::Forgotten);
    dedup.finish(RequestId::new(HostId(77), 1, 1), 9, b"of nobody");
    dedup.finish(id(20), 9, b"twenty");
    assert_eq!(dedup.lookup_visit(id(20), 9), RequestState::Answered(b"twenty"));
}

/// Random writes of a few hosts, repeated and out of order, against a model that stores everything: nothing
/// is executed twice, and at least the last `depth` ids get the right answer. PROTOCOL 5.5, 5.6.
#[test]
fn dedup_executes_nothing_twice() {
    const DEPTH: usize = 8;
    let mut counts = [0; 3];
    for seed in 0..300 {
        let mut rng = Rng::from_number(seed);
        let mut dedup = Dedup::new(3, DEPTH, AnswerBudget::UNBOUNDED);
        let mut model: BTreeMap<RequestId, Vec<u8>> = BTreeMap::new();
        for step in 0..400_u32 {
            let host = HostId(1 + u16::from(rng.chance(1, 2)));
            let request = RequestId::new(host, 1, (step / 4 + rng.below(12)).saturating_sub(rng.below(12)));
            let executed = model.get(&request);
            match dedup.lookup(request) {
                RequestState::New => {
                    assert_eq!(executed, None, "seed {seed}: {request:?} twice");
                    let answer = rng.next_u64().to_le_bytes()[..rng.below(8) as usize].to_vec();
                    dedup.remember(request, 0, &answer);
                    model.insert(request, answer);
                    counts[0] += 1;
                }
                RequestState::Answered(answer) => {
                    assert_eq!(executed.map(Vec::as_slice), Some(answer));
                    counts[1] += 1;
                }
                RequestState::UnderWay => unreachable!("each is finished at once"),
                RequestState::Forgotten => {
                    let later = model.keys().filter(|id| id.host() == host && **id > request).count();
                    assert!(
                        later >= DEPTH,
                        "seed {seed}: {request:?} forgotten too early, {later} later ones"
                    );
                    counts[2] += 1;
                }
            }
        }
    }
    assert!(counts.iter().all(|&n| n > 1000), "each outcome is reached: {counts:?}");
}

/// The control plane's batches: each is applied once and in order. The last one again gets the same response;
/// an earlier or a later one gets none. PROTOCOL 5.9.
#[test]
fn batches_are_applied_in_order() {
    let mut inbox = Inbox::default();
    assert_eq!([0, 2, u64::MAX].map(|seq| inbox.decide(&batch(seq, &GONE))), [BatchAction::Ignore; 3]);
    assert_eq!(inbox.decide(&batch(1, &GONE)), BatchAction::Apply);
    assert_eq!(inbox.decide(&batch(1, &GONE)), BatchAction::Apply, "asking changes nothing");
    inbox.applied(&batch(1, &GONE), Status::Ok, 0);
    assert_eq!(inbox.decide(&batch(1, &GONE)), BatchAction::Again(Status::Ok, 0));
    assert_eq!(inbox.decide(&batch(3, &GONE)), BatchAction::Ignore);
    assert_eq!(inbox.decide(&batch(2, &OTHER)), BatchAction::Apply);
    inbox.applied(&batch(2, &OTHER), Status::Ok, 0);
    assert_eq!(inbox.decide(&batch(1, &GONE)), BatchAction::Ignore);
    assert_eq!(inbox.halted(), None);
    let out_of_order = std::panic::catch_unwind(move || inbox.applied(&batch(4, &GONE), Status::Ok, 0));
    assert!(out_of_order.is_err(), "a broken invariant of ours");
}

/// `PeerGone` of two ports.
const GONE: [u8; 5] = [2, 0, 0, 0, 5];
const OTHER: [u8; 5] = [2, 0, 0, 0, 6];

/// Returns a batch of one update.
fn batch(seq: u64, update: &[u8]) -> Updates<'_> {
    Updates::request(seq, 1, update).expect("an update")
}

/// An attacker with the control plane's keys is one batch ahead: the control plane's own batch repeats the
/// last number with other bytes. The control plane would be wrong about the applied batch, so the role stops
/// for good. PROTOCOL 5.11.
#[test]
fn a_batch_that_repeats_a_number_with_other_bytes_ends_the_order() {
    let mut inbox = Inbox::default();
    inbox.applied(&batch(1, &GONE), Status::Ok, 0);
    inbox.applied(&batch(2, &OTHER), Status::TableFull, 0);
    assert_eq!(inbox.decide(&batch(2, &GONE)), BatchAction::Halt, "also when it was refused");
    assert_eq!(inbox.halted(), Some(Halt::BatchChanged { seq: 2 }));
    assert_eq!([1, 2, 3].map(|seq| inbox.decide(&batch(seq, &OTHER))), [BatchAction::Halt; 3]);
    let text = Halt::BatchChanged { seq: 2 }.to_string();
    assert!(
        text.contains("batch 2") && text.contains("another sender has the control plane's keys"),
        "{text}"
    );
}

/// The third update of a batch found a table full: each repetition of the batch gets this response, and the
/// next batch has the next number. PROTOCOL 5.10.
#[test]
fn a_refused_batch_is_answered_alike_again() {
    let mut inbox = Inbox::default();
    inbox.applied(&batch(1, &GONE), Status::TableFull, 2);
    assert_eq!(inbox.decide(&batch(1, &GONE)), BatchAction::Again(Status::TableFull, 2));
    assert_eq!(inbox.decide(&batch(1, &GONE)), BatchAction::Again(Status::TableFull, 2));
    assert_eq!(inbox.decide(&batch(2, &GONE)), BatchAction::Apply);
}

/// Memory moves to another server with its records of executed requests. A copy that arrives at the new
/// server is answered, also if that server knows an earlier visit. A request that the old server forgot is
/// not executed at the new one. Better local records stay. PROTOCOL 7.41.
#[test]
fn what_was_executed_elsewhere_is_learned() {
    let (mut old, mut new) =
        (Dedup::new(4, 3, AnswerBudget::UNBOUNDED), Dedup::new(4, 3, AnswerBudget::UNBOUNDED));
    for (counter, place) in [(10, 0x1000), (20, 0x1000), (30, 0x5000), (40, 0x1fff)] {
        old.remember(id(counter), place, b"old");
    }
    old.begin(id(50), 3, 0x1800);
    new.begin(id(50), 9, 0x8000);
    new.finish(id(50), 9, b"went on");
    new.remember(id(40), 0x9000, b"mine");
    let moved: Vec<_> = old.begun_in(0x1000, 0x1fff).collect();
    assert_eq!(moved, [(id(40), 0), (id(50), 3)], "of three that are remembered, those that began there");
    old.finish(id(50), 3, b"ended");
    for (request, hops) in moved {
        let RequestState::Answered(answer) = old.lookup_visit(request, hops) else {
            panic!("{request:?} is remembered")
        };
        new.import(request, hops, 0x1000, answer);
    }
    assert_eq!(new.lookup(id(40)), RequestState::Answered(b"mine"));
    assert_eq!([3, 9].map(|hops| new.lookup_visit(id(50), hops)), [RequestState::Answered(b"ended"); 2]);
    let moves_on: Vec<_> = new.begun_in(0x1000, 0x1000).collect();
    assert_eq!(moves_on, [(id(40), 0), (id(50), 3)], "they may move on");
    let mut earlier = new.begun_in(0x8000, 0x8000);
    assert!(
        earlier.any(|visit| visit == (id(50), 3)),
        "a copy of its first visit here may come where that began"
    );
    drop(earlier);
    let forgotten: Vec<_> = old.forgotten().collect();
    assert_eq!(forgotten, [id(20)]);
    assert_eq!(new.lookup(id(15)), RequestState::New);
    new.import_forgotten(forgotten[0]);
    assert_eq!([10, 15, 20].map(|counter| new.lookup(id(counter))), [RequestState::Forgotten; 3]);
    assert_eq!(new.lookup(id(21)), RequestState::New);
    let of = |host, generation, counter| RequestId::new(HostId(host), generation, counter);
    new.import_forgotten(of(9, 5, 7));
    assert_eq!(
        [of(9, 5, 7), of(9, 4, 900), of(9, 5, 8)].map(|id| new.lookup(id)),
        [RequestState::Forgotten, RequestState::Forgotten, RequestState::New]
    );
    new.import_forgotten(of(9, 4, 9));
    assert_eq!(new.lookup(of(9, 5, 8)), RequestState::New, "an earlier life says nothing of this one");
    new.import_forgotten(of(9, 6, 2));
    assert_eq!(
        [of(9, 5, 8), of(9, 6, 2), of(9, 6, 3)].map(|id| new.lookup(id)),
        [RequestState::Forgotten, RequestState::Forgotten, RequestState::New]
    );
}
