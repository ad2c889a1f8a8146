//! `farmem bench mind`, with its roles as threads of this process, over rings and over UDP.

use super::Screen;
use crate::args::BenchLinked;
use crate::rack_file::{RackFile, Shape};
use crate::{End, Failure};
use farmem::{LinkProfile, Placement, RackConfig, Transport, Waiting, serve};
use farmem_bench::mind::{Racks, run as measure};

/// Memory of each memory node, in bytes of address space. Unused memory costs nothing.
const NODE_MEMORY: u64 = 1 << 30;

pub(crate) fn run(args: &BenchLinked) -> Result<End, Failure> {
    let BenchLinked { rows, links } = args;
    let plan = rows.plan();
    let screen = Screen::begin("mind", rows.json, links.link);
    let outcome = measure(&plan, &mut OwnRacks(links.link), |told| screen.hear(told))?;
    screen.end(&plan.only, outcome)
}

/// Runs `farmem squeezed`, the benchmark process under a memory limit.
pub(crate) fn squeezed(pages: usize, rounds: usize) -> Result<End, Failure> {
    let ended = farmem_bench::mind::squeezed(pages, rounds);
    ended.map(|()| End::Fine).map_err(|e| {
        Failure::environment(format!("the benchmark process under a memory limit failed: {e}"), "")
    })
}

/// Runs `farmem calls`, the benchmark process that makes system calls.
pub(crate) fn calls() -> Result<End, Failure> {
    let ended = farmem_bench::mind::calls();
    ended.map(|()| End::Fine).map_err(|e| {
        Failure::environment(format!("the benchmark process that makes system calls failed: {e}"), "")
    })
}

/// Racks whose links have this profile.
struct OwnRacks(LinkProfile);

struct OwnRack(RackFile);

impl AsRef<RackConfig> for OwnRack {
    fn as_ref(&self) -> &RackConfig {
        self.0.config()
    }
}

impl Racks for OwnRacks {
    type Rack = OwnRack;
    type Failure = Failure;

    fn describe(
        &mut self,
        nodes: u8,
        transport: Transport,
        placement: Placement,
    ) -> Result<OwnRack, Failure> {
        let shape = Shape {
            nodes,
            memory: NODE_MEMORY,
            transport,
            waiting: Waiting::Block,
            placement,
            prefetch: farmem::Prefetch::Bursts,
            link: self.0,
        };
        let file = RackFile::new("mind", shape)?;
        serve::make_state(file.config())?;
        Ok(OwnRack(file))
    }
}
