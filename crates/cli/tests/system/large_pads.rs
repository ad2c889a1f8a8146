//! Tests of programs and scratch pads near the length limit of a datagram (PROTOCOL 11.4), on racks of
//! processes over UDP with a path MTU of 1024 or 4096.

use crate::rack::Description;
use farmem::btree::{BTree, Bring, RECORD_ROOM};
use farmem::{Client, Error, Layout, NodeId, Policy, Profile, Program, Site, TraversalStop, VirtAddr};

/// Bytes of a datagram that hold neither state nor code.
const HEADS: usize = 64;
const LIMIT: u32 = 100;
const AUTO: Policy = Policy::Auto(Profile::CORE);

/// Runs `work` with a client of two memory nodes.
fn on_a_rack(test: &str, pmtu: &'static str, work: impl FnOnce(&mut Client)) {
    let description = Description::new(test, "udp").with(pmtu);
    let mut up = description.up();
    work(&mut description.client("pads"));
    assert!(up.is_whole(), "all roles are alive");
    assert_eq!(up.stop().stderr, "", "and had nothing to say");
}

/// Returns a program of `code` bytes that sums a list into the last word of a scratch pad of `pad` bytes.
fn sum(pad: usize, code: usize) -> Program {
    let at = pad - 8;
    let text = |idle: usize| {
        let idle = " add r4, 1\n".repeat(idle);
        format!(
            ".window 16\n.scratch {pad}\n ld8 r2, window[0]\n ld8 r3, scratch[{at}]\n add r3, r2\n st8 scratch[{at}], r3\n{idle} \
             ld8 r1, window[8]\n jeq r1, 0, end\n next r1\nend:\n ret\n"
        )
    };
    let least = Program::assemble(&text(0)).unwrap().encoded().len();
    let program = Program::assemble(&text((code - least) / 8)).unwrap();
    assert_eq!(program.encoded().len(), code);
    program
}

/// Allocates a list of 1, 20 and 300: on the first memory node, the second, and the first again.
fn list(client: &mut Client) -> VirtAddr {
    let [a, b] = [1, 2].map(|node| client.allocate_on(4096, NodeId(node)).unwrap().base.0);
    let nodes = [(a, 1_u64, b), (b, 20, a + 16), (a + 16, 300, 0)];
    for (at, value, next) in nodes {
        client.write(VirtAddr(at), &[value.to_le_bytes(), next.to_le_bytes()].concat()).unwrap();
    }
    VirtAddr(a)
}

/// Runs the program and returns its site and the number of requests. The sum must come back after unchanged
/// bytes.
fn run(client: &mut Client, program: &Program, start: VirtAddr, policy: &Policy) -> (Site, u32) {
    let mut scratch = vec![0xa5; program.scratch_len()];
    let at = scratch.len() - 8;
    scratch[at..].fill(0);
    let done = client.dispatch(program, start, scratch, LIMIT, policy);
    let done =
        done.unwrap_or_else(|e| panic!("{at} bytes and a sum, {} of code: {e}", program.encoded().len()));
    assert!(done.end.returned);
    assert_eq!(done.end.iterations, 3);
    assert_eq!(done.scratch[at..], 321_u64.to_le_bytes());
    assert!(done.scratch[..at].iter().all(|byte| *byte == 0xa5), "the rest of the pad is as it was");
    (done.site, done.end.requests)
}

/// The longest pad is 64 bytes shorter than the path MTU. A longer pad is rejected before any packet is sent,
/// with both lengths and a remedy. Under the automatic policy, the library runs such a program at the host,
/// with a READ for each element.
#[test]
fn a_pad_that_no_datagram_carries_is_refused_at_the_host() {
    for (pmtu, bytes) in [("pmtu = 1024", 1024), ("pmtu = 2048", 2048)] {
        on_a_rack("pads", pmtu, |client| {
            let max = bytes - HEADS;
            assert_eq!(client.scratch_len_max(), max);
            let start = list(client);
            let (fits, too_long) = (sum(max, 128), sum(max + 8, 128));
            run(client, &fits, start, &Policy::Offload);
            assert_eq!(
                run(client, &fits, start, &Policy::Offload),
                (Site::MemoryNodes, 1),
                "once it is known"
            );
            let before = client.tally();
            let refused = client.dispatch(&too_long, start, vec![0; max + 8], LIMIT, &Policy::Offload);
            let error = refused.unwrap_err();
            let expected = TraversalStop::ScratchTooLarge { len: max + 8, max };
            assert!(matches!(&error, Error::Traversal { reason, .. } if *reason == expected), "{error:?}");
            let said = error.to_string();
            assert!(
                said.contains(&format!("{} bytes", max + 8)) && said.contains(&max.to_string()),
                "{said}"
            );
            assert!(error.remedy().contains("pmtu"), "{}", error.remedy());
            assert_eq!(client.tally(), before, "it was not sent");
            assert_eq!(run(client, &too_long, start, &AUTO), (Site::Host, 3));
        });
    }
    on_a_rack("pads", "pmtu = 4096", |client| {
        assert_eq!(client.scratch_len_max(), 4096 - HEADS);
        let start = list(client);
        let longest = sum(4096 - HEADS, 128);
        run(client, &longest, start, &Policy::Offload);
        assert_eq!(run(client, &longest, start, &Policy::Offload), (Site::MemoryNodes, 1));
    });
}

