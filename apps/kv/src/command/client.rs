//! `CLIENT`: connections, as other clients see and end them.

use super::{Args, CommandResult, Context, count, integer, is};
use crate::failure::Failure;
use crate::session::Replies;
use crate::world::ClientInfo;
use farmem_protocols::commands::{TABLE, find};
use farmem_protocols::resp::Writer;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Maximum length of a client's name in bytes: lists and logs contain it.
const NAME_LEN_MAX: usize = 512;

pub(super) fn client_name(arg: &[u8]) -> Result<String, Failure> {
    if arg.len() > NAME_LEN_MAX {
        return Err(Failure::text("ERR Client names have at most 512 bytes."));
    }
    if !arg.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err(Failure::text("ERR Client names cannot contain spaces, newlines or special characters."));
    }
    Ok(String::from_utf8_lossy(arg).into_owned())
}

/// Returns the line of a client in `CLIENT LIST`, with the fields of Redis 7.0.
pub(super) fn client_line(context: &Context<'_>, id: u64, shown: &ClientInfo) -> String {
    let (world, state) = (&context.world, &shown.activity);
    let number = |number: &AtomicUsize| number.load(Relaxed);
    let queued = state.queued.load(Relaxed);
    let mut flags = String::new();
    for (letter, is) in [
        ('x', queued >= 0),
        ('b', world.waiting.waits(id)),
        ('d', world.watches_changed(id)),
        ('c', world.kill.contains(&id)),
    ] {
        flags.extend(is.then_some(letter));
    }
    let flags = if flags.is_empty() { "N" } else { &flags };
    let (input, output) = (&state.input, &state.output);
    let age = shown.since.elapsed().as_secs();
    // A client that has sent nothing has been idle since it connected.
    let idle = match state.at.load(Relaxed) {
        0 => age,
        at => u64::try_from((context.store.now() - at) / 1000).unwrap_or(0),
    };
    let command = TABLE.get(number(&state.command)).map_or("NULL", |command| command.name);
    format!(
        "id={id} addr={} laddr={} fd={} name={} age={age} idle={idle} flags={flags} db={} sub=0 psub=0 ssub=0 multi={queued} \
         qbuf={} qbuf-free={} argv-mem=0 multi-mem={} rbs={} rbp={} obl={} oll=0 omem=0 tot-mem={} events={} \
         cmd={command} user={} redir=-1 resp={}",
        shown.address,
        shown.local_address,
        shown.descriptor,
        shown.name,
        state.db.load(Relaxed),
        number(&input.0),
        number(&input.1).saturating_sub(number(&input.0)),
        number(&state.queued_bytes),
        number(&output.1),
        number(&output.1),
        number(&output.0),
        number(&state.bytes),
        if number(&output.0) > 0 { "rw" } else { "r" },
        shown.user,
        state.protocol.load(Relaxed),
    )
}

/// Lets other clients see the name and the user of this one.
pub(super) fn show(context: &mut Context<'_>) {
    let session = &*context.session;
    if let Some(shown) = context.world.clients.get_mut(&session.id) {
        shown.name.clone_from(&session.name);
        shown.user.clone_from(&session.user);
    }
}

pub(super) fn client(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let [_, subcommand, rest @ ..] = args else { return Err(Failure::SYNTAX) };
    match (String::from_utf8_lossy(subcommand).to_ascii_uppercase().as_str(), rest) {
        ("ID", []) => out.integer(i64::try_from(context.session.id).unwrap_or(i64::MAX)),
        ("GETNAME", []) => match context.session.name.as_str() {
            "" => out.null(),
            name => out.bulk(name.as_bytes()),
        },
        ("SETNAME", [name]) => {
            context.session.name = client_name(name)?;
            show(context);
            out.simple("OK");
        }
        ("SETINFO", [_, _]) => out.simple("OK"),
        ("INFO", []) => {
            let id = context.session.id;
            let line = context.world.clients.get(&id).map(|shown| client_line(context, id, shown) + "\n");
            out.verbatim(*b"txt", line.unwrap_or_default().as_bytes());
        }
        ("UNBLOCK", [id, reason @ ..]) if reason.len() < 2 => {
            let with_error = match reason {
                [] => false,
                [reason] if is(reason, "TIMEOUT") => false,
                [reason] if is(reason, "ERROR") => true,
                _ => return Err(Failure::text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
            };
            let id = u64::try_from(integer(id)?).unwrap_or(0);
            let command = context.world.waiting.request(id).and_then(|request| find(&request[0]));
            let unblocked = context.world.waiting.unblock(id, with_error);
            if let (Some(command), true) = (command, with_error) {
                context.world.stats.errors += 1;
                context.world.statistics.failed(command, "UNBLOCKED");
            }
            out.integer(i64::from(unblocked));
        }
        ("LIST", filter) => list(context, filter, out)?,
        ("KILL", filter) => kill(context, filter, out)?,
        ("REPLY", [mode]) => match () {
            () if is(mode, "ON") => {
                context.session.replies = Replies::On;
                out.simple("OK");
            }
            () if is(mode, "OFF") => context.session.replies = Replies::Off,
            () if is(mode, "SKIP") => {
                if context.session.replies != Replies::Off {
                    context.session.replies = Replies::SkipNext;
                }
            }
            () => return Err(Failure::SYNTAX),
        },
        ("NO-EVICT", [mode]) if is(mode, "ON") || is(mode, "OFF") => out.simple("OK"),
        _ => return Err(Failure::SYNTAX),
    }
    Ok(())
}

/// Returns whether clients of a type can be connected: this server has no replicas and no subscribers. Refuses types
/// that Redis does not have.
fn is_type_here(name: &[u8]) -> Result<bool, Failure> {
    const OTHERS: [&str; 4] = ["master", "replica", "slave", "pubsub"];
    match () {
        () if is(name, "normal") => Ok(true),
        () if OTHERS.iter().any(|other| is(name, other)) => Ok(false),
        () => Err(Failure::said(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(name)))),
    }
}

