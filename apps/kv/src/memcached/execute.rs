//! The execution of memcached requests.

use super::reply::{Refused, refuse};
use super::{meta, text};
use crate::command::Context;
use crate::store::Store;
use farmem_protocols::memcached::{Block, Words, find};

/// Executes one request, and appends its reply if it has one.
pub(crate) fn execute(context: &mut Context<'_>, words: &Words<'_>, block: Block<'_>, out: &mut Vec<u8>) {
    context.world.stats.commands += 1;
    context.session.activity.note_time(context.store.now());
    context.world.settle_flush(context.store);
    let from = out.len();
    let (done, silent) = match *words.as_slice() {
        [] => (Err(Refused::Line("ERROR")), false),
        [name, ..] if name.len() < 2 => (Err(Refused::Line("ERROR")), false),
        _ if !context.session.authenticated => (text::log_in(context, words, block, out), false),
        [name, ..] if name.len() == 2 && name[0] == b'm' => {
            (meta::execute(context, words, block, out), false)
        }
        [name, .., last] => {
            let silent = last == b"noreply" && !matches!(name, b"get" | b"gets" | b"gat" | b"gats");
            (text::execute(context, words, block, out), silent)
        }
        [_] => (text::execute(context, words, block, out), false),
    };
    if let Err(refused) = done {
        out.truncate(from);
        refuse(out, &refused);
        context.world.stats.errors += 1;
    }
    if silent {
        out.truncate(from);
    }
    context.session.note_request();
}

/// Notes the values that a request will read. Returns false when there are enough.
pub(crate) fn want(store: &mut Store, words: &Words<'_>) -> bool {
    let Some(command) = words.first().and_then(|name| find(name)) else { return true };
    let mut keys = command.keys(words).iter();
    if command.is_blind {
        keys.for_each(|key| store.want_entry(0, key));
        return true;
    }
    keys.all(|key| store.want(0, key))
}
