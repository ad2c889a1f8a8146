//! Keyed READs at both halves: a requester that knows a key and no address, and a responder whose READ is
//! repeated with another address.

use crate::support::{
    DOMAIN, Host, ModelMemory, Node, RKEY, dropped, fetch_add, numbered, payloads, read, requester_config,
    responder_config, va, write,
};
use farmem_transport::rc::{DropReason, Failure, Note, RequesterConfig, Work};
use farmem_transport::{Access, AccessError, Memory};
use farmem_wire::{Extension, Nak, Opcode, Packet, Pmtu, Reth, Rkey, Syndrome, VirtAddr};

use Opcode::{ReadRequest, ReadResponseOnly as Only};

fn keyed(key: u64, len: usize) -> Work {
    Work::KeyedRead { key, buf: vec![0; len] }
}

fn headers(frame: &[u8]) -> (Opcode, Reth) {
    let packet = Packet::parse(frame).unwrap();
    let Extension::Reth(reth) = packet.ext else { panic!("a READ REQUEST: {packet:?}") };
    (packet.bth.opcode, reth)
}

/// PROTOCOL 15.4, 15.9: every key is valid, also the first and the last; the rkey is 0, and one packet
/// answers.
#[test]
fn a_keyed_read_is_one_request_with_rkey_0() {
    for key in [0, 1, va(0).0, u64::MAX - 1, u64::MAX] {
        let mut host = Host::new(requester_config());
        let sent = host.post([keyed(key, 256)]);
        let reth = Reth { va: VirtAddr(key), rkey: Rkey(0), dma_len: 256 };
        assert_eq!(sent.frames.iter().map(|frame| headers(frame)).collect::<Vec<_>>(), [(ReadRequest, reth)]);
        host.read_response(Only, 100, &numbered(3, 256));
        let done = host.completions();
        assert_eq!((done[0].result, done[0].work.buf()), (Ok(0), &numbered(3, 256)[..]));
    }
}

/// PROTOCOL 15.9: a READ of no bytes or of more than a packet is refused; other requests continue.
#[test]
fn a_keyed_read_asks_for_one_packet() {
    for pmtu in [Pmtu::B256, Pmtu::B4096] {
        let mut host = Host::new(RequesterConfig { pmtu, ..requester_config() });
        let sent = host.post([keyed(7, 0), keyed(7, pmtu.bytes() + 1), keyed(7, pmtu.bytes()), keyed(7, 1)]);
        assert_eq!(sent.frames.len(), 2);
        let refused = Err(Failure::InvalidRequest);
        assert_eq!(host.results(), [(0, refused), (1, refused)]);
    }
}

/// PROTOCOL 15.9, 4.16: a keyed READ may read any address, so requests that change memory wait for its
/// answer; requests that read do not.
#[test]
fn what_changes_memory_waits_for_a_keyed_read() {
    for (second, waits) in
        [(write(8192, 1), true), (fetch_add(4096), true), (read(0, 8), false), (keyed(9, 8), false)]
    {
        let mut host = Host::new(requester_config());
        let sent = host.post([keyed(7, 8), second.clone()]);
        assert_eq!(sent.frames.len() == 1, waits, "{second:?}");
        assert_eq!(host.read_response(Only, 100, &[0; 8]).frames.is_empty(), !waits, "{second:?}");
    }
    // A keyed READ may be sent while an earlier WRITE is in flight: the order is right.
    let mut host = Host::new(requester_config());
    assert_eq!(host.post([write(0, 8), keyed(7, 8)]).frames.len(), 2);
}

/// PROTOCOL 4.14, 4.15: the request is repeated unchanged; a refusal ends it and the connection.
#[test]
fn a_keyed_read_comes_again_and_is_refused_as_any_other() {
    let mut host = Host::new(requester_config());
    let first = host.post([read(0, 8), keyed(7, 8), write(0, 1)]);
    host.read_response(Only, 100, &[1; 8]);
    let again = host.wake();
    assert_eq!((again.frames, again.notes), (vec![first.frames[1].clone()], vec![Note::TimedOut]));
    assert_eq!(host.read_response(Only, 101, &[0; 7]).notes, dropped(DropReason::Misshapen));
    host.ack(101, Syndrome::Nak(Nak::RemoteAccess));
    assert_eq!(host.results(), [(0, Ok(0)), (1, Err(Failure::RemoteAccess)), (2, Err(Failure::Flushed))]);
}

