//! Messages for the operator of a server: errors that end it, and lines on standard error.

use std::io;
use std::path::PathBuf;

/// Errors that prevent a server from starting, or end it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// A port is not available.
    #[error("cannot listen: {0}; choose another --port or --bind")]
    Listen(#[source] io::Error),
    /// The system cannot wait for connections.
    #[error("cannot wait for connections: {0}")]
    Poll(#[source] io::Error),
    /// Far memory does not answer.
    #[error(transparent)]
    Far(#[from] farmem::Error),
    /// The directory cannot be used.
    #[error("{}: {error}", dir.display())]
    Dir {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The files in the directory are damaged, or do not fit.
    #[error("{0}")]
    Load(String),
    /// The last state could not be written.
    #[error("the data could not be saved to {}: {error}", dir.display())]
    Save {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// Settings that do not go together.
    #[error("{0}")]
    Settings(String),
}

/// Prints a message for the operator on standard error.
#[expect(clippy::print_stderr, reason = "a server says what happens to it")]
pub(crate) fn say(text: &str) {
    eprintln!("farmem kv: {text}");
}