fn list(context: &mut Context<'_>, filter: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let ids: Option<Vec<u64>> = match filter {
        [] => None,
        [word, kind] if is(word, "TYPE") => (!is_type_here(kind)?).then(Vec::new),
        [word, ids @ ..] if is(word, "ID") && !ids.is_empty() => {
            let id = |id: &&[u8]| integer(id).ok().and_then(|id| u64::try_from(id).ok());
            let ids: Option<Vec<u64>> = ids.iter().map(id).collect();
            Some(ids.ok_or(Failure::text("ERR Invalid client ID"))?)
        }
        _ => return Err(Failure::SYNTAX),
    };
    let clients =
        context.world.clients.iter().filter(|(id, _)| ids.as_ref().is_none_or(|ids| ids.contains(id)));
    let lines: String = clients.map(|(id, shown)| client_line(context, *id, shown) + "\n").collect();
    out.verbatim(*b"txt", lines.as_bytes());
    Ok(())
}

/// A condition on the clients that end: their number and their description.
type Filter<'a> = Box<dyn Fn(u64, &ClientInfo) -> bool + 'a>;

/// Executes `CLIENT KILL address`, or the form with filters, which must all match.
fn kill(context: &mut Context<'_>, filter: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let own = context.session.id;
    let (mut matches, mut skips_own): (Vec<Filter<'_>>, bool) = (Vec::new(), true);
    let by_address = |address| move |_: u64, shown: &ClientInfo| shown.address.as_bytes() == address;
    if let [address] = filter {
        matches.push(Box::new(by_address(*address)));
        skips_own = false;
    } else {
        for pair in filter.chunks(2) {
            let [word, value] = *pair else { return Err(Failure::SYNTAX) };
            match () {
                () if is(word, "ID") => {
                    let id = integer(value).ok().and_then(|id| u64::try_from(id).ok()).filter(|&id| id > 0);
                    let wanted = id.ok_or(Failure::text("ERR client-id should be greater than 0"))?;
                    matches.push(Box::new(move |id, _| id == wanted));
                }
                () if is(word, "TYPE") => {
                    let here = is_type_here(value)?;
                    matches.push(Box::new(move |_, _| here));
                }
                () if is(word, "ADDR") => matches.push(Box::new(by_address(value))),
                () if is(word, "LADDR") => {
                    matches.push(Box::new(move |_, shown| shown.local_address.as_bytes() == value));
                }
                () if is(word, "USER") => {
                    let user =
                        std::str::from_utf8(value).ok().filter(|name| context.world.acl.user(name).is_some());
                    let user = user.ok_or_else(|| {
                        Failure::said(format!("ERR No such user '{}'", String::from_utf8_lossy(value)))
                    })?;
                    matches.push(Box::new(move |_, shown| shown.user == user));
                }
                () if is(word, "SKIPME") && is(value, "YES") => skips_own = true,
                () if is(word, "SKIPME") && is(value, "NO") => skips_own = false,
                () => return Err(Failure::SYNTAX),
            }
        }
    }
    let ends = |id: u64, shown: &ClientInfo| {
        !(skips_own && id == own) && matches.iter().all(|matches| matches(id, shown))
    };
    let clients = context.world.clients.iter();
    let ids: Vec<u64> = clients.filter(|(id, shown)| ends(**id, shown)).map(|(id, _)| *id).collect();
    if filter.len() == 1 && ids.is_empty() {
        return Err(Failure::text("ERR No such client"));
    }
    for &id in &ids {
        if id == own {
            context.session.ends = true;
        } else {
            context.world.end_client(id);
        }
    }
    if filter.len() == 1 {
        out.simple("OK");
    } else {
        out.integer(count(ids.len()));
    }
    Ok(())
}
