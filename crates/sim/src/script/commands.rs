//! The implementation of each command.

use super::LINES_MAX;
use super::tokens::{Tokens, number};
use crate::describe::payload;
use crate::network::{InFlight, Ticket, claim_address, claim_domain};
use crate::sim_node::RoleId;
use crate::{Layout, Plan, World};
use farmem_control::api::{
    Allocate, Call, Connect, CreateDomain, Disconnect, DomainInfo, Free, Grant, OpenSession, PermName,
    VmaInfo,
};
use farmem_host::{Answer, Done, Failure, HostRequest, Op};
use farmem_machine::{Duration, Instant};
use farmem_memnode::Store as _;
use farmem_traversal::Program;
use farmem_wire::{Domain, VirtAddr};
use std::collections::BTreeMap;

/// Maximum virtual time of a call: longer than the control plane waits for a silent role.
const CALL_MAX: Duration = Duration::from_millis(500);

/// The rack of a script, and the script's names.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) world: Option<World>,
    lines: Vec<String>,
    domains: BTreeMap<String, u32>,
    names: BTreeMap<String, u64>,
    /// The latest allocation at each address.
    ids: BTreeMap<u64, u64>,
    programs: BTreeMap<String, Program>,
    /// The host's queue pair of each connection, by host, domain and node.
    connections: BTreeMap<(u16, u32, u16), u32>,
    operations: u64,
}

type Outcome = Result<(), String>;

impl Stage {
    /// Runs one command.
    pub(super) fn command(&mut self, command: &str) -> Outcome {
        let mut words = Tokens::of(command)?;
        let verb = words.word("a command")?;
        match verb {
            "nodes" => self.build(&mut words)?,
            "program" => self.program(command, &mut words)?,
            "host" => self.host(&mut words)?,
            "deliver" => self.deliver(&mut words)?,
            "drop" | "dup" | "flip" | "hold" | "forge" => self.interfere(verb, &mut words)?,
            "tick" => self.tick(&mut words)?,
            "crash" => {
                let role_id = role_id(&mut words)?;
                self.world()?.crash(role_id);
            }
            "start" => self.start(&mut words)?,
            "show" => self.show()?,
            "memory" => self.memory(&mut words)?,
            "explore" => self.explore(&mut words)?,
            _ => return Err(format!("no command `{verb}`")),
        }
        words.end()?;
        self.collect();
        Ok(())
    }

    pub(super) fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    fn world(&mut self) -> Result<&mut World, String> {
        self.world.as_mut().ok_or_else(|| "build a rack first: nodes N hosts M".to_owned())
    }

    fn build(&mut self, words: &mut Tokens<'_>) -> Outcome {
        let nodes = words.number()?;
        words.expect("hosts")?;
        let mut layout = Layout { nodes, hosts: words.number()?, ..Layout::small() };
        if words.take_if("table") {
            layout.budgets.protection_entries = words.number()?;
        }
        let mut world = World::new(layout, Plan::CALM, 1, LINES_MAX);
        world.bring_up();
        while !world.network().is_empty() {
            world.step();
        }
        world.journal_mut().take_lines();
        self.world = Some(world);
        Ok(())
    }

    /// Explores the smallest rack that shows the purpose of a guard, without the guard.
    fn explore(&mut self, words: &mut Tokens<'_>) -> Outcome {
        use crate::explore::{self, Guard};
        words.expect("without")?;
        let name = words.word("a guard")?;
        let guard = Guard::named(name).ok_or_else(|| format!("no guard `{name}`"))?;
        let report = explore::explore(explore::without(guard), &mut |_| {});
        let Some(finding) = report.finding else { return Err(format!("nothing is wrong without `{name}`")) };
        self.lines.extend(finding.trace);
        self.lines.push(format!("{}: {}", report.verdict.name(), finding.what));
        Ok(())
    }

    fn program(&mut self, command: &str, words: &mut Tokens<'_>) -> Outcome {
        let name = words.word("the program's name")?;
        let text: String = command.lines().skip(1).flat_map(|line| [line, "\n"]).collect();
        let program = Program::assemble(&text).map_err(|error| error.to_string())?;
        self.programs.insert(name.to_owned(), program);
        Ok(())
    }

