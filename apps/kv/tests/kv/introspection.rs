//! Tests of the commands that describe commands, clients and the server, against redis-server.

use crate::common::{Client, RedisServer, Reply, Service};
use std::collections::BTreeSet;

/// The error of an unblocked client counts, and so do the commands of a transaction.
#[test]
fn errors_are_counted_by_kind() {
    let service = small();
    let (mut client, mut other) = (service.client(), service.client());
    let Reply::Integer(id) = client.says("CLIENT ID") else { panic!("a number") };
    client.send(&[b"BLPOP", b"k", b"0"]);
    crate::waiting::until_waiting(&mut other, 1);
    assert_eq!(other.says(&format!("CLIENT UNBLOCK {id} ERROR")), Reply::Integer(1));
    assert!(client.reply().unwrap().text().starts_with("UNBLOCKED"));
    for line in ["SET k v", "MULTI", "LPUSH k a", "EXEC"] {
        client.says(line);
    }
    let info = other.says("INFO errorstats").text();
    assert!(
        info.contains("errorstat_UNBLOCKED:count=1\r") && info.contains("errorstat_WRONGTYPE:count=1\r"),
        "{info}"
    );
    // A wrong password in a transaction is an error of that command. Passwords after many wrong ones are not checked.
    for line in [
        "MULTI",
        "AUTH default x",
        "ACL SETUSER u on >p",
        "AUTH u 1",
        "AUTH u 2",
        "AUTH u 3",
        "AUTH u 4",
        "AUTH u 5",
    ] {
        client.says(line);
    }
    let Reply::Array(replies) = client.says("EXEC") else { panic!("a reply for each") };
    assert!(replies.last().unwrap().text().starts_with("ERR too many wrong passwords"), "{replies:?}");
    service.end();
}

fn small() -> Service {
    Service::start(&["--far", "64MiB", "--local", "64MiB"])
}

fn elements(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(elements) => elements,
        other => panic!("no array: {other:?}"),
    }
}

/// Returns a reply with its elements sorted, because their order is undefined.
fn sorted(reply: &Reply) -> Vec<String> {
    let mut texts: Vec<String> = elements(reply).iter().map(|element| format!("{element:?}")).collect();
    texts.sort();
    texts
}

/// `COMMAND INFO` agrees with redis-server for each command: words, flags, categories, key positions, subcommands.
#[test]
fn commands_are_described_as_redis_describes_them() {
    let Some(redis) = RedisServer::start() else { return };
    let service = small();
    let (mut ours, mut theirs) = (service.client(), Client::connect(redis.address));
    let mut compared = 0;
    let names: Vec<String> = elements(&ours.says("COMMAND LIST")).iter().map(Reply::text).collect();
    // Subcommands are compared with their commands.
    for name in names.iter().filter(|name| !name.contains('|')) {
        let line = format!("COMMAND INFO {name}");
        let (one, other) = (ours.says(&line), theirs.says(&line));
        compare(&elements(&one)[0], &elements(&other)[0], &mut compared);
    }
    assert!(compared > 200, "{compared}");
    for line in [
        "COMMAND GETKEYS MSET a 1 b 2",
        "COMMAND GETKEYS ZUNIONSTORE to 2 a b WEIGHTS 1 2",
        "COMMAND GETKEYS GET",
        "COMMAND GETKEYS PING",
        "COMMAND GETKEYS NOSUCH a",
        "COMMAND GETKEYSANDFLAGS SET k v",
        "COMMAND GETKEYSANDFLAGS SET k v GET",
        "COMMAND GETKEYSANDFLAGS SORT abc STORE def",
        "COMMAND GETKEYSANDFLAGS LMOVE a b LEFT RIGHT",
        "COMMAND GETKEYSANDFLAGS OBJECT ENCODING k",
        "COMMAND LIST FILTERBY PATTERN xyz*",
        "COMMAND LIST FILTERBY MODULE no",
        "COMMAND LIST FILTERBY",
        "COMMAND NOSUCH",
        "COMMAND INFO nosuch config|get",
        "CONFIG",
        "CONFIG GET",
        "CONFIG NOSUCH x",
        "CONFIG|GET maxmemory",
        "OBJECT FREQ",
        "MODULE LIST",
        "LATENCY LATEST",
        "LATENCY HISTORY command",
        "LATENCY RESET",
        "CLIENT NOSUCH",
        "CLIENT KILL nosuch",
        "CLIENT KILL ID 0",
        "CLIENT KILL SKIPME maybe",
        "CLIENT KILL TYPE replica",
        "CLIENT KILL TYPE nosuch",
        "CLIENT KILL USER nosuch",
        "CLIENT LIST TYPE nosuch",
        "CLIENT LIST TYPE replica",
        "CLIENT LIST ID x",
        "CLIENT REPLY maybe",
        "CONFIG SET maxmemory 1 maxmemory 2",
        "CONFIG SET maxmemory 100000000 nosuch 2",
        "CONFIG SET maxmemory 100000000 maxmemory-policy nosuch",
        "CONFIG GET maxmemory",
        "CONFIG SET maxmemory-policy allkeys-lfu lfu-decay-time 3",
        "CONFIG GET lfu-decay-time",
        "SET k v",
        "OBJECT FREQ k",
        "OBJECT IDLETIME k",
        "CONFIG SET maxmemory-policy noeviction",
        "OBJECT FREQ k",
        "OBJECT FREQ nosuch",
    ] {
        let (one, other) = (ours.says(line), theirs.says(line));
        match (&one, &other) {
            // The names of all policies are in this one.
            (Reply::Error(one), Reply::Error(_)) if one.contains("must be one of the following") => {}
            _ if line.starts_with("COMMAND GETKEYSANDFLAGS") || line.starts_with("CONFIG GET") => {
                assert_eq!(format!("{one:?}"), format!("{other:?}"), "{line}");
            }
            _ => assert_eq!(one, other, "{line}"),
        }
    }
    service.end();
}

