//! Log events of roles (`tracing`): joins, leaves, refusals, expired leases, each with a level.
//!
//! Roles do not log: this module turns their notes, and the API's answers, into events. The command decides
//! the output and the minimum level; without a subscriber, events are dropped. A peer could make a role emit
//! notes without end, so the number of lines is limited ([`LINES`]). A line reports the number of omitted
//! ones.

pub use tracing::Level;

use crate::Clock;
use farmem_control::api::{ApiError, ErrorCode, JoinHost, JoinIndex, JoinNode, Request, Response};
use farmem_control::{Control, DropReason as ControlDrop, Held, Note as ControlNote, Role};
use farmem_machine::{Bucket, Duration, Instant, Machine, Port, Rate};
use farmem_memnode::{Compile, MemNode, Note as NodeNote, Store};
use farmem_switch::{Note as SwitchNote, Switch};
use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};
use tracing::enabled;

/// Limit of a process's lines: 100 at once, then ten per second.
pub const LINES: Rate = Rate { at_once: 100, every: Duration::from_millis(100) };

/// A role whose notes become events.
pub trait EventSource: Machine {
    /// Returns the level and the text of a note; `None` for frequent notes.
    fn event(&self, note: &Self::Note) -> Option<(Level, String)>;
}

/// Returns a function that logs a role's notes; `role` is its name for people.
pub fn of_notes<M: EventSource>(role: &str) -> impl FnMut(&M, M::Note) + Send + use<M> {
    let role = role.to_owned();
    move |machine, note| {
        if !enabled!(Level::ERROR) {
            return;
        }
        if let Some((level, text)) = machine.event(&note) {
            tell(level, format_args!("{role}: {text}"));
        }
    }
}

/// Logs an answer of the control plane.
pub fn of_answer(control: &Control, request: &Request, result: &Result<Response, ApiError>) {
    let what = request.name();
    match (request, result) {
        // Every join requires a proof, so this refusal is normal.
        (_, Err(ApiError { code: ErrorCode::Unproven, message, .. })) => {
            tell(Level::DEBUG, format_args!("control plane: {what} awaits a cookie: {message}"));
        }
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
            if let Some(lost) = losses(&control.lost_with(node)) {
                tell(
                    Level::WARN,
                    format_args!(
                        "control plane: memory node {name} joined again with empty memory: {lost} are lost"
                    ),
                );
            }
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
            tell(Level::INFO, format_args!("control plane: {} left", control.name_of(Port(call.port))));
        }
        (_, Ok(_)) => tell(Level::TRACE, format_args!("control plane: {what} was answered")),
    }
}

/// Returns a text with the number of lost bytes and their domains; `None` for no bytes.
fn losses(held: &Held) -> Option<String> {
    let Held { bytes, domains } = held;
    if *bytes == 0 {
        return None;
    }
    let names = domains.iter().take(DOMAINS_NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match domains.len().saturating_sub(DOMAINS_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let word = if domains.len() == 1 { "domain" } else { "domains" };
    Some(format!("{bytes} bytes of {word} {names}{more}"))
}

/// Maximum number of domains that a line names.
const DOMAINS_NAMED_MAX: usize = 8;

/// Logs one line, if its level is enabled and the limit permits it.
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
            "{left_out} lines were omitted: more than {} at once, and ten per second",
            LINES.at_once
        );
    }
    // Names and messages come from other processes; without control characters the text stays on one line.
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

/// The limit of lines, with its state.
#[derive(Debug)]
struct Bound {
    bucket: Bucket,
    left_out: u64,
}

impl Bound {
    /// Returns the number of lines that were omitted before the one that may be logged now; `None` if that
    /// one is omitted as well.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if !self.bucket.take(now, LINES) {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

impl EventSource for Control {
    fn event(&self, note: &ControlNote) -> Option<(Level, String)> {
        use ControlNote as Note;
        let role = |role: &Role| self.name_of(role.port());
        let host = |host: &u16| self.name_of(Port::host(*host));
        Some(match note {
            Note::Silent(of) => {
                let held = of.port().as_node().and_then(|node| losses(&self.held_by(node)));
                let held = held.map_or_else(String::new, |held| format!(": {held} are unreachable"));
                (Level::WARN, format!("{} does not answer{held}", role(of)))
            }
            Note::Back(of) => (Level::INFO, format!("{} answers again", role(of))),
            Note::Refused(of, status) => (Level::WARN, format!("{} refused an update: {status:?}", role(of))),
            Note::MustRejoin(of) => {
                (Level::ERROR, format!("{} lacks updates, and must join again", role(of)))
            }
            Note::Fenced(of) => (Level::INFO, format!("the lease of {} ended: it is fenced", host(of))),
            Note::Lapsed(of) => (Level::INFO, format!("{} did not renew its lease: it is fenced", host(of))),
            Note::DomainGone(domain) => (Level::INFO, format!("domain {domain} has no user: it is gone")),
            Note::Unproven(joins) => (
                Level::WARN,
                format!(
                    "{joins} joins of the last minute named addresses and did not prove them; a holder of the \
                     rack's token may name addresses of others (`proofs` of `farmem status --json`)"
                ),
            ),
            Note::GivenUp => (Level::WARN, "a migration was cancelled".into()),
            Note::TakenBack => (Level::INFO, "a change was rolled back".into()),
            Note::SoftRefused => (Level::WARN, "the switch refused an image".into()),
            Note::Dropped(why @ (ControlDrop::Port | ControlDrop::Malformed | ControlDrop::Endpoint))
                if enabled!(Level::DEBUG) =>
            {
                (Level::DEBUG, format!("a frame was dropped: {why:?}"))
            }
            _ => return None,
        })
    }
}

impl EventSource for Switch {
    fn event(&self, note: &SwitchNote) -> Option<(Level, String)> {
        use SwitchNote as Note;
        Some(match note {
            Note::UpdateRefused { seq, status } => {
                (Level::WARN, format!("batch {seq} of updates was refused: {status:?}"))
            }
            Note::UpdateChanged { seq } => (
                Level::ERROR,
                format!("batch {seq} of updates was repeated with other bytes: the switch stops"),
            ),
            Note::Refused(status) if enabled!(Level::DEBUG) => {
                (Level::DEBUG, format!("a request was refused: {status:?}"))
            }
            Note::Dropped(why) if enabled!(Level::DEBUG) => {
                (Level::DEBUG, format!("a frame was dropped: {why:?}"))
            }
            _ => return None,
        })
    }
}

impl<S: Store, C: Compile> EventSource for MemNode<S, C> {
    fn event(&self, note: &NodeNote) -> Option<(Level, String)> {
        use NodeNote as Note;
        Some(match note {
            Note::UpdateRefused(status) => {
                (Level::WARN, format!("a batch of updates was refused: {status:?}"))
            }
            Note::UpdateChanged => {
                (Level::ERROR, "a batch of updates was repeated with other bytes: the node stops".into())
            }
            Note::FileFailed => (Level::WARN, "a file could not be loaded or saved".into()),
            Note::ProgramInterpreted => {
                (Level::WARN, "a program could not be compiled, and is interpreted".into())
            }
            Note::Dropped(why) if enabled!(Level::DEBUG) => {
                (Level::DEBUG, format!("a frame was dropped: {why:?}"))
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender makes a role emit notes without end. A burst is logged, then ten lines per second, and the
    /// omitted ones are counted.
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
