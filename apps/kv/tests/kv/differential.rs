//! Random commands to this server and to redis-server: every reply is the same, errors too.
//!
//! A sequence that differs is shortened before it is shown. [`pressure`] does this with several clients, while memory
//! is full, rights change and clients wait.

mod pressure;

use crate::common::{Client, RedisServer, Reply, Service, request};
use farmem::Rng;
use std::io::Write as _;

/// The number of commands; `FARMEM_KV_COMMANDS` sets more.
const COMMANDS: usize = 100_000;
/// Commands that begin with no keys.
const SCENE: usize = 10_000;
/// Times that a sequence is played to shorten it.
const SHORTENED_MAX: usize = 300;
/// Commands that are sent ahead of their replies.
const TOGETHER: usize = 100;
const SEED: u64 = 15;

/// Forms of commands. `k` is a key, `e` the key of a sorted set with equal scores (with others Redis leaves ranges by
/// text open), `v` a text, `i` a whole number, `f` a number with a fraction, `s` a score, `m` a member, `r` an index,
/// `t` a time. Capital words and words in quotes stand for themselves. Forms that make values are more frequent.
const TEMPLATES: &[&str] = &[
    "SET k v",
    "SET k v",
    "SET k i",
    "SET k v NX",
    "SET k v XX",
    "SET k v GET",
    "SET k v EX t",
    "SET k v KEEPTTL",
    "SET k v NX GET",
    "SET k v XX NX",
    "SET k v EX 0",
    "SET k v PX x",
    "SET k",
    "GET k",
    "GET k",
    "GETDEL k",
    "GETSET k v",
    "SETNX k v",
    "MSET k v k v",
    "MSET k",
    "MSETNX k v k v",
    "MGET k k k",
    "STRLEN k",
    "APPEND k v",
    "APPEND k v",
    "SETRANGE k r v",
    "GETRANGE k r r",
    "GETRANGE k r r",
    "SETEX k t v",
    "SETEX k 0 v",
    "PSETEX k x v",
    "GETEX k PERSIST",
    "GETEX k",
    "GETEX k EX",
    "SUBSTR k r r",
    "INCR k",
    "INCRBY k i",
    "DECR k",
    "DECRBY k i",
    "INCRBYFLOAT k f",
    "INCRBY k x",
    "INCRBYFLOAT k x",
    "INCRBY k 9223372036854775807",
    "DECRBY k -9223372036854775808",
    "DEL k",
    "DEL k k",
    "UNLINK k",
    "EXISTS k k k",
    "TOUCH k k",
    "TYPE k",
    "TYPE k",
    "DBSIZE",
    "RENAME k k",
    "RENAMENX k k",
    "COPY k k",
    "COPY k k REPLACE",
    "COPY k k DB 1",
    "COPY k k x",
    "EXPIREAT k 33177117420",
    "PEXPIREAT k 33177117420000 GT",
    "EXPIREAT k 33177117421 LT",
    "EXPIREAT k 33177117420 NX",
    "EXPIREAT k 33177117425 XX",
    "EXPIRE k -1",
    "EXPIRE k x",
    "EXPIRE k t NX GT",
    "EXPIRE k t x",
    "EXPIRE k 9223372036854775807",
    "EXPIRETIME k",
    "PEXPIRETIME k",
    "PERSIST k",
    "KEYS *",
    "KEYS k[1-3]*",
    "MOVE k 1",
    "SELECT 1",
    "SELECT 0",
    "SELECT 0",
    "SELECT 0",
    "SELECT 99",
    "SELECT x",
    "SWAPDB 0 1",
    "OBJECT REFCOUNT k",
    "HSET k m v",
    "HSET k m v m v m i",
    "HSET k m",
    "HMSET k m v m v",
    "HSETNX k m v",
    "HGET k m",
    "HMGET k m m m",
    "HDEL k m m",
    "HEXISTS k m",
    "HLEN k",
    "HSTRLEN k m",
    "HGETALL k",
    "HKEYS k",
    "HVALS k",
    "HINCRBY k m i",
    "HINCRBYFLOAT k m f",
    "HINCRBY k m x",
    "HINCRBYFLOAT k m inf",
    "HINCRBYFLOAT k m -inf",
    "HSCAN k 0 COUNT 1000",
    "HSCAN k x",
    "HRANDFIELD k 0",
    "LPUSH k v",
    "RPUSH k v v v",
    "LPUSH k m m",
    "RPUSH k m m m",
    "LPUSHX k v",
    "RPUSHX k v",
    "LPOP k",
    "RPOP k",
    "LPOP k 2",
    "RPOP k 0",
    "LPOP k -1",
    "LPOP k 1 1",
    "RPOP k 1 1",
    "LLEN k",
    "LINDEX k r",
    "LSET k r v",
    "LRANGE k r r",
    "LRANGE k 0 -1",
    "LTRIM k r r",
    "LREM k r m",
    "LINSERT k BEFORE m v",
    "LINSERT k AFTER m v",
    "LINSERT k x m v",
    "LPOS k m",
    "LPOS k m RANK -1 COUNT 0",
    "LPOS k m RANK 0",
    "LPOS k m COUNT 2 MAXLEN 3",
    "RPOPLPUSH k k",
    "LMOVE k k LEFT RIGHT",
    "LMOVE k k RIGHT x",
    "LMPOP 2 k k LEFT COUNT 2",
    "LMPOP 0 k LEFT",
    "LSET k x v",
    "SADD k m",
    "SADD k m m m",
    "SADD k i i",
    "SREM k m m",
    "SCARD k",
    "SISMEMBER k m",
    "SMISMEMBER k m m",
    "SMEMBERS k",
    "SMOVE k k m",
    "SUNION k k",
    "SINTER k k",
    "SDIFF k k k",
    "SUNIONSTORE k k k",
    "SINTERSTORE k k k",
    "SDIFFSTORE k k k",
    "SINTERCARD 2 k k",
    "SINTERCARD 2 k k LIMIT 1",
    "SINTERCARD 0 k",
    "SSCAN k 0 COUNT 1000",
    "SPOP k 0",
    "SPOP k -1",
    "SRANDMEMBER k 0",
    "SRANDMEMBER k 9223372036854775807",
    "SRANDMEMBER k -9223372036854775808",
    "HRANDFIELD k 9223372036854775807",
    "HRANDFIELD k 9223372036854775807 WITHVALUES",
    "ZRANDMEMBER k 9223372036854775807",
    "ZADD k s m",
    "ZADD k s m s m s m",
    "ZADD k NX s m",
    "ZADD k XX CH s m",
    "ZADD k GT CH s m",
    "ZADD k LT s m",
    "ZADD k INCR s m",
    "ZADD k NX XX s m",
    "ZADD k GT NX s m",
    "ZADD k x m",
    "ZADD k s m s",
    "ZADD k INCR s m s m",
    "ZINCRBY k s m",
    "ZREM k m m",
    "ZCARD k",
    "ZSCORE k m",
    "ZMSCORE k m m",
    "ZRANK k m",
    "ZREVRANK k m",
    "ZPOPMIN k",
    "ZPOPMAX k 2",
    "ZPOPMIN k -1",
    "ZRANGE k r r",
    "ZRANGE k 0 -1 WITHSCORES",
    "ZRANGE k s s BYSCORE",
    "ZRANGE k s (s BYSCORE LIMIT 1 2",
    "ZRANGE k s s BYSCORE REV WITHSCORES",
    "ZRANGE k r r REV",
    "ZADD e 0 m 0 m",
    "ZADD e 0 m",
    "ZREM e m",
    "ZRANGE e [m [m BYLEX",
    "ZRANGE e - + BYLEX",
    "ZRANGE e (m [m BYLEX LIMIT 1 2",
    "ZRANGE k r r LIMIT 1 2",
    "ZRANGE k x r",
    "ZREVRANGE k 0 -1 WITHSCORES",
    "ZRANGEBYSCORE k -inf +inf WITHSCORES",
    "ZRANGEBYSCORE k (s s LIMIT 0 2",
    "ZREVRANGEBYSCORE k s s",
    "ZRANGEBYSCORE k x s",
    "ZRANGEBYLEX e - +",
    "ZREVRANGEBYLEX e + -",
    "ZREVRANGEBYLEX e [m (m",
    "ZRANGEBYLEX e m m",
    "ZRANGESTORE k k 0 -1",
    "ZRANGESTORE k k s s BYSCORE",
    "ZCOUNT k s s",
    "ZCOUNT k (s +inf",
    "ZLEXCOUNT e - [m",
    "ZREMRANGEBYRANK k r r",
    "ZREMRANGEBYSCORE k s s",
    "ZREMRANGEBYLEX e [m [m",
    "ZUNION 2 k k",
    "ZINTER 2 k k WITHSCORES",
    "ZDIFF 2 k k WITHSCORES",
    "ZUNIONSTORE k 2 k k WEIGHTS 2 3",
    "ZINTERSTORE k 2 k k AGGREGATE MAX",
    "ZDIFFSTORE k 2 k k",
    "ZUNION 0 k",
    "ZUNION 2 k k x",
    "ZSCAN k 0 COUNT 1000",
    "ZMPOP 2 k k MIN",
    "ZMPOP 1 k MAX COUNT 2",
    "ZMPOP 0 k MAX",
    "ZINTERCARD 2 k k",
    "ZINTERCARD 2 k k LIMIT 2",
    "ZINTERCARD 3 k k",
    "ZINTERCARD 0 k",
    "ZINTERCARD x k",
    "ZINTERCARD 1 k LIMIT -1",
    "ZINTERCARD 1 k x",
    "BLPOP k k 0.001",
    "BRPOP k 0.001",
    "BLPOP k x",
    "BLPOP k -1",
    "BLMOVE k k LEFT RIGHT 0.001",
    "BRPOPLPUSH k k 0.001",
    "BLMPOP 0.001 2 k k LEFT",
    "BLMPOP 0.001 2 k k x",
    "BZPOPMIN k k 0.001",
    "BZPOPMAX k 0.001",
    "BZMPOP 0.001 2 k k MIN COUNT 2",
    "SORT k",
    "SORT k ALPHA",
    "SORT k ALPHA DESC LIMIT 1 3",
    "SORT k DESC LIMIT r r",
    "SORT k BY k*",
    "SORT k BY *->m1 LIMIT 0 4",
    "SORT k BY k* GET # GET k*",
    "SORT k ALPHA GET # GET nothing GET k*->m2",
    "SORT e BY nosort",
    "SORT e BY nosort DESC LIMIT 1 2",
    "SORT k ALPHA STORE k",
    "SORT k STORE k",
    "SORT k BY nosort STORE k LIMIT 0 3",
    "SORT k ALPHA GET k* STORE k",
    "SORT k LIMIT x 1",
    "SORT k LIMIT 1",
    "SORT k BY",
    "SORT k x",
    "SORT_RO k ALPHA",
    "SORT_RO k STORE k",
    "COMMAND GETKEYS SORT k BY k* STORE k",
    "PING",
    "PING v",
    "ECHO v",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH k",
    "UNWATCH",
    "GET",
    "NOSUCH v v",
    "FLUSHDB x",
    "SCAN x",
    "SCAN 0 COUNT 0",
    "CLIENT GETNAME",
    "DEL",
    "HGET k",
    "OBJECT REFCOUNT",
    "GETRANGE k x r",
    "LINDEX k x",
];

