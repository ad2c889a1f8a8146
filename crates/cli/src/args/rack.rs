//! Arguments of commands about a running rack: the join of other machines, and the move of memory.

use super::address;
use clap::Args;
use farmem_workload::bytes;
use std::path::PathBuf;

/// Arguments of `farmem join`.
#[derive(Debug, Args)]
#[command(
    after_help = "farmem join --rack rack.toml > join   # on the control plane's machine; copy the file to STATE/join on the other machine, with mode 0600\n\
                        Every holder of the file can use the rack."
)]
pub(crate) struct Join {
    /// Description of the rack. Its control plane must have started on this machine before.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem migrate`.
#[derive(Debug, Args)]
#[command(after_help = "farmem migrate --rack rack.toml\n\
                        farmem migrate --rack rack.toml --base 0x100000000000 --len 1MiB --node node2\n\
                        Memory moves in parts of at most 64 MiB. A program that accesses a moving part waits until it has arrived.")]
pub(crate) struct Migrate {
    /// Description of the running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// First address to move, as 0x... or decimal; needs --node [default: move nothing and show the memory of
    /// each node].
    #[arg(long, value_name = "ADDR", requires = "node", value_parser = address)]
    pub(crate) base: Option<u64>,
    /// Length to move, in bytes: whole pages of one allocation; needs --base [default: up to the end of the
    /// allocation].
    #[arg(long, value_name = "SIZE", requires = "base", value_parser = bytes)]
    pub(crate) len: Option<u64>,
    /// Node that receives the memory, by name or number; needs --base.
    #[arg(long, value_name = "NODE", requires = "base")]
    pub(crate) node: Option<String>,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
