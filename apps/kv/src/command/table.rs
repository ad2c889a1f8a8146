//! The table of commands.

use super::spec::*;
use super::{
    acl, blocking, client, hashes, help, introspection, keys as keyspace, latency, lcs, lists, numbers,
    server, sets, slowlog, sort, sorted, sorted_ranges, strings, transactions,
};
use std::sync::LazyLock;

/// All commands. What a row says of a command of Redis is what Redis 7.0 says; a test compares them.
pub(crate) static TABLE: &[Command] = &[
    row("get", 2, READONLY | FAST | STRING, key(1, RO_ACCESS), strings::get),
    row("farmem.item", 4, WRITE | DENYOOM | BLIND | INTERNAL, key(1, OW_UPDATE), crate::memcached::item),
    row("set", -3, WRITE | DENYOOM | STRING | BLIND, key(1, RW_ACCESS_UPDATE), strings::set),
    row("setnx", 3, WRITE | DENYOOM | FAST | STRING | BLIND, key(1, OW_INSERT), strings::setnx),
    row("setex", 4, WRITE | DENYOOM | STRING | BLIND, key(1, OW_UPDATE), strings::setex),
    row("psetex", 4, WRITE | DENYOOM | STRING | BLIND, key(1, OW_UPDATE), strings::psetex),
    row("getset", 3, WRITE | DENYOOM | FAST | STRING, key(1, RW_ACCESS_UPDATE), strings::getset),
    row("getdel", 2, WRITE | FAST | STRING, key(1, RW_ACCESS_DELETE), strings::getdel),
    row("getex", -2, WRITE | FAST | STRING, key(1, RW_ACCESS_UPDATE), strings::getex),
    row("mget", -2, READONLY | FAST | STRING, keys(1, -1, 1, RO_ACCESS), strings::mget),
    row("mset", -3, WRITE | DENYOOM | STRING | BLIND, keys(1, -1, 2, OW_UPDATE), strings::mset),
    row("msetnx", -3, WRITE | DENYOOM | STRING | BLIND, keys(1, -1, 2, OW_INSERT), strings::msetnx),
    row("strlen", 2, READONLY | FAST | STRING, key(1, RO), strings::strlen),
    row("append", 3, WRITE | DENYOOM | FAST | STRING, key(1, RW_INSERT), strings::append),
    row("setrange", 4, WRITE | DENYOOM | STRING, key(1, RW_UPDATE), strings::setrange),
    row("getrange", 4, READONLY | STRING, key(1, RO_ACCESS), strings::getrange),
    row("substr", 4, READONLY | STRING, key(1, RO_ACCESS), strings::getrange),
    row("incr", 2, WRITE | DENYOOM | FAST | STRING, key(1, RW_ACCESS_UPDATE), numbers::incr),
    row("decr", 2, WRITE | DENYOOM | FAST | STRING, key(1, RW_ACCESS_UPDATE), numbers::decr),
    row("incrby", 3, WRITE | DENYOOM | FAST | STRING, key(1, RW_ACCESS_UPDATE), numbers::incrby),
    row("decrby", 3, WRITE | DENYOOM | FAST | STRING, key(1, RW_ACCESS_UPDATE), numbers::decrby),
    row("incrbyfloat", 3, WRITE | DENYOOM | FAST | STRING, key(1, RW_ACCESS_UPDATE), numbers::incrbyfloat),
    row("del", -2, WRITE | KEYSPACE | BLIND, keys(1, -1, 1, RM_DELETE), keyspace::del),
    row("unlink", -2, WRITE | FAST | KEYSPACE | BLIND, keys(1, -1, 1, RM_DELETE), keyspace::del),
    row("exists", -2, READONLY | FAST | KEYSPACE | BLIND, keys(1, -1, 1, RO), keyspace::exists),
    row("touch", -2, READONLY | FAST | KEYSPACE | BLIND, keys(1, -1, 1, RO), keyspace::touch),
    row("type", 2, READONLY | FAST | KEYSPACE | BLIND, key(1, RO), keyspace::kind),
    row("expire", -3, WRITE | FAST | KEYSPACE | BLIND, key(1, RW_UPDATE), keyspace::expire),
    row("pexpire", -3, WRITE | FAST | KEYSPACE | BLIND, key(1, RW_UPDATE), keyspace::pexpire),
    row("expireat", -3, WRITE | FAST | KEYSPACE | BLIND, key(1, RW_UPDATE), keyspace::expireat),
    row("pexpireat", -3, WRITE | FAST | KEYSPACE | BLIND, key(1, RW_UPDATE), keyspace::pexpireat),
    row("ttl", 2, READONLY | FAST | KEYSPACE | BLIND, key(1, RO_ACCESS), keyspace::ttl),
    row("pttl", 2, READONLY | FAST | KEYSPACE | BLIND, key(1, RO_ACCESS), keyspace::pttl),
    row("expiretime", 2, READONLY | FAST | KEYSPACE | BLIND, key(1, RO_ACCESS), keyspace::expiretime),
    row("pexpiretime", 2, READONLY | FAST | KEYSPACE | BLIND, key(1, RO_ACCESS), keyspace::pexpiretime),
    row("persist", 2, WRITE | FAST | KEYSPACE | BLIND, key(1, RW_UPDATE), keyspace::persist),
    row("scan", -2, READONLY | KEYSPACE, NO_KEYS, keyspace::scan),
    row("keys", 2, READONLY | KEYSPACE | DANGEROUS, NO_KEYS, keyspace::keys),
    row("randomkey", 1, READONLY | KEYSPACE, NO_KEYS, keyspace::randomkey),
    row("dbsize", 1, READONLY | FAST | KEYSPACE, NO_KEYS, keyspace::dbsize),
    row("flushdb", -1, WRITE | KEYSPACE | DANGEROUS, NO_KEYS, keyspace::flushdb),
    row("flushall", -1, WRITE | KEYSPACE | DANGEROUS, NO_KEYS, keyspace::flushall),
    row("rename", 3, WRITE | KEYSPACE, both(key(1, RW_ACCESS_DELETE), key(2, OW_UPDATE)), keyspace::rename),
    row(
        "renamenx",
        3,
        WRITE | FAST | KEYSPACE,
        both(key(1, RW_ACCESS_DELETE), key(2, OW_INSERT)),
        keyspace::renamenx,
    ),
    row("copy", -3, WRITE | DENYOOM | KEYSPACE, both(key(1, RO_ACCESS), key(2, OW_UPDATE)), keyspace::copy),
    row("move", 3, WRITE | FAST | KEYSPACE, key(1, RW_ACCESS_UPDATE), keyspace::move_to),
    row("swapdb", 3, WRITE | FAST | KEYSPACE | DANGEROUS, NO_KEYS, keyspace::swapdb),
    row("object", -2, CONTAINER, NO_KEYS, keyspace::object),
    row("object|encoding", 3, READONLY | KEYSPACE, key(2, RO), keyspace::object),
    row("object|freq", 3, READONLY | KEYSPACE, key(2, RO), keyspace::object),
    row("object|help", 2, ANYTIME | KEYSPACE, NO_KEYS, help),
    row("object|idletime", 3, READONLY | KEYSPACE, key(2, RO), keyspace::object),
    row("object|refcount", 3, READONLY | KEYSPACE, key(2, RO), keyspace::object),
    row("sort", -2, WRITE | DENYOOM | SET | SORTEDSET | LIST | DANGEROUS, key(1, RO_ACCESS), sort::sort),
    row("sort_ro", -2, READONLY | SET | SORTEDSET | LIST | DANGEROUS, key(1, RO_ACCESS), sort::sort_ro),
    row("hset", -4, WRITE | DENYOOM | FAST | HASH, key(1, RW_UPDATE), hashes::hset),
    row("hmset", -4, WRITE | DENYOOM | FAST | HASH, key(1, RW_UPDATE), hashes::hmset),
    row("hsetnx", 4, WRITE | DENYOOM | FAST | HASH, key(1, RW_INSERT), hashes::hsetnx),
    row("hget", 3, READONLY | FAST | HASH, key(1, RO_ACCESS), hashes::hget),
    row("hmget", -3, READONLY | FAST | HASH, key(1, RO_ACCESS), hashes::hmget),
    row("hdel", -3, WRITE | FAST | HASH, key(1, RW_DELETE), hashes::hdel),
    row("hexists", 3, READONLY | FAST | HASH, key(1, RO), hashes::hexists),
    row("hlen", 2, READONLY | FAST | HASH, key(1, RO), hashes::hlen),
    row("hstrlen", 3, READONLY | FAST | HASH, key(1, RO), hashes::hstrlen),
    row("hgetall", 2, READONLY | HASH, key(1, RO_ACCESS), hashes::hgetall),
    row("hkeys", 2, READONLY | HASH, key(1, RO_ACCESS), hashes::hkeys),
    row("hvals", 2, READONLY | HASH, key(1, RO_ACCESS), hashes::hvals),
    row("hincrby", 4, WRITE | DENYOOM | FAST | HASH, key(1, RW_ACCESS_UPDATE), hashes::hincrby),
    row("hincrbyfloat", 4, WRITE | DENYOOM | FAST | HASH, key(1, RW_ACCESS_UPDATE), hashes::hincrbyfloat),
    row("hrandfield", -2, READONLY | HASH, key(1, RO_ACCESS), hashes::hrandfield),
    row("hscan", -3, READONLY | HASH, key(1, RO_ACCESS), hashes::hscan),
    row("lpush", -3, WRITE | DENYOOM | FAST | LIST, key(1, RW_INSERT), lists::lpush),
    row("rpush", -3, WRITE | DENYOOM | FAST | LIST, key(1, RW_INSERT), lists::rpush),
    row("lpushx", -3, WRITE | DENYOOM | FAST | LIST, key(1, RW_INSERT), lists::lpushx),
    row("rpushx", -3, WRITE | DENYOOM | FAST | LIST, key(1, RW_INSERT), lists::rpushx),
    row("lpop", -2, WRITE | FAST | LIST, key(1, RW_ACCESS_DELETE), lists::lpop),
    row("rpop", -2, WRITE | FAST | LIST, key(1, RW_ACCESS_DELETE), lists::rpop),
    row("lmpop", -4, WRITE | LIST, counted(1, RW_ACCESS_DELETE), blocking::lmpop),
    row("blpop", -3, WRITE | NOSCRIPT | BLOCKING | LIST, keys(1, -2, 1, RW_ACCESS_DELETE), blocking::blpop),
    row("brpop", -3, WRITE | NOSCRIPT | BLOCKING | LIST, keys(1, -2, 1, RW_ACCESS_DELETE), blocking::brpop),
    row(
        "blmove",
        6,
        WRITE | DENYOOM | NOSCRIPT | BLOCKING | LIST,
        both(key(1, RW_ACCESS_DELETE), key(2, RW_INSERT)),
        blocking::blmove,
    ),
    row(
        "brpoplpush",
        4,
        WRITE | DENYOOM | NOSCRIPT | BLOCKING | LIST,
        both(key(1, RW_ACCESS_DELETE), key(2, RW_INSERT)),
        blocking::brpoplpush,
    ),
    row("blmpop", -5, WRITE | BLOCKING | LIST, counted(2, RW_ACCESS_DELETE), blocking::blmpop),
    row(
        "bzpopmin",
        -3,
        WRITE | NOSCRIPT | BLOCKING | FAST | SORTEDSET,
        keys(1, -2, 1, RW_ACCESS_DELETE),
        blocking::bzpopmin,
    ),
    row(
        "bzpopmax",
        -3,
        WRITE | NOSCRIPT | BLOCKING | FAST | SORTEDSET,
        keys(1, -2, 1, RW_ACCESS_DELETE),
        blocking::bzpopmax,
    ),
    row("bzmpop", -5, WRITE | BLOCKING | SORTEDSET, counted(2, RW_ACCESS_DELETE), blocking::bzmpop),
    row("zmpop", -4, WRITE | SORTEDSET, counted(1, RW_ACCESS_DELETE), blocking::zmpop),
    row("zintercard", -3, READONLY | SORTEDSET, counted(1, RO_ACCESS), sorted::zintercard),
    row("lcs", -3, READONLY | STRING, keys(1, 1, 1, RO_ACCESS), lcs::lcs),
    row("slowlog", -2, CONTAINER, NO_KEYS, slowlog::slowlog),
    row("slowlog|get", -2, ADMIN | ANYTIME, NO_KEYS, slowlog::slowlog),
    row("slowlog|help", 2, ANYTIME, NO_KEYS, help),
    row("slowlog|len", 2, ADMIN | ANYTIME, NO_KEYS, slowlog::slowlog),
    row("slowlog|reset", 2, ADMIN | ANYTIME, NO_KEYS, slowlog::slowlog),
    row("llen", 2, READONLY | FAST | LIST, key(1, RO), lists::llen),
    row("lindex", 3, READONLY | LIST, key(1, RO_ACCESS), lists::lindex),
    row("lset", 4, WRITE | DENYOOM | LIST, key(1, RW_UPDATE), lists::lset),
    row("lrange", 4, READONLY | LIST, key(1, RO_ACCESS), lists::lrange),
    row("ltrim", 4, WRITE | LIST, key(1, RW_DELETE), lists::ltrim),
    row("lrem", 4, WRITE | LIST, key(1, RW_DELETE), lists::lrem),
    row("linsert", 5, WRITE | DENYOOM | LIST, key(1, RW_INSERT), lists::linsert),
    row("lpos", -3, READONLY | LIST, key(1, RO_ACCESS), lists::lpos),
    row(
        "rpoplpush",
        3,
        WRITE | DENYOOM | LIST,
        both(key(1, RW_ACCESS_DELETE), key(2, RW_INSERT)),
        lists::rpoplpush,
    ),
    row("lmove", 5, WRITE | DENYOOM | LIST, both(key(1, RW_ACCESS_DELETE), key(2, RW_INSERT)), lists::lmove),
    row("sadd", -3, WRITE | DENYOOM | FAST | SET, key(1, RW_INSERT), sets::sadd),
    row("srem", -3, WRITE | FAST | SET, key(1, RW_DELETE), sets::srem),
    row("scard", 2, READONLY | FAST | SET, key(1, RO), sets::scard),
    row("sismember", 3, READONLY | FAST | SET, key(1, RO), sets::sismember),
    row("smismember", -3, READONLY | FAST | SET, key(1, RO_ACCESS), sets::smismember),
    row("smembers", 2, READONLY | SET, key(1, RO_ACCESS), sets::smembers),
    row("smove", 4, WRITE | FAST | SET, both(key(1, RW_ACCESS_DELETE), key(2, RW_INSERT)), sets::smove),
    row("srandmember", -2, READONLY | SET, key(1, RO_ACCESS), sets::srandmember),
    row("spop", -2, WRITE | FAST | SET, key(1, RW_ACCESS_DELETE), sets::spop),
    row("sunion", -2, READONLY | SET, keys(1, -1, 1, RO_ACCESS), sets::sunion),
    row("sinter", -2, READONLY | SET, keys(1, -1, 1, RO_ACCESS), sets::sinter),
    row("sdiff", -2, READONLY | SET, keys(1, -1, 1, RO_ACCESS), sets::sdiff),
    row(
        "sunionstore",
        -3,
        WRITE | DENYOOM | SET,
        both(key(1, OW_UPDATE), keys(2, -1, 1, RO_ACCESS)),
        sets::sunionstore,
    ),
    row(
        "sinterstore",
        -3,
        WRITE | DENYOOM | SET,
        both(key(1, RW_UPDATE), keys(2, -1, 1, RO_ACCESS)),
        sets::sinterstore,
    ),
    row(
        "sdiffstore",
        -3,
        WRITE | DENYOOM | SET,
        both(key(1, OW_UPDATE), keys(2, -1, 1, RO_ACCESS)),
        sets::sdiffstore,
    ),
    row("sintercard", -3, READONLY | SET, counted(1, RO_ACCESS), sets::sintercard),
    row("sscan", -3, READONLY | SET, key(1, RO_ACCESS), sets::sscan),
    row("zadd", -4, WRITE | DENYOOM | FAST | SORTEDSET, key(1, RW_UPDATE), sorted::zadd),
    row("zincrby", 4, WRITE | DENYOOM | FAST | SORTEDSET, key(1, RW_ACCESS_UPDATE), sorted::zincrby),
    row("zrem", -3, WRITE | FAST | SORTEDSET, key(1, RW_DELETE), sorted::zrem),
    row("zcard", 2, READONLY | FAST | SORTEDSET, key(1, RO), sorted::zcard),
    row("zscore", 3, READONLY | FAST | SORTEDSET, key(1, RO_ACCESS), sorted::zscore),
    row("zmscore", -3, READONLY | FAST | SORTEDSET, key(1, RO_ACCESS), sorted::zmscore),
    row("zrank", 3, READONLY | FAST | SORTEDSET, key(1, RO_ACCESS), sorted::zrank),
    row("zrevrank", 3, READONLY | FAST | SORTEDSET, key(1, RO_ACCESS), sorted::zrevrank),
    row("zpopmin", -2, WRITE | FAST | SORTEDSET, key(1, RW_ACCESS_DELETE), sorted::zpopmin),
    row("zpopmax", -2, WRITE | FAST | SORTEDSET, key(1, RW_ACCESS_DELETE), sorted::zpopmax),
    row("zrandmember", -2, READONLY | SORTEDSET, key(1, RO_ACCESS), sorted::zrandmember),
    row("zscan", -3, READONLY | SORTEDSET, key(1, RO_ACCESS), sorted::zscan),
    row("zunion", -3, READONLY | SORTEDSET, counted(1, RO_ACCESS), sorted::zunion),
    row("zinter", -3, READONLY | SORTEDSET, counted(1, RO_ACCESS), sorted::zinter),
    row("zdiff", -3, READONLY | SORTEDSET, counted(1, RO_ACCESS), sorted::zdiff),
    row(
        "zunionstore",
        -4,
        WRITE | DENYOOM | SORTEDSET,
        both(key(1, OW_UPDATE), counted(2, RO_ACCESS)),
        sorted::zunionstore,
    ),
    row(
        "zinterstore",
        -4,
        WRITE | DENYOOM | SORTEDSET,
        both(key(1, OW_UPDATE), counted(2, RO_ACCESS)),
        sorted::zinterstore,
    ),
    row(
        "zdiffstore",
        -4,
        WRITE | DENYOOM | SORTEDSET,
        both(key(1, OW_UPDATE), counted(2, RO_ACCESS)),
        sorted::zdiffstore,
    ),
    row("zrange", -4, READONLY | SORTEDSET, key(1, RO_ACCESS), sorted_ranges::zrange),
    row("zrevrange", -4, READONLY | SORTEDSET, key(1, RO_ACCESS), sorted_ranges::zrevrange),
    row("zrangebyscore", -4, READONLY | SORTEDSET, key(1, RO_ACCESS), sorted_ranges::zrangebyscore),
    row("zrevrangebyscore", -4, READONLY | SORTEDSET, key(1, RO_ACCESS), sorted_ranges::zrevrangebyscore),
    row("zrangebylex", -4, READONLY | SORTEDSET, key(1, RO_ACCESS), sorted_ranges::zrangebylex),
    row("zrevrangebylex", -4, READONLY | SORTEDSET, key(1, RO_ACCESS), sorted_ranges::zrevrangebylex),
    row(
        "zrangestore",
        -5,
        WRITE | DENYOOM | SORTEDSET,
        both(key(1, OW_UPDATE), key(2, RO_ACCESS)),
        sorted_ranges::zrangestore,
    ),
    row("zcount", 4, READONLY | FAST | SORTEDSET, key(1, RO_ACCESS), sorted_ranges::zcount),
    row("zlexcount", 4, READONLY | FAST | SORTEDSET, key(1, RO_ACCESS), sorted_ranges::zlexcount),
    row("zremrangebyrank", 4, WRITE | SORTEDSET, key(1, RW_DELETE), sorted_ranges::zremrangebyrank),
    row("zremrangebyscore", 4, WRITE | SORTEDSET, key(1, RW_DELETE), sorted_ranges::zremrangebyscore),
    row("zremrangebylex", 4, WRITE | SORTEDSET, key(1, RW_DELETE), sorted_ranges::zremrangebylex),
    row(
        "multi",
        1,
        NOSCRIPT | FAST | ALLOW_BUSY | ANYTIME | TRANSACTION | NOT_QUEUED,
        NO_KEYS,
        transactions::multi,
    ),
    row("exec", 1, NOSCRIPT | SKIP_SLOWLOG | ANYTIME | TRANSACTION | NOT_QUEUED, NO_KEYS, transactions::exec),
    row(
        "discard",
        1,
        NOSCRIPT | FAST | ALLOW_BUSY | ANYTIME | TRANSACTION | NOT_QUEUED,
        NO_KEYS,
        transactions::discard,
    ),
    row(
        "watch",
        -2,
        NOSCRIPT | FAST | ALLOW_BUSY | ANYTIME | TRANSACTION | NOT_QUEUED | BLIND,
        keys(1, -1, 1, RO),
        transactions::watch,
    ),
    row("unwatch", 1, NOSCRIPT | FAST | ALLOW_BUSY | ANYTIME | TRANSACTION, NO_KEYS, transactions::unwatch),
    row("ping", -1, FAST | CONNECTION, NO_KEYS, server::ping),
    row("echo", 2, FAST | ANYTIME | CONNECTION, NO_KEYS, server::echo),
    row("select", 2, FAST | ANYTIME | CONNECTION, NO_KEYS, server::select),
    row("acl", -2, CONTAINER, NO_KEYS, acl::acl),
    row("acl|cat", -2, NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|deluser", -3, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|dryrun", -4, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|genpass", -2, NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|getuser", 3, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|help", 2, ANYTIME, NO_KEYS, help),
    row("acl|list", 2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|load", 2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|log", -2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|save", 2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|setuser", -3, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|users", 2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("acl|whoami", 2, NOSCRIPT | ANYTIME, NO_KEYS, acl::acl),
    row("auth", -2, NOSCRIPT | FAST | NO_AUTH | ALLOW_BUSY | ANYTIME | CONNECTION, NO_KEYS, server::auth),
    row(
        "hello",
        -1,
        NOSCRIPT | FAST | NO_AUTH | ALLOW_BUSY | ANYTIME | CONNECTION | NO_MULTI,
        NO_KEYS,
        server::hello,
    ),
    row(
        "quit",
        -1,
        NOSCRIPT | FAST | NO_AUTH | ALLOW_BUSY | ANYTIME | CONNECTION | NOT_QUEUED,
        NO_KEYS,
        server::quit,
    ),
    row(
        "reset",
        1,
        NOSCRIPT | FAST | NO_AUTH | ALLOW_BUSY | ANYTIME | CONNECTION | NOT_QUEUED,
        NO_KEYS,
        server::reset,
    ),
    row("time", 1, FAST | ANYTIME, NO_KEYS, server::time),
    row("info", -1, ANYTIME | DANGEROUS, NO_KEYS, server::info),
    row("client", -2, CONTAINER, NO_KEYS, client::client),
    row("client|getname", 2, NOSCRIPT | ANYTIME | CONNECTION, NO_KEYS, client::client),
    row("client|help", 2, ANYTIME | CONNECTION, NO_KEYS, help),
    row("client|id", 2, NOSCRIPT | ANYTIME | CONNECTION, NO_KEYS, client::client),
    row("client|info", 2, NOSCRIPT | ANYTIME | CONNECTION, NO_KEYS, client::client),
    row("client|kill", -3, ADMIN | NOSCRIPT | ANYTIME | CONNECTION, NO_KEYS, client::client),
    row("client|list", -2, ADMIN | NOSCRIPT | ANYTIME | CONNECTION, NO_KEYS, client::client),
    row("client|no-evict", 3, ADMIN | NOSCRIPT | ANYTIME | CONNECTION, NO_KEYS, client::client),
    row("client|reply", 3, NOSCRIPT | ANYTIME | CONNECTION, NO_KEYS, client::client),
    row("client|setname", 3, NOSCRIPT | ANYTIME | CONNECTION, NO_KEYS, client::client),
    row("client|unblock", -3, ADMIN | NOSCRIPT | ANYTIME | CONNECTION, NO_KEYS, client::client),
    row("client|setinfo", 4, NOSCRIPT | ANYTIME | CONNECTION, NO_KEYS, client::client),
    row("config", -2, CONTAINER, NO_KEYS, server::config),
    row("config|get", -3, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, server::config),
    row("config|help", 2, ANYTIME, NO_KEYS, help),
    row("config|resetstat", 2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, server::config),
    row("config|rewrite", 2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, server::config),
    row("config|set", -4, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, server::config),
    row("command", -1, ANYTIME | CONNECTION | CONTAINER, NO_KEYS, introspection::command),
    row("command|count", 2, ANYTIME | CONNECTION, NO_KEYS, introspection::command),
    row("command|docs", -2, ANYTIME | CONNECTION, NO_KEYS, introspection::command),
    row("command|getkeys", -4, ANYTIME | CONNECTION, NO_KEYS, introspection::command),
    row("command|getkeysandflags", -4, ANYTIME | CONNECTION, NO_KEYS, introspection::command),
    row("command|help", 2, ANYTIME | CONNECTION, NO_KEYS, help),
    row("command|info", -2, ANYTIME | CONNECTION, NO_KEYS, introspection::command),
    row("command|list", -2, ANYTIME | CONNECTION, NO_KEYS, introspection::command),
    row("debug", -2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, server::debug),
    row("memory", -2, CONTAINER, NO_KEYS, server::memory),
    row("memory|doctor", 2, NONE, NO_KEYS, server::memory),
    row("memory|help", 2, ANYTIME, NO_KEYS, help),
    row("memory|purge", 2, NONE, NO_KEYS, server::memory),
    row("memory|stats", 2, NONE, NO_KEYS, server::memory),
    row("memory|usage", -3, READONLY, key(2, RO), server::memory),
    row("role", 1, NOSCRIPT | FAST | ANYTIME | ADMIN_CATEGORY | DANGEROUS, NO_KEYS, server::role),
    row("wait", 3, NOSCRIPT | CONNECTION, NO_KEYS, server::wait),
    row("save", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI, NO_KEYS, server::save),
    row("bgsave", -1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, NO_KEYS, server::bgsave),
    row("bgrewriteaof", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, NO_KEYS, server::bgrewriteaof),
    row("lastsave", 1, FAST | ANYTIME | ADMIN_CATEGORY | DANGEROUS, NO_KEYS, server::lastsave),
    row("shutdown", -1, ADMIN | NOSCRIPT | NO_MULTI | ALLOW_BUSY | ANYTIME, NO_KEYS, server::shutdown),
    row("latency", -2, CONTAINER, NO_KEYS, latency::latency),
    row("latency|doctor", 2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, latency::latency),
    row("latency|help", 2, ANYTIME, NO_KEYS, help),
    row("latency|histogram", -2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, latency::latency),
    row("latency|history", 3, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, latency::latency),
    row("latency|latest", 2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, latency::latency),
    row("latency|reset", -2, ADMIN | NOSCRIPT | ANYTIME, NO_KEYS, latency::latency),
    row("module", -2, CONTAINER, NO_KEYS, server::module),
    row("module|help", 2, ANYTIME, NO_KEYS, help),
    row("module|list", 2, ADMIN | NOSCRIPT, NO_KEYS, server::module),
];

/// Returns the commands and subcommands that clients may send.
pub(crate) fn all() -> impl Iterator<Item = &'static Command> + Clone {
    TABLE.iter().filter(|command| !command.has(INTERNAL))
}

/// Returns the commands that clients may send, without subcommands.
pub(crate) fn commands() -> impl Iterator<Item = &'static Command> + Clone {
    all().filter(|command| !command.is_subcommand())
}