fn word(rng: &mut Rng, kind: &str) -> Vec<u8> {
    let prefix = kind.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let number = |rng: &mut Rng, below| i64::from(rng.below(below));
    let text = match kind.trim_start_matches(['(', '[']) {
        "k" => format!("k{}", rng.below(24)),
        "q" => format!("k{}", rng.below(4)),
        "e" => format!("equal{}", rng.below(3)),
        "m" => format!("m{}", rng.below(9)),
        "i" => (number(rng, 2_000) - 1_000).to_string(),
        "f" => match rng.below(12) {
            0 => "1e30".into(),
            1 => "-9007199254740993.3".into(),
            2 => "0.1".into(),
            3 => "0x1.8p3".into(),
            4 => "1e-17".into(),
            _ => (number(rng, 400) as f64 / 4.0 - 50.0).to_string(),
        },
        "s" => match rng.below(20) {
            0 => "inf".into(),
            1 => "-inf".into(),
            _ => (number(rng, 40) as f64 / 2.0 - 10.0).to_string(),
        },
        "r" => (number(rng, 14) - 7).to_string(),
        "t" => "100000".into(),
        "x" => "no,number".into(),
        "v" => match rng.below(12) {
            0 => String::new(),
            1 => "long".repeat(rng.below(2_000) as usize),
            2 => rng.below(100_000).to_string(),
            3 => "a\r\nb\0c".into(),
            _ => format!("value{}", rng.below(1_000)),
        },
        _ => return kind.as_bytes().to_vec(),
    };
    format!("{prefix}{text}").into_bytes()
}

