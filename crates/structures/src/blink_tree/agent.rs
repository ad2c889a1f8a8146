//! Who keeps the index of a tree in switches as the look-ups have it: counts are read, the tree is read, nodes are selected, what differs enough is
//! published (Fat-B+Tree II, III-C).
//!
//! Key types: [`IndexAgent`], which publishes, and [`IndexWatch`], which only looks: at the rack's switch, or at the index switches of a FatTree ([`Target`]). Both go step by step, an epoch each; nothing here has a clock. An
//! agent alone reads the tree, in its owner's domain. One tree has one agent: two would take turns to publish over each other.

mod held;

pub use held::{Layer, Target};

use super::publish::{check, name_of};
use super::{BLinkTree, Extent};
use farmem_client::api::{ErrorCode, RackOverview};
use farmem_client::{Client, Error};
use farmem_index::{
    Hits, RATE_ONE, Rates, TreeSection, TreeTables, TreeView, edition, led_astray, visits_saved,
};
use farmem_wire::ProgramHash;
use held::{Counters, Held, HeldPart, records_of};

/// What is published is replaced when that saves, of all visits of inner nodes, more than one in so many.
pub const GAIN_MIN: u64 = 1024;

/// What became of an epoch.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Stepped {
    /// The epoch of the image that the switch has; of a FatTree, the core.
    pub epoch: u64,
    /// Something was published in this step.
    pub published: bool,
    /// What the tables answered since the step before. Sets are those of [`Stepped::layers`].
    pub hits: Hits,
    /// Ranges of the fat root that stands now.
    pub ranges: usize,
    /// Nodes of the sets that stand now, layer by layer.
    pub sets: Vec<usize>,
    /// The fat root and the sets, with what each answered. Behind a step that published, what answered had other entries than these.
    pub layers: Vec<Layer>,
    /// Bytes of all sections of the tree.
    pub bytes: usize,
    /// The switches that have a part; none is the rack's.
    pub switches: Vec<Option<u16>>,
    /// Visits of inner nodes that look-ups make without an index, in millionths of a look-up.
    pub visits_ppm: u64,
    /// Of these, what the tables that stood in the epoch save.
    pub saved_ppm: u64,
    /// Of these, what the best selection for the same rates saves.
    pub best_ppm: u64,
}

impl Stepped {
    /// What the selection saves of what the best one for the same rates does: 1 when that saves nothing.
    #[must_use]
    pub fn of_best(&self) -> f64 {
        if self.best_ppm == 0 { 1.0 } else { self.saved_ppm as f64 / self.best_ppm as f64 }
    }

    /// What answered.
    fn answered(&mut self, held: &Held, counts: &[Vec<u32>]) {
        let layers = held.layers(counts);
        let mut hits = layers.iter().map(|layer| layer.hits);
        self.hits = Hits { queries: hits.next().unwrap_or(0), sets: hits.collect() };
        self.layers = layers;
    }

    /// What stands now.
    fn describes(&mut self, held: &Held) {
        let layers = held.layers(&[]);
        let mut entries = layers.iter().map(|layer| layer.entries);
        (self.ranges, self.sets) = (entries.next().unwrap_or(0), entries.collect());
        let hits: Vec<u64> = self.layers.iter().map(|layer| layer.hits).collect();
        self.layers = layers;
        self.layers.iter_mut().zip(hits).for_each(|(layer, hits)| layer.hits = hits);
        self.bytes = held.bytes();
        self.switches = held.parts.iter().map(|part| part.switch).collect();
    }

    /// What is saved, what could be, and all visits: of rates, as millionths of a look-up.
    fn weigh(&mut self, rates: &Rates, (saved, best, all): (u64, u64, u64)) {
        let whole = u128::from(rates.whole().max(RATE_ONE));
        let ppm = |visits: u64| u64::try_from(u128::from(visits) * 1_000_000 / whole).unwrap_or(u64::MAX);
        (self.saved_ppm, self.best_ppm, self.visits_ppm) = (ppm(saved), ppm(best), ppm(all));
    }
}

/// Publishes a tree, and goes on to as its look-ups change.
#[derive(Debug)]
pub struct IndexAgent {
    tree: BLinkTree,
    extent: Extent,
    target: Target,
    rates: Rates,
    counters: Counters,
    standing: Option<Held>,
    /// The look-ups of a tree of records: they go down the same tree.
    records: Option<ProgramHash>,
}

