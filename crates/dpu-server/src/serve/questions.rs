//! Requests of processes to the door of a DPU over their sockets, and when they are answered (PROTOCOL 17.3 to 17.5).

use super::super::clerk::{Errand, Open};
use super::super::lane::Order;
use super::super::mail::{Came, Question, Reply};
use super::super::mirroring::Wanted;
use super::super::visitor::{REGISTERED_MAX, RegionAt};
use super::super::words::{self, Ask, Foresight, Said, refusal};
use super::{Asked, Door, Guest, PATIENCE, REGIONS_MAX, SAME, busy, say};
use farmem_client::api::{ActFor, ErrorCode, VmaInfo};
use farmem_dpu::{ADVISED_MAX, Asker};
use farmem_link::dpu::{Registered, Submissions};
use std::os::fd::OwnedFd;

/// The answer or refusal for a process; nothing yet where it comes later.
pub(super) type Answered = Result<Option<Said>, Said>;

impl Door {
    /// A guest says something, or goes.
    pub(super) fn hear(&mut self, number: u32) {
        let Some(guest) = self.guests.get(&number) else { return };
        let answered = match words::hear::<Ask>(&guest.talk) {
            // One that waits for no answer has no use for them.
            Ok(Some(_)) if guest.asked.is_some() => return self.leave(number),
            Ok(Some((Ask::Register { rkey, most }, file))) => self.register(number, (rkey, most), file),
            Ok(Some((Ask::Threads { bytes }, file))) => self.hear_threads(number, bytes, file),
            Ok(Some((Ask::Tap { bytes }, file))) => {
                self.take_ring(number, bytes, file, |parts| &mut parts.tap)
            }
            Ok(Some((Ask::Beside { bytes }, file))) => {
                self.take_ring(number, bytes, file, |parts| &mut parts.beside)
            }
            Ok(Some((Ask::Zone { size }, file))) => self.take_zone(number, size, file),
            Ok(Some((Ask::Prefetch { structure, how, through }, _))) => {
                self.prefetch(number, structure, how, through)
            }
            Ok(Some((ask, _))) => self.answer(number, ask),
            Ok(None) => return self.leave(number),
            Err(error) => {
                Err(refusal(ErrorCode::BadRequest, format!("no message of a process: {error}"), SAME))
            }
        };
        if let Some(said) = answered.unwrap_or_else(Some) {
            self.say_to(number, &said);
        }
    }

    /// A guest is told something, and waits for nothing more.
    fn say_to(&mut self, number: u32, said: &Said) {
        let Some(guest) = self.guests.get_mut(&number) else { return };
        guest.asked = None;
        if !say(&guest.talk, said) {
            self.leave(number);
        }
    }

    /// Answers a process; nothing yet when another thread has to do something first.
    fn answer(&mut self, number: u32, ask: Ask) -> Answered {
        match ask {
            Ask::Hello { .. } => Err(refusal(ErrorCode::BadRequest, "hello was said", SAME)),
            // The memory comes with its file.
            Ask::Register { rkey, most } => self.register(number, (rkey, most), None),
            Ask::Open { region, base, write } => self.open(number, Open { region, base, write }),
            Ask::Close { region } => self.close_region(number, region),
            Ask::Fix { region, offset, len } => self.fix(number, region, offset, len),
            Ask::Policy { region, policy, part } => self.advise(number, region, policy, part),
            Ask::Threads { bytes } => self.hear_threads(number, bytes, None),
            Ask::Tap { .. } | Ask::Beside { .. } | Ask::Zone { .. } | Ask::Prefetch { .. } => {
                unreachable!("it was heard with its file")
            }
            Ask::Mirror { packets, parser } => self.mirror(number, Wanted { packets, parser }),
            Ask::Prefetched {} => self.prefetched(number),
            Ask::Carried {} => {
                let asker = Asker(number);
                self.have_done(number, busy(), |done| Order::Carried { asker, done })
            }
            Ask::Stats {} => Ok(Some(Said::Stats(self.ground.memory.stats().into()))),
        }
    }

    /// A guest's question is answered later; `refused` when the thread of the domain says that it cannot.
    pub(super) fn later(&mut self, number: u32, refused: Said) -> Result<Question, Said> {
        let now = self.clock.now();
        let guest = self.guest(number)?;
        guest.questions += 1;
        guest.asked =
            Some(Asked { number: guest.questions, since: now, refused, closes: None, begins: false });
        Ok(Question { guest: number, number: guest.questions })
    }

