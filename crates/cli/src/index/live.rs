//! `farmem index agent` and `farmem index top`: a published tree, epoch by epoch.

use crate::args::{IndexLive, Switches};
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use farmem::api::{ErrorCode, Tier};
use farmem::blink_tree::{
    EpochReport, Extent, IndexAgent, IndexWatch, Layer as Answered, SOFT_IMAGE_MAX, Target,
};
use farmem::{BLinkTree, Client, Error, Layout, Rack, VirtAddr};
use farmem_workload::to_f64;
use serde::Serialize;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

/// Report of an epoch of a published tree.
#[derive(Serialize)]
struct Epoch {
    /// Epoch of the switch's image. In a FatTree, the epoch of the core's image.
    epoch: u64,
    /// True when the agent published in this epoch.
    published: bool,
    /// Number of look-ups and scans that the tables led.
    queries: u64,
    layers: Vec<Layer>,
    /// Number of switches that hold a part of the tree.
    switches: usize,
    /// Length of the image of all trees in the rack. With several switches, the length of the longest image.
    image_bytes: Used,
    /// Visits of inner nodes per look-up: without an index. `saved` is the number that the tables save,
    /// `best` the number that the best selection for exactly these look-ups saves.
    visits: f64,
    saved: f64,
    best: f64,
    /// Share of the possible savings that the tables miss.
    drift: f64,
}

/// Fat root, or a node set.
#[derive(Serialize)]
struct Layer {
    layer: String,
    /// Number of look-ups that the layer led one step further.
    hits: u64,
    /// Share of all look-ups. `None` without look-ups.
    share: Option<f64>,
    entries: Used,
}

/// Used part of a resource, and its total.
#[derive(Clone, Copy, Serialize)]
struct Used {
    used: usize,
    most: usize,
}

impl Epoch {
    fn new(args: &IndexLive, stepped: &EpochReport, image: u32) -> Self {
        let queries = stepped.hits.queries;
        let layer = |(n, layer): (usize, &Answered)| {
            let share = (queries > 0).then(|| to_f64(layer.hits) / to_f64(queries));
            let most = if n == 0 { args.ranges } else { args.nodes * layer.switches };
            let entries = Used { used: layer.entries, most };
            Layer { layer: layer.name.clone(), hits: layer.hits, share, entries }
        };
        let layers = stepped.layers.iter().enumerate().map(layer).collect();
        let a_look_up = |ppm: u64| to_f64(ppm) / 1e6;
        Self {
            epoch: stepped.epoch,
            published: stepped.published,
            queries,
            layers,
            switches: stepped.switches.len(),
            image_bytes: Used { used: image as usize, most: SOFT_IMAGE_MAX as usize },
            visits: a_look_up(stepped.visits_ppm),
            saved: a_look_up(stepped.saved_ppm),
            best: a_look_up(stepped.best_ppm),
            drift: 1.0 - stepped.of_best(),
        }
    }
}

impl Report for Epoch {
    fn text(&self) -> String {
        let count = |n: usize| output::count(u64::try_from(n).unwrap_or(u64::MAX));
        let of = |used: Used| format!("{} of {}", count(used.used), count(used.most));
        let published = if self.published { ", published just now" } else { "" };
        let rows: Vec<Vec<String>> = self
            .layers
            .iter()
            .map(|layer| {
                let share =
                    layer.share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
                vec![layer.layer.clone(), output::count(layer.hits), share, of(layer.entries)]
            })
            .collect();
        let at = if self.switches > 1 { format!(" at {} switches", self.switches) } else { String::new() };
        format!(
            "image {}{published}{at}, {} bytes\n{}visits of inner nodes a look-up: {:.2}, saved {:.2}, at best {:.2}; drift {:.1} %\n",
            self.epoch,
            of(self.image_bytes),
            output::table(&["layer", "look-ups", "share", "entries"], &rows),
            self.visits,
            self.saved,
            self.best,
            100.0 * self.drift
        )
    }
}

