//! Model check of a small world (PROTOCOL 17.17, 17.21, 17.22). Two processes use an allocation that only one of them
//! may write at a time. The DPU dismisses processes, dies and starts again.
//!
//! A write that was sent stays in the network until it ends. A node executes the write as long as the write's host is
//! in the rack. The rules are switched off one by one, to show that each of them is needed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of lives of the DPU.
const LIVES_MAX: u8 = 3;

/// One of two processes.
type Process = u8;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Host {
    /// A process's own host, which writes directly.
    Process(Process),
    /// The DPU's host in one of its lives.
    Dpu(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum State {
    /// The process has nothing open.
    Idle,
    /// The process has the allocation open, and writes through the DPU.
    Served,
    /// The process has the allocation open, and writes directly.
    Direct,
    /// The process was killed.
    Dead,
}

/// An opening, as the DPU knows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Opening {
    /// A write is in flight.
    pending: bool,
    /// A write failed, and a node may execute it later.
    failed: bool,
    /// The process was dismissed.
    dismissed: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Dpu {
    life: u8,
    openings: BTreeMap<Process, Opening>,
}

/// The rules that a run follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rules {
    /// A DPU fences its host for a process that ended after a failed write (17.21).
    fences: bool,
    /// A DPU keeps a journal of what is open (17.22).
    journal: bool,
    /// An opening is recorded with the DPU's host, which the next DPU has leave.
    fences_earlier: bool,
    /// A DPU has the host of a process that was killed leave, before it closes what the process had open (17.23).
    fences_killed: bool,
}

const ALL: Rules = Rules { fences: true, journal: true, fences_earlier: true, fences_killed: true };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Open(Process),
    Write(Process),
    Ack(Process),
    Fail(Process),
    Close(Process),
    Kill(Process),
    Dismiss(Process),
    /// The DPU closes what an ended process had open.
    SeeOff(Process),
    /// A process fences the dead DPU, and writes directly.
    GoDirect(Process),
    /// The host of a killed process leaves the rack.
    Lapse(Process),
    /// A node executes a write, and its answer is lost.
    Execute(Host, Process),
    Crash,
    Start,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct World {
    /// Hosts whose writes nodes execute.
    rack: BTreeSet<Host>,
    /// Writes that may be in the network, each with the process that requested it.
    writes: BTreeSet<(Host, Process)>,
    dpu: Option<Dpu>,
    lives: u8,
    journal: BTreeSet<(Process, u8)>,
    processes: [State; 2],
}

impl World {
    fn new() -> Self {
        let rack = BTreeSet::from([Host::Process(0), Host::Process(1), Host::Dpu(0)]);
        let dpu = Some(Dpu { life: 0, openings: BTreeMap::new() });
        let (writes, journal) = (BTreeSet::new(), BTreeSet::new());
        Self { rack, writes, dpu, lives: 1, journal, processes: [State::Idle; 2] }
    }

    fn state(&self, process: Process) -> State {
        self.processes[usize::from(process)]
    }

    fn set(&mut self, process: Process, state: State) {
        self.processes[usize::from(process)] = state;
    }

    /// Returns true if a process has the allocation open and can write it.
    fn writes_on(&self, process: Process) -> bool {
        match self.state(process) {
            State::Served => self.dpu.as_ref().is_some_and(|dpu| self.rack.contains(&Host::Dpu(dpu.life))),
            State::Direct => self.rack.contains(&Host::Process(process)),
            State::Idle | State::Dead => false,
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for process in [0, 1] {
            let opening = self.dpu.as_ref().and_then(|dpu| dpu.openings.get(&process));
            match self.state(process) {
                State::Idle => steps.push(Step::Open(process)),
                State::Served => {
                    steps.push(Step::Kill(process));
                    match opening {
                        Some(opening) if opening.pending => {
                            steps.extend([Step::Ack(process), Step::Fail(process)]);
                        }
                        Some(opening) => {
                            steps.extend([Step::Write(process), Step::Dismiss(process)]);
                            steps.extend((!opening.failed).then_some(Step::Close(process)));
                        }
                        None => steps.push(Step::GoDirect(process)),
                    }
                }
                State::Direct => {
                    let own = (Host::Process(process), process);
                    steps.push(Step::Kill(process));
                    if self.writes.contains(&own) {
                        steps.push(Step::Ack(process));
                    } else {
                        steps.extend([Step::Write(process), Step::Close(process)]);
                    }
                }
                State::Dead => {
                    steps.push(Step::Lapse(process));
                    let pending = opening.is_some_and(|opening| opening.pending);
                    steps.extend(
                        pending.then_some([Step::Ack(process), Step::Fail(process)]).into_iter().flatten(),
                    );
                }
            }
            let ended = matches!(self.state(process), State::Idle | State::Dead);
            let over = opening.is_some_and(|opening| !opening.pending);
            steps.extend((ended && over).then_some(Step::SeeOff(process)));
        }
        let executes = |&&(host, _): &&(Host, Process)| self.rack.contains(&host);
        steps
            .extend(self.writes.iter().filter(executes).map(|&(host, process)| Step::Execute(host, process)));
        steps.push(if self.dpu.is_some() { Step::Crash } else { Step::Start });
        steps
    }

    /// Takes a step. Returns an error that names the violated property.
    fn take(&mut self, step: Step, rules: Rules) -> Result<(), &'static str> {
        match step {
            Step::Open(process) => return self.open(process, rules),
            Step::Write(process) => {
                let host = match (self.state(process), &mut self.dpu) {
                    (State::Served, Some(dpu)) => {
                        dpu.openings.entry(process).or_default().pending = true;
                        Host::Dpu(dpu.life)
                    }
                    _ => Host::Process(process),
                };
                self.writes.insert((host, process));
            }
            Step::Ack(process) => {
                let opening =
                    self.dpu.as_mut().and_then(|dpu| dpu.openings.get_mut(&process).map(|at| (dpu.life, at)));
                match opening {
                    Some((life, opening)) if opening.pending => {
                        opening.pending = false;
                        // An earlier failed write may still be in the network.
                        if !opening.failed {
                            self.writes.remove(&(Host::Dpu(life), process));
                        }
                    }
                    _ => drop(self.writes.remove(&(Host::Process(process), process))),
                }
            }
            Step::Fail(process) => {
                let dpu = self.dpu.as_mut().expect("it serves");
                let opening = dpu.openings.get_mut(&process).expect("it is open");
                (opening.pending, opening.failed) = (false, true);
            }
            Step::Close(process) => {
                if let Some(dpu) =
                    self.dpu.as_mut().filter(|_| self.processes[usize::from(process)] == State::Served)
                {
                    dpu.openings.remove(&process);
                    self.journal.remove(&(process, dpu.life));
                }
                self.set(process, State::Idle);
            }
            Step::Kill(process) => self.set(process, State::Dead),
            Step::Dismiss(process) => {
                let dpu = self.dpu.as_mut().expect("it serves");
                let opening = dpu.openings.get_mut(&process).expect("it is open");
                opening.dismissed = true;
                if opening.failed {
                    self.rack.remove(&Host::Dpu(dpu.life));
                }
                self.set(process, State::Direct);
            }
            Step::SeeOff(process) => {
                let dpu = self.dpu.as_mut().expect("it serves");
                let opening = dpu.openings.remove(&process).expect("it is open");
                self.journal.remove(&(process, dpu.life));
                if opening.failed && rules.fences {
                    self.rack.remove(&Host::Dpu(dpu.life));
                }
                if opening.dismissed && self.state(process) == State::Dead && rules.fences_killed {
                    self.rack.remove(&Host::Process(process));
                }
            }
            Step::GoDirect(process) => {
                // A restarted DPU is another host: the process fences the host that served it.
                for life in 0..self.lives {
                    if self.dpu.as_ref().is_none_or(|dpu| dpu.life != life) {
                        self.rack.remove(&Host::Dpu(life));
                    }
                }
                self.set(process, State::Direct);
            }
            Step::Lapse(process) => drop(self.rack.remove(&Host::Process(process))),
            Step::Execute(_, process) => {
                if self.writes_on(1 - process) {
                    return Err("a write of another process is executed beside a writer");
                }
            }
            Step::Crash => self.dpu = None,
            Step::Start if self.lives < LIVES_MAX => {
                self.rack.insert(Host::Dpu(self.lives));
                self.dpu = Some(Dpu { life: self.lives, openings: BTreeMap::new() });
                self.lives += 1;
            }
            Step::Start => {}
        }
        Ok(())
    }

    /// Opens the allocation for a process. A fenced host of the DPU joins again.
    fn open(&mut self, process: Process, rules: Rules) -> Result<(), &'static str> {
        let Some(dpu) = &mut self.dpu else { return Ok(()) };
        if !dpu.openings.is_empty() {
            return Ok(());
        }
        if !self.rack.contains(&Host::Dpu(dpu.life)) {
            if self.lives == LIVES_MAX {
                return Ok(());
            }
            dpu.life = self.lives;
            self.rack.insert(Host::Dpu(self.lives));
            self.lives += 1;
        }
        if rules.journal {
            let earlier: Vec<_> =
                self.journal.iter().filter(|(_, life)| *life != dpu.life).copied().collect();
            for &(_, life) in earlier.iter().filter(|_| rules.fences_earlier) {
                self.rack.remove(&Host::Dpu(life));
            }
            let present =
                |&&(other, _): &&(Process, u8)| other != process && self.rack.contains(&Host::Process(other));
            if earlier.iter().any(|row| present(&row)) {
                return Ok(());
            }
            self.journal.retain(|(other, life)| *other == process || *life == dpu.life);
            self.journal.insert((process, dpu.life));
        }
        dpu.openings.insert(process, Opening::default());
        self.set(process, State::Served);
        if self.writes_on(1 - process) {
            return Err("two processes write");
        }
        Ok(())
    }
}

