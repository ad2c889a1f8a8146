//! Service of clients that wait for a key ([`crate::waiting`]).

use super::execute::execute_again;
use super::handlers;
use crate::session::Patience;
use crate::store::Store;
use crate::waiting::{ReadyKey, Waiter};
use crate::world::{OUT_PAUSE_MIN, World};
use farmem_protocols::resp::Writer;

/// Serves the clients that wait for changed keys, until no client can be served. An element that one client moves may
/// serve another client.
pub(crate) fn serve(store: &mut Store, world: &mut World) {
    while let Some(ReadyKey { db, key, clients }) = world.waiting.take_ready() {
        for id in clients {
            let Some(kind) = store.kind(db, &key) else { break };
            if world.waiting.wants(id, kind)
                && let Some(waiter) = world.waiting.take(id)
            {
                serve_one(id, waiter, &key, store, world);
            }
        }
    }
}

fn serve_one(id: u64, mut waiter: Waiter, key: &[u8], store: &mut Store, world: &mut World) {
    let Waiter { session, request, .. } = &mut waiter;
    let args: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
    let (before, mut reply) = (store.dirty, Vec::new());
    // Replies that wait for their connections take a part of the room.
    let len_max = world.reply_room().saturating_sub(world.waiting.served_bytes).max(OUT_PAUSE_MIN);
    session.patience = Patience::Served;
    session.ready_key = Some(key.to_vec());
    let protocol = session.protocol;
    let mut context = handlers::context(store, session, world);
    execute_again(&mut context, &args, &mut Writer::bounded(&mut reply, protocol, len_max));
    if store.dirty != before {
        world.durable.end_frame(store.now());
        world.tell_watchers(store);
    }
    world.waiting.put_back(id, waiter);
    if !reply.is_empty() {
        world.waiting.forget(id);
        world.waiting.keep(id, reply);
    }
}
