//! `INFO`.

use super::{Args, CommandResult, Context, is};
use crate::activity::Activity;
use crate::store::{CHUNK, SPACES};
use farmem_protocols::resp::Writer;
use std::fmt::Write as _;

/// The version of Redis with the same commands and texts. Clients select their requests by it.
pub(super) const REDIS_VERSION: &str = "7.0.15";

type Section = (&'static str, bool, fn(&Context<'_>, &mut String));

/// The sections: name, true if `INFO` without a name includes it, and function.
const SECTIONS: &[Section] = &[
    ("Server", true, server),
    ("Clients", true, clients),
    ("Memory", true, memory),
    ("Persistence", true, persistence),
    ("Stats", true, stats),
    ("Replication", true, replication),
    ("CPU", true, cpu),
    ("Modules", true, |_, _| {}),
    ("Commandstats", false, command_stats),
    ("Errorstats", true, error_stats),
    ("Latencystats", false, latency_stats),
    ("Cluster", true, |_, text| line(text, "cluster_enabled", 0)),
    ("Farmem", true, far),
    ("Keyspace", true, keyspace),
];

pub(super) fn info(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let names = &args[1..];
    let has = |wanted: &str| names.iter().any(|name| is(name, wanted));
    let (all, default) = (has("ALL") || has("EVERYTHING"), names.is_empty() || has("DEFAULT"));
    context.world.note_peak(context.store);
    let mut text = String::new();
    for (name, is_default, section) in SECTIONS {
        if all || (default && *is_default) || has(name) {
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

/// Appends a line of a section.
fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    write!(text, "{name}:{value}\r\n").expect("a text takes what is written");
}

/// Appends lines with the same value.
fn lines(text: &mut String, names: &[&str], value: impl std::fmt::Display) {
    names.iter().for_each(|name| line(text, name, &value));
}

/// Formats a size for people, as Redis does.
fn human(bytes: usize) -> String {
    let units = ["B", "K", "M", "G", "T", "P"];
    let power = (usize::BITS - bytes.max(1).leading_zeros() - 1) as usize / 10;
    if power == 0 {
        format!("{bytes}B")
    } else {
        format!("{:.2}{}", bytes as f64 / (1_u64 << (10 * power)) as f64, units[power])
    }
}

/// Returns one number as a part of another, in hundredths; 0 if the other is 0.
fn percent(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

fn server(context: &Context<'_>, text: &mut String) {
    let (world, uptime) = (&context.world, context.world.started.elapsed().as_secs());
    line(text, "redis_version", REDIS_VERSION);
    line(text, "farmem_version", env!("CARGO_PKG_VERSION"));
    line(text, "redis_git_sha1", "00000000");
    line(text, "redis_git_dirty", 0);
    line(text, "redis_mode", "standalone");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    line(text, "os", format_args!("Linux {} {}", kernel.trim(), std::env::consts::ARCH));
    line(text, "arch_bits", usize::BITS);
    line(text, "multiplexing_api", "epoll");
    line(text, "process_id", std::process::id());
    line(text, "process_supervised", "no");
    line(text, "run_id", &world.run_id);
    line(text, "tcp_port", world.port);
    line(text, "server_time_usec", context.store.now() * 1000);
    line(text, "uptime_in_seconds", uptime);
    line(text, "uptime_in_days", uptime / 86_400);
    lines(text, &["hz", "configured_hz"], 10);
    line(text, "lru_clock", (context.store.now() / 1000) & 0xff_ffff);
    let executable =
        std::env::current_exe().map_or_else(|_| String::new(), |path| path.display().to_string());
    line(text, "executable", executable);
    line(text, "config_file", "");
    line(text, "io_threads_active", u8::from(world.io_threads > 1));
}

fn clients(context: &Context<'_>, text: &mut String) {
    let world = &context.world;
    line(text, "connected_clients", world.clients.len());
    line(text, "cluster_connections", 0);
    line(text, "maxclients", world.settings.clients_max);
    let largest = |of: fn(&Activity) -> usize| {
        world.clients.values().map(|shown| of(&shown.activity)).max().unwrap_or(0)
    };
    line(text, "client_recent_max_input_buffer", largest(Activity::input_room));
    line(text, "client_recent_max_output_buffer", largest(Activity::output_room));
    line(text, "blocked_clients", world.waiting.len());
    line(text, "tracking_clients", 0);
    line(text, "clients_in_timeout_table", world.waiting.len_with_end());
    line(text, "clients_cut_off", world.stats.cut_off);
    line(text, "buffer_bytes", world.buffers);
}

/// Fields about memory of features that this server does not have.
const NO_MEMORY: &[&str] = &[
    "used_memory_lua",
    "used_memory_vm_eval",
    "used_memory_scripts_eval",
    "number_of_cached_scripts",
    "number_of_functions",
    "number_of_libraries",
    "used_memory_vm_functions",
    "used_memory_vm_total",
    "used_memory_functions",
    "used_memory_scripts",
    "mem_not_counted_for_evict",
    "mem_replication_backlog",
    "mem_total_replication_buffers",
    "mem_clients_slaves",
    "mem_cluster_links",
    "active_defrag_running",
    "lazyfree_pending_objects",
    "lazyfreed_objects",
];

fn memory(context: &Context<'_>, text: &mut String) {
    let (store, (tail, cached)) = (&context.store, context.store.log_ref().here_len());
    let (world, used, index) = (&context.world, store.data_bytes(), store.index_bytes());
    for (name, bytes) in [
        ("used_memory", used),
        ("used_memory_rss", world.resident),
        ("used_memory_peak", world.peak),
        ("total_system_memory", physical_memory()),
        ("maxmemory", store.memory.data_max),
    ] {
        line(text, name, bytes);
        line(text, &format!("{name}_human"), human(bytes));
    }
    line(text, "used_memory_peak_perc", format_args!("{:.2}%", percent(used, world.peak)));
    line(text, "used_memory_startup", 0);
    line(text, "used_memory_overhead", index);
    line(text, "used_memory_dataset", used.saturating_sub(index));
    line(text, "used_memory_dataset_perc", format_args!("{:.2}%", percent(used.saturating_sub(index), used)));
    line(text, "mem_fragmentation_ratio", format_args!("{:.2}", percent(world.resident, used) / 100.0));
    line(text, "mem_fragmentation_bytes", world.resident as i128 - used as i128);
    line(text, "mem_clients_normal", world.buffers);
    line(text, "mem_aof_buffer", world.durable.buffered());
    line(text, "mem_allocator", "libc");
    // Scripts, replicas, cluster links and defragmentation of this process: there are none.
    lines(text, NO_MEMORY, 0);
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
    // This server forks no process: it takes a snapshot between commands.
    lines(
        text,
        &["loading", "async_loading", "current_cow_peak", "current_cow_size", "current_cow_size_age"],
        0,
    );
    line(text, "rdb_changes_since_last_save", durable.unsaved);
    line(text, "rdb_bgsave_in_progress", u8::from(durable.saving.is_some()));
    line(text, "rdb_last_save_time", durable.last_save);
    line(text, "rdb_last_bgsave_status", if durable.last_save_failed.is_some() { "err" } else { "ok" });
    line(text, "aof_enabled", u8::from(durable.has_log()));
    line(text, "aof_rewrite_in_progress", u8::from(durable.saving.is_some()));
    line(text, "aof_rewrite_scheduled", u8::from(durable.save_is_due));
    line(text, "aof_last_bgrewrite_status", if durable.last_save_failed.is_some() { "err" } else { "ok" });
    lines(
        text,
        &["rdb_last_cow_size", "aof_last_cow_size", "module_fork_in_progress", "module_fork_last_cow_size"],
        0,
    );
    line(text, "aof_current_size", durable.log_len());
    line(text, "aof_last_write_status", if context.world.no_writes.is_some() { "err" } else { "ok" });
}

fn stats(context: &Context<'_>, text: &mut String) {
    let (counts, stats) = (&context.world.stats, &context.store.stats);
    line(text, "total_connections_received", counts.connections);
    line(text, "rejected_connections", counts.refused);
    line(text, "total_commands_processed", counts.commands);
    line(text, "instantaneous_ops_per_sec", context.world.rate.per_second);
    line(text, "total_net_input_bytes", counts.traffic.input);
    line(text, "total_net_output_bytes", counts.traffic.output);
    line(text, "total_reads_processed", counts.traffic.reads);
    line(text, "total_writes_processed", counts.traffic.writes);
    lines(text, NO_STATS, 0);
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

/// Counts of features that this server does not have.
const NO_STATS: &[&str] = &[
    "total_net_repl_input_bytes",
    "total_net_repl_output_bytes",
    "sync_full",
    "sync_partial_ok",
    "sync_partial_err",
    "evicted_clients",
    "pubsub_channels",
    "pubsub_patterns",
    "pubsubshard_channels",
    "latest_fork_usec",
    "total_forks",
    "migrate_cached_sockets",
    "slave_expires_tracked_keys",
    "active_defrag_hits",
    "active_defrag_misses",
    "active_defrag_key_hits",
    "active_defrag_key_misses",
    "total_active_defrag_time",
    "current_active_defrag_time",
    "tracking_total_keys",
    "tracking_total_items",
    "tracking_total_prefixes",
    "unexpected_error_replies",
    "dump_payload_sanitizations",
];

fn replication(context: &Context<'_>, text: &mut String) {
    line(text, "role", "master");
    line(text, "connected_slaves", 0);
    line(text, "master_failover_state", "no-failover");
    line(text, "master_replid", &context.world.run_id);
    line(text, "master_replid2", "0".repeat(40));
    line(text, "master_repl_offset", 0);
    line(text, "second_repl_offset", -1);
    lines(
        text,
        &[
            "repl_backlog_active",
            "repl_backlog_size",
            "repl_backlog_first_byte_offset",
            "repl_backlog_histlen",
        ],
        0,
    );
}

/// Returns the bytes of this machine's memory.
fn physical_memory() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    kib.and_then(|kib| kib.trim().parse::<usize>().ok()).unwrap_or(0) << 10
}

/// Returns the CPU times of a `/proc/.../stat` file in seconds: system, user, and the same of the children.
fn cpu_times(file: &str) -> [f64; 4] {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // The name in front may have spaces; it ends with the last parenthesis.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    // The kernel counts a hundred ticks per second in this file, with any clock.
    [12, 11, 14, 13].map(|at| ticks(at) / 100.0)
}

fn cpu(_: &Context<'_>, text: &mut String) {
    let [system, user, system_children, user_children] = cpu_times("/proc/self/stat");
    let [system_thread, user_thread, ..] = cpu_times("/proc/thread-self/stat");
    for (name, seconds) in [
        ("used_cpu_sys", system),
        ("used_cpu_user", user),
        ("used_cpu_sys_children", system_children),
        ("used_cpu_user_children", user_children),
        ("used_cpu_sys_main_thread", system_thread),
        ("used_cpu_user_main_thread", user_thread),
    ] {
        line(text, name, format_args!("{seconds:.6}"));
    }
}

fn command_stats(context: &Context<'_>, text: &mut String) {
    for (command, calls) in context.world.statistics.used() {
        let micros = calls.nanos / 1000;
        line(
            text,
            &format!("cmdstat_{}", command.name),
            format_args!(
                "calls={},usec={micros},usec_per_call={:.2},rejected_calls={},failed_calls={}",
                calls.calls,
                micros as f64 / calls.calls.max(1) as f64,
                calls.rejected,
                calls.failed
            ),
        );
    }
}

fn error_stats(context: &Context<'_>, text: &mut String) {
    for (kind, count) in &context.world.statistics.errors {
        line(text, &format!("errorstat_{kind}"), format_args!("count={count}"));
    }
}

fn latency_stats(context: &Context<'_>, text: &mut String) {
    let statistics = &context.world.statistics;
    let used = statistics.used().filter(|(_, calls)| statistics.tracks && calls.calls > 0);
    for (command, calls) in used {
        let one = |&percentile: &f64| format!("p{percentile}={:.3}", calls.percentile(percentile) as f64);
        let all: Vec<String> = statistics.percentiles.iter().map(one).collect();
        line(text, &format!("latency_percentiles_usec_{}", command.name), all.join(","));
    }
}

fn far(context: &Context<'_>, text: &mut String) {
    let (far, stats) = (context.store.log_ref().far_ref(), &context.store.stats);
    line(text, "far_reads", far.reads);
    line(text, "far_rounds", far.rounds);
    line(text, "far_writes", far.writes);
    line(text, "far_bytes", far.bytes);
    line(text, "far_errors", far.health.errors);
    line(text, "far_lost_bytes", far.health.lost_bytes);
    line(text, "far_silent_bytes", far.silent_bytes());
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
