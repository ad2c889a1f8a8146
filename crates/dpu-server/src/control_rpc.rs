//! Requests of a DPU's door to the control plane, on a thread of their own, because the door waits for no other
//! thread.

use super::journal::{Holding, Life};
use super::mailbox::{Mailbox, Notice as ProcessNotice, Question};
use super::messages::{DpuMessage, refusal};
use super::serve::told;
use farmem_api::{ApiCallError, ApiClient};
use farmem_client::api::{ActFor, ErrorCode, Leave, Locate, Overview, VmaInfo};
use farmem_link::Clock;
use farmem_machine::{Duration as Span, Port};
use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Delay before a notice that the control plane did not accept is sent again.
const AGAIN: Duration = Duration::from_secs(1);
/// Time for one answer of the control plane. A removal that waits for a silent node keeps no process that opens an
/// allocation waiting for longer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// Time after which a look at the processes of earlier DPUs asks for no further one.
const LOOK_TIME_MAX: Span = Span::from_secs(2);
/// Rounds of notices from one look at which processes of earlier DPUs have left the rack until the next.
const PRUNE_ROUNDS: u32 = 30;

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
    /// Processes of earlier DPUs, and these DPUs: which of them have left the rack is of interest.
    Prune(BTreeSet<(Life, Life)>),
}

/// A result that no process waits for.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The host of this DPU has left the rack.
    Fenced(Life),
    /// These processes of earlier DPUs, and these DPUs, have left the rack.
    Pruned(BTreeSet<(Life, Life)>),
}

/// A notice that is repeated until the control plane has heard it.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Notice {
    Ended(ActFor),
    Fence(Life),
}

/// Notices that the control plane has not heard yet. Each turn sends one, so that a notice that is not answered
/// delays neither the others nor the requests of processes for longer than one answer takes.
#[derive(Default)]
struct Notices {
    /// The front is the next to be sent.
    queue: VecDeque<Notice>,
    /// Notices that are still to be sent in this round.
    unsent: usize,
}

impl Notices {
    fn push(&mut self, notice: Notice) {
        self.queue.push_front(notice);
        self.unsent += 1;
    }

    /// Drops the notice that an act has ended, which has begun again.
    fn begun(&mut self, begins: &ActFor) {
        self.queue.retain(|notice| !matches!(notice, Notice::Ended(ended) if is_same(ended, begins)));
        self.unsent = self.unsent.min(self.queue.len());
    }

    fn begin_round(&mut self) {
        self.unsent = self.queue.len();
    }

    /// Sends the next notice of this round; `is_heard` says whether the control plane has heard it.
    fn turn(&mut self, is_heard: impl FnOnce(&Notice) -> bool) {
        let Some(unsent) = self.unsent.checked_sub(1) else { return };
        self.unsent = unsent;
        if let Some(notice) = self.queue.pop_front().filter(|notice| !is_heard(notice)) {
            self.queue.push_back(notice);
        }
    }
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
    outcomes: Sender<Outcome>,
) -> std::io::Result<Sender<ControlRequest>> {
    let (control_requests, told) = channel();
    let api = api.with_timeout(ANSWER_TIME_MAX).with_patience(ANSWER_TIME_MAX);
    thread::Builder::new().name("dpu control".into()).spawn(move || run(api, &told, &mailbox, &outcomes))?;
    Ok(control_requests)
}

