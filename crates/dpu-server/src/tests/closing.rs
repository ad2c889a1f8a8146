//! Tests of closing regions of a process.

use super::super::carrier::Failed;
use super::super::mailbox::{Mailbox, Notice, Question};
use super::{Ended, PAGE, span, with_bench};
use farmem_link::dpu::Bell;
use farmem_paging::Cause;
use farmem_wire::soda::{Dest, Request};
use std::sync::Arc;

/// A process closes a region with a pending read. The read succeeds, then the region closes, and later requests on it
/// are refused. Requests on the other region still work.
#[test]
fn a_region_closes_after_its_pending_requests() {
    with_bench(|bench, carrier| {
        let (to, came) = std::sync::mpsc::channel();
        let mailbox = Mailbox { to, bell: Arc::new(Bell::new().unwrap()) };
        let read = |region| Request::Read { span: span(region, 0, 4), dest: Dest::Send };
        bench.send(&[read(2)]);
        assert_eq!(bench.dpu_client.take_requests(carrier, 8), 1);
        bench.dpu_client.close(2, mailbox.reply(Question { session: 7, number: 1 }));
        assert!(came.try_recv().is_err(), "a read of it is under way");
        let refused = (span(2, 0, 4), false, Ended::Refused, vec![]);
        let mut answers = bench.ask(carrier, &[read(2)]);
        answers.sort_by_key(|(.., ended, _)| *ended as u8);
        assert_eq!(answers, [(span(2, 0, 4), false, Ended::Done, vec![0; 4]), refused]);
        let (question, said) = came.try_recv().unwrap();
        assert!(question.number == 1 && matches!(said, Notice::Done(true)), "{said:?}");
        assert_eq!(bench.ask(carrier, &[read(1)]), [(span(1, 0, 4), false, Ended::Done, vec![0; 4])]);
        bench.dpu_client.close(1, mailbox.reply(Question { session: 7, number: 2 }));
        assert!(matches!(came.try_recv().unwrap().1, Notice::Done(true)), "nothing is under way");
    });
}

/// A write of a region fails, so far memory may execute it later. The region cannot be closed, because another
/// process could open the allocation and find its bytes overwritten. The other region closes. Before the fix, the
/// first region closed as well.
#[test]
fn a_region_with_a_failed_write_stays_open() {
    with_bench(|bench, carrier| {
        let (to, came) = std::sync::mpsc::channel();
        let mailbox = Mailbox { to, bell: Arc::new(Bell::new().unwrap()) };
        bench.send(&[Request::Write { span: span(1, u64::from(PAGE), 4), data: b"late" }]);
        assert_eq!(bench.dpu_client.take_requests(carrier, 8), 1);
        while let Some(completed) = carrier.client.next_completed().unwrap() {
            assert!(carrier.took(completed).is_none());
        }
        let mut ended = carrier.next_ended().expect("the write has ended");
        ended.result = Err(Failed { cause: Cause::Failed, error: None });
        bench.dpu_client.answer(carrier, ended, None);
        bench.dpu_client.publish();
        assert_eq!(bench.answers(), [(span(1, u64::from(PAGE), 4), true, Ended::Failed, vec![])]);
        for (number, region, is_closed) in [(1, 1, false), (2, 2, true), (3, 1, false)] {
            bench.dpu_client.close(region, mailbox.reply(Question { session: 7, number }));
            let (question, said) = came.try_recv().unwrap();
            assert_eq!(question.number, number);
            assert!(matches!(said, Notice::Done(done) if done == is_closed), "region {region}: {said:?}");
        }
        assert!(!bench.dpu_client.is_settled());
    });
}
