//! The cost of an iteration and the decision to offload it, as a table or as JSON (PULSE 4.1; PROTOCOL
//! 10.16).

use crate::Compiled;
use farmem_traversal::{Accelerator, Area, Eta, Insn, SLOTS_MAX};
use serde::Serialize;
use std::collections::BTreeMap;

/// The cost of one program on one accelerator.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Explanation {
    /// Name of the iterator.
    pub name: String,
    /// Name of the program: the first 16 bytes of the SHA-256 of its encoding, in hex.
    pub hash: String,
    /// Bytes of the LOAD.
    pub window_bytes: usize,
    /// Memory lines of 64 bytes in the LOAD.
    pub window_lines: usize,
    /// Bytes of the scratch pad.
    pub scratch_bytes: usize,
    /// Number of instructions.
    pub instructions: usize,
    /// Instructions on the longest path: PULSE's N.
    pub longest_path: usize,
    /// The source line with the most instructions on that path; `None` if the object has no lines.
    pub dearest_line: Option<CostliestLine>,
    /// Loads and stores of local variables without a register.
    pub spills: usize,
    /// Free slots for more instructions.
    pub slots_left: usize,
    /// Stores to the node, which change far memory; `None` in a program that declares none.
    pub stores: Option<usize>,
    /// RANK and MATCH instructions.
    pub searches: usize,
    /// Indexed accesses, which the engine checks at run time.
    pub indexed_accesses: usize,
    /// Bytes of the encoded program.
    pub code_bytes: usize,
    /// BPF instructions of the source object.
    pub bpf_instructions: usize,
    /// t_c: the logic of the longest path, in picoseconds.
    pub logic_ps: u64,
    /// t_d: the load, in picoseconds.
    pub load_ps: u64,
    /// t_c / t_d.
    pub ratio: f64,
    /// The verdict: t_c <= eta * t_d.
    pub offload: bool,
}

/// A source line with its share of the longest path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CostliestLine {
    /// Name of the file in the object.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u32,
    /// Number of instructions, with RANK and MATCH weighted as on the whole path.
    pub instructions: u64,
}

/// Computes the cost of a program on an accelerator with this eta.
#[must_use]
pub fn explain(compiled: &Compiled, accelerator: &Accelerator, eta: Eta) -> Explanation {
    let program = &compiled.program;
    let cost = program.cost(accelerator);
    let stored = |insn: &Insn| {
        matches!(insn, Insn::Store { to: farmem_traversal::MemOperand { area: Area::Window, .. }, .. })
    };
    let searches = program.instructions().filter(|insn| matches!(insn, Insn::Search { .. }));
    let places = program.instructions().filter_map(|insn| insn.access());
    let indexed = places.filter(|(_, place)| place.index.is_some());
    let spills = program
        .instructions()
        .filter_map(|insn| insn.access())
        .filter(|(_, place)| place.area == Area::Spill);
    Explanation {
        name: compiled.name.clone(),
        hash: program.hash().0.iter().map(|byte| format!("{byte:02x}")).collect(),
        window_bytes: program.window_len(),
        window_lines: program.lines(),
        scratch_bytes: program.scratch_len(),
        instructions: program.instructions().len(),
        longest_path: usize::from(program.longest_path()),
        dearest_line: costliest_line(compiled),
        spills: spills.count(),
        slots_left: SLOTS_MAX - program.instructions().map(|insn| insn.slots()).sum::<usize>(),
        stores: program.stores().then(|| program.instructions().filter(stored).count()),
        searches: searches.count(),
        indexed_accesses: indexed.count(),
        code_bytes: program.encoded().len(),
        bpf_instructions: compiled.bpf_instructions,
        logic_ps: cost.logic_ps,
        load_ps: cost.load_ps,
        ratio: ratio(cost.logic_ps, cost.load_ps),
        offload: cost.offload(eta),
    }
}

/// Returns the line with the most instructions on the longest path; the first of equal ones.
fn costliest_line(compiled: &Compiled) -> Option<CostliestLine> {
    let mut lines = BTreeMap::new();
    for (number, insn) in compiled.program.on_longest_path() {
        if let Some(line) = compiled.lines.get(number).and_then(Option::as_ref) {
            *lines.entry(line).or_insert(0) += u64::from(insn.weight());
        }
    }
    let (line, instructions) = lines.into_iter().rev().max_by_key(|(_, instructions)| *instructions)?;
    Some(CostliestLine { file: line.file.clone(), line: line.number, instructions })
}

#[expect(clippy::cast_precision_loss, reason = "for people's eyes; the verdict is computed exactly")]
fn ratio(logic_ps: u64, load_ps: u64) -> f64 {
    logic_ps as f64 / (load_ps as f64).max(1.0)
}
