//! Requests of a DPU's door to the control plane, on a thread of their own, because the door waits for no other
//! thread.

use super::journal::{Holding, Life};
use super::mailbox::{Mailbox, Notice, Question};
use super::messages::{DpuMessage, refusal};
use super::serve::told;
use farmem_api::{ApiCallError, ApiClient};
use farmem_client::api::{ActFor, ErrorCode, Leave, Locate, Overview, VmaInfo};
use farmem_machine::Port;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Delay before a notice that the control plane did not accept is sent again.
const AGAIN: Duration = Duration::from_secs(1);

/// A request or a notice to the control plane.
pub(super) enum ControlRequest {
    /// Looks up the allocation that a process opens. If the process writes, first tells the control plane that this
    /// DPU acts for it.
    Open { question: Question, open: Open, begins: Option<ActFor> },
    /// The DPU no longer acts for a process: none of its operations is in flight.
    Ended(ActFor),
    /// Fences a host of this DPU, because one of its writes may be executed later.
    Fence(Life),
    /// Checks that the processes of an earlier DPU, and that DPU, no longer write.
    Release(Release),
}

/// A process's request to open an allocation that processes of an earlier DPU had open.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) question: Question,
    pub(super) open: Open,
    pub(super) vma: VmaInfo,
    /// The host of the process that opens the allocation.
    pub(super) process: Life,
    pub(super) former: Vec<Holding>,
}

/// A process's request to open an allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) region: u16,
    pub(super) base: u64,
    pub(super) write: bool,
}

/// Starts the thread. The thread ends after the door has ended and the thread's current request is done.
///
/// # Errors
/// The system's error if it has no more threads.
pub(super) fn begin(
    api: ApiClient,
    mailbox: Mailbox,
    fenced: Sender<Life>,
) -> std::io::Result<Sender<ControlRequest>> {
    let (control_requests, told) = channel();
    thread::Builder::new().name("dpu control".into()).spawn(move || run(api, &told, &mailbox, &fenced))?;
    Ok(control_requests)
}

fn run(
    mut api: ApiClient,
    control_requests: &Receiver<ControlRequest>,
    mailbox: &Mailbox,
    fenced: &Sender<Life>,
) {
    // Notices that the control plane has not accepted yet.
    let mut untold: Vec<ActFor> = Vec::new();
    let mut unfenced: Vec<Life> = Vec::new();
    loop {
        let control_request = match untold.is_empty() && unfenced.is_empty() {
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
            Ok(ControlRequest::Fence(life)) => unfenced.push(life),
            Ok(ControlRequest::Release(Release { question, open, vma, process, former })) => {
                let released = release(&mut api, &vma, process, &former).map(|()| former);
                mailbox.say(question, Notice::Released { open, vma, released });
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        untold.retain(|ended| !is_heard(&mut api, ended));
        for life in unfenced.extract_if(.., |life| is_out(&mut api, *life)) {
            // A door that has ended waits for nothing.
            let _gone = fenced.send(life);
            mailbox.bell.ring();
        }
    }
}

/// Fences a host. Returns true if it is fenced: no memory node accepts its requests. A silent node accepts no new
/// connection either before it has learnt of the fence (PROTOCOL 8.21).
fn is_out(api: &mut ApiClient, (host, generation): Life) -> bool {
    let leave = Leave { port: Port::host(host).0, generation: Some(generation) };
    match api.call(leave) {
        Ok(()) => true,
        Err(ApiCallError::Refused(error)) if error.code == ErrorCode::NotFound => true,
        // Another user's host has the number by now.
        Err(ApiCallError::Refused(error)) if error.code == ErrorCode::NotOwner => {
            let seen = api.call(Overview {}).map(|seen| seen.hosts).unwrap_or_default();
            seen.iter().any(|other| other.host == host && other.generation != generation)
        }
        Err(_) => false,
    }
}

/// Checks that no process that had an allocation open at an earlier DPU still writes there. The earlier DPU has
/// ended, so this function has its hosts fenced. A process of that DPU may still run, so the process's host must
/// leave by itself.
fn release(api: &mut ApiClient, vma: &VmaInfo, process: Life, former: &[Holding]) -> Result<(), DpuMessage> {
    let not_yet = |who: String| {
        let message = format!("the allocation at {:#x} is still open: {who}", vma.base);
        let remedy =
            "end the process, or wait until its host has left the rack (`farmem status`); then try again";
        refusal(ErrorCode::Unavailable, message, remedy)
    };
    let mut dpus: Vec<Life> = former.iter().map(|holding| holding.dpu).collect();
    dpus.sort_unstable();
    dpus.dedup();
    if let Some((host, _)) = dpus.into_iter().find(|&dpu| !is_out(api, dpu)) {
        return Err(not_yet(format!("host {host} of an earlier DPU has not left the rack")));
    }
    let mut processes: Vec<Life> = former.iter().map(|holding| holding.process).collect();
    processes.retain(|&other| other != process);
    let hosts = api.call(Overview {}).map_err(|error| told(error.into()))?.hosts;
    let present = hosts.iter().find(|host| processes.contains(&(host.host, host.generation)));
    if let Some(host) = present {
        let name = &host.name;
        return Err(not_yet(format!(
            "{name} opened it at an earlier DPU, and now accesses memory nodes directly"
        )));
    }
    // A host that is about to leave is out when the control plane has answered.
    match processes.into_iter().find(|&process| !is_out(api, process)) {
        Some((host, _)) => Err(not_yet(format!("host {host} has not left the rack"))),
        None => Ok(()),
    }
}

/// Returns true if both are about the same two hosts.
fn is_same(one: &ActFor, other: &ActFor) -> bool {
    let of = |call: &ActFor| (call.host, call.generation, call.of_host, call.of_generation);
    of(one) == of(other)
}

/// Returns false if the notice must be sent again: the control plane did not answer, or could not store it.
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
