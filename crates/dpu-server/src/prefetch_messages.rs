//! Messages about prefetching, for the socket between a program and its DPU: the configuration of a prefetcher, with
//! its checks, and its counts.
//!
//! Key types: [`PrefetchHow`], [`PrefetchedMessage`].

use farmem_dpu::accesses::KEY_LEN_MAX;
use farmem_dpu::prefetcher::{Config, Stats};
use farmem_dpu::view::KeySecret;
use farmem_paging::{Account, Miss, Waste};
use farmem_prefetch::tap::TapStats;
use farmem_prefetch::{ANSWERS_BYTES_MAX, MirrorStats, PARSERS_BYTES_MAX, Prefetched};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Maximum number of keys of a message.
const BATCH_KEYS_MAX: u32 = 1 << 10;
/// Maximum number of bytes of a message's keys.
const BATCH_BYTES_MAX: u32 = 1 << 16;
/// Maximum number of keys in flight.
const FLYING_KEYS_MAX: u32 = 1 << 16;
/// Maximum number of remembered keys, and bytes of each.
const RECENT_KEYS_MAX: u32 = 1 << 20;
const RECENT_LEN: u64 = 48;
/// Bytes of a key in flight with its index entry and notes; lists may be half empty.
const FLYING_LEN: u64 = 2 * KEY_LEN_MAX as u64 + 256;
/// Bytes of the lists of unread reports, of the host's own reads, and of parsed accesses.
const LISTS_LEN: u64 = 8 << 20;
/// Bytes of the buffers for answers of far memory: pending or kept answers, and one that waits for room.
const ANSWERS_LEN: u64 = ANSWERS_BYTES_MAX as u64 + (1 << 20);
/// Maximum number of keys of a host view, and bytes of each.
const KEYS_MAX: u64 = 1 << 28;
const KEY_LEN: u64 = 9;

/// Settings of a prefetcher, as a program sends them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefetchHow {
    secret: [u64; 2],
    keys: u64,
    config: ConfigMessage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigMessage {
    batch_keys_max: u32,
    batch_bytes_max: u32,
    flying_keys_max: u32,
    recent_keys: u32,
    keeps: bool,
}

impl ConfigMessage {
    const fn of(config: Config) -> Self {
        let Config { batch_keys_max, batch_bytes_max, flying_keys_max, recent_keys, keeps, .. } = config;
        let (batch_keys_max, recent_keys) = (batch_keys_max.get(), recent_keys.get());
        Self { batch_keys_max, batch_bytes_max, flying_keys_max, recent_keys, keeps }
    }
}

impl PrefetchHow {
    pub(crate) const fn new(secret: KeySecret, keys: u64, config: Config) -> Self {
        Self { secret: secret.0, keys, config: ConfigMessage::of(config) }
    }

    /// Returns the checked settings and the number of keys of the host view, or an error that names the value out of
    /// range.
    pub(crate) fn checked(self) -> Result<(Config, usize), String> {
        let Self { secret, keys, config } = self;
        let ConfigMessage { batch_keys_max, batch_bytes_max, flying_keys_max, recent_keys, keeps } = config;
        for (what, have, least, most) in [
            ("batch_keys_max", batch_keys_max.into(), 1, BATCH_KEYS_MAX.into()),
            ("batch_bytes_max", batch_bytes_max.into(), 1, BATCH_BYTES_MAX.into()),
            ("flying_keys_max", flying_keys_max.into(), 1, FLYING_KEYS_MAX.into()),
            ("recent_keys", recent_keys.into(), 1, RECENT_KEYS_MAX.into()),
            ("keys", keys, 1, KEYS_MAX),
        ] {
            if !(least..=most).contains(&have) {
                return Err(format!("{what} is {have}, and may be {least} to {most}"));
            }
        }
        let some = |count| NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
        let config = Config {
            batch_keys_max: some(batch_keys_max),
            batch_bytes_max,
            flying_keys_max,
            recent_keys: some(recent_keys),
            keeps,
            secret: KeySecret(secret),
        };
        Ok((config, usize::try_from(keys).expect("a bounded number")))
    }

    /// Returns the maximum number of bytes of its own memory that the DPU fills for the program; the settings were
    /// checked.
    pub(crate) fn bytes(&self) -> u64 {
        let ConfigMessage { recent_keys, flying_keys_max, .. } = self.config;
        let recent = u64::from(recent_keys).next_power_of_two() * RECENT_LEN;
        let flying = u64::from(flying_keys_max) * FLYING_LEN;
        self.keys * KEY_LEN + recent + flying + ANSWERS_LEN + PARSERS_BYTES_MAX + LISTS_LEN
    }
}

/// The form of [`Prefetched`] in messages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefetchedMessage {
    wanted: u64,
    used: u64,
    late: u64,
    /// Counts by cause.
    wasted: BTreeMap<String, u64>,
    missed: BTreeMap<String, u64>,
    reads: u64,
    writes: u64,
    held: u64,
    shared: u64,
    over: u64,
    deleted: u64,
    bounded: u64,
    messages: u64,
    view_full: u64,
    flying: u64,
    seen: TapStats,
    mirror: MirrorStats,
}

