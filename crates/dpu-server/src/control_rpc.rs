//! Requests of a DPU's door to the control plane, on a thread of their own, since the door waits for no other thread.

use super::mailbox::{Mailbox, Notice, Question};
use super::messages::DpuMessage;
use super::serve::told;
use farmem_api::{ApiCallError, ApiClient};
use farmem_client::api::{ActFor, ErrorCode, Locate, VmaInfo};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Until the control plane is told again what it did not hear.
const AGAIN: Duration = Duration::from_secs(1);

/// A request or a notice to the control plane.
pub(super) enum ControlRequest {
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
pub(super) fn begin(api: ApiClient, mailbox: Mailbox) -> std::io::Result<Sender<ControlRequest>> {
    let (control_requests, told) = channel();
    thread::Builder::new().name("dpu control".into()).spawn(move || run(api, &told, &mailbox))?;
    Ok(control_requests)
}

fn run(mut api: ApiClient, control_requests: &Receiver<ControlRequest>, mailbox: &Mailbox) {
    // Notices that the control plane did not hear yet.
    let mut untold: Vec<ActFor> = Vec::new();
    loop {
        let control_request = match untold.is_empty() {
            true => control_requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => control_requests.recv_timeout(AGAIN),
        };
        match control_request {
            Ok(ControlRequest::Open { question, open, begins }) => {
                // An act that begins again has not ended, as far as the control plane knows.
                untold.retain(|ended| begins.as_ref().is_none_or(|begins| !is_same(ended, begins)));
                let found = look_up(&mut api, open.base, begins);
                mailbox.say(question, Notice::Found { open, found });
            }
            Ok(ControlRequest::Ended(ended)) => untold.push(ended),
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

fn look_up(api: &mut ApiClient, base: u64, begins: Option<ActFor>) -> Result<VmaInfo, DpuMessage> {
    if let Some(begins) = begins {
        api.call(begins).map_err(|error| told(error.into()))?;
    }
    Ok(api.call(Locate { addr: base }).map_err(|error| told(error.into()))?.vma)
}
