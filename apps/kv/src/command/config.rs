//! `CONFIG`: the settings that clients read and change.

use super::{Args, CommandResult, Context, integer, is};
use crate::durable::Sync;
use crate::failure::Failure;
use crate::glob::glob;
use crate::settings::encoding_limit;
use crate::slowlog::SlowLog;
use crate::store::Policy;
use crate::world::Counts;
use farmem_protocols::resp::Writer;

/// The names of all settings, sorted.
const NAMES: &[&str] = &[
    "aclfile",
    "appendfsync",
    "appendonly",
    "client-output-buffer-limit",
    "databases",
    "dir",
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "hash-max-ziplist-entries",
    "hash-max-ziplist-value",
    "latency-monitor-threshold",
    "latency-tracking",
    "latency-tracking-info-percentiles",
    "lfu-decay-time",
    "lfu-log-factor",
    "list-compress-depth",
    "list-max-listpack-size",
    "list-max-ziplist-size",
    "local",
    "maxclients",
    "maxmemory",
    "maxmemory-policy",
    "maxmemory-samples",
    "port",
    "proto-max-bulk-len",
    "read-ahead",
    "requirepass",
    "save",
    "set-max-intset-entries",
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "timeout",
    "tls-handshake-timeout",
    "zset-max-listpack-entries",
    "zset-max-listpack-value",
    "zset-max-ziplist-entries",
    "zset-max-ziplist-value",
];

fn value_of(context: &Context<'_>, name: &str) -> String {
    let (settings, memory) = (&context.world.settings, &context.store.memory);
    let durable = &context.world.durable;
    match name {
        "aclfile" => settings.acl_file.as_ref().map_or_else(String::new, |file| file.display().to_string()),
        "appendfsync" => {
            Sync::ALL.iter().find(|(_, sync)| *sync == durable.sync).expect("each has a name").0.into()
        }
        "appendonly" => if durable.has_log() { "yes" } else { "no" }.into(),
        "client-output-buffer-limit" => {
            let (soft, seconds) = settings.output_soft;
            format!("normal {} {soft} {seconds}", settings.output_max)
        }
        "databases" => crate::store::SPACES.to_string(),
        "dir" => durable.dir().map_or_else(String::new, |dir| dir.display().to_string()),
        "local" => memory.local.to_string(),
        "maxclients" => settings.clients_max.to_string(),
        "maxmemory" => memory.data_max.to_string(),
        "maxmemory-policy" => memory.policy.name().into(),
        "maxmemory-samples" => memory.samples.to_string(),
        "proto-max-bulk-len" => settings.word_len_max.to_string(),
        "read-ahead" => if settings.read_ahead { "yes" } else { "no" }.into(),
        // The server knows the hash of the password alone.
        "requirepass" => if context.world.acl.default_user().is_open() { "" } else { "(set)" }.into(),
        "save" => settings
            .save
            .iter()
            .map(|(seconds, changes)| format!("{seconds} {changes}"))
            .collect::<Vec<_>>()
            .join(" "),
        "slowlog-log-slower-than" => {
            context.world.slow.from.map_or_else(|| "-1".to_owned(), |from| from.as_micros().to_string())
        }
        "slowlog-max-len" => context.world.slow.most.to_string(),
        "timeout" => settings.timeout.to_string(),
        "tls-handshake-timeout" => settings.tls_handshake.to_string(),
        "latency-monitor-threshold" => context.world.statistics.threshold.to_string(),
        "latency-tracking" => if context.world.statistics.tracks { "yes" } else { "no" }.into(),
        "latency-tracking-info-percentiles" => {
            let percentiles = context.world.statistics.percentiles.iter();
            percentiles.map(f64::to_string).collect::<Vec<_>>().join(" ")
        }
        "lfu-decay-time" => memory.lfu.decay_minutes.to_string(),
        "lfu-log-factor" => memory.lfu.log_factor.to_string(),
        "port" => context.world.port.to_string(),
        name => settings.encoding_limits[encoding_limit(name).expect("the names are listed")].to_string(),
    }
}

