//! The published parts of a tree: a section at the rack's switch, or one part at each index switch of a
//! FatTree; and the counters of all parts.
//!
//! Key types: [`Target`], [`PublishedParts`] and [`Counters`]. The parts of several switches are weighed as one
//! section: the core's ranges, then the sets of all other switches in look-up order.

use super::super::fabric::{core_of, tier_of};
use super::super::publish::{name_of, soft_section};
use super::super::{BLinkTree, Extent, record_program};
use farmem_client::api::{RackOverview, SoftCounted, Tier};
use farmem_client::{Client, Error};
use farmem_index::{Hits, Rates, TreeSection, TreeView, divide, edition};
use farmem_wire::{NodeId, ProgramHash, VirtAddr};
use std::collections::BTreeMap;

/// The switches that lead the look-ups.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Target {
    /// The rack's switch.
    #[default]
    RackSwitch,
    /// The index switches of the rack's FatTree (Fat-B+Tree IV-A).
    FatTree,
}

/// The parts of a tree, each at its switch; switch `None` is the rack's. The last part has the fat root.
#[derive(Clone, Debug, Default)]
pub(super) struct PublishedParts {
    pub(super) parts: Vec<PublishedPart>,
}

/// The part that one switch holds or is about to load.
#[derive(Clone, Debug)]
pub(super) struct PublishedPart {
    pub(super) switch: Option<u16>,
    /// The tier of an index switch; `None` for the rack's switch.
    tier: Option<Tier>,
    pub(super) section: TreeSection,
    pub(super) edition: u64,
    pub(super) bytes: usize,
}

impl PublishedPart {
    pub(super) fn new(switch: Option<u16>, tier: Option<Tier>, section: TreeSection) -> Self {
        let bytes = section.emit();
        Self { switch, tier, section, edition: edition(&bytes), bytes: bytes.len() }
    }
}

/// A fat root, or sets that a look-up passes at one point: one set of each switch of a tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// The layer's name.
    pub name: String,
    /// Descents that the layer advanced.
    pub hits: u64,
    /// Ranges of the fat root, or nodes of all these sets.
    pub entries: usize,
    /// Switches that hold a part of the layer.
    pub switches: usize,
}

impl PublishedParts {
    /// Selects a section of this extent from the nodes in `view`.
    pub(super) fn select(
        tree: &BLinkTree,
        view: &TreeView,
        extent: Extent,
        records: ProgramHash,
        overview: Option<&RackOverview>,
    ) -> Result<Self, Error> {
        let Some(overview) = overview else {
            let mut section = tree.select(view, extent);
            section.programs.push(records);
            return Ok(Self { parts: vec![PublishedPart::new(None, None, section)] });
        };
        let core = core_of(overview)?;
        let programs = [tree.programs.get.hash(), tree.programs.scan.hash(), records];
        let server_of = |addr: VirtAddr| {
            let its = overview.nodes.iter().find(|node| addr.0.wrapping_sub(node.base) < node.capacity);
            its.map(|node| NodeId(node.node))
        };
        let parts = divide(view, (tree.tree.root, &programs), &core, extent, &server_of);
        let held = |(index, section)| PublishedPart::new(Some(index), tier_of(overview, index), section);
        Ok(Self { parts: parts.into_iter().map(held).collect() })
    }

    /// Merges all parts into one section, for weighing only. No switch holds this section.
    pub(super) fn whole(&self) -> TreeSection {
        let mut parts = self.parts.iter().rev();
        let Some(top) = parts.next() else {
            return TreeSection { root: VirtAddr::NULL, programs: vec![], ranges: vec![], sets: vec![] };
        };
        let mut whole = top.section.clone();
        whole.sets.extend(parts.flat_map(|part| part.section.sets.iter().cloned()));
        whole
    }

    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Returns true when the switches already hold these parts, so that no publication is needed.
    pub(super) fn is(&self, other: &Self) -> bool {
        let key =
            |held: &Self| -> Vec<_> { held.parts.iter().map(|part| (part.switch, part.edition)).collect() };
        key(self) == key(other)
    }

