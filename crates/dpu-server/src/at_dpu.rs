//! A program whose DPU is a separate process that prefetches for it (PD3; PROTOCOL 19.15 to 19.19). The program's
//! threads only take items from the zone.
//!
//! Key types: [`AtDpu`], a program's connection to the DPU; [`AtDpuOptions`]; [`Prefetched`], the DPU's counts. This
//! module also has the messages for the prefetcher's settings and counts.
//!
//! ```text
//!   program == ring: pieces of connections ==> thread of the DPU: parse, host view == RC ==> memory nodes
//!     |    '== ring: asks, changes, drops ===> |
//!     '------- looks first ---> zone <---------'          a DPU that dies or hangs: nothing is taken any more
//! ```
//!
//! The DPU may capture clients' requests by itself, from an interface of the machine ([`AtDpu::mirror`]).
//!
//! A DPU runs only parsers and structures that it has itself. A dead DPU need not be fenced, because no item is newer
//! than its stamp (PROTOCOL 19.5).

use crate::messages::{ClientMessage, DpuMessage, ask, come_in};
use farmem_client::host_parts::wrong_answer;
use farmem_client::{Client, Error};
use farmem_dpu::accesses::KEY_LEN_MAX;
use farmem_dpu::changes::{Change, FLOORS};
use farmem_dpu::prefetcher::{Config, Stats};
use farmem_dpu::view::KeySecret;
use farmem_link::dpu::{PairSize, SubmissionSender, make_pair, make_submissions};
use farmem_link::mirror::MirrorConfig;
use farmem_link::{OpenError, OutsideWaker};
use farmem_machine::Duration;
use farmem_paging::{Account, Miss, Waste};
use farmem_prefetch::loading_zone::{Finding, make_zone};
use farmem_prefetch::ring::{Life, Line, PIECE_MAX, lock};
use farmem_prefetch::tap::{ParserKind, Tap, TapStats};
use farmem_prefetch::{
    ANSWERS_BYTES_MAX, MirrorStats, PARSERS_BYTES_MAX, Prefetched, Reporter, Taker, ZoneReader, ZoneSize,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

/// Minimum length of the tap's ring in bytes.
const TAP_MIN: usize = 4 * PIECE_MAX;
/// Minimum length of the report ring in bytes: two of the longest records.
const BESIDE_MIN: usize = 8 << 10;
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

/// Options of a program whose DPU prefetches for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtDpuOptions {
    /// The loading zone.
    pub zone: ZoneSize,
    /// Length of the tap's ring in bytes: a power of two, 64 KiB to 256 MiB. Bytes without room count as unseen.
    pub tap: usize,
    /// Length of the report ring in bytes: a power of two, 8 KiB to 256 MiB.
    pub beside: usize,
    /// Maximum number of keys that the program holds.
    pub keys: u64,
    /// Number of the program's floors ([`farmem_dpu::changes`]).
    pub floors: NonZeroU32,
    /// Settings of the prefetcher; the program's secret replaces theirs.
    pub config: Config,
}

impl AtDpuOptions {
    /// Creates options for a program that holds at most `keys` keys: a zone of 16,384 items and 16 MiB, rings of 1
    /// MiB.
    #[must_use]
    pub const fn new(keys: u64) -> Self {
        let zone = ZoneSize { items: 1 << 14, data: 16 << 20 };
        Self { zone, tap: 1 << 20, beside: 1 << 20, keys, floors: FLOORS, config: Config::DEFAULT }
    }
}

/// A program's connection to the DPU of its machine, which prefetches until this value is dropped. From then on the
/// program's threads take nothing, even if they keep takers.
#[derive(Debug)]
pub struct AtDpu {
    life: Arc<Life>,
    tap: Tap,
    beside: Reporter,
    reader: ZoneReader,
    /// The structure's form as sent to the DPU, for another DPU.
    structure: serde_json::Value,
    secret: KeySecret,
    options: AtDpuOptions,
    mirror: Mutex<Option<(MirrorConfig, ParserKind)>>,
}

impl AtDpu {
    /// Connects to the DPU of this machine, in the domain of `client`, for a program that starts now.
    ///
    /// The DPU prefetches from the structure of this form (`farmem::form`). Changes continue after `after`, as
    /// [`Reporter::new`] says. `secret` creates the ids of keys.
    ///
    /// # Errors
    /// [`Error::Missing`] in a rack without a DPU, [`Error::Open`] if no DPU serves or an option is out of range,
    /// [`Error::Refused`] with the DPU's refusal.
    pub fn connect(
        client: &Client,
        structure: &impl Serialize,
        (secret, after): (KeySecret, Change),
        options: AtDpuOptions,
    ) -> Result<Self, Error> {
        let structure = serde_json::to_value(structure)
            .map_err(|error| Error::System { what: "a structure's form".into(), source: error.into() })?;
        let (nothing, _) = farmem_prefetch::tap::tap(0, secret);
        let beside = Reporter::new(nothing, secret, options.floors, after);
        Self::come(client, structure, secret, options, beside)
    }

    /// Connects again after the DPU died and another one started. Changes and floors of the program continue.
    ///
    /// Handles from the old value are useless: threads need new connections, takers and a new [`Reporter`] from the
    /// returned value. If the old DPU still runs, it learns that the program has left. The new DPU gets the mirror
    /// request of the old one.
    ///
    /// # Errors
    /// As [`AtDpu::connect`] and [`AtDpu::mirror`]. To continue without a mirror, call [`AtDpu::forget_mirror`] and
    /// connect again.
    pub fn again(&self, client: &Client) -> Result<Self, Error> {
        self.life.end();
        let next =
            Self::come(client, self.structure.clone(), self.secret, self.options, self.beside.clone())?;
        if let Some((packets, protocol)) = &*lock(&self.mirror) {
            next.mirror(packets, *protocol)?;
        }
        Ok(next)
    }

