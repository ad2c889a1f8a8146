//! `[dpu]` of `rack.toml`: the DPU beside each host (SODA).

use super::{Credentials, Page};
use crate::Error;
use farmem_io::LinkProfile;
use farmem_machine::Duration;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fmt::Write as _;
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;
use toml::{Spanned, Value};

/// What a DPU's cache table is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DpuCaching {
    /// It forwards: SODA's base.
    Off,
    /// It prefetches whatever its policy proposes: SODA's dynamic caching.
    Dynamic,
    /// It prefetches while that pays, within a bound of traffic.
    #[default]
    Adaptive,
}

/// How a DPU forwards requests (SODA III).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DpuForward {
    /// The next ones of a process are taken when those before have been answered: SODA's base.
    Blocking,
    /// More are taken while others are under way: asynchronous request forwarding.
    #[default]
    Async,
}

/// The DPU's part of `rack.toml`: each machine may run one, `farmem role dpu`, for the windows of its processes.
#[derive(Clone, PartialEq, Debug)]
pub struct DpuSection {
    /// Where processes of the machine come to it.
    pub socket: PathBuf,
    /// Bytes of its cache table.
    pub cache: u64,
    /// Bytes of static caching, at most.
    pub fixed: u64,
    /// Bytes of a page: what one request asks for, at most.
    pub page: u32,
    /// Bytes of an entry of the table.
    pub entry: u64,
    /// What the table is used for.
    pub caching: DpuCaching,
    /// Requests that it takes from a ring before it sends what they ask for (SODA III: a task batch); 1 does not aggregate.
    pub batch: u32,
    /// Whether it takes more requests of a process while others of it are under way.
    pub forward: DpuForward,
    /// Threads of each domain that it serves: one receives, and the others complete requests beside it.
    pub threads: u32,
    /// Connections of each domain that it serves to a memory node, at most: those beyond the first carry READs, where many are under way.
    pub connections: NonZero<u16>,
    /// Where the rack's token is kept, by which its processes and it know that they are of one rack ([`mark`](Self::mark)).
    pub(crate) credentials: Credentials,
    /// How long its processes wait for a sign of it: the lease of the rack.
    pub lease: Duration,
    /// What the link between host and DPU is like: rate and delay of each direction.
    pub link: LinkProfile,
    /// The CPU that it stays on; the rack's placement says where, without a word.
    pub cpu: Option<usize>,
    /// How many times as long as here its work takes: a DPU's cores are slower than a host's.
    pub slowdown: f64,
}

/// Its settings, as `rack.toml` would have them: what a figure is measured with.
impl fmt::Display for DpuSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cache,
            fixed,
            page,
            entry,
            caching,
            batch,
            forward,
            threads,
            connections,
            link,
            cpu,
            slowdown,
            ..
        } = self;
        let caching = match caching {
            DpuCaching::Off => "off",
            DpuCaching::Dynamic => "dynamic",
            DpuCaching::Adaptive => "adaptive",
        };
        let forward = match forward {
            DpuForward::Blocking => "blocking",
            DpuForward::Async => "async",
        };
        let cpu = cpu.map_or_else(|| "as placed".to_owned(), |cpu| cpu.to_string());
        write!(
            f,
            "cpu {cpu}, slowdown {slowdown}, caching {caching}, cache {} KiB in entries of {} KiB, static {} KiB, \
             page {} KiB, batch {batch}, forward {forward}, threads {threads}, connections {connections}, link {link}",
            cache >> 10,
            entry >> 10,
            fixed >> 10,
            page >> 10
        )
    }
}

impl DpuSection {
    /// What only those know who have this rack's token: two racks of one name have two. (PROTOCOL 17.2)
    ///
    /// # Errors
    /// [`Error::Api`] or [`Error::Join`] when the token cannot be read.
    pub fn mark(&self) -> Result<String, Error> {
        let token = self.credentials.token()?;
        let digest = Sha256::new().chain_update(b"farmem dpu\0").chain_update(token).finalize();
        let mut mark = String::with_capacity(2 * MARK_BYTES);
        for byte in &digest[..MARK_BYTES] {
            write!(mark, "{byte:02x}").expect("a string takes all");
        }
        Ok(mark)
    }
}

