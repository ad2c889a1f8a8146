//! What `farmem status`, `farmem free` and `farmem leave` can be told.

use clap::Args;
use std::path::PathBuf;

/// `farmem status`
#[derive(Debug, Args)]
#[command(after_help = "farmem status --rack rack.toml\n\
                        farmem status --rack rack.toml --json")]
pub(crate) struct Status {
    /// The running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `farmem free`
#[derive(Debug, Args)]
#[command(after_help = "farmem free --rack rack.toml shop                    all that the domain shop has\n\
                        farmem free --rack rack.toml shop --allocation 17    one allocation of it, as `farmem status` numbers them\n\
                        Without --yes it says what would be lost and asks.")]
pub(crate) struct Free {
    /// The running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// The domain, by name or number.
    pub(crate) domain: String,
    /// The allocation [default: all of the domain, and the names of its objects].
    #[arg(long, value_name = "ID")]
    pub(crate) allocation: Option<u64>,
    /// Also while hosts use the domain, or others were granted its memory: they are refused it from then on.
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `farmem leave`
#[derive(Debug, Args)]
#[command(after_help = "farmem leave --rack rack.toml host-10.71.1.3\n\
                        Without --yes it says what would be lost and asks.")]
pub(crate) struct Leave {
    /// The running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// The host, by name or number.
    pub(crate) host: String,
    /// Also while it uses domains: its programs reach no far memory any more, and what they had not written back is lost.
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
