//! The contracts of every role: order in the outbox, time that does not wrap, repeatable randomness, timers
//! in their rows, port numbers.

use farmem_machine::{Action, Duration, Instant, Lender as _, Loan, NoLender, Outbox, Port, Rng};
use std::sync::Arc;

/// A role replies, sends, notes and sends again: the driver gets exactly this, in order, and an emptied
/// outbox starts again.
#[test]
fn actions_leave_in_the_order_they_were_made() {
    let mut out: Outbox<&str, u8> = Outbox::new();
    for round in 0..3_u8 {
        out.local("first");
        out.send(Port::SWITCH, &[round; 3]);
        out.note(round);
        let mut frame = out.frame(Port::node(7));
        frame.bytes().extend_from_slice(b"ab");
        frame.bytes().push(b'c');
        assert_eq!(frame.written(), 3);
        drop(frame);
        assert_eq!(out.len(), 4);
        let mut seen = Vec::new();
        out.drain(|action| {
            seen.push(match action {
                Action::Send { port, frame } => format!("{} {frame:?}", port.0),
                Action::Local(text) => text.to_owned(),
                Action::Note(note) => format!("note {note}"),
            });
        });
        let frame = format!("1 {:?}", [round; 3]);
        assert_eq!(seen, ["first", &frame, &format!("note {round}"), "4103 [97, 98, 99]"]);
        assert!(out.is_empty());
    }
}

/// A writer that shortens the arena would expose another frame's bytes: a broken invariant, which panics.
#[test]
#[should_panic(expected = "only appends")]
fn a_writer_that_shortens_is_caught() {
    let mut out: Outbox<(), ()> = Outbox::new();
    out.send(Port::CONTROL, b"another frame");
    out.frame(Port::CONTROL).bytes().clear();
}

/// Time saturates at its end: a timer far ahead does not become overdue.
#[test]
fn time_saturates() {
    let end = Instant::from_nanos(u64::MAX);
    assert_eq!(end + Duration::from_secs(1), end);
    assert_eq!(Instant::ZERO.since(end), Duration::ZERO);
    assert_eq!(Duration::from_secs(u64::MAX), Duration::from_nanos(u64::MAX));
    assert_eq!(Duration::from_millis(3).times(u64::MAX), Duration::from_nanos(u64::MAX));
    assert_eq!((Instant::from_nanos(5_000_123) + Duration::from_micros(2)).as_nanos(), 5_002_123);
    assert_eq!(Duration::from_nanos(3) - Duration::from_nanos(5), Duration::ZERO);
}

/// One seed always gives the same numbers, another seed others. Numbers are below their bound, and all of
/// them occur.
#[test]
fn chance_repeats_by_seed() {
    let draw = |mut rng: Rng| (0..64).map(|_| rng.next_u64()).collect::<Vec<_>>();
    assert_eq!(draw(Rng::from_number(7)), draw(Rng::from_number(7)));
    assert_ne!(draw(Rng::from_number(7)), draw(Rng::from_number(8)));
    assert_ne!(draw(Rng::from_seed([1; 32])), draw(Rng::from_seed([2; 32])));
    let mut rng = Rng::from_number(1);
    let mut seen = [0_u32; 7];
    for _ in 0..7_000 {
        seen[rng.below(7) as usize] += 1;
    }
    assert!(seen.iter().all(|&n| (800..1_200).contains(&n)), "{seen:?}");
    assert!((0..1000).all(|_| !rng.chance(0, 5) && rng.chance(5, 5)));
}

/// A port identifies its kind, and no two kinds share a number.
#[test]
fn ports_say_whose_they_are() {
    for n in [0, 1, 0xefff] {
        assert_eq!((Port::node(n).as_node(), Port::node(n).as_host()), (Some(n), None));
    }
    for n in [0, 1, 0xffff] {
        assert_eq!((Port::host(n).as_host(), Port::host(n).as_node()), (Some(n), None));
    }
    for port in [Port::CONTROL, Port::SWITCH, Port::UNKNOWN, Port(0xfff), Port(0xf000 + 0x1000)] {
        assert_eq!(
            (port.as_node(), port.as_host()),
            if port.0 == 0x10000 { (None, Some(0)) } else { (None, None) }
        );
    }
}

/// A loan is the part of a memory that holds the bytes; bytes elsewhere give none. When the last loan is
/// dropped, the owner may change the memory again.
#[test]
fn a_loan_keeps_memory_as_it_is() {
    let mut memory: Arc<Box<[u8]>> = Arc::new((0..16).collect());
    let other: Vec<u8> = memory.to_vec();
    assert!(Loan::of(&memory, &other[2..5]).is_none() && Loan::of(&memory, b"elsewhere").is_none());
    let loan = Loan::of(&memory, &memory[2..5]).unwrap();
    assert_eq!((&*loan, loan.as_ptr()), (&[2, 3, 4][..], memory[2..].as_ptr()));
    let second = loan.clone();
    drop(loan);
    assert!(Arc::get_mut(&mut memory).is_none());
    assert_eq!(*second, [2, 3, 4]);
    drop(second);
    assert!(Arc::get_mut(&mut memory).is_some());
    assert!(NoLender.lend(&memory[..1]).is_none());
    let all = Loan::of(&memory, &memory).unwrap();
    assert_eq!(*all, **memory);
}
