//! What every application can be told, and the rack that it runs on.

use crate::{Failure, stop};
use clap::builder::RangedU64ValueParser;
use farmem::{Client, Policy, Rack, RackConfig};
use std::path::{Path, PathBuf};

/// What every application can be told on its command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// Use this running rack instead of one inside this process.
    #[arg(long, value_name = "RACK.TOML")]
    pub rack: Option<PathBuf>,
    /// Operations in all.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: u64,
    /// Operations under way at once.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub in_flight: usize,
    /// Where traversals run.
    #[arg(long, value_enum, default_value_t = RunAt::Auto)]
    pub policy: RunAt,
    /// One seed gives one sequence of operations.
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
    /// How the operations are carried out.
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

/// Where traversals run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum RunAt {
    /// At the memory nodes.
    Offload,
    /// At this host, over READs.
    Host,
    /// Where the cost model says.
    Auto,
}

impl RunAt {
    /// As the dispatch engine has it.
    #[must_use]
    pub fn policy(self) -> Policy {
        match self {
            Self::Offload => Policy::Offload,
            Self::Host => Policy::Host,
            Self::Auto => Policy::default(),
        }
    }

    /// As people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Offload => "offload",
            Self::Host => "host",
            Self::Auto => "auto",
        }
    }
}

/// How operations are carried out.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Operations in all.
    pub operations: u64,
    /// Under way at once.
    pub in_flight: usize,
    /// Where traversals run.
    pub policy: RunAt,
    /// One seed gives one sequence of operations.
    pub seed: u64,
    /// Whether every answer is checked.
    pub check: bool,
}

/// Memory nodes of a rack inside this process.
const NODES: u16 = 4;
/// Bytes of each at least; address space until it is written to.
const NODE_MEMORY_MIN: u64 = 256 << 20;

/// Does `work` as [`on_rack_of`] does, on the rack that `plan` names.
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

/// Does `work` with a client of the running rack that `file` describes, or of one inside this process whose nodes have room for `bytes` together.
/// `work` also gets the name of the rack's transport. On a rack that others use Ctrl-C has it end early: [`crate::measure()`] and
/// [`crate::load_or_free()`] see to that.
///
/// # Errors
/// [`Failure`] when there is no such rack or it does not answer, and what `work` says.
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
    // Allocations are powers of two: what is needed may take twice as much.
    let each = (bytes / u64::from(NODES)).saturating_mul(2).checked_next_power_of_two();
    let each = each.ok_or_else(|| Failure::new("so many records fit no rack", "take fewer"))?;
    let rack = Rack::embedded_with(NODES, each.max(NODE_MEMORY_MIN))?;
    work(&mut rack.client(domain)?, "in this process")
}
