//! A program whose DPU is a process beside it, and prefetches for it (PD3; PROTOCOL 19.15 to 19.19): the program's threads take from the zone, and do nothing else for that.
//!
//! Key types: [`AtDpu`], a program's hold of the DPU; [`AtDpuOptions`]; [`Prefetched`], what the DPU says that it did. What is said over the socket once is here too: how a prefetcher works,
//! checked, and its counts.
//!
//! ```text
//!   program == ring: pieces of connections ==> thread of the DPU: parse, host view == RC ==> memory nodes
//!     |    '== ring: asks, changes, drops ===> |
//!     '------- looks first ---> zone <---------'          a DPU that dies or hangs: nothing is taken any more
//! ```
//!
//! The DPU may capture clients' requests by itself, from an interface of the machine ([`AtDpu::mirror`]).
//!
//! Nothing here carries a parser or a structure that the DPU does not know, or fences anything: no item of a DPU that is gone is newer than its stamp says (PROTOCOL 19.5).

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
    ANSWERS_BYTES_MAX, Beside, MirrorStats, PARSERS_BYTES_MAX, Prefetched, Taker, ZoneReader, ZoneSize,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

/// Bytes of the ring of the tap, at least.
const TAP_MIN: usize = 4 * PIECE_MAX;
/// Bytes of the ring of what a program does, at least: two of its longest records.
const BESIDE_MIN: usize = 8 << 10;
/// Keys of a message at most.
const BATCH_KEYS_MAX: u32 = 1 << 10;
/// Bytes of a message's keys at most.
const BATCH_BYTES_MAX: u32 = 1 << 16;
/// Keys on their way at most.
const FLYING_KEYS_MAX: u32 = 1 << 16;
/// Keys that are remembered at most, and bytes of each.
const RECENT_KEYS_MAX: u32 = 1 << 20;
const RECENT_LEN: u64 = 48;
/// Bytes of a key on its way, its place among others and what is noted of it; lists may be half empty.
const FLYING_LEN: u64 = 2 * KEY_LEN_MAX as u64 + 256;
/// Bytes of the lists of what the program said and was not heard, what it reads itself, and what parsers said.
const LISTS_LEN: u64 = 8 << 20;
/// Bytes of the buffers that answers of far memory come in: of those under way or kept, and of one that waits for room.
const ANSWERS_LEN: u64 = ANSWERS_BYTES_MAX as u64 + (1 << 20);
/// Keys of a host view at most, and bytes of each.
const KEYS_MAX: u64 = 1 << 28;
const KEY_LEN: u64 = 9;

/// How a program has its DPU prefetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtDpuOptions {
    /// The loading zone.
    pub zone: ZoneSize,
    /// Bytes of the ring of the tap: a power of two, 64 KiB to 256 MiB. What has no room is not seen.
    pub tap: usize,
    /// Bytes of the ring of what the program does: a power of two, 8 KiB to 256 MiB.
    pub beside: usize,
    /// Keys that the program holds at most.
    pub keys: u64,
    /// The program's floors ([`farmem_dpu::changes`]).
    pub floors: NonZeroU32,
    /// How the prefetcher works; its secret is the program's.
    pub config: Config,
}

impl AtDpuOptions {
    /// For a program that holds so many keys at most: a zone of 16,384 items and 16 MiB, rings of 1 MiB.
    #[must_use]
    pub const fn new(keys: u64) -> Self {
        let zone = ZoneSize { items: 1 << 14, data: 16 << 20 };
        Self { zone, tap: 1 << 20, beside: 1 << 20, keys, floors: FLOORS, config: Config::DEFAULT }
    }
}

/// A program at the DPU of its machine, which prefetches for it until this is dropped, whatever of it its threads have still: they take nothing from then on.
#[derive(Debug)]
pub struct AtDpu {
    life: Arc<Life>,
    tap: Tap,
    beside: Beside,
    reader: ZoneReader,
    /// The structure's form as the DPU was told, for another DPU.
    structure: serde_json::Value,
    secret: KeySecret,
    options: AtDpuOptions,
    mirror: Mutex<Option<(MirrorConfig, ParserKind)>>,
}

impl AtDpu {
    /// Comes to the DPU of this machine, in the domain of `client`, with a program that begins now. It prefetches from the structure of this form (`farmem::form`). Changes go on behind `after`, as
    /// [`Beside::new`] says; ids of keys are made by `secret`.
    ///
    /// # Errors
    /// [`Error::Missing`] in a rack without a DPU, [`Error::Open`] when none serves or for options that cannot be, [`Error::Refused`] with what the DPU says.
    pub fn connect(
        client: &Client,
        structure: &impl Serialize,
        (secret, after): (KeySecret, Change),
        options: AtDpuOptions,
    ) -> Result<Self, Error> {
        let structure = serde_json::to_value(structure)
            .map_err(|error| Error::System { what: "a structure's form".into(), source: error.into() })?;
        let (nothing, _) = farmem_prefetch::tap::tap(0, secret);
        let beside = Beside::new(nothing, secret, options.floors, after);
        Self::come(client, structure, secret, options, beside)
    }