impl From<Prefetched> for PrefetchedMessage {
    fn from(Prefetched { account, stats, seen, mirror, flying }: Prefetched) -> Self {
        let wasted = Waste::ALL.map(|cause| (cause.name().to_owned(), account.wasted_by(cause)));
        let missed = Miss::ALL.map(|cause| (cause.name().to_owned(), account.missed_by(cause)));
        let Stats { reads, writes, held, shared, over, deleted, bounded, messages, view_full } = stats;
        Self {
            wanted: account.wanted,
            used: account.used,
            late: account.late,
            wasted: wasted.into(),
            missed: missed.into(),
            reads,
            writes,
            held,
            shared,
            over,
            deleted,
            bounded,
            messages,
            view_full,
            flying,
            seen,
            mirror,
        }
    }
}

impl From<PrefetchedMessage> for Prefetched {
    fn from(said: PrefetchedMessage) -> Self {
        let PrefetchedMessage { wanted, used, late, wasted, missed, seen, mirror, flying, .. } = said;
        let mut account = Account::of(wanted, used, late, 0);
        let by = |all: &BTreeMap<String, u64>, name| all.get(name).copied().unwrap_or_default();
        Waste::ALL.into_iter().for_each(|cause| account.waste(cause, by(&wasted, cause.name())));
        Miss::ALL.into_iter().for_each(|cause| account.misses(cause, by(&missed, cause.name())));
        let PrefetchedMessage {
            reads,
            writes,
            held,
            shared,
            over,
            deleted,
            bounded,
            messages,
            view_full,
            ..
        } = said;
        let stats = Stats { reads, writes, held, shared, over, deleted, bounded, messages, view_full };
        Self { account, stats, seen, mirror, flying }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each setting of a program has bounds, and a refusal names the setting that is out of range.
    #[test]
    fn a_refusal_names_the_invalid_setting() {
        let good = PrefetchHow { secret: [1, 2], keys: 10, config: ConfigMessage::of(Config::DEFAULT) };
        let (config, keys) = good.checked().unwrap();
        assert_eq!((config, keys), (Config { secret: KeySecret([1, 2]), ..Config::DEFAULT }, 10));
        let config = good.config;
        for (what, how) in [
            ("keys is 0", PrefetchHow { keys: 0, ..good }),
            ("keys is 18446744073709551615", PrefetchHow { keys: u64::MAX, ..good }),
            ("batch_keys_max", PrefetchHow { config: ConfigMessage { batch_keys_max: 0, ..config }, ..good }),
            (
                "batch_bytes_max",
                PrefetchHow { config: ConfigMessage { batch_bytes_max: 1 << 17, ..config }, ..good },
            ),
            (
                "flying_keys_max",
                PrefetchHow { config: ConfigMessage { flying_keys_max: u32::MAX, ..config }, ..good },
            ),
            (
                "recent_keys",
                PrefetchHow { config: ConfigMessage { recent_keys: u32::MAX, ..config }, ..good },
            ),
        ] {
            let refused = how.checked().unwrap_err();
            assert!(refused.contains(what), "{refused}");
        }
    }

    /// A program's budget covers all that its DPU may keep for it, and grows with the program's settings.
    #[test]
    fn a_budget_covers_all_memory_of_a_program() {
        let least =
            ConfigMessage { flying_keys_max: 1, recent_keys: 1, ..ConfigMessage::of(Config::DEFAULT) };
        let least = PrefetchHow { secret: [1, 2], keys: 1, config: least };
        let fixed = PARSERS_BYTES_MAX + LISTS_LEN + ANSWERS_BYTES_MAX as u64;
        assert!((fixed..fixed + (2 << 20)).contains(&least.bytes()), "{}", least.bytes());
        let more = |how: PrefetchHow| how.bytes() - least.bytes();
        assert_eq!(more(PrefetchHow { keys: 1001, ..least }), 1000 * KEY_LEN);
        let config = ConfigMessage { flying_keys_max: 11, ..least.config };
        assert_eq!(more(PrefetchHow { config, ..least }), 10 * FLYING_LEN);
        let config = ConfigMessage { recent_keys: 1 << 20, ..least.config };
        assert_eq!(more(PrefetchHow { config, ..least }), ((1 << 20) - 1) * RECENT_LEN);
    }

    /// A message with an unknown field is refused.
    #[test]
    fn an_unknown_field_is_refused() {
        let how = r#"{"secret":[1,2],"keys":10,"config":{"batch_keys_max":1,"batch_bytes_max":1,"flying_keys_max":1,"recent_keys":1,"keeps":true,"more":1}}"#;
        assert!(serde_json::from_str::<PrefetchHow>(how).is_err());
    }

    /// Counts survive the message form unchanged, each under its own cause.
    #[test]
    fn counts_survive_the_message_form() {
        let mut account = Account::of(100, 30, 7, 0);
        (1..).zip(Waste::ALL).for_each(|(count, cause)| account.waste(cause, count));
        (20..).zip(Miss::ALL).for_each(|(count, cause)| account.misses(cause, count));
        let stats = Stats {
            reads: 1,
            writes: 2,
            held: 3,
            shared: 4,
            over: 5,
            deleted: 6,
            bounded: 7,
            messages: 8,
            view_full: 9,
        };
        let seen = TapStats { pieces: 10, wild: 11, ..TapStats::default() };
        let mirror = MirrorStats { packets: 13, failed: 14, ..MirrorStats::default() };
        let prefetched = Prefetched { account, stats, seen, mirror, flying: 12 };
        let text = serde_json::to_string(&PrefetchedMessage::from(prefetched)).unwrap();
        let said: PrefetchedMessage = serde_json::from_str(&text).unwrap();
        assert_eq!(Prefetched::from(said), prefetched);
    }
}
