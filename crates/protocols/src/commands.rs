//! The table of commands: arity, flags, ACL categories and the positions of keys.
//!
//! Key types: [`Command`], a row of the table; [`KeySpec`], where some of its keys are and how the command uses them. The
//! terms are those of Redis's `COMMAND` reply (redis.io/docs/reference/key-specs). A server finds the rows of its commands with
//! [`find`]; a parser that sees requests on their way finds those of all commands of Redis with [`find_known`].

mod table;

pub use table::TABLE;

use crate::resp::integer;
use smallvec::SmallVec;

/// The command changes data.
pub const WRITE: u32 = 1;
/// The command reads data and changes none.
pub const READONLY: u32 = 1 << 1;
/// The command may need memory, and is refused while there is none.
pub const DENYOOM: u32 = 1 << 2;
/// The command administers the server: in the categories `admin` and `dangerous`.
pub const ADMIN: u32 = 1 << 3;
/// Redis's scripts may not call the command.
pub const NOSCRIPT: u32 = 1 << 4;
/// The client may wait for a key.
pub const BLOCKING: u32 = 1 << 5;
/// Redis serves the command also while it loads data, and at a replica without its master.
pub const ANYTIME: u32 = 1 << 6;
/// The slow log leaves the command out.
pub const SKIP_SLOWLOG: u32 = 1 << 7;
/// The command takes constant or logarithmic time.
pub const FAST: u32 = 1 << 8;
/// A client that has not authenticated may send the command.
pub const NO_AUTH: u32 = 1 << 9;
/// Redis refuses the command while it loads data in the background.
pub const NO_ASYNC_LOADING: u32 = 1 << 10;
/// The command is refused in a transaction.
pub const NO_MULTI: u32 = 1 << 11;
/// Redis serves the command while a script runs for too long.
pub const ALLOW_BUSY: u32 = 1 << 12;
/// The ACL category `keyspace`, as all categories down to [`ADMIN_CATEGORY`].
pub const KEYSPACE: u32 = 1 << 13;
/// The ACL category `string`.
pub const STRING: u32 = 1 << 14;
/// The ACL category `list`.
pub const LIST: u32 = 1 << 15;
/// The ACL category `set`.
pub const SET: u32 = 1 << 16;
/// The ACL category `sortedset`.
pub const SORTEDSET: u32 = 1 << 17;
/// The ACL category `hash`.
pub const HASH: u32 = 1 << 18;
/// The ACL category `connection`.
pub const CONNECTION: u32 = 1 << 19;
/// The ACL category `transaction`.
pub const TRANSACTION: u32 = 1 << 20;
/// The ACL category `dangerous`.
pub const DANGEROUS: u32 = 1 << 21;
/// The ACL category `admin`.
pub const ADMIN_CATEGORY: u32 = 1 << 22;
/// The command runs at once also in a transaction.
pub const NOT_QUEUED: u32 = 1 << 23;
/// The command needs no values of its keys: whether they exist, and when they expire, is known without.
pub const BLIND: u32 = 1 << 24;
/// The append log may have the command, and no client may send it.
pub const INTERNAL: u32 = 1 << 25;
/// The command has subcommands, with rows of their own.
pub const CONTAINER: u32 = 1 << 26;
/// The row of a subcommand (`config|get`).
const SUBCOMMAND: u32 = 1 << 27;
/// Redis has the command, and `farmem kv` has not.
const UNSERVED: u32 = 1 << 28;
/// No flag.
pub const NONE: u32 = 0;

/// Most bytes of a name, or of a subcommand's name.
pub const NAME_LEN_MAX: usize = 32;

/// How a command uses a key: a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(u8);

const ACCESS: u8 = 1 << 4;
const UPDATE: u8 = 1 << 5;
const INSERT: u8 = 1 << 6;
const DELETE: u8 = 1 << 7;

/// Reads metadata of the key.
pub const RO: Access = Access(1);
/// Reads the value.
pub const RO_ACCESS: Access = Access(1 | ACCESS);
/// Reads and updates the value.
pub const RW_ACCESS_UPDATE: Access = Access(2 | ACCESS | UPDATE);
/// Reads the value, and removes some or all of it.
pub const RW_ACCESS_DELETE: Access = Access(2 | ACCESS | DELETE);
/// Updates the value.
pub const RW_UPDATE: Access = Access(2 | UPDATE);
/// Adds to the value.
pub const RW_INSERT: Access = Access(2 | INSERT);
/// Removes parts of the value.
pub const RW_DELETE: Access = Access(2 | DELETE);
/// Replaces the value.
pub const OW_UPDATE: Access = Access(4 | UPDATE);
/// Sets the value of a new key.
pub const OW_INSERT: Access = Access(4 | INSERT);
/// Deletes the key.
pub const RM_DELETE: Access = Access(8 | DELETE);