fn command(rng: &mut Rng) -> Vec<Vec<u8>> {
    let chosen = rng.below(u32::try_from(TEMPLATES.len()).unwrap());
    TEMPLATES[chosen as usize].split(' ').map(|kind| word(rng, kind)).collect()
}

/// Returns a normal form of a reply: unordered elements are sorted, and numbers with fractions have one form.
fn plain(command: &[Vec<u8>], reply: Reply) -> Reply {
    const NO_ORDER: &[&str] = &[
        "HGETALL",
        "HKEYS",
        "HVALS",
        "SMEMBERS",
        "SUNION",
        "SINTER",
        "SDIFF",
        "KEYS",
        "HSCAN",
        "SSCAN",
        "ZSCAN",
        "SRANDMEMBER",
        "HRANDFIELD",
        "ZRANDMEMBER",
    ];
    let name = String::from_utf8_lossy(&command[0]).into_owned();
    let sorts = NO_ORDER.contains(&name.as_str());
    in_form(reply, sorts, name.starts_with('Z'))
}

/// Returns whether two replies are the same in this form. Times that count from now may differ a little.
fn mean_the_same(command: &[Vec<u8>], ours: &Reply, theirs: &Reply) -> bool {
    const APART_MAX: u64 = 30_000;
    match (ours, theirs) {
        (Reply::Integer(ours), Reply::Integer(theirs)) if command[0].ends_with(b"EXPIRETIME") => {
            ours.abs_diff(*theirs) < APART_MAX
        }
        // Redis alone decides how often it shares a value.
        (Reply::Integer(_), Reply::Integer(_)) if command[0] == b"OBJECT" => true,
        _ => plain(command, ours.clone()) == plain(command, theirs.clone()),
    }
}

