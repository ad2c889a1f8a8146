//! `fat.load.*`: the time to load the switch's index, and its effect on concurrent look-ups (Fat-B+Tree II:
//! the index is loaded while queries run).

use super::store::{DOMAIN, LookupPath, Store};
use crate::{Row, Samples};
use farmem::blink_tree::{Extent, publish};
use farmem::{Error, Rack};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Measures the paper's index, loaded repeatedly by one client while another looks keys up.
pub(super) fn measure(store: &mut Store, rack: &Rack, draw: &[u64], quick: bool) -> Result<Vec<Row>, Error> {
    let loads = if quick { 2 } else { 20 };
    store.publish(Extent::default())?;
    // Two sections alternate, because a section that stands is not loaded again.
    let usual = Extent::default();
    let sections = [store.section(Extent { nodes: usual.nodes - 1, ..usual })?, store.section(usual)?];
    let numbers = draw.iter().copied().cycle();
    let (mut quiet, mut beside, mut time) = (Samples::new(), Samples::new(), Samples::new());
    let look_ups = if quick { 500 } else { 20_000 };
    for number in numbers.clone().take(look_ups) {
        quiet.time(|| store.get(number, LookupPath::Index))?;
    }
    let config = rack.config().expect("a rack of processes has a description");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let mut load = || {
                let mut loader = Rack::running(config.clone()).client(DOMAIN)?;
                sections.iter().cycle().take(loads).try_for_each(|section| {
                    time.time(|| publish(&mut loader, core::slice::from_ref(section)).map(|_epoch| ()))
                })
            };
            let done = load();
            ended.store(true, Ordering::Release);
            done
        });
        for number in numbers {
            if ended.load(Ordering::Acquire) {
                break;
            }
            beside.time(|| store.get(number, LookupPath::Index))?;
        }
        loading.join().expect("the loader does not panic")
    })?;
    store.withdraw()?;
    let p99 = |samples: &Samples| samples.quantile(0.99);
    Ok(vec![
        time.row("fat.load.time", None),
        Row::figure("fat.load.p99", "ns", p99(&beside), beside.len()).beside(Some(p99(&quiet))),
    ])
}
