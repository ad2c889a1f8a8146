//! Tests of a FatTree of processes: a core, two pods of an aggregation switch and two edge switches, and a
//! memory node at each edge switch (Fat-B+Tree IV-A; PROTOCOL 16).

use crate::process::{Running, eventually, farmem, run, signal};
use crate::rack::{Description, Up};
use farmem::blink_tree::{Extent, KeyedServers, Separators, publish_fabric, withdraw_fabric};
use farmem::{BLinkTree, Client, Layout, Policy};
use serde_json::Value;

/// Number of keys of the tree: 7 per leaf, with four levels of inner nodes.
const KEYS: u32 = 7 * 2_401;
/// Visits of a look-up from the root: four inner nodes and the leaf.
const FROM_THE_ROOT: u64 = 5;
/// Number of sub-ranges of the range of all keys.
const SUB_RANGES: usize = 64;

/// Returns the visits of one look-up, after a check of its result.
fn visits(client: &mut Client, tree: &BLinkTree, key: u64) -> u64 {
    let before = client.tally().iterations;
    assert_eq!(tree.get(client, 2 * key).unwrap(), Some(key));
    client.tally().iterations - before
}

fn index_of(overview: &Value) -> Vec<(String, String, Vec<u64>, bool)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let servers =
        |info: &Value| info["servers"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    let rows = overview["index"].as_array().expect("a list").iter();
    rows.map(|info| (text(&info["name"]), text(&info["tier"]), servers(info), info["answers"] == true))
        .collect()
}

fn restarted(up: &mut Up<'_>, role: &str) {
    let pid = up.roles().into_iter().find(|(name, _)| name == role).expect("it runs").1;
    signal(pid, "KILL");
    // The role dies and serves again.
    let events: Vec<Value> =
        (0..2).map(|_| serde_json::from_str(&up.supervisor().line()).expect("an event")).collect();
    assert_eq!((&events[0]["event"], &events[1]["event"]), (&"died".into(), &"serves".into()), "{events:?}");
    let pid = events[1]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process");
    up.replace(role, pid);
}

fn look_ups_go_through_a_fat_tree(transport: &'static str) {
    let description = Description::new("fat-tree", transport).with_fat_tree(2);
    let mut up = description.up();
    let edge = |n: u64| (format!("edge{n}"), "edge".to_owned(), vec![n], true);
    let pod = |n: u64| (format!("pod{n}"), "aggregation".to_owned(), vec![2 * n - 1, 2 * n], true);
    let core = ("core".to_owned(), "core".to_owned(), vec![1, 2, 3, 4], true);
    let all: Vec<_> = [core].into_iter().chain((1..3).map(pod)).chain((1..5).map(edge)).collect();
    assert_eq!(index_of(&description.overview()), all);
    let mut client = description.client("shop");
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.load(&mut client, (0..KEYS).map(|n| (2 * u64::from(n), u64::from(n))), 7).unwrap();
    tree.set_policy(Policy::Offload);
    let keys = || (0..u64::from(KEYS)).step_by(97);
    // The memory nodes learn the program.
    keys().for_each(|key| _ = visits(&mut client, &tree, key));
    assert!(
        keys().all(|key| visits(&mut client, &tree, key) == FROM_THE_ROOT),
        "four inner nodes and the leaf"
    );

    // The fat root has the nodes above the borders of servers and the upper two levels. Pods and edges have
    // one level each, so that only the leaf remains.
    let overview = client.overview().unwrap();
    let extent = Extent { ranges: 67, sets: 1, nodes: 600 };
    let parts = tree.fabric_sections(&mut client, &overview, extent).unwrap();
    assert_eq!(parts.len(), 7);
    publish_fabric(&mut client, &parts).unwrap();
    let at_the_leaf = |client: &mut Client, tree: &BLinkTree| {
        let visits: u64 = keys().map(|key| visits(client, tree, key)).sum();
        // A node above a border of two servers is in no switch below the core.
        visits <= keys().count() as u64 * 11 / 10
    };
    eventually("look-ups begin at their leaf", || at_the_leaf(&mut client, &tree));
    let epochs = |overview: &Value| -> Vec<u64> {
        overview["index"].as_array().unwrap().iter().map(|info| info["epoch"].as_u64().unwrap()).collect()
    };
    assert!(epochs(&description.overview()).iter().all(|epoch| *epoch > 0), "each has its part");

    // Concurrent insertions continue, and their keys are found.
    for key in 0..500 {
        assert_eq!(tree.insert(&mut client, 40 * key + 1, key).unwrap(), None);
        assert_eq!(tree.get(&mut client, 40 * key + 1).unwrap(), Some(key));
    }
    // After the death of any switch, look-ups are right, and short again once the switch has its part again.
    for role in ["index core", "index pod2", "index edge1"] {
        restarted(&mut up, role);
        assert!(keys().all(|key| visits(&mut client, &tree, key) < 9), "{role}");
        eventually("look-ups begin at their leaf again", || at_the_leaf(&mut client, &tree));
    }
    withdraw_fabric(&mut client, tree.tree().root).unwrap();
    eventually("look-ups begin at the root", || keys().all(|key| visits(&mut client, &tree, key) >= 5));
    drop(client);
    assert!(up.is_whole(), "all roles are alive");
    let said = up.stop().stderr;
    let of_restarts = |line: &str| line.starts_with("farmem: index ");
    assert!(said.lines().count() == 6 && said.lines().all(of_restarts), "nothing else was said: {said}");
}

