//! The comparison of all systems on one application: the systems, alternating rounds, and the result rows.

use super::contender::{App, Contender, Figures, How, Shared, System};
use crate::{CpuMeter, NodeKind, Racks, Row, Sheet, rate_row, to_f64};
use farmem::{Client, Error};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// An application and its data, to be laid out on a rack.
pub trait Scenario {
    /// The running application.
    type App: App;

    /// Returns the scenario's part of ids.
    fn name(&self) -> &'static str;

    /// Returns the measured mixes of operations; the first one represents the application.
    fn mixes(&self) -> &'static [&'static str];

    /// Lays the data out for a mix, by a system that runs traversals at the memory nodes, or at the host.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for the data.
    fn lay(&self, mix: &'static str, offloads: bool, client: &mut Client) -> Result<Self::App, Error>;
}

/// Bytes of each memory node: addresses; unused memory costs nothing.
pub(super) const NODE_MEMORY: u64 = 1 << 30;

/// The time budget of a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Operations in flight when throughput is measured.
    pub(super) depth: usize,
    /// Rounds of all systems.
    pub(super) rounds: u32,
    /// The time of each of a system's two measurements in a round.
    pub(super) slice: Duration,
    /// Bound on the time in which a cache must turn over twice.
    pub(super) warm_max: Duration,
}

/// The result of one mix on one number of memory nodes.
struct Compared {
    scenario: &'static str,
    mix: &'static str,
    is_main: bool,
    nodes: u8,
    systems: Vec<(&'static str, Figures)>,
}

/// The cache that represents the cache-based system: a quarter of the working set.
const BASELINE: &str = "cache25";
const PULSE: &str = "pulse";
const PULSE_ACC: &str = "pulse_acc";

/// Returns the systems compared on this many memory nodes.
pub(super) fn systems(nodes: u8, quick: bool, stretch: Duration) -> Vec<System> {
    let native = |workspaces, stretch| NodeKind::Native { workspaces, stretch };
    let rpc = native(farmem_memnode::WORKSPACES, Duration::ZERO);
    let cached = |name, percent| System { name, node: NodeKind::Offload, how: How::Cached { percent } };
    let at = |name, node, how| System { name, node, how };
    let usual = vec![
        cached(BASELINE, 25.0),
        at("reads", NodeKind::Offload, How::Reads),
        at("rpc", rpc, How::Returning),
        at(PULSE, NodeKind::Offload, How::Offloaded),
    ];
    let further = match (quick, nodes) {
        (true, 1) => vec![],
        (true, _) => return vec![usual[0], at(PULSE_ACC, NodeKind::Offload, How::Returning), usual[3]],
        (false, 1) => vec![
            cached("cache06", 6.25),
            cached("cache12", 12.5),
            cached("cache50", 50.0),
            cached("cache100", 100.0),
            at("rpc_single", native(1, Duration::ZERO), How::Returning),
            at("rpc_arm", native(1, stretch), How::Returning),
        ],
        (false, _) => vec![at(PULSE_ACC, NodeKind::Offload, How::Returning)],
    };
    further.into_iter().chain(usual).collect()
}

/// Racks with one number of memory nodes, one for each requested kind of node.
pub(super) struct Fleet<'r, 's, R: Racks> {
    racks: &'r mut R,
    sheet: &'r mut Sheet<'s>,
    nodes: u8,
    started: BTreeMap<NodeKind, R::Rack>,
}

impl<'r, 's, R: Racks> Fleet<'r, 's, R> {
    pub(super) const fn new(racks: &'r mut R, sheet: &'r mut Sheet<'s>, nodes: u8) -> Self {
        Self { racks, sheet, nodes, started: BTreeMap::new() }
    }

