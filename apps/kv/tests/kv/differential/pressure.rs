//! Several clients of this server and of redis-server, in lock step: transactions, watched keys, full memory,
//! eviction, users and clients that wait. After each step the replies are the same, and the same clients wait.
//!
//! One difference is left out: if `SORT ... STORE` replaces a key of another kind by a list, Redis 7.0 does not wake
//! waiting clients.

use super::{replies_agree, shorten, shown, word};
use crate::common::{Client, RedisServer, Reply, Service, request};
use farmem::Rng;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

/// Sequences, and steps of one; `FARMEM_KV_SCENES` for more.
const SCENES: usize = 100;
const STEPS: usize = 50;
const CLIENTS: usize = 3;
/// Clients, as the random numbers have it.
const CLIENTS_BELOW: u32 = 3;
const SEED: u64 = 35;

/// As in [`super::TEMPLATES`]; `q` is one of a few keys, `id` the number of another client. The first client alone
/// sends these.
const ADMIN: &[&str] = &[
    "CONFIG SET maxmemory 1",
    "CONFIG SET maxmemory 1",
    "CONFIG SET maxmemory 0",
    "CONFIG SET maxmemory 0",
    "CONFIG SET maxmemory 1 nosuch 2",
    "CONFIG SET maxmemory-policy noeviction",
    "CONFIG SET maxmemory-policy volatile-random",
    "CONFIG SET maxmemory-policy volatile-ttl",
    "CONFIG SET maxmemory-policy volatile-lfu",
    "CONFIG NOSUCH",
    "ACL SETUSER u +@all",
    "ACL SETUSER u -@all",
    "ACL SETUSER u +@read",
    "ACL SETUSER u -@write +@transaction +@connection",
    "ACL SETUSER u +@list +@blocking",
    "ACL SETUSER u -@dangerous",
    "ACL SETUSER u -blpop",
    "ACL SETUSER u -exec",
    "ACL SETUSER u +config|get",
    "ACL SETUSER u -config|sett",
    "ACL SETUSER u resetkeys",
    "ACL SETUSER u resetkeys ~k*",
    "ACL SETUSER u ~q",
    "ACL SETUSER u %R~q",
    "ACL SETUSER u %W~q",
    "ACL SETUSER u %R~q %W~q",
    "ACL SETUSER u +nosuch",
    "ACL DRYRUN u GET q",
    "ACL DRYRUN u LPUSH q v",
    "ACL DRYRUN u RPOPLPUSH q q",
    "ACL DRYRUN u CONFIG GET x",
    "ACL DRYRUN u STRLEN q",
    "CLIENT UNBLOCK id",
    "CLIENT UNBLOCK id ERROR",
    "BGSAVE x",
];

const COMMANDS: &[&str] = &[
    "SET q v",
    "SET q v EX t",
    "SET q v GET",
    "GET q",
    "DEL q",
    "DEL q q",
    "EXPIRE q t",
    "PERSIST q",
    "APPEND q v",
    "INCR q",
    "RENAME q q",
    "STRLEN q",
    "EXISTS q q",
    "TYPE q",
    "DBSIZE",
    "LPUSH q v",
    "LPUSH q v v",
    "RPUSH q v",
    "RPUSH q m m m",
    "LPOP q",
    "LLEN q",
    "LRANGE q 0 -1",
    "LTRIM q 0 -1",
    "LTRIM q 1 -1",
    "LSET q 0 v",
    "LREM q 0 m",
    "RPOPLPUSH q q",
    "ZADD q 1 m 2 m",
    "ZADD q s m",
    "ZREM q m",
    "ZPOPMIN q",
    "SADD q m",
    "SORT q ALPHA",
    "COPY q q REPLACE",
    "BLPOP q 0",
    "BLPOP q q 0",
    "BRPOP q q 0",
    "BLMOVE q q LEFT RIGHT 0",
    "BRPOPLPUSH q q 0",
    "BLMPOP 0 2 q q LEFT COUNT 2",
    "BZPOPMIN q q 0",
    "BZMPOP 0 2 q q MAX",
    "BLPOP q x",
    "MULTI",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH q",
    "WATCH q",
    "WATCH q q",
    "UNWATCH",
    "CONFIG NOSUCH",
    "CONFIG GET maxmemory",
    "CLIENT NOSUCH",
    "OBJECT NOSUCH q",
    "NOSUCH",
    "GET",
    "AUTH u p",
    "RESET",
    "ACL WHOAMI",
    "PING",
];

