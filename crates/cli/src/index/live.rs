//! `farmem index agent` and `farmem index top`: a published tree, epoch by epoch.

use crate::args::{IndexLive, Switches};
use crate::output::{self, Report};
use crate::{End, Failure};
use farmem::api::{ErrorCode, Tier};
use farmem::blink_tree::{
    Extent, IndexAgent, IndexWatch, Layer as Answered, SOFT_IMAGE_MAX, Stepped, Target,
};
use farmem::{BLinkTree, Client, Error, Layout, Rack, VirtAddr};
use farmem_workload::to_f64;
use serde::Serialize;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

/// An epoch of a published tree.
#[derive(Serialize)]
struct Epoch {
    /// Of the image that the switch has; of a FatTree, the core.
    epoch: u64,
    /// The agent has published in this epoch.
    published: bool,
    /// Look-ups and scans that the tables led.
    queries: u64,
    layers: Vec<Layer>,
    /// Switches that have a part of the tree.
    switches: usize,
    /// Of the image of all trees of the rack; where several switches have one, of the longest.
    image_bytes: Used,
    /// Visits of inner nodes of a look-up: without an index, of these what the tables save, and what a selection for just these look-ups would.
    visits: f64,
    saved: f64,
    best: f64,
    /// The part of what could be saved that is not.
    drift: f64,
}

/// A fat root, or a set.
#[derive(Serialize)]
struct Layer {
    layer: String,
    /// Look-ups that it took a step further.
    hits: u64,
    /// Of all. None when there were no look-ups.
    share: Option<f64>,
    entries: Used,
}

/// How much of something is in use.
#[derive(Clone, Copy, Serialize)]
struct Used {
    used: usize,
    most: usize,
}

impl Epoch {
    fn new(args: &IndexLive, stepped: &Stepped, image: u32) -> Self {
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

/// Publishes a tree and follows it, until Ctrl-C.
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
    // A client that leaves takes it back, too; but the user who ends an agent wants to know that it is done.
    let withdrawn = agent.withdraw(&mut client);
    ended?;
    withdrawn?;
    Ok(End::Fine)
}

/// Shows what a published tree answers, until Ctrl-C.
pub(crate) fn top(args: &IndexLive) -> Result<End, Failure> {
    let stop = on_interrupt()?;
    let mut client = Rack::open(&args.rack)?.client(&args.domain)?;
    let target = target(&mut client, args)?;
    let mut watch = IndexWatch::at(open(&mut client, args)?, extent(args, target), target)?;
    // What was counted before is of another time.
    watch.look(&mut client)?;
    follow(args, &stop, || {
        let stepped = watch.look(&mut client)?;
        output::print(&Epoch::new(args, &stepped, image(&mut client, &stepped)?), args.json);
        Ok(())
    })?;
    Ok(End::Fine)
}

/// Does it after every epoch, or once. What passes by itself is said and tried again.
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

/// Roles that start again, and others that publish or write meanwhile, are no reason to end.
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
        // A second Ctrl-C while stopping finds no listener, which is fine.
        let _already_stopped = ask_to_stop.send(());
    })
    .map_err(|e| Failure::environment(format!("cannot catch Ctrl-C: {e}"), ""))?;
    Ok(stop)
}

/// Which switches lead look-ups here.
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

/// Bytes of the longest image that has a part of the tree.
fn image(client: &mut Client, stepped: &Stepped) -> Result<u32, Error> {
    let mut longest = 0;
    for &switch in &stepped.switches {
        longest = longest.max(client.soft_shown_at(switch)?.bytes);
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
