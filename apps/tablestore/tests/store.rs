//! The store on a rack in this process: exact counts, right answers beside inserts, and the detection of a
//! wrong answer.

use farmem::btree::Bring;
use farmem::{Layout, Policy, Rack, VirtAddr};
use farmem_tablestore::{Keys, Order, Settings, Store, VALUE_LEN, serve};
use farmem_workload::{Load, RunAt};

const SETTINGS: Settings = Settings {
    records: 3000,
    operations: 4000,
    values: Order::Insertion,
    layout: Layout::Partitioned,
    bring: Bring::Traversals,
    keys: Keys::Zipfian,
    check: true,
};

fn load(policy: RunAt) -> Load {
    Load { operations: 2000, in_flight: 16, policy, seed: 5, check: true }
}

/// Every scan is right beside concurrent inserts, at every site and with every placement.
#[test]
fn scans_beside_inserts_are_right() {
    for (policy, nodes) in [(RunAt::Offload, 3), (RunAt::Offload, 1), (RunAt::Host, 3)] {
        for (values, layout, bring, keys) in [
            (Order::Insertion, Layout::Partitioned, Bring::Traversals, Keys::Zipfian),
            (Order::Clustered, Layout::Scattered { granularity: 4096 }, Bring::Traversals, Keys::Uniform),
            (Order::Insertion, Layout::Partitioned, Bring::Reads, Keys::Uniform),
        ] {
            let mut client = Rack::embedded_with(nodes, 64 << 20).unwrap().client("scans").unwrap();
            // Few leaves, so that some are split.
            let settings = Settings { records: 100, values, layout, bring, keys, ..SETTINGS };
            let report = serve(&mut client, "here", &settings, &load(policy)).unwrap();
            assert_eq!(report.wrong_answers, 0, "{policy:?} {values:?}");
            let operations = |name| report.rows.iter().find(|row| row.operation == name).unwrap().operations;
            assert_eq!(operations("scan") + operations("insert"), 2000);
            assert!((60..140).contains(&operations("insert")));
            assert_ne!(report.remark, "0 inserts cut a leaf");
            let vmas = client.overview().unwrap().vmas;
            assert_eq!(vmas.len(), 0, "nothing stays behind");
        }
    }
}

