//! READs whose bytes go where they belong from the very packets that bring them (SODA IV-B).

use crate::support::{Host, numbered, requester_config, va};
use Opcode::{ReadResponseFirst as First, ReadResponseLast as Last, ReadResponseMiddle as Middle};
use farmem_transport::rc::{Landing, Spot, Work};
use farmem_wire::Opcode;
use std::sync::{Arc, Mutex};

/// What it was given: from which byte on, where those bytes were, and what they were.
#[derive(Debug, Default)]
struct Given(Mutex<Vec<(u64, usize, Vec<u8>)>>);

impl Landing for Given {
    fn put(&self, offset: u64, bytes: &[u8]) {
        self.0.lock().unwrap().push((offset, bytes.as_ptr().addr(), bytes.to_vec()));
    }
}

/// A READ of three packets in the middle of a landing. What is put there are the payloads themselves, where the link has them: there is no buffer in between, neither here nor in what ends. The second one is
/// lost and asked for again, and the third that overtook it is not put anywhere before.
#[test]
fn bytes_land_from_the_packets_that_bring_them() {
    let given = Arc::new(Given::default());
    let to = Spot::new(Arc::clone(&given) as Arc<dyn Landing>, 2000).part(100, 600);
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
    // A response of several packets that is none of this READ's puts nothing anywhere.
    host.read_response(Middle, 101, packets[1]);
    assert_eq!(given.0.lock().unwrap().len(), 3);
}