/// Publishes a tree and updates the published nodes until Ctrl-C.
pub(crate) fn agent(args: &IndexLive) -> Result<End, Failure> {
    let stop = on_interrupt()?;
    let mut client = Rack::open(&args.rack)?.client(&args.domain)?;
    let target = target(&mut client, args)?;
    let mut agent = IndexAgent::at(open(&mut client, args)?, extent(args, target), target)?;
    let report = |agent: &mut IndexAgent, client: &mut Client| -> Result<(), Error> {
        let stepped = agent.step(client)?;
        output::print(&Epoch::new(args, &stepped, image(client, &stepped)?), args.json);
        Ok(())
    };
    report(&mut agent, &mut client)?;
    let ended = follow(args, &stop, || report(&mut agent, &mut client));
    // A leaving client also withdraws the tree. The explicit call reports errors to the user of the agent.
    let withdrawn = agent.withdraw(&mut client);
    ended?;
    withdrawn?;
    Ok(End::Fine)
}

/// Shows the statistics of a published tree until Ctrl-C.
pub(crate) fn top(args: &IndexLive) -> Result<End, Failure> {
    let stop = on_interrupt()?;
    let mut client = Rack::open(&args.rack)?.client(&args.domain)?;
    let target = target(&mut client, args)?;
    let mut watch = IndexWatch::at(open(&mut client, args)?, extent(args, target), target)?;
    // Earlier counts belong to another epoch.
    watch.look(&mut client)?;
    follow(args, &stop, || {
        let stepped = watch.look(&mut client)?;
        output::print(&Epoch::new(args, &stepped, image(&mut client, &stepped)?), args.json);
        Ok(())
    })?;
    Ok(End::Fine)
}

/// Calls `once` after every epoch, or one time. A temporary error is printed, and the next epoch tries again.
fn follow(
    args: &IndexLive,
    stop: &Receiver<()>,
    mut each: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    loop {
        match stop.recv_timeout(args.epoch) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match each() {
            Err(error) if passes(&error) && !args.once => {
                output::note(&format!("farmem: {error}; tried again in {} ms", args.epoch.as_millis()));
            }
            ended if args.once => return ended,
            ended => ended?,
        }
    }
}

/// Returns true for temporary errors: roles that restart, and other programs that publish or write.
fn passes(error: &Error) -> bool {
    match error {
        Error::Contended { .. } | Error::Unreachable { .. } | Error::Interrupted | Error::Api { .. } => true,
        _ => matches!(
            error.code(),
            Some(ErrorCode::Unavailable | ErrorCode::Conflict | ErrorCode::TableFull | ErrorCode::NotFound)
        ),
    }
}

fn on_interrupt() -> Result<Receiver<()>, Failure> {
    let (ask_to_stop, stop) = channel();
    farmem_workload::on_interrupt(move || {
        // A second Ctrl-C during the stop finds no listener, which is fine.
        let _already_stopped = ask_to_stop.send(());
    })
    .map_err(|e| Failure::environment(format!("cannot catch Ctrl-C: {e}"), ""))?;
    Ok(stop)
}

/// Returns the switches that lead look-ups in this rack.
fn target(client: &mut Client, args: &IndexLive) -> Result<Target, Error> {
    Ok(match args.at {
        Some(Switches::RackSwitch) => Target::RackSwitch,
        Some(Switches::FatTree) => Target::FatTree,
        None if client.overview()?.index.iter().any(|info| info.tier == Tier::Core) => Target::FatTree,
        None => Target::RackSwitch,
    })
}

fn extent(args: &IndexLive, target: Target) -> Extent {
    let usual = match target {
        Target::RackSwitch => Extent::default(),
        Target::FatTree => Extent::FAT_TREE,
    };
    Extent { ranges: args.ranges, sets: args.sets.unwrap_or(usual.sets), nodes: args.nodes }
}

/// Returns the length of the longest image with a part of the tree, in bytes.
fn image(client: &mut Client, stepped: &EpochReport) -> Result<u32, Error> {
    let mut longest = 0;
    for &switch in &stepped.switches {
        longest = longest.max(client.soft_shown(switch)?.bytes);
    }
    Ok(longest)
}

fn open(client: &mut Client, args: &IndexLive) -> Result<BLinkTree, Failure> {
    let number = match args.root.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => args.root.parse().ok(),
    };
    let address = match number {
        Some(address) => VirtAddr(address),
        None => {
            let named = client.open_named(&args.root)?;
            let mut word = [0; 8];
            if named.length < 8 {
                let message = format!("{:?} has {} bytes, an address has 8", args.root, named.length);
                return Err(Failure::environment(message, "write the tree's address there, little-endian"));
            }
            client.read(named.base, &mut word)?;
            VirtAddr(u64::from_le_bytes(word))
        }
    };
    Ok(BLinkTree::open(client, address, Layout::Partitioned)?)
}
