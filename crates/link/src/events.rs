//! Log events of roles (`tracing`): joins, leaves, refusals, lapses, each with a level.
//!
//! Roles say nothing themselves: their notes, and what the API answers, become events here. Where the lines go, and from which level on, is the
//! command's to say; without it they go nowhere. A peer can make a role note something without end, so lines have a bound
//! ([`LINES`]), and one says how many were left out.

pub use tracing::Level;

use crate::Clock;
use farmem_control::api::{ApiError, JoinHost, JoinIndex, JoinNode, Request, Response};
use farmem_control::{DropReason as ControlDrop, Note as ControlNote, Role};
use farmem_machine::{Bucket, Duration, Instant, Rate};
use farmem_memnode::Note as NodeNote;
use farmem_switch::Note as SwitchNote;
use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};
use tracing::enabled;

/// Lines that a process may write: 100 at once, and after those ten a second.
pub const LINES: Rate = Rate { at_once: 100, every: Duration::from_millis(100) };

/// A role's notes, which become events.
pub trait LogNote {
    /// The level and the text; none for what happens all the time.
    fn event(&self) -> Option<(Level, String)>;
}

/// Tells of a role's notes from now on; `role` is what people call it.
pub fn of_notes<N: LogNote>(role: &str) -> impl FnMut(N) + Send + use<N> {
    let role = role.to_owned();
    move |note| {
        if !enabled!(Level::ERROR) {
            return;
        }
        if let Some((level, text)) = note.event() {
            tell(level, format_args!("{role}: {text}"));
        }
    }
}

/// Tells of what the control plane answered.
pub fn of_answer(request: &Request, result: &Result<Response, ApiError>) {
    let what = request.name();
    match (request, result) {
        (_, Err(ApiError { code, message, .. })) => {
            tell(Level::WARN, format_args!("control plane: {what} was refused ({code:?}): {message}"));
        }
        (Request::JoinSwitch(call), Ok(_)) => {
            tell(Level::INFO, format_args!("control plane: the switch joined at {}", call.gid));
        }
        (Request::JoinNode(JoinNode { name, gid, capacity, .. }), Ok(Response::NodeJoined(joined))) => {
            let node = joined.node;
            tell(
                Level::INFO,
                format_args!(
                    "control plane: memory node {name} joined as node {node} at {gid}, with {capacity} bytes"
                ),
            );
        }
        (Request::JoinIndex(JoinIndex { name, gid, .. }), Ok(_)) => {
            tell(Level::INFO, format_args!("control plane: index switch {name} joined at {gid}"));
        }
        (Request::JoinHost(JoinHost { name, gid, .. }), Ok(Response::HostJoined(joined))) => {
            let (host, generation) = (joined.host, joined.generation);
            tell(
                Level::INFO,
                format_args!(
                    "control plane: host {name} joined as host {host}, generation {generation}, at {gid}"
                ),
            );
        }
        (Request::Leave(call), Ok(_)) => {
            tell(Level::INFO, format_args!("control plane: port {} left", call.port));
        }
        (_, Ok(_)) => tell(Level::TRACE, format_args!("control plane: {what} was answered")),
    }
}

/// One line, if its level is wanted and there were not too many.
pub fn tell(level: Level, text: fmt::Arguments<'_>) {
    let wanted = match level {
        Level::ERROR => enabled!(Level::ERROR),
        Level::WARN => enabled!(Level::WARN),
        Level::INFO => enabled!(Level::INFO),
        Level::DEBUG => enabled!(Level::DEBUG),
        Level::TRACE => enabled!(Level::TRACE),
    };
    if !wanted {
        return;
    }
    let now = CLOCK.now();
    let Some(left_out) = BOUND.lock().unwrap_or_else(PoisonError::into_inner).admit(now) else { return };
    if left_out > 0 {
        tracing::warn!(
            "{left_out} lines were left out: more than {} at once, and ten a second",
            LINES.at_once
        );
    }
    // Names and messages come from others: a line stays one.
    let text = fmt::format(text).replace(char::is_control, " ");
    match level {
        Level::ERROR => tracing::error!("{text}"),
        Level::WARN => tracing::warn!("{text}"),
        Level::INFO => tracing::info!("{text}"),
        Level::DEBUG => tracing::debug!("{text}"),
        Level::TRACE => tracing::trace!("{text}"),
    }
}

