//! Tests of programs on a rack of processes: the same calls as in one process, over both transports.

use crate::process::run;
use crate::rack::Description;
use farmem::hash_table::{HashTable, Key, Spread, VALUE_LEN};
use farmem::{Client, Error, NodeId, Op, Program, VirtAddr, api};
use std::collections::BTreeSet;
use std::thread;

/// Runs a test on its own rack over each transport.
macro_rules! over_either_transport {
    ($($(#[$about:meta])* $name:ident($description:ident: $nodes:literal nodes) $body:block)*) => {
        mod over_udp { $(#[test] fn $name() { super::$name("udp"); })* }
        mod over_shared_memory { $(#[test] fn $name() { super::$name("shm"); })* }
        $($(#[$about])* fn $name(transport: &'static str) {
            let $description = Description::new(stringify!($name), transport).with_nodes($nodes);
            let mut up = $description.up();
            $body
            assert!(up.is_whole(), "all roles are alive");
            assert_eq!(up.stop().stderr, "", "and had nothing to say");
        })*
    };
}

/// A rack whose links emulate a network says so. Everything works on it as on other racks: both ends delay
/// frames, and none is lost.
#[test]
fn a_rack_on_a_paced_link() {
    for transport in ["udp", "shm"] {
        let description = Description::new("paced", transport).with("link = \"rate=10Gbit/s,delay=50us\"\n");
        let mut up = description.up();
        assert_eq!(up.listening()["link"], "rate=10Gbit/s,delay=50us");
        let mut client = description.client("paced");
        assert_eq!(client.link_profile().to_string(), "rate=10Gbit/s,delay=50us");
        let vma = client.allocate(1 << 20).unwrap();
        let data: Vec<u8> = (0..300_001_u32).map(|n| (n * 7 % 251) as u8).collect();
        client.write(vma.base, &data).unwrap();
        let mut back = vec![0; data.len()];
        client.read(vma.base, &mut back).unwrap();
        assert!(back == data, "what was written is read");
        let mut table = HashTable::create(&mut client, 64, 16, Spread::Scattered).unwrap();
        for n in 0..64_u8 {
            table.insert(&mut client, Key::of(&[n]), &[n; VALUE_LEN]).unwrap();
        }
        for n in 0..64_u8 {
            assert_eq!(table.find(&mut client, Key::of(&[n])).unwrap(), Some([n; VALUE_LEN]));
        }
        drop(client);
        assert!(up.is_whole(), "all roles are alive");
        assert_eq!(up.stop().stderr, "", "and had nothing to say");
    }
}

over_either_transport! {
    /// Written bytes are read back, on every node, across packets and at odd offsets. Atomics return the
    /// earlier value.
    verbs(description: 3 nodes) {
        let mut client = description.client("verbs");
        assert_eq!(client.nodes().len(), 3);
        for node in 1..=3 {
            let vma = client.allocate_on(1 << 20, NodeId(node)).unwrap();
            assert_eq!((vma.size, vma.node), (1 << 20, NodeId(node)));
            let mut fresh = [1; 4096];
            client.read(vma.base, &mut fresh).unwrap();
            assert_eq!(fresh, [0; 4096], "zeroed");
            let data: Vec<u8> = (0..200_001_u32).map(|n| (n * 7 % 251) as u8).collect();
            let at = VirtAddr(vma.base.0 + 13);
            client.write(at, &data).unwrap();
            let mut back = vec![0; data.len()];
            client.read(at, &mut back).unwrap();
            assert!(back == data, "node {node}");
            client.region_write(at, b"through the switch").unwrap();
            let mut back = [0; 18];
            client.region_read(at, &mut back).unwrap();
            assert_eq!(&back, b"through the switch");
            let word = VirtAddr(vma.base.0 + (1 << 19));
            for n in 0..20 {
                assert_eq!(client.fetch_add(word, 5).unwrap(), 5 * n);
            }
            assert_eq!(client.compare_swap(word, 0, 1).unwrap(), 100, "no match, no change");
            assert_eq!(client.compare_swap(word, 100, u64::MAX).unwrap(), 100);
            assert_eq!(client.fetch_add(word, 2).unwrap(), u64::MAX);
            assert_eq!(client.fetch_add(word, 0).unwrap(), 1, "it wraps");
        }
        let (sent, received) = client.packets();
        assert!(sent > 0 && received > 0);
    }

    /// On one machine, a page is one datagram. One datagram requests it and one carries it. A write is one
    /// datagram and one acknowledgement.
    pages_are_one_datagram(description: 1 nodes) {
        let mut client = description.client("pages");
        let vma = client.allocate(1 << 16).unwrap();
        let mut page = [7; 4096];
        let mut fewest = |work: &mut dyn FnMut(&mut Client)| {
            // The minimum of many runs, because a machine that pauses may cause retransmissions.
            let packets = (0..20).map(|_| {
                let before = client.packets();
                work(&mut client);
                let after = client.packets();
                (after.0 - before.0, after.1 - before.1)
            });
            packets.min()
        };
        assert_eq!(fewest(&mut |client| client.write(vma.base, &page).unwrap()), Some((1, 1)), "WRITE");
        assert_eq!(fewest(&mut |client| client.read(vma.base, &mut page).unwrap()), Some((1, 1)), "READ");
        assert_eq!(page, [7; 4096]);
    }

    /// Traversals that are submitted together share datagrams, one to each node and one back. Each ends as it
    /// does alone. The test includes one that continues at another node, one at a null pointer and one at an
    /// unallocated address.
    traversals_share_datagrams(description: 2 nodes) {
        let mut client = description.client("batches");
        let vmas = [1, 2].map(|node| client.allocate_on(4096, NodeId(node)).unwrap().base);
        let program = Program::assemble(
            ".window 16\n.scratch 8\n ld8 r2, window[0]\n ld8 r3, scratch[0]\n add r3, r2\n st8 scratch[0], r3\n\
             ld8 r4, window[8]\n jeq r4, 0, end\n next r4\n end: ret",
        ).unwrap();
        // 0 to 7 on each node. The last element continues at the first one of the other node.
        for (mine, other) in [(0, 1), (1, 0)] {
            for n in 0..8 {
                let next = if n == 7 && mine == 0 { vmas[other].0 } else { 0 };
                let node = [(n + 10 * mine as u64).to_le_bytes(), next.to_le_bytes()].concat();
                client.write(VirtAddr(vmas[mine].0 + 16 * n), &node).unwrap();
            }
        }
        let sums: Vec<u64> = (0..7).chain([17]).chain(10..18).collect();
        let run = |client: &mut Client| {
            let before = client.packets();
            let starts = vmas.iter().flat_map(|base| (0..8).map(|n| VirtAddr(base.0 + 16 * n)));
            let tickets: Vec<_> = starts.map(|cur_ptr| {
                let op = Op::Traverse { program: program.clone(), cur_ptr, scratch: vec![0; 8], limit: 9 };
                client.submit(op).unwrap()
            }).collect();
            let ends = tickets.into_iter().map(|ticket| client.wait(ticket).unwrap());
            let found: Vec<u64> = ends.map(|end| {
                end.result.unwrap();
                u64::from_le_bytes(end.buf.try_into().unwrap())
            }).collect();
            assert_eq!(found, sums);
            let after = client.packets();
            (after.0 - before.0, after.1 - before.1)
        };
        run(&mut client);
        // The minimum of many runs, because a machine that pauses may cause retransmissions.
        assert_eq!((0..20).map(|_| run(&mut client)).min(), Some((2, 3)), "the one that went on is answered from there");

        let nobodys = VirtAddr(vmas[0].0 + (8 << 20));
        let starts = [vmas[0], nobodys, VirtAddr::NULL, VirtAddr(vmas[0].0 + 16)];
        let tickets = starts.map(|cur_ptr| {
            client.submit(Op::Traverse { program: program.clone(), cur_ptr, scratch: vec![0; 8], limit: 9 }).unwrap()
        });
        let ends = tickets.map(|ticket| client.wait(ticket).unwrap().result.is_ok());
        assert_eq!(ends, [true, false, false, true]);
    }

    /// Each wrong access returns an error with the reason, and the client continues to work.
    refusals(description: 2 nodes) {
        let mut client = description.client("owner");
        let vma = client.allocate(4096).unwrap();
        let beyond = VirtAddr(vma.base.0 + (8 << 20));
        let mut bytes = [0; 16];
        for _ in 0..3 {
            assert!(matches!(client.read(VirtAddr(0x10), &mut bytes), Err(Error::NotMapped { .. })));
            assert!(matches!(client.read(beyond, &mut bytes), Err(Error::NotMapped { .. })));
            assert!(matches!(client.write(beyond, &bytes), Err(Error::NotMapped { .. })));
            let end = VirtAddr(vma.base.0 + 4090);
            assert!(matches!(client.read(end, &mut bytes), Err(Error::OutOfBounds { len: 16, .. })));
            assert!(matches!(client.fetch_add(VirtAddr(vma.base.0 + 4), 1), Err(Error::Misaligned { .. })));
            assert!(matches!(client.region_write(vma.base, &[0; 5000]), Err(Error::TooLong { .. })));
            client.write(vma.base, b"still here").unwrap();
        }
        assert_eq!(client.allocate(1 << 40).unwrap_err().code(), Some(api::ErrorCode::OutOfMemory));
        assert_eq!(client.allocate_on(4096, NodeId(77)).unwrap_err().code(), Some(api::ErrorCode::NotFound));
        assert_eq!(client.free(VirtAddr(vma.base.0 + 64)).unwrap_err().code(), Some(api::ErrorCode::BadRequest));
        client.free(vma.base).unwrap();
        assert!(matches!(client.read(vma.base, &mut bytes), Err(Error::NotMapped { .. })), "freed");
    }

    /// Two programs in two domains share nothing until a grant. Then each reads the other's writes, and
    /// atomics of both count once each.
    grants(description: 2 nodes) {
        let mut owner = description.client("owner");
        let vma = owner.allocate(8192).unwrap();
        owner.write(vma.base, b"from the owner").unwrap();
        let guest = |work: &(dyn Fn(&mut Client) + Sync)| {
            // A separate program for the rack, with its own thread, address and connections.
            thread::scope(|scope| scope.spawn(|| work(&mut description.client("guest"))).join().unwrap());
        };
        guest(&|guest| {
            let error = guest.read(vma.base, &mut [0; 14]).unwrap_err();
            assert!(matches!(error, Error::NotMapped { .. }), "{error:?}: a stranger learns nothing about it");
            assert_eq!(guest.free(vma.base).unwrap_err().code(), Some(api::ErrorCode::NotOwner));
        });
        owner.grant(vma.base, 4096, "guest", api::PermName::Read).unwrap();
        guest(&|guest| {
            let mut bytes = [0; 14];
            guest.read(vma.base, &mut bytes).unwrap();
            assert_eq!(&bytes, b"from the owner");
            assert!(matches!(guest.write(vma.base, &bytes), Err(Error::NoPermission { .. })));
            assert!(guest.read(VirtAddr(vma.base.0 + 4096), &mut bytes).is_err(), "only what was granted");
        });
        owner.grant(vma.base, 4096, "guest", api::PermName::ReadWrite).unwrap();
        let (word, text) = (VirtAddr(vma.base.0 + 64), VirtAddr(vma.base.0 + 128));
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut guest = description.client("guest");
                guest.write(text, b"from the guest").unwrap();
                (0..500).map(|_| guest.fetch_add(word, 1).unwrap()).collect::<Vec<_>>()
            });
            let mut seen: BTreeSet<u64> = (0..500).map(|_| owner.fetch_add(word, 1).unwrap()).collect();
            seen.extend(other.join().unwrap());
            assert_eq!(seen.len(), 1000, "no two saw the same count");
        });
        assert_eq!(owner.fetch_add(word, 0).unwrap(), 1000);
        let mut bytes = [0; 14];
        owner.read(text, &mut bytes).unwrap();
        assert_eq!(&bytes, b"from the guest");
        owner.grant(vma.base, 4096, "guest", api::PermName::None).unwrap();
        guest(&|guest| assert!(guest.read(vma.base, &mut [0; 14]).is_err(), "taken back"));
    }

    /// One request sums a list over three nodes. A broken pointer is returned with its address.
    a_traversal_crosses_nodes(description: 3 nodes) {
        let mut client = description.client("list");
        let program = Program::assemble(include_str!("../../../../testdata/programs/list_sum.pulse")).unwrap();
        let nodes: Vec<VirtAddr> = (1..=3).map(|n| client.allocate_on(4096, NodeId(n)).unwrap().base).collect();
        let put = |client: &mut Client, at: VirtAddr, value: u64, next: u64| {
            client.write(at, &[value.to_le_bytes(), next.to_le_bytes()].concat()).unwrap();
        };
        put(&mut client, nodes[0], 100, nodes[1].0);
        put(&mut client, nodes[1], 20, nodes[2].0);
        put(&mut client, nodes[2], 3, 0);
        let scratch = vec![0; program.scratch_len()];
        for _ in 0..2 {
            let walked = client.traverse(&program, nodes[0], scratch.clone(), 1000).unwrap();
            assert!(walked.end.returned);
            assert_eq!(walked.end.iterations, 3);
            let words: Vec<u64> =
                walked.scratch.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
            assert!(words.contains(&123), "{words:?}");
        }
        put(&mut client, nodes[2], 3, 0xdead_0000);
        let Err(Error::Traversal { addr, .. }) = client.traverse(&program, nodes[0], scratch, 1000) else {
            panic!("it followed a pointer into nowhere")
        };
        assert_eq!(addr, VirtAddr(0xdead_0000));
    }

    /// A table is loaded, extended and read by both methods, with many operations in flight.
    a_hash_table(description: 3 nodes) {
        let mut client = description.client("table");
        let mut table = HashTable::create(&mut client, 1000, 64, Spread::Scattered).unwrap();
        let value = |n: u64| {
            let mut value = [0; VALUE_LEN];
            value[..8].copy_from_slice(&n.to_le_bytes());
            value
        };
        let key = |n: u64| Key::of(&n.to_be_bytes());
        table.load(&mut client, (0..800).map(|n| (key(n), value(n))), &mut |_, _| {}).unwrap();
        for n in 790..810 {
            table.insert(&mut client, key(n), &value(n + 1000)).unwrap();
        }
        for n in (0..820).step_by(5) {
            let expected = match n {
                0..790 => Some(value(n)),
                790..810 => Some(value(n + 1000)),
                _ => None,
            };
            assert_eq!(table.find(&mut client, key(n)).unwrap(), expected, "{n}");
            assert_eq!(table.find_by_reads(&mut client, key(n)).unwrap(), expected, "{n}");
        }
        let mut open = BTreeSet::new();
        for n in 0..800 {
            let scratch = client.buffer(0);
            open.insert(client.submit(table.find_op(key(n), scratch)).unwrap());
        }
        while let Some(completed) = client.next_completed().unwrap() {
            assert!(open.remove(&completed.ticket), "it ended twice");
            assert!(HashTable::found(&completed).is_some(), "{completed:?}");
        }
        assert!(open.is_empty());
        table.destroy(&mut client).unwrap();
    }

    /// The maximum number of submitted operations: each ends once, and the last write remains.
    operations_overlap(description: 2 nodes) {
        let mut client = description.client("overlap");
        let vma = client.allocate(1 << 16).unwrap();
        let mut open = BTreeSet::new();
        for n in 0..3000_u64 {
            let addr = VirtAddr(vma.base.0 + n % 512 * 64);
            let op = if n % 2 == 0 { Op::FetchAdd { addr, add: 1 } } else { Op::Read { addr, buf: vec![0; 64] } };
            open.insert(client.submit(op).unwrap());
            if n % 3 == 0 && let Some(completed) = client.poll().unwrap() {
                assert!(open.remove(&completed.ticket));
            }
        }
        while let Some(completed) = client.next_completed().unwrap() {
            assert!(open.remove(&completed.ticket), "it ended twice");
            completed.result.unwrap();
        }
        assert!(open.is_empty());
        let count: u64 = (0..512).map(|n| client.fetch_add(VirtAddr(vma.base.0 + n * 64), 0).unwrap()).sum();
        assert_eq!(count, 1500);
    }
}

/// A list of one address serves one client at a time. The second client learns which list is full, and
/// connects after the first has left.
#[test]
fn clients_wait_for_an_address() {
    let description = Description::new("addresses", "udp").with_hosts(1);
    let _up = description.up();
    let first = description.client("first");
    let full = description.rack().client("second").unwrap_err();
    assert!(matches!(full, Error::Full { .. }), "{full:?}");
    assert!(full.to_string().contains("client addresses, 1 by [hosts]"), "{full}");
    run(&["demo", "--limit", "10", "--rack", &description.file()])
        .refuses(&["client addresses", "more capacity"]);
    drop(first);
    let mut second = description.client("second");
    let vma = second.allocate(64).unwrap();
    second.write(vma.base, b"in").unwrap();
}

/// When the rack stops, open operations end with an error about it, and so do all later ones.
#[test]
fn a_rack_that_goes_is_noticed() {
    for transport in ["udp", "shm"] {
        let description = Description::new("goes", transport);
        let mut up = description.up();
        let mut client = description.client("left");
        let vma = client.allocate(4096).unwrap();
        crate::process::signal(up.supervisor().pid(), "INT");
        up.supervisor().ended();
        let error = client.write(vma.base, b"anybody?").unwrap_err();
        assert!(!error.remedy().is_empty(), "{error}");
        assert!(matches!(client.allocate(4096), Err(Error::Api { .. })));
        drop(client);
        let gone = description.rack().client("late").unwrap_err();
        assert!(matches!(gone, Error::Api { .. }), "{gone:?}");
        assert!(gone.remedy().contains("farmem up"), "{}", gone.remedy());
        drop(std::fs::remove_dir_all(description.rings()));
    }
}
