//! Arguments of `farmem status`, `farmem free` and `farmem leave`.

use clap::Args;
use std::path::PathBuf;

/// Arguments of `farmem status`.
#[derive(Debug, Args)]
#[command(after_help = "farmem status --rack rack.toml\n\
                        farmem status --rack rack.toml --json")]
pub(crate) struct Status {
    /// Description of the running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// Print the status as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem free`.
#[derive(Debug, Args)]
#[command(
    after_help = "farmem free --rack rack.toml shop                    all memory of the domain shop\n\
                        farmem free --rack rack.toml shop --allocation 17    one allocation, by its number in `farmem status`\n\
                        Without --yes, the command prints what will be lost and asks."
)]
pub(crate) struct Free {
    /// Description of the running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// Domain to free, by name or number.
    pub(crate) domain: String,
    /// Allocation to free, by number [default: all of the domain, and the names of its objects].
    #[arg(long, value_name = "ID")]
    pub(crate) allocation: Option<u64>,
    /// Free memory that hosts use or that other domains were granted. Their next accesses fail.
    #[arg(long)]
    pub(crate) force: bool,
    /// Free without asking.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem leave`.
#[derive(Debug, Args)]
#[command(after_help = "farmem leave --rack rack.toml host-10.71.1.3\n\
                        farmem leave --rack rack.toml node2       a memory node, once `farmem migrate` has moved what it has\n\
                        Without --yes, the command prints what will be lost and asks.")]
pub(crate) struct Leave {
    /// Description of the running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// Host to remove, by name or number, or an empty memory node, by name.
    pub(crate) member: String,
    /// Remove a host that uses domains. Its programs lose access to far memory, and changes that are not
    /// written back are lost.
    #[arg(long)]
    pub(crate) force: bool,
    /// Remove without asking.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
