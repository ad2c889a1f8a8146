//! Requests of a DPU's door to the control plane, on a thread of their own, since the door waits for no other thread.

use super::mail::{Came, Mail, Question};
use super::serve::told;
use super::words::Said;
use farmem_api::{ApiCallError, ApiClient};
use farmem_client::api::{ActFor, ErrorCode, Locate, VmaInfo};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Until the control plane is told again what it did not hear.
const AGAIN: Duration = Duration::from_secs(1);

/// A request or a notice to the control plane.
pub(super) enum Errand {
    /// Which allocation it is that a process opens; that this DPU acts for the process, where it writes.
    Open { question: Question, open: Open, begins: Option<ActFor> },
    /// The DPU acts for a process no more: nothing of that is under way.
    Ended(ActFor),
}

/// A process's request to open an allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) region: u16,
    pub(super) base: u64,
    pub(super) write: bool,
}

/// Begins the thread. It ends when the door has gone, and what it is in the middle of.
///
/// # Errors
/// When the system has no more threads.
pub(super) fn begin(api: ApiClient, mail: Mail) -> std::io::Result<Sender<Errand>> {
    let (errands, told) = channel();
    thread::Builder::new().name("dpu clerk".into()).spawn(move || run(api, &told, &mail))?;
    Ok(errands)
}

fn run(mut api: ApiClient, errands: &Receiver<Errand>, mail: &Mail) {
    // Notices that the control plane did not hear yet.
    let mut untold: Vec<ActFor> = Vec::new();
    loop {
        let errand = match untold.is_empty() {
            true => errands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => errands.recv_timeout(AGAIN),
        };
        match errand {
            Ok(Errand::Open { question, open, begins }) => {
                // An act that begins again has not ended, as far as the control plane knows.
                untold.retain(|ended| begins.as_ref().is_none_or(|begins| !is_same(ended, begins)));
                let found = look_up(&mut api, open.base, begins);
                mail.say(question, Came::Found { open, found });
            }
            Ok(Errand::Ended(ended)) => untold.push(ended),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        untold.retain(|ended| !is_heard(&mut api, ended));
    }
}

/// Both are of the same two hosts.
fn is_same(one: &ActFor, other: &ActFor) -> bool {
    let of = |call: &ActFor| (call.host, call.generation, call.of_host, call.of_generation);
    of(one) == of(other)
}

/// False when it is to be said again: the control plane did not answer, or could not keep it.
fn is_heard(api: &mut ApiClient, ended: &ActFor) -> bool {
    match api.call(ended.clone()) {
        Ok(()) => true,
        Err(ApiCallError::Refused(error)) => {
            !matches!(error.code, ErrorCode::Storage | ErrorCode::Unavailable)
        }
        Err(_) => false,
    }
}

fn look_up(api: &mut ApiClient, base: u64, begins: Option<ActFor>) -> Result<VmaInfo, Said> {
    if let Some(begins) = begins {
        api.call(begins).map_err(|error| told(error.into()))?;
    }
    Ok(api.call(Locate { addr: base }).map_err(|error| told(error.into()))?.vma)
}
