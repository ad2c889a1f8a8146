//! Tests of `farmem index agent` and `farmem index top` on a rack of processes, with programs that look up
//! and insert.

use crate::process::{Running, eventually, farmem, run, signal};
use crate::rack::Description;
use farmem::{BLinkTree, Client, Layout, Policy};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Number of keys of the tree: 7 per leaf, with four levels of inner nodes.
const KEYS: u32 = 7 * 2_401;

fn open(client: &mut Client, address: farmem::VirtAddr) -> BLinkTree {
    let mut tree = BLinkTree::open(client, address, Layout::Partitioned).unwrap();
    tree.set_policy(Policy::Offload);
    tree
}

/// Returns the visits of one look-up.
fn visits(client: &mut Client, tree: &BLinkTree, key: u64) -> u64 {
    let before = client.tally().iterations;
    assert_eq!(tree.get(client, 2 * key).unwrap(), Some(key));
    client.tally().iterations - before
}

/// Returns the next report of an agent.
fn report(agent: &mut Running) -> Value {
    let line = agent.line();
    if line.is_empty() {
        panic!("the agent ended: {:?}", agent.ended());
    }
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

fn an_agent_keeps_the_index(transport: &'static str) {
    // Stage 1: a loaded tree without a published index.
    let description = Description::new("agent", transport);
    let mut up = description.up();
    let mut client = description.client("shop");
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.load(&mut client, (0..KEYS).map(|n| (2 * u64::from(n), u64::from(n))), 7).unwrap();
    let address = tree.address();
    let named = client.create_named("orders", 8).unwrap();
    client.write(named.base, &address.0.to_le_bytes()).unwrap();
    let tree = open(&mut client, address);
    // Both memory nodes learn the program.
    (0..KEYS).step_by(97).for_each(|key| _ = visits(&mut client, &tree, key.into()));
    assert_eq!(visits(&mut client, &tree, 1_000), 5, "from the root");
    let file = description.file();
    let live = |what: &'static str, root: &str, more: &[&str]| {
        let mut args = vec!["index", what, "--rack", &file, "--domain", "shop", "--root", root, "--json"];
        args.extend(more);
        args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<String>>()
    };
    let none = live("top", "orders", &["--once"]);
    run(&none.iter().map(String::as_str).collect::<Vec<_>>())
        .refuses(&["published no section", "farmem index agent"]);

    // Stage 2: the agent publishes an index, and look-ups visit fewer nodes.
    let args =
        live("agent", "orders", &["--epoch", "50ms", "--ranges", "60", "--sets", "2", "--nodes", "500"]);
    let mut agent = Running::start(farmem(&args.iter().map(String::as_str).collect::<Vec<_>>()));
    let first = report(&mut agent);
    assert_eq!((&first["published"], &first["layers"][0]["entries"]["most"]), (&true.into(), &60.into()));
    eventually("look-ups begin further down", || visits(&mut client, &tree, 1_000) < 5);

    // Stage 3: look-ups of a few keys and insertions of others, while images load. Each look-up is one request
    // with the right answer.
    let (stop, looked_up) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut answered = 0;
    let top = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut client = description.client("shop");
            let tree = open(&mut client, address);
            let mut key = 0;
            while !stop.load(Ordering::Relaxed) {
                let before = client.tally().requests;
                key = (key * 5 + 1) % 256;
                assert_eq!(tree.get(&mut client, 2 * (3_000 + key)).unwrap(), Some(3_000 + key));
                assert_eq!(client.tally().requests - before, 1, "one request");
                looked_up.fetch_add(1, Ordering::Relaxed);
            }
        });
        let writer = scope.spawn(|| {
            let mut client = description.client("shop");
            let mut tree = open(&mut client, address);
            let mut key = 0;
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(tree.insert(&mut client, 20_001 + 2 * key, key).unwrap(), None);
                key += 1;
            }
        });
        // The reports are checked after the scope, because a panic inside would leave the threads running.
        let mut reports = Vec::new();
        while !(reader.is_finished() || writer.is_finished()) && reports.len() < 20 {
            let line = agent.line();
            let Ok(report) = serde_json::from_str::<Value>(&line) else { break };
            reports.push(report);
        }
        let top = live("top", &format!("{:#x}", address.0), &["--once", "--epoch", "200ms"]);
        let top = run(&top.iter().map(String::as_str).collect::<Vec<_>>());
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(reports.len(), 20, "the agent goes on");
        answered = reports.iter().map(|report| report["queries"].as_u64().unwrap()).sum();
        top
    });
    // Stage 4: the reports of agent and `index top` agree with the number of look-ups.
    let all = looked_up.load(Ordering::Relaxed);
    assert!(answered > 0 && answered <= all + all / 2, "{answered} counted of {all}");
    assert_eq!(top.code, Some(0), "{}", top.stderr);
    let top = top.json();
    let queries = top["queries"].as_u64().unwrap();
    assert!(queries > 0 && queries <= all, "{queries} of {all}");
    assert_eq!(top["layers"][0]["hits"], queries);
    assert!(top["saved"].as_f64().unwrap() > 2.0, "{top}");
    assert!((0.0..1.0).contains(&top["drift"].as_f64().unwrap()), "{top}");
    let image = &top["image_bytes"];
    assert!(image["used"].as_u64().unwrap() > 0 && image["most"] == 8 << 20, "{top}");

    // Stage 5: the agent withdraws the index at its end.
    signal(agent.pid(), "INT");
    let ended = agent.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // Reading a tree during writes may fail. The next epoch then reads it.
    assert!(ended.stderr.lines().all(|line| line.contains("tried again in 50 ms")), "{}", ended.stderr);
    // The insertions may have added a level to the tree.
    let from_the_root = visits(&mut client, &tree, 1_000);
    assert!(from_the_root >= 5, "withdrawn: {from_the_root} visits from the root on");
    drop(client);
    assert!(up.is_whole(), "all roles are alive");
    assert_eq!(up.stop().stderr, "", "no role logged an error");
}