    fn host(&mut self, words: &mut Tokens<'_>) -> Outcome {
        let host: u16 = words.number()?;
        let verb = words.word("what the host does")?;
        let name = words.word("a domain")?;
        if verb == "joins" {
            return self.join(host, name);
        }
        let unknown = || format!("no domain `{name}`");
        let domain = *self.domains.get(name).ok_or_else(unknown)?;
        match verb {
            "alloc" => {
                let size = words.number()?;
                let node = if words.take_if("on") { Some(words.number()?) } else { None };
                words.expect("as")?;
                let name = words.word("a name for the address")?;
                if let Some(vma) = self.call(host, Allocate { domain, size, node, durable: false })? {
                    self.names.insert(name.to_owned(), vma.base);
                    self.ids.insert(vma.base, vma.id);
                    let VmaInfo { base, size, node, .. } = vma;
                    self.lines.push(format!("{name} is {base:#x}, {size} bytes on node {node}"));
                }
                Ok(())
            }
            "free" => {
                let base = self.address(words)?;
                // The script made no allocation at that address, so any id will do.
                let id = self.ids.get(&base).copied().unwrap_or(0);
                self.call(host, Free { domain, base, id }).map(|done| self.done(done))
            }
            "grant" => {
                let (base, len) = (self.address(words)?, words.number()?);
                words.expect("to")?;
                let to = words.word("a domain")?;
                let to = *self.domains.get(to).ok_or_else(|| format!("no domain `{to}`"))?;
                let perm = match words.word("none, read or read_write")? {
                    "none" => PermName::None,
                    "read" => PermName::Read,
                    "read_write" => PermName::ReadWrite,
                    other => return Err(format!("expected none, read or read_write, found `{other}`")),
                };
                self.call(host, Grant { domain, base, len, to, perm }).map(|done| self.done(done))
            }
            _ => self.submit(host, Domain(domain), verb, words),
        }
    }

    /// Opens a session, and a connection to each node.
    fn join(&mut self, host: u16, name: &str) -> Outcome {
        let created = self.call(host, CreateDomain { name: name.to_owned() })?;
        let Some(DomainInfo { domain, .. }) = created else { return Err(format!("no domain {name}")) };
        self.domains.insert(name.to_owned(), domain);
        self.call(host, OpenSession { host, domain })?;
        let all_roles = self.world()?.all_roles();
        for role_id in all_roles {
            if let RoleId::Node(node) = role_id {
                // PROTOCOL 9.6: late packets of the old connection must not meet the new one.
                if let Some(qpn) = self.connections.remove(&(host, domain, node)) {
                    let gone = self.call(host, Disconnect { host, qpn })?;
                    if gone.is_none() {
                        // The connection went with its node; "not found" is fine too.
                        self.lines.pop();
                    }
                }
                if let Some(connection) = self.call(host, Connect::new(host, node, domain))? {
                    self.connections.insert((host, domain, node), connection.qpn);
                }
            }
        }
        Ok(())
    }

    fn submit(&mut self, host: u16, domain: Domain, verb: &str, words: &mut Tokens<'_>) -> Outcome {
        let op = match verb {
            "read" | "region-read" => {
                let (addr, len) = (VirtAddr(self.address(words)?), words.number::<usize>()?);
                let buf = vec![0; len];
                if verb == "read" { Op::Read { addr, buf } } else { Op::RegionRead { addr, buf } }
            }
            "write" | "region-write" => {
                let addr = VirtAddr(self.address(words)?);
                let buf = self.bytes(words)?;
                if verb == "write" { Op::Write { addr, buf } } else { Op::RegionWrite { addr, buf } }
            }
            "add" => Op::FetchAdd { addr: VirtAddr(self.address(words)?), add: words.number()? },
            "swap" => {
                let addr = VirtAddr(self.address(words)?);
                Op::CompareSwap { addr, compare: words.number()?, swap: words.number()? }
            }
            "traverse" => {
                let name = words.word("a program")?;
                let program =
                    self.programs.get(name).cloned().ok_or_else(|| format!("no program `{name}`"))?;
                let cur_ptr = VirtAddr(self.address(words)?);
                let limit = words.number()?;
                let mut scratch = self.bytes(words)?;
                scratch.resize(program.scratch_len(), 0);
                Op::Traverse { program, cur_ptr, scratch, limit }
            }
            _ => return Err(format!("a host does not `{verb}`")),
        };
        self.operations += 1;
        let ticket = self.operations;
        if self.world()?.tell_host(host, HostRequest::Submit { ticket, domain, op }) {
            Ok(())
        } else {
            Err(format!("host {host} is down"))
        }
    }