/// Bytes of a mark.
const MARK_BYTES: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDpu {
    socket: Option<Spanned<PathBuf>>,
    cache: Option<Spanned<Value>>,
    #[serde(rename = "static")]
    fixed: Option<Spanned<Value>>,
    page: Option<Spanned<Value>>,
    entry: Option<Spanned<Value>>,
    #[serde(default)]
    caching: DpuCaching,
    batch: Option<Spanned<u64>>,
    #[serde(default)]
    forward: DpuForward,
    threads: Option<Spanned<u64>>,
    connections: Option<Spanned<u64>>,
    link: Option<Spanned<String>>,
    cpu: Option<usize>,
    slowdown: Option<Spanned<f64>>,
}

/// Most bytes of a page: what one request carries.
const PAGE_MAX: u64 = farmem_wire::soda::SIZE_MAX as u64;
/// Pages of an entry.
const ENTRY_PAGES_MAX: u64 = 64;
/// Threads of a domain.
const THREADS_MAX: u64 = 64;
/// Connections of a domain to a memory node.
const CONNECTIONS_MAX: u64 = 64;
/// Slower than this nobody's cores are.
const SLOWDOWN_MAX: f64 = 1000.0;

fn at<T>(raw: &Option<Spanned<T>>) -> Range<usize> {
    raw.as_ref().map(Spanned::span).unwrap_or_default()
}

impl Page<'_> {
    pub(super) fn dpu(&self, rack: &str, raw: &RawDpu, lease: Duration) -> Result<DpuSection, Error> {
        let bytes = |key: &str, raw: &Option<Spanned<Value>>, usual: u64| {
            raw.as_ref().map_or(Ok(usual), |raw| self.bytes(&format!("{key} of [dpu]"), raw))
        };
        let page = bytes("page", &raw.page, 64 << 10)?;
        let cache = bytes("cache", &raw.cache, 1 << 30)?;
        let fixed = bytes("static", &raw.fixed, cache / 3)?;
        let entry = bytes("entry", &raw.entry, 1 << 20)?;
        let small = u32::try_from(page).ok().filter(|_| page > 0 && page <= PAGE_MAX);
        let Some(page_len) = small else {
            let message = format!("page of [dpu] is {page} bytes: expected at most {PAGE_MAX}");
            return Err(self.fault(&at(&raw.page), message));
        };
        if !entry.is_multiple_of(page) || !(1..=ENTRY_PAGES_MAX).contains(&(entry / page)) {
            let message =
                format!("entry of [dpu] is {entry} bytes: expected 1 to {ENTRY_PAGES_MAX} pages of {page}");
            return Err(self.fault(&at(&raw.entry), message));
        }
        if cache < entry {
            let message = format!("cache of [dpu] is {cache} bytes: expected an entry at least, {entry}");
            return Err(self.fault(&at(&raw.cache), message));
        }
        let batch = match &raw.batch {
            None => 64,
            Some(raw) => self.number("batch", raw, &(1..=1024))?,
        };
        let threads = match &raw.threads {
            None => 1,
            Some(raw) => self.number("threads", raw, &(1..=THREADS_MAX))?,
        };
        let connections = match &raw.connections {
            None => 1,
            Some(raw) => {
                u16::try_from(self.number("connections", raw, &(1..=CONNECTIONS_MAX))?).expect("a few")
            }
        };
        let link = match &raw.link {
            None => LinkProfile::NONE,
            Some(raw) => self.link(raw)?,
        };
        if link.loss_ppm() > 0 {
            let message =
                "link of [dpu] loses frames: what is in shared memory is not lost; expected no loss=";
            return Err(self.fault(&at(&raw.link), message.into()));
        }
        let slowdown = raw.slowdown.as_ref().map_or(1.0, |raw| *raw.as_ref());
        if !(1.0..=SLOWDOWN_MAX).contains(&slowdown) {
            let message = format!("slowdown is {slowdown}: expected 1.0 to {SLOWDOWN_MAX}");
            return Err(self.fault(&at(&raw.slowdown), message));
        }
        let usual = || PathBuf::from(format!("/dev/shm/dpu-farmem-{rack}/socket"));
        Ok(DpuSection {
            socket: raw.socket.as_ref().map_or_else(usual, |raw| self.beside.join(raw.as_ref())),
            cache,
            fixed,
            page: page_len,
            entry,
            caching: raw.caching,
            batch: u32::try_from(batch).expect("at most 1024"),
            forward: raw.forward,
            threads: u32::try_from(threads).expect("a few"),
            connections: NonZero::new(connections).unwrap_or(NonZero::<u16>::MIN),
            credentials: Credentials::State(PathBuf::new()), // until the whole is read
            lease,
            link,
            cpu: raw.cpu,
            slowdown,
        })
    }
}
