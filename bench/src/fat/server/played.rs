//! Up to sixteen clients in virtual time (Fat-B+Tree V-C, figure 10 (b)): the real roles in the simulator's
//! world, on links of the paper's rate.
//!
//! Each client is a host with one operation in flight. Four memory nodes hold a part of the keys each, with
//! one core each. The assumed times are [`PACE`] and [`WAY`]; the switch forwards at line rate, as in the
//! paper. Visits, crossings and queueing result from the roles' behaviour. Values are the tree's own eight
//! bytes; the record writes of an update are not simulated.

use super::{READS, SERVERS};
use crate::{Row, to_f64};
use farmem::api::{Allocate, CreateDomain, NodeInfo, OpenSession, Overview, SoftClear, SoftLoad};
use farmem::blink_tree::{Extent, soft_section};
use farmem::{
    Answer, BLinkTree, Dispatched, Error, FarMemory, Layout as TreeLayout, NodeId, Op, Policy, Program, Rng,
    Site, TraversalStop, Traversed, VirtAddr, Vma,
};
use farmem_machine::Duration;
use farmem_sim::network::Pace;
use farmem_sim::{Layout, Plan, RoleId, World};
use farmem_wire::Pmtu;
use farmem_wire::message::Traverse;

/// The paper's links have 40 Gbit/s (V-A). A node's 1.5 us per request and 0.4 us per visit are those of this
/// machine (`pulse.node.*` in docs/results.md, rounded).
const PACE: Pace = Pace {
    link_bits: 40,
    host: Duration::from_nanos(1_000),
    node: Duration::from_nanos(1_500),
    visit: Duration::from_nanos(400),
};
/// The delay from one machine to the next: cables and a switch's pipeline.
const WAY: Duration = Duration::from_nanos(1_500);
const CLIENTS: [u16; 5] = [1, 2, 4, 8, 16];
const HOST_MAX: u16 = 16;
const FILL: usize = 14;
const SEED: u64 = 17;

/// A world with a tree; the rack's first host loads it.
struct Stage {
    world: World,
    domain: u32,
    nodes: Vec<NodeInfo>,
    tickets: u64,
}

/// The result of one path for one number of clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Played {
    look_ups: u64,
    visits: u64,
    operations: u64,
    seconds: f64,
}

impl Stage {
    fn new(keys: u64) -> Self {
        let plan = Plan { name: "links", latency: WAY, ..Plan::CALM };
        let capacity = (keys * 64 / u64::from(SERVERS)).next_power_of_two().max(4 << 20);
        let layout =
            Layout { nodes: SERVERS.into(), hosts: HOST_MAX, capacity, pmtu: Pmtu::B4096, ..Layout::small() };
        // Longer than a queue of all clients takes.
        let layout = Layout { timeout: Duration::from_millis(20), ..layout };
        let mut world = World::new(layout, plan, SEED, 0);
        world.bring_up();
        let domain =
            world.call(RoleId::Host(1), CreateDomain { name: "server".into() }).expect("a new domain").domain;
        for host in 1..=HOST_MAX {
            world.call(RoleId::Host(host), OpenSession { host, domain }).expect("a session");
        }
        let nodes = world.call(RoleId::Host(1), Overview {}).expect("an overview").nodes;
        Self { world, domain, nodes, tickets: 0 }
    }

    fn submit(&mut self, host: u16, op: Op) {
        self.tickets += 1;
        assert!(self.world.submit(host, self.tickets, self.domain, op), "hosts do not crash here");
    }

    /// Runs one operation of the first host to its end.
    fn op(&mut self, op: Op) -> Result<(Answer, Vec<u8>), Error> {
        self.submit(1, op);
        loop {
            if let Some((_, done)) = self.world.take_done() {
                let failed = |failure| Error::Unreachable { what: format!("{failure:?}") };
                return done.result.map(|answer| (answer, done.buf)).map_err(failed);
            }
            assert!(self.world.step(), "an operation ends");
        }
    }

