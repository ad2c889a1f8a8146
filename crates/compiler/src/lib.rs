//! The compiler from C and C++ to traversal programs: stock clang's BPF object in, a verified [`Program`] out
//! (PULSE 4.1, "Translating iterator code to PULSE ISA"; docs/iterators.md).
//!
//! [`clang::compile`] runs clang on a source file; [`compile`] translates the object:
//!
//! - The control-flow graph without cycles is laid out so that every jump leads ahead.
//! - Pointers into window, scratch pad and stack become locations in these areas.
//! - The function's result becomes NEXT_ITER or RETURN.
//!
//! The compiler refuses code that it cannot translate; the error has the source line and a way out. No role
//! trusts a compiled program: each verifies it as one from the wire.
#![forbid(unsafe_code)]

pub mod clang;

mod bpf;
mod elf;
mod error;
mod explain;
mod graph;
mod layout;
mod lines;
mod live;
mod lower;
mod value;

pub use error::{CompileError, Line, SourceLocation, Unsupported};
pub use explain::{CostliestLine, Explanation, explain};
pub use farmem_traversal::{Accelerator, Cost, Eta};

use farmem_traversal::{Program, SCRATCH_LEN_MAX, VerifyError, WINDOW_LEN_MAX};
use lines::{Lines, Sections};
use std::fmt::Write as _;

/// A translated iterator.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Name of the iterator.
    pub name: String,
    /// The program.
    pub program: Program,
    /// Declared bytes of the node. The load window may be longer if a flexible array ends the structure.
    pub node_bytes: Option<usize>,
    /// Number of BPF instructions.
    pub bpf_instructions: usize,
    /// The source line of each instruction of the program, if the object has it.
    pub lines: Vec<Option<Line>>,
}

/// Translates one iterator of a BPF object: the named one, or the only one.
///
/// # Errors
/// [`CompileError`]: no object, no such iterator, or the first construct without a counterpart in the
/// instruction set.
pub fn compile(object: &[u8], iterator: Option<&str>) -> Result<Compiled, CompileError> {
    let elf = elf::parse(object)?;
    let iterator = elf::iterator(&elf, iterator)?;
    let sections = Sections::of(&elf);
    let lines = Lines::of(&sections);
    let name = &iterator.name;
    let line = |slot: usize| lines.find(iterator.section, iterator.start + slot as u64 * 8);
    let refuse = |why| CompileError::Program { name: name.clone(), why };
    check_sizes(iterator.sizes).map_err(refuse)?;
    let translated = translate(&iterator).map_err(|(slot, why)| CompileError::At {
        // An instruction that clang merged from several lines has no line; the previous one is close enough.
        place: SourceLocation {
            iterator: name.clone(),
            instruction: slot,
            line: (0..=slot).rev().find_map(line),
        },
        why,
    })?;
    let (insns, slots): (Vec<_>, Vec<_>) = translated.insns.into_iter().unzip();
    let stores = iterator.sizes.is_some_and(|sizes| sizes.stores);
    let make = if stores { Program::storing_from_instructions } else { Program::from_instructions };
    let program = make(translated.window_len, translated.scratch_len, insns);
    Ok(Compiled {
        name: name.clone(),
        program: program.map_err(refuse)?,
        node_bytes: iterator.sizes.map(|sizes| sizes.window),
        bpf_instructions: translated.bpf_instructions,
        lines: slots.into_iter().map(line).collect(),
    })
}

/// Returns the names of the iterators in a BPF object.
///
/// # Errors
/// [`CompileError::Object`]
pub fn iterators(object: &[u8]) -> Result<Vec<String>, CompileError> {
    elf::parse(object).map(|elf| elf::names(&elf))
}

impl Compiled {
    /// Returns the text form, with the source lines as comments. It assembles to the same program.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("; {}\n", self.name);
        let mut lines = self.lines.iter();
        let mut shown = None;
        for row in self.program.disassemble().lines() {
            let line = if row.starts_with(' ') { lines.next().and_then(Option::as_ref) } else { None };
            match line.filter(|line| shown != Some(*line)) {
                Some(line) => {
                    writeln!(text, "{row:40}; {line}").expect("a string takes everything");
                    shown = Some(line);
                }
                None => writeln!(text, "{row}").expect("a string takes everything"),
            }
        }
        text
    }
}

/// Repeats the header's checks, for objects made without it.
fn check_sizes(sizes: Option<elf::Sizes>) -> Result<(), VerifyError> {
    match sizes {
        Some(sizes) if sizes.window > WINDOW_LEN_MAX => Err(VerifyError::WindowLen(sizes.window)),
        Some(sizes) if sizes.scratch > SCRATCH_LEN_MAX => Err(VerifyError::ScratchLen(sizes.scratch)),
        _ => Ok(()),
    }
}

struct Translated {
    window_len: usize,
    scratch_len: usize,
    bpf_instructions: usize,
    insns: Vec<(farmem_traversal::Insn, usize)>,
}

fn translate(iterator: &elf::Iterator<'_>) -> Result<Translated, bpf::Refused> {
    let ops = bpf::decode(iterator.code, &iterator.references)?;
    let blocks = graph::blocks(&ops);
    let order = graph::ordered(&blocks)?;
    let (codes, order, reach) = lower::lower(&ops, &blocks, &order, iterator.sizes)?;
    Ok(Translated {
        window_len: reach.window_len(iterator.sizes),
        scratch_len: reach.scratch_len(iterator.sizes),
        bpf_instructions: ops.len(),
        insns: layout::lay_out(codes, &order),
    })
}

#[cfg(test)]
mod tests;
