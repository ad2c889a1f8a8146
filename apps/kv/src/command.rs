//! Commands: which there are, what each may do, and how one is carried out.
//!
//! Key types: [`Command`], a row of the table; [`Context`], what a command works on. Names, arity and error texts are Redis's.

mod acl;
mod blocking;
mod client;
mod collections;
mod hashes;
mod introspection;
mod keys;
mod latency;
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
mod spec;
mod statistics;
mod strings;
mod table;
mod transactions;

pub(crate) use client::Activity;
pub(crate) use server::{Settings, glob, has_password, log_in_as};
pub(crate) use slowlog::SlowLog;
pub(crate) use spec::{Access, CATEGORIES, CONTAINER, Command};
pub(crate) use statistics::Statistics;
pub(crate) use table::{TABLE, all, find, find_of, find_subcommand, number_of};

use introspection::help;

use crate::failure::Failure;
use crate::session::{Replies, Session};
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
    context.session.replies = match context.session.replies {
        Replies::SkipNext => Replies::Skip,
        Replies::Skip => Replies::On,
        other => other,
    };
    let done = match admit(context, args) {
        Ok(Some(command)) => perform(context, command, args, out).and_then(|()| whole(context, out)),
        Ok(None) => {
            out.simple("QUEUED");
            Ok(())
        }
        Err(failure) => reject(context, args, failure),
    };
    if let Err(failure) = done {
        out.take_back(from);
        report(context, &failure, out);
    }
    context.session.activity.end(context.session);
    if matches!(context.session.replies, Replies::Off | Replies::Skip) {
        out.take_back(from);
    }
}

/// Writes an error reply, and counts it.
pub(crate) fn report(context: &mut Context<'_>, failure: &Failure, out: &mut Writer<'_>) {
    out.error(failure.reply());
    context.world.stats.errors += 1;
    context.world.statistics.error(failure.reply());
}

/// A request that is refused before its command runs spoils the transaction that it belongs to.
fn reject(context: &mut Context<'_>, args: Args<'_>, failure: Failure) -> Done {
    let command = find_of(args);
    if let Some(command) = command {
        context.world.statistics.rejected(command);
    }
    if command.is_some_and(|command| command.name == "exec") {
        transactions::abandon(context);
        let text = failure.reply();
        let why = text.strip_prefix("ERR ").unwrap_or(text);
        return Err(Failure::said(format!("EXECABORT Transaction discarded because of: {why}")));
    }
    context.session.spoil();
    Err(failure)
}

/// Runs an admitted command, and counts its time.
fn perform(
    context: &mut Context<'_>,
    command: &'static Command,
    args: Args<'_>,
    out: &mut Writer<'_>,
) -> Done {
    let begun = crate::world::now();
    context.session.activity.begin(command, context.store.now());
    let done = run(context, command, args, out);
    let took = begun.elapsed();
    context.world.statistics.called(command, took, done.is_err(), context.store.now());
    if !command.has(spec::SKIP_SLOWLOG) {
        slowlog::note(context, args, took);
    }
    done
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

/// Returns the command that runs now; `None` if it was queued.
///
/// # Errors
/// The request is refused: no such command, no right to it, no room for what it may add.
fn admit(context: &mut Context<'_>, args: Args<'_>) -> Result<Option<&'static Command>, Failure> {
    let command = look_up(args)?;
    if command.has(spec::INTERNAL) {
        return Err(unknown(args));
    }
    let queues = context.session.queues() && !command.has(spec::NOT_QUEUED);
    if queues && command.has(spec::NO_MULTI) {
        return Err(Failure::text("ERR Command not allowed inside a transaction"));
    }
    if !context.session.authenticated && !command.has(spec::NO_AUTH) {
        return Err(Failure::text("NOAUTH Authentication required."));
    }
    acl::permit(context, command, args)?;
    // A transaction is carried out as a whole or refused as a whole, so its requests are checked when they are queued, and
    // once more before the first one runs.
    let flags = if command.name == "exec" { context.session.queued_flags() } else { command.flags() };
    // As in Redis, a transaction takes no more requests at all while there is too much data.
    let ends = matches!(command.name, "exec" | "discard" | "quit" | "reset");
    check_room(context, flags, context.session.queues() && !ends)?;
    if !queues {
        return Ok(Some(command));
    }
    context.session.queue(args, command.flags())?;
    Ok(None)
}

