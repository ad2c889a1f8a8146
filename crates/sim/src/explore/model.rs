//! A small rack around the real step functions: its state, and every single event that can follow.
//!
//! Key type: [`World`]. Exactly three things are abstract. Bytes are one bit each (the latest ever written,
//! or not). A host writes a page the moment it may. Table updates always arrive (the control plane's orders
//! are steps, not messages).

use super::guards::{Guard, Guards};
use super::message::Message;
use super::moves::Move;
use super::{Config, Remaining};
use farmem_control::reset::{self, Reset};
use farmem_host::agent::{self, Agent, Outcome};
use farmem_memnode::page_states::{GrantReply, PageStates, Verdict};
use farmem_switch::directory::{self, Entry};
use farmem_wire::message::{
    Access, Data, FetchId, HostSet, PAGE_SHIFT, Page, Read, Recall, RecallAck, Region, Seq, WriteBack,
    WriteBackAck,
};
use farmem_wire::{HostId, VirtAddr};
use std::rc::Rc;

/// A description of a violated claim.
pub(super) type Broken = String;

/// The state of a host. Agents and page states are shared with preceding worlds until they change: most moves
/// change one.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) agent: Rc<Agent>,
    /// Bit set by page: the host's bytes are the latest.
    pub(super) latest: u8,
    /// Bit set by page: the bytes in the buffer of its request are the latest.
    pub(super) buffer: u8,
    pub(super) alive: bool,
}

/// The state of the rack.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) entries: Vec<(Region, Entry)>,
    pub(super) hosts: Vec<Host>,
    pub(super) page_states: Rc<PageStates>,
    /// Bit set by page: the node's bytes are the latest.
    pub(super) node: u8,
    pub(super) resets: Vec<Reset>,
    pub(super) fenced: HostSet,
    /// Bit set by page: a traversal is in progress.
    pub(super) visits: u8,
    /// Sorted, so that equal worlds are equal.
    pub(super) net: Vec<Message>,
    pub(super) left: Remaining,
}

/// The constant parameters, and buffers for the steps' actions.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) config: Config,
    pub(super) guards: Guards,
    done: Vec<agent::Action>,
    sent: Vec<directory::Action>,
}

impl Rules {
    pub(super) const fn new(config: Config) -> Self {
        Self { config, guards: config.without, done: Vec::new(), sent: Vec::new() }
    }
}

pub(super) const fn nth(page: usize) -> Page {
    Page::of(VirtAddr((page as u64) << PAGE_SHIFT))
}

pub(super) fn index(page: Page) -> usize {
    usize::try_from(page.number()).expect("few pages")
}

fn bit(page: Page) -> u8 {
    1 << index(page)
}

pub(super) fn set(bits: &mut u8, page: Page, on: bool) {
    *bits = *bits & !bit(page) | if on { bit(page) } else { 0 };
}

impl World {
    pub(super) fn new(config: &Config) -> Self {
        let agent = Rc::new(Agent::new(agent::Bounds::default(), FetchId(1)));
        let host = Host { agent, latest: 0, buffer: 0, alive: true };
        let order = u8::from(config.pages == 2 && !config.apart);
        let regions =
            (0..config.pages).step_by(1 << order).map(|page| Region::around(nth(page.into()), order));
        Self {
            entries: regions.map(|region| (region, Entry::new(Seq(0)))).collect(),
            hosts: vec![host; usize::from(config.hosts)],
            page_states: Rc::default(),
            node: u8::MAX,
            resets: Vec::new(),
            fenced: HostSet::EMPTY,
            visits: 0,
            net: Vec::new(),
            left: config.left,
        }
    }

    /// Returns the hosts that the switch waits for: a dead one counts until it is fenced, because the switch
    /// cannot know.
    pub(super) fn live(&self) -> HostSet {
        let ids = (0..).map(HostId).take(self.hosts.len());
        ids.filter(|&id| !self.fenced.contains(id)).fold(HostSet::EMPTY, HostSet::with)
    }

    pub(super) fn host(&self, id: HostId) -> &Host {
        &self.hosts[usize::from(id.0)]
    }

    fn host_mut(&mut self, id: HostId) -> &mut Host {
        &mut self.hosts[usize::from(id.0)]
    }