    /// Has the thread of the guest's domain do something, which says so.
    fn have_done(&mut self, number: u32, refused: Said, order: impl FnOnce(Reply) -> Order) -> Answered {
        let domain = self.guest(number)?.domain;
        let question = self.later(number, refused)?;
        let order = order(self.mail.reply(question));
        if self.lane(domain)?.tell(order) { Ok(None) } else { Err(busy()) }
    }

    /// Hears what other threads have done, and answers the processes that wait for it, also those that have waited too long.
    pub(super) fn take_mail(&mut self) {
        self.mail.bell.hear();
        while let Ok((question, came)) = self.came.try_recv() {
            let number = question.guest;
            if let (Came::Mirrors { bytes, .. }, Some(guest)) = (&came, self.guests.get_mut(&number)) {
                // Also when it was told before that this takes too long, and when what it was told is over.
                guest.mirror.hears(question.number, *bytes);
            }
            let asked = self
                .guests
                .get_mut(&number)
                .and_then(|guest| guest.asked.take_if(|asked| asked.number == question.number));
            // Too late, or it has gone.
            let Some(asked) = asked else { continue };
            if let Came::Prefetches(Err(_)) = came {
                self.prefetches_no_more(number);
            }
            let answered = match came {
                Came::Done(true) => {
                    if let Some((region, object)) = asked.closes {
                        self.guests.get_mut(&number).and_then(|guest| guest.regions.remove(&region));
                        self.objects.close_one(&self.ground.memory, Asker(number), object);
                    }
                    Ok(Some(Said::Done {}))
                }
                Came::Done(false) => Err(asked.refused),
                Came::Carried(carried) => Ok(Some(Said::Carried(carried))),
                Came::Prefetches(begun) => begun.map(|wake| Some(Said::Prefetches { wake })),
                Came::Prefetched(done) => Ok(Some(Said::Prefetched(Box::new((*done).into())))),
                Came::Mirrors { said, .. } => Ok(Some(said)),
                Came::Found { open, found } => found.and_then(|vma| self.found(number, open, &vma)),
            };
            if let Some(said) = answered.unwrap_or_else(Some) {
                self.say_to(number, &said);
            }
        }
        let now = self.clock.now();
        let late = |guest: &mut Guest| guest.asked.take_if(|asked| now.since(asked.since) >= PATIENCE);
        let late: Vec<_> = self
            .guests
            .iter_mut()
            .filter_map(|(&number, guest)| Some((number, late(guest)?.begins)))
            .collect();
        for (number, begins) in late {
            if begins {
                // The process is told to try again: whenever that thread begins, it is let go, and its mail is dropped.
                self.prefetches_no_more(number);
            }
            self.say_to(number, &busy());
        }
    }

    pub(super) fn guest(&mut self, number: u32) -> Result<&mut Guest, Said> {
        self.guests.get_mut(&number).ok_or_else(|| refusal(ErrorCode::NotFound, "the process is gone", SAME))
    }

    fn object(&mut self, number: u32, region: u16) -> Result<u32, Said> {
        let known = self.guest(number)?.regions.get(&region).copied();
        known.ok_or_else(|| {
            refusal(ErrorCode::NotFound, format!("region {region} is not open"), "open it first")
        })
    }

    /// A guest opens an allocation. The control plane is asked which it is; and told, before anything is written, that this DPU writes for the guest's host.
    fn open(&mut self, number: u32, open: Open) -> Answered {
        let guest = self.guest(number)?;
        let (domain, (of_host, of_generation)) = (guest.domain, guest.life);
        if guest.regions.contains_key(&open.region) || guest.regions.len() >= REGIONS_MAX {
            let message = format!("region {} is open, or {REGIONS_MAX} are", open.region);
            return Err(refusal(ErrorCode::Conflict, message, "close it, or take another number"));
        }
        let (host, generation) = self.lane(domain)?.life;
        let begins = open.write.then_some(ActFor { host, generation, of_host, of_generation, begins: true });
        if let Some(begins) = &begins {
            self.acting.insert(Asker(number), begins.clone());
        }
        let question = self.later(number, busy())?;
        let told = self.errands.send(Errand::Open { question, open, begins });
        if told.is_ok() { Ok(None) } else { Err(busy()) }
    }

