//! Categories of commands, as Redis 7.0 has them, of the commands that are here.

use crate::command::Command;

/// A category, and the commands in it; flags of the table say it of the others ([`has`]).
type Row = (&'static str, &'static [&'static str]);

const ROWS: &[Row] = &[
    (
        "keyspace",
        &[
            "copy",
            "dbsize",
            "del",
            "exists",
            "expire",
            "expireat",
            "expiretime",
            "flushall",
            "flushdb",
            "keys",
            "move",
            "object",
            "persist",
            "pexpire",
            "pexpireat",
            "pexpiretime",
            "pttl",
            "randomkey",
            "rename",
            "renamenx",
            "scan",
            "swapdb",
            "touch",
            "ttl",
            "type",
            "unlink",
        ],
    ),
    ("read", &[]),
    ("write", &[]),
    ("set", &["sort", "sort_ro"]),
    ("sortedset", &["sort", "sort_ro", "bzpopmin", "bzpopmax", "bzmpop"]),
    (
        "list",
        &[
            "sort",
            "sort_ro",
            "blpop",
            "brpop",
            "blmove",
            "blmpop",
            "brpoplpush",
            "rpop",
            "rpush",
            "rpushx",
            "rpoplpush",
        ],
    ),
    ("hash", &[]),
    (
        "string",
        &[
            "append",
            "decr",
            "decrby",
            "get",
            "getdel",
            "getex",
            "getrange",
            "getset",
            "incr",
            "incrby",
            "incrbyfloat",
            "lcs",
            "mget",
            "mset",
            "msetnx",
            "psetex",
            "set",
            "setex",
            "setnx",
            "setrange",
            "strlen",
            "substr",
        ],
    ),
    (
        "admin",
        &["acl", "bgrewriteaof", "bgsave", "config", "debug", "lastsave", "save", "shutdown", "slowlog"],
    ),
    ("fast", &[]),
    ("slow", &[]),
    ("blocking", &["blmove", "blmpop", "blpop", "brpop", "brpoplpush", "bzmpop", "bzpopmax", "bzpopmin"]),
    (
        "dangerous",
        &[
            "acl",
            "bgrewriteaof",
            "bgsave",
            "config",
            "debug",
            "flushall",
            "flushdb",
            "info",
            "keys",
            "lastsave",
            "role",
            "save",
            "shutdown",
            "slowlog",
            "sort",
            "sort_ro",
            "swapdb",
        ],
    ),
    (
        "connection",
        &["auth", "client", "command", "echo", "hello", "ping", "quit", "reset", "select", "wait"],
    ),
    ("transaction", &["discard", "exec", "multi", "unwatch", "watch"]),
];

/// Subcommands whose categories are not those of the rest of their command.
const ADMINISTERS: &[(&str, &[&str])] =
    &[("client", &["kill", "list", "no-evict", "unblock", "pause", "unpause"])];
const HARMLESS: &[(&str, &[&str])] =
    &[("acl", &["whoami", "cat", "genpass", "help"]), ("config", &["help"]), ("slowlog", &["help"])];

/// The names of all categories.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|(name, _)| *name)
}

/// True when there is a category of this name.
pub(crate) fn is_one(name: &str) -> bool {
    names().any(|known| known == name)
}

/// True when a command is in a category.
pub(crate) fn has(category: &str, command: &Command) -> bool {
    let listed = ROWS.iter().any(|(name, commands)| *name == category && commands.contains(&command.name));
    let name = command.name;
    listed
        || match category {
            "read" => {
                command.reads() && command.keys.0 > 0
                    || matches!(name, "dbsize" | "keys" | "scan" | "randomkey")
                    // Their keys have a number in front.
                    || matches!(name, "zunion" | "zinter" | "zdiff" | "zintercard" | "sintercard")
            }
            "write" => command.writes(),
            "fast" => command.is_fast(),
            "slow" => !command.is_fast(),
            "hash" => name.starts_with('h') && name != "hello",
            "list" => name.starts_with('l') && !matches!(name, "lcs" | "lastsave"),
            "sortedset" => name.starts_with('z'),
            "set" => {
                let others = ["select", "save", "shutdown", "slowlog", "swapdb", "scan", "substr", "strlen"];
                name.starts_with('s') && !name.starts_with("set") && !others.contains(&name)
            }
            _ => false,
        }
}

/// Subcommands of a command that a rule about a category leaves as they were, or takes along alone: `true` when the category has them and not the rest.
pub(super) fn apart(category: &str, command: &str) -> Option<(bool, &'static [&'static str])> {
    if !matches!(category, "admin" | "dangerous") {
        return None;
    }
    let of = |rows: &'static [(&str, &'static [&'static str])]| {
        rows.iter().find(|(name, _)| *name == command).map(|(_, subs)| *subs)
    };
    of(ADMINISTERS).map(|subs| (true, subs)).or_else(|| of(HARMLESS).map(|subs| (false, subs)))
}