static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::start);
static BOUND: Mutex<Bound> = Mutex::new(Bound { bucket: Bucket::NEW, left_out: 0 });

/// How many lines there may be.
#[derive(Debug)]
struct Bound {
    bucket: Bucket,
    left_out: u64,
}

impl Bound {
    /// How many lines were left out before the one that may be written now; none when that one is left out, too.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if !self.bucket.take(now, LINES) {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

impl LogNote for ControlNote {
    fn event(&self) -> Option<(Level, String)> {
        let role = |role: &Role| match role {
            Role::Switch => "the switch".to_owned(),
            Role::Node(node) => format!("node {node}"),
            Role::Index(index) => format!("index switch {index}"),
        };
        Some(match self {
            Self::Silent(of) => (Level::WARN, format!("{} does not answer", role(of))),
            Self::Back(of) => (Level::INFO, format!("{} answers again", role(of))),
            Self::Refused(of, status) => (Level::WARN, format!("{} refused an update: {status:?}", role(of))),
            Self::Gone(of) => {
                (Level::ERROR, format!("{} does not know what it must, and has to join again", role(of)))
            }
            Self::Fenced(host) => (Level::INFO, format!("the lease of host {host} ended: it is fenced")),
            Self::Lapsed(host) => (Level::INFO, format!("host {host} was not heard of: it is taken out")),
            Self::DomainGone(domain) => (Level::INFO, format!("domain {domain} has no user: it is gone")),
            Self::GivenUp => (Level::WARN, "a migration was given up".into()),
            Self::TakenBack => (Level::INFO, "a change was taken back".into()),
            Self::SoftRefused => (Level::WARN, "the switch refused an image".into()),
            Self::Dropped(why @ (ControlDrop::Port | ControlDrop::Malformed | ControlDrop::Endpoint))
                if enabled!(Level::DEBUG) =>
            {
                (Level::DEBUG, format!("a frame was dropped: {why:?}"))
            }
            _ => return None,
        })
    }
}

impl LogNote for SwitchNote {
    fn event(&self) -> Option<(Level, String)> {
        Some(match self {
            Self::UpdateRefused { seq, status } => {
                (Level::WARN, format!("batch {seq} of updates was refused: {status:?}"))
            }
            Self::UpdateChanged { seq } => {
                (Level::ERROR, format!("batch {seq} of updates came again with other bytes: it stops"))
            }
            Self::Refused(status) if enabled!(Level::DEBUG) => {
                (Level::DEBUG, format!("a request was refused: {status:?}"))
            }
            Self::Dropped(why) if enabled!(Level::DEBUG) => {
                (Level::DEBUG, format!("a frame was dropped: {why:?}"))
            }
            _ => return None,
        })
    }
}

impl LogNote for NodeNote {
    fn event(&self) -> Option<(Level, String)> {
        Some(match self {
            Self::UpdateRefused(status) => {
                (Level::WARN, format!("a batch of updates was refused: {status:?}"))
            }
            Self::UpdateChanged => {
                (Level::ERROR, "a batch of updates came again with other bytes: it stops".into())
            }
            Self::FileFailed => (Level::WARN, "a file could not be loaded or saved".into()),
            Self::ProgramInterpreted => {
                (Level::WARN, "a program could not be compiled, and is interpreted".into())
            }
            Self::Dropped(why) if enabled!(Level::DEBUG) => {
                (Level::DEBUG, format!("a frame was dropped: {why:?}"))
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender has a role note something without end: a burst is written, then ten lines a second, and what was left out is counted.
    #[test]
    fn a_hostile_sender_cannot_fill_a_disk() {
        let mut bound = Bound { bucket: Bucket::NEW, left_out: 0 };
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut write = |now, lines: u64| (0..lines).filter_map(|_| bound.admit(now)).collect::<Vec<u64>>();
        assert_eq!(write(at(5), 10_000), [0; 100]);
        assert_eq!(write(at(1005), 10_000), [9_900, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(write(at(1_000_000), 1), [9_990]);
        assert_eq!(
            write(at(2_000_000), 1_000).len(),
            100,
            "no more than a burst, however long it was silent"
        );
    }
}
