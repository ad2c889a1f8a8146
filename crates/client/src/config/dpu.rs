//! `[dpu]` of `rack.toml`: the DPU beside each host (SODA).

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

/// Packets that a DPU may mirror for a program that it prefetches for (PD3 5.1; PROTOCOL 19.19). The DPU may listen where its programs may not, so the rack's description says where it listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DpuMirror {
    /// The interface that receives them, as `ip link` has it.
    pub interface: String,
    /// Where clients send them: address and port; the unspecified address is any of this machine's of its family.
    pub server: SocketAddr,
}

impl DpuMirror {
    /// Whether what this interface receives for that address is among them.
    fn has(&self, interface: &str, server: SocketAddr) -> bool {
        let is_any = self.server.ip().is_unspecified() && self.server.is_ipv4() == server.is_ipv4();
        let is_address = is_any || self.server.ip() == server.ip();
        self.interface == interface && is_address && self.server.port() == server.port()
    }
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
    /// Use of the table.
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
    /// How long its processes wait for an answer while the rack may withhold it ([`RackConfig::silence_max`]).
    pub patience: Duration,
    /// The link between host and DPU: rate and delay of each direction.
    pub link: LinkProfile,
    /// The CPU that it stays on; the rack's placement says where, without a word.
    pub cpu: Option<usize>,
    /// How many times as long as here its work takes: a DPU's cores are slower than a host's.
    pub slowdown: f64,
    /// Packets that it may mirror for programs that it prefetches for; none, unless written.
    pub mirror: Vec<DpuMirror>,
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
    /// Whether it may mirror what this interface receives for that address.
    #[must_use]
    pub fn may_mirror(&self, interface: &str, server: SocketAddr) -> bool {
        self.mirror.iter().any(|one| one.has(interface, server))
    }

    /// A mark that only holders of this rack's token can make: two racks of one name have two. (PROTOCOL 17.2)
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

/// Most bytes of a page: what one request carries.
const PAGE_MAX: u64 = farmem_wire::soda::SIZE_MAX as u64;

/// Pages of an entry.
const ENTRY_PAGES_MAX: u64 = 64;

/// Threads of a domain.
const THREADS_MAX: u64 = 64;

/// Connections of a domain to a memory node.
const CONNECTIONS_MAX: u64 = 64;

/// Places whose packets may be mirrored.
const MIRRORS_MAX: usize = 64;

/// Bytes of an interface's name at most (linux/if.h: IFNAMSIZ, without the zero byte).
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
            let message =
                "link of [dpu] loses frames: what is in shared memory is not lost; expected no loss=";
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
            credentials: Credentials::State(PathBuf::new()), // until the whole is read
            lease,
            patience: Duration::ZERO, // likewise
            link,
            cpu: raw.cpu,
            slowdown,
            mirror,
        })
    }

    /// Packets that may be mirrored, each as "eth0 10.0.0.5:6379".
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
    /// For each place whose packets the DPU may mirror: whether one of this machine could, as this user.
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
                    let remedy = "only a machine with a program that asks for it needs it: there run `farmem role dpu` with CAP_NET_RAW, beside that interface".into();
                    Finding { name, state: Support::Missing, detail: error.to_string(), remedy }
                }
            }
        })
        .collect()
    }
}

/// Parses one such text; the error completes a sentence about it.
fn mirror(text: &str) -> Result<DpuMirror, &'static str> {
    let mut words = text.split_ascii_whitespace();
    let (Some(interface), Some(server), None) = (words.next(), words.next(), words.next()) else {
        return Err("is not two words");
    };
    // As the kernel checks names (dev_valid_name).
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

    /// Without a word nothing may be mirrored; each place is as it was written, and each that cannot be is named with its line and what is wrong.
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

    /// Only the described packets are mirrored: no other interface, address or port, and all addresses of a family only where the description says so.
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
