//! The racks of benchmarks: descriptions, and processes of this command.

use crate::args::NATIVE_ROLE;
use crate::outcome::Failure;
use crate::rack_file::{self, RackFile};
use crate::supervisor::Supervisor;
use farmem::{LinkProfile, Placement, Prefetch, Rack, RackConfig, Transport, Waiting, serve};
use farmem_bench::{NodeKind, Racks, Shape};

/// Starter of racks like `farmem up`, with all roles on one CPU, and with links of this transport and
/// profile. Described racks choose their transport.
#[derive(Clone, Copy)]
pub(super) struct OwnRacks {
    pub(super) transport: Transport,
    pub(super) link: LinkProfile,
}

/// Description of a rack, in a directory of its own.
pub(super) struct OwnDescription(RackFile);

impl AsRef<RackConfig> for OwnDescription {
    fn as_ref(&self) -> &RackConfig {
        self.0.config()
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
    type Description = OwnDescription;
    type Rack = OwnRack;
    type Failure = Failure;

    fn describe(&mut self, shape: Shape) -> Result<OwnDescription, Failure> {
        let Shape { nodes, memory, transport, waiting, placement } = shape;
        let (prefetch, link) = (Prefetch::Bursts, self.link);
        let shape = rack_file::Shape { nodes, memory, transport, waiting, placement, prefetch, link };
        let file = RackFile::new("bench", shape)?;
        serve::make_state(file.config())?;
        Ok(OwnDescription(file))
    }

    fn start_with(&mut self, nodes: u8, kind: NodeKind, memory: u64, more: &str) -> Result<OwnRack, Failure> {
        let Self { transport, link } = *self;
        let (waiting, placement, prefetch) = (Waiting::Block, Placement::SameCpu, Prefetch::Auto);
        let shape = rack_file::Shape { nodes, memory, transport, waiting, placement, prefetch, link };
        let file = RackFile::with("bench", shape, more)?;
        let config = file.config().clone();
        let processes = match kind {
            NodeKind::Offload => Supervisor::start(config)?,
            NodeKind::Native { workspaces, stretch } => {
                let nanos = format!("--stretch-ns={}", stretch.as_nanos());
                let workspaces = format!("--workspaces={workspaces}");
                Supervisor::start_nodes_by(config, &[NATIVE_ROLE.to_owned(), workspaces, nanos])?
            }
        };
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