    pub(super) fn page_states_mut(&mut self) -> &mut PageStates {
        Rc::make_mut(&mut self.page_states)
    }

    pub(super) fn has_latest(&self, host: HostId, page: Page) -> bool {
        self.host(host).latest & bit(page) != 0
    }

    pub(super) fn node_has_latest(&self, page: Page) -> bool {
        self.node & bit(page) != 0
    }

    pub(super) fn is_visiting(&self, page: Page) -> bool {
        self.visits & bit(page) != 0
    }

    /// Returns the index of the region of a page.
    pub(super) fn at(&self, page: Page) -> usize {
        self.entries.iter().position(|(region, _)| region.contains(page)).expect("every page has a region")
    }

    /// Applies a move.
    ///
    /// # Errors
    ///
    /// The claim that the move violates.
    pub(super) fn play(&mut self, happens: Move, rules: &mut Rules) -> Result<(), Broken> {
        match happens {
            Move::Deliver(message) => {
                self.take(message);
                self.deliver(message, rules)
            }
            Move::DeliverCopy(message) => {
                self.left.copies = self.left.copies.spent();
                self.deliver(message, rules)
            }
            Move::Pass(message) => self.pass(message, rules),
            Move::Lose(message) => {
                self.left.losses = self.left.losses.spent();
                self.take(message);
                Ok(())
            }
            Move::Fault(host, page, access) => {
                let left = &mut self.left.requests[usize::from(host.0)];
                *left = left.spent();
                self.agent(host, agent::Event::Fault(page, access), rules).map(drop)
            }
            Move::Evict(host, page) => self.agent(host, agent::Event::Evict(page), rules).map(drop),
            Move::Retry(host, page) => {
                self.early();
                self.agent(host, agent::Event::Retry(page), rules).map(drop)
            }
            Move::RetryWriteBack(host, page) => {
                self.early();
                self.agent(host, agent::Event::RetryWriteBack(page), rules).map(drop)
            }
            Move::Visit(page) => {
                self.left.visits = self.left.visits.spent();
                set(&mut self.visits, page, true);
                self.send(Message::Visit(page, None), rules);
                Ok(())
            }
            Move::RetryVisit(page) => {
                self.early();
                self.send(Message::Visit(page, None), rules);
                Ok(())
            }
            Move::Repeat(region) => {
                self.early();
                self.reset(region, reset::Event::Timer, rules)
            }
            Move::Sweep(region) => self.sweep(region, rules),
            Move::Crash(host) => {
                self.left.crashes = self.left.crashes.spent();
                let fresh = Rc::new(Agent::new(agent::Bounds::default(), FetchId(1)));
                *self.host_mut(host) = Host { agent: fresh, latest: 0, buffer: 0, alive: false };
                Ok(())
            }
            Move::Fence(host) => self.fence(host, rules),
            Move::Restart => self.restart(rules),
            Move::Reset(region) => {
                self.left.resets = self.left.resets.spent();
                self.begin_reset(region, rules)
            }
            Move::Split(region) => {
                self.left.splits = self.left.splits.spent();
                self.split(region, rules);
                Ok(())
            }
            Move::Merge => {
                self.left.merges = self.left.merges.spent();
                let (low, high) = (&self.entries[0], &self.entries[1]);
                let whole = low.0.parent().expect("small regions");
                let entry = low.1.merge(&high.1).expect("the move is there when they can be merged");
                self.entries = vec![(whole, entry)];
                Ok(())
            }
        }
    }

    /// Counts a timer that fired early, while a message was in flight.
    fn early(&mut self) {
        if !self.net.is_empty() {
            self.left.early = self.left.early.spent();
        }
    }

    fn take(&mut self, message: Message) {
        let at = self.net.binary_search(&message).expect("only what is in flight arrives or is lost");
        self.net.remove(at);
    }

    pub(super) fn send(&mut self, message: Message, rules: &Rules) {
        let message = rules.guards.on_send(message);
        match self.net.binary_search(&message) {
            // If copies stay for ever, one more makes no difference.
            Ok(_) if rules.config.left.copies.is_unlimited() => {}
            Ok(at) | Err(at) => self.net.insert(at, message),
        }
    }

