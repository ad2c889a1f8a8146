//! Agents that keep a tree's index in switches up to date with its look-ups: read the counters, read the
//! tree, select nodes, and publish the selection when it differs enough (Fat-B+Tree II, III-C).
//!
//! Key types: [`IndexAgent`], which publishes, and [`IndexWatch`], which only observes. Both work at the
//! rack's switch or at the index switches of a FatTree ([`Target`]). Both advance in steps of one epoch and
//! have no clock.
//!
//! An agent reads the tree in the domain of the tree's owner. One tree has one agent: two agents would
//! overwrite each other.

mod published;

pub use published::{Layer, Target};

use super::publish::{check, name_of};
use super::{BLinkTree, Extent};
use farmem_client::api::{ErrorCode, RackOverview};
use farmem_client::{Client, Error};
use farmem_index::{
    Hits, RATE_ONE, Rates, TreeSection, TreeTables, TreeView, edition, stale_steps, visits_saved,
};
use farmem_wire::ProgramHash;
use published::{Counters, PublishedPart, PublishedParts, records_of};

/// A new selection is published when it saves more than one visit in this many, of all visits of inner nodes.
pub const GAIN_MIN: u64 = 1024;

/// The outcome of one epoch.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EpochReport {
    /// The epoch of the image at the switch; in a FatTree, at the core switch.
    pub epoch: u64,
    /// True when this step published something.
    pub published: bool,
    /// Hits of the tables since the previous step. The sets are those of [`EpochReport::layers`].
    pub hits: Hits,
    /// Ranges of the published fat root.
    pub ranges: usize,
    /// Nodes of the published sets, layer by layer.
    pub sets: Vec<usize>,
    /// The fat root and the sets, with the hits of each. After a step that published, the hits belong to the
    /// previous entries.
    pub layers: Vec<Layer>,
    /// Bytes of all sections of the tree.
    pub bytes: usize,
    /// The switches that hold a part; `None` is the rack's switch.
    pub switches: Vec<Option<u16>>,
    /// Visits of inner nodes that look-ups make without an index, in millionths of a look-up.
    pub visits_ppm: u64,
    /// The share of these visits that the tables of the epoch save.
    pub saved_ppm: u64,
    /// The share of these visits that the best selection for the same rates saves.
    pub best_ppm: u64,
}

impl EpochReport {
    /// Returns the visits that the selection saves, relative to the best selection for the same rates: 1 when
    /// the best saves nothing.
    #[must_use]
    pub fn of_best(&self) -> f64 {
        if self.best_ppm == 0 { 1.0 } else { self.saved_ppm as f64 / self.best_ppm as f64 }
    }

    /// Records the hits.
    fn answered(&mut self, held: &PublishedParts, counts: &[Vec<u32>]) {
        let layers = held.layers(counts);
        let mut hits = layers.iter().map(|layer| layer.hits);
        self.hits = Hits { queries: hits.next().unwrap_or(0), sets: hits.collect() };
        self.layers = layers;
    }

    /// Records what is published now.
    fn describes(&mut self, held: &PublishedParts) {
        let layers = held.layers(&[]);
        let mut entries = layers.iter().map(|layer| layer.entries);
        (self.ranges, self.sets) = (entries.next().unwrap_or(0), entries.collect());
        let hits: Vec<u64> = self.layers.iter().map(|layer| layer.hits).collect();
        self.layers = layers;
        self.layers.iter_mut().zip(hits).for_each(|(layer, hits)| layer.hits = hits);
        self.bytes = held.bytes();
        self.switches = held.parts.iter().map(|part| part.switch).collect();
    }

    /// Records the saved visits, the best possible saving, and all visits, as millionths of a look-up.
    fn weigh(&mut self, rates: &Rates, (saved, best, all): (u64, u64, u64)) {
        let whole = u128::from(rates.whole().max(RATE_ONE));
        let ppm = |visits: u64| u64::try_from(u128::from(visits) * 1_000_000 / whole).unwrap_or(u64::MAX);
        (self.saved_ppm, self.best_ppm, self.visits_ppm) = (ppm(saved), ppm(best), ppm(all));
    }
}

/// An agent that publishes a tree's index and follows the tree's look-ups.
#[derive(Debug)]
pub struct IndexAgent {
    tree: BLinkTree,
    extent: Extent,
    target: Target,
    rates: Rates,
    counters: Counters,
    active: Option<PublishedParts>,
    /// The look-up program of a tree of records, which descends the same tree.
    records: Option<ProgramHash>,
}

impl IndexAgent {
    /// Creates an agent of a tree for the rack's switch. Nothing is published yet.
    ///
    /// # Errors
    /// [`Error::Count`] when `extent` exceeds what a switch takes.
    pub fn new(tree: BLinkTree, extent: Extent) -> Result<Self, Error> {
        Self::at(tree, extent, Target::RackSwitch)
    }

