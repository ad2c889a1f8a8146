//! `farmem bench pulse`, with racks as processes of this command, over UDP.

use super::Screen;
use crate::args::{BenchDrawn, NodeRuns};
use crate::rack_file::{RackFile, Shape};
use crate::supervisor::Supervisor;
use crate::{End, Failure};
use farmem::{LinkProfile, Placement, Rack, Transport, Waiting};
use farmem_bench::pulse::{NodeKind, Racks, run as measure};
use std::path::Path;

pub(crate) fn run(args: &BenchDrawn) -> Result<End, Failure> {
    let plan = args.rows.plan();
    look_at_plots(args.plots.as_deref())?;
    let screen = Screen::begin("pulse", args.rows.json, args.links.link);
    let outcome = measure(&plan, args.plots.as_deref(), &mut OwnRacks::over_udp(args.links.link), |told| {
        screen.hear(told)
    })?;
    screen.end(&plan.only, outcome)
}

/// Checks that figures can be written to the directory. Figures are drawn after all measurements, so the
/// check comes first.
pub(super) fn look_at_plots(plots: Option<&Path>) -> Result<(), Failure> {
    let Some(directory) = plots else { return Ok(()) };
    let drawable = std::fs::create_dir_all(directory).and_then(|()| tempfile::tempfile_in(directory));
    drawable.map(drop).map_err(|error| {
        let what = format!("cannot draw into {}: {error}", directory.display());
        Failure::environment(what, "name a directory that can be written to with --plots")
    })
}

/// Starter of racks like `farmem up`, with all roles on one CPU, and with links of this transport and
/// profile.
pub(super) struct OwnRacks {
    pub(super) transport: Transport,
    pub(super) link: LinkProfile,
}

impl OwnRacks {
    pub(super) const fn over_udp(link: LinkProfile) -> Self {
        Self { transport: Transport::Udp, link }
    }
}

/// Rack of this command. The processes end before their directory is removed.
pub(super) struct OwnRack {
    rack: Rack,
    processes: Supervisor,
    _file: RackFile,
}

impl AsRef<Rack> for OwnRack {
    fn as_ref(&self) -> &Rack {
        &self.rack
    }
}

impl Racks for OwnRacks {
    type Rack = OwnRack;
    type Failure = Failure;

    fn start_with(&mut self, nodes: u8, kind: NodeKind, memory: u64, more: &str) -> Result<OwnRack, Failure> {
        let shape = Shape {
            nodes,
            memory,
            transport: self.transport,
            waiting: Waiting::Block,
            placement: Placement::SameCpu,
            prefetch: farmem::Prefetch::Auto,
            link: self.link,
        };
        let file = RackFile::with("bench", shape, more)?;
        let runs = match kind {
            NodeKind::Offload => NodeRuns::default(),
            NodeKind::Native { workspaces, stretch } => {
                let stretch_ns = u64::try_from(stretch.as_nanos()).unwrap_or(u64::MAX);
                NodeRuns { native: true, workspaces: Some(workspaces), stretch_ns }
            }
        };
        let processes = Supervisor::start_with(file.config().clone(), &runs.arguments())?;
        let rack = Rack::running(file.config().clone());
        Ok(OwnRack { rack, processes, _file: file })
    }

    fn start_over(
        &mut self,
        link: LinkProfile,
        nodes: u8,
        memory: u64,
        more: &str,
    ) -> Result<OwnRack, Failure> {
        Self { link, ..*self }.start_with(nodes, NodeKind::Offload, memory, more)
    }

    fn role(&self, rack: &OwnRack, name: &str) -> Option<u32> {
        rack.processes.processes().find(|(of, pid)| *of == name && *pid != 0).map(|(_, pid)| pid)
    }

    fn begin_again(&mut self, rack: &mut OwnRack, name: &str) -> Result<(), Failure> {
        rack.processes.begin_again(name)
    }

    fn processes(&self, rack: &OwnRack) -> Vec<u32> {
        rack.processes.processes().map(|(_, pid)| pid).collect()
    }
}
