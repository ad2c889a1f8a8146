//! Access to the tree's nodes in far memory: reads, replacements and new nodes for the tree algorithms.

use super::places::{Places, replace};
use farmem_client::{Error, FarMemory};
use farmem_index::blink::{Fault, Head, NODE_LEN, Node, Nodes};
use farmem_traversal::Program;
use farmem_wire::VirtAddr;

/// The cause that stopped an operation of the tree.
pub(super) enum Stop {
    Memory(Error),
    Tree(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Tree(fault)
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Memory(error) => error,
            Stop::Tree(Fault::Broken { at, what }) => Self::Broken { addr: at, what },
            Stop::Tree(Fault::Busy) => {
                Self::Contended { what: "a B-link tree".into(), tries: farmem_index::blink::TRIES_MAX }
            }
        }
    }
}

/// Far memory seen as tree nodes.
pub(super) struct FarNodes<'a, M: ?Sized> {
    pub(super) memory: &'a mut M,
    pub(super) replace: &'a Program,
    /// Places for new nodes; `None` for readers.
    pub(super) places: Option<&'a mut Places>,
}

impl<M: FarMemory + ?Sized> Nodes for FarNodes<'_, M> {
    type Error = Stop;

    fn read(&mut self, at: VirtAddr) -> Result<Node, Stop> {
        let mut bytes = [0; NODE_LEN];
        self.memory.read(at, &mut bytes).map_err(Stop::Memory)?;
        Node::parse(&bytes).map_err(|error| Fault::Broken { at, what: error.0 }.into())
    }

    fn replace(&mut self, at: VirtAddr, head: Head, node: &Node) -> Result<bool, Stop> {
        replace(self.memory, self.replace, (at, head), node).map_err(Stop::Memory)
    }

    fn create(&mut self, node: &Node, near: VirtAddr) -> Result<(VirtAddr, Head), Stop> {
        let places = self.places.as_mut().expect("only a writer creates nodes");
        places.create(self.memory, self.replace, node, near).map_err(Stop::Memory)
    }

    fn retire(&mut self, at: VirtAddr) {
        let places = self.places.as_mut().expect("only a writer retires nodes");
        places.keep(at);
    }
}
