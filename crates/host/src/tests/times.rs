//! Timeouts: retransmissions, expiry, and answers at the last moment.

use super::*;

/// The request is sent again after 1, 2, 4 and then every 8 timeouts, unchanged except for the retransmission
/// flag; then it expires, once (PROTOCOL 5.2, 5.3).
#[test]
pub(super) fn a_request_without_an_answer_ends_once() {
    let mut bench = Bench::with_sessions();
    let ticket = bench.submit(region_write(BASE_1, b"1234"));
    let request = bench.request();
    let start = bench.now;
    for waits in [1, 3, 7, 15, 23] {
        bench.wake();
        assert_eq!(bench.now.since(start), TIMEOUT.times(waits));
        assert_eq!((bench.request(), bench.done.len()), (request.again(), 0));
    }
    bench.wake();
    assert_eq!(bench.now.since(start), TIMEOUT.times(31));
    let done = Done { ticket, result: Err(Failure::NoAnswer), buf: b"1234".to_vec() };
    assert_eq!((bench.ended(), bench.took_notes()), (done, vec![Note::Abandoned]));
    assert_eq!((bench.host.next_wake(), bench.host.outstanding()), (None, 0));

    bench.event(Event::Wake);
    bench.hear(Port::node(1), &request.answer(Status::Ok, &[]));
    assert_eq!((bench.done.len(), bench.took_notes()), (0, vec![Note::LateAnswer]), "once");
}

/// The first answer was lost. The answer to the retransmission ends the operation, and the first one,
/// delivered later, is late.
#[test]
fn an_answer_to_a_repetition_ends_it_once() {
    let mut bench = Bench::with_sessions();
    bench.submit(region_read(BASE_1, 4));
    let first = bench.request();
    bench.wake();
    let again = bench.request();
    bench.hear(Port::node(1), &again.answer(Status::Ok, b"data"));
    assert_eq!(bench.ended().buf, b"data");
    bench.hear(Port::node(1), &first.answer(Status::Ok, b"old!"));
    assert_eq!((bench.done.len(), bench.took_notes()), (0, vec![Note::LateAnswer]));
}

/// Each request of a traversal has its own timeout: a continuation starts a new one. The result has the last
/// known state.
#[test]
fn a_traversal_is_given_up_with_its_last_state() {
    let mut bench = Bench::with_sessions();
    bench.submit(traversals::list_sum(BASE_1, 9));
    (0..RETRIES_MAX).for_each(|_| bench.wake());
    let request = Request { frame: take(&mut bench.sent).pop().unwrap().1 };
    let state = request.state(Status::HopLimit, |s| Traverse { iterations: 2, scratch: &[8; 16], ..s });
    bench.hear(Port::SWITCH, &state);
    bench.sent.clear();
    for _ in 0..RETRIES_MAX {
        bench.wake();
        assert_eq!(bench.sent.len(), 1);
        assert_ne!(bench.request(), request);
    }
    bench.wake();
    let done = bench.ended();
    assert_eq!((done.result, &done.buf[..]), (Err(Failure::NoAnswer), &[8; 16][..]));
}

/// A driver may wake the host early, late and twice: only the time counts.
#[test]
fn a_wake_without_need_does_nothing() {
    let mut bench = Bench::with_sessions();
    bench.event(Event::Wake);
    assert_eq!(bench.host.next_wake(), None);
    bench.submit(region_read(BASE_1, 4));
    bench.sent.clear();
    bench.event(Event::Wake);
    bench.now += TIMEOUT - Duration::from_nanos(1);
    bench.event(Event::Wake);
    assert_eq!(bench.sent.len(), 0, "early");
    bench.now += TIMEOUT.times(1_000);
    bench.event(Event::Wake);
    bench.event(Event::Wake);
    assert_eq!((bench.sent.len(), bench.done.len()), (1, 0), "late, but only one repetition is due");
}

/// Connections and requests have separate timers: the host wakes for the earliest.
#[test]
fn the_first_of_all_timers_wakes_the_host() {
    let mut bench = Bench::with_sessions();
    let mut line = connection(ALICE, 1, 1);
    line.rc.timeout = Duration::from_millis(4);
    bench.ask(HostRequest::Connect(line));
    bench.submit(region_read(BASE_1, 4));
    assert_eq!(bench.host.next_wake(), Some(bench.now + TIMEOUT));
    bench.submit(read(BASE_1, 4));
    assert_eq!(bench.host.next_wake(), Some(bench.now + line.rc.timeout));
    bench.sent.clear();
    bench.wake();
    let [(Port(0x1001), _)] = bench.sent[..] else { panic!("the READ again, to node 1: {:?}", bench.sent) };
}
