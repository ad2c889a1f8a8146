//! What is about the server and its clients, and not about data.

mod config;
mod glob;
mod info;

pub(crate) use config::Settings;
pub(super) use config::config;
pub(crate) use glob::glob;
pub(super) use info::info;

use super::keys::database;
use super::table::{FAST, GROWS, READS, WRITES, shown};
use super::{Args, Command, Context, Done, count, find, integer, is};
use crate::failure::Failure;
use crate::session::Session;
use crate::store::CHUNK;
use farmem_resp::{Protocol, Writer};

pub(super) fn ping(_: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    match args {
        [_] => out.simple("PONG"),
        [_, text] => out.bulk(text),
        _ => return Err(Failure::text("ERR wrong number of arguments for 'ping' command")),
    }
    Ok(())
}

pub(super) fn echo(_: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    out.bulk(args[1]);
    Ok(())
}

pub(super) fn select(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    context.session.db = database(args[1])?;
    out.simple("OK");
    Ok(())
}

pub(super) fn quit(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> Done {
    context.session.ends = true;
    out.simple("OK");
    Ok(())
}

pub(super) fn reset(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> Done {
    context.session.queue = None;
    context.world.unwatch(context.store, context.session);
    context.session.reset(context.world.acl.default_user());
    out.simple("RESET");
    Ok(())
}

pub(super) fn time(_: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> Done {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    out.array(2);
    out.bulk(now.tv_sec.to_string().as_bytes());
    out.bulk((now.tv_nsec / 1000).to_string().as_bytes());
    Ok(())
}

/// Whether a request has a password.
pub(crate) fn has_password(args: Args<'_>) -> bool {
    is(args[0], "AUTH") || (is(args[0], "HELLO") && args.iter().any(|arg| is(arg, "AUTH")))
}

/// A client says who it is.
pub(crate) fn log_in_as(context: &mut Context<'_>, user: &[u8], password: &[u8]) -> Done {
    if let Some(known) = context.world.acl.known(user, password) {
        context.session.become_user(known, context.world.acl.version);
        show(context);
        return Ok(());
    }
    let name = String::from_utf8_lossy(&user[..user.len().min(128)]).into_owned();
    super::acl::note(context, "auth", "AUTH".to_owned(), name);
    context.session.held_until = context.world.guesses.failed(context.session.origin, crate::world::now());
    context.world.stats.wrong_passwords += 1;
    Err(Failure::text("WRONGPASS invalid username-password pair or user is disabled."))
}

pub(super) fn auth(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    match args {
        [_, _] if context.world.acl.default_user().is_open() => {
            return Err(Failure::text(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            ));
        }
        [_, password] => log_in_as(context, b"default", password)?,
        [_, user, password] => log_in_as(context, user, password)?,
        _ => return Err(Failure::SYNTAX),
    }
    out.simple("OK");
    Ok(())
}

pub(super) fn hello(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    let mut protocol = context.session.protocol;
    if let Some(version) = args.get(1) {
        let version = integer(version)
            .map_err(|_| Failure::text("ERR Protocol version is not an integer or out of range"))?;
        protocol = match version {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return Err(Failure::text("NOPROTO unsupported protocol version")),
        };
    }
    let (mut at, mut name) = (2, None);
    while at < args.len() {
        let left = args.len() - at - 1;
        if is(args[at], "AUTH") && left >= 2 {
            log_in_as(context, args[at + 1], args[at + 2])?;
            at += 3;
        } else if is(args[at], "SETNAME") && left >= 1 {
            name = Some(client_name(args[at + 1])?);
            at += 2;
        } else {
            return Err(Failure::said(format!(
                "ERR Syntax error in HELLO option '{}'",
                String::from_utf8_lossy(args[at])
            )));
        }
    }
    if !context.session.authenticated {
        return Err(Failure::text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        context.session.name = name;
    }
    context.session.protocol = protocol;
    out.set_protocol(protocol);
    out.map(7);
    let texts = [("server", "redis"), ("version", REDIS_VERSION)];
    texts.iter().for_each(|(field, text)| {
        out.bulk(field.as_bytes());
        out.bulk(text.as_bytes());
    });
    out.bulk(b"proto");
    out.integer(if protocol == Protocol::Resp2 { 2 } else { 3 });
    out.bulk(b"id");
    out.integer(i64::try_from(context.session.id).unwrap_or(i64::MAX));
    for (field, text) in [("mode", "standalone"), ("role", "master")] {
        out.bulk(field.as_bytes());
        out.bulk(text.as_bytes());
    }
    out.bulk(b"modules");
    out.array(0);
    Ok(())
}

/// The version of Redis whose commands and texts these are: clients choose by it what they send.
pub(super) const REDIS_VERSION: &str = "7.0.15";

/// Bytes of a client's name at most: it stands in lists and logs.
const NAME_LEN_MAX: usize = 512;

fn client_name(arg: &[u8]) -> Result<String, Failure> {
    if arg.len() > NAME_LEN_MAX {
        return Err(Failure::text("ERR Client names have at most 512 bytes."));
    }
    if !arg.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err(Failure::text("ERR Client names cannot contain spaces, newlines or special characters."));
    }
    Ok(String::from_utf8_lossy(arg).into_owned())
}

fn client_line(id: u64, shown: &crate::world::Shown) -> String {
    format!(
        "id={id} addr={} name={} age={} db={} resp={} user={}",
        shown.address,
        shown.name,
        shown.since.elapsed().as_secs(),
        shown.db,
        shown.resp,
        shown.user
    )
}

fn show(context: &mut Context<'_>) {
    let Session { id, db, protocol, name, user, .. } = &*context.session;
    if let Some(shown) = context.world.clients.get_mut(id) {
        shown.name.clone_from(name);
        shown.user.clone_from(user);
        shown.db = *db;
        shown.resp = if *protocol == Protocol::Resp2 { 2 } else { 3 };
    }
}

pub(super) fn client(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    show(context);
    match args {
        [_, what] if is(what, "ID") => out.integer(i64::try_from(context.session.id).unwrap_or(i64::MAX)),
        [_, what] if is(what, "GETNAME") => match context.session.name.as_str() {
            "" => out.null(),
            name => out.bulk(name.as_bytes()),
        },
        [_, what, name] if is(what, "SETNAME") => {
            context.session.name = client_name(name)?;
            out.simple("OK");
        }
        [_, what, _, _] if is(what, "SETINFO") => out.simple("OK"),
        [_, what] if is(what, "INFO") => {
            let id = context.session.id;
            let line = context.world.clients.get(&id).map(|shown| client_line(id, shown) + "\n");
            out.verbatim(*b"txt", line.unwrap_or_default().as_bytes());
        }
        [_, what, id, how @ ..] if is(what, "UNBLOCK") && how.len() < 2 => {
            let with_error = match how {
                [] => false,
                [how] if is(how, "TIMEOUT") => false,
                [how] if is(how, "ERROR") => true,
                _ => return Err(Failure::text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
            };
            let id = u64::try_from(integer(id)?).unwrap_or(0);
            out.integer(i64::from(context.world.waiting.unblock(id, with_error)));
        }
        [_, what, ..] if is(what, "LIST") => {
            let lines: String =
                context.world.clients.iter().map(|(id, shown)| client_line(*id, shown) + "\n").collect();
            out.verbatim(*b"txt", lines.as_bytes());
        }
        [_, what, rest @ ..] if is(what, "KILL") => kill(context, rest, out)?,
        [_, what, _] if is(what, "NO-EVICT") || is(what, "NO-TOUCH") => out.simple("OK"),
        [_, what, ..] => {
            let name = String::from_utf8_lossy(what).into_owned();
            return Err(Failure::said(format!(
                "ERR unknown subcommand or wrong number of arguments for '{name}'. Try CLIENT HELP."
            )));
        }
        _ => return Err(Failure::SYNTAX),
    }
    Ok(())
}

fn kill(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    let by_address = |address: &[u8]| {
        let found = context.world.clients.iter().filter(|(_, shown)| shown.address.as_bytes() == address);
        found.map(|(id, _)| *id).collect::<Vec<_>>()
    };
    let (ids, old) = match args {
        [address] => (by_address(address), true),
        [word, address] if is(word, "ADDR") => (by_address(address), false),
        [word, id] if is(word, "ID") => {
            let id = integer(id).ok().and_then(|id| u64::try_from(id).ok());
            let id = id.ok_or(Failure::text("ERR client-id should be greater than 0"))?;
            (context.world.clients.contains_key(&id).then_some(id).into_iter().collect(), false)
        }
        _ => return Err(Failure::SYNTAX),
    };
    if old && ids.is_empty() {
        return Err(Failure::text("ERR No such client"));
    }
    context.world.kill.extend(&ids);
    if old {
        out.simple("OK");
    } else {
        out.integer(count(ids.len()));
    }
    Ok(())
}

fn describe(command: &Command, out: &mut Writer<'_>) {
    out.array(7);
    out.bulk(command.name.as_bytes());
    out.integer(command.arity.into());
    let flags = [(WRITES, "write"), (READS, "readonly"), (GROWS, "denyoom"), (FAST, "fast")];
    let has: Vec<&str> = flags.iter().filter(|(flag, _)| command.has(*flag)).map(|(_, name)| *name).collect();
    out.set(has.len());
    has.iter().for_each(|name| out.simple(name));
    let (first, last, step) = command.keys;
    [first, last, step].into_iter().for_each(|number| out.integer(number.into()));
    out.array(0);
}

pub(super) fn command(_: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    match args {
        [_] => {
            out.array(shown().count());
            shown().for_each(|command| describe(command, out));
        }
        [_, what] if is(what, "COUNT") => out.integer(count(shown().count())),
        [_, what] if is(what, "LIST") => {
            out.array(shown().count());
            shown().for_each(|command| out.bulk(command.name.as_bytes()));
        }
        [_, what, names @ ..] if is(what, "INFO") => {
            out.array(names.len());
            names.iter().for_each(|name| match find(name) {
                Some(command) => describe(command, out),
                None => out.null_array(),
            });
        }
        [_, what, names @ ..] if is(what, "DOCS") => {
            let wanted =
                shown().filter(|row| names.is_empty() || names.iter().any(|name| is(name, row.name)));
            let wanted: Vec<&Command> = wanted.collect();
            out.map(wanted.len());
            for command in wanted {
                out.bulk(command.name.as_bytes());
                out.map(1);
                out.bulk(b"summary");
                out.bulk(b"as Redis has it; see docs/kv.md");
            }
        }
        [_, what, request @ ..] if is(what, "GETKEYS") && !request.is_empty() => {
            let keys = keys_of(request).ok_or(Failure::text("ERR Invalid command specified"))?;
            if keys.is_empty() {
                return Err(Failure::text("ERR The command has no key arguments"));
            }
            out.array(keys.len());
            keys.iter().for_each(|key| out.bulk(key));
        }
        [_, what, ..] => {
            let name = String::from_utf8_lossy(what).into_owned();
            return Err(Failure::said(format!("ERR unknown subcommand '{name}'. Try COMMAND HELP.")));
        }
        [] => unreachable!("a request has a word"),
    }
    Ok(())
}

/// The keys of a request, as its command's row says; `None` of an unknown one.
pub(crate) fn keys_of<'a>(request: &[&'a [u8]]) -> Option<Vec<&'a [u8]>> {
    let (first, last, step) = find(request.first()?)?.keys;
    let first = usize::try_from(first).ok().filter(|&first| first > 0);
    let Some(first) = first else { return Some(counted_keys(request).collect()) };
    let last = if last < 0 {
        request.len().checked_sub(usize::from(last.unsigned_abs()))?
    } else {
        usize::from(last.unsigned_abs())
    };
    let step = usize::from(step.unsigned_abs()).max(1);
    let keys = (first..=last).step_by(step).filter_map(|at| request.get(at).copied());
    let stored = is(request[0], "SORT").then(|| super::sort::stores_in(request)).flatten();
    Some(keys.chain(counted_keys(request)).chain(stored).collect())
}

/// The keys whose number stands in front of them.
fn counted_keys<'a>(request: &[&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
    const BY_FIRST: &[&str] = &["lmpop", "sintercard", "zunion", "zinter", "zdiff", "zintercard", "zmpop"];
    const BY_SECOND: &[&str] = &["blmpop", "bzmpop", "zunionstore", "zinterstore", "zdiffstore"];
    let among = |names: &[&str]| names.iter().any(|name| is(request[0], name));
    let at = if among(BY_FIRST) { Some(1) } else { among(BY_SECOND).then_some(2) };
    let count =
        at.and_then(|at| integer(request.get(at)?).ok()).and_then(|count| usize::try_from(count).ok());
    let from = at.map_or(request.len(), |at| (at + 1).min(request.len()));
    request[from..].iter().copied().take(count.unwrap_or(0))
}