impl Access {
    /// Returns whether the command returns, copies or compares the value.
    #[must_use]
    pub const fn reads(self) -> bool {
        self.0 & ACCESS != 0
    }

    /// Returns whether the command adds to the value, changes or deletes it.
    #[must_use]
    pub const fn writes(self) -> bool {
        self.0 & (UPDATE | INSERT | DELETE) != 0
    }

    /// Returns the bits' names in Redis's `COMMAND` reply.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        const NAMES: [&str; 8] = ["RO", "RW", "OW", "RM", "access", "update", "insert", "delete"];
        NAMES.into_iter().enumerate().filter(move |(bit, _)| self.0 & 1 << bit != 0).map(|(_, name)| name)
    }
}

/// The way from a position to the keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Find {
    /// The keys lie between the position and the last one.
    Range {
        /// The last key: from the position, or from the end of the request if negative.
        last: i8,
        /// The step from one key to the next.
        step: u8,
    },
    /// The position has the number of keys, which follow it.
    Counted,
}

/// The positions of some keys in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeySpec {
    /// The position of the first key, or of the number of keys.
    pub at: u8,
    /// The way to the keys.
    pub find: Find,
    /// The use of the keys.
    pub access: Access,
}

/// Positions of words: every `step`th one from `from` on, before `to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRange {
    from: usize,
    to: usize,
    step: usize,
}

impl Default for KeyRange {
    /// Returns no positions.
    fn default() -> Self {
        Self { from: 0, to: 0, step: 1 }
    }
}

impl KeyRange {
    /// Returns whether the word at a position is a key.
    #[must_use]
    pub const fn has(&self, at: usize) -> bool {
        self.from <= at && at < self.to && (at - self.from).is_multiple_of(self.step)
    }

    fn positions(self) -> impl Iterator<Item = usize> {
        (self.from..self.to).step_by(self.step)
    }
}

impl KeySpec {
    /// Returns the positions of the keys in a request of so many words, without those beyond its end. `count` is the word that
    /// has the number of keys, if it is there and the specification needs it.
    #[must_use]
    pub fn range(&self, words: usize, count: Option<&[u8]>) -> KeyRange {
        let at = usize::from(self.at);
        let (from, to, step) = match self.find {
            Find::Range { last, step } if last < 0 => {
                (at, (words + 1).saturating_sub(usize::from(last.unsigned_abs())), step)
            }
            Find::Range { last, step } => (at, at + usize::from(last.unsigned_abs()) + 1, step),
            Find::Counted => {
                let count = count.and_then(integer).and_then(|count| usize::try_from(count).ok());
                (at + 1, (at + 1).saturating_add(count.unwrap_or(0)), 1)
            }
        };
        KeyRange { from, to: to.min(words), step: usize::from(step) }
    }
}

/// The key specifications of a command, two at most.
pub type KeySpecs = [Option<KeySpec>; 2];

/// No keys.
pub const NO_KEYS: KeySpecs = [None, None];

/// Specifies one key at a position.
const fn key(at: u8, access: Access) -> KeySpecs {
    keys(at, 0, 1, access)
}

/// Specifies the keys from one position to another.
const fn keys(at: u8, last: i8, step: u8, access: Access) -> KeySpecs {
    [Some(KeySpec { at, find: Find::Range { last, step }, access }), None]
}

/// Specifies as many keys as the word at a position says.
const fn counted(at: u8, access: Access) -> KeySpecs {
    [Some(KeySpec { at, find: Find::Counted, access }), None]
}

/// Combines the first keys of two specifications.
const fn both(first: KeySpecs, second: KeySpecs) -> KeySpecs {
    [first[0], second[0]]
}

/// A command, or a subcommand (`config|get`).
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The name in lower case.
    pub name: &'static str,
    /// The number of words, the name included; the least number if it is negative.
    pub arity: i8,
    flags: u32,
    /// The positions of its keys.
    pub specs: KeySpecs,
}