/// Returns the subcommands of a command.
pub(crate) fn subcommands(command: &'static Command) -> impl Iterator<Item = &'static Command> + Clone {
    let is_of = |row: &&Command| row.name.split_once('|').is_some_and(|(parent, _)| parent == command.name);
    all().filter(move |row| row.is_subcommand() && is_of(row))
}

/// The reason for which this server lacks a command of Redis.
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

/// The slots of the hash table of names: a power of two, several times the number of rows.
const SLOTS: usize = 1_024;

static SLOT_OF: LazyLock<Vec<u16>> = LazyLock::new(|| {
    let mut slots = vec![u16::MAX; SLOTS];
    for (number, command) in TABLE.iter().enumerate() {
        let mut at = slot(command.name.as_bytes());
        while slots[at] != u16::MAX {
            at = (at + 1) % SLOTS;
        }
        slots[at] = u16::try_from(number).expect("a few hundred commands");
    }
    slots
});

fn slot(name: &[u8]) -> usize {
    let hash = name
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte | 0x20)).wrapping_mul(0x0100_0193));
    (hash ^ hash >> 15) as usize % SLOTS
}

/// Returns the number of a row of the table.
pub(crate) fn number_of(command: &'static Command) -> usize {
    (std::ptr::from_ref(command).addr() - TABLE.as_ptr().addr()) / size_of::<Command>()
}