fn run(
    mut api: ApiClient,
    control_requests: &Receiver<ControlRequest>,
    mailbox: &Mailbox,
    outcomes: &Sender<Outcome>,
) {
    let mut notices = Notices::default();
    let mut former = BTreeSet::new();
    let mut rounds = 0;
    // A door that has gone waits for nothing.
    let tell = |outcome| {
        let _gone = outcomes.send(outcome);
        mailbox.bell.ring();
    };
    loop {
        let control_request = match (notices.unsent, notices.queue.is_empty() && former.is_empty()) {
            (0, true) => control_requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (0, false) => control_requests.recv_timeout(AGAIN),
            (1.., _) => control_requests.recv_timeout(Duration::ZERO),
        };
        match control_request {
            Ok(ControlRequest::Open { question, open, begins }) => {
                // An act that begins again has not ended, as far as the control plane knows.
                begins.iter().for_each(|begins| notices.begun(begins));
                let found = look_up(&mut api, open.base, begins);
                mailbox.say(question, ProcessNotice::Found { open, found });
            }
            Ok(ControlRequest::Ended(ended)) => notices.push(Notice::Ended(ended)),
            Ok(ControlRequest::Fence(life)) => notices.push(Notice::Fence(life)),
            Ok(ControlRequest::Release(Release { question, open, vma, process, former })) => {
                let released = release(&mut api, &vma, process, &former).map(|()| former);
                mailbox.say(question, ProcessNotice::Released { open, vma, released });
            }
            Ok(ControlRequest::Prune(lives)) => (former, rounds) = (lives, 0),
            Err(RecvTimeoutError::Timeout) if notices.unsent == 0 => {
                notices.begin_round();
                if rounds % PRUNE_ROUNDS == 0 {
                    let gone = gone_of(&mut api, &former);
                    former.retain(|lives| !gone.contains(lives));
                    if !gone.is_empty() {
                        tell(Outcome::Pruned(gone));
                    }
                }
                rounds += 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        notices.turn(|notice| match notice {
            Notice::Ended(ended) => is_heard(&mut api, ended),
            Notice::Fence(life) => {
                let is_out = is_out(&mut api, *life);
                if is_out {
                    tell(Outcome::Fenced(*life));
                }
                is_out
            }
        });
    }
}

/// Returns the processes of earlier DPUs that have left the rack, with these DPUs, which leave it too. Answers that
/// do not come end the look.
fn gone_of(api: &mut ApiClient, former: &BTreeSet<(Life, Life)>) -> BTreeSet<(Life, Life)> {
    if former.is_empty() {
        return BTreeSet::new();
    }
    let Ok(seen) = api.call(Overview {}) else { return BTreeSet::new() };
    let present: BTreeSet<Life> = seen.hosts.iter().map(|host| (host.host, host.generation)).collect();
    let absent = former.iter().filter(|(process, _)| !present.contains(process));
    let clock = Clock::start();
    let end = clock.after(LOOK_TIME_MAX);
    let in_time = absent.take_while(|_| clock.now() < end);
    // A host that is about to leave is out when the control plane has answered.
    in_time.filter(|&&(process, dpu)| is_out(api, process) && is_out(api, dpu)).copied().collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(of_host: u16) -> Notice {
        Notice::Ended(ActFor { host: 9, generation: 1, of_host, of_generation: 1, begins: false })
    }

    /// The control plane does not answer one of three notices. A turn sends one notice, so between two requests of
    /// processes at most one is waited for; the other two are heard within a round, and the third is sent again in
    /// the next.
    #[test]
    fn a_notice_that_is_not_answered_delays_no_other() {
        let mut notices = Notices::default();
        let unheard = Notice::Fence((9, 1));
        for notice in [ended(1), ended(2), unheard.clone()] {
            notices.push(notice);
        }
        let mut sent = Vec::new();
        let mut turn = |notices: &mut Notices| {
            notices.turn(|notice| {
                sent.push(notice.clone());
                *notice != unheard
            });
            sent.len()
        };
        assert_eq!([0; 4].map(|_| turn(&mut notices)), [1, 2, 3, 3]);
        notices.begin_round();
        assert_eq!([0; 2].map(|_| turn(&mut notices)), [4, 4]);
        assert_eq!(sent, [unheard.clone(), ended(2), ended(1), unheard]);
    }

    /// An act ends and begins again before the control plane has heard of the end: it does not hear of it.
    #[test]
    fn an_act_that_begins_again_has_not_ended() {
        let mut notices = Notices::default();
        [ended(1), ended(2)].into_iter().for_each(|notice| notices.push(notice));
        notices.begun(&ActFor { host: 9, generation: 1, of_host: 2, of_generation: 1, begins: true });
        notices.turn(|notice| {
            assert_eq!(*notice, ended(1));
            true
        });
        notices.turn(|notice| panic!("{notice:?} was dropped"));
    }
}
