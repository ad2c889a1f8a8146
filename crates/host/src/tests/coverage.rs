//! Every failure and every note is reached by some test of this crate.

use super::{Done, Failure, Note, answers, batches, following, requests, times, traversals, verbs};
use alloc::vec::Vec;
use core::cell::RefCell;
use std::collections::BTreeSet;

std::thread_local! {
    /// The variants that the tests on this thread have reached.
    static SEEN: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

pub(super) fn saw(done: &[Done], notes: &[Note]) {
    SEEN.with_borrow_mut(|seen| {
        seen.extend(done.iter().filter_map(|done| done.result.err()).map(failure));
        seen.extend(notes.iter().map(note));
    });
}

/// Names each failure. A new variant does not compile without a name, and needs a test to pass.
fn failure(failure: Failure) -> &'static str {
    match failure {
        Failure::NotConnected { .. } => "not connected",
        Failure::NoSession => "no session",
        Failure::OutOfBounds { .. } => "out of bounds",
        Failure::Misaligned { .. } => "misaligned",
        Failure::TooLong { .. } => "too long",
        Failure::ScratchTooLong { .. } => "scratch pad too long",
        Failure::ScratchLen { .. } => "scratch length",
        Failure::QueueFull => "queue full",
        Failure::IdsUsedUp => "ids used up",
        Failure::Connection(_) => "connection",
        Failure::Unreachable { .. } => "unreachable",
        Failure::Lost { .. } => "lost",
        Failure::Refused { .. } => "refused",
        Failure::NoAnswer => "no answer",
        Failure::Stalled { .. } => "stalled",
    }
}

fn note(note: &Note) -> &'static str {
    match note {
        Note::Rc(_) => "rc",
        Note::Malformed(_) => "malformed",
        Note::NotForUs => "not for us",
        Note::Rejected(_) => "rejected",
        Note::LateAnswer => "late answer",
        Note::WrongAnswer => "wrong answer",
        Note::SentCode => "sent code",
        Note::Continued(_) => "continued",
        Note::Abandoned => "abandoned",
        Note::Deferred => "deferred",
        Note::Followed => "followed",
        Note::RetriedInPlace => "retried in place",
        Note::RefusedAgain => "refused again",
        Note::ReconnectFailed => "reconnect failed",
        Note::Batch(_) => "batch",
    }
}

const FAILURES: usize = 15;
const NOTES: usize = 15;

#[test]
fn every_failure_and_every_note_has_its_story() {
    let stories: [fn(); 21] = [
        verbs::an_address_finds_its_connection,
        verbs::a_range_that_leaves_its_node_is_refused_at_home,
        verbs::a_misaligned_atomic_is_refused_at_home,
        verbs::a_full_queue_gives_the_operation_back,
        verbs::a_new_connection_flushes_what_the_old_one_had,
        verbs::what_cannot_be_set_up_changes_nothing,
        following::what_moved_is_followed_in_order,
        following::what_is_back_is_retried_in_place_once,
        following::lost_bytes_are_told_and_what_is_behind_goes_on,
        following::a_node_that_cannot_be_reached_ends_what_waits_for_it,
        requests::a_region_beyond_one_datagram_is_refused_at_home,
        requests::ids_run_out_and_are_not_used_again,
        answers::an_answer_must_fit_its_request,
        answers::what_is_no_answer_at_all_is_counted,
        times::a_request_without_an_answer_ends_once,
        traversals::a_scratch_pad_beyond_one_datagram_is_refused_at_home,
        traversals::a_scratch_pad_of_another_length_is_refused_at_home,
        traversals::a_refused_traversal_says_where_it_stands,
        traversals::a_traversal_that_gets_nowhere_is_stalled,
        traversals::a_traversal_waits_for_a_page_that_a_host_has,
        batches::traversals_to_one_node_share_a_datagram,
    ];
    stories.iter().for_each(|story| story());
    let seen: Vec<&str> = SEEN.with_borrow(|seen| seen.iter().copied().collect());
    assert_eq!(seen.len(), FAILURES + NOTES, "{seen:?}");
}
