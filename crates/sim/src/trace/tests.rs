use super::*;
use proptest::prelude::*;
use std::convert::Infallible;

fn compact(events: impl IntoIterator<Item = Event>) -> Vec<Visit> {
    let mut compactor = Compactor::new();
    let mut visits = Vec::new();
    for event in events {
        let Ok(()) = compactor.take::<Infallible>(event, |visit| {
            visits.push(visit);
            Ok(())
        });
    }
    visits
}

const fn access(page: u64, write: bool) -> Event {
    Event::Access { addr: page * PAGE_LEN + 8, len: 8, write }
}

#[test]
fn only_pages_that_are_not_at_hand_are_visited() {
    let visits = compact([
        Event::Thread(1),
        Event::Instruction,
        access(7, false),
        access(7, false),
        Event::Instruction,
        access(7, true),
        access(7, false),
        access(9, true),
    ]);
    let visit =
        |page, write, instructions, accesses| Visit { thread: 0, page, write, instructions, accesses };
    assert_eq!(visits, [visit(7, false, 1, 0), visit(7, true, 1, 1), visit(9, true, 0, 1)]);
}

#[test]
fn the_ninth_page_pushes_the_first_one_out() {
    let there_and_back = |pages: u64| (0..pages).chain([0]).map(|page| access(page, false));
    assert_eq!(compact(there_and_back(8)).len(), 8);
    assert_eq!(compact(there_and_back(9)).len(), 10);
}

#[test]
fn a_thread_begins_with_nothing_at_hand() {
    let visits =
        compact([5, 8, 5].map(|thread| [Event::Thread(thread), access(3, true)]).into_iter().flatten());
    assert_eq!(
        visits.iter().map(|visit| (visit.thread, visit.page)).collect::<Vec<_>>(),
        [(0, 3), (1, 3), (0, 3)]
    );
}

#[test]
fn an_access_over_a_boundary_visits_both_pages() {
    let over = |len| Event::Access { addr: 2 * PAGE_LEN - 4, len, write: false };
    assert_eq!(compact([over(4)]).len(), 1);
    assert_eq!(compact([over(8)]).iter().map(|visit| visit.page).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(compact([Event::Access { addr: u64::MAX - 3, len: 16, write: false }]).len(), 1);
}

fn file(visits: &[Visit]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer =
        Writer::new(&mut bytes, &Header { command: vec!["ls".into(), "-l".into()] }).expect("a vector");
    for visit in visits {
        writer.visit(*visit).expect("a vector grows");
    }
    assert_eq!(writer.finish().expect("a vector grows"), visits.len() as u64);
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<Visit>, TraceError> {
    Reader::new(bytes)?.collect()
}

fn visits() -> impl Strategy<Value = Vec<Visit>> {
    let visit = (any::<u16>(), any::<u64>(), any::<bool>(), any::<u64>(), any::<u64>()).prop_map(
        |(thread, page, write, instructions, accesses)| Visit { thread, page, write, instructions, accesses },
    );
    prop::collection::vec(visit, 0..300)
}

#[test]
fn another_file_is_no_trace() {
    assert!(matches!(read(b""), Err(TraceError::NoTrace)));
    assert!(matches!(read(b"#!/bin/sh\nexit 0\n"), Err(TraceError::NoTrace)));
}

proptest! {
    #[test]
    fn what_was_written_is_read(visits in visits()) {
        let bytes = file(&visits);
        prop_assert_eq!(Reader::new(&bytes[..]).expect("a trace").header().command.len(), 2);
        prop_assert_eq!(read(&bytes).expect("a trace"), visits);
    }

    #[test]
    fn a_trace_that_was_cut_is_refused(visits in visits(), at in any::<prop::sample::Index>()) {
        let bytes = file(&visits);
        let cut = &bytes[..at.index(bytes.len())];
        // The last eight bytes are the frame's end mark and checksum: without them all visits are still
        // there.
        match read(cut) {
            Ok(whole) => prop_assert!(whole == visits && bytes.len() - cut.len() <= 8),
            Err(error) => prop_assert!(matches!(error, TraceError::CutShort { .. } | TraceError::NoTrace), "{error}"),
        }
    }

    #[test]
    fn a_trace_that_was_damaged_is_refused(visits in visits(), at in any::<prop::sample::Index>(), flip in 1..=u8::MAX) {
        let mut bytes = file(&visits);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        // One bit of the frame's end mark, which precedes its checksum of four bytes, has no effect.
        let end_mark = bytes.len() - 5;
        if let Ok(whole) = read(&bytes) {
            prop_assert!(whole == visits && (at, flip) == (end_mark, 0x80), "byte {at} of {}", bytes.len());
        }
    }
}
