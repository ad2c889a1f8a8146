//! Commands: which there are, what each may do, and how one is carried out.
//!
//! Key types: [`Command`], a row of the table; [`Context`], what a command works on. Names, arity and error texts are Redis's.

mod acl;
mod blocking;
mod collections;
mod hashes;
mod keys;
mod lcs;
mod lists;
mod long_double;
mod numbers;
mod server;
mod sets;
mod slowlog;
mod sort;
mod sorted;
mod sorted_ranges;
mod strings;
mod table;
mod transactions;

pub(crate) use server::{Settings, glob, has_password, keys_of, log_in_as};
pub(crate) use slowlog::SlowLog;
pub(crate) use table::{Command, find, number_of, shown};

use crate::failure::Failure;
use crate::session::Session;
use crate::store::{ELEMENT as ELEMENT_BYTES, Store};
use crate::world::World;
use farmem_resp::Writer;

/// Words of a request, the command first.
pub(crate) type Args<'a> = &'a [&'a [u8]];
/// What came of a command that did not write its reply.
pub(crate) type Done = Result<(), Failure>;

/// What a command works on.
pub(crate) struct Context<'a> {
    pub(crate) store: &'a mut Store,
    pub(crate) session: &'a mut Session,
    pub(crate) world: &'a mut World,
    /// The request that the append log has in the place of the one that came: of those that chance decides.
    pub(crate) instead: Option<Vec<Vec<u8>>>,
}

impl Context<'_> {
    pub(crate) const fn db(&self) -> u8 {
        self.session.db
    }
}

/// Carries one request out, or queues it when it belongs to a transaction, and writes its reply.
pub(crate) fn carry_out(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) {
    let from = out.position();
    context.world.stats.commands += 1;
    let begun = context.world.slow.from.map(|_| crate::world::now());
    let done = admitted(context, args, out).and_then(|()| whole(context, out));
    if let Some(begun) = begun {
        slowlog::note(context, args, begun.elapsed());
    }
    if let Err(failure) = done {
        out.take_back(from);
        out.error(failure.reply());
        context.world.stats.errors += 1;
    }
}

/// Refuses a reply that its bound has cut: the client is told so, and what the command has changed.
fn whole(context: &Context<'_>, out: &Writer<'_>) -> Done {
    if !out.is_over() {
        return Ok(());
    }
    Err(Failure::said(format!(
        "ERR there is no room for the reply: one may have {} bytes (client-output-buffer-limit), and all that waits for clients together {}, a quarter of --local; ask for less at once; what this command changes is changed",
        context.world.settings.reply_len_max(),
        context.world.settings.buffers_max
    )))
}

fn admitted(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    let known = look_up(args)
        .and_then(|known| if known.has(table::INTERNAL) { Err(unknown(args)) } else { Ok(known) });
    let command = match known {
        Ok(command) => command,
        Err(failure) => {
            context.session.spoil();
            return Err(failure);
        }
    };
    if !context.session.authenticated && !command.has(table::NO_AUTH) {
        return Err(Failure::text("NOAUTH Authentication required."));
    }
    if let Err(failure) = acl::permit(context, command, args) {
        context.session.spoil();
        return Err(failure);
    }
    if context.session.queues() && !command.has(table::NOT_QUEUED) {
        if command.has(table::NO_MULTI) {
            context.session.spoil();
            return Err(Failure::text("ERR Command not allowed inside a transaction"));
        }
        // What would be refused is refused now: no part of the transaction is carried out.
        if let Err(failure) = would_refuse(context, command) {
            context.session.spoil();
            return Err(failure);
        }
        context.session.queue(args)?;
        out.simple("QUEUED");
        return Ok(());
    }
    run(context, command, args, out)
}

/// Refuses what the client may not do to a key, as a command of the table.
pub(crate) fn admits(context: &mut Context<'_>, command: &[u8], key: &[u8]) -> Done {
    acl::permit(context, find(command).expect("the table has it"), &[command, key])
}

/// Whether the client may do that to a key, for what is done beside its request: nothing is noted where it may not.
pub(crate) fn may(context: &Context<'_>, command: &[u8], key: &[u8]) -> bool {
    context.session.rights.denies(find(command).expect("the table has it"), &[command, key]).is_none()
}

/// Why a command that changes data would be refused as things are.
fn would_refuse(context: &Context<'_>, command: &Command) -> Done {
    match &context.world.no_writes {
        Some(why) if command.has(table::WRITES) => Err(Failure::said(why.clone())),
        _ if command.has(table::GROWS) => context.store.check_room(),
        _ => Ok(()),
    }
}

