//! `[dpu]` of `rack.toml`: the DPU of each host (SODA).

use crate::config::RackConfig;
use crate::config::doors::Credentials;
use crate::config::page::Page;
use crate::config::raw::RawDpu;
use crate::config::terms::{DpuCaching, DpuForward};
use crate::error::Error;
use farmem_link::LinkProfile;
use farmem_link::doctor::{Finding, Support};
use farmem_link::mirror::{Mirror, MirrorConfig};
use farmem_machine::Duration;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;
use toml::{Spanned, Value};

/// Packets that a DPU may mirror for a program for which it prefetches (PD3 5.1; PROTOCOL 19.19). A DPU may
/// have more rights to listen than its programs, so the rack's description limits what it mirrors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DpuMirror {
    /// The interface that receives the packets, as in the output of `ip link`.
    pub interface: String,
    /// Destination of the clients' packets. The unspecified address stands for all addresses of its family.
    pub server: SocketAddr,
}

impl DpuMirror {
    /// Returns true if these packets include those that `interface` receives for `server`.
    fn has(&self, interface: &str, server: SocketAddr) -> bool {
        let is_any = self.server.ip().is_unspecified() && self.server.is_ipv4() == server.is_ipv4();
        let is_address = is_any || self.server.ip() == server.ip();
        self.interface == interface && is_address && self.server.port() == server.port()
    }
}

/// The DPU's part of `rack.toml`. Each machine may run one DPU, `farmem role dpu`, for the windows of its
/// processes.
#[derive(Clone, PartialEq, Debug)]
pub struct DpuSection {
    /// Path of the socket to which processes of the machine connect.
    pub socket: PathBuf,
    /// Size of the cache table, in bytes.
    pub cache: u64,
    /// Maximum size of static caching, in bytes.
    pub fixed: u64,
    /// Size of a page in bytes: the maximum length of one request.
    pub page: u32,
    /// Size of a table entry, in bytes.
    pub entry: u64,
    /// Use of the table.
    pub caching: DpuCaching,
    /// Maximum number of requests that the DPU takes from a ring before it sends (SODA III: a task batch).
    /// The value 1 disables aggregation.
    pub batch: u32,
    /// Behavior while requests of the same process are pending.
    pub forward: DpuForward,
    /// Number of threads of each domain. One receives; the others complete requests.
    pub threads: u32,
    /// Maximum number of connections of a domain to a memory node. Connections beyond the first carry READs
    /// if many are pending.
    pub connections: NonZero<u16>,
    /// Source of the rack's token. By the token, processes and DPU prove that they belong to one rack
    /// ([`mark`](Self::mark)).
    pub(crate) credentials: Credentials,
    /// Longest time that processes wait for a sign of life of the DPU: the lease of the rack.
    pub lease: Duration,
    /// Longest time that processes wait for an answer while the rack may delay it
    /// ([`RackConfig::silence_max`]).
    pub patience: Duration,
    /// Profile of the link between host and DPU: rate and delay of each direction.
    pub link: LinkProfile,
    /// The CPU of the DPU; if absent, the rack's placement applies.
    pub cpu: Option<usize>,
    /// Factor by which the DPU's work takes longer than on this machine, because a DPU's cores are slower
    /// than a host's.
    pub slowdown: f64,
    /// Packets that the DPU may mirror for programs for which it prefetches; empty by default.
    pub mirror: Vec<DpuMirror>,
}

/// Displays the settings under which a measurement ran, in the terms of `rack.toml`.
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
    /// Returns true if the DPU may mirror packets that `interface` receives for `server`.
    #[must_use]
    pub fn may_mirror(&self, interface: &str, server: SocketAddr) -> bool {
        self.mirror.iter().any(|one| one.has(interface, server))
    }

    /// Returns a mark that only holders of this rack's token can compute, so racks of the same name have
    /// different marks (PROTOCOL 17.2).
    ///
    /// # Errors
    /// [`Error::Api`] or [`Error::Join`] if the token cannot be read.
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

/// Length of a mark, in bytes.
const MARK_BYTES: usize = 16;

/// Maximum size of a page: the maximum length of one request.
const PAGE_MAX: u64 = farmem_wire::soda::SIZE_MAX as u64;

