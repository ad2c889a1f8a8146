//! Log lines of a role: with time and level, on standard error, at the level of `--log` or FARMEM_LOG.

use crate::outcome::Failure;
use clap::ValueEnum;
use std::env;
use std::io;
use tracing::level_filters::LevelFilter;

/// Environment variable with the level, used without `--log`.
pub(crate) const VARIABLE: &str = "FARMEM_LOG";

/// Lowest level of the written lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum LogLevel {
    /// No lines.
    Off,
    /// Errors that end a role, or prevent it from working.
    Error,
    /// Refusals, and roles that do not answer.
    Warn,
    /// Joins, leaves and expired leases.
    Info,
    /// Also dropped frames and refused requests.
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

/// Starts the log of this process. The level is `given`, else FARMEM_LOG, else `usual`.
///
/// # Errors
/// Returns an error when FARMEM_LOG is not a level.
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