/// The command that a request names.
pub(crate) fn look_up(args: Args<'_>) -> Result<&'static Command, Failure> {
    let name = args[0];
    let Some(command) = find(name) else { return Err(unknown(args)) };
    if !command.takes(args.len()) {
        let name = command.name.to_ascii_lowercase();
        return Err(Failure::said(format!("ERR wrong number of arguments for '{name}' command")));
    }
    // Commands of two words have rows of their own in Redis.
    if command.name == "object" && args.len() != 3 && !is(args[1], "HELP") {
        let sub = String::from_utf8_lossy(args[1]).to_ascii_lowercase();
        return Err(Failure::said(format!("ERR wrong number of arguments for 'object|{sub}' command")));
    }
    Ok(command)
}

fn unknown(args: Args<'_>) -> Failure {
    // As Redis prints it: up to a zero.
    let shown = |bytes: &[u8]| {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end.min(128)]).into_owned()
    };
    if let Some(why) = table::refused(args[0]) {
        return Failure::said(format!("ERR unknown command '{}': {why}", shown(args[0])));
    }
    let mut beginning = String::new();
    for arg in args.iter().skip(1) {
        if beginning.len() >= 128 {
            break;
        }
        beginning += &format!("'{}' ", shown(&arg[..arg.len().min(128 - beginning.len())]));
    }
    Failure::said(format!("ERR unknown command '{}', with args beginning with: {beginning}", shown(args[0])))
}

/// Notes the values that a request will ask for, so that they are read together with others; false when there are enough.
pub(crate) fn want(store: &mut Store, db: u8, args: Args<'_>) -> bool {
    let Some(command) = find(args[0]).filter(|command| command.takes(args.len())) else { return true };
    if command.has(table::BLIND) {
        let (first, last, step) = command.keys;
        let last = if last < 0 { args.len() - 1 } else { usize::from(last.unsigned_abs()) };
        let keys =
            (usize::from(first.unsigned_abs())..=last).step_by(usize::from(step.unsigned_abs()).max(1));
        keys.filter(|&at| at > 0).for_each(|at| store.want_entry(db, args[at]));
        return true;
    }
    let keys = keys_of(args);
    keys.unwrap_or_default().into_iter().all(|key| store.want(db, key))
}

/// Carries out what a client waits with, once more: what its user may do can have changed since, and its reply has a bound like any other.
pub(crate) fn run_again(
    context: &mut Context<'_>,
    command: &'static Command,
    args: Args<'_>,
    out: &mut Writer<'_>,
) -> Done {
    acl::permit(context, command, args)?;
    run(context, command, args, out)?;
    whole(context, out)
}

/// Carries a command out that may be.
pub(crate) fn run(
    context: &mut Context<'_>,
    command: &'static Command,
    args: Args<'_>,
    out: &mut Writer<'_>,
) -> Done {
    // What an earlier command of a transaction left there is not this one's.
    context.instead = None;
    if command.has(table::WRITES) {
        if let Some(why) = &context.world.no_writes {
            return Err(Failure::said(why.clone()));
        }
        let bytes = args.iter().map(|arg| arg.len() + 4).sum();
        context.world.durable.reserve(bytes).map_err(Failure::said)?;
        // The append log has copies until the end of the turn.
        context.store.give_way(if context.world.durable.has_log() { 3 * bytes } else { bytes });
        if command.has(table::GROWS) {
            may_grow(context)?;
        }
        context.store.incoming = incoming(command, args);
        let before = context.store.dirty;
        let done = (command.run)(context, args, out);
        // A key that had ended goes also where the command then fails: the log is told, and it is the same there.
        if context.store.dirty != before {
            match context.instead.take() {
                Some(instead) => {
                    let words: Vec<&[u8]> = instead.iter().map(Vec::as_slice).collect();
                    assert!(look_up(&words).is_ok(), "what the log has is carried out by the next start");
                    context.world.log_request(context.session.db, instead.iter().map(Vec::as_slice))
                }
                None => context.world.log_request(context.session.db, args.iter().copied()),
            }
        }
        return done;
    }
    (command.run)(context, args, out)
}

/// Bytes that a command may add to a collection, its elements with what they take beside.
pub(crate) fn incoming(command: &Command, args: Args<'_>) -> usize {
    if !command.has(table::GROWS) {
        return 0;
    }
    // A sorted set has its members twice.
    let times = if command.name.starts_with('z') { 2 } else { 1 };
    args.iter().skip(2).map(|arg| times * arg.len() + ELEMENT_BYTES).sum()
}

/// Refuses what needs room when there is none, before anything changes; takes keys out when there is too much data.
fn may_grow(context: &mut Context<'_>) -> Done {
    context.store.check_room()?;
    let Context { store, world, .. } = context;
    store.evict(&mut |db, key| {
        // A frame has a head of its own for each; with what the command itself has there is room.
        world.durable.reserve(key.len() + 16).map_err(Failure::said)?;
        world.log_request(db, [&b"DEL"[..], key].into_iter());
        Ok(())
    })
}

/// A whole number.
pub(crate) fn integer(arg: &[u8]) -> Result<i64, Failure> {
    farmem_resp::integer(arg).ok_or(Failure::NOT_INTEGER)
}

/// A number with a fraction, as Redis reads one: no spaces, no NaN.
pub(crate) fn float(arg: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(arg).ok()?;
    let number: f64 = match text.to_ascii_lowercase().as_str() {
        "inf" | "+inf" | "infinity" | "+infinity" => return Some(f64::INFINITY),
        "-inf" | "-infinity" => return Some(f64::NEG_INFINITY),
        other => other.parse().ok()?,
    };
    // A number that is too large is none.
    number.is_finite().then_some(number)
}

/// True when a word is this one, in whatever letters.
pub(crate) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// A count as a reply's number.
pub(crate) fn count(n: usize) -> i64 {
    i64::try_from(n).expect("fewer than memory has")
}