pub(super) fn config(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    match args {
        [_, what, patterns @ ..] if is(what, "GET") && !patterns.is_empty() => {
            let wanted = |name: &str| {
                patterns.iter().any(|pattern| glob(&pattern.to_ascii_lowercase(), name.as_bytes()))
            };
            let found: Vec<&str> = NAMES.iter().copied().filter(|name| wanted(name)).collect();
            out.map(found.len());
            for name in found {
                out.bulk(name.as_bytes());
                out.bulk(value_of(context, name).as_bytes());
            }
        }
        [_, what, pairs @ ..] if is(what, "SET") && pairs.len().is_multiple_of(2) => {
            set_all(context, pairs)?;
            out.simple("OK");
        }
        [_, what] if is(what, "RESETSTAT") => {
            context.world.stats = Counts::default();
            context.world.statistics.reset();
            context.store.stats = crate::store::Stats::default();
            out.simple("OK");
        }
        [_, what] if is(what, "REWRITE") => {
            return Err(Failure::text("ERR The server is running without a config file"));
        }
        _ => return Err(Failure::SYNTAX),
    }
    Ok(())
}

/// Parses a size in bytes, or with a unit of Redis's.
fn size(text: &str) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    let units = [
        ("kb", 1 << 10),
        ("mb", 1 << 20),
        ("gb", 1 << 30),
        ("k", 1000),
        ("m", 1_000_000),
        ("g", 1_000_000_000),
        ("b", 1),
    ];
    let (digits, unit) = units
        .iter()
        .find_map(|(name, unit)| lower.strip_suffix(name).map(|digits| (digits, *unit)))
        .unwrap_or((&lower, 1));
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// Sets all of these settings, or none.
fn set_all(context: &mut Context<'_>, pairs: Args<'_>) -> CommandResult {
    let mut names: Vec<String> = Vec::new();
    for name in pairs.iter().step_by(2) {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        if !NAMES.contains(&name.as_str()) {
            return Err(Failure::said(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            )));
        }
        if names.contains(&name) {
            return Err(failed(&name, "duplicate parameter"));
        }
        names.push(name);
    }
    let before: Vec<String> = names.iter().map(|name| value_of(context, name)).collect();
    // An earlier password cannot be restored, so a new one is set when all else is.
    let (last, first): (Vec<usize>, Vec<usize>) =
        (0..names.len()).partition(|&number| names[number] == "requirepass");
    for (done, &number) in first.iter().chain(&last).enumerate() {
        if let Err(failure) = set(context, &names[number], pairs[2 * number + 1]) {
            for &number in &first[..done.min(first.len())] {
                set(context, &names[number], before[number].as_bytes())?;
            }
            return Err(failure);
        }
    }
    Ok(())
}