fn compare(ours: &Reply, theirs: &Reply, compared: &mut usize) {
    let (ours, theirs) = (elements(ours), elements(theirs));
    let name = ours[0].text();
    assert_eq!(ours.len(), theirs.len(), "{name}");
    assert_eq!((&ours[..2], &ours[3..6]), (&theirs[..2], &theirs[3..6]), "{name}");
    let (flags, mut our_flags) = (sorted(&theirs[2]), sorted(&ours[2]));
    if name == "hello" {
        // A transaction has one reply, in one form.
        our_flags.retain(|flag| !flag.contains("no_multi"));
    }
    assert_eq!(our_flags, flags, "{name}");
    assert_eq!(sorted(&ours[6]), sorted(&theirs[6]), "{name}");
    let specs: Vec<String> = elements(&theirs[8]).iter().filter_map(spec).collect();
    let our_specs: Vec<String> = elements(&ours[8]).iter().filter_map(spec).collect();
    assert_eq!(our_specs, specs, "{name}");
    *compared += 1;
    for subcommand in elements(&ours[9]) {
        let name = elements(subcommand)[0].text();
        match elements(&theirs[9]).iter().find(|other| elements(other)[0].text() == name) {
            Some(other) => compare(subcommand, other, compared),
            None => assert_eq!(name, "client|setinfo", "clients of later versions send it"),
        }
    }
}

/// Returns a key specification without its notes; `None` for keys whose names are not in the request.
fn spec(reply: &Reply) -> Option<String> {
    let fields = elements(reply);
    let has_notes = fields[0] == Reply::bulk("notes");
    let fields = &fields[if has_notes { 2 } else { 0 }..];
    let text = format!("{fields:?}").replace(&format!(", {:?}", Reply::Simple("variable_flags".into())), "");
    (!text.contains(&format!("{:?}", Reply::bulk("unknown")))).then_some(text)
}

fn fields(text: &str) -> BTreeSet<String> {
    text.split([' ', '\n', '\r'])
        .filter_map(|word| word.split_once(['=', ':']))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// `CLIENT LIST` has all fields of redis-server's, with correct values for another client too.
#[test]
fn clients_are_shown_with_all_fields() {
    let service = small();
    let (mut client, mut other) = (service.client(), service.client());
    if let Some(redis) = RedisServer::start() {
        let theirs = Client::connect(redis.address).says("CLIENT INFO").text();
        assert_eq!(fields(&client.says("CLIENT INFO").text()), fields(&theirs));
    }
    let Reply::Integer(id) = other.says("CLIENT ID") else { panic!("a number") };
    for line in ["SELECT 3", "CLIENT SETNAME other", "HELLO 3", "MULTI", "GET k"] {
        other.says(line);
    }
    let said = client.says(&format!("CLIENT LIST ID {id}")).text();
    for word in
        ["name=other", "db=3", "resp=3", "flags=x", "multi=1", "cmd=multi", "user=default", "sub=0", "obl=0"]
    {
        assert!(
            said.contains(&format!(" {word} ")) || said.ends_with(&format!(" {word}\n")),
            "{word}: {said}"
        );
    }
    // A silent client has been idle since it connected.
    let silent = service.client();
    let address = silent.stream.local_addr().unwrap();
    let listed = client.says("CLIENT LIST").text();
    let line = listed.lines().find(|line| line.contains(&format!(" addr={address} ")));
    let line = line.expect("the silent client is listed");
    let number = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)).unwrap().to_owned();
    assert_eq!((number("idle="), number("cmd=")), (number("age="), "NULL".to_owned()), "{line}");
    drop(silent);
    other.says("DISCARD");
    let address = other.stream.local_addr().unwrap();
    assert!(said.contains(&format!("addr={address} laddr={} ", service.address)), "{said}");
    // All filters must match; a client excludes itself unless `SKIPME no` is given.
    assert_eq!(client.says(&format!("CLIENT KILL ID {id} LADDR 127.0.0.1:1")), Reply::Integer(0));
    assert_eq!(
        client.says(&format!("CLIENT KILL USER default LADDR {} SKIPME yes", service.address)),
        Reply::Integer(1)
    );
    assert_eq!(other.reply(), None, "the other client's connection is closed");
    assert!(!client.says("CLIENT LIST").text().contains("name=other"));
    assert_eq!(client.says("CLIENT KILL TYPE normal SKIPME no"), Reply::Integer(1));
    assert_eq!(client.reply(), None, "the connection is closed behind the reply");
    service.end();
}

