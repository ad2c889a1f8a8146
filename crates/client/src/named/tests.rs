//! Named memory that one client writes or many read, in a rack within this process (PROTOCOL 8.53 to 8.58).

use crate::embedded::World;
use crate::rack::{embedded_client_of, embedded_world};
use crate::{Client, ClientOptions, Error, NamedLock, OpenNamed};
use farmem_control::api::{ErrorCode, OpenMode};
use farmem_host::Config as HostConfig;
use farmem_machine::Rng;
use std::cell::RefCell;
use std::rc::Rc;

use OpenMode::{Read, Shared, Write};

const LEN: u64 = 8192;

fn world() -> Rc<RefCell<World>> {
    Rc::new(RefCell::new(embedded_world(1, 1 << 20, Rng::from_number(6)).expect("a rack")))
}

fn client(world: &Rc<RefCell<World>>) -> Client {
    embedded_client_of(world, "graphs", ClientOptions::default(), |usual| usual).expect("a client")
}

/// Returns the text of a refusal by the control plane.
fn refused(result: Result<OpenNamed, Error>, code: ErrorCode) -> String {
    let error = result.expect_err("a refusal");
    assert_eq!(error.code(), Some(code), "{error}");
    format!("{error} {}", error.remedy())
}

fn read(client: &mut Client, named: &OpenNamed) -> u64 {
    let mut bytes = [0; 8];
    client.read(named.vma().base, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// One client creates an object and writes it. Another client learns which client writes it, and reads it
/// after the first one has closed it, together with a third.
#[test]
fn one_client_writes_and_then_many_read() {
    let world = world();
    let [mut one, mut two, mut three] = [0; 3].map(|_| client(&world));
    assert!(matches!(two.open_named_as("graph", Read), Err(Error::Missing { .. })));
    assert!(
        matches!(two.create_named_as("graph", LEN, Read), Err(Error::Missing { .. })),
        "it makes nothing"
    );
    let made = one.create_named_as("graph", LEN, Write).unwrap();
    assert_eq!((made.length(), made.vma().size), (LEN, LEN));
    one.write(made.vma().base, &7_u64.to_le_bytes()).unwrap();
    for mode in [Read, Write, Shared] {
        let said = refused(two.open_named_as("graph", mode), ErrorCode::Conflict);
        assert!(said.contains("open to write at host 1 (client1, generation 1)"), "{said}");
        assert!(said.contains("`leave` with port 65537 and generation 1"), "{said}");
    }
    assert_eq!(two.open_named("graph").unwrap_err().code(), Some(ErrorCode::Conflict));
    made.close().unwrap();
    let reads = two.open_named_as("graph", Read).unwrap();
    let reads_too = three.create_named_as("graph", LEN, Read).unwrap();
    assert_eq!((read(&mut two, &reads), read(&mut three, &reads_too)), (7, 7));
    let said = refused(one.open_named_as("graph", Write), ErrorCode::Conflict);
    assert!(said.contains("at host 2 (client2, generation 1), host 3 (client3, generation 1)"), "{said}");
    assert!(refused(three.create_named_as("graph", 2 * LEN, Read), ErrorCode::Conflict).contains("to read"));
    drop(reads_too);
    refused(one.open_named_as("graph", Write), ErrorCode::Conflict);
    drop(reads);
    drop(one.open_named_as("graph", Write).unwrap());
}

/// A client has the widest requested mode until its last use ends. Its uses of the same memory by other names
/// end separately.
#[test]
fn a_client_closes_with_its_last_use() {
    let world = world();
    let [mut one, mut two] = [0; 2].map(|_| client(&world));
    let writes = one.create_named_as("graph", LEN, Write).unwrap();
    let reads = one.open_named_as("graph", Read).unwrap();
    drop(writes);
    refused(two.open_named_as("graph", Read), ErrorCode::Conflict);
    let said = refused(one.open_named_as("graph", Shared), ErrorCode::Conflict);
    assert!(said.contains("host 1 has object"), "{said}");
    drop(reads);
    // The object is also open as shared by its name, which the end of the handle does not change.
    let handle = two.open_named_as("graph", Shared).unwrap();
    two.open_named("graph").unwrap();
    drop(handle);
    refused(one.open_named_as("graph", Write), ErrorCode::Conflict);
    two.unlink_named("graph").unwrap();
    let anew = one.create_named_as("graph", LEN, Write).unwrap();
    assert_eq!(one.overview().unwrap().vmas.len(), 1, "the first one was freed with its last user");
    // A client that has the object open keeps it without its name, whichever client removes the name.
    two.unlink_named("graph").unwrap();
    one.write(anew.vma().base, &[1]).unwrap();
    drop(anew);
    assert_eq!(one.overview().unwrap().vmas.len(), 0);
}

/// A handle that outlives its client closes nothing, because another client may have the host's number, and
/// the memory open.
#[test]
fn a_handle_that_outlives_its_client_closes_nothing() {
    let world = world();
    let (mut one, mut two) = (client(&world), client(&world));
    let late = one.create_named_as("graph", LEN, Write).unwrap();
    drop(one);
    let mut three = client(&world);
    assert_eq!(three.life(), (1, 2), "the number of the client that left");
    let _writes = three.open_named_as("graph", Write).unwrap();
    late.close().unwrap();
    refused(two.open_named_as("graph", Read), ErrorCode::Conflict);
}

/// A client that hangs is fenced. Another client opens its objects. Its later writes have no effect, and it
/// gets an error. A late fence does not affect the next generation of the host.
#[test]
fn writes_of_a_fenced_client_change_nothing() {
    let world = world();
    let (mut hangs, mut two) = (client(&world), client(&world));
    let graph = hangs.create_named_as("graph", LEN, Write).unwrap();
    hangs.write(graph.vma().base, &1_u64.to_le_bytes()).unwrap();
    let (host, generation) = hangs.life();
    let error = two.fence(host, generation + 1).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotFound), "{error}");
    refused(two.open_named_as("graph", Write), ErrorCode::Conflict);
    two.fence(host, generation).unwrap();
    let taken = two.open_named_as("graph", Write).unwrap();
    two.write(taken.vma().base, &2_u64.to_le_bytes()).unwrap();
    hangs.write(graph.vma().base, &3_u64.to_le_bytes()).expect_err("its connection is gone");
    hangs.region_write(graph.vma().base, &4_u64.to_le_bytes()).expect_err("its session is gone");
    assert_eq!(read(&mut two, &taken), 2);
    let mut next = client(&world);
    assert_eq!(next.life(), (host, generation + 1));
    assert_eq!(two.fence(host, generation).unwrap_err().code(), Some(ErrorCode::NotFound));
    drop((graph, hangs));
    assert_eq!(next.overview().unwrap().hosts.len(), 2, "the next life stays when the one before ends");
}

