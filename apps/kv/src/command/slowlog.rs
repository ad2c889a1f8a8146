//! `SLOWLOG`: the slowest commands.

use super::{Args, CommandResult, Context, count, integer, is};
use crate::failure::Failure;
use farmem_resp::Writer;
use std::collections::VecDeque;
use std::time::Duration;

/// The words of an entry and the bytes of a word, at most.
const WORDS_MAX: usize = 32;
const WORD_LEN_MAX: usize = 128;

/// A slow command.
#[derive(Clone, Debug)]
struct Entry {
    id: u64,
    /// Seconds since 1970.
    at: i64,
    took: Duration,
    words: Vec<Vec<u8>>,
    address: String,
    name: String,
}

/// The slow commands, the last one first.
#[derive(Debug)]
pub(crate) struct SlowLog {
    entries: VecDeque<Entry>,
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

    fn note(&mut self, entry: Entry) {
        self.entries.push_front(Entry { id: self.next_id, ..entry });
        self.next_id += 1;
        self.entries.truncate(self.most);
    }
}

/// Logs a command if it was slow. Passwords are left out.
pub(crate) fn note(context: &mut Context<'_>, args: Args<'_>, took: Duration) {
    let slow = &context.world.slow;
    if slow.from.is_none_or(|from| took < from) || slow.most == 0 {
        return;
    }
    let secret = ["auth", "hello", "acl", "config"].iter().any(|name| is(args[0], name));
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
        words[WORDS_MAX - 1] = format!("... ({} more arguments)", args.len() - WORDS_MAX + 1).into_bytes();
    }
    let entry = Entry {
        id: 0,
        at: context.store.now() / 1000,
        took,
        words,
        address: context.session.address.clone(),
        name: context.session.name.clone(),
    };
    context.world.slow.note(entry);
}

pub(super) fn slowlog(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let slow = &mut context.world.slow;
    match args {
        [_, what] if is(what, "LEN") => out.integer(count(slow.entries.len())),
        [_, what] if is(what, "RESET") => {
            slow.entries.clear();
            out.simple("OK");
        }
        [_, what, wanted @ ..] if is(what, "GET") && wanted.len() < 2 => {
            let wanted = wanted.first().map_or(Ok(10), |wanted| integer(wanted))?;
            if wanted < -1 {
                return Err(Failure::text("ERR count should be greater than or equal to -1"));
            }
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(slow.entries.len());
            out.array(wanted);
            slow.entries.iter().take(wanted).for_each(|entry| write_entry(entry, out));
        }
        _ => {
            let name = String::from_utf8_lossy(args[1]).into_owned();
            return Err(Failure::said(format!(
                "ERR unknown subcommand or wrong number of arguments for '{name}'. Try SLOWLOG HELP."
            )));
        }
    }
    Ok(())
}

fn write_entry(entry: &Entry, out: &mut Writer<'_>) {
    out.array(6);
    out.integer(i64::try_from(entry.id).unwrap_or(i64::MAX));
    out.integer(entry.at);
    out.integer(i64::try_from(entry.took.as_micros()).unwrap_or(i64::MAX));
    out.array(entry.words.len());
    entry.words.iter().for_each(|word| out.bulk(word));
    out.bulk(entry.address.as_bytes());
    out.bulk(entry.name.as_bytes());
}
