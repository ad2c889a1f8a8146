//! Bytes of an earlier incarnation of the node: every access is refused until they are cleared or accepted
//! (PROTOCOL 7.42 to 7.44). Also accesses from one vma into the next (PROTOCOL 7.45).

use super::moves::region_read;
use super::pages::{frame, read, sent};
use super::traversals::{self, ask};
use super::verbs::Client;
use super::*;
use farmem_transport::rc::{Failure, Work};
use farmem_traversal::Program;
use farmem_wire::message::{Page, PageBody};

/// Creates a node whose first two pages are lost, with a connection of Alice. The store has other bytes
/// there.
fn lossy() -> (Bench, Client) {
    let mut bench = Bench::ready();
    bench.put(addr(0), &[0xee; 0x2000]);
    let lose = Update::Lose { base: BASE, len: 0x2000 };
    assert_eq!(bench.update(&[lose, queue_pair(0x100, 5)]), (Status::Ok, 0));
    (bench, Client::new(0x100, 5, RKEY))
}

/// Replaces a connection that a NAK broke.
fn reconnect(bench: &mut Bench) -> Client {
    assert_eq!(bench.update(&[queue_pair(0x100, 5)]), (Status::Ok, 0));
    Client::new(0x100, 5, RKEY)
}

fn status(bench: &mut Bench, counter: u32, body: Body<'_>) -> Status {
    bench.ask(header(ALICE, counter), body).header.status
}

/// PROTOCOL 7.43: every verb is refused with NAK 0x62, reads nothing and changes nothing. The permission is
/// checked first (PROTOCOL 7.14).
#[test]
fn verbs_to_lost_bytes_are_refused() {
    let (mut bench, mut client) = lossy();
    let before = bench.node.store().clone();
    let works = [
        Work::Read { addr: addr(16), buf: vec![0; 64] },
        Work::Write { addr: addr(16), buf: vec![1; 64] },
        Work::Write { addr: addr(16), buf: vec![1; 3000] },
        Work::FetchAdd { addr: addr(8), add: 1 },
        Work::CmpSwap { addr: addr(8), compare: 0xeeee_eeee_eeee_eeee, swap: 1 },
    ];
    for work in works {
        let done = client.finish(&mut bench, work);
        assert_eq!(done.result, Err(Failure::RemoteAccess));
        assert!(done.work.buf().iter().all(|&byte| byte < 2), "nothing was read");
        client = reconnect(&mut bench);
    }
    assert_eq!(*bench.node.store(), before);
    assert_eq!(client.read(&mut bench, 0, 0), Ok(vec![]), "no bytes are none that are lost");
}

/// Region requests and traversals, including storing ones, are answered with `Lost`. A host that requests
/// such a page gets the notice of its loss.
#[test]
fn requests_to_lost_bytes_are_refused() {
    let (mut bench, _) = lossy();
    assert_eq!(status(&mut bench, 1, region_read(0x10, 64)), Status::Lost);
    let write = |at: u64, data| Body::RegionWrite { addr: addr(at), len: 8, data };
    assert_eq!(status(&mut bench, 2, write(0x10, &[1; 8])), Status::Lost);
    assert_eq!(
        bench.ask(header(BOB, 3), region_read(0x10, 8)).header.status,
        Status::NotMapped,
        "first of all"
    );
    assert_eq!(status(&mut bench, 4, write(0x1000, &[1; 8])), Status::NoPermission);
    for (counter, stores) in [(5, ""), (6, ".stores\n")] {
        let program = Program::assemble(&alloc::format!(".window 16\n{stores}ret\n")).unwrap();
        let request = traversals::request(&program, &[]);
        let request =
            farmem_wire::message::Traverse { cur_ptr: addr(0x20), code: program.encoded(), ..request };
        let answer = bench.ask(header(ALICE, counter), Body::Traverse(request));
        assert_eq!(answer.header.status, Status::Lost);
        let Body::Traverse(state) = answer.body else { panic!("a traversal") };
        assert_eq!((state.cur_ptr, state.iterations), (addr(0x20), 0));
    }
    bench.hear(Port::SWITCH, &frame(PageBody::Read(read(4))));
    let [(_, message)] = &sent(&bench)[..] else { panic!("one part") };
    let PageBody::Data(data, bytes) = message.body else { panic!("the page, or its loss") };
    assert!(data.lost && bytes.is_empty());
    assert_eq!(bench.node.page_states().record(Page::of(addr(0x1000))).lent(), None, "no host has it");
}

