//! A program whose DPU is a separate process that prefetches for it (PD3; PROTOCOL 19.15 to 19.19). The program's
//! threads only take items from the zone.
//!
//! Key types: [`AtDpu`], a program's connection to the DPU; [`AtDpuOptions`]; [`Prefetched`], the DPU's counts.
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
use crate::prefetch_messages::PrefetchHow;
use farmem_client::host_parts::wrong_answer;
use farmem_client::{Client, Error};
use farmem_dpu::changes::{Change, FLOORS};
use farmem_dpu::prefetcher::Config;
use farmem_dpu::view::KeySecret;
use farmem_link::dpu::{PairSize, SubmissionSender, make_pair, make_submissions};
use farmem_link::mirror::MirrorConfig;
use farmem_link::{OpenError, OutsideWaker};
use farmem_machine::Duration;
use farmem_prefetch::loading_zone::{Finding, make_zone};
use farmem_prefetch::ring::{Life, Line, PIECE_MAX, lock};
use farmem_prefetch::tap::{ParserKind, Tap};
use farmem_prefetch::{Prefetched, Reporter, Taker, ZoneReader, ZoneSize};
use serde::Serialize;
use std::num::NonZeroU32;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

/// Minimum length of the tap's ring in bytes.
const TAP_MIN: usize = 4 * PIECE_MAX;
/// Minimum length of the report ring in bytes: two of the longest records.
const BESIDE_MIN: usize = 8 << 10;

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
    /// mirror at a time. After a failed one ([`MirrorStats::failed`](farmem_prefetch::MirrorStats::failed)) it may request another.
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
        let how = PrefetchHow::new(secret, keys, config);
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
