//! The cost of each page-state change between two hosts: one round trip, or two when a host must write back
//! first (MIND 7.2).

use super::fault::REGION;
use super::{PAGE, Samples};
use crate::samples::median;
use crate::touch::scattered;
use crate::{CpuMeter, Row, to_f64};
use farmem::window::Memory;
use farmem::{Error, ShareStats, SharedSpace, Transport, Vma};
use std::time::Instant;

/// The changes as the rows name them, in the order of a page's states.
pub(super) const NAMES: [&str; 5] = ["i_to_s", "s_to_s", "s_to_m", "m_to_s", "m_to_m"];

/// Times of each change, and the packets of both hosts.
pub(super) struct Transitions {
    times: [Samples; 5],
    /// For each change and round, the packets per page.
    packets: [Vec<f64>; 5],
}

/// Takes the untouched pages of `fresh` through all changes between two hosts, one region each.
pub(super) fn measure(one: &SharedSpace, other: &SharedSpace, fresh: &[Vma]) -> Result<Transitions, Error> {
    let mut transitions = Transitions {
        times: std::array::from_fn(|_| Samples::new()),
        packets: std::array::from_fn(|_| Vec::new()),
    };
    for vma in fresh {
        let (a, b) = (one.memory(vma), other.memory(&other.attach(vma.base)?));
        let stats = || (one.stats(), other.stats());
        // All pages go through one change before any goes through the next, so that no page is still blocked
        // by its last change.
        transitions.step(0, stats, a, load);
        transitions.step(1, stats, b, load);
        transitions.step(2, stats, a, store);
        transitions.step(3, stats, b, load);
        each(a, store, &mut |_| ());
        transitions.step(4, stats, b, store);
    }
    Ok(transitions)
}

impl Transitions {
    fn step(
        &mut self,
        at: usize,
        stats: impl Fn() -> (ShareStats, ShareStats),
        memory: Memory<'_>,
        access: fn(Memory<'_>, usize),
    ) {
        let before = packets(&stats());
        let times = &mut self.times[at];
        // Both hosts and the roles belong to this process.
        let own = CpuMeter::own();
        let cpu = own.begin();
        let count = each(memory, access, &mut |time| times.record(time));
        times.spent(cpu.end(), count);
        self.packets[at].push(to_f64(packets(&stats()) - before) / to_f64(count));
    }

    /// Returns the rows: each compared with the first, and the hosts' packets.
    pub(super) fn rows(&mut self, transport: Transport) -> Vec<Row> {
        let base = self.times[0].quantile(0.5);
        let mut rows = Vec::new();
        for (at, name) in NAMES.into_iter().enumerate() {
            let id = format!("mind.transition.{name}.{}", transport.name());
            rows.push(self.times[at].row(&id, None).beside(Some(base)));
        }
        for (at, name) in NAMES.into_iter().enumerate() {
            let id = format!("mind.packets.{name}.{}", transport.name());
            // The median round: in a few rounds, regions merged and one packet covered several pages.
            let rounds = &mut self.packets[at];
            let count = rounds.len() as u64;
            rows.push(Row::figure(id, "packets", median(rounds), count));
        }
        rows
    }
}

fn packets((one, other): &(ShareStats, ShareStats)) -> u64 {
    [one, other].iter().map(|stats| stats.packets_in + stats.packets_out).sum()
}

fn each(memory: Memory<'_>, access: fn(Memory<'_>, usize), time: &mut dyn FnMut(std::time::Duration)) -> u64 {
    let count = memory.len() / (REGION * PAGE);
    for n in 0..count {
        let at = scattered(n, count) * REGION * PAGE;
        let begin = Instant::now();
        access(memory, at);
        time(begin.elapsed());
    }
    count as u64
}

fn load(memory: Memory<'_>, at: usize) {
    memory.read(at, &mut [0]);
}

fn store(memory: Memory<'_>, at: usize) {
    memory.write(at, &[1]);
}