    fn deliver(&mut self, message: Message, rules: &mut Rules) -> Result<(), Broken> {
        let message = self.on_delivery(rules.guards, message);
        match message {
            Message::Get(host, get) => {
                self.directory_of(get.page, host, directory::Event::Get(host, get), rules)
            }
            Message::Done(host, done) => {
                self.directory_of(done.page, host, directory::Event::Done(host, done), rules)
            }
            Message::Ack(host, ack) => {
                self.directory_of(ack.region.base(), host, directory::Event::Ack(host, ack), rules)
            }
            Message::Refused(page) => {
                let at = self.at(page);
                self.directory(at, directory::Event::Refused(page), rules)
            }
            Message::Data(host, data, latest) => self.data(host, data, latest, rules),
            Message::Grant(host, grant) => self.agent(host, agent::Event::Grant(grant), rules).map(drop),
            Message::Recall(host, recall) => self.recall(host, recall, rules),
            Message::WriteBackAck(host, ack) => {
                self.agent(host, agent::Event::WriteBackAck(ack), rules).map(drop)
            }
            Message::Read(read) => {
                self.read(read, rules);
                Ok(())
            }
            Message::WriteBack(host, write_back, latest) => {
                self.write_back(host, write_back, latest, rules);
                Ok(())
            }
            Message::Visit(page, clean) => self.visit(page, clean, rules),
        }
    }

    fn data(&mut self, host: HostId, data: Data, latest: bool, rules: &mut Rules) -> Result<(), Broken> {
        // Installed in the same step as kept, or later: the buffer is what is installed.
        let before = self.host(host).buffer;
        set(&mut self.host_mut(host).buffer, data.page, latest);
        let outcome = self.agent(host, agent::Event::Data(data), rules)?;
        if outcome != Outcome::Done {
            self.host_mut(host).buffer = before;
        }
        if outcome == Outcome::Stale && rules.guards.answers_ungranted(&data) {
            let done = farmem_wire::message::Done { page: data.page, seq: data.seq };
            self.send(Message::Done(host, done), rules);
        }
        Ok(())
    }

    fn recall(&mut self, host: HostId, recall: Recall, rules: &mut Rules) -> Result<(), Broken> {
        if !self.host(host).alive {
            return Ok(());
        }
        if let Some(all) = rules.guards.recalls_later_grants(&self.host(host).agent, &recall) {
            return self.drop_without_write_back(host, recall, all, rules);
        }
        self.agent(host, agent::Event::Recall(recall), rules).map(drop)
    }

    /// Models a broken host: it drops pages that were granted later than the recall, and keeps no bytes.
    fn drop_without_write_back(
        &mut self,
        host: HostId,
        recall: Recall,
        all: Recall,
        rules: &mut Rules,
    ) -> Result<(), Broken> {
        let agent = Rc::make_mut(&mut self.host_mut(host).agent);
        let mut done = Vec::new();
        let _ = agent.step(agent::Event::Recall(all), &mut done);
        for action in done.clone() {
            if let agent::Action::WriteBack(WriteBack { page, grant, .. }) = action {
                let _ = agent
                    .step(agent::Event::WriteBackAck(WriteBackAck { page, grant, ack: None }), &mut done);
            }
        }
        self.send(
            Message::Ack(host, RecallAck { region: recall.region, seq: recall.seq, false_invalidations: 0 }),
            rules,
        );
        Ok(())
    }

    /// Runs one step of a host, and carries out its actions.
    fn agent(&mut self, id: HostId, event: agent::Event, rules: &mut Rules) -> Result<Outcome, Broken> {
        if !self.host(id).alive {
            return Ok(Outcome::Stale);
        }
        let mut done = std::mem::take(&mut rules.done);
        let agent = Rc::make_mut(&mut self.host_mut(id).agent);
        let outcome = agent.step(event, &mut done);
        agent.assert_invariants();
        let mut result = Ok(outcome);
        for action in done.drain(..) {
            result = result.and_then(|outcome| self.act(id, action, rules).map(|()| outcome));
        }
        rules.done = done;
        result
    }

