//! `farmem bench net`.
use super::{Results, machine::Machine};
use crate::args::BenchNet;
use crate::output;
use crate::{End, Failure};

pub(crate) fn run(args: &BenchNet) -> Result<End, Failure> {
    let mut machine = Machine::begin();
    machine.end();
    output::print(&Results { bench: "net", machine, rows: Vec::new() }, args.json);
    Ok(End::Fine)
}