    fn old(&mut self, op: Op) -> Result<u64, Error> {
        match self.op(op)?.0 {
            Answer::Done { old } => Ok(old),
            other @ Answer::Traversed(_) => unreachable!("an atomic does not answer {other:?}"),
        }
    }

    fn allocated(&mut self, size: u64, node: Option<u16>) -> Result<Vma, Error> {
        let vma = self
            .world
            .call(RoleId::Host(1), Allocate { domain: self.domain, size, node, durable: false })
            .map_err(Error::Refused)?;
        Ok(Vma { base: VirtAddr(vma.base), size: vma.size, node: NodeId(vma.node) })
    }

    /// Runs this many operations by the first hosts. Each host starts its next operation when it has its
    /// reply. Records come from `draw`, in turn.
    fn play(
        &mut self,
        tree: &BLinkTree,
        clients: u16,
        operations: u64,
        draw: &[u64],
        key: impl Fn(u64) -> u64,
    ) -> Played {
        let (mut rng, mut next, mut ended) = (Rng::from_number(SEED), draw.iter().cycle(), 0);
        let mut played = Played { look_ups: 0, visits: 0, operations, seconds: 0.0 };
        let begun = self.world.now();
        let mut asked: Vec<(u64, bool)> = vec![(0, false); usize::from(clients) + 1];
        let mut ask = |stage: &mut Self, host: u16, asked: &mut [(u64, bool)]| {
            let (n, reads) = (*next.next().expect("endless"), rng.chance(READS, 100));
            asked[usize::from(host)] = (n, reads);
            let op = if reads { tree.get_op(key(n)) } else { tree.replace_op(key(n), n) };
            stage.submit(host, op);
        };
        (1..=clients).for_each(|host| ask(self, host, &mut asked));
        while ended < operations {
            let Some((host, done)) = self.world.take_done() else {
                assert!(self.world.step(), "clients wait, and nothing is under way");
                continue;
            };
            let (n, reads) = asked[usize::from(host)];
            let Ok(Answer::Traversed(Traversed { iterations, .. })) = done.result else {
                panic!("an operation fails where nothing is lost: {:?}", done.result)
            };
            assert_eq!(BLinkTree::value_in(&done.buf), Some(n), "every key has its value");
            played.look_ups += u64::from(reads);
            played.visits += if reads { u64::from(iterations) } else { 0 };
            ended += 1;
            ask(self, host, &mut asked);
        }
        played.seconds = to_f64(self.world.now().as_nanos() - begun.as_nanos()) / 1e9;
        // Operations in flight end before the next ones begin.
        for _ in 0..clients {
            while self.world.take_done().is_none() {
                assert!(self.world.step(), "an operation ends");
            }
        }
        played
    }
}

impl FarMemory for Stage {
    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        let (_, buf) = self.op(Op::Read { addr, buf: vec![0; into.len()] })?;
        into.copy_from_slice(&buf);
        Ok(())
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        self.op(Op::Write { addr, buf: data.to_vec() }).map(|_| ())
    }

    fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        self.old(Op::CompareSwap { addr, compare, swap })
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error> {
        self.old(Op::FetchAdd { addr, add })
    }

    fn dispatch(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
        _: &Policy,
    ) -> Result<Dispatched, Error> {
        match self.op(Op::Traverse { program: program.clone(), cur_ptr: start, scratch, limit })? {
            (Answer::Traversed(end), scratch) => Ok(Dispatched { site: Site::MemoryNodes, end, scratch }),
            (Answer::Done { .. }, _) => Err(Error::Traversal { addr: start, reason: TraversalStop::Stalled }),
        }
    }

    fn allocate(&mut self, size: u64) -> Result<Vma, Error> {
        self.allocated(size, None)
    }

    fn allocate_on(&mut self, size: u64, node: NodeId) -> Result<Vma, Error> {
        self.allocated(size, Some(node.0))
    }

    fn free(&mut self, _: VirtAddr) -> Result<(), Error> {
        // The world ends with the measurement.
        Ok(())
    }

    fn nodes(&self) -> &[NodeInfo] {
        &self.nodes
    }

    fn scratch_len_max(&self) -> usize {
        Traverse::room(Pmtu::B4096)
    }
}