    /// Comes to the DPU again, after it died and another one began: the same program, whose changes and floors go on. What this gave is of no use any more: threads take new connections,
    /// takers, and a new [`Beside`] from the answer. The old DPU, where it is there still, hears that the program has gone. The new one is asked for the mirror that the old one had.
    ///
    /// # Errors
    /// As [`AtDpu::connect`], and as [`AtDpu::mirror`]: a caller that goes on without a mirror then calls [`AtDpu::forget_mirror`], and comes again.
    pub fn again(&self, client: &Client) -> Result<Self, Error> {
        self.life.end();
        let next =
            Self::come(client, self.structure.clone(), self.secret, self.options, self.beside.clone())?;
        if let Some((packets, protocol)) = &*lock(&self.mirror) {
            next.mirror(packets, *protocol)?;
        }
        Ok(next)
    }

    /// Has the DPU see, of itself, what clients send to this program: the packets that an interface of the machine receives (PD3 5.1; PROTOCOL 19.19), by a parser that both know. The program needs no privileges for that, the DPU
    /// has CAP_NET_RAW, and mirrors what `mirror` in `[dpu]` of rack.toml lets it. The program's own taps go on beside it. It has one mirror at a time; after one that failed ([`MirrorStats::failed`]) it may ask again.
    ///
    /// # Errors
    /// [`Error::Refused`] with what the DPU says: it may not mirror this, it has no such privilege, or the interface is not there; the program is prefetched for as before. [`Error::System`] when the DPU does not answer.
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

    /// The next DPU ([`AtDpu::again`]) is asked for no mirror.
    pub fn forget_mirror(&self) {
        *lock(&self.mirror) = None;
    }

    fn come(
        client: &Client,
        structure: serde_json::Value,
        secret: KeySecret,
        options: AtDpuOptions,
        beside: Beside,
    ) -> Result<Self, Error> {
        let AtDpuOptions { zone, tap: tap_bytes, beside: beside_bytes, keys, config, .. } = options;
        if tap_bytes < TAP_MIN || beside_bytes < BESIDE_MIN {
            let (setting, value) = ("rings to the DPU", format!("{tap_bytes} and {beside_bytes} bytes"));
            let remedy = "powers of two: 64 KiB or more for the tap, 8 KiB or more for what the program does";
            return Err(OpenError::Setting { setting, value, remedy: remedy.into() }.into());
        }
        let section = client.dpu().ok_or_else(|| Error::Missing {
            what: "[dpu] in this rack's description, and a program that it is to prefetch for wants one"
                .into(),
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

    /// Where the program hands its clients' bytes over.
    #[must_use]
    pub fn tap(&self) -> Tap {
        self.tap.clone()
    }

    /// The handle by which the program reports what it holds, reads and changes.
    #[must_use]
    pub fn beside(&self) -> Beside {
        self.beside.clone()
    }

    /// A thread's way to items.
    #[must_use]
    pub fn taker(&self) -> Taker {
        Taker::new(&self.reader, &self.beside)
    }

    /// True while the DPU serves, as far as is known. This looks, as does whatever the program says.
    #[must_use]
    pub fn is_served(&self) -> bool {
        if !self.life.is_over() {
            self.life.look();
        }
        !self.life.is_over()
    }

    /// Counts of the DPU for this program so far.
    ///
    /// # Errors
    /// [`Error::System`] when the DPU does not answer.
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

/// How a prefetcher works, as a program says it.
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
    /// How it works, and keys of the host view; or which value may not be.
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

    /// Bytes of its own memory that the DPU fills for it at most, where it was checked: the host view, what is remembered of keys, keys on their way, what their answers come in, what
    /// parsers keep, lists.
    pub(crate) fn bytes(&self) -> u64 {
        let ConfigMessage { recent_keys, flying_keys_max, .. } = self.config;
        let recent = u64::from(recent_keys).next_power_of_two() * RECENT_LEN;
        let flying = u64::from(flying_keys_max) * FLYING_LEN;
        self.keys * KEY_LEN + recent + flying + ANSWERS_LEN + PARSERS_BYTES_MAX + LISTS_LEN
    }
}

/// [`Prefetched`] as it is said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefetchedMessage {
    wanted: u64,
    used: u64,
    late: u64,
    /// By cause.
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

    /// Each value that a program says is bounded, and a refusal names the one that is not.
    #[test]
    fn what_cannot_be_is_named() {
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
    fn what_a_program_is_promised_has_all_of_it() {
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

    /// A program that says more than the form has is not understood.
    #[test]
    fn how_has_no_more_than_its_form() {
        let how = r#"{"secret":[1,2],"keys":10,"config":{"batch_keys_max":1,"batch_bytes_max":1,"flying_keys_max":1,"recent_keys":1,"keeps":true,"more":1}}"#;
        assert!(serde_json::from_str::<PrefetchHow>(how).is_err());
    }

    /// Counts come through the socket's form as they were, each cause under its own.
    #[test]
    fn counts_are_what_was_said() {
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
