//! The path of every request: admission, transactions, the append log.
//!
//! Key functions: [`execute`], a client's request; [`run`], an admitted command. Admission checks the rights of the
//! user ([`permit`]) and the room, and updates the statistics. Commands from the append log are replayed without this
//! path ([`crate::recovery`]).

use super::rights::permit;
use super::{Args, CommandResult, Context};
use crate::failure::Failure;
use crate::session::Replies;
use crate::store::{ELEMENT, Store};
use farmem_protocols::commands::{self, CONTAINER, Command, find, find_of, number_of};
use farmem_protocols::resp::Writer;
use std::time::Instant;

/// Executes a client's request, or queues it if a transaction is open, and writes the reply.
pub(crate) fn execute(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) {
    let from = out.position();
    context.world.stats.commands += 1;
    context.session.replies = match context.session.replies {
        Replies::SkipNext => Replies::Skip,
        Replies::Skip => Replies::On,
        other => other,
    };
    let done = match admit(context, args) {
        Ok(Some(command)) => {
            perform(context, command, args, out).and_then(|()| check_reply_len(context, out))
        }
        Ok(None) => {
            out.simple("QUEUED");
            // A client that reads an error here expects that EXEC refuses the transaction.
            check_reply_len(context, out).inspect_err(|_| context.session.spoil())
        }
        Err(failure) => reject(context, args, failure),
    };
    if let Err(failure) = done {
        out.take_back(from);
        report(context, &failure, out);
    }
    context.session.note_request();
    if matches!(context.session.replies, Replies::Off | Replies::Skip) {
        out.take_back(from);
    }
}

/// Writes an error reply, and counts it.
fn report(context: &mut Context<'_>, failure: &Failure, out: &mut Writer<'_>) {
    out.error(failure.reply());
    context.world.stats.errors += 1;
    context.world.statistics.error(failure.reply());
}