    /// Makes the DPU capture what clients send to this program: packets that an interface of the machine receives
    /// (PD3 5.1; PROTOCOL 19.19).
    ///
    /// `protocol` is a parser that both ends have. The program needs no privileges; the DPU needs CAP_NET_RAW, and
    /// captures only what `mirror` in `[dpu]` of rack.toml allows. The program's own taps continue. A program has one
    /// mirror at a time. After a failed one ([`MirrorStats::failed`]) it may request another.
    ///
    /// # Errors
    /// [`Error::Refused`] with the DPU's refusal: the rack file does not allow it, or the privilege or interface is
    /// missing. Prefetching continues. [`Error::System`] if the DPU does not answer.
    pub fn mirror(&self, packets: &MirrorConfig, protocol: ParserKind) -> Result<(), Error> {
        let asked = ClientMessage::Mirror { packets: packets.clone(), parser: protocol };
        let alone = lock(&self.life.asks);
        match ask(&self.life.socket, &asked, None)? {
            DpuMessage::Done {} => {}
            _ => return Err(wrong_answer("mirror")),
        }
        drop(alone);
        *lock(&self.mirror) = Some((packets.clone(), protocol));
        Ok(())
    }

    /// Forgets the mirror, so that the next DPU ([`AtDpu::again`]) is asked for none.
    pub fn forget_mirror(&self) {
        *lock(&self.mirror) = None;
    }

    fn come(
        client: &Client,
        structure: serde_json::Value,
        secret: KeySecret,
        options: AtDpuOptions,
        beside: Reporter,
    ) -> Result<Self, Error> {
        let AtDpuOptions { zone, tap: tap_bytes, beside: beside_bytes, keys, config, .. } = options;
        if tap_bytes < TAP_MIN || beside_bytes < BESIDE_MIN {
            let (setting, value) = ("rings to the DPU", format!("{tap_bytes} and {beside_bytes} bytes"));
            let remedy =
                "use powers of two: 64 KiB or more for the tap, 8 KiB or more for the program's own requests";
            return Err(OpenError::Setting { setting, value, remedy: remedy.into() }.into());
        }
        let section = client.dpu().ok_or_else(|| Error::Missing {
            what: "[dpu] in this rack's description; a DPU must run to prefetch for a program".into(),
        })?;
        let size = PairSize { requests: 1 << 12, answers: 1 << 12, registered: 0 };
        let pair = make_pair(size)?;
        let (pieces, words) = (make_submissions(tap_bytes)?, make_submissions(beside_bytes)?);
        let items = make_zone(zone)?;
        let (talk, said) = come_in(section, client, size, pair.as_fd())?;
        let DpuMessage::Welcome { lease_ms, .. } = said else { return Err(wrong_answer("hello")) };
        ask(&talk, &ClientMessage::Tap { bytes: tap_bytes }, Some(pieces.as_fd()))?;
        ask(&talk, &ClientMessage::Beside { bytes: beside_bytes }, Some(words.as_fd()))?;
        ask(&talk, &ClientMessage::Zone { size: zone }, Some(items.as_fd()))?;
        let how = PrefetchHow { secret: secret.0, keys, config: ConfigMessage::of(config) };
        let through = beside.acknowledged_through().0;
        let DpuMessage::Prefetches { wake } =
            ask(&talk, &ClientMessage::Prefetch { structure: structure.clone(), how, through }, None)?
        else {
            return Err(wrong_answer("prefetch"));
        };
        let pieces = Arc::new(SubmissionSender::of(&pieces, tap_bytes, OutsideWaker::open(&wake)?)?);
        let words = Arc::new(SubmissionSender::of(&words, beside_bytes, OutsideWaker::open(&wake)?)?);
        let reader = ZoneReader::of(&items, zone, Finding::Index)?;
        let life = Arc::new(Life::new(talk, Duration::from_millis(lease_ms), Arc::clone(&pieces)));
        let tap = Tap::far(Line::new(pieces, Arc::clone(&life), true));
        // Records of that ring count before the next piece, and wake no thread.
        let beside = beside.by(tap.clone(), Line::new(words, Arc::clone(&life), false));
        let mirror = Mutex::default();
        Ok(Self { life, tap, beside, reader, structure, secret, options, mirror })
    }

    /// Returns the tap, into which the program passes its clients' bytes.
    #[must_use]
    pub fn tap(&self) -> Tap {
        self.tap.clone()
    }

    /// Returns the handle by which the program reports what it holds, reads and changes.
    #[must_use]
    pub fn beside(&self) -> Reporter {
        self.beside.clone()
    }

    /// Returns a thread's access to the zone's items.
    #[must_use]
    pub fn taker(&self) -> Taker {
        Taker::new(&self.reader, &self.beside)
    }

    /// Returns true while the DPU serves, as far as this process knows. This call checks the DPU's beat, as each
    /// report does.
    #[must_use]
    pub fn is_served(&self) -> bool {
        if !self.life.is_over() {
            self.life.look();
        }
        !self.life.is_over()
    }

    /// Returns the DPU's counts for this program so far.
    ///
    /// # Errors
    /// [`Error::System`] if the DPU does not answer.
    pub fn prefetched(&self) -> Result<Prefetched, Error> {
        let _alone = lock(&self.life.asks);
        match ask(&self.life.socket, &ClientMessage::Prefetched {}, None)? {
            DpuMessage::Prefetched(said) => Ok((*said).into()),
            _ => Err(wrong_answer("prefetched")),
        }
    }
}

impl Drop for AtDpu {
    fn drop(&mut self) {
        self.life.end();
    }
}

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
