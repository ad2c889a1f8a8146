//! The keys of each command and the operations on them (redis.io/docs/reference/key-specs).

use crate::parse::Op;

/// Maximum length in bytes of a command's name.
pub(super) const NAME_LEN_MAX: usize = 20;
/// Maximum length in bytes of an option of SET that matters.
pub(super) const OPTION_LEN_MAX: usize = 8;

/// The places of a command's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Keys {
    /// The first word.
    One(Op),
    /// All words.
    All(Op),
    /// All words but the last, which is a timeout.
    ButLast(Op),
    /// Every second word from the first.
    Pairs(Op),
    /// The second word, after a subcommand.
    Second(Op),
    /// The first two words, with an operation each.
    Two(Op, Op),
    /// The first word is the destination; all others are sources.
    Made,
    /// The second word is the destination; all later ones are sources.
    MadeSecond,
    /// The keys follow the word at this place, which gives their number.
    Counted(u64),
    /// As `Counted(2)`, and the first word is the destination.
    MadeCounted,
    /// SET: its options decide.
    Set,
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Command {
    name: &'static str,
    pub(super) keys: Keys,
}

impl Command {
    /// Returns the first key, the end, and the step, for a request of `words` words.
    pub(super) fn keys_of(&self, words: u64) -> (u64, u64, u64) {
        let (first, end, step) = match self.keys {
            Keys::One(_) | Keys::Set | Keys::MadeCounted => (1, 2, 1),
            Keys::All(_) | Keys::Made => (1, words, 1),
            Keys::ButLast(_) => (1, words.saturating_sub(1), 1),
            Keys::Pairs(_) => (1, words, 2),
            Keys::Second(_) => (2, 3, 1),
            Keys::Two(..) => (1, 3, 1),
            Keys::MadeSecond => (2, words, 1),
            Keys::Counted(_) => (0, 0, 1),
        };
        (first, end.min(words), step)
    }

    /// Returns the place of the word that gives the number of keys.
    pub(super) const fn counts_at(&self) -> Option<u64> {
        match self.keys {
            Keys::Counted(at) => Some(at),
            Keys::MadeCounted => Some(2),
            _ => None,
        }
    }

    /// Returns the operation on the key at a word.
    pub(super) const fn op_at(&self, at: u64) -> Op {
        match self.keys {
            Keys::One(op) | Keys::All(op) | Keys::ButLast(op) | Keys::Pairs(op) | Keys::Second(op) => op,
            Keys::Two(first, second) => {
                if at == 1 {
                    first
                } else {
                    second
                }
            }
            Keys::Made | Keys::MadeCounted if at == 1 => Op::Write,
            Keys::MadeSecond if at == 2 => Op::Write,
            Keys::Set => Op::Write,
            Keys::Made | Keys::MadeSecond | Keys::Counted(_) | Keys::MadeCounted => Op::Read,
        }
    }
}

/// Returns true if SET with this option reads the present item.
pub(super) fn needs_the_item(option: &[u8]) -> bool {
    ["NX", "XX", "GET", "KEEPTTL", "IFEQ", "IFNE", "IFDEQ", "IFDNE"]
        .iter()
        .any(|name| option.eq_ignore_ascii_case(name.as_bytes()))
}

/// Returns the command of this name; `None` if it is unknown or has no keys.
pub(super) fn named(name: &[u8]) -> Option<&'static Command> {
    let mut upper = [0; NAME_LEN_MAX];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    let at = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(upper)).ok()?;
    Some(&COMMANDS[at])
}

const fn command(name: &'static str, keys: Keys) -> Command {
    Command { name, keys }
}

const READ: Keys = Keys::One(Op::Read);

