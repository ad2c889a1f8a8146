//! The options of every application, and the rack for its run.

use crate::{Failure, stop};
use clap::builder::RangedU64ValueParser;
use farmem::{Client, Policy, Rack, RackConfig};
use std::path::{Path, PathBuf};

/// Options of every application.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// Use this running rack. By default the command starts a rack inside its own process.
    #[arg(long, value_name = "RACK.TOML")]
    pub rack: Option<PathBuf>,
    /// Total number of operations.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: u64,
    /// Number of operations in flight at once.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub in_flight: usize,
    /// Where traversals run.
    #[arg(long, value_enum, default_value_t = RunAt::Auto)]
    pub policy: RunAt,
    /// The seed of the operations; equal seeds give equal sequences.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Do not check the answers.
    #[arg(long)]
    pub no_check: bool,
}

impl Plan {
    /// Returns the execution parameters.
    #[must_use]
    pub fn load(&self) -> Load {
        Load {
            operations: self.operations,
            in_flight: self.in_flight,
            policy: self.policy,
            seed: self.seed,
            check: !self.no_check,
        }
    }
}

/// The site of traversals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum RunAt {
    /// At the memory nodes.
    Offload,
    /// At this host, by READs.
    Host,
    /// Wherever the cost model decides.
    Auto,
}

impl RunAt {
    /// Returns the dispatch policy.
    #[must_use]
    pub fn policy(self) -> Policy {
        match self {
            Self::Offload => Policy::Offload,
            Self::Host => Policy::Host,
            Self::Auto => Policy::default(),
        }
    }

    /// Returns the name for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Offload => "offload",
            Self::Host => "host",
            Self::Auto => "auto",
        }
    }
}

/// The execution parameters of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Total number of operations.
    pub operations: u64,
    /// Operations in flight at once.
    pub in_flight: usize,
    /// The site of traversals.
    pub policy: RunAt,
    /// The seed; equal seeds give equal sequences.
    pub seed: u64,
    /// True when every answer is checked.
    pub check: bool,
}

/// Memory nodes of a rack inside this process.
const NODES: u16 = 4;
/// Smallest size of each node in bytes; address space until it is written to.
const NODE_MEMORY_MIN: u64 = 256 << 20;

/// Runs `work` as [`on_rack_of`], on the rack that `plan` names.
///
/// # Errors
/// As [`on_rack_of`].
pub fn on_rack<R>(
    plan: &Plan,
    domain: &str,
    bytes: u64,
    work: impl FnOnce(&mut Client, &'static str) -> Result<R, Failure>,
) -> Result<R, Failure> {
    on_rack_of(plan.rack.as_deref(), domain, bytes, work)
}

/// Runs `work` with a client of the running rack that `file` describes, or of an embedded rack whose nodes
/// have room for `bytes` together. `work` also receives the name of the rack's transport. On a shared rack,
/// Ctrl-C ends the work early, through [`crate::measure()`] and [`crate::load_or_free()`].
///
/// # Errors
/// [`Failure`] when the rack does not exist or does not answer, and the errors of `work`.
pub fn on_rack_of<R>(
    file: Option<&Path>,
    domain: &str,
    bytes: u64,
    work: impl FnOnce(&mut Client, &'static str) -> Result<R, Failure>,
) -> Result<R, Failure> {
    if let Some(file) = file {
        let config = RackConfig::load(file)?;
        let transport = config.transport.name();
        stop::listen()?;
        let worked = work(&mut Rack::running(config).client(domain)?, transport);
        let stopped = |_| Failure::new("stopped before anything was measured; what was loaded is freed", "");
        return if stop::asked() { worked.map_err(stopped) } else { worked };
    }
    // Allocations are powers of two, so the need may double.
    let each = (bytes / u64::from(NODES)).saturating_mul(2).checked_next_power_of_two();
    let each = each.ok_or_else(|| Failure::new("so many records fit no rack", "take fewer"))?;
    let rack = Rack::embedded_with(NODES, each.max(NODE_MEMORY_MIN))?;
    work(&mut rack.client(domain)?, "in this process")
}
