//! A silent, evicted program continues with a heap that another program has destroyed and whose memory
//! another structure uses.

use super::{Host, KIND, NODE, Time, host, hosts};
use farmem_client::{Client, Error, Rack, VirtAddr};
use farmem_structures::heap::{Heap, Record};

/// Bytes of the rack's memory: few, so that all of it is allocated again.
const MEMORY: u64 = 4 << 20;

/// Creates a heap from which a live program with a record was evicted, and which the last member has then
/// destroyed.
fn evicted(time: &Time) -> (Rack, Host, Record) {
    let (rack, mut hosts) = hosts(1, MEMORY, 2, time);
    let record = hosts[0].put(&[7; 1000]);
    let Host { mut client, mut heap } = hosts.pop().unwrap();
    while let Err(Error::Locked { .. }) = heap.check_exclusive(&mut client) {
        time.pass(9);
    }
    heap.destroy(&mut client).unwrap();
    (rack, hosts.pop().unwrap(), record)
}

/// Allocates all free memory and fills it with this word.
fn filled(client: &mut Client, word: u64) -> Vec<(VirtAddr, usize)> {
    let mut parts = Vec::new();
    let mut size = MEMORY;
    while size >= 4096 {
        match client.allocate(size) {
            Ok(vma) => parts.push((vma.base, usize::try_from(vma.size).unwrap())),
            Err(Error::Refused(_)) => size /= 2,
            Err(other) => panic!("{other}"),
        }
    }
    for &(base, len) in &parts {
        client.write(base, &word.to_le_bytes().repeat(len / 8)).unwrap();
    }
    parts
}

fn is_as_it_was(client: &mut Client, parts: &[(VirtAddr, usize)], word: u64) -> bool {
    parts.iter().all(|&(base, len)| {
        let mut bytes = vec![0; len];
        client.read(base, &mut bytes).unwrap();
        bytes == word.to_le_bytes().repeat(len / 8)
    })
}

/// Returns the result of each operation of an evicted program; the last one leaves.
fn all_operations(mut heap: Heap, client: &mut Client, record: Record) -> Vec<(&'static str, Option<Error>)> {
    let name = *b"kind of ";
    let mut said = vec![
        ("keep", heap.keep(client).err()),
        ("read", heap.read(client, record).err()),
        ("read_all", heap.read_all(client, &[record]).err()),
        ("put", heap.put_on(client, NODE, KIND, &[1; 1000]).err()),
        ("write", heap.write(client, record, KIND, &[2; 1000]).err()),
        ("free", heap.free(client, record).err()),
        ("reclaim", heap.reclaim(client).err()),
        ("root", heap.root(client, "name", name).err()),
        ("set_root", heap.set_root(client, "name", name, record.at).err()),
        ("pin", heap.pin(client).err()),
        ("check_exclusive", heap.check_exclusive(client).err()),
    ];
    said.push(("close", heap.close(client).err()));
    said
}

fn all_are_told(said: Vec<(&'static str, Option<Error>)>) {
    for (what, error) in said {
        let Some(error) = error else { panic!("{what} went") };
        assert!(matches!(error, Error::Missing { .. }), "{what}: {error}");
        assert!(error.to_string().contains("it was destroyed"), "{what}: {error}");
    }
}

/// The root still exists, since the program's client has it open; the chunks belong to another structure.
#[test]
fn an_evicted_program_writes_nowhere_after_destruction() {
    for word in [0, 1] {
        let time = Time::default();
        let (rack, Host { mut client, heap }, record) = evicted(&time);
        let mut other = rack.client("heap").unwrap();
        let parts = filled(&mut other, word);
        let has_it = |(base, len): &(VirtAddr, usize)| record.at.0.wrapping_sub(base.0) < *len as u64;
        assert!(parts.iter().any(has_it), "the record's memory is given out again");
        all_are_told(all_operations(heap, &mut client, record));
        assert!(is_as_it_was(&mut other, &parts, word));
    }
}

/// The pin of an evicted program is void, and the program then learns that the heap is gone.
#[test]
fn an_evicted_program_with_a_pin_gets_an_error() {
    let time = Time::default();
    let (rack, mut hosts) = hosts(1, MEMORY, 2, &time);
    let record = hosts[0].put(&[7; 1000]);
    let mut late = hosts.remove(0);
    late.heap.pin(&mut late.client).unwrap();
    let Host { mut client, mut heap } = hosts.pop().unwrap();
    while let Err(Error::Locked { .. }) = heap.check_exclusive(&mut client) {
        time.pass(9);
    }
    heap.destroy(&mut client).unwrap();
    let parts = filled(&mut client, 0);
    let refused = late.read(record).unwrap_err();
    assert!(matches!(refused, Error::LeaseExpired { .. }), "{refused}");
    late.heap.unpin();
    all_are_told(all_operations(late.heap, &mut late.client, record));
    assert!(is_as_it_was(&mut client, &parts, 0));
    drop(rack);
}

/// The root itself is another structure's memory: the program continues through another client, and no client
/// has the old root open. A word of 1 looks like an epoch and like a free slot.
#[test]
fn an_evicted_program_takes_no_slot_without_a_root() {
    for word in [0, 1] {
        let time = Time::default();
        let (rack, Host { client, heap }, record) = evicted(&time);
        drop(client);
        let mut other = rack.client("heap").unwrap();
        let parts = filled(&mut other, word);
        let sizes: u64 = parts.iter().map(|(_, len)| *len as u64).sum();
        assert_eq!(sizes, MEMORY, "the root's memory is among it");
        all_are_told(all_operations(heap, &mut other, record));
        assert!(is_as_it_was(&mut other, &parts, word));
    }
}

/// A heap is created again under the same name, possibly at the same root. A program evicted from the old
/// heap is no member of the new one until it opens it.
#[test]
fn a_heap_of_the_same_name_is_another_one() {
    let time = Time::default();
    let (rack, late, record) = evicted(&time);
    let mut new = host(&rack, &time, true);
    let kept = new.put(&[8; 1000]);
    let Host { mut client, heap } = late;
    all_are_told(all_operations(heap, &mut client, record));
    assert_eq!(new.read(kept).unwrap(), [8; 1000]);
    let mut opened = Host { heap: Heap::open(&mut client, "the heap", time.options()).unwrap(), client };
    assert_eq!(opened.read(kept).unwrap(), [8; 1000]);
    opened.heap.close(&mut opened.client).unwrap();
    let Host { mut client, heap } = new;
    heap.destroy(&mut client).unwrap();

    // No client has the old root open, so the new one may lie there.
    let time = Time::default();
    let (rack, Host { client, heap }, record) = evicted(&time);
    drop(client);
    let mut new = host(&rack, &time, true);
    let at = |heap: &Heap| format!("{heap:?}");
    assert_eq!(at(&heap), at(&new.heap), "the same name at the same address");
    let kept = new.put(&[8; 1000]);
    let mut other = rack.client("heap").unwrap();
    all_are_told(all_operations(heap, &mut other, record));
    assert_eq!(new.read(kept).unwrap(), [8; 1000]);
    new.heap.check_exclusive(&mut new.client).unwrap();
}
