//! What commands about a running rack are told: other machines that join it, and memory that moves.

use super::address;
use clap::Args;
use farmem_workload::bytes;
use std::path::PathBuf;

/// `farmem join`
#[derive(Debug, Args)]
#[command(
    after_help = "farmem join --rack rack.toml > join   # on the control plane's machine; bring it to STATE/join of another, mode 0600\n\
                        Whoever has the file may use the rack."
)]
pub(crate) struct Join {
    /// The rack, whose control plane has started here once.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
}

/// `farmem migrate`
#[derive(Debug, Args)]
#[command(after_help = "farmem migrate --rack rack.toml\n\
                        farmem migrate --rack rack.toml --base 0x100000000000 --len 1MiB --node 2\n\
                        Memory moves in parts of at most 64 MiB; a program that uses one waits for as long as it is on its way.")]
pub(crate) struct Migrate {
    /// The running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// First byte of what moves, as 0x... or decimal; needs --node. Without it nothing moves.
    #[arg(long, value_name = "ADDR", requires = "node", value_parser = address)]
    pub(crate) base: Option<u64>,
    /// Bytes: whole pages of one allocation; needs --base [default: all of the allocation from there on].
    #[arg(long, value_name = "SIZE", requires = "base", value_parser = bytes)]
    pub(crate) len: Option<u64>,
    /// The number of the node that it moves to; needs --base.
    #[arg(long, value_name = "N", requires = "base")]
    pub(crate) node: Option<u16>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