#[test]
fn look_ups_go_through_a_fat_tree_over_udp() {
    look_ups_go_through_a_fat_tree("udp");
}

#[test]
fn look_ups_go_through_a_fat_tree_over_shared_memory() {
    look_ups_go_through_a_fat_tree("shm");
}

/// The paper's FatTree of k = 4: thirteen switches and eight memory nodes, each a process. An agent keeps the
/// index in all switches. The index leads single look-ups, batched look-ups and keyed READs, also while a
/// switch restarts.
#[test]
fn thirteen_switches_lead_look_ups_of_every_kind() {
    let description = Description::new("fat-tree-4", "udp").with_fat_tree(4);
    let mut up = description.up();
    let index = index_of(&description.overview());
    assert!(index.len() == 13 && index.iter().all(|(.., answers)| *answers), "{index:?}");
    let mut client = description.client("shop");
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.load(&mut client, (0..KEYS).map(|n| (2 * u64::from(n), u64::from(n))), 7).unwrap();
    tree.set_policy(Policy::Offload);
    let keys = || (0..u64::from(KEYS)).step_by(97);
    keys().for_each(|key| _ = visits(&mut client, &tree, key));
    assert!(keys().all(|key| visits(&mut client, &tree, key) == FROM_THE_ROOT));

    // For comparison, look-ups of these sub-ranges from the root give the visits without an index.
    let overview = client.overview().unwrap();
    let extent = Extent { ranges: 67, sets: 1, nodes: 600 };
    let core = tree.fabric_sections(&mut client, &overview, extent).unwrap().pop().expect("the core's").1;
    let separators = Separators::published(&core);
    let scanned = |client: &mut Client, tree: &BLinkTree| {
        let before = client.tally().iterations;
        let mut query = tree.range(..).parallel_at(SUB_RANGES, &separators).unwrap();
        let mut found = Vec::new();
        while !query.is_at_end() {
            found.extend(query.next(tree, client, 10_000).unwrap());
        }
        assert!(found.iter().map(|(_, n)| *n).eq(0..u64::from(KEYS)), "every pair, in order");
        client.tally().iterations - before
    };
    let from_the_root = scanned(&mut client, &tree);

    let (file, root) = (description.file(), format!("{:#x}", tree.address().0));
    let live = |what: &'static str, more: &[&str]| -> Vec<String> {
        let args = ["index", what, "--rack", &file, "--domain", "shop", "--root", &root, "--json"];
        let extent = ["--ranges", "67", "--sets", "1", "--nodes", "600"];
        args.iter().chain(&extent).chain(more).map(|arg| (*arg).to_owned()).collect()
    };
    let args = live("agent", &["--epoch", "300ms"]);
    let mut agent = Running::start(farmem(&args.iter().map(String::as_str).collect::<Vec<_>>()));
    let first: Value = serde_json::from_str(&agent.line()).expect("a report");
    assert_eq!((&first["published"], &first["switches"]), (&true.into(), &13.into()), "{first}");
    let at_the_leaf = |client: &mut Client, tree: &BLinkTree| {
        let visits: u64 = keys().map(|key| visits(client, tree, key)).sum();
        visits <= keys().count() as u64 * 12 / 10
    };
    eventually("look-ups begin at their leaf", || at_the_leaf(&mut client, &tree));
    let args = live("top", &["--once", "--epoch", "10ms"]);
    let top = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(top.code, Some(0), "{}", top.stderr);
    let layers: Vec<Value> = top.json()["layers"].as_array().expect("layers").clone();
    let names: Vec<&str> = layers.iter().filter_map(|layer| layer["layer"].as_str()).collect();
    assert_eq!(names, ["fat root", "aggregation set 1", "edge set 1"]);

    // A keyed READ is one READ of the leaf, through the core, a pod and an edge switch.
    let servers = KeyedServers::open(&mut client, &tree, &core).unwrap();
    let keyed = |client: &mut Client, tree: &BLinkTree| {
        let before = client.packets().0;
        for key in keys() {
            assert_eq!(servers.get(tree, client, 2 * key).unwrap(), Some(key), "key {key}");
        }
        client.packets().0 - before
    };
    eventually("keyed READs bring the leaf", || keyed(&mut client, &tree) <= keys().count() as u64 * 12 / 10);
    // Sub-ranges of all servers share datagrams, and each starts at least one level further down.
    let led = scanned(&mut client, &tree);
    assert!(
        led + SUB_RANGES as u64 <= from_the_root,
        "{led} visits by the index, {from_the_root} from the root"
    );

    for role in ["index pod3", "index edge8"] {
        restarted(&mut up, role);
        assert!(keys().all(|key| visits(&mut client, &tree, key) <= FROM_THE_ROOT), "{role}");
        keyed(&mut client, &tree);
        let led = scanned(&mut client, &tree);
        assert!(led <= from_the_root, "{role}: {led} visits, {from_the_root} from the root");
        eventually("look-ups begin at their leaf again", || at_the_leaf(&mut client, &tree));
    }
    servers.close(&mut client).unwrap();
    signal(agent.pid(), "INT");
    let ended = agent.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    eventually("look-ups begin at the root", || {
        keys().all(|key| visits(&mut client, &tree, key) == FROM_THE_ROOT)
    });
    assert_eq!(scanned(&mut client, &tree), from_the_root, "and so do sub-ranges");
    drop(client);
    assert!(up.is_whole(), "all roles are alive");
    up.stop();
}
