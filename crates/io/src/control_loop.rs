//! Drives the control plane: table updates over a link, requests from the HTTP API, its log on disk.

use crate::{ApiCall, ControlStore, Driver, Link, Stop, Wait};
use farmem_control::{Ask, Control, Out};
use farmem_machine::Duration;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::Receiver;

/// Longest time without a look at the stop flag.
const TURN_MAX: Duration = Duration::from_millis(20);

/// Requests under way, and the lines to keep.
struct Desk {
    store: ControlStore,
    asked: BTreeMap<u64, ApiCall>,
    /// The first failure of the store; the control plane stops before anything that depends on it leaves.
    failure: Option<io::Error>,
}

impl Desk {
    fn take<L: Link>(&mut self, out: Out, link: &mut L) {
        if self.failure.is_some() {
            return;
        }
        match out {
            Out::Persist(record) => self.failure = self.store.append(&record).err(),
            Out::Peer(change) => {
                // A peer this link cannot reach gets no updates; the control plane finds it silent.
                drop(link.set_peer(change.port, change.gid));
            }
            Out::Reply { ticket, result } => {
                if let Some(call) = self.asked.remove(&ticket) {
                    call.answer(result);
                }
            }
        }
    }

    fn sound(&mut self) -> io::Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }
}

/// Serves until `stop` is set.
///
/// # Errors
/// When the link or the store no longer works. What could not be kept was told to nobody.
pub fn run_control<L: Link>(
    driver: &mut Driver<Control, L>,
    calls: &Receiver<ApiCall>,
    store: ControlStore,
    stop: &Stop,
) -> io::Result<()> {
    let mut desk = Desk { store, asked: BTreeMap::new(), failure: None };
    let mut tickets = 0;
    while !stop.is_set() {
        while let Ok(call) = calls.try_recv() {
            tickets += 1;
            let request = call.request.clone();
            desk.asked.insert(tickets, call);
            driver.submit(Ask { ticket: tickets, request }, &mut |out, link| desk.take(out, link));
            desk.sound()?;
        }
        driver.turn(Wait::AtMost(TURN_MAX), &mut |out, link| desk.take(out, link))?;
        desk.sound()?;
    }
    Ok(())
}