/// Code that does not fit beside the state is sent first, to each memory node that lacks it. The first node
/// takes three requests: the name, the code and the state. The second takes two: the code and the state. With
/// a smaller state, code and state share a request, which makes two requests in total. Code that exceeds a
/// datagram is rejected.
#[test]
fn code_that_does_not_fit_beside_the_state_goes_ahead() {
    on_a_rack("ahead", "pmtu = 1024", |client| {
        let start = list(client);
        for (pad, code, requests) in [(904, 400, 5), (904, 1024 - HEADS, 5), (904, 56 + 80, 5), (200, 400, 2)]
        {
            let program = sum(pad, code);
            let first = run(client, &program, start, &Policy::Offload);
            assert_eq!(first, (Site::MemoryNodes, requests), "{pad} bytes of pad, {code} of code");
            assert_eq!(run(client, &program, start, &Policy::Offload), (Site::MemoryNodes, 1), "it is known");
        }
        let too_long = sum(64, 1024 - HEADS + 8);
        let refused = client.dispatch(&too_long, start, vec![0; 64], LIMIT, &Policy::Offload);
        let error = refused.unwrap_err();
        let too_large = matches!(&error, Error::Traversal { reason: TraversalStop::TooLarge, .. });
        assert!(too_large && error.remedy().contains("pmtu"), "{error:?}: {}", error.remedy());
    });
}

/// A scan uses pads as long as the rack permits, and returns the same records on each rack.
#[test]
fn scans_bring_the_same_records_whatever_the_path_mtu() {
    const KEYS: u64 = 300;
    let record = |key: u64, len: usize| (key + 1).to_le_bytes().repeat(len / 8);
    for (pmtu, site) in [("pmtu = 1024", Site::Host), ("pmtu = 4096", Site::MemoryNodes)] {
        on_a_rack("scans", pmtu, |client| {
            for len in [8, 64, 256] {
                let apart = len + 8; // so that none is read together with its neighbour
                let rooms = [1, 2].map(|node| {
                    let size = KEYS / 2 * apart as u64 + RECORD_ROOM as u64;
                    client.allocate_on(size, NodeId(node)).unwrap().base.0
                });
                let mut tree = BTree::create(client, Layout::Partitioned).unwrap();
                for key in 0..KEYS {
                    let place = rooms[usize::from(key % 2 == 1)] + key / 2 * apart as u64;
                    client.write(VirtAddr(place), &record(key, len)).unwrap();
                    tree.insert(client, key, place).unwrap();
                }
                let records = tree.records(client, len, Bring::Traversals).unwrap();
                let before = client.tally();
                for (from, to, most) in [(0, KEYS, usize::MAX), (17, 200, 50), (299, 400, 9), (400, 500, 9)] {
                    let scan = records.read(client, from..to, most, &AUTO).unwrap();
                    let got: Vec<_> = scan.iter().map(|(key, bytes)| (key, bytes.to_vec())).collect();
                    let expected: Vec<_> =
                        (from..to.min(KEYS)).take(most).map(|key| (key, record(key, len))).collect();
                    assert!(got == expected, "records of {len} bytes from {from} to {to}: {got:?}");
                }
                let (offloaded, at_host) =
                    (client.tally().offloaded - before.offloaded, client.tally().at_host - before.at_host);
                assert_eq!(
                    (offloaded > 0, at_host > 0),
                    (site == Site::MemoryNodes, site == Site::Host),
                    "{len} bytes"
                );
            }
        });
    }
}
