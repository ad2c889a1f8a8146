//! Man pages and shell completions, generated from the description of the command line.

use crate::args::Cli;
use crate::outcome::{End, Failure};
use crate::output;
use clap::CommandFactory as _;
use std::fs;
use std::path::Path;

/// Writes a page `farmem-COMMAND.1` for each command, and `farmem.1`, into `directory`.
///
/// # Errors
/// [`Failure::Environment`] if the directory cannot be created or a page cannot be written.
pub(crate) fn write_pages(directory: &Path) -> Result<End, Failure> {
    let written =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    written.map(|()| End::Fine).map_err(|error| {
        Failure::environment(
            format!("cannot write man pages into {}: {error}", directory.display()),
            "name a directory that this user may write to",
        )
    })
}

/// Prints the completion script for `shell`.
pub(crate) fn print_completions(shell: clap_complete::Shell) -> End {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "farmem", &mut script);
    output::write_out(&String::from_utf8_lossy(&script));
    End::Fine
}