    /// Loads each part into its switch, the part with the fat root last. Returns the epoch of the last image.
    pub(super) fn publish(&self, client: &mut Client) -> Result<u64, Error> {
        let mut epoch = 0;
        for part in &self.parts {
            epoch = client.load_soft_state_at(part.switch, vec![soft_section(&part.section)])?;
        }
        Ok(epoch)
    }

    /// Returns the layers, from the fat root on, with their hits in `counts`, which has the counters of each
    /// part.
    pub(super) fn layers(&self, counts: &[Vec<u32>]) -> Vec<Layer> {
        let mut layers: Vec<(Option<(Tier, usize)>, Layer)> = Vec::new();
        for (n, part) in self.parts.iter().enumerate().rev() {
            let none = vec![];
            let hits = Hits::of(&part.section, counts.get(n).unwrap_or(&none));
            if n + 1 == self.parts.len() {
                let entries = part.section.ranges.len();
                let root = Layer { name: "fat root".to_owned(), hits: hits.queries, entries, switches: 1 };
                layers.push((None, root));
            }
            for (set, nodes) in part.section.sets.iter().enumerate() {
                let name = match part.tier {
                    Some(tier) => format!("{} set {}", tier.name(), set + 1),
                    None => format!("set {}", set + 1),
                };
                let key = part.tier.map(|tier| (tier, set));
                let known = layers.iter_mut().find(|(of, _)| key.is_some() && *of == key);
                let layer = match known {
                    Some((_, layer)) => layer,
                    None => {
                        layers.push((key, Layer { name, hits: 0, entries: 0, switches: 0 }));
                        &mut layers.last_mut().expect("it was pushed").1
                    }
                };
                layer.hits += hits.sets.get(set).copied().unwrap_or(0);
                layer.entries += nodes.len();
                layer.switches += 1;
            }
        }
        // A look-up passes the sets of a tier one after the other, those of the tier above first.
        layers.sort_by_key(|(key, _)| *key);
        layers.into_iter().map(|(_, layer)| layer).collect()
    }

    /// Adds the counters of the parts to `rates`.
    pub(super) fn tell(&self, rates: &mut Rates, counts: &[Vec<u32>]) {
        let parts: Vec<(&TreeSection, &[u32])> =
            self.parts.iter().map(|part| &part.section).zip(counts.iter().map(Vec::as_slice)).collect();
        rates.take_parts(&parts);
    }
}

/// A reader of a tree's counters, epoch by epoch, at each switch.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// The latest reading at each switch, with its counters.
    last: BTreeMap<Option<u16>, (SoftCounted, Vec<u32>)>,
}

impl Counters {
    /// Returns the counts at a switch since the last reading, and the image that they belong to. Counters of
    /// another image or of a reloaded switch start at 0.
    pub(super) fn read(
        &mut self,
        client: &mut Client,
        tree: &BLinkTree,
        switch: Option<u16>,
    ) -> Result<(SoftCounted, Vec<u32>), Error> {
        let counted = client.soft_counts(switch, name_of(tree.tree.root))?;
        let now: Vec<u32> =
            counted.counts.0.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
        let is_same = |old: &SoftCounted| {
            (old.epoch, old.life, old.edition) == (counted.epoch, counted.life, counted.edition)
        };
        let since = match self.last.get(&switch) {
            Some((old, before)) if is_same(old) => {
                now.iter().zip(before).map(|(now, before)| now.wrapping_sub(*before)).collect()
            }
            _ => now.clone(),
        };
        self.last.insert(switch, (counted.clone(), now));
        Ok((counted, since))
    }
}

/// Returns the hash of the look-up program of record trees, which descends the same tree.
pub(super) fn records_of(client: &Client) -> ProgramHash {
    record_program(client.scratch_len_max()).hash()
}