/// Runs both paths, through the index and from the root, for each number of clients, with this many
/// operations each.
pub(super) fn play(
    keys: u64,
    operations: u64,
    draw: &[u64],
    key: impl Fn(u64) -> u64,
) -> Result<Vec<(u16, [Played; 2])>, Error> {
    let mut stage = Stage::new(keys);
    let mut tree = BLinkTree::create(&mut stage, TreeLayout::Partitioned)?;
    let numbers = 0..usize::try_from(keys).expect("fewer than memory has");
    tree.load(&mut stage, numbers.map(|n| (key(n as u64), n as u64)), FILL)?;
    let section = soft_section(&tree.section(&mut stage, Extent::default())?);
    // The nodes learn the programs.
    stage.play(&tree, HOST_MAX, 64 * u64::from(HOST_MAX), draw, &key);
    stage.world.network_mut().set_pace(PACE);
    let domain = stage.domain;
    let mut all = Vec::new();
    for clients in CLIENTS {
        let load = SoftLoad { host: 1, domain, sections: vec![section.clone()], switch: None };
        stage.world.call(RoleId::Host(1), load).map_err(Error::Refused)?;
        let index = stage.play(&tree, clients, operations, draw, &key);
        let clear = SoftClear { domain, sections: Vec::new(), switch: None };
        stage.world.call(RoleId::Host(1), clear).map_err(Error::Refused)?;
        let root = stage.play(&tree, clients, operations, draw, &key);
        all.push((clients, [index, root]));
    }
    Ok(all)
}

/// Returns the rows.
pub(super) fn rows(
    keys: u64,
    operations: u64,
    draw: &[u64],
    key: impl Fn(u64) -> u64,
) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (clients, both) in play(keys, operations, draw, key)? {
        let id = |what: &str| format!("fat.server.sim.clients.{clients}.{what}");
        let [rates, visits] = [
            both.map(|played| to_f64(played.operations) / played.seconds),
            both.map(|played| to_f64(played.visits) / to_f64(played.look_ups.max(1))),
        ];
        let why = format!(
            "the roles in virtual time: 40 Gbit/s, {WAY:?} a hop, a node {:?} a frame and {:?} a visit, a host {:?} a frame",
            PACE.node, PACE.visit, PACE.host
        );
        let row = Row::figure(id("throughput"), "1/s", rates[0], operations).beside(Some(rates[1]));
        rows.push(Row { why: Some(why), ..row });
        rows.push(
            Row::figure(id("visits"), "per look-up", visits[0], both[0].look_ups).beside(Some(visits[1])),
        );
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four servers execute more for more clients until they are saturated. Fewer visits mean more
    /// operations, most under contention. The same seed gives the same result.
    #[test]
    fn clients_add_up_to_what_servers_carry_out() {
        let keys = 3_000;
        let draw: Vec<u64> = (0..1_000).map(|n| n * 7 % keys).collect();
        let all = play(keys, 600, &draw, |n| 3 * n).unwrap();
        let rate = |played: &Played| to_f64(played.operations) / played.seconds;
        for way in [0, 1] {
            let rates: Vec<f64> = all.iter().map(|(_, both)| rate(&both[way])).collect();
            assert!(rates.is_sorted_by(|a, b| a < b), "{rates:?}");
            assert!(
                rates[4] < 4.0 / (PACE.node + PACE.visit).as_nanos() as f64 * 1e9,
                "no more than four servers do: {rates:?}"
            );
        }
        for (clients, [index, root]) in &all {
            assert!(index.visits == index.look_ups, "all inner nodes are in the switch: {index:?}");
            assert!(
                root.visits > 3 * root.look_ups && rate(index) > rate(root),
                "{clients} clients: {index:?} {root:?}"
            );
        }
        let again = play(keys, 600, &draw, |n| 3 * n).unwrap();
        assert!(all.iter().zip(&again).all(|(a, b)| a.1[0].seconds == b.1[0].seconds), "repeatable");
    }
}
