//! Publication of a tree in the switches of a FatTree (Fat-B+Tree IV-A).
//!
//! The tree of all servers is one B-link tree. With [`Layout::Partitioned`](crate::Layout::Partitioned) and
//! [`BLinkTree::load`], each server holds one range of the keys and the nodes above them: the server's own
//! tree. The super-root joins these trees. A split creates the new node at the server of the old one.

use super::publish::{check, name_of, soft_section};
use super::{BLinkTree, Extent};
use farmem_client::api::{RackOverview, Tier};
use farmem_client::{Client, Error, FarMemory};
use farmem_index::{FabricSwitch, Rates, TreeSection, divide};
use farmem_wire::{NodeId, VirtAddr};

/// Returns the core switch of a rack, with the switches below it.
///
/// # Errors
/// [`Error::Missing`] when the rack has no core switch.
pub(super) fn core_of(overview: &RackOverview) -> Result<FabricSwitch, Error> {
    let core = overview.index.iter().find(|info| info.tier == Tier::Core);
    core.and_then(|core| fabric_switch(overview, &core.name, Tier::Core))
        .ok_or_else(|| Error::Missing { what: "core switch in this rack".into() })
}

/// Returns the tier of a switch.
pub(super) fn tier_of(overview: &RackOverview, index: u16) -> Option<Tier> {
    overview.index.iter().find(|info| info.index == index).map(|info| info.tier)
}

/// An index switch and its tier; `None` for the rack's switch.
pub(super) type SwitchTier = (Option<u16>, Option<Tier>);

/// Returns the switches with their tiers in look-up order: the core first, each switch before those below it.
///
/// # Errors
/// As [`core_of`].
pub(super) fn downwards(overview: &RackOverview) -> Result<Vec<SwitchTier>, Error> {
    let mut all = vec![core_of(overview)?];
    let mut at = 0;
    while at < all.len() {
        let below = core::mem::take(&mut all[at].below);
        all.extend(below);
        at += 1;
    }
    Ok(all.iter().map(|switch| (Some(switch.index), tier_of(overview, switch.index))).collect())
}

/// Returns the switch of this name and tier. The recursion ends, because switches below have lower tiers.
fn fabric_switch(overview: &RackOverview, name: &str, tier: Tier) -> Option<FabricSwitch> {
    let info = overview.index.iter().find(|info| info.name == name && info.tier >= tier)?;
    let lower = [Tier::Aggregation, Tier::Edge].into_iter().find(|lower| *lower > info.tier);
    let below = info.below.iter().filter_map(|name| fabric_switch(overview, name, lower?)).collect();
    Some(FabricSwitch {
        index: info.index,
        servers: info.servers.iter().copied().map(NodeId).collect(),
        below,
    })
}

impl BLinkTree {
    /// Selects the section of each switch of a rack's FatTree for the tree's present state, keyed by the
    /// switch's number. The core receives the fat root. Each other switch receives node sets of the servers
    /// that it leads to. `overview` lists the switches ([`Client::overview`]).
    ///
    /// # Errors
    /// [`Error::Missing`] when the rack has no core switch; otherwise as [`BLinkTree::section`].
    pub fn fabric_sections(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        overview: &RackOverview,
        extent: Extent,
    ) -> Result<Vec<(u16, TreeSection)>, Error> {
        check(&extent)?;
        let core = core_of(overview)?;
        // As many nodes of a level as all switches of a tier can hold.
        let switches = overview.index.len();
        let nodes = extent.nodes.saturating_mul(switches);
        let read = Extent { ranges: extent.ranges, sets: 1, nodes };
        let view = self.view(memory, &Rates::default(), read)?;
        let server_of = |addr: VirtAddr| {
            let its = overview.nodes.iter().find(|node| addr.0.wrapping_sub(node.base) < node.capacity);
            its.map(|node| NodeId(node.node))
        };
        let programs = [self.programs.get.hash(), self.programs.scan.hash()];
        Ok(divide(&view, (self.tree.root, &programs), &core, extent, &server_of))
    }
}

/// Publishes the parts of a tree ([`BLinkTree::fabric_sections`]) at their switches in the given order, the
/// core's last. From then on, traversals of this client's domain go through the core switch.
/// [`withdraw_fabric`] or the end of the client removes the parts.
///
/// # Errors
/// [`Error::Refused`] when a switch has no room or is gone; [`Error::Api`] when the control plane does not
/// answer. Some switches may then have their part.
pub fn publish_fabric(client: &mut Client, parts: &[(u16, TreeSection)]) -> Result<(), Error> {
    for (switch, tree) in parts {
        client.load_soft_state_at(Some(*switch), vec![soft_section(tree)])?;
    }
    Ok(())
}

/// Withdraws the tree with this root from all switches of the FatTree, the core's part first.
///
/// # Errors
/// [`Error::Refused`] when a switch does not answer; [`Error::Api`] when the control plane does not.
pub fn withdraw_fabric(client: &mut Client, root: VirtAddr) -> Result<(), Error> {
    let mut switches = client.overview()?.index;
    switches.sort_by_key(|info| info.tier);
    for switch in switches {
        client.clear_soft_state_at(Some(switch.index), vec![name_of(root)])?;
    }
    Ok(())
}
