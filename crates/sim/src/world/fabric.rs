//! The index switches around a rack: a core, pods with an aggregation switch each, and their edge switches
//! (Fat-B+Tree IV-A).

use super::{Layout, World};
use crate::HostMachine;
use crate::sim_node::RoleId;
use farmem_control::api::{JoinIndex, Tier};

impl Layout {
    /// Returns the number of index switches: the core is the first, then come the aggregation switches, then
    /// the edges, pod by pod.
    #[must_use]
    pub const fn index_switches(&self) -> u16 {
        if self.pods == 0 { 0 } else { 1 + self.pods + self.pods * self.edges }
    }

    /// Returns the join request of an index switch.
    pub(super) fn index_join(&self, index: u16) -> JoinIndex {
        let (pods, edges) = (self.pods, self.pods * self.edges);
        let names =
            |kind: &str, numbers: std::ops::Range<u16>| numbers.map(|n| format!("{kind}{n}")).collect();
        let gid = format!("{:?}", RoleId::Index(index).gid());
        let (name, tier, below) = if index == 1 {
            ("core".to_owned(), Tier::Core, names("pod", 1..pods + 1))
        } else if index <= 1 + pods {
            let pod = index - 1;
            (
                format!("pod{pod}"),
                Tier::Aggregation,
                names("edge", (pod - 1) * self.edges + 1..pod * self.edges + 1),
            )
        } else {
            let edge = index - 1 - pods;
            let nodes = |edge: u16| {
                1 + u16::try_from(u32::from(self.nodes) * u32::from(edge) / u32::from(edges))
                    .expect("no more than nodes")
            };
            (format!("edge{edge}"), Tier::Edge, names("node", nodes(edge - 1)..nodes(edge)))
        };
        JoinIndex { name, gid, tier, below }
    }
}

impl<H: HostMachine> World<H> {}