/// One client, and one use of it, holds a lock until the drop. A client that takes the lock over has the
/// holder's host fenced. If the holder may still write, the client gets an error with a remedy. Later writes
/// of the former holder have no effect.
#[test]
fn a_lock_is_taken_over_from_who_hangs() {
    let world = world();
    let (mut hangs, mut two) = (client(&world), client(&world));
    let conflict = |result: Result<NamedLock, Error>, said: &str| {
        let error = result.expect_err("another one has it");
        assert!(error.code() == Some(ErrorCode::Conflict) && error.to_string().contains(said), "{error}");
    };
    let memory = hangs.create_named("memory", LEN).unwrap().base;
    let lock = hangs.lock_named("writer").unwrap();
    conflict(hangs.lock_named("writer"), "this program itself");
    conflict(hangs.take_over_named("writer"), "this program itself");
    conflict(two.lock_named("writer"), "at host 1 (client1, generation 1)");
    lock.unlock().unwrap();
    drop(two.lock_named("writer").unwrap());

    let late = hangs.lock_named("writer").unwrap();
    hangs.write(memory, &1_u64.to_le_bytes()).unwrap();
    assert!(hangs.is_member().unwrap());
    let taken = two.take_over_named("writer").unwrap();
    two.open_named("memory").unwrap();
    two.write(memory, &2_u64.to_le_bytes()).unwrap();
    hangs.write(memory, &3_u64.to_le_bytes()).expect_err("its connection is gone");
    hangs.region_write(memory, &4_u64.to_le_bytes()).expect_err("its session is gone");
    assert!(!hangs.is_member().unwrap());
    let mut bytes = [0; 8];
    two.read(memory, &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), 2);
    drop((late, hangs));
    let mut three = client(&world);
    conflict(three.lock_named("writer"), "at host 2 (client2, generation 1)");
    taken.unlock().unwrap();
    drop(three.take_over_named("writer").expect("no client has it"));
    assert!(two.is_member().unwrap(), "so no host is fenced");
}

/// A client that runs out of request ids joins again, and opens its objects again. An object without a name
/// was freed with its last user, so it cannot be opened again; from then on each request reports that.
#[test]
fn a_client_that_joins_again_holds_again() {
    for has_name in [true, false] {
        let world = world();
        let few = |usual| HostConfig { ids_max: (1 << 24) + 4, ..usual };
        let mut one = embedded_client_of(&world, "graphs", ClientOptions::default(), few).unwrap();
        let mut two = client(&world);
        let graph = one.create_named_as("graph", LEN, Write).unwrap();
        if !has_name {
            two.unlink_named("graph").unwrap();
        }
        let mut written = Ok(());
        for round in 0..20_u64 {
            written = written.and_then(|()| one.region_write(graph.vma().base, &round.to_le_bytes()));
        }
        assert!(one.life().1 > 1, "it joined again");
        if has_name {
            written.unwrap();
            assert_eq!(read(&mut one, &graph), 19);
            refused(two.open_named_as("graph", Read), ErrorCode::Conflict);
            drop(graph);
            two.open_named_as("graph", Read).unwrap();
            continue;
        }
        for error in [written, one.write(graph.vma().base, &[1]), one.read(graph.vma().base, &mut [0])] {
            let error = error.unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::NotFound));
            assert!(error.to_string().contains("lost what it had open"), "{error}");
        }
    }
}

/// A failed attempt to open or create an object leaves it closed, so another client may write it.
#[test]
fn a_refused_object_is_not_left_open() {
    let world = world();
    let [mut one, mut two] = [0; 2].map(|_| client(&world));
    let made = one.create_named_as("graph", LEN, Write).unwrap();
    made.close().unwrap();
    let refused = two.create_named("graph", 2 * LEN).unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Conflict), "{refused}");
    one.open_named_as("graph", Write).expect("the client that was refused has nothing open").close().unwrap();
    // Objects that were open before stay open.
    two.open_named("graph").unwrap();
    two.create_named("graph", 2 * LEN).unwrap_err();
    assert_eq!(one.open_named_as("graph", Write).unwrap_err().code(), Some(ErrorCode::Conflict));
}
