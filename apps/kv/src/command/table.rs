//! The table of commands.

use super::{
    Args, Context, Done, blocking, hashes, keys, lcs, lists, numbers, server, sets, slowlog, sort, sorted,
    sorted_ranges, strings, transactions,
};
use farmem_resp::Writer;
use std::sync::LazyLock;

/// It may change data.
pub(crate) const WRITES: u16 = 1;
/// It reads data.
pub(crate) const READS: u16 = 2;
/// It may need room (`denyoom`).
pub(crate) const GROWS: u16 = 4;
/// It takes constant or logarithmic time.
pub(crate) const FAST: u16 = 8;
/// A client that has not said who it is may send it.
pub(crate) const NO_AUTH: u16 = 16;
/// It is refused in a transaction.
pub(crate) const NO_MULTI: u16 = 32;
/// It is carried out at once also in a transaction.
pub(crate) const NOT_QUEUED: u16 = 64;
/// It asks for no value of its keys: whether they are there, and when they end, is known here.
pub(crate) const BLIND: u16 = 128;
/// It is the append log's, and no client's.
pub(crate) const INTERNAL: u16 = 256;

type Run = fn(&mut Context<'_>, Args<'_>, &mut Writer<'_>) -> Done;

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// Words that it has, itself included; at least so many when it is negative.
    pub(crate) arity: i8,
    pub(crate) flags: u16,
    /// Its first key, its last (from the end when it is negative), and the step between them.
    pub(crate) keys: (i8, i8, i8),
    pub(crate) run: Run,
}

impl Command {
    pub(crate) const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// It reads data.
    pub(crate) const fn reads(&self) -> bool {
        self.has(READS)
    }

    /// It may change data.
    pub(crate) const fn writes(&self) -> bool {
        self.has(WRITES)
    }

    /// It answers by the values of its keys, whether it changes them or not.
    pub(crate) const fn reads_values(&self) -> bool {
        self.has(READS) || (self.has(WRITES) && !self.has(BLIND))
    }

    pub(crate) const fn is_fast(&self) -> bool {
        self.has(FAST)
    }

    /// Every client may send it, whoever it is.
    pub(crate) const fn is_for_all(&self) -> bool {
        self.has(NO_AUTH)
    }

    /// True when it may have so many words.
    pub(crate) fn takes(&self, words: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { words >= least } else { words == least }
    }
}

const fn row(name: &'static str, arity: i8, flags: u16, keys: (i8, i8, i8), run: Run) -> Command {
    Command { name, arity, flags, keys, run }
}

