//! Tests of `farmem index load`, `farmem index serve` and `farmem orderedkv` on a rack of processes.

use crate::process::{Dir, Running, eventually, farmem, run, signal};
use crate::rack::Description;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::channel;
use std::thread;

/// Returns the replies of a service to these requests.
fn says(address: &str, requests: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(requests.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

/// A file is loaded and served, and the switch's index follows the look-ups. The next command finds the
/// loaded data.
#[test]
fn a_loaded_file_is_served() {
    let description = Description::new("service", "udp").with_nodes(2);
    let mut up = description.up();
    let (file, dir) = (description.file(), Dir::new("service-data"));
    let rows: String = (0..3_000).map(|n| format!("{},row {n}\n", 5 * n)).collect();
    let data = dir.file("orders.csv", &format!("id,what\n{rows}"));
    let on = ["--rack", &file, "--domain", "shop", "--store", "orders"];
    let load = |more: &[&str]| run(&[&["index", "load", &data][..], &on, more].concat());
    let loaded = load(&["--key", "id", "--key-type", "u64", "--value", "what", "--json"]).json();
    assert_eq!((&loaded["rows"], &loaded["bulk"]), (&3_000.into(), &true.into()), "{loaded}");
    let other = load(&["--key", "id", "--key-type", "string"]);
    other.refuses(&["the keys of this store are whole numbers of 0 to 2^64 - 1"]);
    let wrong = dir.file("wrong.csv", "id\n1\ntwo\n");
    let wrong = [&["index", "load", &wrong][..], &on, &["--key-type", "i64"]].concat();
    run(&wrong).refuses(&["wrong.csv", "line 3", "\"two\"", "--key-type"]);

    let serve = ["index", "serve", "--create", "--keys", "u64", "--listen", "127.0.0.1:0", "--json"];
    let mut service = Running::start(farmem(&[&serve[..], &on].concat()));
    let listening: Value = serde_json::from_str(&service.line()).unwrap();
    let address = listening["address"].as_str().unwrap().to_owned();
    assert_eq!(
        says(&address, "GET 35\r\nKEYRANGE 9 20\r\n"),
        "$5\r\nrow 7\r\n*3\r\n$2\r\n10\r\n$2\r\n15\r\n$2\r\n20\r\n"
    );
    assert!(says(&address, "SET x 1\r\n").contains("\"x\" is no key of this store"));

    // The store's name leads the agent to its first tree. The look-ups bring values along and start further
    // down.
    let visits = || -> u64 {
        let info = says(&address, "INFO\r\n");
        let line = info.lines().find_map(|line| line.strip_prefix("far_visits:")).unwrap();
        line.parse().unwrap()
    };
    let look_ups = |count: u64| {
        let before = visits();
        let requests: String = (0..count).map(|n| format!("GET {}\r\n", 5 * (n * 7 % 3_000))).collect();
        assert_eq!(says(&address, &requests).matches("\r\nrow ").count() as u64, count);
        visits() - before
    };
    look_ups(100);
    assert_eq!(look_ups(100), 500, "three levels above the leaf, and the value");
    let agent = [
        "index", "agent", "--rack", &file, "--domain", "shop", "--root", "orders", "--epoch", "50ms",
        "--json",
    ];
    let mut agent = Running::start(farmem(&agent));
    assert!(!agent.line().is_empty());
    eventually("look-ups begin at the leaf", || look_ups(100) == 200);
    signal(agent.pid(), "INT");
    assert_eq!(agent.ended().code, Some(0));

    let refused = run(&[&["index", "serve", "--keys", "u64", "--listen", &address][..], &on].concat());
    refused.refuses(&["cannot listen at", "--listen 127.0.0.1:0"]);
    signal(service.pid(), "TERM");
    let ended = service.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("requests served"), "{ended:?}");
    assert!(up.is_whole());
    assert_eq!(up.stop().stderr, "");
}

/// Sends a SET of each key until one is not acknowledged. Returns the number of acknowledged keys.
fn acknowledged(address: &str, name: &str, most: u32, told: &mut dyn FnMut(u32)) -> u32 {
    let mut stream = TcpStream::connect(address).unwrap();
    for n in 0..most {
        let mut said = [0; 5];
        let request = format!("SET {name}/{n:05} {n}\r\n");
        if stream.write_all(request.as_bytes()).is_err()
            || stream.read_exact(&mut said).is_err()
            || &said != b"+OK\r\n"
        {
            return n;
        }
        told(n);
    }
    most
}

/// A service takes over a text store whose earlier service still runs and receives writes. The earlier
/// service is fenced before the new one writes, and ends with a reason. No key that either service
/// acknowledged is lost.
#[test]
fn a_take_over_loses_no_acknowledged_key() {
    let description = Description::new("take-over", "udp").with_nodes(2);
    let up = description.up();
    let file = description.file();
    let on = ["--rack", &file, "--domain", "shop", "--store", "orders", "--listen", "127.0.0.1:0", "--json"];
    let serve = |more: &[&str]| {
        let mut service = Running::start(farmem(&[&["index", "serve", "--create"][..], &on, more].concat()));
        let listening: Value = serde_json::from_str(&service.line()).expect("it listens");
        (service, listening["address"].as_str().unwrap().to_owned())
    };
    let (mut before, at) = serve(&[]);
    let refused = run(&[&["index", "serve"][..], &on].concat());
    refused.refuses(&["another program writes to this store", "at host 256 (", "--take-over"]);
    const MOST: u32 = 1_000_000;
    let (busy, is_busy) = channel();
    let writer = thread::spawn(move || {
        acknowledged(&at, "before", MOST, &mut |n| {
            if n == 300 {
                busy.send(()).unwrap();
            }
        })
    });
    is_busy.recv().unwrap();
    let (mut after, address) = serve(&["--take-over"]);
    assert_eq!(acknowledged(&address, "after", 800, &mut |_| {}), 800);
    let first = writer.join().unwrap();
    assert!((300..MOST).contains(&first), "it acknowledges nothing once it is kept out, and had {first}");
    let ended = before.ended();
    assert!(ended.code == Some(2) && ended.stderr.contains("host was fenced"), "{ended:?}");
    for (name, count) in [("before", first), ("after", 800)] {
        for from in (0..count).step_by(500) {
            let keys = from..count.min(from + 500);
            let requests: String = keys.clone().map(|n| format!("GET {name}/{n:05}\r\n")).collect();
            let expected: String = keys.map(|n| format!("${}\r\n{n}\r\n", n.to_string().len())).collect();
            assert_eq!(says(&address, &requests), expected, "{name} from {from} on, of {count}");
        }
    }
    signal(after.pid(), "TERM");
    assert_eq!(after.ended().code, Some(0));
    assert_eq!(up.stop().stderr, "");
}

/// A store that other commands created is dropped by its name, with all its contents. The command fails
/// without `--yes`, and while a program has the store open. When the node with the root dies, the service
/// continues and answers with errors. The store can then be dropped and created again.
#[test]
fn a_store_is_dropped() {
    let description = Description::new("drop", "udp").with_nodes(1);
    let mut up = description.up();
    let (file, dir) = (description.file(), Dir::new("drop-data"));
    let rows = |name: &str| -> String { (0..3_000).map(|n| format!("{name}{n:05},row {n}\n")).collect() };
    let on = |store: &'static str| ["--rack", &file, "--domain", "shop", "--store", store];
    let load = |store: &'static str, data: &str, more: &[&str]| {
        run(&[&["index", "load", data, "--no-header", "--value", "2", "--json"][..], &on(store), more]
            .concat())
        .json()
    };
    let numbers = dir.file("numbers.csv", &rows("1"));
    let texts = dir.file("texts.csv", &rows("customer/account/"));
    assert_eq!(load("numbers", &numbers, &["--key-type", "u64"])["bulk"], true);
    assert_eq!(load("texts", &texts, &[])["rows"], 3_000);
    let drop = |store: &str, more: &[&str]| {
        run(&[&["index", "drop", store, "--rack", &file, "--domain", "shop"][..], more].concat())
    };
    drop("texts", &[]).refuses(&["store \"texts\"", "would be freed", "--yes"]);
    drop("other", &["--yes"]).refuses(&["far memory called \"other\""]);
    let serve = |store: &'static str, keys: &'static str| {
        let args = ["index", "serve", "--create", "--listen", "127.0.0.1:0", "--json", "--keys", keys];
        let mut service = Running::start(farmem(&[&args[..], &on(store)].concat()));
        let listening: Value = serde_json::from_str(&service.line()).expect("it listens");
        (service, listening["address"].as_str().unwrap().to_owned())
    };
    for (store, keys, said) in
        [("texts", "text", "another program writes"), ("numbers", "u64", "the store is open at host-")]
    {
        let (mut service, address) = serve(store, keys);
        let refused = drop(store, &["--yes"]);
        assert!(refused.code == Some(2) && refused.stderr.contains(said), "{refused:?}");
        assert_eq!(says(&address, "PING\r\n"), "+PONG\r\n");
        signal(service.pid(), "TERM");
        assert_eq!(service.ended().code, Some(0));
    }
    let vmas = || description.overview()["vmas"].as_array().unwrap().len();
    assert!(vmas() > 4);
    assert_eq!(drop("texts", &["--yes", "--json"]).json()["lost"], Value::Null);
    assert_eq!(drop("numbers", &["--yes", "--json"]).json()["lost"], Value::Null);
    assert_eq!(vmas(), 0, "nothing stays behind");

    assert_eq!(load("numbers", &numbers, &["--key-type", "u64"])["rows"], 3_000);
    let (mut service, address) = serve("numbers", "u64");
    let node = up.roles().into_iter().find(|(name, _)| name == "node node1").expect("it runs").1;
    signal(node, "KILL");
    eventually("a request is answered with its error", || {
        says(&address, "GET 100007\r\n").starts_with("-ERR ")
    });
    let events: Vec<Value> =
        (0..2).map(|_| serde_json::from_str(&up.supervisor().line()).expect("an event")).collect();
    assert_eq!(events[1]["event"], "serves", "{events:?}");
    let pid = events[1]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process");
    up.replace("node node1", pid);
    eventually("what is lost is said", || says(&address, "GET 100007\r\n").contains("are lost"));
    assert_eq!(says(&address, "PING\r\n"), "+PONG\r\n", "it goes on");
    signal(service.pid(), "TERM");
    let ended = service.ended();
    assert!(ended.stderr.contains("is answered with an error"), "{ended:?}");
    let lost = drop("numbers", &["--yes", "--json"]).json();
    assert!(lost["lost"].as_str().is_some_and(|why| why.contains("are lost")), "{lost}");
    assert_eq!(load("numbers", &numbers, &["--key-type", "u64"])["bulk"], true, "it is made anew");
    up.stop();
}

/// The YCSB workloads as a command on a rack: every answer is right, and nothing remains.
#[test]
fn ycsb_over_a_rack() {
    let description = Description::new("orderedkv", "shm").with_nodes(2);
    let up = description.up();
    let file = description.file();
    for mix in ["A", "d", "E", "F"] {
        let arguments =
            ["orderedkv", "--records", "1000", "--operations", "300", "--value-len", "2500", "--mixed"];
        let report = run(&[&arguments[..], &["--workload", mix, "--rack", &file, "--json"]].concat()).json();
        assert_eq!((&report["wrong_answers"], &report["operations"]), (&0.into(), &300.into()), "{report}");
        assert!(report["remark"].as_str().unwrap().contains("ranges"), "{report}");
    }
    let text = run(&["orderedkv", "--records", "500", "--operations", "200", "--no-index"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(
        text.stdout.contains("YCSB B on 500 records of 1000 bytes in order")
            && text.stdout.contains("every answer was right")
    );
    assert_eq!(description.overview()["vmas"], Value::Array(vec![]), "its memory is freed");
    assert_eq!(up.stop().code, Some(0));
}
