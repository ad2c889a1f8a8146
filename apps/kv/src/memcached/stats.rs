//! The command `stats`.

use super::counts::Counts;
use super::reply::{Done, Refused, VERSION, line};
use crate::command::Context;
use crate::store::Policy;

pub(super) fn stats(context: &mut Context<'_>, words: &[&[u8]], out: &mut Vec<u8>) -> Done {
    let rows = match words {
        [] => general(context),
        [word] if *word == b"settings" => settings(context),
        // There are no size classes.
        [word] if [&b"items"[..], b"slabs", b"sizes", b"conns"].contains(word) => Vec::new(),
        [word] if *word == b"reset" => {
            context.world.memcached = Counts::default();
            line(out, "RESET");
            return Ok(());
        }
        _ => return Err(Refused::Line("ERROR")),
    };
    for (name, value) in rows {
        line(out, &format!("STAT {name} {value}"));
    }
    line(out, "END");
    Ok(())
}

fn general(context: &Context<'_>) -> Vec<(&'static str, String)> {
    let (world, store) = (&context.world, &context.store);
    let counts = &world.memcached;
    let numbers = [
        ("cmd_get", counts.gets.iter().sum()),
        ("cmd_set", counts.sets),
        ("cmd_flush", counts.flushes),
        ("cmd_touch", counts.touches.iter().sum()),
        ("get_hits", counts.gets[0]),
        ("get_misses", counts.gets[1]),
        ("delete_misses", counts.deletes[1]),
        ("delete_hits", counts.deletes[0]),
        ("incr_misses", counts.ups[1]),
        ("incr_hits", counts.ups[0]),
        ("decr_misses", counts.downs[1]),
        ("decr_hits", counts.downs[0]),
        ("cas_misses", counts.cas_misses),
        ("cas_hits", counts.cas_hits),
        ("cas_badval", counts.cas_others),
        ("touch_hits", counts.touches[0]),
        ("touch_misses", counts.touches[1]),
        ("limit_maxbytes", store.memory.data_max as u64),
        ("bytes", store.data_bytes() as u64),
        ("curr_items", store.len(0) as u64),
        ("evictions", store.stats.evicted),
        ("curr_connections", world.clients.len() as u64),
        ("total_connections", world.stats.connections),
        ("max_connections", world.settings.clients_max as u64),
        ("rejected_connections", world.stats.refused),
    ];
    let mut rows = vec![
        ("pid", std::process::id().to_string()),
        ("uptime", world.started.elapsed().as_secs().to_string()),
        ("time", (store.now() / 1000).to_string()),
        ("version", VERSION.to_owned()),
        ("farmem_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("pointer_size", usize::BITS.to_string()),
        ("threads", world.io_threads.to_string()),
    ];
    rows.extend(numbers.into_iter().map(|(name, number): (&'static str, u64)| (name, number.to_string())));
    rows
}

fn settings(context: &Context<'_>) -> Vec<(&'static str, String)> {
    let (settings, memory) = (&context.world.settings, &context.store.memory);
    let evicts = if memory.policy == Policy::NoEviction { "off" } else { "on" };
    vec![
        ("maxbytes", memory.data_max.to_string()),
        ("maxconns", settings.clients_max.to_string()),
        ("evictions", evicts.to_owned()),
        ("item_size_max", settings.word_len_max.to_string()),
        ("cas_enabled", "yes".to_owned()),
        ("flush_enabled", "yes".to_owned()),
        ("binding_protocol", "ascii".to_owned()),
    ]
}
