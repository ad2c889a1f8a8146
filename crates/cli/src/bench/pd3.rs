//! `farmem bench pd3`.

use super::Screen;
use super::pulse::{OwnRacks, look_at_plots};
use crate::args::BenchPd3;
use crate::{End, Failure};
use farmem::{LinkProfile, Transport};
use farmem_bench::pd3::{KEYS_MIN, run as measure};

pub(crate) fn run(args: &BenchPd3) -> Result<End, Failure> {
    let BenchPd3 { rows, keys, plots } = args;
    look_at_plots(plots.as_deref())?;
    if keys.is_some_and(|keys| keys < KEYS_MIN) {
        let remedy = format!("choose {KEYS_MIN} or more");
        return Err(Failure::environment("--keys is too small to measure anything", remedy));
    }
    let plan = rows.plan();
    let screen = Screen::begin("pd3", rows.json, LinkProfile::NONE);
    let mut racks = OwnRacks { transport: Transport::Shm, link: LinkProfile::NONE };
    let outcome = measure(&plan, *keys, plots.as_deref(), &mut racks, |told| screen.hear(told))?;
    screen.end(&plan.only, outcome)
}
