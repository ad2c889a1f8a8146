//! The page cache of shared pages: grants, refusals, recalls at any moment, leases that end.
//!
//! The host's agent and the cache over it are real ([`Agent`], [`Paged`]); [`OtherHosts`] simulates the rest of
//! the rack. Messages are lost, duplicated and reordered by the plan. Every load is compared with the last
//! store of any host; every mapping must be permitted by the directory at that moment; agent and cache must
//! agree.
//!
//! Key type: `World`.

mod memory;

use self::memory::Memory;
use super::other_hosts::{Message, OtherHosts, PAGES, PAGES_U32, index, page};
use super::{BURST_MAX, CHECK_EVERY, Faults, SETTLE_MAX, TRACE_MAX, count_of};
use crate::Plan;
use crate::campaign::{Outcome as Ended, Verdict};
use crate::digest::Digest;
use farmem_host::agent::{Action, Agent, Bounds, Event, Mapped as _, Outcome, Pages as _};
use farmem_host::paged::{Notice, PageRequest, Paged};
use farmem_machine::Rng;
use farmem_paging::{Ahead, Cache, Cause, Config};
use farmem_wire::message::{Access, FetchId, PAGE_LEN, Page, WriteBack};
use std::collections::{BTreeMap, VecDeque};

/// Runs one world.
pub(super) fn world(seed: u64, operations: u64, plan: Plan, trace: bool) -> Ended {
    let mut world = World::new(seed, plan, operations, trace);
    let mut steps = 0_u64;
    while world.accesses < operations && world.wrong.is_none() {
        world.step();
        steps += 1;
        if steps.is_multiple_of(CHECK_EVERY) {
            world.check();
        }
    }
    match world.wrong {
        Some(_) => {}
        None if seed % 8 == 7 => world.end_abandoned(),
        None => world.settle(),
    }
    let stats = world.paged.cache().stats();
    let counts = [
        ("fetches", stats.fetches),
        ("upgrades", stats.upgrades),
        ("write_backs", stats.write_backs),
        ("rested", stats.reactivated),
        ("evictions", stats.evictions),
        ("revoked", stats.revoked),
        ("ahead.wanted", stats.ahead.wanted),
        ("ahead.used", stats.ahead.used),
        ("ahead.late", stats.ahead.late),
        ("ahead.wasted", stats.ahead.wasted),
        ("put_off", world.deferred),
        ("late_wants", world.late_wants),
        ("lapses", world.lapses),
        ("stores_lost", world.stores_lost),
        ("told.lost", world.told_lost),
        ("told.refused", world.told_refused),
    ];
    let notes = counts.into_iter().map(|(name, count)| (format!("paging.coherent.{name}"), count));
    let mut ended = Ended {
        operations: world.accesses,
        notes: notes.collect(),
        retransmissions: world.tried_again,
        digest: world.digest.get(),
        trace: world.trace.unwrap_or_default().into(),
        ..Ended::default()
    };
    if let Some((verdict, why)) = world.wrong {
        (ended.verdict, ended.why) = (verdict, why);
    }
    ended
}

struct World {
    agent: Agent,
    paged: Paged<Memory>,
    other_hosts: OtherHosts,
    faults: Faults,
    lapses_too: bool,
    rng: Rng,
    config: Config,
    flying: VecDeque<Message>,
    /// The contents of the message being delivered, and kept contents of other pages.
    at_hand: u64,
    kept: BTreeMap<Page, u64>,
    /// Waiting threads.
    blocked: Vec<(Page, bool)>,
    /// True if the lease ended and the host is not fenced yet.
    lapsed: bool,
    /// True if the rack is gone.
    abandoned: bool,
    /// True once there are no more faults.
    calm: bool,
    walk: u64,
    accesses: u64,
    deferred: u64,
    late_wants: u64,
    lapses: u64,
    stores_lost: u64,
    told_lost: u64,
    told_refused: u64,
    tried_again: u64,
    wrong: Option<(Verdict, String)>,
    digest: Digest,
    trace: Option<VecDeque<String>>,
}