#[test]
fn an_agent_keeps_the_index_over_udp() {
    an_agent_keeps_the_index("udp");
}

#[test]
fn an_agent_keeps_the_index_over_shared_memory() {
    an_agent_keeps_the_index("shm");
}

/// The requests of a round of sub-ranges leave together (PROTOCOL 3.13, 11.13). Pads end at their last
/// nonzero byte, so ten of them fit one datagram.
#[test]
fn sub_ranges_share_datagrams() {
    let description = Description::new("ranges", "shm").with_nodes(1);
    let up = description.up();
    let mut client = description.client("shop");
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.set_policy(Policy::Offload);
    tree.load(&mut client, (0..14_u32.pow(3)).map(|n| (u64::from(n), u64::from(n))), 14).unwrap();
    tree.scan(&mut client, .., 1).unwrap();
    let mut sent = |n: usize| {
        let before = client.packets().0;
        let mut query = tree.range(700..840).parallel(n).unwrap();
        assert_eq!(query.next(&tree, &mut client, usize::MAX).unwrap().len(), 140);
        client.packets().0 - before
    };
    assert_eq!(sent(1), 3, "56, 56 and 28 keys, one request after the other");
    assert_eq!(sent(10), 1, "ten requests, all at once");
    drop(client);
    assert_eq!(up.stop().stderr, "");
}

/// One epoch prints the published nodes and a text report. An address without a tree is rejected.
#[test]
fn one_epoch_for_people() {
    let description = Description::new("once", "shm");
    let up = description.up();
    let mut client = description.client("shop");
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.load(&mut client, (0..343_u32).map(|n| (2 * u64::from(n), u64::from(n))), 7).unwrap();
    let (file, root) = (description.file(), format!("{:#x}", tree.address().0));
    let base = ["--rack", &file, "--domain", "shop", "--root", &root, "--epoch", "20ms"];
    let ended = run(&[&["index", "agent", "--once"][..], &base].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for what in ["fat root", "49 of 600", "published just now", "of 8 388 608 bytes", "drift 0.0 %"] {
        assert!(ended.stdout.contains(what), "{}", ended.stdout);
    }
    let refused = |root: &[&str], more: &[&str]| {
        let base = ["index", "agent", "--rack", &file, "--domain", "shop"];
        run(&[&base[..], root, more].concat())
    };
    refused(&["--root", "nothing"], &[]).refuses(&["far memory called \"nothing\""]);
    refused(&["--root", "0x1000"], &[]).refuses(&["0x1000"]);
    for (more, said) in
        [(["--epoch", "1"], "500ms or 2s"), (["--ranges", "1025"], "1..=1024"), (["--sets", "9"], "0..=8")]
    {
        let ended = refused(&["--root", &root], &more);
        assert!(ended.code == Some(2) && ended.stderr.contains(said), "{more:?}: {}", ended.stderr);
    }
    drop(client);
    assert_eq!(up.stop().stderr, "");
}
