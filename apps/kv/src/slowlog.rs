//! The log of slow commands (`SLOWLOG`).

use std::collections::VecDeque;
use std::time::Duration;

/// The words of an entry and the bytes of a word, at most.
const WORDS_MAX: usize = 32;
const WORD_LEN_MAX: usize = 128;

/// A slow command.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    /// Seconds since 1970.
    pub(crate) at: i64,
    pub(crate) took: Duration,
    pub(crate) words: Vec<Vec<u8>>,
    pub(crate) address: String,
    pub(crate) name: String,
}

/// The slow commands, the last one first.
#[derive(Debug)]
pub(crate) struct SlowLog {
    pub(crate) entries: VecDeque<Entry>,
    next_id: u64,
    /// The time from which on a command is slow (`slowlog-log-slower-than`); `None` turns the log off.
    pub(crate) from: Option<Duration>,
    /// The entries that the log keeps (`slowlog-max-len`).
    pub(crate) most: usize,
}

impl Default for SlowLog {
    fn default() -> Self {
        Self { entries: VecDeque::new(), next_id: 0, from: Some(Duration::from_millis(10)), most: 128 }
    }
}

impl SlowLog {
    /// The largest number of entries that may be set.
    pub(crate) const LEN_MAX: usize = 10_000;

    /// Logs a command if it was slow. Passwords are left out.
    pub(crate) fn note(&mut self, args: &[&[u8]], took: Duration, at: i64, address: &str, name: &str) {
        if self.from.is_none_or(|from| took < from) || self.most == 0 {
            return;
        }
        let is_name = |name: &&str| args[0].eq_ignore_ascii_case(name.as_bytes());
        let secret = ["auth", "hello", "acl", "config"].iter().any(is_name);
        let shown = |arg: &&[u8]| match arg.len().checked_sub(WORD_LEN_MAX) {
            None | Some(0) => arg.to_vec(),
            Some(more) => [&arg[..WORD_LEN_MAX], format!("... ({more} more bytes)").as_bytes()].concat(),
        };
        let mut words: Vec<Vec<u8>> = if secret {
            vec![args[0].to_vec(), b"(redacted)".to_vec()]
        } else {
            args.iter().take(WORDS_MAX).map(shown).collect()
        };
        if !secret && args.len() > WORDS_MAX {
            let more = args.len() - WORDS_MAX + 1;
            words[WORDS_MAX - 1] = format!("... ({more} more arguments)").into_bytes();
        }
        let (address, name) = (address.to_owned(), name.to_owned());
        self.entries.push_front(Entry { id: self.next_id, at, took, words, address, name });
        self.next_id += 1;
        self.entries.truncate(self.most);
    }
}
