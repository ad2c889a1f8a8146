//! WRITEs whose payloads are copied from their source as packets are made (SODA IV-B).

use crate::support::{HOST, Host, ModelMemory, Node, numbered, requester_config, responder_config, va};
use farmem_transport::rc::{Completion, Failure, PayloadSource, SourcePart, Work};
use farmem_wire::Packet;
use std::sync::{Arc, Mutex};

/// Memory that records each call (offset, and bytes per packet), and fails after a number of calls.
#[derive(Debug)]
struct Memory {
    bytes: Mutex<Vec<u8>>,
    taken: Mutex<Vec<(u64, Vec<usize>)>>,
    most: usize,
}

impl Memory {
    fn new(len: usize, most: usize) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(numbered(0, len)), taken: Mutex::default(), most })
    }

    fn taken(&self) -> Vec<(u64, Vec<usize>)> {
        std::mem::take(&mut *self.taken.lock().unwrap())
    }
}

impl PayloadSource for Memory {
    fn fill(&self, offset: u64, pieces: &mut [&mut [u8]]) -> bool {
        let mut taken = self.taken.lock().unwrap();
        if taken.len() == self.most {
            return false;
        }
        taken.push((offset, pieces.iter().map(|piece| piece.len()).collect()));
        let mut at = usize::try_from(offset).unwrap();
        for piece in pieces {
            piece.copy_from_slice(&self.bytes.lock().unwrap()[at..at + piece.len()]);
            at += piece.len();
        }
        true
    }
}

fn write_from(memory: &Arc<Memory>, addr: u64, skip: u64, len: usize) -> Work {
    let all = memory.bytes.lock().unwrap().len();
    let whole = SourcePart::new(Arc::clone(memory) as Arc<dyn PayloadSource>, all);
    Work::WriteFrom { addr: va(addr), from: whole.part(skip, len) }
}

/// A WRITE of three packets from the middle of a memory, the last with a pad. One call copies their bytes
/// into the packets. The packets are lost and made again; the node gets bytes that changed meanwhile.
#[test]
fn bytes_are_taken_into_the_packets_that_carry_them() {
    let memory = Memory::new(2000, 2);
    let (mut host, mut node) =
        (Host::new(requester_config()), Node::new(responder_config(), ModelMemory::new(4096)));
    let posted = host.post([write_from(&memory, 8, 100, 599)]);
    let lines = ["WriteFirst 100 @8+599 [256]", "WriteMiddle 101 [256]", "WriteLast 102 A [87]"];
    assert_eq!(posted.lines(), lines, "as any WRITE of so many bytes");
    assert_eq!(memory.taken(), [(100, vec![256, 256, 87])], "one call");
    memory.bytes.lock().unwrap()[400] = 0xee;
    let again = host.wake();
    assert_eq!(again.lines(), lines);
    assert_eq!(memory.taken(), [(100, vec![256, 256, 87])]);
    for frame in again.frames {
        node.take_from(HOST, &Packet::parse(&frame).unwrap());
    }
    assert_eq!(node.memory.bytes[8..607], memory.bytes.lock().unwrap()[100..699]);
    assert_eq!(node.memory.bytes[607..], [0; 4096 - 607]);
}

/// A WRITE of more packets than the window or one call takes: it needs the fewest possible calls, and
/// requests acknowledgements as any other.
#[test]
fn a_long_one_is_taken_in_few_calls() {
    let memory = Memory::new(80 * 256, 100);
    let plain = Work::Write { addr: va(0), buf: numbered(0, 80 * 256) };
    let [mut host, mut other] = [(); 2].map(|()| Host::new(requester_config()));
    let (posted, plain) = (host.post([write_from(&memory, 0, 0, 80 * 256)]), other.post([plain]));
    assert_eq!(posted.frames, plain.frames, "the same packets, to the byte");
    assert_eq!(posted.frames.len(), 64, "the window's");
    assert_eq!(
        memory.taken().iter().map(|(at, them)| (*at, them.len())).collect::<Vec<_>>(),
        [(0, 32), (32 * 256, 32)]
    );
}

/// The source fails at a retransmission. Nothing is sent instead, and the connection breaks, because a packet
/// is missing. The poster gets a failed completion.
#[test]
fn what_cannot_be_taken_breaks_the_connection() {
    let memory = Memory::new(1000, 1);
    let mut host = Host::new(requester_config());
    host.post([write_from(&memory, 0, 0, 600), Work::Read { addr: va(0), buf: vec![0; 8] }]);
    assert!(host.wake().frames.is_empty());
    assert!(host.requester.is_broken());
    let ended: Vec<Completion> = host.completions();
    assert_eq!(ended.iter().map(|it| it.result).collect::<Vec<_>>(), [Err(Failure::Flushed); 2]);
}