/// All commands.
pub(crate) const TABLE: &[Command] = &[
    row("get", 2, READS | FAST, (1, 1, 1), strings::get),
    row("farmem.item", 4, WRITES | GROWS | BLIND | INTERNAL, (1, 1, 1), crate::memcached::item),
    row("set", -3, WRITES | GROWS | BLIND, (1, 1, 1), strings::set),
    row("setnx", 3, WRITES | GROWS | FAST | BLIND, (1, 1, 1), strings::setnx),
    row("setex", 4, WRITES | GROWS | BLIND, (1, 1, 1), strings::setex),
    row("psetex", 4, WRITES | GROWS | BLIND, (1, 1, 1), strings::psetex),
    row("getset", 3, WRITES | GROWS | FAST, (1, 1, 1), strings::getset),
    row("getdel", 2, WRITES | FAST, (1, 1, 1), strings::getdel),
    row("getex", -2, WRITES | FAST, (1, 1, 1), strings::getex),
    row("mget", -2, READS | FAST, (1, -1, 1), strings::mget),
    row("mset", -3, WRITES | GROWS | BLIND, (1, -1, 2), strings::mset),
    row("msetnx", -3, WRITES | GROWS | BLIND, (1, -1, 2), strings::msetnx),
    row("strlen", 2, READS | FAST, (1, 1, 1), strings::strlen),
    row("append", 3, WRITES | GROWS | FAST, (1, 1, 1), strings::append),
    row("setrange", 4, WRITES | GROWS, (1, 1, 1), strings::setrange),
    row("getrange", 4, READS, (1, 1, 1), strings::getrange),
    row("substr", 4, READS, (1, 1, 1), strings::getrange),
    row("incr", 2, WRITES | GROWS | FAST, (1, 1, 1), numbers::incr),
    row("decr", 2, WRITES | GROWS | FAST, (1, 1, 1), numbers::decr),
    row("incrby", 3, WRITES | GROWS | FAST, (1, 1, 1), numbers::incrby),
    row("decrby", 3, WRITES | GROWS | FAST, (1, 1, 1), numbers::decrby),
    row("incrbyfloat", 3, WRITES | GROWS | FAST, (1, 1, 1), numbers::incrbyfloat),
    row("del", -2, WRITES | BLIND, (1, -1, 1), keys::del),
    row("unlink", -2, WRITES | FAST | BLIND, (1, -1, 1), keys::del),
    row("exists", -2, READS | FAST | BLIND, (1, -1, 1), keys::exists),
    row("touch", -2, READS | FAST | BLIND, (1, -1, 1), keys::exists),
    row("type", 2, READS | FAST | BLIND, (1, 1, 1), keys::kind),
    row("expire", -3, WRITES | FAST | BLIND, (1, 1, 1), keys::expire),
    row("pexpire", -3, WRITES | FAST | BLIND, (1, 1, 1), keys::pexpire),
    row("expireat", -3, WRITES | FAST | BLIND, (1, 1, 1), keys::expireat),
    row("pexpireat", -3, WRITES | FAST | BLIND, (1, 1, 1), keys::pexpireat),
    row("ttl", 2, READS | FAST | BLIND, (1, 1, 1), keys::ttl),
    row("pttl", 2, READS | FAST | BLIND, (1, 1, 1), keys::pttl),
    row("expiretime", 2, READS | FAST | BLIND, (1, 1, 1), keys::expiretime),
    row("pexpiretime", 2, READS | FAST | BLIND, (1, 1, 1), keys::pexpiretime),
    row("persist", 2, WRITES | FAST | BLIND, (1, 1, 1), keys::persist),
    row("scan", -2, READS, (0, 0, 0), keys::scan),
    row("keys", 2, READS, (0, 0, 0), keys::keys),
    row("randomkey", 1, READS, (0, 0, 0), keys::randomkey),
    row("dbsize", 1, READS | FAST, (0, 0, 0), keys::dbsize),
    row("flushdb", -1, WRITES, (0, 0, 0), keys::flushdb),
    row("flushall", -1, WRITES, (0, 0, 0), keys::flushall),
    row("rename", 3, WRITES, (1, 2, 1), keys::rename),
    row("renamenx", 3, WRITES | FAST, (1, 2, 1), keys::renamenx),
    row("copy", -3, WRITES | GROWS, (1, 2, 1), keys::copy),
    row("move", 3, WRITES | FAST, (1, 1, 1), keys::move_to),
    row("swapdb", 3, WRITES | FAST, (0, 0, 0), keys::swapdb),
    row("object", -2, READS, (2, 2, 1), keys::object),
    row("sort", -2, WRITES | GROWS, (1, 1, 1), sort::sort),
    row("sort_ro", -2, READS, (1, 1, 1), sort::sort_ro),
    row("hset", -4, WRITES | GROWS | FAST, (1, 1, 1), hashes::hset),
    row("hmset", -4, WRITES | GROWS | FAST, (1, 1, 1), hashes::hmset),
    row("hsetnx", 4, WRITES | GROWS | FAST, (1, 1, 1), hashes::hsetnx),
    row("hget", 3, READS | FAST, (1, 1, 1), hashes::hget),
    row("hmget", -3, READS | FAST, (1, 1, 1), hashes::hmget),
    row("hdel", -3, WRITES | FAST, (1, 1, 1), hashes::hdel),
    row("hexists", 3, READS | FAST, (1, 1, 1), hashes::hexists),
    row("hlen", 2, READS | FAST, (1, 1, 1), hashes::hlen),
    row("hstrlen", 3, READS | FAST, (1, 1, 1), hashes::hstrlen),
    row("hgetall", 2, READS, (1, 1, 1), hashes::hgetall),
    row("hkeys", 2, READS, (1, 1, 1), hashes::hkeys),
    row("hvals", 2, READS, (1, 1, 1), hashes::hvals),
    row("hincrby", 4, WRITES | GROWS | FAST, (1, 1, 1), hashes::hincrby),
    row("hincrbyfloat", 4, WRITES | GROWS | FAST, (1, 1, 1), hashes::hincrbyfloat),
    row("hrandfield", -2, READS, (1, 1, 1), hashes::hrandfield),
    row("hscan", -3, READS, (1, 1, 1), hashes::hscan),
    row("lpush", -3, WRITES | GROWS | FAST, (1, 1, 1), lists::lpush),
    row("rpush", -3, WRITES | GROWS | FAST, (1, 1, 1), lists::rpush),
    row("lpushx", -3, WRITES | GROWS | FAST, (1, 1, 1), lists::lpushx),
    row("rpushx", -3, WRITES | GROWS | FAST, (1, 1, 1), lists::rpushx),
    row("lpop", -2, WRITES | FAST, (1, 1, 1), lists::lpop),
    row("rpop", -2, WRITES | FAST, (1, 1, 1), lists::rpop),
    row("lmpop", -4, WRITES, (0, 0, 0), blocking::lmpop),
    row("blpop", -3, WRITES, (1, -2, 1), blocking::blpop),
    row("brpop", -3, WRITES, (1, -2, 1), blocking::brpop),
    row("blmove", 6, WRITES | GROWS, (1, 2, 1), blocking::blmove),
    row("brpoplpush", 4, WRITES | GROWS, (1, 2, 1), blocking::brpoplpush),
    row("blmpop", -5, WRITES, (0, 0, 0), blocking::blmpop),
    row("bzpopmin", -3, WRITES | FAST, (1, -2, 1), blocking::bzpopmin),
    row("bzpopmax", -3, WRITES | FAST, (1, -2, 1), blocking::bzpopmax),
    row("bzmpop", -5, WRITES, (0, 0, 0), blocking::bzmpop),
    row("zmpop", -4, WRITES, (0, 0, 0), blocking::zmpop),
    row("zintercard", -3, READS, (0, 0, 0), sorted::zintercard),
    row("lcs", -3, READS, (1, 2, 1), lcs::lcs),
    row("slowlog", -2, 0, (0, 0, 0), slowlog::slowlog),
    row("llen", 2, READS | FAST, (1, 1, 1), lists::llen),
    row("lindex", 3, READS, (1, 1, 1), lists::lindex),
    row("lset", 4, WRITES | GROWS, (1, 1, 1), lists::lset),
    row("lrange", 4, READS, (1, 1, 1), lists::lrange),
    row("ltrim", 4, WRITES, (1, 1, 1), lists::ltrim),
    row("lrem", 4, WRITES, (1, 1, 1), lists::lrem),
    row("linsert", 5, WRITES | GROWS, (1, 1, 1), lists::linsert),
    row("lpos", -3, READS, (1, 1, 1), lists::lpos),
    row("rpoplpush", 3, WRITES | GROWS, (1, 2, 1), lists::rpoplpush),
    row("lmove", 5, WRITES | GROWS, (1, 2, 1), lists::lmove),
    row("sadd", -3, WRITES | GROWS | FAST, (1, 1, 1), sets::sadd),
    row("srem", -3, WRITES | FAST, (1, 1, 1), sets::srem),
    row("scard", 2, READS | FAST, (1, 1, 1), sets::scard),
    row("sismember", 3, READS | FAST, (1, 1, 1), sets::sismember),
    row("smismember", -3, READS | FAST, (1, 1, 1), sets::smismember),
    row("smembers", 2, READS, (1, 1, 1), sets::smembers),
    row("smove", 4, WRITES | FAST, (1, 2, 1), sets::smove),
    row("srandmember", -2, READS, (1, 1, 1), sets::srandmember),
    row("spop", -2, WRITES | FAST, (1, 1, 1), sets::spop),
    row("sunion", -2, READS, (1, -1, 1), sets::sunion),
    row("sinter", -2, READS, (1, -1, 1), sets::sinter),
    row("sdiff", -2, READS, (1, -1, 1), sets::sdiff),
    row("sunionstore", -3, WRITES | GROWS, (1, -1, 1), sets::sunionstore),
    row("sinterstore", -3, WRITES | GROWS, (1, -1, 1), sets::sinterstore),
    row("sdiffstore", -3, WRITES | GROWS, (1, -1, 1), sets::sdiffstore),
    row("sintercard", -3, READS, (0, 0, 0), sets::sintercard),
    row("sscan", -3, READS, (1, 1, 1), sets::sscan),
    row("zadd", -4, WRITES | GROWS | FAST, (1, 1, 1), sorted::zadd),
    row("zincrby", 4, WRITES | GROWS | FAST, (1, 1, 1), sorted::zincrby),
    row("zrem", -3, WRITES | FAST, (1, 1, 1), sorted::zrem),
    row("zcard", 2, READS | FAST, (1, 1, 1), sorted::zcard),
    row("zscore", 3, READS | FAST, (1, 1, 1), sorted::zscore),
    row("zmscore", -3, READS | FAST, (1, 1, 1), sorted::zmscore),
    row("zrank", 3, READS | FAST, (1, 1, 1), sorted::zrank),
    row("zrevrank", 3, READS | FAST, (1, 1, 1), sorted::zrevrank),
    row("zpopmin", -2, WRITES | FAST, (1, 1, 1), sorted::zpopmin),
    row("zpopmax", -2, WRITES | FAST, (1, 1, 1), sorted::zpopmax),
    row("zrandmember", -2, READS, (1, 1, 1), sorted::zrandmember),
    row("zscan", -3, READS, (1, 1, 1), sorted::zscan),
    row("zunion", -3, READS, (0, 0, 0), sorted::zunion),
    row("zinter", -3, READS, (0, 0, 0), sorted::zinter),
    row("zdiff", -3, READS, (0, 0, 0), sorted::zdiff),
    row("zunionstore", -4, WRITES | GROWS, (1, 1, 1), sorted::zunionstore),
    row("zinterstore", -4, WRITES | GROWS, (1, 1, 1), sorted::zinterstore),
    row("zdiffstore", -4, WRITES | GROWS, (1, 1, 1), sorted::zdiffstore),
    row("zrange", -4, READS, (1, 1, 1), sorted_ranges::zrange),
    row("zrevrange", -4, READS, (1, 1, 1), sorted_ranges::zrevrange),
    row("zrangebyscore", -4, READS, (1, 1, 1), sorted_ranges::zrangebyscore),
    row("zrevrangebyscore", -4, READS, (1, 1, 1), sorted_ranges::zrevrangebyscore),
    row("zrangebylex", -4, READS, (1, 1, 1), sorted_ranges::zrangebylex),
    row("zrevrangebylex", -4, READS, (1, 1, 1), sorted_ranges::zrevrangebylex),
    row("zrangestore", -5, WRITES | GROWS, (1, 2, 1), sorted_ranges::zrangestore),
    row("zcount", 4, READS | FAST, (1, 1, 1), sorted_ranges::zcount),
    row("zlexcount", 4, READS | FAST, (1, 1, 1), sorted_ranges::zlexcount),
    row("zremrangebyrank", 4, WRITES, (1, 1, 1), sorted_ranges::zremrangebyrank),
    row("zremrangebyscore", 4, WRITES, (1, 1, 1), sorted_ranges::zremrangebyscore),
    row("zremrangebylex", 4, WRITES, (1, 1, 1), sorted_ranges::zremrangebylex),
    row("multi", 1, NOT_QUEUED | FAST, (0, 0, 0), transactions::multi),
    row("exec", 1, NO_MULTI | NOT_QUEUED, (0, 0, 0), transactions::exec),
    row("discard", 1, NO_MULTI | NOT_QUEUED | FAST, (0, 0, 0), transactions::discard),
    row("watch", -2, NOT_QUEUED | FAST | BLIND, (1, -1, 1), transactions::watch),
    row("unwatch", 1, FAST, (0, 0, 0), transactions::unwatch),
    row("ping", -1, FAST, (0, 0, 0), server::ping),
    row("echo", 2, FAST, (0, 0, 0), server::echo),
    row("select", 2, FAST, (0, 0, 0), server::select),
    row("acl", -2, FAST, (0, 0, 0), super::acl::acl),
    row("auth", -2, NO_AUTH | NO_MULTI | FAST, (0, 0, 0), server::auth),
    row("hello", -1, NO_AUTH | NO_MULTI | FAST, (0, 0, 0), server::hello),
    row("quit", -1, NO_AUTH | NOT_QUEUED | FAST, (0, 0, 0), server::quit),
    row("reset", 1, NO_AUTH | NOT_QUEUED | FAST, (0, 0, 0), server::reset),
    row("time", 1, FAST, (0, 0, 0), server::time),
    row("info", -1, READS, (0, 0, 0), server::info),
    row("client", -2, FAST, (0, 0, 0), server::client),
    row("config", -2, READS, (0, 0, 0), server::config),
    row("command", -1, READS, (0, 0, 0), server::command),
    row("debug", -2, READS, (0, 0, 0), server::debug),
    row("memory", -2, READS, (2, 2, 1), server::memory),
    row("role", 1, FAST, (0, 0, 0), server::role),
    row("wait", 3, READS, (0, 0, 0), server::wait),
    row("save", 1, NO_MULTI, (0, 0, 0), server::save),
    row("bgsave", -1, NO_MULTI, (0, 0, 0), server::bgsave),
    row("bgrewriteaof", 1, NO_MULTI, (0, 0, 0), server::bgrewriteaof),
    row("lastsave", 1, FAST, (0, 0, 0), server::lastsave),
    row("shutdown", -1, NO_MULTI, (0, 0, 0), server::shutdown),
];

