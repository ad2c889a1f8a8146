//! Users, their rights and their passwords (Redis's ACL, redis.io/docs/management/security/acl).
//!
//! Key types: [`Acl`], all users; [`User`], one; rules in Redis's words change both ([`User::apply`]). A password is
//! kept as its SHA-256 and compared in constant time. Unlike Redis, this server does not support selectors
//! (parentheses): a rule with one is refused. The patterns of channels are kept; this server has no publish and
//! subscribe.

mod file;

use crate::glob::glob;
use ctutils::CtEq as _;
use farmem_protocols::commands::{
    Access, CATEGORIES, CONTAINER, Command, TABLE, all, find, find_subcommand, number_of,
};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The entries of the log of refusals at most.
const LOG_MAX: usize = 128;
/// Equal refusals within this time in milliseconds share an entry.
const LOG_TOGETHER: i64 = 60_000;
/// The words of a set of commands, each for 64 commands.
const SET_WORDS: usize = 8;

type Hash = [u8; 32];

/// A set of commands, by their numbers in the table.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Commands([u64; SET_WORDS]);

impl Commands {
    fn set(&mut self, number: usize, is: bool) {
        let bit = 1 << (number % 64);
        let word = &mut self.0[number / 64];
        *word = if is { *word | bit } else { *word & !bit };
    }

    const fn has(&self, number: usize) -> bool {
        self.0[number / 64] & 1 << (number % 64) != 0
    }
}

/// A pattern of keys that a user may read, write or both.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Pattern {
    text: Vec<u8>,
    reads: bool,
    writes: bool,
}

/// One user.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) is_on: bool,
    no_password: bool,
    passwords: Vec<Hash>,
    allowed: Commands,
    /// The first arguments with which a user may send a command that is not allowed otherwise (`+select|0`).
    first_args: BTreeMap<usize, BTreeSet<String>>,
    /// The rules about commands, as they are shown.
    rules: Vec<String>,
    keys: Vec<Pattern>,
    channels: Vec<String>,
    /// Whether the user may do everything, so that no rule needs a look.
    pub(crate) may_all: bool,
}

/// The reason for which a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Denied<'a> {
    Command,
    Key(&'a [u8]),
}