    fn act(&mut self, id: HostId, action: agent::Action, rules: &mut Rules) -> Result<(), Broken> {
        match action {
            agent::Action::Install(page, access) => return self.install(id, page, access),
            agent::Action::Get(get) => self.send(Message::Get(id, get), rules),
            agent::Action::Done(done) => self.send(Message::Done(id, done), rules),
            agent::Action::RecallAck(ack) => {
                self.send(Message::Ack(id, RecallAck { false_invalidations: 0, ..ack }), rules);
            }
            agent::Action::WriteBack(mut write_back) => {
                write_back.ack = write_back.ack.map(|ack| RecallAck { false_invalidations: 0, ..ack });
                let latest = self.has_latest(id, write_back.page);
                self.send(Message::WriteBack(id, write_back, latest), rules);
                if rules.guards.forgets_write_backs() {
                    let WriteBack { page, grant, .. } = write_back;
                    let ack = WriteBackAck { page, grant, ack: None };
                    return self.agent(id, agent::Event::WriteBackAck(ack), rules).map(drop);
                }
            }
            agent::Action::Keep(..)
            | agent::Action::Poison(_)
            | agent::Action::Refuse(_)
            | agent::Action::Clean(_)
            | agent::Action::Wake(_)
            | agent::Action::WriteProtect(_)
            | agent::Action::Unmap(_)
            | agent::Action::Release(_)
            | agent::Action::Discard(_) => {}
        }
        Ok(())
    }

    /// Installs a page. The program writes it at once if it may: no other moment is worse for the other
    /// hosts.
    fn install(&mut self, id: HostId, page: Page, access: Access) -> Result<(), Broken> {
        let host = self.host_mut(id);
        if host.buffer & bit(page) == 0 {
            return Err(format!(
                "{} is given old bytes of {} {}",
                super::message::host(id),
                super::message::page(page),
                super::message::access(access)
            ));
        }
        set(&mut host.latest, page, true);
        if access == Access::Modified {
            self.make_stale(page);
            set(&mut self.host_mut(id).latest, page, true);
        }
        Ok(())
    }

    /// Marks all copies of the page as stale.
    pub(super) fn make_stale(&mut self, page: Page) {
        set(&mut self.node, page, false);
        for host in &mut self.hosts {
            set(&mut host.latest, page, false);
            set(&mut host.buffer, page, false);
        }
        for message in &mut self.net {
            if let Some((at, latest)) = message.bytes_mut()
                && at == page
            {
                *latest = false;
            }
        }
        self.net.sort_unstable();
    }

    fn read(&mut self, read: Read, rules: &Rules) {
        let Read { page, access, host, id, seq, granted, done_due, .. } = read;
        let handed = self.page_states_mut().read(&read);
        if handed == GrantReply::Nothing {
            return;
        }
        let lost = handed == GrantReply::Loss;
        let part = farmem_wire::message::Part::WHOLE;
        let data = Data { page, access, id, seq, granted, done_due, lost, part };
        self.send(Message::Data(host, data, self.node_has_latest(page)), rules);
    }

    fn write_back(&mut self, from: HostId, write_back: WriteBack, latest: bool, rules: &Rules) {
        let WriteBack { page, grant, ack } = write_back;
        let counted = rules.guards.grant_of_write_back(grant, self.page_states.record(page).min_seq());
        if self.page_states_mut().write_back(page, from, counted) {
            set(&mut self.node, page, latest);
        } else if rules.guards.late_write_back_ends_loan() {
            self.page_states_mut().clean(page, Seq(u64::MAX >> 1));
        }
        self.send(Message::WriteBackAck(from, WriteBackAck { page, grant, ack }), rules);
        if let Some(ack) = ack {
            self.send(Message::Ack(from, ack), rules);
        }
    }

    fn visit(&mut self, page: Page, clean: Option<Seq>, rules: &Rules) -> Result<(), Broken> {
        if let Some(seq) = clean {
            self.page_states_mut().clean(page, seq);
        }
        match self.page_states.verdict(page) {
            Verdict::Lent => {
                self.send(Message::Refused(page), rules);
                return Ok(());
            }
            Verdict::Latest if !self.node_has_latest(page) => {
                return Err(format!("a traversal reads old bytes of {}", super::message::page(page)));
            }
            Verdict::Latest | Verdict::Lost => set(&mut self.visits, page, false),
        }
        Ok(())
    }

    /// Handles a write-back that passes the switch. It may pass later or, with copies in flight, more than
    /// once.
    fn pass(&mut self, message: Message, rules: &mut Rules) -> Result<(), Broken> {
        match self.passing(message, rules) {
            Some((host, page, event)) => self.directory_of(page, host, event, rules),
            None => Ok(()),
        }
    }