fn in_form(reply: Reply, sorts: bool, scores: bool) -> Reply {
    match reply {
        Reply::Array(replies) => {
            let mut replies: Vec<Reply> =
                replies.into_iter().map(|reply| in_form(reply, sorts, scores)).collect();
            if sorts {
                replies.sort_by_key(|reply| format!("{reply:?}"));
            }
            Reply::Array(replies)
        }
        Reply::Bulk(bytes) if scores => {
            let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.parse::<f64>().ok());
            number.map_or(Reply::Bulk(bytes), |number| Reply::bulk(&number.to_string()))
        }
        other => other,
    }
}

/// Removes steps that the difference does not need. Returns the rest with the difference.
fn shorten<T: Clone>(
    mut steps: Vec<T>,
    mut said: String,
    mut difference: impl FnMut(&[T]) -> Option<String>,
) -> (Vec<T>, String) {
    let (mut len, mut played) = (steps.len() / 2, 0);
    while len > 0 {
        let mut from = 0;
        while from < steps.len() && played < SHORTENED_MAX {
            let rest: Vec<T> = steps[..from].iter().chain(steps[from..].iter().skip(len)).cloned().collect();
            played += 1;
            match difference(&rest) {
                Some(still) => (steps, said) = (rest, still),
                None => from += len,
            }
        }
        len /= 2;
    }
    (steps, said)
}

