//! The paper's formats, by example and by random tests.

use super::*;
use alloc::format;
use alloc::string::String;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert_eq, prop_oneof, proptest};

/// The header of a response equals the first bytes of the whole response, and parses again. Invalid sizes and
/// states are refused.
#[test]
fn the_front_of_an_answer_stands_alone() {
    let id = Id::new(IDS - 1);
    let heads = [
        Head::Read { id, size: 3 },
        Head::Written { id, size: SIZE_MAX },
        Head::Failed { id, why: Ended::Lost },
    ];
    for head in heads {
        assert_eq!(Head::parse(head.emit()), Ok(head));
    }
    let mut whole = Vec::new();
    Response::Read { id, data: &[7; 3] }.emit(&mut whole);
    assert_eq!(whole[..Response::LEN], heads[0].emit());
    for bytes in
        [[0; 6], [0x40, 0, 0, 0, 0, 0], [0x80, 0, 0, 0, 0, 1], [0xc0, 0, 0, 0, 0, 0], [0xc0, 0, 0, 0, 1, 1]]
    {
        assert!(Head::parse(bytes).is_err(), "{bytes:?}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn asked_as(request: &Request<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request.emit(&mut out);
    out
}

fn said_as(response: &Response<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    response.emit(&mut out);
    out
}

/// The fields have the paper's sizes and offsets. A request: 2 bits, 14 bits, 2, 4 and 4 bytes. A response: 2
/// bits, 14 bits and 4 bytes. An item: 31 bits and 1 bit.
#[test]
fn the_formats_of_section_six() {
    let id = Id::new(0x2bcd);
    let place = RegionRange { region: 0x1234, offset: 0x5678_9abc, size: 3 };
    let same = |bytes: Vec<u8>, expected: &str| assert_eq!(hex(&bytes), expected.replace(' ', ""));
    same(asked_as(&Request::Read { id, place }), "2bcd 1234 56789abc 00000003");
    same(asked_as(&Request::Write { id, place, data: b"abc" }), "6bcd 1234 56789abc 00000003 616263");
    same(asked_as(&Request::Prefetch { id, key: b"key" }), "abcd 0003 6b6579");
    same(said_as(&Response::Read { id, data: b"abc" }), "2bcd 00000003 616263");
    same(said_as(&Response::Written { id, size: 3 }), "6bcd 00000003");
    let item = Response::Item { id, version: 0x0102_0304_0506_0708, key: b"key", data: b"abc" };
    same(said_as(&item), "abcd 00000006 0102030405060708 0003 6b6579 616263");
    same(said_as(&Response::Failed { id, why: Ended::Lost }), "ebcd 00000002");
}

/// The reserved length for a batch's responses is six bytes for each, and the bytes read.
#[test]
fn room_is_kept_before_it_is_needed() {
    let (id, place) = (Id::new(1), RegionRange { region: 0, offset: 0, size: 64 });
    let data = [0; 64];
    let batch = [
        Request::Read { id, place },
        Request::Write { id, place, data: &data },
        Request::Prefetch { id, key: b"k" },
    ];
    assert_eq!(batch.iter().map(Request::answer_len).sum::<usize>(), 3 * 6 + 64);
}

/// Refused, with an error that names the field: sizes that do not fit a region, unknown statuses, empty keys,
/// and an item that is marked as consumed.
#[test]
fn what_cannot_be_is_refused() {
    let parsed = |text: &str| {
        let text = text.replace(' ', "");
        let bytes: Vec<u8> =
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
        let request = Request::take(&bytes).map(|_| ()).map_err(|e| format!("{e}"));
        (request, Response::take(&bytes).map(|_| ()).map_err(|e| format!("{e}")))
    };
    assert!(parsed("0001 0000 00000000 00000000").0.unwrap_err().contains("size of a request"));
    assert!(parsed("0001 0000 ffffffff 00000002").0.unwrap_err().contains("size of a request"));
    assert!(parsed("0001 0000 00000000 40000001").0.unwrap_err().contains("size of a request"));
    assert!(parsed("c001 0000").0.unwrap_err().contains("operation of a request"));
    assert!(parsed("8001 0000").0.unwrap_err().contains("length of a key"));
    assert!(parsed("0001 00000000").1.unwrap_err().contains("size of an answer"));
    assert!(parsed("8001 00000001 0000000000000001 0001 61").1.unwrap_err().contains("state of an item"));
    for code in ["00000000", "00000004", "00000101"] {
        assert!(parsed(&format!("c001 {code}")).1.unwrap_err().contains("status of an answer"), "{code}");
    }
}

fn ids() -> impl Strategy<Value = Id> {
    (0..IDS).prop_map(Id::new)
}

proptest! {
    /// Batches of requests and responses parse one by one to the emitted values. Every shorter batch ends in
    /// an error or without its last element.
    #[test]
    fn batches_survive_the_ring(
        parts in vec((ids(), 0..4_u8, any::<u16>(), any::<u32>(), vec(any::<u8>(), 1..40), vec(any::<u8>(), 1..60), any::<u64>()), 1..8),
    ) {
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        for (id, op, region, offset, key, data, version) in &parts {
            let (id, size) = (*id, u32::try_from(data.len()).unwrap());
            let place = RegionRange { region: *region, offset: offset / 2, size };
            let why = Ended::Failed;
            let (request, response) = match op {
                0 => (Request::Read { id, place }, Response::Read { id, data }),
                1 => (Request::Write { id, place, data }, Response::Written { id, size }),
                2 => (Request::Prefetch { id, key }, Response::Item { id, version: *version, key, data }),
                _ => (Request::Read { id, place }, Response::Failed { id, why }),
            };
            asked.push(request);
            answered.push(response);
        }
        let (mut requests, mut responses) = (Vec::new(), Vec::new());
        asked.iter().for_each(|request| request.emit(&mut requests));
        answered.iter().for_each(|response| response.emit(&mut responses));
        let (mut requests, mut responses) = (&requests[..], &responses[..]);
        for (request, response) in asked.iter().zip(&answered) {
            let one = asked_as(request);
            prop_assert_eq!(Request::take(&one[..one.len() - 1]).is_err(), true);
            let (found, rest) = Request::take(requests).unwrap();
            prop_assert_eq!((found, found.id()), (*request, request.id()));
            let front = Front::parse(&one[..one.len().min(Request::LEN)]).unwrap();
            prop_assert_eq!(front.request_len(), one.len());
            prop_assert_eq!(front, Front::parse(&requests[..one.len()]).unwrap());
            requests = rest;
            let one = said_as(response);
            prop_assert_eq!(Response::take(&one[..one.len() - 1]).is_err(), true);
            let (found, rest) = Response::take(responses).unwrap();
            prop_assert_eq!((found, found.id()), (*response, response.id()));
            responses = rest;
        }
        prop_assert_eq!((requests.len(), responses.len()), (0, 0));
    }

    /// Parsing arbitrary bytes of a hostile peer is bounded, and whatever parses emits the same bytes.
    #[test]
    fn any_bytes_are_refused_or_mean_themselves(bytes in prop_oneof![vec(any::<u8>(), 0..64), vec(0..4_u8, 0..64)]) {
        let front = Front::parse(&bytes);
        prop_assert_eq!(front.is_ok_and(|front| front.request_len() <= bytes.len()), Request::take(&bytes).is_ok());
        if let Ok((request, rest)) = Request::take(&bytes) {
            prop_assert_eq!(&asked_as(&request)[..], &bytes[..bytes.len() - rest.len()]);
        }
        if let Ok((response, rest)) = Response::take(&bytes) {
            prop_assert_eq!(&said_as(&response)[..], &bytes[..bytes.len() - rest.len()]);
        }
    }
}