    /// Makes a call and waits for it; only the control plane's packets move. Returns `None` if it is refused;
    /// the trace has the refusal.
    fn call<C: Call>(&mut self, host: u16, call: C) -> Result<Option<C::Answer>, String> {
        self.collect();
        let world = self.world()?;
        let ticket = world.ask(RoleId::Host(host), call);
        let end = world.now() + CALL_MAX;
        let result = loop {
            if let Some(result) = world.take_reply(ticket) {
                break result;
            }
            if !move_control(world) && !pass_time(world, end) {
                return Err("the control plane does not answer".to_owned());
            }
        };
        while move_control(world) {}
        world.journal_mut().take_lines();
        match result {
            Ok(response) => {
                Ok(Some(C::Answer::try_from(response).ok().ok_or("the answer to another request")?))
            }
            Err(error) => {
                self.lines.push(format!("refused: {:?}: {}", error.code, error.message));
                Ok(None)
            }
        }
    }

    fn done(&mut self, done: Option<()>) {
        self.lines.extend(done.map(|()| "done".to_owned()));
    }

    fn start(&mut self, words: &mut Tokens<'_>) -> Outcome {
        let role_id = role_id(words)?;
        self.collect();
        let world = self.world()?;
        world.start(role_id);
        let end = world.now() + CALL_MAX;
        while !world.is_up(role_id) {
            if !move_control(world) && !pass_time(world, end) {
                return Err(format!("{role_id:?} does not come up"));
            }
        }
        while move_control(world) {}
        world.journal_mut().take_lines();
        self.lines.push(format!("{role_id:?} is up"));
        Ok(())
    }

    fn deliver(&mut self, words: &mut Tokens<'_>) -> Outcome {
        const ALL_MAX: usize = 10_000;
        if words.take_if("all") {
            let world = self.world()?;
            for _ in 0..ALL_MAX {
                let Some(next) = world.network().on_the_way().next().map(|(ticket, _)| ticket) else {
                    return Ok(());
                };
                take_and_deliver(world, next);
            }
            return Err(format!("{ALL_MAX} packets, and more are on their way"));
        }
        let next = self.next_packet(words)?;
        take_and_deliver(self.world()?, next);
        Ok(())
    }

    fn interfere(&mut self, verb: &str, words: &mut Tokens<'_>) -> Outcome {
        let what = match verb {
            "flip" => Some(words.number::<usize>()?),
            _ => None,
        };
        let forged = if verb == "forge" { Some(words.word("domain, address or key")?) } else { None };
        let claim: u32 = if forged == Some("domain") { words.number()? } else { 0 };
        let addr = if forged == Some("address") { self.address(words)? } else { 0 };
        let next = self.next_packet(words)?;
        let network = self.world()?.network_mut();
        match (verb, forged) {
            ("drop", _) => drop(network.lose(next)),
            ("dup", _) => network.duplicate(next),
            ("hold", _) => network.hold(next),
            ("flip", _) => network.flip(next, what.unwrap_or(0)),
            (_, Some("domain")) => network.rewrite(next, |frame| claim_domain(frame, claim)),
            (_, Some("address")) => network.rewrite(next, |frame| claim_address(frame, addr)),
            (_, Some("key")) => network.rewrite(next, wrong_key),
            _ => return Err("a packet is forged in its domain, its address or its key".to_owned()),
        }
        Ok(())
    }

    fn next_packet(&mut self, words: &mut Tokens<'_>) -> Result<Ticket, String> {
        let to = if words.peek().is_some() { Some(role_id(words)?) } else { None };
        let fits = |in_flight: &InFlight| to.is_none_or(|to| in_flight.to == to.gid());
        let network = self.world()?.network();
        let found = network.on_the_way().find(|(_, in_flight)| fits(in_flight)).map(|(ticket, _)| ticket);
        found.ok_or_else(|| "no such packet is on its way".to_owned())
    }

    fn tick(&mut self, words: &mut Tokens<'_>) -> Outcome {
        let world = self.world.as_mut().ok_or("build a rack first: nodes N hosts M")?;
        let end = world.now() + words.span()?;
        while let Some(wake) = world.next_wake().filter(|&wake| wake <= end) {
            world.set_now(wake.max(world.now()));
            world.wake();
        }
        world.set_now(end);
        Ok(())
    }

    fn show(&mut self) -> Outcome {
        let world = self.world()?;
        let lines = world.describe_network();
        self.lines.extend(lines);
        Ok(())
    }