/// Keys of a request, and how its command uses them.
pub type Keys<'a> = SmallVec<[(&'a [u8], Access); 4]>;

/// Positions of a command's keys; all 0 for a command without keys.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KeyPositions {
    /// Position of the first key.
    pub first: i8,
    /// Position of the last key; negative positions count from the end.
    pub last: i8,
    /// Distance between keys.
    pub step: i8,
}

impl Command {
    /// Returns whether the command has all of these flags.
    #[inline]
    #[must_use]
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag == flag
    }

    /// Returns all flags.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        self.flags
    }

    /// Returns whether the row describes a subcommand.
    #[must_use]
    pub const fn is_subcommand(&self) -> bool {
        self.has(SUBCOMMAND)
    }

    /// Returns whether any client may send the command, whatever its user's rules say.
    #[must_use]
    pub const fn is_for_all(&self) -> bool {
        self.has(NO_AUTH)
    }

    /// Returns whether a request of this command may have so many words.
    #[must_use]
    pub fn takes(&self, words: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { words >= least } else { words == least }
    }

    /// Returns the keys of a request, in its order.
    #[must_use]
    pub fn keys<'a>(&self, request: &[&'a [u8]]) -> Keys<'a> {
        let mut keys = Keys::new();
        for spec in self.specs.iter().flatten() {
            let count = request.get(usize::from(spec.at)).copied();
            keys.extend(spec.range(request.len(), count).positions().map(|at| (request[at], spec.access)));
        }
        match self.name {
            "set" => {
                let answers_old = request.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"get"));
                if !answers_old {
                    keys.iter_mut().for_each(|(_, access)| *access = OW_UPDATE);
                }
            }
            "sort" => keys.extend(stores_in(request).map(|key| (key, OW_UPDATE))),
            _ => {}
        }
        keys
    }

    /// Returns whether the positions of the keys depend on the words of the request.
    #[must_use]
    pub fn has_movable_keys(&self) -> bool {
        let counts = self.specs.iter().flatten().any(|spec| spec.find == Find::Counted);
        counts || matches!(self.name, "sort" | "sort_ro")
    }

    /// Returns the range of keys, as in the `COMMAND` reply of early versions of Redis.
    #[must_use]
    pub fn key_range(&self) -> KeyPositions {
        let mut range = KeyPositions::default();
        for spec in self.specs.iter().flatten() {
            let Find::Range { last, step } = spec.find else { continue };
            let at = i8::try_from(spec.at).expect("a small number");
            let first = if range.first == 0 { at } else { range.first };
            let last = if last < 0 { last } else { at + last };
            range = KeyPositions { first, last, step: i8::try_from(step).expect("a small number") };
        }
        range
    }

    /// Returns the names of the flags in the `COMMAND` reply.
    pub fn flag_names(&self) -> impl Iterator<Item = &'static str> {
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
    #[must_use]
    pub fn is_in(&self, category: &str) -> bool {
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
pub const CATEGORIES: &[&str] = &[
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

/// Returns the key of the last `STORE`, if the request has one.
fn stores_in<'a>(request: &[&'a [u8]]) -> Option<&'a [u8]> {
    let (mut at, mut key) = (2, None);
    while let Some(word) = request.get(at) {
        let is = |option: &str| word.eq_ignore_ascii_case(option.as_bytes());
        if is("LIMIT") {
            at += 2;
        } else if is("BY") || is("GET") {
            at += 1;
        } else if is("STORE") {
            at += 1;
            key = request.get(at).copied();
        }
        at += 1;
    }
    key
}

/// Creates a row of the table.
const fn row(name: &'static str, arity: i8, flags: u32, specs: KeySpecs) -> Command {
    assert!(name.len() <= NAME_LEN_MAX);
    let (mut at, mut own) = (0, 0);
    while at < name.len() {
        if name.as_bytes()[at] == b'|' {
            own = SUBCOMMAND;
        }
        at += 1;
    }
    Command { name, arity, flags: flags | own, specs }
}

/// Creates the row of a command that `farmem kv` does not have.
const fn unserved(name: &'static str, specs: KeySpecs) -> Command {
    row(name, -2, UNSERVED, specs)
}

/// Returns the commands and subcommands that clients may send.
pub fn all() -> impl Iterator<Item = &'static Command> + Clone {
    TABLE.iter().filter(|command| !command.has(INTERNAL) && !command.has(UNSERVED))
}

