//! What `farmem object` can be told.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// The domain whose objects are meant when none is named: that of `farmem graph`.
const DOMAIN: &str = "graph";

/// `farmem object`
#[derive(Debug, Subcommand)]
pub(crate) enum Object {
    /// Have a memory node load a file of its own into far memory, as an object, and wait until it has.
    Open(ObjectOpen),
    /// List named objects: what their bytes are, and whether they are saved. Exit code 1: one could not be loaded or saved, or was lost.
    Status(ObjectStatus),
    /// Have the memory node write an object's bytes to its file, whole or not at all, and wait until it has.
    Save(ObjectSave),
    /// Take an object's name away: it is freed when no program has it open any more. The file stays.
    Close(ObjectClose),
}

/// `farmem object open`
#[derive(Debug, Args)]
#[command(after_help = "farmem object open --rack rack.toml --node node1 graphs/own.fmg\n\
                        farmem graph pagerank --rack rack.toml --object own.fmg\n\
                        The node's directory of files is that of `files` in its part of rack.toml.")]
pub(crate) struct ObjectOpen {
    /// The running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// The memory node, by its name in rack.toml.
    #[arg(long, value_name = "NODE")]
    pub(crate) node: String,
    /// The file: a path from the node's directory of files on.
    pub(crate) file: String,
    /// The object's name [default: the last part of the file's].
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The domain that it is of.
    #[arg(long, value_name = "DOMAIN", default_value = DOMAIN)]
    pub(crate) domain: String,
    /// Take the file's bytes for what was written to the object and was lost with its node before it was saved.
    #[arg(long)]
    pub(crate) accept: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `farmem object status`
#[derive(Debug, Args)]
pub(crate) struct ObjectStatus {
    /// The running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// The object [default: all].
    pub(crate) name: Option<String>,
    /// The domain [default: all].
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) domain: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `farmem object save`
#[derive(Debug, Args)]
pub(crate) struct ObjectSave {
    /// The running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// The object.
    pub(crate) name: String,
    /// The domain that it is of.
    #[arg(long, value_name = "DOMAIN", default_value = DOMAIN)]
    pub(crate) domain: String,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `farmem object close`
#[derive(Debug, Args)]
pub(crate) struct ObjectClose {
    /// The running rack.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: PathBuf,
    /// The object.
    pub(crate) name: String,
    /// The domain that it is of.
    #[arg(long, value_name = "DOMAIN", default_value = DOMAIN)]
    pub(crate) domain: String,
    /// Also when what was written to it is not saved.
    #[arg(long)]
    pub(crate) discard: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