/// One command of one client.
#[derive(Clone)]
struct Step {
    client: usize,
    words: Vec<Vec<u8>>,
}

/// One server with its clients.
struct Side {
    control: Client,
    clients: Vec<(Client, i64)>,
    /// True for each client whose blocking command waits.
    waiting: [bool; CLIENTS],
}

impl Side {
    /// Connects anew to a server that has one key, without which memory could not be full.
    fn new(address: SocketAddr) -> Self {
        let mut control = Client::connect(address);
        for line in [
            "CONFIG SET maxmemory 0 maxmemory-policy noeviction",
            "CLIENT KILL TYPE normal SKIPME yes",
            "FLUSHALL",
            "SET ballast 0123456789",
            "ACL SETUSER u reset on >p ~* +@all",
        ] {
            let said = control.says(line);
            assert!(!matches!(said, Reply::Error(_)), "{line}: {said:?}");
        }
        let clients = (0..CLIENTS).map(|_| {
            let mut client = Client::connect(address);
            let Reply::Integer(id) = client.says("CLIENT ID") else { panic!("a number") };
            (client, id)
        });
        Self { control, clients: clients.collect(), waiting: [false; CLIENTS] }
    }

    /// Sends a step, and returns its reply; `None` if the client waits for a key.
    fn take(&mut self, step: &Step) -> Option<Reply> {
        let other = self.clients[(step.client + 1) % CLIENTS].1.to_string();
        let words: Vec<&[u8]> = step
            .words
            .iter()
            .map(|word| if word == b"id" { other.as_bytes() } else { word.as_slice() })
            .collect();
        self.clients[step.client].0.stream.write_all(&request(&words)).unwrap();
        self.outcome(step.client)
    }

    /// Waits until a client has a reply, or waits for a key itself.
    fn outcome(&mut self, number: usize) -> Option<Reply> {
        let (client, id) = &mut self.clients[number];
        let line = format!("CLIENT LIST ID {id}");
        for _ in 0..10_000 {
            if client.has_reply(Duration::from_millis(1)) {
                self.waiting[number] = false;
                return Some(client.reply().expect("the connection stays open"));
            }
            // A client whose reply is on its way does not wait.
            let listed = self.control.says(&line).text();
            let flags = listed.split(" flags=").nth(1).and_then(|rest| rest.split(' ').next());
            if flags.is_some_and(|flags| flags.contains('b')) {
                self.waiting[number] = true;
                return None;
            }
        }
        let listed = self.control.says("CLIENT LIST").text();
        panic!("client {number} has no reply and waits for no key: {listed}");
    }
}

fn scene(rng: &mut Rng) -> Vec<Step> {
    let steps = (0..STEPS).map(|_| {
        let client = rng.below(CLIENTS_BELOW) as usize;
        let templates = if client == 0 && rng.below(3) == 0 { ADMIN } else { COMMANDS };
        let template = templates[rng.below(u32::try_from(templates.len()).unwrap()) as usize];
        // The first client stays the administrator.
        let template = if client == 0 && matches!(template, "AUTH u p") { "PING" } else { template };
        Step { client, words: template.split(' ').map(|kind| word(rng, kind)).collect() }
    });
    steps.collect()
}