fn failed(name: &str, why: &str) -> Failure {
    Failure::said(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
}

fn set(context: &mut Context<'_>, name: &str, value: &[u8]) -> CommandResult {
    let text = String::from_utf8_lossy(value).into_owned();
    let wrong = |why: &str| failed(name, why);
    let number = || {
        integer(value)
            .ok()
            .and_then(|number| usize::try_from(number).ok())
            .ok_or_else(|| wrong("argument couldn't be parsed into an integer"))
    };
    let yes = || match text.as_str() {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(wrong("argument must be 'yes' or 'no'")),
    };
    let bytes = || size(&text).ok_or_else(|| wrong("argument must be a memory value"));
    match name {
        "maxmemory" => context.store.memory.data_max = bytes()?,
        "maxmemory-policy" => {
            let names: Vec<&str> = Policy::ALL.iter().map(|(name, _)| *name).collect();
            let policy = Policy::ALL.iter().find(|(name, _)| *name == text);
            context.store.memory.policy = policy
                .ok_or_else(|| {
                    wrong(&format!("argument(s) must be one of the following: {}", names.join(", ")))
                })?
                .1;
        }
        "maxmemory-samples" => context.store.memory.samples = number()?.clamp(1, 64),
        "proto-max-bulk-len" => {
            let most = context.world.settings.buffers_max / 2;
            let len = bytes()?;
            if !(1 << 10..=most).contains(&len) {
                return Err(wrong(&format!(
                    "a word has 1 KiB to {most} bytes: half of what --local leaves for buffers"
                )));
            }
            context.world.settings.word_len_max = len;
        }
        "maxclients" => context.world.settings.clients_max = number()?.max(1),
        "read-ahead" => context.world.settings.read_ahead = yes()?,
        "latency-tracking" => context.world.statistics.tracks = yes()?,
        "latency-tracking-info-percentiles" => {
            let numbers: Option<Vec<f64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
            let numbers =
                numbers.filter(|numbers| numbers.iter().all(|number| (0.0..=100.0).contains(number)));
            context.world.statistics.percentiles =
                numbers.ok_or_else(|| wrong("latency-tracking-info-percentiles should contain only numbers in the range of [0.0,100.0]"))?;
        }
        "slowlog-log-slower-than" => {
            let micros = integer(value).map_err(|_| wrong("argument couldn't be parsed into an integer"))?;
            context.world.slow.from = u64::try_from(micros).ok().map(std::time::Duration::from_micros);
        }
        "slowlog-max-len" => context.world.slow.most = number()?.min(SlowLog::LEN_MAX),
        "timeout" => context.world.settings.timeout = number()? as u64,
        "tls-handshake-timeout" => context.world.settings.tls_handshake = number()? as u64,
        "requirepass" => {
            context.world.acl.set_password(Some(text.as_str()).filter(|text| !text.is_empty()));
        }
        "appendfsync" => {
            let sync = Sync::ALL.iter().find(|(name, _)| *name == text);
            let (_, sync) = *sync
                .ok_or_else(|| wrong("argument(s) must be one of the following: everysec, always, no"))?;
            if sync == context.world.durable.sync {
                return Ok(());
            }
            if sync == Sync::EverySecond && !context.world.durable.syncs_each_second() {
                return Err(wrong("everysec begins with the server: restart it with --appendfsync everysec"));
            }
            context.world.durable.sync = sync;
        }
        "save" => {
            let numbers: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
            let numbers = numbers
                .filter(|numbers| numbers.len().is_multiple_of(2))
                .ok_or_else(|| wrong("Invalid save parameters"))?;
            context.world.settings.save = numbers.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        }
        "client-output-buffer-limit" => {
            let words: Vec<&str> = text.split_whitespace().collect();
            let ["normal", hard, soft, seconds] = words[..] else {
                return Err(wrong("Wrong number of arguments in buffer limit configuration."));
            };
            let (hard, soft) = (size(hard), size(soft));
            let (Some(hard), Some(soft), Ok(seconds)) = (hard, soft, seconds.parse()) else {
                return Err(wrong(
                    "Error in hard, soft or soft_seconds setting in buffer limit configuration.",
                ));
            };
            (context.world.settings.output_max, context.world.settings.output_soft) = (hard, (soft, seconds));
        }
        "latency-monitor-threshold" => context.world.statistics.threshold = number()? as u64,
        "lfu-decay-time" => {
            context.store.memory.lfu.decay_minutes = u32::try_from(number()?).unwrap_or(u32::MAX);
        }
        "lfu-log-factor" => {
            context.store.memory.lfu.log_factor = u32::try_from(number()?).unwrap_or(u32::MAX)
        }
        name => {
            let place = encoding_limit(name).ok_or_else(|| wrong("can't set immutable config"))?;
            let limit = integer(value).map_err(|_| wrong("argument couldn't be parsed into an integer"))?;
            context.world.settings.encoding_limits[place] = limit;
        }
    }
    Ok(())
}
