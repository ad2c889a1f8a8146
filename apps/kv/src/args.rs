//! `farmem kv`: what it can be told.

use crate::command::Settings;
use crate::durable::Sync;
use crate::store::Policy;
use crate::{Kv, KvError, say};
use farmem_workload::Failure;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// When the append log is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum FsyncPolicy {
    /// Before each reply.
    Always,
    /// A second later at most.
    Everysec,
    /// When the system sees fit.
    No,
}

/// What it can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Listen at this address.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub bind: IpAddr,
    /// Listen at this port; 0 for one that the system chooses.
    #[arg(long, value_name = "PORT", default_value_t = 6379)]
    pub port: u16,
    /// The running rack whose memory has what does not fit here; without it, one in this process.
    #[arg(long, value_name = "RACK.TOML")]
    pub rack: Option<PathBuf>,
    /// The protection domain of the data in the rack.
    #[arg(long, value_name = "NAME", default_value = "kv")]
    pub domain: String,
    /// Memory nodes of the rack in this process.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
    /// Bytes of memory of the rack in this process, of all its nodes.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = farmem_workload::bytes)]
    pub far: u64,
    /// Bytes of this machine's memory that this process may take: index, tail of the log, read cache, buffers and all else. The memory of a rack in this process is not
    /// counted.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = farmem_workload::bytes)]
    pub local: u64,
    /// Bytes of all data, here and far; 0 for as much as there is room.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = farmem_workload::bytes)]
    pub maxmemory: u64,
    /// Which keys go when there is more data than --maxmemory says.
    #[arg(long, value_name = "POLICY", default_value = "noeviction", value_parser = clap::builder::PossibleValuesParser::new(Policy::ALL.map(|(name, _)| name)))]
    pub maxmemory_policy: String,
    /// Keep snapshots, and the append log, in this directory; without it nothing outlives the process.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Append each change to a log in --dir, so that a start loses nothing that --appendfsync promises.
    #[arg(long, requires = "dir")]
    pub appendonly: bool,
    /// When the append log is on the disk.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = FsyncPolicy::Everysec)]
    pub appendfsync: FsyncPolicy,
    /// Make a snapshot when so many keys have changed and so many seconds are over: "3600 1 300 100". Without an append log alone.
    #[arg(long, value_name = "SECONDS CHANGES", default_value = "3600 1 300 100 60 10000")]
    pub save: String,
    /// Clients must give this password.
    #[arg(long, value_name = "PASSWORD")]
    pub requirepass: Option<String>,
    /// Clients at most.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub maxclients: u32,
    /// Bytes of a value at most; without it 512 MiB or an eighth of --local, whichever is less.
    #[arg(long, value_name = "SIZE", value_parser = farmem_workload::bytes)]
    pub proto_max_bulk_len: Option<u64>,
}

/// Bytes of local memory at least: the process itself, and a few chunks.
const LOCAL_MIN: u64 = 16 << 20;
/// Descriptors beside those of clients.
const DESCRIPTORS: u64 = 64;

impl Args {
    pub(crate) const fn address(&self) -> SocketAddr {
        SocketAddr::new(self.bind, self.port)
    }

    pub(crate) fn policy(&self) -> Policy {
        let found = Policy::ALL.iter().find(|(name, _)| *name == self.maxmemory_policy);
        found.expect("the command line takes no other").1
    }

    pub(crate) const fn sync(&self) -> Sync {
        match self.appendfsync {
            FsyncPolicy::Always => Sync::Always,
            FsyncPolicy::Everysec => Sync::EverySecond,
            FsyncPolicy::No => Sync::No,
        }
    }

    pub(crate) fn settings(&self) -> Result<Settings, KvError> {
        if self.local < LOCAL_MIN {
            return Err(KvError::Settings(format!(
                "--local {} is less than this process takes without any data; give it 16MiB at least",
                self.local
            )));
        }
        let local = usize::try_from(self.local).unwrap_or(usize::MAX);
        let buffers_max = local / 4;
        let word_len_max = match self.proto_max_bulk_len {
            Some(len) => usize::try_from(len).unwrap_or(usize::MAX),
            None => (512 << 20).min(buffers_max / 2),
        };
        if word_len_max > buffers_max / 2 || word_len_max < 1 << 10 {
            return Err(KvError::Settings(format!(
                "--proto-max-bulk-len {word_len_max}: a value comes and goes through this machine's memory, so it has 1 KiB to an eighth of --local, {}",
                buffers_max / 2
            )));
        }
        let output_pause = (1 << 20).min(buffers_max / 64);
        let numbers: Result<Vec<u64>, _> = self.save.split_whitespace().map(str::parse).collect();
        let numbers = numbers.ok().filter(|numbers| numbers.len().is_multiple_of(2));
        let numbers = numbers.ok_or_else(|| {
            KvError::Settings(format!(
                "--save {:?}: write pairs of seconds and changes, as \"300 100\", or \"\" for none",
                self.save
            ))
        })?;
        Ok(Settings {
            word_len_max,
            request_len_max: buffers_max,
            output_max: buffers_max,
            output_pause,
            output_soft: (output_pause / 2, 60),
            buffers_max,
            clients_max: self.clients()?,
            password: self.requirepass.clone(),
            save: numbers.chunks(2).map(|pair| (pair[0], pair[1])).collect(),
            timeout: 0,
        })
    }

    /// Clients that there are descriptors for: the bound of the process is raised where it may be.
    fn clients(&self) -> Result<usize, KvError> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let wanted = u64::from(self.maxclients) + DESCRIPTORS;
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        if current.is_none_or(|current| current >= wanted) {
            return Ok(self.maxclients as usize);
        }
        let most = maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum });
        let have = if raised.is_ok() { most } else { current.unwrap_or(wanted) };
        if have <= DESCRIPTORS {
            return Err(KvError::Settings(format!(
                "this process may have {have} descriptors: raise it (ulimit -n)"
            )));
        }
        if have < wanted {
            say(&format!(
                "only {} clients at once: this process may have {have} descriptors (ulimit -n)",
                have - DESCRIPTORS
            ));
        }
        Ok(usize::try_from(have - DESCRIPTORS).unwrap_or(usize::MAX))
    }
}

/// Serves until it is told to end, by a signal or by `SHUTDOWN`.
///
/// # Errors
/// [`Failure`] when there is no such rack, the port is in use, or what was saved is damaged.
pub fn run(args: &Args) -> Result<(), Failure> {
    let failed = |error: KvError| match error {
        KvError::Far(error) => error.into(),
        error => Failure::new(error.to_string(), ""),
    };
    let kv = Kv::start(args).map_err(failed)?;
    let (stop, address) = (kv.stopper(), kv.address());
    ctrlc::set_handler(move || stop.stop())
        .map_err(|error| Failure::new(format!("cannot catch signals: {error}"), ""))?;
    let address = address.map_err(|error| Failure::new(error.to_string(), ""))?;
    say(&format!(
        "ready to accept connections at {address}; at most {} MiB of local memory",
        args.local >> 20
    ));
    kv.serve().map_err(failed)
}