/// Plays a sequence at both servers. Returns the first difference.
fn play(addresses: [SocketAddr; 2], steps: &[Step]) -> Option<String> {
    let [mut ours, mut theirs] = addresses.map(Side::new);
    let mut queued: [Option<Vec<Vec<Vec<u8>>>>; CLIENTS] = Default::default();
    let mut sent: [Vec<Vec<u8>>; CLIENTS] = Default::default();
    for step in steps {
        if ours.waiting[step.client] {
            continue;
        }
        let (one, other) = (ours.take(step), theirs.take(step));
        sent[step.client].clone_from(&step.words);
        let queue = &mut queued[step.client];
        let in_exec = queue.take_if(|_| matches!(step.words[0].as_slice(), b"EXEC" | b"DISCARD" | b"RESET"));
        let said = |one: &Option<Reply>, other: &Option<Reply>| {
            Some(format!(
                "client {}, {}: {one:?}, and redis-server {other:?}",
                step.client,
                shown(&step.words)
            ))
        };
        match (&one, &other) {
            (None, None) => {}
            (Some(one), Some(other)) if replies_agree(&step.words, in_exec.as_deref(), one, other) => {}
            _ => return said(&one, &other),
        }
        match (step.words[0].as_slice(), queue) {
            (b"MULTI", queue @ None) if one == Some(Reply::ok()) => *queue = Some(Vec::new()),
            (_, Some(queue)) if one == Some(Reply::Simple("QUEUED".into())) => queue.push(step.words.clone()),
            _ => {}
        }
        // Waiting clients may have been served, by this step or by a served client's command.
        for (number, sent) in sent.iter().enumerate() {
            if number == step.client || !ours.waiting[number] {
                continue;
            }
            let (one, other) = (ours.outcome(number), theirs.outcome(number));
            if one != other {
                let waited = format!("client {number}, which waited with {}", shown(sent));
                return Some(format!(
                    "{waited}: {one:?}, and redis-server {other:?}, behind {}",
                    shown(&step.words)
                ));
            }
        }
    }
    None
}

/// Under transactions, watched keys, full memory, eviction, users and waiting clients, replies and waits are
/// redis-server's.
#[test]
fn behaviour_under_pressure_is_that_of_redis() {
    let Some(redis) = RedisServer::start() else { return };
    let service = Service::start(&["--far", "64MiB", "--local", "128MiB"]);
    let addresses = [service.address, redis.address];
    let scenes = std::env::var("FARMEM_KV_SCENES").map_or(SCENES, |text| text.parse().expect("a number"));
    let mut rng = Rng::from_number(SEED);
    for number in 0..scenes {
        let steps = scene(&mut rng);
        if let Some(said) = play(addresses, &steps) {
            let (steps, said) = shorten(steps, said, |steps| play(addresses, steps));
            let lines: Vec<String> =
                steps.iter().map(|step| format!("client {}: {}", step.client, shown(&step.words))).collect();
            panic!("sequence {number} of seed {SEED}: {said}; all steps:\n{}", lines.join("\n"));
        }
    }
    service.end();
}

/// With a limit just above the present use, each policy evicts exactly the excess keys, and no write is refused.
#[test]
fn eviction_keeps_what_there_is_room_for() {
    const KEYS: usize = 5_000;
    let service = Service::start(&["--far", "64MiB", "--local", "128MiB"]);
    let mut client = service.client();
    let value = "v".repeat(100);
    for policy in [
        "allkeys-random",
        "allkeys-lru",
        "allkeys-lfu",
        "volatile-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-ttl",
    ] {
        assert_eq!(client.says("CONFIG SET maxmemory 0"), Reply::ok());
        assert_eq!(client.says("FLUSHALL"), Reply::ok());
        for key in 0..KEYS {
            assert_eq!(client.says(&format!("SET key:{key} {value} EX 1000")), Reply::ok());
        }
        let info = client.says("INFO memory").text();
        let used = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"))
            .unwrap()
            .parse::<usize>()
            .unwrap();
        assert_eq!(
            client.says(&format!("CONFIG SET maxmemory {} maxmemory-policy {policy}", used + 1_000)),
            Reply::ok()
        );
        for key in 0..KEYS / 5 {
            assert_eq!(client.says(&format!("SET other:{key} {value} EX 1000")), Reply::ok(), "{policy}");
        }
        let Reply::Integer(left) = client.says("DBSIZE") else { panic!("a number") };
        let left = usize::try_from(left).unwrap();
        assert!((KEYS * 9 / 10..=KEYS + 20).contains(&left), "{policy} keeps {left} of {KEYS}");
    }
    service.end();
}