impl World {
    fn new(seed: u64, plan: Plan, operations: u64, trace: bool) -> Self {
        let mut rng = Rng::from_number(seed ^ 0xc0_4e1e);
        let frames = 4 + rng.below(17) as usize;
        let config = Config {
            frames,
            inactive_max: 1 + rng.below(count_of(frames / 2)) as usize,
            inactive_apart: false,
            run_max: 8,
            batch_max: 1 + rng.below(6) as usize,
            writing_max: 1 + rng.below(4) as usize,
            tries_max: 1,
            ahead: [Ahead::None, Ahead::Group(4), Ahead::Stream(8)][rng.below(3) as usize],
            stream_writes: false,
        };
        let fetching_max = 1 + rng.below(6) as usize;
        // In some worlds the agent has less room than the cache assumes.
        let bounds = match rng.below(4) {
            0 => {
                let [requests, evictions] = [0; 2].map(|_| 1 + rng.below(6) as usize);
                Bounds { pages: frames, requests, evictions, pending_acks: 2 }
            }
            _ => Bounds { pages: frames, requests: fetching_max, ..Bounds::default() },
        };
        let cache = Cache::coherent(config, fetching_max);
        Self {
            agent: Agent::new(bounds, FetchId(1)),
            paged: Paged::new(Memory::default(), cache, page(0), PAGES),
            other_hosts: OtherHosts::new(),
            faults: Faults::of(&plan, seed, operations),
            lapses_too: plan.crash_every > farmem_machine::Duration::ZERO
                || plan.partition_every > farmem_machine::Duration::ZERO,
            rng,
            config,
            flying: VecDeque::new(),
            at_hand: 0,
            kept: BTreeMap::new(),
            blocked: Vec::new(),
            lapsed: false,
            abandoned: false,
            calm: false,
            walk: 0,
            accesses: 0,
            deferred: 0,
            late_wants: 0,
            lapses: 0,
            stores_lost: 0,
            told_lost: 0,
            told_refused: 0,
            tried_again: 0,
            wrong: None,
            digest: Digest::default(),
            trace: trace.then(VecDeque::new),
        }
    }

    fn event(&mut self, what: impl FnOnce() -> String) {
        let Some(trace) = &mut self.trace else { return };
        if trace.len() == TRACE_MAX {
            trace.pop_front();
        }
        trace.push_back(what());
    }