pub(super) fn debug(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    match args {
        [_, what, on] if is(what, "SET-ACTIVE-EXPIRE") => {
            context.world.active_expiry = *on != b"0";
            out.simple("OK");
        }
        [_, what, key] if is(what, "OBJECT") => {
            let db = context.db();
            let Some((kind, bytes, _)) = context.store.dump(db, key)? else { return Err(Failure::NO_KEY) };
            out.simple(&format!("Value kind:{} serializedlength:{}", kind.name(), bytes.len()));
        }
        [_, what, seconds] if is(what, "SLEEP") => {
            let seconds = super::float(seconds).filter(|seconds| (0.0..=60.0).contains(seconds));
            let seconds = seconds.ok_or(Failure::text("ERR a time of 0 to 60 seconds"))?;
            std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
            out.simple("OK");
        }
        [_, what] if is(what, "DROP-LOST") => out.integer(count(context.store.drop_lost())),
        [_, what] if is(what, "JMAP") || is(what, "CHANGE-REPL-ID") => out.simple("OK"),
        _ => {
            return Err(Failure::text(
                "ERR unknown subcommand or wrong number of arguments; there are DEBUG DROP-LOST, SET-ACTIVE-EXPIRE, OBJECT, SLEEP",
            ));
        }
    }
    Ok(())
}

