//! Settings of `farmem kv`.

use crate::connection::ClientKind;
use crate::durable::Sync;
use crate::operator::{KvError, say};
use crate::server::PortPlan;
use crate::settings::Settings;
use crate::store::Policy;
use crate::tls::{self, AuthClients, Files};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// The time at which the append log is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum FsyncPolicy {
    /// Before each reply.
    Always,
    /// A second later at most.
    Everysec,
    /// When the system writes it.
    No,
}

/// Settings of `farmem kv`.
#[derive(Clone, Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("ports_with_tls").args(["tls_port", "memcached_tls_port"]).multiple(true)))]
pub struct Args {
    /// Listen at this address.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub bind: IpAddr,
    /// Listen at this port; 0 for one that the system chooses.
    #[arg(long, value_name = "PORT", default_value_t = 6379)]
    pub port: u16,
    /// Listen at this port for memcached clients: the text and meta protocols, over the keys of database 0.
    #[arg(long, value_name = "PORT")]
    pub memcached_port: Option<u16>,
    /// Listen at this port for memcached clients over TLS, with the same certificates.
    #[arg(long, value_name = "PORT", requires_all = ["tls_cert_file", "tls_key_file"])]
    pub memcached_tls_port: Option<u16>,
    /// Listen at this port for Redis clients over TLS.
    #[arg(long, value_name = "PORT", requires_all = ["tls_cert_file", "tls_key_file"])]
    pub tls_port: Option<u16>,
    /// Listen for Redis clients over TLS alone: --port is closed.
    #[arg(long, requires = "tls_port", conflicts_with = "port")]
    pub tls_only: bool,
    /// This server's certificate, and those between it and its authority (PEM).
    #[arg(long, value_name = "FILE", requires = "ports_with_tls")]
    pub tls_cert_file: Option<PathBuf>,
    /// The private key of the certificate in --tls-cert-file (PEM).
    #[arg(long, value_name = "FILE", requires = "ports_with_tls")]
    pub tls_key_file: Option<PathBuf>,
    /// Certificates of the authority that signs the clients' certificates (PEM).
    #[arg(long, value_name = "FILE", requires = "ports_with_tls")]
    pub tls_ca_cert_file: Option<PathBuf>,
    /// Whether clients over TLS must have a certificate.
    #[arg(long, value_enum, value_name = "WHETHER", default_value_t = AuthClients::Yes)]
    pub tls_auth_clients: AuthClients,
    /// Disconnect a client that has not finished its TLS handshake in so many seconds; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "ports_with_tls")]
    pub tls_handshake_timeout: u32,
    /// Description of the running rack that holds the data beyond --local; without it, the rack is in this process.
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
    /// Bytes of this machine's memory that this process may take: index, tail of the log, read cache,
    /// buffers, and the process itself. A key takes some 30 bytes of the index, and some 60 with a time to
    /// live. The memory of a rack in this process does not count.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = farmem_workload::bytes)]
    pub local: u64,
    /// Read each far value when its command runs, and not those of all clients together before: shows the
    /// worth of reading ahead.
    #[arg(long)]
    pub no_read_ahead: bool,
    /// Bytes of all data, local and far; 0 for as much as there is room.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = farmem_workload::bytes)]
    pub maxmemory: u64,
    /// The keys that are evicted when there is more data than --maxmemory allows.
    #[arg(long, value_name = "POLICY", default_value = "noeviction", value_parser = clap::builder::PossibleValuesParser::new(Policy::ALL.map(|(name, _)| name)))]
    pub maxmemory_policy: String,
    /// Keep snapshots, and the append log, in this directory; without it the data end with the process.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Append each change to a log in --dir, so that a start loses nothing that --appendfsync promises.
    #[arg(long, requires = "dir")]
    pub appendonly: bool,
    /// The time at which the append log is on the disk.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = FsyncPolicy::Everysec)]
    pub appendfsync: FsyncPolicy,
    /// Make a snapshot when so many seconds have passed and so many keys have changed: "3600 1 300 100". Only
    /// without an append log.
    #[arg(long, value_name = "SECONDS CHANGES", default_value = "3600 1 300 100 60 10000")]
    pub save: String,
    /// Clients must give this password. Every user of this machine can see it in the list of processes:
    /// prefer a file, or FARMEM_KV_PASSWORD in the environment.
    #[arg(long, value_name = "PASSWORD")]
    pub requirepass: Option<String>,
    /// Clients must give the password in the first line of this file.
    #[arg(long, value_name = "FILE", conflicts_with = "requirepass")]
    pub requirepass_file: Option<PathBuf>,
    /// Read the users and their rights from this file, one a line, as ACL LIST shows them. ACL SAVE writes
    /// it, ACL LOAD reads it again.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["requirepass", "requirepass_file"])]
    pub aclfile: Option<PathBuf>,
    /// Threads that read from sockets and write to them; one of them executes commands. 0 for half as many as
    /// CPUs, 4 at most.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=64))]
    pub io_threads: u16,
    /// Clients at most.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub maxclients: u32,
    /// Bytes of a value at most; without it 512 MiB or an eighth of --local, whichever is less.
    #[arg(long, value_name = "SIZE", value_parser = farmem_workload::bytes)]
    pub proto_max_bulk_len: Option<u64>,
}

