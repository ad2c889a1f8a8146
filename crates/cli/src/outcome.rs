//! The outcome of a command: its end, or why it failed.

use std::fmt;

/// End of a command, which determines the exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Success.
    Fine,
    /// The command ran and found a violation.
    Violation,
    /// A simulated world broke a safety property.
    Unsafe,
    /// A simulated world made no progress although progress was possible.
    Stuck,
    /// A role crashed in a simulated world.
    Crash,
    /// The program that the command ran ended with this code.
    Program(u8),
}

/// Reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Error of farmem.
    Farmem(farmem::Error),
    /// Error of the environment.
    Environment {
        /// Problem.
        message: String,
        /// Remedy.
        remedy: String,
    },
}

impl From<farmem::Error> for Failure {
    fn from(error: farmem::Error) -> Self {
        Self::Farmem(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Farmem(error) => write!(f, "{error}"),
            Self::Environment { message, remedy } => write!(f, "{message}: {remedy}"),
        }
    }
}

impl Failure {
    /// Returns a failure of an environment that does not permit the command.
    pub(crate) fn environment(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Environment { message: message.into(), remedy: remedy.into() }
    }
}