    fn hold(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.wrong.get_or_insert_with(|| (Verdict::Unsafe, why()));
        }
    }

    fn page(&mut self) -> Page {
        page(self.rng.below(PAGES_U32).into())
    }

    /// Runs a random event.
    fn step(&mut self) {
        match self.rng.below(16) {
            0..=3 => (0..=self.rng.below(6)).for_each(|_| self.deliver()),
            4 => self.retry(),
            5 => self.others_act(),
            6 | 7 => {
                self.walk += 1;
                let (at, write) = (page(self.walk / 2 % PAGES), self.rng.chance(1, 4));
                self.access(at, write);
            }
            8 if self.lapses_too && self.rng.chance(1, 64) => self.lapse(),
            8 if self.rng.chance(1, 256) => {
                self.paged.flush();
                self.serve_wants();
            }
            9..=11 => self.burst(),
            12 => {
                self.paged.turn();
                self.settle_step();
            }
            _ => {
                let (at, write) = (self.page(), self.rng.chance(1, 2));
                self.access(at, write);
            }
        }
        let here = self.paged.memory().frames.len();
        let most = self.config.frames;
        self.hold(here <= most, || format!("{here} pages are here, and {most} may be"));
        if let Some(why) = self.other_hosts.wrong.take() {
            self.hold(false, || why);
        }
    }

    /// Passes the cache's requests to the agent, sooner or later: the cache may emit more before.
    fn settle_step(&mut self) {
        if self.calm || self.rng.chance(3, 4) {
            self.serve_wants();
        } else {
            self.late_wants += 1;
        }
    }

    fn check(&mut self) {
        self.serve_wants();
        self.agent.assert_invariants();
        self.paged.check(&self.agent);
        let seen: Vec<_> =
            self.paged.memory().frames.iter().map(|(&page, &(_, access))| (page, access)).collect();
        for (page, access) in seen {
            let right = self.other_hosts.right(index(page));
            self.hold(access <= right, || {
                format!("{page:?} is mapped {access:?}, and rightful is {right:?}")
            });
        }
    }

    /// Lets programs access resident pages.
    fn burst(&mut self) {
        for _ in 0..self.rng.below(BURST_MAX) {
            let (at, write) = (self.page(), self.rng.chance(1, 3));
            self.accesses += u64::from(self.try_access(at, write));
        }
    }

    /// Lets a thread load or store.
    fn access(&mut self, at: Page, write: bool) {
        self.accesses += 1;
        if self.try_access(at, write) || self.blocked.iter().filter(|(of, _)| *of == at).count() > 2 {
            return;
        }
        self.blocked.push((at, write));
        self.fault(at, write);
        self.settle_step();
        self.run_woken();
    }

    fn fault(&mut self, at: Page, write: bool) {
        self.event(|| format!("fault {at:?} {write}"));
        self.paged.fault(at, if write { Access::Modified } else { Access::Shared });
    }

    fn try_access(&mut self, at: Page, write: bool) -> bool {
        let Some(&(read, Some(access))) = self.paged.memory().frames.get(&at) else { return false };
        if write && access != Access::Modified {
            return false;
        }
        let (right, truth) = (self.other_hosts.right(index(at)), self.other_hosts.cells[index(at)].truth);
        self.hold(read == truth, || format!("{at:?} reads {read}, and {truth} was stored last"));
        let needed = if write { Access::Modified } else { Access::Shared };
        self.hold(right >= Some(needed), || format!("{at:?} is used {needed:?}, and rightful is {right:?}"));
        if write {
            let value = self.other_hosts.next_store();
            self.other_hosts.cells[index(at)].truth = value;
            self.paged.memory_mut().frame(at).0 = value;
        }
        true
    }

    /// Continues threads whose page arrived or failed.
    fn run_woken(&mut self) {
        while let Some(at) = self.paged.memory_mut().woken.pop_front() {
            let waiting: Vec<_> = self.blocked.extract_if(.., |(of, _)| *of == at).collect();
            for (at, write) in waiting {
                if self.paged.memory().poisoned.contains(&at) || self.try_access(at, write) {
                    continue;
                }
                self.blocked.push((at, write));
                self.fault(at, write);
            }
            self.paged.memory_mut().unpoison(at);
        }
        let notices = self.paged.take_notices();
        for &notices in &notices {
            let Notice::Refused(page, why) = notices else { continue };
            let cell = self.other_hosts.cells[index(page)];
            let due = match why {
                Cause::Lost => cell.was_lost,
                Cause::Refused => cell.was_denied,
                Cause::Failed => self.abandoned,
                Cause::Full => false,
            };
            self.hold(due, || format!("{page:?} is refused ({why:?}), and need not be"));
            *(if why == Cause::Lost { &mut self.told_lost } else { &mut self.told_refused }) += 1;
        }
        self.paged.recycle_notices(notices);
    }

    /// Passes the cache's requests to the agent and handles the results.
    fn serve_wants(&mut self) {
        while let Some(want) = self.paged.next_request() {
            self.event(|| format!("{want:?}"));
            match want {
                PageRequest::Fetch(page, access) => {
                    let outcome = self.agent_does(Event::Fault(page, access));
                    if outcome == Outcome::Full {
                        self.deferred += 1;
                        self.paged.fault_rejected(page);
                    }
                }
                PageRequest::GiveUp(page) => {
                    let outcome = self.agent_does(Event::Evict(page));
                    if matches!(outcome, Outcome::Full | Outcome::Waits) {
                        self.deferred += 1;
                        self.paged.eviction_rejected(page);
                    }
                }
            }
        }
        self.run_woken();
    }

    /// Runs one step of the agent and carries out its actions.
    fn agent_does(&mut self, event: Event) -> Outcome {
        let mut actions = Vec::new();
        let outcome = self.agent.step(event, &mut actions);
        self.agent.assert_invariants();
        self.digest.number(actions.len() as u64 ^ (outcome as u64) << 8 ^ self.accesses << 16);
        for action in actions {
            self.act(action);
        }
        outcome
    }

    fn act(&mut self, action: Action) {
        self.event(|| format!("  {action:?}"));
        match action {
            Action::Keep(page, _) => _ = self.kept.insert(page, self.at_hand),
            Action::Install(page, access) => {
                let value = self.kept.remove(&page).expect("a page is installed when its bytes came");
                let mut bytes = [0; PAGE_LEN];
                bytes[..8].copy_from_slice(&value.to_le_bytes());
                self.paged.install(page, &bytes, access);
            }
            Action::Poison(page) => self.paged.poison(page),
            Action::Refuse(page) => self.paged.refuse(page),
            Action::Wake(page) => self.paged.wake(page),
            Action::WriteProtect(page) => self.paged.write_protect(page),
            Action::Unmap(page) => self.paged.unmap(page),
            Action::Release(page) => self.paged.release(page),
            Action::Discard(page) => self.paged.discard(page),
            Action::Clean(page) => self.paged.clean(page),
            Action::Get(get) => self.send(Message::Get(get)),
            Action::Done(_) => self.send(Message::Done),
            Action::RecallAck(ack) => self.send(Message::Ack(ack)),
            Action::WriteBack(write_back @ WriteBack { page, .. }) => {
                let mut bytes = Vec::new();
                self.paged.read(page, 0..PAGE_LEN, &mut bytes);
                let value = u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"));
                self.send(Message::WriteBack(write_back, value));
            }
        }
    }
    fn send(&mut self, message: Message) {
        // Without a lease no page is requested.
        if !(self.lapsed && matches!(message, Message::Get(_))) {
            self.flying.push_back(message);
        }
    }

    /// Delivers a message, loses it, or delivers it and keeps a copy.
    fn deliver(&mut self) {
        let at = match self.flying.len() {
            0 => return,
            len if self.faults.any_order => self.rng.below(count_of(len)) as usize,
            _ => 0,
        };
        let message = self.flying.remove(at).expect("there are so many");
        if self.rng.chance(self.faults.unanswered, 512) {
            return;
        }
        if self.rng.chance(self.faults.unanswered, 512) {
            self.flying.push_back(message);
        }
        self.event(|| format!("{message:?}"));
        let event = match message {
            Message::Data(data, value) => {
                self.at_hand = value;
                Event::Data(data)
            }
            Message::Grant(grant) => Event::Grant(grant),
            Message::Recall(recall) => Event::Recall(recall),
            Message::Written(ack) => Event::WriteBackAck(ack),
            Message::Refusal(refusal) => Event::Refusal(refusal),
            to_others => {
                let mut answers = Vec::new();
                self.other_hosts.hear(to_others, &mut self.rng, &mut answers);
                return self.flying.extend(answers);
            }
        };
        self.agent_does(event);
        self.settle_step();
        self.run_woken();
    }

    /// Lets a role that waits for an answer retransmit.
    fn retry(&mut self) {
        self.tried_again += 1;
        let requests: Vec<Page> = self.agent.requests().map(|(page, _)| page).collect();
        let writing: Vec<Page> = self.agent.writing().map(|(page, _)| page).collect();
        let mut events: Vec<Event> = requests.into_iter().map(Event::Retry).collect();
        events.extend(writing.into_iter().map(Event::RetryWriteBack));
        if !self.calm && !events.is_empty() {
            events = vec![events[self.rng.below(count_of(events.len())) as usize]];
        }
        for event in events {
            self.agent_does(event);
        }
        if let Some(region) = self.other_hosts.awaited() {
            let mut recall = Vec::new();
            self.other_hosts.recall(region, &mut recall);
            self.flying.extend(recall);
        }
        if self.lapsed && (self.calm || self.rng.chance(1, 8)) {
            self.fence();
        }
    }

    /// Lets other hosts store, load, crash, and accept the old bytes of crashed hosts.
    fn others_act(&mut self) {
        let at = index(self.page());
        let mut recall = Vec::new();
        match self.rng.below(16) {
            0 if self.rng.chance(self.faults.lost, 256) => self.other_hosts.lose(at),
            1 => self.other_hosts.accept(at),
            2 if self.rng.chance(self.faults.unmapped, 512) => {
                let what = [Access::Shared, Access::Modified][self.rng.below(2) as usize];
                self.other_hosts.deny(at, Some(what));
            }
            3 => self.other_hosts.deny(at, None),
            _ => {
                let write = self.rng.chance(1, 2);
                self.other_hosts.want(page(at as u64), write, &mut recall);
            }
        }
        self.flying.extend(recall);
    }

    /// Ends the lease: no page may stay mapped from this moment on.
    fn lapse(&mut self) {
        if self.lapsed {
            return;
        }
        self.lapses += 1;
        self.lapsed = true;
        self.event(|| "the lease ends".to_owned());
        self.agent_does(Event::LeaseEnded);
        let seen = self.paged.memory().frames.values().any(|(_, access)| access.is_some());
        self.hold(!seen, || "a page is left without a lease".to_owned());
        self.settle_step();
        self.run_woken();
    }

    /// Fences the host after its lease, and begins another lease.
    fn fence(&mut self) {
        self.event(|| "fenced".to_owned());
        self.stores_lost += self.other_hosts.fence();
        self.flying.clear();
        self.lapsed = false;
    }

    /// Ends and writes back everything: far memory must hold the last stores.
    fn settle(&mut self) {
        (self.faults, self.calm) = (Faults::CALM, true);
        for at in 0..self.other_hosts.cells.len() {
            self.other_hosts.accept(at);
            self.other_hosts.deny(at, None);
        }
        self.come_to_rest();
        self.paged.flush();
        self.come_to_rest();
        self.check();
        if !self.blocked.is_empty() {
            let why = format!("threads wait for ever: {:?}", self.blocked);
            self.wrong.get_or_insert((Verdict::Stuck, why));
        }
        let behind: Vec<Page> = self.paged.behind().collect();
        self.hold(behind.is_empty(), || format!("{behind:?} are not written back"));
        for (at, cell) in self.other_hosts.cells.clone().into_iter().enumerate() {
            self.hold(cell.lost || cell.far == cell.truth, || {
                format!("page {at}: far memory has {}, and {} was stored", cell.far, cell.truth)
            });
        }
    }

    /// Removes the rack at a random moment: no page stays, and no thread waits for ever.
    fn end_abandoned(&mut self) {
        self.abandoned = true;
        self.paged.abandon();
        self.run_woken();
        let left = self.paged.memory().frames.len();
        self.hold(left == 0, || format!("{left} pages are left without a rack"));
        if !self.blocked.is_empty() {
            let why = format!("threads wait for ever: {:?}", self.blocked);
            self.wrong.get_or_insert((Verdict::Stuck, why));
        }
    }

    fn come_to_rest(&mut self) {
        for _ in 0..SETTLE_MAX {
            let quiet = self.agent.requests().next().is_none() && self.agent.writing().next().is_none();
            if quiet && !self.lapsed && self.blocked.is_empty() && self.paged.cache().is_quiet() {
                break;
            }
            if self.flying.is_empty() {
                self.paged.turn();
                self.serve_wants();
                self.retry();
            }
            self.deliver();
        }
    }
}
