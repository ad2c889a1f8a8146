//! `INFO`.

use super::super::{Args, Context, Done, is};
use super::REDIS_VERSION;
use crate::store::{CHUNK, SPACES};
use farmem_resp::Writer;
use std::fmt::Write as _;

type Section = (&'static str, fn(&Context<'_>, &mut String));

const SECTIONS: &[Section] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Farmem", far),
    ("Keyspace", keyspace),
];

pub(crate) fn info(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    let all = args.len() == 1
        || args[1..].iter().any(|name| is(name, "ALL") || is(name, "DEFAULT") || is(name, "EVERYTHING"));
    let mut text = String::new();
    for (name, section) in SECTIONS {
        if all || args[1..].iter().any(|wanted| is(wanted, name)) {
            if !text.is_empty() {
                text += "\r\n";
            }
            text += &format!("# {name}\r\n");
            section(context, &mut text);
        }
    }
    out.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// A line of a section.
fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    write!(text, "{name}:{value}\r\n").expect("a text takes what is written");
}

fn server(context: &Context<'_>, text: &mut String) {
    line(text, "redis_version", REDIS_VERSION);
    line(text, "farmem_version", env!("CARGO_PKG_VERSION"));
    line(text, "redis_mode", "standalone");
    line(text, "process_id", std::process::id());
    line(text, "tcp_port", context.world.port);
    line(text, "uptime_in_seconds", context.world.started.elapsed().as_secs());
}

fn clients(context: &Context<'_>, text: &mut String) {
    line(text, "connected_clients", context.world.clients.len());
    line(text, "maxclients", context.world.settings.clients_max);
    line(text, "blocked_clients", context.world.waiting.len());
    line(text, "clients_cut_off", context.world.stats.cut_off);
    line(text, "buffer_bytes", context.world.buffers);
}

fn memory(context: &Context<'_>, text: &mut String) {
    let (store, (tail, cached)) = (&context.store, context.store.log_ref().here_len());
    line(text, "used_memory", store.data_bytes());
    line(text, "used_memory_rss", context.world.resident);
    line(text, "maxmemory", store.memory.data_max);
    line(text, "maxmemory_policy", store.memory.policy.name());
    line(text, "local_limit", store.memory.local);
    line(text, "local_used", store.here_bytes() + store.memory.overhead);
    line(text, "local_index", store.index_bytes());
    line(text, "local_tail", tail * CHUNK);
    line(text, "local_read_cache", cached * CHUNK);
    line(text, "local_collections", store.live_bytes());
    line(text, "local_buffers", context.world.buffers);
    line(text, "local_other", store.memory.overhead);
    line(text, "local_full", u8::from(store.memory.is_full));
    line(text, "far_used", store.log_ref().far_len() * CHUNK);
    line(text, "far_allocated", store.log_ref().far_ref().allocated());
}

fn persistence(context: &Context<'_>, text: &mut String) {
    let durable = &context.world.durable;
    line(text, "loading", 0);
    line(text, "rdb_changes_since_last_save", durable.unsaved);
    line(text, "rdb_bgsave_in_progress", u8::from(durable.saving.is_some()));
    line(text, "rdb_last_save_time", durable.last_save);
    line(text, "rdb_last_bgsave_status", if durable.last_save_failed.is_some() { "err" } else { "ok" });
    line(text, "aof_enabled", u8::from(durable.has_log()));
    line(text, "aof_rewrite_in_progress", u8::from(durable.saving.is_some()));
    line(text, "aof_current_size", durable.log_len());
    line(text, "aof_last_write_status", if context.world.no_writes.is_some() { "err" } else { "ok" });
}

fn stats(context: &Context<'_>, text: &mut String) {
    let (counts, stats) = (&context.world.stats, &context.store.stats);
    line(text, "total_connections_received", counts.connections);
    line(text, "rejected_connections", counts.refused);
    line(text, "total_commands_processed", counts.commands);
    line(text, "total_error_replies", counts.errors);
    line(text, "acl_access_denied_auth", counts.wrong_passwords);
    line(text, "acl_delayed_auth", counts.held_passwords);
    line(text, "tls_handshakes_late", counts.late_handshakes);
    line(text, "eventloop_cycles", context.world.turns);
    line(text, "keyspace_hits", stats.hits);
    line(text, "keyspace_misses", stats.misses);
    line(text, "expired_keys", stats.expired);
    line(text, "evicted_keys", stats.evicted);
    line(text, "io_threads", context.world.io_threads);
    line(text, "io_threaded_reads_processed", context.world.io_reads);
    line(text, "io_threaded_writes_processed", context.world.io_writes);
}

fn far(context: &Context<'_>, text: &mut String) {
    let (far, stats) = (context.store.log_ref().far_ref(), &context.store.stats);
    line(text, "far_reads", far.reads);
    line(text, "far_rounds", far.rounds);
    line(text, "far_writes", far.writes);
    line(text, "far_bytes", far.bytes);
    let ahead = context.store.log_ref().counts;
    line(text, "ahead_wanted", ahead.wanted);
    line(text, "ahead_used", ahead.used);
    line(text, "ahead_wasted", ahead.wasted);
    line(text, "ahead_early", ahead.early);
    line(text, "ahead_late", ahead.late);
    line(text, "far_waited", far.waited);
    line(text, "values_fetched", stats.fetched);
    line(text, "read_cache_hits", stats.cache_hits);
    line(text, "chunks_compacted", stats.compacted);
    line(text, "keys_unreadable", stats.unreadable);
}

fn keyspace(context: &Context<'_>, text: &mut String) {
    for db in 0..u8::try_from(SPACES).expect("few") {
        let space = context.store.space(db);
        if space.index.len() > 0 {
            line(
                text,
                &format!("db{db}"),
                format_args!("keys={},expires={},avg_ttl=0", space.index.len(), space.ends.len()),
            );
        }
    }
}