pub(super) fn memory(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    match args {
        [_, what, key, ..] if is(what, "USAGE") => {
            let db = context.db();
            match context.store.dump(db, key)? {
                Some((_, bytes, _)) => out.integer(count(bytes.len() + key.len() + 32)),
                None => out.null(),
            }
        }
        [_, what] if is(what, "PURGE") => out.simple("OK"),
        [_, what] if is(what, "DOCTOR") => {
            out.verbatim(*b"txt", format!("see INFO memory; a chunk has {CHUNK} bytes").as_bytes())
        }
        _ => {
            return Err(Failure::text(
                "ERR unknown subcommand or wrong number of arguments for 'memory' command",
            ));
        }
    }
    Ok(())
}

pub(super) fn role(_: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> Done {
    out.array(3);
    out.bulk(b"master");
    out.integer(0);
    out.array(0);
    Ok(())
}

pub(super) fn wait(_: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    integer(args[1])?;
    integer(args[2])?;
    out.integer(0);
    Ok(())
}

fn begin_save(context: &mut Context<'_>) -> Done {
    if context.world.durable.saving.is_some() {
        return Err(Failure::text("ERR Background save already in progress"));
    }
    crate::saving::begin(context.store, &mut context.world.durable)
        .map_err(|error| Failure::said(format!("ERR {error}")))
}

pub(super) fn save(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> Done {
    begin_save(context)?;
    crate::saving::finish(context.store, &mut context.world.durable)
        .map_err(|error| Failure::said(format!("ERR {error}")))?;
    out.simple("OK");
    Ok(())
}

pub(super) fn bgsave(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> Done {
    begin_save(context)?;
    out.simple("Background saving started");
    Ok(())
}

pub(super) fn bgrewriteaof(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> Done {
    begin_save(context)?;
    out.simple("Background append only file rewriting started");
    Ok(())
}

pub(super) fn lastsave(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> Done {
    out.integer(context.world.durable.last_save);
    Ok(())
}

pub(super) fn shutdown(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    let save = match args {
        [_] => context.world.durable.dir().is_some() && !context.world.durable.has_log(),
        [_, how] if is(how, "SAVE") => true,
        [_, how] if is(how, "NOSAVE") => false,
        _ => return Err(Failure::SYNTAX),
    };
    if save {
        let saved = crate::saving::save_now(context.store, &mut context.world.durable);
        saved.map_err(|error| Failure::said(format!("ERR Errors trying to SHUTDOWN: {error}")))?;
    }
    context.world.ends = true;
    context.session.ends = true;
    out.simple("OK");
    Ok(())
}
