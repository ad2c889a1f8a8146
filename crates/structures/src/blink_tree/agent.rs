//! Who keeps the index of a tree in the switch as the look-ups have it: counts are read, the tree is read, nodes are selected, what differs enough is
//! published (Fat-B+Tree II, III-C).
//!
//! Key types: [`IndexAgent`], which publishes, and [`IndexWatch`], which only looks. Both go step by step, an epoch each; nothing here has a clock. An
//! agent alone reads the tree, in its owner's domain. One tree has one agent: two would take turns to publish over each other.

use super::publish::check;
use super::publish::name_of;
use super::{BLinkTree, Extent, publish, record_program, withdraw};
use farmem_client::api::{ErrorCode, SoftCounted};
use farmem_client::{Client, Error};
use farmem_index::{
    Hits, RATE_ONE, Rates, TreeSection, TreeTables, TreeView, edition, led_astray, visits_saved,
};
use farmem_wire::ProgramHash;

/// What is published is replaced when that saves, of all visits of inner nodes, more than one in so many.
pub const GAIN_MIN: u64 = 1024;

/// What became of an epoch.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Stepped {
    /// The epoch of the image that the switch has.
    pub epoch: u64,
    /// Something was published in this step.
    pub published: bool,
    /// What the tables answered since the step before.
    pub hits: Hits,
    /// Ranges of the fat root that stands now, and nodes of each set.
    pub ranges: usize,
    /// Nodes of each set that stands now.
    pub sets: Vec<usize>,
    /// Bytes of the section.
    pub bytes: usize,
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

    fn describes(&mut self, section: &TreeSection, bytes: usize) {
        (self.ranges, self.bytes) = (section.ranges.len(), bytes);
        self.sets = section.sets.iter().map(Vec::len).collect();
    }
}

/// Reads the counters of a tree epoch by epoch.
#[derive(Debug, Default)]
struct Counter {
    /// The newest that was read, and its counters.
    last: Option<(SoftCounted, Vec<u32>)>,
}

impl Counter {
    /// What was counted since the last reading, and of which image. Counters of another image, or of a switch that was loaded again, began at 0.
    fn read(&mut self, client: &mut Client, tree: &BLinkTree) -> Result<(SoftCounted, Vec<u32>), Error> {
        let counted = client.soft_counts(name_of(tree.tree.root))?;
        let now: Vec<u32> =
            counted.counts.0.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
        let is_same = |old: &SoftCounted| {
            (old.epoch, old.life, old.edition) == (counted.epoch, counted.life, counted.edition)
        };
        let since = match &self.last {
            Some((old, before)) if is_same(old) => {
                now.iter().zip(before).map(|(now, before)| now.wrapping_sub(*before)).collect()
            }
            _ => now.clone(),
        };
        self.last = Some((counted.clone(), now));
        Ok((counted, since))
    }
}

/// Publishes a tree, and goes on to as its look-ups change.
#[derive(Debug)]
pub struct IndexAgent {
    tree: BLinkTree,
    extent: Extent,
    rates: Rates,
    counter: Counter,
    standing: Option<Standing>,
    /// The look-ups of a tree of records: they go down the same tree.
    records: Option<ProgramHash>,
}

/// What was published last.
#[derive(Debug)]
struct Standing {
    section: TreeSection,
    edition: u64,
    bytes: usize,
}

impl IndexAgent {
    /// An agent of a tree, which publishes nothing yet.
    ///
    /// # Errors
    /// [`Error::Count`] when more is asked for than a switch takes.
    pub fn new(tree: BLinkTree, extent: Extent) -> Result<Self, Error> {
        check(&extent)?;
        let (rates, counter) = (Rates::default(), Counter::default());
        Ok(Self { tree, extent, rates, counter, standing: None, records: None })
    }

    /// The tree.
    #[must_use]
    pub const fn tree(&self) -> &BLinkTree {
        &self.tree
    }

    /// What was published last, and not withdrawn.
    #[must_use]
    pub fn section(&self) -> Option<&TreeSection> {
        self.standing.as_ref().map(|standing| &standing.section)
    }