/// Refuses a request with these flags if there is no room for it or nothing may be changed; evicts keys first if there is more
/// data than may be.
pub(crate) fn check_room(context: &mut Context<'_>, flags: u32, in_transaction: bool) -> Done {
    if let (Some(why), true) = (&context.world.no_writes, flags & spec::WRITE != 0) {
        return Err(Failure::said(why.clone()));
    }
    let grows = flags & spec::DENYOOM != 0;
    if grows {
        context.store.check_room()?;
    }
    let evicted = evict(context);
    if grows || in_transaction { evicted } else { Ok(()) }
}

/// Refuses what the client may not do to a key, as a command of the table.
pub(crate) fn admits(context: &mut Context<'_>, command: &[u8], key: &[u8]) -> Done {
    acl::permit(context, find(command).expect("the table has it"), &[command, key])
}

/// Whether the client may do that to a key, for what is done beside its request: nothing is noted where it may not.
pub(crate) fn may(context: &Context<'_>, command: &[u8], key: &[u8]) -> bool {
    context.session.rights.denies(find(command).expect("the table has it"), &[command, key]).is_none()
}

/// The command or subcommand that a request names.
///
/// # Errors
/// No such command or subcommand, or a wrong number of words.
pub(crate) fn look_up(args: Args<'_>) -> Result<&'static Command, Failure> {
    let Some(command) = find_of(args) else {
        return Err(match find(args[0]).filter(|command| command.has(CONTAINER)) {
            Some(parent) => unknown_subcommand(parent, args[1]),
            None => unknown(args),
        });
    };
    if !command.takes(args.len()) {
        return Err(wrong_arity(command));
    }
    Ok(command)
}

fn wrong_arity(command: &Command) -> Failure {
    Failure::said(format!("ERR wrong number of arguments for '{}' command", command.name))
}

fn unknown_subcommand(parent: &Command, name: &[u8]) -> Failure {
    Failure::said(format!(
        "ERR unknown subcommand '{}'. Try {} HELP.",
        printed(name),
        parent.name.to_ascii_uppercase()
    ))
}

/// A word of a request as Redis prints it in errors: up to a zero, and 128 bytes at most.
fn printed(word: &[u8]) -> String {
    let end = word.iter().position(|&byte| byte == 0).unwrap_or(word.len());
    String::from_utf8_lossy(&word[..end.min(128)]).into_owned()
}

fn unknown(args: Args<'_>) -> Failure {
    if let Some(why) = table::refused(args[0]) {
        return Failure::said(format!("ERR unknown command '{}': {why}", printed(args[0])));
    }
    let mut beginning = String::new();
    for arg in args.iter().skip(1) {
        if beginning.len() >= 128 {
            break;
        }
        beginning += &format!("'{}' ", printed(&arg[..arg.len().min(128 - beginning.len())]));
    }
    Failure::said(format!(
        "ERR unknown command '{}', with args beginning with: {beginning}",
        printed(args[0])
    ))
}

/// Notes the values that a request will ask for, so that they are read together with others; false when there are enough.
pub(crate) fn want(store: &mut Store, db: u8, args: Args<'_>) -> bool {
    let Some(command) = find_of(args).filter(|command| command.takes(args.len())) else { return true };
    let mut keys = command.keys(args).into_iter().map(|(key, _)| key);
    if command.has(spec::BLIND) {
        keys.for_each(|key| store.want_entry(db, key));
        return true;
    }
    keys.all(|key| store.want(db, key))
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
    if command.has(spec::WRITE) {
        if let Some(why) = &context.world.no_writes {
            return Err(Failure::said(why.clone()));
        }
        let bytes = args.iter().map(|arg| arg.len() + 4).sum();
        context.world.durable.reserve(bytes).map_err(Failure::said)?;
        // The append log has copies until the end of the turn.
        context.store.give_way(if context.world.durable.has_log() { 3 * bytes } else { bytes });
        if command.has(spec::DENYOOM) {
            context.store.check_room()?;
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
    if !command.has(spec::DENYOOM) {
        return 0;
    }
    // A sorted set has its members twice.
    let times = if command.name.starts_with('z') { 2 } else { 1 };
    args.iter().skip(2).map(|arg| times * arg.len() + ELEMENT_BYTES).sum()
}

/// Evicts keys while there is more data than `maxmemory`.
///
/// # Errors
/// There is too much data, and no key may go.
fn evict(context: &mut Context<'_>) -> Done {
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
