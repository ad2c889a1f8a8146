//! One role's process, and the next one after it died.

use super::{DEATHS_MAX, READY_TIME_MAX, STEADY, WAIT_MIN};
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

/// How a role ended.
#[derive(Debug)]
pub(crate) enum Death {
    /// With this status.
    Ended(ExitStatus),
    /// It did not serve in time, and was killed.
    Late,
    /// It could not be started, or cannot be watched.
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

/// The name of a signal, as in `kill -l`; the number of one without.
fn signal_name(signal: i32) -> String {
    let Some(named) = rustix::process::Signal::from_named_raw(signal) else {
        return format!("signal {signal}");
    };
    let text = format!("{named:?}").replace("Signal::", "SIG").replace('"', "");
    if text == "SIGABORT" { "SIGABRT".into() } else { text }
}

/// How far a role is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// It was started, and has this long to serve.
    Starting { until: Instant },
    /// It serves, since then.
    Serving { since: Instant },
    /// It died, and is started again then.
    Waiting { until: Instant },
    /// It died again and again.
    GivenUp,
}

/// A role, through all its processes.
pub(super) struct Process {
    what: String,
    role: &'static str,
    /// The name of a memory node, or of a switch of the index.
    name: Option<String>,
    further: Vec<String>,
    child: Option<Child>,
    /// Says once that the child serves.
    ready: Option<Receiver<()>>,
    /// Why there is no child.
    unstarted: Option<String>,
    phase: Phase,
    /// Deaths in a row before it was well.
    deaths: u32,
}

impl Process {
    pub(super) fn new(role: &'static str, name: Option<&str>, further: &[String]) -> Self {
        Self {
            what: name.map_or_else(|| role.to_owned(), |name| format!("{role} {name}")),
            role,
            name: name.map(str::to_owned),
            further: further.to_vec(),
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

    /// Starts its process.
    ///
    /// # Errors
    /// Why it cannot be started.
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
                // The supervisor may have given up meanwhile.
                let _given_up = say.send(());
            }
        });
        (self.child, self.ready) = (Some(child), Some(ready));
        self.phase = Phase::Starting { until: Instant::now() + READY_TIME_MAX };
        Ok(())
    }

    fn spawn(&self, itself: &Path, config: &RackConfig) -> io::Result<Child> {
        let mut command = Command::new(itself);
        command.arg("role").arg(self.role).arg("--until-input-ends").arg("--rack").arg(&config.file);
        if let Some(name) = &self.name {
            command.arg(format!("--{}", self.role)).arg(name);
        }
        command.args(&self.further);
        // Its own process group: Ctrl-C reaches the supervisor alone, which then closes the pipes.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn()
    }

    /// Starts the next process of a role that died; one that cannot be started has died again.
    pub(super) fn start_again(&mut self, config: &RackConfig) {
        if let Err(why) = self.start(config) {
            (self.child, self.ready, self.unstarted) = (None, None, Some(why));
            self.phase = Phase::Starting { until: Instant::now() };
        }
    }

    /// How its process ended, if it has.
    pub(super) fn death(&mut self) -> Option<Death> {
        match self.child.as_mut()?.try_wait() {
            Ok(Some(status)) => Some(Death::Ended(status)),
            Ok(None) => None,
            Err(error) => Some(Death::Unstarted(format!("cannot be watched: {error}"))),
        }
    }

    /// True when it should serve by now.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Starting { until } if until <= now)
    }

    /// How it died, and how long it is waited until it is started again, if it is. True once for each death.
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

    /// True once, when it has said that it serves; waits for so long that it does.
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

    /// True when its wait is over.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Waiting { until } if until <= now)
    }

    pub(super) fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Closes its standard input: the role reads the end of it, and ends.
    pub(super) fn ask_to_end(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
        }
    }

    /// Ends it, if it has not ended.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // One that has ended does not mind.
            drop(child.kill());
            drop(child.wait());
        }
        self.ready = None;
    }
}

/// The wait after so many deaths in a row; none when that is enough.
fn wait_after(deaths: u32) -> Option<Duration> {
    if deaths >= DEATHS_MAX {
        return None;
    }
    Some(WAIT_MIN * (1 << (deaths - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waits that PROTOCOL 9.21 names; the fifth death is the last.
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