/// Returns the commands that clients may send, without subcommands.
pub fn commands() -> impl Iterator<Item = &'static Command> + Clone {
    all().filter(|command| !command.is_subcommand())
}

/// Returns the subcommands of a command.
pub fn subcommands(command: &'static Command) -> impl Iterator<Item = &'static Command> + Clone {
    let is_of = |row: &&Command| row.name.split_once('|').is_some_and(|(parent, _)| parent == command.name);
    all().filter(move |row| row.is_subcommand() && is_of(row))
}

/// The slots of the hash table of names: a power of two, several times the number of rows.
const SLOTS: usize = 1_024;
/// An empty slot.
const EMPTY: u16 = u16::MAX;

/// The hash table of names: numbers of rows.
static SLOT_OF: [u16; SLOTS] = slots();

const fn slots() -> [u16; SLOTS] {
    let (mut slots, mut number) = ([EMPTY; SLOTS], 0);
    while number < TABLE.len() {
        let mut at = slot(TABLE[number].name.as_bytes());
        while slots[at] != EMPTY {
            at = (at + 1) % SLOTS;
        }
        #[expect(clippy::cast_possible_truncation, reason = "there are a few hundred commands")]
        let row = number as u16;
        slots[at] = row;
        number += 1;
    }
    slots
}

const fn slot(name: &[u8]) -> usize {
    let (mut hash, mut at) = (0x811c_9dc5_u32, 0);
    while at < name.len() {
        hash = (hash ^ (name[at] | 0x20) as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    (hash ^ hash >> 15) as usize % SLOTS
}

/// Returns the number of a row of the table.
#[inline]
#[must_use]
pub fn number_of(command: &'static Command) -> usize {
    (core::ptr::from_ref(command).addr() - TABLE.as_ptr().addr()) / size_of::<Command>()
}

/// Finds the row of a command that this project's server has, by its name in upper or lower case. The name of a subcommand is
/// `config|get`.
#[inline]
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    find_known(name).filter(|command| !command.has(UNSERVED))
}

/// Finds the row of any command of Redis that the table knows.
#[must_use]
pub fn find_known(name: &[u8]) -> Option<&'static Command> {
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
#[must_use]
pub fn find_subcommand(command: &Command, name: &[u8]) -> Option<&'static Command> {
    if name.len() > NAME_LEN_MAX {
        return None;
    }
    let full: SmallVec<[u8; 64]> = command.name.bytes().chain([b'|']).chain(name.iter().copied()).collect();
    find(&full)
}

/// Finds the row of a request, whatever the number of its words.
#[inline]
#[must_use]
pub fn find_of(request: &[&[u8]]) -> Option<&'static Command> {
    let command = find(request.first()?).filter(|command| !command.is_subcommand())?;
    match request.get(1) {
        Some(name) if command.has(CONTAINER) => find_subcommand(command, name),
        _ => Some(command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;

    #[test]
    fn each_command_is_found_by_its_name() {
        for (number, command) in TABLE.iter().enumerate() {
            let found = find_known(command.name.to_uppercase().as_bytes()).unwrap();
            assert_eq!((found.name, number_of(found)), (command.name, number));
            if find(command.name.as_bytes()).is_some() {
                let words: Vec<&[u8]> = command.name.split('|').map(str::as_bytes).collect();
                assert_eq!(find_of(&words).unwrap().name, command.name);
            }
        }
        assert!(find(b"bitcount").is_none() && find_of(&[b"xadd", b"k"]).is_none());
        assert!(find(b"nothing").is_none() && find(b"").is_none() && find(b"\xff\xff").is_none());
        assert!(find_of(&[b"config|get"]).is_none() && find_of(&[b"config", b"nothing"]).is_none());
    }

    #[test]
    fn destinations_are_found() {
        let key = |line: &'static str| {
            stores_in(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
                .map(|key| String::from_utf8(key.to_vec()).unwrap())
        };
        assert_eq!(key("SORT a BY store GET store LIMIT 0 1 STORE b ALPHA"), Some("b".into()));
        assert_eq!(key("SORT a STORE b STORE c"), Some("c".into()));
        assert_eq!(key("SORT a STORE"), None);
        assert_eq!(key("SORT a GET STORE"), None);
    }
}
