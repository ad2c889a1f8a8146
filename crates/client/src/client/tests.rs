//! Tests of a client's request ids, repeated frees and storing tasks, in a rack within this process.

use super::connections::IDS_RESERVE;
use crate::allocations::Allocations;
use crate::answers::answer_to;
use crate::embedded::World;
use crate::rack::{embedded_client_of, embedded_world, start_node};
use crate::task::{Next, OpQueue, Task, TaskStats};
use crate::{Client, ClientOptions, Error, Policy, Program, TraversalStop};
use farmem_control::api::{Allocate, ErrorCode, Leave, Locate, Request};
use farmem_host::{Config as HostConfig, Op};
use farmem_machine::{Port, Rng};
use farmem_wire::{NodeId, VirtAddr};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

const MEMORY: u64 = 1 << 20;

/// Creates a client whose host has `ids` request ids before it joins again.
fn client_with_ids(ids: u32) -> (Rc<RefCell<World>>, Client) {
    let world = embedded_world(1, MEMORY, Rng::from_number(5)).expect("a rack");
    let world = Rc::new(RefCell::new(world));
    let few = |usual| HostConfig { ids_max: IDS_RESERVE + ids, ..usual };
    let client = embedded_client_of(&world, "domain", ClientOptions::default(), few).expect("a client");
    (world, client)
}

fn generation(client: &mut Client) -> u16 {
    let hosts = client.overview().unwrap().hosts;
    hosts[0].generation
}

/// A client sends far more requests than one generation has ids. The client joins again by itself without the
/// caller's notice, and all operations complete.
#[test]
fn a_client_that_runs_out_of_ids_joins_again() {
    const IDS: u32 = 10;
    let (_world, mut client) = client_with_ids(IDS);
    let base = client.allocate(4096).unwrap().base;
    for round in 0..5 * u64::from(IDS) {
        client.region_write(base, &round.to_le_bytes()).unwrap();
        let mut word = [0; 8];
        client.read(base, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), round, "the connection works before and after");
    }
    assert_eq!(generation(&mut client), 5);
    // Many operations are in flight at once: each completes once, and successfully.
    let mut open = BTreeSet::new();
    for round in 0..5 * IDS {
        let op = if round % 2 == 0 {
            Op::RegionRead { addr: base, buf: vec![0; 8] }
        } else {
            Op::FetchAdd { addr: base, add: 0 }
        };
        open.insert(client.submit(op).unwrap());
    }
    while let Some(completed) = client.next_completed().unwrap() {
        assert!(open.remove(&completed.ticket), "{completed:?} ends twice");
        completed.result.unwrap();
    }
    assert!(open.is_empty());
    assert_eq!(generation(&mut client), 8);
}

/// A client's process is suspended, and the rack fences its host. The next operation, of any kind, reports
/// the fence, and so does each later one. No operation waits for an answer that never comes, or acts for
/// another host. A new client works.
#[test]
fn a_fenced_client_gets_an_error() {
    let (world, mut client) = client_with_ids(1000);
    let base = client.allocate(4096).unwrap().base;
    client.write(base, b"before").unwrap();
    world.borrow_mut().call(Leave::new(Port::host(1).0)).unwrap();
    let mut bytes = [0; 6];
    for _ in 0..2 {
        for error in [
            client.read(base, &mut bytes).unwrap_err(),
            client.write(base, b"behind").unwrap_err(),
            client.region_read(base, &mut bytes).unwrap_err(),
            client.fetch_add(base, 1).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Fenced { host: 1, generation: 1 }), "{error}");
            assert!(error.remedy().contains("host_lease_ms"), "{}", error.remedy());
        }
    }
    assert_eq!(bytes, [0; 6]);
    let mut next = embedded_client_of(&world, "domain", ClientOptions::default(), |usual| usual).unwrap();
    next.read(base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"before");
}

/// A host that was removed without the client's knowledge cannot join again as itself. The client reports
/// that, and does not create a new host.
#[test]
fn a_client_that_left_does_not_join_again() {
    let (world, mut client) = client_with_ids(2);
    let base = client.allocate(4096).unwrap().base;
    let mut word = [0; 8];
    client.region_read(base, &mut word).unwrap();
    client.region_read(base, &mut word).unwrap();
    world.borrow_mut().call(Leave::new(Port::host(1).0)).unwrap();
    assert!(matches!(client.region_read(base, &mut word), Err(Error::Fenced { .. })));
}

/// Memory is allocated at a node to which the client cannot connect, because its host was fenced meanwhile.
/// The allocation is freed, and the caller gets an error.
#[test]
fn an_allocation_without_a_connection_is_freed() {
    let (world, mut client) = client_with_ids(100);
    // The client has no connection to a node that joined later.
    start_node(&mut world.borrow_mut(), "late".into(), "127.240.1.1".into(), MEMORY).unwrap();
    world.borrow_mut().call(Leave::new(Port::host(1).0)).unwrap();
    let error = client.allocate_on(4096, NodeId(2)).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotFound), "{error}");
    assert_eq!(client.overview().unwrap().vmas, [], "what no program was told of is free again");
    let mut next = embedded_client_of(&world, "domain", ClientOptions::default(), |usual| usual).unwrap();
    assert_eq!(next.allocate_on(4096, NodeId(2)).unwrap().node, NodeId(2));
}

