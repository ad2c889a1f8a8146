//! `farmem join`: prints the join file for another machine.

use crate::args::Join;
use crate::{End, Failure, output};
use farmem::RackConfig;

pub(crate) fn run(args: &Join) -> Result<End, Failure> {
    let config = RackConfig::load(&args.rack)?;
    output::write_out(&config.join()?.text(&config.name));
    Ok(End::Fine)
}