/// The golden table: the cost of a scan of n records, in packets of the host. With one memory node, the first
/// records come with the keys, then fifteen per request. With two, each node gets separate requests for its
/// records, and adjacent records come by one READ. Values by READs take one READ per record or run of
/// adjacent records, with one packet per 4096 bytes of the reply.
#[test]
fn requests_of_a_scan() {
    let mut table = String::from("nodes  records  values     by          round trips  requests  packets\n");
    for (nodes, values, bring) in [
        (1, Order::Insertion, Bring::Traversals),
        (2, Order::Insertion, Bring::Traversals),
        (1, Order::Clustered, Bring::Traversals),
        (1, Order::Insertion, Bring::Reads),
        (1, Order::Clustered, Bring::Reads),
    ] {
        let mut client = Rack::embedded_with(nodes, 64 << 20).unwrap().client("golden").unwrap();
        let settings = Settings { values, bring, ..SETTINGS };
        let store = Store::load(&mut client, &settings, &mut |_, _| {}).unwrap();
        for most in [50, 1, 12, 50, 100] {
            let packets = |client: &farmem::Client| client.packets().0 + client.packets().1;
            let (before, mut line) = (packets(&client), String::new());
            client
                .run_tasks([store.scan(0, most)].into_iter(), 1, &Policy::Offload, |scan, took| {
                    assert_eq!(scan.keys().len(), most);
                    assert!(scan.keys().is_sorted());
                    let (values, bring) = (format!("{values:?}"), format!("{bring:?}"));
                    let (trips, requests) = (took.round_trips, took.requests);
                    line = format!("{nodes:5}  {most:7}  {values:9}  {bring:10}  {trips:11}  {requests:8}");
                })
                .unwrap();
            table += &format!("{line}  {:7}\n", packets(&client) - before);
        }
        assert_eq!(store.wrong_answers(), 0);
        store.destroy(&mut client).unwrap();
    }
    // The first scan of each store also brings the program to the memory nodes.
    let golden = "\
nodes  records  values     by          round trips  requests  packets
    1       50  Insertion  Traversals            3         5       10
    1        1  Insertion  Traversals            1         1        2
    1       12  Insertion  Traversals            1         1        2
    1       50  Insertion  Traversals            2         4        8
    1      100  Insertion  Traversals            2         8       16
    2       50  Insertion  Traversals            4         7       14
    2        1  Insertion  Traversals            2         2        4
    2       12  Insertion  Traversals            2         3        6
    2       50  Insertion  Traversals            2         5       10
    2      100  Insertion  Traversals            2         9       18
    1       50  Clustered  Traversals            3         3        8
    1        1  Clustered  Traversals            1         1        2
    1       12  Clustered  Traversals            1         1        2
    1       50  Clustered  Traversals            2         2        6
    1      100  Clustered  Traversals            2         2        9
    1       50  Insertion  Reads                 3        52      104
    1        1  Insertion  Reads                 2         2        4
    1       12  Insertion  Reads                 2        13       26
    1       50  Insertion  Reads                 2        51      102
    1      100  Insertion  Reads                 2       101      202
    1       50  Clustered  Reads                 3         3        8
    1        1  Clustered  Reads                 2         2        4
    1       12  Clustered  Reads                 2         2        4
    1       50  Clustered  Reads                 2         2        6
    1      100  Clustered  Reads                 2         2        9
";
    assert_eq!(table, golden);
}

/// An insert looks for the leaf in parallel with the WRITE of the value, reads the leaf and writes it: three
/// round trips, four requests. An insert that splits a leaf does the rest exclusively.
#[test]
fn requests_of_an_insert() {
    let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("insert").unwrap();
    let store = Store::load(&mut client, &SETTINGS, &mut |_, _| {}).unwrap();
    client.run_tasks([store.insert(1)].into_iter(), 1, &Policy::Offload, |_, _| {}).unwrap();
    let mut plain = 0;
    for key in 2..30 {
        let before = store.cuts();
        let mut took = None;
        client
            .run_tasks([store.insert(key)].into_iter(), 1, &Policy::Offload, |_, t| took = Some(t))
            .unwrap();
        let took = took.unwrap();
        if store.cuts() == before {
            plain += 1;
            assert_eq!((took.round_trips, took.requests), (3, 4));
        } else {
            assert!(took.round_trips > 5, "{took:?}");
        }
    }
    assert!(plain > 15 && store.cuts() > 0, "{plain} plain ones, {} cuts", store.cuts());
    client
        .run_tasks([store.scan(0, 40)].into_iter(), 1, &Policy::Offload, |scan, _| {
            assert_eq!(scan.keys()[..29], (1..30).collect::<Vec<u64>>());
        })
        .unwrap();
    assert_eq!(store.wrong_answers(), 0);
    store.destroy(&mut client).unwrap();
}

/// The store detects values that another client overwrote.
#[test]
fn a_wrong_value_is_found() {
    let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("wrong").unwrap();
    let store = Store::load(&mut client, &SETTINGS, &mut |_, _| {}).unwrap();
    let vmas = client.overview().unwrap().vmas;
    let region = vmas.iter().max_by_key(|vma| vma.size).unwrap();
    for n in 0..SETTINGS.records {
        client.write(VirtAddr(region.base + n * VALUE_LEN as u64 + 100), &[1, 2, 3]).unwrap();
    }
    client.run_tasks([store.scan(0, 5)].into_iter(), 1, &Policy::Offload, |_, _| {}).unwrap();
    assert_eq!(store.wrong_answers(), 1);
    store.destroy(&mut client).unwrap();
}