    /// Returns true if the switch acts on the passing message.
    pub(super) fn heeds(&self, message: Message, rules: &Rules) -> bool {
        let Some((host, page, event)) = self.passing(message, rules) else { return false };
        let (region, mut entry) = self.entries[self.at(page)];
        !self.fenced.contains(host) && entry.step(region, event, &mut Vec::new()) != directory::Outcome::Stale
    }

    /// Returns the directory's view of a passing message: its sender, and the page it is assigned to.
    fn passing(&self, message: Message, rules: &Rules) -> Option<(HostId, Page, directory::Event)> {
        let Message::WriteBack(host, WriteBack { page, ack: Some(ack), .. }, _) = message else {
            return None;
        };
        let page = self.page_that_passes(rules.guards, page);
        Some((host, page, directory::Event::Passing(host, page, ack)))
    }

    /// Handles a message from a host to the switch. Messages of a fenced host are dropped.
    fn directory_of(
        &mut self,
        page: Page,
        from: HostId,
        event: directory::Event,
        rules: &mut Rules,
    ) -> Result<(), Broken> {
        if self.fenced.contains(from) {
            return Ok(());
        }
        let at = self.at(page);
        self.directory(at, event, rules)
    }

    /// Runs one step of an entry, and carries out its actions.
    pub(super) fn directory(
        &mut self,
        at: usize,
        event: directory::Event,
        rules: &mut Rules,
    ) -> Result<(), Broken> {
        let mut sent = std::mem::take(&mut rules.sent);
        let (region, entry) = &mut self.entries[at];
        rules.guards.step(*region, entry, event, &mut sent);
        let mut result = Ok(());
        for action in sent.drain(..) {
            result = result.and_then(|()| self.switch_sends(action, rules));
        }
        rules.sent = sent;
        result
    }

    fn switch_sends(&mut self, action: directory::Action, rules: &mut Rules) -> Result<(), Broken> {
        match action {
            directory::Action::Recall(hosts, recall) => {
                for host in hosts.iter() {
                    self.send(Message::Recall(host, Recall { wanted: None, ..recall }), rules);
                }
            }
            directory::Action::Read(read) => self.send(Message::Read(read), rules),
            directory::Action::Grant(host, grant) => self.send(Message::Grant(host, grant), rules),
            directory::Action::Resume(page, seq) => self.send(Message::Visit(page, Some(seq)), rules),
            directory::Action::Report(region, seq) => {
                return self.reset(region, reset::Event::Report(seq), rules);
            }
            // A hint to retry soon: timers do that anyway.
            directory::Action::Busy(..) | directory::Action::Delay(_) => {}
        }
        Ok(())
    }

    /// Returns the message as a host takes it that lacks these guards.
    fn on_delivery(&self, guards: Guards, message: Message) -> Message {
        match message {
            Message::Data(host, mut data, latest) => {
                let request = self.host(host).agent.requests().find(|(page, _)| *page == data.page);
                if let Some((_, request)) = request {
                    if guards.lacks(Guard::DataId) {
                        (data.id, data.access) = (request.id, request.access);
                    }
                    if guards.lacks(Guard::Floors) {
                        data.seq = data.seq.max(request.min_seq);
                    }
                }
                Message::Data(host, data, latest)
            }
            Message::Grant(host, mut grant) if guards.lacks(Guard::Floors) => {
                let request = self.host(host).agent.requests().find(|(page, _)| *page == grant.page);
                grant.seq = grant.seq.max(request.map_or(Seq(0), |(_, request)| request.min_seq));
                Message::Grant(host, grant)
            }
            Message::Ack(host, ack) if guards.lacks(Guard::AckSeq) => {
                let (region, entry) = &self.entries[self.at(ack.region.base())];
                Message::Ack(host, RecallAck { region: *region, seq: entry.seq(), ..ack })
            }
            _ => message,
        }
    }

    /// Returns the page that the directory assigns to a passing write-back.
    fn page_that_passes(&self, guards: Guards, page: Page) -> Page {
        let (region, entry) = &self.entries[self.at(page)];
        match entry.transaction() {
            Some((.., index)) if guards.lacks(Guard::PassingPage) => region.page(index),
            _ => page,
        }
    }
}
