//! `MULTI`, `EXEC`, `DISCARD`, `WATCH` and `UNWATCH`.

use super::execute::{execute_queued, want};
use super::{Args, CommandResult, Context};
use crate::failure::Failure;
use crate::session::{Patience, Queue};
use farmem_protocols::resp::Writer;

pub(super) fn multi(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    if context.session.queues() {
        return Err(Failure::text("ERR MULTI calls can not be nested"));
    }
    context.session.queue = Some(Queue::default());
    out.simple("OK");
    Ok(())
}

pub(super) fn discard(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    if !context.session.queues() {
        return Err(Failure::text("ERR DISCARD without MULTI"));
    }
    context.abandon_transaction();
    out.simple("OK");
    Ok(())
}

pub(super) fn watch(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    if context.session.queues() {
        return Err(Failure::text("ERR WATCH inside MULTI is not allowed"));
    }
    let db = context.db();
    for key in &args[1..] {
        // A key that has expired is removed now, so that its removal is no change later.
        context.store.kind(db, key);
        context.world.tell_watchers(context.store);
        let name = context.store.name(key);
        context.world.watch(context.store, context.session, db, name);
    }
    out.simple("OK");
    Ok(())
}

pub(super) fn unwatch(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    context.world.unwatch(context.store, context.session);
    out.simple("OK");
    Ok(())
}

pub(super) fn exec(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let Some(queue) = context.session.queue.take() else {
        return Err(Failure::text("ERR EXEC without MULTI"));
    };
    context.world.tell_watchers(context.store);
    // A watched key may have expired since.
    let ended = context.session.watches.iter().any(|&(db, name)| context.store.has_ended(db, name));
    let changed = ended || context.world.was_changed(context.session);
    context.world.unwatch(context.store, context.session);
    if queue.is_spoilt {
        return Err(Failure::text("EXECABORT Transaction discarded because of previous errors."));
    }
    if changed {
        out.null_array();
        return Ok(());
    }
    out.array(queue.requests.len());
    if context.store.has_far() {
        let db = context.db();
        let mut requests = queue.requests.iter();
        while let Some(request) = requests.next()
            && want(context.store, db, &request.iter().map(Vec::as_slice).collect::<Vec<_>>())
        {}
        context.store.fetch_wanted();
    }
    // A command in a transaction does not wait for keys.
    let patience = std::mem::replace(&mut context.session.patience, Patience::None);
    for request in &queue.requests {
        let args: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        // If a reply exceeds its bound, the rest is executed too: a transaction is whole.
        execute_queued(context, &args, out);
    }
    context.session.patience = patience;
    Ok(())
}