/// Commands sorted by name. A command that changes a part of an item reads it (PD3 5.1: "Read-Modify-Write
/// should be parsed as Read").
static COMMANDS: &[Command] = &[
    command("APPEND", READ),
    command("BITCOUNT", READ),
    command("BITFIELD", READ),
    command("BITFIELD_RO", READ),
    command("BITOP", Keys::MadeSecond),
    command("BITPOS", READ),
    command("BLMOVE", Keys::Two(Op::Read, Op::Read)),
    command("BLMPOP", Keys::Counted(2)),
    command("BLPOP", Keys::ButLast(Op::Read)),
    command("BRPOP", Keys::ButLast(Op::Read)),
    command("BRPOPLPUSH", Keys::Two(Op::Read, Op::Read)),
    command("BZMPOP", Keys::Counted(2)),
    command("BZPOPMAX", Keys::ButLast(Op::Read)),
    command("BZPOPMIN", Keys::ButLast(Op::Read)),
    command("COPY", Keys::Two(Op::Read, Op::Read)),
    command("DECR", READ),
    command("DECRBY", READ),
    command("DEL", Keys::All(Op::Delete)),
    command("DUMP", READ),
    command("EVAL", Keys::Counted(2)),
    command("EVALSHA", Keys::Counted(2)),
    command("EVALSHA_RO", Keys::Counted(2)),
    command("EVAL_RO", Keys::Counted(2)),
    command("EXISTS", Keys::All(Op::Read)),
    command("EXPIRE", READ),
    command("EXPIREAT", READ),
    command("EXPIRETIME", READ),
    command("FCALL", Keys::Counted(2)),
    command("FCALL_RO", Keys::Counted(2)),
    command("GEOADD", READ),
    command("GEODIST", READ),
    command("GEOHASH", READ),
    command("GEOPOS", READ),
    command("GEOSEARCH", READ),
    command("GEOSEARCHSTORE", Keys::Two(Op::Write, Op::Read)),
    command("GET", READ),
    command("GETBIT", READ),
    command("GETDEL", Keys::One(Op::Delete)),
    command("GETEX", READ),
    command("GETRANGE", READ),
    command("GETSET", READ),
    command("HDEL", READ),
    command("HEXISTS", READ),
    command("HEXPIRE", READ),
    command("HEXPIREAT", READ),
    command("HEXPIRETIME", READ),
    command("HGET", READ),
    command("HGETALL", READ),
    command("HGETDEL", READ),
    command("HGETEX", READ),
    command("HINCRBY", READ),
    command("HINCRBYFLOAT", READ),
    command("HKEYS", READ),
    command("HLEN", READ),
    command("HMGET", READ),
    command("HMSET", READ),
    command("HPERSIST", READ),
    command("HPEXPIRE", READ),
    command("HPEXPIREAT", READ),
    command("HPEXPIRETIME", READ),
    command("HPTTL", READ),
    command("HRANDFIELD", READ),
    command("HSCAN", READ),
    command("HSET", READ),
    command("HSETEX", READ),
    command("HSETNX", READ),
    command("HSTRLEN", READ),
    command("HTTL", READ),
    command("HVALS", READ),
    command("INCR", READ),
    command("INCRBY", READ),
    command("INCRBYFLOAT", READ),
    command("LCS", Keys::Two(Op::Read, Op::Read)),
    command("LINDEX", READ),
    command("LINSERT", READ),
    command("LLEN", READ),
    command("LMOVE", Keys::Two(Op::Read, Op::Read)),
    command("LMPOP", Keys::Counted(1)),
    command("LPOP", READ),
    command("LPOS", READ),
    command("LPUSH", READ),
    command("LPUSHX", READ),
    command("LRANGE", READ),
    command("LREM", READ),
    command("LSET", READ),
    command("LTRIM", READ),
    command("MEMORY", Keys::Second(Op::Read)),
    command("MGET", Keys::All(Op::Read)),
    command("MOVE", READ),
    command("MSET", Keys::Pairs(Op::Write)),
    command("MSETNX", Keys::Pairs(Op::Read)),
    command("OBJECT", Keys::Second(Op::Read)),
    command("PERSIST", READ),
    command("PEXPIRE", READ),
    command("PEXPIREAT", READ),
    command("PEXPIRETIME", READ),
    command("PFADD", READ),
    command("PFCOUNT", Keys::All(Op::Read)),
    command("PFMERGE", Keys::All(Op::Read)),
    command("PSETEX", Keys::One(Op::Write)),
    command("PTTL", READ),
    command("RENAME", Keys::Two(Op::Delete, Op::Write)),
    command("RENAMENX", Keys::Two(Op::Delete, Op::Read)),
    command("RESTORE", Keys::One(Op::Write)),
    command("RPOP", READ),
    command("RPOPLPUSH", Keys::Two(Op::Read, Op::Read)),
    command("RPUSH", READ),
    command("RPUSHX", READ),
    command("SADD", READ),
    command("SCARD", READ),
    command("SDIFF", Keys::All(Op::Read)),
    command("SDIFFSTORE", Keys::Made),
    command("SET", Keys::Set),
    command("SETBIT", READ),
    command("SETEX", Keys::One(Op::Write)),
    command("SETNX", READ),
    command("SETRANGE", READ),
    command("SINTER", Keys::All(Op::Read)),
    command("SINTERCARD", Keys::Counted(1)),
    command("SINTERSTORE", Keys::Made),
    command("SISMEMBER", READ),
    command("SMEMBERS", READ),
    command("SMISMEMBER", READ),
    command("SMOVE", Keys::Two(Op::Read, Op::Read)),
    command("SORT", READ),
    command("SORT_RO", READ),
    command("SPOP", READ),
    command("SRANDMEMBER", READ),
    command("SREM", READ),
    command("SSCAN", READ),
    command("STRLEN", READ),
    command("SUBSTR", READ),
    command("SUNION", Keys::All(Op::Read)),
    command("SUNIONSTORE", Keys::Made),
    command("TOUCH", Keys::All(Op::Read)),
    command("TTL", READ),
    command("TYPE", READ),
    command("UNLINK", Keys::All(Op::Delete)),
    command("WATCH", Keys::All(Op::Read)),
    command("XACK", READ),
    command("XADD", READ),
    command("XAUTOCLAIM", READ),
    command("XCLAIM", READ),
    command("XDEL", READ),
    command("XGROUP", Keys::Second(Op::Read)),
    command("XINFO", Keys::Second(Op::Read)),
    command("XLEN", READ),
    command("XPENDING", READ),
    command("XRANGE", READ),
    command("XREVRANGE", READ),
    command("XTRIM", READ),
    command("ZADD", READ),
    command("ZCARD", READ),
    command("ZCOUNT", READ),
    command("ZDIFF", Keys::Counted(1)),
    command("ZDIFFSTORE", Keys::MadeCounted),
    command("ZINCRBY", READ),
    command("ZINTER", Keys::Counted(1)),
    command("ZINTERCARD", Keys::Counted(1)),
    command("ZINTERSTORE", Keys::MadeCounted),
    command("ZLEXCOUNT", READ),
    command("ZMPOP", Keys::Counted(1)),
    command("ZMSCORE", READ),
    command("ZPOPMAX", READ),
    command("ZPOPMIN", READ),
    command("ZRANDMEMBER", READ),
    command("ZRANGE", READ),
    command("ZRANGEBYLEX", READ),
    command("ZRANGEBYSCORE", READ),
    command("ZRANGESTORE", Keys::Two(Op::Write, Op::Read)),
    command("ZRANK", READ),
    command("ZREM", READ),
    command("ZREMRANGEBYLEX", READ),
    command("ZREMRANGEBYRANK", READ),
    command("ZREMRANGEBYSCORE", READ),
    command("ZREVRANGE", READ),
    command("ZREVRANGEBYLEX", READ),
    command("ZREVRANGEBYSCORE", READ),
    command("ZREVRANK", READ),
    command("ZSCAN", READ),
    command("ZSCORE", READ),
    command("ZUNION", Keys::Counted(1)),
    command("ZUNIONSTORE", Keys::MadeCounted),
];

#[cfg(test)]
mod tests {
    use super::{COMMANDS, NAME_LEN_MAX, named};

    #[test]
    fn the_table_is_in_order_and_finds_each() {
        assert!(COMMANDS.is_sorted_by(|one, other| one.name < other.name));
        for command in COMMANDS {
            assert!(command.name.len() <= NAME_LEN_MAX);
            assert_eq!(named(command.name.to_ascii_lowercase().as_bytes()), Some(command));
        }
        assert_eq!(named(b"NOTHING"), None);
        assert_eq!(named(&[b'A'; 100]), None);
    }
}