/// `CLIENT REPLY`: nothing, or not the next reply, also not that of a client that waits.
#[test]
fn clients_do_without_replies() {
    let service = small();
    let (mut client, mut other) = (service.client(), service.client());
    for line in ["CLIENT REPLY OFF", "PING", "NOSUCH", "SET k v", "CLIENT REPLY SKIP"] {
        client.send(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    }
    assert_eq!(client.says("CLIENT REPLY ON"), Reply::ok());
    assert_eq!(client.says("GET k"), Reply::bulk("v"));
    client.send(&[b"CLIENT", b"REPLY", b"SKIP"]);
    client.send(&[b"PING"]);
    assert_eq!(client.says("ECHO one"), Reply::bulk("one"));
    client.send(&[b"CLIENT", b"REPLY", b"SKIP"]);
    client.send(&[b"BLPOP", b"list", b"0"]);
    crate::waiting::until_waiting(&mut other, 1);
    assert_eq!(other.says("RPUSH list a"), Reply::Integer(1));
    assert_eq!(client.says("ECHO two"), Reply::bulk("two"));
    assert_eq!(client.says("LLEN list"), Reply::Integer(0));
    service.end();
}

/// `INFO` has redis-server's fields, except those listed here, whose features this server does not have.
#[test]
fn info_has_the_fields_of_redis() {
    const ABSENT: &[&str] = &[
        "redis_build_id",
        "monotonic_clock",
        "atomicvar_api",
        "gcc_version",
        "allocator_",
        "rss_overhead_",
        "used_memory_lua_human",
        "used_memory_vm_total_human",
        "used_memory_scripts_human",
        "current_fork_perc",
        "current_save_keys_",
        "rdb_last_bgsave_time_sec",
        "rdb_current_bgsave_time_sec",
        "rdb_saves",
        "rdb_last_load_",
        "aof_last_rewrite_time_sec",
        "aof_current_rewrite_time_sec",
        "aof_rewrites",
        "instantaneous_input_",
        "instantaneous_output_",
        "expired_stale_perc",
        "expired_time_cap_reached_count",
        "expire_cycle_cpu_milliseconds",
        "total_eviction_exceeded_time",
        "current_eviction_exceeded_time",
        "reply_buffer_",
    ];
    let service = small();
    let mut client = service.client();
    for line in ["SET k v", "GET k", "GET", "HSET k a b", "CONFIG GET maxmemory"] {
        client.says(line);
    }
    let said = client.says("INFO EVERYTHING").text();
    let ours = fields(&said);
    if let Some(redis) = RedisServer::start() {
        let theirs = Client::connect(redis.address).says("INFO EVERYTHING").text();
        let missing: Vec<String> = fields(&theirs)
            .difference(&ours)
            .filter(|name| !name.starts_with("cmdstat_") && !name.starts_with("latency_percentiles"))
            .filter(|name| !ABSENT.iter().any(|absent| name.starts_with(absent)))
            .cloned()
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
    let value = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    assert_eq!((value("role"), value("run_id").len()), ("master".into(), 40));
    assert!(value("used_memory_peak").parse::<usize>().unwrap() >= value("used_memory").parse().unwrap());
    assert!(
        value("cmdstat_get").starts_with("calls=1,usec=")
            && value("cmdstat_get").contains("rejected_calls=1,failed_calls=0")
    );
    assert!(value("cmdstat_hset").contains("calls=1,") && value("cmdstat_hset").ends_with("failed_calls=1"));
    assert!(value("cmdstat_config|get").starts_with("calls=1,"));
    assert_eq!((value("errorstat_ERR"), value("errorstat_WRONGTYPE")), ("count=1".into(), "count=1".into()));
    assert!(value("total_net_input_bytes").parse::<u64>().unwrap() > 100);
    let Reply::Array(stats) = client.says("MEMORY STATS") else { panic!("a map") };
    assert!(stats.contains(&Reply::bulk("keys.count")) && stats.len() == 2 * 15, "{stats:?}");
    let Reply::Array(histogram) = client.says("LATENCY HISTOGRAM get nosuch") else { panic!("a map") };
    assert_eq!((histogram.len(), &histogram[0]), (2, &Reply::bulk("get")));
    // A moment that takes longer than the threshold is kept.
    for line in ["CONFIG SET latency-monitor-threshold 5", "DEBUG SLEEP 0.02"] {
        client.says(line);
    }
    let Reply::Array(latest) = client.says("LATENCY LATEST") else { panic!("events") };
    assert_eq!(elements(&latest[0])[0], Reply::bulk("command"));
    assert_eq!(elements(&client.says("LATENCY HISTORY command")).len(), 1);
    assert_eq!(client.says("LATENCY RESET command"), Reply::Integer(1));
    assert_eq!(client.says("CONFIG RESETSTAT"), Reply::ok());
    assert!(!client.says("INFO commandstats").text().contains("cmdstat_get"));
    service.end();
}