/// Maximum number of pages per entry.
const ENTRY_PAGES_MAX: u64 = 64;

/// Maximum number of threads per domain.
const THREADS_MAX: u64 = 64;

/// Maximum number of connections of a domain to a memory node.
const CONNECTIONS_MAX: u64 = 64;

/// Maximum number of entries of `mirror`.
const MIRRORS_MAX: usize = 64;

/// Maximum length of an interface's name (linux/if.h: IFNAMSIZ without the zero byte).
const INTERFACE_LEN_MAX: usize = 15;

/// The largest slowdown.
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
            let message = "link of [dpu] loses frames, but shared memory loses none: expected no loss=";
            return Err(self.fault(&at(&raw.link), message.into()));
        }
        let slowdown = raw.slowdown.as_ref().map_or(1.0, |raw| *raw.as_ref());
        if !(1.0..=SLOWDOWN_MAX).contains(&slowdown) {
            let message = format!("slowdown is {slowdown}: expected 1.0 to {SLOWDOWN_MAX}");
            return Err(self.fault(&at(&raw.slowdown), message));
        }
        let mirror = raw.mirror.as_ref().map_or(Ok(Vec::new()), |raw| self.mirrors(raw))?;
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
            credentials: Credentials::State(PathBuf::new()), // set after the whole file was read
            lease,
            patience: Duration::ZERO, // set later, too
            link,
            cpu: raw.cpu,
            slowdown,
            mirror,
        })
    }

    /// Parses the entries of `mirror`, such as "eth0 10.0.0.5:6379".
    fn mirrors(&self, raw: &Spanned<Vec<Spanned<String>>>) -> Result<Vec<DpuMirror>, Error> {
        let all = raw.as_ref();
        if all.len() > MIRRORS_MAX {
            let message = format!("mirror of [dpu] has {} places: expected at most {MIRRORS_MAX}", all.len());
            return Err(self.fault(&raw.span(), message));
        }
        let each = all.iter().map(|raw| {
            mirror(raw.as_ref()).map_err(|wrong| {
                let said = raw.as_ref();
                let message = format!("{said:?} in mirror of [dpu] {wrong}: expected an interface, and the address and port that clients send to, as in \"eth0 10.0.0.5:6379\"");
                self.fault(&raw.span(), message)
            })
        });
        each.collect()
    }
}

impl RackConfig {
    /// Returns a finding for each entry of `mirror`: whether a DPU of this machine and user could mirror its
    /// packets.
    #[must_use]
    pub fn examine_mirrors(&self) -> Vec<Finding> {
        let all = self.dpu.iter().flat_map(|dpu| &dpu.mirror);
        all.map(|DpuMirror { interface, server }| {
            let name = format!("mirror {interface} {server}");
            let packets =
                MirrorConfig { interface: interface.clone(), server: *server, client: None, frames: 1 };
            match Mirror::open(&packets) {
                Ok(_) => {
                    let detail = "a DPU of this machine and user may mirror it".into();
                    Finding { name, state: Support::Ok, detail, remedy: String::new() }
                }
                Err(error) => {
                    let remedy = "only a machine with a program that uses this mirror needs it: run `farmem role dpu` there with CAP_NET_RAW, on the machine of that interface".into();
                    Finding { name, state: Support::Missing, detail: error.to_string(), remedy }
                }
            }
        })
        .collect()
    }
}

/// Parses one entry of `mirror`. The error completes a sentence about the entry.
fn mirror(text: &str) -> Result<DpuMirror, &'static str> {
    let mut words = text.split_ascii_whitespace();
    let (Some(interface), Some(server), None) = (words.next(), words.next(), words.next()) else {
        return Err("is not two words");
    };
    // The rule of the kernel for interface names (dev_valid_name).
    let is_name = interface.len() <= INTERFACE_LEN_MAX
        && !interface.contains(|letter: char| matches!(letter, '/' | ':') || letter.is_control())
        && !matches!(interface, "." | "..");
    if !is_name {
        return Err("names what no interface is called");
    }
    let server: SocketAddr = server.parse().map_err(|_| "has no address with a port")?;
    if server.port() == 0 {
        return Err("has port 0, which is never a destination");
    }
    Ok(DpuMirror { interface: interface.into(), server })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const RACK: &str = r#"