    /// Creates an agent for these switches. In a FatTree, `extent` gives the ranges of the core and the sets
    /// of each switch below ([`Extent::FAT_TREE`] is the paper's).
    ///
    /// # Errors
    /// [`Error::Count`] when `extent` exceeds what a switch takes.
    pub fn at(tree: BLinkTree, extent: Extent, target: Target) -> Result<Self, Error> {
        check(&extent)?;
        let (rates, counters) = (Rates::default(), Counters::default());
        Ok(Self { tree, extent, target, rates, counters, active: None, records: None })
    }

    /// Returns the tree.
    #[must_use]
    pub const fn tree(&self) -> &BLinkTree {
        &self.tree
    }

    /// Returns the section published last and not withdrawn: the part with the fat root.
    #[must_use]
    pub fn section(&self) -> Option<&TreeSection> {
        self.active.as_ref().and_then(|held| held.parts.last()).map(|part| &part.section)
    }

    /// Runs one epoch: reads the counters and the part of the tree that a selection may use, selects, and
    /// publishes. The agent publishes when nothing of this tree is published, or when a new selection saves
    /// more than one visit in [`GAIN_MIN`].
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Api`] when a switch or the control plane does not answer, or has no
    /// room; [`Error::Missing`] when there is no FatTree; [`Error::Contended`] when other writers changed the
    /// tree during every read; [`Error`] when the tree cannot be read. The published index stays, and the
    /// next step tries again.
    pub fn step(&mut self, client: &mut Client) -> Result<EpochReport, Error> {
        let mut stepped = EpochReport::default();
        let overview = overview_of(client, self.target)?;
        self.count(client, &mut stepped)?;
        let view = self.tree.view(client, &self.rates, read_extent(self.extent, overview.as_ref()))?;
        let records = *self.records.get_or_insert_with(|| records_of(client));
        let best = PublishedParts::select(&self.tree, &view, self.extent, records, overview.as_ref())?;
        let (saved, all) = self.saved(&view);
        let best_saved = visits_saved(&view, &best.whole()).0;
        stepped.weigh(&self.rates, (saved, best_saved, all));
        let gains = (u128::from(best_saved.saturating_sub(saved))) * u128::from(GAIN_MIN) > u128::from(all);
        let stays_active = self.active.as_ref().is_some_and(|active| !gains || active.is(&best));
        if !stays_active {
            // Until the publication succeeds, the state of the switches is unknown.
            self.active = None;
            stepped.epoch = best.publish(client)?;
            stepped.published = true;
            self.active = Some(best);
        }
        if let Some(active) = &self.active {
            stepped.describes(active);
        }
        Ok(stepped)
    }

    /// Withdraws the tree.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Api`] when a switch or the control plane does not answer.
    pub fn withdraw(&mut self, client: &mut Client) -> Result<(), Error> {
        self.active = None;
        match self.target {
            Target::RackSwitch => super::withdraw(client, self.tree.tree.root),
            Target::FatTree => super::withdraw_fabric(client, self.tree.tree.root),
        }
    }

    /// Reads the hits of the tables. A part that is gone or was replaced by another publisher is published
    /// again.
    fn count(&mut self, client: &mut Client, stepped: &mut EpochReport) -> Result<(), Error> {
        let Some(active) = &self.active else { return Ok(()) };
        let mut counts = Vec::with_capacity(active.parts.len());
        for part in &active.parts {
            match self.counters.read(client, &self.tree, part.switch) {
                Ok((counted, since)) if counted.edition == part.edition => {
                    stepped.epoch = counted.epoch;
                    counts.push(since);
                }
                Ok(_) => break,
                Err(error) if error.code() == Some(ErrorCode::NotFound) => break,
                Err(error) => return Err(error),
            }
        }
        if counts.len() < active.parts.len() {
            self.active = None;
            return Ok(());
        }
        active.tell(&mut self.rates, &counts);
        stepped.answered(active, &counts);
        Ok(())
    }

    fn saved(&self, view: &TreeView) -> (u64, u64) {
        let nothing =
            TreeSection { root: self.tree.tree.root, programs: vec![], ranges: vec![], sets: vec![] };
        match &self.active {
            Some(active) => net_saved(view, &active.whole()),
            None => (0, visits_saved(view, &nothing).1),
        }
    }
}

/// Returns the rack's overview where the target needs one.
fn overview_of(client: &mut Client, target: Target) -> Result<Option<RackOverview>, Error> {
    match target {
        Target::RackSwitch => Ok(None),
        Target::FatTree => client.overview().map(Some),
    }
}

