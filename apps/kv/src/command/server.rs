//! Commands about the server and the connection.

use super::client::{client_name, show};
use super::info::REDIS_VERSION;
use super::keys::database;
use super::rights::note;
use super::{Args, CommandResult, Context, count, integer, is};
use crate::failure::Failure;
use crate::session::Patience;
use crate::store::CHUNK;
use farmem_protocols::resp::{Protocol, Writer};
use std::time::Instant;

pub(super) fn ping(_: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    match args {
        [_] => out.simple("PONG"),
        [_, text] => out.bulk(text),
        _ => return Err(Failure::text("ERR wrong number of arguments for 'ping' command")),
    }
    Ok(())
}

pub(super) fn echo(_: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.bulk(args[1]);
    Ok(())
}

pub(super) fn select(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    context.session.db = database(args[1])?;
    out.simple("OK");
    Ok(())
}

pub(super) fn quit(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    context.session.ends = true;
    out.simple("OK");
    Ok(())
}

pub(super) fn reset(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    context.abandon_transaction();
    context.session.reset(context.world.acl.default_user());
    out.simple("RESET");
    Ok(())
}

pub(super) fn time(_: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    out.array(2);
    out.bulk(now.tv_sec.to_string().as_bytes());
    out.bulk((now.tv_nsec / 1000).to_string().as_bytes());
    Ok(())
}

/// Returns whether a request has a password.
pub(crate) fn has_password(args: Args<'_>) -> bool {
    is(args[0], "AUTH") || (is(args[0], "HELLO") && args.iter().any(|arg| is(arg, "AUTH")))
}

/// Authenticates a client as a user.
pub(crate) fn log_in_as(context: &mut Context<'_>, user: &[u8], password: &[u8]) -> CommandResult {
    if let Some(known) = context.world.acl.authenticate(user, password) {
        context.session.become_user(known, context.world.acl.version);
        show(context);
        return Ok(());
    }
    let name = String::from_utf8_lossy(&user[..user.len().min(128)]).into_owned();
    note(context, "auth", "AUTH".to_owned(), name);
    context.session.held_until = context.world.guesses.failed(context.session.origin, Instant::now());
    context.world.stats.wrong_passwords += 1;
    Err(Failure::text("WRONGPASS invalid username-password pair or user is disabled."))
}

pub(super) fn auth(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    // A request outside of a transaction waits until passwords of its address are looked at again; one within cannot.
    let closed = context.world.guesses.closed_until(context.session.origin, Instant::now());
    if closed.is_some() && context.session.patience == Patience::None {
        return Err(Failure::text(
            "ERR too many wrong passwords came from this address; authenticate outside of the transaction, where AUTH waits",
        ));
    }
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

pub(super) fn hello(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
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
    out.hello("redis", REDIS_VERSION, context.session.id);
    Ok(())
}

pub(super) fn debug(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
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

/// Executes `MODULE LIST`: this server loads no modules.
pub(super) fn module(_: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.array(0);
    Ok(())
}

pub(super) fn memory(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    match args {
        [_, what, key, ..] if is(what, "USAGE") => {
            let db = context.db();
            match context.store.dump(db, key)? {
                Some((_, bytes, _)) => out.integer(count(bytes.len() + key.len() + 32)),
                None => out.null(),
            }
        }
        [_, what] if is(what, "STATS") => memory_stats(context, out),
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

/// Writes the parts of memory under Redis's names, as far as this server has them.
fn memory_stats(context: &mut Context<'_>, out: &mut Writer<'_>) {
    context.world.note_peak(context.store);
    let (store, world) = (&*context.store, &*context.world);
    let (used, index) = (store.data_bytes(), store.index_bytes());
    let dbs = 0..u8::try_from(crate::store::SPACES).expect("few databases");
    let dbs: Vec<u8> = dbs.filter(|&db| store.len(db) > 0).collect();
    let keys: usize = dbs.iter().map(|&db| store.len(db)).sum();
    let data = used.saturating_sub(index);
    out.map(14 + dbs.len());
    let number = |name: &str, number: usize, out: &mut Writer<'_>| {
        out.bulk(name.as_bytes());
        out.integer(count(number));
    };
    number("peak.allocated", world.peak, out);
    number("total.allocated", used, out);
    number("startup.allocated", 0, out);
    number("replication.backlog", 0, out);
    number("clients.slaves", 0, out);
    number("clients.normal", world.buffers, out);
    number("cluster.links", 0, out);
    number("aof.buffer", world.durable.buffered(), out);
    for db in dbs {
        out.bulk(format!("db.{db}").as_bytes());
        out.map(2);
        let entries = store.space(db);
        number("overhead.hashtable.main", entries.index.bytes(), out);
        number("overhead.hashtable.expires", entries.ends.len() * size_of::<i64>(), out);
    }
    number("overhead.total", index, out);
    number("keys.count", keys, out);
    number("keys.bytes-per-key", used.checked_div(keys).unwrap_or(0), out);
    number("dataset.bytes", data, out);
    for (name, part, whole) in [("dataset.percentage", data, used), ("peak.percentage", used, world.peak)] {
        out.bulk(name.as_bytes());
        out.double(if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 });
    }
}

pub(super) fn role(_: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.array(3);
    out.bulk(b"master");
    out.integer(0);
    out.array(0);
    Ok(())
}

pub(super) fn wait(_: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    integer(args[1])?;
    integer(args[2])?;
    out.integer(0);
    Ok(())
}

/// Begins a snapshot and returns true; within a transaction, schedules it for the end and returns false.
fn begin_save(context: &mut Context<'_>) -> Result<bool, Failure> {
    if context.world.durable.saving.is_some() {
        return Err(Failure::text("ERR Background save already in progress"));
    }
    // A snapshot has all changes of a transaction or none.
    if context.session.patience == Patience::None && context.world.durable.dir().is_some() {
        context.world.durable.save_is_due = true;
        return Ok(false);
    }
    crate::saving::begin(context.store, &mut context.world.durable)
        .map_err(|error| Failure::said(format!("ERR {error}")))?;
    Ok(true)
}

pub(super) fn save(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    begin_save(context)?;
    crate::saving::finish(context.store, &mut context.world.durable)
        .map_err(|error| Failure::said(format!("ERR {error}")))?;
    out.simple("OK");
    Ok(())
}

pub(super) fn bgsave(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let schedules = match args {
        [_] => false,
        [_, how] if is(how, "SCHEDULE") => true,
        _ => return Err(Failure::SYNTAX),
    };
    if schedules && context.world.durable.saving.is_some() {
        context.world.durable.save_is_due = true;
        out.simple("Background saving scheduled");
        return Ok(());
    }
    let begun = begin_save(context)?;
    out.simple(if begun { "Background saving started" } else { "Background saving scheduled" });
    Ok(())
}

pub(super) fn bgrewriteaof(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let begun = begin_save(context)?;
    out.simple(if begun {
        "Background append only file rewriting started"
    } else {
        "Background append only file rewriting scheduled"
    });
    Ok(())
}

pub(super) fn lastsave(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.integer(context.world.durable.last_save);
    Ok(())
}

pub(super) fn shutdown(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
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