impl IndexAgent {
    /// An agent of a tree for the rack's switch, which publishes nothing yet.
    ///
    /// # Errors
    /// [`Error::Count`] when more is asked for than a switch takes.
    pub fn new(tree: BLinkTree, extent: Extent) -> Result<Self, Error> {
        Self::at(tree, extent, Target::RackSwitch)
    }

    /// The same for these switches. In a FatTree `extent` is ranges of the core, and sets of each switch below it ([`Extent::FAT_TREE`] is the paper's).
    ///
    /// # Errors
    /// [`Error::Count`] when more is asked for than a switch takes.
    pub fn at(tree: BLinkTree, extent: Extent, target: Target) -> Result<Self, Error> {
        check(&extent)?;
        let (rates, counters) = (Rates::default(), Counters::default());
        Ok(Self { tree, extent, target, rates, counters, standing: None, records: None })
    }

    /// The tree.
    #[must_use]
    pub const fn tree(&self) -> &BLinkTree {
        &self.tree
    }

    /// What was published last, and not withdrawn: the part with the fat root.
    #[must_use]
    pub fn section(&self) -> Option<&TreeSection> {
        self.standing.as_ref().and_then(|held| held.parts.last()).map(|part| &part.section)
    }

    /// One epoch: reads what the tables counted and the part of the tree that a selection may be of, selects, and publishes when nothing of this tree
    /// stands, or what stands saves less than it could by more than one visit in [`GAIN_MIN`].
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Api`] when a switch or the control plane do not answer, or have no room; [`Error::Missing`] when there is no FatTree; [`Error::Contended`] when others changed the tree
    /// each time it was read; [`Error`] when it cannot be read. What stood goes on to stand, and the next step tries again.
    pub fn step(&mut self, client: &mut Client) -> Result<Stepped, Error> {
        let mut stepped = Stepped::default();
        let overview = overview_of(client, self.target)?;
        self.count(client, &mut stepped)?;
        let view = self.tree.view(client, &self.rates, read_extent(self.extent, overview.as_ref()))?;
        let records = *self.records.get_or_insert_with(|| records_of(client));
        let best = Held::select(&self.tree, &view, self.extent, records, overview.as_ref())?;
        let (saved, all) = self.saved(&view);
        let best_saved = visits_saved(&view, &best.whole()).0;
        stepped.weigh(&self.rates, (saved, best_saved, all));
        let gains = (u128::from(best_saved.saturating_sub(saved))) * u128::from(GAIN_MIN) > u128::from(all);
        let stands = self.standing.as_ref().is_some_and(|standing| !gains || standing.is(&best));
        if !stands {
            // Until it stands nobody knows what does.
            self.standing = None;
            stepped.epoch = best.publish(client)?;
            stepped.published = true;
            self.standing = Some(best);
        }
        if let Some(standing) = &self.standing {
            stepped.describes(standing);
        }
        Ok(stepped)
    }

    /// Withdraws the tree.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Api`] when a switch or the control plane do not answer.
    pub fn withdraw(&mut self, client: &mut Client) -> Result<(), Error> {
        self.standing = None;
        match self.target {
            Target::RackSwitch => super::withdraw(client, self.tree.tree.root),
            Target::FatTree => super::withdraw_fabric(client, self.tree.tree.root),
        }
    }

    /// Takes what the tables counted. What is not there any more, or is somebody else's, is to be published again.
    fn count(&mut self, client: &mut Client, stepped: &mut Stepped) -> Result<(), Error> {
        let Some(standing) = &self.standing else { return Ok(()) };
        let mut counts = Vec::with_capacity(standing.parts.len());
        for part in &standing.parts {
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
        if counts.len() < standing.parts.len() {
            self.standing = None;
            return Ok(());
        }
        standing.tell(&mut self.rates, &counts);
        stepped.answered(standing, &counts);
        Ok(())
    }

    fn saved(&self, view: &TreeView) -> (u64, u64) {
        let nothing =
            TreeSection { root: self.tree.tree.root, programs: vec![], ranges: vec![], sets: vec![] };
        match &self.standing {
            Some(standing) => net_saved(view, &standing.whole()),
            None => (0, visits_saved(view, &nothing).1),
        }
    }
}

/// Who is there, where that matters.
fn overview_of(client: &mut Client, target: Target) -> Result<Option<RackOverview>, Error> {
    match target {
        Target::RackSwitch => Ok(None),
        Target::FatTree => client.overview().map(Some),
    }
}

