//! The store on a rack in this process: exact counts, right answers beside inserts, and that a wrong one is found.

use farmem::btree::SCAN_PAIRS_MAX;
use farmem::{Layout, Policy, Rack, VirtAddr};
use farmem_tablestore::{Order, Settings, Store, VALUE_LEN, serve};
use farmem_workload::{Load, Place};

const SETTINGS: Settings = Settings {
    records: 3000,
    operations: 4000,
    values: Order::Insertion,
    layout: Layout::Partitioned,
    check: true,
};

fn load(policy: Place) -> Load {
    Load { operations: 2000, in_flight: 16, policy, seed: 5, check: true }
}

/// Every scan is right while records are inserted beside it, wherever traversals run and values lie.
#[test]
fn scans_beside_inserts_are_right() {
    for policy in [Place::Offload, Place::Host] {
        for (values, layout) in [
            (Order::Insertion, Layout::Partitioned),
            (Order::Clustered, Layout::Scattered { granularity: 4096 }),
        ] {
            let mut client = Rack::embedded_with(3, 64 << 20).unwrap().client("scans").unwrap();
            // Few leaves, so that some are cut.
            let settings = Settings { records: 100, values, layout, ..SETTINGS };
            let report = serve(&mut client, "here", &settings, &load(policy)).unwrap();
            assert_eq!(report.wrong_answers, 0, "{policy:?} {values:?}");
            let operations = |name| report.rows.iter().find(|row| row.operation == name).unwrap().operations;
            assert_eq!(operations("scan") + operations("insert"), 2000);
            assert!((60..140).contains(&operations("insert")));
            assert_ne!(report.remark, "0 inserts cut a leaf");
            let farmem::api::Response::Overview { vmas, .. } = client.overview().unwrap() else {
                panic!("an overview")
            };
            assert_eq!(vmas.len(), 0, "nothing stays behind");
        }
    }
}

/// The golden table: what a scan of n records takes. A request for each fourteen pairs, and one more round trip for the last values; a READ
/// for each value, or for those of a request together when they lie side by side.
#[test]
fn requests_of_a_scan() {
    let mut table = String::from("records  values     round trips  requests\n");
    for values in [Order::Insertion, Order::Clustered] {
        let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("golden").unwrap();
        let store = Store::load(&mut client, &Settings { values, ..SETTINGS }, &mut |_, _| {}).unwrap();
        client.run_tasks([store.scan(0, 1)].into_iter(), 1, &Policy::Offload, |_, _| {}).unwrap();
        for most in [1, 14, 15, 50, 100] {
            client
                .run_tasks([store.scan(0, most)].into_iter(), 1, &Policy::Offload, |scan, took| {
                    assert_eq!(scan.keys().len(), most);
                    assert!(scan.keys().is_sorted());
                    let name = format!("{values:?}");
                    table += &format!("{most:7}  {name:9}  {:11}  {:8}\n", took.round_trips, took.requests);
                })
                .unwrap();
        }
        assert_eq!(store.wrong_answers(), 0);
        store.destroy(&mut client).unwrap();
    }
    assert_eq!(SCAN_PAIRS_MAX, 14);
    let golden = "\
records  values     round trips  requests
      1  Insertion            2         2
     14  Insertion            2        15
     15  Insertion            3        17
     50  Insertion            5        54
    100  Insertion            9       108
      1  Clustered            2         2
     14  Clustered            2         2
     15  Clustered            3         4
     50  Clustered            5         8
    100  Clustered            9        16
";
    assert_eq!(table, golden);
}

/// An insert looks for the leaf beside the WRITE of the value, reads the leaf and writes it: three round trips, four requests. One that cuts
/// a leaf does the rest alone.
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

/// Values that somebody else overwrote are found out.
#[test]
fn a_wrong_value_is_found() {
    let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("wrong").unwrap();
    let store = Store::load(&mut client, &SETTINGS, &mut |_, _| {}).unwrap();
    let farmem::api::Response::Overview { vmas, .. } = client.overview().unwrap() else {
        panic!("an overview")
    };
    let region = vmas.iter().max_by_key(|vma| vma.size).unwrap();
    for n in 0..SETTINGS.records {
        client.write(VirtAddr(region.base + n * VALUE_LEN as u64 + 100), &[1, 2, 3]).unwrap();
    }
    client.run_tasks([store.scan(0, 5)].into_iter(), 1, &Policy::Offload, |_, _| {}).unwrap();
    assert_eq!(store.wrong_answers(), 1);
    store.destroy(&mut client).unwrap();
}