/// Returns a command for a message, with long words cut.
fn shown(words: &[Vec<u8>]) -> String {
    let words = words.iter().map(|word| String::from_utf8_lossy(&word[..word.len().min(60)]));
    format!("{:?}", words.collect::<Vec<_>>())
}

/// Sends commands to both servers, which begin without keys. Returns the first difference.
fn play(ours: &Service, redis: &RedisServer, commands: &[Vec<Vec<u8>>]) -> Option<String> {
    let mut clients = [ours.client(), Client::connect(redis.address)];
    for client in &mut clients {
        assert_eq!(client.says("FLUSHALL"), Reply::ok());
    }
    let mut in_transaction: Option<Vec<Vec<Vec<u8>>>> = None;
    for commands in commands.chunks(TOGETHER) {
        let mut bytes = Vec::new();
        for words in commands {
            bytes.extend(request(&words.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        }
        clients.iter_mut().for_each(|client| client.stream.write_all(&bytes).unwrap());
        for words in commands {
            let [ours, theirs] =
                clients.each_mut().map(|client| client.reply().expect("the connection stays open"));
            let queued = in_transaction.take_if(|_| words[0] == b"EXEC");
            if !replies_agree(words, queued.as_deref(), &ours, &theirs) {
                return Some(format!("{}: {ours:?}, and redis-server {theirs:?}", shown(words)));
            }
            match (words[0].as_slice(), &mut in_transaction) {
                (b"MULTI", None) => in_transaction = Some(Vec::new()),
                (b"DISCARD", _) => in_transaction = None,
                (_, Some(queued)) if ours == Reply::Simple("QUEUED".into()) => queued.push(words.clone()),
                _ => {}
            }
        }
    }
    None
}

/// Returns whether the replies to a command agree; those to `EXEC` are compared as replies to the queued commands.
fn replies_agree(words: &[Vec<u8>], queued: Option<&[Vec<Vec<u8>>]>, ours: &Reply, theirs: &Reply) -> bool {
    match (queued, ours, theirs) {
        (Some(queued), Reply::Array(ours), Reply::Array(theirs)) => {
            let each = ours.iter().zip(theirs).zip(queued);
            ours.len() == theirs.len()
                && each.into_iter().all(|((ours, theirs), words)| mean_the_same(words, ours, theirs))
        }
        (Some(_), ours, theirs) => ours == theirs,
        (None, ours, theirs) => mean_the_same(words, ours, theirs),
    }
}

fn count() -> usize {
    std::env::var("FARMEM_KV_COMMANDS").map_or(COMMANDS, |text| text.parse().expect("a number of commands"))
}

/// With all data local.
#[test]
fn replies_are_those_of_redis() {
    let Some(redis) = RedisServer::start() else { return };
    let service = Service::start(&["--far", "64MiB", "--local", "128MiB"]);
    let mut rng = Rng::from_number(SEED);
    for _ in 0..count().div_ceil(SCENE) {
        let commands: Vec<Vec<Vec<u8>>> = (0..SCENE.min(count())).map(|_| command(&mut rng)).collect();
        if let Some(said) = play(&service, &redis, &commands) {
            let (commands, said) = shorten(commands, said, |commands| play(&service, &redis, commands));
            let lines: Vec<String> = commands.iter().map(|words| shown(words)).collect();
            panic!("{said}, behind\n{}", lines.join("\n"));
        }
    }
    service.end();
}
