//! Requests of processes to the door of a DPU over their sockets, and the times of their answers (PROTOCOL 17.3 to
//! 17.5).

use super::super::control_rpc::{ControlRequest, Open, Release};
use super::super::domain_thread::Order;
use super::super::dpu_client::{REGISTERED_MAX, RegionAt};
use super::super::journal::{Holding, OPENINGS_MAX};
use super::super::mailbox::{Notice, Question, Reply};
use super::super::messages::{self, ClientMessage, DpuMessage, Foresight, refusal};
use super::super::mirroring::MirrorRequest;
use super::{Door, PATIENCE, PendingQuestion, REGIONS_MAX, SAME, Session, busy, say};
use farmem_client::api::{ActFor, ErrorCode, VmaInfo};
use farmem_dpu::{ADVISED_MAX, Asker};
use farmem_link::dpu::{Registered, Submissions};
use std::io;
use std::os::fd::OwnedFd;

/// The answer or refusal for a process; `Ok(None)` if the answer comes later.
pub(super) type Answered = Result<Option<DpuMessage>, DpuMessage>;

impl Door {
    /// Handles the next message of a session, or its end.
    pub(super) fn hear(&mut self, number: u32) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let answered = match messages::hear::<ClientMessage>(&session.talk) {
            Ok(Some((ClientMessage::Finished {}, _))) => {
                session.is_finished = true;
                return;
            }
            // A process that does not wait for its answer breaks the protocol.
            Ok(Some(_)) if session.asked.is_some() => return self.leave(number),
            Ok(Some((ClientMessage::Register { rkey, most }, file))) => {
                self.register(number, (rkey, most), file)
            }
            Ok(Some((ClientMessage::Threads { bytes }, file))) => self.hear_threads(number, bytes, file),
            Ok(Some((ClientMessage::Tap { bytes }, file))) => {
                self.take_ring(number, bytes, file, |parts| &mut parts.tap)
            }
            Ok(Some((ClientMessage::Beside { bytes }, file))) => {
                self.take_ring(number, bytes, file, |parts| &mut parts.beside)
            }
            Ok(Some((ClientMessage::Zone { size }, file))) => self.take_zone(number, size, file),
            Ok(Some((ClientMessage::Prefetch { structure, how, through }, _))) => {
                self.prefetch(number, structure, how, through)
            }
            Ok(Some((ask, _))) => self.answer(number, ask),
            Ok(None) => return self.leave(number),
            Err(error) => {
                Err(refusal(ErrorCode::BadRequest, format!("this is no message of a process: {error}"), SAME))
            }
        };
        if let Some(said) = answered.unwrap_or_else(Some) {
            self.say_to(number, &said);
        }
    }

    /// Sends the pending answer to a session.
    fn say_to(&mut self, number: u32, said: &DpuMessage) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.asked = None;
        if !say(&session.talk, said) {
            self.leave(number);
        }
    }

    /// Answers a request; returns `Ok(None)` if another thread must act first.
    fn answer(&mut self, number: u32, ask: ClientMessage) -> Answered {
        match ask {
            ClientMessage::Hello { .. } => {
                Err(refusal(ErrorCode::BadRequest, "this process has already sent `hello`", SAME))
            }
            // The memory comes with its file.
            ClientMessage::Register { rkey, most } => self.register(number, (rkey, most), None),
            ClientMessage::Open { region, base, write } => self.open(number, Open { region, base, write }),
            ClientMessage::Close { region } => self.close_region(number, region),
            ClientMessage::Fix { region, offset, len } => self.fix(number, region, offset, len),
            ClientMessage::Policy { region, policy, part } => self.advise(number, region, policy, part),
            ClientMessage::Threads { bytes } => self.hear_threads(number, bytes, None),
            ClientMessage::Finished {}
            | ClientMessage::Tap { .. }
            | ClientMessage::Beside { .. }
            | ClientMessage::Zone { .. }
            | ClientMessage::Prefetch { .. } => {
                unreachable!("it was handled when it was heard")
            }
            ClientMessage::Mirror { packets, parser } => {
                self.mirror(number, MirrorRequest { packets, parser })
            }
            ClientMessage::Prefetched {} => self.prefetched(number),
            ClientMessage::Carried {} => {
                let asker = Asker(number);
                self.have_done(number, busy(), |done| Order::Carried { asker, done })
            }
            ClientMessage::Stats {} => Ok(Some(DpuMessage::Stats(self.ground.memory.stats().into()))),
        }
    }

    /// Registers a session's request for a later answer. `refused` is the answer if the domain's thread cannot
    /// execute the request.
    pub(super) fn later(&mut self, number: u32, refused: DpuMessage) -> Result<Question, DpuMessage> {
        let now = self.clock.now();
        let session = self.session(number)?;
        session.questions += 1;
        session.asked = Some(PendingQuestion {
            number: session.questions,
            since: now,
            refused,
            closes: None,
            begins: false,
        });
        Ok(Question { session: number, number: session.questions })
    }

    /// Sends an order to the thread of the session's domain, which replies.
    fn have_done(
        &mut self,
        number: u32,
        refused: DpuMessage,
        order: impl FnOnce(Reply) -> Order,
    ) -> Answered {
        let domain = self.session(number)?.domain;
        let question = self.later(number, refused)?;
        let order = order(self.mailbox.reply(question));
        if self.lane(domain)?.tell(order) { Ok(None) } else { Err(busy()) }
    }

    /// Processes the notices of other threads and answers the processes that wait for them. A process that has waited
    /// too long gets an error.
    pub(super) fn take_mail(&mut self) {
        self.mailbox.bell.hear();
        while let Ok((question, came)) = self.came.try_recv() {
            let number = question.session;
            if let (Notice::Mirrors { bytes, .. }, Some(session)) = (&came, self.sessions.get_mut(&number)) {
                // Also after a timeout of the process, and after the end of the mirror.
                session.mirror.hears(question.number, *bytes);
            }
            let asked = self
                .sessions
                .get_mut(&number)
                .and_then(|session| session.asked.take_if(|asked| asked.number == question.number));
            // The notice is too late, or the process has left.
            let Some(asked) = asked else { continue };
            if let Notice::Prefetches(Err(_)) = came {
                self.prefetches_no_more(number);
            }
            let answered = match came {
                Notice::Done(true) => {
                    if let Some((region, object)) = asked.closes {
                        self.sessions.get_mut(&number).and_then(|session| session.regions.remove(&region));
                        self.objects.close_one(&self.ground.memory, Asker(number), object);
                        self.journal.closed(Asker(number), object);
                    }
                    Ok(Some(DpuMessage::Done {}))
                }
                Notice::Done(false) => Err(asked.refused),
                Notice::Carried(carried) => Ok(Some(DpuMessage::Carried(carried))),
                Notice::Prefetches(begun) => begun.map(|wake| Some(DpuMessage::Prefetches { wake })),
                Notice::Prefetched(done) => Ok(Some(DpuMessage::Prefetched(Box::new((*done).into())))),
                Notice::Mirrors { said, .. } => Ok(Some(said)),
                Notice::Found { open, found } => found.and_then(|vma| self.found(number, open, &vma)),
                Notice::Released { open, vma, released } => {
                    let kept = released.and_then(|former| self.released(number, &former));
                    kept.and_then(|()| self.found(number, open, &vma))
                }
            };
            if let Some(said) = answered.unwrap_or_else(Some) {
                self.say_to(number, &said);
            }
        }
        let now = self.clock.now();
        let late = |session: &mut Session| session.asked.take_if(|asked| now.since(asked.since) >= PATIENCE);
        let late: Vec<_> = self
            .sessions
            .iter_mut()
            .filter_map(|(&number, session)| Some((number, late(session)?.begins)))
            .collect();
        for (number, begins) in late {
            if begins {
                // The process must try again: its thread ends when it begins, and its notices are dropped.
                self.prefetches_no_more(number);
            }
            self.say_to(number, &busy());
        }
    }

    pub(super) fn session(&mut self, number: u32) -> Result<&mut Session, DpuMessage> {
        self.sessions
            .get_mut(&number)
            .ok_or_else(|| refusal(ErrorCode::NotFound, "the process is gone", SAME))
    }

    fn object(&mut self, number: u32, region: u16) -> Result<u32, DpuMessage> {
        let known = self.session(number)?.regions.get(&region).copied();
        known.ok_or_else(|| {
            refusal(ErrorCode::NotFound, format!("region {region} is not open"), "open it first")
        })
    }

    /// Opens an allocation for a session: asks the control plane for the allocation. Before the first write, the
    /// control plane learns that this DPU writes for the session's host.
    fn open(&mut self, number: u32, open: Open) -> Answered {
        let session = self.session(number)?;
        let (domain, (of_host, of_generation)) = (session.domain, session.life);
        if session.regions.contains_key(&open.region) || session.regions.len() >= REGIONS_MAX {
            let message =
                format!("region {} is already open, or {REGIONS_MAX} regions are open", open.region);
            return Err(refusal(ErrorCode::Conflict, message, "close a region, or use another number"));
        }
        let (host, generation) = self.lane(domain)?.life;
        let begins = open.write.then_some(ActFor { host, generation, of_host, of_generation, begins: true });
        if let Some(begins) = &begins {
            self.acts.begin(Asker(number), begins.clone());
        }
        let question = self.later(number, busy())?;
        let told = self.control_requests.send(ControlRequest::Open { question, open, begins });
        if told.is_ok() { Ok(None) } else { Err(busy()) }
    }

    /// Continues to open an allocation after the answer of the control plane.
    fn found(&mut self, number: u32, open: Open, vma: &VmaInfo) -> Answered {
        let Open { region, base, write } = open;
        if vma.base != base {
            let message = format!("{base:#x} is not the first byte of an allocation");
            return Err(refusal(ErrorCode::BadRequest, message, "open the whole allocation"));
        }
        // A process that closed its socket before this request has nothing open.
        self.close_gone();
        let Session { life, dpu, .. } = *self.session(number)?;
        let former = self.journal.excluding(vma, write, life);
        if !former.is_empty() {
            let question = self.later(number, busy())?;
            let vma = vma.clone();
            let release = ControlRequest::Release(Release { question, open, vma, process: life, former });
            return if self.control_requests.send(release).is_ok() { Ok(None) } else { Err(busy()) };
        }
        if self.journal.is_full() {
            let message = format!("the journal of this DPU has {OPENINGS_MAX} openings, its most");
            return Err(refusal(ErrorCode::TableFull, message, "close regions, or wait until processes end"));
        }
        let asker = Asker(number);
        let object = self.objects.open(&self.ground.memory, vma, asker, write, |asker| {
            self.leaving.iter().any(|leaving| leaving.asker == asker && leaving.is_waited_for())
        })?;
        if let Err(error) = self.journal.opened((asker, object), (life, dpu), vma, write) {
            self.objects.close_one(&self.ground.memory, asker, object);
            return Err(not_kept(error));
        }
        let session = self.session(number)?;
        session.regions.insert(region, object);
        // A grant may be revoked at any time without notice to the DPU, so pages of another domain are read from
        // their node each time.
        let at = RegionAt { object, bytes: vma.size, granted: vma.domain == session.domain };
        self.have_done(number, busy(), |done| Order::Region { asker: Asker(number), region, at, done })
    }

    /// Records that the processes of an earlier DPU, and that DPU, no longer write.
    fn released(&mut self, number: u32, former: &[Holding]) -> Result<(), DpuMessage> {
        let process = self.session(number)?.life;
        self.journal.release(former, process).map_err(not_kept)
    }

    /// Closes a region of a session. The region stays open until the domain's thread has no pending request on it.
    /// After a timeout the session may close it again.
    fn close_region(&mut self, number: u32, region: u16) -> Answered {
        let object = self.object(number, region)?;
        let refused = refusal(
            ErrorCode::Unavailable,
            format!("a write of region {region} failed, and far memory may carry it out later"),
            "other processes cannot open the allocation until this process ends",
        );
        let answered =
            self.have_done(number, refused, |done| Order::Close { asker: Asker(number), region, done })?;
        if let Some(asked) = &mut self.session(number)?.asked {
            asked.closes = Some((region, object));
        }
        Ok(answered)
    }

    /// Registers memory of a process. Only the thread of the process's domain reads and writes it.
    fn register(&mut self, number: u32, (rkey, most): (u32, u64), file: Option<OwnedFd>) -> Answered {
        let wrong = |message: String| refusal(ErrorCode::BadRequest, message, SAME);
        let file = file.ok_or_else(|| wrong("`register` was sent without a file".into()))?;
        let memory = Registered::of(file, most).map_err(|error| wrong(error.to_string()))?;
        self.may_fill(most)?;
        let session = self.session(number)?;
        session.fills = session.fills.saturating_add(most);
        let refused = refusal(
            ErrorCode::Conflict,
            format!("the key {rkey} is in use, or {REGISTERED_MAX} keys are"),
            "use another key from 2 on, and no more keys than that",
        );
        let asker = Asker(number);
        self.have_done(number, refused, |done| Order::Register { asker, rkey, memory, done })
    }

    /// Adds a ring for the requests of all threads of a process (PROTOCOL 18.23).
    fn hear_threads(&mut self, number: u32, bytes: usize, file: Option<OwnedFd>) -> Answered {
        let wrong = |message: String| refusal(ErrorCode::BadRequest, message, SAME);
        let file = file.ok_or_else(|| wrong("a ring of threads was sent without its memory".into()))?;
        let submissions = Submissions::of(&file, bytes).map_err(|error| wrong(error.to_string()))?;
        let (asker, submissions) = (Asker(number), Box::new(submissions));
        let refused = refusal(
            ErrorCode::Conflict,
            "this process already has a ring of threads, or its link to the DPU has a profile",
            "use the existing ring, or remove `link` from [dpu] in rack.toml",
        );
        self.have_done(number, refused, |done| Order::Threads { asker, submissions, done })
    }

    /// Sets the prefetch policy of a region, or of `part` of it (offset and length in bytes).
    fn advise(&mut self, number: u32, region: u16, policy: Foresight, part: Option<(u64, u64)>) -> Answered {
        let object = self.object(number, region)?;
        let Some((offset, len)) = part else {
            self.ground.memory.set_policy(object, policy.policy());
            return Ok(Some(DpuMessage::Done {}));
        };
        let bytes = offset.checked_add(len).map(|end| offset..end);
        if bytes.is_some_and(|bytes| self.ground.memory.advise(object, bytes, policy.policy())) {
            return Ok(Some(DpuMessage::Done {}));
        }
        let message = format!("the DPU can keep no advice for {len} bytes from {offset} on");
        let remedy = format!(
            "give advice for bytes within the region, and for at most {ADVISED_MAX} parts of a region"
        );
        Err(refusal(ErrorCode::Conflict, message, remedy))
    }

    fn fix(&mut self, number: u32, region: u16, offset: u64, len: u64) -> Answered {
        let object = self.object(number, region)?;
        let page_len = self.ground.memory.page_len() as u64;
        let message = format!("{len} bytes from {offset} on cannot be cached statically");
        let remedy = "choose bytes of a region that is open for reading, outside the static cache, and no more than fit: see static of [dpu]";
        let refused = refusal(ErrorCode::Conflict, message, remedy);
        let end = offset.checked_add(len).filter(|_| len > 0).map(|end| end.div_ceil(page_len));
        let Some(end) = end else { return Err(refused) };
        let (asker, pages) = (Asker(number), offset / page_len..end);
        self.have_done(number, refused, |done| Order::Fix { asker, object, pages, done })
    }
}

/// Returns the refusal for a journal that cannot be written: a later DPU would not know what is open.
fn not_kept(error: io::Error) -> DpuMessage {
    let message = format!("the DPU cannot write its journal: {error}");
    refusal(ErrorCode::Unavailable, message, "free space in the directory of the DPU's socket")
}