/// The commands that clients have.
pub(crate) fn shown() -> impl Iterator<Item = &'static Command> + Clone {
    TABLE.iter().filter(|command| !command.has(INTERNAL))
}

/// Why a command that Redis has is not here.
pub(crate) fn refused(name: &[u8]) -> Option<&'static str> {
    const SCRIPTS: &[&str] =
        &["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "SCRIPT", "FUNCTION", "FCALL", "FCALL_RO"];
    const PUBLISHES: &[&str] = &[
        "SUBSCRIBE",
        "UNSUBSCRIBE",
        "PSUBSCRIBE",
        "PUNSUBSCRIBE",
        "PUBLISH",
        "PUBSUB",
        "SSUBSCRIBE",
        "SUNSUBSCRIBE",
        "SPUBLISH",
    ];
    let among = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    match () {
        () if among(SCRIPTS) => Some("this server runs no scripts; send the commands in MULTI and EXEC"),
        () if among(PUBLISHES) => Some("this server has no publish and subscribe"),
        () => None,
    }
}

/// Places of the table of names: a power of two, several times as many as there are commands.
const PLACES: usize = 1_024;

static PLACE_OF: LazyLock<Vec<u16>> = LazyLock::new(|| {
    let mut places = vec![u16::MAX; PLACES];
    for (number, command) in TABLE.iter().enumerate() {
        let mut at = place(command.name.as_bytes());
        while places[at] != u16::MAX {
            at = (at + 1) % PLACES;
        }
        places[at] = u16::try_from(number).expect("a few hundred commands");
    }
    places
});

fn place(name: &[u8]) -> usize {
    let hash = name
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte | 0x20)).wrapping_mul(0x0100_0193));
    (hash ^ hash >> 15) as usize % PLACES
}

/// The number of a command in the table.
pub(crate) fn number_of(command: &Command) -> usize {
    find_number(command.name.as_bytes()).expect("the table has it")
}

/// The command of this name, in whatever letters.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    find_number(name).map(|number| &TABLE[number])
}

fn find_number(name: &[u8]) -> Option<usize> {
    let mut at = place(name);
    loop {
        let number = usize::from(PLACE_OF[at]);
        let command = TABLE.get(number)?;
        if name.eq_ignore_ascii_case(command.name.as_bytes()) {
            return Some(number);
        }
        at = (at + 1) % PLACES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_found_by_its_name() {
        for command in TABLE {
            assert_eq!(find(command.name.to_uppercase().as_bytes()).unwrap().name, command.name);
        }
        assert!(find(b"nothing").is_none() && find(b"").is_none() && find(b"\xff\xff").is_none());
    }
}