/// PROTOCOL 15.8: a duplicate with the same PSN and length but another address, because the switch's tables
/// changed, is executed at the new address. A duplicate with another length, or of more than a packet, does
/// not match.
#[test]
fn a_repeated_read_may_be_led_elsewhere() {
    let mut node = Node::usual();
    assert_eq!(payloads(&node.read(100, 0, 200).frames), numbered(0, 200));
    node.read(101, 0, 300);
    node.fetch_add(103, 0, 1);
    let moved = node.read(100, 1024, 200);
    assert_eq!(moved.lines(), ["ReadResponseOnly 100 msn=3 [200]"]);
    assert_eq!((payloads(&moved.frames), moved.notes), (numbered(1024, 200), vec![Note::DuplicateElsewhere]));
    // At its first address again, as any repeated READ.
    assert_eq!(node.read(100, 0, 200).notes, [Note::DuplicateRead]);
    for (psn, offset, len) in
        [(100, 1024, 201), (101, 1024, 300), (102, 1024, 44), (103, 1024, 8), (99, 0, 200)]
    {
        let sent = node.read(psn, offset, len);
        assert_eq!(
            (sent.frames.len(), sent.notes),
            (0, vec![Note::DuplicateForgotten]),
            "{psn} {offset} {len}"
        );
    }
    // An access that is forbidden to a new READ is forbidden here too: NAK 0x63, and later requests are
    // unaffected.
    let refused = |sent: crate::support::Sent| (sent.lines(), sent.notes);
    assert_eq!(
        refused(node.read(100, 4000, 200)),
        (
            vec!["Acknowledge 100 Nak(RemoteOperational) msn=3".to_owned()],
            vec![Note::Refused(AccessError::OutOfBounds)]
        )
    );
    let key_of_none = Extension::Reth(Reth { va: va(1024), rkey: Rkey(0), dma_len: 200 });
    assert_eq!(
        refused(node.take(ReadRequest, 100, key_of_none, &[])),
        (
            vec!["Acknowledge 100 Nak(RemoteOperational) msn=3".to_owned()],
            vec![Note::Refused(AccessError::WrongKey(Rkey(0)))]
        )
    );
    assert_eq!(node.read(104, 8, 8).lines(), ["ReadResponseOnly 104 msn=4 [8]"]);
}

/// Memory whose bytes moved away: they may be read again where they were read before, and nowhere else.
struct MovedMemory(ModelMemory);

impl Memory for MovedMemory {
    fn check(&self, access: &Access) -> Result<(), AccessError> {
        assert_eq!(access.domain, DOMAIN);
        if access.addr.0 >= va(2048).0 { Err(AccessError::NotMapped) } else { self.0.check(access) }
    }
    fn check_again(&self, access: &Access) -> Result<(), AccessError> {
        self.0.check(access)
    }
    fn read(&self, addr: VirtAddr, len: u32, out: &mut Vec<u8>) {
        self.0.read(addr, len, out);
    }
    fn load(&self, addr: VirtAddr, window: &mut [u8]) {
        self.0.load(addr, window);
    }
    fn write(&mut self, addr: VirtAddr, data: &[u8]) {
        self.0.write(addr, data);
    }
    fn cmp_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> u64 {
        self.0.cmp_swap(addr, compare, swap)
    }
    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> u64 {
        self.0.fetch_add(addr, add)
    }
}

/// PROTOCOL 15.8: bytes that moved to another node are as they were then, possibly before the READ was
/// posted. They answer only READs that read them the first time.
#[test]
fn what_has_left_answers_no_read_that_is_led_there_later() {
    use farmem_machine::Outbox;
    use farmem_transport::rc::Responder;
    use farmem_wire::{Bth, Psn};
    let mut responder = Responder::new(responder_config());
    let (mut memory, mut out) = (MovedMemory(ModelMemory::numbered(4096)), Outbox::<(), Note>::new());
    let mut ask = |offset: u64| {
        let bth = Bth::new(ReadRequest, crate::support::NODE_QPN, Psn::new(100));
        let ext = Extension::Reth(Reth { va: va(offset), rkey: RKEY, dma_len: 64 });
        responder.on_packet(crate::support::HOST, &Packet { bth, ext, payload: &[] }, &mut memory, &mut out);
        crate::support::Sent::drain(&mut out, crate::support::HOST).notes
    };
    assert_eq!(ask(0), []);
    assert_eq!(ask(2048), [Note::Refused(AccessError::NotMapped)]);
    assert_eq!(ask(0), [Note::DuplicateRead]);
}
