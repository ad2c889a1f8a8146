//! Lent slots: unchanged bytes, the number of spare slots, and the limit of loans.

use super::*;
use farmem_machine::Loan;
use std::sync::mpsc::channel;
use std::thread;

/// Sends frames one by one, and receives each by its own call.
fn send_alone(a: &mut UdpLink, b: &mut UdpLink, n: u32, each: &mut EachRun<'_>) {
    a.send(PORT_B, &frame(n, 64));
    a.flush().unwrap();
    let patience = Wait::AtMost(Duration::from_secs(60));
    assert_eq!(b.receive_runs(patience, each).unwrap(), 1, "{:?}", b.counters());
}

/// Returns the number of lent slots that spare ones have replaced, the number of spare slots, and its
/// maximum.
fn spares(link: &UdpLink) -> (u64, usize, usize) {
    let inbound = lock(&link.inbound);
    (inbound.replaced, inbound.spares.len(), inbound::LENT_BYTES_MAX / inbound.slot_bytes)
}

/// The receiver borrows each frame's slot and keeps it. Lent bytes do not change while other frames arrive in
/// spare slots. At the limit of loans, nothing is lent, and frames arrive as before. After all loans have
/// ended, the same spare slots serve as many more. A link without loans has no spare slots.
#[test]
fn what_is_lent_stays_as_it_is() {
    for (test, segmentation) in [(70, true), (71, false)] {
        let (mut a, mut b) = pair_with(test, |config| UdpConfig { segmentation, ..config });
        for n in 0..40 {
            send_alone(&mut a, &mut b, n, &mut |run| assert_eq!(run.frames, [frame(n, 64)]));
        }
        assert_eq!((spares(&b).0, spares(&b).1), (0, 0));
        let most = u32::try_from(spares(&b).2).unwrap();
        let mut loans: Vec<Loan> = Vec::new();
        for round in 1..=3 {
            for n in 0..3 * most {
                send_alone(&mut a, &mut b, n, &mut |run| {
                    assert!(run.lender.lend(&frame(n, 64)).is_none(), "no bytes of this link");
                    let loan = run.lender.lend(run.frames[0]);
                    assert_eq!(loan.is_some(), n < most, "{n} of {most}");
                    assert!(loan.iter().all(|loan| loan.as_ptr() == run.frames[0].as_ptr()));
                    assert!(loan.is_none() || run.lender.lend(run.frames[0]).is_some(), "a slot counts once");
                    loans.extend(loan);
                });
            }
            assert!(loans.iter().zip(0..).all(|(loan, n)| **loan == frame(n, 64)), "they stay as they were");
            assert_eq!(loans.len(), most as usize);
            let (replaced, there, _) = spares(&b);
            assert_eq!(
                replaced,
                round * u64::from(most),
                "each receive put one in the place of what was lent"
            );
            assert!(there <= most as usize, "{there}");
            loans.clear();
        }
        assert_eq!(b.counters().lost(), 0);
    }
}

/// Frames of one datagram are in one slot, which can be lent several times. The slot counts once, for any
/// number of loans, and is filled again after the last loan ends.
#[test]
fn frames_of_one_datagram_are_lent_together() {
    let (mut a, mut b) = pair(72);
    if !(a.outbound.segments() && b.socket.coalesce()) {
        return eprintln!("skipped: this kernel does not put packets together");
    }
    let patience = Wait::AtMost(Duration::from_secs(60));
    let mut all: Vec<Vec<Loan>> = Vec::new();
    let most = u32::try_from(spares(&b).2).unwrap();
    for n in 0..most {
        (0..4).for_each(|at| a.send(PORT_B, &frame(4 * n + at, 64)));
        a.flush().unwrap();
        let mut loans = Vec::new();
        b.receive_runs(patience, &mut |run| {
            loans.extend(run.frames.iter().map(|frame| run.lender.lend(frame).unwrap()));
        })
        .unwrap();
        assert_eq!(loans.len(), 4);
        all.push(loans);
    }
    assert!(all.iter().flatten().zip(0..).all(|(loan, n)| **loan == frame(n, 64)));
    let is_lent = |a: &mut UdpLink, b: &mut UdpLink| {
        let mut is_lent = false;
        send_alone(a, b, 0, &mut |run| is_lent = run.lender.lend(run.frames[0]).is_some());
        is_lent
    };
    assert!(!is_lent(&mut a, &mut b), "all are out");
    all[0].truncate(1);
    assert!(!is_lent(&mut a, &mut b), "a frame of each is out");
    all[0].clear();
    assert!(is_lent(&mut a, &mut b));
}

/// One thread receives, and another one borrows frames and returns them after a check, alternately late and
/// at once. The second thread sees each frame unchanged, whatever arrived since.
#[test]
fn another_thread_has_what_is_lent() {
    const FRAMES: u32 = 3000;
    let (mut a, mut b) = pair(73);
    let (to, loans) = channel::<(u32, Loan)>();
    let other = thread::spawn(move || {
        let (mut seen, mut late) = (0, Vec::new());
        for (n, loan) in loans {
            seen += 1;
            late.push((n, loan));
            if n % 7 == 0 {
                assert!(late.drain(..).all(|(n, loan)| *loan == frame(n, 64)));
            }
        }
        assert!(late.iter().all(|(n, loan)| **loan == frame(*n, 64)));
        seen
    });
    let (mut lent, mut kept) = (0, 0);
    for n in 0..FRAMES {
        send_alone(&mut a, &mut b, n, &mut |run| {
            assert_eq!(run.frames, [frame(n, 64)]);
            match run.lender.lend(run.frames[0]) {
                Some(loan) => (lent, _) = (lent + 1, to.send((n, loan)).unwrap()),
                None => kept += 1,
            }
        });
    }
    drop(to);
    assert_eq!(other.join().unwrap(), lent);
    let (replaced, there, most) = spares(&b);
    assert!(lent + kept == FRAMES && lent > 0 && there <= most && replaced <= u64::from(lent));
}
