//! The description of a command: arity, flags, ACL categories and the positions of its keys.
//!
//! Key types: [`Command`], a row of the table; [`KeySpec`], where some of its keys are and how the command uses them. The
//! terms are those of Redis's `COMMAND` reply (redis.io/docs/reference/key-specs).

use super::{Args, CommandResult, Context};
use farmem_resp::Writer;
use smallvec::SmallVec;

/// The command changes data.
pub(crate) const WRITE: u32 = 1;
/// The command reads data and changes none.
pub(crate) const READONLY: u32 = 1 << 1;
/// The command may need memory, and is refused while there is none.
pub(crate) const DENYOOM: u32 = 1 << 2;
/// The command administers the server: in the categories `admin` and `dangerous`.
pub(crate) const ADMIN: u32 = 1 << 3;
/// Redis's scripts may not call the command.
pub(crate) const NOSCRIPT: u32 = 1 << 4;
/// The client may wait for a key.
pub(crate) const BLOCKING: u32 = 1 << 5;
/// Redis serves the command also while it loads data, and at a replica without its master.
pub(crate) const ANYTIME: u32 = 1 << 6;
/// The slow log leaves the command out.
pub(crate) const SKIP_SLOWLOG: u32 = 1 << 7;
/// The command takes constant or logarithmic time.
pub(crate) const FAST: u32 = 1 << 8;
/// A client that has not authenticated may send the command.
pub(crate) const NO_AUTH: u32 = 1 << 9;
/// Redis refuses the command while it loads data in the background.
pub(crate) const NO_ASYNC_LOADING: u32 = 1 << 10;
/// The command is refused in a transaction.
pub(crate) const NO_MULTI: u32 = 1 << 11;
/// Redis serves the command while a script runs for too long.
pub(crate) const ALLOW_BUSY: u32 = 1 << 12;
/// The ACL categories that do not follow from the other flags.
pub(crate) const KEYSPACE: u32 = 1 << 13;
pub(crate) const STRING: u32 = 1 << 14;
pub(crate) const LIST: u32 = 1 << 15;
pub(crate) const SET: u32 = 1 << 16;
pub(crate) const SORTEDSET: u32 = 1 << 17;
pub(crate) const HASH: u32 = 1 << 18;
pub(crate) const CONNECTION: u32 = 1 << 19;
pub(crate) const TRANSACTION: u32 = 1 << 20;
pub(crate) const DANGEROUS: u32 = 1 << 21;
pub(crate) const ADMIN_CATEGORY: u32 = 1 << 22;
/// The command runs at once also in a transaction.
pub(crate) const NOT_QUEUED: u32 = 1 << 23;
/// The command needs no values of its keys: whether they exist, and when they expire, is known without.
pub(crate) const BLIND: u32 = 1 << 24;
/// The append log may have the command, and no client may send it.
pub(crate) const INTERNAL: u32 = 1 << 25;
/// The command has subcommands, with rows of their own.
pub(crate) const CONTAINER: u32 = 1 << 26;
/// The row of a subcommand (`config|get`).
const SUBCOMMAND: u32 = 1 << 27;
pub(crate) const NONE: u32 = 0;

/// How a command uses a key: a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access(u8);

const ACCESS: u8 = 1 << 4;
const UPDATE: u8 = 1 << 5;
const INSERT: u8 = 1 << 6;
const DELETE: u8 = 1 << 7;

pub(crate) const RO: Access = Access(1);
pub(crate) const RO_ACCESS: Access = Access(1 | ACCESS);
pub(crate) const RW_ACCESS_UPDATE: Access = Access(2 | ACCESS | UPDATE);
pub(crate) const RW_ACCESS_DELETE: Access = Access(2 | ACCESS | DELETE);
pub(crate) const RW_UPDATE: Access = Access(2 | UPDATE);
pub(crate) const RW_INSERT: Access = Access(2 | INSERT);
pub(crate) const RW_DELETE: Access = Access(2 | DELETE);
pub(crate) const OW_UPDATE: Access = Access(4 | UPDATE);
pub(crate) const OW_INSERT: Access = Access(4 | INSERT);
pub(crate) const RM_DELETE: Access = Access(8 | DELETE);