name = "rack"
transport = "udp"
control = { address = "127.71.0.1", state = "state" }
switch = { address = "127.71.0.2" }
hosts = { first = "127.71.1.1", count = 3 }
node = [{ name = "node1", address = "127.71.0.11", memory = "1 MiB" }]
[dpu]
"#;

    fn parse(mirror: &str) -> Result<Vec<DpuMirror>, String> {
        let rack = RackConfig::parse(&format!("{RACK}{mirror}\n"), Path::new("rack.toml"));
        rack.map(|rack| rack.dpu.unwrap().mirror).map_err(|error| error.to_string())
    }

    /// Without `mirror`, no packet may be mirrored. Each entry is kept as written. An invalid entry is an
    /// error that names its line and its fault.
    #[test]
    fn mirrors_are_checked() {
        assert!(parse("").unwrap().is_empty());
        let two = parse("mirror = [\"eth0  10.0.0.5:6379\", \"lo [::]:80\"]").unwrap();
        let two: Vec<_> = two.iter().map(|one| format!("{} {}", one.interface, one.server)).collect();
        assert_eq!(two, ["eth0 10.0.0.5:6379", "lo [::]:80"]);
        for (wrong, why) in [
            ("", "is not two words"),
            ("eth0", "is not two words"),
            ("eth0 10.0.0.5:6379 resp", "is not two words"),
            ("eth0 10.0.0.5", "has no address with a port"),
            ("eth0 fd08::1:80", "has no address with a port"),
            ("eth0 redis:6379", "has no address with a port"),
            ("eth0 10.0.0.5:65536", "has no address with a port"),
            ("eth0 10.0.0.5:0", "has port 0"),
            ("10.0.0.5:6379 eth0", "names what no interface is called"),
            ("eth/0 10.0.0.5:80", "names what no interface is called"),
            (".. 10.0.0.5:80", "names what no interface is called"),
            ("aaaaaaaaaaaaaaaa 10.0.0.5:80", "names what no interface is called"),
        ] {
            let said = parse(&format!("mirror = [\"lo 127.0.0.1:80\", {wrong:?}]")).unwrap_err();
            let begins = format!("rack.toml: line 9: {wrong:?} in mirror of [dpu] {why}");
            assert!(said.starts_with(&begins) && said.contains("expected an interface"), "{said}");
        }
        let many = (1..=65).map(|port| format!("\"lo 127.0.0.1:{port}\"")).collect::<Vec<_>>().join(", ");
        let said = parse(&format!("mirror = [{many}]")).unwrap_err();
        assert_eq!(said, "rack.toml: line 9: mirror of [dpu] has 65 places: expected at most 64");
        let said = parse("mirror = \"lo 127.0.0.1:80\"").unwrap_err();
        assert!(said.starts_with("rack.toml: line 9: "), "{said}");
    }

    /// A DPU mirrors only the described packets: no other interface, address or port. The description must
    /// name the unspecified address to allow all addresses of a family.
    #[test]
    fn only_listed_interfaces_are_mirrored() {
        let may = |said: &str, interface: &str, server: &str| {
            mirror(said).unwrap().has(interface, server.parse().unwrap())
        };
        let one = "eth0 10.0.0.5:6379";
        assert!(may(one, "eth0", "10.0.0.5:6379"));
        for (interface, server) in [
            ("eth1", "10.0.0.5:6379"),
            ("eth0", "10.0.0.6:6379"),
            ("eth0", "10.0.0.5:6380"),
            ("eth0", "0.0.0.0:6379"),
            ("eth0", "[::ffff:10.0.0.5]:6379"),
            ("", "10.0.0.5:6379"),
        ] {
            assert!(!may(one, interface, server), "{interface} {server}");
        }
        let any = "eth0 0.0.0.0:6379";
        for (server, is_of_it) in [
            ("0.0.0.0:6379", true),
            ("10.0.0.6:6379", true),
            ("10.0.0.6:6380", false),
            ("[::]:6379", false),
            ("[fd08::1]:6379", false),
        ] {
            assert_eq!(may(any, "eth0", server), is_of_it, "{server}");
        }
        assert!(may("lo [::]:80", "lo", "[fd08::1]:80") && !may("lo [::]:80", "eth0", "[fd08::1]:80"));
    }
}
