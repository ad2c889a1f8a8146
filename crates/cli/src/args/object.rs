//! Arguments of `farmem object`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Default domain of the commands: the domain of `farmem graph`.
const DOMAIN: &str = "graph";

/// Commands of `farmem object`.
#[derive(Debug, Subcommand)]
pub(crate) enum Object {
    /// Load a file of a memory node into far memory as an object, and wait for the end of the load.
    Open(ObjectOpen),
    /// List named objects with the state of their bytes and files; exit code 1 when an object failed to load
    /// or save, or was lost.
    Status(ObjectStatus),
    /// Save an object's bytes to its file on the memory node, and wait for the end. The file changes
    /// completely or not at all.
    Save(ObjectSave),
    /// Remove an object's name. The object is freed when no program has it open. The file stays.
    Close(ObjectClose),
}

/// Arguments of `farmem object open`.
#[derive(Debug, Args)]
#[command(after_help = "farmem object open --rack rack.toml --node node1 graphs/own.fmg\n\
                        farmem graph pagerank --rack rack.toml --object own.fmg\n\
                        The key `files` of the node in rack.toml names its directory of files.")]
pub(crate) struct ObjectOpen {
    /// Description of the running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// Name of the memory node in rack.toml.
    #[arg(long, value_name = "NODE")]
    pub(crate) node: String,
    /// File to load, as a path in the node's directory of files.
    pub(crate) file: String,
    /// Name of the object [default: the last part of the file's path].
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Protection domain of the object.
    #[arg(long, value_name = "DOMAIN", default_value = DOMAIN)]
    pub(crate) domain: String,
    /// Accept the file's bytes in place of unsaved changes that were lost with the node.
    #[arg(long)]
    pub(crate) accept: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem object status`.
#[derive(Debug, Args)]
pub(crate) struct ObjectStatus {
    /// Description of the running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// Name of the object [default: all].
    pub(crate) name: Option<String>,
    /// Protection domain of the objects [default: all].
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) domain: Option<String>,
    /// Print the objects as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem object save`.
#[derive(Debug, Args)]
pub(crate) struct ObjectSave {
    /// Description of the running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// Name of the object.
    pub(crate) name: String,
    /// Protection domain of the object.
    #[arg(long, value_name = "DOMAIN", default_value = DOMAIN)]
    pub(crate) domain: String,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem object close`.
#[derive(Debug, Args)]
pub(crate) struct ObjectClose {
    /// Description of the running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// Name of the object.
    pub(crate) name: String,
    /// Protection domain of the object.
    #[arg(long, value_name = "DOMAIN", default_value = DOMAIN)]
    pub(crate) domain: String,
    /// Close an object with unsaved changes, which are lost.
    #[arg(long)]
    pub(crate) discard: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