/// Returns the extent to read of a tree: of each level, as many nodes as all switches of a tier can hold.
fn read_extent(extent: Extent, overview: Option<&RackOverview>) -> Extent {
    let switches = overview.map_or(1, |overview| overview.index.len().max(1));
    Extent { nodes: extent.nodes.saturating_mul(switches), ..extent }
}

/// Returns the visits that a section saves, less the extra steps to the right where the tree was split or
/// merged since (Fat-B+Tree IV-B), and all visits.
fn net_saved(view: &TreeView, section: &TreeSection) -> (u64, u64) {
    let (saved, all) = visits_saved(view, section);
    (saved.saturating_sub(stale_steps(view, section)), all)
}

/// An observer of a tree that an agent has published. A watch works from anywhere in the agent's domain and
/// publishes nothing.
#[derive(Debug)]
pub struct IndexWatch {
    tree: BLinkTree,
    extent: Extent,
    target: Target,
    counters: Counters,
}

/// One read of the published tree.
struct WatchReading {
    epoch: u64,
    published: PublishedParts,
    /// The counters of each part.
    counts: Vec<Vec<u32>>,
}

impl IndexWatch {
    /// Creates a watch of a tree at the rack's switch. The best selection behind [`EpochReport::best_ppm`] has
    /// this extent.
    ///
    /// # Errors
    /// [`Error::Count`] when `extent` exceeds what a switch takes.
    pub fn new(tree: BLinkTree, extent: Extent) -> Result<Self, Error> {
        Self::at(tree, extent, Target::RackSwitch)
    }

    /// Creates a watch of a tree at these switches.
    ///
    /// # Errors
    /// [`Error::Count`] when `extent` exceeds what a switch takes.
    pub fn at(tree: BLinkTree, extent: Extent, target: Target) -> Result<Self, Error> {
        check(&extent)?;
        Ok(Self { tree, extent, target, counters: Counters::default() })
    }

    /// Returns the hits since the last look, or since publication at the first look, and what a selection
    /// with knowledge of these hits would have saved. Below the nodes that the tables lead to, only the
    /// number of children is known.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::NotFound`] when nothing of the tree is published or the image
    /// is not active; [`Error::Contended`] when the publication changed during every read; other errors as
    /// [`IndexAgent::step`].
    pub fn look(&mut self, client: &mut Client) -> Result<EpochReport, Error> {
        let overview = overview_of(client, self.target)?;
        for _ in 0..LOOKS_MAX {
            let Some(WatchReading { epoch, published, counts }) = self.read(client, overview.as_ref())?
            else {
                // An agent is publishing right now.
                continue;
            };
            let mut rates = Rates::default();
            published.tell(&mut rates, &counts);
            let view = self.tree.view(client, &rates, read_extent(self.extent, overview.as_ref()))?;
            let (saved, all) = net_saved(&view, &published.whole());
            let records = records_of(client);
            let best = PublishedParts::select(&self.tree, &view, self.extent, records, overview.as_ref())?;
            let best = visits_saved(&view, &best.whole()).0;
            let mut stepped = EpochReport { epoch, ..EpochReport::default() };
            stepped.answered(&published, &counts);
            stepped.describes(&published);
            stepped.weigh(&rates, (saved, best, all));
            return Ok(stepped);
        }
        Err(Error::Contended { what: "the published part of a tree".into(), tries: LOOKS_MAX })
    }

    /// Returns the published part at each switch and its counters since the last look; `None` while an agent
    /// publishes.
    fn read(
        &mut self,
        client: &mut Client,
        overview: Option<&RackOverview>,
    ) -> Result<Option<WatchReading>, Error> {
        let switches = match overview {
            None => vec![(None, None)],
            Some(overview) => super::fabric::downwards(overview)?,
        };
        let (mut published, mut counts, mut epoch) = (PublishedParts::default(), Vec::new(), 0);
        // The part with the fat root comes last.
        for (switch, tier) in switches.into_iter().rev() {
            let bytes = client.soft_section(switch, name_of(self.tree.tree.root))?;
            let (counted, since) = self.counters.read(client, &self.tree, switch)?;
            if counted.edition != edition(&bytes) {
                return Ok(None);
            }
            let broken =
                |_| Error::Broken { addr: self.tree.tree.root, what: "the published part of a tree" };
            let section = TreeTables::parse(&bytes).map_err(broken)?.section();
            published.parts.push(PublishedPart::new(switch, tier, section));
            counts.push(since);
            epoch = counted.epoch;
        }
        Ok(Some(WatchReading { epoch, published, counts }))
    }
}

/// Attempts of a look while an agent publishes.
const LOOKS_MAX: u32 = 8;
