//! What memory nodes run programs with: machine code, or the interpreter, to compare.
//!
//! [`Compiler`] joins a node's [`Compile`] to the engine's [`Jit`]. The node asks it once for each program that it learns. A program
//! that cannot be compiled is interpreted, which the node notes: it does the same, several times slower.

use farmem_engine::{Compiled, Jit};
use farmem_memnode::{Compile, Logic};
use farmem_traversal::{Program, Step};
use farmem_wire::VirtAddr;
use std::sync::Arc;

/// Programs whose code the compiler keeps for itself: those that run are kept by the node, up to
/// [`PROGRAMS_MAX`](farmem_memnode::PROGRAMS_MAX) and as many as are under way.
const KEPT: usize = 1;

/// Makes of programs what a memory node runs.
#[derive(Debug)]
pub struct Compiler(Backend);

#[derive(Debug)]
enum Backend {
    Machine(Box<Jit>),
    /// This machine has no compiler.
    NoMachine,
    Interpreter,
}

impl Compiler {
    /// Compiles programs to machine code where the engine can make it for this machine.
    #[must_use]
    pub fn jit() -> Self {
        Self(Jit::new(KEPT).map_or(Backend::NoMachine, |jit| Backend::Machine(Box::new(jit))))
    }

    /// Interprets programs, to compare.
    #[must_use]
    pub const fn interpreter() -> Self {
        Self(Backend::Interpreter)
    }
}

impl Compile for Compiler {
    type Logic = Running;

    fn compile(&mut self, program: &Program) -> Running {
        let compiled = match &mut self.0 {
            Backend::Machine(jit) => jit.compile(program).ok(),
            Backend::NoMachine => None,
            Backend::Interpreter => {
                return Running(Form::Interpreted { program: program.clone(), fell_back: false });
            }
        };
        let interpreted = || Form::Interpreted { program: program.clone(), fell_back: true };
        Running(compiled.map_or_else(interpreted, Form::Compiled))
    }
}

/// A program as a memory node runs it.
#[derive(Debug)]
pub struct Running(Form);

#[derive(Debug)]
enum Form {
    Compiled(Arc<Compiled>),
    Interpreted { program: Program, fell_back: bool },
}

impl Running {
    /// Whether it runs as machine code.
    #[must_use]
    pub const fn is_compiled(&self) -> bool {
        matches!(self.0, Form::Compiled(_))
    }
}

impl Logic for Running {
    #[inline]
    fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        match &self.0 {
            Form::Compiled(compiled) => compiled.step(window, cur_ptr, scratch),
            Form::Interpreted { program, .. } => program.step(window, cur_ptr, scratch),
        }
    }

    fn step_storing(&self, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        match &self.0 {
            Form::Compiled(compiled) => compiled.step_storing(window, cur_ptr, scratch),
            Form::Interpreted { program, .. } => program.step_storing(window, cur_ptr, scratch),
        }
    }

    fn fell_back(&self) -> bool {
        matches!(self.0, Form::Interpreted { fell_back: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        Program::assemble(".window 8\n.scratch 8\n ld8 r2, window[0]\n st8 scratch[0], r2\n next r2").unwrap()
    }

    /// Both ways run it alike, and say which they are. A machine without a compiler interprets, and says that it was not meant to.
    #[test]
    fn a_program_runs_whichever_way_there_is() {
        let ways = [Compiler::jit(), Compiler::interpreter(), Compiler(Backend::NoMachine)];
        let said = ways.map(|mut compiler| {
            let running = compiler.compile(&program());
            let (mut cur_ptr, mut scratch) = (VirtAddr(1), [0; 8]);
            assert_eq!(running.step(&[7; 8], &mut cur_ptr, &mut scratch), Step::Next);
            assert_eq!((cur_ptr, scratch), (VirtAddr(0x0707_0707_0707_0707), [7; 8]));
            (running.is_compiled(), running.fell_back())
        });
        assert_eq!(said, [(true, false), (false, false), (false, true)]);
    }
}