impl Access {
    /// Returns whether the command returns, copies or compares the value.
    pub(crate) const fn reads(self) -> bool {
        self.0 & ACCESS != 0
    }

    /// Returns whether the command adds to the value, changes or deletes it.
    pub(crate) const fn writes(self) -> bool {
        self.0 & (UPDATE | INSERT | DELETE) != 0
    }

    /// Returns the bits' names in Redis's `COMMAND` reply.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        const NAMES: [&str; 8] = ["RO", "RW", "OW", "RM", "access", "update", "insert", "delete"];
        NAMES.into_iter().enumerate().filter(move |(bit, _)| self.0 & 1 << bit != 0).map(|(_, name)| name)
    }
}

/// The way from a position to the keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Find {
    /// The keys lie between the position and the last one. A negative last one counts from the end of the request, any
    /// other from the position.
    Range { last: i8, step: u8 },
    /// The position has the number of keys, which follow it.
    Counted,
}

/// The positions of some keys in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeySpec {
    pub(crate) at: u8,
    pub(crate) find: Find,
    pub(crate) access: Access,
}

impl KeySpec {
    /// Returns the positions of the keys, without those beyond the end of the request.
    fn positions(&self, request: Args<'_>) -> impl Iterator<Item = usize> + use<> {
        let (at, len) = (usize::from(self.at), request.len());
        let (from, to, step) = match self.find {
            Find::Range { last, step } if last < 0 => {
                (at, (len + 1).saturating_sub(usize::from(last.unsigned_abs())), usize::from(step))
            }
            Find::Range { last, step } => (at, at + usize::from(last.unsigned_abs()) + 1, usize::from(step)),
            Find::Counted => {
                let count = request.get(at).and_then(|count| farmem_resp::integer(count)).unwrap_or(0);
                (at + 1, (at + 1).saturating_add(usize::try_from(count).unwrap_or(0)), 1)
            }
        };
        (from..to.min(len)).step_by(step)
    }
}

/// The key specifications of a command, two at most.
pub(crate) type KeySpecs = [Option<KeySpec>; 2];

pub(crate) const NO_KEYS: KeySpecs = [None, None];

/// One key at a position.
pub(crate) const fn key(at: u8, access: Access) -> KeySpecs {
    keys(at, 0, 1, access)
}

/// The keys from one position to another.
pub(crate) const fn keys(at: u8, last: i8, step: u8, access: Access) -> KeySpecs {
    [Some(KeySpec { at, find: Find::Range { last, step }, access }), None]
}

/// As many keys as the word at a position says.
pub(crate) const fn counted(at: u8, access: Access) -> KeySpecs {
    [Some(KeySpec { at, find: Find::Counted, access }), None]
}

/// The first keys of two specifications.
pub(crate) const fn both(first: KeySpecs, second: KeySpecs) -> KeySpecs {
    [first[0], second[0]]
}

pub(crate) type Run = fn(&mut Context<'_>, Args<'_>, &mut Writer<'_>) -> CommandResult;

/// A command, or a subcommand (`config|get`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// The number of words, the name included; the least number if it is negative.
    pub(crate) arity: i8,
    flags: u32,
    pub(crate) specs: KeySpecs,
    pub(crate) run: Run,
}

/// Keys of a request, and how its command uses them.
pub(crate) type Keys<'a> = SmallVec<[(&'a [u8], Access); 4]>;

impl Command {
    /// Returns whether the command has all of these flags.
    pub(crate) const fn has(&self, flag: u32) -> bool {
        self.flags & flag == flag
    }

    pub(crate) const fn flags(&self) -> u32 {
        self.flags
    }

    /// Returns whether the row describes a subcommand.
    pub(crate) const fn is_subcommand(&self) -> bool {
        self.has(SUBCOMMAND)
    }

    /// Returns whether any client may send the command, whatever its user's rules say.
    pub(crate) const fn is_for_all(&self) -> bool {
        self.has(NO_AUTH)
    }