/// What is to be read of a tree: of each level as many nodes as all switches of a tier have room for.
fn read_extent(extent: Extent, overview: Option<&RackOverview>) -> Extent {
    let switches = overview.map_or(1, |overview| overview.index.len().max(1));
    Extent { nodes: extent.nodes.saturating_mul(switches), ..extent }
}

/// Visits that a section saves, less the steps to the right that it costs where the tree has been split and merged since (Fat-B+Tree IV-B); and all of them.
fn net_saved(view: &TreeView, section: &TreeSection) -> (u64, u64) {
    let (saved, all) = visits_saved(view, section);
    (saved.saturating_sub(led_astray(view, section)), all)
}

/// Looks at a tree that an agent has published, from anywhere in its domain, and publishes nothing.
#[derive(Debug)]
pub struct IndexWatch {
    tree: BLinkTree,
    extent: Extent,
    target: Target,
    counters: Counters,
}

/// The epoch, what stands at the switches, and what each counted.
type Looked = (u64, Held, Vec<Vec<u32>>);

impl IndexWatch {
    /// A watch of a tree at the rack's switch. The best selection that [`Stepped::best_ppm`] is of has this extent.
    ///
    /// # Errors
    /// [`Error::Count`] when more is asked for than a switch takes.
    pub fn new(tree: BLinkTree, extent: Extent) -> Result<Self, Error> {
        Self::at(tree, extent, Target::RackSwitch)
    }

    /// The same at these switches.
    ///
    /// # Errors
    /// [`Error::Count`] when more is asked for than a switch takes.
    pub fn at(tree: BLinkTree, extent: Extent, target: Target) -> Result<Self, Error> {
        check(&extent)?;
        Ok(Self { tree, extent, target, counters: Counters::default() })
    }

    /// What the tables answered since the last look, at the first one since the image stands; and what a selection would have saved that had known it. Of what
    /// lies further down than the tables lead nothing is known but the number of children.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::NotFound`] when nothing is published of the tree, or does not stand; [`Error::Contended`] when what was
    /// published changed each time it was read; others as [`IndexAgent::step`].
    pub fn look(&mut self, client: &mut Client) -> Result<Stepped, Error> {
        let overview = overview_of(client, self.target)?;
        for _ in 0..LOOKS_MAX {
            let Some((epoch, held, counts)) = self.read(client, overview.as_ref())? else {
                // An agent publishes just now.
                continue;
            };
            let mut rates = Rates::default();
            held.tell(&mut rates, &counts);
            let view = self.tree.view(client, &rates, read_extent(self.extent, overview.as_ref()))?;
            let (saved, all) = net_saved(&view, &held.whole());
            let records = records_of(client);
            let best = Held::select(&self.tree, &view, self.extent, records, overview.as_ref())?;
            let best = visits_saved(&view, &best.whole()).0;
            let mut stepped = Stepped { epoch, ..Stepped::default() };
            stepped.answered(&held, &counts);
            stepped.describes(&held);
            stepped.weigh(&rates, (saved, best, all));
            return Ok(stepped);
        }
        Err(Error::Contended { what: "what is published of a tree".into(), tries: LOOKS_MAX })
    }

    /// What stands at each switch, and what that counted since the last look; none while an agent publishes.
    fn read(
        &mut self,
        client: &mut Client,
        overview: Option<&RackOverview>,
    ) -> Result<Option<Looked>, Error> {
        let switches = match overview {
            None => vec![(None, None)],
            Some(overview) => super::fabric::downwards(overview)?,
        };
        let (mut held, mut all, mut epoch) = (Held::default(), Vec::new(), 0);
        // The one with the fat root is the last.
        for (switch, tier) in switches.into_iter().rev() {
            let bytes = client.soft_section_at(switch, name_of(self.tree.tree.root))?;
            let (counted, since) = self.counters.read(client, &self.tree, switch)?;
            if counted.edition != edition(&bytes) {
                return Ok(None);
            }
            let broken = |_| Error::Broken { addr: self.tree.tree.root, what: "what is published of a tree" };
            let section = TreeTables::parse(&bytes).map_err(broken)?.section();
            held.parts.push(HeldPart::new(switch, tier, section));
            all.push(since);
            epoch = counted.epoch;
        }
        Ok(Some((epoch, held, all)))
    }
}

/// How often a look is taken when an agent publishes meanwhile.
const LOOKS_MAX: u32 = 8;
