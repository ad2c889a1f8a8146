//! Where what happens to a role goes: lines with time and level on standard error, from `--log LEVEL` or FARMEM_LOG on.

use crate::Failure;
use clap::ValueEnum;
use std::env;
use std::io;
use tracing::level_filters::LevelFilter;

/// The variable that says the level where `--log` does not.
pub(crate) const VARIABLE: &str = "FARMEM_LOG";

/// From which level on lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum LogLevel {
    /// None.
    Off,
    /// What ends a role, or keeps one from being of use.
    Error,
    /// Refusals, and roles that do not answer.
    Warn,
    /// Joins, leaves, leases that end.
    Info,
    /// Also frames that were dropped and requests that were refused.
    Debug,
    /// Also every answer of the API.
    Trace,
}

impl LogLevel {
    const fn filter(self) -> LevelFilter {
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

/// Has the lines of this process written: from the level that was `given` on, else from that of FARMEM_LOG, else from `usual`.
///
/// # Errors
/// When FARMEM_LOG is no level.
pub(crate) fn begin(given: Option<LogLevel>, usual: LogLevel) -> Result<(), Failure> {
    let level = match given {
        Some(level) => level,
        None => of_environment()?.unwrap_or(usual),
    };
    tracing_subscriber::fmt()
        .with_max_level(level.filter())
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    Ok(())
}

fn of_environment() -> Result<Option<LogLevel>, Failure> {
    let Some(said) = env::var_os(VARIABLE).filter(|said| !said.is_empty()) else { return Ok(None) };
    let said = said.to_string_lossy();
    LogLevel::from_str(&said, true).map(Some).map_err(|_| {
        let message = format!("{VARIABLE} is {said:?}, which is no level");
        Failure::environment(message, "say off, error, warn, info, debug or trace")
    })
}