/// Finds the row of a name in upper or lower case. The name of a subcommand is `config|get`.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    let mut at = slot(name);
    loop {
        let command = TABLE.get(usize::from(SLOT_OF[at]))?;
        if name.eq_ignore_ascii_case(command.name.as_bytes()) {
            return Some(command);
        }
        at = (at + 1) % SLOTS;
    }
}

/// Finds the row of a command's subcommand.
pub(crate) fn find_subcommand(command: &Command, name: &[u8]) -> Option<&'static Command> {
    const LEN_MAX: usize = 32;
    if name.len() > LEN_MAX {
        return None;
    }
    let full: smallvec::SmallVec<[u8; 64]> =
        command.name.bytes().chain([b'|']).chain(name.iter().copied()).collect();
    find(&full)
}

/// Finds the row of a request, whatever the number of its words.
pub(crate) fn find_of(request: &[&[u8]]) -> Option<&'static Command> {
    let command = find(request.first()?).filter(|command| !command.is_subcommand())?;
    match request.get(1) {
        Some(name) if command.has(CONTAINER) => find_subcommand(command, name),
        _ => Some(command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_found_by_its_name() {
        for (number, command) in TABLE.iter().enumerate() {
            let found = find(command.name.to_uppercase().as_bytes()).unwrap();
            assert_eq!((found.name, number_of(found)), (command.name, number));
            let words: Vec<&[u8]> = command.name.split('|').map(str::as_bytes).collect();
            assert_eq!(find_of(&words).unwrap().name, command.name);
        }
        assert!(find(b"nothing").is_none() && find(b"").is_none() && find(b"\xff\xff").is_none());
        assert!(find_of(&[b"config|get"]).is_none() && find_of(&[b"config", b"nothing"]).is_none());
    }
}