/// Least bytes of local memory: the process itself, and a few chunks.
const LOCAL_MIN: u64 = 16 << 20;
/// The environment variable for a password, which the list of processes does not show.
const PASSWORD_VARIABLE: &str = "FARMEM_KV_PASSWORD";
/// Descriptors besides those of clients.
const DESCRIPTORS: u64 = 64;

impl Args {
    /// Returns the ports and their protocols.
    pub(crate) fn ports(&self) -> Result<Vec<PortPlan>, KvError> {
        let at = |port, kind, tls| PortPlan { address: SocketAddr::new(self.bind, port), kind, tls };
        let mut ports = Vec::new();
        if !self.tls_only {
            ports.push(at(self.port, ClientKind::Redis, None));
        }
        // The command line has both files if it has one of the TLS ports.
        if let (Some(certificates), Some(key)) = (&self.tls_cert_file, &self.tls_key_file) {
            let config = tls::config(&Files {
                certificates,
                key,
                authority: self.tls_ca_cert_file.as_ref(),
                auth_clients: self.tls_auth_clients,
            })?;
            let over_tls = |port, kind| at(port, kind, Some(Arc::clone(&config)));
            ports.extend(self.tls_port.map(|port| over_tls(port, ClientKind::Redis)));
            ports.extend(self.memcached_tls_port.map(|port| over_tls(port, ClientKind::Memcached)));
        }
        ports.extend(self.memcached_port.map(|port| at(port, ClientKind::Memcached, None)));
        Ok(ports)
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

    /// Returns the number of I/O threads, with the one that executes commands.
    pub(crate) fn threads(&self) -> usize {
        const MOST: usize = 4;
        if self.io_threads > 0 {
            return usize::from(self.io_threads);
        }
        std::thread::available_parallelism().map_or(1, |cpus| (cpus.get() / 2).clamp(1, MOST))
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
            encoding_limits: Settings::default_encoding_limits(),
            password: self.password()?,
            acl_file: self.aclfile.clone(),
            save: numbers.chunks(2).map(|pair| (pair[0], pair[1])).collect(),
            timeout: 0,
            read_ahead: !self.no_read_ahead,
            tls_handshake: u64::from(self.tls_handshake_timeout),
        })
    }

    /// Returns the password of the user `default`.
    fn password(&self) -> Result<Option<String>, KvError> {
        let wrong = |what: String| KvError::Settings(what);
        if let Some(file) = &self.requirepass_file {
            let said = |why: String| wrong(format!("--requirepass-file {}: {why}", file.display()));
            let text = std::fs::read_to_string(file).map_err(|error| said(error.to_string()))?;
            let line = text.lines().next().filter(|line| !line.is_empty());
            return Ok(Some(line.ok_or_else(|| said("its first line has no password".into()))?.to_owned()));
        }
        match (self.requirepass.clone(), std::env::var_os(PASSWORD_VARIABLE)) {
            (Some(password), _) => Ok(Some(password)),
            (None, None) => Ok(None),
            (None, Some(_)) if self.aclfile.is_some() => Err(wrong(format!(
                "{PASSWORD_VARIABLE} and --aclfile: the file has the passwords; give one of them"
            ))),
            (None, Some(password)) => match password.into_string() {
                Ok(password) if !password.is_empty() => Ok(Some(password)),
                _ => Err(wrong(format!(
                    "{PASSWORD_VARIABLE} has no text in UTF-8; unset it, or give it a password"
                ))),
            },
        }
    }

    /// Returns how many clients there are descriptors for. Raises the limit of the process if that is
    /// allowed.
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