    /// The control plane has said which allocation a guest opens.
    fn found(&mut self, number: u32, open: Open, vma: &VmaInfo) -> Answered {
        let Open { region, base, write } = open;
        if vma.base != base {
            let message = format!("{base:#x} is no first byte of an allocation");
            return Err(refusal(ErrorCode::BadRequest, message, "open the whole allocation"));
        }
        // A process that closed its socket before this one came has nothing open.
        self.close_gone();
        let object = self.objects.open(&self.ground.memory, vma, Asker(number), write, |asker| {
            self.leaving.iter().any(|leaving| leaving.asker == asker && !leaving.is_told)
        })?;
        let guest = self.guest(number)?;
        guest.regions.insert(region, object);
        // A grant may be taken back any time, and the DPU is not told: there each page is asked of its node.
        let at = RegionAt { object, bytes: vma.size, granted: vma.domain == guest.domain };
        self.have_done(number, busy(), |done| Order::Region { asker: Asker(number), region, at, done })
    }

    /// A guest closes a region. Until its thread has said that nothing of it is under way it is open: where that was not in time, the guest may close it again.
    fn close_region(&mut self, number: u32, region: u16) -> Answered {
        let object = self.object(number, region)?;
        let refused = refusal(
            ErrorCode::Unavailable,
            format!("a write of region {region} failed, and far memory may carry it out later"),
            "nothing more is asked of it; what it has open is kept from others until this process goes",
        );
        let answered =
            self.have_done(number, refused, |done| Order::Close { asker: Asker(number), region, done })?;
        if let Some(asked) = &mut self.guest(number)?.asked {
            asked.closes = Some((region, object));
        }
        Ok(answered)
    }

    /// A process registers memory, which only its thread reads and writes.
    fn register(&mut self, number: u32, (rkey, most): (u32, u64), file: Option<OwnedFd>) -> Answered {
        let wrong = |message: String| refusal(ErrorCode::BadRequest, message, SAME);
        let file = file.ok_or_else(|| wrong("memory is registered without a file".into()))?;
        let memory = Registered::of(file, most).map_err(|error| wrong(error.to_string()))?;
        self.may_fill(most)?;
        let guest = self.guest(number)?;
        guest.fills = guest.fills.saturating_add(most);
        let refused = refusal(
            ErrorCode::Conflict,
            format!("the key {rkey} is in use, or {REGISTERED_MAX} are"),
            "take another key from 2 on, and register no more memory than that",
        );
        let asker = Asker(number);
        self.have_done(number, refused, |done| Order::Register { asker, rkey, memory, done })
    }

    /// All threads of a process ask through a ring (PROTOCOL 18.23).
    fn hear_threads(&mut self, number: u32, bytes: usize, file: Option<OwnedFd>) -> Answered {
        let wrong = |message: String| refusal(ErrorCode::BadRequest, message, SAME);
        let file = file.ok_or_else(|| wrong("a ring of threads comes without its memory".into()))?;
        let submissions = Submissions::of(&file, bytes).map_err(|error| wrong(error.to_string()))?;
        let (asker, submissions) = (Asker(number), Box::new(submissions));
        let refused = refusal(
            ErrorCode::Conflict,
            "this process has a ring of threads, or the DPU's link to it has a profile",
            "use the ring that there is, and no `link` in [dpu] of rack.toml",
        );
        self.have_done(number, refused, |done| Order::Threads { asker, submissions, done })
    }

    fn advise(&mut self, number: u32, region: u16, policy: Foresight, part: Option<(u64, u64)>) -> Answered {
        let object = self.object(number, region)?;
        let Some((offset, len)) = part else {
            self.ground.memory.set_policy(object, policy.policy());
            return Ok(Some(Said::Done {}));
        };
        let bytes = offset.checked_add(len).map(|end| offset..end);
        if bytes.is_some_and(|bytes| self.ground.memory.advise(object, bytes, policy.policy())) {
            return Ok(Some(Said::Done {}));
        }
        let message = format!("no advice can be kept for {len} bytes from {offset} on");
        let remedy = format!("give it for bytes of the region, and for at most {ADVISED_MAX} parts of it");
        Err(refusal(ErrorCode::Conflict, message, remedy))
    }

    fn fix(&mut self, number: u32, region: u16, offset: u64, len: u64) -> Answered {
        let object = self.object(number, region)?;
        let page_len = self.ground.memory.page_len() as u64;
        let message = format!("{len} bytes from {offset} on cannot be cached statically");
        let remedy = "they lie in a region that is open for reading, not there yet, and have room: see static of [dpu]";
        let refused = refusal(ErrorCode::Conflict, message, remedy);
        let end = offset.checked_add(len).filter(|_| len > 0).map(|end| end.div_ceil(page_len));
        let Some(end) = end else { return Err(refused) };
        let (asker, pages) = (Asker(number), offset / page_len..end);
        self.have_done(number, refused, |done| Order::Fix { asker, object, pages, done })
    }
}