impl User {
    /// Creates a user without any rights, as `ACL SETUSER` does.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_on: false,
            no_password: false,
            passwords: Vec::new(),
            allowed: Commands::default(),
            first_args: BTreeMap::new(),
            rules: vec!["-@all".to_owned()],
            keys: Vec::new(),
            channels: Vec::new(),
            may_all: false,
        }
    }

    /// Creates the user `default` of a server without an ACL file: with all rights, and with this password or none.
    pub(crate) fn default_with(password: Option<&str>) -> Self {
        let mut user = Self::new("default");
        let password = password.map_or_else(|| "nopass".to_owned(), |password| format!(">{password}"));
        for rule in ["on", "~*", "&*", "+@all", &password] {
            user.apply(rule.as_bytes()).expect("the rules are right");
        }
        user
    }

    /// Applies one rule.
    ///
    /// # Errors
    /// The fault of the rule, in Redis's words.
    pub(crate) fn apply(&mut self, rule: &[u8]) -> Result<(), String> {
        let word = String::from_utf8_lossy(rule).to_ascii_lowercase();
        match (word.as_str(), rule) {
            ("on", _) => self.is_on = true,
            ("off", _) => self.is_on = false,
            ("nopass", _) => {
                self.no_password = true;
                self.passwords.clear();
            }
            ("resetpass", _) => {
                self.no_password = false;
                self.passwords.clear();
            }
            ("allkeys" | "~*", _) => {
                self.keys = vec![Pattern { text: b"*".to_vec(), reads: true, writes: true }]
            }
            ("resetkeys", _) => self.keys.clear(),
            ("allchannels", _) => self.channels = vec!["*".to_owned()],
            ("resetchannels", _) => self.channels.clear(),
            ("allcommands", _) => self.rule_of_commands(true, "@all")?,
            ("nocommands", _) => self.rule_of_commands(false, "@all")?,
            ("reset", _) => *self = Self::new(&self.name),
            ("sanitize-payload" | "skip-sanitize-payload" | "clearselectors", _) => {}
            (_, [b'>', password @ ..]) => self.add_password(Sha256::digest(password).into()),
            (_, [b'<', password @ ..]) => self.remove_password(Sha256::digest(password).into())?,
            (_, [b'#', hash @ ..]) => self.add_password(hash_of(hash)?),
            (_, [b'!', hash @ ..]) => self.remove_password(hash_of(hash)?)?,
            (_, [b'~', pattern @ ..]) => self.add_pattern(pattern, true, true)?,
            (_, [b'%', rest @ ..]) => self.permitted_pattern(rest)?,
            ("&*", _) => self.channels = vec!["*".to_owned()],
            (_, [b'&', pattern @ ..]) => self.add_channel(String::from_utf8_lossy(pattern).into_owned())?,
            (_, [b'+', _, ..]) => self.rule_of_commands(true, &word[1..])?,
            (_, [b'-', _, ..]) => self.rule_of_commands(false, &word[1..])?,
            (_, [b'(', ..]) => {
                return Err("selectors are not supported: give the user one set of rules".into());
            }
            _ => return Err("Syntax error".into()),
        }
        let everything = all().all(|command| self.allowed.has(number_of(command)));
        self.may_all = everything && self.has_all_keys();
        Ok(())
    }

    fn has_all_keys(&self) -> bool {
        self.keys.iter().any(|pattern| pattern.text == b"*" && pattern.reads && pattern.writes)
    }

    fn add_channel(&mut self, pattern: String) -> Result<(), String> {
        if self.channels.iter().any(|known| known == "*") {
            return Err("Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try 'resetchannels' to start with an empty list of channels".into());
        }
        if !self.channels.contains(&pattern) {
            self.channels.push(pattern);
        }
        Ok(())
    }

    fn add_password(&mut self, hash: Hash) {
        self.no_password = false;
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
    }

    fn remove_password(&mut self, hash: Hash) -> Result<(), String> {
        let had = self.passwords.len();
        self.passwords.retain(|known| *known != hash);
        if self.passwords.len() == had {
            return Err("The password you are trying to remove from the user does not exist".into());
        }
        Ok(())
    }

    fn permitted_pattern(&mut self, rest: &[u8]) -> Result<(), String> {
        let at = rest.iter().position(|&byte| byte == b'~').ok_or("Syntax error")?;
        let letters = rest[..at].to_ascii_uppercase();
        if letters.is_empty() || !letters.iter().all(|letter| matches!(letter, b'R' | b'W')) {
            return Err("Syntax error".into());
        }
        self.add_pattern(&rest[at + 1..], letters.contains(&b'R'), letters.contains(&b'W'))
    }

    fn add_pattern(&mut self, text: &[u8], reads: bool, writes: bool) -> Result<(), String> {
        if self.has_all_keys() {
            return Err("Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to start with an empty list of patterns".into());
        }
        if text.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return Err("Syntax error".into());
        }
        match self.keys.iter_mut().find(|known| known.text == text) {
            Some(known) => (known.reads, known.writes) = (known.reads || reads, known.writes || writes),
            None => self.keys.push(Pattern { text: text.to_vec(), reads, writes }),
        }
        Ok(())
    }

    /// Applies a rule about a category (`@read`), a command (`get`), a subcommand (`config|get`) or the first
    /// argument of a command that has no subcommands (`select|0`).
    fn rule_of_commands(&mut self, may: bool, subject: &str) -> Result<(), String> {
        let unknown = || "Unknown command or category name in ACL".to_owned();
        let sign = if may { '+' } else { '-' };
        let before = (self.allowed, self.first_args.clone());
        if let Some(category) = subject.strip_prefix('@') {
            if category != "all" && !CATEGORIES.contains(&category) {
                return Err(unknown());
            }
            let of_category = |command: &&Command| category == "all" || command.is_in(category);
            all().filter(of_category).for_each(|command| self.set_command(command, may));
            if category == "all" {
                self.rules.clear();
            }
        } else if let Some((name, argument)) = subject.rsplit_once('|') {
            let command = find(name.as_bytes()).ok_or_else(unknown)?;
            if argument.is_empty() {
                return Err("Syntax error".into());
            }
            if command.is_subcommand() {
                return Err("Allowing first-arg of a subcommand is not supported".into());
            }
            if command.has(CONTAINER) {
                self.set_command(find_subcommand(command, argument.as_bytes()).ok_or_else(unknown)?, may);
            } else if may {
                self.first_args.entry(number_of(command)).or_default().insert(argument.to_owned());
            } else {
                return Err(unknown());
            }
        } else {
            self.set_command(find(subject.as_bytes()).ok_or_else(unknown)?, may);
            // Earlier rules about subcommands and first arguments lose their effect.
            self.rules.retain(|rule| rule[1..].split('|').next() != Some(subject));
        }
        // A rule that changes nothing is not kept.
        if before == (self.allowed, self.first_args.clone()) && !subject.starts_with('@') {
            return Ok(());
        }
        self.rules.retain(|rule| rule[1..] != *subject);
        self.rules.push(format!("{sign}{subject}"));
        Ok(())
    }

    /// Allows or forbids a command with all of its subcommands.
    fn set_command(&mut self, command: &'static Command, may: bool) {
        let is_of = |row: &Command| row.name.split('|').next() == Some(command.name);
        for (number, row) in TABLE.iter().enumerate() {
            if row.name == command.name || (command.has(CONTAINER) && is_of(row)) {
                self.allowed.set(number, may);
                self.first_args.remove(&number);
            }
        }
    }

    fn may_run(&self, command: &'static Command, request: &[&[u8]]) -> bool {
        let number = number_of(command);
        if self.allowed.has(number) {
            return true;
        }
        let (Some(allowed), Some(argument)) = (self.first_args.get(&number), request.get(1)) else {
            return false;
        };
        allowed.contains(&String::from_utf8_lossy(argument).to_ascii_lowercase())
    }

    /// Returns the reason for which a request of this user is refused, if it is.
    pub(crate) fn denies<'a>(&self, command: &'static Command, request: &[&'a [u8]]) -> Option<Denied<'a>> {
        if self.may_all || command.is_for_all() {
            return None;
        }
        if !self.may_run(command, request) {
            return Some(Denied::Command);
        }
        // One pattern must allow all that the command does with the key. A key that is neither read nor written, as of
        // `WATCH` and `EXISTS`, needs any pattern.
        let may_use = |(key, access): &(&[u8], Access)| {
            self.keys.iter().any(|pattern| {
                (pattern.reads || !access.reads())
                    && (pattern.writes || !access.writes())
                    && glob(&pattern.text, key)
            })
        };
        command.keys(request).into_iter().find(|key| !may_use(key)).map(|(key, _)| Denied::Key(key))
    }

    /// Returns whether the user may read every key.
    pub(crate) fn reads_all_keys(&self) -> bool {
        self.may_all || self.keys.iter().any(|pattern| pattern.reads && pattern.text == b"*")
    }

    /// Returns whether this is one of the user's passwords. All of them are compared, so that the time reveals
    /// nothing.
    fn knows(&self, password: &[u8]) -> bool {
        let hash: Hash = Sha256::digest(password).into();
        let one_is =
            self.passwords.iter().fold(ctutils::Choice::FALSE, |is, known| is | known[..].ct_eq(&hash[..]));
        self.is_on && (self.no_password || one_is.to_bool())
    }

    /// Returns whether clients become this user without a password.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_on && self.no_password
    }

    /// Returns the flags in the reply of `ACL GETUSER`.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_on { "on" } else { "off" }];
        flags.extend(self.no_password.then_some("nopass"));
        flags
    }

    /// Returns the passwords' hashes in hexadecimal.
    pub(crate) fn hashes(&self) -> Vec<String> {
        self.passwords.iter().map(|hash| hex(hash)).collect()
    }

    pub(crate) fn commands(&self) -> String {
        let begins = self.rules.first().is_some_and(|rule| rule.ends_with("@all"));
        let front = if begins { "" } else { "-@all " };
        format!("{front}{}", self.rules.join(" "))
    }

    pub(crate) fn key_patterns(&self) -> String {
        let shown = self.keys.iter().map(|pattern| {
            let text = String::from_utf8_lossy(&pattern.text);
            match (pattern.reads, pattern.writes) {
                (true, true) => format!("~{text}"),
                (true, false) => format!("%R~{text}"),
                _ => format!("%W~{text}"),
            }
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn channel_patterns(&self) -> String {
        self.channels.iter().map(|text| format!("&{text}")).collect::<Vec<_>>().join(" ")
    }

    /// Returns the user's line in an ACL file and in the reply of `ACL LIST`.
    pub(crate) fn line(&self) -> String {
        let mut words = vec!["user".to_owned(), self.name.clone()];
        words.extend(self.flags().into_iter().map(str::to_owned));
        words.extend(self.hashes().into_iter().map(|hash| format!("#{hash}")));
        words.extend(Some(self.key_patterns()).filter(|text| !text.is_empty()));
        words.extend((self.channels != ["*"]).then(|| "resetchannels".to_owned()));
        words.extend(Some(self.channel_patterns()).filter(|text| !text.is_empty()));
        words.push(self.commands());
        words.join(" ")
    }
}

fn hash_of(text: &[u8]) -> Result<Hash, String> {
    let wrong =
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters";
    let digit = |byte: u8| char::from(byte).to_digit(16).filter(|_| !byte.is_ascii_uppercase());
    let pairs = text.chunks(2).map(|pair| match pair {
        &[high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    });
    pairs.collect::<Option<Vec<u8>>>().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| wrong.to_owned())
}

/// Returns bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A refusal in the log.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) id: u64,
    pub(crate) count: u64,
    pub(crate) reason: &'static str,
    pub(crate) context: &'static str,
    pub(crate) object: String,
    pub(crate) user: String,
    pub(crate) client: String,
    /// The times of the first and the last refusal, in milliseconds since 1970.
    pub(crate) first: i64,
    pub(crate) last: i64,
}

/// All users.
#[derive(Debug)]
pub(crate) struct Acl {
    users: BTreeMap<String, Arc<User>>,
    /// A number that grows with each change, so that sessions look up their user again.
    pub(crate) version: u64,
    file: Option<std::path::PathBuf>,
    pub(crate) log: VecDeque<Refusal>,
    next_id: u64,
}

impl Acl {
    /// Creates the ACL with the user `default` alone.
    pub(crate) fn new(password: Option<&str>) -> Self {
        let user = Arc::new(User::default_with(password));
        Self {
            users: BTreeMap::from([(user.name.clone(), user)]),
            version: 1,
            file: None,
            log: VecDeque::new(),
            next_id: 0,
        }
    }

    pub(crate) fn user(&self, name: &str) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    pub(crate) fn default_user(&self) -> &Arc<User> {
        &self.users["default"]
    }

    pub(crate) fn users(&self) -> impl ExactSizeIterator<Item = &User> {
        self.users.values().map(|user| &**user)
    }

    /// Applies rules to a user, all of them or none. Creates the user if none has this name.
    ///
    /// # Errors
    /// The wrong rule, and its fault.
    pub(crate) fn set(&mut self, name: &str, rules: &[&[u8]]) -> Result<(), (String, String)> {
        let mut user = self.users.get(name).map_or_else(|| User::new(name), |user| User::clone(user));
        for rule in rules {
            user.apply(rule).map_err(|why| (String::from_utf8_lossy(rule).into_owned(), why))?;
        }
        self.users.insert(name.to_owned(), Arc::new(user));
        self.version += 1;
        Ok(())
    }

    /// Sets the only password of the user `default`; `None` lets clients in without one.
    pub(crate) fn set_password(&mut self, password: Option<&str>) {
        let rule = password.map_or_else(|| "nopass".to_owned(), |password| format!(">{password}"));
        self.set("default", &[b"resetpass", rule.as_bytes()]).expect("the rules are right");
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.version += 1;
        self.users.remove(name).is_some()
    }

    /// Returns the user of this name if the password is right.
    pub(crate) fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let name = std::str::from_utf8(name).ok();
        match name.and_then(|name| self.users.get(name)) {
            Some(user) => user.knows(password).then(|| Arc::clone(user)),
            // An unknown name takes as long as a known one.
            None => {
                let _same_time = User::new("").knows(password);
                None
            }
        }
    }

    /// Adds a refusal to the log. Equal ones within a minute share an entry.
    pub(crate) fn note(&mut self, refusal: Refusal) {
        let same = |known: &&mut Refusal| {
            known.reason == refusal.reason
                && known.context == refusal.context
                && known.object == refusal.object
                && known.user == refusal.user
                && refusal.last - known.last <= LOG_TOGETHER
        };
        let now = refusal.last;
        if let Some(known) = self.log.iter_mut().find(same) {
            known.count += 1;
            known.last = now;
            return;
        }
        self.log.push_front(Refusal { id: self.next_id, ..refusal });
        self.log.truncate(LOG_MAX);
        self.next_id += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocols::commands::find_of;

    fn user(rules: &str) -> User {
        let mut user = User::new("u");
        rules.split(' ').for_each(|rule| user.apply(rule.as_bytes()).unwrap());
        user
    }

    fn may(user: &User, line: &str) -> bool {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        user.denies(find_of(&args).unwrap(), &args).is_none()
    }

    #[test]
    fn rules_say_what_a_user_may_do() {
        let some = user("on ~k* %R~r* %W~w* +@read +@write -@dangerous -set +config|get");
        for (line, is) in [
            ("GET k1", true),
            ("GET x", false),
            ("GET r1", true),
            ("GET w1", false),
            ("MSET w1 1", true),
            ("MSET r1 1", false),
            ("MSET w1 1 x 2", false),
            ("SET k1 1", false),
            ("GETDEL w1", false),
            ("KEYS *", false),
            ("CONFIG GET *", true),
            ("CONFIG SET a b", false),
            ("PING", false),
            ("AUTH x", true),
        ] {
            assert_eq!(may(&some, line), is, "{line}");
        }
        let writer = user("on %W~w* %R~r* +@all");
        for (line, is) in [
            ("SET w1 get", true),
            ("SET w1 1 EX 10", true),
            ("SET w1 1 GET", false),
            ("SET w1 1 EX 10 get", false),
            ("HEXISTS w1 f", true),
            ("HEXISTS x f", false),
            ("LLEN w1", true),
            ("STRLEN r1", true),
            ("TOUCH w1 r1", true),
            ("APPEND w1 x", true),
            ("GETSET w1 x", false),
            ("SMOVE w1 w2 m", false),
            ("SUNIONSTORE w1 r1 r2", true),
            ("SUNIONSTORE w1 r1 w2", false),
            ("SORT r1 STORE w1", true),
            ("SORT r1 STORE r2", false),
            ("OBJECT ENCODING w1", true),
            ("MEMORY USAGE x", false),
            ("WATCH w1 r1", true),
            ("WATCH w1 x", false),
        ] {
            assert_eq!(may(&writer, line), is, "{line}");
        }
        let blind = user("on ~* +@all -@read");
        for line in ["ZUNION 1 k", "ZINTER 1 k", "ZDIFF 1 k", "ZINTERCARD 1 k", "SINTERCARD 1 k", "GET k"] {
            assert!(!may(&blind, line), "{line}");
        }
        assert!(may(&blind, "SET k 1") && may(&blind, "INFO"));
        let all = user("on ~* +@all");
        assert!(all.may_all && may(&all, "ACL LIST"));
        let tame = user("on ~* +@all -@admin");
        assert!(may(&tame, "ACL WHOAMI") && !may(&tame, "ACL LIST"));
        assert!(may(&tame, "CLIENT ID") && !may(&tame, "CLIENT KILL x") && !may(&tame, "SAVE"));
        let back = user("on ~* +@all -acl|list +acl");
        assert!(may(&back, "ACL LIST") && back.may_all);
        let twice = user("on %R~r* %W~*1 %R~both %W~both +@all");
        assert!(!may(&twice, "GETSET r1 x"), "one pattern must allow all");
        assert!(may(&twice, "GETSET both x"), "the rights of one pattern add up");
        let only = user("on ~* +select|0 +ping");
        assert!(may(&only, "SELECT 0") && !may(&only, "SELECT 1") && !only.may_all);
        for wrong in [
            "+nosuch",
            "+@nosuch",
            "#12",
            "xx",
            "(~a)",
            "+acl|a|b",
            "%X~a",
            "<none",
            "-config|sett",
            "+config|sett",
            "-@nosuch",
            "-nosuch",
            "-select|0",
            "+select|",
            "~a b",
        ] {
            assert!(User::new("u").apply(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    /// A user's line makes the same user again.
    #[test]
    fn a_line_makes_the_same_user() {
        let one = user("on >secret >other ~a* %R~b* &c* +@all -@dangerous +select|0 +config|get");
        let line = one.line();
        let mut words = line.split(' ').skip(2);
        let mut other = User::new("u");
        words.try_for_each(|word| other.apply(word.as_bytes())).unwrap();
        assert_eq!(other.line(), line);
        assert!(other.knows(b"other") && !other.knows(b"wrong") && other.allowed == one.allowed);
        other.apply(b"off").unwrap();
        assert!(!other.knows(b"other"), "no password opens a user that is off");
    }
}
