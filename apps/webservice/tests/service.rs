//! The service on a rack in this process: exact counts, right answers, and the detection of a wrong answer.

use farmem::{Policy, Rack};
use farmem_webservice::{Keys, Mix, OBJECT_LEN, Service, Settings, serve};
use farmem_workload::ycsb::Workload;
use farmem_workload::{Load, RunAt};

const SETTINGS: Settings =
    Settings { records: 380, objects: 95, hops: 48, in_flight: 16, keys: Keys::Zipfian, check: true };

fn load(policy: RunAt) -> Load {
    Load { operations: 2000, in_flight: 16, policy, seed: 7, check: true }
}

/// A read is a traversal and a READ of the object, an update a traversal and a WRITE of the new one: two
/// round trips each. At the host, a READ per hop.
#[test]
fn requests_are_two_round_trips() {
    for policy in [RunAt::Offload, RunAt::Auto, RunAt::Host] {
        let mut client = Rack::embedded_with(2, 64 << 20).unwrap().client("service").unwrap();
        // Until every memory node knows the program.
        serve(
            &mut client,
            "here",
            &SETTINGS,
            Mix::C,
            &Load { operations: 50, in_flight: 1, ..load(RunAt::Offload) },
        )
        .unwrap();
        let report = serve(&mut client, "here", &SETTINGS, Mix::A, &load(policy)).unwrap();
        assert_eq!(report.wrong_answers, 0);
        assert_eq!(report.rows.iter().map(|row| row.operations).sum::<u64>(), 2000);
        for row in &report.rows {
            let n = row.operations;
            assert!((900..1100).contains(&n), "half of them: {row:?}");
            // Users in chains of 95 are 48 hops away on average; popular ones are at random positions.
            assert!((30 * n..66 * n).contains(&row.iterations), "{row:?}");
            if policy == RunAt::Host {
                assert_eq!((row.at_host, row.offloaded), (n, 0));
                assert_eq!(row.round_trips, row.iterations + n, "{row:?}");
            } else {
                assert_eq!((row.at_host, row.offloaded), (0, n));
                assert_eq!(row.round_trips, 2 * n, "{row:?}");
                assert_eq!(row.requests, 2 * n, "{row:?}");
            }
        }
    }
}

/// The objects fit, but the table of so many users does not: the objects are freed, too.
#[test]
fn what_does_not_fit_leaves_nothing() {
    let mut client = Rack::embedded_with(2, 4 << 20).unwrap().client("small").unwrap();
    let settings = Settings { records: 400_000, objects: 20, ..SETTINGS };
    serve(&mut client, "here", &settings, Mix::C, &load(RunAt::Auto)).unwrap_err();
    let vmas = client.overview().unwrap().vmas;
    assert!(vmas.is_empty(), "{vmas:?}");
}

/// The mix is YCSB's, and nothing is left behind.
#[test]
fn the_mixes_are_ycsbs() {
    let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("mix").unwrap();
    for (mix, updates) in [(Mix::A, 900..1100), (Mix::B, 60..140), (Mix::C, 0..1)] {
        let report = serve(&mut client, "here", &SETTINGS, mix, &load(RunAt::Offload)).unwrap();
        let of_updates: u64 =
            report.rows.iter().filter(|row| row.operation == "update").map(|row| row.operations).sum();
        assert!(updates.contains(&of_updates), "{mix:?} has {of_updates} updates");
        assert_eq!(report.wrong_answers, 0);
    }
    // With uniform keys the mix is the same, and the average path is that of the chains: 48 hops.
    let uniform = Settings { keys: Keys::Uniform, ..SETTINGS };
    let report = serve(&mut client, "here", &uniform, Mix::C, &load(RunAt::Offload)).unwrap();
    assert_eq!((report.wrong_answers, report.rows[0].operations), (0, 2000));
    assert!((46 * 2000..50 * 2000).contains(&report.rows[0].iterations), "{:?}", report.rows[0]);
    let vmas = client.overview().unwrap().vmas;
    assert_eq!(vmas.len(), 0);
}

/// The service detects objects that another client overwrote, at each request.
#[test]
fn a_wrong_object_is_found() {
    let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("wrong").unwrap();
    let service = Service::load(&mut client, &SETTINGS, &mut |_, _| {}).unwrap();
    let first = client.overview().unwrap();
    let vmas = first.vmas;
    // The largest allocation has the objects: corrupt the last word of every one.
    let region = vmas.iter().max_by_key(|vma| vma.size).unwrap();
    for n in 0..SETTINGS.objects {
        let last = farmem::VirtAddr(region.base + (n + 1) * OBJECT_LEN as u64 - 8);
        client.write(last, &[0xff; 8]).unwrap();
    }
    let requests = service.requests(Workload::C, 100, 1);
    client.run_tasks(requests, 4, &Policy::Offload, |_, _| {}).unwrap();
    assert_eq!(service.wrong_answers(), 100);
    service.destroy(&mut client).unwrap();
}