    /// One epoch: reads what the tables counted and the part of the tree that a selection may be of, selects, and publishes when nothing of this tree
    /// stands, or what stands saves less than it could by more than one visit in [`GAIN_MIN`].
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Api`] when switch or control plane do not answer, or have no room; [`Error::Contended`] when others changed the tree
    /// each time it was read; [`Error`] when it cannot be read. What stood goes on to stand, and the next step tries again.
    pub fn step(&mut self, client: &mut Client) -> Result<Stepped, Error> {
        let mut stepped = Stepped::default();
        self.count(client, &mut stepped)?;
        let view = self.tree.view(client, &self.rates, self.extent)?;
        let mut best = self.tree.select(&view, self.extent);
        let records = || record_program(client.scratch_len_max()).hash();
        best.programs.push(*self.records.get_or_insert_with(records));
        let ((saved, all), best_saved) = (self.saved(&view), visits_saved(&view, &best).0);
        stepped.weigh(&self.rates, (saved, best_saved, all));
        let gains = (u128::from(best_saved.saturating_sub(saved))) * u128::from(GAIN_MIN) > u128::from(all);
        if self.standing.is_none() || gains {
            let bytes = best.emit();
            // Until it stands nobody knows what does.
            self.standing = None;
            stepped.epoch = publish(client, std::slice::from_ref(&best))?;
            stepped.published = true;
            self.standing = Some(Standing { section: best, edition: edition(&bytes), bytes: bytes.len() });
        }
        if let Some(standing) = &self.standing {
            stepped.describes(&standing.section, standing.bytes);
        }
        Ok(stepped)
    }

    /// Withdraws the tree.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Api`] when switch or control plane do not answer.
    pub fn withdraw(&mut self, client: &mut Client) -> Result<(), Error> {
        self.standing = None;
        withdraw(client, self.tree.tree.root)
    }

    /// Takes what the tables counted. What is not there any more, or is somebody else's, is to be published again.
    fn count(&mut self, client: &mut Client, stepped: &mut Stepped) -> Result<(), Error> {
        let Some(standing) = &self.standing else { return Ok(()) };
        match self.counter.read(client, &self.tree) {
            Ok((counted, since)) if counted.edition == standing.edition => {
                stepped.epoch = counted.epoch;
                stepped.hits = Hits::of(&standing.section, &since);
                self.rates.take(&standing.section, &since);
            }
            Ok(_) => self.standing = None,
            Err(error) if error.code() == Some(ErrorCode::NotFound) => self.standing = None,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn saved(&self, view: &TreeView) -> (u64, u64) {
        let nothing =
            TreeSection { root: self.tree.tree.root, programs: vec![], ranges: vec![], sets: vec![] };
        match &self.standing {
            Some(standing) => net_saved(view, &standing.section),
            None => (0, visits_saved(view, &nothing).1),
        }
    }
}

/// Visits that a section saves, less the steps to the right that it costs where the tree has been split and merged since (Fat-B+Tree IV-B); and all of them.
fn net_saved(view: &TreeView, section: &TreeSection) -> (u64, u64) {
    let (saved, all) = visits_saved(view, section);
    (saved.saturating_sub(led_astray(view, section)), all)
}

impl Stepped {
    /// What is saved, what could be, and all visits: of rates, as millionths of a look-up.
    fn weigh(&mut self, rates: &Rates, (saved, best, all): (u64, u64, u64)) {
        let whole = u128::from(rates.whole().max(RATE_ONE));
        let ppm = |visits: u64| u64::try_from(u128::from(visits) * 1_000_000 / whole).unwrap_or(u64::MAX);
        (self.saved_ppm, self.best_ppm, self.visits_ppm) = (ppm(saved), ppm(best), ppm(all));
    }
}

/// Looks at a tree that an agent has published, from anywhere in its domain, and publishes nothing.
#[derive(Debug)]
pub struct IndexWatch {
    tree: BLinkTree,
    extent: Extent,
    counter: Counter,
}

impl IndexWatch {
    /// A watch of a tree. The best selection that [`Stepped::best_ppm`] is of has this extent.
    ///
    /// # Errors
    /// [`Error::Count`] when more is asked for than a switch takes.
    pub fn new(tree: BLinkTree, extent: Extent) -> Result<Self, Error> {
        check(&extent)?;
        Ok(Self { tree, extent, counter: Counter::default() })
    }

    /// What the tables answered since the last look, at the first one since the image stands; and what a selection would have saved that had known it. Of what
    /// lies further down than the tables lead nothing is known but the number of children.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::NotFound`] when nothing is published of the tree, or does not stand; [`Error::Contended`] when what was
    /// published changed each time it was read; others as [`IndexAgent::step`].
    pub fn look(&mut self, client: &mut Client) -> Result<Stepped, Error> {
        for _ in 0..LOOKS_MAX {
            let bytes = client.soft_section(name_of(self.tree.tree.root))?;
            let (counted, since) = self.counter.read(client, &self.tree)?;
            if counted.edition != edition(&bytes) {
                // An agent publishes just now.
                continue;
            }
            let broken = |_| Error::Broken { addr: self.tree.tree.root, what: "what is published of a tree" };
            let section = TreeTables::parse(&bytes).map_err(broken)?.section();
            let mut rates = Rates::default();
            rates.take(&section, &since);
            let view = self.tree.view(client, &rates, self.extent)?;
            let (saved, all) = net_saved(&view, &section);
            let best = visits_saved(&view, &self.tree.select(&view, self.extent)).0;
            let hits = Hits::of(&section, &since);
            let mut stepped = Stepped { epoch: counted.epoch, hits, ..Stepped::default() };
            stepped.describes(&section, bytes.len());
            stepped.weigh(&rates, (saved, best, all));
            return Ok(stepped);
        }
        Err(Error::Contended { what: "what is published of a tree".into(), tries: LOOKS_MAX })
    }
}

/// How often a look is taken when an agent publishes meanwhile.
const LOOKS_MAX: u32 = 8;
