//! Fuzz target of the messages between a program and its DPU (PD3), as both ends read them: batches of
//! requests and of answers.

use crate::Run;
use farmem_wire::WireError;
use farmem_wire::pd3::{Request, Response};

/// Reads `data` as a batch of requests, and as a batch of answers.
///
/// # Panics
/// Panics when an emitted entry differs from its input, when its length is wrong, or when the bytes after it
/// change its meaning.
pub fn pd3_parse(data: &[u8], run: &mut Run) {
    run.cases += 1;
    let mut batch = data;
    loop {
        let taken = Request::take(batch);
        run.mark(match &taken {
            Ok((Request::Read { .. }, _)) => "a read",
            Ok((Request::Write { .. }, _)) => "a write",
            Ok((Request::Prefetch { .. }, _)) => "a prefetch",
            Err(error) => reason(error),
        });
        let Ok((request, rest)) = taken else { break };
        let (mut emitted, one) = (Vec::new(), &batch[..batch.len() - rest.len()]);
        request.emit(&mut emitted);
        assert_eq!(emitted, one);
        assert_eq!(Request::take(one), Ok((request, &[][..])), "what is behind it does not matter");
        assert!(Request::take(&one[..one.len() - 1]).is_err(), "nor is it read before it is whole");
        assert!(request.answer_len() >= Response::LEN && request.id().get() < farmem_wire::pd3::IDS);
        batch = rest;
    }
    batch = data;
    loop {
        let taken = Response::take(batch);
        run.mark(match &taken {
            Ok((Response::Read { .. }, _)) => "bytes that were read",
            Ok((Response::Written { .. }, _)) => "written",
            Ok((Response::Item { .. }, _)) => "an item",
            Ok((Response::Failed { .. }, _)) => "failed",
            Err(error) => reason(error),
        });
        let Ok((response, rest)) = taken else { break };
        let (mut emitted, one) = (Vec::new(), &batch[..batch.len() - rest.len()]);
        response.emit(&mut emitted);
        assert_eq!(emitted, one);
        assert_eq!(Response::take(one), Ok((response, &[][..])), "what is behind it does not matter");
        assert!(Response::take(&one[..one.len() - 1]).is_err(), "nor is it read before it is whole");
        batch = rest;
    }
}

const fn reason(error: &WireError) -> &'static str {
    match error {
        WireError::Short { .. } => "short",
        WireError::Unknown { what, .. } | WireError::Reserved { what } => what,
        _ => "refused",
    }
}