    fn memory(&mut self, words: &mut Tokens<'_>) -> Outcome {
        let node = words.number()?;
        let (addr, len) = (self.address(words)?, words.number()?);
        let world = self.world()?;
        let base = world.node_base(node).ok_or_else(|| format!("no node {node}"))?;
        let store = world.store(node).ok_or_else(|| format!("node {node} is down"))?;
        let offset = addr.checked_sub(base).filter(|at| at + u64::from(len) <= store.len());
        let mut bytes = Vec::new();
        store.read(offset.ok_or("that is not on this node")?, len, &mut bytes);
        self.lines.push(format!("{addr:#x} holds{}", payload(&bytes)));
        Ok(())
    }

    /// Moves the trace and the ended operations into the block's lines.
    fn collect(&mut self) {
        let Some(world) = &mut self.world else { return };
        self.lines.extend(world.journal_mut().take_lines());
        while let Some((host, done)) = world.take_done() {
            self.lines.push(format!("host {host} operation {}: {}", done.ticket, told(&done)));
        }
    }

    /// Parses a number, or a name with an offset.
    fn address(&self, words: &mut Tokens<'_>) -> Result<u64, String> {
        let word = words.word("an address")?;
        self.value(word).ok_or_else(|| format!("no address `{word}`"))
    }

    fn value(&self, word: &str) -> Option<u64> {
        let (name, more) = word.split_once('+').unwrap_or((word, "0"));
        let base = number(name).or_else(|| self.names.get(name).copied())?;
        base.checked_add(number(more)?)
    }

    /// Parses texts as they are, and numbers and addresses as words of eight bytes.
    fn bytes(&self, words: &mut Tokens<'_>) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        while let Some(word) = words.next() {
            match word.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
                Some(text) => bytes.extend_from_slice(text.as_bytes()),
                None => {
                    let value = self
                        .value(word)
                        .ok_or_else(|| format!("expected text or a number, found `{word}`"))?;
                    bytes.extend_from_slice(&value.to_le_bytes());
                }
            }
        }
        Ok(bytes)
    }
}

/// Delivers the next packet from or to the control plane. Returns false if there is none.
fn move_control(world: &mut World) -> bool {
    let control = RoleId::Control.gid();
    let ours = |in_flight: &InFlight| in_flight.from == control || in_flight.to == control;
    let next = world.network().on_the_way().find(|(_, in_flight)| ours(in_flight)).map(|(ticket, _)| ticket);
    if let Some(next) = next {
        take_and_deliver(world, next);
    }
    next.is_some()
}

/// Advances time to the next timer. Returns false if there is none before `end`.
fn pass_time(world: &mut World, end: Instant) -> bool {
    let Some(wake) = world.next_wake().filter(|&wake| wake <= end) else { return false };
    world.set_now(wake.max(world.now()));
    world.wake();
    true
}

fn take_and_deliver(world: &mut World, ticket: Ticket) {
    if let Some(in_flight) = world.network_mut().take(ticket) {
        world.deliver(in_flight);
        // A driver wakes its role in the turn that brought frames: a node's traversals run then (PROTOCOL
        // 7.31).
        if world.next_wake().is_some_and(|at| at <= world.now()) {
            world.wake();
        }
    }
}

fn role_id(words: &mut Tokens<'_>) -> Result<RoleId, String> {
    match words.word("control, switch, node N or host H")? {
        "control" => Ok(RoleId::Control),
        "switch" => Ok(RoleId::Switch),
        "node" => Ok(RoleId::Node(words.number()?)),
        "host" => Ok(RoleId::Host(words.number()?)),
        other => Err(format!("expected control, switch, node N or host H, found `{other}`")),
    }
}

/// Corrupts the Q_Key of a datagram.
fn wrong_key(frame: &mut [u8]) {
    const QKEY: usize = 12;
    if let Some(byte) = frame.get_mut(QKEY) {
        *byte ^= 0xff;
    }
}

/// Describes the end of an operation.
fn told(done: &Done) -> String {
    match done.result {
        Ok(Answer::Done { old }) if done.buf.is_empty() => format!("old value {old}"),
        Ok(Answer::Done { .. }) => format!("done{}", payload(&done.buf)),
        Ok(Answer::Traversed(t)) => {
            let how = if t.returned { "returned" } else { "stopped at its limit" };
            let words: Vec<u64> = done
                .buf
                .chunks_exact(8)
                .map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")))
                .collect();
            format!(
                "{how} at {} after {} iterations, {} requests, scratch {words:?}",
                t.cur_ptr, t.iterations, t.requests
            )
        }
        Err(Failure::Refused { status, addr }) => format!("refused: {status:?} at {addr}"),
        Err(failure) => format!("failed: {failure:?}"),
    }
}
