//! READs whose payloads go to their destination straight from the packets (SODA IV-B).

use crate::support::{Host, numbered, requester_config, va};
use Opcode::{ReadResponseFirst as First, ReadResponseLast as Last, ReadResponseMiddle as Middle};
use farmem_transport::rc::{PayloadSink, SinkPart, Work};
use farmem_wire::Opcode;
use std::sync::{Arc, Mutex};

/// A sink that records offset, source address and bytes of each piece.
#[derive(Debug, Default)]
struct Given(Mutex<Vec<(u64, usize, Vec<u8>)>>);

impl PayloadSink for Given {
    fn put(&self, offset: u64, pieces: &[&[u8]]) {
        self.0.lock().unwrap().push((offset, pieces[0].as_ptr().addr(), pieces.concat()));
    }
}

/// A READ of three packets into the middle of a sink. The sink gets the payloads in the link's own
/// buffer, without a copy in between. The second packet is lost and repeated; the third, which overtook it,
/// is not copied before.
#[test]
fn bytes_land_from_the_packets_that_bring_them() {
    let given = Arc::new(Given::default());
    let to = SinkPart::new(Arc::clone(&given) as Arc<dyn PayloadSink>, 2000).part(100, 600);
    assert!((to.len(), to.is_empty()) == (600, false) && to == to.clone() && to != to.part(0, 599));
    let mut host = Host::new(requester_config());
    let posted = host.post([Work::ReadTo { addr: va(8), to: to.clone() }]);
    assert_eq!(posted.lines(), ["ReadRequest 100 A @8+600"], "as any READ of so many bytes");
    let bytes = numbered(0, 600);
    let packets = [&bytes[..256], &bytes[256..512], &bytes[512..]];
    assert!(host.read_response(First, 100, packets[0]).lines().is_empty());
    let again = host.read_response(Last, 102, packets[2]);
    assert_eq!(again.lines(), ["ReadRequest 101 A @264+344"]);
    assert_eq!(given.0.lock().unwrap().len(), 1, "what came too early is dropped");
    host.read_response(First, 101, packets[1]);
    host.read_response(Last, 102, packets[2]);
    let expected = [100, 356, 612].into_iter().zip(packets);
    let expected: Vec<_> = expected.map(|(at, bytes)| (at, bytes.as_ptr().addr(), bytes.to_vec())).collect();
    assert_eq!(*given.0.lock().unwrap(), expected, "the very bytes of the packets");
    let done = host.completions();
    assert_eq!((done.len(), done[0].result, done[0].work.buf().len()), (1, Ok(0), 0));
    assert_eq!(done[0].work, Work::ReadTo { addr: va(8), to });
    // A response of several packets that belongs to no READ is not copied.
    host.read_response(Middle, 101, packets[1]);
    assert_eq!(given.0.lock().unwrap().len(), 3);
}

/// The packets of three READs arrive together. One call copies the payloads of each READ, also if one packet
/// is duplicated. Behind a lost packet nothing is copied. The bytes are in place when the requester has
/// handled all packets, before any completion is reported.
#[test]
fn packets_in_a_row_are_put_at_once() {
    let given = Arc::new(Given::default());
    let sink = || Arc::clone(&given) as Arc<dyn PayloadSink>;
    let mut host = Host::new(requester_config());
    let works = [0, 4096, 8192].map(|at| Work::ReadTo { addr: va(at), to: SinkPart::new(sink(), 1024) });
    host.post(works);
    let bytes = numbered(0, 1024);
    let all = |first: u32| {
        let opcodes = [First, Middle, Middle, Last];
        (first..).zip(bytes.chunks(256)).zip(opcodes).map(|((psn, bytes), opcode)| (opcode, psn, bytes))
    };
    // The second packet of the first READ comes twice, and the third one of the last READ is lost.
    let twice = all(100).take(2).chain(all(100).skip(1)).chain(all(104));
    let packets: Vec<_> = twice.chain(all(108).take(2)).chain(all(108).skip(3)).collect();
    let again = host.take_together(&packets);
    assert_eq!(again.lines(), ["ReadRequest 110 A @8704+512"]);
    let put: Vec<(u64, usize)> = given.0.lock().unwrap().iter().map(|(at, _, it)| (*at, it.len())).collect();
    assert_eq!(put, [(0, 1024), (0, 1024), (0, 512)], "a call for each READ");
    assert!(given.0.lock().unwrap().iter().all(|(_, _, it)| bytes.starts_with(it)));
    assert_eq!(host.completions().len(), 2);
    let rest: Vec<_> = all(108).skip(2).collect();
    let rest = [(First, 110, rest[0].2), rest[1]];
    host.take_together(&rest);
    assert_eq!(host.completions().len(), 1);
    assert_eq!(given.0.lock().unwrap()[3].0, 512);
    assert_eq!(given.0.lock().unwrap()[3].2, bytes[512..], "one call again");
    assert_eq!(given.0.lock().unwrap().len(), 4);
}

/// A response with more packets than one call takes is copied with the fewest possible calls.
#[test]
fn a_long_answer_is_put_in_few_calls() {
    let given = Arc::new(Given::default());
    let mut host = Host::new(requester_config());
    let to = SinkPart::new(Arc::clone(&given) as Arc<dyn PayloadSink>, 16 * 256);
    host.post((0..4).map(|at| Work::ReadTo { addr: va(at * 4096), to: to.clone() }));
    let bytes = numbered(0, 16 * 256);
    let opcode = |at: u32| [First, Middle, Last][usize::from(at > 0) + usize::from(at == 15)];
    let packets = (0..64).map(|at| (opcode(at % 16), 100 + at, &bytes[at as usize % 16 * 256..][..256]));
    host.take_together(&packets.collect::<Vec<_>>());
    assert_eq!(host.completions().len(), 4);
    // Four READs into one part: bytes behind the end of the last READ belong to another READ and start a new
    // call.
    let given = given.0.lock().unwrap();
    assert_eq!(given.iter().map(|(at, ..)| *at).collect::<Vec<_>>(), [0; 4]);
    assert!(given.iter().all(|(.., it)| *it == bytes));
}
