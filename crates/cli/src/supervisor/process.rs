//! Process of one role, and its successors after deaths.

use crate::role::READY;
use farmem::RackConfig;
use std::fmt;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Maximum time of a role until it serves.
pub(super) const READY_TIME_MAX: Duration = Duration::from_secs(20);
/// Time between a role's death and its first restart: longer than a datagram lives on one machine (PROTOCOL
/// 9.2, 9.21).
pub(crate) const WAIT_MIN: Duration = Duration::from_millis(200);
/// Time of service after which a role is healthy, and its earlier deaths no longer count.
pub(crate) const STEADY: Duration = Duration::from_secs(10);
/// Number of deaths in a row, each before [`STEADY`], after which a role is given up.
pub(crate) const DEATHS_MAX: u32 = 5;

/// End of a role's process.
#[derive(Debug)]
pub(crate) enum Death {
    /// The process ended with this status.
    Ended(ExitStatus),
    /// The process did not serve in time, and was killed.
    Late,
    /// The process could not be started, or cannot be watched.
    Unstarted(String),
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(status) => match (status.signal(), status.code()) {
                (Some(signal), _) => write!(f, "killed by {}", signal_name(signal)),
                (None, Some(code)) => write!(f, "exit code {code}"),
                (None, None) => write!(f, "{status}"),
            },
            Self::Late => write!(f, "did not serve within {} s", READY_TIME_MAX.as_secs()),
            Self::Unstarted(why) => f.write_str(why),
        }
    }
}

/// Returns the name of a signal, as in `kill -l`, or its number.
fn signal_name(signal: i32) -> String {
    let Some(named) = rustix::process::Signal::from_named_raw(signal) else {
        return format!("signal {signal}");
    };
    let text = format!("{named:?}").replace("Signal::", "SIG").replace('"', "");
    if text == "SIGABORT" { "SIGABRT".into() } else { text }
}

/// Phase of a role.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// The process was started and must serve until this time.
    Starting { until: Instant },
    /// The process has served since this time.
    Serving { since: Instant },
    /// The process died, and a new one starts at this time.
    Waiting { until: Instant },
    /// The role died too often.
    GivenUp,
}

/// Role, with its current process.
pub(super) struct Process {
    what: String,
    role: &'static str,
    /// Name of the memory node or the index switch.
    name: Option<String>,
    /// Command that runs the role.
    by: Vec<String>,
    child: Option<Child>,
    /// Channel that receives one message when the child serves.
    ready: Option<Receiver<()>>,
    /// Reason why the role has no child.
    unstarted: Option<String>,
    phase: Phase,
    /// Number of deaths in a row before the role was healthy.
    deaths: u32,
}

impl Process {
    pub(super) fn new(role: &'static str, name: Option<&str>, by: &[String]) -> Self {
        let by = if by.is_empty() { vec!["role".to_owned()] } else { by.to_vec() };
        Self {
            what: name.map_or_else(|| role.to_owned(), |name| format!("{role} {name}")),
            role,
            name: name.map(str::to_owned),
            by,
            child: None,
            ready: None,
            unstarted: None,
            phase: Phase::GivenUp,
            deaths: 0,
        }
    }

    pub(super) fn what(&self) -> &str {
        &self.what
    }