    /// Compares `systems` on all mixes of `scenario` that `is_wanted` selects.
    pub(super) fn compare<S: Scenario>(
        &mut self,
        scenario: &S,
        systems: &[System],
        effort: Budget,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<(), R::Failure> {
        for system in systems {
            if !self.started.contains_key(&system.node) {
                self.started.insert(system.node, self.racks.start(self.nodes, system.node, NODE_MEMORY)?);
            }
        }
        for (at, mix) in scenario.mixes().iter().copied().enumerate().filter(|(_, mix)| is_wanted(mix)) {
            let what = format!("{} {mix}, {} memory nodes", scenario.name(), self.nodes);
            self.sheet.begins(&format!("{what}: load"));
            let contenders = self.lay(scenario, systems, mix)?;
            self.sheet.begins(&what);
            let systems = take_turns(contenders, effort)?;
            let (scenario, nodes) = (scenario.name(), self.nodes);
            let compared = Compared { scenario, mix, is_main: at == 0, nodes, systems };
            self.sheet.add(compared.rows());
            self.sheet.add_wrong(compared.wrong());
        }
        Ok(())
    }
}

impl<R: Racks> Fleet<'_, '_, R> {
    /// Creates a contender for each system. Offloading systems are laid out first, on an empty rack, and
    /// share data on one rack, because crossings depend on the nodes' placement. The others have separate
    /// data, because no other client would see a cache's changes.
    fn lay<S: Scenario>(
        &self,
        scenario: &S,
        systems: &[System],
        mix: &'static str,
    ) -> Result<Vec<Contender<S::App>>, Error> {
        let mut order: Vec<usize> = (0..systems.len()).collect();
        order.sort_by_key(|&at| !systems[at].offloads());
        let mut laid: BTreeMap<NodeKind, Shared<S::App>> = BTreeMap::new();
        let mut contenders: Vec<(usize, Contender<S::App>)> = Vec::new();
        for at in order {
            let system = systems[at];
            let started = &self.started[&system.node];
            let (rack, cpu) = (started.as_ref(), CpuMeter::with(self.racks.processes(started)));
            let known = laid.get(&system.node).filter(|_| system.offloads()).cloned();
            let contender = Contender::new(system, rack, cpu, |client| match known {
                Some(app) => Ok(app),
                None => {
                    let app = Rc::new(RefCell::new(scenario.lay(mix, system.offloads(), client)?));
                    if system.offloads() {
                        laid.insert(system.node, Rc::clone(&app));
                    }
                    Ok(app)
                }
            })?;
            contenders.push((at, contender));
        }
        contenders.sort_by_key(|(at, _)| *at);
        Ok(contenders.into_iter().map(|(_, contender)| contender).collect())
    }
}

fn take_turns<A: App>(
    mut contenders: Vec<Contender<A>>,
    effort: Budget,
) -> Result<Vec<(&'static str, Figures)>, Error> {
    for contender in &mut contenders {
        contender.warm(effort.depth, effort.slice, effort.warm_max)?;
    }
    for _ in 0..effort.rounds {
        for contender in &mut contenders {
            contender.one_at_a_time(effort.slice)?;
            contender.many(effort.depth, effort.slice)?;
        }
    }
    contenders.into_iter().map(|contender| Ok((contender.system.name, contender.leave()?))).collect()
}

impl Compared {
    /// Returns the number of wrong answers.
    fn wrong(&self) -> u64 {
        self.systems.iter().map(|(_, figures)| figures.wrong).sum()
    }

    fn figures(&self, system: &str) -> Option<&Figures> {
        self.systems.iter().find(|(name, _)| *name == system).map(|(_, figures)| figures)
    }

