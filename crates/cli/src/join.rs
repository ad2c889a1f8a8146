//! `farmem join`: prints the join file for another machine.

use crate::args::Join;
use crate::outcome::{End, Failure};
use crate::output;
use farmem::RackConfig;

pub(crate) fn run(args: &Join) -> Result<End, Failure> {
    let config = RackConfig::load(&args.rack)?;
    let join = config.join()?;
    if args.json {
        output::print_json(&join);
    } else {
        output::write_out(&join.text(&config.name));
    }
    Ok(End::Fine)
}