    pub(super) const fn role(&self) -> &'static str {
        self.role
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    pub(super) const fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) const fn serves(&self) -> bool {
        matches!(self.phase, Phase::Serving { .. })
    }

    /// Starts the process of the role.
    ///
    /// # Errors
    /// Returns the reason why the process cannot be started.
    pub(super) fn start(&mut self, config: &RackConfig) -> Result<(), String> {
        let itself =
            std::env::current_exe().map_err(|e| format!("cannot find the farmem command itself: {e}"))?;
        let mut child =
            self.spawn(&itself, config).map_err(|e| format!("cannot start {}: {e}", self.what))?;
        let (say, ready) = channel();
        let stdout = child.stdout.take();
        spawn(move || {
            let mut line = String::new();
            let read = stdout.map(|out| BufReader::new(out).read_line(&mut line));
            if matches!(read, Some(Ok(_))) && line == READY {
                // The supervisor may have given up on the role.
                let _given_up = say.send(());
            }
        });
        (self.child, self.ready) = (Some(child), Some(ready));
        self.phase = Phase::Starting { until: Instant::now() + READY_TIME_MAX };
        Ok(())
    }

    fn spawn(&self, itself: &Path, config: &RackConfig) -> io::Result<Child> {
        let mut command = Command::new(itself);
        command.args(&self.by).arg(self.role).arg("--until-input-ends").arg("--rack").arg(&config.file);
        if let Some(name) = &self.name {
            command.arg(format!("--{}", self.role)).arg(name);
        }
        // In its own process group, the role does not get Ctrl-C. The supervisor gets it and closes the
        // pipes.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn()
    }

    /// Starts the next process of a dead role. A failed start counts as a further death.
    pub(super) fn start_again(&mut self, config: &RackConfig) {
        if let Err(why) = self.start(config) {
            (self.child, self.ready, self.unstarted) = (None, None, Some(why));
            self.phase = Phase::Starting { until: Instant::now() };
        }
    }

    /// Returns how the process ended, if it has.
    pub(super) fn death(&mut self) -> Option<Death> {
        match self.child.as_mut()?.try_wait() {
            Ok(Some(status)) => Some(Death::Ended(status)),
            Ok(None) => None,
            Err(error) => Some(Death::Unstarted(format!("cannot be watched: {error}"))),
        }
    }

    /// Returns true when the time to serve is over.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Starting { until } if until <= now)
    }

    /// Returns how the role died, and the wait until the restart, if any. Each death is returned once.
    pub(super) fn has_died(&mut self, now: Instant) -> Option<(Death, Option<Duration>)> {
        if matches!(self.phase, Phase::Waiting { .. } | Phase::GivenUp) {
            return None;
        }
        let death = match self.death() {
            Some(death) => death,
            None if self.child.is_none() => Death::Unstarted(self.unstarted.take().unwrap_or_default()),
            None if self.is_late(now) => Death::Late,
            None => return None,
        };
        self.kill();
        if matches!(self.phase, Phase::Serving { since } if now.duration_since(since) >= STEADY) {
            self.deaths = 0;
        }
        self.deaths += 1;
        let again = wait_after(self.deaths);
        self.phase = again.map_or(Phase::GivenUp, |wait| Phase::Waiting { until: now + wait });
        Some((death, again))
    }

    /// Returns true once, when the role has reported that it serves. The method waits up to `wait` for the
    /// report.
    pub(super) fn has_begun_to_serve(&mut self, wait: Duration) -> bool {
        let Some(ready) = self.ready.as_ref().filter(|_| matches!(self.phase, Phase::Starting { .. })) else {
            return false;
        };
        let said = ready.recv_timeout(wait);
        if said == Err(RecvTimeoutError::Disconnected) {
            sleep(wait); // it has closed its standard output, and ends
        }
        if said.is_ok() {
            self.phase = Phase::Serving { since: Instant::now() };
        }
        said.is_ok()
    }

    /// Returns true when the wait is over.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Waiting { until } if until <= now)
    }

    pub(super) fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Closes the role's standard input. The role notices the end of input and ends.
    pub(super) fn ask_to_end(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
        }
    }

    /// Kills the process, if it has not ended.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A kill of an ended process has no effect.
            drop(child.kill());
            drop(child.wait());
        }
        self.ready = None;
    }
}

/// Returns the wait after this number of deaths in a row. Returns `None` when the role is given up.
fn wait_after(deaths: u32) -> Option<Duration> {
    if deaths >= DEATHS_MAX {
        return None;
    }
    Some(WAIT_MIN * (1 << (deaths - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waits are those of PROTOCOL 9.21. The fifth death is the last.
    #[test]
    fn waits_double_and_end() {
        let waits: Vec<Option<u128>> =
            (1..=DEATHS_MAX).map(|deaths| wait_after(deaths).map(|wait| wait.as_millis())).collect();
        assert_eq!(waits, [Some(200), Some(400), Some(800), Some(1600), None]);
    }

    #[test]
    fn deaths_have_names() {
        assert_eq!(Death::Ended(ExitStatus::from_raw(9)).to_string(), "killed by SIGKILL");
        assert_eq!(Death::Ended(ExitStatus::from_raw(2 << 8)).to_string(), "exit code 2");
    }
}