/// A traversal reaches lost bytes: it ends before the iteration that would read them, also if its turn has
/// cached the span around them.
#[test]
fn a_traversal_stops_before_lost_bytes() {
    let mut bench = Bench::ready();
    traversals::list(&mut bench, VirtAddr(0));
    let program = traversals::find();
    let scratch = traversals::pad(3, 0);
    let request = traversals::request(&program, &scratch);
    let (found, _) = ask(&mut bench, header(ALICE, 1), &request);
    assert_eq!(found, Status::Ok);
    assert_eq!(bench.update(&[Update::Lose { base: BASE, len: 0x1000 }]), (Status::Ok, 0));
    let (lost, state) = ask(&mut bench, header(ALICE, 2), &request);
    assert_eq!((lost, state.iterations), (Status::Lost, 0));
}

/// PROTOCOL 7.44: accepted or cleared pages are accessible again, page by page; their neighbours are not.
#[test]
fn accepted_and_cleared_pages_are_there() {
    let (mut bench, _) = lossy();
    assert_eq!(bench.update(&[Update::AcceptLost { base: BASE, len: 1 }]), (Status::Ok, 0));
    let lost: Vec<_> = bench.node.page_states().lost().collect();
    assert_eq!(lost, [(Page::of(addr(0x1000)), Page::of(addr(0x1000)))]);
    let mut client = reconnect(&mut bench);
    assert_eq!(client.read(&mut bench, 0xff0, 16), Ok(vec![0xee; 16]));
    assert_eq!(client.write(&mut bench, 0xff0, &[1; 16]), Ok(0));
    assert_eq!(client.read(&mut bench, 0xff8, 16), Err(Failure::RemoteAccess), "it ends in a lost page");
    assert_eq!(bench.update(&[Update::Clear { base: addr(0x1000), len: 0x1000 }]), (Status::Ok, 0));
    let mut client = reconnect(&mut bench);
    assert_eq!(client.read(&mut bench, 0x1000, 16), Ok(vec![0; 16]));
    assert_eq!(bench.node.page_states().lost().count(), 0);
}

/// PROTOCOL 7.45: two touching vmas of Alice with the same rights. Accesses within each succeed; accesses
/// that cross are out of bounds.
#[test]
fn no_access_goes_from_one_vma_into_the_next() {
    let mut bench = Bench::ready();
    let grant =
        |at, len| Update::Protect { domain: ALICE, base: addr(at), len, perm: Perm::ReadWrite, vma_log2: 12 };
    // The first vma's grant came in two parts, which are still one vma's.
    let updates = [grant(0, 0x800), grant(0x800, 0x800), grant(0x1000, 0x1000), queue_pair(0x100, 5)];
    assert_eq!(bench.update(&updates), (Status::Ok, 0));
    let mut client = Client::new(0x100, 5, RKEY);
    assert_eq!(client.read(&mut bench, 0x7f8, 16), Ok(vec![0; 16]));
    assert_eq!(client.read(&mut bench, 0xff0, 16), Ok(vec![0; 16]));
    assert_eq!(client.write(&mut bench, 0xff8, &[1; 16]), Err(Failure::RemoteAccess));
    assert_eq!(bench.bytes(addr(0xff8), 16), [0; 16]);
    assert_eq!(status(&mut bench, 1, region_read(0xff8, 16)), Status::OutOfBounds);
    assert_eq!(status(&mut bench, 2, region_read(0x1000, 16)), Status::Ok);
    let program =
        Program::assemble("ld8 r2, window[0]\njne r2, 0, on\nld8 r3, window[8]\nret\non:\nnext r2\n")
            .unwrap();
    // From a pointer inside, in the same turn: the checked span ends with the vma.
    bench.put(addr(0x100), &addr(0xff8).0.to_le_bytes());
    let request = farmem_wire::message::Traverse {
        cur_ptr: addr(0x100),
        code: program.encoded(),
        ..traversals::request(&program, &[])
    };
    let answer = bench.ask(header(ALICE, 3), Body::Traverse(request));
    assert_eq!(answer.header.status, Status::OutOfBounds);
    // An access may continue into a grant of another class in the same vma, if that class allows it.
    let read =
        Update::Protect { domain: ALICE, base: addr(0x800), len: 0x800, perm: Perm::Read, vma_log2: 12 };
    assert_eq!(bench.update(&[read]), (Status::Ok, 0));
    assert_eq!(status(&mut bench, 4, region_read(0x7f8, 16)), Status::Ok);
}