    /// Returns the result rows.
    fn rows(&self) -> Vec<Row> {
        let mut rows = self.of_systems();
        let Some(pulse) = self.figures(PULSE) else { return rows };
        if let (1, Some(cache)) = (self.nodes, self.figures(BASELINE)) {
            let mix = if self.is_main { String::new() } else { format!(".{}", self.mix) };
            let id = |what: &str| format!("pulse.e2e.{}{mix}.{what}", self.scenario);
            rows.push(pulse.latency.row(&id("latency"), Some(&cache.latency)));
            let many = pulse.many_cpu.per_operation();
            let row =
                |what: &str, baseline: &[f64]| rates(&id(what), &pulse.many, baseline, pulse.operations);
            rows.push(row("throughput", &cache.alone).with_cpu(many));
            rows.push(row("throughput.over_overlapped", &cache.many).with_cpu(many));
            if let Some(own) = cache.own_time {
                let n = cache.operations;
                let all = pulse.latency.quantile(0.5);
                rows.push(Row::figure(id("own_time"), "ns", own.as_secs_f64() * 1e9, n).beside(Some(all)));
            }
        }
        if let Some(acc) = self.figures(PULSE_ACC) {
            let Self { scenario, mix, nodes, .. } = self;
            let id = |what: &str| format!("pulse.distributed.{scenario}.{mix}.n{nodes}.{what}");
            rows.push(pulse.latency.row(&id("latency"), Some(&acc.latency)));
            let row = rates(&id("throughput"), &pulse.many, &acc.many, pulse.operations);
            rows.push(row.with_cpu(pulse.many_cpu.per_operation()));
        }
        rows
    }

    fn of_systems(&self) -> Vec<Row> {
        let baseline = self.figures(BASELINE);
        let mut rows = Vec::new();
        for (name, figures) in &self.systems {
            let Self { scenario, mix, nodes, .. } = self;
            let id = |what: &str| format!("pulse.systems.{scenario}.{mix}.n{nodes}.{name}.{what}");
            let baseline = baseline.filter(|_| *name != BASELINE);
            let of = |rates: fn(&Figures) -> &Vec<f64>| baseline.map(rates).map_or(&[][..], |rates| rates);
            rows.push(figures.latency.row(&id("latency"), baseline.map(|b| &b.latency)));
            let many = rates(&id("throughput"), &figures.many, of(|b| &b.many), figures.operations);
            rows.push(many.with_cpu(figures.many_cpu.per_operation()));
            let n = figures.latency.len();
            let alone = rates(&id("throughput.alone"), &figures.alone, of(|b| &b.alone), n);
            rows.push(alone.with_cpu(figures.latency.cpu()));
            // Requests beyond a cache are its misses.
            if !name.starts_with("cache") {
                let n = figures.latency.len();
                let trips = to_f64(figures.round_trips) / to_f64(n);
                rows.push(Row::figure(id("round_trips"), "per operation", trips, n));
            }
            if figures.pages > 0 {
                let pages = to_f64(figures.pages) / to_f64(figures.operations);
                rows.push(Row::figure(id("misses"), "pages/operation", pages, figures.operations));
            }
        }
        rows
    }
}

/// Returns the row of a rate. Its ratio is the median of the rounds' ratios, because both systems had the
/// same conditions in a round.
fn rates(id: &str, rounds: &[f64], baseline: &[f64], n: u64) -> Row {
    let mut ratios: Vec<f64> = rounds.iter().zip(baseline).map(|(ours, theirs)| ours / theirs).collect();
    let row = rate_row(id, &mut rounds.to_vec(), &mut baseline.to_vec(), n);
    let ratio = (!ratios.is_empty()).then(|| crate::samples::median(&mut ratios));
    Row { ratio, ..row }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow round slows both systems; the ratio is unaffected.
    #[test]
    fn ratios_are_of_the_same_round() {
        let row = rates("a", &[40.0, 4.0, 44.0], &[10.0, 1.0, 11.0], 3);
        assert_eq!((row.value, row.baseline, row.ratio), (Some(40.0), Some(10.0), Some(4.0)));
        assert_eq!(rates("a", &[1.0], &[], 1).ratio, None);
    }

    /// Each system takes part once, under its own name, and the systems that rows need are included.
    #[test]
    fn systems_have_names_of_their_own() {
        for (nodes, quick, count) in
            [(1, false, 10), (2, false, 5), (4, false, 5), (1, true, 4), (2, true, 3)]
        {
            let names: Vec<_> = systems(nodes, quick, Duration::ZERO).iter().map(|s| s.name).collect();
            let mut distinct = names.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!((names.len(), distinct.len()), (count, count), "{names:?}");
            assert!(names.contains(&BASELINE) && names.contains(&PULSE));
            assert_eq!(names.contains(&PULSE_ACC), nodes > 1);
        }
    }
}