    /// Returns whether a request of this command may have so many words.
    pub(crate) fn takes(&self, words: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { words >= least } else { words == least }
    }

    /// Returns the keys of a request, in its order.
    pub(crate) fn keys<'a>(&self, request: &[&'a [u8]]) -> Keys<'a> {
        let mut keys = Keys::new();
        for spec in self.specs.iter().flatten() {
            keys.extend(spec.positions(request).map(|at| (request[at], spec.access)));
        }
        match self.name {
            "set" => {
                let answers_old = request.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"get"));
                if !answers_old {
                    keys.iter_mut().for_each(|(_, access)| *access = OW_UPDATE);
                }
            }
            "sort" => keys.extend(super::sort::stores_in(request).map(|key| (key, OW_UPDATE))),
            _ => {}
        }
        keys
    }

    /// Returns whether the positions of the keys depend on the words of the request.
    pub(crate) fn has_movable_keys(&self) -> bool {
        let counts = self.specs.iter().flatten().any(|spec| spec.find == Find::Counted);
        counts || matches!(self.name, "sort" | "sort_ro")
    }

    /// Returns the first key, the last one and the step between keys, as in the `COMMAND` reply of early versions of Redis.
    pub(crate) fn key_range(&self) -> (i8, i8, i8) {
        let mut range = (0, 0, 0);
        for spec in self.specs.iter().flatten() {
            let Find::Range { last, step } = spec.find else { continue };
            let at = i8::try_from(spec.at).expect("a small number");
            let first = if range.0 == 0 { at } else { range.0 };
            range =
                (first, if last < 0 { last } else { at + last }, i8::try_from(step).expect("a small number"));
        }
        range
    }

    /// Returns the names of the flags in the `COMMAND` reply.
    pub(crate) fn flag_names(&self) -> impl Iterator<Item = &'static str> {
        const NAMES: &[(u32, &str)] = &[
            (WRITE, "write"),
            (READONLY, "readonly"),
            (DENYOOM, "denyoom"),
            (ADMIN, "admin"),
            (NOSCRIPT, "noscript"),
            (BLOCKING, "blocking"),
            (ANYTIME, "loading"),
            (ANYTIME, "stale"),
            (SKIP_SLOWLOG, "skip_slowlog"),
            (FAST, "fast"),
            (NO_AUTH, "no_auth"),
            (NO_ASYNC_LOADING, "no_async_loading"),
            (NO_MULTI, "no_multi"),
            (ALLOW_BUSY, "allow_busy"),
        ];
        let movable = self.has_movable_keys().then_some("movablekeys");
        NAMES.iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| *name).chain(movable)
    }

    /// Returns whether the command is in an ACL category.
    pub(crate) fn is_in(&self, category: &str) -> bool {
        match category {
            "keyspace" => self.has(KEYSPACE),
            "read" => self.has(READONLY),
            "write" => self.has(WRITE),
            "set" => self.has(SET),
            "sortedset" => self.has(SORTEDSET),
            "list" => self.has(LIST),
            "hash" => self.has(HASH),
            "string" => self.has(STRING),
            "admin" => self.has(ADMIN) || self.has(ADMIN_CATEGORY),
            "fast" => self.has(FAST),
            "slow" => !self.has(FAST),
            "blocking" => self.has(BLOCKING),
            "dangerous" => self.has(ADMIN) || self.has(DANGEROUS),
            "connection" => self.has(CONNECTION),
            "transaction" => self.has(TRANSACTION),
            _ => false,
        }
    }
}

/// The ACL categories, in the order of Redis. Some have no commands in this server.
pub(crate) const CATEGORIES: &[&str] = &[
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// A row of the table.
pub(super) const fn row(name: &'static str, arity: i8, flags: u32, specs: KeySpecs, run: Run) -> Command {
    let (mut at, mut own) = (0, 0);
    while at < name.len() {
        if name.as_bytes()[at] == b'|' {
            own = SUBCOMMAND;
        }
        at += 1;
    }
    Command { name, arity, flags: flags | own, specs, run }
}