/// A free is executed, but its answer does not arrive. The next allocation gets the same addresses, and the
/// free is repeated. The repeated free succeeds, and the new allocation stays: for the client that made the
/// old allocation, and for another client (PROTOCOL 8.47).
#[test]
fn a_free_that_is_repeated_after_unavailable_spares_the_next_allocation() {
    for is_its_own in [true, false] {
        let (world, client) = client_with_ids(1000);
        let ask = |request: Request| world.borrow_mut().call(request);
        let domain = client.domain.0;
        let allocate = Allocate { domain, size: MEMORY, node: None, durable: false };
        let first = answer_to(allocate.clone(), ask).unwrap();
        let base = VirtAddr(first.base);
        let mut allocations = Allocations::default();
        if is_its_own {
            allocations.made(&first);
        }
        let cut_off = |request: Request| match (&request, ask(request.clone())) {
            (Request::Free(_), Ok(_)) => Err(Error::Api { message: "cut off".into() }),
            (_, answer) => answer,
        };
        assert!(matches!(allocations.free(domain, base, cut_off), Err(Error::Api { .. })));
        let second = answer_to(allocate, ask).expect("a vma: the first one is freed");
        assert_eq!(second.base, first.base, "the addresses are used again");
        allocations.free(domain, base, ask).expect("it was freed before");
        let found = answer_to(Locate { addr: second.base }, ask).expect("the second allocation is there");
        assert_eq!(found.vma, second);
        allocations.free(domain, base, ask).expect("a new request means the allocation that is there");
        let error = allocations.free(domain, base, ask).expect_err("nothing is there");
        assert_eq!(error.code(), Some(ErrorCode::NotFound));
    }
}

/// A traversal reaches a node of 8 bytes at the end of an allocation, with a window of 64 bytes, and
/// completes. A program that reads the next word of the node stops there. The error explains what to check,
/// because an invalid pointer is not the only possible cause.
#[test]
fn a_window_behind_the_last_allocation_is_explained() {
    let (_world, mut client) = client_with_ids(1000);
    let reading =
        |at: u64| format!(".window 64\n.scratch 8\n ld8 r2, window[{at}]\n st8 scratch[0], r2\n ret");
    let [first, second] = [0, 8].map(|at| Program::assemble(&reading(at)).unwrap());
    let last = client.allocate(4096).unwrap().base.checked_add(4096 - 8).unwrap();
    client.write(last, &[7; 8]).unwrap();
    assert_eq!(client.traverse(&first, last, vec![0; 8], 9).unwrap().scratch, [7; 8]);
    let error = client.traverse(&second, last, vec![0; 8], 9).unwrap_err();
    assert!(
        matches!(error, Error::Traversal { addr, reason: TraversalStop::OutOfBounds } if addr == last),
        "{error}"
    );
    assert!(error.remedy().contains("all bytes that the program may read"), "{}", error.remedy());
}

/// A task's program that stores runs at the memory nodes, and is refused if the policy selects the host.
/// Nothing is stored then.
#[test]
fn a_task_that_stores_is_refused_at_the_host() {
    struct Add(Option<Op>, Option<Result<(), Error>>);
    impl Task for Add {
        fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
            if let Some(op) = self.0.take() {
                queue.need(op);
                return Ok(Next::Need);
            }
            self.1 = Some(queue.one().result.map(drop));
            Ok(Next::Done)
        }
    }
    let text = include_str!("../../../../testdata/programs/list_add.pulse");
    let program = Program::assemble(text).expect("a program");
    let (_world, mut client) = client_with_ids(1000);
    let head = client.allocate(4096).unwrap().base;
    for (policy, stored) in [(Policy::Host, 0), (Policy::Offload, 7), (Policy::default(), 14)] {
        let scratch = [7_u64, 0].map(u64::to_le_bytes).concat();
        let op = Op::Traverse { program: program.clone(), cur_ptr: head, scratch, limit: 9 };
        let mut ended = None;
        let done = |task: Add, _: TaskStats| ended = task.1;
        client.run_tasks([Add(Some(op), None)].into_iter(), 1, &policy, done).unwrap();
        match ended.expect("it ended") {
            Ok(()) => assert_ne!(policy, Policy::Host),
            Err(Error::Traversal { addr, reason: TraversalStop::StoresAtHost }) => {
                assert_eq!((addr, policy), (head, Policy::Host));
            }
            Err(other) => panic!("{other}"),
        }
        let mut word = [0; 8];
        client.read(head, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), stored, "{policy:?}");
    }
}