/// Explores every order. Returns the number of states, or a violation with the shortest path to it.
fn explore(rules: Rules) -> Result<usize, (&'static str, Vec<Step>)> {
    let start = World::new();
    let mut from: BTreeMap<World, Option<(World, Step)>> = BTreeMap::from([(start.clone(), None)]);
    let mut queue = VecDeque::from([start]);
    while let Some(world) = queue.pop_front() {
        for step in world.steps() {
            let mut next = world.clone();
            if let Err(violation) = next.take(step, rules) {
                let mut steps = vec![step];
                let mut at = &world;
                while let Some((before, step)) = &from[at] {
                    steps.push(*step);
                    at = before;
                }
                steps.reverse();
                return Err((violation, steps));
            }
            if !from.contains_key(&next) {
                from.insert(next.clone(), Some((world.clone(), step)));
                queue.push_back(next);
            }
        }
    }
    Ok(from.len())
}

/// No order lets two processes write, or lets a node execute a late write beside a writer.
#[test]
fn every_order_of_departures_is_safe() {
    let states = explore(ALL).unwrap_or_else(|violation| panic!("{violation:?}"));
    eprintln!("{states} states");
    assert!(states > 500, "{states} states");
}

/// Without one of the rules, some order is unsafe: the two classes of faults that the rules exclude.
#[test]
fn each_rule_is_needed() {
    assert!(explore(Rules { fences: false, ..ALL }).is_err());
    let (violation, _) = explore(Rules { journal: false, ..ALL }).expect_err("unsafe");
    assert_eq!(violation, "two processes write");
    assert!(explore(Rules { fences_earlier: false, ..ALL }).is_err());
    let (violation, steps) = explore(Rules { fences_killed: false, ..ALL }).expect_err("unsafe");
    assert_eq!(violation, "a write of another process is executed beside a writer");
    assert!(steps.contains(&Step::Kill(0)) || steps.contains(&Step::Kill(1)), "{steps:?}");
}
