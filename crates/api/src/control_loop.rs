//! The loop that drives the control plane: table updates over a link, requests from the HTTP API. The role
//! keeps its own log.

use crate::ApiCall;
use farmem_control::api::{ApiError, Request, Response};
use farmem_control::{Control, Out, Submitted};
use farmem_link::{Driver, Link, Stop, Wait, events};
use farmem_machine::Duration;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::Receiver;

/// Longest time without a check of the stop flag.
const TURN_MAX: Duration = Duration::from_millis(20);

/// Pending requests.
#[derive(Default)]
struct ApiBridge {
    asked: BTreeMap<u64, ApiCall>,
    /// Answered requests that were not logged yet.
    answered: Vec<(Request, Result<Response, ApiError>)>,
}

impl ApiBridge {
    /// Executes an output of the control plane.
    fn take<L: Link>(&mut self, out: Out, link: &mut L) -> io::Result<()> {
        match out {
            // Without a log, no later output may be executed.
            Out::Persist(_) => return Err(io::Error::other("the control plane was lent no log")),
            Out::Peer(change) => {
                // A peer that this link cannot reach gets no updates, and the control plane notices its
                // silence.
                drop(link.set_peer(change.port, change.gid));
            }
            // The datagram must leave before the answer, because the member waits for it afterwards.
            Out::Challenge { gid, frame } => {
                link.send_to(gid, &frame);
                link.flush()?;
            }
            Out::Reply { ticket, result } => {
                if let Some(call) = self.asked.remove(&ticket) {
                    self.answered.push((call.request.clone(), result.clone()));
                    call.answer(result);
                }
            }
        }
        Ok(())
    }

    /// Logs the answered requests, now that the control plane knows the names.
    fn tell(&mut self, control: &Control) {
        for (request, result) in self.answered.drain(..) {
            events::of_answer(control, &request, &result);
        }
    }
}

/// Serves until `stop` is set, with a control plane that was lent its log ([`Control::with_log`]).
///
/// # Errors
/// An error if the link no longer works, or the control plane was lent no log.
pub fn run_control<L: Link>(
    driver: &mut Driver<Control, L>,
    calls: &Receiver<ApiCall>,
    stop: &Stop,
) -> io::Result<()> {
    let mut bridge = ApiBridge::default();
    let mut tickets = 0;
    while !stop.is_set() {
        while let Ok(call) = calls.try_recv() {
            tickets += 1;
            let (request, shown) = (call.request.clone(), call.shown.clone());
            bridge.asked.insert(tickets, call);
            driver.try_submit(Submitted { ticket: tickets, request, shown }, &mut |out, link| {
                bridge.take(out, link)
            })?;
            bridge.tell(driver.machine());
        }
        driver.try_turn(Wait::AtMost(TURN_MAX), &mut |out, link| bridge.take(out, link))?;
        bridge.tell(driver.machine());
    }
    Ok(())
}