/// Marks the open transaction as failed, because one of its requests is refused before it runs.
fn reject(context: &mut Context<'_>, args: Args<'_>, failure: Failure) -> CommandResult {
    let command = find_of(args);
    if let Some(command) = command {
        context.world.statistics.rejected(command);
    }
    if command.is_some_and(|command| command.name == "exec") {
        context.abandon_transaction();
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
) -> CommandResult {
    let begun = Instant::now();
    context.session.activity.begin(command, context.store.now());
    let done = run(context, command, args, out);
    let took = begun.elapsed();
    context.world.statistics.called(command, took, done.is_err(), context.store.now());
    if !command.has(commands::SKIP_SLOWLOG) {
        let Context { world, session, store, .. } = context;
        world.slow.note(args, took, store.now() / 1000, &session.address, &session.name);
    }
    done
}

/// Replaces a reply that exceeds its bound by an error. The command's changes stay, and the error says so.
fn check_reply_len(context: &Context<'_>, out: &Writer<'_>) -> CommandResult {
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
/// The request is refused: no such command, no right to it, no room for the data that it may add.
fn admit(context: &mut Context<'_>, args: Args<'_>) -> Result<Option<&'static Command>, Failure> {
    let command = look_up(args)?;
    if command.has(commands::INTERNAL) {
        return Err(unknown(args));
    }
    let queues = context.session.queues() && !command.has(commands::NOT_QUEUED);
    if queues && command.has(commands::NO_MULTI) {
        return Err(Failure::text("ERR Command not allowed inside a transaction"));
    }
    if !context.session.authenticated && !command.has(commands::NO_AUTH) {
        return Err(Failure::text("NOAUTH Authentication required."));
    }
    permit(context, command, args)?;
    // A transaction is executed as a whole or refused as a whole. So its requests are checked when they are queued,
    // and once more before the first one runs.
    let flags = if command.name == "exec" { context.session.queued_flags() } else { command.flags() };
    // As in Redis, a transaction takes no more requests while there is too much data.
    let ends = matches!(command.name, "exec" | "discard" | "quit" | "reset");
    check_room(context, flags, context.session.queues() && !ends)?;
    if !queues {
        return Ok(Some(command));
    }
    context.session.queue(args, command.flags())?;
    Ok(None)
}

/// Refuses a request with these flags if there is no room for it or writes are not allowed. Evicts keys first if
/// there is too much data.
pub(crate) fn check_room(context: &mut Context<'_>, flags: u32, in_transaction: bool) -> CommandResult {
    if let (Some(why), true) = (&context.world.no_writes, flags & commands::WRITE != 0) {
        return Err(Failure::said(why.clone()));
    }
    let grows = flags & commands::DENYOOM != 0;
    if grows {
        context.store.check_room()?;
    }
    let evicted = evict(context);
    if grows || in_transaction { evicted } else { Ok(()) }
}

/// Notes the command that a memcached request stands for. Refuses the command on one key if the rules of the client's
/// user forbid it.
pub(crate) fn admits(context: &mut Context<'_>, command: &[u8], key: &[u8]) -> CommandResult {
    let row = find(command).expect("the table has it");
    context.session.activity.begin(row, context.store.now());
    permit(context, row, &[command, key])
}

/// Returns whether the rules of the client's user allow a command on one key. The ACL log gets no entry.
pub(crate) fn may(context: &Context<'_>, command: &[u8], key: &[u8]) -> bool {
    context.session.rights.denies(find(command).expect("the table has it"), &[command, key]).is_none()
}

/// Finds the command or subcommand that a request names.
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

/// Returns a word of a request as Redis prints it in errors: up to a zero, and at most 128 bytes.
fn printed(word: &[u8]) -> String {
    let end = word.iter().position(|&byte| byte == 0).unwrap_or(word.len());
    String::from_utf8_lossy(&word[..end.min(128)]).into_owned()
}

fn unknown(args: Args<'_>) -> Failure {
    if let Some(why) = refused(args[0]) {
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

/// Returns the reason why this server lacks a command of Redis.
fn refused(name: &[u8]) -> Option<&'static str> {
    const SCRIPTS: &[&str] =
        &["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "SCRIPT", "FUNCTION", "FCALL", "FCALL_RO"];
    const PUBLISHES: &[&str] = &[
        "SUBSCRIBE",
        "UNSUBSCRIBE",
        "PSUBSCRIBE",
        "PUNSUBSCRIBE",
        "PUBLISH",
        "PUBSUB",
        "SSUBSCRIBE",
        "SUNSUBSCRIBE",
        "SPUBLISH",
    ];
    let among = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    match () {
        () if among(SCRIPTS) => Some("this server runs no scripts; send the commands in MULTI and EXEC"),
        () if among(PUBLISHES) => Some("this server has no publish and subscribe"),
        () => None,
    }
}

/// Notes the values that a request will read, so that one round trip reads them together with others. Returns false
/// if there are enough.
pub(crate) fn want(store: &mut Store, db: u8, args: Args<'_>) -> bool {
    let Some(command) = find_of(args).filter(|command| command.takes(args.len())) else { return true };
    let mut keys = command.keys(args).into_iter().map(|(key, _)| key);
    if command.has(commands::BLIND) {
        keys.for_each(|key| store.want_entry(db, key));
        return true;
    }
    keys.all(|key| store.want(db, key))
}

/// Executes a queued request of a transaction, and writes the reply. The rules of the user may have changed since it
/// was queued.
pub(crate) fn execute_queued(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) {
    let from = out.position();
    let done = look_up(args).and_then(|command| {
        permit(context, command, args)?;
        perform(context, command, args, out)
    });
    // If a reply exceeds its bound, an error replaces that of the transaction.
    if let Err(failure) = done
        && !out.is_over()
    {
        out.take_back(from);
        report(context, &failure, out);
    }
}

/// Executes the request of a waiting client again, and writes the reply. Its user's rules may have changed since, and
/// its reply has a bound like any other.
pub(crate) fn execute_again(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) {
    let from = out.position();
    let done = look_up(args).and_then(|command| {
        permit(context, command, args)?;
        run(context, command, args, out)?;
        check_reply_len(context, out)
    });
    if let Err(failure) = done {
        out.take_back(from);
        report(context, &failure, out);
    }
}

/// Executes an admitted command, and appends what it changed to the log.
pub(crate) fn run(
    context: &mut Context<'_>,
    command: &'static Command,
    args: Args<'_>,
    out: &mut Writer<'_>,
) -> CommandResult {
    // An earlier command of the same transaction may have left a request there.
    context.logged_request = None;
    if command.has(commands::WRITE) {
        if let Some(why) = &context.world.no_writes {
            return Err(Failure::said(why.clone()));
        }
        let bytes = args.iter().map(|arg| arg.len() + 4).sum();
        context.world.durable.reserve(bytes).map_err(Failure::said)?;
        // The append log keeps copies until the end of the turn.
        context.store.give_way(if context.world.durable.has_log() { 3 * bytes } else { bytes });
        if command.has(commands::DENYOOM) {
            context.store.check_room()?;
        }
        context.store.incoming = incoming(command, args);
        let before = context.store.dirty;
        let done = (context.handlers[number_of(command)])(context, args, out);
        // A command that fails may have removed an expired key before. The log gets the request, and fails in the
        // same way.
        if context.store.dirty != before {
            match context.logged_request.take() {
                Some(logged) => {
                    let words: Vec<&[u8]> = logged.iter().map(Vec::as_slice).collect();
                    assert!(look_up(&words).is_ok(), "what the log has is carried out by the next start");
                    context.world.log_request(context.session.db, logged.iter().map(Vec::as_slice))
                }
                None => context.world.log_request(context.session.db, args.iter().copied()),
            }
        }
        return done;
    }
    (context.handlers[number_of(command)])(context, args, out)
}

/// Returns the bytes that a command may add to a collection: its elements, and their bookkeeping.
pub(crate) fn incoming(command: &Command, args: Args<'_>) -> usize {
    if !command.has(commands::DENYOOM) {
        return 0;
    }
    // A sorted set stores each member twice.
    let times = if command.name.starts_with('z') { 2 } else { 1 };
    args.iter().skip(2).map(|arg| times * arg.len() + ELEMENT).sum()
}

/// Evicts keys while there is more data than `maxmemory`.
///
/// # Errors
/// There is too much data, and no key may go.
fn evict(context: &mut Context<'_>) -> CommandResult {
    let Context { store, world, .. } = context;
    store.evict(&mut |db, key| {
        // Each key gets an entry of its own in the frame.
        world.durable.reserve(key.len() + 16).map_err(Failure::said)?;
        world.log_request(db, [&b"DEL"[..], key].into_iter());
        Ok(())
    })
}
